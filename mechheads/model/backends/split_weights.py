"""Weights that TransformerLens copies at loading: those of layers that give q, k and v together, which it splits.

For GPT-NeoX, BLOOM, Falcon and MPT, whose rows of q, k and v alternate, the parts are copies, and what is written into
the weights of the model later does not reach them. Here it does. For GPT-2 and Phi-3 the parts are views.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mechheads.model.backends.state import WeightsMark


class SplitWeights:
    """The attention layers of a bridge whose q, k and v are copies, and how the weights were when they were split."""

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        joint = [part for part in parts if hasattr(part, "split_qkv_matrix")]
        self._split = [(part, *_marks(part)) for part in joint if not _is_view(part)]

    def renew(self) -> None:
        """Split anew the weights that were written into since they were split.

        Raises:
            ValueError: if the parts were written into as well, and differ from the weights.
        """
        for at, (part, whole, parts) in enumerate(self._split):
            if whole.differs(_whole(part), quickly=False):
                self._renew(part, parts.differs(_parts(part), quickly=False))
                self._split[at] = part, *_marks(part)

    @torch.no_grad()
    def _renew(self, part: Any, are_changed: bool) -> None:
        with torch.random.fork_rng(devices=[]):  # splitting makes layers, which begin with random weights
            made = part.split_qkv_matrix(part.original_component)
        for old, new in zip(_parts(part), _tensors(made), strict=True):
            if not are_changed:
                old.copy_(new)
            elif not torch.equal(old, new.to(old)):
                raise ValueError(
                    f"model: the weights of q, k and v in {part.name} were changed both in the layer of transformers, "
                    "which holds them together, and in the parts that TransformerLens made of them, and differ now; "
                    "load the model again, and change one of the two"
                )


def _marks(part: Any) -> tuple[WeightsMark, WeightsMark]:
    return WeightsMark.of(_whole(part)), WeightsMark.of(_parts(part))


def _whole(part: Any) -> list[Tensor]:
    return list(part.original_component.parameters())


def _parts(part: Any) -> list[Tensor]:
    return list(_tensors(getattr(part, name).original_component for name in "qkv"))


def _tensors(linear: Iterable[nn.Module]) -> Iterator[Tensor]:
    return (tensor for each in linear for tensor in (each.weight, each.bias) if isinstance(tensor, Tensor))


def _is_view(part: Any) -> bool:
    """Whether q, k and v lie in the memory of the weights that they were split from."""
    theirs = {weight.untyped_storage().data_ptr() for weight in _whole(part)}
    return all(weight.untyped_storage().data_ptr() in theirs for weight in _parts(part))
