"""How well a set of heads, a circuit, does what the whole model does.

A circuit C is tested by ablating all heads that are not in it. M is the set of all heads. F(C) is the mean of the
metric over prompts when all heads outside C are ablated. MLPs run on what is left.

| paper | here |
|---|---|
| faithfulness, F(C) against F(M) | ``faithfulness``, on a scale from F(no heads) = 0 to F(M) = 1 |
| incompleteness for a part K of C, F(C without K) against F(M without K) | ``completeness`` |

Wang et al. 2022 (arXiv 2211.00593), section 4. The numbers depend on the kind of ablation and can differ much between
kinds (Miller et al. 2024, arXiv 2407.08734), so every result records which one was used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.cached_runs import AnyPrompts, CachedRuns
from mechheads.engine.head_sets import SetRuns, head_set, set_bar
from mechheads.engine.job import Job, Spec, given
from mechheads.engine.report import describe_intervention
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.limits import DEFAULT_LIMITS, Limits, current
from mechheads.messages.arguments import NotNegative
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric, MetricInfo, name_of
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.curves import Curves
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import LEAST_CLUSTERS, clustered_interval
from mechheads.results.tables import TableResult

_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""How many heads are kept at each point of ``faithfulness_curve``."""


@dataclass(frozen=True, eq=False)
class Faithfulness(TableResult):
    """The share of the model's metric that a set of heads keeps without the other heads.

    Attributes:
        score: (F(C) - F(no heads)) / (F(M) - F(no heads)): 1 is all of it, 0 is nothing; it can exceed both.
        ci_low, ci_high: its 95% interval over clusters of prompts; NaN with fewer than three clusters.
        heads: the circuit C.
        table: one row per prompt: its cluster, and the metric of the ``full`` model, of the ``circuit`` and with
            ``no heads``.
        metric, ablation: what was measured, and how the other heads were ablated.
        provenance: what is needed to repeat it.
    """

    KIND = "faithfulness"
    name, unit = "faithfulness", KINDS[KIND].unit

    score: float
    ci_low: float
    ci_high: float
    heads: tuple[HeadId, ...]
    table: pd.DataFrame
    metric: str
    ablation: str
    provenance: dict[str, Any]

    def __repr__(self) -> str:
        mean = self.table[["full", "circuit", "no heads"]].mean()
        few = len(set(self.table["cluster"])) < LEAST_CLUSTERS
        ends = "too few clusters for an interval" if few else f"{self.ci_low:.3g} to {self.ci_high:.3g}"
        return (
            f"<Faithfulness {self.score:.3g} ({ends}) of {len(self.heads)} heads, the "
            f"others ablated by {self.ablation}: {self.metric} {mean['circuit']:.3g}, full model {mean['full']:.3g}, "
            f"no heads {mean['no heads']:.3g}>"
        )


@dataclass(frozen=True, eq=False)
class Completeness(TableResult):
    """How much a circuit and the whole model differ after the same heads are removed from both.

    Attributes:
        table: one row per subset K of the circuit: its heads, ``kind`` (none, head, random or given), n_heads,
            ``circuit`` F(C without K), ``model`` F(M without K), difference, ci_low, ci_high, and incompleteness, the
            absolute difference; in the metric's unit.
        heads: the circuit C.
        metric, ablation: what was measured, and how heads were ablated.
        unit: the metric's unit.
        provenance: what is needed to repeat it.
    """

    KIND = "completeness"
    name = "completeness"

    table: pd.DataFrame
    heads: tuple[HeadId, ...]
    metric: str
    ablation: str
    unit: str
    provenance: dict[str, Any]

    @property
    def worst(self) -> dict[str, Any]:
        """The row of the subset for which circuit and model differ most."""
        return self.table.loc[self.table["incompleteness"].idxmax()].to_dict()

    def __repr__(self) -> str:
        worst = self.worst
        return (
            f"<Completeness of {len(self.heads)} heads, ablated by {self.ablation}: the worst of {len(self.table)} "
            f"subsets K is {worst['heads'] or 'none'}; without it {self.metric} is {worst['circuit']:.3g} for the "
            f"circuit and {worst['model']:.3g} for the model>"
        )


