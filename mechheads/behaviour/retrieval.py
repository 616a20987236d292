"""Retrieval heads: how much each head adds to the logit of an answer from the place in the prompt that contains it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from mechheads.behaviour.logit_attribution import attribute, prompts_at_once, top
from mechheads.data import content
from mechheads.heads import Heads, named_heads
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import ids_after
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Unpadded, encode, tokens_at
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import HeadCache


def needle_prompts() -> dict[str, Prompts]:
    """A short needle task for ``retrieval_heads``, and two controls: 24 prompts of each kind.

    All have the same sentences around the question. ``"retrieved"``: the answer is a word in the text, at the position
    ``"place"``. ``"known"``: a capital that is not in the text. ``"computed"``: a sum.

    Gema, Alex & Minervini 2026 (arXiv 2607.01002), whose controls are parametric recall and arithmetic.

    >>> prompts = mh.behaviour.needle_prompts()["retrieved"]
    >>> prompts.items[0][-27:], prompts.answer[0]
    ('The secret word of James is', ' silver')
    """
    needles = content("needles", "needles")
    return {kind: Prompts(**needles[kind]) for kind in ("retrieved", "known", "computed")}


@analysis
@torch.no_grad()
def retrieval_heads(
    model: Model,
    prompts: Prompts,
    *,
    answers: Sequence[str | int | Sequence[int]] | None = None,
    place: str = "place",
    heads: Heads | None = None,
) -> HeadScores:
    """How much each head adds to the logit of an answer from the place in the prompt that contains the answer.

    For the token y_t of the answer and the source j, phi[t, j] = pattern[t, j] * u(y_t) . W_O v_j is a part of the
    logit of y_t, as in ``mh.behaviour.logit_attribution`` with ``by="source"``: norms are frozen. A head's score is

        sum of phi over the place - (tokens in the place / other tokens) * sum of phi over the other tokens

    The score is the mean over the steps at which the model itself finds y_t most likely, after the prompt and the
    earlier tokens of the answer.

    Args:
        prompts: with a named position for the place: a piece of text that occurs once, or a span of characters.
        answers: texts of one or more tokens, with the space before them, or token ids; by default the ``answer`` of the
            prompts.
        place: the name of that position.
        heads: the heads to score, as in ``mh.sweep``; every head if left out. The others are NaN.

    Returns:
        The scores in logits [layer, head, prompt], NaN for prompts of which the model finds no token of the answer most
        likely; ``dataset["steps"]`` [prompt] is the number of tokens that it does.

    Gema, Alex & Minervini 2026 (arXiv 2607.01002), LOCOS.

    >>> scores = mh.behaviour.retrieval_heads(model, mh.behaviour.needle_prompts()["retrieved"])
    >>> bool(scores.top(1)["ci_low"].iloc[0] > 0)
    True
    """
    steps, tokens, limits = [*_steps(model, prompts, answers, place)], prompts.tokens(model), current().limits
    named, names = named_heads(heads, model.n_layers, model.n_heads)
    read = Prompts([Unpadded(ids) for _, ids, _, _ in steps], answer=[token for *_, token, _ in steps]).tokens(model)
    final = HeadCache.run(model, read, sites=("z",)).final_at(read.lengths[:, None] - 1)[:, 0]
    right = (top(model.backend, final, limits) == read.answer).nonzero()[:, 0]
    if not len(right):
        raise ValueError(f"the model answers none of the {len(prompts)} prompts rightly at any step; give easier ones")
    at_once = prompts_at_once(model, read, "source", limits)
    sums = np.zeros((model.n_layers, model.n_heads, len(prompts)))
    counts = np.bincount([steps[step][0] for step in right.tolist()], minlength=len(prompts))
    for some in Bar(right.split(at_once), desc="retrieval", leave=False):
        parts = attribute(model, read.rows(some), "source", limits)["heads"]
        for row, step in enumerate(some.tolist()):
            prompt, ids, _, at = steps[step]
            phi = parts[..., : len(ids), row]
            inside, others = phi[..., at].sum(-1), max(1, len(ids) - len(at))
            sums[..., prompt] += inside - (phi.sum(-1) - inside) * len(at) / others
    return HeadScores.from_values(
        np.where(named[..., None], sums / np.where(counts > 0, counts, np.nan), np.nan),
        name="retrieval",
        kind="retrieval",
        cluster=tokens.cluster,
        provenance=make_provenance(model, prompts=tokens, n_prompts=len(tokens), heads=names, n_steps=len(steps)),
    ).assign(steps=("prompt", counts))


def _steps(
    model: Model, prompts: Prompts, answers: Sequence[Any] | None, place: str
) -> Iterator[tuple[int, list[int], int, list[int]]]:
    """For each token of each answer: its prompt's number, the tokens before it, its id, and the tokens of the place."""
    if place not in prompts.positions:
        raise ValueError(f"prompts has no position {place!r}; give mh.Prompts with positions={{{place!r}: [...]}}")
    texts = prompts.answer if answers is None else answers
    if texts is None or isinstance(texts, str) or len(texts) != len(prompts):
        raise ValueError(f"answers needs a text for each of the {len(prompts)} prompts; give it, or prompts an answer")
    for number, (item, answer, where) in enumerate(zip(prompts.items, texts, prompts.positions[place], strict=True)):
        ids, text, offsets = encode(item, number, model)
        at = tokens_at(where, place, number, ids, text, offsets)
        is_text = isinstance(answer, str)
        more = ids_after(text or "", answer, model.tokenizer) if is_text else np.atleast_1d(answer).tolist()
        if not more:
            raise ValueError(f"answers[{number}] is {answer!r}, which is no tokens of its own after prompt {number}")
        yield from ((number, [*ids, *more[:t]], token, at) for t, token in enumerate(more))
