"""Removal: next-token accuracy while the heads of a relation are removed together, one more at a time.

As MAPS tests its labels (Elhelo & Geva 2024, arXiv 2412.11965, section 4): z of the heads is zeroed at the last
position of few-shot prompts, best head first, against random heads and against other relations.

| paper | here |
|---|---|
| heads removed at most: 30 to 250, by the size of the model | ``most``, ``removal_limit`` |
| 5 draws of random heads that exclude the relation's | ``draws`` |
| control relations: overlap < 0.15, base accuracy within 0.2 | ``choose_controls`` |
| relations with base accuracy < 0.1 are dropped | an error |
| of heads with equal phi the later one first; none with phi = 0 | the order of ``ranking`` |
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.backends.changes import alone
from mechheads.bars import Bar
from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.interventions import Zero
from mechheads.labels.few_shot import few_shot_prompts
from mechheads.labels.relations import Relation, RelationLike, load_relations
from mechheads.matched import matched_heads
from mechheads.metrics import accuracy
from mechheads.notices import warn
from mechheads.patching.sets import SetRuns, set_bar
from mechheads.prompts import Prompts
from mechheads.shown import html_result
from mechheads.stats import mean_over_prompts, share_interval

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from mechheads.model import Model

LEAST_ACCURACY = 0.1
"""A relation of which the model gets a smaller share right has too little to lose to be tested by removal."""


@dataclass(frozen=True, eq=False)
class Removal:
    """Next-token accuracy while heads are removed together, one more at a time.

    Attributes:
        relation: its name.
        heads: those removed, in this order.
        random: the heads of each random draw, in the order of those they stand for.
        table: one row for each line and number ``k`` of heads removed. ``which``: "relation", "random 1" and so on, or
            the name of a control relation; accuracy with ci_low and ci_high (Wilson's interval).
        values: of each row of the table and prompt, 1 for a right answer, 0 for another; NaN beyond a relation's
            last prompt and where a stopped run did not come.
        provenance: what it takes to repeat it.
    """

    relation: str
    heads: tuple[HeadId, ...]
    random: tuple[tuple[HeadId, ...], ...]
    table: pd.DataFrame
    values: Float[np.ndarray, "row prompt"]
    provenance: dict[str, Any]

    def plot(self, *, title: str | None = None) -> go.Figure:
        """Accuracy against heads removed: ``mechheads.plots.removal_curves``."""
        from mechheads.plots.removal import removal_curves

        return removal_curves(
            self.table, self.relation, self.heads, random=self._draws, controls=self._controls, title=title
        )

    @property
    def _draws(self) -> list[str]:
        return list(self.provenance["random"])

    @property
    def _controls(self) -> list[str]:
        return list(self.provenance["controls"])

    def __repr__(self) -> str:
        curves = self.table.pivot(index="k", columns="which", values="accuracy")
        lines = {self.relation: ["relation"], "with random heads": self._draws, "of controls": self._controls}
        ends = {what: curves[which].mean(axis=1).iloc[[0, -1]] for what, which in lines.items() if which}
        said = ", ".join(f"{what} {first:.2f} to {last:.2f}" for what, (first, last) in ends.items())
        n = len(self.heads)
        return f"<Removal of {n} head{'s' * (n != 1)}, accuracy {said}>"

    def _repr_html_(self) -> str:
        return html_result(self, self.table)


@alone
def cumulative_removal(
    model: Model,
    relation: RelationLike,
    ranking: Iterable[HeadLike],
    *,
    controls: RelationLike | Iterable[RelationLike] = (),
    draws: int = 5,
    most: int | None = None,
    n: int = 24,
    shots: int = 4,
    template: int = 0,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> Removal:
    """Remove a relation's heads together, one more at a time, and watch next-token accuracy.

    A head is removed by setting its z to zero at the last token alone. Beside the relation's own, as many random
    heads are removed that are none of them, each in the layer of the one it stands for or the nearest layer that has
    one left; and the relation's own on the prompts of control relations.

    Args:
        relation: one with few-shot templates.
        ranking: the relation's heads, best first, as ``scores.select(relation=...).heads()`` gives them.
        controls: other relations, such as ``choose_controls`` names.
        draws: how many times random heads are drawn.
        most: heads to remove at most; left out, ``removal_limit`` of the model's number of heads.
        n, shots, template: as in ``few_shot_prompts``.
        budget, progress: as in ``mh.sweep``.
        seed: of prompts and random heads.

    Returns:
        Accuracy after each step. After Ctrl-C what was done; the rest is NaN.

    Raises:
        ValueError: if an argument does not fit, the ranking leaves too few other heads to draw from, or base
            accuracy is below 0.1.

    Elhelo & Geva 2024 (arXiv 2412.11965), section 4.

    >>> removal = cumulative_removal(
    ...     model, "country_to_capital", ["L23H4", "L23H1"], draws=1, n=4, shots=1, progress=False
    ... )
    >>> removal.table[["k", "which"]].values.tolist()
    [[0, 'relation'], [1, 'relation'], [2, 'relation'], [0, 'random 1'], [1, 'random 1'], [2, 'random 1']]
    """
    given = [controls] if isinstance(controls, (Relation, str, Path)) else list(controls)
    loaded, *others = load_relations([relation, *given])
    ranked = _check_order(ranking, model)
    heads = ranked[: _count("most", removal_limit(model.n_layers * model.n_heads) if most is None else most, 1)]
    n_others = model.n_layers * model.n_heads - len(ranked)
    if _count("draws", draws, 0) and n_others < len(heads):
        raise ValueError(
            f"ranking holds {len(ranked)} heads, which leaves {n_others} others to draw {len(heads)} random ones "
            "from; give the relation's own heads alone, or draws=0"
        )
    random = [matched_heads(heads, ranked, model.n_layers, model.n_heads, [seed, draw]) for draw in range(draws)]
    lines = {"relation": heads} | {f"random {i + 1}": drawn for i, drawn in enumerate(random)}
    if taken := [control.name for control in others if control.name in lines]:
        raise ValueError(f"controls: {taken[0]!r} is what another line of the table is called; rename that relation")
    asked = {"n": n, "shots": shots, "template": template, "seed": seed}
    prompts, *others_prompts = (few_shot_prompts(model, each, **asked) for each in (loaded, *others))
    runs = _last_token_runs(model, prompts, lines.values(), budget)
    if (base := float(runs.base_value.mean())) < LEAST_ACCURACY:
        raise ValueError(too_hard(loaded.name, base))
    curves = {which: _empty(heads, prompts) for which in lines}
    curves |= {each.name: _empty(heads, some) for each, some in zip(others, others_prompts, strict=True)}
    about = runs.provenance()
    interrupted = False
    with set_bar(sum(map(len, curves.values())), f"removal of {len(heads)} heads", progress) as bar:
        try:
            for which, line in lines.items():
                _follow(runs, line, curves[which], bar)
            del runs
            for control, some in zip(others, others_prompts, strict=True):
                _follow(_last_token_runs(model, some, [heads], budget), heads, curves[control.name], bar)
        except KeyboardInterrupt:
            interrupted = True
            done = sum(int(np.isfinite(curve).all(1).sum()) for curve in curves.values())
            warn(f"interrupted after {done} of {bar.total} sets of heads; the rest are NaN")
    table, values = _tabulate(curves)
    about |= asked | {
        "relation": loaded.fingerprint,
        "heads": [str(head) for head in heads],
        "random": {name: [str(head) for head in lines[name]] for name in lines if name != "relation"},
        "controls": {control.name: control.fingerprint for control in others},
        "interrupted": interrupted,
    }
    return Removal(loaded.name, heads, tuple(random), table, values, about)


def base_accuracy(
    model: Model,
    relation: RelationLike,
    *,
    n: int = 24,
    shots: int = 4,
    template: int = 0,
    budget: int | str | None = None,
    seed: int = 0,
) -> float:
    """Share of few-shot prompts of a relation of which the most likely next token is the target.

    Args:
        relation, n, shots, template, seed: as in ``few_shot_prompts``.
        budget: as in ``mh.sweep``.

    Raises:
        ValueError: as ``few_shot_prompts``.

    >>> base_accuracy(model, "country_to_capital", n=4, shots=2)
    1.0
    """
    prompts = few_shot_prompts(model, relation, n=n, shots=shots, template=template, seed=seed)
    return float(_last_token_runs(model, prompts, [[HeadId(0, 0)]], budget).base_value.mean())


def choose_controls(
    relation: str,
    rankings: Mapping[str, Iterable[HeadLike]],
    base: Mapping[str, float],
    *,
    overlap: float = 0.15,
    within: float = 0.2,
    most: int = 5,
) -> tuple[str, ...]:
    """Relations to compare a removal with: as easy for the model, but done by other heads.

    Args:
        relation: the name of the one whose heads are removed.
        rankings: the heads of each relation, this one's among them.
        base: the base accuracy of each, as ``base_accuracy`` gives it.
        overlap: the share of heads in common, of the smaller of the two sets, must lie below this.
        within: base accuracy may differ by so much.
        most: how many to choose, those closest in base accuracy first.

    Raises:
        ValueError: if the relation has no heads or no base accuracy.

    >>> rankings = {"capitals": ["L9H1", "L9H2"], "languages": ["L9H2", "L9H3"], "antonyms": ["L7H0"]}
    >>> choose_controls("capitals", rankings, {"capitals": 0.9, "languages": 0.8, "antonyms": 0.75})
    ('antonyms',)
    """
    sets = {name: {HeadId.parse(head) for head in heads} for name, heads in rankings.items()}
    if not sets.get(relation) or relation not in base:
        raise ValueError(f"relation is {relation!r}, which has no heads in rankings or no accuracy in base")
    difference = {
        name: round(abs(base[name] - base[relation]), 9)
        for name, heads in sets.items()
        if name != relation and name in base and _overlap(heads, sets[relation]) < overlap
    }
    near = [name for name in sorted(difference, key=difference.__getitem__) if difference[name] <= within]
    return tuple(near[:most])


def removal_limit(n_heads: int) -> int:
    """How many heads of a model to remove at most: 30, 50, 100, 150 or 250 of less than 300, 500, 1000, 1500 or more.

    Never more than half of all heads, as random ones are to be others. Elhelo & Geva 2024 (arXiv 2412.11965).

    >>> removal_limit(270), removal_limit(1024)
    (30, 150)
    """
    limits = {300: 30, 500: 50, 1000: 100, 1500: 150}
    return min(next((most for below, most in limits.items() if n_heads < below), 250), n_heads // 2)


def _check_order(ranking: Iterable[HeadLike], model: Model) -> tuple[HeadId, ...]:
    """A ranking's heads, in its order."""
    if isinstance(ranking, (str, HeadId)) or not isinstance(ranking, Iterable):
        raise ValueError(f"ranking is {ranking!r}; give a list of heads, best first, such as scores.heads(30)")
    heads = tuple(check_head(head, model.n_layers, model.n_heads) for head in ranking)
    if not heads:
        raise ValueError("ranking is empty; give the relation's heads, best first")
    if twice := [head for head, after in pairwise(sorted(heads)) if head == after]:
        raise ValueError(f"ranking holds {twice[0]} twice")
    return heads


def _count(name: str, number: int, least: int) -> int:
    if number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}")
    return number


