"""``open_weights``: the weights that static scores need, read from safetensors piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import HfApi, snapshot_download
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN

from mechheads.model.core import LayerWeights, describe
from mechheads.model.sources import ModelSourceError
from mechheads.model.stored_tensors import DTYPES, INDEX, WHOLE, TensorFolder, TensorRepo, TensorStore
from mechheads.model.stored_weight_layouts import (
    LAYOUTS,
    StoredSizes,
    WeightLayout,
    read_config,
    read_tokenizer,
)

_SMALL_FILES = ("config.json", "tokenizer*", "vocab.*", "merges.txt", "special_tokens_map.json", "added_tokens.json")


def open_weights(folder_or_repo: str | Path, *, revision: str | None = None) -> StoredWeights:
    """Open the weights of a model, without loading it, for scores that need only weights (``mh.relation_scores``).

    The model may be much larger than memory: each tensor is read when it is needed, and only the unembedding is kept.

    Args:
        folder_or_repo: a local folder with config.json and safetensors, in one file or in shards with an index;
            or a hub name, of which only the config, the tokenizer and the bytes that are needed are downloaded.
        revision: a branch, tag or commit; for names on the hub only.

    Raises:
        ModelSourceError: a ValueError, raised before anything is scored: if a folder has no config.json or
            safetensors, a shard is missing or damaged, the model type is not known, or a tensor is missing, has
            another shape than config.json says, or is not float32, float16 or bfloat16.

    >>> from mechheads.model.sources import default_folder
    >>> weights = mh.labels.open_weights(default_folder())
    >>> weights.n_layers, weights.n_heads, weights.dtype
    (30, 9, torch.float32)
    >>> bool(torch.equal(weights.W_O[23], model.W_O[23]))
    True
    """
    name, path = str(folder_or_repo), Path(folder_or_repo).expanduser()
    if not path.exists() and not isinstance(folder_or_repo, Path):
        return _open_repo(name, revision)
    if revision is not None:
        raise ModelSourceError(f"revision {revision!r} is for names on the hub; {name!r} is a folder, so leave it out")
    if not path.is_dir():
        raise ModelSourceError(
            f"folder_or_repo {name!r} is not a folder; give a folder with config.json and {WHOLE} or {INDEX}"
        )
    return StoredWeights(*read_config(path, name), TensorFolder(path, name), name, None, read_tokenizer(path, name))


def _open_repo(name: str, revision: str | None) -> StoredWeights:
    try:
        about = HfApi().model_info(name, revision=revision)
        small = Path(snapshot_download(about.id, revision=about.sha, allow_patterns=list(_SMALL_FILES)))
        config = read_config(small, name)
        return StoredWeights(*config, TensorRepo(about.id, about.sha), name, about.sha, read_tokenizer(small, name))
    except ModelSourceError:
        raise
    except Exception as error:
        raise ModelSourceError(
            f"folder_or_repo {name!r} is not a local folder, and its weights cannot be read from the hub: {error}"
        ) from error


class StoredWeights:
    """The weights of a model on disk or on the hub; made by ``mh.labels.open_weights``.

    Attributes:
        name, revision: where they come from.
        tokenizer: the model's tokenizer; None if none is stored with the weights.
        n_layers, n_heads, n_kv_heads, d_head, d_model, d_vocab: the model's sizes.
        dtype: the dtype of the stored embedding; ``device`` is the CPU.
        bytes_read: how many bytes of tensors have been read so far.
        piece_bytes: how many bytes of a matrix are read and converted at a time (64 MB).
        W_V, W_O: the weights of each layer, one entry for each *query* head, in float32, without any norm folded in.
            They are read from the file each time: ``W_V[l]`` is [head, d_model, d_head] and ``W_O[l]``
            [head, d_head, d_model].

    Reading a tensor that contains NaN or infinite numbers raises a ``ValueError`` that names it.
    """

    device = torch.device("cpu")

    def __init__(
        self,
        config: transformers.PreTrainedConfig,
        layout: WeightLayout,
        store: TensorStore,
        name: str,
        revision: str | None,
        tokenizer: Any,
    ) -> None:
        if f"{layout.embedding}.weight" in store.tensors:
            layout = replace(layout, trunk="")
        self.name, self.revision, self.tokenizer = name, revision, tokenizer
        self.bytes_read, self.piece_bytes = 0, 2**26
        self._config, self._layout, self._store = config, layout, store
        sizes = StoredSizes.of(config)
        self._tied = config.tie_word_embeddings and f"{layout.unembedding}.weight" not in store.tensors
        self._mlp_bias = layout.norm == "LN" or getattr(config, "mlp_bias", False)
        for tensor, shape in layout.needed(sizes, tied=self._tied, mlp_bias=self._mlp_bias):
            _check(store, tensor, shape, name, config.model_type)
        self.n_layers, self.n_heads, self.n_kv_heads = sizes.n_layers, sizes.n_heads, sizes.n_kv_heads
        self.d_head, self.d_model, self.d_vocab = sizes.d_head, sizes.d_model, sizes.d_vocab
        self.dtype = store.tensors[self._embedding].dtype

    # Created on every access: stored, they would form a reference cycle and keep gigabytes of W_U in memory.
    @property
    def W_V(self) -> LayerWeights:
        return LayerWeights(self._values, self.n_layers)

    @property
    def W_O(self) -> LayerWeights:
        return LayerWeights(self._outputs, self.n_layers)

    def embed(self, ids: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """Rows of W_E in float32. No other rows are read; on the hub, short gaps between rows are read too.

        Raises:
            ValueError: if an id is outside the vocabulary.
        """
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self.d_vocab:
            raise ValueError(f"ids contains token ids outside 0..{self.d_vocab - 1}")
        wanted, back = torch.unique(ids, return_inverse=True)
        gap = self._store.gap // (self.d_model * self.dtype.itemsize)
        breaks = ((wanted.diff() > gap + 1).nonzero()[:, 0] + 1).tolist()
        runs = [(int(run[0]), int(run[-1]) + 1) for run in wanted.tensor_split(breaks) if len(run)]
        if not runs:
            return torch.empty(0, self.d_model, dtype=torch.float32)
        read = torch.cat([torch.arange(start, stop) for start, stop in runs])
        rows = self._rows(self._embedding, runs)[torch.searchsorted(read, wanted)]
        return _finite(rows, self._embedding).float()[back]

    def unembedding(self, start: int, stop: int) -> Float[Tensor, "d_model columns"]:
        """Columns start..stop of W_U in float32; if embedding and unembedding are tied, rows of W_E, transposed.

        The first call reads all of W_U and keeps it in its stored dtype.

        Raises:
            ValueError: if the columns are outside the vocabulary.
        """
        if not 0 <= start <= stop <= self.d_vocab:
            raise ValueError(f"columns {start}..{stop} are outside the vocabulary 0..{self.d_vocab}")
        return self._unembedding[start:stop].float().T

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """MLP_0(ln2_0(x)) in float32, without the residual. Block 0's MLP is read each time, a piece at a time."""
        layout = self._layout
        activation = ACT2FN[getattr(self._config, layout.activation)]
        with torch.no_grad():
            normed = self._norm(x.float(), layout.mlp_norm)
            halves = (1 + layout.gated) // len(layout.mlp_in)
            gate, *rest = (half for module in layout.mlp_in for half in self._linear(normed, module).chunk(halves, -1))
            return self._linear(activation(gate) * rest[0] if rest else activation(gate), layout.mlp_out)

    def attention_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of the norm before a layer's attention."""
        norm = self._layout.attention_norm
        return LayerWeights(lambda at: self._scale(self._layout.name(at, norm)), self.n_layers)[layer]

    def attention_out_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of a norm after a layer's attention; ones if there is none."""
        norm = self._layout.attention_out_norm
        if norm is None:
            return torch.ones(self.d_model, dtype=torch.float32)
        return LayerWeights(lambda at: self._scale(self._layout.name(at, norm)), self.n_layers)[layer]

    def final_scale(self) -> Float[Tensor, " d_model"]:
        """The scale of the final norm."""
        return self._scale(f"{self._layout.trunk}{self._layout.final_norm}.weight")

    def provenance(self) -> dict[str, Any]:
        """What a result records about the weights: name, revision, sizes, dtype, library versions."""
        libraries = ("safetensors", "transformers", "torch")
        return describe(self, libraries, backend="safetensors", normalization=self._layout.norm)

    def __repr__(self) -> str:
        return (
            f"StoredWeights({self.name!r}: {self.n_layers} layers x {self.n_heads} heads "
            f"({self.n_kv_heads} key/value), d_model {self.d_model}, {self.provenance()['dtype']})"
        )

    @property
    def _embedding(self) -> str:
        return f"{self._layout.trunk}{self._layout.embedding}.weight"

    @cached_property
    def _unembedding(self) -> Float[Tensor, "d_vocab d_model"]:
        tensor = self._embedding if self._tied else f"{self._layout.unembedding}.weight"
        stored = self._store.tensors[tensor]
        whole = torch.empty(stored.shape, dtype=stored.dtype)
        for start, stop in stored.pieces(self.piece_bytes):
            whole[start:stop] = self._read(tensor, start, stop)
        return whole

    def _values(self, layer: int) -> Float[Tensor, "head d_model d_head"]:
        layout, size = self._layout, self.n_kv_heads * self.d_head
        tensor = layout.name(layer, layout.value)
        if layout.fused == "each head":
            rows = self._read(tensor).view(self.n_heads, 3, self.d_head, self.d_model)[:, 2]
        elif layout.transposed:
            rows = self._read(tensor).T[-size:]
        else:
            rows = self._read(tensor, self._store.tensors[tensor].shape[0] - size)
        stored = rows.float().reshape(self.n_kv_heads, self.d_head, self.d_model).transpose(1, 2)
        return stored.repeat_interleave(self.n_heads // self.n_kv_heads, dim=0)

    def _outputs(self, layer: int) -> Float[Tensor, "head d_head d_model"]:
        weight = self._read(self._layout.name(layer, self._layout.output)).float()
        columns = weight if self._layout.transposed else weight.T
        return columns.unflatten(0, (self.n_heads, self.d_head))

    def _scale(self, tensor: str) -> Float[Tensor, " d_model"]:
        return self._read(tensor).float() + self._layout.norm_offset

    def _norm(self, x: Float[Tensor, "*batch d_model"], module: str) -> Float[Tensor, "*batch d_model"]:
        """Apply the norm of that name in block 0."""
        layout = self._layout
        scale, epsilon = self._scale(layout.name(0, module)), getattr(self._config, layout.epsilon)
        if layout.norm == "RMS":
            return functional.rms_norm(x, scale.shape, scale, epsilon)
        return functional.layer_norm(x, scale.shape, scale, self._read(layout.name(0, module, "bias")).float(), epsilon)

    def _linear(self, x: Float[Tensor, "*batch inputs"], module: str) -> Float[Tensor, "*batch outputs"]:
        """Apply the matrix of that name in block 0, and its bias if it has one."""
        tensor = self._layout.name(0, module)
        stored = self._store.tensors[tensor]
        if self._layout.transposed:
            out = x @ self._read(tensor).float()
        else:
            out = x.new_empty(*x.shape[:-1], stored.shape[0])
            for start, stop in stored.pieces(self.piece_bytes):
                out[..., start:stop] = x @ self._read(tensor, start, stop).float().T
        return out + self._read(self._layout.name(0, module, "bias")).float() if self._mlp_bias else out

    def _read(self, tensor: str, start: int = 0, stop: int | None = None) -> Tensor:
        """Some rows of a tensor in its stored dtype."""
        stop = self._store.tensors[tensor].shape[0] if stop is None else stop
        return _finite(self._rows(tensor, [(start, stop)]), tensor)

    def _rows(self, tensor: str, runs: Sequence[tuple[int, int]]) -> Tensor:
        rows = self._store.read(tensor, runs)
        self.bytes_read += rows.nbytes
        return rows


def _check(store: TensorStore, tensor: str, shape: tuple[int, ...], name: str, kind: str) -> None:
    stored = store.tensors.get(tensor)
    if stored is None:
        raise ModelSourceError(
            f"the weights of {name!r} lack the tensor {tensor}, which a model of model_type {kind!r} has. Check if a "
            f"shard or its entry in {INDEX} is missing, or if the weights are quantised. Known model types: "
            f"{', '.join(LAYOUTS)}"
        )
    if stored.kind not in DTYPES:
        raise ModelSourceError(
            f"the tensor {tensor} of {name!r} is stored as {stored.kind}; open_weights reads {', '.join(DTYPES)}, "
            "not quantised weights"
        )
    if stored.shape != shape:
        raise ModelSourceError(
            f"the tensor {tensor} of {name!r} has shape {list(stored.shape)}; config.json implies {list(shape)}"
        )


def _finite(read: Tensor, tensor: str) -> Tensor:
    if not torch.isfinite(read).all():
        raise ValueError(f"the tensor {tensor} contains NaN or infinite numbers, so the weights are damaged")
    return read
