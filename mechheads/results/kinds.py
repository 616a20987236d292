"""The kinds of results, from their records in ``mechheads/data/kinds/kinds.toml``, and the papers behind them.

A figure is named by a text, ``"module:function"``, and imported when it is drawn. So a result can draw itself although
``results`` must not import ``plots``, and plotly is loaded only when it is needed. The explorer is named so too.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from math import isfinite
from typing import Any

from mechheads.data import folder
from mechheads.messages.arguments import check_known
from mechheads.results.record import Question, ResultKind, Words

HEATMAP = "mechheads.plots.heatmap:heatmap"
EXPLORER = "mechheads.explorer.explore:explore"
OPEN = ".explore() shows it in a page of all heads"
CURVES = "mechheads.plots.curves:curves"


def _read() -> dict[str, ResultKind]:
    records = tomllib.loads((folder("kinds") / "kinds.toml").read_text("utf-8"))
    return {name: _kind(record, records) for name, record in records.items()}


def _kind(record: Mapping[str, Any], records: Mapping[str, Any]) -> ResultKind:
    own = _tuples(record)
    check_known("question in kinds.toml", own.get("question", "prompts"), Question)
    like = records.get(own.pop("like", ""), {})
    said = {**like.get("words", {}), **own.pop("words", {})}
    words = Words(**_tuples(said)) if said else None
    variants = own.pop("variants", like.get("variants", {}))
    if not own.pop("tested", True):
        own["null"] = None
    if "bounds" in own:
        own["bounds"] = tuple(end if isfinite(end) else None for end in own["bounds"])
    each = {name: replace(words, **_tuples(more)) for name, more in variants.items() if words is not None}
    return ResultKind(**own, words=words, variants=each)


def _tuples(record: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of a record, with tuples in place of lists."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in record.items()}


KINDS: dict[str, ResultKind] = _read()


def kind_of(name: str) -> ResultKind:
    """The kind with this name. A name that is not in the table is your own kind: no papers, no unit, null 0.

    >>> kind_of("ships").unit, kind_of("my own").null
    ('nats', 0.0)
    """
    return KINDS.get(name, ResultKind())


SMALLEST = {"share restored": 0.05, "nats": 0.1, "share of attention": 0.1, "share of pairs": 0.1}
"""The smallest effect worth naming beyond what a head that does nothing has, by the unit."""


def sample_of(name: str) -> str:
    """What each of the values is of that scores of a kind are means over.

    >>> from mechheads.results.kinds import sample_of
    >>> sample_of("activation_patch"), sample_of("ships"), sample_of("my own")
    ('pair', 'request', 'prompt')
    """
    return kind_of(name.partition("+")[0]).sample


def draw(figure: str, *what: Any, **options: Any) -> Any:
    """Draw the figure with this name, as in ``ResultKind.plot``, or open the explorer."""
    module, _, function = figure.partition(":")
    return getattr(importlib.import_module(module), function)(*what, **options)


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
