"""The names and layouts of stored weights: one entry for each known ``model_type`` of config.json."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import transformers

from mechheads.files import text as text_files
from mechheads.model.sources import ModelSourceError

Shape = tuple[int, ...]
_VOCABULARIES = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt")


@dataclass(frozen=True)
class StoredSizes:
    """The sizes of a model that determine the shapes of its stored tensors."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    d_model: int
    d_mlp: int
    d_vocab: int

    @classmethod
    def of(cls, config: transformers.PreTrainedConfig) -> StoredSizes:
        n_heads, d_model = config.num_attention_heads, config.hidden_size
        return cls(
            n_layers=config.num_hidden_layers,
            n_heads=n_heads,
            n_kv_heads=getattr(config, "num_key_value_heads", None) or n_heads,
            d_head=getattr(config, "head_dim", None) or d_model // n_heads,
            d_model=d_model,
            d_mlp=getattr(config, "intermediate_size", None) or getattr(config, "n_inner", None) or 4 * d_model,
            d_vocab=config.vocab_size,
        )


@dataclass(frozen=True)
class WeightLayout:
    """The names of a model's modules in a checkpoint, without ``.weight`` or ``.bias``; ``{}`` is the layer number.

    Attributes:
        trunk: the prefix of every name but the unembedding's; a checkpoint may omit it.
        embedding, unembedding, final_norm: modules of the whole model.
        block: the prefix of names inside a layer.
        attention_norm, mlp_norm: the norms before the attention and before the MLP of a layer.
        attention_out_norm: the norm after attention, if there is one.
        value, output: the modules that hold W_V and W_O.
        fused: how V is stored: ``"no"`` as a separate tensor, ``"all heads"`` after the rows of all Q and K,
            ``"each head"`` after Q and K of each head.
        mlp_in, mlp_out: the MLP's modules. For a gated MLP, ``mlp_in`` is the gate and then the other half, or both
            in one tensor.
        gated: whether the MLP multiplies by a gate.
        norm: root mean square or layer norm; a model type with layer norms has biases in all its MLPs and norms.
        norm_offset: what is added to the stored scale of a norm.
        transposed: whether matrices are stored as [in, out] instead of [out, in].
        epsilon, activation: the names in config.json of the norm's epsilon and of the MLP's activation.
    """

    trunk: str = "model."
    embedding: str = "embed_tokens"
    unembedding: str = "lm_head"
    final_norm: str = "norm"
    block: str = "layers.{}."
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_out_norm: str | None = None
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    fused: Literal["no", "all heads", "each head"] = "no"
    mlp_in: tuple[str, ...] = ("mlp.gate_proj", "mlp.up_proj")
    mlp_out: str = "mlp.down_proj"
    gated: bool = True
    norm: Literal["RMS", "LN"] = "RMS"
    norm_offset: float = 0.0
    transposed: bool = False
    epsilon: str = "rms_norm_eps"
    activation: str = "hidden_act"

    def needed(self, sizes: StoredSizes, *, tied: bool, mlp_bias: bool) -> Iterator[tuple[str, Shape]]:
        """Every tensor that static scores read, with its shape.

        Args:
            tied: whether the embedding is also the unembedding.
            mlp_bias: whether the MLP has biases.
        """
        d_model, vocabulary = sizes.d_model, (sizes.d_vocab, sizes.d_model)
        values = sizes.n_kv_heads * sizes.d_head
        heads = sizes.n_heads * sizes.d_head
        rows = {"no": values, "all heads": heads + 2 * values, "each head": 3 * heads}[self.fused]
        yield f"{self.trunk}{self.embedding}.weight", vocabulary
        if not tied:
            yield f"{self.unembedding}.weight", vocabulary
        for layer in range(sizes.n_layers):
            for norm in (self.attention_norm, self.attention_out_norm):
                if norm is not None:
                    yield self.name(layer, norm), (d_model,)
            yield self.name(layer, self.value), self._matrix(rows, d_model)
            yield self.name(layer, self.output), self._matrix(d_model, heads)
        yield f"{self.trunk}{self.final_norm}.weight", (d_model,)
        yield self.name(0, self.mlp_norm), (d_model,)
        if self.norm == "LN":
            yield self.name(0, self.mlp_norm, "bias"), (d_model,)
        width = (1 + self.gated) * sizes.d_mlp // len(self.mlp_in)
        for module, outputs, inputs in (
            *((name, width, d_model) for name in self.mlp_in),
            (self.mlp_out, d_model, sizes.d_mlp),
        ):
            yield self.name(0, module), self._matrix(outputs, inputs)
            if mlp_bias:
                yield self.name(0, module, "bias"), (outputs,)

    def name(self, layer: int, module: str, kind: Literal["weight", "bias"] = "weight") -> str:
        """The full name of a tensor inside a layer."""
        return f"{self.trunk}{self.block.format(layer)}{module}.{kind}"

    def _matrix(self, outputs: int, inputs: int) -> Shape:
        return (inputs, outputs) if self.transposed else (outputs, inputs)


