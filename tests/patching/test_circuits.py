"""Sets of heads and circuits against full forward passes with hooks, by hand on a micro-model, and laws."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.engine import head_sets
from mechheads.patching import UniformAttention, circuits
from mechheads.patching.circuits import faithfulness, patch_sets
from mechheads.results.stats import clustered_interval
from mechheads.runs.head_tensor import LayerStore
from support import oracles
from support.levels import TWO_FIRST
from support.micro import FRANCE_RUN, ITALY_RUN, PARIS, ROME, both, micro, micro_model, pair  # noqa: F401
from support.texts import CLEAN, PAIRS

ARCHITECTURES = TWO_FIRST

TOLERANCE = 1e-4
PROMPTS = mh.Prompts(CLEAN, answer=PAIRS.answer, wrong=PAIRS.wrong)
NOTHING = mh.PromptPairs(CLEAN, CLEAN, answer=PAIRS.answer, wrong=PAIRS.wrong)
ALL = [(layer, head) for layer in range(3) for head in range(4)]
SETS = [[(0, 1), (0, 3)], [(0, 0), (1, 3), (2, 1)], [(2, 0), (2, 1)], ALL]
Heads = Iterable[tuple[int, int]]


def with_heads(model: mh.Model, ids: Tensor, new: Mapping[tuple[int, int], Tensor]) -> Tensor:
    """Logits [pos, d_vocab] of one full forward pass in which these heads' z are new [pos, d_head]."""
    return oracles.forward(model, ids, oracles.z_hooks(new))[0]


@cache
def sides(model: mh.Model) -> list[tuple[Any, list[oracles.Activations]]]:
    """Tokens and every activation of the clean and of the corrupted prompts, each prompt run alone."""
    return [
        (tokens, [oracles.activations(model, oracles.ids_of(tokens, prompt)) for prompt in range(len(CLEAN))])
        for tokens in PAIRS.tokens(model)
    ]


def z_of(cached: oracles.Activations, head: tuple[int, int]) -> Tensor:
    return cached[oracles.name(head[0], "z")][0, :, head[1]]


def diff_without(model: mh.Model, replaced: Heads, prompt: int) -> float:
    """Logit difference of a clean prompt with these heads' z from the corrupted one."""
    (tokens, _), (_, corrupted) = sides(model)
    new = {head: z_of(corrupted[prompt], head) for head in replaced}
    return oracles.logit_diff(with_heads(model, oracles.ids_of(tokens, prompt), new), tokens, prompt)


def assert_effects(
    model: mh.Model, effect: mh.patching.SetScores, tokens: Any, new: Callable[[tuple[int, int], int], Tensor]
) -> None:
    """Each effect is that of one full forward pass with the new z of all heads of a set."""
    for prompt in range(len(CLEAN)):
        ids = oracles.ids_of(tokens, prompt)
        before = oracles.logit_diff(oracles.forward(model, ids)[0], tokens, prompt)
        for i, heads in enumerate(SETS):
            logits = with_heads(model, ids, {head: new(head, prompt) for head in heads})
            expected = oracles.logit_diff(logits, tokens, prompt) - before
            assert effect.values[i, prompt] == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_patched_sets_equal_one_full_forward_each(small: mh.Model, direction: Any) -> None:
    effect = patch_sets(small, PAIRS, SETS, direction=direction)
    clean, corrupted = sides(small)
    (tokens, _), (_, source) = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    assert_effects(small, effect, tokens, lambda head, prompt: z_of(source[prompt], head))
    np.testing.assert_allclose(effect.table["score"], effect.values.mean(1))
    assert effect.table["heads"].tolist()[1] == "L0H0 L1H3 L2H1" and "4 sets, 3 prompts" in repr(effect)
    low, score, high = effect.table[["ci_low", "score", "ci_high"]].to_numpy().T
    assert (low <= score).all() and (score <= high).all()


