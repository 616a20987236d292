"""The adapter to ``TransformerBridge`` (TransformerLens 4).

Blocks are called one by one. Besides the residual stream they need arguments such as rotations and masks. These come
from one call of the model's trunk in which every block only records its arguments and returns its input. What follows
the last block comes from another call, in which the last block returns our residual stream.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components import NormalizationBridge
from transformers import DynamicCache
from transformers.activations import NewGELUActivation

from mechheads.model.backends.base import Backend, R
from mechheads.model.backends.changes import Change, Forward
from mechheads.model.backends.fused_attention import LONG, FusedAttention, fused_attention
from mechheads.model.backends.partial_block import Blocks, Keys, Stopped, name_of_keys, until_stopped
from mechheads.model.backends.parts import KeysAtHome, logits_of, moved, parts_of

_UPDATE = "_update_kv_cache"
"""The bridge's method that adds cached keys and values, if its own attention computes."""


def boot(hf_model: Any, tokenizer: Any, name: str) -> Any:
    """A bridge for a loaded transformers model; the weights are not processed."""
    from transformer_lens.model_bridge import TransformerBridge

    on_one = None if hasattr(hf_model, "hf_device_map") else hf_model.device
    return TransformerBridge.boot_transformers(
        name, hf_model=hf_model, tokenizer=tokenizer, device=on_one, dtype=hf_model.dtype
    )


