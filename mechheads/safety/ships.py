"""Ships and Generalized Ships: how much each head's ablation changes what the model says to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

| paper | here |
|---|---|
| Undifferentiated Attention, W_q times epsilon | ``ablation="undifferentiated"``, ``epsilon`` |
| Scaling Contribution, W_v times epsilon | ``ablation="scaling"``, ``epsilon`` |
| Ships(q, h), one request | ``ships(...).values`` |
| Generalized Ships(Q, h), a set of requests | ``generalized_ships(...).scores`` |

Both measure any change of the answer, not safety alone: a head that every answer needs scores high too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import pandas as pd
import xarray as xr

from mechheads.heads import HeadId, HeadLike
from mechheads.model import Model
from mechheads.safety.measure import Ablation, measure
from mechheads.safety.requests import Requests, Template
from mechheads.scores import HeadScores

if TYPE_CHECKING:
    import plotly.graph_objects as go

_ANGLES = ("generalized_ships", "generalized_ships_low", "generalized_ships_high")


def ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Ablation = "undifferentiated",
    epsilon: float = 1e-4,
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """Safety Head ImPortant Scores: how far the next-token distribution moves without a head.

    Ships(q, h) = KL(p(. | q; theta) || p(. | q; theta without h)) over the whole vocabulary at the last token
    of the prompt. Under grouped-query attention one query head is ablated at a time; the others that share
    its keys and values stay as they are.

    Args:
        requests: a list of texts, ``mh.Prompts`` (taken as they are), or ``None`` for the 24 of the package.
        ablation: ``"undifferentiated"`` (the head's queries times epsilon: it attends to all tokens so far
            alike) or ``"scaling"`` (its output times epsilon: it says next to nothing).
        epsilon: what is left of the head, 0 or more; the paper's code takes 1e-4 here.
        template: ``"query"`` (the paper's), ``"bare"`` or ``"chat"`` (the model's own), applied to texts.
        heads, budget, progress: as in ``mh.sweep``.
        seed: of the bootstrap.

    Returns:
        Nats [layer, head], ``values`` per prompt, intervals by bootstrap over prompts. A KL is never below 0,
        so there is nothing to test it against: p and q are NaN. After Ctrl-C the heads not reached are NaN.

    Raises:
        ValueError: if an argument does not fit; before any head is ablated.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam."]
    >>> kl = mh.ships(model, requests, heads=["L0H0", "L23H4"], progress=False)
    >>> kl.unit, bool((kl.values.sel(layer=0, head=0) > 0).all())
    ('nats', True)
    """
    found = measure(
        model, requests, ablation=ablation, epsilon=epsilon, template=template, heads=heads, budget=budget,
        progress=progress, with_kl=True,
    )  # fmt: skip
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


def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    ablation: Ablation = "undifferentiated",
    r: int = 1,
    epsilon: float = 1e-4,
    template: Template = "query",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    progress: bool = True,
) -> HeadScores:
    """Generalized Ships: the angle by which a whole set of requests turns without a head.

    The last-token states after the final norm are stacked to [prompt, d_model], uncentred, for the intact and
    the ablated model; U_r and U'_r are their first r left singular vectors. The score is the sum over r of
    arccos of the singular values of U_r^T U'_r, computed in float64.

    Args:
        r: how many singular vectors are compared (the paper's code: 1); fewer than different prompts.
        requests, ablation, epsilon, template, heads, budget, progress: as in ``mh.ships``. (The paper's code
            takes epsilon 1e-5 in its search for groups of heads.)

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
    found = measure(
        model, requests, ablation=ablation, epsilon=epsilon, template=template, heads=heads, budget=budget,
        progress=progress, r=r,
    )  # fmt: skip
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


def safety_heads(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablation: Ablation = "undifferentiated",
    epsilon: float = 1e-4,
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SafetyHeads:
    """Ships and Generalized Ships of every head from one pass, and the ``k`` heads with the largest Ships.

    Args:
        k: how many heads to report and draw.
        requests, ablation, epsilon, template, r, heads, budget, seed, progress: as in ``mh.ships`` and
            ``mh.generalized_ships``.

    Raises:
        ValueError: as ``mh.ships`` and ``mh.generalized_ships`` do.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"], progress=False)
    >>> len(safety.heads()), safety.generalized_ships.dims
    (2, ('layer', 'head'))
    """
    if k < 1:
        raise ValueError(f"k is {k}; it must be at least 1")
    found = measure(
        model, requests, ablation=ablation, epsilon=epsilon, template=template, heads=heads, budget=budget,
        progress=progress, with_kl=True, r=r,
    )  # fmt: skip
    return SafetyHeads.from_values(
        found.kl,
        name=f"safety heads, {ablation}",
        unit="nats",
        kind="safety",
        cluster=found.tokens.cluster,
        null=None,
        seed=seed,
        provenance=found.provenance | {"k": k, "seed": seed},
        variables={name: (("layer", "head"), values) for name, values in zip(_ANGLES, found.angle, strict=True)},
    )


class SafetyHeads(HeadScores):
    """Ships of every head, with Generalized Ships beside it.

    ``score`` and ``values`` are Ships in nats; the further variables ``generalized_ships``,
    ``generalized_ships_low`` and ``generalized_ships_high`` over (layer, head) are degrees. ``top`` and
    ``heads`` give the ``k`` heads that were asked for unless told otherwise.
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
        """The ``k`` rows of ``to_dataframe`` with the largest Ships."""
        return super().top(self.k if k is None else k, by)

    def heads(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> tuple[HeadId, ...]:
        """The ``k`` heads with the largest Ships."""
        return super().heads(self.k if k is None else k, by)

    def to_dataframe(self) -> pd.DataFrame:
        """One row a head, as ``HeadScores`` gives it, and Generalized Ships with its interval."""
        return super().to_dataframe().assign(**{name: self.dataset[name].values.ravel() for name in _ANGLES})

    def plot(self, **options: Any) -> go.Figure:
        """The ``k`` heads over layers, coloured by Generalized Ships; see ``mechheads.plots.safety_map``."""
        from mechheads.plots.safety import safety_map

        return safety_map(self, **options)
