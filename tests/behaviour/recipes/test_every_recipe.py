"""What every recipe refuses, and what it keeps after Ctrl-C."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

import mechheads as mh
from mechheads.behaviour import (
    copy_suppression,
    function_vector,
    function_vector_heads,
    indirect_object_pairs,
    indirect_object_roles,
    retrieval_heads,
    successor_scores,
)
from support.texts import WORD_PAIRS

TEXT = [" When John and Mary went to the store gave a book no I cannot help Sure" * 40]
NEEDLES = ((" Paris is the", "big store of John", " Paris"), (" Rome is the", "small book of Mary", " Rome"))
HAY: dict[str, Any] = {"n": 3, "length": 56, "needles": NEEDLES, "depths": (0.1, 0.5, 0.9)}
ROWS = [[*range(3, 19)], [*range(8, 40)]]
ORDERS = {"words": ["one", "two", "three", "yes", "no"]}
WORDS = mh.Relation("words", None, WORD_PAIRS)
SHOTS: dict[str, Any] = {"shots": 3, "n": 2, "template": " {source} is {target} the"}
NAMES = ["France", "Italy", "Spain", "Germany", "Paris", "Rome"]
TEMPLATE = " When {first} and {second} went, {subject} gave to"
PAIRS = mh.PromptPairs([" Paris is"] * 3, [" Rome is"] * 3, [" Paris"] * 3, [" Rome"] * 3)
attribution = importlib.import_module("mechheads.behaviour.logit_attribution")  # the folder has a function of that name


def vector(model: mh.Model, relation: str) -> Any:
    return function_vector(model, function_vector_heads(model, WORDS, heads="L0H0", **SHOTS), relation)


REFUSED: list[tuple[str, Callable[[mh.Model], object]]] = [
    ("texts have no window of at least 16 tokens", lambda model: copy_suppression(model, [[1, 2, 3]], window=16)),
    ("window is 4", lambda model: copy_suppression(model, ROWS, window=4)),
    ("relation is 'capital'; these scores have 'words'", lambda model: vector(model, "capital")),
    (
        r"give the result of mh\.behaviour\.function_vector_heads",
        lambda model: function_vector(model, mh.ablate(model, [" one two"], heads="L0H0"), "words"),
    ),
    (
        "shots is 1; targets can be shuffled among 2 examples or more",
        lambda model: function_vector_heads(model, WORDS, **SHOTS | {"shots": 1}),
    ),
    ("n is 0; it must be at least 1", lambda model: function_vector_heads(model, WORDS, **SHOTS | {"n": 0})),
    (
        "2 of 3 are one token for this model; at least 5 are needed",
        lambda model: indirect_object_pairs(model, 2, names=["France", "Italy", "Nowhere"]),
    ),
    (
        "once each, in this order, each after a space",
        lambda model: indirect_object_pairs(model, 2, templates=[" {second} and {first}, {subject}"], names=NAMES),
    ),
    (
        "templates must be a list of texts",
        lambda model: indirect_object_pairs(model, 2, templates=TEMPLATE, names=NAMES),
    ),
    ("min_share is 2; it must be at least 0 and at most 1", lambda model: indirect_object_roles(model, min_share=2)),
    ("pairs have no position 'io'", lambda model: indirect_object_roles(model, PAIRS)),
    (
        "length is 64; two needles and a question take",
        lambda model: retrieval_heads(model, TEXT, **HAY | {"length": 64}),
    ),
    ("texts are too short for 3 haystacks of 56 tokens", lambda model: retrieval_heads(model, [" one two"], **HAY)),
    (
        "give at least two shares of the haystack, between 0 and 1",
        lambda model: retrieval_heads(model, TEXT, **HAY | {"depths": (0.5,)}),
    ),
    ("needles: give at least two", lambda model: retrieval_heads(model, TEXT, **HAY | {"needles": NEEDLES[:1]})),
    (
        r"none has 5 members that are one token for this model \(short: 2\)",
        lambda model: successor_scores(model, {"short": ["dog", "cat"]}),
    ),
    (
        "source is 'mlp'; choose one of",
        lambda model: successor_scores(model, ORDERS, source="mlp"),  # type: ignore[arg-type]
    ),
    (
        r"sequences\['count'\] is 'abc'; give a list of words in order",
        lambda model: successor_scores(model, {"count": "abc"}),
    ),
]


@pytest.mark.usefixtures("short_questions")
@pytest.mark.parametrize(("message", "call"), REFUSED, ids=[message for message, _ in REFUSED])
def test_what_cannot_be_is_said(message: str, call: Callable[[mh.Model], object], llama: mh.Model) -> None:
    with pytest.raises(ValueError, match=message):
        call(llama)
