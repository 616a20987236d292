"""Circuits by size: how faithful the first heads of a ranking are at every size, and the field's two areas.

C_k are the first k heads of a ranking. f(C_k) is their faithfulness: what they keep of the metric when all other heads
are ablated, on a scale from 0 (no heads) to 1 (all heads).

| MIB | here |
|---|---|
| f at 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50 and 100% of the components | ``table``, for shares of all heads |
| CPR, the area under f (more is better) | ``more["areas"]``, ``cpr`` |
| CMD, the area between f and 1 (0 is best) | ``more["areas"]``, ``cmd`` |

The areas are sums of trapezoids over the shares, as in MIB's evaluation (Mueller et al. 2025, "MIB: A Mechanistic
Interpretability Benchmark", arXiv 2504.13151, section 3). By default the components are heads alone, and MLPs run on
what is left; with ``nodes="all"`` they are heads and MLPs, as in MIB's circuits of nodes. Numbers of the two kinds
cannot be compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.head_sets import node_set, set_bar
from mechheads.engine.job import Job, given
from mechheads.heads import HeadId, Mlp, Node, NodeLike, Nodes, check_node, every_node, in_order
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import DEFAULT_LIMITS, current
from mechheads.messages.arguments import NotNegative, check_known
from mechheads.messages.interrupted import until_interrupted
from mechheads.metrics.base import Metric
from mechheads.metrics.basic import logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.circuits import CircuitRuns, circuit_spec
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.curves import Curves, is_random
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores, RankBy
from mechheads.results.stats import LEAST_CLUSTERS, cluster_draws

SIZES = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""MIB's sizes, as shares of all components."""
_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""How many heads are kept at each point of ``faithfulness_curve``."""
_RESAMPLES = 1000
_ENDS = 0.025, 0.975

Ranking = HeadScores | Sequence[NodeLike]


@analysis
def circuit_curve(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    rankings: Ranking | Mapping[str, Ranking] | None = None,
    *,
    sizes: Sequence[float] = SIZES,
    by: RankBy = "score",
    draws: NotNegative = 5,
    metric: Metric | str = logit_diff,
    intervention: InterventionLike = "patch",
    nodes: Nodes = "heads",
) -> Curves:
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
        prompts, metric, intervention: as in ``mh.patching.faithfulness``. In MIB, other
            components take their activations from the corrupted run, as by default here.

    Returns:
        f(C_k) of every ranking and size, with 95% intervals over prompts. ``values`` are the metric of each circuit.
        ``more`` has the ``areas``, a row for each ranking with ``cpr`` and ``cmd`` and their intervals, which
        ``compare_areas`` compares; the metric with all components (``full``) and none (``empty``), and the ``cluster``
        of each prompt. After Ctrl-C, rankings that were not reached are NaN.

    Raises:
        ValueError: if an argument is not valid, or the metric is the same with all heads and with none.
        KeyboardInterrupt: if Ctrl-C came before the first ranking was done.

    Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark" (arXiv 2504.13151), section 3.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.circuit_curve(model, pairs, ["L23H4", "L20H1"], sizes=(0.01, 1), draws=1)
    >>> found.table[["which", "k"]].values.tolist()
    [['ranking', 2], ['ranking', 270], ['random 1', 2], ['random 1', 270]]
    """
    model, asked, cached = given(model, prompts)
    shares = _check_sizes(sizes)
    rng = np.random.default_rng(current().seed)
    order = {
        name: _full_order(f"rankings[{name!r}]", each, model, nodes, by, rng)
        for name, each in _named_rankings(rankings).items()
    }
    order |= {f"random {i + 1}": _full_order("", (), model, nodes, by, rng) for i in range(draws)}
    spec = circuit_spec(asked, metric, intervention, current().limits, nodes)
    runs = CircuitRuns(model, spec, cached)
    runs.share(runs.full)
    values = np.full((len(order), len(shares), len(runs.full)), np.nan)
    with until_interrupted() as interrupts, set_bar(values[..., 0].size, "circuits") as bar:
        for row, ranked in zip(values, order.values(), strict=True):
            row[:] = runs.values([frozenset(ranked[: heads_at(share, len(ranked))]) for share in shares], bar.update)
    done = int(np.isfinite(values).all((1, 2)).sum())
    interrupts.stop_unless(done > 0)
    interrupts.warn(f"{done} of {len(order)} rankings")
    about = make_provenance(runs, sizes=list(shares), interrupted=interrupts.interrupted)
    return _circuits_by_size(order, values, runs.full, runs.empty, runs.cluster, about)


