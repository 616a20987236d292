"""Deltas: small changes to the weights of a few heads, stored in one file and added to a model when it is loaded."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.data import folder
from mechheads.files.tensors import TensorFile
from mechheads.heads import HeadId

Side = Literal["W_Q", "W_O"]
SIDES: tuple[Side, ...] = ("W_Q", "W_O")
_FILE = TensorFile("mechheads delta 1", "{path} is not a saved Delta", ("about",))


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
        """Save the delta as safetensors in half precision."""
        tensors = {
            f"{head}.{side}": both[side].half().contiguous() for head, both in self.weights.items() for side in SIDES
        }
        _FILE.write(path, tensors, {"about": json.dumps(self.about)})

    @classmethod
    def load(cls, path: Path) -> Delta:
        """Load a delta that ``save`` wrote.

        Raises:
            ValueError: if the file is not a delta, or is damaged.
        """
        stored, texts = _FILE.read(path)
        found, about = {name: tensor.float() for name, tensor in stored.items()}, json.loads(texts["about"])
        heads = {HeadId.parse(name.split(".")[0]) for name in found}
        return cls({head: {side: found[f"{head}.{side}"] for side in SIDES} for head in sorted(heads)}, about)


def shipped(name: str) -> Path | None:
    """The file of a delta that comes with the package; None if there is no delta with this name.

    >>> from mechheads.model.deltas import Delta, shipped
    >>> len(Delta.load(shipped("smollm2-135m-refusal")).heads)
    6
    """
    path = Path(str(folder("adapters") / f"{name}.safetensors"))
    return path if path.is_file() else None
