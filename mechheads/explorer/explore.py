"""``mh.explore``, ``mh.head_card`` and the view of a run's patterns: shown in a notebook, elsewhere saved as a page."""

from __future__ import annotations

import html
import importlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.explorer import contract
from mechheads.explorer.collect import collect, patterns_of
from mechheads.explorer.contract import to_json
from mechheads.explorer.head_payload import linked_heads
from mechheads.explorer.live import Live, Refused, check
from mechheads.explorer.page import answer, page_html, script, style, write
from mechheads.explorer.payload import Payload, atlas_payload, run_payload, shown_name
from mechheads.heads import HeadLike, check_head
from mechheads.io.write import check_kind, check_place
from mechheads.progress import in_notebook
from mechheads.runs.head_tensor import Attention

if TYPE_CHECKING:
    from mechheads.model.model import Model


_PAGE, _CARD, _PATTERNS = "explorer.html", "{}.html", "patterns.html"


def explore(what: Any, path: str | Path | None = None, *, model: Model | None = None) -> Any:
    """Show results of every head in a page to search, filter and pin.

    Everything is of one model; for two, give the difference of their scores. Scores, labels, profiles, safety
    heads and roles become columns, and rows of each head's card; runs become patterns; curves and tables are at the
    end. Scores are named after their key if they are in a dict.

    Args:
        what: one or several of these, in any mix, in lists and dicts: ``HeadScores`` and every other result, a run
            (``model.cache(prompts)``), an atlas (``mh.build_atlas``), or the model, of which a quick atlas is built
            unless there is one too.
        path: write the page to this file. Without it, a notebook shows the page, and elsewhere it is written to
            ``explorer.html``.
        model: the model, to run your own texts; a notebook then shows a widget, which needs its kernel.

    Returns:
        The object that a notebook shows, or the path of the page. The page is one file and needs no network.

    Raises:
        ValueError: if something cannot be shown, results differ in model or size, the model is of another size, or
            ``path`` cannot be a file; before anything is run.
        FileNotFoundError: if there is no such folder; before anything is run.
        ImportError: if a notebook needs anywidget for a widget, and there is no path.

    >>> import tempfile, numpy as np
    >>> mine, theirs = (mh.HeadScores.from_scores(s * np.eye(3), name="effect", kind="demo") for s in (1, 2))
    >>> folder = Path(tempfile.mkdtemp())
    >>> mh.explore({"mine": mine, "theirs": theirs}, folder / "page.html").name
    'page.html'
    """
    _check_path(path)
    collected = collect(what, model)
    model = model or collected.model
    if collected.patterns is not None:
        return _shown(run_payload(shown_name(collected.atlas.model), collected.patterns), path, _PATTERNS, model)
    return _shown(atlas_payload(collected.atlas, tables=collected.tables), path, _PAGE, model)


def head_card(what: Any, head: HeadLike, path: str | Path | None = None, *, model: Model | None = None) -> Any:
    """Show all results of one head in a page.

    Args:
        what: as in ``mh.explore``.
        head: such as ``"L23H4"``. The heads that its card links to can be opened too.
        path, model: as in ``mh.explore``; the default file has the name of the head.

    Returns:
        As ``mh.explore``.

    Raises:
        ValueError: if there is no such head, or as in ``mh.explore``.
        ImportError: as in ``mh.explore``.

    >>> import tempfile, numpy as np
    >>> effect = mh.HeadScores.from_scores(np.eye(3), name="effect", kind="activation_patch")
    >>> mh.head_card(effect, "L1H1", Path(tempfile.mkdtemp()) / "card.html").name
    'card.html'
    """
    _check_path(path)
    collected = collect(what, model, head)
    atlas = collected.atlas
    at = check_head(head, *atlas.sizes)
    payload = atlas_payload(atlas, heads=linked_heads(atlas, at), tables=collected.tables)
    name = payload.page["model"]["name"]
    payload.page["start"], payload.page["title"] = str(at), f"{at} of {name}"
    return _shown(payload, path, _CARD.format(at), model or collected.model)


def view_attention(attention: Attention, path: str | Path | None = None) -> Any:
    """Show the patterns of all heads of a run; see ``run.attention.view``."""
    return _shown(run_payload("a run", patterns_of(attention)), path, _PATTERNS, None)


def _check_path(path: str | Path | None) -> None:
    if not isinstance(path, str | Path | None):
        raise ValueError(f"path is {path!r}; give the path of a file")
    if path is not None:
        check_place(Path(path))
        check_kind(Path(path), b"<")


def _shown(payload: Payload, path: str | Path | None, default: str, model: Model | None) -> Any:
    """The page as a file, or in a notebook; ``default`` is the name of the file without a path."""
    if path is not None:
        return write(payload, path)
    if not in_notebook():
        page = Path(default)
        if page.is_file() and page.stat().st_size and b'id="mh-root"' not in page.read_bytes():
            raise ValueError(f"{page} is there and is no page of the explorer, so it is not replaced; give path=")
        return write(payload, page)
    live = None if model is None else Live(model)
    if live is None and len(page_html(payload)) <= _SAVED:
        return Framed(payload)
    return widget(_with_live(payload, None if live is None else live.page_entry()), live)


