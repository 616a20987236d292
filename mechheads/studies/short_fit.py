"""A fit of gates for naming capitals that takes a minute or two: a first look at the roles of heads.

All prompts are in each update, and steps are large. Gates are drawn at random, and some draws shut so much of a model
that a short fit does not recover. So it tries six draws for two updates and continues with three: those with the
smallest loss.
"""

from __future__ import annotations

import time
import warnings
from typing import TYPE_CHECKING, Any

from mechheads.gating import FitSettings, fit_gates
from mechheads.gating.fit.fitted import Gates
from mechheads.gating.tasks.shipped import relation_task
from mechheads.limits import settings
from mechheads.messages.interrupted import stop_if

if TYPE_CHECKING:
    from mechheads.model.model import Model

CAPITALS = "country_to_capital"
TRIED, KEPT = 6, 3
_N_PROMPTS = 8
_TRIAL = 2, 1, 1
SETTINGS: dict[str, Any] = {
    "batch": _N_PROMPTS,
    "fit": FitSettings(lr=(0.4, 0.05), lr_regularised=(0.4, 0.2), tolerance=None),
}


def choose_starts(model: Model, updates: int) -> tuple[list[int], float]:
    """The seeds that lose least after two updates, and about how many seconds a fit of these takes.

    Raises:
        ValueError: if the model cannot do the task, or the loss is not finite.
        KeyboardInterrupt: after Ctrl-C.
    """
    start = time.perf_counter()
    with warnings.catch_warnings(action="ignore"), settings(progress=False):
        losses = _fit(model, list(range(TRIED)), _TRIAL).losses
    last = losses.query(f"fit == 'none' and update == {_TRIAL[0]}").nsmallest(KEPT, "loss")
    per_update = (time.perf_counter() - start) / (TRIED * sum(_TRIAL))
    return sorted(last["seed"].tolist()), per_update * KEPT * 3 * updates


def fit_briefly(model: Model, seeds: list[int], updates: int) -> Gates:
    """Gates for naming capitals.

    Raises:
        ValueError: if the model cannot do the task, or the loss is not finite.
        KeyboardInterrupt: after Ctrl-C.
    """
    return _fit(model, seeds, (updates, updates, updates))


def _fit(model: Model, seeds: list[int], updates: tuple[int, int, int]) -> Gates:
    task = relation_task(model, CAPITALS, shots=0, n=_N_PROMPTS)
    gates = fit_gates(model, task, seeds=seeds, updates=updates, **SETTINGS)
    stop_if(gates.interrupted)
    return gates
