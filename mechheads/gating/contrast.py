"""Contrastive gating: heads that one variant of a task needs and another does not.

    maximise  min(log p(y_R | x_R) - log p(y_F | x_F), 5)  +  lambda R(clip(logit))

R is the variant to *retain*, F the variant to *forget*. The paper, its appendix and its code use the letters and signs
differently; here the arguments are named after what happens to the variant. With lambda > 0 gates are pulled open. A
gate that is shut at the end is shut because its head serves F and not R.

| setting | paper's text | its appendix | released code | here |
|---|---|---|---|---|
| ``regularisation`` | above 0 | -0.1 | 0.1 | 0.1; a negative value pulls gates shut |
| ``clip_difference`` | - | 5 | 5 | 5, pair by pair |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mechheads.gating.descent import Schedule
from mechheads.gating.fit import Fit, Stage, run_stages
from mechheads.gating.fitted import USUAL, FitSettings, Gates, Reduce, Rules, check_seeds, check_updates
from mechheads.gating.gates import Rows, log_probs, rows_at_once, usable_items
from mechheads.gating.task import Task, TaskTokens
from mechheads.ledger.key import Store
from mechheads.ledger.ledger import check_progress
from mechheads.limits import current
from mechheads.messages.arguments import Positive
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.provenance import make_provenance


@dataclass(frozen=True, eq=False)
class _Difference:
    """By how much the targets of one variant are less likely than those of the other, pair by pair."""

    retained: TaskTokens
    forgotten: TaskTokens
    reduce: Reduce
    most: float

    def __call__(self, model: Model, gates: Tensor, items: Tensor, recompute: bool) -> Tensor:
        kept, lost = (
            log_probs(model, side.items(items).to(model.device), gates, reduce=self.reduce, recompute=recompute)
            for side in (self.retained, self.forgotten)
        )
        return -(kept - lost).clamp(max=self.most)


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
        retain, forget: the two variants of the task; item i of both is the same question in two forms.
        seeds, updates, batch, fit: as in ``fit_gates``. A negative ``fit.regularisation`` pulls gates shut.

    Returns:
        Gates of one fit, "contrast", for every seed. ``1 - gates.scores("contrast")`` is high for heads that the
        forgotten variant needs and the retained variant does not.

    Raises:
        LossNotFinite, RuntimeError: as in ``fit_gates``.

    Nam et al. 2025 (arXiv 2505.13737), section 5.

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
    rules, made = Rules(check_seeds(seeds), batch, fit), check_updates(updates, 1)
    check_progress()
    settings = rules.about(made, unused="lr_regularised")
    retained, forgotten = _pair_up(usable_items(model, retain), usable_items(model, forget))
    rows = _rows_of_pairs(model, retained, forgotten)

    name = f"{retain.name} without {forget.name}"
    items = f"{retained.fingerprint()} {forgotten.fingerprint()}"
    stage = Stage(("contrast",), (Schedule(fit.regularisation, made[0], settings["lr"]),))
    about = make_provenance(model, settings, task=name, items=items, n_items=len(retained))
    loss = _Difference(retained, forgotten, fit.reduce, fit.clip_difference)
    whole = Fit(model, loss, len(retained), [stage], rules, name, about)
    with Store(current().store, analysis="contrast_gates") as store:
        return run_stages(whole, rows, store.open(model, {}, items=items, **settings))


def _pair_up(retain: TaskTokens, forget: TaskTokens) -> tuple[TaskTokens, TaskTokens]:
    """The items that can be used in both variants, in order of length."""
    both = sorted(set(retain.kept) & set(forget.kept))
    if not both:
        index, why = next(iter({**retain.rejected, **forget.rejected}.items()))
        raise ValueError(f"retain and forget: no item can be used in both variants; item {index}: {why}")
    sides = [side.items(torch.tensor([side.kept.index(item) for item in both])) for side in (retain, forget)]
    order = torch.argsort(sides[0].lengths + sides[1].lengths, stable=True)
    return sides[0].items(order), sides[1].items(order)


def _rows_of_pairs(model: Model, retain: TaskTokens, forget: TaskTokens) -> Rows:
    """Half the rows that fit for the longer variant, because each pair takes one row of each variant."""
    longer = max((retain, forget), key=lambda side: side.ids.shape[1])
    rows = rows_at_once(model, longer)
    return Rows(max(1, rows.rows // 2), rows.recompute)
