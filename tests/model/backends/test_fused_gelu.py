"""GELU in one step: the same numbers as in transformers' steps, nothing left behind, and only where it is exact."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.activations import FastGELUActivation, NewGELUActivation

import mechheads as mh
from mechheads.model.backends import bridge
from mechheads.model.backends.fused_gelu import gelu_in_one_step, step_by_step_gelus
from mechheads.model.backends.temporary_changes import Changes, Forward
from support.architectures import architectures
from support.releases import only_on_4

pytestmark = [pytest.mark.transformerlens, only_on_4]

TEXTS = ["The capital of France is Paris", "When John and Mary went to the store"]


class Steps(TorchDispatchMode):
    """How often each of torch's operations runs."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.counts[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def counts(model: mh.Model) -> Counter[str]:
    with Steps() as steps:
        model.cache(TEXTS, sites=("z",))
    return steps.counts


def step_by_step(model: mh.Model) -> mh.Model:
    backend: Any = model.backend
    backend._in_one_step = False
    return model


@pytest.mark.parametrize("activation", [NewGELUActivation(), FastGELUActivation()])
def test_one_step_is_the_same_function(activation: torch.nn.Module) -> None:
    x = torch.linspace(-20, 20, 4001, dtype=torch.float64, requires_grad=True)
    wanted = activation(x)
    (slope,) = torch.autograd.grad(wanted.sum(), x)
    found = Changes().during([gelu_in_one_step(activation)], lambda: activation(x))
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)
    torch.testing.assert_close(torch.autograd.grad(found.sum(), x)[0], slope, atol=1e-10, rtol=0)
    assert "forward" not in activation.__dict__


@pytest.mark.parametrize("name", architectures("gpt2", "gpt-j", "gpt-neo", "phi"))
def test_models_compute_it_in_one_step_with_the_same_numbers(family: Callable[[str], Path], name: str) -> None:
    model, plain = mh.load(family(name)), step_by_step(mh.load(family(name)))
    assert all(len(step_by_step_gelus(block)) == 1 for block in model.model.blocks)
    found, wanted = counts(model), counts(plain)
    assert (found["gelu"], found["tanh"]) == (wanted["tanh"], 0) and wanted["tanh"] >= model.n_layers
    analyses: list[Callable[[mh.Model], mh.HeadScores]] = [
        lambda each: mh.ablate(each, TEXTS, kind="mean", metric=mh.kl_divergence, progress=False),
        lambda each: mh.patching.attribution_patch(
            each, mh.PromptPairs([[3, 5, 9, 12]], [[3, 5, 7, 12]], [6], [8]), progress=False
        ),
    ]
    for analysis in analyses:
        np.testing.assert_allclose(analysis(model).scores, analysis(plain).scores, rtol=1e-3, atol=1e-5)
    assert not any("forward" in part.__dict__ for part in model.model.modules())


def test_a_model_whose_states_change_too_much_keeps_its_own_steps(
    family: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def more(own: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return 1.001 * own(x)

    monkeypatch.setattr(bridge, "gelu_in_one_step", lambda part: Forward(part, partial(more, part.forward)))
    model, plain = mh.load(family("gpt2")), step_by_step(mh.load(family("gpt2")))
    found, wanted = (each.cache(TEXTS, sites=("z",)).final for each in (model, plain))
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


def test_in_half_precision_a_model_keeps_its_own_steps(family: Callable[[str], Path]) -> None:
    found = counts(mh.load(family("gpt2"), dtype="bfloat16"))
    assert found["gelu"] == 0 and found["tanh"] > 0


def test_an_activation_that_a_user_replaced_stays(family: Callable[[str], Path]) -> None:
    model = mh.load(family("gpt2"))
    (activation,) = step_by_step_gelus(model.model.blocks[1])
    called = []

    def mine(x: torch.Tensor) -> torch.Tensor:
        called.append(len(x))
        return torch.relu(x)

    activation.forward = mine
    assert counts(model)["relu"] and called and activation.forward is mine
