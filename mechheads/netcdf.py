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

_ENCODED = "json:"


def write(dataset: xr.Dataset, path: Path) -> None:
    """Write through a temporary file beside ``path``, so that a reader sees the old file or the new one.

    Raises:
        FileNotFoundError: if the folder is not there.
    """
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save to {path}: there is no folder {path.parent}")
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        _map_text(dataset, _encode).to_netcdf(unfinished, engine="h5netcdf")
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def read(path: Path) -> xr.Dataset:
    """Read a file into memory and close it.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it is not netCDF-4, or damaged.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        h5py.File(path, "r").close()  # h5netcdf leaves noise behind when it cannot open a file
        dataset = xr.load_dataset(path, engine="h5netcdf", decode_times=False)
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not a netCDF file that mechheads can read: {error}") from error
    return _map_text(dataset, _decode)


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
    return json.loads(text.removeprefix(_ENCODED)) if text.startswith(_ENCODED) else text