@analysis
def faithfulness(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    heads: Iterable[HeadLike] | None = None,
    *,
    metric: Metric | str = logit_diff,
    intervention: InterventionLike = "patch",
) -> Faithfulness:
    """The share of the metric that a circuit keeps when all other heads are ablated.

    Args:
        prompts: pairs, whose clean side is run; or plain prompts, if the intervention is not a patch.
        heads: the circuit; it may be empty.
        metric: what is measured, as in ``mh.sweep``.
        intervention: how every other head is ablated, as in ``mh.sweep``. By default they get their z of the corrupted
            run; any other intervention, such as ``"mean"``, is computed from the base run.

    Raises:
        ValueError: if an argument is not valid, or the metric is the same with all heads and with none.

    Wang et al. 2022 (arXiv 2211.00593), section 4; Miller et al. 2024 (arXiv 2407.08734).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> late = [(layer, head) for layer in range(8, 30) for head in range(9)]
    >>> 0.5 < mh.patching.faithfulness(model, pairs, late).score < 1.2
    True
    """
    model, asked, cached = given(model, prompts)
    circuit = head_set(_given(heads), model, "heads")
    spec = circuit_spec(asked, metric, intervention, current().limits)
    runs = CircuitRuns(model, spec, cached)
    return runs.faithfulness(circuit, runs.values([frozenset(circuit)])[0])


@analysis
def completeness(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    heads: Iterable[HeadLike] | None = None,
    *,
    subsets: NotNegative | Sequence[Iterable[HeadLike]] = 10,
    metric: Metric | str = logit_diff,
    intervention: InterventionLike = "patch",
) -> Completeness:
    """Compare a circuit with the whole model after removing the same heads from both.

    If a circuit misses a backup of one of its heads, its metric drops further without that head than the model's.
    The removed set K is empty, each single head, and each of ``subsets``.

    Args:
        heads: the circuit.
        subsets: the number of random subsets, which contain each head with probability 1/2; or the subsets themselves.
        prompts, metric, intervention: as in ``mh.patching.faithfulness``.

    Raises:
        ValueError: if an argument is not valid, for example a subset that is not part of the circuit.

    Wang et al. 2022 (arXiv 2211.00593), section 4.1.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.completeness(model, pairs, ["L23H4", "L20H1"], subsets=1)
    >>> found.table[["heads", "kind"]].values.tolist()
    [['', 'none'], ['L20H1', 'head'], ['L23H4', 'head'], ['L20H1 L23H4', 'random']]
    """
    model, asked, cached = given(model, prompts)
    circuit = head_set(_given(heads), model, "heads")
    if not circuit:
        raise ValueError("heads is empty; give at least one head, because an empty circuit has no subsets")
    chosen = _subsets(circuit, subsets, model)
    runs = CircuitRuns(model, circuit_spec(asked, metric, intervention, current().limits), cached)
    without = [frozenset(heads) for _, heads in chosen]
    with set_bar(2 * len(chosen), f"{len(chosen)} subsets") as bar:
        of_model = runs.values([runs.all - k for k in without], bar.update)
        of_circuit = runs.values([frozenset(circuit) - k for k in without], bar.update)
    difference = of_circuit - of_model
    low, high = clustered_interval(difference, runs.cluster)
    mean = difference.mean(1)
    columns = {
        "heads": [" ".join(map(str, heads)) for _, heads in chosen],
        "kind": [kind for kind, _ in chosen],
        "n_heads": [len(heads) for _, heads in chosen],
        "circuit": of_circuit.mean(1),
        "model": of_model.mean(1),
        "difference": mean,
        "ci_low": low,
        "ci_high": high,
        "incompleteness": np.abs(mean),
    }
    table = pd.DataFrame(columns)
    about = make_provenance(runs, heads=circuit, subsets=len(chosen))
    said, info = describe_intervention(runs.ablation), MetricInfo.of(runs.metric)
    return Completeness(table, circuit, info.name, said, info.unit, about)


@analysis
def faithfulness_curve(
    model: Model, pairs: PromptPairs | Job, patching: HeadScores, metric: Metric = logit_diff
) -> Curves:
    """How much of the metric the first 1, 2, 4, ... heads keep, those with the largest effect first.

    Raises:
        ValueError: if the metric is the same with all heads and with none.
    """
    order = patching.heads(min(_COUNTS[-1], model.n_layers * model.n_heads))
    counts = [k for k in _COUNTS if k <= len(order)]
    _, asked, cached = given(model, pairs, "pairs")
    runs = CircuitRuns(model, circuit_spec(asked, metric, "patch", DEFAULT_LIMITS), cached)
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


def _given(heads: Iterable[HeadLike] | None) -> Iterable[HeadLike]:
    if heads is None:
        raise ValueError('heads is missing; give the heads of the circuit, such as heads=["L9H6", "L10H0"]')
    return heads


