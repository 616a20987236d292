"""The adapter to ``TransformerBridge`` (TransformerLens 4).

Blocks are called one by one. What they need besides the residual stream, such as rotations and masks, comes from one
call of the trunk in which every block only records its arguments. What follows the last block comes from another call.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge.generalized_components import NormalizationBridge
from transformers import DynamicCache
from transformers.activations import NewGELUActivation

from mechheads.model.backend import Backend, R
from mechheads.model.changes import Change, Forward
from mechheads.model.fused_attention import LONG, FusedAttention, fused_attention
from mechheads.model.parts import (
    Blocks,
    Keys,
    KeysAtHome,
    Stopped,
    logits_of,
    moved,
    name_of_keys,
    parts_of,
    until_stopped,
)
from mechheads.model.proof import versions

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
        if self.on_disk is not None:
            self.on_disk.check(module)
        self._copied = _copied_weights(module)
        self._copied_from = versions(self._copied)
        if not hasattr(module.original_model, "base_model"):
            raise ValueError(
                f"model: {module.cfg.model_name!r} is a bridge around a {type(module.original_model).__name__}; "
                "mechheads reads bridges around transformers models, from TransformerBridge.boot_transformers"
            )
        self._ends = self._ends_now()

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
        own = self.module.original_model if model is None else model
        try:
            logits = logits_of(own, ids, at)
        except RuntimeError:  # TransformerLens rotates OLMo's q and k into float32, also in half precision
            fused = [attention.change() for attention in self._fused if attention is not None and attention.serves]
            if model is not None or not fused:
                raise
            logits = self.changes.during(fused, lambda: logits_of(own, ids, at))
        return moved(logits, self.devices.home)

    def transform_logits(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
        return self.module.adapter.apply_output_logits_transform(logits)

    def _ends_now(self) -> list[Any]:
        """The embedding and the unembedding of the transformers model."""
        return [self.module.original_model.get_input_embeddings(), self.module.original_model.get_output_embeddings()]

    def check(self) -> None:
        super().check()
        if any(now is not then for now, then in zip(self._ends_now(), self._ends, strict=True)):
            raise ValueError(
                f"{self.description}: its embedding or unembedding was replaced; load or wrap the model again"
            )
        if versions(self._copied) != self._copied_from:
            raise ValueError(
                f"{self.description}: its weights of q, k and v were written into after TransformerLens made copies of "
                "them; load or wrap the model again"
            )

    def fuse_attention(self) -> None:
        long = torch.inf if self.devices.several else LONG  # reading a mask would wait for its device
        self._fused = [fused_attention(block, long) for block in self.module.blocks]

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

    def _prepare(self, **inputs: Any) -> tuple[Tensor, list[dict[str, Any]], Blocks]:
        """The residual stream before the first block, the other arguments of each block, and the blocks."""
        entered: list[Tensor] = []
        named: list[dict[str, Any]] = []
        wrap = self._as_output

        def note(residual: Tensor, *args: Any, **kwargs: Any) -> Any:
            entered.append(residual)
            names = self._argument_names[1 : len(args) + 1]
            named.append(dict(zip(names, args, strict=True)) | kwargs)
            return wrap(residual)

        self._instead(self.module.blocks, note, lambda: self._trunk(**inputs, use_cache=False))

        def call(layer: int, residual: Tensor, keys: Keys | None = None, mask: Tensor | None = None) -> Tensor:
            arguments, there = dict(named[layer]), self.devices.blocks[layer]
            if keys is not None:
                arguments[self._keys_names[layer]] = KeysAtHome(keys, self.devices.home)
            if mask is not None:
                arguments["attention_mask"] = mask
            stream = moved(residual, there).contiguous()
            renamed = [] if keys is None else self._renamed_keys[layer]
            out = self._briefly(layer, lambda: self.module.blocks[layer](stream, **arguments), renamed)
            return moved(out[0] if isinstance(out, (tuple, list)) else out, residual.device)

        return entered[0], named, call

    def finish(self, residual: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_model"]:
        """What the trunk computes from our residual stream after the last block; it gets as many texts of one token."""
        rows = residual.reshape(-1, 1, self.sizes.d_model)
        handed_on = self._as_output(rows)
        ended = self._instead(
            self.module.blocks,
            lambda *_args, **_kwargs: handed_on,
            lambda: self._trunk(
                inputs_embeds=self._blank(1, 1).expand(len(rows), -1, -1), use_cache=False, **self._no_keys
            ),
        )
        return moved(ended.last_hidden_state, self.devices.home).reshape(residual.shape)

    @cached_property
    def _no_keys(self) -> dict[str, Any]:
        """Cached keys of no token: without any, transformers looks for packed texts, and waits for the GPU."""
        name, parameters = name_of_keys(self._trunk.forward), inspect.signature(self._trunk.forward).parameters
        return {name: DynamicCache()} if name in parameters and "Cache" in str(parameters[name].annotation) else {}

    def with_attention(self, layer: int, out: Float[Tensor, "row pos d_model"], run: Callable[[], R]) -> R:
        attention, out = self.module.blocks[layer].attn, moved(out, self.devices.blocks[layer])
        if self._adds_residual(layer):
            return self.under([(f"blocks.{layer}.attn.o.hook_out", lambda _value, hook: out)], run)
        return self._instead([attention], lambda *_args, **_kwargs: (out, None), run)

    def _adds_residual(self, layer: int) -> bool:
        """Whether a layer's attention adds the residual stream itself, so that it runs in ``with_attention`` too."""
        return "residual" in inspect.signature(self.module.blocks[layer].attn.original_component.forward).parameters

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
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

    def _briefly(self, layer: int, run: Callable[[], R], more: Iterable[Change] = ()) -> R:
        """Call ``run`` while the block computes in one step what torch can, if no hook reads a step in between."""
        changes = [
            Forward(part, forward)
            for part, forward, points in self._in_one_step[layer]
            if "forward" not in vars(part) and not any(point.has_hooks() for point in points)
        ]
        fused = self._fused[layer]
        if fused is not None and fused.serves:
            changes.append(fused.change())
        return self.changes.during([*changes, *more], run)

    @cached_property
    def _in_one_step(self) -> list[list[tuple[Any, Callable[..., Tensor], list[HookPoint]]]]:
        """For each block, norms and activations that have a quicker forward with the same result, and hook points."""
        quicker: list[list[tuple[Any, Callable[..., Tensor], list[HookPoint]]]] = []
        gelu = partial(nn.functional.gelu, approximate="tanh")
        for block in self.module.blocks:
            norms = [part for part in block.modules() if _is_quicker(part)]
            points = [[each for each in part.modules() if isinstance(each, HookPoint)] for part in norms]
            gelus = [(part, gelu, []) for part in block.modules() if type(part) is NewGELUActivation]
            quicker.append(
                [*((part, part.original_component.forward, at) for part, at in zip(norms, points, strict=True)), *gelus]
            )
        return quicker

    def take_steps(self) -> bool:
        fused = any(self._fused)
        self._fused = [None] * len(self._fused)
        return fused

    @cached_property
    def _argument_names(self) -> list[str]:
        """The argument names of transformers' own block, for arguments that the trunk passes by position."""
        return list(inspect.signature(self.module.blocks[0].original_component.forward).parameters)

    @cached_property
    def _keys_names(self) -> list[str]:
        """The name by which each block takes cached keys."""
        return [name_of_keys(type(block.original_component).forward) for block in self.module.blocks]

    @cached_property
    def _renamed_keys(self) -> list[list[Change]]:
        """For each block, the change that gives the bridge's attention cached keys under the name that it reads."""
        changes: list[list[Change]] = []
        for block in self.module.blocks:
            attention: Any = getattr(block, "attn", None)
            update = getattr(attention, _UPDATE, None)
            own = getattr(attention, "original_component", None)
            if update is None or own is None:
                changes.append([])
                continue
            renamed = partial(_update_under, name_of_keys(own.forward), update)
            changes.append([Forward(attention, renamed, _UPDATE)])
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
        return self.changes.during((Forward(module, forward) for module in modules), run)


