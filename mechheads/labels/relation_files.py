"""Read relations from files: our own format, and the public ones of MAPS, LRE, CounterFact and LAMA."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from mechheads.files.columns import cell_text
from mechheads.files.rows import Row, read_rows
from mechheads.files.text import read_json

_LIST, _TEXT = (list, "a list"), (str, "text")
_FIELDS: dict[str, tuple[Any, str]] = {
    "name": _TEXT,
    "category": (str | None, "text or null"),
    "pairs": _LIST,
    "source": _TEXT,
    "copying": (bool, "true or false"),
    "few_shot": _LIST,
    "zero_shot": _LIST,
    "rivals": _LIST,
}
"""The fields that a relation's file may have."""

_MAPS = {
    "Knowledge": (
        "country_to_capital_wikidata",
        "country_to_official_language_wikidata",
        "object_superclass",
        "product_by_company",
        "work_location",
    ),
    "Linguistic": (
        "adj_antonym",
        "adj_comparative",
        "adj_superlative",
        "entity_to_pronoun",
        "verb_past_tense",
        "word_to_compound",
        "word_to_homophone",
        "word_to_synonym",
    ),
    "Algorithmic": (
        "general_copying_english_500",
        "name_copying",
        "word_first_letter",
        "word_last_letter",
        "year_to_following",
    ),
    "Translation": ("english_to_french", "english_to_spanish"),
}
"""The categories of the public MAPS files, by the name of the file without ``.json``."""

_LRE_CATEGORIES = {"factual": "Knowledge", "commonsense": "Knowledge", "linguistic": "Linguistic"}
"""Categories by LRE's ``relation_type``; others, such as bias, have none."""
_MOST_TEMPLATES = 2


def relation_fields(file: Path | Traversable) -> list[dict[str, Any]]:
    """The fields of every relation in a file: of ours, or of MAPS, LRE, CounterFact or LAMA.

    Raises:
        ValueError: if the file cannot be read, or is no relation; the message names the file and the line.
    """
    try:
        rows = read_rows(file) if isinstance(file, Path) else [(str(file), read_json(file))]
    except ValueError as error:
        raise ValueError(f"{file} is not a relation: {error}") from error
    content = rows[0][1] if rows else None
    if isinstance(content, dict) and (read := _reader(content)):
        return read(rows, file.name.partition(".")[0])
    name, source = file.name.removesuffix(".json"), f"file {file.name}"
    if isinstance(content, list):
        content = [_words(pair) for _, pair in rows]
        category = next((category for category, names in _MAPS.items() if name in names), None)
        copying = category == "Algorithmic" and "copying" in name
        return [{"name": name, "category": category, "pairs": content, "source": source, "copying": copying}]
    if isinstance(file, Path) and file.suffix.lower() in (".csv", ".tsv", ".parquet"):
        pairs = pairs_of_rows([row for _, row in rows], str(file))
        return [{"name": file.stem, "pairs": pairs, "source": source}]
    if isinstance(content, dict) and file.name.endswith(".json") and not content.keys() & _FIELDS.keys():
        return [{"name": name, "pairs": [_words(list(pair)) for pair in content.items()], "source": source}]
    if not isinstance(content, dict) or not {"name", "pairs"} <= content.keys() <= _FIELDS.keys():
        raise ValueError(
            f"{file} is not a relation: it must be a JSON list of [source, target] pairs, an object such as "
            '{"hot": "cold"}, or an object with the keys "name" and "pairs"; "category", "source", "copying", '
            '"few_shot", "zero_shot" and "rivals" are optional; or a table of two columns; or a file of LRE, '
            f"CounterFact or LAMA. It holds {str(content)[:60]!r}"
        )
    for key, value in content.items():
        kind, called = _FIELDS[key]
        if not isinstance(value, kind):
            raise ValueError(f"{file} is not a relation: {key} must be {called}, but is {str(value)[:50]!r}")
    return [content | {"pairs": [_words(pair) for pair in content["pairs"]]}]


def pairs_of_rows(rows: Sequence[Mapping[str, Any]], table: str) -> list[list[Any]]:
    """The source and the target of each row of a table, from its two columns, or from those with these names.

    Args:
        table: what messages call it.

    Raises:
        ValueError: if it is not clear which columns they are in.

    >>> pairs_of_rows([{"word": "hot", "opposite": "cold"}], "opposites.csv")
    [['hot', 'cold']]
    """
    columns = list(rows[0]) if rows else []
    named = {"source", "target"} <= set(columns)
    if len(columns) != 2 and not named:
        raise ValueError(
            f"{table} has {len(columns)} columns ({', '.join(map(repr, columns[:8]))}); a table of pairs has two, the "
            'source and the target, or several of which two are called "source" and "target"'
        )
    source, target = ("source", "target") if named else columns
    return [[cell_text(row[source]), cell_text(row[target])] for row in rows]


