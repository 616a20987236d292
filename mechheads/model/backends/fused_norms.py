"""RMS norms in one pass over memory, where transformers takes five.

transformers writes them step by step, in a class of its own for each architecture. torch has the same in one step:

    x / sqrt(mean(x^2) + eps) * weight,  or  ... * (1 + weight)  in Gemma and its successors

Which of the two a norm computes, if any, is found by a trial. In half precision the steps round differently, so there
a model keeps its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

_TRIAL = 8
"""Tokens of the trial."""
_CLOSE = 1e-5

Norm = Callable[[Tensor], Tensor]


def norm_in_one_step(norm: Any) -> Norm | None:
    """What an RMS norm of transformers computes, in one step; None if it is none, or does not compute the same."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if type(norm) is nn.LayerNorm or eps is None or [name for name, _ in norm.named_parameters()] != ["weight"]:
        return None
    if not isinstance(weight, Tensor) or weight.dtype.itemsize < 4 or weight.ndim != 1 or weight.is_meta:
        return None
    if len(inspect.signature(norm.forward).parameters) != 1:
        return None  # it may be given a gate
    ways: list[Norm] = [
        lambda x: rms_norm(x, norm.weight.shape, norm.weight, eps),
        lambda x: rms_norm(x, norm.weight.shape, 1 + norm.weight, eps),
    ]
    x = torch.randn(_TRIAL, *weight.shape, generator=torch.Generator().manual_seed(0)).to(weight)
    with torch.no_grad():
        wanted = norm.forward(x)
        return next((way for way in ways if torch.allclose(way(x), wanted, rtol=_CLOSE, atol=_CLOSE)), None)
