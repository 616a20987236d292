"""Runs whose norms are linear maps, and a head's attention scores as a product of two affine maps of the stream.

The maps are measured, not read from module names: a module runs on a few probes and on the inputs of a run, and its
norm is frozen at the statistics of that run. So the same code handles a final norm, a norm after attention, a
multiplier, and a module that does nothing.

The rotation of q and k is measured from the keys that attention uses, and the scale and the part of positions (ALiBi)
from the patterns of a block in which q and k are replaced. ``ScoreParts`` then checks that these scores give the
pattern of the run, which fails for models that norm q and k after the rotation, or clip them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.heads import HeadId, kv_head
from mechheads.limits import current
from mechheads.model.backend import Backend, Hook, balanced
from mechheads.model.model import Model
from mechheads.model.parts import Blocks, Keys, Stopped, until_stopped

_LOUD = 1e3
"""The size of a probe: so large that the epsilon of a norm does not matter."""
_PROBES = 5
_TRIED = 16
"""The number of rows on which a block's map of its attention output is tried."""
_LEARNED = "hook_pos_embed"
_SIZES, _LARGE = 32, 4.0
"""The number of scores that the scale is measured with, and the largest of them."""
Which = Literal["q", "k"]
_QK: tuple[Which, ...] = ("q", "k")


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
        """The direction before the map: its product with x is the product of ``direction`` with output - offset."""
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
        fitted = FrozenMap(None, (up - down) / (2 * _LOUD * unit), offset, centred=False)
    else:
        centred = bool((shifted - up).square().sum() < 1e-2 * size)
        slope = (up - down) / (2 * unit)
        scaled = slope * (_centred(x) if centred else x)
        sizes = (scaled * seen).sum(-1, keepdim=True) / scaled.square().sum(-1, keepdim=True).clamp_min(1e-300)
        fitted = FrozenMap(sizes, slope, offset, centred)
    off = (fitted(x) - offset - seen).abs().max()
    return fitted if off <= rounding * seen.abs().max() else None


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
    _blocks: dict[int, Blocks] = field(default_factory=dict)  # by the number of rows
    _norms: dict[int, FrozenMap] = field(default_factory=dict)  # by the layer whose heads they precede

    @classmethod
    def of(
        cls,
        model: Model,
        ids: Int[Tensor, "prompt pos"],
        prompt: Int[Tensor, " row"],
        pos: Int[Tensor, " row"],
        *,
        analysis: str,
        attention: bool = False,
        ends_at: int | None = None,
    ) -> FrozenRun:
        """Run prompts, up to the layer ``ends_at``, of which only patterns are read.
        ``prompt`` and ``pos``: the prompt and the position of each row."""
        frozen = cls(model, analysis, prompt, [], {}, {}, {}, {})
        layers = range(model.n_layers if ends_at is None else ends_at)

        def note(value: Tensor, hook: Any, into: dict[Any, Tensor], key: object, at: Any = (prompt, pos)) -> None:
            into[key] = value.expand(len(ids), *value.shape[1:])[at].clone()

        z = {"into": frozen.z}
        pattern, v = {"into": frozen.patterns, "at": (prompt, slice(None), pos)}, {"into": frozen.v, "at": ...}
        embeddings = ("hook_embed", _LEARNED) if _LEARNED in model.backend.hook_points else ()
        hooks: list[Hook] = [(name, partial(note, into=frozen.embedded, key=name)) for name in embeddings]
        hooks += [
            (model.hook_name(site, layer), partial(note, key=layer, **how))
            for layer in layers
            for site, how in ({"z": z, "pattern": pattern, "v": v} if attention else {"z": z}).items()
        ]
        if ends_at is not None:
            hooks.append((model.hook_name("pattern", ends_at), partial(note, key=ends_at, **pattern)))

        def run() -> None:
            stream, blocks = model.backend.embed(ids)
            for layer in layers:
                frozen.streams.append(stream[prompt, pos].clone())
                stream = blocks(layer, stream)
            frozen.streams.append(stream[prompt, pos].clone())
            if ends_at is not None:
                blocks(ends_at, stream)

        model.backend.under(hooks, run)
        if not frozen.streams[-1].isfinite().all():
            raise ValueError(
                f"model: {model.name!r} gives NaN or infinity without any intervention, so its weights are damaged; "
                "load it again"
            )
        return frozen

    @property
    def positions(self) -> Float[Tensor, "row d_model"]:
        """What learned positions add to the stream before the first block; 0 if they are not simply added to tokens."""
        stream, positions = self.streams[0], self.embedded.get(_LEARNED)
        if positions is None:
            return torch.zeros_like(stream)
        off = (sum(self.embedded.values()) - stream).abs().max()
        return positions if off <= tolerance(self.model.backend) * stream.abs().max() else torch.zeros_like(stream)

    def after_blocks(self) -> FrozenMap:
        """The map between the last block and W_U."""
        backend = self.model.backend
        final = frozen_at(lambda rows: backend.finish(rows[:, None])[:, 0], self.streams[-1], tolerance(backend))
        if final is None:
            raise self.inexact("what follows the last block is neither a norm nor a product")
        return final

    def before_attention(self, layer: int) -> FrozenMap:
        """The map between the stream and the heads of a layer."""
        if layer not in self._norms:
            backend = self.model.backend
            norm = frozen_at(partial(backend.before_attention, layer), self.streams[layer], tolerance(backend))
            if norm is None:
                raise self.inexact(f"what stands before the heads of layer {layer} is neither a norm nor a product")
            self._norms[layer] = norm
        return self._norms[layer]

    def written(self, layer: int, dtype: torch.dtype) -> Float[Tensor, "row d_model"]:
        """The attention output of a layer: the sum of z W_O over its heads, and b_O."""
        W_O, b_O = self.model.W_O[layer].to(dtype), self.model.b_O(layer)
        summed = torch.einsum("rhd,hdm->rm", self.z[layer].to(dtype), W_O)
        return summed if b_O is None else summed + b_O.to(dtype)

    def after_attention(self, layer: int, written: Float[Tensor, "row d_model"]) -> FrozenMap:
        """The map from a layer's attention output, ``written``, to what the block adds to the stream for it."""
        before, out = self.streams[layer], written.to(self.streams[layer].dtype)
        some = torch.linspace(0, len(out) - 1, min(len(out), _TRIED), device=out.device).long()
        added = self._of_attention(layer, before[some], out[some])
        if added is not None and added.size is not None and len(some) < len(out):
            added = self._of_attention(layer, None, out)
        if added is None:
            raise self.inexact(f"layer {layer} does more with its heads than add them to the residual stream")
        return added

    def sources(self, layer: int, of_z: Float[Tensor, "row head d_head"]) -> Float[Tensor, "row head pos"]:
        """The products of z with ``of_z``, divided among the tokens that heads read; v includes the bias b_V."""
        wholes = (self.z[layer].double() * of_z).sum(-1)
        parts = torch.empty(*wholes.shape, self.v[layer].shape[1], dtype=of_z.dtype, device=of_z.device)
        for prompt, v in enumerate(self.v[layer].double()):
            rows = self.prompt == prompt
            v = v.repeat_interleave(self.model.n_heads // v.shape[1], dim=1)
            parts[rows] = self.patterns[layer][rows].double() * torch.einsum("shd,rhd->rhs", v, of_z[rows])
        if not (parts.sum(-1) - wholes).abs().max() <= tolerance(self.model.backend) * parts.abs().sum(-1).max():
            raise ValueError(
                f'{self.model.backend.description} does not support by="source": z of layer {layer} is not the sum of '
                'pattern * v over tokens, for example because a gate changes it; use by="head"'
            )
        return parts

    def _of_attention(
        self, layer: int, before: Float[Tensor, "row d_model"] | None, written: Float[Tensor, "row d_model"]
    ) -> FrozenMap | None:
        """The map of ``after_attention``, frozen at ``written``; None if it is not all that happens to ``before``."""
        backend, rounding = self.model.backend, tolerance(self.model.backend)
        on_stream: list[Tensor] = []

        def alone(out: Tensor) -> Tensor:
            """The block without its MLP, on an empty stream; ``on_stream`` gets its output on the stream of the run."""
            outs, streams = out, torch.zeros_like(out)
            if before is not None:
                outs, streams = torch.cat([outs, written]), torch.cat([streams, before])
            if (blocks := self._blocks.get(len(outs))) is None:
                blocks = self._blocks[len(outs)] = backend.blocks_for(len(outs), 1)
            after = backend.with_attention(layer, outs[:, None], lambda: blocks(layer, streams[:, None]))[:, 0]
            on_stream.append(after[len(out) :])
            return after[: len(out)]

        silent: list[Hook] = [(backend.hook_name("mlp_out", layer), _silent)] if backend.d_mlp else []
        added = backend.under(silent, lambda: frozen_at(alone, written, rounding))
        if added is None or before is None:
            return added
        expected = before.double() + added(written.double())
        off = (on_stream[0].double() - expected).abs().max()
        return added if off <= rounding * expected.abs().max() else None

    def inexact(self, what: str) -> ValueError:
        """The error for a model of which the analysis would be wrong; ``what`` is the reason."""
        return ValueError(
            f"{self.model.backend.description} does not support {self.analysis}: {what}, so the parts of its heads "
            "would not sum to what they are parts of; mh.ablate and mh.path_patch measure effects instead"
        )


def _silent(value: Tensor, hook: object) -> Tensor:
    return torch.zeros_like(value)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


@dataclass(frozen=True, eq=False)
class FrozenSide:
    """q or k of a head before rotation, as an affine map of the stream of each row."""

    norm: FrozenMap
    weight: Float[Tensor, "d_model d_head"]
    bias: Float[Tensor, " d_head"]
    own_norm: FrozenMap

    def __call__(self, stream: Float[Tensor, "row d_model"]) -> Float[Tensor, "row d_head"]:
        return self.own_norm(self.norm(stream) @ self.weight + self.bias)

    def shared(self, part: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_head"]:
        """The part of the map that is the same for all rows: without constants and the sizes of norms."""
        return self.own_norm.shared(self.norm.shared(part) @ self.weight)

    def sized(self, values: Float[Tensor, "*batch row d_head"]) -> Float[Tensor, "*batch row d_head"]:
        """Values of each row, multiplied by the sizes of its norms."""
        return self.own_norm.sized(self.norm.sized(values))


class ScoringBlock:
    """The block of a head, run alone on an empty stream with other q and k; ``length`` positions are measured."""

    def __init__(self, model: Model, head: HeadId, length: int) -> None:
        self.model, self.head, self.length, self._backend = model, head, length, model.backend
        self.heads = {"q": head.head, "k": kv_head(head.head, model.n_heads, model.n_kv_heads)}
        points = self._backend.hook_points
        normed = {which: self._backend.hook_name(f"normed_{which}", head.layer) for which in _QK}
        self.raw = {which: f"blocks.{head.layer}.attn.hook_{which}" for which in _QK}
        self.after_norm = {which: name if name in points else self.raw[which] for which, name in normed.items()}

    def normed(self, which: Which, values: Float[Tensor, "row head d_head"]) -> Float[Tensor, "row head d_head"]:
        """Values of q or k after their own norm; each is put at a first token, which is not rotated."""
        return self._run(
            len(values), 1, [(self.raw[which], lambda value, hook: values[:, None])], self.after_norm[which]
        )[:, 0]

    @cached_property
    def rotation(self) -> Float[Tensor, "pos d_head before"]:
        """The linear map that turns q or k after its norm into the one that scores are made of, at each position."""
        basis = torch.eye(self.model.d_head, dtype=self.model.dtype, device=self.model.device)
        parts = basis.split(max(1, current().limits.run_tokens // self.length))
        turned = [self._scored(part, self.length, self.after_norm["k"]) for part in parts]
        return torch.cat(turned).double().permute(1, 2, 0).contiguous()

    @property
    def cap(self) -> float | None:
        """The soft cap of the scores; None without one."""
        cap = getattr(self.model.model.cfg, "attn_scores_soft_cap", None) or -1.0
        return cap if cap > 0 else None

    @cached_property
    def scale(self) -> float:
        """The factor of q . k in scores, from queries and keys at one position, which have the same rotation."""
        (at_one,) = self._preferred([1.0])
        sizes = [step / _SIZES * abs(_LARGE / at_one) ** 0.5 for step in range(1, _SIZES + 1)] if at_one else [1.0]
        first = torch.zeros(len(sizes), self.model.d_head, dtype=self.model.dtype, device=self.model.device)
        first[:, 0] = torch.tensor(sizes)
        used = self._scored(first, 1, self.after_norm["k"])[:, 0]  # some rotations stretch what they rotate
        products = used.double().square().sum(-1).cpu()
        return float((torch.tensor(self._preferred(sizes)).double() * products).sum() / products.square().sum())

    @cached_property
    def of_positions(self) -> Float[Tensor, "query key"]:
        """The part of scores that depends on positions alone, up to a constant of each query; -inf for hidden keys."""
        return self._log_pattern(1, self.length, lambda value, hook: torch.zeros_like(value))[0]

    def _preferred(self, sizes: Sequence[float]) -> list[float]:
        """For each size of q and k of the second of two tokens: its score for itself minus its score for the first."""

        def put(value: Tensor, hook: Any) -> Tensor:
            new = torch.zeros_like(value)
            new[:, 1, :, 0] = torch.tensor([0.0, *sizes]).to(new)[:, None]
            return new

        log_p = self._log_pattern(len(sizes) + 1, 2, put)[:, 1]
        scores = (log_p[:, 1] - log_p[:, 0]).cpu()
        scores = scores[1:] - scores[0]
        return (scores if self.cap is None else self.cap * torch.atanh(scores / self.cap)).tolist()

    def _log_pattern(self, rows: int, pos: int, put: Callable[..., Tensor]) -> Float[Tensor, "row query key"]:
        puts = [(name, put) for name in self.after_norm.values()]
        return self._run(rows, pos, puts, self._backend.hook_name("pattern", self.head.layer))[:, self.head.head].log()

    def _scored(self, k: Float[Tensor, "row d_head"], length: int, at: str) -> Float[Tensor, "row pos d_head"]:
        """The keys that attention uses if ``k`` is put at ``length`` positions at the hook ``at``."""
        head, seen = self.heads["k"], _KeyRecorder(self.heads["k"], [])

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
        """The value at the hook ``read``, in float64, with the hooks ``puts``."""
        values: list[Tensor] = []

        def record(value: Tensor, hook: Any) -> None:
            values.append(value.double())
            raise Stopped

        self._until_stopped(rows, pos, [*puts, (read, record)])
        return values[0]

    def _until_stopped(self, rows: int, pos: int, hooks: Sequence[Hook], keys: Keys | None = None) -> None:
        layer, blocks = self.head.layer, self._backend.blocks_for(rows, pos)
        empty = torch.zeros(rows, pos, self.model.d_model, dtype=self.model.dtype, device=self.model.device)
        step_by_step: Hook = (self._backend.hook_name("pattern", layer), lambda value, hook: None)  # nothing is fused
        until_stopped(layer, lambda: self._backend.under([*hooks, step_by_step], lambda: blocks(layer, empty, keys)))


def _stop(value: Tensor, hook: Any) -> None:
    raise Stopped


@dataclass
class _KeyRecorder:
    """A cache that records the keys of a head as attention uses them."""

    head: int
    k: list[Tensor]

    def update(self, k: Tensor, v: Tensor, layer: int, *_: Any) -> tuple[Tensor, Tensor]:
        self.k.append(k[:, self.head].clone())
        return k, v

    def get_seq_length(self, *_: Any) -> int:
        """The number of earlier tokens, which some models read."""
        return 0


def frozen_side(
    run: FrozenRun, block: ScoringBlock, which: Which, norm: FrozenMap, stream: Float[Tensor, "row d_model"]
) -> FrozenSide:
    """q or k of the block's head as a map of the stream before the block, frozen at these rows after ``norm``."""
    model, layer, head = run.model, block.head.layer, block.head.head
    kind = "Q" if which == "q" else "K"
    weights, biases = model.backend.weight(kind, layer), model.backend.bias(kind, layer)
    biases = weights.new_zeros(model.n_heads, model.d_head) if biases is None else biases
    weight, bias = weights[head].double(), biases[head].double()
    if block.after_norm[which] == block.raw[which]:
        own_norm = FrozenMap(None, torch.ones_like(bias), torch.zeros_like(bias), centred=False)
    else:
        stored = model.n_heads if which == "q" else model.n_kv_heads
        each = range(0, model.n_heads, model.n_heads // stored)
        values = torch.einsum("rm,hmd->rhd", norm(stream.double()), weights[each].double()) + biases[each].double()
        own_norm = _own_norm(run, block, which, values.to(model.dtype))
    return FrozenSide(norm, weight, bias, own_norm)


def _own_norm(run: FrozenRun, block: ScoringBlock, which: Which, values: Float[Tensor, "row head d_head"]) -> FrozenMap:
    """The norm of q or k, of each head alone or of all heads side by side."""
    (n, d), head, rounding = values.shape[1:], block.heads[which], tolerance(run.model.backend)

    def alone(rows: Float[Tensor, "some d_head"]) -> Float[Tensor, "some d_head"]:
        return block.normed(which, rows[:, None].expand(-1, n, -1).contiguous())[:, head]

    def together(rows: Float[Tensor, "some d"]) -> Float[Tensor, "some d"]:
        return block.normed(which, rows.unflatten(-1, (n, d))).flatten(1)

    normed = block.normed(which, values)[:, head].double()
    norm = frozen_at(alone, values[:, head], rounding)
    if norm is not None and (norm(values[:, head].double()) - normed).abs().max() <= rounding * normed.abs().max():
        return norm
    norm = frozen_at(together, values.flatten(1), rounding)
    if norm is None or norm.centred:
        raise run.inexact(f"the norm of {which} in layer {block.head.layer} is not a product once it is frozen")
    some = slice(head * d, (head + 1) * d)
    return FrozenMap(norm.size, norm.slope[some], norm.offset[some], centred=False)
