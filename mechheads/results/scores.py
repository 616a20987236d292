"""``HeadScores``: the result of an analysis, a score for every head with interval and provenance."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partialmethod
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Int, Num

from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.messages.arguments import check_at_least, check_known, checked, did_you_mean
from mechheads.results.arithmetic import Comparison, check_aligned, combine, compare
from mechheads.results.dataset import (
    RANGE,
    STATISTICS,
    Label,
    build,
    like,
    of_means,
    read,
    table_of,
    write_netcdf,
)
from mechheads.results.kinds import HEATMAP, SMALLEST, draw, kind_of, sample_of
from mechheads.results.provenance import make_provenance
from mechheads.results.shown import Rows, Shown, chosen, head_names, pairs_left_out
from mechheads.results.stats import LEAST_OF_BOUNDED, Bounds, carried_by

if TYPE_CHECKING:
    import plotly.graph_objects as go

FEW = "6 or more independent prompts allow a test over heads."
CARRIED = "one prompt carries it"
NOTHING = "No head beyond the smallest effect worth naming."
LARGEST = "The 10 largest: these have no interval, or no smallest effect worth naming."
RankBy = Literal["score", "absolute"]

_S = TypeVar("_S", bound="HeadScores")
_SEVERAL = {"pos": "positions", "category": "categories"}
"""Dimensions whose plural is not their name with an s."""


class HeadScores(Shown):
    """Scores of every head, with intervals, per-prompt values and provenance.

    ``dataset`` contains ``score``, ``ci_low``, ``ci_high``, ``p_value``, ``q_value`` and ``p_family`` over layer, head
    and any extra labelled dimensions such as ``pos`` or ``relation``. If scores are means over prompts, it also
    contains ``values`` and ``cluster``. Its attributes are ``name``, ``unit``, ``kind``, ``provenance`` and
    ``schema_version``. NaN means "not measured" or "not defined". If only two clusters of prompts were measured, too
    few for an interval, ``range_low`` and ``range_high`` are their means. Scores that align can be added and
    subtracted. With a number, scores can be added, subtracted, multiplied and divided.

    >>> import numpy as np
    >>> values = np.arange(12.0).reshape(1, 2, 6)  # [layer, head, prompt]
    >>> scores = HeadScores.from_values(values, name="effect", unit="logits", kind="demo")
    >>> scores
    <HeadScores 'effect' in logits: 1 layer x 2 heads, 6 prompts>
    >>> scores.heads(1)
    (HeadId(layer=0, head=1),)
    >>> scores["L0H1"]["score"]
    8.5
    """

    KIND: ClassVar[str | None] = None
    """The kind of all scores of a subclass."""

    def __init__(self, dataset: xr.Dataset) -> None:
        """Wrap a dataset that is laid out as above; missing statistics are NaN."""
        if "score" not in dataset or dataset["score"].dims[:2] != ("layer", "head"):
            raise ValueError("dataset has no variable 'score' over (layer, head, ...)")
        if absent := [name for name in ("name", "unit", "kind", "provenance") if name not in dataset.attrs]:
            raise ValueError(f"dataset lacks the attributes {', '.join(absent)}")
        empty = xr.full_like(dataset["score"], np.nan, dtype=np.float64)
        self.dataset = dataset.assign({name: empty for name in STATISTICS if name not in dataset})

    @classmethod
    def from_values(
        cls: type[_S],
        values: Num[np.ndarray, "layer head *extra prompt"],
        *,
        name: str,
        kind: str,
        unit: str | None = None,
        extra: Mapping[str, Sequence[Label]] | None = None,
        provenance: Mapping[str, Any] | None = None,
        cluster: Sequence[object] | np.ndarray | None = None,
        bounds: Sequence[Any] | None = None,
    ) -> _S:
        """Scores that are means over prompts, with clustered intervals, p, family p and q values.

        ``p_family`` is the p of each head in the family of all heads and labels (see ``stats.family_p``). p values test
        whether a mean is the null of the kind, which is 0 for kinds of your own; values that cannot be below 0 are not
        tested. Sign flips have the seed of ``mh.settings``.

        Args:
            values: one value per head and prompt (and extra labels); NaN means "not measured".
            name: what is measured, such as "activation patching, z".
            kind: the analysis, such as "activation_patch"; ``citation`` uses it to choose the papers.
            unit: such as "logits"; by default, the unit of the kind.
            extra: further dimensions in the order of the axes of ``values``, each with its labels.
            provenance: what is needed to repeat the run, in a form that JSON can store.
            cluster: a label per prompt; prompts that share one are not independent. By default, each prompt has its
                own.
            bounds: the range of the values, such as ``(0, 1)``, or ``(0, None)`` if nothing is below 0; for values
                of 0 and 1, ``(0, 1, True)``, and for their differences ``(-1, 1, True)``. Intervals lie within them
                (``stats.bounded_interval``). By default, the bounds of the kind.

        If Ctrl-C or a lack of memory ends the statistics, intervals, p, family p and q values are NaN, with a warning.

        Raises:
            ValueError: if shapes, labels and clusters do not match.
        """
        metadata = {"name": name, "kind": kind, "unit": unit, "extra": extra, "provenance": provenance}
        within = Bounds.of(kind_of(kind).bounds if bounds is None else bounds)
        null = None if within is not None and within.low >= 0 else kind_of(kind).null
        return cls(of_means(values, cluster, metadata, null=null, bounds=within))

    @classmethod
    def from_scores(
        cls: type[_S],
        score: Num[np.ndarray, "layer head *extra"],
        *,
        name: str,
        kind: str,
        unit: str | None = None,
        extra: Mapping[str, Sequence[Label]] | None = None,
        provenance: Mapping[str, Any] | None = None,
        interval: tuple[Num[np.ndarray, "..."], Num[np.ndarray, "..."]] | None = None,
        p_value: Num[np.ndarray, "..."] | None = None,
    ) -> _S:
        """Scores that are not means over prompts, with the interval and p value that the analysis provides.

        The two ends of ``interval`` and ``p_value`` have the shape of ``score``; each may be left out. The other
        arguments are as in ``from_values``. q values are computed from ``p_value``.

        Raises:
            ValueError: if shapes and labels do not match.
        """
        score = np.asarray(score, dtype=np.float64)
        if interval is not None and len(interval) != 2:
            raise ValueError(f"interval has {len(interval)} parts; give its lower and its upper end")
        low, high = (None, None) if interval is None else interval
        statistics = {
            "score": score,
            "ci_low": like(score, low, "interval[0]"),
            "ci_high": like(score, high, "interval[1]"),
            "p_value": like(score, p_value, "p_value"),
        }
        return cls(build(statistics, name=name, kind=kind, unit=unit, extra=extra, provenance=provenance))

    def assign(self: _S, **variables: Any) -> _S:
        """The same scores with further variables in their dataset, as ``xarray.Dataset.assign`` takes them."""
        if taken := variables.keys() & {"score", "values", "cluster"}:
            raise ValueError(f"{min(taken)} cannot be assigned: its intervals and p would stay; choose another name")
        return type(self)(self.dataset.assign(variables))

    @property
    def scores(self) -> xr.DataArray:
        """The scores, (layer, head, extra dimensions)."""
        return self.dataset["score"]

    @property
    def values(self) -> xr.DataArray | None:
        """The per-prompt values, (layer, head, extra dimensions, prompt); ``None`` if there are none."""
        return self.dataset.get("values")

    @property
    def n_layers(self) -> int:
        return self.dataset.sizes["layer"]

    @property
    def n_heads(self) -> int:
        """Heads per layer."""
        return self.dataset.sizes["head"]

    @property
    def extra_dims(self) -> tuple[str, ...]:
        """The names of the dimensions after layer and head."""
        return tuple(str(dim) for dim in self.scores.dims[2:])

    @property
    def name(self) -> str:
        return self.dataset.attrs["name"]

    @property
    def unit(self) -> str:
        return self.dataset.attrs["unit"]

    @property
    def kind(self) -> str:
        return self.dataset.attrs["kind"]

    @property
    def provenance(self) -> dict[str, Any]:
        return json.loads(self.dataset.attrs["provenance"])

    def with_provenance(self: _S, **more: Any) -> _S:
        """The same scores with further entries in their provenance."""
        return type(self)(self.dataset.assign_attrs(provenance=json.dumps(make_provenance(self.provenance, more))))

    @property
    def missing(self) -> tuple[HeadId, ...]:
        """Heads that the analysis was to measure and that have no score, for example after Ctrl-C."""
        absent = np.argwhere(self.scores.isnull().all(self.extra_dims).values).tolist()
        provenance = self.provenance
        unmeasured = [head for head in starmap(HeadId, absent) if str(head) not in provenance.get("given", ())]
        selected = provenance.get("senders", provenance.get("heads"))
        names = {selected} if isinstance(selected, str) else set(selected or ())
        if not names or names == {"all"}:
            return tuple(unmeasured)
        return tuple(head for head in unmeasured if str(head) in names)

    def select(self, **labels: Label | Sequence[Label]) -> HeadScores:
        """Select labels of the extra dimensions: one label drops its dimension, a list keeps it.

        ``q_value`` and ``p_family`` stay as they were: selecting a part does not undo the tests of the whole.

        Raises:
            ValueError: if there is no such dimension or label.
        """
        index: dict[str, Any] = {}
        for dim, wanted in labels.items():
            if dim not in self.extra_dims:
                raise ValueError(f"there is no dimension {dim!r} to select from; choose among {list(self.extra_dims)}")
            known = self.dataset[dim].values.tolist()
            for label in wanted if (several := isinstance(wanted, (list, tuple))) else [wanted]:
                if label not in known:
                    shown = ", ".join(map(repr, known[:20])) + (", ..." if len(known) > 20 else "")
                    meant = did_you_mean(label, [name for name in known if isinstance(name, str)])
                    raise ValueError(f"{dim} has no label {label!r}; it has {shown}.{meant}")
            index[dim] = [known.index(label) for label in wanted] if several else known.index(wanted)
        chosen = {**self.provenance.get("selected", {}), **labels}
        return HeadScores(self.dataset.isel(index, drop=True)).with_provenance(selected=chosen)

    def __getitem__(self, head: HeadLike) -> Any:
        """One head: a dict of its statistics; with extra dimensions, a table with one row per label."""
        at = check_head(head, self.n_layers, self.n_heads)
        part = self._statistics.isel(layer=at.layer, head=at.head)
        if not self.extra_dims:
            return {"layer": at.layer, "head": at.head} | {str(n): float(part[n]) for n in part.data_vars}
        return Rows(table_of(part, self.extra_dims))

    def to_dataframe(self) -> Rows:
        """One row per head and label: layer, head, labels, score, ci_low, ci_high, p_value, q_value, p_family.

        The rows are named after the heads, as in ``table.loc["L23H4"]``. If only two clusters were measured, the table
        has ``range_low`` and ``range_high`` in addition, because there is no interval. Scores of relations have
        ``null_phi``, phi with shuffled targets.
        """
        table = table_of(self._statistics, ("layer", "head", *self.extra_dims))
        rows = Rows(table.set_index(pd.Index(head_names(table))))
        rows.attrs = {"n": self.dataset.sizes["prompt"]} if self._too_few or self._has_intervals else {}
        return rows

    @property
    def _has_intervals(self) -> bool:
        return self.values is not None and bool(self.dataset["ci_low"].notnull().any())

    @property
    def _too_few(self) -> bool:
        """Whether these are means over so few clusters of prompts that no score has an interval."""
        few = self.values is not None and len(np.unique(self.dataset["cluster"].values)) < LEAST_OF_BOUNDED
        return few and not self._has_intervals

    @property
    def _statistics(self) -> xr.Dataset:
        names = [name for name in (*STATISTICS, *RANGE) if name in self.dataset]
        return self.dataset[[*names, "null_phi"] if self._has_null_phi else names]

    @property
    def _has_null_phi(self) -> bool:
        return "null_phi" in self.dataset and self.dataset["null_phi"].dims == self.scores.dims

    def top(self, k: int = 10, by: RankBy = "score", columns: Sequence[str] | None = None) -> Rows:
        """The ``k`` rows of ``to_dataframe`` with the largest score, or the largest absolute score.

        Rows without a score are left out, and for labels also heads without the category. Equal scores stay in the
        order of layer and head.

        Args:
            columns: only these, in this order. All columns are there by default, but at most eight are shown.

        Raises:
            ValueError: if ``k`` is below 1, ``by`` is neither "score" nor "absolute", or there is no such column.

        >>> scores = HeadScores.from_scores(np.array([[0.25, 0.5]]), name="effect", kind="demo")
        >>> scores.top(1)
        head  score
        L0H1     0.5
        """
        check_at_least(1, k=k)
        return chosen(self._ranked(by).head(k), columns)

    def beyond(self, at_least: float | None = None) -> Rows:
        """The rows of ``to_dataframe`` whose interval lies beyond the smallest effect worth naming, the largest first.

        The effect is the distance from the score of a head that does nothing: the null of the kind, or for relations
        phi with shuffled targets. Rows of both signs are included.

        Args:
            at_least: the smallest effect, in the unit of the scores; by default 0.05 for shares restored, 0.1 for nats,
                and 0.1 for shares of attention and of pairs.

        Raises:
            ValueError: if it is below 0, or missing for a unit that has no default.

        >>> values = np.random.default_rng(0).normal([[[0.2], [-0.5], [0.01]]], 0.02, size=(1, 3, 8))
        >>> HeadScores.from_values(values, name="effect", unit="share restored", kind="demo").beyond().index.tolist()
        ['L0H1', 'L0H0']
        """
        least = SMALLEST.get(self.unit) if at_least is None else at_least
        if least is None:
            raise ValueError(f"at_least: scores in {self.unit or 'no unit'} have no smallest effect; give one")
        check_at_least(0, at_least=least)
        null = kind_of(self.kind).null or 0.0
        if self._has_null_phi:
            null = self.dataset["null_phi"].fillna(0.0)
        low, high = (self.dataset[end] - null for end in ("ci_low", "ci_high"))
        named = ((low >= least) | (high <= -least)).transpose("layer", "head", *self.extra_dims).values.ravel()
        rows = self.to_dataframe()
        order = self._order(rows, "absolute")
        return rows.iloc[order[named[order]]]

    def heads(self, k: int = 10, by: RankBy = "score") -> tuple[HeadId, ...]:
        """The first ``k`` heads of the ranking, each once even if it ranks under several labels, as in ``top``."""
        check_at_least(1, k=k)
        ranked = self._ranked(by)[["layer", "head"]].to_numpy()
        return tuple(dict.fromkeys(HeadId(*pair) for pair in ranked.tolist()))[:k]

    def _ranked(self, by: RankBy) -> Rows:
        check_known("by", by, RankBy)
        rows = self.to_dataframe()
        return rows.iloc[self._order(rows, by)]

    def _order(self, rows: Rows, by: RankBy) -> Int[np.ndarray, " row"]:
        """The indices of the rows of ``to_dataframe`` that have a score, largest first."""
        keys = rows["score"].to_numpy(dtype=np.float64)
        ranked = ~np.isnan(keys)
        if "member" in self.dataset:
            member = self.dataset["member"].transpose("layer", "head", *self.extra_dims)
            ranked &= member.values.ravel().astype(bool)
        indices = np.flatnonzero(ranked)
        return indices[np.argsort(-(np.abs(keys) if by == "absolute" else keys)[indices], kind="stable")]

    def compare(self, other: HeadScores, k: int = 10) -> Comparison:
        """Compare with another result over the same heads and labels: correlations and overlap of the ``k`` largest.

        A dimension with one label, such as a single relation, need not be in both.

        Raises:
            ValueError: if layers, heads or extra labels differ, or only one result has a dimension of several labels.
        """
        mine, theirs = _without_one_label(self, other), _without_one_label(other, self)
        check_aligned(mine, theirs)
        one, two = (each["score"].values.ravel() for each in (mine, theirs))
        return compare(one, two, k, (self.name, other.name))

    @checked
    def save(self, path: str | Path) -> Path:
        """Write everything to a netCDF file, completely or not at all, and return its path."""
        return write_netcdf(self.dataset, path)

    @classmethod
    @checked
    def load(cls: type[_S], path: str | Path) -> _S:
        """Read a file that ``save`` wrote.

        Raises:
            FileNotFoundError: if the file does not exist.
            ValueError: if it contains something else, is damaged, or was written by a newer version.
        """
        dataset = read(Path(path), "score", "head scores")
        if cls.KIND not in (None, kind := dataset.attrs["kind"]):
            raise ValueError(f"{path} contains {kind!r} scores, not {cls.KIND!r}; use mh.HeadScores.load")
        return cls(dataset)

    def plot(self, **options: Any) -> go.Figure:
        """The figure of this kind of scores, or a heatmap over layers and heads.

        Options are passed to its function in ``mechheads.plots``: ``path_map``, ``category_map`` for labels,
        ``safety_map``, or ``heatmap``.
        """
        kind = kind_of(self.kind)
        whole = set(self.extra_dims) <= set(kind.needs) <= {*self.extra_dims, *self.dataset}
        return draw(kind.plot if kind.plot and whole else HEATMAP, self, **options)

    def _analysis(self) -> str:
        return self.kind

    def _combine(self, symbol: str, reflected: bool, other: Any) -> HeadScores:
        if isinstance(other, HeadScores):
            side: xr.Dataset | float = other.dataset
        elif isinstance(other, (int, float, np.integer, np.floating)) and not isinstance(other, bool):
            side = float(other)
        else:
            return NotImplemented
        sides = (side, self.dataset) if reflected else (self.dataset, side)
        return HeadScores(combine(*sides, symbol))

    __add__ = partialmethod(_combine, "+", False)
    __radd__ = partialmethod(_combine, "+", True)
    __sub__ = partialmethod(_combine, "-", False)
    __rsub__ = partialmethod(_combine, "-", True)
    __mul__ = partialmethod(_combine, "*", False)
    __rmul__ = partialmethod(_combine, "*", True)
    __truediv__ = partialmethod(_combine, "/", False)
    __rtruediv__ = partialmethod(_combine, "/", True)

    def __repr__(self) -> str:
        size = f"{self.n_layers} layer{'s' * (self.n_layers != 1)} x {self.n_heads} heads"
        sizes = {dim: self.dataset.sizes[dim] for dim in self.extra_dims}
        size += "".join(f" x {n} {dim if n == 1 else _SEVERAL.get(dim, f'{dim}s')}" for dim, n in sizes.items())
        if self.values is not None:
            n = self.dataset.sizes["prompt"]
            size += f", {n} {sample_of(self.kind)}{'s' * (n != 1)}"
        if RANGE[0] in self.dataset:
            some = "some with " if self.dataset["ci_low"].notnull().any() else ""
            size += f", {some}ranges of 2 clusters, not intervals"
        if self._too_few and RANGE[0] not in self.dataset:
            n = len(np.unique(self.dataset["cluster"].values))
            size += f" in {n} cluster{'s' * (n != 1)}, too few for intervals"
        size += f", {len(self.missing)} heads missing" if self.missing else ""
        size += ", value biases folded into b_O" if self.provenance.get("folded_value_biases") else ""
        return f"<{type(self).__name__} {self.name!r}{self.unit and f' in {self.unit}'}: {size}>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        """The rows beyond the smallest effect worth naming; without one, or without intervals, the ten largest."""
        notes = pairs_left_out(self.provenance.get("ledger", {}))
        notes += [FEW] if self.values is not None and len(set(self.dataset["cluster"].values.tolist())) < 6 else []
        if self.unit in SMALLEST and self.dataset["ci_low"].notnull().any():
            table = self.beyond()
            notes.append(f"at_least: {SMALLEST[self.unit]:g} {self.unit}")
            notes += [] if len(table) else [NOTHING]
        else:
            table = self.top(10, by="absolute")
            table = table.loc[table["score"] != 0, :]
            notes.append(LARGEST)
        return self._with_notes(table), notes

    def _with_notes(self, table: Rows) -> Rows:
        """The rows, with a column of notes if one prompt carries the score of some of them."""
        if self.values is None or not len(table):
            return table
        values = self.values.transpose("layer", "head", *self.extra_dims, "prompt").values
        at = [np.searchsorted(self.dataset[dim].values, table[dim]) for dim in ("layer", "head")]
        at += [[self.dataset[dim].values.tolist().index(label) for label in table[dim]] for dim in self.extra_dims]
        carried = carried_by(values[tuple(at)], self.dataset["cluster"].values) >= 0
        if not carried.any():
            return table
        noted = Rows(table.assign(note=np.where(carried, CARRIED, "")))
        noted.attrs = dict(table.attrs)
        return noted


def _without_one_label(scores: HeadScores, other: HeadScores) -> xr.Dataset:
    """The dataset without the dimensions of one label that the other scores lack."""
    lone = [dim for dim in scores.extra_dims if dim not in other.extra_dims and scores.dataset.sizes[dim] == 1]
    return scores.dataset.squeeze(lone, drop=True)
