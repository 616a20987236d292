"""The heads that are named have the numbers that they have among all heads, and the others have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from support.every_analysis import retrieved
from support.texts import CAPITALS, CLEAN, CORRUPTED, PAIRS

ROWS = [[5, 6, 7, 8, 5, 6, 9, 7, 8, 5, 6, 7, 3, 3, 4, 9], [9, 8, 7, 9, 8, 7, 6, 5, 9, 8, 7, 6, 5, 4, 3, 9]] * 2
HEADS = ["L1H2", "L0H3", "L1H0"]
RELATION = mh.Relation("capitals", "Knowledge", CAPITALS)
TASK = mh.Task([" The capital of France is", " no"], [" Paris", " yes cat"])
OF_A_FAMILY = ("p_family", "q_value")
"""These depend on which heads are tested together."""
SCORES: dict[str, Callable[..., mh.HeadScores]] = {
    "profile": lambda model, **some: mh.profile_heads(model, ROWS, window=16, **some),
    "logits": lambda model, **some: mh.behaviour.logit_attribution(model, PAIRS, **some),
    "sources": lambda model, **some: mh.behaviour.logit_attribution(model, PAIRS, by="source", **some),
    "retrieval": lambda model, **some: retrieved(model, **some),
    "relations": lambda model, **some: mh.relation_scores(model, RELATION, k=60, min_pairs=1, **some),
    "dynamic": lambda model, **some: mh.labels.dynamic_scores(model, RELATION, k=60, min_pairs=1, **some),
    "ships": lambda model, **some: mh.ships(model, CLEAN, template="bare", **some),
    "contribution": lambda model, **some: mh.safety.refusal_contribution(model, CLEAN[:2], CORRUPTED[:2], **some),
    "refusal attribution": lambda model, **some: mh.safety.refusal_attribution(model, CLEAN, openings=["I"], **some),
    "effects on a task": lambda model, **some: mh.gating.ablation_effects(model, TASK, **some),
}


@pytest.mark.parametrize("name", SCORES)
def test_scores_of_some_heads_are_those_of_all(name: str, llama: mh.Model) -> None:
    whole, some = SCORES[name](llama), SCORES[name](llama, heads=HEADS)
    at = tuple(np.array([[1, 0, 1], [2, 3, 0]]))
    for variable, array in whole.dataset.data_vars.items():
        values, others = some.dataset[variable].values.copy(), array.values
        if array.dims[:2] == ("layer", "head") and variable not in OF_A_FAMILY and values.dtype.kind in "fb":
            np.testing.assert_allclose(values[at], others[at], rtol=1e-5, atol=1e-7, err_msg=str(variable))
            values[at] = False if values.dtype == bool else np.nan
            assert (np.isnan(values) if values.dtype.kind == "f" else ~values).all(), variable
    assert some.missing == () and some.provenance["heads"] == ["L0H3", "L1H0", "L1H2"]


def test_examples_of_some_heads_are_those_among_all(llama: mh.Model) -> None:
    options: dict[str, Any] = {"window": 16}
    whole, some = (mh.behaviour.head_examples(llama, ROWS, heads=heads, **options) for heads in (None, HEADS))
    assert some.table["head"].unique().tolist() == ["L0H3", "L1H0", "L1H2"]
    rows = whole.table["head"].isin(HEADS)
    columns = [name for name in some.table if name != "window"]
    pd.testing.assert_frame_equal(some.table[columns], whole.table[rows].reset_index(drop=True)[columns])
    for example, other in enumerate(np.flatnonzero(rows)):
        assert some.text(example) == whole.text(int(other))
        np.testing.assert_array_equal(some.attention(example), whole.attention(int(other)))