def compare_areas(curves: Curves, ranking: str, other: str) -> pd.DataFrame:
    """How much larger the areas of one ranking are than those of another, on the same prompts.

    Args:
        curves: from ``circuit_curve``.
        ranking, other: names of rankings; ``"random"`` is the mean over all random orders.

    Returns:
        One row for ``cpr`` and one for ``cmd``: ``difference``, ``ci_low`` and ``ci_high``.

    Raises:
        ValueError: if there is no such ranking.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.circuit_curve(model, pairs, ["L23H4", "L20H1"], sizes=(0.01, 1), draws=1)
    >>> mh.patching.compare_areas(found, "ranking", "random").index.tolist()
    ['cpr', 'cmd']
    """
    rows = [_rows(list(curves.order), name) for name in (ranking, other)]
    measured = _Measured.of(curves)
    table = {}
    for name, (one, drawn) in measured.areas().items():
        difference, each = (x[..., rows[0]].mean(-1) - x[..., rows[1]].mean(-1) for x in (one, drawn))
        low, high = measured.interval(each)
        table[name] = {"difference": float(difference), "ci_low": float(low), "ci_high": float(high)}
    return pd.DataFrame.from_dict(table, orient="index")


@analysis
def faithfulness_curve(model: Model, pairs: PromptPairs, patching: HeadScores, metric: Metric = logit_diff) -> Curves:
    """How much of the metric the first 1, 2, 4, ... heads keep, those with the largest effect first.

    Raises:
        ValueError: if the metric is the same with all heads and with none.
    """
    order = patching.heads(min(_COUNTS[-1], model.n_layers * model.n_heads))
    counts = [k for k in _COUNTS if k <= len(order)]
    runs = CircuitRuns(model, circuit_spec(pairs, metric, "patch", DEFAULT_LIMITS), None)
    values = runs.values([frozenset(order[:k]) for k in counts])
    found = [runs.faithfulness(order[:k], of) for k, of in zip(counts, values, strict=True)]
    table = pd.DataFrame(
        [
            {"which": "heads", "k": k, "score": each.score, "ci_low": each.ci_low, "ci_high": each.ci_high}
            for k, each in zip(counts, found, strict=True)
        ]
    )
    about = make_provenance(runs, sizes=counts)
    return Curves("faithfulness_curve", found[0].metric, table, {"heads": order[: counts[-1]]}, values, {}, about)


def _circuits_by_size(
    order: dict[str, Any],
    values: Float[np.ndarray, "ranking size prompt"],
    full: Float[np.ndarray, " prompt"],
    empty: Float[np.ndarray, " prompt"],
    cluster: Sequence[str],
    about: dict[str, Any],
) -> Curves:
    """The result: f(C_k) and the areas, with intervals over resampled clusters of prompts.

    Args:
        values: the metric of each circuit, with all other components ablated.
        full, empty: the metric with all components and with none.
        about: the provenance, with the sizes, the metric and the seed.
    """
    measured = _Measured(about["sizes"], values, full, empty, list(cluster), about["seed"])
    n = len(next(iter(order.values())))
    low, high = measured.interval(measured.shares(measured.draws))
    table = pd.DataFrame(
        {
            "which": np.repeat(list(order), len(measured.sizes)),
            "k": np.tile([heads_at(size, n) for size in measured.sizes], len(order)),
            "share": np.tile(measured.sizes, len(order)),
            "score": measured.shares().ravel(),
            "ci_low": low.ravel(),
            "ci_high": high.ravel(),
        }
    )
    columns: dict[str, Any] = {"which": list(order)}
    for name, (one, drawn) in measured.areas().items():
        low, high = measured.interval(drawn)
        columns |= {name: one, f"{name}_low": low, f"{name}_high": high}
    more = {"areas": pd.DataFrame(columns), "full": full, "empty": empty, "cluster": measured.cluster}
    return Curves("circuit_curve", about["metric"], table, order, values.reshape(-1, len(full)), more, about)


