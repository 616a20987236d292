"""Circuits by size: how faithful the first heads of a ranking are at every size, and the field's two areas.

C_k are the first k heads of a ranking. f(C_k) is their faithfulness: what they keep of the metric when all other heads
are ablated, on a scale from 0 (no heads) to 1 (all heads).

| MIB | here |
|---|---|
| f at 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50 and 100% of the components | ``table``, for shares of all heads |
| CPR, the area under f (more is better) | ``areas``, ``cpr`` |
| CMD, the area between f and 1 (0 is best) | ``areas``, ``cmd`` |

The areas are sums of trapezoids over the shares, as in MIB's evaluation (Mueller et al. 2025, "MIB: A Mechanistic
Interpretability Benchmark", arXiv 2504.13151, section 3). By default the components are heads alone, and MLPs run on
what is left; with ``nodes="all"`` they are heads and MLPs, as in MIB's circuits of nodes. Numbers of the two kinds
cannot be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.head_sets import node_set, set_bar
from mechheads.engine.job import Job, given
from mechheads.engine.report import describe_intervention
from mechheads.heads import HeadId, Mlp, Node, NodeLike, Nodes, check_node, every_node, in_order
from mechheads.interventions.base import Intervention
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.interrupted import until_interrupted
from mechheads.metrics.base import Metric, name_of
from mechheads.metrics.basic import logit_diff
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.patching.circuits import CircuitRuns, circuit_spec
from mechheads.patching.head_sets import PATCH
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores, RankBy
from mechheads.results.stats import LEAST_CLUSTERS, cluster_draws
from mechheads.results.tables import TableResult

if TYPE_CHECKING:
    import plotly.graph_objects as go

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's sizes, as shares of all components."""
_RESAMPLES = 1000
_ENDS = 0.025, 0.975

Ranking = HeadScores | Sequence[NodeLike]
_R = TypeVar("_R")


