"""Ships and Generalized Ships: how much each head's ablation changes a model's answer to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``ablation="undifferentiated"``, ``epsilon``, ``through`` |
| Scaling Contribution, W_v times epsilon | ``ablation="scaling"``, ``epsilon`` |
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
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.safety.heads.ablations import Ablation, Kind, Through
from mechheads.safety.heads.groups import Group
from mechheads.safety.heads.measure_ships import Pass, measure
from mechheads.safety.requests.prompts import Requests, Template


@alone
def ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Kind = "undifferentiated",
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
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
        ablation: ``"undifferentiated"`` (the head's queries times epsilon, so that it attends equally to all tokens
            so far), ``"scaling"`` (its output times epsilon, so that it writes almost nothing), or ``"zero"``,
            ``"mean"`` or ``"resample"`` for comparison, as in ``mh.ablate``.
        epsilon: the factor of the first two, 0 or more; the paper's code uses 1e-4 here.
        through: whether q or k is scaled by ``"undifferentiated"``; for one query head the scores are the same.
        group: ``"query"``: one query head at a time, without changing other heads that share its keys and values;
            ``"kv"``: all query heads that share a key/value head at once. Each of them gets the common score, and
            ``top`` and ``heads`` name the group once, by its first head.
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
        way = Ablation(ablation, epsilon, through, group, seed)
        found = measure(Pass.of(model, requests, template, heads=heads), [way], with_kl=True)[0]
    return HeadScores.from_values(
        found.kl,
        name=f"Ships, {ablation}",
        kind="ships",
        cluster=found.tokens.cluster,
        seed=seed,
        provenance=make_provenance(found.provenance, seed=seed),
    )


@alone
def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Kind = "undifferentiated",
    r: int = 1,
    epsilon: float = 0.0001,
    through: Through = "q",
    group: Group = "query",
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
        requests, ablation, epsilon, through, group, template, heads: as in
            ``mh.ships``. (The paper's code uses epsilon 1e-5 in its search for groups of heads.)

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
    seed = current().seed
    way = Ablation(ablation, epsilon, through, group, seed)
    asked = Pass.of(model, requests, template, heads=heads)
    found = measure(asked, [way], r=r)[0]
    angle, low, high = found.angle
    return HeadScores.from_scores(
        angle,
        ci_low=low,
        ci_high=high,
        name=f"Generalized Ships, {ablation}",
        kind="generalized_ships",
        provenance=found.provenance,
    )
