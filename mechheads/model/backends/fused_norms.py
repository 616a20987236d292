"""RMS norms in one pass over memory, where transformers takes five.

transformers writes them step by step, in a class of its own for each architecture. torch has the same in one step:

    x / sqrt(mean(x^2) + eps) * weight,  or  ... * (1 + weight)  in Gemma and its successors

Which of the two a norm computes, if any, is found by a trial. In half precision the steps round differently, so there
a model keeps its own.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm
from transformer_lens.hook_points import HookPoint

from mechheads.model.backends.temporary_changes import Forward

_TRIAL = 8
"""Tokens of the trial."""
_CLOSE = 1e-5

Norm = Callable[[Tensor], Tensor]


def norm_in_one_step(norm: Any) -> Norm | None:
    """What an RMS norm of transformers computes, in one step; None if it is none, or does not compute the same.

    The trial is of a copy with random weights, so the norm's own may be on disk or on any device.
    """
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    if type(norm) is nn.LayerNorm or eps is None or [name for name, _ in norm.named_parameters()] != ["weight"]:
        return None
    if not isinstance(weight, Tensor) or weight.dtype.itemsize < 4 or weight.ndim != 1:
        return None
    if len(inspect.signature(type(norm).forward).parameters) != 2:
        return None  # it may be given a gate
    ways: list[Callable[[Any, Tensor], Tensor]] = [
        lambda of, x: rms_norm(x, of.weight.shape, of.weight, eps),
        lambda of, x: rms_norm(x, of.weight.shape, 1 + of.weight, eps),
    ]
    random = torch.Generator().manual_seed(0)
    trial, x = copy.copy(norm), torch.randn(_TRIAL, *weight.shape, generator=random, dtype=weight.dtype)
    trial._parameters = {"weight": torch.randn(weight.shape, generator=random, dtype=weight.dtype)}
    with torch.no_grad():
        wanted = type(norm).forward(trial, x)
        same = (way for way in ways if torch.allclose(way(trial, x), wanted, rtol=_CLOSE, atol=_CLOSE))
        way = next(same, None)
    return None if way is None else partial(way, norm)


@dataclass(frozen=True)
class NativeNorm:
    """A norm of the bridge whose result is that of transformers' own norm.

    Attributes:
        part: the bridge's norm.
        one_step: the same in one step, if there is that.
        points: its hook points.
    """

    part: Any
    one_step: Norm | None
    points: Sequence[HookPoint]

    @classmethod
    def of(cls, part: Any) -> NativeNorm:
        points = [point for point in part.modules() if isinstance(point, HookPoint)]
        return cls(part, norm_in_one_step(part.original_component), points)

    @property
    def serves(self) -> bool:
        """Whether nothing asks for what the bridge computes beside the result."""
        return "forward" not in self.part.__dict__ and not any(point.has_hooks() for point in self.points)

    def change(self, in_one_step: bool) -> Forward:
        """The change that lets the bridge compute the result alone; a user's own ``forward`` stays."""
        own = self.part.original_component
        if in_one_step and self.one_step is not None and "forward" not in own.__dict__:
            return Forward(self.part, self.one_step)
        return Forward(self.part, own.forward)
