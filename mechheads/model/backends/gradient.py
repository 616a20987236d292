"""Gradients through a model, with one clear error if it gives none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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
