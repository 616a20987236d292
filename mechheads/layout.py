"""How a result lies in its ``xarray.Dataset``: dimensions, labels, variables and attributes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from mechheads.netcdf import text_array
from mechheads.stats import q_values

SCHEMA_VERSION = 1
STATISTICS = ("score", "ci_low", "ci_high", "p_value", "q_value")
_RESERVED = {"layer", "head", "prompt", "values", "cluster", *STATISTICS}
Label = str | int | float


def build(
    statistics: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    extra: Mapping[str, Sequence[Label]] | None,
    name: str,
    unit: str,
    kind: str,
    provenance: Mapping[str, Any] | None,
    variables: Mapping[str, Any] | None,
) -> xr.Dataset:
    """The dataset of a result from score, ci_low, ci_high and p_value, with labels checked and q computed.

    Raises:
        ValueError: if shapes and labels do not fit together, or a name is taken.
    """
    score, low, high, p = statistics
    labels = {dim: text_or_numbers(dim, known) for dim, known in (extra or {}).items()}
    if taken := sorted({*labels, *(variables or {})} & _RESERVED):
        raise ValueError(f"{', '.join(taken)} cannot name an extra dimension or variable: HeadScores uses it itself")
    if score.ndim != 2 + len(labels) or score.shape[2:] != tuple(map(len, labels.values())):
        wanted = ", ".join(["layer", "head", *(f"{dim}: {len(known)}" for dim, known in labels.items())])
        raise ValueError(f"the scores have shape {score.shape}; layers, heads and extra labels ask for ({wanted})")
    for dim, known in labels.items():
        if len(set(known.tolist())) < len(known):
            raise ValueError(f"extra[{dim!r}] holds a label twice; labels must differ, so that one can be selected")
    dims = ("layer", "head", *labels)
    arrays = dict(zip(STATISTICS, (score, low, high, p, q_values(p)), strict=True))
    return xr.Dataset(
        {variable: (dims, array) for variable, array in arrays.items()},
        coords={"layer": np.arange(score.shape[0]), "head": np.arange(score.shape[1]), **labels},
        attrs={
            "schema_version": SCHEMA_VERSION,
            "name": _plain("name", name),
            "unit": _plain("unit", unit),
            "kind": _plain("kind", kind),
            "provenance": json.dumps(dict(provenance or {})),
        },
    ).assign(variables or {})


def text_or_numbers(dim: str, labels: Sequence[Label]) -> np.ndarray:
    """Labels as an array: text as Python strings, numbers as numbers.

    Raises:
        ValueError: for a mixture, or text that is not valid Unicode.
    """
    known = list(labels)
    if all(isinstance(label, str) for label in known):
        return text_array([_plain(dim, str(label)) for label in known], (len(known),))
    if all(isinstance(label, (int, float, np.number)) for label in known):
        return np.asarray(known)
    raise ValueError(f"the labels of {dim} must be all text or all numbers; got {known[:5]}")


def _plain(what: str, text: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(f"{what} holds {text!r}, which is not valid Unicode: half of a surrogate pair") from error
    return text


def like(score: np.ndarray, array: np.ndarray | None, what: str) -> np.ndarray:
    """``array`` as floats in the shape of ``score``; NaN where there is none.

    Raises:
        ValueError: if it has another shape.
    """
    if array is None:
        return np.full_like(score, np.nan)
    if np.shape(array) != score.shape:
        raise ValueError(f"{what} has shape {np.shape(array)}; score has {score.shape}")
    return np.asarray(array, dtype=np.float64)
