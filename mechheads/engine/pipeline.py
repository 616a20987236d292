"""Several devices that work at the same time: the waves of a sweep follow each other through them.

Device d works on one wave while device d + 1 works on the wave before. All are busy if every wave gives every device
the same work. A wave of neighbouring heads does not: heads of the last layers skip the first devices. So a wave holds
heads that are spread over all layers. Then layer l carries l + 1 times as many copies as layer 0, and the blocks are
cut by that work; see ``model/sources/cuts.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby, pairwise

import torch

from mechheads.heads import HeadId

WAVES_A_DEVICE = 10
"""How many waves are launched together for each device, if there are enough heads: at both ends, devices wait."""


_GOLDEN = (math.sqrt(5) - 1) / 2


def spread(heads: Sequence[HeadId], size: int) -> list[list[HeadId]]:
    """The heads of waves of this size, each in layer order. Each wave, or a few in a row, has heads of all layers.

    Multiples of the golden ratio, without their whole parts, are spread evenly over [0, 1], however many are taken.

    >>> from mechheads.heads import HeadId
    >>> [[str(head) for head in wave] for wave in spread([HeadId(layer, 0) for layer in range(5)], 2)]
    [['L0H0', 'L2H0'], ['L1H0', 'L4H0'], ['L3H0']]
    """
    ordered = sorted(heads)
    ordered = [ordered[i] for i in sorted(range(len(ordered)), key=lambda i: i * _GOLDEN % 1)]
    return [sorted(ordered[start : start + size]) for start in range(0, len(ordered), size)]


def idle_share(waves: Sequence[Sequence[int]], blocks: Sequence[torch.device], at_once: int | None = None) -> float:
    """The share of their time that devices wait, if a layer takes as long as it carries copies.

    Each device does what it is given in order, wave by wave, and a wave goes on when the device before has finished it.

    Args:
        waves: the layers of each wave's heads.
        blocks: the device of each block.
        at_once: how many waves follow each other before all devices wait for the last of them; by default, all.

    >>> import torch
    >>> two = [torch.device("cuda", 0)] * 2 + [torch.device("cuda", 1)]
    >>> idle_share([[0, 1, 2]], two), idle_share([[0, 1, 2]] * 9, two)
    (0.5, 0.1)
    """
    stages = _stages(blocks)
    total, step = 0, at_once or len(waves)
    for begin in range(0, len(waves), step):
        free = dict.fromkeys(blocks, 0)
        for wave in waves[begin : begin + step]:
            done = 0
            for device, layers in stages:
                if work := sum(sum(layer <= at for layer in wave) for at in layers):
                    done = max(done, free[device]) + work
                    free[device] = done
        total += max(free.values())
    busy = sum(len(blocks) - layer for wave in waves for layer in wave)
    return round(1 - busy / (len(free) * total), 12) if total else 0.0


def least_waves(blocks: Sequence[torch.device], parts: int) -> int:
    """Into how many waves a sweep is cut at least.

    Args:
        parts: in how many parts each wave runs, because its prompts do not fit into memory together.
    """
    devices = len(set(blocks))
    return 1 if devices == 1 else math.ceil(WAVES_A_DEVICE * devices / parts)


def cuts_of(blocks: Sequence[torch.device]) -> tuple[int, ...]:
    """The layers whose block is on another device than the block before."""
    return tuple(layer for layer, (before, here) in enumerate(pairwise(blocks), 1) if before != here)


def _stages(blocks: Sequence[torch.device]) -> list[tuple[torch.device, list[int]]]:
    """The devices in the order in which a wave comes to them, and their layers."""
    grouped = groupby(range(len(blocks)), key=lambda layer: blocks[layer])
    return [(device, list(layers)) for device, layers in grouped]
