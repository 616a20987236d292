"""``TableResult``: a result about sets of heads, as a tidy table with provenance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import pandas as pd

from mechheads.results import netcdf
from mechheads.results.citations import citation
from mechheads.results.contents import FIELDS, from_dataset, to_dataset
from mechheads.results.dataset import SCHEMA_VERSION, read
from mechheads.results.html import html_result
from mechheads.results.kinds import draw, kind_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

_T = TypeVar("_T", bound="TableResult")


class TableResult:
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
    """What a file contains; mostly also the analysis, whose papers, unit and figure ``mechheads.results.kinds`` has."""

    name: str
    unit: str
    table: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C stopped the analysis, so that a part is missing."""
        return bool(self.provenance.get("interrupted", False))

    def save(self, path: str | Path) -> Path:
        """Write everything to a netCDF file, completely or not at all, and return its path.

        Raises:
            FileNotFoundError: if the folder does not exist.
            ValueError: if a field is of a type that cannot be saved.
        """
        about = {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "unit": self.unit,
            "kind": self.KIND,
            "provenance": json.dumps(self.provenance),
        }
        netcdf.write(to_dataset(vars(self), _classes()).assign_attrs(about), Path(path))
        return Path(path)

    @classmethod
    def load(cls: type[_T], path: str | Path) -> _T:
        """Read a file that ``save`` wrote.

        Raises:
            FileNotFoundError: if the file does not exist.
            ValueError: if it contains something else, is damaged, or was written by a newer version.
        """
        dataset = read(Path(path), FIELDS, cls.__name__)
        if (kind := dataset.attrs["kind"]) != getattr(cls, "KIND", None):
            raise ValueError(f"{path} contains {_content(kind)}")
        try:
            return cls(**from_dataset(dataset, _classes()))
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

    def citation(self) -> str:
        """BibTeX of the papers that this kind of result is based on, and a line with the library versions."""
        return citation(self._analysis(), self.provenance.get("versions"))

    def _analysis(self) -> str:
        """The name of the analysis in ``mechheads.results.kinds``."""
        return self.KIND

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r} in {self.unit}: {len(self.table)} rows>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        """The table that a notebook shows, and lines of text above it."""
        return self.table, ()

    def _repr_html_(self) -> str:
        table, notes = self._shown()
        return html_result(self, table, *notes)


def _classes() -> list[type[TableResult]]:
    """Every imported class of results; only these can be loaded."""
    return TableResult.__subclasses__()


def _content(kind: str) -> str:
    """What a file of this kind contains, and how to load it."""
    for known in _classes():
        if kind == known.KIND:
            return f"a {known.__name__}; use {known.__name__}.load"
    return f"another result, of the kind {kind!r}"
