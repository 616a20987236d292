"""Ordinary text, to test whether a changed model still works."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float

from mechheads.data import folder
from mechheads.generation.generate import check_hooks
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.backend import Hook
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens, read_texts


def ordinary_texts() -> tuple[str, ...]:
    """32 sentences of ordinary prose, written for mechheads.

    >>> from mechheads.safety import ordinary_texts
    >>> len(ordinary_texts())
    32
    """
    return tuple((folder("texts") / "ordinary.txt").read_text(encoding="utf-8").splitlines())


def text_tokens(model: Model, texts: Sequence[str] | None = None) -> Tokens:
    """Tokens of texts for ``text_loss``; by default of ``ordinary_texts()``."""
    texts = ordinary_texts() if texts is None else read_texts(texts, "texts")
    if not len(texts):
        raise ValueError("texts is empty; give at least one, or leave it out to use the texts of the package")
    tokens = Prompts(texts).tokens(model)
    if (short := (tokens.lengths < 2).nonzero()).numel():
        raise ValueError(f"texts[{int(short[0])}] has a single token; a text needs at least two")
    return tokens


@analysis
def text_loss(
    model: Model, texts: Sequence[str] | None = None, *, hooks: Sequence[Hook] = ()
) -> Float[np.ndarray, " text"]:
    """Mean negative log-probability of each text's tokens, except the first, in nats.

    Args:
        texts: texts of at least two tokens each; by default ``ordinary_texts()``.
        hooks: changes to the model, as in ``mh.generate``.

    >>> from mechheads.safety import text_loss
    >>> likely, unlikely = text_loss(model, ["The capital of France is Paris.", "Paris the of is capital France."])
    >>> bool(likely < unlikely)
    True
    """
    check_hooks(model, hooks)
    tokens, losses = text_tokens(model, texts), []
    step = max(1, current().limits.run_tokens // tokens.ids.shape[1])
    for start in range(0, len(tokens), step):
        ids, mask = tokens.ids[start : start + step], tokens.mask[start : start + step, 1:]
        final = model.backend.run(ids, hooks)[:, :-1]
        right = model.unembed(final[mask]).log_softmax(-1).gather(-1, ids[:, 1:][mask][:, None])[:, 0]
        row = mask.nonzero()[:, 0]
        sums = torch.zeros(len(ids), dtype=right.dtype, device=right.device).index_add(0, row, right)
        losses.append(-sums / mask.sum(1))
    return torch.cat(losses).double().cpu().numpy()
