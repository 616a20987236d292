"""``ModelCore``: a model's sizes, weights and tokenizer, under the same names for every model."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads._version import __version__
from mechheads.messages.habits import advice
from mechheads.messages.notices import Wrapped
from mechheads.model.backend import Backend, Sizes, Weight
from mechheads.model.changes import R, as_usual, without_autocast
from mechheads.model.parts import moved
from mechheads.model.proof import Proofs
from mechheads.model.sources import Source

_WHOLE = (
    "whole: a run cannot be resumed from its cached keys, so every changed copy is computed from its first token on, "
    "which takes several times as long; the numbers are the same"
)


def alone(backend: Backend, run: Callable[[], R]) -> R:
    """Call ``run`` while this thread has the model and torch computes as usual, and prove what it computes."""
    if backend.changes.mine:
        return run()

    def proved() -> R:
        with as_usual(backend.module, backend.parameter.device, backend.parts):
            backend.check()
            with backend.proofs.of_an_analysis():
                return run()

    return backend.changes.alone(proved)


def read_weights(backend: Backend, read: Callable[[], R]) -> R:
    """Call ``read``, which reads weights, after the check that each analysis makes once."""
    if not backend.changes.mine:
        backend.check()
    return read()


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


class ModelCore(Wrapped):
    """A ``Model`` without its cached runs, which are built on it."""

    folded_value_biases = False  # true: b_V is part of b_O and not of z, so z = 0 leaves it in place

    def __init__(self, backend: Backend, name: str, revision: str | None = None, tokenizer: Any = None) -> None:
        self.backend, backend.proofs = backend, Proofs(backend)
        self.name, self.revision = name, revision
        self.source: Source | None = None
        self.tokenizer = backend.module.tokenizer if tokenizer is None else tokenizer
        sizes: Sizes = backend.sizes
        self.n_layers, self.n_heads, self.n_kv_heads = sizes.n_layers, sizes.n_heads, sizes.n_kv_heads
        self.d_head, self.d_model = sizes.d_head, sizes.d_model
        self.d_vocab, self.n_ctx = sizes.d_vocab, sizes.n_ctx

    def __getattr__(self, name: str) -> Any:
        if instead := advice("model", name):
            raise AttributeError(f"a mechheads model has no attribute {name!r}{instead}")
        return object.__getattribute__(self, name)  # raises the usual error, or a property's own

    @property
    def model(self) -> Any:
        return self.backend.module

    @property
    def parallel_mlps(self) -> bool:
        """Whether a block's MLP runs in parallel with its heads and does not read what they write."""
        return bool(getattr(self.model.cfg, "parallel_attn_mlp", False))

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return read_weights(self.backend, lambda: self.backend.W_E)

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return read_weights(self.backend, lambda: self.backend.W_U)

    @property
    def b_U(self) -> Float[Tensor, " d_vocab"] | None:
        return read_weights(self.backend, lambda: self.backend.b_U)

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
        return read_weights(self.backend, lambda: self.backend.bias("O", layer))

    def attention_out(self, layer: int, z: Float[Tensor, "*batch head d_head"]) -> Float[Tensor, "*batch d_model"]:
        """What the heads of a layer write together: z W_O, summed over heads, and b_O."""
        weight, bias = self.backend.weight("O", layer), self.b_O(layer)
        with without_autocast(self.device):
            out = z.flatten(-2) @ weight.to(z.dtype).flatten(0, 1)
        return out if bias is None else out + bias

    def _weights(self, kind: Weight) -> LayerWeights:
        def read(layer: int) -> Tensor:
            return read_weights(self.backend, lambda: self.backend.weight(kind, layer))

        return LayerWeights(read, self.n_layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.backend.parameter.dtype

    @property
    def device(self) -> torch.device:
        """The device of the embedding, and of everything that an analysis reads or returns."""
        return self.backend.devices.home

    @property
    def alike_up_to(self) -> int:
        """The largest prompt length up to which runs of different lengths are comparable."""
        return self.backend.alike_up_to

    def hook_name(self, site: str, layer: int) -> str:
        """The TransformerLens name of a hook: ``hook_name("z", 9)`` is ``blocks.9.attn.hook_z``."""
        return self.backend.hook_name(site, layer)

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """MLP_0(ln2_0(x)), without the residual: an embedding as later layers read it."""
        return alone(self.backend, lambda: self.backend.first_mlp(x))

    def embed(self, ids: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """The rows of W_E for some tokens."""
        return self.W_E[ids]

    def unembedding(self, start: int, stop: int) -> Float[Tensor, "d_model columns"]:
        """The columns start..stop of W_U in float32."""
        return moved(self.model.W_U.detach()[:, start:stop], self.device).float()

    def attention_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of the norm before a layer's attention; ones if it is folded into the weights."""
        return alone(self.backend, lambda: self.backend.scale(layer))

    def attention_out_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """The scale of a norm after a layer's attention, as in Gemma 2 and 3; ones if there is none."""
        return alone(self.backend, lambda: self.backend.scale(layer, "ln1_post"))

    def final_scale(self) -> Float[Tensor, " d_model"]:
        """The scale of the final norm; ones if it is folded into the weights."""
        return alone(self.backend, lambda: self.backend.scale(None))

    def unembed(self, final: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """The logits of states after the final norm."""
        return alone(self.backend, lambda: self.backend.unembed(final))

    @property
    def chat_template(self) -> str | None:
        """The chat template of the tokenizer; None if it has none."""
        return getattr(self.tokenizer, "chat_template", None)

    def provenance(self) -> dict[str, Any]:
        """What a result records about the model: name, revision, sizes, dtype, library versions."""
        libraries = ("transformer-lens", "transformers", "torch")
        return {
            "model": self.name,
            "revision": self.revision,
            "dtype": str(self.dtype).removeprefix("torch."),
            "device": str(self.device),
            "backend": type(self.model).__name__,
            "normalization": self.model.cfg.normalization_type,
            "compatibility_mode": bool(getattr(self.model, "compatibility_mode", False)),
            **({"folded_value_biases": True} if self.folded_value_biases else {}),
            **({"layout": _WHOLE} if self.backend.layout == "whole" else {}),
            "n_layers": self.n_layers,
            "n_heads": self.n_heads,
            "n_kv_heads": self.n_kv_heads,
            "versions": {"mechheads": __version__} | {name: _version_of(name) for name in libraries},
        }

    def __repr__(self) -> str:
        return (
            f"Model({self.name!r}: {self.n_layers} layers x {self.n_heads} heads "
            f"({self.n_kv_heads} key/value), d_model {self.d_model}, {type(self.model).__name__})"
        )


_version_of = cache(importlib.metadata.version)  # a call takes milliseconds