@dataclass(frozen=True, eq=False)
class CircuitCurve(TableResult):
    """The faithfulness of the first heads, nodes or edges of one or several rankings, at every size.

    Attributes:
        sizes: the shares of all components.
        order: for each ranking, and for each random one, all components in order; an edge is a text such as
            ``"L3H2->L5H1.q"``.
        values: the metric of each circuit, with all other components ablated.
        full, empty: the metric with all components and with none.
        cluster: the cluster of each prompt.
        metric, ablation: what was measured, and how the other components were ablated.
        seed: for random orders and resampling.
        provenance: what is needed to repeat it.
    """

    KIND = "circuit_curve"
    name, unit = "faithfulness by size", KINDS[KIND].unit

    sizes: tuple[float, ...]
    order: dict[str, tuple[Node, ...]] | dict[str, tuple[str, ...]]
    values: Float[np.ndarray, "ranking size prompt"]
    full: Float[np.ndarray, " prompt"]
    empty: Float[np.ndarray, " prompt"]
    cluster: list[str]
    metric: str
    ablation: str
    seed: int
    provenance: dict[str, Any]

    @property
    def table(self) -> pd.DataFrame:
        """A row for each ranking and size: ``k`` components, the ``score`` f(C_k) and its 95% interval over prompts."""
        score, (low, high) = self._shares(None), self._interval(self._shares(self._draws))
        n = len(next(iter(self.order.values())))
        return pd.DataFrame(
            {
                "ranking": np.repeat(list(self.order), len(self.sizes)),
                "share": np.tile(self.sizes, len(self.order)),
                "k": np.tile([heads_at(size, n) for size in self.sizes], len(self.order)),
                "score": score.ravel(),
                "ci_low": low.ravel(),
                "ci_high": high.ravel(),
            }
        )

    @property
    def components(self) -> str:
        """What the circuits consist of: heads, heads and MLPs, or edges."""
        nodes = self.provenance.get("nodes", "heads")
        return "heads and MLPs" if nodes == "all" else nodes

    @property
    def areas(self) -> pd.DataFrame:
        """A row for each ranking: ``cpr`` and ``cmd`` with their 95% intervals over prompts."""
        found, drawn = areas(self.sizes, self._shares(None)), areas(self.sizes, self._shares(self._draws))
        columns: dict[str, Any] = {"ranking": list(self.order)}
        for name, one, some in zip(("cpr", "cmd"), found, drawn, strict=True):
            low, high = self._interval(some)
            columns |= {name: one, f"{name}_low": low, f"{name}_high": high}
        return pd.DataFrame(columns)

    def compare(self, ranking: str, other: str) -> pd.DataFrame:
        """How much larger the areas of one ranking are than those of another, on the same prompts.

        Args:
            ranking, other: names of rankings; ``"random"`` is the mean over all random orders.

        Returns:
            One row for ``cpr`` and one for ``cmd``: ``difference``, ``ci_low`` and ``ci_high``.

        Raises:
            ValueError: if there is no such ranking.
        """
        rows = [self._rows(name) for name in (ranking, other)]
        found, drawn = (areas(self.sizes, self._shares(draws)) for draws in (None, self._draws))
        table = {}
        for name, one, some in zip(("cpr", "cmd"), found, drawn, strict=True):
            difference, each = (x[..., rows[0]].mean(-1) - x[..., rows[1]].mean(-1) for x in (one, some))
            low, high = self._interval(each)
            table[name] = {"difference": float(difference), "ci_low": float(low), "ci_high": float(high)}
        return pd.DataFrame.from_dict(table, orient="index")

    def plot(self, **options: Any) -> go.Figure:
        """Faithfulness over the size, a line for each ranking; see ``mechheads.plots.circuit_curve``."""
        from mechheads.plots.circuit_curve import circuit_curve as draw

        title = f"Faithfulness of circuits by size, {self.metric}"
        return draw(self.table, self.areas, **{"title": title, "of": self.components, **options})

    def _rows(self, name: str) -> list[int]:
        names = list(self.order)
        if name == "random":
            if rows := [i for i, each in enumerate(names) if _is_random(each)]:
                return rows
            raise ValueError("there are no random orders; give draws=5, or another number of them")
        check_known("ranking", name, names)
        return [names.index(name)]

    @property
    def _draws(self) -> Float[np.ndarray, "draw prompt"]:
        return cluster_draws(self.cluster, _RESAMPLES, self.seed)

    def _shares(self, draws: Float[np.ndarray, "draw prompt"] | None) -> Float[np.ndarray, "*draw ranking size"]:
        """The faithfulness of every circuit, on all prompts or on each draw of them."""
        if draws is None:
            empty = self.empty.mean()
            return (self.values.mean(-1) - empty) / (self.full.mean() - empty)
        weights = draws / draws.sum(1, keepdims=True)
        values = np.einsum("rsp,dp->drs", self.values, weights)
        full, empty = ((weights @ side)[:, None, None] for side in (self.full, self.empty))
        return (values - empty) / (full - empty)

    def _interval(self, drawn: Float[np.ndarray, "draw *rest"]) -> tuple[np.ndarray, np.ndarray]:
        if len(set(self.cluster)) < LEAST_CLUSTERS:
            nothing = np.full(drawn.shape[1:], np.nan)
            return nothing, nothing
        low, high = np.quantile(drawn, _ENDS, axis=0)
        return low, high

    def __repr__(self) -> str:
        said = ", ".join(
            f"{row['ranking']}: CPR {row['cpr']:.3g}, CMD {row['cmd']:.3g}"
            for row in self.areas.to_dict("records")
            if not _is_random(row["ranking"])
        )
        n_random = sum(map(_is_random, self.order))
        return f"<CircuitCurve of {self.metric}, {n_random} random orders; {said}>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        return self.areas, (f"{self.metric}, other {self.components} ablated by {self.ablation}",)


