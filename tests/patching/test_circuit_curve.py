"""Circuits by size against one circuit at a time, MIB's formula, and a bootstrap by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.patching.circuit_curve import SIZES, areas, circuit_curve, compare_areas, heads_at
from mechheads.patching.circuits import faithfulness
from mechheads.results.stats import cluster_draws
from support.levels import few
from support.texts import PAIRS

ARCHITECTURES = few(("gpt2", "llama", "gemma"), "llama")

ALL = [mh.HeadId(layer, head) for layer in range(3) for head in range(4)]
SOME = (0.1, 0.25, 0.5, 1.0)


def area_by_loop(sizes: Sequence[float], shares: Sequence[float]) -> tuple[float, float]:
    """CPR and CMD as MIB's evaluation adds them up."""
    cpr = cmd = 0.0
    for i in range(len(sizes) - 1):
        step = sizes[i + 1] - sizes[i]
        cpr += step * (shares[i] + shares[i + 1]) / 2
        cmd += step * (abs(1 - shares[i]) + abs(1 - shares[i + 1])) / 2
    return cpr, cmd


def test_every_point_is_the_faithfulness_of_that_circuit(small: mh.Model):
    effect = mh.activation_patch(small, PAIRS)
    found = circuit_curve(small, PAIRS, effect, sizes=SOME, draws=1)
    for name, order in found.order.items():
        assert sorted(order) == ALL
        rows = found.table[found.table["which"] == name]
        assert rows["k"].tolist() == [1, 3, 6, 12]
        expected = [faithfulness(small, PAIRS, order[:k]).score for k in rows["k"]]
        np.testing.assert_allclose(rows["score"], expected, atol=1e-5)
        row = found.more["areas"].set_index("which").loc[name]
        np.testing.assert_allclose((row["cpr"], row["cmd"]), area_by_loop(SOME, expected), atol=1e-5)
    assert found.order[effect.name][:3] == effect.heads(3)


def test_intervals_are_those_of_resampled_prompts(llama: mh.Model):
    rankings = {"forwards": ALL, "backwards": ALL[::-1]}
    found = mh.settings(seed=3)(circuit_curve)(llama, PAIRS, rankings, sizes=SOME, draws=2)
    cpr, cmd = {}, {}
    for name, values in zip(found.order, found.values.reshape(len(found.order), len(SOME), -1), strict=True):
        drawn = []
        for counts in cluster_draws(found.more["cluster"], 1000, 3):
            mean = lambda each: float((each * counts).sum() / counts.sum())  # noqa: B023, E731
            empty, full = mean(found.more["empty"]), mean(found.more["full"])
            drawn.append(area_by_loop(SOME, [(mean(each) - empty) / (full - empty) for each in values]))
        cpr[name], cmd[name] = np.array(drawn).T
    for row in found.more["areas"].to_dict("records"):
        for measure, drawn in (("cpr", cpr), ("cmd", cmd)):
            expected = np.quantile(drawn[row["which"]], [0.025, 0.975])
            np.testing.assert_allclose((row[f"{measure}_low"], row[f"{measure}_high"]), expected, atol=1e-9)
    difference = compare_areas(found, "forwards", "backwards").loc["cpr"]
    expected = np.quantile(cpr["forwards"] - cpr["backwards"], [0.025, 0.975])
    np.testing.assert_allclose((difference["ci_low"], difference["ci_high"]), expected, atol=1e-9)
    of = found.more["areas"].set_index("which")["cmd"]
    random = compare_areas(found, "backwards", "random").loc["cmd", "difference"]
    assert random == pytest.approx(of["backwards"] - (of["random 1"] + of["random 2"]) / 2)


def test_areas_by_hand():
    cpr, cmd = areas((0.0, 0.5, 1.0), np.array([[0.0, 1.5, 1.0], [1.0, 1.0, 1.0]]))
    np.testing.assert_allclose(cpr, [0.375 + 0.625, 1.0])
    np.testing.assert_allclose(cmd, [0.375 + 0.125, 0.0])


