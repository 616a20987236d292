"""The answers of an atlas: for each question, a table of the heads whose effect is large enough to name.

Every score is evidence about one question: pairs, requests, a task, ordinary text, the weights, or scores of your own.
Two scores are about the same one if their prompts are the same, or are made from the same relation. A row is a head
whose interval lies beyond the smallest effect worth naming; the largest come first, of both signs.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations, product
from math import isfinite
from typing import Any, Literal, NamedTuple, get_args
from weakref import WeakKeyDictionary

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float, Int

from mechheads.behaviour import HeadProfile
from mechheads.behaviour.profile import NAMES, PROFILED
from mechheads.heads import HeadId
from mechheads.labels import HeadLabels
from mechheads.results.dataset import RANGE, STATISTICS
from mechheads.results.kinds import SMALLEST, sample_of
from mechheads.results.metadata import (
    LEAST_CLUSTERS_TESTED,
    SUBJECTS,
    carrying_prompts,
    has_null,
    label_of,
    n_clusters,
    n_prompts,
    null_of,
)
from mechheads.results.scores import CARRIED, FEW as TOO_FEW, LARGEST, NOTHING, HeadScores
from mechheads.results.shown import Rows, heading, shortened, text_table
from mechheads.studies.study import short_hash

Kind = Literal["own", "pairs", "requests", "text", "weights"]
LEAST_OF_LOGITS = 0.05
"""The smallest effect worth naming of a part of the logits, as a share of the whole."""
FEW = 10
"""The number of rows for a measure without intervals, or without a smallest effect."""
_TITLES = {SUBJECTS["pairs"]: "naming the capital"}
_USUAL = {"pairs": "the answer", "requests": "the requests"}
"""What prompts are about if nothing else is known."""
_SHOWN = 20
"""How many rows of a question a terminal shows."""
_RELATIONS = 3
"""How many relations the card of a head has."""
_PHI_OF = "phi of "
_FIRST = ["measured", "score", "ci_low", "ci_high", "null", "p_family", "n", "unit"]


@dataclass(frozen=True)
class Row:
    """A head in the table of a question; numbers that are not known are NaN."""

    head: str
    measured: str
    column: str  # of the atlas' table
    value: float
    low: float
    high: float
    null: float  # of a head that does nothing, or of chance
    p: float  # in the family of all heads
    n: int  # how many prompts, pairs, requests or windows it is a mean over; 0 if it is not a mean
    unit: str
    rank: int  # 1 for the head furthest from the null; equal heads share a rank
    of: int
    note: str = ""  # a fixed text, such as that one prompt carries it


@dataclass(frozen=True, eq=False)
class Measure:
    """One number of every head about a question; ``table`` has the columns of scores, and ``null`` and ``carried``."""

    column: str
    label: str
    unit: str
    n: int
    table: pd.DataFrame
    passes: Bool[np.ndarray, " head"] | None  # which heads are named; None if the largest are
    least: float | None = None  # the smallest effect worth naming

    def rows(self, k: int | None = None) -> Iterator[Row]:
        """The heads that are named, or the first ``k``, those furthest from the null first."""
        size = np.nan_to_num(self._size, nan=-1.0)
        known = size >= 0 if k is not None or self.passes is None else self.passes & (size >= 0)
        order = [at for at in np.argsort(-size, kind="stable").tolist() if known[at]]
        most = k if k is not None else FEW if self.passes is None else None
        yield from map(self.row, order[:most])

    def row(self, at: int) -> Row:
        """The row of a head by its place in the table."""
        layer, head, carried = (self._arrays[name][at] for name in ("layer", "head", "carried"))
        score, low, high, null, p = (
            float(self._arrays[name][at]) for name in ("score", "ci_low", "ci_high", "null", "p_family")
        )
        name, note = str(HeadId(int(layer), int(head))), CARRIED if carried else ""
        counts = self.n, self.unit, int(self._ranks[at]), int(np.isfinite(self._size).sum())
        return Row(name, self.label, self.column, score, low, high, null, p, *counts, note)

    @cached_property
    def _arrays(self) -> dict[str, np.ndarray]:
        return {str(name): self.table[name].to_numpy() for name in self.table}

    @cached_property
    def _size(self) -> Float[np.ndarray, " head"]:
        """How far each head is from the null."""
        return np.abs(self._arrays["score"] - np.nan_to_num(self._arrays["null"]))

    @cached_property
    def _ranks(self) -> Int[np.ndarray, " head"]:
        size = np.nan_to_num(self._size, nan=-1.0)
        in_order = np.sort(size)
        return 1 + len(size) - np.searchsorted(in_order, size, side="right")

    def sides(self) -> tuple[Bool[np.ndarray, " head"], Bool[np.ndarray, " head"], Bool[np.ndarray, " head"]]:
        """Which heads' intervals lie above the smallest effect, below its negative, and between the two."""
        low, high = (self._arrays[end] - np.nan_to_num(self._arrays["null"]) for end in ("ci_low", "ci_high"))
        least = np.nan if self.least is None else self.least
        return low >= least, high <= -least, (low > -least) & (high < least)


