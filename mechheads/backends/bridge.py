"""The adapter to ``TransformerBridge`` (TransformerLens 4).

``start_at_layer`` of the bridge computes the blocks it should skip, so ``resume`` turns them into
pass-throughs for the length of one call and puts the residual in at the block it starts from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.backends.base import Backend, Hook


def boot(hf_model: Any, tokenizer: Any, name: str) -> Any:
    """A bridge around a loaded transformers model, weights as they are."""
    from transformer_lens.model_bridge import TransformerBridge

    return TransformerBridge.boot_transformers(
        name, hf_model=hf_model, tokenizer=tokenizer, device=hf_model.device, dtype=hf_model.dtype
    )


class BridgeBackend(Backend):
    """A ``TransformerBridge``."""

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        if not hasattr(module.original_model, "base_model"):
            raise ValueError(
                f"model: {module.cfg.model_name!r} is a bridge around a {type(module.original_model).__name__}; "
                "mechheads reads bridges around transformers models, from TransformerBridge.boot_transformers"
            )

    @property
    def tokenizer(self) -> Any:
        return self.module.tokenizer

    @property
    def _trunk(self) -> Any:
        return self.module.original_model.base_model

    def own_logits(self, ids: Int[Tensor, "batch pos"]) -> Float[Tensor, "batch pos d_vocab"]:
        with torch.no_grad():
            return self.module.original_model(input_ids=ids, use_cache=False).logits

    def transform_logits(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
        return self.module.adapter.apply_output_logits_transform(logits)

    def run(self, ids: Int[Tensor, "batch pos"], hooks: Sequence[Hook] = ()) -> Float[Tensor, "batch pos d_model"]:
        with torch.no_grad(), self.hooked(hooks):
            return self._trunk(input_ids=ids, use_cache=False).last_hidden_state

    def resume(
        self, residual: Float[Tensor, "batch pos d_model"], layer: int, hooks: Sequence[Hook] = ()
    ) -> Float[Tensor, "batch pos d_model"]:
        inject = (self.hook_name("resid_pre", layer), lambda _value, hook: residual)
        with torch.no_grad(), self._skipping(layer), self.hooked([inject, *hooks]):
            return self._trunk(inputs_embeds=residual, use_cache=False).last_hidden_state

    @cached_property
    def _blocks_give_tuples(self) -> bool:
        """Whether this architecture's blocks hand on a tuple, as some of transformers' do, or the state itself."""
        given: list[bool] = []
        handle = self.module.blocks[0].register_forward_hook(
            lambda _block, _args, output: given.append(isinstance(output, tuple))
        )
        try:
            self.run(torch.zeros(1, 1, dtype=torch.long, device=self.parameter.device))
        finally:
            handle.remove()
        return given[0]

    @contextmanager
    def _skipping(self, layer: int) -> Iterator[None]:
        """Blocks below ``layer`` hand their input on. Set past the bridge, whose own setter would keep it."""
        skipped = list(self.module.blocks)[:layer]
        pass_through = _pass_on_in_tuple if self._blocks_give_tuples else _pass_on
        try:
            for block in skipped:
                object.__setattr__(block, "forward", pass_through)
            yield
        finally:
            for block in skipped:
                block.__dict__.pop("forward", None)


def _pass_on(hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> Tensor:
    return hidden_states


def _pass_on_in_tuple(hidden_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor]:
    return (hidden_states,)
