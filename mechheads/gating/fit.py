"""Causal head gating: a gate for every head, from three fits.

| symbol | argument, setting (``FitSettings``) or result |
|---|---|
| g = sigmoid(logit), multiplied into z of a head at all positions | ``gates[fit]`` |
| lambda | ``regularisation``: 0 in the first fit, then + (keep, G+) and - (drop, G-), both starting from the first |
| log p(target) | ``reduce`` over the target's tokens, then the mean over the items of a mini-batch |
| the regulariser, of logits clipped to +-4 | ``regulariser`` over heads, ``clip_logits`` |

Differences between the paper and its released code, and the default here:

| | paper | released code | default |
|---|---|---|---|
| ``reduce`` | sum | mean | mean |
| ``regulariser`` | sum | mean | mean: a sum over heads is hundreds of times as large as a mean log-probability |
| ``lr`` | 0.1 to 0.01 | 1.0 | 0.1 to 0.01 |
| ``lr_regularised`` | 0.5 to 0.1 | 1.0 | 0.5 to 0.1 |
| ``clip_side`` | both | both | pulled; with both, a head that does nothing but starts shut counts as interfering |
| ``batch`` | 64 | 32 | 64 |
| ``clip_gradient`` | not given | 1.0, over all seeds together | none; a number clips each seed by itself |
| ``updates`` | 500 each | 500 each | 500 each, fewer on a plateau; see ``tolerance`` |
| ``seeds`` | 10 | 1 | 10 |

Nam et al. 2025 ("Causal Head Gating", arXiv 2505.13737).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import logit
from torch import Tensor

from mechheads.engine.dispatch import each_by_workers, setup_of_each
from mechheads.gating.descent import Descent, NotFinite, Schedule, State, descend
from mechheads.gating.fitted import USUAL, FitSettings, Gates, Reduce, Rules, check_seeds, check_updates
from mechheads.gating.gates import Loss, Rows, log_probs, rows_at_once, under_gates, usable_items
from mechheads.gating.task import Task, TaskTokens
from mechheads.ledger.key import Store
from mechheads.ledger.ledger import Ledger, StoredProgress, check_progress
from mechheads.limits import Workers, current
from mechheads.messages.arguments import Positive, Within
from mechheads.messages.notices import stop_if, until_interrupted, warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance

_CPU = torch.device("cpu")


class LossNotFinite(ValueError):
    """A fit stopped because a loss, or a gradient, is not a finite number.

    Attributes:
        gates: the last gates whose loss was finite.
    """

    def __init__(self, message: str, gates: Gates) -> None:
        super().__init__(message)
        self.gates = gates


@dataclass(frozen=True)
class Stage:
    """Fits that run together, each with all seeds."""

    fits: tuple[str, ...]
    schedules: tuple[Schedule, ...]

    @property
    def name(self) -> str:
        return " and ".join(self.fits)

    @property
    def most(self) -> int:
        """The largest number of updates of any of its fits."""
        return max(each.updates for each in self.schedules)


@dataclass(frozen=True, eq=False)
class Fit:
    """A model, and what is fitted to it. Neighbouring items are run together, so order them by length."""

    model: Model
    loss: Loss
    n_items: int
    stages: Sequence[Stage]
    rules: Rules
    name: str
    provenance: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TargetLoss:
    """How unlikely the targets of some items are."""

    tokens: TaskTokens
    reduce: Reduce

    def __call__(self, model: Model, gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        some = self.tokens.items(items).to(model.device)
        return -log_probs(model, some, gates, reduce=self.reduce, recompute=recompute)


@analysis
@torch.inference_mode(False)
def fit_gates(
    model: Model,
    task: Task,
    *,
    seeds: int | Sequence[int] = 10,
    updates: int | tuple[int, int, int] = (500, 500, 500),
    batch: Positive = 64,
    fit: FitSettings = USUAL,
) -> Gates:
    """A gate for every head, fitted so that a task's targets become likely: freely, pulled open, and pulled shut.

    The fit "none" starts from gates drawn uniformly from 0 to 1 and maximises only the log-probability of the targets.
    Two fits continue from there. "keep" pulls gates open, so that it shuts only heads that hurt. "drop" pulls gates
    shut, so that only heads that help stay open. All seeds run at once, and so do "keep" and "drop". The model's
    weights are not changed. With ``mh.settings(store=)``, the file keeps how far the fits are: after an interrupt or a
    kill, the same call continues, with exactly the same result.

    Args:
        task: prompts and targets; rejected items are left out (see ``Task.tokens``).
        seeds: the number of fits from different starts, or the seeds of the starts.
        updates: the largest number of updates of each fit; one number, or one for each of the three fits.
        batch: number of items in an update; each pass goes through all items in a new random order.
        fit: learning rates, the pull, clipping and when a fit ends early.

    Returns:
        Gates of the fits "none", "keep" and "drop" for every seed, with loss curves. After Ctrl-C, the gates so far;
        NaN for fits that have not begun.

    Raises:
        LossNotFinite: if a loss is not finite; it names the update, and holds the last gates with a finite loss.
        RuntimeError: if a seed ends every worker that tries it; with a store, the same call goes on.

    Nam et al. 2025 (arXiv 2505.13737), section 3. The docstring of this function's module compares the paper, its
    released code and the defaults here.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> gates = mh.fit_gates(model, task, seeds=2, updates=1)
    >>> gates.losses[["fit", "seed", "update"]].values.tolist()
    [['none', 0, 1], ['none', 1, 1], ['keep', 0, 1], ['keep', 1, 1], ['drop', 0, 1], ['drop', 1, 1]]
    """
    rules, made = Rules(check_seeds(seeds), batch, fit), check_updates(updates)
    Within(above=0).check("regularisation", fit.regularisation)
    check_progress()
    settings = rules.about(made, unused="clip_difference")
    rates = settings["lr"], settings["lr_regularised"], settings["lr_regularised"]
    strengths = 0.0, fit.regularisation, -fit.regularisation
    none, keep, drop = (Schedule(*each) for each in zip(strengths, made, rates, strict=True))
    tokens = usable_items(model, task)
    rows = rows_at_once(model, tokens)
    by_length = tokens.items(torch.argsort(tokens.lengths, stable=True))
    first = start_logits(rules.seeds, model.n_layers, model.n_heads)[:1].sigmoid()
    under_gates(model, by_length.items(torch.tensor([0, len(tokens) - 1])), first)  # to be proved

    stages = Stage(("none",), (none,)), Stage(("keep", "drop"), (keep, drop))
    about = make_provenance(
        model,
        settings,
        task=task.name,
        task_source=task.source,
        items=tokens,
        n_items=len(tokens),
        n_rejected=len(tokens.rejected),
    )
    whole = Fit(model, TargetLoss(by_length, fit.reduce), len(tokens), stages, rules, task.name, about)
    with Store(current().store, analysis="fit_gates") as store:
        return run_stages(whole, rows, store.open(model, {}, items=tokens.fingerprint(), **settings))


def run_stages(fit: Fit, rows: Rows, ledger: Ledger | None) -> Gates:
    """The gates after all stages, each from the end of the one before; a ledger keeps ``rows``, for equal bits."""
    model, seeds, stage = fit.model, fit.rules.seeds, fit.stages[0]
    states: dict[str, State] = {}
    if ledger is not None:
        rows = Rows(**ledger.remember("rows", asdict(rows)))

    def see(state: State) -> None:
        states[stage.name] = state
        progress.see(stage.name, state, int(state.updates.sum()))

    def descend_stages() -> None:
        nonlocal stage
        logits = start_logits(seeds, model.n_layers, model.n_heads).to(model.device)
        for stage in fit.stages:
            begin = State.begin(logits.repeat(len(stage.fits), 1, 1), stage.most)
            states[stage.name] = found = progress.state(stage.name, begin)
            if (workers := current().limits.workers) is not None:
                stop_if(_descend_by_workers(workers, fit, stage, rows, found, see))
            else:
                schedules = [each for each in stage.schedules for _ in seeds]
                descent = Descent(partial(fit.loss, model), fit.n_items, schedules, fit.rules, rows)
                descend(descent, found, seen=see, name=f"fit {stage.name}")
            progress.write()
            logits = states[stage.name].logits

    try:
        with StoredProgress(ledger) as progress, until_interrupted() as interrupts:
            model.backend.with_frozen_weights(descend_stages)
    except NotFinite as error:
        name, seed = stage.fits[error.set // len(seeds)], seeds[error.set % len(seeds)]
        raise LossNotFinite(
            f"the loss of seed {seed} is not finite at update {error.state.done + 1} of the fit {name!r}; this error's "
            "gates are the last with a finite loss. A lower learning rate, or the model in float32, may help",
            _gather(fit, states, {stage.name: error.state.good}, interrupted=True),
        ) from error
    interrupts.warn(
        _reached(states.get(stage.name), stage, fit),
        "" if ledger is None else f"the same call continues from {ledger.path}",
    )
    gates = _gather(fit, states, {}, interrupted=interrupts.interrupted)
    stuck = ", ".join(f"seed {seed} of the fit {name!r}" for name, far in gates.stuck.items() for seed in far)
    if stuck and not interrupts.interrupted:
        warn(
            f"{stuck} ended with a loss a nat or more above the other seeds, so these gates say little about heads. "
            "See gates.losses; a lower learning rate or more updates may help"
        )
    return gates


@dataclass(frozen=True, eq=False)
class _SeedState:
    """Where the fits of one seed go on: its sets among those of all seeds, and their state on the CPU."""

    name: str
    sets: tuple[int, ...]
    begin: State

    def __str__(self) -> str:
        return self.name


def _descend_by_workers(
    workers: Workers, fit: Fit, stage: Stage, rows: Rows, state: State, seen: Callable[[State], None]
) -> bool:
    """Fit all seeds of a stage that are not done, each by a worker; True if Ctrl-C stopped it after those in flight."""
    model, seeds, units = fit.model, fit.rules.seeds, []
    for number, seed in enumerate(seeds):
        sets = tuple(range(number, len(state.logits), len(seeds)))
        if state.running[list(sets)].any():
            units.append(_SeedState(f"the fit {stage.name} of seed {seed}", sets, state.some(sets).to(_CPU)))
    fit_seed = partial(_fit_seed, fit.loss, fit.n_items, list(stage.schedules), fit.rules, rows)
    with Bar(total=len(units), desc=f"fit {stage.name}", unit="seed", leave=False) as bar:

        def take(index: int, end: State) -> None:
            nonlocal state
            state = state.put(units[index].sets, end.to(model.device))
            seen(state)
            bar.update()

        try:
            return each_by_workers(workers, setup_of_each(model, fit_seed), units, take)
        except NotFinite as error:
            sets = tuple(range(error.set % len(seeds), len(state.logits), len(seeds)))
            whole = state.put(sets, error.state.to(model.device))
            raise NotFinite(error.set, replace(whole, done=error.state.done)) from error


def _fit_seed(
    loss: Loss, n_items: int, schedules: list[Schedule], rules: Rules, rows: Rows, model: Model, unit: _SeedState
) -> State:
    """The state of a seed at the end, on the CPU; ``NotFinite`` names the set among those of all seeds."""
    descent = Descent(partial(loss, model), n_items, schedules, rules, rows)
    run = partial(descend, descent, unit.begin.to(model.device), seen=lambda state: None, name="")
    try:
        return model.backend.with_frozen_weights(run).to(_CPU)
    except NotFinite as error:
        raise NotFinite(unit.sets[error.set], error.state.to(_CPU)) from error


def _reached(state: State | None, stage: Stage, fit: Fit) -> str:
    """How far a stage has come."""
    if current().limits.workers is None:
        return f"{0 if state is None else state.done} updates of the fit {stage.name}"
    seeds = len(fit.rules.seeds)
    done = 0 if state is None else int((~state.running).view(-1, seeds).all(0).sum())
    return f"{done} of {seeds} seeds of the fit {stage.name}"


def start_logits(seeds: Sequence[int], n_layers: int, n_heads: int) -> Float[Tensor, "seed layer head"]:
    """Logits of gates drawn uniformly from 0 to 1, from a separate generator for each seed."""
    drawn = np.stack([np.random.default_rng(seed).random((n_layers, n_heads)) for seed in seeds])
    return torch.tensor(logit(drawn.clip(1e-6, 1 - 1e-6)), dtype=torch.float32)


def _gather(
    fit: Fit,
    states: Mapping[str, State],
    instead: Mapping[str, Float[Tensor, "set layer head"]],
    *,
    interrupted: bool,
) -> Gates:
    """The result so far; ``instead`` has logits to use instead of a stage's own, by the name of the stage."""
    model, seeds = fit.model, fit.rules.seeds
    most = max(stage.most for stage in fit.stages)
    gates, curves, made = [], [], []
    for stage in fit.stages:
        n = len(stage.fits), len(seeds)
        state = states.get(stage.name)
        if state is None:
            state = State.begin(torch.full((math.prod(n), model.n_layers, model.n_heads), torch.nan), stage.most)
        not_begun = (state.updates == 0)[:, None, None].to(state.logits.device)
        logits = instead.get(stage.name, state.logits.masked_fill(not_begun, torch.nan)).double().cpu()
        gates.append(logits.sigmoid().unflatten(0, n))
        both = torch.stack([state.loss, state.objective])
        wide = torch.nn.functional.pad(both, (0, most - both.shape[-1]), value=torch.nan)
        curves.append(wide.unflatten(1, n))
        made.append(state.updates.view(n))
    loss, objective = torch.cat(curves, 1).double().numpy()
    return Gates.of(
        torch.cat(gates).numpy(),
        [name for stage in fit.stages for name in stage.fits],
        seeds,
        (loss, objective, torch.cat(made).numpy()),
        name=fit.name,
        provenance=fit.provenance | {"interrupted": interrupted},
    )
