"""The error of half precision: some heads again in float32."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import torch

from mechheads.engine.answer_check import AnswerWarning
from mechheads.heads import HeadId
from mechheads.messages.interrupted import until_interrupted
from mechheads.model.backends.devices import free_bytes
from mechheads.model.load import in_dtype
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores

_SAMPLE = 4


def with_precision(
    model: Model, result: HeadScores, again: Callable[[Model, Sequence[HeadId]], HeadScores]
) -> HeadScores:
    """The result, with the difference from float32 on a sample of heads in ``provenance["precision"]``.

    Half of the sample are the heads with the largest absolute scores; the other half is spread evenly over the
    rest. For a model in float32 or wider the result is returned unchanged.

    Args:
        again: runs the same analysis for some heads on another model.
    """
    if model.dtype.itemsize >= 4:
        return result
    if result.provenance.get("interrupted"):
        return result.with_provenance(precision="not measured: interrupted")
    values = np.asarray(result.values)
    each = np.abs(values.reshape(model.n_layers, model.n_heads, -1))
    size, measured = np.nansum(each, axis=-1), np.isfinite(each).any(-1)
    done = sorted(np.argwhere(measured).tolist(), key=lambda at: -size[tuple(at)])
    top, rest = done[: _SAMPLE // 2], sorted(done[_SAMPLE // 2 :])
    spread = rest[:: max(1, -(-len(rest) // (_SAMPLE // 2)))]
    sample = [HeadId(*at) for at in sorted(top + spread)]
    if not sample:
        return result
    pick, exact = tuple(zip(*((head.layer, head.head) for head in sample), strict=True)), np.full_like(values, np.nan)
    with until_interrupted() as interrupts, warnings.catch_warnings():  # what is measured already is not lost by Ctrl-C
        warnings.simplefilter("ignore", AnswerWarning)  # the first run has already warned
        if (wide := _copy(model, torch.float32)) is None:
            return result.with_provenance(precision="not measured: no room for the model in float32")
        exact = np.asarray(again(wide, sample).values)
    if interrupts.interrupted or not np.isfinite(exact[pick]).any():
        return result.with_provenance(precision="not measured: interrupted")
    off = np.abs(values[pick] - exact[pick])
    return result.with_provenance(
        precision={
            "sample": [str(head) for head in sample],
            "largest_difference": float(np.nanmax(off)),
            "mean_difference": float(np.nanmean(off)),
            "largest_value": float(np.nanmax(np.abs(exact[pick]))),
        }
    )


def _copy(model: Model, dtype: torch.dtype) -> Model | None:
    """A copy of the model in another dtype, if there is room for it."""
    if model.backend.on_disk is not None:
        return None
    needed: Counter[torch.device] = Counter()
    for weight in model.model.parameters():
        needed[weight.device] += weight.numel() * (dtype.itemsize + weight.itemsize)
    for device, size in needed.items():
        free = free_bytes(device)
        if size > (_free_memory() if free is None else free):
            return None
    return in_dtype(model, dtype)


def _free_memory() -> int:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return 2**62
