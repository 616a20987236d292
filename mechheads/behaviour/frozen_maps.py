"""Norms and multipliers as linear maps: how a module acts on its input if the statistics of its norm are frozen.

The maps are measured, not read from module names: a module is given a few probes and the inputs of a run. So the same
code serves a final norm, a norm after attention, a multiplier, and a module that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backends.base import Backend, Hook, balanced
from mechheads.model.backends.partial_block import Blocks
from mechheads.model.model import Model

_LOUD = 1e3
"""The size of a probe: so large that the epsilon of a norm does not matter."""
_PROBES = 5


@dataclass(frozen=True, eq=False)
class FrozenMap:
    """x -> slope * x + offset, where the mean over d_model is first subtracted from x if the map is ``centred``.

    Attributes:
        slope: differs between rows, because each row has its own statistics.
        offset: what the module gives for 0: the bias of a norm.
    """

    slope: Float[Tensor, "row d_model"]
    offset: Float[Tensor, " d_model"]
    centred: bool

    def __call__(self, x: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        return self.slope * (_centred(x) if self.centred else x) + self.offset

    def back(self, direction: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_model"]:
        """The direction before the map: its product with x is that of ``direction`` with the map's output - offset."""
        before = self.slope * direction
        return _centred(before) if self.centred else before


def tolerance(backend: Backend) -> float:
    """The largest difference that counts as rounding, as a share of the largest number."""
    return 1e-4 if backend.parameter.dtype.itemsize >= 4 else 0.05


def frozen_at(
    run: Callable[[Float[Tensor, "rows d_model"]], Float[Tensor, "rows d_model"]],
    x: Float[Tensor, "row d_model"],
    rounding: float,
) -> FrozenMap | None:
    """The map of a module, frozen at its inputs ``x``; None if it is neither a norm nor a product with a diagonal.

    A norm gives the same for a probe of twice the size, a product gives twice as much. A norm that subtracts the mean
    gives the same for a probe with another mean.
    """
    unit = balanced(x.shape[-1], x.device)
    probes = _LOUD * torch.stack([0 * unit, unit, -unit, 2 * unit, unit + 1]).to(x.dtype)
    out = run(torch.cat([probes, x])).double()
    offset, (up, down, twice, shifted) = out[0], out[1:_PROBES] - out[0]
    seen, unit, x = out[_PROBES:] - offset, unit.double(), x.double()
    size = up.square().sum().clamp_min(1e-30)
    if up @ twice > 1.5 * size:
        found = FrozenMap(((up - down) / (2 * _LOUD * unit)).expand_as(x), offset, centred=False)
    else:
        centred = bool((shifted - up).square().sum() < 1e-2 * size)
        scaled = (up - down) / (2 * unit) * (_centred(x) if centred else x)
        of_rows = (scaled * seen).sum(-1, keepdim=True) / scaled.square().sum(-1, keepdim=True).clamp_min(1e-300)
        found = FrozenMap(of_rows * (up - down) / (2 * unit), offset, centred)
    off = (found(x) - offset - seen).abs().max()
    return found if off <= rounding * seen.abs().max() else None


