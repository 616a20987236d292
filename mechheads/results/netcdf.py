"""Datasets to netCDF files and back, whole or not at all, with any text in their labels."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from mechheads.files import checksums
from mechheads.files.text import parse_json
from mechheads.messages.warn import warn

_ENCODED = "json:"
_SEALED = "mechheads_checksum"
"""An attribute that says that a checksum is there."""
_ONLY_A_SIZE = b"This is a netCDF dimension but not a netCDF variable"
"""How netCDF-4 marks an array that stands for a dimension without labels; it is never read."""


def write(dataset: xr.Dataset, path: Path) -> None:
    """Write through a temporary file beside ``path``, so that a reader sees the old file or the new one.

    Raises:
        FileNotFoundError: if the folder is not there.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save to {path}: there is no folder {path.parent}")
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        sealed = _map_text(dataset, _encode).assign_attrs({_SEALED: "after the end of the HDF5 data"})
        sealed.to_netcdf(unfinished, engine="h5netcdf")
        checksums.append(unfinished)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path) -> xr.Dataset:
    """Read a file into memory and close it. One without a checksum gets a warning.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is not netCDF-4, damaged, or takes its content from elsewhere.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    unreadable = f"{path} is not a netCDF file that mechheads can read"
    try:
        checked = checksums.has_appended(path)
        with h5py.File(path, "r") as file:  # h5netcdf leaves noise behind when it cannot open a file
            for name in map(str, file):
                if fault := _fault(file, name):
                    raise ValueError(f"{unreadable}: its variable {name!r} {fault}")
            if not checked and _SEALED in file.attrs:
                raise ValueError(f"{path} is damaged, or was changed after it was saved: it lost its checksum")
        dataset = xr.load_dataset(path, engine="h5netcdf", decode_times=False)
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{unreadable}: {error}") from error
    if not checked:
        warn(f"{path} has no checksum, so that damage goes unnoticed: another program or an early mechheads wrote it")
    dataset.attrs.pop(_SEALED, None)
    return _map_text(dataset, _decode)


def _fault(file: h5py.File, name: str) -> str | None:
    """What keeps a variable from being read; numbers and texts of the file itself are all that is read."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return "points to other data"
    part = file[name]
    if not isinstance(part, h5py.Dataset):
        return "is no array"
    if part.external or part.is_virtual:
        return "is stored in other files"
    only_a_size = bytes(part.attrs.get("NAME", b"")).startswith(_ONLY_A_SIZE)
    if part.id.get_storage_size() < part.nbytes and not only_a_size:
        return f"claims {part.nbytes:,} bytes and holds {part.id.get_storage_size():,}"
    return None


def _map_text(dataset: xr.Dataset, change: Callable[[str], str]) -> xr.Dataset:
    texts = {
        name: (variable.dims, text_array([change(text) for text in variable.values.ravel()], variable.shape))
        for name, variable in dataset.variables.items()
        if variable.dtype.kind in "OUT"
    }
    attrs: dict[Any, Any] = {
        name: change(value) if isinstance(value, str) else value for name, value in dataset.attrs.items()
    }
    return (
        dataset.assign({k: v for k, v in texts.items() if k not in dataset.coords})
        .assign_coords({k: v for k, v in texts.items() if k in dataset.coords})
        .assign_attrs(attrs)
    )


def text_array(texts: list[str], shape: tuple[int, ...]) -> np.ndarray:
    """An array of Python strings: NumPy's own text type would drop trailing NULs."""
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array.reshape(shape)


def _encode(text: str) -> str:
    """HDF5 text cannot hold NUL: such text is stored as JSON behind a mark."""
    return _ENCODED + json.dumps(text) if "\0" in text or text.startswith(_ENCODED) else text


def _decode(text: str) -> str:
    return str(parse_json(text.removeprefix(_ENCODED), "a label")) if text.startswith(_ENCODED) else text
