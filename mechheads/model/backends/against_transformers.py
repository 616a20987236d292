"""A trial at loading: a model of TransformerLens must give the logits of transformers, on one long prompt.

Attention that sees the last tokens only, and rotations that change with the length of the text, are the same as others
on a short prompt. So the trial is longer than the windows and than the context before rotations were scaled.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.model.backends.devices import moved

_SHORTEST = 128
"""The fewest tokens of the trial, if the model's context is that long."""
LONGEST = 1024
"""The most tokens of the trial, however long windows and contexts are."""
_BEYOND = 32
"""How many tokens the trial is longer than a window or a context."""
_PLACES = 16
"""How many tokens' logits are compared; those of all tokens would take gigabytes if the vocabulary is large."""
_WINDOWS = ("sliding_window", "window_size", "attention_chunk_size", "local_attention")
_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")
"""What configs call the attention window, and the context."""


@dataclass(frozen=True)
class Trial:
    """A prompt, and transformers' logits at some of its tokens."""

    ids: Int[Tensor, "1 pos"]
    places: Int[Tensor, " place"]
    logits: Float[Tensor, "1 place d_vocab"]


def trial_tokens(d_vocab: int, rows: int, pos: int, device: torch.device) -> Int[Tensor, "row pos"]:
    """Tokens for trial runs of a model, from the middle of its vocabulary.

    Many vocabularies begin with control tokens. Some of these give activations so large that two exact ways to
    compute a run differ visibly in float32.
    """
    first = d_vocab // 2 + pos * torch.arange(rows, device=device)
    return (first[:, None] + torch.arange(pos, device=device)) % d_vocab


def trial_of(model: Any, first: Sequence[int] = ()) -> Trial | None:
    """Transformers' logits of one long prompt that begins with ``first``; None if the model is on several devices.

    It runs before the bridge changes the model in place.
    """
    if hasattr(model, "hf_device_map"):
        return None
    embedding = model.get_input_embeddings().weight
    ids = trial_tokens(len(embedding), 1, _length(model.config), embedding.device)
    some = torch.tensor([*first][: ids.shape[1]], dtype=ids.dtype, device=ids.device)
    ids[0, : len(some)] = some
    places = torch.linspace(0, ids.shape[1] - 1, _PLACES, device=ids.device).round().long().unique()
    own_code = not type(model).__module__.startswith("transformers.")
    picks = not own_code and "logits_to_keep" in inspect.signature(model.forward).parameters
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False, **({"logits_to_keep": places} if picks else {})).logits
    return Trial(ids, places, logits if picks else logits[:, places])


def _length(config: Any) -> int:
    text = config.get_text_config(decoder=True)
    rotations = getattr(text, "rope_parameters", None) or {}
    kinds = [rotations, *(kind for kind in rotations.values() if isinstance(kind, dict))]
    changes = [getattr(text, name, None) for name in _WINDOWS]
    changes += [kind.get("original_max_position_embeddings") for kind in kinds]
    within = [size for size in changes if isinstance(size, int) and size + _BEYOND <= LONGEST]
    context = min((size for name in _CONTEXTS if isinstance(size := getattr(text, name, None), int)), default=LONGEST)
    return min(context, max([_SHORTEST, *(size + _BEYOND for size in within)]))


def logits_off(trial: Trial, ours: Float[Tensor, "1 place d_vocab"]) -> float | None:
    """How far log-probabilities are from those of transformers, in standard deviations of its logits.

    None if these are not finite: another check names damaged weights.
    """
    theirs = trial.logits[:, : ours.shape[1]].float()
    if not theirs.isfinite().all():
        return None
    apart = moved(ours, theirs.device).float().log_softmax(-1) - theirs.log_softmax(-1)
    return float(apart.abs().max() / theirs.std().clamp_min(1e-6))