def circuit_spec(prompts: AnyPrompts, metric: Metric | str, intervention: InterventionLike, limits: Limits) -> Spec:
    """The request for runs of circuits.

    Raises:
        ValueError: if the intervention or the metric is not valid.
    """
    return Spec(prompts, as_intervention(intervention), as_metric(metric), limits=limits)


class CircuitRuns:
    """Computes the metric of circuits, with all heads outside each circuit ablated.

    Attributes:
        runs: what computes sets of heads.
        all: every head; ``full`` and ``empty``: the metric with all of them and with none [prompt].
        cluster: the cluster of each prompt.
    """

    def __init__(self, model: Model, spec: Spec, cached: CachedRuns | None) -> None:
        self.runs = SetRuns(model, spec, runs=cached)
        self.metric, self.ablation, self.at_once = spec.metric, spec.intervention, self.runs.at_once
        self.cluster = self.runs.job.tokens.cluster
        self.all = frozenset(check_heads(None, model.n_layers, model.n_heads))
        self.full, self.empty = self.values([self.all, frozenset()])

    def values(
        self, circuits: Sequence[Set[HeadId]], done: Callable[[int], object] = lambda n: None
    ) -> Float[np.ndarray, "circuit prompt"]:
        """The metric of each circuit."""
        values = self.runs.values([self.all - circuit for circuit in circuits], done)
        if np.isnan(values).any():
            warn(f"metric {name_of(self.metric)} gave values that are not finite; their scores are NaN")
        return values

    def share(self, values: Float[np.ndarray, "*circuit prompt"]) -> Float[np.ndarray, "*circuit"]:
        """The faithfulness of circuits with these values of the metric.

        Raises:
            ValueError: if it is not defined, because the metric is the same with all heads and with none.
        """
        most, least = self.full.mean(), self.empty.mean()
        if not abs(most - least) > 1e-6:
            raise ValueError(
                f"metric {name_of(self.metric)} is {most:.3g} with all heads and {least:.3g} with none, so the share "
                "that a circuit keeps is not defined; choose another metric or ablation"
            )
        return np.asarray((values - self.empty).mean(-1) / float(most - least))

    def faithfulness(self, heads: tuple[HeadId, ...], values: Float[np.ndarray, " prompt"]) -> Faithfulness:
        """The result for a circuit whose metric is known."""
        score = float(self.share(values))
        low, high = _ratio_interval(values - self.empty, self.full - self.empty, self.cluster)
        table = pd.DataFrame({"cluster": self.cluster, "full": self.full, "circuit": values, "no heads": self.empty})
        about = make_provenance(self, heads=heads)
        return Faithfulness(
            score, low, high, heads, table, name_of(self.metric), describe_intervention(self.ablation), about
        )

    def provenance(self) -> dict[str, Any]:
        """The provenance that all results of these runs share."""
        return self.runs.provenance()


def _subsets(
    circuit: tuple[HeadId, ...], subsets: int | Sequence[Iterable[HeadLike]], model: Model
) -> list[tuple[str, tuple[HeadId, ...]]]:
    """Each subset K with its kind; random subsets differ and have at least two heads."""
    always: list[tuple[str, tuple[HeadId, ...]]] = [("none", ()), *(("head", (head,)) for head in circuit)]
    if not isinstance(subsets, int):
        given = [head_set(heads, model, f"subsets[{i}]") for i, heads in enumerate(subsets)]
        for i, heads in enumerate(given):
            if outside := sorted(set(heads) - set(circuit)):
                raise ValueError(
                    f"subsets[{i}] contains {outside[0]}, which is not in the circuit; give subsets of heads="
                )
        return always + [("given", heads) for heads in given]
    rng = np.random.default_rng(current().seed)
    drawn: dict[tuple[HeadId, ...], None] = {}
    wanted = min(subsets, 2 ** len(circuit) - 1 - len(circuit))
    while len(drawn) < wanted:
        inside = rng.random(len(circuit)) < 0.5
        if inside.sum() > 1:
            drawn[tuple(head for head, is_in in zip(circuit, inside, strict=True) if is_in)] = None
    return always + [("random", heads) for heads in drawn]


def _ratio_interval(
    part: Float[np.ndarray, " prompt"], whole: Float[np.ndarray, " prompt"], cluster: Sequence[str]
) -> tuple[float, float]:
    """The interval of mean(part) / mean(whole), from each prompt's first-order contribution to its error."""
    share = part.mean() / whole.mean()
    low, high = share + np.stack(clustered_interval((part - share * whole) / whole.mean(), cluster))
    return float(low), float(high)
