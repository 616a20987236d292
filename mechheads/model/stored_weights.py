"""``open_weights``: the weights that static scores need, read from the files of a model that is not loaded.

transformers makes the model with all its weights on disk, as it does for ``mh.load(..., max_memory=)``, and accelerate
knows where each of them is. TransformerLens is not asked: here its splits of fused projections would need whole layers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from mechheads.model.backends.on_disk import stored
from mechheads.model.core import LayerWeights, describe
from mechheads.model.sources import ModelSourceError, Pretrained, load_pretrained
from mechheads.model.sources.placing import ON_DISK, find_blocks

_DTYPES = (torch.float32, torch.float16, torch.bfloat16)
_PIECE = 4096
"""How many rows of a matrix are checked at a time: for all of a large W_U, this would take gigabytes."""


@dataclass(frozen=True)
class WeightLayout:
    """What static scores read, by the names of modules in transformers; all but the first are inside a block.

    Attributes:
        final_norm: the norm after the last block.
        attention_norm, mlp_norm: the norms before attention and before the MLP.
        attention_out_norm: the norm after attention, if there is one.
        value, output: the modules that hold W_V and W_O.
        fused: whether V comes after Q and K: of all heads, or of each head.
        norm_offset: what is added to the stored scale of a norm.
    """

    final_norm: str = "norm"
    attention_norm: str = "input_layernorm"
    mlp_norm: str = "post_attention_layernorm"
    attention_out_norm: str | None = None
    value: str = "self_attn.v_proj"
    output: str = "self_attn.o_proj"
    fused: Literal["all heads", "each head"] = "all heads"
    norm_offset: float = 0.0


_LLAMA = WeightLayout()
_GEMMA_2 = WeightLayout(
    attention_out_norm="post_attention_layernorm", mlp_norm="pre_feedforward_layernorm", norm_offset=1.0
)
LAYOUTS = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
    "gemma": replace(_LLAMA, norm_offset=1.0),
    "gemma2": _GEMMA_2,
    "gemma3_text": _GEMMA_2,
    "phi3": replace(_LLAMA, value="self_attn.qkv_proj"),
    "phi": WeightLayout(final_norm="final_layernorm", mlp_norm="input_layernorm", output="self_attn.dense"),
    "gpt2": WeightLayout(
        final_norm="ln_f", attention_norm="ln_1", mlp_norm="ln_2", value="attn.c_attn", output="attn.c_proj"
    ),
    "gpt_neox": WeightLayout(
        final_norm="final_layer_norm",
        value="attention.query_key_value",
        output="attention.dense",
        fused="each head",
    ),
}
"""Each known ``model_type`` and the layout of its weights."""


def open_weights(folder_or_repo: str | Path, *, revision: str | None = None) -> StoredWeights:
    """Open the weights of a model, without loading it, for scores that need only weights (``mh.relation_scores``).

    The model may be much larger than memory: each tensor is read when it is needed, and only the unembedding is kept.

    Args:
        folder_or_repo: what ``mh.load`` takes, with weights in safetensors; files from the hub are downloaded first.
        revision: a branch, tag or commit; for names on the hub only.

    Raises:
        ModelSourceError: a ValueError, if there is no such model, it is damaged, or its ``model_type`` is not known.

    >>> from mechheads.model.sources import default_folder
    >>> weights = mh.labels.open_weights(default_folder())
    >>> weights.n_layers, weights.n_heads, weights.dtype
    (30, 9, torch.float32)
    >>> bool(torch.equal(weights.W_O[23], model.W_O[23]))
    True
    """
    return StoredWeights(
        load_pretrained(
            folder_or_repo,
            revision=revision,
            dtype=torch.float32,
            device="cpu",
            trust_remote_code=False,
            room=ON_DISK,
        )
    )


class StoredWeights:
    """The weights of a model on disk; made by ``mh.labels.open_weights``.

    Attributes:
        name, revision: where they come from.
        tokenizer: the model's tokenizer.
        n_layers, n_heads, n_kv_heads, d_head, d_model, d_vocab: the model's sizes.
        dtype: the dtype of the stored embedding; ``device`` is the CPU.
        bytes_read: how many bytes of tensors have been read so far.
        W_V, W_O: the weights of each layer, one entry for each *query* head, in float32, without any norm folded in.
            They are read from the file each time: ``W_V[l]`` is [head, d_model, d_head] and ``W_O[l]``
            [head, d_head, d_model].

    Reading a tensor that contains NaN or infinite numbers, or that is quantised, raises a ``ValueError`` that names it.
    """

    device = torch.device("cpu")

    def __init__(self, source: Pretrained) -> None:
        model: Any = source.model
        config, name = model.config, source.name
        if config.model_type not in LAYOUTS:
            raise ModelSourceError(
                f"folder_or_repo {name!r} is of model_type {config.model_type!r}, for which open_weights does not know "
                f"where V and O are. Known model types: {', '.join(LAYOUTS)}. Use mh.load instead; if the model does "
                "not fit in memory, with max_memory"
            )
        self.name, self.revision, self.tokenizer, self.bytes_read = name, source.revision, source.tokenizer, 0
        self._model, self._layout = model, LAYOUTS[config.model_type]
        self._blocks: Any = find_blocks(model, config, name, "open_weights")[1]
        self.n_layers, self.n_heads, self.d_vocab = len(self._blocks), config.num_attention_heads, config.vocab_size
        self.n_kv_heads = getattr(config, "num_key_value_heads", None) or self.n_heads
        self.d_model = config.hidden_size
        self.d_head = getattr(config, "head_dim", None) or self.d_model // self.n_heads
        self._read_as_stored()
        self.dtype = stored(model.get_input_embeddings()).dtype

    # Created on every access: stored, they would form a reference cycle and keep gigabytes of W_U in memory.
    @property
    def W_V(self) -> LayerWeights:
        return LayerWeights(self._values, self.n_layers)

    @property
    def W_O(self) -> LayerWeights:
        return LayerWeights(self._outputs, self.n_layers)

    def embed(self, ids: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """Rows of W_E in float32. No other rows are read.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.d_vocab:
            raise ValueError(f"ids contains token ids outside 0..{self.d_vocab - 1}")
        embedding = self._model.get_input_embeddings()
        return self._checked(embedding, stored(embedding)[ids]).float()

    def unembedding(self, start: int, stop: int) -> Float[Tensor, "d_model columns"]:
        """Columns start..stop of W_U in float32; if embedding and unembedding are tied, rows of W_E, transposed.

        The first call reads all of W_U and keeps it in its stored dtype.

        Raises:
            ValueError: if the columns are outside the vocabulary.
        """
        if not 0 <= start <= stop <= self.d_vocab:
            raise ValueError(f"columns {start}..{stop} are outside the vocabulary 0..{self.d_vocab}")
        return self._unembedding[start:stop].float().T

    @torch.no_grad()
    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """MLP_0(ln2_0(x)) in float32, without the residual. Block 0's MLP is read each time, a matrix at a time."""
        norm, mlp = self._first_mlp
        self.bytes_read += sum(w.numel() * self.dtype.itemsize for part in (norm, mlp) for w in part.parameters())
        return mlp(norm(x.float()))

    def attention_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of the norm before a layer's attention."""
        return self._scale(layer, self._layout.attention_norm)

    def attention_out_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of a norm after a layer's attention; ones if there is none."""
        norm = self._layout.attention_out_norm
        return torch.ones(self.d_model, dtype=torch.float32) if norm is None else self._scale(layer, norm)

    def final_scale(self) -> Float[Tensor, " d_model"]:
        """The scale of the final norm."""
        return self._scale_of(self._final_norm)

    def provenance(self) -> dict[str, Any]:
        """What a result records about the weights: name, revision, sizes, dtype, library versions."""
        normalization = "LN" if isinstance(self._final_norm, nn.LayerNorm) else "RMS"
        return describe(
            self, ("safetensors", "transformers", "torch"), backend="safetensors", normalization=normalization
        )

    def __repr__(self) -> str:
        return (
            f"StoredWeights({self.name!r}: {self.n_layers} layers x {self.n_heads} heads "
            f"({self.n_kv_heads} key/value), d_model {self.d_model}, {self.provenance()['dtype']})"
        )

    @property
    def _first_mlp(self) -> tuple[nn.Module, nn.Module]:
        """The norm before the first MLP, and the MLP. accelerate's hooks read each of their weights when it is used."""
        return self._blocks[0].get_submodule(self._layout.mlp_norm), self._blocks[0].mlp

    @property
    def _final_norm(self) -> nn.Module:
        return self._model.base_model.get_submodule(self._layout.final_norm)

    def _read_as_stored(self) -> None:
        """Convert only the first MLP to float32 when it is read: a whole W_U would take twice its memory."""
        for name, part in self._model.named_modules():
            for weight, _ in part.named_parameters(name, recurse=False):
                part._hf_hook.weights_map.dataset.index[weight].pop("dtype", None)
        for part in self._first_mlp:
            part.float()

    @cached_property
    def _unembedding(self) -> Float[Tensor, "d_vocab d_model"]:
        unembedding = self._model.get_output_embeddings()
        return self._checked(unembedding, stored(unembedding))

    def _values(self, layer: int) -> Float[Tensor, "head d_model d_head"]:
        part = self._blocks[layer].get_submodule(self._layout.value)
        rows = _matrix(part)
        if self._layout.fused == "each head":
            rows = rows.view(self.n_heads, 3, self.d_head, self.d_model)[:, 2]
        else:
            rows = rows[-self.n_kv_heads * self.d_head :]
        each = self._checked(part, rows).float().reshape(self.n_kv_heads, self.d_head, self.d_model).transpose(1, 2)
        return each.repeat_interleave(self.n_heads // self.n_kv_heads, dim=0)

    def _outputs(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        part = self._blocks[layer].get_submodule(self._layout.output)
        return self._checked(part, _matrix(part)).float().T.unflatten(0, (self.n_heads, self.d_head))

    def _scale(self, layer: int, norm: str) -> Float[Tensor, " d_model"]:
        scales = LayerWeights(lambda at: self._scale_of(self._blocks[at].get_submodule(norm)), self.n_layers)
        return scales[layer]

    def _scale_of(self, norm: nn.Module) -> Float[Tensor, " d_model"]:
        return self._checked(norm, stored(norm)).float() + self._layout.norm_offset

    def _checked(self, module: nn.Module, read: Tensor) -> Tensor:
        """What was read of a module's weight, after a check of its numbers."""
        name = next(name for name, part in self._model.named_modules() if part is module)
        if read.dtype not in _DTYPES:
            raise ModelSourceError(
                f"the tensor {name}.weight of {self.name!r} is stored as {read.dtype}; open_weights reads "
                f"{', '.join(map(str, _DTYPES))}, not quantised weights"
            )
        if not all(torch.isfinite(rows).all() for rows in read.split(_PIECE)):
            raise ValueError(f"the tensor {name}.weight contains NaN or infinite numbers, so the weights are damaged")
        self.bytes_read += read.nbytes
        return read


def _matrix(module: nn.Module) -> Float[Tensor, "outputs inputs"]:
    """The matrix of a module, as a linear layer stores it."""
    return stored(module).T if isinstance(module, Conv1D) else stored(module)
