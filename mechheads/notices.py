"""Warnings that point at the line of the user's code which called the package."""

from __future__ import annotations

import sys
import warnings

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line that called the outermost function of the package."""
    frame, depth, level = sys._getframe(1), 1, 1
    while frame is not None:
        depth += 1
        if frame.f_globals.get("__name__", "").partition(".")[0] == _PACKAGE:
            level = depth
        frame = frame.f_back
    warnings.warn(message, category, stacklevel=level + 1)