@alone
def circuit_curve(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    rankings: Ranking | Mapping[str, Ranking] | None = None,
    *,
    sizes: Sequence[float] = SIZES,
    by: RankBy = "score",
    draws: int = 5,
    metric: Metric | str = logit_diff,
    ablation: Intervention = PATCH,
    nodes: Nodes = "heads",
) -> CircuitCurve:
    """How faithful the first heads of a ranking are at every size, with the areas CPR and CMD, beside random orders.

    A circuit has the first ``int(share * n_heads)`` heads; with no heads, its faithfulness is 0.

    Args:
        rankings: scores of heads, heads in order, or several of these by name, which are compared on the same prompts.
            Heads that a ranking leaves out, or that have no score, come last, in random order.
        sizes: shares of all heads, from small to large; by default MIB's.
        by: whether scores rank by ``"score"`` or by their ``"absolute"`` value.
        draws: the number of random orders for comparison.
        nodes: ``"all"`` for circuits of heads and MLPs: scores rank MLPs too if they were measured with
            ``nodes="all"``, and lists may name them, as in ``["L23H4", "L25.mlp"]``. Sizes are then shares of both.
        prompts, metric, ablation: as in ``mh.patching.faithfulness``. In MIB, other
            components take their activations from the corrupted run, as by default here.

    Returns:
        f(C_k) of every ranking and size, with intervals; ``areas`` and ``compare`` give CPR and CMD. After Ctrl-C,
        rankings that were not reached are NaN.

    Raises:
        ValueError: if an argument is not valid, or the metric is the same with all heads and with none.
        KeyboardInterrupt: if Ctrl-C came before the first ranking was done.

    Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark" (arXiv 2504.13151), section 3.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.circuit_curve(model, pairs, ["L23H4", "L20H1"], sizes=(0.01, 1), draws=1)
    >>> found.table[["ranking", "k"]].values.tolist()
    [['ranking', 2], ['ranking', 270], ['random 1', 2], ['random 1', 270]]
    """
    seed = current().seed
    model, asked, cached = given(model, prompts)
    check_known("by", by, RankBy)
    check_at_least(0, draws=draws)
    shares = check_sizes(sizes)
    rng, every = np.random.default_rng(seed), _Every(model, nodes)
    order = {
        name: _full_order(f"rankings[{name!r}]", each, every, by, rng)
        for name, each in named_rankings(rankings).items()
    }
    order |= {f"random {i + 1}": _full_order("", (), every, by, rng) for i in range(draws)}
    spec = circuit_spec(asked, metric, ablation, current().limits, nodes)
    runs = CircuitRuns(model, spec, cached)
    runs.share(runs.full)
    values = np.full((len(order), len(shares), len(runs.full)), np.nan)
    with until_interrupted() as work, set_bar(values[..., 0].size, "circuits") as bar:
        for row, ranked in zip(values, order.values(), strict=True):
            row[:] = runs.values([frozenset(ranked[: heads_at(share, len(ranked))]) for share in shares], bar.update)
    done = int(np.isfinite(values).all((1, 2)).sum())
    work.stop_unless(done > 0)
    work.warn(f"{done} of {len(order)} rankings")
    about = make_provenance(
        runs, by=by, draws=draws, sizes=list(shares), nodes=nodes, seed=seed, interrupted=work.interrupted
    )
    return CircuitCurve(
        shares,
        order,
        values,
        runs.full,
        runs.empty,
        list(runs.cluster),
        name_of(runs.metric),
        describe_intervention(ablation),
        seed,
        about,
    )


def areas(
    sizes: Sequence[float], shares: Float[np.ndarray, "*rest size"]
) -> tuple[Float[np.ndarray, "*rest"], Float[np.ndarray, "*rest"]]:
    """CPR and CMD: the area under f and the area between f and 1, by trapezoids over the sizes.

    >>> import numpy as np
    >>> cpr, cmd = areas((0.0, 0.5, 1.0), np.array([0.0, 1.5, 1.0]))
    >>> float(cpr), float(cmd)
    (1.0, 0.5)
    """
    steps = np.diff(sizes)
    cpr, cmd = ((((f[..., 1:] + f[..., :-1]) / 2) * steps).sum(-1) for f in (shares, np.abs(1 - shares)))
    return cpr, cmd


