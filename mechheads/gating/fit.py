"""Causal head gating: fit a gate to every head, three times over.

| symbol | argument or result |
|---|---|
| g = sigmoid(logit), multiplied into z of a head at all positions | ``gates[fit]`` |
| lambda | ``regularisation``: 0 in the first fit, then + (keep, G+) and - (drop, G-), both from the first |
| log p(target) | ``reduce`` over the target's tokens, then the mean over the items of a mini-batch |
| the regulariser, of logits clipped to +-4 | ``regulariser`` over heads, ``clip_logits`` |

What differs between the paper and its released code, and the default here:

| | paper | released code | default |
|---|---|---|---|
| ``reduce`` | sum | mean | mean |
| ``regulariser`` | sum | mean | mean: a sum would drown a mean log-probability |
| ``lr`` | 0.1 to 0.01 | 1.0 | 0.1 to 0.01 |
| ``lr_regularised`` | 0.5 to 0.1 | 1.0 | 0.5 to 0.1 |
| ``clip_side`` | both | both | pulled: else a head that does nothing, but starts shut, is taken for one that hurts |
| ``batch`` | 64 | 32 | 64 |
| ``clip_gradient`` | none named | 1.0, over all seeds together | none; a number clips each seed by itself |
| ``updates`` | 500 each | 500 each | 500 each, fewer on a plateau; see ``tolerance`` |
| ``seeds`` | 10 | 1 | 10 |

Nam et al. 2025 ("Causal Head Gating", arXiv 2505.13737).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import logit
from torch import Tensor

from mechheads.backends.changes import alone
from mechheads.gating.arguments import (
    ClipSide,
    Rate,
    Reduce,
    Rules,
    check_positive,
    check_rate,
    check_reduce,
    check_rules,
    check_seeds,
    check_updates,
)
from mechheads.gating.checkpoint import Checkpoint, marks_of
from mechheads.gating.descent import NotFinite, Pull, State, descend
from mechheads.gating.fitted import Gates
from mechheads.gating.gates import Objective, log_probs, rows_at_once
from mechheads.gating.task import Task
from mechheads.model import Model
from mechheads.notices import warn


class LossNotFinite(ValueError):
    """A fit came upon a loss, or a gradient, that is not a finite number, and stopped.

    Attributes:
        gates: the last ones whose loss was finite.
    """

    def __init__(self, message: str, gates: Gates) -> None:
        super().__init__(message)
        self.gates = gates


@dataclass(frozen=True)
class Stage:
    """Fits that run together, each with all seeds.

    Attributes:
        fits: their names; ``pulls``: what each is fitted with.
    """

    fits: tuple[str, ...]
    pulls: tuple[Pull, ...]

    @property
    def name(self) -> str:
        return " and ".join(self.fits)


@alone
@torch.inference_mode(False)
def fit_gates(
    model: Model,
    task: Task,
    *,
    seeds: int | Sequence[int] = 10,
    updates: int | tuple[int, int, int] = (500, 500, 500),
    batch: int = 64,
    lr: Rate = (0.1, 0.01),
    lr_regularised: Rate = (0.5, 0.1),
    regularisation: float = 0.1,
    regulariser: Reduce = "mean",
    reduce: Reduce = "mean",
    clip_logits: float = 4.0,
    clip_side: ClipSide = "pulled",
    clip_gradient: float | None = None,
    tolerance: float | None = 1e-3,
    order_seed: int = 0,
    budget: int | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Gates:
    """Fit a gate to every head so that a task's targets become likely: freely, kept open, and kept shut.

    The fit "none" maximises the targets' log-probability alone, from gates drawn evenly from 0 to 1. From where it
    ends, "keep" goes on with a pull towards open gates, so that it shuts only heads that hurt, and "drop" with one
    towards shut gates, so that it leaves open only heads that help. All seeds run at once, and "keep" and "drop"
    together; the model's weights stay as they are.

    Args:
        task: what is to be predicted; rejected items are left out (see ``Task.tokens``).
        seeds: how many fits from different starts, or the seeds of the starts.
        updates: of each of the three fits, at most.
        batch: items of an update; each round goes through all items in an order drawn anew.
        lr, lr_regularised: learning rates of the first fit and of the other two: one, or (start, end), linear between.
        regularisation: lambda, the strength of the pull.
        regulariser: whether the pull is on the mean or the sum of the logits over heads.
        reduce: the log-probability of a target is the mean or the sum over its tokens.
        clip_logits: how far a logit is pulled: to + this, or - this.
        clip_side: ``"pulled"`` ends the pull there alone; with ``"both"`` logits beyond the other end are not pulled
            either, and a gate that starts or strays there, 1 in 28 of those drawn, hardly ever comes back.
        clip_gradient: the norm that a seed's gradient is cut to; None leaves it as it is.
        tolerance: a seed is done with a fit once its objective, in means over 50 updates or more, was not better by
            this much, in nats, in the last two of them than before; None always makes all updates.
        order_seed: of the order of the items.
        budget: memory, bytes or "2 GB" (default 4 GB): an update runs in parts that fit.
        checkpoint: a file that keeps how far the fit came: the same call goes on where an interrupted or killed one
            stopped, and ends with the same bits.
        progress: show a bar.

    Returns:
        Gates of the fits "none", "keep" and "drop" for every seed, with loss curves. Interrupted by Ctrl-C, those of
        that moment, NaN for fits not begun.

    Raises:
        ValueError: if an argument does not fit, no item can be used, or ``checkpoint`` is of another fit.
        LossNotFinite: if a loss is not finite; it says at which update, and holds the last good gates.

    Nam et al. 2025 (arXiv 2505.13737), section 3; the module's text has what its code does otherwise.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> gates = mh.fit_gates(model, task, seeds=2, updates=1, progress=False)
    >>> gates.losses[["fit", "seed", "update"]].values.tolist()
    [['none', 0, 1], ['none', 1, 1], ['keep', 0, 1], ['keep', 1, 1], ['drop', 0, 1], ['drop', 1, 1]]
    """
    if not isinstance(task, Task):
        raise ValueError(f"task is a {type(task).__name__}; give mh.Task(prompts=[...], targets=[...])")
    starts = check_seeds(seeds)
    rules = check_rules(batch, regulariser, clip_logits, clip_side, clip_gradient, tolerance, order_seed)
    rates = check_rate(lr, "lr"), *[check_rate(lr_regularised, "lr_regularised")] * 2
    made = check_updates(updates)
    check_positive(regularisation, "regularisation")
    check_reduce(reduce)
    strengths = 0.0, regularisation, -regularisation
    none, keep, drop = (Pull(*each) for each in zip(strengths, made, rates, strict=True))
    tokens = task.tokens(model)
    rows = rows_at_once(model, tokens, budget)
    about = {
        "task": task.name,
        "task_source": task.source,
        "items": tokens.fingerprint(),
        "n_items": len(tokens),
        "n_rejected": len(tokens.rejected),
    }
    settings = {
        "seeds": starts, "updates": made, "batch": batch, "lr": rates[0], "lr_regularised": rates[1],
        "regularisation": regularisation, "regulariser": regulariser, "reduce": reduce, "clip_logits": clip_logits,
        "clip_side": clip_side, "clip_gradient": clip_gradient, "tolerance": tolerance, "order_seed": order_seed,
    }  # fmt: skip
    by_length = tokens.items(torch.argsort(tokens.lengths, stable=True))

    def objective(gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        return -log_probs(model, by_length.items(items), gates, reduce=reduce, recompute=recompute)

    return run_stages(
        model,
        objective,
        len(tokens),
        [Stage(("none",), (none,)), Stage(("keep", "drop"), (keep, drop))],
        seeds=starts,
        rules=rules,
        keep=Checkpoint(checkpoint, lambda: marks_of(model, tokens.fingerprint(), settings), rows, model.device),
        name=task.name,
        provenance=model.provenance() | about | settings,
        progress=progress,
    )


def run_stages(
    model: Model,
    objective: Objective,
    n_items: int,
    stages: Sequence[Stage],
    *,
    seeds: Sequence[int],
    rules: Rules,
    keep: Checkpoint,
    name: str,
    provenance: Mapping[str, Any],
    progress: bool,
) -> Gates:
    """Fit one stage after the other, each from where the one before ended.

    Args:
        keep: what was done so far, and takes note of what is done.

    Raises:
        LossNotFinite: if a loss is not.
    """
    stage, interrupted = stages[0], False

    def descend_stages() -> None:
        nonlocal stage
        logits = start_logits(seeds, model.n_layers, model.n_heads).to(model.device)
        for stage in stages:
            most = max(pull.updates for pull in stage.pulls)
            begin = State.begin(logits.repeat(len(stage.fits), 1, 1), most)
            pulls = [pull for pull in stage.pulls for _ in seeds]
            state = descend(
                objective, n_items, keep.state(stage.name) or begin, pulls, rules, keep.rows,
                seen=lambda state, of=stage.name: keep.see(of, state), name=f"fit {stage.name}", progress=progress,
            )  # fmt: skip
            logits = state.logits

    try:
        model.backend.with_frozen_weights(descend_stages)
    except KeyboardInterrupt:
        interrupted = True
        reached = keep.state(stage.name)
        done = 0 if reached is None else reached.done
        again = "" if keep.path is None else f"; the same call goes on from {keep.path}"
        warn(f"interrupted after {done} updates of the fit {stage.name}{again}")
    except NotFinite as error:
        fit, seed = stage.fits[error.set // len(seeds)], seeds[error.set % len(seeds)]
        good = {stage.name: error.state.good}
        raise LossNotFinite(
            f"the loss of seed {seed} is not finite at update {error.state.done + 1} of the fit {fit!r}; the error's "
            "gates are the last for which it was. A lower learning rate, or the model in float32, may help",
            _gather(stages, keep, seeds, model, name, dict(provenance) | {"interrupted": True}, good),
        ) from error
    finally:
        keep.write()
    gates = _gather(stages, keep, seeds, model, name, dict(provenance) | {"interrupted": interrupted}, {})
    stuck = ", ".join(f"seed {seed} of the fit {fit!r}" for fit, far in gates.stuck.items() for seed in far)
    if stuck and not interrupted:
        warn(
            f"{stuck} ended a nat or more above the other seeds' loss, and says little of heads. Look at gates.losses; "
            "a lower learning rate or more updates may help"
        )
    return gates


def start_logits(seeds: Sequence[int], n_layers: int, n_heads: int) -> Float[Tensor, "seed layer head"]:
    """Logits of gates drawn evenly from 0 to 1, each seed's from its own generator."""
    drawn = np.stack([np.random.default_rng(seed).random((n_layers, n_heads)) for seed in seeds])
    return torch.tensor(logit(drawn.clip(1e-6, 1 - 1e-6)), dtype=torch.float32)