@dataclass(frozen=True, eq=False)
class Question:
    """A question about a model with an atlas' answers to it, from ``Atlas.questions``.

    Attributes:
        key: its name in the data of the page.
        title: what it is about, in a few words.
        kind: what its prompts are.
        varies: how many prompts there were, and what varies in them.
        warnings: fixed texts about what these prompts do not allow.
        views: the columns of its scores.
        view: the column that ranks its heads.
        measures: what was measured of every head.
        tables: further tables, which are about no single head, by their titles.
    """

    key: str
    title: str
    kind: Kind
    varies: str
    warnings: tuple[str, ...]
    views: tuple[str, ...]
    view: str
    measures: tuple[Measure, ...]
    tables: Mapping[str, pd.DataFrame]

    @property
    def rows(self) -> list[Row]:
        """The heads whose interval lies beyond the smallest effect worth naming, measure by measure."""
        return [row for measure in self.measures for row in measure.rows()]

    def table(self) -> Rows:
        """The rows as a table: head, measured, score, ci_low, ci_high, null, p_family, n and unit."""
        return _table(self.rows)

    @property
    def contradictions(self) -> list[tuple[Row, Row]]:
        """Each head on which two measures differ, with its rows in both.

        Both lie beyond their smallest effect, in opposite directions; or one does, and the interval of the other lies
        within its smallest effect. The heads that rank highest by either measure come first.
        """
        differing = []
        for one, other in combinations(self.measures if self.kind in ("own", "pairs", "requests") else (), 2):
            (above, below, within), (up, down, inside) = one.sides(), other.sides()
            opposed = (above & down) | (below & up) | ((above | below) & inside) | (within & (up | down))
            pairs = [(one.row(at), other.row(at)) for at in np.flatnonzero(opposed).tolist()]
            differing += sorted(pairs, key=lambda rows: min(row.rank for row in rows))
        return differing

    def top(self, k: int) -> Rows:
        """The ``k`` heads furthest from the null by each measure, however small."""
        return _table([row for measure in self.measures for row in measure.rows(k)])

    def __str__(self) -> str:
        """The title, what varies, the first rows of each measure, warnings and tables, for a terminal."""
        each = max(3, _SHOWN // max(1, sum(1 for measure in self.measures if any(measure.rows()))))
        rows = [row for measure in self.measures for row in list(measure.rows())[:each]]
        title = f"{heading(self.title)} ({self.varies})" if self.varies else heading(self.title)
        shown = text_table(_table(rows), choose=False) if rows else []
        lines = [title, *shown, *self.warnings]
        for name, table in self.tables.items():
            lines += [name, *text_table(table, choose=False)]
        return "\n".join(lines)


def _table(rows: list[Row]) -> Rows:
    columns = ["head", *_FIRST, "note"]
    values = [
        [row.head, row.measured, row.value, row.low, row.high, row.null, row.p, row.n, row.unit, row.note]
        for row in rows
    ]
    table = Rows(pd.DataFrame(values, columns=columns))
    table.attrs["first"] = _FIRST
    return table


def question_of(atlas: Any) -> dict[str, str]:
    """The key of the question that each view of an atlas is about, by the view's column."""
    own, views = atlas.own_views, atlas.views
    keys = {name: _key(name) for name in views if name not in own}
    prompts: dict[str, set[str]] = {}
    for name, key in keys.items():
        prompts[key] = prompts.get(key, set()) | _prompts(views[name])
    for name, view in own.items():
        mine, file = _prompts(view.scores), own_file(view.of[0])
        keys[name] = next((key for key, theirs in prompts.items() if mine & theirs), file)
        prompts.setdefault(keys[name], mine)
    return keys


def questions(atlas: Any, at_least: float | None = None) -> list[Question]:
    """The questions of an atlas, in the order of the page: your own scores first."""
    keys, views, own = question_of(atlas), atlas.views, atlas.own_views
    measures: dict[str, list[Measure]] = {}
    weights = [] if atlas.labels is None else list(_relation_measures(atlas.labels, atlas.relations, at_least))
    of_one_relation = {f"phi_{measure.label.removeprefix(_PHI_OF)}": measure for measure in weights}
    for name in [*own, *(name for name in views if name not in own)]:
        if name != "phi":
            label = shortened(own[name].label) if name in own else label_of(views[name])
            measure = of_one_relation.get(name) if name not in own else None
            measure = measure or _measure(views[name], name, label, at_least)
            measures.setdefault(keys[name], []).append(replace(measure, column=name, label=label))
    if atlas.profile is not None:
        measures["text"] = list(_text_measures(atlas.profile))
    if weights:
        measures["weights"] = weights
    tables: dict[str, dict[str, pd.DataFrame]] = {}
    if atlas.circuit is not None:
        columns = [name for name in ("k", "score", "ci_low", "ci_high") if name in atlas.circuit.table]
        curve = pd.DataFrame(atlas.circuit.table[columns])
        tables["pairs"] = {"Faithfulness of the first k heads by patching": curve}
    if (refused := _refused(atlas)) is not None:
        tables["requests"] = {"Requests refused": pd.DataFrame([refused])}
    names = {own_file(view.of[0]): view.of[0] for view in own.values()}
    titles = {"text": "ordinary text", "weights": "the weights alone", **_USUAL, **atlas.asked, **names}
    order = [*names, "pairs", "requests", "text", "weights"]
    return [
        _question(atlas, key, titles[key], measures.get(key, []), tables.get(key, {}), keys)
        for key in order
        if key in measures or key in tables
    ]


def card_rows(questions: list[Question], at: int) -> Iterator[tuple[Question, Row]]:
    """The rows of one head, by its place among all; of the relations, only those furthest above their null."""
    for question in questions:
        rows = [row for row in (measure.row(at) for measure in question.measures) if isfinite(row.value)]
        if question.kind == "weights":
            above = [row.value - row.null if isfinite(row.null) else row.value for row in rows]
            rows = [rows[i] for i in np.argsort(-np.array(above), kind="stable")[:_RELATIONS]]
        yield from ((question, row) for row in rows)


def _refused(atlas: Any) -> dict[str, int] | None:
    """How many requests the model refuses, of those that were answered and judged; None if none was."""
    counts = next((each for scores in atlas.safety.values() if (each := scores.provenance.get("refused"))), None)
    return None if counts is None else {"refused": counts["n"], "of": counts["of"]}


def _question(
    atlas: Any,
    key: str,
    title: str,
    measures: list[Measure],
    tables: dict[str, pd.DataFrame],
    keys: Mapping[str, str],
) -> Question:
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    columns = tuple(name for name, mine in keys.items() if mine == key)
    if "patching" in columns:
        columns = ("patching", *(name for name in columns if name != "patching"))
        measures = sorted(measures, key=lambda measure: measure.column != "patching")
    view = measures[0].column if measures else ""
    first = atlas.views.get(view)
    varies = atlas.asked.get(f"{key}_vary", "") or ("" if first is None else counted(first))
    if key == "text" and measures:
        varies = _count(measures[0].n, "window")
    elif key == "weights":
        varies = _count(len(measures), "relation")
    few = first is not None and has_null(first) and (n_clusters(first) or LEAST_CLUSTERS_TESTED) < LEAST_CLUSTERS_TESTED
    warnings = [TOO_FEW] if few else []
    warnings += [LARGEST] if any(measure.passes is None for measure in measures) else []
    empty = [measure.label for measure in measures if not any(measure.rows())]
    if measures and len(empty) == len(measures):
        warnings.append(NOTHING)
    elif empty and key not in ("text", "weights"):
        warnings.append(f"{NOTHING.removesuffix('.')}: {', '.join(empty)}.")
    shown = one_line(_TITLES.get(title, title))
    return Question(key, shown, kinds.get(key, "own"), varies, tuple(warnings), columns, view, tuple(measures), tables)


def _measure(scores: HeadScores, column: str, label: str, at_least: float | None) -> Measure:
    """The measure of scores without further dimensions."""
    table = scores.to_dataframe()
    null = null_of(scores)
    table = table.assign(null=np.nan if null is None else null, carried=carrying_prompts(scores).ravel() >= 0)
    least = at_least if at_least is not None else _least(scores)
    counts = n_prompts(scores)
    beyond = _beyond(table, null or 0.0, least)
    if beyond is not None and "harmless" in scores.dataset:  # a ratio; one of its two effects must be large enough
        either = np.fmax(*(scores.dataset[name].values.ravel() for name in ("harmful", "harmless")))
        beyond = beyond & (either >= SMALLEST["nats"])
    return Measure(column, label, scores.unit, counts, table, beyond, least)


def _least(scores: HeadScores) -> float | None:
    """The smallest effect worth naming; None if the unit has none."""
    if "total" in scores.dataset and scores.unit == "logits":
        whole = abs(float(scores.dataset["total"].values.mean()))
        return LEAST_OF_LOGITS * whole if isfinite(whole) else None
    return SMALLEST.get(scores.unit)


def _beyond(
    table: pd.DataFrame, null: float | Float[np.ndarray, " head"], least: float | None
) -> Bool[np.ndarray, " head"] | None:
    """Which heads' intervals lie beyond the smallest effect; None if there is no smallest effect or no interval."""
    low, high = table["ci_low"].to_numpy() - null, table["ci_high"].to_numpy() - null
    if least is None or not np.isfinite(low).any():
        return None
    return (low >= least) | (high <= -least)


def _text_measures(profile: HeadProfile) -> Iterator[Measure]:
    """A measure for each behaviour: its share of attention, and which heads have its name."""
    data = profile.dataset
    for at, behaviour in enumerate(PROFILED):
        part = profile.select(behaviour=behaviour)
        null = data["null"].values[..., at].ravel()
        table = part.to_dataframe().assign(null=null, carried=False)
        column = f"by_{behaviour}" if behaviour == "position" else f"to_{behaviour}"
        unit = "share of variance" if behaviour == "position" else "share of attention"
        named = data["named"].values[..., at].astype(bool).ravel()
        yield Measure(column, NAMES[behaviour], unit, data.sizes.get("prompt", 0), table, named)


def _relation_measures(labels: HeadLabels, relations: HeadScores | None, at_least: float | None) -> Iterator[Measure]:
    """A measure for each relation: phi, with its null."""
    data = labels.dataset
    layers, heads = data.sizes["layer"], data.sizes["head"]
    at = pd.DataFrame({"layer": np.repeat(np.arange(layers), heads), "head": np.tile(np.arange(heads), layers)})
    for number, relation in enumerate(data["relation"].values.tolist()):
        phi, low, high, null = (
            data[name].values[..., number].ravel() for name in ("phi", "phi_low", "phi_high", "null_phi")
        )
        table = at.assign(score=phi, ci_low=low, ci_high=high, p_family=np.nan, null=null, carried=False)
        n = 0
        if relations is not None and relations.values is not None:
            n = int(np.isfinite(relations.values.values[..., number, :]).any((0, 1)).sum())
        least = SMALLEST["share of pairs"] if at_least is None else at_least
        beyond = _beyond(table, null, least)
        above = None if beyond is None else beyond & (phi > null)
        yield Measure("phi", f"{_PHI_OF}{relation}", labels.unit, n, table, above, least)


def counted(scores: HeadScores) -> str:
    """How many prompts, and in how many clusters, the scores are means over; empty if they are not means."""
    clusters = n_clusters(scores)
    if clusters is None:
        return ""
    prompts = _count(n_prompts(scores), sample_of(scores.kind))
    return f"{prompts} in {_count(clusters, 'cluster')}" if clusters < n_prompts(scores) else prompts


def _count(n: int, one: str) -> str:
    return f"{n:,} {one}{'s' * (n != 1)}"


def one_line(text: str) -> str:
    """A user's text for a heading: on one line, without control characters, and not too long."""
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in re.sub(r"\s+", " ", text).strip())
    return shortened(shown)


