"""Causal head gating: a gate for every head, from three fits to a task, or from one fit to two variants of a task.

| symbol | argument, setting (``FitSettings``) or result |
|---|---|
| g = sigmoid(logit), multiplied into z of a head at all positions | ``gates[fit]`` |
| lambda | ``regularisation``: 0 in the first fit, then + (keep, G+) and - (drop, G-), both from the end of the first |
| log p(target) | ``reduce`` over the target's tokens, then the mean over the items of a mini-batch |
| the regulariser, of logits clipped to +-4 | ``regulariser`` over heads, ``clip_logits`` |

Nam et al. 2025 ("Causal Head Gating", arXiv 2505.13737).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
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
    """A model, and the loss and stages of a fit. Neighbouring items run together, so order them by length."""

    model: Model
    loss: Loss
    n_items: int
    stages: Sequence[Stage]
    rules: Rules
    name: str
    provenance: dict[str, Any]


@dataclass(frozen=True, eq=False)
class TargetLoss:
    """The loss of a task: minus the log-probability of the targets of some items."""

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
    """A gate for every head, fitted to make a task's targets likely: freely, pulled open, and pulled shut.

    The fit "none" starts from gates drawn uniformly from 0 to 1 and maximises only the log-probability of the targets.
    Two fits continue from there. "keep" pulls gates open, so that it shuts only heads that hurt. "drop" pulls gates
    shut, so that only heads that help stay open. All seeds run at once, and so do "keep" and "drop". The model's
    weights are not changed. With ``mh.settings(store=)``, the file stores the state of the fits: after an interrupt or
    a kill, the same call continues, with exactly the same result.

    Args:
        task: prompts and targets; rejected items are left out (see ``Task.tokens``).
        seeds: the number of fits from different starts, or the seeds of the starts.
        updates: the largest number of updates of each fit; one number, or one for each of the three fits.
        batch: the number of items in an update; each pass goes through all items in a new random order.
        fit: learning rates, the pull, clipping and the end of fits.

    Returns:
        Gates of the fits "none", "keep" and "drop" for every seed, with loss curves. After Ctrl-C, the gates so far;
        NaN for fits that have not begun.

    Nam et al. 2025 (arXiv 2505.13737), section 3. docs/roles.md compares the paper, its released code and the defaults
    here.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> gates = mh.fit_gates(model, task, seeds=2, updates=1)
    >>> gates.losses[["fit", "seed", "update"]].values.tolist()
    [['none', 0, 1], ['none', 1, 1], ['keep', 0, 1], ['keep', 1, 1], ['drop', 0, 1], ['drop', 1, 1]]
    """
    rules, n_updates = Rules(check_seeds(seeds), batch, fit), check_updates(updates)
    Within(above=0).check("regularisation", fit.regularisation)
    check_progress()
    settings = rules.metadata(n_updates, unused="clip_difference")
    rates = settings["lr"], settings["lr_regularised"], settings["lr_regularised"]
    strengths = 0.0, fit.regularisation, -fit.regularisation
    none, keep, drop = (Schedule(*each) for each in zip(strengths, n_updates, rates, strict=True))
    tokens = usable_items(model, task)
    rows = rows_at_once(model, tokens)
    by_length = tokens.items(torch.argsort(tokens.lengths, stable=True))
    first = start_logits(rules.seeds, model.n_layers, model.n_heads)[:1].sigmoid()
    under_gates(model, by_length.items(torch.tensor([0, len(tokens) - 1])), first)  # to be proved

    stages = Stage(("none",), (none,)), Stage(("keep", "drop"), (keep, drop))
    metadata = make_provenance(
        model,
        settings,
        task=task.name,
        task_source=task.source,
        items=tokens,
        n_items=len(tokens),
        n_rejected=len(tokens.rejected),
    )
    whole = Fit(model, TargetLoss(by_length, fit.reduce), len(tokens), stages, rules, task.name, metadata)
    with Store(current().store, analysis="fit_gates") as store:
        return run_stages(whole, rows, store.open(model, {}, items=tokens.fingerprint(), **settings))


@dataclass(frozen=True, eq=False)
class _Difference:
    """The loss of two variants: minus the difference of their targets' log-probabilities, clipped, pair by pair."""

    retained: TaskTokens
    forgotten: TaskTokens
    reduce: Reduce
    most: float

    def __call__(self, model: Model, gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        retained, forgotten = (
            log_probs(model, side.items(items).to(model.device), gates, reduce=self.reduce, recompute=recompute)
            for side in (self.retained, self.forgotten)
        )
        return -(retained - forgotten).clamp(max=self.most)


@analysis
@torch.inference_mode(False)
def contrast_gates(
    model: Model,
    retain: Task,
    forget: Task,
    *,
    seeds: int | Sequence[int] = 10,
    updates: int = 500,
    batch: Positive = 64,
    fit: FitSettings = USUAL,
) -> Gates:
    """Gates under which a model still does one variant of a task but not the other.

    Args:
        retain, forget: the two variants of the task; item i of each is the same question in another form.
        seeds, updates, batch, fit: as in ``fit_gates``. A negative ``fit.regularisation`` pulls gates shut.

    Returns:
        Gates of one fit, "contrast", for every seed. ``1 - gates.scores("contrast")`` is high for heads that the
        forgotten variant needs and the retained variant does not.

    Nam et al. 2025 (arXiv 2505.13737), section 5. The gates maximise, with R the variant to retain, F the one to forget
    and a pull that opens gates,

        min(log p(y_R | x_R) - log p(y_F | x_F), 5)  +  lambda R(clip(logit))

    for each pair. A gate that is shut at the end belongs to a head that helps F and not R. The paper's text has lambda
    above 0, its appendix -0.1, its code 0.1, which is the default here.

    >>> capitals = mh.Task(["The capital of France is"], [" Paris"])
    >>> spanish = mh.Task(["La capital de Francia es"], [" Par"])
    >>> gates = mh.gating.contrast_gates(model, retain=capitals, forget=spanish, seeds=2, updates=1)
    >>> gates["contrast"].shape
    (2, 30, 9)
    """
    if len(retain) != len(forget):
        raise ValueError(
            f"retain has {len(retain)} items, forget has {len(forget)}; item i of both must be variants of one question"
        )
    rules, n_updates = Rules(check_seeds(seeds), batch, fit), check_updates(updates, 1)
    check_progress()
    settings = rules.metadata(n_updates, unused="lr_regularised")
    retained, forgotten = _pair_up(usable_items(model, retain), usable_items(model, forget))
    rows = rows_at_once(model, max((retained, forgotten), key=lambda side: side.ids.shape[1]))
    rows = replace(rows, rows=max(1, rows.rows // 2))  # each pair takes a row of each variant
    name = f"{retain.name} without {forget.name}"
    items = f"{retained.fingerprint()} {forgotten.fingerprint()}"
    stage = Stage(("contrast",), (Schedule(fit.regularisation, n_updates[0], settings["lr"]),))
    metadata = make_provenance(model, settings, task=name, items=items, n_items=len(retained))
    loss = _Difference(retained, forgotten, fit.reduce, fit.clip_difference)
    whole = Fit(model, loss, len(retained), [stage], rules, name, metadata)
    with Store(current().store, analysis="contrast_gates") as store:
        return run_stages(whole, rows, store.open(model, {}, items=items, **settings))


def _pair_up(retain: TaskTokens, forget: TaskTokens) -> tuple[TaskTokens, TaskTokens]:
    """The items that can be used in both variants, in order of length."""
    both = sorted(set(retain.indices) & set(forget.indices))
    if not both:
        index, why = next(iter({**retain.rejected, **forget.rejected}.items()))
        raise ValueError(f"retain and forget: no item can be used in both variants; item {index}: {why}")
    sides = [side.items(torch.tensor([side.indices.index(item) for item in both])) for side in (retain, forget)]
    order = torch.argsort(sides[0].lengths + sides[1].lengths, stable=True)
    return sides[0].items(order), sides[1].items(order)


def run_stages(fit: Fit, rows: Rows, ledger: Ledger | None) -> Gates:
    """The gates after all stages, each from the end of the one before; a ledger stores ``rows``, for equal bits."""
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
            states[stage.name] = state = progress.state(stage.name, begin)
            if (workers := current().limits.workers) is not None:
                stop_if(_descend_by_workers(workers, fit, stage, rows, state, see))
            else:
                schedules = [each for each in stage.schedules for _ in seeds]
                descent = Descent(partial(fit.loss, model), fit.n_items, schedules, fit.rules, rows)
                descend(descent, state, see=see, name=f"fit {stage.name}")
            progress.write()
            logits = states[stage.name].logits

    try:
        with StoredProgress(ledger) as progress, until_interrupted() as interrupts:
            model.backend.with_frozen_weights(descend_stages)
    except NotFinite as error:
        name, seed = stage.fits[error.set // len(seeds)], seeds[error.set % len(seeds)]
        raise ValueError(
            f"the loss of seed {seed} is not finite at update {error.update} of the fit {name!r}; a lower learning "
            "rate, or the model in float32, may help"
        ) from error
    interrupts.warn(
        _reached(states.get(stage.name), stage, fit),
        "" if ledger is None else f"the same call continues from {ledger.path}",
    )
    gates = _gather(fit, states, interrupted=interrupts.interrupted)
    stuck = ", ".join(f"seed {seed} of the fit {name!r}" for name, far in gates.stuck.items() for seed in far)
    if stuck and not interrupts.interrupted:
        warn(
            f"{stuck} ended with a loss a nat or more above the other seeds, so these gates say little about heads. "
            "See gates.losses; a lower learning rate or more updates may help"
        )
    return gates


@dataclass(frozen=True, eq=False)
class _SeedState:
    """The state of one seed's fits, on the CPU, and their indices among the sets of all seeds."""

    name: str
    sets: tuple[int, ...]
    begin: State

    def __str__(self) -> str:
        return self.name


def _descend_by_workers(
    workers: Workers, fit: Fit, stage: Stage, rows: Rows, state: State, see: Callable[[State], None]
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
            see(state)
            bar.update()

        return each_by_workers(workers, setup_of_each(model, fit_seed), units, take)


def _fit_seed(
    loss: Loss, n_items: int, schedules: list[Schedule], rules: Rules, rows: Rows, model: Model, unit: _SeedState
) -> State:
    """The final state of a seed's fits, on the CPU; ``NotFinite`` has the index among the sets of all seeds."""
    descent = Descent(partial(loss, model), n_items, schedules, rules, rows)
    run = partial(descend, descent, unit.begin.to(model.device), see=lambda state: None, name="")
    try:
        return model.backend.with_frozen_weights(run).to(_CPU)
    except NotFinite as error:
        raise NotFinite(unit.sets[error.set], error.update) from error


def _reached(state: State | None, stage: Stage, fit: Fit) -> str:
    """The progress of a stage, as text for a warning."""
    if current().limits.workers is None:
        return f"{0 if state is None else state.done} updates of the fit {stage.name}"
    seeds = len(fit.rules.seeds)
    done = 0 if state is None else int((~state.running).view(-1, seeds).all(0).sum())
    return f"{done} of {seeds} seeds of the fit {stage.name}"


def start_logits(seeds: Sequence[int], n_layers: int, n_heads: int) -> Float[Tensor, "seed layer head"]:
    """The logits of gates drawn uniformly from 0 to 1, with a separate generator for each seed."""
    drawn = np.stack([np.random.default_rng(seed).random((n_layers, n_heads)) for seed in seeds])
    return torch.tensor(logit(drawn.clip(1e-6, 1 - 1e-6)), dtype=torch.float32)


def _gather(fit: Fit, states: Mapping[str, State], *, interrupted: bool) -> Gates:
    """The gates so far."""
    model, seeds = fit.model, fit.rules.seeds
    gates, losses = [], []
    for stage in fit.stages:
        n = len(stage.fits), len(seeds)
        state = states.get(stage.name)
        if state is None:
            state = State.begin(torch.full((math.prod(n), model.n_layers, model.n_heads), torch.nan), stage.most)
        not_begun = (state.updates == 0)[:, None, None].to(state.logits.device)
        logits = state.logits.masked_fill(not_begun, torch.nan).double().cpu()
        gates.append(logits.sigmoid().unflatten(0, n))
        each = [stage.fits, seeds, range(1, stage.most + 1)]
        curves = {name: getattr(state, name).double().numpy().ravel() for name in ("loss", "objective")}
        index = pd.MultiIndex.from_product(each, names=["fit", "seed", "update"])
        losses.append(pd.DataFrame(curves, index=index).dropna().reset_index())
    return Gates(
        fit.name,
        tuple(name for stage in fit.stages for name in stage.fits),
        seeds,
        torch.cat(gates).numpy(),
        pd.concat(losses, ignore_index=True),
        fit.provenance | {"interrupted": interrupted},
    )
