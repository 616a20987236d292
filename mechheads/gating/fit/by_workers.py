"""The fits of each seed on their own, by workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.each import IndependentUnits
from mechheads.gating.fit.arguments import Rules
from mechheads.gating.fit.descent import Descent, NotFinite, Pull, State, descend
from mechheads.gating.fit.gates import Loss, Rows
from mechheads.limits import Limits
from mechheads.model.model import Model
from mechheads.progress import Bar


@dataclass(frozen=True, eq=False)
class SeedFit:
    """Fits the gates of one seed; it can be sent to workers.

    Attributes:
        loss: the loss of some items, on any model.
        n_items, rules, rows: as in ``Descent``.
        pulls: the settings of each fit of the seed.
    """

    loss: Loss
    n_items: int
    pulls: tuple[Pull, ...]
    rules: Rules
    rows: Rows

    def __call__(self, model: Model, unit: SeedState) -> Float[np.ndarray, " value"]:
        """The state at the end, in one row.

        Raises:
            NotFinite: as ``descend`` does, with the index of the set among those of all seeds.
        """
        descent = Descent(partial(self.loss, model), self.n_items, list(self.pulls), self.rules, self.rows)
        begin = State.from_tensors(unit.tensors, model.device)
        run = partial(descend, descent, begin, seen=lambda state: None, name="")
        try:
            return _in_a_row(model.backend.with_frozen_weights(run))
        except NotFinite as error:
            raise NotFinite(unit.sets[error.set], error.state) from error


@dataclass(frozen=True, eq=False)
class SeedState:
    """Where the fits of one seed begin, or go on.

    Attributes:
        name: the fits and the seed.
        sets: the indices of its sets of gates among those of all seeds.
    """

    name: str
    sets: tuple[int, ...]
    tensors: dict[str, Tensor]

    def __str__(self) -> str:
        return self.name


def descend_by_workers(
    model: Model, fit: SeedFit, state: State, limits: Limits, *, seen: Callable[[State], None], name: str
) -> bool:
    """Fit all seeds that are not done.

    Args:
        state: the states of all seeds, to start from.
        seen: called with the states of all seeds after every seed.
        name: the names of the fits.

    Returns:
        Whether Ctrl-C stopped the work after the seeds that were in flight.

    Raises:
        NotFinite: if a loss is not a finite number.
        RuntimeError: if a seed ended every worker that tried it.
    """
    seeds = fit.rules.seeds
    units = []
    for number, seed in enumerate(seeds):
        sets = tuple(range(number, len(state.logits), len(seeds)))
        if state.running[list(sets)].any():
            units.append(SeedState(f"the fit {name} of seed {seed}", sets, state.some(sets).tensors()))
    each = IndependentUnits(model, fit, limits)
    now = [state]
    with Bar(total=len(units), desc=f"fit {name}", unit="seed", leave=False) as bar:

        def take(index: int, values: Float[np.ndarray, " value"]) -> None:
            now[0] = now[0].put(units[index].sets, _from_row(values, units[index].tensors, model.device))
            seen(now[0])
            bar.update()

        try:
            return each(units, take)
        except NotFinite as error:
            sets = tuple(range(error.set % len(seeds), len(state.logits), len(seeds)))
            whole = now[0].put(sets, error.state)
            raise NotFinite(error.set, replace(whole, done=error.state.done)) from error


def _in_a_row(state: State) -> Float[np.ndarray, " value"]:
    """All numbers of a state; float64 holds each of them exactly."""
    return torch.cat([tensor.flatten().double() for tensor in state.tensors().values()]).numpy()


def _from_row(values: Float[np.ndarray, " value"], like: dict[str, Tensor], device: torch.device) -> State:
    parts = torch.from_numpy(values).split([tensor.numel() for tensor in like.values()])
    tensors = {
        name: part.view(tensor.shape).to(tensor.dtype) for (name, tensor), part in zip(like.items(), parts, strict=True)
    }
    return State.from_tensors(tensors, device)
