"""Result files that somebody else wrote: what is not in the file itself, or claims more than it has, is not read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import mechheads as mh
from mechheads.results import dataset
from mechheads.results.dataset import read_netcdf


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
    ],
)
def test_a_file_of_other_parts_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[h5py.File, Path], Any], message: str
):
    made_by(change, tmp_path / "a.nc")
    monkeypatch.setattr(dataset.xr, "load_dataset", None)
    with pytest.raises(ValueError, match=message):
        read_netcdf(tmp_path / "a.nc")


def test_a_result_with_many_long_labels_is_read_as_it_was_saved(tmp_path: Path):
    labels = [f"template {i} \0 {'ä' * (i % 50)}" for i in range(3000)]
    made = mh.HeadScores.from_values(np.zeros((1, 2, 3000)), name="ü" * 5000, kind="demo", cluster=labels)
    read = mh.HeadScores.load(made.save(tmp_path / "a.nc"))
    assert read.dataset["cluster"].values.tolist() == labels
    assert read.name == "ü" * 5000
