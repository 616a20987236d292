"""The new z of a head under an intervention, whichever activation the intervention replaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.heads import HeadId, kv_head
from mechheads.interventions.base import Context, Intervention, site_of
from mechheads.model.backends.base import Hook
from mechheads.model.model import Model
from mechheads.runs.head_cache import KEY_SITES, HeadCache
from mechheads.runs.layer_store import LayerStore


@dataclass(frozen=True)
class AllNewZ:
    """The new z of every head, from a new q, k, v or pattern: ``all_new[layer]`` is [prompt, head, pos, d_head].

    Attributes:
        z: the new z of each layer.
        differs: for each layer, whether its q, k, v or pattern differs from the base run [prompt, stored head, pos].
    """

    z: LayerStore
    differs: LayerStore

    def __getitem__(self, layer: int) -> Float[Tensor, "prompt head pos d_head"]:
        return self.z[layer]


def all_new_z(
    model: Model,
    base: HeadCache,
    source: HeadCache | None,
    intervention: Intervention,
    at: Bool[Tensor, "prompt pos"] | None,
    layers: Sequence[int],
    rows: int,
) -> AllNewZ:
    """Every head's z when its q, k, v or pattern is changed, in one run of the model.

    Heads of a layer do not see each other, so changing all of them at once gives each its own new z. The old z is
    restored after it is read, so that later layers stay as in the base run.

    Args:
        base: a run that kept z and the site of the intervention.
        at: the positions to change; None changes all.
        layers: the layers to compute.
        rows: how many prompts to run at once.
    """
    site = site_of(intervention)
    on_disk = base.stores["z"].on_disk
    store, changed = (LayerStore(len(layers), len(base.tokens), on_disk) for _ in range(2))

    def hooks(part: slice, layer: int) -> list[Hook]:
        def change(value: Tensor, hook: Any) -> Tensor:
            new = _changed(model, base, source, intervention, at, layer)[part]
            old = base.site(site).layer(layer)[part]
            changed.add(layer, (new != old).any(-1) & base.tokens.mask[part, None])
            return new if site == "pattern" else new.transpose(1, 2)

        def take(value: Tensor, hook: Any) -> Tensor:
            store.add(layer, value.transpose(1, 2))
            return base.z.layer(layer)[part].transpose(1, 2)

        return [(model.hook_name(site, layer), change), (model.hook_name("z", layer), take)]

    for start in range(0, len(base.tokens), rows):
        part = slice(start, start + rows)
        model.backend.run(base.tokens.ids[part], [hook for layer in layers for hook in hooks(part, layer)])
    return AllNewZ(store, changed)


def _changed(
    model: Model, base: HeadCache, source: HeadCache | None, intervention: Intervention, at: Tensor | None, layer: int
) -> Float[Tensor, "prompt stored *rest"]:
    """A layer's q, k, v or pattern with the intervention applied, one entry for each stored head."""
    site = site_of(intervention)
    old = base.site(site).layer(layer)
    group = model.n_heads // old.shape[1]
    new = torch.stack(
        [
            apply(intervention, old[:, i], Context(HeadId(layer, i * group), base, source, base.tokens.mask))
            for i in range(old.shape[1])
        ],
        dim=1,
    ).to(old.dtype)
    return new if at is None else torch.where(at[:, None, :, None], new, old)


def new_z(
    intervention: Intervention,
    base: HeadCache,
    source: HeadCache | None,
    head: HeadId,
    at: Bool[Tensor, "prompt pos"] | None,
    of_all: AllNewZ | None = None,
) -> tuple[Float[Tensor, "prompt pos d_head"], Int[Tensor, " prompt"]]:
    """A head's new z, and the first position where it differs from the old one; the row's width if it never does.

    Args:
        at: the positions to change; None changes all.
        of_all: from ``all_new_z``, for an intervention that does not act on z itself.
    """
    old = base.z.layer(head.layer)[:, head.head]
    if of_all is None:
        new = apply(intervention, old, Context(head, base, source, base.tokens.mask))
        new = torch.where(base.tokens.mask[..., None], new, old)
        differs = (new != old).any(-1)
    else:
        new = torch.where(base.tokens.mask[..., None], of_all[head.layer][:, head.head], old)
        changed = of_all.differs[head.layer]
        differs = changed[:, kv_head(head.head, base.n_heads, changed.shape[1])]
    if at is not None and site_of(intervention) not in KEY_SITES:
        new, differs = torch.where(at[..., None], new, old), differs & at
    never = torch.full((len(old),), old.shape[1], device=old.device)
    return new, torch.where(differs.any(1), differs.long().argmax(1), never)


def apply(intervention: Intervention, value: Tensor, context: Context) -> Tensor:
    """Call an intervention and check what it returns.

    Raises:
        ValueError: if the result is not a tensor of the same shape, or not finite at a real token.
    """
    copies = {side: run.copies() for side in ("base", "source") if (run := getattr(context, side)) is not None}
    new = intervention(value.clone(), replace(context, **copies))
    name = getattr(intervention, "__name__", None) or type(intervention).__name__
    if not isinstance(new, torch.Tensor) or new.shape != value.shape:
        got = list(new.shape) if isinstance(new, torch.Tensor) else type(new).__name__
        raise ValueError(
            f"intervention {name} gave {got} for {context.head}; it must return a tensor of shape {list(value.shape)}"
        )
    if not (new.isfinite() | ~context.mask[..., None]).all():  # a GPU waits once; for new[mask] it would wait twice
        raise ValueError(f"intervention {name} gave values that are not finite for {context.head}")
    return new