def heads_at(share: float, n_heads: int) -> int:
    """How many heads a circuit of this share of all heads has.

    >>> heads_at(0.02, 270), heads_at(0.001, 270)
    (5, 0)
    """
    return int(round(share * n_heads, 9))


def _is_random(name: str) -> bool:
    return name.startswith("random ")


def named_rankings(
    rankings: _R | Mapping[str, _R] | None, wanted: str = "scores of heads, heads in order,"
) -> dict[str, _R]:
    """Rankings by name; a single one has the name "ranking", or its own.

    Raises:
        ValueError: if there is none, or a name is taken.
    """
    if rankings is None or (isinstance(rankings, (Mapping, Sequence)) and not len(rankings)):
        raise ValueError(f'rankings is missing; give {wanted} or {{"name": scores, ...}}')
    if not isinstance(rankings, Mapping):
        return {getattr(rankings, "name", "ranking"): rankings}
    if taken := [name for name in rankings if name == "random" or _is_random(str(name))]:
        raise ValueError(f"rankings has the name {taken[0]!r}, which is for random orders; give it another name")
    return {str(name): each for name, each in rankings.items()}


@dataclass(frozen=True)
class _Every:
    """All nodes of a model that circuits may have."""

    model: Model
    nodes: Nodes

    @property
    def all(self) -> tuple[Node, ...]:
        return every_node(self.model.n_layers, self.model.n_heads, self.nodes)


def _full_order(where: str, ranking: Ranking, every: _Every, by: RankBy, rng: np.random.Generator) -> tuple[Node, ...]:
    """All nodes: first those of the ranking, then the others in random order."""
    model = every.model
    if isinstance(ranking, HeadScores):
        if (ranking.n_layers, ranking.n_heads) != (model.n_layers, model.n_heads):
            raise ValueError(
                f"{where} is of a model with {ranking.n_layers} layers of {ranking.n_heads} heads, but {model.name} "
                f"has {model.n_layers} of {model.n_heads}; give scores of the same model"
            )
        first = _ranked(ranking, by, every.nodes)
    else:
        node_set(ranking, model, where, every.nodes)
        first = [check_node(node, model.n_layers, model.n_heads) for node in ranking]
    rest = in_order(set(every.all) - set(first))
    return (*first, *(rest[i] for i in rng.permutation(len(rest))))


def _ranked(scores: HeadScores, by: RankBy, nodes: Nodes) -> list[Node]:
    """The nodes that have a score, the largest first; equal scores stay in order, heads before MLPs."""
    heads = scores.top(scores.n_layers * scores.n_heads * max(1, scores.scores[0, 0].size), by)
    found: dict[Node, float] = {}
    for layer, head, score in heads[["layer", "head", "score"]].itertuples(index=False):
        for i in range(scores.together):
            found.setdefault(HeadId(int(layer), int(head) + i), score)
    if nodes == "all" and (mlps := scores.mlps) is not None:
        for layer, score in mlps[["layer", "score"]].dropna().itertuples(index=False):
            at = Mlp(int(layer))
            found[at] = max(found.get(at, -np.inf), score, key=abs if by == "absolute" else None)
    return sorted(found, key=lambda node: -abs(found[node]) if by == "absolute" else -found[node])


def check_sizes(sizes: Sequence[float], of: str = "heads") -> tuple[float, ...]:
    """The sizes of circuits as numbers.

    Raises:
        ValueError: if there are fewer than two, or they are not shares from small to large.
    """
    shares = tuple(map(float, sizes))
    if len(shares) < 2 or list(shares) != sorted(set(shares)) or not 0 <= shares[0] < shares[-1] <= 1:
        raise ValueError(
            f"sizes is {tuple(sizes)}; give at least two shares of all {of} from 0 to 1, from small to large, such as "
            "(0.01, 0.1, 1)"
        )
    return shares
