"""Deltas: small changes to the weights of a few heads, stored in one file and added to a model when it is loaded.

The file is safetensors, written completely or not at all, with a checksum of all tensors and texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mechheads.data import folder
from mechheads.heads import HeadId
from mechheads.io.write import check_kind, replacing

Side = Literal["W_Q", "W_O"]
SIDES: tuple[Side, ...] = ("W_Q", "W_O")
_FORMAT = "mechheads delta 1"


@dataclass(frozen=True, eq=False)
class Delta:
    """Changes to the weights W_Q [d_model, d_head] and W_O [d_head, d_model] of some heads.

    Attributes:
        weights: for each head, the changes that are added to its W_Q and W_O.
        about: where the delta comes from: the model it belongs to, seed, settings.
    """

    weights: Mapping[HeadId, Mapping[Side, Float[Tensor, "rows columns"]]]
    about: Mapping[str, Any]

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads that the delta changes, in order of layer and head."""
        return tuple(sorted(self.weights))

    def without(self, heads: Collection[HeadId]) -> Delta:
        """The delta without the changes of some heads."""
        return Delta({head: both for head, both in self.weights.items() if head not in heads}, self.about)

    def add_to(self, model: Any) -> None:
        """Add the changes in place to a transformers model whose modules are named as in Llama."""
        size = model.config.head_dim
        with torch.no_grad():
            for head, both in self.weights.items():
                attention = model.model.layers[head.layer].self_attn
                rows = slice(head.head * size, (head.head + 1) * size)
                attention.q_proj.weight[rows] += both["W_Q"].T.to(attention.q_proj.weight)
                attention.o_proj.weight[:, rows] += both["W_O"].T.to(attention.o_proj.weight)

    def save(self, path: Path) -> None:
        """Save the delta as safetensors in half precision.

        Raises:
            OSError: if it cannot be written, for example because the disk is full.
            ValueError: if there is a file that is not of this kind.
        """
        tensors = {
            f"{head}.{side}": both[side].half().contiguous() for head, both in self.weights.items() for side in SIDES
        }
        texts = {"format": _FORMAT, "about": json.dumps(self.about)}
        check_kind(path, b"{", at=8)
        with replacing(path) as unfinished:
            try:
                save_file(tensors, unfinished, texts | {"checksum": _checksum(tensors, texts)})
            except SafetensorError as error:
                raise OSError(str(error)) from error

    @classmethod
    def load(cls, path: Path) -> Delta:
        """Load a delta that ``save`` wrote.

        Raises:
            ValueError: if the file is of another kind or version, cut short, or damaged.
        """
        foreign = f"{path} is not a saved Delta"
        try:
            with safe_open(path, "pt") as file:
                texts: dict[str, str] = file.metadata() or {}
                found = texts.get("format", "unknown")
                if found != _FORMAT:
                    raise ValueError(f"{foreign}: its format is {found!r}; expected {_FORMAT!r}")
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (a file is not a dict)
        except (SafetensorError, OSError, RuntimeError) as error:
            raise ValueError(f"{foreign}: {error}") from error
        if texts.pop("checksum", None) != _checksum(tensors, texts):
            raise ValueError(f"{path} is damaged, or was changed after it was saved: its checksum does not match")
        if "about" not in texts:
            raise ValueError(f"{foreign}: it has no about")
        heads = sorted({HeadId.parse(name.split(".")[0]) for name in tensors})
        return cls(
            {head: {side: tensors[f"{head}.{side}"].float() for side in SIDES} for head in heads},
            json.loads(texts["about"]),
        )


def _checksum(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(sorted(about.items())).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def shipped(name: str) -> Path | None:
    """The file of a delta that comes with the package; None if there is no delta with this name.

    >>> from mechheads.model.deltas import Delta, shipped
    >>> len(Delta.load(shipped("smollm2-135m-refusal")).heads)
    6
    """
    path = Path(str(folder("adapters") / f"{name}.safetensors"))
    return path if path.is_file() else None
