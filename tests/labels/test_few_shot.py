"""Few-shot prompts, taken apart again line by line."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import mechheads as mh
from mechheads.labels.few_shot import few_shot_pairs, few_shot_prompts
from support.texts import WORD_PAIRS

ARCHITECTURES = ["gpt2", "llama"]

LONG = [("went to", "gave"), ("help and", "book")]
"""Sources of two tokens."""
SPLIT = [("store", "Zurich"), ("Sure", "three two")]
"""Targets of more tokens than one."""
TEMPLATE = " The capital of {source} is {target}"
RELATION = mh.Relation(
    "words",
    "Linguistic",
    [*WORD_PAIRS, *LONG, *SPLIT],
    few_shot=[TEMPLATE],
)
OTHER = replace(RELATION, few_shot=[" France and {source} gave {target} to Mary"])


def read(text: str, template: int = 0) -> tuple[list[tuple[str, str]], str]:
    """The examples of a prompt and the source that it asks about."""
    example, question = (
        (r" The capital of (.+) is (.+)", r" The capital of (.+) is"),
        (r" France and (.+) gave (.+) to Mary", r" France and (.+) gave"),
    )[template]
    *lines, last = text.split("\n")
    found = [re.fullmatch(example, line) for line in lines]
    asked = re.fullmatch(question, last)
    assert asked is not None
    return [(match[1], match[2]) for match in found if match is not None], asked[1]


@pytest.mark.parametrize("template", [0, 1])
@pytest.mark.parametrize("shots", [0, 1, 3])
def test_each_prompt_asks_for_one_pair_after_others(small: mh.Model, shots: int, template: int) -> None:
    prompts = few_shot_prompts(small, (RELATION, OTHER)[template], shots=shots, n=8, seed=3)
    assert len(prompts) == 8
    asked = []
    for text, answer, cluster in zip(prompts.items, prompts.answer or (), prompts.cluster or (), strict=True):
        examples, source = read(str(text), template)
        assert len(examples) == len({s for s, _ in examples}) == shots
        assert set(examples) <= {*WORD_PAIRS, *LONG}
        pair = (source, str(answer)[1:])
        assert pair in {*WORD_PAIRS, *LONG}
        assert cluster == source
        assert {word for example in examples for word in example}.isdisjoint(pair)
        asked.append(source)
    assert len(set(asked)) == 8


@pytest.mark.parametrize("template", [0, 1])
def test_the_source_is_found_where_it_was_written(small: mh.Model, template: int) -> None:
    """Also where the same word stands before it, and where it has several tokens."""
    prompts = few_shot_prompts(small, (RELATION, OTHER)[template], shots=2, n=20)
    tokens = prompts.tokens(small)
    assert len(prompts) == len(WORD_PAIRS) + len(LONG)
    for row, text in enumerate(prompts.items):
        _, source = read(str(text), template)
        before = str(text)[: str(text).rindex(f" {source}") + len(f" {source}")]
        assert int(tokens.positions["source"][row]) == len(small.tokenizer(before).input_ids) - 1
        at = int(tokens.positions["source"][row])
        assert tokens.strings[row][at] == " " + source.split()[-1]


def test_pairs_differ_in_nothing_but_the_source(small: mh.Model) -> None:
    pairs = few_shot_pairs(small, RELATION, shots=2, n=20)
    assert len(pairs) == len(WORD_PAIRS) + len(LONG)
    clean, corrupted = pairs.tokens(small)
    target_of = dict([*WORD_PAIRS, *LONG])
    rows = zip(pairs.clean, pairs.corrupted, pairs.answer or (), pairs.wrong or (), pairs.cluster or (), strict=True)
    for row, (one, other, answer, wrong, cluster) in enumerate(rows):
        (examples, source), (same, swapped) = read(str(one)), read(str(other))
        assert examples == same
        words = {source, swapped, target_of[source], target_of[swapped]}
        assert len(words) == 4
        assert words.isdisjoint(word for example in examples for word in example)
        assert (answer, wrong) == (f" {target_of[source]}", f" {target_of[swapped]}")
        assert len(source.split()) == len(swapped.split())
        assert cluster == source
        last = int(clean.positions["source"][row])
        for tokens, word in ((clean, source), (corrupted, swapped)):
            assert tokens.strings[row][last] == " " + word.split()[-1]
        unlike = [i for i, ids in enumerate(zip(clean.ids[row], corrupted.ids[row], strict=True)) if ids[0] != ids[1]]
        assert set(unlike) <= {last - len(source.split()) + 1 + i for i in range(len(source.split()))}


def test_no_example_gives_the_answer_away(small: mh.Model) -> None:
    """Where words are sources here and targets there, as antonyms are, and targets are shared."""
    both = [("dog", "cat"), ("cat", "dog"), ("yes", "no"), ("no", "yes"), ("big", "no"), ("one", "two")]
    relation = mh.Relation("both ways", None, both, few_shot=[TEMPLATE])
    for seed in range(5):
        prompts = few_shot_prompts(small, relation, shots=2, seed=seed)
        assert len(prompts) == 6
        for text, answer in zip(prompts.items, prompts.answer or (), strict=True):
            examples, source = read(str(text))
            assert {source, str(answer)[1:]}.isdisjoint(word for example in examples for word in example)
        pairs = few_shot_pairs(small, relation, shots=1, seed=seed)
        target_of = dict(both)
        for one, other in zip(pairs.clean, pairs.corrupted, strict=True):
            source, swapped = read(str(one))[1], read(str(other))[1]
            assert {source, target_of[source]}.isdisjoint({swapped, target_of[swapped]})


def given(pairs: Any, **options: Any) -> mh.Relation:
    return mh.Relation("few", None, pairs, **{"few_shot": [TEMPLATE]} | options)


@pytest.mark.parametrize(
    ("relation", "options", "message"),
    [
        (given(WORD_PAIRS, few_shot=[]), {}, r"relation 'few' has no few-shot templates; give it one: few_shot=\["),
        (given(SPLIT), {}, r"too few usable pairs .*: 0 of its 2 have a target that is one token, and 0 of them"),
        (
            given(WORD_PAIRS),
            {"shots": 10},
            r"10 of its 10 .*, and 0 of them can be asked for after 10 examples.*; at least 2",
        ),
        ("no such relation", {}, "there is no relation 'no such relation'"),
    ],
)
def test_errors_say_what_is_missing(small: mh.Model, relation: Any, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        few_shot_pairs(small, relation, **options)


@pytest.mark.slow
def test_relations_of_the_package_on_the_default_model(model: mh.Model) -> None:
    for name in ("country_to_capital", "word_to_antonym", "noun_to_pronoun", "name_copying", "work_to_location"):
        clean, corrupted = few_shot_pairs(model, name).tokens(model)
        assert len(clean) == 16
        assert clean.answer is not None
        assert (clean.answer != corrupted.wrong).all()
        assert len(few_shot_prompts(model, name).tokens(model)) == 24
    with pytest.raises(ValueError, match="'year_to_following' has too few usable pairs for this model: 0 of its"):
        few_shot_prompts(model, "year_to_following")
