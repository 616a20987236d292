"""The attention scores of one head as a product of two affine maps of the residual stream, with all norms frozen.

Before softmax, the score of a query for a key is ``scale * q . k``, plus what depends on the two positions alone
(ALiBi). q and k come from the stream by a norm, W_Q or W_K, in some models a norm of their own, and a rotation. Some
models norm q and k after the rotation, which does not change their size, and some clip them before it. With the
statistics of norms, and the share of each number that a clip leaves, frozen at the values of a run, each is an affine
map. All of it is measured, not read from the names of modules: norms by probes (``frozen_at``), rotations from the keys
that attention uses, and the scale and the part of positions from the patterns of a block that is given q and k. Whether
the scores are those of the model is then seen in the pattern of the run (``FrozenScores.off``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.frozen_maps import FrozenMap, FrozenRun, frozen_at, tolerance
from mechheads.heads import HeadId, kv_head
from mechheads.limits import current
from mechheads.model.backend import Hook, balanced
from mechheads.model.model import Model
from mechheads.model.parts import Keys, Stopped, until_stopped

_SIZES, _LARGE = 32, 4.0
"""How many scores the scale is measured with, and the largest of them."""
_QUIET, _LOUD = 0.1, 1e3
"""Sizes of probes: well above the epsilon of a norm, below what is clipped; and far above it."""
Which = Literal["q", "k"]
_QK: tuple[Which, ...] = ("q", "k")


@dataclass(frozen=True, eq=False)
class FrozenSide:
    """q or k of a head before rotation, as an affine map of the stream of each row."""

    norm: FrozenMap
    weight: Float[Tensor, "d_model d_head"]
    bias: Float[Tensor, " d_head"]
    own_norm: FrozenMap

    def __call__(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_head"]:
        return self.own_norm(self.norm(stream) @ self.weight + self.bias)

    def linear(self, part: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_head"]:
        """What a summand of the stream gives; all of them and the constant, the map of 0, give q or k."""
        return self.sized(self.shared(part))

    def shared(self, part: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_head"]:
        """The part of the map that is the same for all rows: without constants and the sizes of norms."""
        return self.own_norm.shared(self.norm.shared(part) @ self.weight)

    def sized(self, values: Float[Tensor, "*batch row d_head"]) -> Float[Tensor, "*batch row d_head"]:
        """Values of each row, multiplied by the sizes of its norms."""
        return self.own_norm.sized(self.norm.sized(values))

    def back(self, direction: Float[Tensor, "row d_head"]) -> Float[Tensor, "row d_model"]:
        """The direction of the stream whose product with a part is that of ``direction`` with ``linear(part)``."""
        return self.norm.back(self.own_norm.back(direction) @ self.weight.T)


class ScoringBlock:
    """The block of a head, run alone on an empty stream with q and k put in."""

    def __init__(self, model: Model, head: HeadId, length: int) -> None:
        """``length`` is how many positions are measured."""
        self.model, self.head, self.length, self._backend = model, head, length, model.backend
        self.heads = {"q": head.head, "k": kv_head(head.head, model.n_heads, model.n_kv_heads)}
        normed = getattr(model.model.blocks[head.layer].attn, "q_norm", None) is not None
        points = self._backend.hook_points
        put, scored = (
            {which: self._backend.hook_name(f"{kind}_{which}", head.layer) for which in _QK}
            for kind in ("normed", "scored")
        )
        self.raw = {which: f"blocks.{head.layer}.attn.hook_{which}" for which in _QK}
        self._put = {which: name if name in points else self.raw[which] for which, name in put.items()}
        self._normed_last = normed and self._put == self.raw != scored
        self.after_norm = scored if self._normed_last else self._put

    def normed(self, which: Which, values: Float[Tensor, "row head d_head"]) -> Float[Tensor, "row head d_head"]:
        """Values of q or k after their own norm, as if each was that of a first token, which is not rotated."""
        return self._run(
            len(values), 1, [(self.raw[which], lambda value, hook: values[:, None])], self.after_norm[which]
        )[:, 0]

    @cached_property
    def reshaped(self) -> Literal["norm", "clip"] | None:
        """What is done to q and k besides: a norm that no hook shows before the rotation, or a clip."""
        if self._normed_last:
            return "norm"
        probe = balanced(self.model.d_head, self.model.device).to(self.model.dtype)
        quiet, twice, loud, louder = self.used(
            "k", torch.stack([size * probe for size in (_QUIET, 2 * _QUIET, _LOUD, 2 * _LOUD)]), self.length
        )
        if self.after_norm != self.raw:
            return "norm" if (loud - loud[:1]).norm() > 1e-2 * loud.norm() else None
        if twice.norm() < 1.5 * quiet.norm():
            return "norm"
        return "clip" if louder.norm() < 1.5 * loud.norm() else None

    def used(self, which: Which, values: Float[Tensor, "row d_head"], length: int) -> Float[Tensor, "row pos d_head"]:
        """What is read of q or k after its norm, or as attention uses it; where nothing shows q, as for k."""
        if self.after_norm[which] == self.raw[which]:
            return self._scored(values, length, self.raw["k"]).double()

        def put(value: Tensor, hook: Any) -> Tensor:
            return values[:, None, None].expand_as(value).contiguous()

        return self._run(len(values), length, [(self.raw[which], put)], self.after_norm[which])[:, :, self.heads[which]]

    @cached_property
    def rotations(self) -> dict[Which, Float[Tensor, "pos d_head before"]]:
        """What is done to q and to k between their norms and the scores, at each position, up to sizes of the norms."""
        basis = torch.eye(self.model.d_head, dtype=self.model.dtype, device=self.model.device)
        parts = basis.split(max(1, current().limits.run_tokens // self.length))

        def turned(of: Callable[[Tensor], Tensor]) -> Float[Tensor, "pos d_head before"]:
            return torch.cat([of(part) for part in parts]).double().permute(1, 2, 0).contiguous()

        if self.reshaped is not None:
            size = _LOUD if self.reshaped == "norm" else _QUIET

            def used(part: Tensor, which: Which) -> Tensor:
                return self.used(which, size * part, self.length) / size

            return {which: turned(partial(used, which=which)) for which in _QK}
        return dict.fromkeys(_QK, turned(lambda part: self._scored(part, self.length, self._put["k"])))

    @property
    def cap(self) -> float | None:
        """The soft cap of the scores; None without one."""
        cap = getattr(self.model.model.cfg, "attn_scores_soft_cap", None) or -1.0
        return cap if cap > 0 else None

    @cached_property
    def scale(self) -> float:
        """The factor of q . k, from what a query gives for a key at its own position, which has the same rotation."""
        (at_one,) = self._preferred([1.0])
        sizes = [step / _SIZES * abs(_LARGE / at_one) ** 0.5 for step in range(1, _SIZES + 1)] if at_one else [1.0]
        first = torch.zeros(len(sizes), self.model.d_head, dtype=self.model.dtype, device=self.model.device)
        first[:, 0] = torch.tensor(sizes)
        used = self._scored(first, 1, self.after_norm["k"])[:, 0]  # some rotations stretch what they rotate
        products = used.double().square().sum(-1).cpu()
        return float((torch.tensor(self._preferred(sizes)).double() * products).sum() / products.square().sum())

    @cached_property
    def of_positions(self) -> Float[Tensor, "query key"]:
        """What is added to scores for positions alone, up to what all keys share; -inf where a key is hidden."""
        return self._log_pattern(1, self.length, lambda value, hook: torch.zeros_like(value))[0]

    def _preferred(self, sizes: Sequence[float]) -> list[float]:
        """The score of the second of two tokens for itself minus that for the first, if only it has q and k."""

        def put(value: Tensor, hook: Any) -> Tensor:
            new = torch.zeros_like(value)
            new[:, 1, :, 0] = torch.tensor([0.0, *sizes]).to(new)[:, None]
            return new

        log_p = self._log_pattern(len(sizes) + 1, 2, put)[:, 1]
        found = (log_p[:, 1] - log_p[:, 0]).cpu()
        found = found[1:] - found[0]
        return (found if self.cap is None else self.cap * torch.atanh(found / self.cap)).tolist()

    def _log_pattern(self, rows: int, pos: int, put: Callable[..., Tensor]) -> Float[Tensor, "row query key"]:
        puts = [(name, put) for name in self.after_norm.values()]
        return self._run(rows, pos, puts, self._backend.hook_name("pattern", self.head.layer))[:, self.head.head].log()

    def _scored(self, k: Float[Tensor, "row d_head"], length: int, at: str) -> Float[Tensor, "row pos d_head"]:
        """k as attention uses it, if it is this at so many positions at a hook."""
        head, seen = self.heads["k"], _Kept(self.heads["k"], [])

        def put(value: Tensor, hook: Any) -> Tensor:
            return k[:, None, None].expand_as(value).contiguous()

        def rotated(value: Tensor, hook: Any) -> None:
            seen.k.append(value[:, :, head].clone())

        hooks: list[Hook] = [(at, put), (self.model.hook_name("z", self.head.layer), _stop)]
        if (name := f"{self.raw['k'].removesuffix('k')}rot_k") in self._backend.hook_points:
            hooks.append((name, rotated))
        self._until_stopped(len(k), length, hooks, seen)
        return seen.k[-1] if seen.k else k[:, None].expand(-1, length, -1)

    def _run(self, rows: int, pos: int, puts: Sequence[Hook], read: str) -> Tensor:
        """What a hook gets, in float64."""
        kept: list[Tensor] = []

        def keep(value: Tensor, hook: Any) -> None:
            kept.append(value.double())
            raise Stopped

        self._until_stopped(rows, pos, [*puts, (read, keep)])
        return kept[0]

    def _until_stopped(self, rows: int, pos: int, hooks: Sequence[Hook], keys: Keys | None = None) -> None:
        layer, blocks = self.head.layer, self._backend.blocks_for(rows, pos)
        empty = torch.zeros(rows, pos, self.model.d_model, dtype=self.model.dtype, device=self.model.device)
        step_by_step: Hook = (self._backend.hook_name("pattern", layer), lambda value, hook: None)  # nothing is fused
        until_stopped(layer, lambda: self._backend.under([*hooks, step_by_step], lambda: blocks(layer, empty, keys)))


def _stop(value: Tensor, hook: Any) -> None:
    raise Stopped


@dataclass
class _Kept:
    """Keeps the keys of a head that attention is given."""

    head: int
    k: list[Tensor]

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        self.k.append(k[:, self.head].clone())
        return k, v

    def get_seq_length(self, *_: Any) -> int:
        """How many earlier tokens there are, which some models ask."""
        return 0


@dataclass(frozen=True, eq=False)
class FrozenScores:
    """The scores of one head for one query of each prompt of a run, and every row of that run as a key."""

    block: ScoringBlock
    q: FrozenSide
    k: FrozenSide
    prompt: Int[Tensor, " row"]
    pos: Int[Tensor, " row"]
    at: Int[Tensor, " prompt"]

    @classmethod
    def of(
        cls, run: FrozenRun, block: ScoringBlock, pos: Int[Tensor, " row"], at: Int[Tensor, " prompt"]
    ) -> FrozenScores:
        """The scores in a run."""
        stream, norm = run.streams[block.head.layer], run.before_attention(block.head.layer)
        q, k = _side(run, block, "q", norm.rows(at), stream[at]), _side(run, block, "k", norm, stream)
        return cls(block, q, k, run.prompt, pos, at)

    @property
    def of_queries(self) -> Float[Tensor, "prompt d_head before"]:
        """The rotation of each query."""
        return self.block.rotations["q"][self.pos[self.at]]

    def rotated(self, q: Float[Tensor, "*batch prompt d_head"]) -> Float[Tensor, "*batch prompt d_head"]:
        """q of each query after rotation."""
        return torch.einsum("nob,...nb->...no", self.of_queries, q)

    def summed(
        self, k: Float[Tensor, "*batch row d_head"], weights: Float[Tensor, " row"]
    ) -> Float[Tensor, "*batch prompt d_head"]:
        """The sum over the keys of each prompt, weighted, after rotation."""
        weighted = k.new_zeros(*k.shape[:-2], len(self.at), self.block.length, k.shape[-1])
        weighted[..., self.prompt, self.pos, :] = weights[:, None] * k
        return torch.einsum("pob,...npb->...npo", self.block.rotations["k"], weighted).sum(-2)

    def met(self, q: Float[Tensor, "prompt d_head"]) -> Float[Tensor, "row d_head"]:
        """For each key, the direction before rotation that its k is multiplied with to give its score."""
        return self.block.scale * (q @ self.block.rotations["k"])[self.pos, self.prompt]

    def of_positions(self) -> Float[Tensor, " row"]:
        """What is added to scores for positions alone, up to what all keys share; -inf where a key is hidden."""
        return self.block.of_positions[self.pos[self.at][self.prompt], self.pos]

    def off(
        self, scores: Float[Tensor, " row"], pattern: Float[Tensor, " row"]
    ) -> tuple[Float[Tensor, " prompt"], Float[Tensor, " prompt"]]:
        """How far scores are from those of the run's own pattern, up to what all keys share; the largest score."""
        seen = pattern >= torch.finfo(pattern.dtype).tiny
        weights, log_p = pattern.double(), pattern.double().log()
        cap = self.block.cap
        capped = scores if cap is None else cap * torch.tanh(scores / cap)
        apart = (capped + self.of_positions() - log_p).masked_fill(~seen, 0)
        zero = weights.new_zeros(len(self.at))
        mean = zero.index_add(0, self.prompt, weights * apart) / zero.index_add(0, self.prompt, weights)
        off = (apart - mean[self.prompt]).abs().masked_fill(~seen, 0)
        return zero.scatter_reduce(0, self.prompt, off, "amax"), zero.scatter_reduce(
            0, self.prompt, scores.abs(), "amax"
        )


