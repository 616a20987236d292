"""A worker that serves several models in turn."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

import mechheads as mh
from mechheads.model.load import load_again
from support.made_workers import MadeWorkers
from support.texts import CLEAN

QUIET: dict[str, Any] = {"progress": False}


@pytest.fixture
def no_luck() -> Iterator[None]:
    """The garbage collector runs only when it is asked to."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_luck")
def test_each_model_is_freed_before_the_next_one_is_loaded(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[weakref.ref[Any]] = []
    alive: list[list[bool]] = []

    def load(*source: Any) -> mh.Model:
        alive.append([model() is not None for model in loaded])
        model = load_again(*source)
        loaded.append(weakref.ref(model.model))
        return model

    monkeypatch.setattr("mechheads.workers.replica.load_again", load)
    workers = MadeWorkers(1)
    for name in ("llama", "gpt2", "llama"):
        model = mh.load(tiny(name))
        mh.ablate(model, CLEAN, workers=workers, **QUIET)
        mh.ships(model, CLEAN, workers=workers, **QUIET)
    assert alive == [[], [False], [False, False]], "loaded once for both analyses of a model, and alone"
