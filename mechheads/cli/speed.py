"""How fast a core of this machine multiplies matrices, and about how long the default atlas takes at that speed."""

from __future__ import annotations

import time

_ATLAS = 201 * 160e9
"""What the default atlas costs, counted in operations of one core: it took 201 s where a core did 160e9 a second. Most
of its time is not products, and more cores shorten it little, so the speed of one core says more than that of all."""
_SIZE, _SECONDS = 1024, 0.5


def products_per_second() -> float:
    """Floating-point operations a second of one core in float32 matrix products, as busy as the machine is now.

    >>> from mechheads.cli.speed import products_per_second
    >>> products_per_second() > 0
    True
    """
    import torch

    matrix, threads = torch.full((_SIZE, _SIZE), 1 / _SIZE), torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        torch.mm(matrix, matrix)  # the first product takes longer
        products, start = 0, time.perf_counter()
        while (seconds := time.perf_counter() - start) < _SECONDS:
            torch.mm(matrix, matrix)
            products += 1
    finally:
        torch.set_num_threads(threads)
    return 2 * _SIZE**3 * products / seconds


def about_an_atlas(per_second: float) -> str:
    """A sentence about the speed and the time of the default atlas.

    >>> from mechheads.cli.speed import about_an_atlas
    >>> about_an_atlas(130e9)
    'a core multiplies matrices at 130 GFLOP/s here: the atlas takes about 4 minutes if this does not change'
    """
    minutes = max(2, round(_ATLAS / per_second / 60))
    return (
        f"a core multiplies matrices at {per_second / 1e9:.0f} GFLOP/s here: the atlas takes about {minutes} minutes "
        "if this does not change"
    )
