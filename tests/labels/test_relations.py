"""Relations: what comes with the package, what loads, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import pytest

import mechheads
from mechheads.labels.relations import (
    CATEGORIES,
    Relation,
    WordList,
    load_relations,
    relation_names,
    usable_pairs,
)

FACTS = {
    "word_to_antonym": [("hot", "cold"), ("buy", "sell"), ("victory", "defeat")],
    "word_to_synonym": [("car", "automobile"), ("begin", "start"), ("perhaps", "maybe")],
    "adjective_to_superlative": [("good", "best"), ("big", "biggest"), ("easy", "easiest")],
    "noun_to_pronoun": [("king", "he"), ("mother", "she"), ("table", "it")],
    "word_to_homophone": [("sea", "see"), ("their", "there"), ("knight", "night")],
    "word_to_compound": [("sun", "sunlight"), ("foot", "football"), ("tooth", "toothbrush")],
    "object_to_superclass": [("apple", "fruit"), ("hammer", "tool"), ("piano", "instrument")],
    "product_by_company": [("iPhone", "Apple"), ("Photoshop", "Adobe"), ("Corolla", "Toyota")],
    "work_to_location": [("teacher", "school"), ("chef", "restaurant"), ("farmer", "farm")],
    "copying": [("apple", "apple"), ("yellow", "yellow")],
    "word_to_last_letter": [("book", "k"), ("Iraq", "q"), ("quiz", "z")],
    "year_to_following": [("1980", "1981"), ("1999", "2000"), ("1800", "1801")],
    "country_to_capital": [("France", "Paris"), ("Australia", "Canberra"), ("Kenya", "Nairobi")],
    "country_to_language": [("Brazil", "Portuguese"), ("Egypt", "Arabic"), ("Vietnam", "Vietnamese")],
    "name_copying": [("Mary", "Mary")],
    "word_to_first_letter": [("knife", "k")],
    "adjective_to_comparative": [("big", "bigger"), ("happy", "happier"), ("good", "better")],
    "verb_to_past_tense": [("go", "went"), ("teach", "taught"), ("stop", "stopped")],
    "english_to_french": [("bread", "pain"), ("tail", "queue"), ("water", "eau")],
    "english_to_spanish": [("eleven", "once"), ("sleeve", "manga"), ("house", "casa")],
}


def test_the_twenty_relations_of_the_paper_come_with_the_package() -> None:
    relations = load_relations()
    assert tuple(relation.name for relation in relations) == relation_names() == tuple(sorted(FACTS))
    categories = [relation.category for relation in relations]
    counts = {category: categories.count(category) for category in CATEGORIES}
    assert counts == {"Knowledge": 5, "Linguistic": 8, "Algorithmic": 5, "Translation": 2}
    assert [relation.name for relation in relations if relation.copying] == ["copying", "name_copying"]


@pytest.mark.parametrize("name", sorted(FACTS))
def test_the_packages_relations_are_sound(name: str) -> None:
    relation = Relation.load(name)
    sources = [source for source, _ in relation.pairs]
    assert set(FACTS[name]) <= set(relation.pairs)
    assert len(sources) == len(set(sources)) >= 110
    assert "mechheads" in relation.source
    if relation.copying:
        assert all(source == target for source, target in relation.pairs)
    else:
        assert all(source != target for source, target in relation.pairs)
    if relation.category == "Translation":
        assert len(sources) >= 200
    assert len(relation.few_shot) == 2
    assert all(re.search(r"\w \{target\}|[:>=] \{target\}", template) for template in relation.few_shot)


def test_every_relation_keeps_thirty_single_token_pairs_in_the_default_model(model: mechheads.Model) -> None:
    def one(word: str) -> bool:
        return len(model.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) == 1

    kept = {
        relation.name: sum(one(source) and one(target) for source, target in relation.pairs)
        for relation in load_relations()
    }
    assert kept.pop("year_to_following") == 0  # this tokenizer cuts numbers into digits
    assert min(kept.values()) >= 30, kept


def test_a_relation_file_gives_all_its_fields(tmp_path: Path) -> None:
    fields: dict[str, Any] = {
        "name": "colours",
        "category": "Sight",
        "copying": False,
        "source": "looked",
        "pairs": [["grass", "vert"], ["ciel", "été"]],
    }
    file = tmp_path / "any.json"
    file.write_text(json.dumps(fields), encoding="utf-8")
    loaded = Relation.load(file)
    assert loaded == Relation("colours", "Sight", [("grass", "vert"), ("ciel", "été")], source="looked")
    assert loaded.fingerprint != Relation("colours", "Sight", [("grass", "vert")]).fingerprint
    assert hash(loaded) == hash(Relation.load(file))


def test_names_paths_and_objects_can_be_mixed(tmp_path: Path) -> None:
    file = tmp_path / "mine.json"
    file.write_text('{"name": "mine", "pairs": [["a", 1]]}', encoding="utf-8")
    mixed = load_relations(["name_copying", file, Relation("other", "Knowledge", [("c", "d")])])
    assert [relation.name for relation in mixed] == ["name_copying", "mine", "other"]
    assert mixed[1].pairs == (("a", "1"),)
    assert load_relations("name_copying") == load_relations(["name_copying"])


ENGLISH = WordList("english", ["Pain", "journal ", "error"])
SYNONYMS = Relation("synonyms", "Linguistic", [("Mistake", "Error"), ("cat", "chat")])
FRENCH = Relation(
    "french",
    "Translation",
    [("bread", "pain"), ("newspaper", "Journal"), ("mistake", "error"), ("dog", "chien"), ("tea", "the thé")],
    rivals=[SYNONYMS, ENGLISH],
)


def test_rivals_explain_pairs_and_targets_in_any_case() -> None:
    assert FRENCH.explained == {
        "synonyms": (("mistake", "error"),),
        "english": (("bread", "pain"), ("newspaper", "Journal"), ("mistake", "error")),
    }
    alone = dataclasses.replace(FRENCH, rivals=())
    assert alone.explained == {}
    assert alone.fingerprint != FRENCH.fingerprint
    assert dataclasses.replace(FRENCH, rivals=[WordList("none of it", ["perhaps"])]).fingerprint == alone.fingerprint
    assert alone.fingerprint == Relation("other", None, FRENCH.pairs).fingerprint


class Words:
    """A tokenizer with one token a word."""

    unk_token_id = None

    def __call__(self, text: str, **options: Any) -> dict[str, list[int]]:
        return {"input_ids": [len(word) for word in text.replace(":", ": ").split()]}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [str(one) for one in ids]


def test_the_ledger_counts_what_each_rival_explains() -> None:
    [kept] = usable_pairs([FRENCH], Words(), min_pairs=0)
    assert kept.pairs == [("dog", "chien")]
    assert kept.ledger() == {
        "given": 5,
        "kept": 1,
        "scored": True,
        "lost": {
            "explained by english": ["bread -> pain", "newspaper -> Journal"],
            "explained by synonyms and english": ["mistake -> error"],
            "target of several tokens": ["tea -> the thé"],
        },
        "explained": {"synonyms": 1, "english": 3},
    }
    with pytest.raises(ValueError, match=r"this model's vocabulary; english explains 2, so nothing can be scored"):
        usable_pairs([dataclasses.replace(FRENCH, pairs=FRENCH.pairs[:2])], Words())


def with_templates(**templates: Any) -> Relation:
    return Relation("r", "Knowledge", [("a", "b")], **templates)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Relation.load("capitals"),
            r"no relation 'capitals'.*country_to_capital, country_to_language",
        ),
        (lambda: load_relations(["name_copying"] * 2), "'name_copying' twice; give each relation its own name"),
        (lambda: Relation("r", "Knowledge", [("a", "b", "c")]), r"has the pair \('a', 'b', 'c'\)"),
        (lambda: Relation("r", "Unclassified", [("a", "b")]), "category of relation 'r'"),
        (lambda: Relation("r", [("a", "b")]), "category of relation 'r' is a list; give a name, and pairs as pairs="),
        (lambda: Relation("r", None, [("a", "b")], copying="no"), "copying is 'no'; give True or False"),
        (lambda: with_templates(few_shot=["from {source}"]), r"must contain \" \{target\}\".*after"),
        (lambda: with_templates(few_shot=["of {target}, {source}"]), "after {source}"),
        (
            lambda: with_templates(rivals=["english"]),
            "rivals of relation 'r' contain 'english'; .* english_words, .*mean",
        ),
        (lambda: WordList("w", "word"), "words must be a list of words, got one string"),
    ],
)
def test_bad_relations_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


LISTED = r"it has the columns 'input' \('hot'\), 'output' \('cold'\)"
PLAIN = {"name": "n", "category": None, "pairs": [["a", "b"]]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(PLAIN | {"copying": "no"}), "copying is 'no'; give True or False"),
        ('{"hot": "cold"}', r"it must be .* \"name\" and \"pairs\"; .* It is a dict with the keys 'hot'"),
        ('{"name": "n", "category": "c", "pair": []}', "it must be a JSON file of one object"),
        ('[{"input": "hot", "output": "cold"}]', rf"{LISTED}; write Relation.from_file\('bad.json', source=..., targ"),
    ],
)
def test_files_that_are_no_relations_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.json"
    file.write_text(text, encoding="utf-8")
    for read in (Relation.load, load_relations):
        with pytest.raises(ValueError, match=rf"bad\.json is not a relation: {message}"):
            read(file)


def test_pairs_are_those_of_the_named_columns(tmp_path: Path) -> None:
    file = tmp_path / "words.csv"
    file.write_text("a,b,n\nhot,cold,1\nbig,small,2\nhot,cold,3\n", encoding="utf-8")
    origin = "words.csv, all 3 rows of 'a', 'b'; not used: 'n'; 1 repeat another and are left out"
    relation = Relation.from_file(file, source="a", target="b")
    assert repr(relation) == f"<Relation 'words': 2 pairs, hot -> cold, ...; {origin}>"
    turned = Relation.from_file(str(file), source="b", target="a", name="turned", category="Linguistic")
    assert (turned.name, turned.category, turned.pairs) == ("turned", "Linguistic", (("cold", "hot"), ("small", "big")))
    for read in (Relation.load, Relation.from_file):
        with pytest.raises(ValueError, match=r"has the columns 'a' \('hot'\), 'b' .*; write Relation.from_file"):
            read(file)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"hot": "cold", "plurals": [("cat", "cats")]}, r"maps 'hot' to 'cold'; give pairs of your own by a name, {"),
        ({"animals": ["cat", "dog"]}, "relation 'animals' has the pair 'cat'; a pair must be"),
        ([("hot", "cold"), "name_copying"], r"relations\[0\] is \('hot', 'cold'\); give a name, a file or mh.Relation"),
        (("hot", "cold"), "no relation 'hot'.*Or give pairs of your own by a name"),
    ],
)
def test_what_is_not_clear_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_relations(given)
