"""``TableResult``, a result about sets of heads: a tidy table with provenance that can be saved; and ``Curves``.

Fields can be numbers, texts, heads, tables, arrays, ``HeadScores`` and other results. Arrays and the numbers of tables
become variables of one dataset, named after their fields: ``values``, ``table.score``. Everything else is stored as
JSON, together with how the parts belong together. A field of any other type cannot be saved, so reading a file creates
only these types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from mechheads.heads import HeadId
from mechheads.io.text import parse_json
from mechheads.messages.arguments import checked
from mechheads.results.dataset import SCHEMA_VERSION, read, write_netcdf
from mechheads.results.kinds import draw, kind_of
from mechheads.results.scores import HeadScores
from mechheads.results.shown import Shown

if TYPE_CHECKING:
    import plotly.graph_objects as go


_T = TypeVar("_T", bound="TableResult")


class TableResult(Shown):
    """A tidy table with provenance that can be shown, saved and cited.

    Results about sets of heads are subclasses: each is a frozen dataclass whose fields are numbers, texts, heads,
    tables, arrays, ``HeadScores``, or tuples, lists and dicts of these. ``save`` writes all fields to one file.

    Attributes:
        name: what was measured.
        unit: the unit of the table's numbers.
        table: the result, one row for each set of heads, prompt or step.
        provenance: what is needed to repeat it, in a form that JSON can store.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, eq=False, repr=False)
    ... class Lengths(TableResult):
    ...     KIND = "lengths"
    ...     name, unit = "lengths of prompts", "tokens"
    ...     table: pd.DataFrame
    ...     provenance: dict[str, Any]
    >>> Lengths(pd.DataFrame({"length": [5, 7]}), {"interrupted": False})
    <Lengths 'lengths of prompts' in tokens: 2 rows>
    """

    KIND: ClassVar[str]
    """The kind that files record; usually also the analysis, by its name in ``mechheads.results.kinds``."""

    name: str
    unit: str
    table: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped the analysis, so that a part is missing."""
        return bool(self.provenance.get("interrupted", False))

    @checked
    def save(self, path: str | Path) -> Path:
        """Write everything to a netCDF file, completely or not at all, and return its path."""
        attrs = {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "unit": self.unit,
            "kind": self.KIND,
            "provenance": json.dumps(self.provenance),
        }
        return write_netcdf(to_dataset(vars(self)).assign_attrs(attrs), path)

    @classmethod
    @checked
    def load(cls: type[_T], path: str | Path) -> _T:
        """Read a file that ``save`` wrote; as ``HeadScores.load``."""
        dataset = read(Path(path), FIELDS, cls.__name__)
        if (kind := dataset.attrs["kind"]) != getattr(cls, "KIND", None):
            known = next((each.__name__ for each in TableResult.__subclasses__() if kind == each.KIND), None)
            content = f"a {known}; use {known}.load" if known else f"another result, of the kind {kind!r}"
            raise ValueError(f"{path} contains {content}")
        try:
            return cls(**from_dataset(dataset))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} is damaged, or was changed after it was saved: {error}") from error

    def plot(self, **options: Any) -> go.Figure:
        """The figure of this kind of result; options are passed to its function in ``mechheads.plots``.

        Raises:
            ValueError: if this kind has no figure.
        """
        figure = kind_of(self._analysis()).plot
        if figure is None:
            raise ValueError(f"{type(self).__name__} has no figure; plot its .table instead")
        return draw(figure, self, **options)

    def _analysis(self) -> str:
        """The name of the analysis in ``mechheads.results.kinds``."""
        return self.KIND

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}{self.unit and f' in {self.unit}'}: {len(self.table)} rows>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        return self.table, ()


FIELDS = "fields"
"""The name of the variable that contains the JSON."""
_NUMBERS = "biuf"
_COLUMN = re.compile(r"\w+( \w+)*")
Variables = dict[str, Any]


def to_dataset(fields: Mapping[str, Any]) -> xr.Dataset:
    """All fields of a result as a dataset."""
    variables: Variables = {}
    content = {name: _packed(name, value, variables) for name, value in fields.items()}
    return xr.Dataset({**variables, FIELDS: ((), json.dumps(content))})


def from_dataset(dataset: xr.Dataset) -> dict[str, Any]:
    """The fields that ``to_dataset`` wrote."""
    try:
        content = parse_json(str(dataset[FIELDS].item()), FIELDS)
        return {name: _unpacked(packed, dataset) for name, packed in content.items()}
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(f"its {FIELDS} do not match its variables ({type(error).__name__}: {error})") from error


