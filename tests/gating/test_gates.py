"""Gates: the gated pass, its gradient, and the fits, against hand-set weights, plain loops and torch's own Adam."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from scipy.special import logit
from torch import Tensor

import mechheads as mh
from mechheads.gating import (
    FitSettings,
    Task,
    contrast_gates,
    fit,
    fit_gates,
    gates as gates_module,
    task_log_prob,
)
from mechheads.gating.descent import Descent, Schedule, State, _on_plateau, descend
from mechheads.gating.fitted import Rules
from mechheads.gating.gates import (
    Rows,
    log_probs,
    rows_at_once,
    shared_row,
    value_and_gradient,
)
from support import gated_micro, oracles
from support.ctrl_c import stopped_at
from support.gated_micro import DEAD, HURTS, NEEDED, capitals
from support.levels import TWO_FIRST
from support.made_gates import same

ARCHITECTURES = TWO_FIRST

TEXTS = Task(
    [" The capital of France is", " When John went to the store", " no", " a big dog gave Mary a book"],
    [" Paris", " Mary and John", " yes", " cat dog"],
    name="texts",
)
ALL = Rows(1000, False)


def some_gates(model: mh.Model, n: int = 3) -> Tensor:
    return torch.rand(n, model.n_layers, model.n_heads, generator=torch.Generator().manual_seed(0))


def plain(
    model: mh.Model, task: Task, gates: Tensor, reduce: str = "mean", more: Sequence[tuple[str, Callable]] = ()
) -> Tensor:
    """Item by item, without padding: TransformerLens' own hooks, all logits, and the targets' log-probabilities."""
    found = []
    for prompt, target in zip(task.prompts, task.targets, strict=True):
        before = model.tokenizer(prompt).input_ids
        ids = torch.tensor([model.tokenizer(f"{prompt}{target}").input_ids])

        def gate(z: Tensor, hook: Any, layer: int) -> Tensor:
            return z * gates[layer, :, None]

        hooks = [(f"blocks.{layer}.attn.hook_z", partial(gate, layer=layer)) for layer in range(model.n_layers)]
        with model.model.hooks(fwd_hooks=[*hooks, *more]):
            logits = model.model(ids)
        each = logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[len(before) - 1 :, 0]
        found.append(each.mean() if reduce == "mean" else each.sum())
    return torch.stack(found)


def settings(batch: int = 64, tolerance: float | None = None, clip_gradient: float | None = None) -> Rules:
    return Rules((0,), batch, FitSettings(tolerance=tolerance, clip_gradient=clip_gradient))


# The gated pass


def test_what_the_targets_get_is_what_was_worked_out(micro: mh.Model) -> None:
    both = [NEEDED, HURTS]
    for off, g, h in [((), 1, 1), (["L0H1"], 0, 1), ("L1H2", 1, 0), (both, 0, 0), (DEAD, 1, 1), (None, 1, 1)]:
        found = task_log_prob(micro, capitals(), off=off)
        np.testing.assert_allclose(found, [gated_micro.log_p(micro, g, h)] * 4, atol=2e-5)
    tokens = capitals().tokens(micro)
    gates = torch.ones(1, 2, 4)
    gates[0, 0, 1], gates[0, 1, 2] = 0.75, 0.25
    found = log_probs(micro, tokens, gates).detach()
    np.testing.assert_allclose(found, [[gated_micro.log_p(micro, 0.75, 0.25)] * 4], atol=2e-5)


@pytest.mark.parametrize("reduce", ["mean", "sum"])
def test_log_probs_are_those_of_a_plain_loop(small: mh.Model, reduce: Any) -> None:
    gates = some_gates(small)
    found = log_probs(small, TEXTS.tokens(small), gates, reduce=reduce)
    expected = torch.stack([plain(small, TEXTS, each, reduce) for each in gates])
    torch.testing.assert_close(found, expected.detach(), atol=3e-5, rtol=1e-5)


@dataclass(frozen=True)
class Keys:
    """Turns keys round, which heads share on grouped queries."""

    site: ClassVar = "k"
    needs: ClassVar = ()

    def __call__(self, k: Tensor, context: Any) -> Tensor:
        return -k


GROUPS = [mh.HeadId(1, 2), mh.HeadId(1, 3), mh.HeadId(2, 0), mh.HeadId(2, 1)]
"""Whole groups of heads, two of them in the last layer."""


def plain_hooks(model: mh.Model, task: Task, rule: Any) -> list[tuple[str, Callable]]:
    """Plain hooks that do to ``GROUPS`` what an intervention says."""

    def even(pattern: Tensor, hook: Any, head: int) -> Tensor:
        pattern, seen = pattern.clone(), pattern[:, head] > 0
        pattern[:, head] = seen / seen.sum(-1, keepdim=True)
        return pattern

    def turned(keys: Tensor, hook: Any, heads: set[int]) -> Tensor:
        keys = keys.clone()
        keys[:, :, list(heads)] *= -1
        return keys

    def halved(z: Tensor, hook: Any, head: int) -> Tensor:
        z = z.clone()
        z[:, :, head] *= -0.5
        return z

    if rule == "mean":
        tokens = task.tokens(model)
        return oracles.mean_z_hooks(model, [oracles.ids_of(tokens, i) for i in range(len(tokens))], GROUPS)
    if rule == "uniform":
        return [(oracles.name(head.layer, "pattern"), partial(even, head=head.head)) for head in GROUPS]
    if isinstance(rule, mh.patching.Scale):
        return [(oracles.name(head.layer, "z"), partial(halved, head=head.head)) for head in GROUPS]
    size = model.n_heads // model.n_kv_heads
    return [
        (oracles.name(layer, "k"), partial(turned, heads={it.head // size for it in GROUPS if it.layer == layer}))
        for layer in (1, 2)
    ]


@pytest.mark.parametrize("rule", ["mean", "uniform", mh.patching.Scale(-0.5), Keys()], ids=str)
def test_heads_off_give_what_an_intervention_says(small: mh.Model, rule: Any) -> None:
    found = task_log_prob(small, TEXTS, GROUPS, intervention=rule)
    ones = torch.ones(small.n_layers, small.n_heads)
    expected = plain(small, TEXTS, ones, more=plain_hooks(small, TEXTS, rule)).detach()
    np.testing.assert_allclose(found, expected, atol=5e-5)
    assert np.abs(found - task_log_prob(small, TEXTS)).max() > 1e-3


@pytest.mark.parametrize("analysis", [task_log_prob, partial(task_log_prob, off="L0H1"), fit_gates])
def test_a_model_that_computes_something_else_than_gates_run_is_refused(tiny, analysis: Any) -> None:
    model = mh.load(tiny("llama"))
    model.model.unembed.register_forward_hook(lambda module, given, out: -1.5 * out)
    with pytest.raises(ValueError, match="the run under gates of item 0 differs from the model's own forward pass"):
        analysis(model, Task([" The capital of France is", " no"], [" Paris", " yes"]))


def test_texts_in_one_row_see_themselves_and_share_what_they_begin_with() -> None:
    ids = torch.tensor([[5, 6, 7, 8], [5, 6, 9, 0], [5, 1, 9, 9]])
    row = shared_row(ids, torch.tensor([4, 3, 3]))
    assert row is not None
    assert ids[row.item, row.position].tolist() == [5, 6, 7, 8, 9, 1, 9]
    assert row.index.tolist() == [[0, 1, 2, 3], [0, 1, 4, 0], [0, 5, 6, 0]]
    seen = [row.seen[at].nonzero()[:, 0].tolist() for at in range(7)]
    assert seen == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4], [0, 5], [0, 5, 6]]
    assert shared_row(torch.tensor([[1, 2], [3, 4]]), torch.tensor([2, 2])) is None
    assert shared_row(torch.arange(400).view(2, 200) % 200, torch.tensor([200, 200])) is None


@pytest.mark.parametrize("recompute", [False, True])
def test_one_row_gives_the_gradients_of_a_row_each(
    small: mh.Model, monkeypatch: pytest.MonkeyPatch, recompute: bool
) -> None:
    tokens = TEXTS.tokens(small)
    gates = torch.rand(2, small.n_layers, small.n_heads, generator=torch.Generator().manual_seed(0))

    def found() -> tuple[Tensor, Tensor]:
        leaf = gates.clone().requires_grad_()
        values = log_probs(small, tokens, leaf, recompute=recompute)
        return values.detach(), torch.autograd.grad(values.sum(), leaf)[0]

    together = found()
    monkeypatch.setattr(gates_module, "shared_row", lambda ids, ends: None)
    for one, each in zip(together, found(), strict=True):
        torch.testing.assert_close(one, each, atol=1e-5, rtol=1e-4)


# The gradient


def test_gradient_on_paper(micro: mh.Model) -> None:
    tokens, gates = capitals().tokens(micro), torch.ones(1, 2, 4)
    gates[0, 0, 1], gates[0, 1, 2] = 0.75, 0.25
    loss, gradient = value_and_gradient(
        lambda g, items, again: -log_probs(micro, tokens.items(items), g, recompute=again), gates, torch.arange(4), ALL
    )
    p = math.exp(gated_micro.log_p(micro, 0.75, 0.25))
    expected = torch.zeros(1, 2, 4)
    expected[0, 0, 1], expected[0, 1, 2] = -8 * (1 - p), 4 * (1 - p)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-4)
    assert float(loss) == pytest.approx(-math.log(p), abs=1e-5)


@pytest.mark.parametrize("rows", [Rows(1000, False), Rows(1, True)])
def test_gradient_is_that_of_finite_differences(small: mh.Model, rows: Rows) -> None:
    tokens, gates = TEXTS.tokens(small), some_gates(small, 2)

    def objective(gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        return -log_probs(small, tokens.items(items), gates, recompute=recompute)

    items = torch.arange(4)
    _, gradient = value_and_gradient(objective, gates, items, rows)
    step = 1e-2
    for at in [(0, 0, 1), (1, 1, 3), (0, 2, 0)]:
        ends = []
        for sign in (2, 1, -1, -2):
            moved = gates.clone()
            moved[at] += sign * step
            with torch.no_grad():
                ends.append(objective(moved, items, False)[at[0]].double().mean())
        slope = (-ends[0] + 8 * ends[1] - 8 * ends[2] + ends[3]) / (12 * step)
        assert float(gradient[at]) == pytest.approx(float(slope), rel=1e-3, abs=1e-3 * float(gradient.abs().max()))


def test_blocks_are_recomputed_where_memory_asks_for_it(llama: mh.Model) -> None:
    tokens = TEXTS.tokens(llama)
    assert not rows_at_once(llama, tokens).recompute
    small = mh.settings(budget="1 MB")(rows_at_once)(llama, tokens)
    assert small.recompute and small.rows >= 1
    roomy, tight = (mh.settings(budget=b)(fit_gates)(llama, TEXTS, seeds=2, updates=3) for b in (None, "1 MB"))
    np.testing.assert_allclose(tight.values, roomy.values, atol=1e-4)


# The descent


def torch_adam(model: mh.Model, task: Task, gates: np.ndarray, strength: float, updates: int, options: Any) -> Tensor:
    """One seed of one fit by torch.optim.Adam: full logits, the loss as it is written."""
    logits = torch.tensor(gates).logit().float().requires_grad_()
    start, end = options["lr"]
    adam = torch.optim.Adam([logits], lr=start)
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, end / start, updates)
    for _ in range(updates):
        adam.zero_grad()
        loss = -plain(model, task, logits.sigmoid(), options["reduce"]).mean()
        low, high = -options["clip_logits"], options["clip_logits"]
        if options["clip_side"] == "pulled":
            low, high = (None, high) if strength > 0 else (low, None)
        pull = logits.clamp(low, high)
        loss = loss - strength * (pull.mean() if options["regulariser"] == "mean" else pull.sum())
        loss.backward()
        if options["clip_gradient"] is not None:
            torch.nn.utils.clip_grad_norm_([logits], options["clip_gradient"])
        adam.step()
        slower.step()
    return logits.sigmoid().detach()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"lr": (0.3, 0.1), "reduce": "mean", "regulariser": "mean", "clip_gradient": None}
        | {"clip_logits": 1.0, "clip_side": "pulled"},
        {"lr": (0.8, 0.8), "reduce": "sum", "regulariser": "sum", "clip_gradient": 0.2}
        | {"clip_logits": 0.9, "clip_side": "both"},
    ],
)
def test_a_fit_is_that_of_torchs_adam(llama: mh.Model, options: Any) -> None:
    how = FitSettings(lr_regularised=(0.5, 0.2), regularisation=0.2, **options)
    gates = fit_gates(llama, TEXTS, seeds=[3, 8], updates=(6, 5, 4), fit=how)
    later = options | {"lr": (0.5, 0.2)}
    for number, seed in enumerate((3, 8)):
        start = np.random.default_rng(seed).random((llama.n_layers, llama.n_heads))
        none = torch_adam(llama, TEXTS, start, 0, 6, options)
        np.testing.assert_allclose(gates["none"][number], none, atol=2e-3)
        keep = torch_adam(llama, TEXTS, none.numpy(), 0.2, 5, later)
        np.testing.assert_allclose(gates["keep"][number], keep, atol=4e-3)
        drop = torch_adam(llama, TEXTS, none.numpy(), -0.2, 4, later)
        np.testing.assert_allclose(gates["drop"][number], drop, atol=4e-3)


@pytest.mark.parametrize("side", ["pulled", "both"])
def test_logits_beyond_the_clip_are_pulled_no_more(micro: mh.Model, side: Any) -> None:
    how = FitSettings(lr_regularised=0.5, clip_logits=2.0, clip_side=side)
    gates = fit_gates(micro, capitals(), seeds=4, updates=(1, 25, 25), fit=how)
    none, keep, drop = (logit(gates[name])[:, *zip(*DEAD, strict=True)] for name in gates.fits)
    for end, turned in ((keep, none), (-drop, -none)):
        beyond, opposite = turned > 2, turned < -2
        np.testing.assert_allclose(end[beyond], turned[beyond], atol=0.01)
        stays = opposite & (side == "both")
        np.testing.assert_allclose(end[stays], turned[stays], atol=0.01)
        pulled = end[~beyond & ~stays]
        assert (pulled >= 2).all() and (pulled < 7).all()  # Adam overshoots
        assert beyond.any() and opposite.any()


def test_each_set_stops_on_its_own_plateau() -> None:
    falling = -torch.arange(30.0)
    late = torch.where(torch.arange(30) < 20, 1.0, 0.5)
    curves = torch.stack([torch.zeros(30), falling, late, falling.flip(0)])
    assert _on_plateau(curves, 10, 1e-3).tolist() == [True, False, False, True]
    assert not _on_plateau(curves[:, :20], 10, 1e-3).any()

    def objective(gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        done = (gates[:, 0, 0] > 0.5).float()  # one set has nothing to gain, the other something all the time
        return ((1 - gates) * (1 - done)[:, None, None]).sum((1, 2))[:, None].expand(-1, len(items)) + 0 * gates.sum()

    start = State.begin(torch.tensor([[[9.0]], [[-9.0]]]), 400)
    schedules = [Schedule(0, 400, (0.01, 0.01))] * 2
    quiet: dict[str, Any] = {"see": lambda state: None, "name": ""}
    end = descend(Descent(objective, 4, schedules, settings(tolerance=1e-6), ALL), start, **quiet)
    assert end.stopped.tolist() == [150, 400] and end.done == 400
    assert end.loss[0, 150:].isnan().all() and not end.loss[1].isnan().any()
    every = descend(Descent(objective, 4, schedules, settings(), ALL), start, **quiet)
    assert every.stopped.tolist() == [400, 400]


def test_a_seed_that_is_stuck_is_told_of(micro: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def started(seeds: Sequence[int], n_layers: int, n_heads: int) -> torch.Tensor:
        logits = torch.zeros(len(seeds), n_layers, n_heads)
        logits[1, *NEEDED] = -30  # sigmoid has no slope there
        return logits

    monkeypatch.setattr(fit, "start_logits", started)
    options: dict[str, Any] = {"updates": (60, 1, 1), "fit": FitSettings(lr=0.3)}
    with pytest.warns(
        UserWarning, match="^seed 8 of the fit 'none', .* ended with a loss a nat or more above the other seeds"
    ):
        gates = fit_gates(micro, capitals(), seeds=[7, 8, 9], **options)
    assert gates.stuck["none"] == (8,)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit_gates(micro, capitals(), seeds=[7, 8], **options).stuck == {"none": (), "keep": (), "drop": ()}


def test_loss_curves_are_of_the_gates_before_each_update(llama: mh.Model) -> None:
    gates = fit_gates(llama, TEXTS, seeds=[5], updates=(3, 2, 4), fit=FitSettings(regularisation=0.3))
    start = np.random.default_rng(5).random((llama.n_layers, llama.n_heads))
    first = -plain(llama, TEXTS, torch.tensor(start).float()).detach().mean()
    assert float(gates.losses["loss"][0]) == pytest.approx(float(first), abs=1e-4)
    none = torch.tensor(gates["none"][0]).float()
    logits = none.logit()
    loss = -float(plain(llama, TEXTS, none).detach().mean())
    keep, drop = (float(gates.losses.query("fit == @name")["objective"].iloc[0]) for name in ("keep", "drop"))
    assert keep == pytest.approx(loss - 0.3 * float(logits.clamp(max=4).mean()), abs=1e-3)
    assert drop == pytest.approx(loss + 0.3 * float(logits.clamp(min=-4).mean()), abs=1e-3)
    table = gates.losses
    assert table.groupby("fit", sort=False)["update"].max().to_dict() == {"none": 3, "keep": 2, "drop": 4}


# Interruption


FIT: dict[str, Any] = {"seeds": 2, "updates": (4, 3, 5), "batch": 2}


@pytest.mark.parametrize("calls", [2, 7])
def test_an_interrupted_fit_goes_on_to_the_same_bits(
    llama: mh.Model, calls: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit_gates(llama, TEXTS, **FIT)
    path = tmp_path / "fit.ledger"
    with monkeypatch.context() as patch:
        patch.setattr(fit, "log_probs", stopped_at(calls + 1, log_probs))
        with pytest.warns(
            UserWarning, match=r"interrupted after \d updates of the fit .*; the same call continues from"
        ):
            part = mh.settings(store=path)(fit_gates)(llama, TEXTS, **FIT)
    assert part.interrupted and np.isnan(part["keep"]).all() == (calls < 5)
    assert len(part.losses.query("fit == 'none' and seed == 0")) == min(calls, 4)
    with monkeypatch.context() as patch:
        patch.setattr(fit, "log_probs", counted := Mock(wraps=log_probs))
        resumed = mh.settings(store=path)(fit_gates)(llama, TEXTS, **FIT)
    assert counted.call_count == 9 - calls
    assert same(resumed, whole)
    with monkeypatch.context() as patch:
        patch.setattr(fit, "log_probs", None)  # nothing is left to do
        assert same(mh.settings(store=path)(fit_gates)(llama, TEXTS, **FIT), whole)
    assert [file.name for file in tmp_path.iterdir()] == ["fit.ledger"]


# Two variants of a task


@pytest.mark.slow
def test_contrast_shuts_what_only_the_forgotten_variant_needs(micro: mh.Model) -> None:
    """To retain: the capitals. To forget: anything else, which L1H2 helps by pushing the capital down."""
    retain = capitals()
    forget = Task(retain.prompts, [" dog", " cat", " book", " no"], name="wrong")
    options: dict[str, Any] = {"seeds": 3, "updates": 60, "fit": FitSettings(lr=0.5, clip_difference=9.0)}
    gates = contrast_gates(micro, retain, forget, **options)
    shut = 1 - gates["contrast"]
    assert (shut[:, *HURTS] > 0.9).all() and (shut[:, *NEEDED] < 0.1).all()
    assert all((shut[:, *head] < 0.1).all() for head in DEAD)
    turned = contrast_gates(micro, forget, retain, **options)
    assert (turned["contrast"][:, *NEEDED] < 0.1).all() and (turned["contrast"][:, *HURTS] > 0.9).all()
    assert gates.name == "capitals without wrong" and gates.fits == ("contrast",)


def test_contrast_is_clipped_pair_by_pair(micro: mh.Model) -> None:
    """Right and wrong differ by s = 8 g - 4 h: beyond the clip nothing pulls but the regulariser."""
    retain, forget = capitals(), Task(capitals().prompts, [" dog", " cat", " book", " no"])
    gates = contrast_gates(micro, retain, forget, seeds=2, updates=1, fit=FitSettings(clip_difference=2.0))
    start = fit.start_logits([0, 1], 2, 4).sigmoid().numpy()
    s = 8 * start[:, 0, 1] - 4 * start[:, 1, 2]
    np.testing.assert_allclose(gates.losses["loss"], -np.minimum(s, 2.0), atol=1e-4)
    assert s.min() < 2 < s.max()


def test_contrast_needs_pairs(llama: mh.Model) -> None:
    one, two = Task([" no"], [" yes"]), Task([" no", " dog"], [" yes", " cat"])
    with pytest.raises(ValueError, match="retain has 1 items, forget has 2"):
        contrast_gates(llama, one, two)
    with pytest.raises(ValueError, match="forget is a list"):
        contrast_gates(llama, one, [" no"])
    left, right = Task([" no", " The "], [" yes", "cat"]), Task([" no ", " dog"], ["yes", " cat"])
    with pytest.raises(ValueError, match="no item can be used in both variants; item 1: a token spans"):
        contrast_gates(llama, left, right)


# Bad arguments


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"lr": 0}, "lr is 0; it must be above 0"),
        ({"regularisation": 0}, "regularisation is 0; give a number that is not 0"),
        ({"clip_side": "up"}, "clip_side is 'up'; choose one of 'pulled', 'both'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FitSettings(**settings)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": 0}, "seeds is 0"),
        ({"seeds": [1, 1]}, r"seeds is \[1, 1\]"),
        ({"updates": (1, 2)}, r"updates is \(1, 2\); give one number of at least 1, or one for each of the 3 fits"),
        ({"fit": FitSettings(regularisation=-0.1)}, "regularisation is -0.1; it must be above 0"),
        ({"task": [" no"]}, "task is a list; give mh.Task"),
        ({"task": Task([" no "], ["yes"])}, "none of its 1 items can be used"),
    ],
)
def test_bad_arguments(llama: mh.Model, options: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "run_stages", lambda *args, **options: pytest.fail("it began to fit"))
    with pytest.raises(ValueError, match=said):
        fit_gates(llama, **({"task": TEXTS} | options))
