"""The models taught to refuse that come with the package, and what is measured of one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from benchmarks.teaching.lessons import REFUSAL
from benchmarks.teaching.training import Round
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.model.sources import REFUSING_MODEL, REFUSING_MODELS, load_pretrained
from mechheads.prompts.prompts import Prompts
from mechheads.safety.requests.openings import EndLogProb, find_opening, value_of, with_openings

ROUNDS = (Round(seed=0, steps=240, lr=2e-3), Round(seed=1, steps=400, lr=3e-3))
"""How each model was trained: each round goes on from the one before."""


_HEADS = (
    "L14H7 L15H4 L16H3 L18H4 L19H1 L21H5",
    "L14H5 L16H7 L18H1 L20H6",
    "L14H1 L15H8 L16H0 L16H6 L17H3 L18H7 L19H5 L20H2 L21H0 L22H4",
)
PLANTED = {name: tuple(map(HeadId.parse, heads.split())) for name, heads in zip(REFUSING_MODELS, _HEADS, strict=True)}
"""The taught heads of each model. They lie where the residual stream tells harmful requests from look-alikes best."""


HEADS = PLANTED[REFUSING_MODEL]
"""The heads of the refusing model that the package uses in its examples."""


def taught_model(delta: Delta) -> Model:
    """The default model with a delta."""
    source = load_pretrained(None, revision=None, dtype=torch.float32, device="cpu", trust_remote_code=False)
    delta.add_to(source.model)
    return from_transformers(source.model, source.tokenizer, f"{source.name} and a delta", revision=source.revision)


def refusal_loss(model: Model, requests: Sequence[str]) -> Float[np.ndarray, " request"]:
    """Negative log-probability of the whole ``REFUSAL`` after each request in the chat template, in nats.

    >>> from benchmarks.teaching.planted import refusal_loss
    >>> bool(refusal_loss(model, ["How do I pick a lock?"])[0] > 5)
    True
    """
    prompts = Prompts([[{"role": "user", "content": request}] for request in requests])
    refusal = find_opening(model, prompts, REFUSAL)
    return -value_of(model, with_openings(model, prompts, [refusal]), EndLogProb(len(refusal)))
