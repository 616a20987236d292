"""Roles: whether a task needs a head, is hindered by it, or does not care.

    facilitation = G-          needed even where gates are pulled shut
    interference = 1 - G+      shut even where gates are pulled open
    irrelevance  = G+ (1 - G-) goes wherever it is pulled

G+ are the gates of the fit "keep", G- those of "drop" (Nam et al. 2025, arXiv 2505.13737).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.gating.fitted import Gates
from mechheads.layout import RANGE
from mechheads.scores import HeadScores
from mechheads.shown import html_result

ROLES = ("facilitation", "interference", "irrelevance")


class Roles(Mapping[str, HeadScores]):
    """The three role scores of every head, each as ``HeadScores`` over seeds.

    >>> task = mh.Task(["The capital of France is"], [" Paris"])
    >>> roles = mh.head_roles(mh.fit_gates(model, task, seeds=3, updates=1, progress=False))
    >>> roles["facilitation"]
    <HeadScores 'facilitation, task' in gate: 30 layers x 9 heads, 3 prompts>
    """

    def __init__(self, scores: Mapping[str, HeadScores]) -> None:
        self._scores = dict(scores)

    def __getitem__(self, role: str) -> HeadScores:
        if role not in self._scores:
            raise KeyError(f"there is no role {role!r}; there is {', '.join(map(repr, self._scores))}")
        return self._scores[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self._scores)

    def __len__(self) -> int:
        return len(self._scores)

    def always(self, threshold: float = 0.5) -> dict[str, float]:
        """Share of heads that have a role at least this strongly in every seed, for each role."""
        return {role: float(self._reached(role, threshold).all(-1).mean()) for role in self}

    def any(self, threshold: float = 0.5) -> dict[str, float]:
        """Share of heads that have a role at least this strongly in some seed, for each role."""
        return {role: float(self._reached(role, threshold).any(-1).mean()) for role in self}

    def shares(self, threshold: float = 0.5) -> pd.DataFrame:
        """Shares of heads, one row a role: ``always``, ``any``, and ``mean``, the share in one seed, over seeds."""
        mean = {role: float(self._reached(role, threshold).mean()) for role in self}
        columns = {"always": self.always(threshold), "any": self.any(threshold), "mean": mean}
        return pd.DataFrame(columns).rename_axis("role").reset_index()

    def to_dataframe(self) -> pd.DataFrame:
        """One row a head: layer, head, and of each role the mean over seeds with ``_low`` and ``_high`` ends.

        Of two seeds, which have no interval, ``_range_low`` and ``_range_high`` are the smaller and the larger.
        """
        tables = {role: scores.to_dataframe() for role, scores in self.items()}
        columns = {name: tables[ROLES[0]][name] for name in ("layer", "head")}
        for role, table in tables.items():
            columns |= {role: table["score"], f"{role}_low": table["ci_low"], f"{role}_high": table["ci_high"]}
            columns |= {f"{role}_{end}": table[end] for end in RANGE if end in table}
        return pd.DataFrame(columns)

    def _reached(self, role: str, threshold: float) -> np.ndarray:
        """Whether each head has the role in each seed [layer, head, seed].

        Raises:
            ValueError: if the threshold is no gate, or the gates were not fitted to the end.
        """
        if not 0 <= threshold <= 1:
            raise ValueError(f"threshold is {threshold}; gates lie between 0 and 1")
        values = self[role].dataset["values"].values
        if np.isnan(values).any():
            raise ValueError(f"{role} is not known for every head: the fit was interrupted")
        return values >= threshold

    def __repr__(self) -> str:
        return f"<Roles of {' x '.join(map(str, self['facilitation'].scores.shape))} heads: {', '.join(self)}>"

    def _repr_html_(self) -> str:
        try:
            return html_result(self, self.shares(), "Shares of heads at 0.5 or more, over seeds:")
        except ValueError as error:
            return f"<div><p>{escape(repr(self))}<br>{escape(str(error))}</p></div>"


def head_roles(gates: Gates) -> Roles:
    """What a task makes of each head: facilitation, interference and irrelevance, for every seed.

    Args:
        gates: of ``fit_gates``.

    Returns:
        For each role a score of every head in 0..1: the mean over seeds, with its interval and the value of each seed.

    Raises:
        ValueError: if the gates are not of the fits "keep" and "drop".

    Nam et al. 2025 (arXiv 2505.13737), section 3.

    >>> task = mh.Task(["The capital of France is"], [" Paris"])
    >>> roles = mh.head_roles(mh.fit_gates(model, task, seeds=2, updates=1, progress=False))
    >>> list(roles)
    ['facilitation', 'interference', 'irrelevance']
    """
    if not {"keep", "drop"} <= set(gates.fits):
        raise ValueError(f"gates are of the fits {', '.join(gates.fits)}; roles need keep and drop: use mh.fit_gates")
    values = role_values(gates["keep"], gates["drop"])
    return Roles({role: gates.as_scores(values[role], f"{role}, {gates.name}", "roles") for role in ROLES})


def role_values(keep: Float[np.ndarray, "*gates"], drop: Float[np.ndarray, "*gates"]) -> dict[str, np.ndarray]:
    """The three roles from G+ and G-."""
    return dict(zip(ROLES, (drop, 1 - keep, keep * (1 - drop)), strict=True))
