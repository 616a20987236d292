"""Gradients through a model, with one clear error if it gives none, and changes of gradients on their way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor


@contextmanager
def with_gradient() -> Iterator[None]:
    """Record gradients inside the ``with`` block.

    Raises:
        ValueError: if the model consists of inference tensors, through which no gradient passes.
    """
    try:
        with torch.enable_grad():
            yield
    except RuntimeError as error:
        if "Inference tensors" not in str(error):
            raise
        raise ValueError(
            "model: its tensors were made inside torch.inference_mode() and give no gradients; load it outside"
        ) from error


def with_other_gradient(value: Float[Tensor, "*shape"], change: Callable[[Tensor], Tensor]) -> Float[Tensor, "*shape"]:
    """The same value, whose gradient is changed before it is passed on; the value itself if nothing asks for one."""
    if not value.requires_grad:
        return value
    same = value.view_as(value)
    same.register_hook(change)
    return same
