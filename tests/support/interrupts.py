"""Ctrl-C at random moments of every long function, on tiny models."""

from __future__ import annotations

import random
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import mechheads as mh
from mechheads.engine.row_layout import layout_of
from support.every_analysis import EVERY

ARCHITECTURES = ("llama", "gpt2", "gemma", "neox")
HARMFUL = [" The capital of France is the", " a big dog gave", " one two three"]


def changes_on(model: mh.Model) -> Counter[str]:
    """What is on a model beside its weights: hooks, forwards of its own, weights that want no gradient."""
    found: Counter[str] = Counter()
    for name, point in model.model.hook_dict.items():
        found[f"hook at {name}"] = len(point.fwd_hooks) + len(point.bwd_hooks)
    for name, module in model.model.named_modules():
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks)
        found[f"torch hook at {name}"] = sum(map(len, hooks))
        found[f"forward at {name}"] = "forward" in module.__dict__
    for name, weight in model.model.named_parameters():
        found[f"no gradient for {name}"] = not weight.requires_grad
    found["no gradients"] = not torch.is_grad_enabled()
    return +found


def _dropped(_: object) -> None: ...


@contextmanager
def interrupt_after(*seconds: float) -> Iterator[None]:
    """Raise KeyboardInterrupt after some seconds, and again after some more, as long as the block runs.

    Python drops an interrupt that falls into a ``__del__`` or a weak reference's callback and hands it to
    ``sys.unraisablehook``; the second one may fall into that hook. So the hook is empty for as long.
    """
    delays = list(seconds)

    def handler(*_: object) -> None:
        if delays:
            signal.setitimer(signal.ITIMER_REAL, max(delays.pop(0), 1e-5))
        raise KeyboardInterrupt

    hook, sys.unraisablehook = sys.unraisablehook, _dropped
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, max(delays.pop(0), 1e-5))
        yield
    finally:
        while True:
            try:
                signal.signal(signal.SIGALRM, signal.SIG_IGN)
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
                sys.unraisablehook = hook
                break
            except KeyboardInterrupt:
                continue


@dataclass
class Trial:
    """One model, and what it gives undisturbed."""

    model: mh.Model
    names: list[str]
    rng: random.Random

    def __post_init__(self) -> None:
        self.before = changes_on(self.model)
        self.ids = self.model.backend.trial_tokens(2, 7)
        self.seconds = {name: self._seconds(EVERY[name].run) for name in self.names}
        self.layout, self.logits, self.sweep = layout_of(self.model), self._logits(), self._sweep()

    def _seconds(self, run: Callable[[mh.Model], Any]) -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(self.model)
            start = time.perf_counter()
            run(self.model)
        return time.perf_counter() - start

    def _logits(self) -> torch.Tensor:
        return self.model.backend.own_logits(self.ids).clone()

    def _sweep(self) -> np.ndarray:
        return mh.ablate(self.model, HARMFUL).scores.values

    @property
    def left(self) -> list[str]:
        """What is on the model now and was not at first, or the other way round."""
        now = changes_on(self.model)
        return list((now - self.before) | (self.before - now))

    def interrupt(self, name: str) -> str:
        """Interrupt one function once or twice at random moments, and see that nothing is different afterwards.

        Returns:
            "interrupted", or "returned" if it came to an end or gave back what it had.
        """
        if self.rng.random() < 0.3:
            self.model.backend.layout = None
        delays = [self.rng.uniform(0, 1.05 * self.seconds[name])]
        if again := self.rng.random() < 0.2:
            delays.append(self.rng.choice([1e-4, 1e-3]))
        ended = "returned"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                with interrupt_after(*delays):
                    EVERY[name].run(self.model)
            except KeyboardInterrupt:
                ended = "interrupted"
        assert again or not self.left, f"{name} left {self.left}"
        assert self.model.backend.layout in (None, self.layout), f"{name} left the layout {self.model.backend.layout}"
        assert np.array_equal(self._sweep(), self.sweep), f"the sweep after {name} gives other numbers"
        assert not self.left, f"{name} left {self.left}"
        assert torch.equal(self._logits(), self.logits), f"{name} changed the logits"
        return ended
