"""Norms and multipliers as linear maps: how a module acts on its input if the statistics of its norm are frozen.

The maps are measured, not read from module names: a module is given a few probes and the inputs of a run. So the same
code serves a final norm, a norm after attention, a multiplier, and a module that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backend import Backend, Hook, balanced
from mechheads.model.model import Model
from mechheads.model.parts import Blocks

_LOUD = 1e3
"""The size of a probe: so large that the epsilon of a norm does not matter."""
_PROBES = 5
_TRIED = 16
"""The number of rows on which it is tried what a block does with its heads."""
_LEARNED = "hook_pos_embed"


@dataclass(frozen=True, eq=False)
class FrozenMap:
    """x -> size * slope * x + offset; if the map is ``centred``, the mean over d_model is first subtracted from x."""

    size: Float[Tensor, "row #d_model"] | None
    slope: Float[Tensor, " d_model"]
    offset: Float[Tensor, " d_model"]
    centred: bool

    def __call__(self, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        return self.sized(self.shared(x)) + self.offset

    def shared(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The part of the map that is the same for all rows: without ``size`` and ``offset``."""
        return self.slope * (_centred(x) if self.centred else x)

    def sized(self, x: Float[Tensor, "*batch row d"]) -> Float[Tensor, "*batch row d"]:
        """Values of each row, multiplied by its size."""
        return x if self.size is None else self.size * x

    def rows(self, at: Int[Tensor, " some"]) -> FrozenMap:
        """The map of some rows."""
        return self if self.size is None else replace(self, size=self.size[at])

    def back(self, direction: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """The direction before the map: its product with x is that of ``direction`` with the map's output - offset."""
        before = self.sized(self.slope * direction)
        return _centred(before) if self.centred else before


def tolerance(backend: Backend) -> float:
    """The largest difference that counts as rounding, as a share of the largest number."""
    return 1e-4 if backend.parameter.dtype.itemsize >= 4 else 0.05


def frozen_at(
    run: Callable[[Float[Tensor, "rows d_model"]], Float[Tensor, "rows d_model"]],
    x: Float[Tensor, "row d_model"],
    rounding: float,
) -> FrozenMap | None:
    """The map of a module, frozen at its inputs ``x``; None if it is neither a norm nor a product with a diagonal."""
    unit = balanced(x.shape[-1], x.device)
    probes = _LOUD * torch.stack([0 * unit, unit, -unit, 2 * unit, unit + 1]).to(x.dtype)
    out = run(torch.cat([probes, x])).double()
    offset, (up, down, twice, shifted) = out[0], out[1:_PROBES] - out[0]
    seen, unit, x = out[_PROBES:] - offset, unit.double(), x.double()
    size = up.square().sum().clamp_min(1e-30)
    if up @ twice > 1.5 * size:
        found = FrozenMap(None, (up - down) / (2 * _LOUD * unit), offset, centred=False)
    else:
        centred = bool((shifted - up).square().sum() < 1e-2 * size)
        slope = (up - down) / (2 * unit)
        scaled = slope * (_centred(x) if centred else x)
        of_rows = (scaled * seen).sum(-1, keepdim=True) / scaled.square().sum(-1, keepdim=True).clamp_min(1e-300)
        found = FrozenMap(of_rows, slope, offset, centred)
    off = (found(x) - offset - seen).abs().max()
    return found if off <= rounding * seen.abs().max() else None


@dataclass(frozen=True, eq=False)
class FrozenRun:
    """A run of some tokens, and its norms as linear maps at some of their positions."""

    model: Model
    analysis: str
    prompt: Int[Tensor, " row"]
    streams: list[Float[Tensor, "row d_model"]]
    z: dict[int, Float[Tensor, "row head d_head"]]
    patterns: dict[int, Float[Tensor, "row head pos"]]
    v: dict[int, Float[Tensor, "prompt pos kv d_head"]]
    embedded: dict[str, Float[Tensor, "row d_model"]]
    _blocks: dict[int, Blocks] = field(default_factory=dict)  # prepared for so many rows
    _norms: dict[int, FrozenMap] = field(default_factory=dict)  # before the heads of a layer

    @classmethod
    def of(
        cls,
        model: Model,
        ids: Int[Tensor, "prompt pos"],
        prompt: Int[Tensor, " row"],
        pos: Int[Tensor, " row"],
        *,
        analysis: str,
        attention: bool,
        ends_at: int | None = None,
    ) -> FrozenRun:
        """Run prompts, up to the layer ``ends_at``, of which only patterns are kept.
        ``prompt`` and ``pos`` are those of each row that is kept."""
        kept = cls(model, analysis, prompt, [], {}, {}, {}, {})
        layers = range(model.n_layers if ends_at is None else ends_at)

        def z(value: Tensor, hook: Any, layer: int) -> None:
            kept.z[layer] = value[prompt, pos].clone()

        def pattern(value: Tensor, hook: Any, layer: int) -> None:
            kept.patterns[layer] = value[prompt, :, pos].clone()

        def v(value: Tensor, hook: Any, layer: int) -> None:
            kept.v[layer] = value.clone()

        def embedding(value: Tensor, hook: Any, name: str) -> None:
            kept.embedded[name] = value.expand(len(ids), -1, -1)[prompt, pos].clone()

        embeddings = ("hook_embed", _LEARNED) if _LEARNED in model.backend.hook_points else ()
        hooks: list[Hook] = [(name, partial(embedding, name=name)) for name in embeddings]
        hooks += [
            (model.hook_name(site, layer), partial(note, layer=layer))
            for layer in layers
            for site, note in ({"z": z, "pattern": pattern, "v": v} if attention else {"z": z}).items()
        ]
        if ends_at is not None:
            hooks.append((model.hook_name("pattern", ends_at), partial(pattern, layer=ends_at)))

        def run() -> None:
            stream, blocks = model.backend.embed(ids)
            for layer in layers:
                kept.streams.append(stream[prompt, pos].clone())
                stream = blocks(layer, stream)
            kept.streams.append(stream[prompt, pos].clone())
            if ends_at is not None:
                blocks(ends_at, stream)

        model.backend.under(hooks, run)
        if not kept.streams[-1].isfinite().all():
            raise ValueError(
                f"model: {model.name!r} gives NaN or infinity without any intervention, so its weights are damaged; "
                "load it again"
            )
        return kept

    @property
    def positions(self) -> Float[Tensor, "row d_model"]:
        """What learned positions add to the stream before the first block; 0 if nothing is just added to the tokens."""
        stream, positions = self.streams[0], self.embedded.get(_LEARNED)
        if positions is None:
            return torch.zeros_like(stream)
        off = (sum(self.embedded.values()) - stream).abs().max()
        return positions if off <= tolerance(self.model.backend) * stream.abs().max() else torch.zeros_like(stream)

    def after_blocks(self) -> FrozenMap:
        """What follows the last block, before W_U."""
        backend = self.model.backend
        found = frozen_at(lambda rows: backend.finish(rows[:, None])[:, 0], self.streams[-1], tolerance(backend))
        if found is None:
            raise self.inexact("what follows the last block is neither a norm nor a product")
        return found

    def before_attention(self, layer: int) -> FrozenMap:
        """What stands before the heads of a layer."""
        if layer not in self._norms:
            backend = self.model.backend
            norm = frozen_at(partial(backend.before_attention, layer), self.streams[layer], tolerance(backend))
            if norm is None:
                raise self.inexact(f"what stands before the heads of layer {layer} is neither a norm nor a product")
            self._norms[layer] = norm
        return self._norms[layer]

    def written(self, layer: int, dtype: torch.dtype) -> Float[Tensor, "row d_model"]:
        """The attention output of a layer: what its heads write, and b_O."""
        W_O, b_O = self.model.W_O[layer].to(dtype), self.model.b_O(layer)
        summed = torch.einsum("rhd,hdm->rm", self.z[layer].to(dtype), W_O)
        return summed if b_O is None else summed + b_O.to(dtype)

    def after_attention(self, layer: int, written: Float[Tensor, "row d_model"]) -> FrozenMap:
        """What a block adds to the residual stream for its attention output, ``written``."""
        before, out = self.streams[layer], written.to(self.streams[layer].dtype)
        some = torch.linspace(0, len(out) - 1, min(len(out), _TRIED), device=out.device).long()
        found = self._of_attention(layer, before[some], out[some])
        if found is not None and found.size is not None and len(some) < len(out):
            found = self._of_attention(layer, None, out)
        if found is None:
            raise self.inexact(f"layer {layer} does more with its heads than add them to the residual stream")
        return found

    def sources(self, layer: int, of_z: Float[Tensor, "row head d_head"]) -> Float[Tensor, "row head pos"]:
        """The products of z with ``of_z``, divided among the tokens that heads read; v has the bias b_V in it."""
        wanted = (self.z[layer].double() * of_z).sum(-1)
        found = torch.empty(*wanted.shape, self.v[layer].shape[1], dtype=of_z.dtype, device=of_z.device)
        for prompt, v in enumerate(self.v[layer].double()):
            rows = self.prompt == prompt
            v = v.repeat_interleave(self.model.n_heads // v.shape[1], dim=1)
            found[rows] = self.patterns[layer][rows].double() * torch.einsum("shd,rhd->rhs", v, of_z[rows])
        if not (found.sum(-1) - wanted).abs().max() <= tolerance(self.model.backend) * found.abs().sum(-1).max():
            raise ValueError(
                f'{self.model.backend.about} does not support by="source": z of layer {layer} is not the sum of '
                'pattern * v over tokens, for example because a gate changes it; use by="head"'
            )
        return found

    def _of_attention(
        self, layer: int, before: Float[Tensor, "row d_model"] | None, written: Float[Tensor, "row d_model"]
    ) -> FrozenMap | None:
        """As ``after_attention``, frozen at ``written``; None if the block does more, which needs ``before``."""
        backend, rounding = self.model.backend, tolerance(self.model.backend)
        on_stream: list[Tensor] = []

        def alone(out: Tensor) -> Tensor:
            """The block with its MLP silent, first on an empty stream for every row, then on the stream of the run."""
            outs, streams = out, torch.zeros_like(out)
            if before is not None:
                outs, streams = torch.cat([outs, written]), torch.cat([streams, before])
            if (blocks := self._blocks.get(len(outs))) is None:
                blocks = self._blocks[len(outs)] = backend.blocks_for(len(outs), 1)
            made = backend.with_attention(layer, outs[:, None], lambda: blocks(layer, streams[:, None]))[:, 0]
            on_stream.append(made[len(out) :])
            return made[: len(out)]

        silent: list[Hook] = [(backend.hook_name("mlp_out", layer), _silent)] if backend.d_mlp else []
        found = backend.under(silent, lambda: frozen_at(alone, written, rounding))
        if found is None or before is None:
            return found
        expected = before.double() + found(written.double())
        off = (on_stream[0].double() - expected).abs().max()
        return found if off <= rounding * expected.abs().max() else None

    def inexact(self, what: str) -> ValueError:
        """An error that says why the analysis would be wrong for this model."""
        return ValueError(
            f"{self.model.backend.about} does not support {self.analysis}: {what}, so the parts of its heads would not "
            "sum to what they are parts of; mh.ablate and mh.path_patch measure effects instead"
        )


def _silent(value: Tensor, hook: object) -> Tensor:
    return torch.zeros_like(value)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
