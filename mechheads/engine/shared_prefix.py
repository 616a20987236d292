"""Runs whose prompts share their first tokens with a cached run, computed from the first token that differs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.row_layout import layout_of
from mechheads.engine.rows import Window
from mechheads.engine.wavefront import Wave
from mechheads.limits import Limits
from mechheads.model.core import ModelCore
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HeadCache
from mechheads.runs.layer_store import LayerStore
from mechheads.runs.memory import tokens_in_run

_PROMPTS_AT_ONCE = 256


def run_sharing_prefix(base: HeadCache, tokens: Tokens, *, limits: Limits) -> HeadCache:
    """A run that keeps every head's z, as ``HeadCache.run`` returns it; shared first tokens are copied from ``base``.

    Args:
        base: a run that kept ``z`` and, if the model's attention takes cached keys, what resuming needs.
        tokens: the same number of prompts, each as long as its counterpart in ``base``.
    """
    model, ids = base.need_model(), tokens.ids
    last = (tokens.lengths - 1)[:, None]
    differs = ids != base.tokens.ids
    other = differs.any(1)
    first = torch.where(other, differs.long().argmax(1), last[:, 0])
    window = Window.from_start(first, last, layout_of(model), ids.shape[1])
    if "keys" not in base.stores or 2 * window.width > ids.shape[1]:
        return HeadCache.run(model, tokens, sites=("z",), limits=limits)
    store = LayerStore(model.n_layers, len(tokens), base.stores["z"].on_disk)
    final = base.final.clone()
    step = max(1, tokens_in_run(model, limits, ids.shape[1]) // window.width)
    with torch.no_grad():
        for begin in range(0, len(tokens), step):
            rows = slice(begin, begin + step)
            part = window.rows(rows)
            real = part.start[:, None] + torch.arange(part.width, device=ids.device) <= last[rows]
            real &= other[rows, None]
            where = real.nonzero()[:, 0], part.positions[real]

            def keep(layer: int, z: Tensor, rows: slice = rows, real: Tensor = real, where: Any = where) -> None:
                whole = base.stores["z"][layer][rows].clone()
                whole[where[0], :, where[1]] = z[real]
                store.add(layer, whole)

            new = Wave(base, rows, part).follow(part.take(model.backend.embed(ids[rows])[0]), keep)
            final[rows][where] = new[real]
    return HeadCache(model, tokens, {"z": store}, final, (model.n_heads, model.n_kv_heads))


def values_after(
    model: ModelCore, opening: Sequence[int], ids: Int[Tensor, " token"]
) -> list[Float[Tensor, "token kv d_head"]]:
    """The value vectors of single tokens after one opening, for each layer, in float32."""
    layout, device = layout_of(model), ids.device
    prompts = torch.cat([torch.tensor(opening, device=device).expand(len(ids), -1), ids[:, None]], 1)
    if layout == "whole":
        return _last_values(model, prompts)
    base = HeadCache.run(model, prompts[:1].tolist(), sites=("keys", "values"))
    parts: list[list[Tensor]] = [[] for _ in range(model.n_layers)]

    def keep(layer: int, values: Tensor) -> None:
        parts[layer].append(values[:, -1].float())

    with torch.no_grad():
        for some in prompts.split(_PROMPTS_AT_ONCE):
            last = torch.full((len(some), 1), len(opening), device=device)
            window = Window.from_start(last[:, 0], last, layout, some.shape[1])
            residual = window.take(model.backend.embed(some)[0])
            Wave(base, torch.zeros_like(last[:, 0]), window).follow(residual, keep, "v")
    return [torch.cat(found) for found in parts]


def _last_values(model: ModelCore, prompts: Int[Tensor, "prompt pos"]) -> list[Float[Tensor, "prompt kv d_head"]]:
    parts: list[list[Tensor]] = [[] for _ in range(model.n_layers)]
    for some in prompts.split(_PROMPTS_AT_ONCE):
        values = HeadCache.run(model, some.tolist(), sites=("v",)).site("v")
        for layer, found in enumerate(parts):
            found.append(values.layer(layer)[:, :, -1].float())
    return [torch.cat(found) for found in parts]
