"""Where the blocks of a model are cut into parts, one for each device.

A sweep carries the changed copies of all heads below a layer through it, so layer l costs l + 1 times as much as layer
0, and equal work for D devices means cuts at about n sqrt(i / D), not at n i / D.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate


def cut_by_work(sizes: Sequence[int], rooms: Sequence[int]) -> tuple[int, ...] | None:
    """The layers at which the devices after the first begin, so that the device with most work has as little as it can.

    Args:
        sizes: the bytes of each block; ``rooms``: the bytes that each device has for blocks.

    Returns:
        None if the blocks do not fit. A device may get none if there is no room for any, but the first and the last
        device get at least one.

    >>> cut_by_work([1] * 80, [80] * 4)
    (39, 56, 69)
    >>> cut_by_work([1] * 80, [25] * 4)
    (25, 50, 67)
    """
    work = [0, *accumulate(range(1, len(sizes) + 1))]
    size = [0, *accumulate(sizes)]
    best: dict[int, tuple[float, float, tuple[int, ...]]] = {0: (0.0, 0.0, ())}
    for number, room in enumerate(rooms):
        after: dict[int, tuple[float, float, tuple[int, ...]]] = {}
        for begin, (most, squares, cuts) in best.items():
            for end in range(begin + (number in (0, len(rooms) - 1)), len(sizes) + 1):
                if size[end] - size[begin] > room:
                    break
                here = work[end] - work[begin]
                found = max(most, here), squares + here**2, (*cuts, end)
                after[end] = min(after.get(end, (math.inf, math.inf, ())), found)
        best = after
    return best[len(sizes)][2][:-1] if len(sizes) in best else None
