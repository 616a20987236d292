"""The kinds of results, from their records in ``mechheads/data/kinds/kinds.toml``.

A figure is named by a text, ``"module:function"``, and imported when it is drawn. So a result can draw itself although
``results`` must not import ``plots``, and plotly is loaded only when it is needed. The explorer is named so too.
"""

from __future__ import annotations

import importlib
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from mechheads.data import folder
from mechheads.results.record import ResultKind, Words

HEATMAP = "mechheads.plots.heatmap:heatmap"
EXPLORER = "mechheads.explorer.explore:explore"
OPEN = ".explore() shows it in a page of all heads"
CURVES = "mechheads.plots.curves:curves"


def _read() -> dict[str, ResultKind]:
    records = tomllib.loads((folder("kinds") / "kinds.toml").read_text("utf-8"))
    return {name: _kind(record, records) for name, record in records.items()}


def _kind(record: Mapping[str, Any], records: Mapping[str, Any]) -> ResultKind:
    own = _tuples(record)
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


def draw(figure: str, *what: Any, **options: Any) -> Any:
    """Draw the figure with this name, as in ``ResultKind.plot``, or open the explorer."""
    module, _, function = figure.partition(":")
    return getattr(importlib.import_module(module), function)(*what, **options)
