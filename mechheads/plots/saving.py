"""Saves figures as PDF, SVG, PNG or HTML."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.io.write import write_file

if TYPE_CHECKING:
    import plotly.graph_objects as go

IMAGES = ("pdf", "svg", "png")
"""The kinds of still pictures."""
HOW_TO_GET = "they need the package kaleido (pip install kaleido) and Chrome or Chromium"
_BROWSER = (
    "install Chrome or Chromium, or run plotly_get_chrome to download one; BROWSER_PATH says where it is if it is not "
    "found"
)


def save(figure: go.Figure, path: str | Path, *, scale: float = 2) -> Path:
    """Save a figure to a file, completely or not at all, in its own size.

    Args:
        figure: from any function of ``mh.plots``, or any other plotly figure.
        path: the file; it ends in ``.pdf``, ``.svg``, ``.png`` or ``.html``. An HTML file needs no network.
        scale: the pixels of a PNG for each pixel of the figure; 3 or 4 for print.

    Returns:
        The path.

    Raises:
        ValueError: if the path ends in something else, or ``scale`` is not above 0.
        ImportError: if kaleido is not installed; HTML does not need it.
        RuntimeError: if there is no browser, or it cannot draw the figure.

    >>> import tempfile, numpy as np
    >>> from pathlib import Path
    >>> figure = mh.plots.heatmap(mh.HeadScores.from_scores(np.eye(3), name="demo", kind="demo"))
    >>> mh.plots.save(figure, Path(tempfile.mkdtemp()) / "demo.html").name
    'demo.html'
    """
    path = Path(path)
    kind = path.suffix.lower().removeprefix(".")
    if kind not in (*IMAGES, "html"):
        raise ValueError(f"path is {str(path)!r}; it must end in .pdf, .svg, .png or .html")
    if not scale > 0:
        raise ValueError(f"scale is {scale}; it must be above 0")
    if kind == "html":
        return write_file(path, figure.to_html(config={"displaylogo": False}))
    if not has_kaleido():
        raise ImportError(f"pictures cannot be saved yet: {HOW_TO_GET}; a path that ends in .html needs neither")
    return write_file(path, _picture(figure, kind, scale if kind == "png" else 1))


def has_kaleido() -> bool:
    """Whether the package that draws still pictures is installed; it may still lack a browser."""
    return importlib.util.find_spec("kaleido") is not None


def first_line(error: BaseException) -> str:
    """What an error says first; kaleido's errors hold their lines in a tuple."""
    first: Any = error.args
    while isinstance(first, tuple) and first:
        first = first[0]
    return (str(first).strip().splitlines() or [type(error).__name__])[0]


def _picture(figure: go.Figure, kind: str, scale: float) -> bytes:
    layout: Any = figure.layout
    try:
        drawn = figure.to_image(format=kind, width=layout.width, height=layout.height, scale=scale)
    except Exception as error:  # kaleido raises errors of many types if it finds no browser, or the browser fails
        raise RuntimeError(f"the figure could not be drawn ({first_line(error)}); {_BROWSER}") from error
    if not drawn:
        raise RuntimeError(f"the browser drew nothing; {_BROWSER}")
    return drawn