_LLAMA = WeightLayout()
_LAYER_NORMED = replace(_LLAMA, gated=False, norm="LN", epsilon="layer_norm_eps")
_GEMMA_2 = replace(
    _LLAMA,
    attention_out_norm="post_attention_layernorm",
    mlp_norm="pre_feedforward_layernorm",
    norm_offset=1.0,
    activation="hidden_activation",
)

LAYOUTS = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": replace(_LLAMA, norm_offset=1.0),
    "gemma2": _GEMMA_2,
    "gemma3_text": _GEMMA_2,
    "phi3": replace(_LLAMA, value="self_attn.qkv_proj", fused="all heads", mlp_in=("mlp.gate_up_proj",)),
    "phi": replace(
        _LAYER_NORMED,
        final_norm="final_layernorm",
        mlp_norm="input_layernorm",
        output="self_attn.dense",
        mlp_in=("mlp.fc1",),
        mlp_out="mlp.fc2",
    ),
    "gpt2": replace(
        _LAYER_NORMED,
        trunk="transformer.",
        embedding="wte",
        final_norm="ln_f",
        block="h.{}.",
        transposed=True,
        attention_norm="ln_1",
        value="attn.c_attn",
        fused="all heads",
        output="attn.c_proj",
        mlp_norm="ln_2",
        mlp_in=("mlp.c_fc",),
        mlp_out="mlp.c_proj",
        epsilon="layer_norm_epsilon",
        activation="activation_function",
    ),
    "gpt_neox": replace(
        _LAYER_NORMED,
        trunk="gpt_neox.",
        embedding="embed_in",
        unembedding="embed_out",
        final_norm="final_layer_norm",
        value="attention.query_key_value",
        fused="each head",
        output="attention.dense",
        mlp_in=("mlp.dense_h_to_4h",),
        mlp_out="mlp.dense_4h_to_h",
    ),
}
"""Each known ``model_type`` and the layout of its weights."""


def read_config(folder: Path, name: str) -> tuple[transformers.PreTrainedConfig, WeightLayout]:
    """The config of a model in a folder, and the layout of its weights.

    Raises:
        ModelSourceError: if there is no config.json, it is not a model's config, or its ``model_type`` is not known.
    """
    if not (folder / "config.json").is_file():
        raise ModelSourceError(f"folder_or_repo {name!r} is not a model: it has no config.json")
    kind = read_json(folder / "config.json", name).get("model_type")
    if not isinstance(kind, str) or kind not in LAYOUTS:
        raise ModelSourceError(
            f"folder_or_repo {name!r} is of model_type {kind!r}, for which open_weights has no tensor names (such as "
            f"{_LLAMA.name(0, _LLAMA.value)} of Llama). Known model types: {', '.join(LAYOUTS)}. If the model fits in "
            "memory, use mh.load instead"
        )
    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        raise ModelSourceError(f"folder_or_repo {name!r}: config.json does not describe a model: {error}") from error
    return config, LAYOUTS[kind]


def read_json(file: Path, name: str) -> dict[str, Any]:
    """The object in a JSON file of a model.

    Raises:
        ModelSourceError: if the file is not JSON, or does not contain an object.
    """
    try:
        content = text_files.read_json(file)
    except ValueError as error:
        raise ModelSourceError(f"folder_or_repo {name!r}: {error}") from error
    if not isinstance(content, dict):
        raise ModelSourceError(f"folder_or_repo {name!r}: {file.name} does not contain a JSON object")
    return content


def read_tokenizer(folder: Path, name: str) -> Any:
    """The tokenizer of a model in a folder; None if it has none.

    Raises:
        ModelSourceError: if the tokenizer is damaged.
    """
    if not any((folder / file).is_file() for file in _VOCABULARIES):
        return None
    try:
        return transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ModelSourceError(
                f"the tokenizer of {name!r} needs its own Python code, which open_weights never runs. Read that code; "
                "if you trust it, use mh.load with trust_remote_code=True"
            ) from error
        raise ModelSourceError(f"the tokenizer of {name!r} cannot be read: {error}") from error
