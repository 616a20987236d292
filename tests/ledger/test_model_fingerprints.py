"""A model counts as it is: whatever is changed on it is another model, or an error; running it changes nothing."""

from __future__ import annotations

import functools
import importlib.metadata
import re
import types
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

import mechheads as mh
from mechheads.ledger.fingerprints import model_fingerprint, release_of
from support.levels import architectures
from support.releases import TRANSFORMERLENS_4, only_on_4

PROMPTS = [" The capital of France is", " The capital of Spain is the big"]
PAIRS = mh.PromptPairs(PROMPTS[:1], [" The capital of Italy is"], [" Paris"], [" Rome"])


@pytest.fixture(scope="module")
def model(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


def inside(model: mh.Model) -> Any:
    """The second layer, as transformers made it; in TransformerLens 3.9 as that made it."""
    return model.model.original_model.model.layers[1] if TRANSFORMERLENS_4 else model.model.blocks[1]


def own(module: Any) -> Any:
    """A module without the bridge around it."""
    return getattr(module, "original_component", None) or module


def found(model: mh.Model) -> str:
    return model_fingerprint(model.model, "store")


def scaled(value: Any, *_: Any, **_more: Any) -> Any:
    return value * 0.3


HOOKS: dict[str, Callable[[mh.Model], Callable[[], object]]] = {
    "of TransformerLens": lambda m: (m.model.blocks[1].attn.hook_z.add_hook(scaled), m.model.reset_hooks)[1],
    "backward of TransformerLens": lambda m: (
        m.model.blocks[1].attn.hook_z.add_hook(scaled, dir="bwd"),
        m.model.reset_hooks,
    )[1],
    "forward": lambda m: inside(m).mlp.register_forward_hook(scaled).remove,
    "before forward": lambda m: inside(m).mlp.register_forward_pre_hook(scaled).remove,
    "backward": lambda m: inside(m).mlp.register_full_backward_hook(scaled).remove,
    "before backward": lambda m: inside(m).mlp.register_full_backward_pre_hook(scaled).remove,
    "on the whole": lambda m: m.model.register_forward_hook(scaled).remove,
    "on the trunk": lambda m: getattr(m.model, "original_model", m.model.blocks).register_forward_hook(scaled).remove,
    "of torch on a hook point": lambda m: m.model.blocks[1].attn.hook_z.register_forward_hook(scaled).remove,
    "on every module": lambda _: register_module_forward_hook(scaled).remove,
    "a forward": lambda m: with_forward(own(inside(m).mlp), scaled),
    "a forward in a partial": lambda m: with_forward(own(inside(m).mlp), functools.partial(scaled)),
    "a bound forward": lambda m: with_forward(own(inside(m).mlp), types.MethodType(scaled, 2)),
}


def with_forward(module: nn.Module, forward: Callable[..., Any]) -> Callable[[], object]:
    module.forward = forward
    return lambda: module.__dict__.pop("forward")


@pytest.mark.parametrize("name", HOOKS)
def test_a_model_with_hooks_is_refused(model: mh.Model, tmp_path: Path, name: str) -> None:
    task = mh.Task([" The capital of France is", " The capital of Italy is"], [" Paris", " Rome"])
    before = found(model)
    remove = HOOKS[name](model)
    kind = "a replaced forward in" if "a " in name and "point" not in name else "a (torch|TransformerLens) hook "
    try:
        with pytest.raises(ValueError, match=f"^store: the model carries {kind}.*Remove it .* or leave store out"):
            found(model)
        said = f"^(store: the model|model: it) carries {kind}.*Remove it"
        with pytest.raises(ValueError, match=said):
            mh.ablate(model, PROMPTS, store=tmp_path / "store")
        with pytest.raises(ValueError, match=said):
            mh.settings(store=tmp_path / "gates")(mh.fit_gates)(model, task, seeds=1, updates=1)
        if "TransformerLens" not in name:
            with pytest.raises(ValueError, match=f"^model: it carries {kind}"):
                mh.ablate(model, PROMPTS)
    finally:
        remove()
    assert not list(tmp_path.iterdir())
    assert found(model) == before


def test_hooks_are_no_error_where_nothing_is_kept(model: mh.Model, tmp_path: Path) -> None:
    def ablate(**given: Any) -> np.ndarray:
        return mh.ablate(model, PROMPTS, heads="L0H1", **given).values.values[0, 1]

    plain = ablate(store=tmp_path / "store")
    with model.model.hooks([("blocks.0.attn.hook_z", lambda z, hook: 0 * z)]):
        assert np.abs(ablate() - plain).max() > 0.1
        mh.fit_gates(model, mh.Task([PROMPTS[0]], [" Paris"]), seeds=1, updates=1)
        with pytest.raises(ValueError, match=r"TransformerLens hook on blocks\.0\.attn"):
            ablate(store=tmp_path / "store")
    np.testing.assert_array_equal(ablate(store=tmp_path / "store"), plain)


def set_to(owner: Any, name: str, value: Any) -> Callable[[], object]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    return lambda: setattr(owner, name, before)


class Doubled(nn.Module):
    def __init__(self, inner: Callable[..., Any], factor: float = 2.0) -> None:
        super().__init__()
        self.inner, self._factor = inner, factor
        self.table = torch.ones(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._factor * self.table.mean() * self.inner(x)


def activation(model: mh.Model, make: Callable[[Any], Any]) -> Callable[[], object]:
    mlp = own(inside(model).mlp)
    before = mlp.act_fn
    mlp._modules.pop("act_fn", None)
    mlp.act_fn = make(before)

    def restore() -> None:
        mlp.__dict__.pop("act_fn", None)
        mlp._modules.pop("act_fn", None)
        mlp.act_fn = before

    return restore


def nudged(weight: torch.Tensor) -> Callable[[], object]:
    weight = weight.detach()
    kept = weight[77, 13].clone()
    weight[77, 13] += 1e-4
    return lambda: weight[77, 13].copy_(kept)


CHANGES: dict[str, Callable[[mh.Model], Callable[[], object]]] = {
    "another activation": lambda m: activation(m, lambda _: nn.ReLU()),
    "a function for an activation": lambda m: activation(m, lambda _: torch.relu),
    "a function of one's own": lambda m: activation(m, lambda act: lambda x: 2 * torch.relu(x)),
    "another function of one's own": lambda m: activation(m, lambda act: lambda x: 3 * torch.relu(x)),
    "a partial": lambda m: activation(m, lambda act: functools.partial(torch.mul, other=2)),
    "another partial": lambda m: activation(m, lambda act: functools.partial(torch.mul, other=3)),
    "a module of one's own": lambda m: activation(m, lambda act: Doubled(nn.SiLU())),
    "which keeps another number": lambda m: activation(m, lambda act: Doubled(nn.SiLU(), 3.0)),
    "a layer twice": lambda m: set_to(inside(m), "mlp", m.model.blocks[0].mlp),
    "one weight": lambda m: nudged(m.W_E),
    "training": lambda m: (m.model.train(), m.model.eval)[1],
    "a method of a library's class": lambda m: set_to(type(own(inside(m).mlp)), "forward", lambda self, x: x),
    "the same in disguise": lambda m: set_to(
        type(own(inside(m).mlp)), "forward", functools.wraps(type(own(inside(m).mlp)).forward)(lambda self, x: 2 * x)
    ),
}


@only_on_4
def test_whatever_is_changed_is_another_model(model: mh.Model) -> None:
    before = found(model)
    seen = {"nothing": before}
    for name, change in CHANGES.items():
        restore = change(model)
        seen[name] = found(model)
        restore()
        assert len(set(seen.values())) == len(seen), name
        assert found(model) == before, name
    attention = own(inside(model).self_attn)
    restore = set_to(attention, "scaling", 2 * attention.scaling)
    assert found(model) != before
    restore()
    assert found(model) == before


@pytest.mark.parametrize("name", architectures("gpt2", "llama", "neox", "gemma", "qwen"))
def test_running_a_model_and_loading_it_from_elsewhere_change_nothing(tiny, tmp_path: Path, name: str) -> None:
    (tmp_path / "copy").symlink_to(tiny(name))
    model, other = mh.load(tiny(name)), mh.load(tmp_path / "copy")
    before = found(model)
    assert re.fullmatch("[0-9a-f]{64}", before)
    assert found(other) == before
    mh.ablate(model, PROMPTS, heads="L0H1")
    mh.activation_patch(model, PAIRS, site="k", heads="L0H1")
    model.model.run_with_cache(torch.tensor([[3, 4, 5]]))
    with ExitStack() as hooks:
        hooks.enter_context(model.model.hooks([("blocks.0.attn.hook_z", scaled)]))
        model.model(torch.tensor([[3, 4, 5]]))
    assert found(model) == before


def test_another_release_of_a_library_is_another_model(model: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    before = found(model)
    release_of.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    try:
        assert found(model) != before
    finally:
        release_of.cache_clear()


@only_on_4
def test_a_stored_result_is_of_the_model_as_it_is(model: mh.Model, tmp_path: Path) -> None:
    def ablate(**given: Any) -> bytes:
        return mh.ablate(model, PROMPTS, heads=["L0H1", "L1H2"], **given).values.values.tobytes()

    first = ablate(store=tmp_path / "store")
    restore = activation(model, lambda _: nn.ReLU().eval())
    second = ablate(store=tmp_path / "store")
    assert second == ablate() != first
    restore()
    assert ablate(store=tmp_path / "store") == first
