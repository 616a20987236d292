"""``Curves``: one number as a set of heads grows, for several orders of heads and for random ones."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.heads import HeadId
from mechheads.results.kinds import kind_of
from mechheads.results.tables import TableResult


@dataclass(frozen=True, eq=False, repr=False)
class Curves(TableResult):
    """One number as a set of heads grows: a line for each order of heads, beside lines of random orders.

    Attack curves, role curves, removal and the circuit of an atlas return this.

    Attributes:
        kind: the analysis, such as "attack_curve".
        name: what was tested: a metric, a task, a relation, or requests.
        table: a row for each line and size. ``which``: the name of the line; lines of random orders are "random 1" and
            so on. ``k``: how many heads. ``score`` with ``ci_low`` and ``ci_high``, in ``unit``; and what else the
            analysis measures there.
        order: for each line, its heads in order.
        values: for each row of the table, one number per prompt or seed, in the unit of what is averaged; NaN where an
            interrupted run did not come.
        more: what else the analysis keeps, by name.
        provenance: what is needed to repeat it.
    """

    KIND = "curves"

    kind: str
    name: str
    table: pd.DataFrame
    order: Mapping[str, tuple[HeadId, ...]]
    values: Float[np.ndarray, "row prompt"]
    more: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def unit(self) -> str:
        """The unit of the score."""
        return kind_of(self.kind).unit

    @property
    def heads(self) -> tuple[Any, ...]:
        """The order of the first line."""
        return next(iter(self.order.values()))

    @property
    def band(self) -> pd.DataFrame:
        """The lines of random orders at each size: ``mean``, ``low`` (the least) and ``high`` (the largest)."""
        random = self.table[self.table["which"].map(is_random)]
        return random.groupby("k")["score"].agg(mean="mean", low="min", high="max").reset_index()

    @property
    def missing(self) -> tuple[str, ...]:
        """Points of which something is not known, after Ctrl-C: the line and the number of heads."""
        rows = self.table[self.table.drop(columns=["ci_low", "ci_high"]).isna().any(axis=1)]
        return tuple(f"{which} {k}" for which, k in zip(rows["which"], rows["k"], strict=True))

    def _analysis(self) -> str:
        return self.kind

    def __repr__(self) -> str:
        lines = {
            which: rows["score"] for which, rows in self.table.groupby("which", sort=False) if not is_random(which)
        }
        lines["random"] = self.band["mean"]
        known = {which: scores.dropna().tolist() for which, scores in lines.items()}
        ends = ", ".join(f"{which} {scores[0]:.2f} to {scores[-1]:.2f}" for which, scores in known.items() if scores)
        stopped = ", interrupted" if self.interrupted else ""
        judged = f"; {self.provenance['judged']}" if ends and "judged" in self.provenance else ""
        unit = self.unit and f" in {self.unit}"
        return f"<Curves {self.kind!r} of {self.name!r}{unit}{stopped}: {ends or 'nothing is known'}{judged}>"

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        return self.table.pivot(index="k", columns="which", values="score"), []


def is_random(which: object) -> bool:
    """Whether a line is of a random order, by its name."""
    return re.fullmatch(r"random \d+", str(which)) is not None
