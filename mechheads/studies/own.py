"""Scores of your own in an atlas: each becomes one or several views, with a column in the table for each."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from itertools import product
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from mechheads.results.dataset import RANGE, STATISTICS
from mechheads.results.scores import HeadScores
from mechheads.studies.study import short_hash

FEW = 12
"""Scores with further dimensions have a view for each label if there are no more than this."""
FURTHEST = "furthest"
"""The entry of the provenance that says over which dimensions the label furthest from 0 was taken."""
_LONGEST = 48
_ENDINGS = ("_ci_low", "_ci_high", "_range_low", "_range_high", "_p_family", "_q")
_TAKEN = {"layer", "head", "names", "categories", "best_relation", "p", "q", "and", "or", "not", "unclassified"}
"""Columns of every atlas, and words that a search line reads otherwise."""


class OwnView(NamedTuple):
    """One view of scores of your own, without further dimensions."""

    label: str  # for people: the name of the scores, with the label that was selected
    scores: HeadScores
    of: tuple[str, int]  # the name of the scores, and how many views they have


def own_views(own: Mapping[str, HeadScores], taken: Collection[str] = ()) -> dict[str, OwnView]:
    """The views of scores of your own, by their columns: one for each label of a further dimension, if there are few.
    Of more than ``FEW`` labels, each head has the score of the one at which it is furthest from 0.
    """
    views: dict[str, OwnView] = {}
    for name, scores in own.items():
        parts = _parts(scores)
        for said, part in parts:
            label = f"{name}, {said}" if said else name
            views[_unused(own_column(label), {*views, *taken})] = OwnView(label, part, (name, len(parts)))
    return views


def own_file(name: str) -> str:
    """The file of scores of your own in an atlas, without ``.nc``: what else is in the atlas does not change it."""
    return f"own_{short_hash(name)}"


def own_column(name: str) -> str:
    """The column of the table for scores of your own: their name, with what a condition could not hold replaced."""
    column = re.sub(r"\W+", "_", name)[:_LONGEST].strip("_") or "own"
    is_no_name = not column[0].isalpha() or re.fullmatch(r"[LH]\d+(H\d+)?", column, re.IGNORECASE)
    begins_as_ours = column.lower().startswith(("ships_", "generalized_"))
    column = f"own_{column}" if is_no_name or begins_as_ours else column
    return f"{column}_score" if column.lower().endswith(_ENDINGS) else column


def _unused(column: str, names: Collection[str]) -> str:
    """The column, with a number if there is one of this name."""
    taken = _TAKEN | {name.lower() for name in names}
    numbered = (column if number == 1 else f"{column}_{number}" for number in range(1, len(taken) + 2))
    return next(each for each in numbered if each.lower() not in taken)


_PARTS: WeakKeyDictionary[HeadScores, list[tuple[str, HeadScores]]] = WeakKeyDictionary()
"""Parts that were made already: a page asks for them many times."""


def _parts(scores: HeadScores) -> list[tuple[str, HeadScores]]:
    """The parts of scores without further dimensions, each with what it is a part of; "" for the whole."""
    if not scores.extra_dims:
        return [("", scores)]
    if scores not in _PARTS:
        parts = list(_selected(scores))
        measured = [(said, part) for said, part in parts if np.isfinite(part.scores.values).any()]
        _PARTS[scores] = measured or parts[:1]
    return _PARTS[scores]


def _selected(scores: HeadScores) -> Iterator[tuple[str, HeadScores]]:
    """A part for each label, or for the label furthest from 0 if there are many."""
    said = []
    while np.prod([scores.dataset.sizes[dim] for dim in scores.extra_dims], initial=1) > FEW:
        longest = max(scores.extra_dims, key=lambda dim: scores.dataset.sizes[dim])
        said.append(f"{longest} furthest from 0")
        scores = _furthest(scores, longest)
    labels = [scores.dataset[dim].values.tolist() for dim in scores.extra_dims]
    for chosen in product(*labels):
        selected = dict(zip(scores.extra_dims, chosen, strict=True))
        part = scores.select(**selected) if selected else scores
        yield ", ".join([*(f"{dim} {label}" for dim, label in selected.items()), *said]), part


def _furthest(scores: HeadScores, dim: str) -> HeadScores:
    """The scores of each head at the label of a dimension where it is furthest from 0."""
    kept = [name for name in (*STATISTICS, *RANGE, "values", "cluster") if name in scores.dataset]
    dataset = scores.dataset[kept]
    at = abs(dataset["score"]).fillna(-1).argmax(dim)
    chosen = dataset.isel({dim: at}).drop_vars(dim)
    order = [each for each in dataset["score"].dims if each != dim]
    chosen["score"] = chosen["score"].transpose(*order)
    before = scores.provenance.get(FURTHEST, [])
    return HeadScores(chosen).with_provenance(**{FURTHEST: [*before, dim]})
