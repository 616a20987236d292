"""Ships and Generalized Ships: how much each head's ablation changes what the model says to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``ablation="undifferentiated"``, ``epsilon``, ``through`` |
| Scaling Contribution, W_v times epsilon | ``ablation="scaling"``, ``epsilon`` |
| Ships(q, h), one request | ``ships(...).values`` |
| Generalized Ships(Q, h), a set of requests | ``generalized_ships(...).scores`` |

Both measure any change of the answer, not safety alone: a head that every answer needs scores high too. See
``refusal_contribution`` for a score that does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from mechheads.backends.changes import alone
from mechheads.heads import HeadId, HeadLike
from mechheads.model import Model
from mechheads.safety.ablations import Ablation, Group, Kind, Through
from mechheads.safety.measure import Measured, measure
from mechheads.safety.requests import Requests, Template, request_prompts
from mechheads.scores import HeadScores
from mechheads.stats import cluster_draws, clustered_interval, mean_over_prompts, top_shares
from mechheads.suggest import did_you_mean

if TYPE_CHECKING:
    import plotly.graph_objects as go

Score = Literal["ships", "generalized_ships"]
_SHIPS = ("ships", "ships_low", "ships_high")
_ANGLES = ("generalized_ships", "generalized_ships_low", "generalized_ships_high")
_RESAMPLES = {"ships": 1000, "generalized_ships": 100}


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
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """Safety Head ImPortant Scores: how far the next-token distribution moves without a head.

    Ships(q, h) = KL(p(. | q; theta) || p(. | q; theta without h)) over the whole vocabulary at the last token
    of the prompt.

    Args:
        requests: a list of texts, ``mh.Prompts`` (taken as they are), or ``None`` for those of the package.
        ablation: ``"undifferentiated"`` (the head's queries times epsilon: it attends to all tokens so far
            alike), ``"scaling"`` (its output times epsilon: it says next to nothing), or ``"zero"``, ``"mean"`` or
            ``"resample"`` for comparison, as in ``mh.ablate``.
        epsilon: what is left of the head under the first two, 0 or more; the paper's code takes 1e-4 here.
        through: whether q or k shrinks under ``"undifferentiated"``; for one query head the scores are the same.
        group: ``"query"``: one query head at a time, while others that share its keys and values stay as they are;
            ``"kv"``: all that share a key/value head at once, and each of them gets their common score.
        template: ``"query"`` (the paper's), ``"bare"`` or ``"chat"`` (the model's own), applied to texts.
        heads, budget, progress: as in ``mh.sweep``.
        seed: of ``"resample"``.

    Returns:
        Nats [layer, head], ``values`` per prompt, intervals over prompts. A KL is never below 0,
        so there is nothing to test it against: p and q are NaN. After Ctrl-C the heads not reached are NaN.

    Raises:
        ValueError: if an argument does not fit; before any head is ablated.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam."]
    >>> kl = mh.ships(model, requests, heads=["L0H0", "L23H4"], progress=False)
    >>> kl.unit, bool((kl.values.sel(layer=0, head=0) > 0).all())
    ('nats', True)
    """
    way = Ablation(ablation, epsilon, through, group, seed)
    found = measure(
        model, requests, [way], template=template, heads=heads, budget=budget, progress=progress, with_kl=True
    )[0]
    return HeadScores.from_values(
        found.kl,
        name=f"Ships, {ablation}",
        unit="nats",
        kind="ships",
        cluster=found.tokens.cluster,
        null=None,
        seed=seed,
        provenance=found.provenance | {"seed": seed},
    )


@alone
def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Kind = "undifferentiated",
    r: int = 1,
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """Generalized Ships: the angle by which a whole set of requests turns without a head.

    The last-token states after the final norm are stacked to [prompt, d_model], uncentred, for the intact and
    the ablated model; U_r and U'_r are their first r left singular vectors. The score is the sum over r of
    arccos of the singular values of U_r^T U'_r, computed in float64.

    Args:
        r: how many singular vectors are compared (the paper's code: 1); fewer than different prompts.
        requests, ablation, epsilon, through, group, template, heads, budget, progress: as in ``mh.ships``. (The
            paper's code takes epsilon 1e-5 in its search for groups of heads.)
        seed: of ``"resample"``.

    Returns:
        Degrees [layer, head], 0 to 90 r, with a jackknife interval over prompts that makes the SVD again. No
        per-prompt values, p or q: an angle belongs to the set. NaN where it is not defined.

    Raises:
        ValueError: if an argument does not fit, or there are not more different prompts than ``r``: then the
            singular vectors span the same space in any run and the angle is undefined.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> angle = mh.generalized_ships(model, requests, heads="L0H0", progress=False)
    >>> angle.unit, 0 < angle["L0H0"]["score"] < 90
    ('degrees', True)
    """
    way = Ablation(ablation, epsilon, through, group, seed)
    found = measure(model, requests, [way], template=template, heads=heads, budget=budget, progress=progress, r=r)[0]
    angle, low, high = found.angle
    return HeadScores.from_scores(
        angle,
        ci_low=low,
        ci_high=high,
        name=f"Generalized Ships, {ablation}",
        unit="degrees",
        kind="generalized_ships",
        provenance=found.provenance,
    )


@alone
def safety_heads(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablation: Kind = "undifferentiated",
    score: Score = "ships",
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SafetyHeads:
    """Ships and Generalized Ships of every head from one pass, and the ``k`` heads with the largest score.

    Args:
        k: how many heads to report and draw.
        score: which of the two ranks the heads.
        requests, ablation, epsilon, through, group, template, r, heads, budget, seed, progress: as in ``mh.ships``
            and ``mh.generalized_ships``.

    Returns:
        Scores with both, and ``in_top``: in which share of resamples of the prompts each head is among the k.

    Raises:
        ValueError: as ``mh.ships`` and ``mh.generalized_ships`` do.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"], progress=False)
    >>> len(safety.heads()), safety.generalized_ships.dims
    (2, ('layer', 'head'))
    """
    found = compare_ablations(
        model, requests, k, ablations=[ablation], score=score, epsilon=epsilon, through=through, group=group,
        template=template, r=r, heads=heads, budget=budget, seed=seed, progress=progress,
    )  # fmt: skip
    return found[ablation]


@alone
def compare_ablations(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablations: Sequence[Kind] = ("undifferentiated", "scaling"),
    score: Score = "ships",
    epsilon: float = 1e-4,
    through: Through = "q",
    group: Group = "query",
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, SafetyHeads]:
    """``safety_heads`` under several ablations, over one intact run that all share.

    Args:
        ablations: kinds, each once.
        model, requests, k, score, epsilon, through, group, template, r, heads, budget, seed, progress: as in
            ``mh.safety_heads``.

    Returns:
        The result of each ablation; ``overlap`` tells how far they agree.

    Raises:
        ValueError: as ``mh.safety_heads``, and where an ablation is given twice or none is.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> found = mh.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"], progress=False)
    >>> list(found)
    ['undifferentiated', 'scaling']
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    if score not in _RESAMPLES:
        meant = did_you_mean(score, _RESAMPLES)
        raise ValueError(f"score is {score!r}; choose one of {', '.join(map(repr, _RESAMPLES))}.{meant}")
    if isinstance(ablations, str) or not len(ablations) or len(set(ablations)) < len(ablations):
        raise ValueError(f'ablations is {ablations!r}; give a list of kinds, each once, such as ["scaling", "zero"]')
    ways = [Ablation(kind, epsilon, through if kind == "undifferentiated" else "q", group, seed) for kind in ablations]
    cluster = request_prompts(model, requests, template).tokens(model).cluster
    draws = cluster_draws(cluster, _RESAMPLES[score], seed)
    measured = measure(
        model, requests, ways, template=template, heads=heads, budget=budget,
        progress=progress, with_kl=True, r=r, draws=draws if score == "generalized_ships" else None,
    )  # fmt: skip
    return {way.kind: _safety_heads(found, score, k, draws, seed) for way, found in zip(ways, measured, strict=True)}


def _safety_heads(
    found: Measured, score: Score, k: int, draws: Float[np.ndarray, "draw prompt"], seed: int
) -> SafetyHeads:
    kind = found.provenance["ablation"]
    low, high = clustered_interval(found.kl, found.tokens.cluster)
    columns = dict(zip((*_SHIPS, *_ANGLES), (mean_over_prompts(found.kl), low, high, *found.angle), strict=True))
    variables = {name: (("layer", "head"), values) for name, values in columns.items()}
    about: dict[str, Any] = {
        "name": f"safety heads, {kind}",
        "kind": "safety",
        "provenance": found.provenance | {"k": k, "score": score, "seed": seed},
    }
    if score == "ships":
        resampled = np.moveaxis(found.kl @ draws.T / draws.sum(1), -1, 0)
        variables["in_top"] = (("layer", "head"), top_shares(resampled, k))
        return SafetyHeads.from_values(
            found.kl, unit="nats", cluster=found.tokens.cluster, null=None, seed=seed, variables=variables, **about
        )
    variables["in_top"] = (("layer", "head"), top_shares(found.resampled, k))
    angle, angle_low, angle_high = found.angle
    return SafetyHeads.from_scores(
        angle, unit="degrees", ci_low=angle_low, ci_high=angle_high, variables=variables, **about
    )


class SafetyHeads(HeadScores):
    """Ships of every head, with Generalized Ships beside it.

    ``score`` is the one that was asked for; with Ships, ``values`` are those of each prompt. Further variables over
    (layer, head): ``ships`` in nats and ``generalized_ships`` in degrees, each with ``_low`` and ``_high``; and
    ``in_top``, in which share of resamples of the prompts a head is among the first k. ``top`` and ``heads`` give the
    ``k`` heads that were asked for unless told otherwise.
    """

    KIND = "safety"

    @property
    def k(self) -> int:
        """How many heads were asked for."""
        return self.provenance["k"]

    @property
    def generalized_ships(self) -> xr.DataArray:
        """Generalized Ships in degrees, (layer, head)."""
        return self.dataset["generalized_ships"]

    def top(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> pd.DataFrame:
        """The ``k`` rows of ``to_dataframe`` with the largest score."""
        return super().top(self.k if k is None else k, by)

    def heads(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> tuple[HeadId, ...]:
        """The ``k`` heads with the largest score."""
        return super().heads(self.k if k is None else k, by)

    def to_dataframe(self) -> pd.DataFrame:
        """One row a head, as ``HeadScores`` gives it, with both scores, their intervals and ``in_top``."""
        names = (*_SHIPS, *_ANGLES, "in_top")
        return super().to_dataframe().assign(**{name: self.dataset[name].values.ravel() for name in names})

    def plot(self, **options: Any) -> go.Figure:
        """The ``k`` heads over layers, coloured by Generalized Ships; see ``mechheads.plots.safety_map``."""
        from mechheads.plots.safety import safety_map

        return safety_map(self, **options)