@dataclass(frozen=True)
class _Measured:
    """The metric of circuits, and what follows from it."""

    sizes: Sequence[float]
    values: Float[np.ndarray, "ranking size prompt"]
    full: Float[np.ndarray, " prompt"]
    empty: Float[np.ndarray, " prompt"]
    cluster: list[str]
    seed: int

    @classmethod
    def of(cls, curves: Curves) -> _Measured:
        about, more = curves.provenance, curves.more
        values = curves.values.reshape(len(curves.order), len(about["sizes"]), -1)
        return cls(about["sizes"], values, more["full"], more["empty"], more["cluster"], about["seed"])

    @cached_property
    def draws(self) -> Float[np.ndarray, "draw prompt"]:
        """How often each prompt is in each resample."""
        return cluster_draws(self.cluster, _RESAMPLES, self.seed)

    def shares(self, draws: Float[np.ndarray, "draw prompt"] | None = None) -> Float[np.ndarray, "*draw ranking size"]:
        """The faithfulness of every circuit, on all prompts or on each draw of them."""
        if draws is None:
            empty = self.empty.mean()
            return (self.values.mean(-1) - empty) / (self.full.mean() - empty)
        weights = draws / draws.sum(1, keepdims=True)
        values = np.einsum("rsp,dp->drs", self.values, weights)
        full, empty = ((weights @ side)[:, None, None] for side in (self.full, self.empty))
        return (values - empty) / (full - empty)

    def areas(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """CPR and CMD of each ranking, on all prompts and on each draw."""
        found, drawn = areas(self.sizes, self.shares()), areas(self.sizes, self.shares(self.draws))
        return dict(zip(("cpr", "cmd"), zip(found, drawn, strict=True), strict=True))

    def interval(self, drawn: Float[np.ndarray, "draw *rest"]) -> tuple[np.ndarray, np.ndarray]:
        """The interval over draws; NaN with too few clusters."""
        if len(set(self.cluster)) < LEAST_CLUSTERS:
            nothing = np.full(drawn.shape[1:], np.nan)
            return nothing, nothing
        low, high = np.quantile(drawn, _ENDS, axis=0)
        return low, high


def _rows(names: list[str], name: str) -> list[int]:
    """The rows of a ranking, or of all random orders."""
    if name == "random":
        if rows := [i for i, each in enumerate(names) if is_random(each)]:
            return rows
        raise ValueError("there are no random orders; give draws=5, or another number of them")
    check_known("ranking", name, names)
    return [names.index(name)]


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


def _named_rankings(rankings: Ranking | Mapping[str, Ranking] | None) -> dict[str, Ranking]:
    """Rankings by name; a single one has the name "ranking", or its own.

    Raises:
        ValueError: if there is none, or a name is taken.
    """
    if rankings is None or (isinstance(rankings, (Mapping, Sequence)) and not len(rankings)):
        raise ValueError('rankings is missing; give scores of heads, heads in order, or {"name": scores, ...}')
    if not isinstance(rankings, Mapping):
        return {getattr(rankings, "name", "ranking"): rankings}
    if taken := [name for name in rankings if name == "random" or is_random(name)]:
        raise ValueError(f"rankings has the name {taken[0]!r}, which is for random orders; give it another name")
    return {str(name): each for name, each in rankings.items()}


def _full_order(
    where: str, ranking: Ranking, model: Model, nodes: Nodes, by: RankBy, rng: np.random.Generator
) -> tuple[Node, ...]:
    """All nodes: first those of the ranking, then the others in random order."""
    if isinstance(ranking, HeadScores):
        if (ranking.n_layers, ranking.n_heads) != (model.n_layers, model.n_heads):
            raise ValueError(
                f"{where} is of a model with {ranking.n_layers} layers of {ranking.n_heads} heads, but {model.name} "
                f"has {model.n_layers} of {model.n_heads}; give scores of the same model"
            )
        first = _ranked(ranking, by, nodes)
    else:
        node_set(ranking, model, where, nodes)
        first = [check_node(node, model.n_layers, model.n_heads) for node in ranking]
    rest = in_order(set(every_node(model.n_layers, model.n_heads, nodes)) - set(first))
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


def _check_sizes(sizes: Sequence[float]) -> tuple[float, ...]:
    """The sizes of circuits as numbers.

    Raises:
        ValueError: if there are fewer than two, or they are not shares from small to large.
    """
    shares = tuple(map(float, sizes))
    if len(shares) < 2 or list(shares) != sorted(set(shares)) or not 0 <= shares[0] < shares[-1] <= 1:
        raise ValueError(
            f"sizes is {tuple(sizes)}; give at least two shares of all heads from 0 to 1, from small to large, such as "
            "(0.01, 0.1, 1)"
        )
    return shares
