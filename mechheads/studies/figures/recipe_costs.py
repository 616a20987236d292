"""What a recipe costs with the models of its paper: memory for the weights, and hours from the arithmetic.

A forward pass takes 2 operations for each parameter and token, a backward pass twice as many. Relation scores take
W_O W_U for each head, and the product of each word's value vector with it. An ablated head runs half of the layers
again, on average.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mechheads.gating.tasks.shipped import load_task
from mechheads.labels.relations import load_relations
from mechheads.units import show_bytes, show_seconds

_BYTES = 4
_REQUESTS, _REQUEST_TOKENS = 100, 40
"""In each public set of requests, and of each request in a template."""
_LETTERS = 4
"""Of a token."""
_SIDE = 2048


@dataclass(frozen=True)
class Shape:
    """The sizes of one of a paper's models.

    Attributes:
        config: its configuration in transformers, without ``Config``.
        billions: the number of its parameters.
    """

    config: str
    billions: float
    layers: int
    heads: int
    kv_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    vocab: int

    @property
    def bytes(self) -> int:
        """The memory for its weights in float32."""
        return round(self.billions * 1e9) * _BYTES


def operations(figure: str, shape: Shape, settings: Mapping[str, Any]) -> float:
    """The arithmetic of one model's panels, in floating-point operations."""
    token = 2 * shape.billions * 1e9
    heads = shape.layers * shape.heads
    if figure == "categories":
        words = sum(len(relation.pairs) for relation in load_relations(None))
        return 2.0 * heads * shape.d_head * shape.vocab * (words + shape.d_model)
    if figure == "safety":
        tokens = len(settings["requests"]) * _REQUESTS * _REQUEST_TOKENS
        return len(settings["ablations"]) * heads * tokens * token / 2
    fits = 3 * settings["seeds"] * settings["updates"] * settings["batch"]
    return fits * sum(map(_item_tokens, settings["tasks"])) * 3 * token


def costs(figure: str, shapes: Mapping[str, Shape], settings: Mapping[str, Any], device: str) -> list[str]:
    """For each model, a line with its memory and its time on this device."""
    speed = _speed(device)
    lines = [
        f"{name}: {show_bytes(shape.bytes)} of weights, at least "
        f"{show_seconds(operations(figure, shape, settings) / speed)}"
        for name, shape in shapes.items()
    ]
    return [*lines, f"Times are of the arithmetic alone, at {speed / 1e9:.0f} GFLOP/s, the speed of {device} here"]


def _item_tokens(task: str) -> float:
    items = load_task(task)
    return sum(map(len, (*items.prompts, *items.targets))) / len(items) / _LETTERS


def _speed(device: str) -> float:
    """Operations per second of a large product."""
    matrix = torch.randn(_SIDE, _SIDE, device=device)
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        float((matrix @ matrix)[0, 0])
        seconds.append(time.perf_counter() - start)
    return 2 * _SIDE**3 / min(seconds)
