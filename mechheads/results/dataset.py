"""The layout of a result in its ``xarray.Dataset``, and netCDF files, written completely or not at all."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pandas as pd
import xarray as xr

from mechheads.io.text import check_unicode, labels as labels_of, parse_json
from mechheads.io.write import write_file
from mechheads.limits import current
from mechheads.messages.notices import until_interrupted, warn
from mechheads.results.kinds import kind_of
from mechheads.results.stats import (
    Bounds,
    bounded_interval,
    cluster_range,
    family_p,
    mean_over_prompts,
    q_values,
    rounding_of,
    sign_flip_p,
)

SCHEMA_VERSION = 1
STATISTICS = ("score", "ci_low", "ci_high", "p_value", "q_value", "p_family")
RANGE = ("range_low", "range_high")
"""Present only if some scores have exactly two clusters, which are too few for an interval."""
_RESERVED = {"layer", "head", "prompt", "values", "cluster", *STATISTICS, *RANGE}
Label = str | int | float


def build(
    statistics: Mapping[str, np.ndarray],
    *,
    name: str,
    kind: str,
    unit: str | None = None,
    extra: Mapping[str, Sequence[Label]] | None = None,
    provenance: Mapping[str, Any] | None = None,
) -> xr.Dataset:
    """The dataset of a result with its score and statistics; q is computed, and missing statistics are NaN."""
    score = statistics["score"]
    labels = {dim: text_or_numbers(dim, names) for dim, names in (extra or {}).items()}
    if taken := sorted(labels.keys() & _RESERVED):
        raise ValueError(
            f"{', '.join(taken)} cannot name an extra dimension, because HeadScores uses it; choose another name"
        )
    if score.ndim != 2 + len(labels) or score.shape[2:] != tuple(map(len, labels.values())):
        needed = ", ".join(["layer", "head", *(f"{dim}: {len(names)}" for dim, names in labels.items())])
        raise ValueError(f"the scores have shape {score.shape}, but layers, heads and extra labels need ({needed})")
    for dim, names in labels.items():
        if len(set(names.tolist())) < len(names):
            raise ValueError(f"extra[{dim!r}] contains a label twice; labels must differ, so that one can be selected")
    dims = ("layer", "head", *labels)
    arrays = dict.fromkeys(STATISTICS, np.full_like(score, np.nan)) | dict(statistics)
    arrays["q_value"] = q_values(arrays["p_value"])
    return xr.Dataset(
        {variable: (dims, array) for variable, array in arrays.items()},
        coords={"layer": np.arange(score.shape[0]), "head": np.arange(score.shape[1]), **labels},
        attrs={
            "schema_version": SCHEMA_VERSION,
            "name": check_unicode(name, "name"),
            "unit": check_unicode(kind_of(kind).unit if unit is None else unit, "unit"),
            "kind": check_unicode(kind, "kind"),
            "provenance": json.dumps(dict(provenance or {})),
        },
    )


def of_means(
    values: np.ndarray, cluster: Sequence[object] | np.ndarray | None, metadata: Mapping[str, Any], **test: Any
) -> xr.Dataset:
    """The dataset of means over prompts; ``metadata`` is as in ``build``, ``test`` has null, bounds, rounding and seed.
    If Ctrl-C or a lack of memory ends the statistics, they are NaN; the values, which took longer, are stored."""
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(f"values has shape {values.shape}; it needs at least one prompt on its last axis")
    labels = labels_of(range(values.shape[-1]) if cluster is None else cluster)
    test = {"seed": current().seed, "rounding": rounding_of(values)} | test
    bounds = Bounds.of(test["bounds"])
    flips = {name: test[name] for name in ("null", "seed", "rounding")}
    statistics: dict[str, np.ndarray] = {}
    stopped = ""
    with until_interrupted() as interrupts:
        try:
            low, high = bounded_interval(values, labels, bounds=bounds)
            computed = {"ci_low": low, "ci_high": high}
            if test["null"] is not None:
                computed["p_value"] = sign_flip_p(values, labels, **flips)
                computed["p_family"] = family_p(values, labels, **flips)
            ranges = dict(zip(RANGE, cluster_range(values, labels), strict=True))
            statistics = computed | (ranges if np.isfinite(ranges[RANGE[0]]).any() else {})
        except MemoryError:
            stopped = "memory ran out"
    if stopped := "Ctrl-C" if interrupts.interrupted else stopped:
        warn(
            f"{stopped} ended the statistics of {metadata['name']!r}: its intervals, p and q values are NaN, but the "
            "value of each prompt is kept; HeadScores.from_values(result.values, ...) computes them"
        )
    if interrupts.interrupted:
        metadata = {**metadata, "provenance": {**(metadata.get("provenance") or {}), "interrupted": True}}
    dataset = build(statistics | {"score": mean_over_prompts(values)}, **metadata)
    recorded = test | {"bounds": None if bounds is None else bounds.packed()}
    dims = (*dataset["score"].dims, "prompt")
    return dataset.assign(values=(dims, values), cluster=("prompt", text_or_numbers("cluster", labels))).assign_attrs(
        statistics=json.dumps(recorded)
    )


def read(path: Path, variable: str, what: str) -> xr.Dataset:
    """The dataset of a result, read from its file; it must contain ``variable``, and messages call it ``what``."""
    dataset = read_netcdf(path)
    attrs = dataset.attrs
    foreign = f"was not written by mechheads: it contains no {what}"
    if not {"schema_version", "name", "kind", "provenance"} <= attrs.keys():
        raise ValueError(f"{path} {foreign}")
    if variable not in dataset:
        raise ValueError(f"{path} contains no {what}, but a result of the kind {attrs['kind']!r}")
    version = attrs["schema_version"]
    if version not in range(1, SCHEMA_VERSION + 1):
        raise ValueError(
            f"{path} was written by a newer mechheads (schema version {version}; this one reads up to "
            f"{SCHEMA_VERSION}): update mechheads"
        )
    for name in ("provenance", "statistics"):
        if not isinstance(parse_json(str(attrs.get(name, "{}")), f"the {name} of {path}"), dict):
            raise ValueError(f"{path} {foreign}: its {name} is not a JSON object")
    return dataset.assign_attrs(schema_version=int(version))


def text_or_numbers(dim: str, labels: Sequence[Label]) -> np.ndarray:
    """Labels as an array: text as Python strings, numbers as numbers."""
    labels = list(labels)
    if all(isinstance(label, str) for label in labels):
        return text_array([check_unicode(str(label), dim) for label in labels])
    if all(isinstance(label, (int, float, np.number)) for label in labels):
        return np.asarray(labels)
    raise ValueError(f"the labels of {dim} must be all text or all numbers; got {labels[:5]}")


def like(score: np.ndarray, array: np.ndarray | None, what: str) -> np.ndarray:
    """``array`` as floats in the shape of ``score``; all NaN if ``array`` is None."""
    if array is None:
        return np.full_like(score, np.nan)
    if np.shape(array) != score.shape:
        raise ValueError(f"{what} has shape {np.shape(array)}; score has {score.shape}")
    return np.asarray(array, dtype=np.float64)


def table_of(part: xr.Dataset, dims: Sequence[str]) -> pd.DataFrame:
    """A row for each label of the dimensions, with a column for each dimension and variable."""
    frame = part.to_dataframe(dim_order=list(dims)).reset_index()
    return pd.DataFrame(frame.loc[:, [*dims, *map(str, part.data_vars)]])


_MARK = b"\nmechheads sha256 "
_LENGTH = len(_MARK) + 64
_TABLES = (".csv", ".tsv", ".xlsx", ".parquet", ".json", ".jsonl", ".txt")
_OTHER_SUFFIXES = (*_TABLES, ".html", ".png", ".svg", ".pdf", ".npy", ".npz", ".pt", ".pkl", ".safetensors")
"""Suffixes of files that are not netCDF."""
_ONLY_A_SIZE = b"This is a netCDF dimension but not a netCDF variable"
"""The mark of netCDF-4 for the array of a dimension without labels, which is never read."""


def write_netcdf(dataset: xr.Dataset, path: str | Path) -> Path:
    """Write a file, completely or not at all, and return its path."""
    path = Path(path)
    if path.suffix.lower() in _OTHER_SUFFIXES:
        message = f"path is {path.name!r}, but save writes netCDF; write .save({path.with_suffix('.nc').name!r})"
        table = path.suffix.lower() in _TABLES
        raise ValueError(message + "; for a table, scores.to_dataframe() and result.table have .to_csv" * table)
    attrs = {name: _stored(value) for name, value in dataset.attrs.items()}
    texts = {name: each.copy(data=text_array(each.values)) for name, each in dataset.items() if each.dtype.kind in "OU"}
    stored = dataset.assign(texts).assign_attrs(attrs)
    return write_file(path, with_checksum(bytes(stored.to_netcdf(engine="h5netcdf"))))


def read_netcdf(path: Path) -> xr.Dataset:
    """Read a file into memory and close it."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    unreadable = f"{path} is not a netCDF file that mechheads can read"
    try:
        checked = _has_checksum(path)
        with h5py.File(path, "r") as file:  # h5netcdf may print further errors if it cannot open it
            for name in map(str, file):
                if fault := _fault(file, name):
                    raise ValueError(f"{unreadable}: its variable {name!r} {fault}")
        if not checked:
            raise ValueError(f"{path} is damaged, or mechheads did not write it: its checksum is missing")
        return xr.load_dataset(path, engine="h5netcdf", decode_times=False)
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{unreadable}: {error}") from error


