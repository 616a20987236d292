"""Gradient descent on the logits of many sets of gates at once.

    minimise  loss(g)  -  strength * R(clip(logit)),    g = sigmoid(logit)

for each set on its own: a positive strength pulls gates open, a negative one shut. R is the mean or the sum over heads,
and the clip takes the pull away from logits that are there. Sets share the mini-batches and nothing else: the gradient
is clipped set by set, and Adam works number by number.

A step makes a new ``State`` from the old one, so that an interruption between any two lines leaves a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.bars import Bar
from mechheads.gating.arguments import Rules
from mechheads.gating.gates import Objective, Rows, value_and_gradient

_BETAS, _EPSILON = (0.9, 0.999), 1e-8
"""Adam's, as torch.optim has them."""
_WINDOW = 50
"""A plateau is looked for in means over at least so many updates, rounded up to whole rounds through the items."""


@dataclass(frozen=True)
class Pull:
    """What one set of gates is fitted with.

    Attributes:
        strength: of the regulariser; positive pulls open, negative shut.
        updates: how many at most.
        lr: the learning rate at the start and at the end; linear between.
    """

    strength: float
    updates: int
    lr: tuple[float, float]


@dataclass(frozen=True, eq=False)
class State:
    """How far a descent has come.

    Attributes:
        logits: of the gates.
        good: the logits of which the loss was last seen, and finite.
        first, second: Adam's running means of the gradient and of its square.
        done: updates made.
        stopped: after how many updates each set was done, 0 while it is not.
        loss: without the regulariser; ``objective``: with it; NaN where there was no update.
    """

    logits: Float[Tensor, "set layer head"]
    good: Float[Tensor, "set layer head"]
    first: Float[Tensor, "set layer head"]
    second: Float[Tensor, "set layer head"]
    done: int
    stopped: Int[Tensor, " set"]
    loss: Float[Tensor, "set update"]
    objective: Float[Tensor, "set update"]

    @classmethod
    def begin(cls, logits: Float[Tensor, "set layer head"], updates: int) -> State:
        """Before the first of at most so many updates."""
        zeros = torch.zeros_like(logits)
        curve = torch.full((len(logits), updates), torch.nan)
        stopped = torch.zeros(len(logits), dtype=torch.long)
        return cls(logits, logits, zeros, zeros, 0, stopped, curve, curve)

    def tensors(self) -> dict[str, Tensor]:
        """All of it, for a file."""
        return {name: torch.as_tensor(value).cpu() for name, value in vars(self).items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], device: torch.device) -> State:
        """What ``tensors`` gave, with what the steps work on back on the device."""
        there = {name: tensors[name].to(device) for name in ("logits", "good", "first", "second")}
        here = {name: tensors[name] for name in ("stopped", "loss", "objective")}
        return cls(done=int(tensors["done"]), **there, **here)

    @property
    def running(self) -> Bool[Tensor, " set"]:
        """The sets that are not done."""
        return self.stopped == 0


class NotFinite(Exception):
    """A set's loss, or its gradient, is not a finite number.

    Attributes:
        set: its number.
        state: before the update at which this was found.
    """

    def __init__(self, which: int, state: State) -> None:
        super().__init__(which, state)
        self.set, self.state = which, state


def descend(
    objective: Objective,
    n_items: int,
    state: State,
    pulls: list[Pull],
    rules: Rules,
    rows: Rows,
    *,
    seen: Callable[[State], None],
    name: str,
    progress: bool,
) -> State:
    """Fit until every set has made its updates or reached a plateau.

    Args:
        objective: the loss of some items. Neighbours are run together, so let them be of like length.
        state: where to begin, or to go on.
        pulls: one for each set.
        seen: called with the state after every update.

    Raises:
        NotFinite: if a loss is not.
    """
    per_round = math.ceil(n_items / rules.batch)
    window = per_round * math.ceil(_WINDOW / per_round)
    most = torch.tensor([pull.updates for pull in pulls])
    bar_format = "{desc} {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} updates, {elapsed}, {remaining} to go{postfix}"
    with Bar(
        total=int(most.max()), initial=state.done, desc=name, disable=not progress, leave=False, bar_format=bar_format
    ) as bar:
        while state.running.any():
            items = torch.as_tensor(_mini_batch(state.done, n_items, per_round, rules.order_seed))
            state = _step(objective, items, state, pulls, rules, rows)
            ended = most <= state.done
            if rules.tolerance is not None and state.done % window == 0:
                ended |= _on_plateau(state.objective[:, : state.done], window, rules.tolerance)
            stopped = torch.where(state.running & ended, state.done, state.stopped)
            state = replace(state, stopped=stopped)
            seen(state)
            bar.update()
            bar.set_postfix_str(f"loss {float(state.loss[:, state.done - 1].nanmean()):.3f}", refresh=False)
    return state


