"""Tensors in safetensors files, written completely or not at all, with a checksum of all tensors and texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mechheads.files.replacing import check_kind, replacing


@dataclass(frozen=True)
class TensorFile:
    """A kind of safetensors file: its format, what it must contain, and how an error names it.

    Attributes:
        format: the format's name and version, as stored in the file.
        foreign: how a message about a file of another kind begins; ``{path}`` stands for the file's path.
        texts: names of the texts that a file must contain besides its tensors.
    """

    format: str
    foreign: str
    texts: tuple[str, ...]

    def write(self, path: Path, tensors: Mapping[str, Tensor], texts: Mapping[str, str]) -> None:
        """Write a file, completely or not at all.

        Raises:
            OSError: if it cannot be written, for example because the disk is full.
            ValueError: if there is a file that is not of this kind.
        """
        check_kind(path, b"{", at=8)
        about = {"format": self.format, **texts}
        with replacing(path) as unfinished:
            try:
                save_file(dict(tensors), unfinished, about | {"checksum": _checksum(tensors, about)})
            except SafetensorError as error:
                raise OSError(str(error)) from error

    def read(self, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors of a file, on the CPU, and its texts.

        Raises:
            ValueError: if the file is of another kind or version, cut short, or damaged.
        """
        foreign = self.foreign.format(path=path)
        try:
            with safe_open(path, "pt") as file:
                about: dict[str, str] = file.metadata() or {}
                found = about.get("format", "unknown")
                if found != self.format:
                    raise ValueError(f"{foreign}: its format is {found!r}; expected {self.format!r}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file is not a dict)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ValueError(f"{foreign}: {error}") from error
        if about.pop("checksum", None) != _checksum(tensors, about):
            raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not match")
        if lacking := [name for name in self.texts if name not in about]:
            raise ValueError(f"{foreign}: it has no {' and no '.join(lacking)}")
        return tensors, about


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
