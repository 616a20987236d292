"""What comes before an analysis: the model is this thread's alone, as torch computes by default, and as it was tried.

Whoever holds a model may change it between two analyses. Weights are read anew by each analysis. If the modules, their
settings or the functions that they call were changed, the model is tried again as it is when it is loaded, and is also
compared with transformers. What an analysis would not call as the model's own forward pass does is refused: torch
hooks, replaced forwards, compiled modules.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import torch

from mechheads.model.backends.base import Backend, R
from mechheads.model.backends.carried import carried, has_user_hooks, hooks_everywhere
from mechheads.model.backends.readable import check_readable, first_sentence
from mechheads.model.backends.state import as_usual, quick_mark
from mechheads.model.backends.structure import Structure
from mechheads.model.backends.temporary_changes import Setting

_ITS_OWN = "transformer_lens."
_OF_LOGITS = ("unembed.", "hook_unembed")
"""What the names of hook points begin with that an analysis passes by: it multiplies by W_U itself."""
_KEPT_HOOKS = {"_forward_hooks": OrderedDict, "fwd_hooks": list}
"""Where a hook point keeps its hooks, for torch and for TransformerLens."""


def alone(backend: Backend, run: Callable[[], R]) -> R:
    """Call ``run`` while this thread has the model to itself, which is tried again first if it was changed.

    Raises:
        RuntimeError: if another thread has reserved the model.
        ValueError: if the model was changed so that it cannot be read any more, or cannot be run as usual.
    """

    def outermost(run: Callable[[], R]) -> R:
        parts = None if backend.tried is None else backend.tried.parts
        with as_usual(backend.module, backend.parameter.device, parts):
            renew(backend)
            before = None if backend.on_disk is not None else quick_mark(backend.weights)
            was_clean = backend.tried is not None and backend.tried.carries_the_same()
            with backend.proofs.of_an_analysis():
                found = run()
        if (before is not None and quick_mark(backend.weights) != before) or (
            was_clean and backend.tried is not None and not backend.tried.carries_the_same()
        ):
            raise RuntimeError(
                "model: its weights or hooks were changed while an analysis ran on it, so its numbers are those of no "
                "model; run it again"
            )
        return found

    return backend.changes.alone(run, outermost)


def read_weights(backend: Backend, read: Callable[[], R]) -> R:
    """What ``read`` reads of a model's weights, after the model was tried again if it was changed.

    Raises:
        ValueError: if the model was changed so that it cannot be read any more.
    """
    if backend.changes.mine or backend.tried is None:
        return read()
    backend.renew_copies()
    return read() if backend.tried.holds() else alone(backend, read)


def renew(backend: Backend) -> None:
    """Try a model again if what it is made of has changed since it was tried.

    Raises:
        ValueError: if it carries what analyses cannot honour, or cannot be read any more.
    """
    tried = backend.tried
    backend.renew_copies()
    if tried is not None and backend.readable and tried.holds() and not hooks_everywhere():
        return
    _refuse_carried(backend)
    changed = [("", "it had hooks when it was wrapped")] if tried is None else tried.changed()
    if not changed and backend.readable:
        return
    changed, backend.readable = changed or [("", "and back")], False
    try:
        points = [point for point in backend.hook_points.values() if has_user_hooks(point)]
        off = (Setting(point, name, kind()) for point in points for name, kind in _KEPT_HOOKS.items())
        backend.changes.during(off, lambda: _try(backend, all(kind.startswith(_ITS_OWN) for kind, _ in changed)))
    except ValueError as error:
        raise ValueError(
            f"model: it was changed after it was loaded ({changed[0][1]}), and cannot be read as it is now. "
            f"Undo the change, or load or wrap the changed model again. What is wrong: {error}"
        ) from error
    backend.tried, backend.readable = Structure(backend.module), True


def _try(backend: Backend, by_its_own_settings: bool) -> None:
    """Try a model as at loading, with none of its user's hooks.

    Args:
        by_its_own_settings: whether only settings of TransformerLens have changed, such as those of its hook points.
    """
    backend.forget()
    check_readable(backend)
    if backend.fuses:
        backend.fuse_attention()
    if not by_its_own_settings:
        try:
            with torch.no_grad():
                trial = backend.trial_now()
        except (RuntimeError, TypeError, AttributeError, LookupError) as error:
            raise ValueError(f"transformers cannot run it: {first_sentence(error)}") from error
        if trial is not None:
            backend.check_same_logits(trial)


def _refuse_carried(backend: Backend) -> None:
    """Refuse hooks and forwards that analyses would not call as the model's own forward pass does.

    Raises:
        ValueError: if there are some.
    """
    if found := carried(backend.module, lambda point: point.startswith(_OF_LOGITS)):
        raise ValueError(
            f"model: it carries {found[0]}. Analyses run a model block by block, on parts of prompts, and would not "
            "call this as the model's own forward pass does. Remove it (handle.remove() for torch hooks, del "
            "module.forward, model.model.reset_hooks() for hooks of TransformerLens); a TransformerLens hook on "
            "another hook point is honoured"
        )
