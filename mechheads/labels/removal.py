"""Removal: next-token accuracy while the heads of a relation are removed together, one more at a time.

This is how MAPS tests its labels (Elhelo & Geva 2025, arXiv 2412.11965, section 4): z of the heads is zeroed at the
last position of few-shot prompts, best head first, and compared with random heads and with other relations.

| paper | here |
|---|---|
| heads removed at most: 30 to 250, depending on the size of the model | ``most``, ``removal_limit`` |
| 5 draws of random heads that exclude the relation's | ``draws`` |
| control relations: overlap < 0.15, base accuracy within 0.2 | ``controls``, which you choose |
| relations with base accuracy < 0.1 are dropped | an error |
| among heads with equal phi, the later one first; none with phi = 0 | the order of ``ranking`` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.head_sets import SetRuns, set_bar
from mechheads.engine.job import Spec
from mechheads.heads import HeadId, Heads, heads_as_given, random_sets
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.labels.few_shot import few_shot_prompts
from mechheads.labels.relations import RelationLike, load_relations
from mechheads.limits import current
from mechheads.messages.arguments import NotNegative, Positive
from mechheads.messages.notices import until_interrupted
from mechheads.metrics import accuracy
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.prompts import Prompts
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import mean_over_prompts, share_interval
from mechheads.results.tables import Curves, is_random

LEAST_ACCURACY = 0.1
"""The least accuracy with all heads at which a relation can be tested by removal; below it, too little can be lost."""


@analysis
def cumulative_removal(
    model: Model,
    relation: RelationLike,
    ranking: Heads,
    *,
    intervention: InterventionLike = "zero",
    controls: RelationLike | Sequence[RelationLike] = (),
    draws: NotNegative = 5,
    most: Positive | None = None,
    n: int = 24,
    shots: int = 4,
) -> Curves:
    """Remove a relation's heads together, one more at a time, and measure next-token accuracy.

    A head is removed by an intervention at the last token only; by default, its z is set to zero. For comparison, as
    many random other heads are removed, each from the layer of the head that it replaces or from the nearest layer with
    heads left; and the relation's own heads are removed on the prompts of control relations.

    Args:
        relation: a relation with few-shot templates.
        ranking: the relation's heads, best first; or a result, whose first ten are taken.
        intervention: how heads are ablated, as in ``mh.sweep``.
        controls: other relations. The paper takes five whose heads overlap with these by less than 0.15 (of the
            smaller set), and whose accuracy with all heads is within 0.2.
        draws: how many times random heads are drawn.
        most: the largest number of heads to remove; by default, ``removal_limit`` of the model's number of heads.
        n, shots: as in ``few_shot_prompts``, with the first few-shot template of each relation.

    Returns:
        Accuracy after each step, with Wilson's interval: of the line "relation", of random heads, each in the place of
        the head that it replaces, and of each control relation. ``values`` are 1 for a right answer and 0 for another;
        NaN beyond a relation's last prompt. After Ctrl-C the steps so far; the rest is NaN.

    Raises:
        ValueError: if an argument does not fit, the ranking leaves too few other heads to draw from, or the accuracy
            with all heads is below 0.1.

    Elhelo & Geva 2025 (arXiv 2412.11965), section 4.

    >>> removal = cumulative_removal(
    ...     model, "country_to_capital", ["L23H4", "L23H1"], draws=1, n=4, shots=1)
    >>> removal.table[["k", "which"]].values.tolist()
    [[0, 'relation'], [1, 'relation'], [2, 'relation'], [0, 'random 1'], [1, 'random 1'], [2, 'random 1']]
    """
    seed = current().seed
    (loaded,), others = load_relations(relation), load_relations(controls) if controls else ()
    ranked = heads_as_given(ranking, model.n_layers, model.n_heads)
    most = removal_limit(model.n_layers * model.n_heads) if most is None else most
    heads = ranked[:most]
    n_others = model.n_layers * model.n_heads - len(ranked)
    if draws and n_others < len(heads):
        raise ValueError(
            f"ranking has {len(ranked)} heads, which leaves {n_others} others to draw {len(heads)} random ones "
            "from; give only the relation's own heads, or draws=0"
        )
    random = random_sets(heads, ranked, model.n_layers, model.n_heads, draws=draws, seed=seed)
    lines = {"relation": heads} | random
    if taken := [control.name for control in others if control.name in lines or is_random(control.name)]:
        raise ValueError(f"controls: another line of the table is called {taken[0]!r} too; rename that relation")
    options: dict[str, Any] = {"n": n, "shots": shots, "seed": seed}
    prompts, *others_prompts = (few_shot_prompts(model, each, **options) for each in (loaded, *others))
    runs = _last_token_runs(model, prompts, lines.values(), intervention)
    if (base := float(runs.base_value.mean())) < LEAST_ACCURACY:
        raise ValueError(
            f"relation {loaded.name!r}: the model gets {base:.0%} of its few-shot prompts right with all heads in "
            f"place, but removal needs {LEAST_ACCURACY:.0%}; try more shots or another few-shot template"
        )
    curves = {which: _empty(heads, prompts) for which in lines}
    curves |= {each.name: _empty(heads, some) for each, some in zip(others, others_prompts, strict=True)}
    metadata = make_provenance(runs, options, relation=loaded, heads=heads)
    bar = set_bar(sum(map(len, curves.values())), f"removal of {len(heads)} heads")
    with until_interrupted() as interrupts, bar:
        for which, line in lines.items():
            _follow(runs, line, curves[which], bar)
        del runs
        for control, some in zip(others, others_prompts, strict=True):
            _follow(_last_token_runs(model, some, [heads], intervention), heads, curves[control.name], bar)
    done = sum(int(np.isfinite(curve).all(1).sum()) for curve in curves.values())
    interrupts.warn(f"{done} of {bar.total} sets of heads")
    table, values = _tabulate(curves)
    metadata = make_provenance(
        metadata,
        random=random,
        controls={control.name: control for control in others},
        interrupted=interrupts.interrupted,
    )
    order = lines | {control.name: heads for control in others}
    return Curves("removal", loaded.name, table, order, values, {}, metadata)


def removal_limit(n_heads: int) -> int:
    """The largest number of heads to remove: 30, 50, 100, 150 or 250 for less than 300, 500, 1000, 1500 or more heads.
    Never more than half of all heads, because random other heads are needed too. Elhelo & Geva 2025 (arXiv 2412.11965).
    """
    limits = {300: 30, 500: 50, 1000: 100, 1500: 150}
    return min(next((most for below, most in limits.items() if n_heads < below), 250), n_heads // 2)


def _last_token_runs(
    model: Model, prompts: Prompts, sets: Iterable[Sequence[HeadId]], intervention: InterventionLike
) -> SetRuns:
    """Runs in which sets of these heads are ablated at the last token, measured by accuracy."""
    heads = sorted(set().union(*sets))
    return SetRuns(model, Spec(prompts, as_intervention(intervention), accuracy, heads, positions="last"))


def _empty(heads: Sequence[HeadId], prompts: Prompts) -> Float[np.ndarray, "k prompt"]:
    return np.full((len(heads) + 1, len(prompts)), np.nan)


def _follow(runs: SetRuns, heads: Sequence[HeadId], curve: Float[np.ndarray, "k prompt"], bar: Bar) -> None:
    """Fill in a curve: whether each answer is right without the first k heads."""
    for start in range(0, len(curve), runs.at_once):
        some = range(start, min(start + runs.at_once, len(curve)))
        curve[start : some.stop] = runs.values([frozenset(heads[:k]) for k in some], bar.update)


def _tabulate(
    curves: Mapping[str, Float[np.ndarray, "k prompt"]],
) -> tuple[pd.DataFrame, Float[np.ndarray, "row prompt"]]:
    """All curves as one table, and their values stacked in the same order."""
    longest = max(curve.shape[1] for curve in curves.values())
    values = np.concatenate(
        [np.pad(curve, ((0, 0), (0, longest - curve.shape[1])), constant_values=np.nan) for curve in curves.values()]
    )
    share, n = mean_over_prompts(values), (~np.isnan(values)).sum(1)
    low, high = share_interval(share, np.maximum(n, 1))
    columns = {"score": share, "ci_low": low, "ci_high": high}
    keys = [(k, which) for which, curve in curves.items() for k in range(len(curve))]
    return pd.DataFrame(keys, columns=["k", "which"]).assign(**columns), values
