"""Log-probabilities of given continuations, as evaluation harnesses ask for them, with heads on or off."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.files.columns import opened
from mechheads.generation.changed import Off, Steer, changed_by
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.backends.causality import check_causal
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import text_ids
from mechheads.prompts.given import Unpadded
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import check_row, shorten

_NOTHING: Steer = MappingProxyType({})


class Continuation(NamedTuple):
    """How likely a continuation is.

    Attributes:
        log_prob: the sum of the log-probabilities of its tokens, in nats.
        greedy: whether each of its tokens is the most probable one.
    """

    log_prob: float
    greedy: bool


@analysis
def continuation_log_probs(
    model: Model,
    requests: Sequence[tuple[str, str]],
    *,
    off: Off = (),
    intervention: InterventionLike = "mean",
    steer: Steer = _NOTHING,
) -> list[Continuation]:
    """Log-probabilities of continuations of contexts, with heads on or off.

    With ``functools.partial``, this is the model that an evaluation harness asks: requests and results are those of
    ``loglikelihood`` in the LM Evaluation Harness. The context and the continuation are tokenised together, as there;
    the tokens after those of the context alone belong to the continuation.

    Args:
        requests: pairs of a context and a continuation, which usually begins with a space.
        off, intervention, steer: as in ``mh.generate``; the mean is over the tokens of all contexts with their
            continuations.

    Raises:
        ValueError: if an argument is not valid, a continuation has no tokens of its own, or a text is too long for
            the model.

    Gao et al. 2024 (A framework for few-shot language model evaluation, 10.5281/zenodo.12608602).

    >>> requests = [("The capital of France is", " Paris"), ("The capital of France is", " Rome")]
    >>> paris, rome = mh.generation.continuation_log_probs(model, requests)
    >>> paris.greedy, paris.log_prob > rome.log_prob
    (True, True)
    """
    rows, starts = _tokens(model, requests)
    limits = current().limits
    hooks = changed_by(model, Prompts([Unpadded(row) for row in rows]), off, intervention, steer)
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    found: dict[int, Continuation] = {}
    check_causal(model.backend)  # rows are padded at the end
    with torch.no_grad(), Bar(total=len(rows), desc="log-probs", leave=False) as bar:
        while order:
            at_once = max(1, limits.run_tokens // len(rows[order[0]]))
            some, order = order[:at_once], order[at_once:]
            ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[i]) for i in some], batch_first=True)
            final = model.backend.run(ids.to(model.device), hooks)
            for i, states in zip(some, final, strict=True):
                found[i] = _of(model, states, rows[i], starts[i])
            bar.update(len(some))
    return [found[i] for i in range(len(rows))]


def _tokens(model: Model, requests: Sequence[tuple[str, str]]) -> tuple[list[list[int]], list[int]]:
    """The tokens of each context with its continuation, and where the continuation begins."""
    rows, starts = [], []
    for number, request in enumerate(opened(requests, "requests", "pairs of a context and a continuation")):
        if not (isinstance(request, tuple | list) and len(request) == 2 and all(isinstance(t, str) for t in request)):
            raise ValueError(f"requests[{number}] is {shorten(request)}; give a context and a continuation, two texts")
        context, continuation = request
        bare = context.rstrip()
        whole, _ = text_ids(context + continuation, model.tokenizer)
        before, _ = text_ids(bare, model.tokenizer)
        start = len(before)
        if whole[:start] != before:
            raise ValueError(
                f"requests[{number}]: a token spans the context and the continuation: {bare[-20:]!r} has other tokens "
                f"before {shorten(continuation)}; part them at a space, which belongs to the continuation"
            )
        if not 0 < start < len(whole):
            what = "continuation" if start else "context"
            raise ValueError(
                f"requests[{number}]: the {what} has no tokens; got {shorten(context)} and {shorten(continuation)}"
            )
        check_row(whole, f"requests[{number}]", model)
        rows.append(whole)
        starts.append(start)
    if not rows:
        raise ValueError("requests is empty; give pairs of a context and a continuation")
    return rows, starts


def _of(model: Model, states: Float[Tensor, "pos d_model"], ids: list[int], start: int) -> Continuation:
    logits = model.unembed(states[start - 1 : len(ids) - 1]).float()
    wanted: Int[Tensor, " token"] = torch.tensor(ids[start:], device=logits.device)
    each = logits.log_softmax(-1).gather(-1, wanted[:, None])
    return Continuation(float(each.double().sum()), bool((logits.argmax(-1) == wanted).all()))
