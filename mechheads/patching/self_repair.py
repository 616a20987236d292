"""Self-repair: how later layers compensate for an ablated head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.dispatch import Values
from mechheads.engine.frozen_heads import Frozen
from mechheads.engine.head_sets import replaced_z
from mechheads.engine.held_heads import Given, held_by
from mechheads.engine.job import Job, Spec, Unit, given as given_prompts, make_ready
from mechheads.engine.report import About, describe_heads, describe_intervention, report
from mechheads.engine.run import UnitRuns, batches
from mechheads.engine.work import Work, finish
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.messages.interrupted import interrupted_after
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import as_metric_of_logits, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores
from mechheads.runs.layer_store import LayerStore

EFFECTS = ("total", "direct", "repair")


@analysis
def self_repair(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    metric: Metric | str = logit_diff,
    intervention: InterventionLike = "patch",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    given: Given | None = None,
) -> HeadScores:
    """Measure the total and the direct effect of ablating each head, and how far later layers repair it.

    ``total``: everything after the head is recomputed, as in ``mh.ablate``. ``direct``: all other heads and MLPs are
    frozen, and only the final norm and the logits see the ablated z. ``repair``: total - direct, the reaction of later
    heads and MLPs.

    ``total`` and ``direct`` are metric(ablated) - metric(base). If a head helps, its direct effect is negative. Then
    a positive repair says that later layers compensate for the loss, and a negative one that they amplify it.

    Args:
        prompts: pairs, whose clean side is run; or plain prompts, if the intervention is not a patch.
        metric: what is measured, as in ``mh.sweep``.
        intervention: how the head is ablated, as in ``mh.sweep``. By default it gets its z of the corrupted run.
        heads, given: as in ``mh.sweep``.

    Returns:
        The three effects [layer, head, effect, prompt], in the metric's unit.

    Raises:
        ValueError: if an argument is not valid; before the sweep starts.

    McGrath et al. 2023 (the Hydra effect, arXiv 2307.15771); Rushing & Nanda 2024 (arXiv 2402.15390).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.self_repair(model, pairs, heads=["L23H4"])
    >>> total, direct, repair = found["L23H4"]["score"]
    >>> bool(total < direct < 0), bool(abs(repair - (total - direct)) < 1e-6)
    (True, True)
    """
    model, asked, cached = given_prompts(model, prompts)
    measured = as_metric_of_logits(metric, "mh.patching.self_repair", "mh.sweep")
    spec = Spec(asked, as_intervention(intervention), measured, heads, held=held_by(given, model))
    return measure_repair(make_ready(model, spec, runs=cached))


def measure_repair(job: Job) -> HeadScores:
    """The three effects of a job's heads; heads that the job changes together have a common effect."""
    model, spec = job.model, job.spec
    work = _repair(job)
    warn_of_answers(job)
    values = np.full((model.n_layers, model.n_heads, len(EFFECTS), len(job.tokens)), np.nan)
    found = finish(work, batches(job), what=f"{len(job.heads)} heads")
    for (head, _), (total, direct) in found.values.items():
        values[head.layer, head.head : head.head + job.together] = np.stack([total, direct, total - direct])
    if found.interrupted:
        warn(interrupted_after(f"{len(found.values)} of {len(job.heads)} heads", "the rest are NaN"))
    said = describe_intervention(spec.intervention)
    more = {"intervention": said, "heads": describe_heads(job), "interrupted": found.interrupted}
    about = About(f"self-repair, {said}", "self_repair", extra={"effect": EFFECTS}, more=more, exact=False)
    return report(job, values, about)


def _repair(job: Job) -> Work:
    """The total and the direct effect of each head [effect, prompt]."""
    evaluator, z = job.evaluator, replaced_z(job)[0]

    def read(units: Sequence[Unit], finals: list[Tensor]) -> Values:
        direct = _direct(job, [head for head, _ in units if isinstance(head, HeadId)], z)
        return np.stack([evaluator(finals[0]), evaluator(direct)], axis=1)

    return Work(job, _repair, UnitRuns(job), read)


def _direct(job: Job, heads: Sequence[HeadId], z: LayerStore) -> Float[Tensor, "head prompt position d_model"]:
    """The final states if only the final norm sees each head's new z; heads in layer order."""
    parts = []
    for begin in range(0, len(job.tokens), job.plan.rows):
        rows = slice(begin, begin + job.plan.rows)
        at = job.at[rows]
        row = torch.arange(len(at), device=at.device)[:, None]
        senders = [(head, _new_z(z, head, job.together, rows)[row, at].flatten(-2)) for head in heads]
        parts.append(Frozen(job.base, rows, at, "frozen").run(senders, final=True).final)
    return torch.cat(parts, dim=1)


def _new_z(z: LayerStore, head: HeadId, together: int, rows: slice) -> Float[Tensor, "prompt pos head d_head"]:
    """The new z of the heads that change together, from the first of them on."""
    return z[head.layer][rows, head.head : head.head + together].transpose(1, 2)
