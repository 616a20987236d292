"""What makes a function an analysis: its results say how it was called, and nothing of a call outlives it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.model.analysis import analysis
from mechheads.results.provenance import make_provenance

HEAD = mh.HeadId(1, 2)


@analysis
def inner(model: mh.Model, *, draws: int = 3, way: str = "K") -> dict[str, Any]:
    return make_provenance({"model": "m"}, way=way.lower())


@analysis(keeps_units=True)
def outer(model: mh.Model, texts: str, *, heads: Any = None, draws: int = 7, head: Any = HEAD, store: str = "x") -> Any:
    return inner(model), make_provenance(inner(model, draws=9), shown=texts), make_provenance({"draws": [1, 2]})


def test_options_are_in_the_provenance_and_what_was_made_of_them_replaces_them(llama: mh.Model) -> None:
    with mh.settings(seed=4):
        inside, around, looked_up = outer(llama, "text", heads=["L0H1"])
    assert inside == {"model": "m", "seed": 4, "draws": 3, "way": "k"}
    assert around == {"model": "m", "seed": 4, "draws": 9, "way": "k", "head": "L1H2", "shown": "text"}
    assert looked_up["draws"] == [1, 2]
    assert outer.keeps_units and not inner.keeps_units  # type: ignore[attr-defined]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_nothing_of_a_call_is_left_however_it_ends(stop: type[BaseException], llama: mh.Model) -> None:
    @analysis
    def breaks(model: mh.Model, *, draws: int = 3) -> None:
        raise stop

    with pytest.raises(stop):
        breaks(llama)
    assert make_provenance({"model": "m"}) == {"model": "m"}
    assert inner(llama)["draws"] == 3  # and the model is free


def test_a_call_that_does_not_fit_names_the_argument(llama: mh.Model) -> None:
    with pytest.raises(TypeError, match=r"inner\(\): got an unexpected keyword argument 'nothing'"):
        inner(llama, nothing=1)


@pytest.mark.parametrize("no_model", ["gpt2", Path("gpt2"), None, torch.nn.Linear(1, 1)])
def test_a_name_or_a_module_is_no_model(no_model: Any) -> None:
    shown = "Linear" if isinstance(no_model, torch.nn.Module) else re.escape(repr(no_model))
    for call in (mh.build_atlas, mh.profile_heads, lambda model: mh.ablate(model, [" a"])):
        with pytest.raises(ValueError, match=f"model is {shown}; give a model from mh.load or mh.wrap"):
            call(no_model)


def test_numbers_of_numpy_are_options_too(llama: mh.Model) -> None:
    assert inner(llama, draws=np.int64(5))["draws"] == 5  # type: ignore[arg-type]
