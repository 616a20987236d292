"""A still picture of a page: the map of its first model, for readers whose scripts are off."""

from __future__ import annotations

import html
from typing import Any

from mechheads.plots.parts.category_colours import category_colours

_CELL, _GAP, _LEFT, _BELOW, _KEY = 18, 1, 30, 26, 92
_NOT_MEASURED = "#ffffff"


def picture(page: dict[str, Any]) -> str:
    """An SVG of the heads of the first model of a page, layers across and heads up, by category.

    The alternative text says the same in words: how many heads have each category, and which have the largest effect.
    """
    model = page["models"][0]
    n_layers, n_heads = model["nLayers"], model["nHeads"]
    categories = model["categories"]
    names = [] if categories is None else categories["names"]
    of = [None] * (n_layers * n_heads) if categories is None else categories["of"]
    colours = category_colours(names, {})
    several, none = colours["2 categories"], colours["Unclassified"]
    hues = [colours[name] for name in names]
    keys = [*zip(names, hues, strict=True), ("several", several), ("none", none)] if names else []

    def fill(mine: list[int] | None) -> str:
        if mine is None:
            return _NOT_MEASURED
        return none if not mine else several if len(mine) > 1 else hues[mine[0]]

    width, height = max(_LEFT + n_layers * _CELL, _KEY * len(keys)), n_heads * _CELL + _BELOW * (1 + bool(keys))
    legend = "".join(
        f'<rect x="{_KEY * i + 2}" y="{height - 14}" width="10" height="10" fill="{hue}"/>'
        f'<text x="{_KEY * i + 16}" y="{height - 5}" font-size="10" fill="#666666">'
        f"{html.escape(_seen(name)[:14])}</text>"
        for i, (name, hue) in enumerate(keys)
    )
    cells = "".join(
        f'<rect x="{_LEFT + layer * _CELL}" y="{(n_heads - 1 - head) * _CELL}" width="{_CELL - _GAP}" '
        f'height="{_CELL - _GAP}" fill="{fill(of[layer * n_heads + head])}" stroke="#aaaaaa" stroke-width="0.5"/>'
        for layer in range(n_layers)
        for head in range(n_heads)
    )
    labels = "".join(
        [
            _label(_LEFT + (layer + 0.5) * _CELL, n_heads * _CELL + 14, str(layer))
            for layer in range(0, n_layers, max(1, n_layers // 16))
        ]
        + [_label(_LEFT / 2, (n_heads - 0.5 - head) * _CELL + 4, str(head)) for head in range(n_heads)]
    )
    said = html.escape(f"{_seen(page['title'])}: layers across, heads up. {_counts(names, of)}{_strongest(model)}")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{said}"><title>{said}</title>{cells}{labels}{legend}</svg>'
    )


def _seen(text: str) -> str:
    """A text without control characters and marks of direction."""
    return "".join(letter if letter.isprintable() else "\ufffd" for letter in text)


def _label(x: float, y: float, text: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="10" text-anchor="middle" fill="#666666">{text}</text>'


def _counts(names: list[str], of: list[list[int] | None]) -> str:
    counts = [sum(number in (each or ()) for each in of) for number in range(len(names))]
    return "".join(f"{_seen(name)}: {count} heads. " for name, count in zip(names, counts, strict=True))


def _strongest(model: dict[str, Any]) -> str:
    """The five heads that are the first by patching."""
    values = next((column["values"] for column in model["columns"] if column["name"] == "patching"), [])
    order = sorted((i for i, value in enumerate(values) if value is not None), key=lambda i: -abs(values[i]))
    named = [f"L{i // model['nHeads']}H{i % model['nHeads']} {values[i]:.2g}" for i in order[:5]]
    return f"The largest patching effects: {', '.join(named)}." if named else ""