def test_sizes_are_mibs():
    assert [heads_at(share, 270) for share in SIZES] == [int(share * 270) for share in SIZES]
    assert [heads_at(share, 100) for share in (0.29, 0.57, 1.0)] == [29, 57, 100]


def test_nothing_and_everything(llama: mh.Model):
    table = circuit_curve(llama, PAIRS, ALL, sizes=(0.01, 1.0), draws=0).table
    assert table["k"].tolist() == [0, 12]
    np.testing.assert_allclose(table["score"], [0, 1], atol=1e-6)
    np.testing.assert_allclose(table["ci_high"], [0, 1], atol=1e-6)


def test_heads_without_a_score_come_last(llama: mh.Model):
    effect = mh.activation_patch(llama, PAIRS, heads=["L2H1", "L0H3", "L1H0"])
    first, second = (mh.settings(seed=seed)(circuit_curve)(llama, PAIRS, effect, draws=1).order for seed in (0, 1))
    ours, theirs = first[effect.name], second[effect.name]
    assert ours[:3] == theirs[:3] == effect.heads(3)
    assert sorted(ours) == sorted(theirs) == ALL
    assert ours != theirs
    signed = circuit_curve(llama, PAIRS, effect, by="absolute", draws=0).order[effect.name]
    assert signed[:3] == effect.heads(3, "absolute")


def test_two_clusters_have_no_interval(llama: mh.Model):
    pairs = mh.PromptPairs(PAIRS.clean[:2], PAIRS.corrupted[:2], PAIRS.answer[:2], PAIRS.wrong[:2])
    found = circuit_curve(llama, pairs, ALL, sizes=SOME, draws=0)
    assert (
        np.isnan(found.table["ci_low"].to_numpy()).all() and np.isnan(found.more["areas"]["cmd_high"].to_numpy()).all()
    )
    assert np.isfinite(found.more["areas"]["cpr"].to_numpy()).all()
    assert not any("nan" in text for trace in found.plot().data for text in trace.text or ())


def test_it_is_drawn_and_said(llama: mh.Model):
    found = circuit_curve(llama, PAIRS, {"all": ALL, "back": ALL[::-1]}, sizes=SOME, draws=2)
    lines = {trace.name: trace for trace in found.plot().data if trace.showlegend is not False}
    assert list(lines) == ["random orders, 2 draws", "all", "back"]
    np.testing.assert_allclose(lines["back"].x, [10, 25, 50, 100])
    rows = found.table[found.table["which"] == "back"]
    np.testing.assert_allclose(lines["back"].y, rows["score"])
    assert f"CPR {found.more['areas'].set_index('which').loc['back', 'cpr']:.2f}" in lines["back"].text[0]
    assert "mueller2025mib" in found.citation()
    assert repr(found).startswith("<Curves 'circuit_curve' of 'logit_diff' in share: all ")


@pytest.mark.parametrize(
    ("rankings", "options", "message"),
    [
        (None, {}, "rankings is missing"),
        ({"random 1": ALL}, {}, "'random 1', which is for random orders"),
        (["L9H0"], {}, "head L9H0 is out of range"),
        (["L0H0", "L0H0"], {}, "contains L0H0 twice"),
        (ALL, {"sizes": (0.5,)}, "give at least two shares"),
        (ALL, {"sizes": (0.5, 0.1)}, "from small to large"),
        (ALL, {"sizes": (0.5, 1.5)}, "from 0 to 1"),
        (ALL, {"draws": -1}, "draws is -1"),
        (ALL, {"by": "size"}, "by is 'size'"),
    ],
)
def test_bad_input(llama: mh.Model, rankings: Any, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        circuit_curve(llama, PAIRS, rankings, **options)


def test_unknown_rankings_cannot_be_compared(llama: mh.Model):
    found = circuit_curve(llama, PAIRS, ALL, sizes=SOME, draws=0)
    with pytest.raises(ValueError, match="no random orders"):
        compare_areas(found, "ranking", "random")
    with pytest.raises(ValueError, match="ranking is 'patching'"):
        compare_areas(found, "patching", "ranking")
