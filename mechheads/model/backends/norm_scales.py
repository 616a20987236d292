"""The scale of a norm, measured."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def scale_of(norm: Any, d_model: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " d_model"]:
    """The scale of a norm whose weights are of this dtype, in float32 on a device.

    It is measured on a vector of mean 0 and mean square 1, which every norm leaves unchanged except for its scale.
    """
    x = balanced(d_model, next((weight.device for weight in norm.parameters()), device))
    with torch.no_grad():
        up, down = norm((1e3 * torch.stack([x, -x])).to(dtype)[None])[0].float()
    return ((up - down) / (2 * x)).to(device)


def balanced(d_model: int, device: torch.device) -> Float[Tensor, " d_model"]:
    """A vector of mean 0 and mean square 1 without zeros, which every norm leaves unchanged except for its scale."""
    x = 1 - 2.0 * (torch.arange(d_model, device=device) % 2)
    if d_model % 2:
        x[-3:] = torch.tensor([1.0, 1.0, -2.0], device=device)
    return x / x.square().mean().sqrt()
