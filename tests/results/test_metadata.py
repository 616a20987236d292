"""What scores are called: by their kind and what was chosen in the call, and scores of a kind of your own by name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.explorer.head_payload import MEANINGS
from mechheads.results.kinds import KINDS
from mechheads.results.metadata import kind_name, label_of


def scores(kind: str, name: str = "made", **metadata: Any) -> mh.HeadScores:
    values = np.random.default_rng(0).normal(size=(2, 3, 8))
    return mh.HeadScores.from_values(values, name=name, unit="", kind=kind, provenance=metadata)


@pytest.mark.parametrize(
    ("kind", "name", "metadata", "label"),
    [
        ("activation_patch", "x", {"direction": "noising"}, "Patching, noising"),
        ("path_patch", "x", {"receivers": ["final", "L5H1.q"]}, "Path to final, L5H1.q"),
        ("profile", "x", {"selected": {"behaviour": "induction"}}, "Attention, induction"),
        ("labels", "x", {"selected": {"relation": "country_to_capital"}}, "Phi, country to capital"),
        ("safety", "x", {"score": "ships", "ablation": "scaling"}, "Ships, scaling"),
        ("roles", "interference, mean of starts", {}, "Interference"),
        ("ablate", "x", {"given": {"L0H1": "Zero()"}}, "Ablation, given L0H1 (Zero())"),
        ("mine", "my {sweep}", {"selected": {"pos": 3}}, "my {sweep}"),
    ],
)
def test_scores_have_the_name_of_their_kind_and_of_what_was_chosen(kind, name, metadata, label) -> None:
    assert label_of(scores(kind, name, **metadata)) == label


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if kind.label])
def test_every_kind_of_scores_has_a_name_and_a_meaning(name: str) -> None:
    assert label_of(scores(name)).startswith(KINDS[name].label)
    assert MEANINGS[kind_name(scores(name))].endswith(".")
