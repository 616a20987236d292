"""Ships and Generalized Ships: how much each head's ablation changes a model's answer to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``"undifferentiated"``, ``UniformAttention(epsilon)`` |
| Scaling Contribution, W_v times epsilon | ``"scaling"``, ``Scale(epsilon)`` |
| Ships(q, h), one request | ``ships(...).values`` |
| Generalized Ships(Q, h), a set of requests | ``generalized_ships(...).scores`` |

Both measure any change of the answer, not only safety: a head that every answer needs scores high too. See
``refusal_contribution`` for a score that corrects for this.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from mechheads.engine.cached_runs import Given
from mechheads.heads import Heads
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.kinds import titled
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts
from mechheads.safety.heads.ablations import Group, Groups, ablation_name, ablation_of, held_groups
from mechheads.safety.heads.measure_ships import SafetyJob, ShipsKind
from mechheads.safety.requests.prompts import Requests, Side, Template


@analysis
def ships(
    model: Model,
    requests: Requests = None,
    *,
    harmless: Requests = None,
    intervention: InterventionLike = "undifferentiated",
    group: Group = "query",
    template: Template = "query",
    heads: Heads | None = None,
    given: Given | None = None,
) -> HeadScores:
    """Safety Head ImPortant Scores: how far the next-token distribution moves without a head.

    Ships(q, h) = KL(p(. | q; theta) || p(. | q; theta without h)) over the whole vocabulary at the last token
    of the prompt. Heads that every answer needs have large Ships too. With ``harmless``, the score is the contrast of
    each request q with its look-alike y, log Ships(q, h) - log Ships(y, h), which is mechheads' own.

    Args:
        harmless: a harmless look-alike of each request, in the same order.
        requests: a list of texts, a file or name of ``mh.safety.load_requests``, ``mh.Prompts`` (used as they are), or
            ``None`` for the requests of the package.
        intervention: how a head is ablated, by name or as an intervention: ``"undifferentiated"`` (it attends equally
            to all tokens so far), ``"scaling"`` (it writes almost nothing), both with the paper's epsilon, 1e-4;
            ``mh.patching.UniformAttention(1e-5)`` or ``mh.patching.Scale(1e-5)`` for another epsilon; or any other of
            ``mh.sweep``, such as ``"zero"`` or one of your own. Only ``"patch"`` needs pairs.
        group: ``"query"``: one query head at a time, without changing other heads that share its keys and values;
            ``"kv"``: all query heads that share a key/value head at once. Each of them gets the common score, and
            ``top`` and ``heads`` name the group once, by its first head.
        template: ``"query"`` (the paper's), ``"bare"`` or ``"chat"`` (the model's own), applied to texts.
        heads, given: as in ``mh.sweep``; with ``group="kv"``, ``given`` names whole groups.

    Returns:
        Scores in nats [layer, head], with ``values`` per prompt and intervals over prompts. p and q are NaN: a KL is
        never below 0, so there is no null to test it against. After Ctrl-C, the heads so far; the others are NaN.
        With ``harmless``, the contrast of each pair (no unit), above 0 if the head matters more after the request, with
        intervals over pairs, p and family p against 0; further variables ``harmful`` and ``harmless`` [layer, head],
        Ships of both in nats. A KL below 1e-6 nats counts as 1e-6, which is rounding.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam."]
    >>> kl = mh.ships(model, requests, heads=["L0H0", "L23H4"], progress=False)
    >>> kl.unit, bool((kl.values.sel(layer=0, head=0) > 0).all())
    ('nats', True)
    """
    rule, groups = ablation_of(intervention), Groups.of(model, group)
    held = held_groups(given, model, groups)
    job = SafetyJob(model, Side.of(model, requests, template), rule, groups, heads, held=held)
    if harmless is None:
        return ships_of(job)
    return contrast_of(replace(job, look_alikes=Side.of(model, harmless, template, "safe", "harmless")))


def ships_of(job: SafetyJob) -> HeadScores:
    """Ships of a job's heads; see ``ships``."""
    measured = job.after_requests
    return HeadScores.from_values(
        measured.kl,
        name=titled(f"Ships, {ablation_name(job.intervention)}", measured.provenance),
        kind="ships",
        cluster=measured.tokens.cluster,
        seed=current().seed,
        provenance=measured.provenance,
    )


_ROUNDING = 1e-6
"""A KL that is smaller is rounding, and its logarithm says nothing."""


def contrast_of(job: SafetyJob) -> HeadScores:
    """log Ships of each request less log Ships of its look-alike; see ``ships``."""
    sides, of_requests = job.sides, job.after_requests
    both = {"harmful": of_requests.kl, "harmless": np.full_like(of_requests.kl, np.nan)}
    stopped = of_requests.provenance["interrupted"]
    if not stopped:
        both["harmless"] = job.after_look_alikes.kl
        stopped = job.after_look_alikes.provenance["interrupted"]
    logs = {name: np.log(np.maximum(kl, _ROUNDING)) for name, kl in both.items()}
    harmless = sides.harmless.prompts.tokens(job.model)
    return HeadScores.from_values(
        logs["harmful"] - logs["harmless"],
        name=titled(f"Ships after requests against look-alikes, {ablation_name(job.intervention)}", job.about()),
        kind="ships_contrast",
        cluster=of_requests.tokens.cluster,
        seed=current().seed,
        provenance=make_provenance(of_requests.provenance, harmless=harmless, interrupted=stopped),
        variables={name: (("layer", "head"), mean_over_prompts(kl)) for name, kl in both.items()},
    )


@analysis
def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    intervention: InterventionLike = "undifferentiated",
    group: Group = "query",
    r: int = 1,
    template: Template = "query",
    heads: Heads | None = None,
    given: Given | None = None,
) -> HeadScores:
    """Generalized Ships: the angle by which the states of a whole set of requests rotate without a head.

    The last-token states after the final norm are stacked to [prompt, d_model], uncentred, for the intact and
    the ablated model; U_r and U'_r are their first r left singular vectors. The score is the sum over r of
    arccos of the singular values of U_r^T U'_r, computed in float64.

    Args:
        r: how many singular vectors are compared (the paper's code: 1); must be less than the number of different
            prompts.
        requests, intervention, group, template, heads, given: as in ``mh.ships``.

    Returns:
        Degrees [layer, head], from 0 to 90 r, with jackknife intervals over prompts. There are no per-prompt values, p
        or q, because an angle belongs to the whole set. NaN if the angle is not defined.

    Raises:
        ValueError: if an argument does not fit, or the number of different prompts is not larger than ``r``: then the
            singular vectors span the same space in any run, and the angle is undefined.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> angle = mh.safety.generalized_ships(model, requests, heads="L0H0")
    >>> angle.unit, 0 < angle["L0H0"]["score"] < 90
    ('degrees', True)
    """
    rule, groups = ablation_of(intervention), Groups.of(model, group)
    held = held_groups(given, model, groups)
    kind = ShipsKind(r=r)
    job = SafetyJob(model, Side.of(model, requests, template), rule, groups, heads, held=held, kind=kind)
    return generalized_ships_of(job)


def generalized_ships_of(job: SafetyJob) -> HeadScores:
    """Generalized Ships of a job's heads; see ``generalized_ships``."""
    angle, low, high = job.after_requests.angle
    about = job.after_requests.provenance
    return HeadScores.from_scores(
        angle,
        interval=(low, high),
        name=titled(f"Generalized Ships, {ablation_name(job.intervention)}", about),
        kind="generalized_ships",
        provenance=about,
    )
