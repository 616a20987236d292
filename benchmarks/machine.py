"""Measurements of the machine: the speed of matrix products, and the time of a call."""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

SHAPES = ((1024, 576, 1536), (1024, 768, 3072), (2048, 2048, 2048))
"""Matrix products [a, b] x [b, c] of sizes that occur in models; the fastest counts."""

SWEEP_TOKENS = 1500
"""About as many tokens as a sweep computes at a time."""

LIBRARIES = ("mechheads", "transformer-lens", "transformers", "torch", "numpy")


def matmul_speed(device: str, tries: int = 3) -> dict[str, float]:
    """FLOP/s of float32 products of each shape, the best of some tries after a warm-up."""
    speeds = {}
    for a, b, c in SHAPES:
        left, right = torch.randn(a, b, device=device), torch.randn(b, c, device=device)
        out = torch.empty(a, c, device=device)
        seconds = []
        for _ in range(tries + 1):
            start = clock(device)
            torch.mm(left, right, out=out)
            seconds.append(clock(device) - start)
        speeds[f"{a}x{b}x{c}"] = 2 * a * b * c / min(seconds[1:])
    return speeds


def sweep_speed(products: Sequence[tuple[int, int]], n_layers: int, device: str, tries: int = 3) -> float:
    """FLOP/s of the linear maps of a model's blocks, one layer after the other, the best of some tries.

    Every layer has weights of its own, as in a model: they come from memory and not from a cache. Attention and what
    else a block computes is left out.
    """
    inputs = {size: torch.randn(SWEEP_TOKENS, size, device=device) for size, _ in products}
    layers = [[torch.randn(b, a, device=device) for a, b in products] for _ in range(n_layers)]
    seconds = []
    for _ in range(tries + 1):
        start = clock(device)
        for weights in layers:
            for weight in weights:
                torch.nn.functional.linear(inputs[weight.shape[1]], weight)
        seconds.append(clock(device) - start)
    return 2 * SWEEP_TOKENS * n_layers * sum(a * b for a, b in products) / min(seconds[1:])


def clock(device: str) -> float:
    """The clock in seconds, after all work on the device is done."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return time.perf_counter()


@dataclass(frozen=True)
class Measured:
    """One call: its result, and its time in seconds."""

    result: Any
    seconds: float


def measured(call: Callable[[], Any], device: str) -> Measured:
    """Run a call, and measure its time."""
    gc.collect()
    start = clock(device)
    result = call()
    return Measured(result, clock(device) - start)


def versions() -> dict[str, str]:
    """Versions of Python and of the libraries that are installed here."""
    found = {"python": platform.python_version()}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def description(device: str) -> dict[str, Any]:
    """A description of this machine, for the results."""
    metadata = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "device": device,
    }
    if device.startswith("cuda"):
        metadata["gpu"] = torch.cuda.get_device_name(device)
    return metadata


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