def _key(column: str) -> str:
    if column.startswith("ships_"):
        return "requests"
    return "weights" if column == "phi" else "pairs"


def _prompts(scores: HeadScores) -> set[str]:
    """The fingerprints of the prompts of scores, from their provenance."""
    return set(str(scores.provenance.get("prompts", "")).split("+")) - {""}


_MOST_LABELS = 12
"""Scores with further dimensions have a view for each label if there are no more than this."""
FURTHEST = "furthest"
"""The entry of the provenance that lists the dimensions in which the label furthest from 0 was taken."""
_LONGEST = 48
_ENDINGS = ("_ci_low", "_ci_high", "_range_low", "_range_high", "_p_family", "_q")
_TAKEN = {"layer", "head", "names", "categories", "best_relation", "p", "q", "and", "or", "not", "unclassified"}
"""Columns of every atlas, and words with another meaning in a search line."""


class OwnView(NamedTuple):
    """One view of scores of your own, without further dimensions."""

    label: str  # for people: the name of the scores, with the label that was selected
    scores: HeadScores
    of: tuple[str, int]  # the name of the scores, and how many views they have


def own_views(own: Mapping[str, HeadScores], taken: Collection[str] = ()) -> dict[str, OwnView]:
    """The views of scores of your own, by their columns: one for each label of a further dimension, if there are few.
    Of more than ``_MOST_LABELS`` labels, each head has the score of the one at which it is furthest from 0.
    """
    views: dict[str, OwnView] = {}
    for name, scores in own.items():
        parts = _parts(scores)
        for description, part in parts:
            label = f"{name}, {description}" if description else name
            views[_unused(own_column(label), {*views, *taken})] = OwnView(label, part, (name, len(parts)))
    return views


