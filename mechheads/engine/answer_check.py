"""Warnings if the clean run contradicts the answers that were given with the prompts."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.job import Job
from mechheads.messages.warn import warn
from mechheads.metrics.base import read_positions
from mechheads.model.backends.parts import moved
from mechheads.prompts.encoding import single_token, token_strings

_MUCH_MORE_LIKELY = 10.0
_SHOWN = 3
_PROMPT_SHOWN = 60
_LOGITS_AT_ONCE = 2**22


class AnswerWarning(UserWarning):
    """Warns that the clean run contradicts the given answers."""


def warn_of_answers(job: Job) -> None:
    """Warn if the clean run contradicts the given answers; does nothing if the metric reads no answers,
    or if heads are ablated all the time.

    Two mistakes give numbers that look plausible. An answer without its leading space is a token that the model
    would not say in the middle of a sentence. And if the model prefers the wrong answer, there is no right answer
    to restore or to remove.
    """
    tokens = job.clean.tokens.on_cpu
    if "answer" not in job.answers or tokens.answer is None or job.spec.held:
        return
    spaced = _with_space(tokens.answer, job)
    columns = torch.stack([tokens.answer, tokens.answer if tokens.wrong is None else tokens.wrong, spaced], dim=1)
    right, wrong, with_space = _probabilities(job, moved(columns, job.at.device)).cpu().unbind(1)
    prompts = ["".join(strings)[-_PROMPT_SHOWN:] for strings in tokens.strings]
    if (no_space := with_space > _MUCH_MORE_LIKELY * right).any():
        shown = _shown(no_space, prompts, (spaced, with_space), (tokens.answer, right), job)
        warn(
            f"answer: the token with a leading space is much more likely for {shown}. Write answers exactly as they "
            'continue the prompt, such as answer=[" Paris"]',
            AnswerWarning,
        )
    if "wrong" in job.answers and tokens.wrong is not None and (prefers := wrong > right).any():
        shown = _shown(prefers, prompts, (tokens.wrong, wrong), (tokens.answer, right), job)
        warn(
            f"the clean run prefers `wrong` to `answer` for {shown}. Leave these prompts out, or check "
            "answer= and wrong=",
            AnswerWarning,
        )


def _with_space(answer: Int[Tensor, " prompt"], job: Job) -> Int[Tensor, " prompt"]:
    """The tokens of the same words with a leading space; an answer stays as it is if it has no such token."""
    if (tokenizer := job.model.tokenizer) is None:
        return answer
    found = {}
    for token in answer.unique().tolist():
        text = token_strings([token], tokenizer)[0]
        spaced = single_token(" " + text, tokenizer) if text.strip() and not text[0].isspace() else None
        found[token] = token if spaced is None else spaced
    return torch.tensor([found[token] for token in answer.tolist()])


@torch.no_grad()
def _probabilities(job: Job, ids: Int[Tensor, "prompt token"]) -> Float[Tensor, "prompt token"]:
    """Probabilities of the given next tokens in the clean run, at the last position that the metric reads."""
    at, mask = read_positions(job.spec.metric, job.clean.tokens)
    final = job.clean.final_at(at.gather(1, mask.sum(1, keepdim=True) - 1))[:, 0]
    parts = zip(*(each.split(max(1, _LOGITS_AT_ONCE // job.model.d_vocab)) for each in (final, ids)), strict=True)
    return torch.cat([job.model.unembed(some).float().softmax(-1).gather(-1, wanted) for some, wanted in parts])


def _shown(
    which: Tensor, prompts: list[str], more: tuple[Tensor, Tensor], less: tuple[Tensor, Tensor], job: Job
) -> str:
    """How many prompts, and for the first few both tokens with their probabilities."""

    def lines() -> Iterator[str]:
        for index in which.nonzero()[:_SHOWN, 0].tolist():
            texts = token_strings([int(ids[index]) for ids, _ in (more, less)], job.model.tokenizer)
            said = [f"{text!r} {float(p[index]):.2g}" for text, (_, p) in zip(texts, (more, less), strict=True)]
            yield f"{prompts[index]!r} ({' against '.join(said)})"

    n = int(which.sum())
    rest = f" and {n - _SHOWN} more" if n > _SHOWN else ""
    return f"{n} of {len(prompts)} prompt{'s' * (len(prompts) != 1)}: {', '.join(lines())}{rest}"
