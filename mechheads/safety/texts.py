"""Ordinary text, to see whether a model that was changed still works."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float

from mechheads.backends.base import Hook
from mechheads.backends.changes import alone
from mechheads.data import folder
from mechheads.prompts import Prompts
from mechheads.tokens import Tokens

if TYPE_CHECKING:
    from mechheads.model import Model

_TOKENS_A_BATCH = 1024


def ordinary_texts() -> tuple[str, ...]:
    """32 sentences of ordinary prose, written for mechheads.

    >>> from mechheads.safety import ordinary_texts
    >>> len(ordinary_texts())
    32
    """
    return tuple((folder("texts") / "ordinary.txt").read_text(encoding="utf-8").splitlines())


def text_tokens(model: Model, texts: Sequence[str] | None = None) -> Tokens:
    """Texts whose loss can be told; left out, ``ordinary_texts()``.

    Raises:
        ValueError: if there are none, or one has a single token.
    """
    if isinstance(texts, str):
        raise ValueError(f"texts must be a list of texts, got one text; write [{texts[:40]!r}]")
    if texts is not None and not len(texts):
        raise ValueError("texts is empty; give at least one, or leave it out for those of the package")
    tokens = Prompts(ordinary_texts() if texts is None else list(texts)).tokens(model)
    if (short := (tokens.lengths < 2).nonzero()).numel():
        raise ValueError(f"texts[{int(short[0])}] has a single token; there is no next one to predict")
    return tokens


@alone
def text_loss(
    model: Model, texts: Sequence[str] | None = None, *, hooks: Sequence[Hook] = ()
) -> Float[np.ndarray, " text"]:
    """Mean negative log-probability of each text's tokens, but for the first, in nats.

    Args:
        texts: of at least two tokens each; left out, ``ordinary_texts()``.
        hooks: what changes the model, such as those of ``Ablation.hooks``.

    Raises:
        ValueError: if ``text_tokens`` does not take them.

    >>> from mechheads.safety import text_loss
    >>> likely, unlikely = text_loss(model, ["The capital of France is Paris.", "Paris the of is capital France."])
    >>> bool(likely < unlikely)
    True
    """
    tokens, losses = text_tokens(model, texts), []
    step = max(1, _TOKENS_A_BATCH // tokens.ids.shape[1])
    for start in range(0, len(tokens), step):
        ids, mask = tokens.ids[start : start + step], tokens.mask[start : start + step, 1:]
        final = model.backend.run(ids, hooks)[:, :-1]
        right = model.unembed(final[mask]).log_softmax(-1).gather(-1, ids[:, 1:][mask][:, None])[:, 0]
        row = mask.nonzero()[:, 0]
        sums = torch.zeros(len(ids), dtype=right.dtype, device=right.device).index_add(0, row, right)
        losses.append(-sums / mask.sum(1))
    return torch.cat(losses).double().cpu().numpy()
