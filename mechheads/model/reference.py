"""What a model gives before TransformerLens changes it: the logits that it must give afterwards.

Windows and rotations that change with the length of the text do nothing on a short prompt. So a model that has them is
also tried on a prompt longer than its windows and than the context before rotations were scaled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backends.parts import logits_of, rotations_of

SHORT = 8
"""The tokens of a prompt on which every model is tried."""
LONG = 128
"""The least tokens of a prompt for a model that has windows or scaled rotations, if it takes them."""
_MOST = 1024
"""The most tokens of that prompt, however long windows and contexts are."""
_BEYOND = 32
"""How many tokens it is longer than a window or a context."""
_PLACES = 16
"""How many tokens' logits are compared; those of all tokens would take gigabytes if the vocabulary is large."""
_WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "local_attention")
_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What configs call the attention window, and the context."""


@dataclass(frozen=True)
class Reference:
    """A prompt, and the logits at some of its tokens."""

    ids: Int[Tensor, "1 pos"]
    places: Int[Tensor, " place"]
    logits: Float[Tensor, "place d_vocab"]


def trial_tokens(d_vocab: int, rows: int, pos: int, device: torch.device) -> Int[Tensor, "row pos"]:
    """Tokens from the middle of a vocabulary, as its first are often control tokens, with huge activations."""
    first = d_vocab // 2 + pos * torch.arange(rows, device=device)
    return (first[:, None] + torch.arange(pos, device=device)) % d_vocab


def references_of(model: Any) -> list[Reference]:
    """What a model gives for a short prompt, and for a long one if it needs it; nothing if it is on several devices."""
    if hasattr(model, "hf_device_map"):
        return []
    return [reference_of(model, length) for length in trial_lengths(model.config)]


def reference_of(model: Any, length: int, first: Sequence[int] = ()) -> Reference:
    """What a transformers model gives for one prompt that begins with tokens ``first``."""
    embedding = model.get_input_embeddings().weight
    ids = trial_tokens(len(embedding), 1, length, embedding.device)
    some = torch.tensor([*first][:length], dtype=ids.dtype, device=ids.device)
    ids[0, : len(some)] = some
    places = torch.linspace(0, length - 1, min(length, _PLACES), device=ids.device).round().long()
    return Reference(ids, places, logits_of(model, ids, places.tolist())[0])


def trial_lengths(config: Any) -> list[int]:
    """The lengths of the prompts on which a model with this config is tried."""
    text = config.get_text_config(decoder=True)
    context = min((size for name in _CONTEXTS if isinstance(size := getattr(text, name, None), int)), default=_MOST)
    kinds = rotations_of(text.to_dict())
    changes = [getattr(text, name, None) for name in _WINDOWS]
    changes += [kind.get("original_max_position_embeddings") for kind in kinds]
    sizes = [size for size in changes if isinstance(size, int)]
    short = min(context, SHORT)
    if not sizes and all(kind["rope_type"] == "default" for kind in kinds):
        return [short]
    within = [size + _BEYOND for size in sizes if size + _BEYOND <= _MOST]
    long = min(context, max([LONG, *within]))
    return [short, long] if long > short else [short]


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's error message, with the type of the error."""
    lines = str(error).strip().splitlines() or [""]
    said = lines[0].split(". ")[0].rstrip(".")
    said = said if len(said) <= 200 else f"{said[:200]}..."
    return f"{said} ({type(error).__name__})" if said else type(error).__name__
