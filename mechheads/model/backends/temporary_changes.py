"""Temporary changes to a model, which are always undone, even after an exception or Ctrl-C.

Ctrl-C may arrive between any two steps of Python, also while a hook is added or removed. So every change is recorded
before it is made, undoing may be started again, and it is tried twice: if an interrupt arrives during the first
attempt, the second one completes it. Anything that several interrupts leave on the model is removed before the next
analysis starts.

Hooks and replaced methods act in the thread that made them only. A forward pass of the model's user in another thread
passes them by.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

P = ParamSpec("P")
R = TypeVar("R")


@runtime_checkable
class Change(Protocol):
    """A temporary change to a model. ``undo`` may be called twice, and also before ``make`` has finished."""

    def make(self) -> None: ...

    def undo(self) -> None: ...


@dataclass(frozen=True, eq=False, repr=False)
class _InOneThread:
    """A function that is called in the thread that made it, and another one that other threads call."""

    here: Callable[..., Any]
    elsewhere: Callable[..., Any]
    thread: int = field(default_factory=threading.get_ident)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return (self.here if threading.get_ident() == self.thread else self.elsewhere)(*args, **kwargs)


class HookOn:
    """A hook on a TransformerLens hook point."""

    def __init__(self, point: Any, hook: Callable[..., Any]) -> None:
        self._point, self._hook = point, _InOneThread(hook, _nothing)
        self._before, self._listed = set(point._forward_hooks), list(point.fwd_hooks)

    def make(self) -> None:
        self._point.add_hook(self._hook)

    def undo(self) -> None:
        registered = self._point._forward_hooks
        for key in [key for key in registered if key not in self._before]:
            registered.pop(key, None)
        self._point.fwd_hooks = list(self._listed)


class Forward:
    """Another ``forward`` for a module, or another method, set without ``nn.Module.__setattr__``.

    TransformerLens overrides ``__setattr__``.
    """

    def __init__(self, module: nn.Module, forward: Callable[..., Any], name: str = "forward") -> None:
        self._module, self._forward, self._name = module, forward, name
        self._before = {key: value for key, value in module.__dict__.items() if key == name}

    def make(self) -> None:
        usual = getattr(self._module, self._name)
        object.__setattr__(self._module, self._name, _InOneThread(self._forward, usual))

    def undo(self) -> None:
        self._module.__dict__.pop(self._name, None)
        self._module.__dict__.update(self._before)


class Part:
    """Another module in the place of one."""

    def __init__(self, owner: nn.Module, name: str, part: nn.Module) -> None:
        self._parts, self._name, self._part, self._before = owner._modules, name, part, owner._modules[name]

    def make(self) -> None:
        self._parts[self._name] = self._part

    def undo(self) -> None:
        self._parts[self._name] = self._before


class Setting:
    """Another value of an attribute."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner, self._name, self._value, self._before = owner, name, value, getattr(owner, name)

    def make(self) -> None:
        setattr(self._owner, self._name, self._value)

    def undo(self) -> None:
        setattr(self._owner, self._name, self._before)


class Changes:
    """The changes in effect on one model, the analysis that has the model to itself, and what was derived for it.

    Attributes:
        at_end: called when an analysis ends.
    """

    def __init__(self) -> None:
        self.at_end: Callable[[], None] = _nothing
        self._made: list[Change] = []
        self._derived: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._thread: int | None = None

    def during(self, changes: Iterable[Change], run: Callable[[], R]) -> R:
        """Make changes one after the other, call ``run``, and undo all changes.

        Outside an analysis this thread has the model to itself meanwhile: what ``run`` reads of it would else begin an
        analysis of its own, whose end undoes the changes.
        """
        if not self.mine:
            return self.alone(lambda: self.during(changes, run))
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

    def alone(self, run: Callable[[], R], outermost: Callable[[Callable[[], R]], R] | None = None) -> R:
        """Call ``run`` while this thread has the model to itself.

        Args:
            outermost: called with ``run`` in its place, unless a caller has the model to itself already.

        Raises:
            RuntimeError: if another thread has it.
        """
        if self.mine:
            return run()
        grad = torch.is_grad_enabled()
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "model: another thread is running an analysis on it, and two would change each other's numbers; "
                "wait for the first to end, or load the model once for each thread"
            )
        try:
            self._derived = {}
            self._restore()
            self._thread = threading.get_ident()
            return run() if outermost is None else outermost(run)
        finally:
            try:
                self._end(grad)
            finally:
                try:
                    self._end(grad)
                finally:
                    self._lock.release()

    @property
    def mine(self) -> bool:
        """Whether an analysis in this thread has the model to itself."""
        return self._thread == threading.get_ident()

    @property
    def any_made(self) -> bool:
        """Whether a change is in effect."""
        return bool(self._made)

    def once(self, name: str, derive: Callable[[], R]) -> R:
        """What is derived from the weights: once in each analysis, which has them to itself, and anew outside."""
        if not self.mine:
            return derive()
        if name not in self._derived:
            self._derived[name] = derive()
        return self._derived[name]

    def _restore(self, mark: int = 0) -> None:
        while len(self._made) > mark:
            self._made[-1].undo()
            self._made.pop()

    def _end(self, grad: bool) -> None:
        """Undo the remaining changes; may be called twice."""
        self._thread = None
        self._restore()
        self._derived = {}
        self.at_end()
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """What happens at the end of an analysis of most models, and what hooks do in other threads."""


_OF_MODULES: weakref.WeakKeyDictionary[nn.Module, Changes] = weakref.WeakKeyDictionary()


def changes_of(module: nn.Module) -> Changes:
    """The ``Changes`` of a TransformerLens model; wrapping the model again gives the same object."""
    return _OF_MODULES.setdefault(module, Changes())
