"""Ships and Generalized Ships: how much each head's ablation changes a model's answer to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``Ablation("undifferentiated", epsilon, through)`` |
| Scaling Contribution, W_v times epsilon | ``Ablation("scaling", epsilon)`` |
| Ships(q, h), one request | ``ships(...).values`` |
| Generalized Ships(Q, h), a set of requests | ``generalized_ships(...).scores`` |

Both measure any change of the answer, not only safety: a head that every answer needs scores high too. See
``refusal_contribution`` for a score that corrects for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike

from mechheads.heads import HeadLike
from mechheads.limits import Budget, Workers, current, settings
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.safety.heads.ablations import Ablation, AblationLike
from mechheads.safety.heads.measure_ships import Pass, measure
from mechheads.safety.requests.prompts import Requests, Template


@analysis(keeps_units=True)
def ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: AblationLike = "undifferentiated",
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: Budget = None,
    seed: int | None = None,
    progress: bool | None = None,
    workers: Workers | None = None,
    store: str | PathLike[str] | None = None,
) -> HeadScores:
    """Safety Head ImPortant Scores: how far the next-token distribution moves without a head.

    Ships(q, h) = KL(p(. | q; theta) || p(. | q; theta without h)) over the whole vocabulary at the last token
    of the prompt.

    Args:
        requests: a list of texts, a file or name of ``mh.safety.open_requests``, ``mh.Prompts`` (used as they are), or
            ``None`` for the requests of the package.
        ablation: ``"undifferentiated"`` (the head attends equally to all tokens so far), ``"scaling"`` (it writes
            almost nothing), or ``"zero"``, ``"mean"`` or ``"resample"`` for comparison; or an ``mh.safety.Ablation``,
            which also says epsilon, whether q or k is scaled, and whether heads that share a key/value head are ablated
            together.
        template: ``"query"`` (the paper's), ``"bare"`` or ``"chat"`` (the model's own), applied to texts.
        heads, budget, seed, progress, workers, store: as in ``mh.sweep``.

    Returns:
        Scores in nats [layer, head], with ``values`` per prompt and intervals over prompts. p and q are NaN: a KL is
        never below 0, so there is no null to test it against. After Ctrl-C, the heads so far; the others are NaN.

    Raises:
        ValueError: if an argument does not fit. It is raised before any head is ablated.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam."]
    >>> kl = mh.ships(model, requests, heads=["L0H0", "L23H4"], progress=False)
    >>> kl.unit, bool((kl.values.sel(layer=0, head=0) > 0).all())
    ('nats', True)
    """
    with settings(budget=budget, seed=seed, progress=progress, workers=workers, store=store):
        seed = current().seed
        way = Ablation.of(ablation)
        found = measure(Pass.of(model, requests, template, heads=heads), [way], with_kl=True)[0]
    return HeadScores.from_values(
        found.kl,
        name=f"Ships, {way.kind}",
        kind="ships",
        cluster=found.tokens.cluster,
        seed=seed,
        provenance=make_provenance(found.provenance),
    )


@analysis(keeps_units=True)
def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: AblationLike = "undifferentiated",
    r: int = 1,
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
) -> HeadScores:
    """Generalized Ships: the angle by which the states of a whole set of requests rotate without a head.

    The last-token states after the final norm are stacked to [prompt, d_model], uncentred, for the intact and
    the ablated model; U_r and U'_r are their first r left singular vectors. The score is the sum over r of
    arccos of the singular values of U_r^T U'_r, computed in float64.

    Args:
        r: how many singular vectors are compared (the paper's code: 1); must be less than the number of different
            prompts.
        requests, ablation, template, heads: as in ``mh.ships``.

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
    way = Ablation.of(ablation)
    asked = Pass.of(model, requests, template, heads=heads)
    found = measure(asked, [way], r=r)[0]
    angle, low, high = found.angle
    return HeadScores.from_scores(
        angle,
        interval=(low, high),
        name=f"Generalized Ships, {way.kind}",
        kind="generalized_ships",
        provenance=found.provenance,
    )