def own_file(name: str) -> str:
    """The name of the file, without ``.nc``, for scores of your own in an atlas; it depends on their name alone."""
    return f"own_{short_hash(name)}"


def own_column(name: str) -> str:
    """The table's column for scores of your own: their name, without characters that a search line cannot read."""
    column = re.sub(r"\W+", "_", name)[:_LONGEST].strip("_") or "own"
    is_no_name = not column[0].isalpha() or re.fullmatch(r"[LH]\d+(H\d+)?", column, re.IGNORECASE)
    begins_as_ours = column.lower().startswith(("ships_", "generalized_"))
    column = f"own_{column}" if is_no_name or begins_as_ours else column
    return f"{column}_score" if column.lower().endswith(_ENDINGS) else column


def _unused(column: str, names: Collection[str]) -> str:
    """The column, with a number if the name is taken."""
    taken = _TAKEN | {name.lower() for name in names}
    numbered = (column if number == 1 else f"{column}_{number}" for number in range(1, len(taken) + 2))
    return next(each for each in numbered if each.lower() not in taken)


_PARTS: WeakKeyDictionary[HeadScores, list[tuple[str, HeadScores]]] = WeakKeyDictionary()
"""The parts of scores, cached because a page needs them many times."""


def _parts(scores: HeadScores) -> list[tuple[str, HeadScores]]:
    """Scores split into parts without further dimensions, each with a description; "" for scores without any."""
    if not scores.extra_dims:
        return [("", scores)]
    if scores not in _PARTS:
        parts = list(_selected(scores))
        measured = [(description, part) for description, part in parts if np.isfinite(part.scores.values).any()]
        _PARTS[scores] = measured or parts[:1]
    return _PARTS[scores]