def _side(
    run: FrozenRun, block: ScoringBlock, which: Which, norm: FrozenMap, stream: Float[Tensor, "row d_model"]
) -> FrozenSide:
    """q or k of the block's head, frozen at these rows of the stream before the block, with the norm that they have."""
    model, layer, head = run.model, block.head.layer, block.head.head
    kind = "Q" if which == "q" else "K"
    weights, biases = model.backend.weight(kind, layer), model.backend.bias(kind, layer)
    biases = weights.new_zeros(model.n_heads, model.d_head) if biases is None else biases
    weight, bias = weights[head].double(), biases[head].double()
    if block.reshaped is not None:
        own_norm = _reshaped(block, which, norm(stream.double()) @ weight + bias)
    elif block.after_norm[which] == block.raw[which]:
        own_norm = FrozenMap(None, torch.ones_like(bias), torch.zeros_like(bias), centred=False)
    else:
        stored = model.n_heads if which == "q" else model.n_kv_heads
        each = range(0, model.n_heads, model.n_heads // stored)
        values = torch.einsum("rm,hmd->rhd", norm(stream.double()), weights[each].double()) + biases[each].double()
        own_norm = _own_norm(run, block, which, values.to(model.dtype))
    return FrozenSide(norm, weight, bias, own_norm)


def _reshaped(block: ScoringBlock, which: Which, values: Float[Tensor, "row d_head"]) -> FrozenMap:
    """The size of a norm after rotation in each row, or the share that a clip leaves of each number."""
    given = values.to(block.model.dtype)
    used, given = block.used(which, given, 1)[:, 0], given.double()
    if block.reshaped == "clip":
        size = torch.where(given == 0, 1.0, used / given)
    else:
        turned = given @ block.rotations[which][0].T
        size = (used * turned).sum(-1, keepdim=True) / turned.square().sum(-1, keepdim=True).clamp_min(1e-300)
    return FrozenMap(
        size, torch.ones_like(size[0].expand(values.shape[-1])), torch.zeros_like(values[0]), centred=False
    )


def _own_norm(run: FrozenRun, block: ScoringBlock, which: Which, values: Float[Tensor, "row head d_head"]) -> FrozenMap:
    """The norm of q or k, of each head alone or of all heads side by side."""
    (n, d), head, rounding = values.shape[1:], block.heads[which], tolerance(run.model.backend)

    def alone(rows: Float[Tensor, "some d_head"]) -> Float[Tensor, "some d_head"]:
        return block.normed(which, rows[:, None].expand(-1, n, -1).contiguous())[:, head]

    def together(rows: Float[Tensor, "some d"]) -> Float[Tensor, "some d"]:
        return block.normed(which, rows.unflatten(-1, (n, d))).flatten(1)

    normed = block.normed(which, values)[:, head].double()
    found = frozen_at(alone, values[:, head], rounding)
    if found is not None and (found(values[:, head].double()) - normed).abs().max() <= rounding * normed.abs().max():
        return found
    found = frozen_at(together, values.flatten(1), rounding)
    if found is None or found.centred:
        raise run.inexact(f"the norm of {which} in layer {block.head.layer} is not a product once it is frozen")
    some = slice(head * d, (head + 1) * d)
    return FrozenMap(found.size, found.slope[some], found.offset[some], centred=False)
