"""Contrastive gating: heads that one variant of a task needs and the other does not.

    maximise  min(log p(y_R | x_R) - log p(y_F | x_F), 5)  +  lambda R(clip(logit))

R is the variant to *retain*, F the one to *forget*. Letters change between texts, and with them the signs; here the
names of the arguments say which is which. With lambda > 0 gates are pulled open, so that what is shut in the end had to
be: these heads serve F and not R.

| | paper's text | its appendix | released code | here |
|---|---|---|---|---|
| ``regularisation`` | above 0 | -0.1 | 0.1 | 0.1; a negative one pulls gates shut |
| ``clip_difference`` | - | 5 | 5 | 5, pair by pair |
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

from mechheads.backends.changes import alone
from mechheads.gating.arguments import (
    ClipSide,
    Rate,
    Reduce,
    check_positive,
    check_rate,
    check_reduce,
    check_rules,
    check_seeds,
    check_updates,
)
from mechheads.gating.checkpoint import Checkpoint, marks_of
from mechheads.gating.descent import Pull
from mechheads.gating.fit import Stage, run_stages
from mechheads.gating.fitted import Gates
from mechheads.gating.gates import Rows, log_probs, rows_at_once
from mechheads.gating.task import Task, TaskTokens
from mechheads.model import Model


@alone
@torch.inference_mode(False)
def contrast_gates(
    model: Model,
    retain: Task,
    forget: Task,
    *,
    seeds: int | Sequence[int] = 10,
    updates: int = 500,
    batch: int = 64,
    lr: Rate = (0.1, 0.01),
    regularisation: float = 0.1,
    regulariser: Reduce = "mean",
    reduce: Reduce = "mean",
    clip_logits: float = 4.0,
    clip_side: ClipSide = "pulled",
    clip_difference: float = 5.0,
    clip_gradient: float | None = None,
    tolerance: float | None = 1e-3,
    order_seed: int = 0,
    budget: int | str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    progress: bool = True,
) -> Gates:
    """Fit gates under which one variant of a task is still done and the other no more.

    Args:
        retain, forget: the two variants, item by item: the same question in two forms.
        regularisation: lambda; above 0 pulls gates open, below 0 shut.
        clip_difference: a pair whose two log-probabilities differ by this much is pulled apart no further, in nats.
        seeds, updates, batch, lr, regulariser, reduce, clip_logits, clip_side: as in ``fit_gates``.
        clip_gradient, tolerance, order_seed, budget, checkpoint, progress: likewise.

    Returns:
        Gates of the one fit "contrast" for every seed. ``1 - gates.scores("contrast")`` is high for heads that the
        forgotten variant needs and the retained one does not.

    Raises:
        ValueError: if the tasks differ in length, no pair can be used, or an argument does not fit.
        LossNotFinite: as in ``fit_gates``.

    Nam et al. 2025 (arXiv 2505.13737), section 5.

    >>> capitals = mh.Task(["The capital of France is"], [" Paris"])
    >>> spanish = mh.Task(["La capital de Francia es"], [" Par"])
    >>> gates = mh.contrast_gates(model, retain=capitals, forget=spanish, seeds=2, updates=1, progress=False)
    >>> gates["contrast"].shape
    (2, 30, 9)
    """
    for name, task in (("retain", retain), ("forget", forget)):
        if not isinstance(task, Task):
            raise ValueError(f"{name} is a {type(task).__name__}; give mh.Task(prompts=[...], targets=[...])")
    if len(retain) != len(forget):
        raise ValueError(
            f"retain has {len(retain)} items and forget {len(forget)}; item i of both must be variants of one question"
        )
    starts = check_seeds(seeds)
    rules = check_rules(batch, regulariser, clip_logits, clip_side, clip_gradient, tolerance, order_seed)
    rate, made = check_rate(lr, "lr"), check_updates(updates, 1)
    if not (isinstance(regularisation, Real) and math.isfinite(regularisation) and regularisation):
        raise ValueError(f"regularisation is {regularisation!r}; give a number above 0 (open) or below 0 (shut)")
    check_positive(clip_difference, "clip_difference")
    check_reduce(reduce)
    retained, forgotten = _pair_up(retain.tokens(model), forget.tokens(model))
    rows = _rows_of_pairs(model, retained, forgotten, budget)
    items = f"{retained.fingerprint()} {forgotten.fingerprint()}"
    name = f"{retain.name} without {forget.name}"
    settings = {
        "seeds": starts, "updates": made, "batch": batch, "lr": rate, "regularisation": regularisation,
        "regulariser": regulariser, "reduce": reduce, "clip_logits": clip_logits, "clip_side": clip_side,
        "clip_difference": clip_difference, "clip_gradient": clip_gradient, "tolerance": tolerance,
        "order_seed": order_seed,
    }  # fmt: skip

    def objective(gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        kept, lost = (
            log_probs(model, side.items(items), gates, reduce=reduce, recompute=recompute)
            for side in (retained, forgotten)
        )
        return -(kept - lost).clamp(max=clip_difference)

    return run_stages(
        model,
        objective,
        len(retained),
        [Stage(("contrast",), (Pull(regularisation, made[0], rate),))],
        seeds=starts,
        rules=rules,
        keep=Checkpoint(checkpoint, lambda: marks_of(model, items, settings), rows, model.device),
        name=name,
        provenance=model.provenance() | {"task": name, "items": items, "n_items": len(retained)} | settings,
        progress=progress,
    )


def _pair_up(retain: TaskTokens, forget: TaskTokens) -> tuple[TaskTokens, TaskTokens]:
    """The items that can be used in both variants, in the order of their lengths.

    Raises:
        ValueError: if there are none.
    """
    both = sorted(set(retain.kept) & set(forget.kept))
    if not both:
        index, why = next(iter({**retain.rejected, **forget.rejected}.items()))
        raise ValueError(f"retain and forget: no item can be used in both variants; item {index}: {why}")
    sides = [side.items(torch.tensor([side.kept.index(item) for item in both])) for side in (retain, forget)]
    order = torch.argsort(sides[0].lengths + sides[1].lengths, stable=True)
    return sides[0].items(order), sides[1].items(order)


def _rows_of_pairs(model: Model, retain: TaskTokens, forget: TaskTokens, budget: int | str | None) -> Rows:
    """Half of what fits of the longer variant: each pair takes a row of both."""
    longer = max((retain, forget), key=lambda side: side.ids.shape[1])
    rows = rows_at_once(model, longer, budget)
    return Rows(max(1, rows.rows // 2), rows.recompute)
