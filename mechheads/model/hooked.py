"""The adapter to ``HookedTransformer`` (TransformerLens 3.9)."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.model.backend import Backend, R
from mechheads.model.changes import Forward
from mechheads.model.parts import Blocks, Keys, logits_of

_GEMMA_2 = "google/gemma-2-2b"


def boot(hf_model: Any, tokenizer: Any, name: str) -> Any:
    """A HookedTransformer with a loaded model's weights. TransformerLens reads the folder's name, so it is neutral."""
    from transformer_lens import HookedTransformer  # pyright: ignore[reportAttributeAccessIssue]
    from transformer_lens.loading_from_pretrained import (  # pyright: ignore[reportMissingImports]
        get_pretrained_model_config,
        get_pretrained_state_dict,
    )

    config = copy.deepcopy(hf_model.config)
    config.architectures = [type(hf_model).__name__]
    if not hasattr(config, "n_ctx"):
        config.n_ctx = config.max_position_embeddings
    with tempfile.TemporaryDirectory(prefix="mh") as path:
        config.save_pretrained(path)
        known_by = _GEMMA_2 if "Gemma2ForCausalLM" in config.architectures else path
        cfg = get_pretrained_model_config(
            known_by, hf_cfg=config.to_dict(), device=str(hf_model.device), dtype=hf_model.dtype
        )
        if known_by == _GEMMA_2:
            _resize_gemma_2(cfg, config)
        window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
        in_use = window and window < cfg.n_ctx and (kinds is None or "sliding_attention" in kinds)
        if in_use and not cfg.use_local_attn:  # the window may be longer than the trial at loading
            raise ValueError(f'HookedTransformer has no window of {window} tokens for it; use backend="bridge"')
        cfg.d_mlp = getattr(config, "n_inner", None) or cfg.d_mlp  # TransformerLens takes GPT-2's to be 4 d_model
        state = get_pretrained_state_dict(known_by, cfg, hf_model, dtype=hf_model.dtype)
    cfg.model_name = name
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "HookedTransformer is deprecated", DeprecationWarning)
        model = HookedTransformer(cfg, tokenizer)  # pyright: ignore[reportCallIssue]
    model.load_and_process_state_dict(
        state,
        fold_ln=False,
        center_writing_weights=False,
        center_unembed=False,
        fold_value_biases=False,
        refactor_factored_attn_matrices=False,
    )
    return model.eval()


def _resize_gemma_2(cfg: Any, config: Any) -> None:
    """TransformerLens 3.9 knows Gemma 2 only by its hub names, so use one of them and set this model's sizes."""
    cfg.d_model, cfg.d_head, cfg.d_mlp = config.hidden_size, config.head_dim, config.intermediate_size
    cfg.n_layers, cfg.n_heads = config.num_hidden_layers, config.num_attention_heads
    cfg.n_key_value_heads = config.num_key_value_heads
    cfg.n_ctx, cfg.window_size = config.max_position_embeddings, config.sliding_window
    cfg.attn_types = ["local" if kind == "sliding_attention" else "global" for kind in config.layer_types]
    cfg.attn_scale = config.query_pre_attn_scalar**0.5
    cfg.attn_scores_soft_cap = config.attn_logit_softcapping or -1.0
    cfg.output_logits_soft_cap = config.final_logit_softcapping or -1.0
    cfg.rotary_dim, cfg.eps = config.head_dim, config.rms_norm_eps
    cfg.rotary_base = config.rope_parameters["rope_theta"]
    cfg.d_vocab_out = cfg.d_vocab


class HookedBackend(Backend):
    """A ``HookedTransformer``."""

    layouts = ("rows", "whole")
    instead = '; use backend="bridge"'

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        if self.devices.several:
            raise ValueError(
                f"model: {module.cfg.model_name!r} is a HookedTransformer on {len(self.devices.each)} devices; load it "
                'with mh.load(..., device_map="auto"), which uses TransformerBridge'
            )

    @property
    def configuration(self) -> Mapping[str, Any]:
        # The tokenizer's name may be a folder that was created for this load only.
        return {name: value for name, value in self.module.cfg.to_dict().items() if name != "tokenizer_name"}

    def _logits_of(
        self, model: Any, ids: Int[Tensor, "batch pos"], at: Sequence[int] | None
    ) -> Float[Tensor, "batch position d_vocab"]:
        if model is not None:
            return logits_of(model, ids, at)
        with torch.no_grad():
            logits = self.module(ids, attention_mask=torch.ones_like(ids))
        return logits if at is None else logits[:, [*at]]

    def transform_logits(self, logits: Float[Tensor, "*batch d_vocab"]) -> Float[Tensor, "*batch d_vocab"]:
        cap = self.module.cfg.output_logits_soft_cap
        return cap * torch.tanh(logits / cap) if cap > 0 else logits

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        scaled = (getattr(self.module.cfg, "original_architecture", None) or "").startswith("Gemma")
        return super().W_E / self.sizes.d_model**0.5 if scaled else super().W_E

    def embed(self, ids: Int[Tensor, "row pos"]) -> tuple[Float[Tensor, "row pos d_model"], Blocks]:
        return self.module.input_to_embed(ids, attention_mask=torch.ones_like(ids))[0], self._block

    def blocks_for(self, rows: int, pos: int) -> Blocks:
        return self._block

    def blocks_at(self, positions: Int[Tensor, "row pos"]) -> Blocks:
        """HookedTransformer numbers positions from the length of its keys, so all rows must start at the same one."""
        start = int(positions[0, 0])

        def call(layer: int, residual: Tensor, keys: Keys | None = None, mask: Tensor | None = None) -> Tensor:
            return self._block(layer, residual, keys, mask, start)

        return call

    def _block(
        self, layer: int, residual: Tensor, keys: Keys | None = None, mask: Tensor | None = None, start: int = 0
    ) -> Tensor:
        entry = None if keys is None else _Entry(keys, layer, start)
        return self.module.blocks[layer](residual, past_kv_cache_entry=entry)

    def visible(self, layer: int, pos: int) -> Bool[Tensor, "query key"]:
        return self.module.blocks[layer].attn._make_causal_mask(
            query_ctx_length=pos, key_ctx_length=pos, past_kv_pos_offset=0, device=self.parameter.device
        )

    def with_attention(self, layer: int, out: Float[Tensor, "row pos d_model"], run: Callable[[], R]) -> R:
        return self.changes.during([Forward(self.module.blocks[layer].attn, lambda **_kwargs: out)], run)

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        if self.module.cfg.attn_only:
            raise ValueError(
                f"model {self.module.cfg.model_name!r} consists of attention only: it has no first MLP; "
                'mh.relation_scores(source="embedding") reads tokens without one'
            )
        block = self.module.blocks[0]
        norm = getattr(block, "ln2", None) or block.ln1
        with torch.no_grad():
            return block.mlp(norm(x.reshape(1, -1, x.shape[-1]))).reshape(x.shape)

    def finish(self, residual: Float[Tensor, "row pos d_model"]) -> Float[Tensor, "row pos d_model"]:
        return residual if self.module.cfg.normalization_type is None else self.module.ln_final(residual)


class _Entry:
    """``Keys`` in the form of a TransformerLens cache entry, whose tensors are [row, pos, head, d_head]."""

    def __init__(self, keys: Keys, layer: int, start: int) -> None:
        self.keys, self.layer = keys, layer
        self.past_keys = torch.empty(0, start)  # TransformerLens reads the start of the rows from its second size

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = self.keys.update(k.transpose(1, 2), v.transpose(1, 2), self.layer)
        return k.transpose(1, 2), v.transpose(1, 2)
