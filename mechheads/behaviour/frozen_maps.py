"""Norms and multipliers as linear maps: how a module acts on its input if the statistics of its norm are frozen.

The maps are measured, not read from module names: a module is given a few probes and the inputs of a run. So the same
code serves a final norm, a norm after attention, a multiplier, and a module that does nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.model.backends.base import Backend, Hook
from mechheads.model.backends.norm_scales import balanced
from mechheads.model.backends.protocols import Blocks

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


def of_attention(
    backend: Backend,
    blocks: Blocks,
    layer: int,
    before: Float[Tensor, "row d_model"],
    written: Float[Tensor, "row d_model"],
) -> FrozenMap | None:
    """What a block adds to the residual stream for its attention output, frozen at ``written``.

    Args:
        blocks: prepared for ``frozen_rows(row)`` rows of one token.
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


def frozen_rows(rows: int) -> int:
    """The number of rows that ``of_attention`` gives a block."""
    return 2 * rows + _PROBES


def _silent(value: Tensor, hook: object) -> Tensor:
    return torch.zeros_like(value)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
