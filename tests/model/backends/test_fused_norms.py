"""RMS norms in one step: the same numbers as in transformers' steps, for norms of every kind, with nothing left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

import mechheads as mh
from mechheads.model.backends.fused_norms import norm_in_one_step
from support.architectures import architectures
from support.releases import only_on_4

pytestmark = [pytest.mark.transformerlens, only_on_4]

TEXTS = ["The capital of France is Paris", "When John and Mary went to the store"]


class WithBias(nn.Module):
    """An RMS norm that also adds something."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias, self.eps = nn.Parameter(torch.ones(12)), nn.Parameter(torch.zeros(12)), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.weight + self.bias


class Gated(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor | None = None) -> Tensor:
        normed = super().forward(hidden_states)
        return normed if gate is None else normed * gate


class Halved(LlamaRMSNorm):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) / 2


def with_weights(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, 12))  # type: ignore[operator]
    return norm


@pytest.mark.parametrize("kind", [LlamaRMSNorm, GemmaRMSNorm, T5LayerNorm])
def test_one_step_is_the_same_function_also_after_its_weights_change(kind: Callable[..., nn.Module]) -> None:
    norm = kind(12, eps=1e-3)
    found = norm_in_one_step(norm)
    assert found is not None
    with_weights(norm)
    x = torch.randn(5, 7, 12, dtype=torch.float32, requires_grad=True)
    torch.testing.assert_close(found(x), norm(x), atol=1e-6, rtol=1e-6)
    of_one, of_steps = (torch.autograd.grad(run(x).square().sum(), x)[0] for run in (found, norm))
    torch.testing.assert_close(of_one, of_steps, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("norm", [nn.LayerNorm(12), WithBias(), Gated(12), Halved(12), LlamaRMSNorm(12).bfloat16()])
def test_other_norms_keep_their_steps(norm: nn.Module) -> None:
    assert norm_in_one_step(norm) is None


def test_a_norm_whose_weights_are_on_disk_is_tried_without_them() -> None:
    norm = with_weights(LlamaRMSNorm(12, eps=1e-3))
    found, weight = norm_in_one_step(norm.to("meta")), torch.linspace(-1, 2, 12)
    assert found is not None and norm.weight.is_meta
    norm.weight = nn.Parameter(weight)
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(found(x), norm(x), atol=1e-6, rtol=1e-6)


def norms_of(model: mh.Model) -> list[Any]:
    backend: Any = model.backend
    return [norm for block in backend._native_norms for norm in block]


@pytest.mark.parametrize("name", architectures("llama", "gemma3", "qwen3", "mistral", "phi3", "gemma2", "olmo2"))
def test_models_compute_norms_in_one_step_with_the_same_numbers(family: Callable[[str], Path], name: str) -> None:
    model, plain = mh.load(family(name)), mh.load(family(name))
    assert norms_of(model) and all(norm.one_step is not None for norm in norms_of(model))
    backend: Any = plain.backend
    backend._in_one_step = False
    final = [each.cache(TEXTS, sites=("z",)).final for each in (model, plain)]
    torch.testing.assert_close(*final, atol=1e-5, rtol=1e-5)
    ablated = [mh.ablate(each, TEXTS, kind="mean", metric=mh.kl_divergence, progress=False) for each in (model, plain)]
    np.testing.assert_allclose(ablated[0].scores, ablated[1].scores, rtol=1e-3, atol=1e-5)
    assert not any("forward" in part.__dict__ for part in model.model.modules())