def _copied_weights(module: Any) -> list[Tensor]:
    """The joint weights of q, k and v of which TransformerLens made copies: of GPT-NeoX, BLOOM, Falcon and MPT."""
    copied: list[Tensor] = []
    every: list[Any] = parts_of(module)
    for part in every:
        if hasattr(part, "split_qkv_matrix"):
            whole = list(part.original_component.parameters())
            memory = {weight.untyped_storage().data_ptr() for weight in whole}
            parts = [weight for name in "qkv" for weight in getattr(part, name).original_component.parameters()]
            copied += whole if any(weight.untyped_storage().data_ptr() not in memory for weight in parts) else []
    return copied


def _update_under(name: str, update: Callable[..., Any], k: Tensor, v: Tensor, **arguments: Any) -> Any:
    """Call the bridge's method for cached keys with the keys that came under another name."""
    return update(k, v, **arguments | {"past_key_values": arguments.get(name)})


def _as_seen(mask: Tensor) -> Bool[Tensor, "query key"]:
    """True if a query sees a key, from a boolean mask or from a mask that is added to the scores."""
    return mask if mask.dtype == torch.bool else mask > -1


def _is_quicker(part: Any) -> bool:
    """Whether a norm without hooks gives what transformers' norm gives, or up to rounding what torch's gives."""
    if not isinstance(part, NormalizationBridge):
        return False
    native = part.use_native_layernorm_autograd or getattr(part.config, "layer_norm_folding", False)
    return native or (type(part) is NormalizationBridge and type(part.original_component) is nn.LayerNorm)
