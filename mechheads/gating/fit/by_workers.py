"""The fits of each seed on their own, by workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float

from mechheads.engine.each import IndependentUnits
from mechheads.gating.fit.arguments import Rules
from mechheads.gating.fit.descent import Descent, NotFinite, Pull, State, descend
from mechheads.gating.fit.gates import Loss, Rows
from mechheads.ledger.stored_progress import from_row, to_row
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
        run = partial(descend, descent, unit.begin.to(model.device), seen=lambda state: None, name="")
        try:
            return to_row(model.backend.with_frozen_weights(run))
        except NotFinite as error:
            raise NotFinite(unit.sets[error.set], error.state) from error


@dataclass(frozen=True, eq=False)
class SeedState:
    """Where the fits of one seed begin, or go on.

    Attributes:
        name: the fits and the seed.
        sets: the indices of its sets of gates among those of all seeds.
        begin: their state, on the CPU.
    """

    name: str
    sets: tuple[int, ...]
    begin: State

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
            units.append(SeedState(f"the fit {name} of seed {seed}", sets, state.some(sets).to(torch.device("cpu"))))
    each = IndependentUnits(model, fit, limits)
    now = [state]
    with Bar(total=len(units), desc=f"fit {name}", unit="seed", leave=False) as bar:

        def take(index: int, values: Float[np.ndarray, " value"]) -> None:
            sets = units[index].sets
            now[0] = now[0].put(sets, from_row(values, now[0].some(sets)))
            seen(now[0])
            bar.update()

        try:
            return each(units, take)
        except NotFinite as error:
            sets = tuple(range(error.set % len(seeds), len(state.logits), len(seeds)))
            whole = now[0].put(sets, error.state)
            raise NotFinite(error.set, replace(whole, done=error.state.done)) from error
