"""Patching and ablating sets of heads together, many sets at once.

Each set is one copy of the base run with an edit of z for every head of the set. The copies of many sets go through
the layers as one wave, and each copy joins at the layer of its first head.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.head_sets import SetRuns, head_set, set_bar
from mechheads.engine.held_heads import Given, held_by
from mechheads.engine.job import Job, Spec, given as given_prompts
from mechheads.engine.report import describe_given, describe_intervention
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.limits import current
from mechheads.messages.interrupted import until_interrupted
from mechheads.messages.warn import warn
from mechheads.metrics.base import Metric, MetricInfo
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.pairs import Direction, base_of
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.bounded import bounded_interval
from mechheads.results.naming import titled
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import family_p, mean_over_prompts, q_values, rounding_of, sign_flip_p
from mechheads.results.tables import TableResult


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
    positions: str = "all",
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
        metric: what is measured, as in ``mh.sweep``.
        direction: for pairs, ``"denoising"`` changes the corrupted run, ``"noising"`` the clean run.
        positions: ``"all"`` or the name of one position.
        normalize, given: as in ``mh.sweep``; no set has a head in it that is ablated all the time.

    Returns:
        metric(changed) - metric(base) of each set, in the metric's unit; with ``normalize``, as a share of the
        difference between the runs. After Ctrl-C, the sets that were finished; the others are NaN.

    Raises:
        ValueError: if a set is empty, contains a head twice or one that the model does not have, or another
            argument is not valid; before the sweep starts.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.patching.patch_sets(model, pairs, [["L23H4"], ["L23H4", "L20H1"]])
    >>> effect.table[["heads", "n_heads"]].values.tolist()
    [['L23H4', 1], ['L20H1 L23H4', 2]]
    """
    seed = current().seed
    model, asked, cached = given_prompts(model, prompts)
    rule = as_intervention(intervention)
    on_pairs, patched = isinstance(asked, PromptPairs), base_of(direction)
    if not isinstance(positions, str) or positions == "each":
        raise ValueError(f'positions is {positions!r}; for sets of heads give "all" or the name of one position')
    if isinstance(sets, (str, HeadId)) or not isinstance(sets, Iterable):
        raise ValueError(f'sets is {sets!r}; give a list of sets, each a list of heads: [["L9H6", "L10H0"], ["L9H9"]]')
    parsed = tuple(head_set(heads, model, f"sets[{i}]") for i, heads in enumerate(sets))
    if not parsed or not all(parsed):
        raise ValueError(
            "sets is empty; give at least one set" if not parsed else f"sets[{parsed.index(())}] is empty; name a head"
        )
    heads, held = sorted(set().union(*parsed)), held_by(given, model)
    if both := {head for head, _ in held} & set(heads):
        raise ValueError(f"sets has {min(both)} in it, which given ablates already; leave it out of one of them")
    base = patched if on_pairs else "clean"
    limits = current().limits
    spec = Spec(asked, rule, as_metric(metric), heads, positions, base, normalize, seed, limits, held=held)
    runs, info = SetRuns(model, spec, runs=cached), MetricInfo.of(spec.metric)
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
    about = describe_given(held)
    return SetScores(
        parsed,
        changes,
        pd.DataFrame(columns),
        name=titled(f"{describe_intervention(rule)} of sets of heads" + (f", {direction}" if on_pairs else ""), about),
        unit="share restored" if normalize else info.unit,
        provenance=make_provenance(
            runs,
            about,
            direction=direction if on_pairs else None,
            interrupted=interrupts.interrupted,
        ),
    )
