"""``load`` and ``wrap``: one face for every TransformerLens model."""

from __future__ import annotations

import copy
import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads import __version__
from mechheads.backends.base import Backend, Layout, Sizes, Weight
from mechheads.backends.changes import alone
from mechheads.backends.readable import check_readable, first_sentence
from mechheads.sources import load_pretrained

if TYPE_CHECKING:
    from mechheads.cache import HeadCache
    from mechheads.prompts import Prompts
    from mechheads.tokens import PromptLike, Tokens


class LayerWeights(Sequence[Tensor]):
    """One weight of every layer, made when asked for: ``model.W_O[9]`` is [head, d_head, d_model]."""

    def __init__(self, get: Callable[[int], Tensor], n_layers: int) -> None:
        self._get, self._n_layers = get, n_layers

    def __len__(self) -> int:
        return self._n_layers

    def __getitem__(self, layer: int) -> Tensor:  # type: ignore[override]
        if not -self._n_layers <= layer < self._n_layers:
            raise IndexError(f"layer {layer} is out of range: this model has layers 0..{self._n_layers - 1}")
        return self._get(layer % self._n_layers)


class Model:
    """A language model as mechheads sees it; made by ``mh.load`` or ``mh.wrap``.

    Attributes:
        model: the TransformerLens object, never changed.
        tokenizer: its tokenizer, or None.
        name, revision: where it came from.
        n_layers, n_heads, n_kv_heads, d_head, d_model, d_vocab, n_ctx: its sizes. With grouped-query
            attention several query heads share a key/value head, and ``n_kv_heads < n_heads``.
        W_E, W_U: embedding [d_vocab, d_model] and unembedding [d_model, d_vocab].
        W_Q, W_K, W_V, W_O: one of each layer: ``W_Q[l]``, ``W_K[l]`` and ``W_V[l]`` are
            [head, d_model, d_head], ``W_O[l]`` [head, d_head, d_model], for each *query* head, raw (no norm
            folded in).

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
        """How the engine lays out altered copies of a run on this model, chosen once; see ``row_layout``."""
        from mechheads.row_layout import choose_layout

        if self.backend.layout is None:
            self.backend.layout = choose_layout(self)
        return self.backend.layout

    @property
    def parallel_mlps(self) -> bool:
        """Whether a block's MLP runs beside its heads and does not see what they write."""
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
        """The bias added to a layer's attention output after the heads; None where there is none."""
        return self.backend.bias("O", layer)

    def _weights(self, kind: Weight) -> LayerWeights:
        return LayerWeights(lambda layer: self.backend.weight(kind, layer), self.n_layers)

    @property
    def dtype(self) -> torch.dtype:
        return self.backend.parameter.dtype

    @property
    def device(self) -> torch.device:
        return self.backend.parameter.device

    def hook_name(self, site: str, layer: int) -> str:
        """The TransformerLens name of a hook: ``hook_name("z", 9)`` is ``blocks.9.attn.hook_z``."""
        return self.backend.hook_name(site, layer)

    def first_mlp(self, x: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_model"]:
        """MLP_0(ln2_0(x)), without the residual: how later layers see a token's embedding."""
        return self.backend.first_mlp(x)

    def embed(self, ids: Int[Tensor, " token"]) -> Float[Tensor, "token d_model"]:
        """The rows of W_E of some tokens."""
        return self.W_E[ids]

    def unembedding(self, start: int, stop: int) -> Float[Tensor, "d_model columns"]:
        """The columns start..stop of W_U in float32."""
        return self.W_U[:, start:stop].float()

    def attention_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """What the norm before a layer's attention multiplies with; ones where that is folded into the weights."""
        return self.backend.scale(layer)

    def attention_out_scale(self, layer: int) -> Float[Tensor, " d_model"]:
        """What a norm after a layer's attention multiplies with, as in Gemma 2 and 3; ones where there is none."""
        return self.backend.scale(layer, "ln1_post")

    def final_scale(self) -> Float[Tensor, " d_model"]:
        """The same of the final norm."""
        return self.backend.scale(None)

    def unembed(self, final: Float[Tensor, "*batch d_model"]) -> Float[Tensor, "*batch d_vocab"]:
        """Logits of states after the final norm."""
        return self.backend.unembed(final)

    @property
    def chat_template(self) -> str | None:
        """The chat template of the tokenizer, if it has one."""
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
        from mechheads.cache import HeadCache

        return HeadCache.run(self, prompts, sites=sites, budget=budget, progress=progress)

    def provenance(self) -> dict[str, Any]:
        """What a result must remember of the model: name, revision, sizes, dtype, library versions."""
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
    """What a result must remember of a model, loaded or on disk, and the versions of the libraries that read it."""
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


def load(
    name_or_path: str | Path | None = None,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    backend: Literal["bridge", "hooked"] | None = None,
    trust_remote_code: bool = False,
) -> Model:
    """Load a model: the default one, a hub name, a local Hugging Face folder, or a GGUF file.

    Args:
        name_or_path: left out, the default model SmolLM2-135M-Instruct, fetched once. ``"smollm2-135m-refusal"`` is
            the same, taught to refuse harmful requests by six heads.
        revision: a hub revision.
        dtype: of the weights.
        device: where they go, such as ``"cuda:1"``; ``"auto"`` is ``"cuda"`` if there is one, else ``"mps"``, else
            ``"cpu"``.
        backend: ``"bridge"`` (TransformerBridge) or ``"hooked"`` (HookedTransformer, TransformerLens
            3.9 only). Left out, the one that the installed TransformerLens is made for.
        trust_remote_code: whether code that comes with a hub model may run.

    Raises:
        ValueError: if there is no such model or device, the model is damaged, or it has no attention heads.

    >>> mh.load()
    Model('smollm2-135m-instruct': 30 layers x 9 heads (3 key/value), d_model 576, TransformerBridge)
    """
    chosen = _choose_backend(backend)
    source = load_pretrained(
        name_or_path, revision=revision, dtype=dtype, device=_find_device(device), trust_remote_code=trust_remote_code
    )
    return from_transformers(source.model, source.tokenizer, source.name, revision=source.revision, backend=chosen)


def _find_device(device: str | torch.device) -> torch.device:
    if device == "auto":
        available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
        return torch.device(next(name for name, there in available.items() if there))
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f'device {str(device)!r} is not available here ({error}); choose "cpu", or "auto" for a GPU if there is one'
        ) from error


