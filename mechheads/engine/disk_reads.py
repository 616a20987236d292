"""How much a sweep reads from disk, if the model's weights are there."""

from __future__ import annotations

from collections.abc import Sequence

from mechheads.heads import HeadId, Mlp
from mechheads.model.core import ModelCore


def bytes_on_disk(model: ModelCore) -> int:
    """The bytes of weights that a full run reads from disk; 0 if all are in memory."""
    return sum(_above(model)[:1])


def bytes_read_by_waves(model: ModelCore, nodes: Sequence[HeadId | Mlp], stack: int) -> int:
    """The bytes that waves of ``stack`` nodes read: each reads the layers from its first node's on, once."""
    above = _above(model)
    return sum(above[layer] for layer in sorted(node.layer for node in nodes)[::stack])


def reading_seconds(model: ModelCore, size: int) -> float:
    """About how long it takes to read so many bytes, from what was read so far."""
    on_disk = model.backend.on_disk
    return 0.0 if on_disk is None or not on_disk.bytes_read else size * on_disk.seconds / on_disk.bytes_read


def _above(model: ModelCore) -> list[int]:
    """For each layer, the bytes on disk from this layer on."""
    on_disk = model.backend.on_disk
    sizes = {} if on_disk is None else on_disk.layer_bytes
    return [sum(sizes.get(later, 0) for later in range(layer, model.n_layers)) for layer in range(model.n_layers)]