def with_checksum(content: bytes) -> bytes:
    """The content of a file with its SHA-256 at the end, which makes a flipped bit an error."""
    return content + _MARK + hashlib.sha256(content).hexdigest().encode()


def _has_checksum(path: Path) -> bool:
    """Whether a file ends in a checksum, which is then checked."""
    content = path.read_bytes()
    if not content[-_LENGTH:].startswith(_MARK):
        return False
    if with_checksum(content[:-_LENGTH]) != content:
        raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not match")
    return True


def _fault(file: h5py.File, name: str) -> str | None:
    """Why a variable cannot be read, or None. Only numbers and texts stored in the file itself are read."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return "points to other data"
    part = file[name]
    if not isinstance(part, h5py.Dataset):
        return "is not an array"
    if part.external or part.is_virtual:
        return "is stored in other files"
    text = h5py.check_string_dtype(part.dtype)
    if text is None and part.dtype.kind not in "iufb":
        return "holds neither numbers nor texts"
    only_a_size = bytes(part.attrs.get("NAME", b"")).startswith(_ONLY_A_SIZE)
    if part.id.get_storage_size() < part.nbytes and not only_a_size:
        return f"claims {part.nbytes:,} bytes, but the file stores {part.id.get_storage_size():,}"
    return None


def text_array(texts: Sequence[str] | np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of Python strings as a file stores them, by default in the shape of ``texts``."""
    array = np.array(np.frompyfunc(_stored, 1, 1)(np.asarray(texts, dtype=object)), dtype=object)
    return array if shape is None else array.reshape(shape)


def _stored(value: Any) -> Any:
    """A text with the symbol for NUL in place of NUL, which HDF5 cannot store; any other value unchanged."""
    return value.replace("\0", "\u2400") if isinstance(value, str) else value
