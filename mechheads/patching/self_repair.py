"""Self-repair: what later layers put back when a head is taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.direct_paths import Frozen
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.head_sets import check_intervention, replaced_z
from mechheads.engine.job import Job, Spec, given, make_ready
from mechheads.engine.report import About, describe_heads, describe_intervention, report
from mechheads.engine.run import finals
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.base import Intervention
from mechheads.limits import Budget, Limits
from mechheads.messages.interrupted import until_interrupted
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.patching.head_sets import PATCH
from mechheads.results.scores import HeadScores
from mechheads.runs.layer_store import LayerStore

EFFECTS = ("total", "direct", "repair")


@alone
def self_repair(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    metric: Metric | str = logit_diff,
    ablation: Intervention = PATCH,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """What ablating a head changes in all, what it changes by itself, and what the layers after it make of that.

    The head's ablated z takes the place of its own. ``total``: everything after the head runs on, as in
    ``mh.ablate``. ``direct``: all other heads and MLPs stay as they were, and only the final norm and the logits
    see it. ``repair``: total - direct, what later heads and MLPs do about it.

    Each is metric(ablated) - metric(base). Where a head helps, direct is below 0, and a repair above 0 says that
    later layers stand in for it; with the sign of direct they pass its loss on.

    Args:
        prompts: pairs, whose clean side is run; or, with another ablation than a patch, plain prompts.
        metric: what is measured, as in ``mh.sweep``.
        ablation: what the head's z becomes: that of the corrupted run, or any intervention of ``mh.sweep``, such
            as ``mh.Mean()`` or ``mh.Resample()``.
        heads, budget, seed, progress: as in ``mh.sweep``.

    Returns:
        The three effects [layer, head, effect, prompt], in the metric's unit.

    Raises:
        ValueError: if an argument does not fit; before the sweep.

    McGrath et al. 2023 (the Hydra effect, arXiv 2307.15771); Rushing & Nanda 2024 (arXiv 2402.15390).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.self_repair(model, pairs, heads=["L23H4"], progress=False)
    >>> total, direct, repair = found["L23H4"]["score"]
    >>> bool(total < direct < 0), bool(abs(repair - (total - direct)) < 1e-6)
    (True, True)
    """
    model, asked, cached = given(model, prompts)
    check_intervention("ablation", ablation, asked)
    spec = Spec(asked, ablation, as_metric(metric), heads, seed=seed, limits=Limits.of(budget))
    job = make_ready(model, spec, runs=cached, progress=progress)
    evaluator = Evaluator(spec.metric, job.base, job.source, spec.limits)
    warn_of_answers(job)
    z, _ = replaced_z(job)
    values = np.full((model.n_layers, model.n_heads, len(EFFECTS), len(job.tokens)), np.nan)
    done = 0
    with until_interrupted() as work:
        for units, final in finals(job, progress=progress):
            total, direct = evaluator(final), evaluator(_direct(job, [head for head, _ in units], z))
            for (head, _), of_all, by_itself in zip(units, total, direct, strict=True):
                values[head.layer, head.head] = of_all, by_itself, of_all - by_itself
            done += len(units)
    work.warn(f"{done} of {len(job.heads)} heads")
    said = describe_intervention(ablation)
    more = {"intervention": said, "heads": describe_heads(job), "interrupted": work.interrupted}
    return report(
        job, values, evaluator, About(f"self-repair, {said}", "self_repair", extra={"effect": EFFECTS}, more=more)
    )


def _direct(job: Job, heads: Sequence[HeadId], z: LayerStore) -> Float[Tensor, "head prompt position d_model"]:
    """Final states when nothing but the final norm sees a head's new z; heads in the order of their layers."""
    parts = []
    for begin in range(0, len(job.tokens), job.plan.rows):
        rows = slice(begin, begin + job.plan.rows)
        at = job.at[rows]
        row = torch.arange(len(at), device=at.device)[:, None]
        senders = [(head, z[head.layer][rows, head.head][row, at]) for head in heads]
        parts.append(Frozen(job.base, rows, at, "frozen").run(senders, final=True).final)
    return torch.cat(parts, dim=1)