def _packed(name: str, value: Any, variables: Variables) -> Any:
    """A value as JSON; its arrays become variables, whose names begin with ``name``."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, HeadId):
        return {"head": str(value)}
    if isinstance(value, HeadScores):
        data = value.dataset
        for key, variable in data.variables.items():
            variables[f"{name}.{key}"] = [f"{name}.{dim}" for dim in variable.dims], variable.values
        return {"scores": {"name": name, "coords": [*map(str, data.coords)], "attrs": dict(data.attrs)}}
    if isinstance(value, pd.DataFrame):
        return {"table": _packed_table(name, value, variables)}
    if isinstance(value, np.ndarray) and value.dtype.kind in _NUMBERS:
        variables[name] = [f"{name}.{axis}" for axis in range(value.ndim)], value
        return {"array": name}
    if isinstance(value, TableResult):
        fields = {key: _packed(f"{name}.{key}", part, variables) for key, part in vars(value).items()}
        return {"result": type(value).__name__, "fields": fields}
    if isinstance(value, (tuple, list)):
        items = [_packed(f"{name}.{i}", item, variables) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        parts = enumerate(value.items())
        return {"dict": {key: _packed(f"{name}.{i}", item, variables) for i, (key, item) in parts}}
    raise ValueError(f"{name} is a {type(value).__name__}, which cannot be saved")


def _packed_table(name: str, table: pd.DataFrame, variables: Variables) -> dict[str, Any]:
    """A table as JSON; its columns of numbers become variables."""
    if not table.index.equals(pd.RangeIndex(len(table))):
        raise ValueError(f"{name} has an index that is not 0, 1, 2, ..., which cannot be saved; call reset_index()")
    columns = []
    for column in table.columns:
        if not (isinstance(column, str) and _COLUMN.fullmatch(column)):
            raise ValueError(f"{name} has a column {column!r}; rename it to letters and digits")
        values, cells = table[column], None
        if isinstance(values.dtype, np.dtype) and values.dtype.kind in _NUMBERS:
            variables[f"{name}.{column}"] = [f"{name}.row"], values.to_numpy()
        else:
            cells = _packed(f"{name}.{column}", values.tolist(), variables)
        columns.append({"name": column, "dtype": str(values.dtype), "cells": cells})
    return {"name": name, "rows": len(table), "columns": columns}


def _unpacked(packed: Any, dataset: xr.Dataset) -> Any:
    """The value that ``_packed`` turned into this JSON."""
    if not isinstance(packed, dict):
        return packed
    kind, content = next(iter(packed.items()))
    match kind:
        case "head":
            return HeadId.parse(content)
        case "scores":
            return _unpacked_scores(dataset, **content)
        case "table":
            return _unpacked_table(dataset, **content)
        case "array":
            return dataset[content].values
        case "result":
            known = {each.__name__: each for each in TableResult.__subclasses__()}  # only these can be loaded
            return known[content](**{key: _unpacked(part, dataset) for key, part in packed["fields"].items()})
        case "tuple":
            return tuple(_unpacked(item, dataset) for item in content)
        case "list":
            return [_unpacked(item, dataset) for item in content]
        case "dict":
            return {key: _unpacked(item, dataset) for key, item in content.items()}
    raise KeyError(kind)


def _unpacked_table(dataset: xr.Dataset, name: str, rows: int, columns: list[dict[str, Any]]) -> pd.DataFrame:
    table = {}
    for column in columns:
        cells = _unpacked(column["cells"], dataset)
        values = dataset[f"{name}.{column['name']}"].values if cells is None else cells
        table[column["name"]] = pd.Series(values, index=range(rows), dtype=column["dtype"])
    return pd.DataFrame(table, index=range(rows))


def _unpacked_scores(dataset: xr.Dataset, name: str, coords: list[str], attrs: dict[str, Any]) -> HeadScores:
    start = f"{name}."
    variables = {
        str(key).removeprefix(start): ([str(dim).removeprefix(start) for dim in variable.dims], variable.values)
        for key, variable in dataset.variables.items()
        if str(key).startswith(start)
    }
    return HeadScores(xr.Dataset(variables).set_coords(coords).assign_attrs(attrs))


@dataclass(frozen=True, eq=False, repr=False)
class Curves(TableResult):
    """One number as a set of heads grows: a line for each order of heads, beside lines of random orders.

    Attack curves, role curves, removal and the circuit of an atlas return this.

    Attributes:
        kind: the analysis, such as "attack_curve".
        name: what was tested: a metric, a task, a relation, or requests.
        table: a row for each line and size. ``which``: the name of the line; lines of random orders are "random 1" and
            so on. ``k``: how many heads. ``score`` with ``ci_low`` and ``ci_high``, in ``unit``; and other measures of
            the analysis.
        order: for each line, its heads in order.
        values: for each row of the table, one number per prompt or seed, in the unit of the number that is averaged;
            NaN where an interrupted run did not get to.
        more: further results of the analysis, by name.
        provenance: what is needed to repeat it.
    """

    KIND = "curves"

    kind: str
    name: str
    table: pd.DataFrame
    order: Mapping[str, tuple[HeadId, ...]]
    values: Float[np.ndarray, "row prompt"]
    more: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def unit(self) -> str:
        """The unit of the score."""
        return kind_of(self.kind).unit

    @property
    def heads(self) -> tuple[Any, ...]:
        """The order of the first line."""
        return next(iter(self.order.values()))

    def _analysis(self) -> str:
        return self.kind

    def __repr__(self) -> str:
        stopped = ", interrupted" if self.interrupted else ""
        unit = self.unit and f" in {self.unit}"
        lines = ", ".join(which for which in self.order if not is_random(which))
        return f"<Curves {self.kind!r} of {self.name!r}{unit}{stopped}: {lines}>"

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        drawn: Any = self.table["which"].map(is_random)
        table = self.table[~drawn].pivot(index="k", columns="which", values="score")
        if drawn.any():
            table = table.join(
                self.table[drawn].pivot_table("score", "k").rename(columns={"score": "random"}), how="outer"
            )
        return table, [self.provenance["judged"]] if "judged" in self.provenance else []


def is_random(which: object) -> bool:
    """Whether a line, by its name, is one of the random orders."""
    return re.fullmatch(r"random \d+", str(which)) is not None
