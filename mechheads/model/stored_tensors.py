"""Tensors in safetensors files, in a folder or on the hub, read by ranges of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from huggingface_hub import HfApi, HfFileSystem
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mechheads.model.sources import ModelSourceError
from mechheads.model.stored_weight_layouts import read_json

WHOLE, INDEX = "model.safetensors", "model.safetensors.index.json"
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True)
class StoredTensor:
    """Where a stored tensor is, its dtype and its shape; ``begin`` counts bytes from the end of the file's header."""

    file: str
    kind: str
    shape: tuple[int, ...]
    begin: int = 0

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.kind]

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def pieces(self, piece_bytes: int) -> Iterator[tuple[int, int]]:
        """Ranges of rows of about ``piece_bytes`` bytes each."""
        rows = max(1, piece_bytes // self.row_bytes)
        for start in range(0, self.shape[0], rows):
            yield start, min(start + rows, self.shape[0])


@runtime_checkable
class TensorStore(Protocol):
    """Tensors that can be read by ranges of rows. Two ranges less than ``gap`` bytes apart are read as one."""

    gap: int

    @property
    def tensors(self) -> Mapping[str, StoredTensor]: ...

    def read(self, tensor: str, runs: Sequence[tuple[int, int]]) -> Tensor: ...


class TensorFolder:
    """Safetensors in a folder. A shard is open only while it is read, because its mapped pages count as memory."""

    gap = 0

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        index = folder / INDEX
        if (folder / WHOLE).is_file():
            place, files = None, [WHOLE]
        elif index.is_file():
            place = read_json(index, name).get("weight_map")
            if not isinstance(place, dict) or not all(isinstance(file, str) for file in place.values()):
                raise ModelSourceError(f"folder_or_repo {name!r}: {INDEX} has no weight_map from tensors to files")
            files = sorted(set(place.values()))
        else:
            raise ModelSourceError(f"folder_or_repo {name!r} has no safetensors: neither {WHOLE} nor {INDEX}")
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise ModelSourceError(
                f"folder_or_repo {name!r} is incomplete: {INDEX} names {missing[0]}, which does not exist "
                f"({len(missing)} of {len(files)} shards are missing); download it again"
            )
        self.tensors: dict[str, StoredTensor] = {}
        for file in files:
            try:
                with safe_open(folder / file, framework="pt") as shard:
                    for tensor in shard.keys():  # noqa: SIM118 (a shard is not a dict)
                        if place is None or place.get(tensor) == file:
                            part = shard.get_slice(tensor)
                            self.tensors[tensor] = StoredTensor(file, part.get_dtype(), tuple(part.get_shape()))
            except SafetensorError as error:
                raise ModelSourceError(
                    f"folder_or_repo {name!r}: {file} is cut short or damaged ({error}); download it again"
                ) from error

    def read(self, tensor: str, runs: Sequence[tuple[int, int]]) -> Tensor:
        with safe_open(self._folder / self.tensors[tensor].file, framework="pt") as shard:
            part = shard.get_slice(tensor)
            return torch.cat([part[start:stop] for start, stop in runs])


class TensorRepo:
    """Safetensors on the hub, read by ranges of bytes."""

    gap = 2**20

    def __init__(self, repo: str, commit: str | None) -> None:
        self._root, self._files = f"{repo}@{commit}", HfFileSystem()
        self._headers: dict[str, int] = {}
        about = HfApi().get_safetensors_metadata(repo, revision=commit)
        self.tensors = {
            tensor: StoredTensor(file, str(info.dtype), tuple(info.shape), info.data_offsets[0])
            for file, part in about.files_metadata.items()
            for tensor, info in part.tensors.items()
            if about.weight_map.get(tensor) == file
        }

    def read(self, tensor: str, runs: Sequence[tuple[int, int]]) -> Tensor:
        stored = self.tensors[tensor]
        if stored.file not in self._headers:
            self._headers[stored.file] = 8 + int.from_bytes(self._bytes(stored.file, 0, 8), "little")
        begin, row = self._headers[stored.file] + stored.begin, stored.row_bytes
        return torch.cat(
            [
                torch.frombuffer(
                    bytearray(self._bytes(stored.file, begin + start * row, begin + stop * row)), dtype=stored.dtype
                ).view(-1, *stored.shape[1:])
                for start, stop in runs
            ]
        )

    def _bytes(self, file: str, start: int, stop: int) -> bytes:
        found: Any = self._files.cat_file(f"{self._root}/{file}", start, stop, cache_type="none")
        if len(found) != stop - start:
            raise ModelSourceError(f"{self._root}/{file} is cut short: it has no bytes {start}..{stop}")
        return found
