"""Temporary changes to a model and to torch's settings, which are always undone, even after an exception or Ctrl-C.

Ctrl-C may arrive between any two steps of Python, also while a hook is added or removed. So every change is recorded
before it is made, and undoing may be started again: by the call that made the change, by those around it, and twice
by the end of the analysis. What several interrupts leave on a model is removed before the next analysis starts.

Hooks and replaced methods act in the thread that made them only.
"""

from __future__ import annotations

import logging
import threading
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import nn

from mechheads.model.parts import parts_of

R = TypeVar("R")


_SHARES = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob")
"""Attributes in which attention has its rate of dropout."""


@runtime_checkable
class Change(Protocol):
    """A temporary change to a model. ``undo`` may be called twice, and also before ``make`` has finished."""

    def make(self) -> None: ...

    def undo(self) -> None: ...


class HookOn:
    """A hook on a TransformerLens hook point."""

    def __init__(self, point: Any, hook: Callable[..., Any]) -> None:
        self._point, self._hook = point, _in_this_thread(hook, _nothing)
        self._before, self._listed = set(point._forward_hooks), list(point.fwd_hooks)

    def make(self) -> None:
        self._point.add_hook(self._hook)

    def undo(self) -> None:
        registered = self._point._forward_hooks
        for key in [key for key in registered if key not in self._before]:
            registered.pop(key, None)
        self._point.fwd_hooks = list(self._listed)


class Forward:
    """Another ``forward`` for a module, or another method; TransformerLens' ``__setattr__`` is bypassed."""

    def __init__(self, module: nn.Module, forward: Callable[..., Any], name: str = "forward") -> None:
        self._module, self._forward, self._name = module, forward, name
        self._before = {key: value for key, value in vars(module).items() if key == name}

    def make(self) -> None:
        vars(self._module)[self._name] = _in_this_thread(self._forward, getattr(self._module, self._name))

    def undo(self) -> None:
        vars(self._module).pop(self._name, None)
        vars(self._module).update(self._before)


class Setting:
    """Another value of an attribute."""

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner, self._name, self._value, self._before = owner, name, value, getattr(owner, name)

    def make(self) -> None:
        setattr(self._owner, self._name, self._value)

    def undo(self) -> None:
        setattr(self._owner, self._name, self._before)


class Changes:
    """The changes in effect on one model, the thread that has it to itself, and values derived for an analysis."""

    def __init__(self) -> None:
        self.at_end: Callable[[], None] = _nothing
        self._made: list[Change] = []
        self._derived: dict[str, Any] = {}
        self._lock = threading.RLock()
        self._thread: int | None = None

    def during(self, changes: Iterable[Change], run: Callable[[], R]) -> R:
        """Call ``run`` with changes that are made one after the other, and undone afterwards."""
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
                self._undo(mark)
        finally:
            self._undo(mark)

    def alone(self, run: Callable[[], R]) -> R:
        """Call ``run`` while this thread has the model to itself; no ``with`` block, into whose end Ctrl-C may fall."""
        if self.mine:
            return run()
        grad = torch.is_grad_enabled()
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                "model: another thread is running an analysis on it, and two would change each other's numbers; "
                "wait for the first to end, or load the model once for each thread"
            )
        try:
            try:
                try:
                    self._derived = {}
                    self._undo()
                    self._thread = threading.get_ident()
                    return run()
                finally:
                    self._end(grad)
            finally:
                self._end(grad)
        finally:
            self._lock.release()

    @property
    def mine(self) -> bool:
        """Whether this thread has the model to itself."""
        return self._thread == threading.get_ident()

    @property
    def any_made(self) -> bool:
        """Whether a change is in effect."""
        return bool(self._made)

    def once(self, name: str, derive: Callable[[], R]) -> R:
        """A value derived from the weights: computed once in each analysis, and anew each time outside one."""
        if not self.mine:
            return derive()
        if name not in self._derived:
            self._derived[name] = derive()
        return self._derived[name]

    def _undo(self, mark: int = 0) -> None:
        while len(self._made) > mark:
            self._made[-1].undo()
            self._made.pop()

    def _end(self, grad: bool) -> None:
        """Undo the remaining changes; may be called twice."""
        self._thread = None
        self._undo()
        self._derived = {}
        self.at_end()
        if torch.is_grad_enabled() != grad:
            torch.set_grad_enabled(grad)


