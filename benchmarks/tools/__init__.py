"""The tools that are compared, one file for each; a tool's libraries are imported when the tool is created."""

from __future__ import annotations

from benchmarks.tools.base import Tool

NAMES = {
    "mechheads": "mechheads",
    "tl4": "TransformerLens 4",
    "tl3": "TransformerLens 3.9",
    "nnsight": "nnsight",
    "pyvene": "pyvene",
}
"""The key of each tool on the command line, and its name in tables. The others are compared with the first."""


def make(key: str) -> Tool:
    """The tool of that key, not yet loaded."""
    if key == "mechheads":
        from benchmarks.tools.with_mechheads import Mechheads

        return Mechheads()
    if key in ("tl4", "tl3"):
        from benchmarks.tools.with_transformerlens import TransformerLens

        return TransformerLens()
    if key == "nnsight":
        from benchmarks.tools.with_nnsight import Nnsight

        return Nnsight()
    from benchmarks.tools.with_pyvene import Pyvene

    return Pyvene()