def _mini_batch(update: int, n_items: int, per_round: int, seed: int) -> Int[np.ndarray, " some"]:
    """The items of an update, sorted: each round goes through all of them once, in another order."""
    number, part = divmod(update, per_round)
    order = np.random.default_rng([seed, number]).permutation(n_items)
    return np.sort(np.array_split(order, per_round)[part])


def _step(
    objective: Objective, items: Int[Tensor, " some"], state: State, pulls: list[Pull], rules: Rules, rows: Rows
) -> State:
    """One update of the sets that are not done."""
    running = state.running.nonzero()[:, 0]
    logits = state.logits[running]
    gates = logits.sigmoid()
    loss, gradient = value_and_gradient(objective, gates, items, rows)
    strength = logits.new_tensor([pulls[i].strength for i in running])
    pull, slope = _regulariser(logits, strength, rules)
    total = loss - strength * pull
    gradient = gradient * gates * (1 - gates) - strength[:, None, None] * slope
    fine = total.isfinite() & gradient.isfinite().all(-1).all(-1)
    if not fine.all():
        raise NotFinite(int(running[(~fine).nonzero()[0, 0]]), state)
    if rules.clip_gradient is not None:
        norm = gradient.flatten(1).norm(dim=1)[:, None, None]
        gradient = gradient * (rules.clip_gradient / (norm + 1e-6)).clamp(max=1)
    first = state.first[running].lerp(gradient, 1 - _BETAS[0])
    second = state.second[running].lerp(gradient.square(), 1 - _BETAS[1])
    after = state.done + 1
    unbiased = (first / (1 - _BETAS[0] ** after), second / (1 - _BETAS[1] ** after))
    rate = logits.new_tensor([_rate(pulls[i], state.done) for i in running])[:, None, None]
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
        good=put(state.good, logits),
        first=put(state.first, first),
        second=put(state.second, second),
        done=after,
        loss=append(state.loss, loss),
        objective=append(state.objective, total),
    )


def _regulariser(
    logits: Float[Tensor, "set layer head"], strength: Float[Tensor, " set"], rules: Rules
) -> tuple[Float[Tensor, " set"], Float[Tensor, "set layer head"]]:
    """The mean or the sum of the clipped logits, and its gradient."""
    n_heads = logits[0].numel() if rules.regulariser == "mean" else 1
    low, high = torch.full_like(strength, -rules.clip), torch.full_like(strength, rules.clip)
    if rules.clip_side == "pulled":
        low[strength > 0], high[strength < 0] = -torch.inf, torch.inf
    low, high = low[:, None, None], high[:, None, None]
    value = logits.clamp(low, high).flatten(1).sum(1) / n_heads
    return value, ((logits >= low) & (logits <= high)).to(logits.dtype) / n_heads


def _rate(pull: Pull, done: int) -> float:
    start, end = pull.lr
    return start + (end - start) * done / pull.updates


def _on_plateau(objective: Float[Tensor, "set update"], window: int, tolerance: float) -> Bool[Tensor, " set"]:
    """Where neither of the last two windows has a mean lower by ``tolerance`` than the lowest before them."""
    if objective.shape[1] < 3 * window:
        return torch.zeros(len(objective), dtype=torch.bool)
    means = objective.unflatten(1, (-1, window)).mean(-1)
    return means[:, -2:].amin(1) > means[:, :-2].amin(1) - tolerance