def from_transformers(
    model: Any,
    tokenizer: Any,
    name: str,
    *,
    revision: str | None = None,
    backend: Literal["bridge", "hooked"] | None = None,
) -> Model:
    """Take a transformers model in eager attention, with its tokenizer; see ``load`` for the rest."""
    adapter: Backend
    if _choose_backend(backend) == "hooked":
        from mechheads.backends import hooked

        adapter = hooked.HookedBackend(_boot(hooked.boot, model, tokenizer, name))
        adapter.check_same_logits(model)
    else:
        from mechheads.backends import bridge

        adapter = bridge.BridgeBackend(_boot(bridge.boot, model, tokenizer, name))
    return Model(adapter, name, revision, tokenizer)


def _boot(boot: Callable[[Any, Any, str], Any], model: Any, tokenizer: Any, name: str) -> Any:
    """The TransformerLens object of a transformers model.

    Raises:
        ValueError: if TransformerLens does not know such models, or fails.
    """
    try:
        return boot(model, copy.deepcopy(tokenizer), name)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # whatever another library raises where it does not know a kind of model
        raise ValueError(
            f"model: {name!r} (architecture {type(model).__name__}) cannot be read: TransformerLens "
            f"{importlib.metadata.version('transformer-lens')} does not take it: {first_sentence(error)}"
        ) from error


def wrap(model: Any, tokenizer: Any = None) -> Model:
    """Take a TransformerLens model that you already have, as it is; it is never changed.

    Args:
        model: a ``HookedTransformer`` (TransformerLens 3.9) or a ``TransformerBridge`` (4.x).
        tokenizer: used instead of the model's own, which TransformerLens may have set to add a
            beginning token.

    Raises:
        TypeError: if it is neither.
        ValueError: if it cannot be read, as in training mode with dropout or without attention heads.

    >>> mh.wrap(model.model).n_heads
    9
    """
    names = {base.__name__ for base in type(model).__mro__}
    if "HookedTransformer" in names:
        from mechheads.backends.hooked import HookedBackend as Adapter
    elif "TransformerBridge" in names:
        from mechheads.backends.bridge import BridgeBackend as Adapter
    else:
        raise TypeError(
            f"model is a {type(model).__name__}; wrap takes a HookedTransformer or a TransformerBridge. "
            "For a transformers model, save it with save_pretrained and mh.load the folder"
        )
    return Model(Adapter(model), model.cfg.model_name, tokenizer=tokenizer)


def _choose_backend(backend: str | None) -> Literal["bridge", "hooked"]:
    version = importlib.metadata.version("transformer-lens")
    has_hooked = int(version.split(".")[0]) < 4
    if backend is None:
        return "hooked" if has_hooked else "bridge"
    if backend not in ("bridge", "hooked"):
        raise ValueError(f'backend is {backend!r}; choose "bridge" or "hooked"')
    if backend == "hooked" and not has_hooked:
        raise ValueError(
            f'backend="hooked": TransformerLens {version} no longer has HookedTransformer. Leave backend out to use '
            'TransformerBridge, or install the last release that has it: pip install "transformer-lens>=3.9,<4"'
        )
    return backend