@dataclass(frozen=True, eq=False)
class FrozenRun:
    """A run of some tokens, and its norms as linear maps at some of their positions.

    Attributes:
        analysis: the public function that uses it, for messages.
        streams: the residual stream before each block, and after the last one.
        z: of each layer.
        patterns: what these positions attend to in each layer, and ``v``: of all tokens; empty unless asked for.
    """

    model: Model
    analysis: str
    streams: list[Float[Tensor, "row d_model"]]
    z: dict[int, Float[Tensor, "row head d_head"]]
    patterns: dict[int, Float[Tensor, "row head pos"]]
    v: dict[int, Float[Tensor, "prompt pos kv d_head"]]

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
    ) -> FrozenRun:
        """Run prompts.

        Args:
            prompt, pos: the prompt and the position of each row that is kept.
            attention: whether to keep patterns and v too.
        """
        kept = cls(model, analysis, [], {}, {}, {})

        def z(value: Tensor, hook: Any, layer: int) -> None:
            kept.z[layer] = value[prompt, pos].clone()

        def pattern(value: Tensor, hook: Any, layer: int) -> None:
            kept.patterns[layer] = value[prompt, :, pos].clone()

        def v(value: Tensor, hook: Any, layer: int) -> None:
            kept.v[layer] = value.clone()

        hooks: list[Hook] = [
            (model.hook_name(site, layer), partial(note, layer=layer))
            for layer in range(model.n_layers)
            for site, note in ({"z": z, "pattern": pattern, "v": v} if attention else {"z": z}).items()
        ]

        def run() -> None:
            stream, blocks = model.backend.embed(ids)
            for layer in range(model.n_layers):
                kept.streams.append(stream[prompt, pos].clone())
                stream = blocks(layer, stream)
            kept.streams.append(stream[prompt, pos].clone())

        model.backend.under(hooks, run)
        return kept

    def after_blocks(self) -> FrozenMap:
        """What follows the last block, before W_U.

        Raises:
            ValueError: if it is not such a map.
        """
        backend = self.model.backend
        found = frozen_at(lambda rows: backend.finish(rows[:, None])[:, 0], self.streams[-1], tolerance(backend))
        if found is None:
            raise self.inexact("what follows the last block is neither a norm nor a product")
        return found

    def written(self, layer: int, dtype: torch.dtype) -> Float[Tensor, "row d_model"]:
        """The attention output of a layer: what its heads write, and b_O."""
        W_O, b_O = self.model.W_O[layer].to(dtype), self.model.b_O(layer)
        summed = torch.einsum("rhd,hdm->rm", self.z[layer].to(dtype), W_O)
        return summed if b_O is None else summed + b_O.to(dtype)

    def after_attention(self, layer: int, written: Float[Tensor, "row d_model"]) -> FrozenMap:
        """What a block adds to the residual stream for its attention output, ``written``.

        Raises:
            ValueError: if the block does more than add this to the stream, besides its MLP.
        """
        before = self.streams[layer]
        found = _of_attention(self.model.backend, self._blocks, layer, before, written.to(before.dtype))
        if found is None:
            raise self.inexact(f"layer {layer} does more with its heads than add them to the residual stream")
        return found

    @cached_property
    def _blocks(self) -> Blocks:
        """Blocks for the rows that ``_of_attention`` gives them."""
        return self.model.backend.blocks_for(2 * len(self.streams[-1]) + _PROBES, 1)

    def inexact(self, what: str) -> ValueError:
        """An error that says why the analysis would be wrong for this model."""
        return ValueError(
            f"{self.model.backend.about} does not support {self.analysis}: {what}, so the parts of its heads would not "
            "sum to the logit; mh.ablate and mh.path_patch measure effects instead"
        )


def _of_attention(
    backend: Backend,
    blocks: Blocks,
    layer: int,
    before: Float[Tensor, "row d_model"],
    written: Float[Tensor, "row d_model"],
) -> FrozenMap | None:
    """What a block adds to the residual stream for its attention output, frozen at ``written``.

    Args:
        blocks: prepared for two rows of one token for each of these, and for the probes.
        before: the residual stream before the block.

    Returns:
        None if the block does more than add this to the stream, besides its MLP.
    """

    def alone(out: Tensor) -> Tensor:
        """The block with its MLP silent, first on an empty stream for every row, then on the stream of the run."""
        outs = torch.cat([out, written])
        streams = torch.cat([torch.zeros_like(out), before])
        made = backend.with_attention(layer, outs[:, None], lambda: blocks(layer, streams[:, None]))[:, 0]
        on_stream.append(made[len(out) :])
        return made[: len(out)]

    on_stream: list[Tensor] = []
    rounding = tolerance(backend)
    silent: list[Hook] = [(backend.hook_name("mlp_out", layer), _silent)] if backend.d_mlp else []
    found = backend.under(silent, lambda: frozen_at(alone, written, rounding))
    if found is None:
        return None
    expected = before.double() + found(written.double())
    off = (on_stream[0].double() - expected).abs().max()
    return found if off <= rounding * expected.abs().max() else None


def _silent(value: Tensor, hook: object) -> Tensor:
    return torch.zeros_like(value)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
