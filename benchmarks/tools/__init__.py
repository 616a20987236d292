"""The tools that are compared, one file for each; a tool's libraries are imported when the tool is created."""

from __future__ import annotations

from benchmarks.tools.base import Tool

NAMES = {
    "mechheads": "mechheads",
    "tl4": "TransformerLens 4",
    "plain": "a plain loop",
}
"""The key of each tool on the command line, and its name in tables. The others are compared with the first."""

_SWEEPS = {"activation", "path", "ablation"}
_SHIPS = {"undifferentiated", "scaling"}
_FITS = {"gates", "labels"}
KINDS = {
    "mechheads": _SWEEPS | _SHIPS | _FITS,
    "tl4": _SWEEPS | _SHIPS,
    "plain": _FITS,
}
"""The kinds of workloads that each tool runs; a plain loop stands in where TransformerLens has nothing of the kind."""


def make(key: str) -> Tool:
    """The tool of that key, not yet loaded."""
    if key == "mechheads":
        from benchmarks.tools.with_mechheads import Mechheads

        return Mechheads()
    if key == "tl4":
        from benchmarks.tools.with_transformerlens import TransformerLens

        return TransformerLens()
    from benchmarks.tools.with_loops import Loops

    return Loops()
