"""What changed most between two models: differences beyond the intervals first, in a page that opens on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.explorer.changes import SHOWN, change_of
from mechheads.explorer.payload import atlas_payload
from mechheads.labels import HeadLabels
from mechheads.studies.atlas import Atlas

LAYERS, HEADS, PROMPTS = 3, 4, 12


def scores(changed: dict[tuple[int, int], float], prompts: str = "these", n: int = PROMPTS) -> mh.HeadScores:
    """Noise that depends on the prompts, with some heads changed."""
    values = np.random.default_rng(0).normal(size=(LAYERS, HEADS, n))
    values += np.random.default_rng(len(changed)).normal(scale=0.05, size=values.shape)
    for (layer, head), by in changed.items():
        values[layer, head] += by
    return mh.HeadScores.from_values(
        values, name="effect", unit="logits", kind="activation_patch", provenance={"prompts": prompts}
    )


def page_of(*each: mh.HeadScores) -> Any:
    return atlas_payload([Atlas(f"model-{i}", patching=one) for i, one in enumerate(each)]).page


def test_a_changed_head_is_the_first_with_the_interval_of_its_differences():
    page = page_of(scores({}), scores({(1, 2): 3.0}))
    (change,) = page["changes"]
    (view,) = change["views"]
    first, second = change["rows"][:2]
    assert (change["model"], change["of"], view["name"]) == (1, 0, "patching")
    assert first["head"] == "L1H2" and first["beyond"] and first["low"] < first["difference"] < first["high"]
    assert first["difference"] == pytest.approx(first["after"] - first["before"]) == pytest.approx(3, abs=0.1)
    assert first["q"] <= 0.1 and view["surely"] >= 1 and second["size"] < first["size"]
    assert "the same 12 prompts" in view["how"] and "about 1 of 12 heads" in view["how"]
    expected = (scores({(1, 2): 3.0}) - scores({})).dataset
    assert first["low"] == pytest.approx(float(expected["ci_low"][1, 2]))


def test_the_page_opens_on_the_second_model_against_the_first_coloured_by_the_change():
    page = page_of(scores({}), scores({(1, 2): 3.0}))
    chosen = page["start"]["chosen"]
    assert page["start"]["model"] == 1 and page["start"]["head"] is None
    assert chosen == {"versus": 0, "together": True, "colour": "patching_change", "by": "patching_change"}
    column = page["models"][1]["columns"][-1]
    assert column["name"] == "patching_change" and column["signed"] and "model-0" in column["meaning"]
    assert int(np.argmax(column["values"])) == 1 * HEADS + 2
    assert "patching_change" not in [each["name"] for each in page["models"][0]["columns"]]


def test_other_prompts_are_compared_by_intervals_that_do_not_overlap():
    change = change_of(scores({}), scores({(1, 2): 9.0}, prompts="others"))
    assert change.paired is None and np.isnan(change.low).all()
    assert np.flatnonzero(change.beyond).tolist() == [1 * HEADS + 2]
    (entry,) = page_of(scores({}), scores({(1, 2): 9.0}, prompts="others"))["changes"]
    assert "do not overlap" in entry["views"][0]["how"] and entry["rows"][0]["low"] is None


def test_without_intervals_nothing_is_beyond():
    plain = mh.HeadScores.from_scores(np.eye(3), name="effect", kind="activation_patch")
    other = mh.HeadScores.from_scores(np.eye(3) * 2, name="effect", kind="activation_patch")
    (entry,) = page_of(plain, other)["changes"]
    (view,) = entry["views"]
    assert view["beyond"] == view["surely"] == 0 and "no intervals" in view["how"]
    assert [row["head"] for row in entry["rows"]] == ["L0H0", "L1H1", "L2H2"]


def test_a_model_that_did_not_change_has_no_rows_and_one_of_another_size_no_comparison():
    same = scores({})
    assert page_of(same, same)["changes"][0]["rows"] == []
    small = mh.HeadScores.from_scores(np.eye(2), name="effect", kind="activation_patch")
    page = page_of(same, small)
    assert page["changes"] == [] and page["start"] is None


def test_numbers_of_different_units_are_not_compared():
    logits, shares = (
        mh.HeadScores.from_scores(np.eye(3), name="effect", unit=unit, kind="activation_patch")
        for unit in ("logits", "share restored")
    )
    assert page_of(logits, shares)["changes"] == []


def test_at_most_twenty_rows():
    values = np.random.default_rng(0).normal(size=(2, 10, 10, 6))
    each = [mh.HeadScores.from_values(one, name="effect", kind="activation_patch") for one in values]
    assert len(page_of(*each)["changes"][0]["rows"]) == SHOWN


def test_a_large_change_within_its_interval_is_named_apart():
    base = np.random.default_rng(0).normal(scale=0.1, size=(10, 10, 6))
    changed = base + 0.5 + np.random.default_rng(1).normal(scale=0.01, size=base.shape)
    changed[4, 4] = base[4, 4] + [20, -18, 20, -18, 20, -18]
    each = [mh.HeadScores.from_values(one, name="effect", kind="activation_patch") for one in (base, changed)]
    (entry,) = page_of(*each)["changes"]
    assert len(entry["rows"]) == SHOWN and all(row["beyond"] for row in entry["rows"])
    assert [row["head"] for row in entry["within"] if not row["beyond"]] == ["L4H4"]


def test_phi_of_other_relations_is_not_compared(atlas):
    """The best of many relations is larger than the best of a few, whatever the model."""
    data = atlas.labels.dataset
    best = np.array([name and f"my_{name}" for name in data["best_relation"].values.ravel()], dtype=object)
    others = data.assign_coords(relation=[f"my_{name}" for name in data["relation"].values])
    others["best_relation"] = data["best_relation"].dims, best.reshape(data["best_relation"].shape)

    def change(labels: HeadLabels) -> Any:
        (found,) = atlas_payload([atlas, replace(atlas, labels=labels)]).page["changes"]
        return found

    same, told = change(atlas.labels), change(type(atlas.labels)(others))
    names = [view["name"] for view in same["views"]]
    assert "phi" in names and same["unlike"] == ""
    assert [view["name"] for view in told["views"]] == [name for name in names if not name.startswith("phi")]
    assert "other relations" in told["unlike"]
    assert "phi" not in {row["view"] for row in told["rows"] + told["within"]}
