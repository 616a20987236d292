"""Write datasets to netCDF files, completely or not at all, and read them. Labels may contain any text."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from mechheads.files import checksums
from mechheads.files.replacing import write_file
from mechheads.files.text import parse_json
from mechheads.messages.warn import warn

_ENCODED = "json:"
_SEALED = "mechheads_checksum"
"""The attribute of a file that has a checksum."""
_ONLY_A_SIZE = b"This is a netCDF dimension but not a netCDF variable"
"""How netCDF-4 marks the array of a dimension without labels; it is never read."""


def write(dataset: xr.Dataset, path: str | Path) -> Path:
    """Write a file, completely or not at all, and return its path.

    Raises:
        FileNotFoundError: if the folder does not exist.
        OSError: if the file cannot be written, for example because the disk is full.
    """
    sealed = _map_text(dataset, _encode).assign_attrs({_SEALED: "after the end of the HDF5 data"})
    return write_file(Path(path), checksums.sealed(bytes(sealed.to_netcdf(engine="h5netcdf"))))


def read(path: Path) -> xr.Dataset:
    """Read a file into memory and close it. A file without a checksum gives a warning.

    Raises:
        FileNotFoundError: if the file does not exist.
        ValueError: if it is not netCDF-4, is damaged, or refers to data in other files.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    unreadable = f"{path} is not a netCDF file that mechheads can read"
    try:
        checked = checksums.has_appended(path)
        with h5py.File(path, "r") as file:  # h5netcdf may print further errors if it cannot open it
            for name in map(str, file):
                if fault := _fault(file, name):
                    raise ValueError(f"{unreadable}: its variable {name!r} {fault}")
            if not checked and _SEALED in file.attrs:
                raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum is missing")
        dataset = xr.load_dataset(path, engine="h5netcdf", decode_times=False)
    except (OSError, KeyError, RuntimeError, TypeError, AttributeError) as error:
        raise ValueError(f"{unreadable}: {error}") from error
    if not checked:
        warn(
            f"{path} has no checksum, so damage would not be noticed: another program or an early version of mechheads "
            "wrote it. Save it again to add a checksum"
        )
    dataset.attrs.pop(_SEALED, None)
    return _map_text(dataset, _decode)


def _fault(file: h5py.File, name: str) -> str | None:
    """Why a variable cannot be read, or None. Only numbers and texts that are in the file itself are read."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return "points to other data"
    part = file[name]
    if not isinstance(part, h5py.Dataset):
        return "is not an array"
    if part.external or part.is_virtual:
        return "is stored in other files"
    only_a_size = bytes(part.attrs.get("NAME", b"")).startswith(_ONLY_A_SIZE)
    if part.id.get_storage_size() < part.nbytes and not only_a_size:
        return f"claims {part.nbytes:,} bytes, but the file stores {part.id.get_storage_size():,}"
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


def text_array(texts: Sequence[str] | np.ndarray, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """An array of Python strings, because NumPy's text type would drop trailing NULs; by default shaped as given."""
    if isinstance(texts, np.ndarray):
        texts, shape = texts.ravel().tolist(), texts.shape if shape is None else shape
    array = np.empty(len(texts), dtype=object)
    array[:] = texts
    return array if shape is None else array.reshape(shape)


def _encode(text: str) -> str:
    """The text as it is stored. HDF5 text cannot contain NUL, so such text becomes JSON after a prefix."""
    return _ENCODED + json.dumps(text) if "\0" in text or text.startswith(_ENCODED) else text


def _decode(text: str) -> str:
    return str(parse_json(text.removeprefix(_ENCODED), "a label")) if text.startswith(_ENCODED) else text
