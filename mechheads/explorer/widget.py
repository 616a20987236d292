"""The explorer in a notebook: an anywidget that shows the same page, and a saved notebook that still does."""

from __future__ import annotations

import base64
import html
import importlib
import sys
import threading
from collections.abc import Mapping
from typing import Any

from mechheads.explorer.encode import to_json
from mechheads.explorer.live import Live, Refused, check, check_id
from mechheads.explorer.page import page_html, script, style
from mechheads.explorer.payload import Payload
from mechheads.explorer.picture import png, shown_width, words

_SAVED = 12 * 2**20
"""The largest page, in bytes, that a notebook saves beside the widget."""
_HEIGHT = 720


def in_notebook() -> bool:
    """Whether a notebook's kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


def widget(payload: Payload, live: Live | None) -> Any:
    """A widget that shows a payload.

    Raises:
        ImportError: if anywidget or Pillow is not installed.
    """
    try:
        base: Any = importlib.import_module("anywidget").AnyWidget
        traitlets: Any = importlib.import_module("traitlets")
        still = _Still(payload)
    except ImportError as error:
        raise ImportError(
            f'the widget needs {error.name}: pip install "mechheads[notebook]"; or give path="explorer.html" for a page'
        ) from error

    class Explorer(base):
        """The explorer; see ``mh.explore``."""

        _esm, _css = script(), style()
        page = traitlets.Unicode().tag(sync=True)
        blocks = traitlets.Dict().tag(sync=True)

        def _repr_mimebundle_(self, **options: Any) -> Any:
            shown = super()._repr_mimebundle_(**options)
            bundle, metadata = shown if isinstance(shown, tuple) else (shown, {})
            return {**(bundle or {}), **still.bundle}, {**metadata, **still.metadata}

    shown = Explorer(page=to_json(payload.page), blocks=dict(payload.blocks))
    if live is not None:
        shown.on_msg(lambda widget, content, buffers: receive(widget, content, live))
    return shown


def receive(widget: Any, content: Any, live: Live) -> threading.Thread | None:
    """Act on a message of the page: run a text, in a thread so that the notebook stays free, or cancel one."""
    if not isinstance(content, Mapping):
        return None
    if content.get("type") == "cancel":
        live.cancel(str(content.get("id")))
        return None
    if content.get("type") != "text":
        return None
    thread = threading.Thread(target=_answer, args=(widget, content, live), daemon=True)
    thread.start()
    return thread


def _answer(widget: Any, content: Mapping[str, Any], live: Live) -> None:
    name = None
    try:
        given = {key: value for key, value in content.items() if key != "type"}
        name = check_id(given.get("id"))
        widget.send({"type": "text", **live.answer(check(given, live.n_layers, live.n_heads))})
    except Refused as refused:
        widget.send({"type": "error", "id": name, "error": str(refused)})
    except Exception as error:
        widget.send({"type": "error", "id": name, "error": f"the text could not be run: {type(error).__name__}"})


class _Still:
    """What a notebook shows of a payload when no widget runs."""

    def __init__(self, payload: Payload) -> None:
        drawn, said = png(payload.page), words(payload.page)
        self.bundle = {
            "text/html": saved(payload, drawn),
            "image/png": base64.b64encode(drawn).decode(),
            "text/plain": said,
        }
        self.metadata = {"image/png": {"alt": said, "width": shown_width(payload.page)}}


def saved(payload: Payload, drawn: bytes) -> str:
    """What a saved notebook shows without a kernel: the page in a frame of its own, or of a large one its summary.

    The picture stands below the frame, folded: a notebook that is not trusted drops the frame and keeps the picture.
    """
    page = page_html(Payload({**payload.page, "live": None}, payload.blocks))
    said = html.escape(words(payload.page))
    source = f"data:image/png;base64,{base64.b64encode(drawn).decode()}"
    image = f'<img alt="{said}" width="{shown_width(payload.page)}" src="{source}">'
    if len(page) <= _SAVED:
        return (
            f'<iframe sandbox="allow-scripts allow-downloads" style="width:100%;height:{_HEIGHT}px;border:0" '
            f'title="{html.escape(payload.page["title"])}" srcdoc="{html.escape(page)}"></iframe>'
            f"<details><summary>The map as a picture, for readers whose scripts are off</summary>{image}</details>"
        )
    summaries = "\n\n".join(model["summary"] for model in payload.page["models"])
    note = "The page is too large to be saved in a notebook; run the cell again, or write it to a file with path=."
    return f"{image}<pre>{html.escape(summaries)}</pre><p>{note}</p>"
