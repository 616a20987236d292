"""Warnings that point to the line of the user's code that called the package."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the user's line that called into the package."""
    frame, depth, level = sys._getframe(1), 1, 1
    while frame is not None:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
            level = depth
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)