def _in_this_thread(here: Callable[..., Any], elsewhere: Callable[..., Any]) -> Callable[..., Any]:
    """A function that does one thing in the thread that made it, and another in others."""
    thread = threading.get_ident()

    def call(*args: Any, **kwargs: Any) -> Any:
        return (here if threading.get_ident() == thread else elsewhere)(*args, **kwargs)

    return call


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing: at the end of an analysis of most models, and as a hook in other threads."""


_OF_MODULES: weakref.WeakKeyDictionary[nn.Module, Changes] = weakref.WeakKeyDictionary()


def changes_of(module: nn.Module) -> Changes:
    """The ``Changes`` of a TransformerLens model; wrapping the model again gives the same object."""
    return _OF_MODULES.setdefault(module, Changes())


@contextmanager
def as_usual(module: nn.Module, device: torch.device, parts: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """Compute as torch does by default inside the ``with`` block."""
    check_evaluation(module, parts)
    if (dtype := torch.get_default_dtype()) != torch.float32:
        raise ValueError(
            f"torch's default dtype is {dtype}, in which analyses would compute other numbers; call "
            "torch.set_default_dtype(torch.float32) first. The model keeps its own dtype"
        )
    with ExitStack() as usual, without_autocast(device):
        if torch.get_default_device().type != "cpu":
            usual.enter_context(torch.device("cpu"))
        if torch.is_inference_mode_enabled():  # what is computed may be used where gradients are needed
            usual.enter_context(torch.inference_mode(False))
        yield


def check_evaluation(module: nn.Module, parts: Iterable[nn.Module] | None = None) -> None:
    """Check that no part of a model is in training mode and gives other numbers in it."""
    if random := next(filter(_is_random, parts_of(module) if parts is None else parts), None):
        at = next((name for name, part in module.named_modules() if part is random), type(random).__name__)
        raise ValueError(
            f"model is in training mode ({at}), in which dropout makes its numbers random; call its eval() first"
        )


def _is_random(part: nn.Module) -> bool:
    """Whether a part gives other numbers in training mode; one whose dropout has the rate 0 does not."""
    if not part.training or isinstance(part, nn.modules.batchnorm._BatchNorm):
        return part.training
    rates = [part.p] if isinstance(part, nn.modules.dropout._DropoutNd) else [vars(part).get(name) for name in _SHARES]
    return any(isinstance(rate, float) and rate > 0 for rate in rates)


@contextmanager
def settings_restored() -> Iterator[None]:
    """Restore what libraries change in the process: loggers, filters of warnings, torch's random numbers."""
    loggers = [logging.getLogger(name) for name in ("", "transformers", "huggingface_hub", "accelerate", "peft")]
    before = [(logger, logger.level, logger.propagate, logger.disabled) for logger in loggers]
    with warnings.catch_warnings(), torch.random.fork_rng(devices=[]):
        try:
            yield
        finally:
            for logger, level, propagate, disabled in before:
                logger.setLevel(level)
                logger.propagate, logger.disabled = propagate, disabled


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A ``with`` block in which products have the dtype of their factors, also inside the user's autocast."""
    try:
        on = torch.is_autocast_enabled(device.type)
    except RuntimeError:  # a kind of device that has no autocast
        on = False
    return torch.autocast(device.type, enabled=False) if on else nullcontext()


def arithmetic(device: torch.device) -> str:
    """What decides how numbers are rounded: the kind of device, whatever its number, and the precision of products."""
    kind = f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type
    precision = torch.get_float32_matmul_precision()
    return kind if precision == "highest" else f"{kind}, float32 products in {precision} precision"


@contextmanager
def with_gradient() -> Iterator[None]:
    """Record gradients inside the ``with`` block."""
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        raise ValueError(
            "model: its tensors were made inside torch.inference_mode() and give no gradients; load it outside"
        ) from error
