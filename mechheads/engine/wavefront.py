"""Waves: changed copies of a cached run that go through the layers together.

A copy joins at the first layer where it is changed. From there on it shares every block's call with the copies that
joined before it. Only a window of positions is computed: from the first that changes to the last that is read. Keys
and values of earlier positions come from the cached run. The last block computes keys and values for the whole
window, and the rest for the read positions only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import einops
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.evaluate import Reading
from mechheads.engine.rows import Rows
from mechheads.heads import HeadId, Mlp, kv_head
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, Region, change_hooks, region
from mechheads.metrics import Activation
from mechheads.model.backend import Hook
from mechheads.model.parts import Blocks, Keys, RecordedKeys, Stopped, mask_of, moved, until_stopped
from mechheads.runs.head_cache import KEY_SITES, HeadCache, states_at

EditSite = Literal["z", "q", "k", "v", "mlp_out"]
_KEYS_A_ROW = 128


@dataclass(frozen=True)
class Edit:
    """A new z, q, k or v of a query head, or output of an MLP (no head), at the positions of the window."""

    layer: int
    site: EditSite
    head: int | None
    value: Float[Tensor, "prompt width d"]


Copy = Sequence[Edit]
"""The edits of one changed copy of the run."""


class _Past:
    """Puts the cached keys and values of the positions before the window in front of each row's own."""

    def __init__(self, wave: Wave, groups: int) -> None:
        self.wave, self.groups = wave, groups

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        if not self.wave.n_past:
            return k, v
        k_past, v_past = (past.repeat(self.groups, 1, 1, 1) for past in self.wave.past(layer))
        return torch.cat([k_past, k], 2), torch.cat([v_past, v], 2)