def _gather(
    stages: Sequence[Stage],
    keep: Checkpoint,
    seeds: Sequence[int],
    model: Model,
    name: str,
    provenance: Mapping[str, Any],
    instead: Mapping[str, Float[Tensor, "set layer head"]],
) -> Gates:
    """The result as far as it was reached.

    Args:
        instead: logits to give for a stage instead of those it came to.
    """
    most = max(pull.updates for stage in stages for pull in stage.pulls)
    gates, curves, made = [], [], []
    for stage in stages:
        state = keep.state(stage.name)
        n = len(stage.fits) * len(seeds)
        if state is None:
            logits = torch.full((n, model.n_layers, model.n_heads), torch.nan)
            state = State.begin(logits, max(pull.updates for pull in stage.pulls))
        logits = instead.get(stage.name, state.logits).double().cpu()
        gates.append(logits.sigmoid().unflatten(0, (len(stage.fits), len(seeds))))
        both = torch.stack([state.loss, state.objective])
        wide = torch.nn.functional.pad(both, (0, most - both.shape[-1]), value=torch.nan)
        curves.append(wide.unflatten(1, (len(stage.fits), len(seeds))))
        made.append(torch.where(state.running, state.done, state.stopped).view(len(stage.fits), len(seeds)))
    loss, objective = torch.cat(curves, 1).double().numpy()
    return Gates.of(
        torch.cat(gates).numpy(),
        [fit for stage in stages for fit in stage.fits],
        seeds,
        loss=loss,
        objective=objective,
        updates=torch.cat(made).numpy(),
        name=name,
        provenance=provenance,
    )
