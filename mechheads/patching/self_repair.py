"""Self-repair: what later layers put back when a head is taken out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.answers import warn_of_answers
from mechheads.backends.changes import alone
from mechheads.frozen import Frozen
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions import Intervention
from mechheads.jobs import AnyPrompts, Job, prepare
from mechheads.judge import Judge
from mechheads.metrics import Metric, as_metric, logit_diff, name_of
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.patching.sets import PATCH, check_intervention, replaced_z, said
from mechheads.scores import HeadScores
from mechheads.spill import LayerStore
from mechheads.sweeps import finals

EFFECTS = ("total", "direct", "repair")


@alone
def self_repair(
    model: Model,
    prompts: AnyPrompts,
    *,
    metric: Metric | str = logit_diff,
    ablation: Intervention = PATCH,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
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
    >>> found = mh.self_repair(model, pairs, heads=["L23H4"], progress=False)
    >>> total, direct, repair = found["L23H4"]["score"]
    >>> bool(total < direct < 0), bool(abs(repair - (total - direct)) < 1e-6)
    (True, True)
    """
    metric = as_metric(metric)
    check_intervention("ablation", ablation, prompts)
    job = prepare(
        model, prompts, ablation, metric=metric, heads=heads, positions="all", base="clean",
        budget=budget, progress=progress,
    )  # fmt: skip
    judge = Judge(metric, job.base, job.source)
    warn_of_answers(job, metric)
    z, _ = replaced_z(job)
    values = np.full((model.n_layers, model.n_heads, len(EFFECTS), len(job.tokens)), np.nan)
    interrupted = False
    done = 0
    try:
        for units, final in finals(job, progress=progress):
            total, direct = judge(final), judge(_direct(job, [head for head, _ in units], z))
            for (head, _), of_all, by_itself in zip(units, total, direct, strict=True):
                values[head.layer, head.head] = of_all, by_itself, of_all - by_itself
            done += len(units)
    except KeyboardInterrupt:
        interrupted = True
        warn(f"interrupted after {done} of {len(job.heads)} heads; the rest are NaN")
    return HeadScores.from_values(
        values,
        name=f"self-repair, {said(ablation)}",
        unit=getattr(metric, "unit", ""),
        kind="self_repair",
        cluster=job.tokens.cluster,
        extra={"effect": EFFECTS},
        null=getattr(metric, "null", 0.0),
        seed=seed,
        provenance=model.provenance()
        | {
            "intervention": said(ablation),
            "metric": name_of(metric),
            "prompts": job.fingerprint(),
            "n_prompts": len(job.tokens),
            "heads": "all" if heads is None else [str(head) for head in job.heads],
            "interrupted": interrupted,
            "seed": seed,
        },
        variables={"base_metric": (("prompt",), judge.base_value.cpu().numpy())},
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
