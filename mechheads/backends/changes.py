"""What is changed on a model for the length of a call, and put back whatever happens and whenever.

Ctrl-C may fall between any two steps of Python, also while a hook is added or taken off. So every change is noted
before it is made, putting it back may be begun again, and it is tried twice: an interrupt that falls into the first
attempt is made good by the second. What several interrupts still leave behind, the next analysis takes off before
it starts.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import wraps
from types import FrameType
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

P = ParamSpec("P")
R = TypeVar("R")


@runtime_checkable
class Change(Protocol):
    """Something that is different for a while. ``undo`` may be called twice, and before ``make`` has ended."""

    def make(self) -> None: ...

    def undo(self) -> None: ...


class HookOn:
    """A hook on a TransformerLens hook point."""

    def __init__(self, point: Any, hook: Callable[..., Any]) -> None:
        self._point, self._hook = point, hook
        self._before, self._listed = set(point._forward_hooks), list(point.fwd_hooks)

    def make(self) -> None:
        self._point.add_hook(self._hook)

    def undo(self) -> None:
        registered = self._point._forward_hooks
        for key in [key for key in registered if key not in self._before]:
            registered.pop(key, None)
        self._point.fwd_hooks = list(self._listed)


class Forward:
    """Another ``forward`` for a module, set past ``nn.Module``, whose setter TransformerLens replaces."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any]) -> None:
        self._module, self._forward = module, forward
        self._before = {name: value for name, value in module.__dict__.items() if name == "forward"}

    def make(self) -> None:
        object.__setattr__(self._module, "forward", self._forward)

    def undo(self) -> None:
        self._module.__dict__.pop("forward", None)
        self._module.__dict__.update(self._before)


class NoGradient:
    """A weight that wants no gradient."""

    def __init__(self, weight: Tensor) -> None:
        self._weight, self._before = weight, weight.requires_grad

    def make(self) -> None:
        self._weight.requires_grad_(False)

    def undo(self) -> None:
        self._weight.requires_grad_(self._before)


class Turn:
    """The time that one analysis has a model for itself, from the call of a function until this has ended.

    A turn ends with its function's frame, also where an interrupt keeps that from saying so. The next turn hangs on
    the one before, so that of two threads only one can take it; a lock could be left locked by an interrupt.
    """

    def __init__(self, frame: FrameType) -> None:
        self.thread = threading.get_ident()
        self.grad = torch.is_grad_enabled()
        self._frame: FrameType | None = frame
        self._next: dict[str, Turn] = {}

    def end(self) -> None:
        """Give the model free."""
        self._frame = None

    @property
    def over(self) -> bool:
        """Whether its function has ended: its frame is no longer among those of its thread."""
        if self._frame is None:
            return True
        running = sys._current_frames().get(self.thread)
        while running is not None and running is not self._frame:
            running = running.f_back
        return running is None

    def followed_by(self, turn: Turn) -> Turn:
        """The turn after this one: ``turn``, unless another was faster."""
        return self._next.setdefault("turn", turn)


class Changes:
    """The changes that stand on one model, and the analysis that has it for itself."""

    def __init__(self) -> None:
        self._made: list[Change] = []
        self._turn = Turn(sys._getframe())
        self._turn.end()

    def during(self, changes: Iterable[Change], run: Callable[[], R]) -> R:
        """Make changes one after the other, call ``run``, and put everything back."""
        mark = len(self._made)
        try:
            try:
                for change in changes:
                    self._made.append(change)
                    change.make()
                return run()
            finally:
                self._restore(mark)
        finally:
            self._restore(mark)

    def _restore(self, mark: int = 0) -> None:
        while len(self._made) > mark:
            self._made[-1].undo()
            self._made.pop()

    def begin(self, frame: FrameType) -> Turn | None:
        """Take the model for the function that runs in ``frame``; None where a function that called it has it.

        Raises:
            RuntimeError: if another thread has it.
        """
        mine, last = Turn(frame), self._turn
        while last is not mine:
            if not last.over:
                if last.thread == mine.thread:
                    return None
                raise RuntimeError(
                    "model: another thread is running an analysis on it, and two would change each other's numbers; "
                    "wait for the first to end, or load the model once for each thread"
                )
            last = last.followed_by(mine)
        self._turn = mine
        self._restore()
        return mine

    def end(self, turn: Turn) -> None:
        """Put back what is left and give the model free; may be called twice."""
        self._restore()
        if torch.is_grad_enabled() != turn.grad:
            torch.set_grad_enabled(turn.grad)
        turn.end()


_OF_MODULES: weakref.WeakKeyDictionary[nn.Module, Changes] = weakref.WeakKeyDictionary()


def changes_of(module: nn.Module) -> Changes:
    """The changes on a TransformerLens model, the same however many times it was wrapped."""
    return _OF_MODULES.setdefault(module, Changes())


def alone(analysis: Callable[P, R]) -> Callable[P, R]:
    """Let an analysis, whose first argument is a model, have this model for itself and leave it as it was."""

    @wraps(analysis)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        model = args[0] if args else kwargs.get("model")
        changes: Changes | None = getattr(getattr(model, "backend", None), "changes", None)
        turn = None if changes is None else changes.begin(sys._getframe())
        if changes is None or turn is None:
            return analysis(*args, **kwargs)
        try:
            return analysis(*args, **kwargs)
        finally:
            try:
                changes.end(turn)
            finally:
                changes.end(turn)

    return call
