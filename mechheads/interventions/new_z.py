"""The new z of heads under an intervention, whichever activation the intervention replaces, and hooks that put it in.

Heads are computed layer by layer, and what an intervention returns is checked once for all heads: on a GPU, every call
that computes something takes time to start, and every check waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from mechheads.heads import HeadId, kv_head
from mechheads.interventions.basic import Context, Intervention, Site, site_of
from mechheads.model.backend import Hook
from mechheads.model.core import ModelCore
from mechheads.model.model import Model
from mechheads.model.parts import Stopped, until_stopped
from mechheads.runs.head_cache import KEY_SITES, HeadCache
from mechheads.runs.head_tensor import LayerStore


@dataclass(frozen=True)
class HeadChange:
    """Replaces one activation of a head, a key/value head, or of all (None), row by row and position by position.
    In generated text, ``function`` is called for one token at a time after the prompt."""

    layer: int
    head: int | None
    site: Site | Literal["mlp_out"]
    function: Callable[[Float[Tensor, "row pos ..."]], Float[Tensor, "row pos ..."]]


Rows = slice | Tensor | None
Region = tuple[Callable[[], Rows], slice]
"""The rows and positions of a batch that a change applies to. The function that gives the rows is called in every
forward pass, because rows leave a batch when they are finished; None means no rows."""


def region(rows: Rows = slice(None), positions: slice = slice(None)) -> Region:
    """A region that stays the same; by default, all rows and positions."""
    return (lambda: rows), positions


EVERYWHERE = region()


def change_hooks(model: ModelCore, changes: Iterable[tuple[HeadChange, Region]]) -> list[Hook]:
    """Hooks that apply the changes, one for each layer and site; changes of one head are applied in order."""
    at: dict[tuple[int, str], list[tuple[HeadChange, Region]]] = {}
    for change, where in changes:
        at.setdefault((change.layer, change.site), []).append((change, where))
    return [(model.hook_name(site, layer), partial(_put, changes=of_site)) for (layer, site), of_site in at.items()]


def _put(value: Tensor, hook: Any, changes: list[tuple[HeadChange, Region]]) -> Tensor:
    if len(changes) == 1 and changes[0][0].head is None and changes[0][1] is EVERYWHERE:
        return changes[0][0].function(value).to(value.dtype)
    value = value.clone(memory_format=torch.contiguous_format)
    for change, (rows_now, positions) in changes:
        if (rows := rows_now()) is not None:
            where = (rows, positions) if change.head is None else (rows, positions, change.head)
            value[where] = change.function(value[where]).to(value.dtype)
    return value


@dataclass(frozen=True)
class AllNewZ:
    """The new z of every head: ``z[layer]`` is [prompt, head, pos, d_head].
    ``differs[layer]``: whether its q, k, v or pattern differs from the base run [prompt, stored head, pos].
    """

    z: LayerStore
    differs: LayerStore

    def __getitem__(self, layer: int) -> Float[Tensor, "prompt head pos d_head"]:
        return self.z[layer]


def all_new_z(
    model: Model,
    base: HeadCache,
    source: HeadCache | None,
    rule: CheckedIntervention,
    at: Bool[Tensor, "prompt pos"] | None,
    layers: Sequence[int],
    rows: int,
) -> AllNewZ:
    """Every head's z when its q, k, v or pattern is changed, in one run of the model up to the last of the layers.
    Heads of a layer do not see each other, so all change at once; the old z is restored after it is read."""
    site, on_disk = rule.site, base.stores["z"].on_disk
    store, changed = (LayerStore(len(layers), len(base.tokens), on_disk) for _ in range(2))
    mask = base.tokens.mask

    def hooks(part: slice, layer: int) -> list[Hook]:
        def change(value: Tensor, hook: Any) -> Tensor:
            old = base.site(site).layer(layer)
            group = model.n_heads // old.shape[1]
            heads = [HeadId(layer, i * group) for i in range(old.shape[1])]
            new = rule.apply(old, heads, base, source).to(old.dtype)
            new, old = new[part], old[part]
            if at is not None:
                new = torch.where(at[part, None, :, None], new, old)
            changed.add(layer, (new != old).any(-1) & mask[part, None])
            return new if site == "pattern" else new.transpose(1, 2)

        def take(value: Tensor, hook: Any) -> Tensor:
            store.add(layer, value.transpose(1, 2))
            if layer == max(layers):
                raise Stopped
            return base.z.layer(layer)[part].transpose(1, 2)

        return [(model.hook_name(site, layer), change), (model.hook_name("z", layer), take)]

    for start in range(0, len(base.tokens), rows):
        part = slice(start, start + rows)
        every = [hook for layer in layers for hook in hooks(part, layer)]
        until_stopped(max(layers), partial(model.backend.run, base.tokens.ids[part], every))
        rule.check_finite()
    return AllNewZ(store, changed)


def new_z(
    rule: CheckedIntervention,
    base: HeadCache,
    source: HeadCache | None,
    heads: Sequence[HeadId],
    at: Bool[Tensor, "prompt pos"] | None,
    of_all: AllNewZ | None = None,
) -> tuple[Float[Tensor, "prompt head pos d_head"], Bool[Tensor, "prompt head pos"]]:
    """The new z of some heads of one layer, and whether it differs from the old one.
    ``rule`` checks the new values later; ``of_all``: from ``all_new_z``, for an intervention not on z itself."""
    layer, some = heads[0].layer, [head.head for head in heads]
    mask, old = base.tokens.mask[:, None], _of_heads(base.z.layer(layer), some)
    if of_all is None:
        new = torch.where(mask[..., None], rule.apply(old, heads, base, source), old)
        differs = (new != old).any(-1)
    else:
        new = torch.where(mask[..., None], _of_heads(of_all[layer], some), old)
        changed = of_all.differs[layer]
        differs = _of_heads(changed, [kv_head(head, base.n_heads, changed.shape[1]) for head in some])
    if at is not None and rule.site not in KEY_SITES:
        new, differs = torch.where(at[:, None, :, None], new, old), differs & at[:, None]
    return new, differs


def _of_heads(values: Shaped[Tensor, "prompt stored *rest"], heads: list[int]) -> Shaped[Tensor, "prompt head *rest"]:
    """The values of some heads; a view if they are neighbours, because an index waits for its copy to a GPU."""
    first = heads[0]
    if heads == list(range(first, first + len(heads))):
        return values[:, first : first + len(heads)]
    return torch.stack([values[:, head] for head in heads], 1)


def first_change(differs: Sequence[Bool[Tensor, "prompt pos"]], rule: CheckedIntervention) -> Int[Tensor, " prompt"]:
    """The first position where one of several changes differs from the old values; the row's width if none does.
    It is copied to the CPU together with the checks of ``rule``, so that a GPU is waited for once."""
    differing = torch.stack(list(differs)).any(0)
    every = rule.check_finite(differing.flatten()).view(differing.shape)
    return torch.where(every.any(1), every.long().argmax(1), every.shape[1])


class CheckedIntervention:
    """Calls an intervention and checks what it returns: its shape at once, but whether it is finite only once for many
    heads, because a GPU waits for each check."""

    def __init__(self, intervention: Intervention) -> None:
        self.intervention, self.site = intervention, site_of(intervention)
        self._name = getattr(intervention, "__name__", None) or type(intervention).__name__
        self._seen: list[tuple[Sequence[HeadId], Bool[Tensor, " head"]]] = []

    def apply(
        self,
        values: Float[Tensor, "prompt head *rest"],
        heads: Sequence[HeadId],
        base: HeadCache,
        source: HeadCache | None,
    ) -> Float[Tensor, "prompt head *rest"]:
        """The new values of some heads of a layer."""
        own = base.copies(), None if source is None else source.copies()
        copies, mask = values.transpose(0, 1).clone(memory_format=torch.contiguous_format), base.tokens.mask
        new_values = []
        for head, value in zip(heads, copies, strict=True):
            shape = list(value.shape)
            new = self.intervention(value, Context(head, *own, mask))
            if not isinstance(new, torch.Tensor) or list(new.shape) != shape:
                got = list(new.shape) if isinstance(new, torch.Tensor) else type(new).__name__
                raise ValueError(
                    f"intervention {self._name} gave {got} for {head}; it must return a tensor of shape {shape}"
                )
            new_values.append(new)
        stacked = torch.stack(new_values, 1)
        finite = stacked.isfinite() | ~mask.view(len(mask), 1, -1, 1)
        self._seen.append((heads, finite.transpose(0, 1).flatten(1).all(1)))
        return stacked

    def check_finite(self, *more: Bool[Tensor, " number"]) -> Bool[Tensor, " number"]:
        """Check that all values since the last check are finite; returns ``more``, copied to the CPU with them."""
        heads, seen = [head for some, _ in self._seen for head in some], [*(finite for _, finite in self._seen), *more]
        checked, self._seen = torch.cat(seen).cpu() if seen else torch.ones(0, dtype=torch.bool), []
        for head, finite in zip(heads, checked.tolist(), strict=False):
            if not finite:
                raise ValueError(f"intervention {self._name} gave values that are not finite for {head}")
        return checked[len(heads) :]
