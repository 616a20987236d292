"""``mh.explore``, ``mh.head_card`` and the view of a run's patterns: in a notebook a widget, elsewhere a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechheads.explorer.head_payload import linked_heads
from mechheads.explorer.live import Live
from mechheads.explorer.page import write
from mechheads.explorer.payload import Payload, atlas_payload, run_payload
from mechheads.explorer.widget import in_notebook, widget
from mechheads.heads import HeadLike, check_head
from mechheads.runs.head_tensor import Attention
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import HeadPatterns

if TYPE_CHECKING:
    from mechheads.model.model import Model

_PAGE, _CARD, _PATTERNS = "explorer.html", "{}.html", "patterns.html"
MAX_TOKENS = 2000
"""The longest prompt whose patterns are shown."""
_KEPT = 8
"""Keys of each query that a view of a run shows, besides the first token."""


def explore(atlas: Atlas | Sequence[Atlas], path: str | Path | None = None, *, model: Model | None = None) -> Any:
    """Show everything that is known of every head, in a page to search, filter, compare and pin.

    Args:
        atlas: from ``mh.build_atlas`` or ``mh.studies.Atlas.load``, or several of these.
        path: write the page to this file. Without it, a notebook shows a widget, and elsewhere the page is written to
            ``explorer.html``.
        model: the model of the first atlas, to run own texts in the widget.

    Returns:
        The widget, or the path of the page. The page is one file and needs no network.

    Raises:
        ValueError: if there is no atlas, an atlas has no result, or the model is of another size.
        ImportError: if a notebook has no anywidget and no path was given.

    >>> import tempfile, numpy as np
    >>> effect = mh.HeadScores.from_scores(np.eye(3), name="effect", kind="activation_patch")
    >>> atlas, folder = mh.studies.Atlas("demo", patching=effect), Path(tempfile.mkdtemp())
    >>> mh.explore(atlas, folder / "page.html").name
    'page.html'
    """
    return _shown(atlas_payload(_checked(atlas)), path, _PAGE, _live(atlas, model))


def head_card(atlas: Atlas, head: HeadLike, path: str | Path | None = None, *, model: Model | None = None) -> Any:
    """Show everything that is known of one head.

    Args:
        atlas: from ``mh.build_atlas`` or ``mh.studies.Atlas.load``.
        head: such as ``"L23H4"``. The heads that its card links to can be opened too.
        path, model: as in ``mh.explore``; the default file has the name of the head.

    Returns:
        As ``mh.explore``.

    Raises:
        ValueError: if there is no such head, or as in ``mh.explore``.
        ImportError: as in ``mh.explore``.

    >>> import tempfile, numpy as np
    >>> effect = mh.HeadScores.from_scores(np.eye(3), name="effect", kind="activation_patch")
    >>> atlas, folder = mh.studies.Atlas("demo", patching=effect), Path(tempfile.mkdtemp())
    >>> mh.head_card(atlas, "L1H1", folder / "card.html").name
    'card.html'
    """
    (one,) = _checked(atlas)
    at = check_head(head, *one.sizes)
    payload = atlas_payload([one], heads=linked_heads(one, at))
    name = payload.page["models"][0]["name"]
    start = {"start": {"model": 0, "head": str(at)}, "title": f"{at} of {name}"}
    return _shown(Payload(payload.page | start, payload.blocks), path, _CARD.format(at), _live(one, model))


def view_attention(attention: Attention, path: str | Path | None = None) -> Any:
    """Show the patterns of all heads of a run; see ``run.attention.view``.

    Raises:
        ValueError: if a prompt is too long.
        ImportError: as in ``mh.explore``.
    """
    longest = max(map(len, attention.strings))
    if longest > MAX_TOKENS:
        raise ValueError(f"the longest prompt has {longest} tokens; a view shows at most {MAX_TOKENS}")
    names = [f"prompt {i}" for i in range(len(attention.strings))]
    return _shown(run_payload("a run", HeadPatterns.of([attention], names, kept=_KEPT)), path, _PATTERNS, None)


def _checked(atlas: Atlas | Sequence[Atlas]) -> list[Atlas]:
    given = [atlas] if isinstance(atlas, Atlas) else list(atlas)
    if not given or not all(isinstance(one, Atlas) for one in given):
        raise ValueError(f"atlas is {atlas!r}; give an atlas from mh.build_atlas, or a list of several")
    return given


def _live(atlas: Atlas | Sequence[Atlas], model: Model | None) -> Live | None:
    return None if model is None else live_for(_checked(atlas)[0], model)


def live_for(atlas: Atlas, model: Model) -> Live:
    """What runs own texts beside an atlas.

    Raises:
        ValueError: if the model is of another size.
    """
    if (model.n_layers, model.n_heads) != atlas.sizes:
        raise ValueError(
            f"model is {model!r}, but the atlas is of {' x '.join(map(str, atlas.sizes))} heads; give the model of the "
            "atlas"
        )
    return Live(model)


def _shown(payload: Payload, path: str | Path | None, usual: str, live: Live | None) -> Any:
    if path is None and in_notebook():
        about = None if live is None else live.about("widget")
        return widget(Payload(payload.page | {"live": about}, payload.blocks), live)
    return write(payload, usual if path is None else path)
