"""Beyond one process: workers that compute the units of an analysis."""

from mechheads.limits import Patience
from mechheads.scale.local import Local

__all__ = ["Local", "Patience"]