def _with_live(payload: Payload, live: contract.Live | None) -> Payload:
    return Payload({**payload.page, "live": live}, payload.blocks)


_SAVED = 12 * 2**20
"""The largest page, in bytes, that a notebook shows in a frame and saves; a larger one is a widget."""
_HEIGHT = 720
_FRAME, _STILL = "mechheads-frame", "mechheads-still"
_TELL_THEME = """(() => {
  for (const still of document.querySelectorAll(".STILL")) still.hidden = true;
  const tell = () => {
    const light = document.body.getAttribute("data-jp-theme-light");
    if (light === null) return;
    for (const frame of document.querySelectorAll("iframe.FRAME"))
      frame.contentWindow?.postMessage({ mechheads: "theme", light: light === "true" }, "*");
  };
  new MutationObserver(tell).observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  addEventListener("message", ({ data }) => data?.mechheads === "drawn" && tell());
  tell();
})()""".replace("FRAME", _FRAME).replace("STILL", _STILL)
"""Hides the tables below a frame, and tells the page in it whether JupyterLab is light or dark."""


@dataclass(frozen=True, repr=False)
class Framed:
    """A page in a frame of a notebook. It needs no kernel, so it is still there when the notebook is opened again."""

    payload: Payload

    def __repr__(self) -> str:
        return self.payload.page["title"]

    def _repr_html_(self) -> str:
        return saved(self.payload)


def widget(payload: Payload, live: Live | None) -> Any:
    """A widget that shows a payload."""
    try:
        base: Any = importlib.import_module("anywidget").AnyWidget
        traitlets: Any = importlib.import_module("traitlets")
    except ImportError as error:
        raise ImportError(
            f'a widget needs {error.name}: pip install "mechheads[notebook]"; or give path="explorer.html" for a page'
        ) from error

    class Explorer(base):
        """The explorer; see ``mh.explore``."""

        _esm, _css = script(), style()
        page = traitlets.Unicode().tag(sync=True)
        blocks = traitlets.Dict().tag(sync=True)

        def _repr_mimebundle_(self, **options: Any) -> Any:
            shown = super()._repr_mimebundle_(**options)
            bundle, metadata = shown if isinstance(shown, tuple) else (shown, {})
            return {**(bundle or {}), "text/html": saved(payload), "text/plain": payload.page["title"]}, metadata

    shown = Explorer(page=to_json(payload.page), blocks=dict(payload.blocks))
    shown.on_msg(lambda widget, content, buffers: receive(widget, content, payload, live))
    return shown


def receive(widget: Any, content: Any, payload: Payload, live: Live | None) -> threading.Thread | None:
    """Act on a message of the page: send the page as a file, run a text, or cancel one.
    Texts run in a thread, so that the notebook stays free."""
    if not isinstance(content, Mapping):
        return None
    if content.get("type") == "page":
        widget.send({"type": "page", "id": content.get("id"), "html": _saved_page(payload)})
    elif live is not None and content.get("type") == "cancel":
        live.cancel(str(content.get("id")))
    elif live is not None and content.get("type") == "text":
        thread = threading.Thread(target=_answer, args=(widget, content, live), daemon=True)
        thread.start()
        return thread
    return None


def _saved_page(payload: Payload) -> str:
    """The page as a file, which has no kernel."""
    return page_html(_with_live(payload, None))


def _answer(widget: Any, content: Mapping[str, Any], live: Live) -> None:
    name = content.get("id")
    try:
        widget.send({"type": "text", **live.answer(check(content, live.n_layers, live.n_heads))})
    except Refused as refused:
        widget.send({"type": "error", "id": name, "error": str(refused)})
    except Exception as error:
        widget.send({"type": "error", "id": name, "error": f"the text could not be run: {type(error).__name__}"})


def saved(payload: Payload) -> str:
    """The HTML that a saved notebook shows without a kernel: the page in a frame, or only its tables or its title."""
    page, title = _saved_page(payload), html.escape(payload.page["title"])
    tables = answer(payload.page) or title
    if len(page) <= _SAVED:
        return (
            f'<iframe class="{_FRAME}" sandbox="allow-scripts allow-downloads" '
            f'style="width:100%;height:{_HEIGHT}px;border:0" '
            f'title="{title}" srcdoc="{html.escape(page)}"></iframe>'
            f'<div class="{_STILL}">{tables}</div>'
            f"<script>{_TELL_THEME}</script>"
        )
    note = "The page is too large to be saved in a notebook; run the cell again, or write it to a file with path=."
    return f"{tables}<p>{note}</p>"
