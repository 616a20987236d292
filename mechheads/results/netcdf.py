"""Write datasets to netCDF files, completely or not at all, and read them. Labels may contain any text."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xarray as xr

from mechheads.io.text import parse_json
from mechheads.io.write import write_file
from mechheads.messages.warn import warn

_ENCODED = "json:"
_SEALED = "mechheads_checksum"
"""The attribute of a file that has a checksum."""
_MARK = b"\nmechheads sha256 "
_LENGTH = len(_MARK) + 64
_TABLES = (".csv", ".tsv", ".xlsx", ".parquet", ".json", ".jsonl", ".txt")
_OF_OTHERS = (*_TABLES, ".html", ".png", ".svg", ".pdf", ".npy", ".npz", ".pt", ".pkl", ".safetensors")
"""How the names of files of another kind end."""
_ONLY_A_SIZE = b"This is a netCDF dimension but not a netCDF variable"
"""How netCDF-4 marks the array of a dimension without labels; it is never read."""


def write(dataset: xr.Dataset, path: str | Path) -> Path:
    """Write a file, completely or not at all, and return its path."""
    path = Path(path)
    if path.suffix.lower() in _OF_OTHERS:
        told = f"path is {path.name!r}, but save writes netCDF; write .save({path.with_suffix('.nc').name!r})"
        table = path.suffix.lower() in _TABLES
        raise ValueError(told + "; for a table, scores.to_dataframe() and result.table have .to_csv" * table)
    sealed = _map_text(dataset, _encode).assign_attrs({_SEALED: "after the end of the HDF5 data"})
    return write_file(path, with_checksum(bytes(sealed.to_netcdf(engine="h5netcdf"))))


def read(path: Path) -> xr.Dataset:
    """Read a file into memory and close it. A file without a checksum gives a warning."""
    if not path.exists():
        raise FileNotFoundError(f"there is no file {path}")
    unreadable = f"{path} is not a netCDF file that mechheads can read"
    try:
        checked = _has_checksum(path)
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


def with_checksum(content: bytes) -> bytes:
    """The content of a file with its SHA-256 at the end, which makes a flipped bit an error."""
    return content + _MARK + hashlib.sha256(content).hexdigest().encode()


def _has_checksum(path: Path) -> bool:
    """Whether a file ends in a checksum, which is then checked."""
    whole = path.read_bytes()
    if not whole[-_LENGTH:].startswith(_MARK):
        return False
    if with_checksum(whole[:-_LENGTH]) != whole:
        raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not match")
    return True


def _fault(file: h5py.File, name: str) -> str | None:
    """Why a variable cannot be read, or None. Only numbers and texts that are in the file itself are read."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        return "points to other data"
    part = file[name]
    if not isinstance(part, h5py.Dataset):
        return "is not an array"
    if part.external or part.is_virtual:
        return "is stored in other files"
    if part.id.get_create_plist().get_nfilters():
        return "is compressed; mechheads writes plain numbers and texts"
    text = h5py.check_string_dtype(part.dtype)
    if text is None and part.dtype.kind not in "iufb":
        return "holds neither numbers nor texts"
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
