"""Roles beside other scores, against scipy draw by draw; effects of ablation, against one full pass for each head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch

import gated_micro
import mechheads as mh
import oracles
from gated_micro import HURTS, NEEDED, capitals, log_p
from mechheads.gating import Task, comparison, task_log_prob
from mechheads.gating.comparison import ablation_effects, compare_roles

pytestmark = pytest.mark.transformerlens

TEXTS = Task(
    [" The capital of France is", " no", " a big dog gave", " one two"],
    [" Paris", " yes cat", " dog", " three one two"],
    cluster=list("aabc"),
)
WORDS = TEXTS.items([0, 2])
QUICK: dict[str, Any] = {"progress": False}


@pytest.fixture(scope="module")
def llama(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"))


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> mh.Model:
    return gated_micro.build(tmp_path_factory.mktemp("micro") / "model")


def score(values: np.ndarray, extra: dict[str, list[str]] | None = None) -> mh.HeadScores:
    return mh.HeadScores.from_scores(values, name="made", unit="", kind="demo", extra=extra)


def drawn(seed: int, shape: tuple[int, ...] = (6, 4)) -> np.ndarray:
    """Numbers with many ties."""
    return np.random.default_rng(seed).integers(0, 8, shape).astype(float)


# Rank correlation


def test_correlation_is_scipys_over_the_heads_that_both_measured() -> None:
    one, other = drawn(0), drawn(1)
    one[0, 0], other[2, 3] = np.nan, np.nan
    both = np.isfinite(one) & np.isfinite(other)
    (row,) = compare_roles({"facilitation": score(one)}, {"effect": score(other)}).to_dict("records")
    assert row["spearman"] == pytest.approx(scipy.stats.spearmanr(one[both], other[both]).statistic, abs=1e-12)
    assert (row["role"], row["other"], row["label"], row["n"]) == ("facilitation", "effect", "", 22)


def test_interval_is_a_jackknife_over_layers() -> None:
    one, other = drawn(2), drawn(3)
    whole = scipy.stats.spearmanr(one.ravel(), other.ravel()).statistic
    without = [
        scipy.stats.spearmanr(np.delete(one, layer, 0).ravel(), np.delete(other, layer, 0).ravel()).statistic
        for layer in range(6)
    ]
    error = np.sqrt(5 * np.var(np.arctanh(without)))
    reach = scipy.stats.t.ppf(0.975, 5) * error
    (row,) = compare_roles({"a": score(one)}, {"b": score(other)}).to_dict("records")
    expected = np.tanh(np.arctanh(whole) + np.array([-reach, reach]))
    np.testing.assert_allclose([row["ci_low"], row["ci_high"]], expected, atol=1e-12)


@pytest.mark.parametrize("n_layers", [3, 4, 8])
def test_the_interval_holds_the_true_correlation_nineteen_times_in_twenty(n_layers: int) -> None:
    """Layers share half of what varies; where both scores are drawn alike and apart, the truth is 0."""
    rng = np.random.default_rng(0)
    held = 0
    for _ in range(400):
        one, other = rng.normal(size=(2, n_layers, 1)) + rng.normal(size=(2, n_layers, 9))
        (row,) = compare_roles({"a": score(one)}, {"b": score(other)}).to_dict("records")
        held += row["ci_low"] <= 0 <= row["ci_high"]
    assert 370 <= held <= 398


def test_heads_that_repeat_within_layers_make_the_interval_no_narrower() -> None:
    """Copies of a head are no news: the interval is that of the layers, where one over heads would shrink."""
    one, other = np.random.default_rng(0).normal(size=(2, 8, 1))
    wide = compare_roles({"a": score(one)}, {"b": score(other)}).iloc[0]
    many = compare_roles({"a": score(one.repeat(9, 1))}, {"b": score(other.repeat(9, 1))}).iloc[0]
    assert many["n"] == 9 * wide["n"]
    assert (many["ci_low"], many["ci_high"]) == pytest.approx((wide["ci_low"], wide["ci_high"]))


def test_a_row_for_each_role_other_and_label() -> None:
    labels = {"relation": ["capital", "past"], "context": ["with"]}
    phi = drawn(4, (6, 4, 2, 1))
    roles = {"facilitation": score(drawn(0)), "interference": score(drawn(1))}
    table = compare_roles(roles, {"effect": score(drawn(2)), "phi": score(phi, labels)})
    assert table[["role", "other", "label"]].values.tolist() == [
        [role, other, label]
        for role in roles
        for other, label in (("effect", ""), ("phi", "capital, with"), ("phi", "past, with"))
    ]
    expected = scipy.stats.spearmanr(drawn(1).ravel(), phi[..., 1, 0].ravel()).statistic
    assert table.iloc[-1]["spearman"] == pytest.approx(expected)


def test_what_cannot_be_said_is_nan() -> None:
    flat, few, one_layer = np.ones((6, 4)), np.full((6, 4), np.nan), np.full((6, 4), np.nan)
    few[0, :2], one_layer[3] = [1, 2], [1, 2, 3, 4]
    others = {"flat": score(flat), "few": score(few), "one layer": score(one_layer), "none": score(few * np.nan)}
    table = compare_roles({"a": score(drawn(0))}, others).set_index("other")
    assert table["n"].to_dict() == {"flat": 24, "few": 2, "one layer": 4, "none": 0}
    assert table["spearman"].notna().to_dict() == {"flat": False, "few": False, "one layer": True, "none": False}
    assert table[["ci_low", "ci_high"]].isna().all(axis=None)


@pytest.mark.parametrize(
    ("roles", "others", "said"),
    [
        ({}, {"b": score(drawn(0))}, "roles must hold scores by name"),
        ({"a": score(drawn(0))}, {}, "others must hold scores by name"),
        ({"a": score(drawn(0))}, score(drawn(0)), "others must hold scores by name"),
        ({"a": score(drawn(0))}, {"b": score(drawn(0, (4, 6)))}, r"others\['b'\] is of 4 x 6 heads and the roles"),
        ({"a": score(drawn(0, (6, 4, 1)), {"x": ["y"]})}, {"b": score(drawn(0))}, r"roles\['a'\] has the dim"),
    ],
)  # fmt: skip
def test_what_cannot_be_compared(roles: Any, others: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        compare_roles(roles, others)


# Effects of ablation


def one_by_one(model: mh.Model, task: Task, head: tuple[int, int], kind: str, seed: int = 0) -> np.ndarray:
    """Change of each item's mean log-probability: a full pass of each alone, the head's z replaced by hand."""
    tokens = task.tokens(model)
    rows = [oracles.ids_of(tokens, item)[:, :-1] for item in range(len(tokens))]
    z = [oracles.activations(model, ids)[oracles.name(head[0], "z")][0, :, head[1]] for ids in rows]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    changes = []
    for item, ids in enumerate(rows):
        if kind == "zero":
            new = torch.zeros_like(z[item])
        elif kind == "mean":
            new = torch.cat(z).mean(0).expand_as(z[item])
        else:
            donor = z[order.roll(1)[order == item].item()]
            new = donor[torch.arange(ids.shape[1]).clamp(max=len(donor) - 1)]
        target = tokens.ids[item][tokens.is_target[item]]
        intact, ablated = (
            logits[0, -len(target) :].log_softmax(-1)[torch.arange(len(target)), target].mean()
            for logits in (oracles.forward(model, ids), oracles.with_z(model, ids, *head, new))
        )
        changes.append(float(ablated - intact))
    return np.array(changes)


@pytest.mark.parametrize("task", [TEXTS, WORDS], ids=["several tokens", "one token"])
def test_effects_are_those_of_full_passes(llama: mh.Model, task: Task) -> None:
    heads = [(0, 1), (1, 2), (2, 3)]
    effects = ablation_effects(llama, task, heads=heads, seed=3, **QUICK)
    assert list(effects) == ["zero", "mean", "resample"]
    for kind, effect in effects.items():
        assert effect.values is not None and np.isfinite(effect.scores.values).sum() == 3
        for head in heads:
            expected = one_by_one(llama, task, head, kind, seed=3)
            np.testing.assert_allclose(effect.values.values[head], expected, atol=2e-5, err_msg=kind)
            assert abs(expected).max() > 1e-3


def test_zero_ablation_is_a_gate_shut(llama: mh.Model) -> None:
    effect = ablation_effects(llama, TEXTS, ["zero"], **QUICK)["zero"]
    assert effect.values is not None
    intact = task_log_prob(llama, TEXTS, **QUICK)
    for head in ((0, 0), (1, 3), (2, 2)):
        shut = task_log_prob(llama, TEXTS, off=[head], **QUICK)
        np.testing.assert_allclose(effect.values.values[head], shut - intact, atol=2e-5)


def test_effects_on_paper(micro: mh.Model) -> None:
    effect = ablation_effects(micro, capitals(), ["zero"], **QUICK)["zero"]
    intact = log_p(micro, 1, 1)
    assert effect[NEEDED]["score"] == pytest.approx(log_p(micro, 0, 1) - intact, abs=1e-4)
    assert effect[HURTS]["score"] == pytest.approx(log_p(micro, 1, 0) - intact, abs=1e-4)
    assert effect[NEEDED]["score"] < -4 and effect[HURTS]["score"] > 1
    assert all(effect[head]["score"] == 0 for head in gated_micro.DEAD)


def test_sum_over_tokens(llama: mh.Model) -> None:
    mean, total = (
        ablation_effects(llama, TEXTS, ["zero"], heads=["L0H1"], reduce=reduce, **QUICK)["zero"]
        for reduce in ("mean", "sum")
    )
    assert mean.values is not None and total.values is not None
    np.testing.assert_allclose(total.values.values[0, 1], mean.values.values[0, 1] * [1, 2, 1, 3], atol=1e-5)


def test_it_says_what_was_measured(llama: mh.Model) -> None:
    effect = ablation_effects(llama, TEXTS, ["mean"], heads=["L0H1"], **QUICK)["mean"]
    assert (effect.name, effect.unit, effect.kind) == ("mean ablation, task", "nats", "ablate")
    assert effect.dataset["cluster"].values.tolist() == list("aabc")
    about = effect.provenance
    assert about["task"] == "task" and about["items"] == TEXTS.tokens(llama).fingerprint() and about["reduce"] == "mean"


def test_interrupted_effects_end_with_the_kind_that_was_begun(llama: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def stops(*args: Any, **options: Any) -> Any:
        effect = swept(*args, **options)
        return effect.with_provenance(interrupted=options["name"].startswith("mean"))

    swept = comparison.sweep
    monkeypatch.setattr(comparison, "sweep", stops)
    assert list(ablation_effects(llama, WORDS, heads=["L0H1"], **QUICK)) == ["zero", "mean"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"kinds": ["zero", "half"]}, "kind is 'half'; choose one of zero, mean, resample"),
        ({"kinds": "zero"}, "kinds is 'zero'; give a list"),
        ({"kinds": []}, "kinds is"),
        ({"kinds": ["zero", "zero"]}, "kinds is"),
        ({"reduce": "max"}, "reduce is 'max'"),
        ({"task": TEXTS.items([0])}, 'kinds has "resample", which takes z from another item'),
    ],
)
def test_bad_arguments(llama: mh.Model, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "sweep", None)  # what is wrong is said before anything is run
    with pytest.raises(ValueError, match=said):
        ablation_effects(llama, **{"task": TEXTS, **options}, **QUICK)
