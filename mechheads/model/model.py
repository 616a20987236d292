"""``Model``: the same interface to every TransformerLens model."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads._version import __version__
from mechheads.model.backends.base import Backend, Layout, Sizes, Weight
from mechheads.model.backends.readable import check_readable
from mechheads.model.backends.temporary_changes import alone

if TYPE_CHECKING:
    from mechheads.prompts.prompts import Prompts
    from mechheads.prompts.tokens import PromptLike, Tokens
    from mechheads.runs.head_cache import HeadCache


class LayerWeights(Sequence[Tensor]):
    """One kind of weight for every layer, computed when indexed: ``model.W_O[9]`` is [head, d_head, d_model]."""

    def __init__(self, get: Callable[[int], Tensor], n_layers: int) -> None:
        self._get, self._n_layers = get, n_layers

    def __len__(self) -> int:
        return self._n_layers

    def __getitem__(self, layer: int) -> Tensor:  # type: ignore[override]
        if not -self._n_layers <= layer < self._n_layers:
            raise IndexError(f"layer {layer} is out of range: this model has layers 0..{self._n_layers - 1}")
        return self._get(layer % self._n_layers)


class Model:
    """A language model with its sizes, weights and cached runs; made by ``mh.load`` or ``mh.wrap``.

    Attributes:
        model: the TransformerLens object, which is never changed.
        tokenizer: its tokenizer, or None.
        name, revision: where the model comes from.
        n_layers, n_heads, n_kv_heads, d_head, d_model, d_vocab, n_ctx: its sizes. With grouped-query
            attention several query heads share a key/value head, and ``n_kv_heads < n_heads``.
        W_E, W_U: embedding [d_vocab, d_model] and unembedding [d_model, d_vocab].
        W_Q, W_K, W_V, W_O: the weights of each layer: ``W_Q[l]``, ``W_K[l]`` and ``W_V[l]`` are
            [head, d_model, d_head], ``W_O[l]`` is [head, d_head, d_model]. There is one entry for each *query* head,
            without any norm folded in.

    >>> model.n_layers, model.n_heads, model.n_kv_heads
    (30, 9, 3)
    >>> model.W_V[23].shape
    torch.Size([9, 576, 64])
    """

    def __init__(self, backend: Backend, name: str, revision: str | None = None, tokenizer: Any = None) -> None:
        check_readable(backend)
        self.backend = backend
        self.name, self.revision = name, revision
        self.tokenizer = backend.tokenizer if tokenizer is None else tokenizer
        sizes: Sizes = backend.sizes
        self.n_layers, self.n_heads, self.n_kv_heads = sizes.n_layers, sizes.n_heads, sizes.n_kv_heads
        self.d_head, self.d_model = sizes.d_head, sizes.d_model
        self.d_vocab, self.n_ctx = sizes.d_vocab, sizes.n_ctx
        if not backend.carries_hooks:
            backend.layout = self.layout

    @property
    def model(self) -> Any:
        return self.backend.module

    @property
    def layout(self) -> Layout:
        """How the engine stacks changed copies of a run on this model, chosen once; see ``engine/row_layout.py``."""
        from mechheads.engine.row_layout import choose_layout

        if self.backend.layout is None:
            self.backend.layout = choose_layout(self)
        return self.backend.layout

    @property
    def parallel_mlps(self) -> bool:
        """Whether a block's MLP runs in parallel with its heads and does not read what they write."""
        return bool(getattr(self.model.cfg, "parallel_attn_mlp", False))

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return self.backend.W_E

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return self.backend.W_U

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"] | None:
        return self.backend.b_U

    @property
    def W_Q(self) -> LayerWeights:
        return self._weights("Q")

    @property
    def W_K(self) -> LayerWeights:
        return self._weights("K")

    @property
    def W_V(self) -> LayerWeights:
        return self._weights("V")

    @property
    def W_O(self) -> LayerWeights:
        return self._weights("O")

    def b_O(self, layer: int) -> Float[Tensor, " d_model"] | None:
        """The bias added to a layer's attention output after the heads; None if there is none."""
        return self.backend.bias("O", layer)

    def _weights(self, kind: Weight) -> LayerWeights:
        return LayerWeights(lambda layer: self.backend.weight(kind, layer), self.n_layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.backend.parameter.dtype

    @property
    def device(self) -> torch.device:
        return self.backend.parameter.device

    @property
    def alike_up_to(self) -> int:
        """The largest prompt length up to which runs of different lengths are comparable."""
        return self.backend.alike_up_to

    def hook_name(self, site: str, layer: int) -> str:
        """The TransformerLens name of a hook: ``hook_name("z", 9)`` is ``blocks.9.attn.hook_z``."""
        return self.backend.hook_name(site, layer)

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """MLP_0(ln2_0(x)), without the residual: an embedding as later layers read it."""
        return self.backend.first_mlp(x)

    def embed(self, ids: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """The rows of W_E for some tokens."""
        return self.W_E[ids]

    def unembedding(self, start: int, stop: int) -> Float[Tensor, "d_model columns"]:
        """The columns start..stop of W_U in float32."""
        return self.W_U[:, start:stop].float()

    def attention_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of the norm before a layer's attention; ones if it is folded into the weights."""
        return self.backend.scale(layer)

    def attention_out_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of a norm after a layer's attention, as in Gemma 2 and 3; ones if there is none."""
        return self.backend.scale(layer, "ln1_post")

    def final_scale(self) -> Float[Tensor, " d_model"]:
        """The scale of the final norm; ones if it is folded into the weights."""
        return self.backend.scale(None)

    def unembed(self, final: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """The logits of states after the final norm."""
        return self.backend.unembed(final)

    @property
    def chat_template(self) -> str | None:
        """The chat template of the tokenizer; None if it has none."""
        return getattr(self.tokenizer, "chat_template", None)

    @alone
    def cache(
        self,
        prompts: Prompts | Tokens | Sequence[PromptLike],
        *,
        sites: Sequence[str] = ("z", "pattern"),
        budget: int | str | None = None,
        progress: bool = True,
    ) -> HeadCache:
        """Run prompts once and keep every head's pattern and output; see ``HeadCache``.

        >>> run = model.cache(["The capital of France is"])
        >>> run.z["L23H4"].shape
        torch.Size([1, 5, 64])
        """
        from mechheads.runs.head_cache import HeadCache

        return HeadCache.run(self, prompts, sites=sites, budget=budget, progress=progress)

    def provenance(self) -> dict[str, Any]:
        """What a result records about the model: name, revision, sizes, dtype, library versions."""
        return describe(
            self,
            ("transformer-lens", "transformers", "torch"),
            backend=type(self.model).__name__,
            normalization=self.model.cfg.normalization_type,
            compatibility_mode=bool(getattr(self.model, "compatibility_mode", False)),
        )

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r}: {self.n_layers} layers x {self.n_heads} heads "
            f"({self.n_kv_heads} key/value), d_model {self.d_model}, {type(self.model).__name__})"
        )


def describe(weights: Any, libraries: Sequence[str], **about: Any) -> dict[str, Any]:
    """What a result records about a model, loaded or on disk, and the versions of the libraries that read it."""
    return {
        "model": weights.name,
        "revision": weights.revision,
        "dtype": str(weights.dtype).removeprefix("torch."),
        "device": str(weights.device),
        **about,
        "n_layers": weights.n_layers,
        "n_heads": weights.n_heads,
        "n_kv_heads": weights.n_kv_heads,
        "versions": {"mechheads": __version__} | {name: importlib.metadata.version(name) for name in libraries},
    }
