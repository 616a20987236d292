"""What makes a function an analysis: its results say how it was called, and nothing of a call outlives it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import mechheads as mh
from mechheads.limits import Limits, current
from mechheads.model.analysis import OPTIONS, analysis
from mechheads.results.provenance import make_provenance
from support.every_analysis import public_analyses

HEAD = mh.HeadId(1, 2)


@analysis
def inner(model: mh.Model, *, draws: int = 3, way: str = "K") -> dict[str, Any]:
    return make_provenance({"model": "m"}, way=way.lower())


@analysis
def outer(model: mh.Model, texts: str, *, heads: Any = None, draws: int = 7, head: Any = HEAD) -> Any:
    return inner(model), make_provenance(inner(model, draws=9), shown=texts), make_provenance({"draws": [1, 2]})


def test_options_are_in_the_provenance_and_what_was_made_of_them_replaces_them(llama: mh.Model) -> None:
    with mh.settings(seed=4):
        inside, around, looked_up = outer(llama, "text", heads=["L0H1"])
    assert inside == {"model": "m", "seed": 4, "draws": 3, "way": "k"}
    assert around == {"model": "m", "seed": 4, "draws": 9, "way": "k", "head": "L1H2", "shown": "text"}
    assert looked_up["draws"] == [1, 2]


@pytest.mark.parametrize("stop", [KeyboardInterrupt, ValueError])
def test_nothing_of_a_call_is_left_however_it_ends(stop: type[BaseException], llama: mh.Model) -> None:
    @analysis
    def breaks(model: mh.Model, *, draws: int = 3) -> None:
        raise stop

    with pytest.raises(stop):
        breaks(llama)
    assert make_provenance({"model": "m"}) == {"model": "m"}
    assert inner(llama)["draws"] == 3  # and the model is free


class Seen(Exception):
    """The settings of a call."""


class Probe:
    """A model that stops an analysis as it begins."""

    @property
    def backend(self) -> Any:
        raise Seen(current())


DOCUMENTED = "It also takes ``budget``, ``progress``, ``workers``, ``store`` and ``seed``, as ``mh.settings`` does."
GIVEN: dict[str, Any] = {"budget": "3 MB", "progress": False, "workers": 0, "store": "made.ledger", "seed": 7}
PUBLIC = {name: each for name, each in public_analyses().items() if "store" in inspect.signature(each).parameters}


@pytest.mark.parametrize("name", [*PUBLIC, "cache"])
def test_every_analysis_takes_the_settings_of_one_call_and_shows_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mechheads.model.analysis.check_arguments", lambda *_: None)
    called = (PUBLIC | {"cache": mh.Model.cache})[name]
    parameters = inspect.signature(called).parameters
    options = [each for each in parameters if each in OPTIONS]
    assert options == [*GIVEN] == [*OPTIONS]
    settings = inspect.signature(mh.settings).parameters
    assert all(parameters[each] == settings[each] for each in OPTIONS)
    assert called.__doc__.count(DOCUMENTED) == 1
    assert set(inspect.signature(called.__wrapped__).parameters).isdisjoint(OPTIONS)
    needed = [each for each in parameters.values() if each.default is each.empty and each.kind < 4]
    first = [Probe(), None, None, None][: sum(each.kind < 3 for each in needed)]
    named = {each.name: None for each in needed if each.kind == 3}
    with mh.settings(workers=Fixed(), seed=1), pytest.raises(Seen) as seen:
        called(*first, **named, **GIVEN)
    now = seen.value.args[0]
    assert (now.limits, now.progress, now.store, now.seed) == (Limits(3 * 2**20), False, "made.ledger", 7)


class Fixed:
    """Workers that are never asked for anything."""

    def stop(self) -> None: ...


@pytest.mark.parametrize("no_model", ["gpt2", Path("gpt2"), None, torch.nn.Linear(1, 1)])
def test_a_name_or_a_module_is_no_model(no_model: Any) -> None:
    shown = repr(no_model) if no_model is None or isinstance(no_model, str) else f"a {type(no_model).__name__}"
    for call in (mh.build_atlas, mh.profile_heads, lambda model: mh.ablate(model, [" a"])):
        with pytest.raises(ValueError, match=f"model is {shown}; give a model from mh.load or mh.wrap"):
            call(no_model)
