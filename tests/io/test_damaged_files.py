"""Files that lie: flipped bits, content from elsewhere, claims that nothing stands behind. None loads other values."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import xarray as xr

import mechheads as mh
from mechheads.gating.fitted import Gates
from mechheads.results.dataset import with_checksum
from support.made_gates import made_gates

VALUES = np.random.default_rng(0).normal(size=(3, 4, 6))
Load = Callable[[Path], Iterable[np.ndarray]]


def save_scores(path: Path) -> Load:
    mh.HeadScores.from_values(VALUES, name="n", unit="u", kind="demo").save(path)

    def load(path: Path) -> Iterable[np.ndarray]:
        dataset = mh.HeadScores.load(path).dataset
        return [*(dataset[name].values for name in sorted(dataset.variables)), np.array(str(dataset.attrs))]

    return load


def save_gates(path: Path) -> Load:
    values = np.moveaxis(VALUES[..., :2], -1, 0)
    made_gates(values, values).save(path)
    return lambda path: [Gates.load(path).values]


@pytest.mark.parametrize("save", [save_scores, save_gates])
def test_no_flipped_bit_loads_other_values(save: Callable[[Path], Load], tmp_path: Path) -> None:
    load = save(tmp_path / "whole")
    whole, data = list(load(tmp_path / "whole")), (tmp_path / "whole").read_bytes()
    messages = []
    for seed in range(200):
        chosen = random.Random(seed)
        damaged = bytearray(data)
        for _ in range(1 + seed % 3):
            damaged[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        (tmp_path / "damaged").write_bytes(damaged)
        try:
            found = list(load(tmp_path / "damaged"))
        except ValueError as error:
            messages.append(str(error))
        else:
            assert len(found) == len(whole)
            assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(found, whole, strict=True))
    assert len(messages) >= 190
    assert all(str(tmp_path / "damaged") in message for message in messages)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return mh.HeadScores.from_values(VALUES, name="n", unit="u", kind="demo").save(tmp_path / "s.nc")


def edit(path: Path, change: Callable[[h5py.File], Any]) -> None:
    """Change a file by hand, and give it a checksum that is right."""
    with h5py.File(path, "a") as file:
        change(file)
    path.write_bytes(with_checksum(path.read_bytes()))


def test_a_result_says_that_it_was_damaged_or_changed(saved: Path) -> None:
    data = saved.read_bytes()
    saved.write_bytes(data[:3000] + bytes([data[3000] ^ 1]) + data[3001:])
    with pytest.raises(ValueError, match=r"s\.nc is damaged, or was changed after it was saved: its checksum does not"):
        mh.HeadScores.load(saved)
    for damaged in (data[:2000], with_checksum(b"XXXX".join(data.rsplit(b"OHDR", 1)))):  # cut; an object's header
        saved.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not a netCDF file that mechheads can read"):
            mh.HeadScores.load(saved)
    saved.write_bytes(data[:-81])
    with pytest.raises(ValueError, match="its checksum is missing"):
        mh.HeadScores.load(saved)
    with xr.open_dataset(saved, engine="h5netcdf") as plain:  # other programs read it all the same
        np.testing.assert_array_equal(plain["values"], VALUES)


def test_a_result_of_another_program_is_refused(tmp_path: Path, saved: Path) -> None:
    mh.HeadScores.load(saved).dataset.to_netcdf(tmp_path / "plain.nc", engine="h5netcdf")
    with pytest.raises(
        ValueError, match=r"plain\.nc is damaged, or mechheads did not write it: its checksum is missing"
    ):
        mh.HeadScores.load(tmp_path / "plain.nc")


def store_elsewhere(file: h5py.File) -> None:
    other = Path(file.filename).with_name("secret.bin")
    other.write_bytes(np.arange(12.0).tobytes())
    del file["score"]
    file.create_dataset("score", shape=(3, 4), dtype="<f8", external=[(str(other), 0, h5py.h5f.UNLIMITED)])


def link_elsewhere(file: h5py.File) -> None:
    other = Path(file.filename).with_name("other.h5")
    with h5py.File(other, "w") as theirs:
        theirs["x"] = np.zeros((3, 4))
    del file["score"]
    file["score"] = h5py.ExternalLink(str(other), "/x")


def compose(file: h5py.File) -> None:
    layout = h5py.VirtualLayout(shape=(3, 4), dtype="f8")
    layout[:] = h5py.VirtualSource("other.h5", "x", shape=(3, 4))
    del file["score"]
    file.create_virtual_dataset("score", layout)


def claim(file: h5py.File) -> None:
    del file["score"]
    file.create_dataset("score", shape=(10**6, 10**6), chunks=(1, 1000), dtype="f8")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (store_elsewhere, "'score' is stored in other files"),
        (link_elsewhere, "'score' points to other data"),
        (compose, "'score' is stored in other files"),
        (claim, "'score' claims 8,000,000,000,000 bytes, but the file stores 0"),
        (lambda file: file.create_dataset("more", data=file.ref, dtype=h5py.ref_dtype), "neither numbers nor texts"),
        (
            lambda file: file.attrs.__setitem__("schema_version", 2),
            r"written by a newer mechheads \(schema version 2; this one reads up to 1\): update mechheads",
        ),
        (lambda file: file.attrs.__setitem__("provenance", "[1]"), "its provenance is not a JSON object"),
        (lambda file: file.attrs.__setitem__("provenance", "[" * 20_000), "nested too deeply"),
    ],
)
def test_a_result_holds_its_own_numbers_and_nothing_else(
    change: Callable[[h5py.File], Any], why: str, saved: Path
) -> None:
    edit(saved, change)
    with pytest.raises(ValueError, match=why):
        mh.HeadScores.load(saved)