def is_relation(entry: Mapping[str, Any]) -> bool:
    """Whether the first object of a file belongs to a relation.

    >>> is_relation({"sub_label": "Lyon", "obj_label": "France"}), is_relation({"prompt": "1 + 1 =", "target": " 2"})
    (True, False)
    """
    return "pairs" in entry or _reader(entry) is not None


def _reader(entry: Mapping[str, Any]) -> Callable[[Sequence[Row], str], list[dict[str, Any]]] | None:
    if "samples" in entry:
        return _lre
    if "requested_rewrite" in entry:
        return _counterfact
    return _lama if "obj_label" in entry and ("sub_label" in entry or "sub" in entry) else None


def _lre(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    """Each relation: name, prompt_templates, prompt_templates_zs, properties, samples of subject and object."""
    relations = []
    for place, row in rows:
        samples = row.get("samples") if isinstance(row, dict) else None
        if not isinstance(samples, list):
            raise ValueError(f'{place}: "samples" must be a list of objects with "subject" and "object"')
        places = [(f"{place}, sample {i}", sample) for i, sample in enumerate(samples)]
        pairs = [(_word(where, one, "subject"), _word(where, one, "object")) for where, one in places]
        category = _LRE_CATEGORIES.get(str((row.get("properties") or {}).get("relation_type")))
        texts = row.get("prompt_templates") or []
        few = [f"{text} {{}}." for text in texts]
        alone = row.get("prompt_templates_zs") or texts
        relations.append(_relation(row.get("name") or name, pairs, "LRE", category, few, alone))
    return relations


def _counterfact(rows: Sequence[Row], _name: str) -> list[dict[str, Any]]:
    """Every relation of the file: the subjects and true targets with one relation_id."""
    found: dict[str, list[tuple[str, str, str]]] = {}
    for place, row in rows:
        asked = row.get("requested_rewrite") if isinstance(row, dict) else None
        if not isinstance(asked, dict):
            raise ValueError(f'{place}: there is no object "requested_rewrite"')
        true = _word(f"{place}, target_true", asked.get("target_true"), "str")
        entry = _word(place, asked, "subject"), true, _word(place, asked, "prompt")
        found.setdefault(_word(place, asked, "relation_id"), []).append(entry)
    relations = []
    for name, entries in found.items():
        texts = [text for text, _ in Counter(text for *_, text in entries).most_common()]
        pairs = [(source, target) for source, target, _ in entries]
        relations.append(_relation(name, pairs, "CounterFact", "Knowledge", [f"{text} {{}}." for text in texts], texts))
    return relations


def _lama(rows: Sequence[Row], name: str) -> list[dict[str, Any]]:
    """Every relation of the file: sub_label and obj_label with one predicate_id, and its template if it is there."""
    found: dict[str, list[tuple[str, str]]] = {}
    texts: dict[str, dict[str, None]] = {}
    for place, row in rows:
        if not isinstance(row, dict):
            raise ValueError(f"{place}: {str(row)[:60]!r} is not a JSON object")
        relation = str(row.get("predicate_id") or row.get("pred") or name)
        pair = _word(place, row, "sub_label" if "sub_label" in row else "sub"), _word(place, row, "obj_label")
        found.setdefault(relation, []).append(pair)
        if isinstance(text := row.get("template"), str) and 0 <= text.find("[X]") < text.find(" [Y]"):
            texts.setdefault(relation, {})[text.replace("[X]", "{}").replace("[Y]", "{}")] = None
    relations = []
    for one, pairs in found.items():
        few = list(texts.get(one, ()))
        alone = [text.rpartition(" {}")[0] for text in few]
        relations.append(_relation(one, pairs, "LAMA", "Knowledge", few, alone))
    return relations


def _relation(
    name: str,
    pairs: Sequence[tuple[str, str]],
    format: str,
    category: str | None,
    few_shot: Sequence[str],
    zero_shot: Sequence[str],
) -> dict[str, Any]:
    """The fields of a relation, with the templates that have one place for each word, written as ``{}``."""
    return {
        "name": name,
        "category": category,
        "pairs": list(dict.fromkeys(pairs)),
        "source": f"a file in the format of {format}",
        "few_shot": [
            text.replace("{}", "{source}", 1).replace("{}", "{target}")
            for text in few_shot
            if text.count("{}") == text.count("{") == 2
        ][:_MOST_TEMPLATES],
        "zero_shot": [
            text.strip().replace("{}", "{source}") for text in zero_shot if text.count("{}") == text.count("{") == 1
        ][:_MOST_TEMPLATES],
    }


def _words(pair: Any) -> Any:
    """A pair of a file, in which a whole number is its digits, as in every file."""
    return [cell_text(word) for word in pair] if isinstance(pair, list) else pair


def _word(place: str, fields: Any, key: str) -> str:
    word = cell_text(fields.get(key)) if isinstance(fields, Mapping) else None
    if not isinstance(word, str) or not word.strip():
        raise ValueError(f"{place}: {key!r} is {word!r}; it must be a text")
    return word.strip()
