"""``EdgeScores``: a score for every edge between heads, MLPs, the embedding and the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.heads import HeadId
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.results.mlps import with_mlp_scores
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores, RankBy
from mechheads.results.shown import Rows
from mechheads.results.tables import TableResult

_SHOWN = 20


@dataclass(frozen=True, eq=False)
class EdgeScores(TableResult):
    """A score for every edge of a model, from what writes to the residual stream to what reads it.

    Attributes:
        senders: what writes: ``"input"`` (the embedding), heads such as ``"L3H2"``, MLPs such as ``"L3.mlp"``.
        receivers: what reads: inputs of heads such as ``"L5H1.q"``, MLPs, and ``"logits"``.
        score: the mean over prompts; NaN where the sender does not come before the receiver.
        ci_low, ci_high: its 95% interval over clusters of prompts; NaN with fewer than three clusters.
        values: the score of each prompt; None unless asked for by ``by_prompt=True``.
        name, unit: the name and the unit of the scores.
        provenance: what is needed to repeat them.
    """

    KIND = "edge_scores"

    senders: tuple[str, ...]
    receivers: tuple[str, ...]
    score: Float[np.ndarray, "sender receiver"]
    ci_low: Float[np.ndarray, "sender receiver"]
    ci_high: Float[np.ndarray, "sender receiver"]
    values: Float[np.ndarray, "sender receiver prompt"] | None
    name: str
    unit: str
    provenance: dict[str, Any]

    @property
    def n_edges(self) -> int:
        """How many edges have a score."""
        return int(np.isfinite(self.score).sum())

    @property
    def table(self) -> pd.DataFrame:
        """A row for each edge: sender, receiver, its ``input`` (q, k or v), score, ci_low, ci_high; largest first.

        The receiver is named without its input. Rows are sorted by absolute score.
        """
        return self._rows(self._order("absolute"))

    def top(self, k: int = 10, by: RankBy = "absolute") -> Rows:
        """The ``k`` rows of ``table`` with the largest absolute score, or the largest score.

        Raises:
            ValueError: if ``k`` is below 1 or ``by`` is neither "score" nor "absolute".
        """
        check_at_least(1, k=k)
        return Rows(self._rows(self._order(by)[:k]))

    def nodes(self) -> HeadScores:
        """The sum of the absolute scores of each head's outgoing edges, and of each MLP's in ``.mlps``.

        It says which heads have large edges. Edges with opposite signs do not cancel, as they do in an estimate of what
        patching the head does.
        """
        sizes = dict(zip(self.senders, np.nansum(np.abs(self.score), axis=1), strict=True))
        heads = [HeadId.parse(name) for name in self.senders if "H" in name]
        grid = np.full((heads[-1].layer + 1, max(head.head for head in heads) + 1), np.nan)
        for head in heads:
            grid[head.layer, head.head] = sizes[str(head)]
        about = make_provenance(self.provenance, summary="sum of the absolute scores of outgoing edges")
        scores = HeadScores.from_scores(
            grid, name=f"size of outgoing edges, {self.name}", unit=self.unit, kind="edge_nodes", provenance=about
        )
        mlps = np.array([sizes[name] for name in self.senders if name.endswith(".mlp")])
        return HeadScores(with_mlp_scores(scores.dataset, mlps)) if len(mlps) else scores

    def _order(self, by: str) -> np.ndarray:
        """The flat indices of the edges, the largest first; equal ones stay in the order of computation."""
        check_known("by", by, RankBy)
        flat = self.score.ravel()
        edges = np.flatnonzero(np.isfinite(flat))
        keys = np.abs(flat[edges]) if by == "absolute" else flat[edges]
        return edges[np.argsort(-keys, kind="stable")]

    def _rows(self, edges: np.ndarray) -> pd.DataFrame:
        sender, receiver = np.unravel_index(edges, self.score.shape)
        parts = [_receiver_and_input(name) for name in self.receivers]
        return pd.DataFrame(
            {
                "sender": np.array(self.senders, dtype=object)[sender],
                "receiver": np.array([node for node, _ in parts], dtype=object)[receiver],
                "input": np.array([read for _, read in parts], dtype=object)[receiver],
                "score": self.score.ravel()[edges],
                "ci_low": self.ci_low.ravel()[edges],
                "ci_high": self.ci_high.ravel()[edges],
            }
        )

    def __repr__(self) -> str:
        ends = zip(*np.unravel_index(self._order("absolute")[:3], self.score.shape), strict=True)
        first = " ".join(f"{self.senders[sender]}->{self.receivers[receiver]}" for sender, receiver in ends)
        return f"<EdgeScores {self.name!r} in {self.unit}: {self.n_edges} edges, the largest are {first}>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        return self.top(_SHOWN), (f"the {min(_SHOWN, self.n_edges)} largest edges by absolute score",)


def _receiver_and_input(name: str) -> tuple[str, str]:
    """``"L5H1.q"`` -> L5H1 and q; other receivers have one input without a name."""
    node, _, read = name.partition(".")
    return (node, read) if read in ("q", "k", "v") else (name, "")