def _selected(scores: HeadScores) -> Iterator[tuple[str, HeadScores]]:
    """A part for each label, or for the label furthest from 0 if there are many."""
    reduced = []
    while np.prod([scores.dataset.sizes[dim] for dim in scores.extra_dims], initial=1) > _MOST_LABELS:
        longest = max(scores.extra_dims, key=lambda dim: scores.dataset.sizes[dim])
        reduced.append(f"{longest} furthest from 0")
        scores = _furthest(scores, longest)
    labels = [scores.dataset[dim].values.tolist() for dim in scores.extra_dims]
    for chosen in product(*labels):
        selected = dict(zip(scores.extra_dims, chosen, strict=True))
        part = scores.select(**selected) if selected else scores
        yield ", ".join([*(f"{dim} {label}" for dim, label in selected.items()), *reduced]), part


def _furthest(scores: HeadScores, dim: str) -> HeadScores:
    """The scores of each head at the label of a dimension where it is furthest from 0."""
    dataset = scores.dataset[[name for name in (*STATISTICS, *RANGE, "values", "cluster") if name in scores.dataset]]
    at = abs(dataset["score"]).fillna(-1).argmax(dim)
    chosen = dataset.isel({dim: at}).drop_vars(dim)
    order = [each for each in dataset["score"].dims if each != dim]
    chosen["score"] = chosen["score"].transpose(*order)
    before = scores.provenance.get(FURTHEST, [])
    return HeadScores(chosen).with_provenance(**{FURTHEST: [*before, dim]})
