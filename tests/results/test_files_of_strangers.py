"""Result files that somebody else wrote: what would take more memory than the file has is refused unread."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mechheads as mh
from mechheads.results import netcdf

TEXT = h5py.string_dtype()


def share_one_text(path: Path, copies: int, size: int) -> None:
    """Make all cells of a text variable point to one long text."""
    with h5py.File(path, "w") as file:
        file["score"] = np.zeros((1, 1))
        cells = file.create_dataset("cluster", shape=(copies,), dtype=TEXT)
        cells[:] = "y"
        cells[0] = "x" * size
        at = cells.id.get_offset()
    with open(path, "r+b") as raw:
        raw.seek(at)
        one = raw.read(16)
        raw.seek(at)
        raw.write(one * copies)


@pytest.mark.parametrize(("copies", "size"), [(10_000, 900_000), (3, 20_000)])
def test_texts_that_share_one_place_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copies: int, size: int
):
    share_one_text(tmp_path / "a.nc", copies, size)
    monkeypatch.setattr(netcdf.xr, "load_dataset", None)
    with pytest.raises(ValueError, match=f"its texts would take {copies * size:,} bytes or more, but the file has"):
        netcdf.read(tmp_path / "a.nc")


def made_by(change: Callable[[h5py.File, Path], Any], path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["score"] = np.zeros((1, 1))
        change(file, path)


def virtual(file: h5py.File, path: Path) -> None:
    layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
    layout[:] = h5py.VirtualSource(str(path), "score", shape=(4,))
    file.create_virtual_dataset("more", layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file, path: file.__setitem__("more", h5py.SoftLink("/score")), "'more' points to other data"),
        (lambda file, path: file.__setitem__("more", h5py.ExternalLink("b.nc", "/a")), "'more' points to other data"),
        (virtual, "'more' is stored in other files"),
        (
            lambda file, path: file.create_dataset("more", (4,), "f8", external=[("/etc/hostname", 0, 32)]),
            "'more' is stored in other files",
        ),
        (lambda file, path: file.create_group("more"), "'more' is not an array"),
        (lambda file, path: file.create_dataset("more", data=np.zeros(10**6), compression="gzip"), "is compressed"),
        (lambda file, path: file.create_dataset("more", data=np.zeros(9), fletcher32=True), "'more' is compressed"),
        (lambda file, path: file.create_dataset("more", (10**9,), "f8"), "claims 8,000,000,000 bytes"),
        (lambda file, path: file.create_dataset("more", data=file.ref, dtype=h5py.ref_dtype), "neither numbers nor"),
        (lambda file, path: file.create_dataset("more", (2,), h5py.vlen_dtype("f8")), "neither numbers nor texts"),
        (lambda file, path: file.create_dataset("more", (2,), [("a", "f8"), ("b", "i4")]), "neither numbers nor texts"),
        (lambda file, path: file.create_dataset("more", (4,), TEXT, chunks=(2,)), "keeps its texts in chunks"),
        (lambda file, path: file.attrs.create("more", ["a"] * 900, dtype=TEXT), "'more' holds 900 texts"),
        (lambda file, path: file["score"].attrs.create("more", ["a"] * 900, dtype=TEXT), "'more' holds 900 texts"),
    ],
)
def test_a_file_of_other_parts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[h5py.File, Path], Any], message: str
):
    made_by(change, tmp_path / "a.nc")
    monkeypatch.setattr(netcdf.xr, "load_dataset", None)
    with pytest.raises(ValueError, match=message):
        netcdf.read(tmp_path / "a.nc")


def test_a_result_with_many_long_labels_is_read_as_it_was_saved(tmp_path: Path):
    labels = [f"template {i} \0 {'ä' * (i % 50)}" for i in range(3000)]
    made = mh.HeadScores.from_values(np.zeros((1, 2, 3000)), name="ü" * 5000, kind="demo", cluster=labels)
    read = mh.HeadScores.load(made.save(tmp_path / "a.nc"))
    assert read.dataset["cluster"].values.tolist() == labels
    assert read.name == "ü" * 5000