class BridgeBackend(Backend):
    """A ``TransformerBridge``."""

    layouts = ("queries", "whole")

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._fused: Sequence[FusedAttention | None] = [None] * self.sizes.n_layers
        self._rounds = True
        if self.on_disk is not None:
            self.on_disk.check(module)
        self._split_weights = _SplitWeights(parts_of(module))
        if not hasattr(module.original_model, "base_model"):
            raise ValueError(
                f"model: {module.cfg.model_name!r} is a bridge around a {type(module.original_model).__name__}; "
                "mechheads reads bridges around transformers models, from TransformerBridge.boot_transformers"
            )

    @property
    def _trunk(self) -> Any:
        """The part of the transformers model that ends with the final norm."""
        model = self.module.original_model
        if model.base_model is not model:
            return model.base_model
        return next(part for part in model.children() if self.module.blocks[0] in set(part.modules()))

    @property
    def configuration(self) -> Mapping[str, Any]:
        return self.module.original_model.config.to_dict()

    def _logits_of(
        self, model: Any, ids: Int[Tensor, "batch pos"], at: Sequence[int] | None
    ) -> Float[Tensor, "batch position d_vocab"]:
        return moved(logits_of(self.module.original_model if model is None else model, ids, at), self.devices.home)

    def transform_logits(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
        return self.module.adapter.apply_output_logits_transform(logits)

    def check(self) -> None:
        super().check()
        inside = set(map(id, parts_of(self.module.original_model)))
        for name in ("embed", "blocks", "ln_final", "unembed"):
            held = self.module._modules.get(name)
            for part in [] if held is None else held.children() if name == "blocks" else [held]:
                if id(part) not in inside:
                    raise ValueError(
                        f"{self.about} runs a module that its bridge does not know, in the place of {part.name!r}; "
                        "undo the change, or load or wrap the changed model again"
                    )
        if self.on_disk is None and not self._is_processed:
            self._split_weights.renew()

    @property
    def _is_processed(self) -> bool:
        """Whether TransformerLens has changed the weights, so that they are no longer those of transformers."""
        return getattr(self.module, "compatibility_mode", False)

    def fuse_attention(self) -> None:
        self._fused = [fused_attention(block, self.changes) for block in self.module.blocks]

    def masks_count(self) -> None:
        for attention in filter(None, self._fused):
            attention.long = 2**62 if self.devices.several else LONG  # reading a mask would wait for its device

    def embed(self, ids: Int[Tensor, "row pos"]) -> tuple[Float[Tensor, "row pos d_model"], Blocks]:
        residual, _, blocks = self._prepare(input_ids=ids)
        return residual, blocks

    def blocks_for(self, rows: int, pos: int) -> Blocks:
        return self._prepare(inputs_embeds=self._blank(rows, pos))[2]

    def blocks_between_heads(self, rows: int, pos: int) -> Blocks:
        """If attention is replaced, nothing else in a block of a model with one stream depends on the rows."""
        if any(map(self._adds_residual, range(self.sizes.n_layers))):
            return self.blocks_for(rows, pos)
        if pos not in self._between_heads:
            self._between_heads[pos] = self.blocks_for(1, pos)
        return self._between_heads[pos]

    @cached_property
    def _between_heads(self) -> dict[int, Blocks]:
        """The blocks without their attention for each number of positions."""
        return {}

    def blocks_at(self, positions: Int[Tensor, "row pos"]) -> Blocks:
        unmasked = self._blank(1, 1)[..., :1, None]
        return self._prepare(
            inputs_embeds=self._blank(*positions.shape), position_ids=positions, attention_mask=unmasked
        )[2]

    def visible(self, layer: int, pos: int) -> Bool[Tensor, "query key"]:
        if pos not in self._visible:
            masks = [named.get("attention_mask") for named in self._prepare(inputs_embeds=self._blank(1, pos))[1]]
            causal = torch.ones(pos, pos, dtype=torch.bool, device=self.devices.home).tril()
            seen = {id(mask): causal if mask is None else _as_seen(mask[0, 0]) for mask in masks}
            self._visible[pos] = [seen[id(mask)] for mask in masks]
        return self._visible[pos][layer]

    @cached_property
    def _visible(self) -> dict[int, list[Tensor]]:
        """The masks of each length, for every layer."""
        return {}

    def _blank(self, rows: int, pos: int) -> Tensor:
        return torch.zeros(rows, pos, self.sizes.d_model, dtype=self.parameter.dtype, device=self.devices.home)

    def _prepare(self, **given: Any) -> tuple[Tensor, list[dict[str, Any]], Blocks]:
        """The residual stream before the first block, the other arguments of each block, and the blocks."""
        entered: list[Tensor] = []
        named: list[dict[str, Any]] = []
        wrap = self._as_output

        def note(residual: Tensor, *args: Any, **kwargs: Any) -> Any:
            entered.append(residual)
            names = self._argument_names[1 : len(args) + 1]
            named.append(dict(zip(names, args, strict=True)) | kwargs)
            return wrap(residual)

        self._instead(self.module.blocks, note, lambda: self._trunk(**given, use_cache=False))

        def call(layer: int, residual: Tensor, keys: Keys | None = None, mask: Tensor | None = None) -> Tensor:
            arguments, there = dict(named[layer]), self.devices.blocks[layer]
            if keys is not None:
                arguments[self._keys_names[layer]] = KeysAtHome(keys, self.devices.home)
            if mask is not None:
                arguments["attention_mask"] = mask
            stream = moved(residual, there).contiguous()
            named_for = [] if keys is None else self._told_of_keys[layer]
            out = self._briefly(layer, lambda: self.module.blocks[layer](stream, **arguments), named_for)
            return moved(out[0] if isinstance(out, (tuple, list)) else out, residual.device)

        return entered[0], named, call

    def finish(self, residual: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_model"]:
        if not self._end_has_its_own_shape:
            return self._end(residual, self._blank(1, 1)).reshape(residual.shape)
        rows = residual.reshape(-1, 1, self.sizes.d_model)
        return self._end(rows, torch.zeros_like(rows, device=self.devices.home)).reshape(residual.shape)

    def _end(self, residual: Tensor, called_with: Tensor) -> Tensor:
        """What the trunk computes from our residual stream after the last block, if called with other embeddings."""
        handed_on = self._as_output(residual)
        ended = self._instead(
            self.module.blocks,
            lambda *_args, **_kwargs: handed_on,
            lambda: self._trunk(inputs_embeds=called_with, use_cache=False, **self._no_keys),
        )
        return moved(ended.last_hidden_state, self.devices.home)

    @cached_property
    def _no_keys(self) -> dict[str, Any]:
        """Cached keys of no token: without any, transformers looks for packed texts, and waits for the GPU."""
        name, given = name_of_keys(self._trunk.forward), inspect.signature(self._trunk.forward).parameters
        return {name: DynamicCache()} if name in given and "Cache" in str(given[name].annotation) else {}

    @cached_property
    def _end_has_its_own_shape(self) -> bool:
        """Whether the trunk's result has the shape of its input instead of the shape of its last block's output."""
        with torch.no_grad():
            try:
                return self._end(self._blank(1, 2), self._blank(1, 1)).numel() != 2 * self.sizes.d_model
            except RuntimeError:
                return True

    def with_attention(self, layer: int, out: Float[Tensor, "row pos d_model"], run: Callable[[], R]) -> R:
        attention, out = self.module.blocks[layer].attn, moved(out, self.devices.blocks[layer])
        if self._adds_residual(layer):
            return self.under([(f"blocks.{layer}.attn.o.hook_out", lambda _value, hook: out)], run)
        return self._instead([attention], lambda *_args, **_kwargs: (out, None), run)

    def _adds_residual(self, layer: int) -> bool:
        """Whether a layer's attention adds the residual stream itself, so that it runs in ``with_attention`` too."""
        return "residual" in inspect.signature(self.module.blocks[layer].attn.original_component.forward).parameters

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """The output of block 0's MLP if the heads write nothing, so that any norm around the MLP is included."""
        seen: list[Tensor] = []
        rows = x.reshape(-1, 1, x.shape[-1])

        def stop(value: Tensor, hook: Any) -> None:
            seen.append(value)
            raise Stopped

        def run() -> None:
            blocks = self.blocks_for(*rows.shape[:2])
            self.with_attention(0, torch.zeros_like(rows), lambda: blocks(0, rows))

        with torch.no_grad():
            names = {self.hook_name("mlp_out", 0), "blocks.0.mlp.hook_out"} & self.hook_points.keys()
            self.under([(name, stop) for name in names], lambda: until_stopped(0, run))
        return seen[0].reshape(x.shape)

    @cached_property
    def alike_up_to(self) -> int:
        """Found by searching for the position of a later token at which the rotation of position 1 changes."""
        if "position_ids" not in inspect.signature(self._trunk.forward).parameters:
            return self.sizes.n_ctx
        near = self._given_at_1(2)

        def alike(last: int) -> bool:
            return all(map(torch.equal, self._given_at_1(last), near))

        try:
            fewest, most = 3, self.sizes.n_ctx
            if most <= fewest or alike(most - 1):
                return most
            while most - fewest > 1:
                middle = (fewest + most) // 2
                fewest, most = (middle, most) if alike(middle - 1) else (fewest, middle)
            return fewest
        finally:
            self._given_at_1(2)  # transformers keeps the rotations of the last call, so restore the usual ones

    def _given_at_1(self, last: int) -> list[Tensor]:
        """The arguments of the blocks for position 1, besides the residual stream, in a call with one later token."""
        positions = torch.tensor([[1, last]], device=self.devices.home)
        given = self._prepare(inputs_embeds=self._blank(1, 2), position_ids=positions)[1]
        return [
            tensor[:, 0].clone()
            for named in given
            for name, value in named.items()
            if name not in ("attention_mask", "position_ids")
            for tensor in (value if isinstance(value, (tuple, list)) else (value,))
            if isinstance(tensor, Tensor) and tensor.ndim > 2 and tensor.shape[1] == 2
        ]

    def _briefly(self, layer: int, run: Callable[[], R], more: Iterable[Change] = ()) -> R:
        """Call ``run`` while the block computes in one step what torch can, where no hook reads a step in between.

        The bridge's norms compute everything step by step or a second time for their hook points, and its attention
        every pattern.
        """
        changes = [
            Forward(part, forward)
            for part, forward, points in self._in_one_step[layer]
            if "forward" not in part.__dict__ and not any(point.has_hooks() for point in points)
        ]
        fused = self._fused[layer]
        if fused is not None and fused.serves:
            changes.append(fused.change())
        with self.changes.made([*changes, *more]):
            return run()

    @cached_property
    def _in_one_step(self) -> list[list[tuple[Any, Callable[..., Tensor], list[HookPoint]]]]:
        """For each block, its norms and activations that have a quicker forward with the same result, and hook points.

        transformers writes GPT-2's GELU as eight steps, each of which goes through memory.
        """
        quicker: list[list[tuple[Any, Callable[..., Tensor], list[HookPoint]]]] = []
        for block in self.module.blocks:
            parts = list(block.modules())
            norms: list[Any] = [part for part in parts if isinstance(part, NormalizationBridge)]
            gelus = [part for part in parts if type(part) is NewGELUActivation and self._rounds]
            quicker.append(
                [
                    (norm, norm.original_component.forward, _points_of(norm))
                    for norm in norms
                    if _is_native(norm) or (self._rounds and _is_layer_norm(norm))
                ]
                + [(gelu, _gelu, []) for gelu in gelus]
            )
        return quicker

    def take_steps(self) -> bool:
        if any(self._fused):
            self._fused = [None] * len(self._fused)
            return True
        if not self._rounds:
            return False
        before = sum(map(len, self._in_one_step))
        self._rounds = False
        del self._in_one_step
        return sum(map(len, self._in_one_step)) < before

    @cached_property
    def _argument_names(self) -> list[str]:
        """The argument names of transformers' own block, for arguments that the trunk passes by position."""
        return list(inspect.signature(self.module.blocks[0].original_component.forward).parameters)

    @cached_property
    def _keys_names(self) -> list[str]:
        """The name by which each block takes cached keys."""
        return [name_of_keys(type(block.original_component).forward) for block in self.module.blocks]

    @cached_property
    def _told_of_keys(self) -> list[list[Change]]:
        """For each block, the change by which the bridge's own attention finds the keys that the block gives it.

        It looks for them under the names of older releases of transformers.
        """
        changes: list[list[Change]] = []
        for block in self.module.blocks:
            attention: Any = getattr(block, "attn", None)
            update = getattr(attention, _UPDATE, None)
            own = getattr(attention, "original_component", None)
            if update is None or own is None:
                changes.append([])
                continue
            renamed = partial(_update_under, name_of_keys(own.forward), update)
            told: Change = Forward(attention, renamed, _UPDATE)
            changes.append([told])
        return changes

    @cached_property
    def _blocks_give_tuples(self) -> bool:
        """Whether the trunk expects a block to return a tuple: it takes the first element, which removes an axis."""
        seen: list[int] = []

        def watch(residual: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
            seen.append(residual.ndim)
            return residual[None] if residual.ndim == 3 else residual

        norm = getattr(self.module, "ln_final", None)  # what a model of one block calls after it
        parts = [*self.module.blocks, *([] if norm is None else [norm])]
        with torch.no_grad():
            end = self._instead(parts, watch, lambda: self._trunk(inputs_embeds=self._blank(1, 1), use_cache=False))
        return [*seen, end.last_hidden_state.ndim][1] == 3

    @property
    def _as_output(self) -> Callable[[Tensor], Any]:
        """Convert a residual stream to what a block returns: a tuple or the tensor itself."""
        return (lambda residual: (residual,)) if self._blocks_give_tuples else (lambda residual: residual)

    def _instead(self, modules: Iterable[Any], forward: Callable[..., Any], run: Callable[[], R]) -> R:
        """Call ``run`` while some modules have another ``forward``."""
        with self.changes.made(Forward(module, forward) for module in modules):
            return run()


class _SplitWeights:
    """The attention layers of a bridge whose q, k and v are copies of the weights of transformers.

    TransformerLens splits layers that give q, k and v together. For GPT-NeoX, BLOOM, Falcon and MPT, whose rows of q, k
    and v alternate, the parts are copies, and what is written into the weights of the model later does not reach them.
    Here it does. For GPT-2 and Phi-3 the parts are views.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        joint: list[Any] = [part for part in parts if hasattr(part, "split_qkv_matrix")]
        self._split = [(part, *_counters(part)) for part in joint if not _is_view(part)]

    def renew(self) -> None:
        """Split anew the weights that were written into since they were split."""
        for at, (part, whole, parts) in enumerate(self._split):
            with torch.no_grad(), torch.random.fork_rng(devices=[]):  # splitting makes layers with random weights
                made = list(_tensors(part.split_qkv_matrix(part.original_component)))
                if all(torch.equal(old, new.to(old)) for old, new in zip(_parts(part), made, strict=True)):
                    continue
                now = _counters(part)
                if now[0] == whole or now[1] != parts:
                    raise ValueError(
                        f"model: the weights of q, k and v in {part.name} differ in the layer of transformers, which "
                        "holds them together, and in the parts that TransformerLens made of them; load or wrap the "
                        "model again, and change one of the two, but not by way of its data"
                    )
                for old, new in zip(_parts(part), made, strict=True):
                    old.copy_(new)
            self._split[at] = part, *_counters(part)


def _counters(part: Any) -> tuple[list[int], list[int]]:
    """Torch's counters of what was written into the joint weights, and into the parts."""
    both = (_whole(part), _parts(part))
    joint, split = ([0 if w.is_inference() else w._version for w in some] for some in both)
    return joint, split


def _whole(part: Any) -> list[Tensor]:
    return list(part.original_component.parameters())


def _parts(part: Any) -> list[Tensor]:
    return list(_tensors(getattr(part, name).original_component for name in "qkv"))


def _tensors(linear: Iterable[nn.Module]) -> Iterator[Tensor]:
    return (tensor for each in linear for tensor in (each.weight, each.bias) if isinstance(tensor, Tensor))


def _is_view(part: Any) -> bool:
    """Whether q, k and v lie in the memory of the weights that they were split from."""
    theirs = {weight.untyped_storage().data_ptr() for weight in _whole(part)}
    return all(weight.untyped_storage().data_ptr() in theirs for weight in _parts(part))


def _update_under(name: str, update: Callable[..., Any], k: Tensor, v: Tensor, **given: Any) -> Any:
    """Call the bridge's method for cached keys with those that were given under another name."""
    return update(k, v, **given | {"past_key_values": given.get(name)})


def _as_seen(mask: Tensor) -> Bool[Tensor, "query key"]:
    """True if a query sees a key, from a boolean mask or from a mask that is added to the scores."""
    return mask if mask.dtype == torch.bool else mask > -1


def _is_native(norm: NormalizationBridge) -> bool:
    """Whether a norm's result without hooks is that of the norm of transformers."""
    return norm.use_native_layernorm_autograd or getattr(norm.config, "layer_norm_folding", False)


def _is_layer_norm(norm: NormalizationBridge) -> bool:
    """Whether a norm's result is that of torch's LayerNorm, up to rounding."""
    return type(norm) is NormalizationBridge and type(norm.original_component) is nn.LayerNorm


def _points_of(module: Any) -> list[HookPoint]:
    return [part for part in module.modules() if isinstance(part, HookPoint)]


def _gelu(x: Tensor) -> Tensor:
    return nn.functional.gelu(x, approximate="tanh")
