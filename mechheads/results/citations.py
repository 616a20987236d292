"""The papers that results are based on, as BibTeX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from mechheads.data import folder
from mechheads.results.kinds import kind_of

_TRANSFORMERLENS = "nanda2022transformerlens"


@cache
def papers() -> dict[str, str]:
    """BibTeX of every paper and of TransformerLens, by its key."""
    entries = (folder("papers") / "papers.bib").read_text(encoding="utf-8").strip().split("\n\n")
    return {entry[entry.index("{") + 1 : entry.index(",")]: entry for entry in entries}


def citation(kind: str, versions: Mapping[str, str] | None = None) -> str:
    """BibTeX of the papers that a kind of result is based on, and a line with the library versions.

    Args:
        kind: such as ``"ships"``; several joined by ``+`` for results of arithmetic. A kind without papers gives
            TransformerLens only.
        versions: library names and versions, as recorded with the result; by default, the installed versions.

    >>> "2412.11965" in citation("relations")
    True
    """
    entries = dict.fromkeys(papers()[key] for part in kind.split("+") for key in kind_of(part).papers)
    libraries = versions or {name: _installed(name) for name in ("mechheads", "transformer-lens", "torch")}
    used = ", ".join(f"{name} {number}" for name, number in libraries.items())
    return "\n\n".join([*entries, papers()[_TRANSFORMERLENS], f"% Computed with {used}."])


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "(not installed)"