@pytest.mark.parametrize(
    "intervention", [mh.Zero(), mh.Mean(), mh.patching.Scale(0.4), UniformAttention()], ids=lambda it: type(it).__name__
)
def test_ablated_sets_get_the_z_that_the_base_run_gives(small: mh.Model, intervention: Any) -> None:
    effect = patch_sets(small, PROMPTS, SETS, intervention=intervention)
    (tokens, cached), _ = sides(small)

    def new(head: tuple[int, int], prompt: int) -> Tensor:
        old = z_of(cached[prompt], head)
        if intervention == mh.Mean():
            return torch.cat([z_of(run, head) for run in cached]).mean(0).expand_as(old)
        if intervention == UniformAttention():
            v = cached[prompt][oracles.name(head[0], "v")][0]
            return oracles.causal_mean(v[:, head[1] * v.shape[1] // small.n_heads])
        return old * (0.0 if intervention == mh.Zero() else 0.4)

    assert_effects(small, effect, tokens, new)


def test_a_set_of_one_head_is_activation_patching(small: mh.Model) -> None:
    for site in ("z", "q", "v"):
        alone = patch_sets(small, PAIRS, [[head] for head in ALL], intervention=mh.Patch(site))
        effect = mh.activation_patch(small, PAIRS, site=site)
        np.testing.assert_allclose(alone.values, np.asarray(effect.values).reshape(12, 3), atol=TOLERANCE)
    share = patch_sets(small, PAIRS, [[head] for head in ALL], normalize=True)
    wanted = mh.activation_patch(small, PAIRS, normalize=True)
    np.testing.assert_allclose(share.table["score"], np.ravel(wanted.scores), atol=TOLERANCE)
    assert share.unit == "share restored"


@pytest.mark.filterwarnings("ignore:budget is 1 B")
def test_the_changed_z_of_sets_goes_to_disk_with_the_runs(llama: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[LayerStore] = []
    monkeypatch.setattr(head_sets, "LayerStore", lambda *how: made.append(LayerStore(*how)) or made[-1])
    in_memory, on_disk = (patch_sets(llama, PAIRS, SETS, budget=budget).values for budget in ("1 GB", 1))
    np.testing.assert_allclose(on_disk, in_memory, atol=TOLERANCE)
    assert [made[0].on_disk, made[-1].on_disk] == [False, True]


def test_sets_by_hand(micro: mh.Model, pair: mh.PromptPairs) -> None:
    """See test_micro: the Italy run holds Rome 2 (L0H1) and Rome 13 (L1H0)."""
    sets = [["L0H0", "L0H1"], ["L0H0", "L1H0"], ["L0H1", "L1H0"], ["L1H1", "L0H2"]]
    effect = patch_sets(micro, pair, sets)
    # L0H0 and L1H0 both make L1H0 write Paris 13.5 in place of Rome 13, and together no more than that.
    np.testing.assert_allclose(effect.values[:, 0], [30.5, 11.5 + 15, 30.5, 0], atol=1e-4)
    noising = patch_sets(micro, pair, sets, direction="noising")
    np.testing.assert_allclose(noising.values[:, 0], [-30.5, -11 - 15.5, -30.5, 0], atol=1e-4)
    half = patch_sets(micro, pair, sets, intervention=mh.patching.Scale(0.5), direction="noising")
    # L1H0 gets half of the z it had: that L0H0 moves half as much is not counted again.
    np.testing.assert_allclose(half.values[:, 0], [-6.75 - 1, -6.75, -6.75 - 1, 0], atol=1e-4)


def test_faithfulness_equals_full_forwards(small: mh.Model) -> None:
    circuit = [(0, 0), (0, 2), (1, 1), (1, 2), (2, 3)]
    found = faithfulness(small, PAIRS, circuit)
    outside = [head for head in ALL if head not in circuit]
    wanted = {"full": [], "circuit": outside, "no heads": ALL}
    for run, replaced in wanted.items():
        expected = [diff_without(small, replaced, prompt) for prompt in range(len(PAIRS))]
        np.testing.assert_allclose(found.table[run], expected, atol=TOLERANCE)
    mean = found.table[list(wanted)].mean()
    expected = (mean["circuit"] - mean["no heads"]) / (mean["full"] - mean["no heads"])
    assert found.score == pytest.approx(expected)
    assert found.ci_low <= found.score <= found.ci_high
    assert "Patch(site='z')" in repr(found) and found.provenance["heads"] == [f"L{i}H{j}" for i, j in circuit]


def test_the_interval_of_a_ratio() -> None:
    """With a whole that is the same everywhere it is the interval of a mean; in general it holds the ratio."""
    rng = np.random.default_rng(0)
    part, cluster = rng.normal(2, 1, 24), [str(i // 2) for i in range(24)]
    low, high = clustered_interval(part, cluster)
    ends = circuits._ratio_interval(part, np.full(24, 4.0), cluster)
    np.testing.assert_allclose(ends, (low / 4, high / 4), rtol=1e-12)
    whole = rng.normal(4, 1, 24)
    low, high = circuits._ratio_interval(part, whole, cluster)
    assert low < part.mean() / whole.mean() < high
    low, high = circuits._ratio_interval(part * 0.7, part, cluster)
    assert (low, high) == (pytest.approx(0.7), pytest.approx(0.7))
    assert np.isnan(circuits._ratio_interval(part, whole, ["one", "two"] * 12)).all()


def test_circuits_by_hand(micro: mh.Model, pair: mh.PromptPairs) -> None:
    """All heads from the Italy run give the Italy run: L0H1 Rome 2, L1H0 Rome 13."""
    table = faithfulness(micro, pair, ["L0H0", "L1H0"])
    np.testing.assert_allclose(
        table.table[["full", "circuit", "no heads"]], [[FRANCE_RUN, 13.5 - 2, ITALY_RUN]], atol=1e-4
    )
    assert table.score == pytest.approx((13.5 - 2 + 15) / 30.5, abs=1e-5)
    assert faithfulness(micro, pair, ["L0H1"]).score == pytest.approx((2 - 13 + 15) / 30.5, abs=1e-5)
    # L1H0 alone reads what L0H0 moves: of Italy.
    assert faithfulness(micro, pair, ["L1H0"]).score == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: patch_sets(m, PAIRS, [["L0H0"], []]), r"sets\[1\] is empty"),
        (lambda m: patch_sets(m, PAIRS, "L0H0"), "sets is 'L0H0'; give a list of sets"),
        (lambda m: patch_sets(m, PAIRS, [["L0H0", (0, 0)]]), r"sets\[0\] contains L0H0 twice"),
        (
            lambda m: patch_sets(m, PROMPTS, [["L0H0"]]),
            r"intervention is Patch\(.*\), which takes values from the source run of a pair; give mh\.PromptPairs",
        ),
        (lambda m: patch_sets(m, NOTHING, [["L0H0"]], normalize=True), "the same for both runs"),
        (lambda m: faithfulness(m, PAIRS), "heads is missing; give the heads of the circuit"),
        (lambda m: faithfulness(m, NOTHING, ["L0H0"]), "the share that a circuit keeps is not defined"),
    ],
)
def test_bad_input_is_one_clear_error(llama: mh.Model, call: Callable, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(llama)
