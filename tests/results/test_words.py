"""The words of every kind: whole sentences without empty places, and what scores of a kind of your own are called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.results.evidence import verdicts
from mechheads.results.kinds import KINDS
from mechheads.results.words import words_of

SAID = {name: kind for name, kind in KINDS.items() if kind.words is not None}


def scores(kind: str, name: str = "made", **about: Any) -> mh.HeadScores:
    values = np.random.default_rng(0).normal(size=(2, 3, 8))
    return mh.HeadScores.from_values(values, name=name, unit="", kind=kind, provenance=about)


@pytest.mark.parametrize("name", SAID)
def test_every_place_is_filled_but_those_of_the_page(name: str) -> None:
    for variant in [None, *SAID[name].variants]:
        said = words_of(scores(name, variant or "made", direction=variant, selected={variant or "x": "a_b"}))
        page = {"value": "V", "unit": "U", "relation": "R"}
        for text in (said.label, said.meaning, said.sentence, *said.texts, *said.change, *said.cautions, said.part):
            assert "{" not in text.format(**page)
        assert said.meaning.endswith(".") and "{value}" in said.sentence and said.method is not None
        assert said.group in ("In tasks", "In refusals", "Roles", "On text", "By weights")


def test_a_variant_has_its_own_words_and_the_rest_of_its_kind() -> None:
    noising, denoising = (words_of(scores("activation_patch", direction=name)) for name in ("noising", "denoising"))
    assert noising.meaning.endswith("in the clean run comes from the corrupted one.")
    assert denoising.meaning.endswith("in the corrupted run comes from the clean one.")
    assert noising.texts[0] == "The answer needs its output in these prompts." != denoising.texts[0]
    assert noising.label == denoising.label == "Patching"


def test_scores_of_your_own_kind_are_told_by_their_call() -> None:
    said = words_of(scores("mine", "turned", intervention="Negate()", metric="kl_divergence"))
    assert said.label == "turned"
    assert said.meaning == ("The change of the distribution of the next token (KL divergence) if Negate() changes it.")
    assert words_of(scores("mine")).meaning == "Scores of the kind mine."
    assert verdicts(scores("mine"), said.rule).rule.startswith("Yes if it differs from 0 (family p at most 0.05)")


def test_braces_in_names_stay_text() -> None:
    said = words_of(scores("mine", "{metric} {nothing}", intervention="f{x}", metric="{y}"))
    assert said.label == "{metric} {nothing}" and "f{x} changes it" in said.meaning
