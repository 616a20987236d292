"""Sets of heads that are patched together, and how well a set, a circuit, does what the whole model does.

A circuit C is tested by ablating all heads that are not in it. M is the set of all heads. F(C) is the mean of the
metric over prompts when all heads outside C are ablated. MLPs run on the rest.

Wang et al. 2022 (arXiv 2211.00593), section 4. The numbers depend on the kind of ablation and can differ much between
kinds (Miller et al. 2024, arXiv 2407.08734), so every result records which one was used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.cached_runs import AnyPrompts, CachedRuns, Given, ablated_heads
from mechheads.engine.head_sets import SetRuns, head_set, set_bar
from mechheads.engine.job import Job, Spec, resolve
from mechheads.engine.report import describe_given, describe_intervention
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import InterventionLike, Patch, as_intervention
from mechheads.limits import DEFAULT_LIMITS, current
from mechheads.messages.notices import until_interrupted, warn
from mechheads.metrics import Metric, MetricInfo, as_metric, logit_diff, name_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.activation import Direction, base_of
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.shown import titled
from mechheads.results.stats import (
    LEAST_CLUSTERS,
    bounded_interval,
    clustered_interval,
    family_p,
    mean_over_prompts,
    q_values,
    rounding_of,
    sign_flip_p,
)
from mechheads.results.tables import Curves, TableResult


@dataclass(frozen=True, eq=False)
class SetScores(TableResult):
    """The effect of each of several sets of heads, with intervals, per-prompt values and provenance.

    Attributes:
        sets: the heads of each set, sorted by layer and head.
        values: the effect of each set on each prompt; NaN if the metric was not finite.
        table: one row per set: heads, n_heads, score, ci_low, ci_high, p_value, q_value, p_family.
        name, unit: the name and the unit of the scores.
        provenance: what is needed to repeat them.
    """

    KIND = "set_scores"

    sets: tuple[tuple[HeadId, ...], ...]
    values: Float[np.ndarray, "set prompt"]
    table: pd.DataFrame
    name: str
    unit: str
    provenance: dict[str, Any]

    def __repr__(self) -> str:
        n = len(self.sets)
        return f"<SetScores {self.name!r} in {self.unit}: {n} set{'s' * (n != 1)}, {self.values.shape[1]} prompts>"


@analysis
def patch_sets(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    sets: Iterable[Iterable[HeadLike]] = (),
    *,
    intervention: InterventionLike = "patch",
    metric: Metric | str = logit_diff,
    direction: Direction = "denoising",
    normalize: bool = False,
    given: Given | None = None,
) -> SetScores:
    """Patch or ablate all heads of a set together, set by set.

    Every head's new z is computed from the cached runs, and all heads of a set are replaced together. So
    ``mh.patching.Scale`` scales a head's z in the base run, although the set may change heads before it. A patch, zero
    and a mean do not depend on earlier heads.

    Args:
        prompts: pairs; or plain prompts, if the intervention is not a patch.
        sets: the sets, each a list of heads.
        intervention: computes each head's new activation, as in ``mh.sweep``; by default, it is z of the source run.
        metric: as in ``mh.sweep``.
        direction: for pairs, ``"denoising"`` changes the corrupted run, ``"noising"`` the clean run.
        normalize, given: as in ``mh.sweep``; no set may contain a head that ``given`` ablates.

    Returns:
        metric(changed) - metric(base) of each set, in the metric's unit; with ``normalize``, as a share of the
        difference between the runs. After Ctrl-C, the sets that were finished; the others are NaN.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.patching.patch_sets(model, pairs, [["L23H4"], ["L23H4", "L20H1"]])
    >>> effect.table[["heads", "n_heads"]].values.tolist()
    [['L23H4', 1], ['L20H1 L23H4', 2]]
    """
    seed = current().seed
    inputs = resolve(model, prompts)
    model, rule = inputs.model, as_intervention(intervention)
    on_pairs, patched = isinstance(inputs.prompts, PromptPairs), base_of(direction)
    if isinstance(sets, (str, HeadId)) or not isinstance(sets, Iterable):
        raise ValueError(f'sets is {sets!r}; give a list of sets, each a list of heads: [["L9H6", "L10H0"], ["L9H9"]]')
    parsed = tuple(head_set(heads, model, f"sets[{i}]") for i, heads in enumerate(sets))
    if not parsed or not all(parsed):
        raise ValueError(
            "sets is empty; give at least one set" if not parsed else f"sets[{parsed.index(())}] is empty; name a head"
        )
    heads, ablated = sorted(set().union(*parsed)), ablated_heads(given, model)
    if both := {head for head, _ in ablated} & set(heads):
        raise ValueError(f"sets has {min(both)} in it, which given ablates already; leave it out of one of them")
    base = patched if on_pairs else "clean"
    limits = current().limits
    spec = Spec(inputs.prompts, rule, as_metric(metric), heads, "all", base, normalize, seed, limits, ablated=ablated)
    runs, info = SetRuns(inputs, spec), MetricInfo.of(spec.metric)
    scale = runs.job.evaluator.distance() if normalize else 1.0
    values = np.full((len(parsed), len(runs.base_value)), np.nan)
    with until_interrupted() as interrupts, set_bar(len(parsed), "sets of heads") as bar:
        runs.values([frozenset(heads) for heads in parsed], bar.update, into=values)
    changes, reached = (values - runs.base_value) / scale, ~np.isnan(values).all(1)
    interrupts.stop_unless(reached.any())
    interrupts.warn(f"{reached.sum()} of {len(parsed)} sets")
    if undefined := [i for i, change in enumerate(changes) if np.isnan(change).any() and not interrupts.interrupted]:
        warn(f"metric {info.name} gave values that are not finite for sets {undefined[:5]}; their scores are NaN")
    cluster = runs.job.tokens.cluster
    low, high = bounded_interval(changes, cluster, bounds=info.bounds_of_changes(scale))
    untested = np.full(len(parsed), np.nan)
    p, family = untested, untested
    if info.null is not None:
        exact = rounding_of(changes) if normalize else rounding_of(changes, runs.base_value)
        p, family = (of(changes, cluster, null=info.null, seed=seed, rounding=exact) for of in (sign_flip_p, family_p))
    columns = {
        "heads": [" ".join(map(str, heads)) for heads in parsed],
        "n_heads": [len(heads) for heads in parsed],
        "score": mean_over_prompts(changes),
        "ci_low": low,
        "ci_high": high,
        "p_value": p,
        "q_value": q_values(p),
        "p_family": family,
    }
    metadata = describe_given(ablated)
    return SetScores(
        parsed,
        changes,
        pd.DataFrame(columns),
        name=titled(
            f"{describe_intervention(rule)} of sets of heads" + (f", {direction}" if on_pairs else ""), metadata
        ),
        unit="share restored" if normalize else info.unit,
        provenance=make_provenance(
            runs,
            metadata,
            direction=direction if on_pairs else None,
            interrupted=interrupts.interrupted,
        ),
    )


_COUNTS = (1, 2, 4, 8, 16, 32, 64)
"""How many heads the circuit has at each point of ``faithfulness_curve``."""


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
        ends = "too few" if few else f"{self.ci_low:.3g} to {self.ci_high:.3g}"
        return (
            f"<Faithfulness {self.score:.3g} ({ends}), {len(self.heads)} heads, ablation {self.ablation}, "
            f"{self.metric}: circuit {mean['circuit']:.3g}, full {mean['full']:.3g}, no heads {mean['no heads']:.3g}>"
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
        metric: as in ``mh.sweep``.
        intervention: how every other head is ablated, as in ``mh.sweep``. By default they get their z of the corrupted
            run; any other intervention, such as ``"mean"``, is computed from the base run.

    Wang et al. 2022 (arXiv 2211.00593), section 4; Miller et al. 2024 (arXiv 2407.08734).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> late = [(layer, head) for layer in range(8, 30) for head in range(9)]
    >>> 0.5 < mh.patching.faithfulness(model, pairs, late).score < 1.2
    True
    """
    inputs = resolve(model, prompts)
    if heads is None:
        raise ValueError('heads is missing; give the heads of the circuit, such as heads=["L9H6", "L10H0"]')
    circuit = head_set(heads, inputs.model, "heads")
    spec = Spec(inputs.prompts, as_intervention(intervention), as_metric(metric))
    runs = CircuitRuns(inputs, spec)
    return runs.faithfulness(circuit, runs.values([frozenset(circuit)])[0])


