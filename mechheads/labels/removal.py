"""Removal: next-token accuracy as more and more heads of a relation are removed together.

This is how MAPS tests its labels (Elhelo & Geva 2025, arXiv 2412.11965, section 4): z of the heads is zeroed at the
last position of few-shot prompts, best head first, and compared with random heads and with other relations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.head_sets import SetRuns, set_bar
from mechheads.engine.job import Spec
from mechheads.heads import HeadId, Heads, parse_heads, random_sets
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.labels.few_shot import few_shot_prompts
from mechheads.labels.relations import RelationLike, load_relations
from mechheads.limits import current
from mechheads.messages.arguments import NotNegative
from mechheads.messages.notices import until_interrupted
from mechheads.metrics import accuracy
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import mean_over_prompts, share_interval
from mechheads.results.tables import Curves, is_random

LEAST_ACCURACY = 0.1
"""The accuracy with all heads that a relation needs for removal; below it, too little can be lost."""


@analysis
def cumulative_removal(
    model: Model,
    relation: RelationLike,
    ranking: Heads,
    *,
    intervention: InterventionLike = "zero",
    controls: RelationLike | Sequence[RelationLike] = (),
    draws: NotNegative = 5,
    n: int = 24,
    shots: int = 4,
) -> Curves:
    """Next-token accuracy as more and more heads of a relation are removed together.

    A head is removed by an intervention at the last token only; by default, its z is set to zero. For comparison, the
    same number of random other heads is removed, each from the layer of the head that it replaces or from the nearest
    layer with heads left; and the relation's own heads are removed on the prompts of control relations.

    Args:
        relation: a relation with few-shot templates.
        ranking: the relation's heads, best first, of which at most 30 to 250 are removed, as in the paper; or a result,
            of which the first ten heads are used.
        intervention: how heads are ablated, as in ``mh.sweep``.
        controls: other relations. The paper uses five whose heads overlap with these by less than 0.15 (of the
            smaller set), and whose accuracy with all heads differs by at most 0.2.
        draws: the number of times that random heads are drawn.
        n, shots: as in ``few_shot_prompts``.

    Returns:
        Accuracy after each step, with Wilson's interval, for the line "relation", for each draw of random heads and for
        each control relation. ``values`` are 1 for a right answer and 0 for another; NaN beyond a relation's last
        prompt. After Ctrl-C, steps that were not measured are NaN.

    Raises:
        ValueError: if the ranking leaves too few other heads to draw from, or the accuracy with all heads is below 0.1.

    Elhelo & Geva 2025 (arXiv 2412.11965), section 4.

    >>> removal = cumulative_removal(
    ...     model, "country_to_capital", ["L23H4", "L23H1"], draws=1, n=4, shots=1)
    >>> removal.table[["k", "which"]].values.tolist()
    [[0, 'relation'], [1, 'relation'], [2, 'relation'], [0, 'random 1'], [1, 'random 1'], [2, 'random 1']]
    """
    seed = current().seed
    (loaded,), others = load_relations(relation), load_relations(controls) if controls else ()
    ranked = parse_heads(ranking, model.n_layers, model.n_heads)
    heads = ranked[: removal_limit(model.n_layers * model.n_heads)]
    n_others = model.n_layers * model.n_heads - len(ranked)
    if draws and n_others < len(heads):
        raise ValueError(
            f"ranking has {len(ranked)} heads, which leaves {n_others} others to draw {len(heads)} random ones "
            "from; give only the relation's own heads, or draws=0"
        )
    random = random_sets(heads, ranked, model.n_layers, model.n_heads, draws=draws, seed=seed)
    lines = {"relation": heads} | random
    if clash := [control.name for control in others if control.name in lines or is_random(control.name)]:
        raise ValueError(f"controls: another line of the table is called {clash[0]!r} too; rename that relation")
    options: dict[str, Any] = {"n": n, "shots": shots, "seed": seed}
    prompts, *others_prompts = (few_shot_prompts(model, each, **options) for each in (loaded, *others))
    rule = as_intervention(intervention)

    def runs_of(some: Prompts, sets: Iterable[Sequence[HeadId]]) -> SetRuns:
        spec = Spec(some, rule, accuracy, sorted(set().union(*sets)), positions="last")
        return SetRuns(CachedRuns(model, some), spec)

    runs = runs_of(prompts, lines.values())
    if (base := float(runs.base_value.mean())) < LEAST_ACCURACY:
        raise ValueError(
            f"relation {loaded.name!r}: the model gets {base:.0%} of its few-shot prompts right with all heads in "
            f"place, but removal needs {LEAST_ACCURACY:.0%}; try more shots or another few-shot template"
        )
    order = lines | {control.name: heads for control in others}
    sizes = [len(prompts)] * len(lines) + list(map(len, others_prompts))
    values, metadata = np.full((len(order), len(heads) + 1, max(sizes)), np.nan), runs.provenance()
    bar = set_bar(values[..., 0].size, f"removal of {len(heads)} heads")
    with until_interrupted() as interrupts, bar:
        for i, line in enumerate(order.values()):
            runs = runs if i < len(lines) else runs_of(others_prompts[i - len(lines)], [heads])
            runs.values([set(line[:k]) for k in range(len(line) + 1)], bar.update, into=values[i, :, : sizes[i]])
    values = values.reshape(-1, max(sizes))
    share, n_done = mean_over_prompts(values), (~np.isnan(values)).sum(1)
    interrupts.warn(f"{(n_done > 0).sum()} of {bar.total} sets of heads")
    low, high = share_interval(share, np.maximum(n_done, 1))
    keys = {"k": np.tile(range(len(heads) + 1), len(order)), "which": np.repeat(list(order), len(heads) + 1)}
    metadata = make_provenance(
        metadata,
        options,
        relation=loaded,
        heads=heads,
        random=random,
        controls={control.name: control for control in others},
        interrupted=interrupts.interrupted,
    )
    table = pd.DataFrame(keys | {"score": share, "ci_low": low, "ci_high": high})
    return Curves("removal", loaded.name, table, order, values, {}, metadata)


def removal_limit(n_heads: int) -> int:
    """The largest number of heads to remove: 30, 50, 100, 150 or 250 for less than 300, 500, 1000, 1500 or more heads.
    Never more than half of all heads, because random other heads are needed too. Elhelo & Geva 2025 (arXiv 2412.11965).
    """
    limits = {300: 30, 500: 50, 1000: 100, 1500: 150}
    return min(next((most for below, most in limits.items() if n_heads < below), 250), n_heads // 2)
