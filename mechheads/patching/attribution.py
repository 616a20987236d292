"""Attribution: an estimate of activation patching for all heads at once, from one gradient or a few.

The effect of a new z is approximated as linear: (new z - old z) . d metric / d z, with the gradient at the base run.
One forward and one backward pass serve every head. With ``steps``, it is the mean gradient at points between the two
runs (integrated gradients), for effects that saturate. How a new q, k, v or pattern changes the head's own z is
computed exactly; only the effect of z is linear (the "QK fix" of Kramár et al. 2024).

``transformer_lens.tools.analysis.attribution_patch`` gives the same numbers for z, and the tests compare ours with it.
It takes only bridges and pairs of one length, averages over prompts, and fails if every parameter is frozen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Job, Positions, Spec, by_place, make_ready, resolve, where_reached
from mechheads.engine.report import Metadata, report, warn_of_answers
from mechheads.engine.work import UnitRuns, passes
from mechheads.heads import HeadLike
from mechheads.interventions.basic import Patch, Site
from mechheads.interventions.new_z import CheckedIntervention
from mechheads.limits import current
from mechheads.messages.arguments import Positive
from mechheads.metrics import Metric, as_metric_of_logits, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.activation import Direction, base_of, check_pairs
from mechheads.patching.gradients import Gradients, Path, Size, check_gradient, gradients_of
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import KEY_SITES


@analysis
def attribution_patch(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    site: Site = "z",
    metric: Metric | str = logit_diff,
    direction: Direction = "denoising",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    steps: Positive | None = None,
) -> HeadScores:
    """Estimate ``mh.activation_patch`` for all heads from one forward and one backward pass, or a few.

    The estimate is (new z - old z) . d metric / d z, summed over positions. It is exact if the model is linear after
    z, and good for small changes. It is misleading if later norms or attention saturate, or if effects cancel.

    To patch the heads with the largest estimates exactly, give them as ``heads=estimate.heads(20)``.

    Args:
        pairs, site, direction: as in ``mh.activation_patch``. How a new q, k, v or pattern changes z is computed
            exactly; with grouped-query attention, for each query head separately.
        metric: a metric with a gradient at the base run. Accuracy has none, and the gradient of a divergence from
            the base run is 0 there.
        heads, positions: as in ``mh.sweep``.
        steps: for effects that saturate: the mean gradient of this many runs, with embeddings between the two runs',
            (k - 1/2) / steps of the way (integrated gradients on inputs, as in EAP-IG); ``None``: the base run alone.

    Returns:
        The estimate of metric(patched) - metric(unpatched) [layer, head(, pos), prompt], in the metric's unit.

    Nanda 2023 ("Attribution Patching"); Syed et al. 2023 (arXiv 2310.10348); Kramár et al. 2024 (arXiv 2403.00745);
    Hanna et al. 2024, "Have Faith in Faithfulness" (EAP-IG, arXiv 2403.17806), equation 4.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> mh.patching.attribution_patch(model, pairs).heads(1)
    (HeadId(layer=23, head=4),)
    """
    inputs = resolve(model, pairs, "pairs")
    check_pairs(inputs.prompts, "attribution patching")
    base = base_of(direction)
    measured = as_metric_of_logits(metric, "mh.patching.attribution_patch", "mh.activation_patch")
    spec = Spec(inputs.prompts, Patch(site), measured, heads, positions, base, limits=current().limits)
    (estimate,) = estimates(inputs, [spec], steps)
    warn_of_answers(estimate.job)
    values, extra = by_place(estimate.job.places, estimate.values)
    name = f"attribution patching of {site}, {direction}" + (f", {steps} steps" if steps else "")
    more = {"intervention": repr(spec.intervention), "base": base, "steps": steps}
    return report(estimate.job, values, Metadata(name, "attribution", extra=extra, more=more, exact=False))


@dataclass(frozen=True, eq=False)
class Estimate:
    """The estimates for a job's heads; NaN for other heads, and for prompts that do not have the place."""

    values: Float[np.ndarray, "layer head place prompt"]
    job: Job


@torch.inference_mode(False)
def estimates(runs: CachedRuns, specs: Sequence[Spec], steps: int | None = None) -> list[Estimate]:
    """The linear estimates of sweeps that differ only in what they do to z, from one gradient, or its mean over steps:
    (new z - old z) . d metric / d z for the intervention of each spec."""
    check_gradient(specs[0].metric, runs.sides(specs[0].base)[0], runs.model.d_vocab)
    jobs = [make_ready(runs, spec) for spec in specs]
    first, layers = jobs[0], sorted({head.layer for head in jobs[0].heads})
    path = Path.between(first.base, first.source, steps) if steps and first.source is not None else None
    gradients = gradients_of(first.base, first.spec.metric, layers, Size.of(first, len(layers)), path)
    return [Estimate(where_reached(job.places, _along(job, gradients)), job) for job in jobs]


def _along(job: Job, gradients: Gradients) -> Float[np.ndarray, "layer head place prompt"]:
    """(new z - old z) . gradient for the job's intervention, NaN for other heads."""
    model, base, rule = job.model, job.base, CheckedIntervention(job.intervention)
    values = np.full((model.n_layers, model.n_heads, len(job.places), len(job.tokens)), np.nan)
    of_keys = rule.site in KEY_SITES  # a new key or value at one place changes z at every later token
    for places in passes(job.places, job.site):
        of_all = UnitRuns(job).all_new_z(places[0])
        for layer in gradients.layers:
            named = [head for head in job.heads if head.layer == layer]
            heads = [head.head for head in named]
            old = base.z.layer(layer)[:, heads]
            if of_all is not None:
                new = of_all[layer][:, heads]
            else:
                new = rule.apply(old, named, base, job.source)
                rule.check_finite()
            along = ((new - old).double() * gradients[layer][:, heads].double()).sum(-1)
            along = along.masked_fill(~job.tokens.mask[:, None], 0)
            for place in places:
                at = job.places[place].at
                part = along if of_keys or at is None else along * at[:, None]
                values[layer, heads, place] = part.sum(-1).T.cpu().numpy()
    return values
