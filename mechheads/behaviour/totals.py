"""What has been measured so far, in memory that does not grow with the text, and the file from which it continues."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.measure import MEASURES
from mechheads.behaviour.windows import Windows
from mechheads.files.tensors import TensorFile, check_marks
from mechheads.model.model import Model

_BLOCKS = 256
_EVERY = 5.0
"""Seconds between two writes of a checkpoint."""
_FILE = TensorFile(
    "mechheads profile 1",
    "checkpoint {path} is not the checkpoint of a profile and was not changed; give another path",
    ("marks", "counts"),
)


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over windows, in at most 256 blocks of as many windows each. Full blocks are merged two by two.

    Attributes:
        sums, counts: of each measure over the windows of a block that have it.
        at_distance: attention at each distance.
        width: the number of windows in a block.
        batches, windows, tokens: how many have been measured.
        texts: a hash of all tokens so far.
    """

    sums: Float[Tensor, "measure layer head block"]
    counts: Float[Tensor, "measure block"]
    at_distance: Float[Tensor, "layer head distance"]
    width: int = 1
    batches: int = 0
    windows: int = 0
    tokens: int = 0
    texts: str = ""

    @classmethod
    def none(cls, model: Model, window: int) -> Totals:
        """Nothing has been measured."""
        shape = len(MEASURES), model.n_layers, model.n_heads
        sizes = (*shape, _BLOCKS), (len(MEASURES), _BLOCKS), (*shape[1:], window)
        sums, counts, at_distance = (torch.zeros(size, dtype=torch.float64) for size in sizes)
        return cls(sums, counts, at_distance)

    def plus(self, windows: Windows, found: Tensor, at_distance: Tensor) -> Totals:
        """These totals and a batch of windows. An interrupt changes nothing in the old ones."""
        sums, counts, width = self.sums.clone(), self.counts.clone(), self.width
        for number, values in enumerate(found.cpu().unbind(-1), self.windows):
            if number == _BLOCKS * width:
                sums, counts, width = _merged(sums), _merged(counts), 2 * width
            sums[..., number // width] += values.nan_to_num(0)
            counts[:, number // width] += values.isfinite().flatten(1).any(1)
        at_every = self.at_distance.clone()
        at_every[..., : at_distance.shape[-1]] += at_distance.cpu()
        return Totals(
            sums,
            counts,
            at_every,
            width,
            self.batches + 1,
            self.windows + len(windows.ids),
            self.tokens + windows.ids.numel(),
            hash_of(self.texts, windows),
        )

    @property
    def values(self) -> Float[Tensor, "measure layer head block"]:
        """The mean over the windows of each block; NaN if none of them has the measure."""
        return (self.sums / self.counts[:, None, None])[..., : -(-self.windows // self.width)]


def hash_of(before: str, windows: Windows) -> str:
    """A hash of a batch and of all batches before it."""
    return hashlib.sha256(f"{before}{windows.ids.tolist()}".encode()).hexdigest()


class Work:
    """The totals of a stream of batches, and the file from which they continue.

    Args:
        nothing: totals of no windows.
        marks: returns what identifies the work besides the texts; called only if there is a file.
        path: the file; None to keep nothing.

    Raises:
        ValueError: if the file is from other work, or its folder does not exist.
    """

    def __init__(self, nothing: Totals, marks: Callable[[], Mapping[str, str]], path: Path | None) -> None:
        self.totals, self._path = nothing, path
        self._marks = {} if path is None else dict(marks())
        self._written = time.monotonic()
        if path is None:
            return
        if path.exists():
            self._read(path)
        elif not path.parent.is_dir():
            raise ValueError(f"checkpoint: there is no folder {path.parent} for {path}; create it first")

    def rest(self, batches: Iterator[Windows]) -> Iterator[Windows]:
        """The batches that have not been measured; those that have must be the same as then.

        Raises:
            ValueError: if they are not.
        """
        done, texts, number = self.totals.batches, "", 0
        for number, windows in enumerate(batches, 1):
            if number > done:
                yield windows
                continue
            texts = hash_of(texts, windows)
            if number == done and texts != self.totals.texts:
                raise self._other_texts
        if number < done:
            raise self._other_texts

    @property
    def _other_texts(self) -> ValueError:
        return ValueError(
            f"checkpoint {self._path} is from other texts; give the texts of the call that wrote it, delete the file, "
            "or give another path"
        )

    def see(self, totals: Totals) -> None:
        """Record new totals. They are written every few seconds."""
        self.totals = totals
        if time.monotonic() - self._written > _EVERY:
            self.write()

    def write(self) -> None:
        """Write the totals. A reader sees either the old file or the new one."""
        self._written = time.monotonic()
        if self._path is None:
            return
        now = self.totals
        tensors = {"sums": now.sums, "counts": now.counts, "at_distance": now.at_distance}
        counts = {name: getattr(now, name) for name in ("width", "batches", "windows", "tokens", "texts")}
        _FILE.write(self._path, tensors, {"marks": json.dumps(self._marks), "counts": json.dumps(counts)})

    def _read(self, path: Path) -> None:
        tensors, about = _FILE.read(path)
        check_marks(path, json.loads(about["marks"]), self._marks, "profile")
        self.totals = replace(self.totals, **tensors, **json.loads(about["counts"]))


def _merged(blocks: Float[Tensor, "*of block"]) -> Float[Tensor, "*of block"]:
    """Neighbouring blocks added, followed by empty ones."""
    return torch.cat([blocks[..., 0::2] + blocks[..., 1::2], torch.zeros_like(blocks[..., 0::2])], dim=-1)