@dataclass(frozen=True)
class _Fold:
    """How copies are laid out in rows: ``per_row`` copies of a prompt follow each other in a row, sharing its past."""

    copies: int
    per_row: int
    prompts: int

    @property
    def groups(self) -> int:
        return math.ceil(self.copies / self.per_row)

    def fold(self, stream: Float[Tensor, "copy prompt pos d"]) -> Float[Tensor, "row pos_of_row d"]:
        if spare := self.groups * self.per_row - self.copies:
            stream = torch.cat([stream, stream[:1].expand(spare, -1, -1, -1)])
        return einops.rearrange(stream, "(g c) prompt pos d -> (g prompt) (c pos) d", c=self.per_row)

    def unfold(self, rows: Float[Tensor, "row pos_of_row d"]) -> Float[Tensor, "copy prompt pos d"]:
        stream = einops.rearrange(
            rows, "(g prompt) (c pos) d -> (g c) prompt pos d", c=self.per_row, prompt=self.prompts
        )
        return stream[: self.copies]

    def region(self, copy: int, edit: Edit) -> Region:
        """The part of the rows that holds an edit of a copy."""
        first, begin = copy // self.per_row * self.prompts, copy % self.per_row * edit.value.shape[1]
        return region(slice(first, first + self.prompts), slice(begin, begin + edit.value.shape[1]))

    def part(self, rows: Float[Tensor, "row pos_of_row *rest"], copy: int) -> Float[Tensor, "prompt pos *rest"]:
        """A view of one copy in contiguous rows."""
        split = rows.view(self.groups, self.prompts, self.per_row, -1, *rows.shape[2:])
        return split[copy // self.per_row, :, copy % self.per_row]


class Wave:
    """Runs changed copies of some prompts of a cached run through the layers, to what ``reading`` reads.
    The run has ``resid_pre``, ``keys``, ``values`` and, with ablated heads, z; ``old``: what the metric reads of it."""

    def __init__(
        self,
        base: HeadCache,
        rows: slice | Int[Tensor, " row"],
        window: Rows,
        reading: Reading | None = None,
        old: Float[Tensor, "prompt position d"] | None = None,
    ) -> None:
        self.base, self.rows, self.window, self.reading = base, rows, window, reading
        self.model, self.layout = base.need_model(), window.layout
        self.n_past = window.n_past
        self._ready: dict[tuple[int, int, bool], Blocks] = {}
        self._masks: dict[tuple[int, int, bool], Tensor] = {}
        self._old = states_at(base.final[rows], window.read_positions) if old is None else old
        self._ablated = [(head, self.take(base.z[head])) for head in base.ablated]

    def run(self, copies: Sequence[Copy]) -> Float[Tensor, "copy prompt position d"]:
        """What the metric reads of each copy, at its positions: final states, or a head's pattern or z."""
        with torch.no_grad():
            changed = [i for i, copy in enumerate(copies) if any(map(self._takes, copy))]
            order = sorted(changed, key=lambda i: _joins(copies[i]))
            if not order:
                return self._old.expand(len(copies), *self._old.shape).clone()
            states = self._run([copies[i] for i in order])
            if len(order) == len(copies):
                return states[moved(torch.tensor(order).argsort(), states.device)]
            every = self._old.expand(len(copies), *self._old.shape).clone()
            every[moved(torch.tensor(order), states.device)] = states
            return every

    def _takes(self, edit: Edit) -> bool:
        """Whether an edit can change what the metric reads."""
        if self.reading is None:
            return True
        node = Mlp(edit.layer) if edit.head is None else HeadId(edit.layer, edit.head)
        return self.reading.takes(node, edit.site)

    def follow(
        self,
        residual: Float[Tensor, "prompt width d_model"],
        keep: Callable[[int, Tensor], None],
        site: Literal["z", "v"] = "z",
    ) -> Float[Tensor, "prompt width d_model"]:
        """The final states of other tokens after the cached past; ``keep`` gets each layer and its values."""
        backend, stream = self.model.backend, residual[None]
        for layer in range(self.model.n_layers):

            def note(values: Tensor, hook: Any, layer: int = layer) -> None:
                keep(layer, values)

            block = partial(self._block, layer, stream, [])
            stream = backend.under([(self.model.hook_name(site, layer), note)], block)
        return backend.finish(stream[0])

    def _run(self, copies: list[Copy]) -> Tensor:
        model = self.model
        joins = [_joins(copy) for copy in copies]
        stream = self._residual(joins[0])[None][:0]
        activation = None if self.reading is None else self.reading.activation
        last = model.n_layers - 1 if self.reading is None else self.reading.blocks - 1
        for layer in range(joins[0], last + 1):
            if joining := joins.count(layer):
                stream = torch.cat([stream, self._residual(layer).expand(joining, *stream.shape[1:])])
            edits = [(i, edit) for i in range(len(stream)) for edit in copies[i] if edit.layer == layer]
            if layer == last and activation is not None:
                return self._until(activation, stream, [(i, edit) for i, edit in edits if self._takes(edit)])
            if layer == last and self._may_cut(edits):
                stream = self._last_block(layer, stream, edits)
            else:
                stream = self._block(layer, stream, edits)
        return self._finish(stream)

    def _residual(self, layer: int) -> Float[Tensor, "prompt width d_model"]:
        return self.take(self.base.stores["resid_pre"][layer])

    def take(self, values: Float[Tensor, "all_prompts pos *rest"]) -> Float[Tensor, "row width *rest"]:
        """The values of these prompts at the positions that are computed."""
        return self.window.take(values[self.rows])

    def _finish(self, stream: Float[Tensor, "copy prompt pos d_model"]) -> Tensor:
        n_read = self.window.inside.shape[1]
        if stream.shape[2] != n_read or n_read == self.window.width:
            stream = self._read(stream)
        return self._where_changed(self.model.backend.finish(stream.flatten(0, 1)))

    def _where_changed(self, states: Tensor) -> Float[Tensor, "copy prompt position d"]:
        """The states read from the copies, with the base run's at positions before the window."""
        return torch.where(self.window.unchanged, self._old, states.view(-1, *self._old.shape))

    def _read(self, values: Float[Tensor, "*copy row width d"]) -> Float[Tensor, "*copy row read d"]:
        index = self.window.inside[..., None].expand(*values.shape[:-3], -1, -1, values.shape[-1])
        return values.gather(-2, index)

    def _may_cut(self, edits: list[tuple[int, Edit]]) -> bool:
        """Whether the last block may compute fewer positions than the window."""
        narrower = self.window.inside.shape[1] < self.window.width
        return narrower and self.layout == "queries" and not self._apart([edit for _, edit in edits])

    def _block(self, layer: int, stream: Tensor, edits: list[tuple[int, Edit]]) -> Tensor:
        fold = self._fold(len(stream))
        rows = fold.fold(stream)
        edits = self._own_z(layer, fold, rows, edits)
        call = partial(self._call, layer, rows, fold, _Past(self, fold.groups))
        return fold.unfold(self.model.backend.under(self._hooks(layer, edits, fold), call))

    def _last_block(self, layer: int, stream: Tensor, edits: list[tuple[int, Edit]]) -> Tensor:
        """Compute keys and values of the whole window, then the block for the positions that are read."""
        fold = self._fold(len(stream))
        keys, rest = self._keys_first(layer, stream, edits, fold)
        then = partial(self._call, layer, fold.fold(self._read(stream)), fold, keys, read=True)
        return fold.unfold(self.model.backend.under(self._hooks(layer, rest, fold, read=True), then))

    def _keys_first(
        self, layer: int, stream: Tensor, edits: list[tuple[int, Edit]], fold: _Fold
    ) -> tuple[Keys, list[tuple[int, Edit]]]:
        """Keys and values of the whole window, and the other edits at the positions that are read."""
        keys = RecordedKeys(_Past(self, fold.groups))
        kv = [(i, edit) for i, edit in edits if edit.site in ("k", "v")]
        rest = [(i, edit) for i, edit in edits if edit.site not in ("k", "v")]
        first = partial(self._call, layer, fold.fold(stream), fold, keys)
        self.model.backend.under(self._hooks(layer, kv, fold), partial(until_stopped, layer, first))
        return keys, [(i, Edit(layer, edit.site, edit.head, self._read(edit.value))) for i, edit in rest]

    def _until(
        self, activation: Activation, stream: Tensor, edits: list[tuple[int, Edit]]
    ) -> Float[Tensor, "copy prompt position d"]:
        """A head's pattern or z at the positions that are read; its block stops there.
        A copy's keys and values, shared by other heads of the group, change for these too, which are not read."""
        head, site = activation.head, activation.site
        fold, cut, keys = self._fold(len(stream)), self._may_cut([]), _Past(self, self._fold(len(stream)).groups)
        if cut:
            keys, edits = self._keys_first(head.layer, stream, edits, fold)
            stream = self._read(stream)
        seen: list[Tensor] = []

        def stop(value: Tensor, hook: Any) -> None:
            seen.append((value[:, head.head] if site == "pattern" else value[:, :, head.head]).clone())
            raise Stopped

        hooks = [*self._hooks(head.layer, edits, fold, read=cut), (self.model.hook_name(site, head.layer), stop)]
        call = partial(self._call, head.layer, fold.fold(stream), fold, keys, read=cut)
        self.model.backend.under(hooks, partial(until_stopped, head.layer, call))
        states = fold.unfold(seen[0])
        if not cut:
            states = self._read(states)
        return self._where_changed(self._by_position(states, fold) if site == "pattern" else states)

    def _by_position(
        self, pattern: Float[Tensor, "copy row query key_of_row"], fold: _Fold
    ) -> Float[Tensor, "copy row query pos"]:
        """Patterns over the positions of each prompt, from those over the past and the tokens of all copies in a row.
        What a query does not see has attention 0, so the keys of other copies and prompts add nothing."""
        past, own = pattern[..., : self.n_past], pattern[..., self.n_past :]
        own = own.unflatten(-1, (fold.per_row, -1)).sum(-2)
        where = self.window.positions[:, None].expand(own.shape)
        by_position = pattern.new_zeros(*own.shape[:-1], self.base.tokens.ids.shape[1])
        by_position[..., : self.n_past] = past
        return by_position.scatter_add(-1, where, own)

    def _call(self, layer: int, rows: Tensor, fold: _Fold, keys: Keys, read: bool = False) -> Tensor:
        if self.layout == "whole":
            return self._blocks(fold, read)(layer, rows)
        return self._blocks(fold, read)(layer, rows, keys, self._mask(layer, fold, read))

    def _fold(self, copies: int) -> _Fold:
        """Choose how many copies share a row, so that rows are wide enough and few slots stay empty."""
        per_row = 1
        if self.layout == "queries":
            wanted = max(1, min(self.n_past, _KEYS_A_ROW))  # sharing a past saves no more than the past
            least = math.ceil(copies * self.window.width / wanted)
            per_row = min(
                (math.ceil(copies / groups) for groups in (least, least + 1)), key=lambda each: -copies % each
            )
        return _Fold(copies, per_row, self.window.n)

    def _blocks(self, fold: _Fold, read: bool) -> Blocks:
        backend = self.model.backend
        one = self.layout != "whole" and (self.window.same or (self.window.alike and not read))
        key = (fold.per_row, 0 if one else fold.groups, read)
        if key not in self._ready:
            if self.layout == "whole":
                self._ready[key] = backend.blocks_for(fold.groups * fold.prompts, self.window.width)
            else:
                positions = self.window.read_positions if read else self.window.positions
                positions = positions.amax(0, keepdim=True) if one else positions.repeat(fold.groups, 1)
                self._ready[key] = backend.blocks_at(positions.repeat(1, fold.per_row))
        return self._ready[key]

    def _mask(self, layer: int, fold: _Fold, read: bool) -> Float[Tensor, "row 1 query key"] | None:
        """Which keys each query sees: the prompt's past and, in the window, its own copy up to itself.
        It is made once for each number of copies in a row, and repeated for as many rows as were needed so far."""
        if self.layout != "queries":
            return None
        visible, rows = self.model.backend.visible(layer, self.base.tokens.ids.shape[1]), fold.groups * fold.prompts
        key = (id(visible), fold.per_row, read)
        mask = self._masks[key] if key in self._masks else self._mask_of_a_group(visible, fold.per_row, read)
        if len(mask) < rows and not self.window.same:
            mask = mask[: fold.prompts].repeat(fold.groups, 1, 1, 1)
        self._masks[key] = mask
        return mask[:1].expand(rows, -1, -1, -1) if self.window.same else mask[:rows]

    def _mask_of_a_group(self, visible: Tensor, per_row: int, read: bool) -> Float[Tensor, "prompt 1 query key"]:
        past, own = self.window.seen(visible)
        if read:
            index = self.window.inside[..., None]
            past = past.gather(1, index.expand(-1, -1, past.shape[-1]))
            own = own.gather(1, index.expand(-1, -1, own.shape[-1]))
        same = torch.eye(per_row, dtype=torch.bool, device=own.device)
        own = einops.einsum(same, own, "c other, prompt q k -> prompt c q other k")
        own = einops.rearrange(own, "prompt c q other k -> prompt (c q) (other k)")
        return mask_of(torch.cat([past.repeat(1, per_row, 1), own], -1)[:, None], self.model.dtype)

    def past(self, layer: int) -> tuple[Tensor, Tensor]:
        """Cached keys and values before the window [row, kv, past, d_head]."""
        k, v = (self.base.stores[name][layer][self.rows] for name in ("keys", "values"))
        return self.window.past(k), self.window.past(v)

    def _hooks(self, layer: int, edits: list[tuple[int, Edit]], fold: _Fold, read: bool = False) -> list[Hook]:
        """Hooks that put the new values into the copies, and keep the z of ablated heads in all of them."""
        changes = [(self._change(layer, edit), fold.region(i, edit)) for i, edit in edits]
        for head, z in self._ablated:
            if head.layer == layer:
                every = (self._read(z) if read else z).repeat(fold.groups, fold.per_row, 1)
                changes.append((HeadChange(layer, head.head, "z", lambda _, every=every: every), EVERYWHERE))
        return change_hooks(self.model, changes)

    def _change(self, layer: int, edit: Edit) -> HeadChange:
        head = edit.head
        if head is not None and edit.site in KEY_SITES:
            head = kv_head(head, self.model.n_heads, self.model.n_kv_heads)
        return HeadChange(layer, head, edit.site, lambda _: edit.value)

    def _apart(self, edits: Sequence[Edit]) -> bool:
        """Whether an edit changes a key or value that other query heads share."""
        return self.model.n_kv_heads < self.model.n_heads and any(edit.site in ("k", "v") for edit in edits)

    def _own_z(self, layer: int, fold: _Fold, rows: Tensor, edits: list[tuple[int, Edit]]) -> list[tuple[int, Edit]]:
        """Turn edits of q, k and v into edits of z if query heads share keys and values, which would reach the others.
        Attention is run up to z once for each query head whose inputs change."""
        if not self._apart([edit for _, edit in edits]):
            return edits
        done = [(i, edit) for i, edit in edits if edit.site not in ("q", "k", "v")]
        pending = [(i, edit) for i, edit in edits if edit.site in ("q", "k", "v")]
        for head in sorted({edit.head for _, edit in pending if edit.head is not None}):
            of_head = [(i, edit) for i, edit in pending if edit.head == head]
            seen: list[Tensor] = []

            def stop(z: Tensor, hook: Any, head: int = head, seen: list[Tensor] = seen) -> None:
                seen.append(z[:, :, head].clone())
                raise Stopped

            hooks = [*self._hooks(layer, of_head, fold), (self.model.hook_name("z", layer), stop)]
            call = partial(self._call, layer, rows, fold, _Past(self, fold.groups))
            self.model.backend.under(hooks, partial(until_stopped, layer, call))
            for i in sorted({i for i, _ in of_head}):
                done.append((i, Edit(layer, "z", head, fold.part(seen[0], i))))
        return done


def _joins(copy: Copy) -> int:
    """The first layer where a copy is changed."""
    return min(edit.layer for edit in copy)
