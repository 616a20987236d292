"""Memory and time in readable units: "2 GB", "3 min"."""

from __future__ import annotations


def show_bytes(size: float) -> str:
    """A size in readable form: ``1.5 GB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1024:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} TB"


def show_seconds(seconds: float) -> str:
    """A time in readable form: ``42 s``, ``3 min 10 s``, ``2 h 05 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    if whole < 7200:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
