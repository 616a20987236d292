"""``HeadProfile``: what every head does on ordinary text, against nulls, and its names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.behaviour.against_control import against_control
from mechheads.behaviour.measure import BEHAVIOURS, MEASURES
from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.messages.arguments import check_known
from mechheads.results.scores import HeadScores
from mechheads.results.stats import clustered_interval, mean_over_prompts

PROFILED = (*BEHAVIOURS, "position")
NAMES = {
    "first": "sink",
    "self": "self",
    "previous": "previous-token",
    "duplicate": "duplicate-token",
    "induction": "induction",
    "delimiter": "delimiter",
    "position": "positional",
}
"""The name of a head with a behaviour."""
LEAST = {
    "first": 0.5,
    "self": 0.3,
    "previous": 0.3,
    "duplicate": 0.1,
    "induction": 0.1,
    "delimiter": 0.3,
    "position": 0.5,
}
"""How far a behaviour must be above its null, at the lower end of its interval, to give a name."""
LEAST_ELSEWHERE = 0.1
"""The share of attention that a positional head must give to tokens other than the first and the query itself."""
FDR = 0.05
_QUANTILES = (0.1, 0.5, 0.9)


class HeadProfile(HeadScores):
    """What every head does on ordinary text, from ``mh.profile_heads``.

    ``score`` over (layer, head, behaviour) is the share of a head's attention that goes to the keys of a behaviour,
    averaged over queries that have such keys and over windows; for ``position`` it is the share of the variance of
    attention that the distance explains. Further variables over the same dimensions: ``null``, the same for permuted
    keys; ``excess``, the difference, with ``excess_low`` and ``excess_high``, to which ``p_value`` and ``q_value``
    belong; ``moved``, the score with attention weighted by the norm of what is moved, and ``moved_excess``; ``named``.
    Over (layer, head): ``entropy`` of attention in nats, ``distance`` in tokens with ``distance_10``, ``distance_50``
    and ``distance_90``, ``norm`` of the head's output relative to the residual stream, and ``copying``, each with
    ``_low`` and ``_high`` where it is a mean over windows.
    """

    KIND = "profile"

    @classmethod
    def of(
        cls,
        values: Float[np.ndarray, "measure layer head window"],
        at_distance: Float[np.ndarray, "layer head distance"],
        provenance: Mapping[str, Any],
        seed: int,
    ) -> HeadProfile:
        """The profile, from measures of windows or of blocks of windows."""
        measured = dict(zip(MEASURES, values, strict=True))

        def stacked(ending: str = "") -> Float[np.ndarray, "layer head behaviour window"]:
            nothing = np.full_like(values[0], np.nan)
            return np.stack([measured.get(f"{name}{ending}", nothing) for name in PROFILED], axis=2)

        score, null = stacked(), stacked("_null")
        moved, moved_null = stacked("_moved"), stacked("_moved_null")
        cluster, dims, heads = range(values.shape[-1]), ("layer", "head", "behaviour"), ("layer", "head")
        variables: dict[str, Any] = {
            "moved": (dims, mean_over_prompts(moved)),
            "moved_excess": (dims, mean_over_prompts(moved - moved_null)),
        }
        for name in ("entropy", "distance", "norm", "copying"):
            ends = clustered_interval(measured[name], cluster)
            variables |= {name: (heads, mean_over_prompts(measured[name]))}
            variables |= {f"{name}_{end}": (heads, each) for end, each in zip(("low", "high"), ends, strict=True)}
        for share, distance in zip(_QUANTILES, _quantiles(at_distance), strict=True):
            variables[f"distance_{share * 100:.0f}"] = (heads, distance)
        found = against_control(
            score,
            null,
            cluster=cluster,
            seed=seed,
            called="null",
            name="profile on text",
            kind="profile",
            extra={"behaviour": PROFILED},
            provenance=provenance,
            variables=variables,
        ).dataset
        least = np.array([LEAST[name] for name in PROFILED])
        named = (found["q_value"].values <= FDR) & (found["excess_low"].values >= least)
        means = dict(zip(PROFILED, np.moveaxis(found["score"].values, -1, 0), strict=True))
        named[..., PROFILED.index("position")] &= means["first"] + means["self"] <= 1 - LEAST_ELSEWHERE
        return cls(found.assign(named=(dims, named)))

    def names(self, head: HeadLike) -> tuple[str, ...]:
        """The names of one head, such as ``("previous-token", "positional")``; empty if it has none.

        A name needs a q value of at most 0.05, and an excess over the null of at least 0.5 (``sink``, ``positional``),
        0.3 (``self``, ``previous-token``, ``delimiter``) or 0.1 (``duplicate-token``, ``induction``), at the lower end
        of its interval. A positional head must also give a tenth of its attention to tokens other than the first and
        the query itself.

        Raises:
            ValueError: if there is no such head.
        """
        found = check_head(head, self.n_layers, self.n_heads)
        named = self.dataset["named"].values[found.layer, found.head]
        return tuple(NAMES[name] for name, has in zip(PROFILED, named, strict=True) if has)

    def named(self, name: str) -> tuple[HeadId, ...]:
        """The heads with a name, those with the largest excess first.

        Raises:
            ValueError: if there is no such name.
        """
        check_known("name", name, tuple(NAMES.values()))
        at = list(NAMES.values()).index(name)
        named, excess = (self.dataset[each].values[..., at] for each in ("named", "excess"))
        heads = [HeadId(int(layer), int(head)) for layer, head in np.argwhere(named)]
        return tuple(sorted(heads, key=lambda head: -excess[head.layer, head.head]))

    def table(self) -> pd.DataFrame:
        """One row for each head: its names, the share of attention for each behaviour, and the other measures."""
        data = self.dataset
        heads = [HeadId(layer, head) for layer in range(self.n_layers) for head in range(self.n_heads)]
        columns: dict[str, Any] = {
            "head": map(str, heads),
            "layer": [head.layer for head in heads],
            "index": [head.head for head in heads],
            "names": [", ".join(self.names(head)) for head in heads],
        }
        for at, behaviour in enumerate(PROFILED):
            for name, column in ((behaviour, "score"), (f"{behaviour}_null", "null"), (f"{behaviour}_q", "q_value")):
                columns[name] = data[column].values[..., at].ravel()
        others = ("entropy", "distance", "distance_10", "distance_50", "distance_90", "norm", "copying")
        return pd.DataFrame(columns | {name: data[name].values.ravel() for name in others})


def _quantiles(at_distance: Float[np.ndarray, "layer head distance"]) -> list[Float[np.ndarray, "layer head"]]:
    """The distances below which these shares of attention lie."""
    mass = at_distance.cumsum(-1)
    with np.errstate(invalid="ignore"):
        share = mass / mass[..., -1:]
    return [np.where(np.isnan(share[..., -1]), np.nan, (share < at).sum(-1).astype(float)) for at in _QUANTILES]
