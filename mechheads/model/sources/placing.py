"""Where the weights of a model go: to the devices that accelerate finds, or in part to disk."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from mechheads.limits import show_bytes
from mechheads.model.sources.source import ModelSourceError


@dataclass(frozen=True)
class Room:
    """How much memory the weights of a model may take, in bytes, and on which device; None for the least possible."""

    memory: int | None
    device: torch.device


@dataclass(frozen=True)
class Spread:
    """Weights where accelerate puts them: the arguments of ``from_pretrained``."""

    device_map: str | Mapping[str, int | str]
    max_memory: Mapping[str | int, int | str] | None = None


def place(
    config: transformers.PreTrainedConfig, source: str, room: Room, *, dtype: torch.dtype, trust_remote_code: bool
) -> dict[str, str] | None:
    """A device map for ``from_pretrained`` that leaves blocks on disk; None if all fit into the memory that there is.

    The last blocks are in memory: a change in a layer goes through the later ones. Room is left for one that is read.
    """
    with torch.device("meta"):  # weights that have sizes and no values
        model: Any = transformers.AutoModelForCausalLM.from_config(
            config, dtype=dtype, trust_remote_code=trust_remote_code
        )
    name, blocks = _find_blocks(model, config, source)
    sizes = [bytes_of(block.parameters()) for block in blocks]
    others = bytes_of(model.parameters()) - sum(sizes)
    if dtype.itemsize < 4:  # the unembedding is kept in float32 too
        others += 4 * model.get_output_embeddings().weight.numel()
    least = others + max(sizes)
    memory = least if room.memory is None else room.memory
    if others + sum(sizes) <= memory:
        return None
    if memory < least:
        raise ModelSourceError(
            f"max_memory is {show_bytes(memory)}, but model {source!r} needs at least {show_bytes(least)}: "
            f"{show_bytes(others)} for its embeddings and {show_bytes(max(sizes))} for its largest block"
        )
    first = len(sizes)
    while least + sum(sizes[first - 1 :]) <= memory:
        first -= 1
    layers = {f"{name}.{layer}": "disk" if layer < first else str(room.device) for layer in range(len(sizes))}
    return {part: str(room.device) for part in beside(model, name)} | layers


def _find_blocks(model: nn.Module, config: Any, source: str) -> tuple[str, nn.ModuleList]:
    """The list of a model's blocks and its name."""
    n_layers = config.get_text_config(decoder=True).num_hidden_layers
    for name, part in model.named_modules():
        if isinstance(part, nn.ModuleList) and len(part) == n_layers:
            return name, part
    raise ModelSourceError(f"max_memory: model {source!r} has no list of {n_layers} blocks; leave max_memory out")


def beside(module: nn.Module, blocks: str, name: str = "") -> Iterator[str]:
    """The names of the largest parts of a model that do not contain its blocks."""
    for child, part in module.named_children():
        full = f"{name}{child}"
        if blocks.startswith(f"{full}."):
            yield from beside(part, blocks, f"{full}.")
        elif full != blocks:
            yield full


def bytes_of(weights: Iterable[nn.Parameter]) -> int:
    """The bytes of some weights."""
    return sum(weight.numel() * weight.itemsize for weight in weights)


@contextmanager
def no_warning_of_disk() -> Iterator[None]:
    """Hide accelerate's warning that weights are on disk."""
    logger = logging.getLogger("accelerate.big_modeling")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)
