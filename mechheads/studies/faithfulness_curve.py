"""``FaithfulnessCurve``: how much of an answer the heads with the largest effect keep without the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from mechheads.heads import HeadId
from mechheads.limits import DEFAULT_LIMITS
from mechheads.metrics.basic import logit_diff
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.patching.circuits import CircuitRuns, circuit_spec
from mechheads.patching.head_sets import PATCH
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

SIZES = (1, 2, 4, 8, 16, 32, 64)
"""How many heads are kept at each point of the curve."""


@dataclass(frozen=True, eq=False, repr=False)
class FaithfulnessCurve(TableResult):
    """The faithfulness of the first k heads, for several k; see ``mh.patching.faithfulness``.

    Attributes:
        table: a row for each ``k``: ``score`` with ``ci_low`` and ``ci_high``.
        heads: the heads in their order, as many as the largest k.
        metric: what was measured.
        provenance: what is needed to repeat it.
    """

    KIND = "faithfulness_curve"
    name, unit = "faithfulness of the first heads", "share"

    table: pd.DataFrame
    heads: tuple[HeadId, ...]
    metric: str
    provenance: dict[str, Any]


@alone
def faithfulness_curve(model: Model, pairs: PromptPairs, patching: HeadScores) -> FaithfulnessCurve:
    """The curve of the heads that restore most, the largest effect first.

    Raises:
        ValueError: if the metric is the same with all heads and with none.
    """
    n_heads = model.n_layers * model.n_heads
    order = patching.heads(min(SIZES[-1], n_heads))
    sizes = [k for k in SIZES if k <= len(order)]
    runs = CircuitRuns(model, circuit_spec(pairs, logit_diff, PATCH, DEFAULT_LIMITS), None)
    values = runs.values([frozenset(order[:k]) for k in sizes])
    found = [runs.faithfulness(order[:k], of) for k, of in zip(sizes, values, strict=True)]
    table = pd.DataFrame(
        [
            {"k": k, "score": each.score, "ci_low": each.ci_low, "ci_high": each.ci_high}
            for k, each in zip(sizes, found, strict=True)
        ]
    )
    return FaithfulnessCurve(table, order[: sizes[-1]], found[0].metric, make_provenance(runs, sizes=sizes))