@analysis
def faithfulness_curve(
    model: Model, pairs: PromptPairs | Job, patching: HeadScores, metric: Metric = logit_diff
) -> Curves:
    """How much of the metric the first 1, 2, 4, ... heads keep, those with the largest effect of either sign first."""
    order = patching.heads(min(_COUNTS[-1], model.n_layers * model.n_heads), by="absolute")
    counts = [k for k in _COUNTS if k <= len(order)]
    inputs = resolve(model, pairs, "pairs")
    runs = CircuitRuns(inputs, Spec(inputs.prompts, Patch(), metric, limits=DEFAULT_LIMITS))
    values = runs.values([frozenset(order[:k]) for k in counts])
    points = [runs.faithfulness(order[:k], of) for k, of in zip(counts, values, strict=True)]
    table = pd.DataFrame(
        [
            {"which": "heads", "k": k, "score": each.score, "ci_low": each.ci_low, "ci_high": each.ci_high}
            for k, each in zip(counts, points, strict=True)
        ]
    )
    metadata = make_provenance(runs.runs, sizes=counts)
    return Curves("faithfulness_curve", points[0].metric, table, {"heads": order[: counts[-1]]}, values, {}, metadata)


class CircuitRuns:
    """Computes the metric of circuits, with all others ablated; ``full``: of all heads, ``empty``: of none."""

    def __init__(self, runs: CachedRuns, spec: Spec) -> None:
        self.runs = SetRuns(runs, spec)
        self.metric, self.ablation, self.cluster = spec.metric, spec.intervention, self.runs.job.tokens.cluster
        self._all = frozenset(check_heads(None, runs.model.n_layers, runs.model.n_heads))
        self.full, self.empty = self.values([self._all, frozenset()])

    def values(self, circuits: Sequence[Set[HeadId]]) -> Float[np.ndarray, "circuit prompt"]:
        """The metric of each circuit."""
        values = self.runs.values([self._all - circuit for circuit in circuits])
        if np.isnan(values).any():
            warn(f"metric {name_of(self.metric)} gave values that are not finite; their scores are NaN")
        return values

    def faithfulness(self, heads: tuple[HeadId, ...], values: Float[np.ndarray, " prompt"]) -> Faithfulness:
        """The result for a circuit whose metric is known."""
        most, least = self.full.mean(), self.empty.mean()
        if not abs(most - least) > 1e-6:
            raise ValueError(
                f"metric {name_of(self.metric)} is {most:.3g} with all heads and {least:.3g} with none, so the share "
                "that a circuit keeps is not defined; choose another metric or ablation"
            )
        score = float((values - self.empty).mean(-1) / float(most - least))
        low, high = _ratio_interval(values - self.empty, self.full - self.empty, self.cluster)
        table = pd.DataFrame({"cluster": self.cluster, "full": self.full, "circuit": values, "no heads": self.empty})
        metadata = make_provenance(self.runs, heads=heads)
        return Faithfulness(
            score, low, high, heads, table, name_of(self.metric), describe_intervention(self.ablation), metadata
        )


def _ratio_interval(
    part: Float[np.ndarray, " prompt"], whole: Float[np.ndarray, " prompt"], cluster: Sequence[str]
) -> tuple[float, float]:
    """The interval of mean(part) / mean(whole), from each prompt's first-order contribution to its error."""
    share = part.mean() / whole.mean()
    low, high = share + np.stack(clustered_interval((part - share * whole) / whole.mean(), cluster))
    return float(low), float(high)
