"""Norms whose scale is constant in the backward pass, with the same values in the forward pass.

A norm gives y = A x / s + b, where A is linear and s^2 is the mean square of u plus a small constant; u is x itself, or
x minus its mean. For a gradient g with respect to y, the norm's own gradient with respect to x is

    t = A^T g / s - u (g . (y - b)) / (n s^2).

The gradient with a constant s is therefore t + c u, for some number c. A product with x gives this number, because
(A^T g / s) . x = g . (y - b), and u . x = u . u:

    c = (g . (y - b) - t . x) / (u . u).

So neither the weights nor the small constant have to be known. The norm's own code runs, for every architecture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from mechheads.model.backends.base import Backend
from mechheads.model.backends.temporary_changes import Forward

_SHIFT = 3.0
"""Added to random values of variance 1 to see whether a norm subtracts the mean."""
_SAME = 0.1
"""How far results may differ and count as the same, as a share of the largest."""


@dataclass(frozen=True, eq=False)
class Norm:
    """A norm over the last axis.

    Attributes:
        bias: b; None if it is 0.
        centred: whether the mean is subtracted.
    """

    module: nn.Module
    bias: Float[Tensor, " n"] | None
    centred: bool

    def frozen(self) -> Forward:
        """The change by which the scale is constant in the backward pass."""
        return Forward(self.module, partial(self._forward, self.module.forward))

    def _forward(self, own: Callable[..., Tensor], x: Float[Tensor, "*rows n"], *args: Any, **kwargs: Any) -> Tensor:
        if not (torch.is_grad_enabled() and x.requires_grad):
            return own(x, *args, **kwargs)
        slopes: list[Tensor] = []
        inside = x.view_as(x)
        y = own(inside, *args, **kwargs)
        without_bias = y.detach() if self.bias is None else y.detach() - self.bias
        inside.register_hook(partial(self._gradient, x.detach(), without_bias, slopes))
        y.register_hook(slopes.append)
        return y

    def _gradient(
        self,
        x: Float[Tensor, "*rows n"],
        y: Float[Tensor, "*rows n"],
        slopes: list[Tensor],
        own: Float[Tensor, "*rows n"],
    ) -> Float[Tensor, "*rows n"]:
        """The gradient with respect to x if the scale is constant, from the norm's own gradient."""
        wide = torch.promote_types(own.dtype, torch.float32)
        x, y, slope, t = (each.to(wide) for each in (x, y, slopes.pop(), own))
        u = x - x.mean(-1, keepdim=True) if self.centred else x
        missing = (slope * y - t * x).sum(-1, keepdim=True)
        size = u.square().sum(-1, keepdim=True).clamp_min(torch.finfo(wide).tiny)
        return (t + missing / size * u).to(own.dtype)


def find_norms(backend: Backend) -> list[Norm]:
    """All norms that a run of the model calls: of blocks, of q and k, and the final one.

    Raises:
        ValueError: if a module that is called a norm does not divide by a scale.
    """
    found: dict[nn.Module, Norm] = {}

    def watch(own: Callable[..., Tensor], module: nn.Module, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if module not in found:
            found[module] = _measured(module, lambda each: own(each, *args, **kwargs), x, backend)
        return own(x, *args, **kwargs)

    modules = [module for module in backend.module.modules() if "Norm" in type(module).__name__]
    watched = [Forward(module, partial(watch, module.forward, module)) for module in modules]
    backend.changes.during(watched, lambda: backend.run(backend.trial_tokens(1, 4)))
    return [
        norm
        for module, norm in found.items()
        if not any(part in found for part in module.modules() if part is not module)
    ]


def _measured(
    module: nn.Module, call: Callable[[Tensor], Tensor], like: Float[Tensor, "*rows n"], backend: Backend
) -> Norm:
    """What a norm does, from its values for 0, for a random input, for twice this input and for the input plus 3."""
    x = torch.randn(like[:1].shape, generator=torch.Generator().manual_seed(0)).to(like)
    zero, usual, twice, shifted = (call(each) for each in (torch.zeros_like(x), x, 2 * x, x + _SHIFT))
    biases = zero.reshape(-1, zero.shape[-1])
    one, other = ((each - zero).float() for each in (usual, twice))
    apart = one * other.norm(dim=-1, keepdim=True) - other * one.norm(dim=-1, keepdim=True)
    if apart.norm() > _SAME * (one.norm(dim=-1) * other.norm(dim=-1)).norm() or (biases != biases[0]).any():
        raise ValueError(
            f"{backend.about} has a {type(module).__name__} that is not a norm: twice its input gives another direction"
        )
    centred = (shifted - usual).abs().max() <= _SAME * one.abs().max()
    return Norm(module, biases[0] if biases.any() else None, bool(centred))
