"""The change in a task's log-probability along an order of heads, in this process or by workers.

Each curve is a unit: one order of heads, over one set of gates for the heads that are not gated off or on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int

from mechheads.engine.each import Each
from mechheads.gating.fit.arguments import Reduce
from mechheads.gating.fit.gates import under_gates
from mechheads.gating.tasks.task import TaskTokens
from mechheads.limits import Limits
from mechheads.messages.interrupted import stop_if
from mechheads.model.model import Model
from mechheads.progress import Bar


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve to measure.

    Attributes:
        which: what gives the order: a role, or "random 1" and so on.
        base: which of the sets of gates it is over.
        keep: these gates.
        order: flat indices of the heads, in the order in which they are gated.
    """

    which: str
    base: int
    keep: Float[np.ndarray, "layer head"]
    order: Int[np.ndarray, " rank"]

    def __str__(self) -> str:
        return f"the curve of {self.which}"


@dataclass(frozen=True, eq=False)
class MeasureCurve:
    """Measures a curve; it can be sent to workers.

    Attributes:
        tokens: the items of the task.
        steps: the numbers of heads to gate off, in growing order.
        limits: without workers.
    """

    tokens: TaskTokens
    steps: tuple[int, ...]
    reduce: Reduce
    limits: Limits

    @property
    def passes(self) -> int:
        """How many sets of gates a curve runs every item under."""
        return 2 * sum(k > 0 for k in self.steps)

    def __call__(self, model: Model, curve: Curve, bar: Bar | None = None) -> Float[np.ndarray, "step item"]:
        """log p with the first k heads of the order gated off minus log p with them gated on; 0 for no heads."""
        tried = [k for k in self.steps if k > 0]
        sets = np.tile(curve.keep.reshape(-1), (2, len(tried), 1))
        for row, k in enumerate(tried):
            sets[0, row, curve.order[:k]], sets[1, row, curve.order[:k]] = 0, 1
        gates = torch.tensor(sets.reshape(-1, *curve.keep.shape), dtype=torch.float32)
        items = self.tokens.to(model.device)
        off, on = np.split(under_gates(model, items, gates, reduce=self.reduce, bar=bar), 2)
        changes = np.zeros((len(self.steps), off.shape[1]))
        changes[len(self.steps) - len(tried) :] = off - on
        return changes


def measure_curves(
    model: Model,
    measure: MeasureCurve,
    curves: Sequence[Curve],
    limits: Limits,
    take: Callable[[int, Float[np.ndarray, "step item"]], object],
) -> None:
    """Measure curves; ``take`` gets the index of each and its changes.

    Raises:
        KeyboardInterrupt: after Ctrl-C; workers measure the curves in flight before.
        RuntimeError: if a curve ended every worker that tried it.
    """
    pairs = measure.passes * len(measure.tokens)
    with Bar(total=pairs * len(curves), desc="role curves", leave=False) as bar:
        if limits.workers is None:
            for index, curve in enumerate(curves):
                take(index, measure(model, curve, bar))
            return

        def taken(index: int, changes: Float[np.ndarray, "step item"]) -> None:
            take(index, changes)
            bar.update(pairs)

        stop_if(Each(model, measure, limits)(curves, taken))
