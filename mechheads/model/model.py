"""``Model``: the same interface to every TransformerLens model."""

from __future__ import annotations

from collections.abc import Sequence

from mechheads.model.analysis import analysis
from mechheads.model.core import ModelCore
from mechheads.model.sources import Source
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import PromptLike, Tokens
from mechheads.runs.head_cache import HeadCache


class Model(ModelCore):
    """A language model with its sizes, weights and cached runs; made by ``mh.load`` or ``mh.wrap``.

    Attributes:
        model: the TransformerLens object, which is never changed.
        tokenizer: its tokenizer, or None.
        name, revision: where the model comes from.
        source: what loads it again in another process; None for a model that ``mh.load`` did not load.
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

    @analysis
    def cache(
        self, prompts: Prompts | Tokens | Sequence[PromptLike], *, sites: Sequence[str] = ("z", "pattern")
    ) -> HeadCache:
        """Run prompts once and cache every head's pattern and output; see ``HeadCache``.

        >>> run = model.cache(["The capital of France is"])
        >>> run.z["L23H4"].shape
        torch.Size([1, 5, 64])
        """
        return HeadCache.run(self, prompts, sites=sites)


def source_of(model: Model) -> Source:
    """The source from which another process can load the model."""
    if model.backend.devices.several:
        raise ValueError(
            f"workers: model {model.name!r} is on {len(model.backend.devices.each)} devices, and each worker would "
            "load it onto all of them. Leave workers out: its devices work at the same time already; or load it "
            "without device_map, so that each worker has it on one device"
        )
    if model.source is None:
        raise ValueError(
            f"workers: model {model.name!r} was made by mh.wrap, so workers cannot load it; save it with "
            "save_pretrained and load the folder with mh.load, or leave workers out"
        )
    return model.source
