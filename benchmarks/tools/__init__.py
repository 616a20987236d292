"""The tools that are compared, one file each; a tool's libraries are imported when it is made."""

from __future__ import annotations

from benchmarks.tools.base import Tool

NAMES = {
    "mechheads": "mechheads",
    "tl4": "TransformerLens 4",
    "tl3": "TransformerLens 3.9",
    "nnsight": "nnsight",
    "pyvene": "pyvene",
}
"""Each tool's key on the command line and its name in tables; the first is what the others are compared with."""


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
