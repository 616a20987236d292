"""What every head does on some windows, measured layer by layer while the model runs; nothing is kept but means."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.features import BEHAVIOURS, delimiters, keys_of, weights_of
from mechheads.behaviour.moved import norm_of, values_of, written_by
from mechheads.model.backends.partial_block import Stopped, until_stopped
from mechheads.model.model import Model

MOVED = tuple(f"{name}_moved" for name in BEHAVIOURS)
"""The behaviours again, with attention weighted by the norm of what is moved."""
OTHERS = ("position", "position_null", "entropy", "distance", "norm", "copying")
MEASURES = (
    *BEHAVIOURS,
    *(f"{name}_null" for name in BEHAVIOURS),
    *MOVED,
    *(f"{name}_null" for name in MOVED),
    *OTHERS,
)
_EVERY = 4
"""Copying is measured at every so many queries."""


def measure(
    model: Model, ids: Int[Tensor, "window pos"]
) -> tuple[Float[Tensor, "measure layer head window"], Float[Tensor, "layer head pos"]]:
    """Run the model on some windows.

    Returns:
        the measures, NaN where a window has none; and the attention within the middle at each distance, summed over
        queries and windows.
    """
    weights, has = weights_of(keys_of(ids, delimiters(model.tokenizer, model.d_vocab)))
    seen = _Seen(model, ids, weights, has)
    hooks = [
        (model.hook_name(site, layer), seen.hook(site, layer))
        for layer in range(model.n_layers)
        for site in ("resid_pre", "v", "pattern", "z")
    ]
    until_stopped(model.n_layers - 1, partial(model.backend.run, ids, hooks))
    return seen.found, seen.at_distance


class _Seen:
    """Collects the measures of each layer as its activations come."""

    def __init__(self, model: Model, ids: Tensor, weights: Tensor, has: Tensor) -> None:
        self._model, self._ids, self._weights = model, ids, weights
        self._has = torch.cat([has, has], dim=1).T[:, None]
        position = torch.arange(ids.shape[1], device=ids.device)
        self._back = position[:, None] - position
        self._middle = (self._back > 0) & (position >= 1) & (position[:, None] >= 2)
        self._pairs_at_distance = torch.bincount(self._back[self._middle], minlength=ids.shape[1]).double()
        self._read = model.W_U[:, ids].float() * model.final_scale()[:, None, None]  # [d_model, window, pos]
        self._now: dict[str, Tensor] = {}
        shape = (len(MEASURES), model.n_layers, model.n_heads, len(ids))
        self.found = torch.full(shape, torch.nan, dtype=torch.float64, device=ids.device)
        self.at_distance = torch.zeros(model.n_layers, model.n_heads, ids.shape[1], dtype=torch.float64)

    def hook(self, site: str, layer: int) -> Callable[..., None]:
        """A hook that keeps an activation; with the last of a layer, the layer is measured, and the last one stops."""

        def hook_fn(value: Tensor, hook: Any) -> None:
            self._now[site] = value.detach().float()
            if site == "z":
                self._measure(layer, **self._now)
                self._now.clear()
                if layer == self._model.n_layers - 1:
                    raise Stopped

        return hook_fn

    def _measure(self, layer: int, resid_pre: Tensor, v: Tensor, pattern: Tensor, z: Tensor) -> None:
        model = self._model
        W_O = written_by(model, layer)
        size = norm_of(values_of(model, v), W_O).permute(0, 2, 1)[..., None]
        moved = pattern * size.mT
        moved /= (pattern @ size).clamp_min(torch.finfo(moved.dtype).tiny)
        found: dict[str, Tensor] = {}
        n = 2 * len(BEHAVIOURS)
        self.found[:n, layer] = self._features(pattern)
        self.found[n : 2 * n, layer] = self._features(moved)
        found |= self._of_distance(layer, pattern)
        logs = pattern.clamp_min(torch.finfo(pattern.dtype).tiny).log_()
        found["entropy"] = -logs.mul_(pattern).sum((-1, -2)) / pattern.shape[2]
        found["norm"] = (norm_of(z, W_O) / resid_pre.norm(dim=-1)[..., None])[:, 1:].mean(1)
        found["copying"] = self._copying(pattern, z, W_O)
        for name, values in found.items():
            self.found[MEASURES.index(name), layer] = values.T.double()

    def _features(self, pattern: Float[Tensor, "window head pos pos"]) -> Float[Tensor, "feature head window"]:
        found = torch.einsum("whk,wfk->fhw", pattern.flatten(2), self._weights.flatten(2)).double()
        return found.masked_fill(~self._has, torch.nan)

    def _of_distance(self, layer: int, pattern: Tensor) -> dict[str, Float[Tensor, "window head"]]:
        """The mean distance within the middle, and the share of the variance there that the distance explains."""
        seen = pattern * self._middle.to(pattern.dtype)
        sums, count = self._by_distance(seen), self._pairs_at_distance
        self.at_distance[layer] = sums.sum(0)
        mass, tiny = sums.sum(-1), torch.finfo(torch.float64).tiny
        by_mean = mass**2 / count.sum()
        squares = torch.linalg.vector_norm(seen, dim=(-1, -2)).double() ** 2
        share = ((sums**2 / count.clamp_min(1)).sum(-1) - by_mean) / (squares - by_mean).clamp_min(tiny)
        by_chance = (int((count > 0).sum()) - 1) / max(int(count.sum()) - 1, 1)
        return {
            "position": share,
            "position_null": torch.full_like(share, by_chance),
            "distance": (sums * torch.arange(len(count), device=sums.device)).sum(-1) / mass.clamp_min(tiny),
        }

    def _by_distance(self, seen: Float[Tensor, "window head pos pos"]) -> Float[Tensor, "window head distance"]:
        """The sum over all pairs at each distance, of attention that is 0 but for earlier keys.

        In memory, the key at a distance lies n + 1 places after the key at that distance in the row before. A view with
        this step has the distances as its columns. Where a row has no such key, it shows a later key of the row before,
        which is 0.
        """
        n = seen.shape[-1]
        flat = seen.flatten(2)
        rows = flat.as_strided((*flat.shape[:2], n - 1, n), (*flat.stride()[:2], n + 1, 1), flat.storage_offset() + 2)
        return rows.sum(2).double().flip(-1)

    def _copying(self, pattern: Tensor, z: Tensor, W_O: Tensor) -> Float[Tensor, "window head"]:
        """How often the head raises the logit of the token it attends to most above that of another of the window."""
        queries = torch.arange(2, pattern.shape[2], _EVERY, device=pattern.device)
        seen = pattern[:, :, queries] * self._middle[queries]
        attended = seen.argmax(-1, keepdim=True)
        raised = torch.einsum("hde,ewk->whdk", W_O, self._read)
        logits = torch.einsum("wqhd,whdk->whqk", z[:, queries], raised)
        middle = self._middle[queries]
        token = self._ids[:, None].expand(-1, pattern.shape[1], -1).gather(-1, attended[..., 0])
        same = self._ids[:, None, None] == token[..., None]
        below = torch.where(same, 0.5, (logits < logits.gather(-1, attended)).float()) * middle
        others = middle.sum(-1) - 1
        share = (below.sum(-1) - 0.5) / others.clamp_min(1)
        return (share * (others > 0)).sum(-1) / (others > 0).sum().clamp_min(1)