def too_hard(name: str, base: float) -> str:
    return (
        f"relation {name!r}: the model gets {base:.0%} of its few-shot prompts right with all heads in place, and "
        f"removal needs {LEAST_ACCURACY:.0%}; try more shots or another template"
    )


def _overlap(one: set[HeadId], other: set[HeadId]) -> float:
    """Share of heads in common, of the smaller set."""
    return len(one & other) / max(1, min(len(one), len(other)))


def _last_token_runs(
    model: Model, prompts: Prompts, sets: Iterable[Sequence[HeadId]], budget: int | str | None
) -> SetRuns:
    """Runs in which heads of these sets write nothing at the last token, judged by accuracy."""
    heads = sorted(set().union(*sets))
    return SetRuns(
        model, prompts, Zero(), metric=accuracy, heads=heads, positions="last", budget=budget, progress=False
    )


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
    """All curves as one table, and their values below each other."""
    longest = max(curve.shape[1] for curve in curves.values())
    values = np.concatenate(
        [np.pad(curve, ((0, 0), (0, longest - curve.shape[1])), constant_values=np.nan) for curve in curves.values()]
    )
    share, n = mean_over_prompts(values), (~np.isnan(values)).sum(1)
    low, high = share_interval(share, np.maximum(n, 1))
    columns = {"accuracy": share, "ci_low": low, "ci_high": high}
    keys = [(k, which) for which, curve in curves.items() for k in range(len(curve))]
    return pd.DataFrame(keys, columns=["k", "which"]).assign(**columns), values
