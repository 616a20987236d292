"""Gradient descent on the logits of many sets of gates at once.

    minimise  loss(g)  -  strength * R(clip(logit)),    g = sigmoid(logit)

for each set separately. A positive strength pulls gates open, a negative strength pulls them shut. R is the mean or the
sum over heads; a logit beyond the clip is no longer pulled. Sets share only the mini-batches: the gradient is clipped
for each set, and Adam works element by element.

A step makes a new ``State`` from the old one, so an interruption between any two lines leaves a complete state.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.gating.fitted import FitSettings, Rules
from mechheads.gating.gates import Objective, Rows, value_and_gradient
from mechheads.progress import Bar

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Adam's parameters, as in torch.optim."""
_WINDOW = 50
"""The least number of updates in each mean from which a plateau is detected; rounded up to whole passes over items."""


@dataclass(frozen=True)
class Schedule:
    """The settings of one set of gates; a positive ``strength`` pulls gates open, a negative one shut."""

    strength: float
    updates: int
    lr: tuple[float, float]


@dataclass(frozen=True, eq=False)
class State:
    """The state of a descent on the logits of gates."""

    logits: Float[Tensor, "set layer head"]
    first: Float[Tensor, "set layer head"]  # Adam's running mean of the gradient
    second: Float[Tensor, "set layer head"]  # and of its square
    done: int  # updates
    stopped: Int[Tensor, " set"]  # the updates after which each set was done; 0 if it is still running
    loss: Float[Tensor, "set update"]  # without the regulariser; NaN for updates that were not made
    objective: Float[Tensor, "set update"]  # the loss with the regulariser

    @classmethod
    def begin(cls, logits: Float[Tensor, "set layer head"], updates: int) -> State:
        """The state before the first of at most ``updates`` updates."""
        zeros = torch.zeros_like(logits)
        curve = torch.full((len(logits), updates), torch.nan)
        stopped = torch.zeros(len(logits), dtype=torch.long)
        return cls(logits, zeros, zeros, 0, stopped, curve, curve)

    def to(self, device: torch.device) -> State:
        """The state with the tensors of the steps on a device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in ("logits", "first", "second")})

    def some(self, sets: Sequence[int]) -> State:
        """The state of some of the sets."""
        return replace(self, **{name: value[list(sets)] for name, value in self._of_sets().items()})

    def put(self, sets: Sequence[int], state: State) -> State:
        """The state with the states of some sets replaced; if all sets are done, so are all updates."""
        new = {name: value.clone() for name, value in self._of_sets().items()}
        for name, value in state._of_sets().items():
            new[name][list(sets)] = value
        put = replace(self, **new)
        return put if put.running.any() else replace(put, done=int(put.stopped.max()))

    def _of_sets(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "done"}

    @property
    def running(self) -> Bool[Tensor, " set"]:
        """The sets that are not done."""
        return self.stopped == 0

    @property
    def updates(self) -> Int[Tensor, " set"]:
        """The number of updates of each set so far."""
        return torch.where(self.running, self.done, self.stopped)


@dataclass(frozen=True, eq=False)
class Descent:
    """An objective and the settings of its descent. Neighbouring items run together, so order them by length."""

    objective: Objective
    n_items: int
    schedules: list[Schedule]
    rules: Rules
    rows: Rows

    @property
    def per_round(self) -> int:
        """The number of updates in one pass over the items."""
        return math.ceil(self.n_items / self.rules.batch)


class NotFinite(Exception):
    """The loss of a set, or its gradient, is not finite at this update."""

    def __init__(self, which: int, update: int) -> None:
        super().__init__(which, update)
        self.set, self.update = which, update


def descend(descent: Descent, state: State, *, see: Callable[[State], None], name: str) -> State:
    """The state after every set has made its updates or reached a plateau; ``see`` gets the state of every update."""
    window = descent.per_round * math.ceil(_WINDOW / descent.per_round)
    most = torch.tensor([each.updates for each in descent.schedules])
    tolerance = descent.rules.fit.tolerance
    bar_format = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} updates, {elapsed}, {remaining} to go{postfix}"
    with Bar(total=int(most.max()), initial=state.done, desc=name, leave=False, bar_format=bar_format) as bar:
        while state.running.any():
            state = _step(descent, state)
            ended = most <= state.done
            if tolerance is not None and state.done % window == 0:
                ended |= _on_plateau(state.objective[:, : state.done], window, tolerance)
            stopped = torch.where(state.running & ended, state.done, state.stopped)
            state = replace(state, stopped=stopped)
            see(state)
            bar.update()
            bar.set_postfix_str(f"loss {float(state.loss[:, state.done - 1].nanmean()):.3f}", refresh=False)
    return state


def _mini_batch(update: int, n_items: int, per_round: int, seed: int) -> Int[np.ndarray, " some"]:
    """The items of an update, sorted; each pass covers all items once, in a new random order."""
    number, part = divmod(update, per_round)
    order = np.random.default_rng([seed, number]).permutation(n_items)
    return np.sort(np.array_split(order, per_round)[part])


def _step(descent: Descent, state: State) -> State:
    """One update of the sets that are not done."""
    schedules, fit = descent.schedules, descent.rules.fit
    items = torch.as_tensor(_mini_batch(state.done, descent.n_items, descent.per_round, fit.order_seed))
    running = state.running.nonzero()[:, 0]
    logits = state.logits[running]
    gates = logits.sigmoid()
    loss, gradient = value_and_gradient(descent.objective, gates, items, descent.rows)
    strength = logits.new_tensor([schedules[i].strength for i in running])
    pull, slope = _regulariser(logits, strength, fit)
    total = loss - strength * pull
    gradient = gradient * gates * (1 - gates) - strength[:, None, None] * slope
    fine = total.isfinite() & gradient.isfinite().all(-1).all(-1)
    if not fine.all():
        raise NotFinite(int(running[(~fine).nonzero()[0, 0]]), state.done + 1)
    if fit.clip_gradient is not None:
        norm = gradient.flatten(1).norm(dim=1)[:, None, None]
        gradient = gradient * (fit.clip_gradient / (norm + 1e-6)).clamp(max=1)
    first = state.first[running].lerp(gradient, 1 - _BETAS[0])
    second = state.second[running].lerp(gradient.square(), 1 - _BETAS[1])
    after = state.done + 1
    unbiased = (first / (1 - _BETAS[0] ** after), second / (1 - _BETAS[1] ** after))
    rate = logits.new_tensor([_rate(schedules[i], state.done) for i in running])[:, None, None]
    new = logits - rate * unbiased[0] / (unbiased[1].sqrt() + _EPSILON)

    def put(old: Tensor, value: Tensor) -> Tensor:
        return old.index_copy(0, running.to(old.device), value.to(old.device))

    def append(curve: Tensor, value: Tensor) -> Tensor:
        curve = curve.clone()
        curve[running, state.done] = value.to(curve)
        return curve

    return replace(
        state,
        logits=put(state.logits, new),
        first=put(state.first, first),
        second=put(state.second, second),
        done=after,
        loss=append(state.loss, loss),
        objective=append(state.objective, total),
    )


def _regulariser(
    logits: Float[Tensor, "set layer head"], strength: Float[Tensor, " set"], fit: FitSettings
) -> tuple[Float[Tensor, " set"], Float[Tensor, "set layer head"]]:
    """The mean or the sum of the clipped logits, and its gradient."""
    n_heads = logits[0].numel() if fit.regulariser == "mean" else 1
    low, high = torch.full_like(strength, -fit.clip_logits), torch.full_like(strength, fit.clip_logits)
    if fit.clip_side == "pulled":
        low[strength > 0], high[strength < 0] = -torch.inf, torch.inf
    low, high = low[:, None, None], high[:, None, None]
    value = logits.clamp(low, high).flatten(1).sum(1) / n_heads
    return value, ((logits >= low) & (logits <= high)).to(logits.dtype) / n_heads


def _rate(schedule: Schedule, done: int) -> float:
    start, end = schedule.lr
    return start + (end - start) * done / schedule.updates


def _on_plateau(objective: Float[Tensor, "set update"], window: int, tolerance: float) -> Bool[Tensor, " set"]:
    """A mask of the sets on a plateau: neither of the last two means is below all earlier means by ``tolerance``."""
    if objective.shape[1] < 3 * window:
        return torch.zeros(len(objective), dtype=torch.bool)
    means = objective.unflatten(1, (-1, window)).mean(-1)
    return means[:, -2:].amin(1) > means[:, :-2].amin(1) - tolerance
