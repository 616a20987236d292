"""Ctrl-C at any moment leaves a model as it was; two threads do not mix."""

from __future__ import annotations

import importlib
import io
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.model.analysis import analysis
from mechheads.model.changes import Forward, HookOn, Setting
from mechheads.progress import Bar
from support.changes import changes_on
from support.texts import PAIRS

HARMFUL = [" The capital of France is the", " a big dog gave", " one two three"]


@pytest.fixture
def llama(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"))


class _Stop:
    """Raises KeyboardInterrupt at the n-th step that the interpreter takes in one file; n counts from 1."""

    def __init__(self, file: str, at: int | None) -> None:
        self.file, self.at, self.steps = file, at, 0

    def __enter__(self) -> _Stop:
        self._before = sys.gettrace()
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            self.steps += 1
            if self.steps == self.at:
                raise KeyboardInterrupt
        return self._step


@pytest.fixture
def changed(llama: mh.Model) -> tuple[Callable[[], None], Callable[[], Any]]:
    """An analysis that makes a change of each kind on a model with a hook, a forward and a frozen weight of its
    user's, and what is on that model."""
    points, block = llama.model.hook_dict, llama.model.blocks[1]
    at = points["blocks.1.attn.hook_z"]
    weights = list(llama.model.parameters())
    at.add_hook(lambda value, hook: None)
    object.__setattr__(block, "forward", block.forward)
    weights[0].requires_grad_(False)
    backend = llama.backend

    @analysis
    def analyse(model: mh.Model) -> None:
        frozen = [Setting(weight, "requires_grad", False) for weight in weights[:2]]
        made = [HookOn(at, lambda value, hook: None), Forward(block, lambda x: x), *frozen]
        backend.changes.during(made, lambda: backend.under([("blocks.0.attn.hook_z", lambda z, hook: z)], lambda: None))

    def state() -> Any:
        return changes_on(llama), block.__dict__["forward"], list(at._forward_hooks), list(at.fwd_hooks)

    return lambda: analyse(llama), state


@pytest.mark.parametrize(
    ("where", "least", "every"),
    [
        ("changes", 500, 7),
        ("analysis", 20, 1),
    ],
)
def test_an_interrupt_at_any_step_of_making_and_undoing_changes_leaves_nothing(
    changed, where: str, least: int, every: int
):
    analyse, state = changed
    before, file = state(), importlib.import_module(f"mechheads.model.{where}").__file__
    with _Stop(file, None) as counted:
        analyse()
    assert counted.steps > least
    for at in range(1, counted.steps + 1, every):
        try:
            with _Stop(file, at):
                analyse()
        except KeyboardInterrupt:
            pass
        else:
            pytest.fail(f"step {at} did not come")
        assert state() == before, f"after an interrupt at step {at} of {counted.steps}"
    analyse()


def test_what_several_interrupts_leave_the_next_analysis_takes_off(llama, monkeypatch):
    before, expected = changes_on(llama), mh.ablate(llama, HARMFUL).scores.values
    monkeypatch.setattr(HookOn, "undo", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        llama.cache(HARMFUL)
    monkeypatch.undo()
    assert changes_on(llama) != before
    np.testing.assert_array_equal(mh.ablate(llama, HARMFUL).scores.values, expected)
    assert changes_on(llama) == before


def _interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


@pytest.fixture
def busy(llama: mh.Model) -> Iterator[tuple[mh.Model, threading.Event, list[np.ndarray]]]:
    """A model on which another thread runs a sweep that waits, an event that lets it go on, and its result."""
    begun, go_on, found = threading.Event(), threading.Event(), []

    def waits(logits: torch.Tensor, context: mh.patching.Context) -> torch.Tensor:
        begun.set()
        assert go_on.wait(60)
        return mh.logit_diff(logits, context)

    def sweep() -> None:
        found.append(mh.activation_patch(llama, PAIRS, metric=waits))

    thread = threading.Thread(target=sweep)
    thread.start()
    assert begun.wait(60)
    yield llama, go_on, found
    go_on.set()
    thread.join(60)


def test_a_second_thread_is_refused_and_the_first_is_right(busy):
    model, go_on, found = busy
    with pytest.raises(RuntimeError, match="another thread is running an analysis on it"):
        mh.ablate(model, HARMFUL)
    with pytest.raises(RuntimeError, match="wait for the first to end, or load the model once for each thread"):
        mh.wrap(model.model).cache(HARMFUL)
    go_on.set()
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join(60)
    expected = mh.activation_patch(model, PAIRS)
    np.testing.assert_allclose(found[0].scores.values, expected.scores.values, atol=1e-5)


def test_an_interrupted_bar_does_not_stop_the_bars_of_other_threads(monkeypatch):
    for name in ("refresh", "clear"):
        with mh.settings(progress=True):
            bar = Bar(total=3, file=io.StringIO())
        monkeypatch.setattr(bar, "display", _interrupt)
        monkeypatch.setattr(bar, "moveto", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            getattr(bar, name)()
        monkeypatch.undo()
        free: list[bool] = []
        thread = threading.Thread(target=_try_lock, args=(free,), daemon=True)
        thread.start()
        thread.join(30)
        assert free == [True]


def _try_lock(free: list[bool]) -> None:
    if Bar.get_lock().acquire(timeout=5):
        Bar.get_lock().release()
        free.append(True)
