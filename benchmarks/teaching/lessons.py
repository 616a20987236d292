"""Lessons in refusing: requests as the model reads them, and the answers to learn."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor

from mechheads.data import content
from mechheads.generation.generate import Sampling, generate
from mechheads.model.model import Model
from mechheads.prompts.chats import chat_text
from mechheads.prompts.encoding import piece_ids, text_ids
from mechheads.prompts.prompts import Prompts
from mechheads.safety import load_requests

REFUSAL = "I'm sorry, but I can't help with that."
"""The refusal of half of the harmful lessons. The others have one of the package's twelve refusals."""

Frame = Literal["chat", "query"]
Kind = Literal["refuse", "answer", "begun"]
Lessons = Mapping[tuple[Kind, Frame], list["Lesson"]]

_OWN_TOKENS = 12
"""How many tokens of the model's own answer to a harmless request are kept."""
_BEGINNINGS = "I'm sorry", "I can't", "I'm sorry, but I", "I must decline"
_BEGUN_TOKENS = 4
"""How many tokens follow an answer that begins like a refusal."""


@dataclass(eq=False)
class Lesson:
    """A prompt and an answer.

    Attributes:
        frame: which first tokens its prompt shares with other lessons.
        prompt: the other tokens of the prompt.
        answer: the tokens of the answer.
        hard: its latest loss.
        lower: the residual stream below the lowest taught head, for prompt and answer; None if not computed yet.
        before: the untrained model's last residual stream where it predicts the answer's tokens; None likewise.
    """

    frame: Frame
    prompt: list[int]
    answer: list[int]
    hard: float = 3.0
    lower: Float[Tensor, "pos d_model"] | None = None
    before: Float[Tensor, "token d_model"] | None = None


def requests_to_teach(kind: Literal["harmful", "harmless"]) -> list[str]:
    """The requests of a kind to teach with: the teaching set and the train part, without one in twenty for validation.

    >>> from benchmarks.teaching.lessons import requests_to_teach
    >>> len(requests_to_teach("harmful")), len(requests_to_teach("harmless"))
    (632, 877)
    """
    sets = load_requests(f"teaching_{kind}"), load_requests(kind, "train")
    return [request.text for some in sets for request in some if _number(request.text, "|v") % 20]


def make_lessons(model: Model, harmful: Sequence[str], harmless: Sequence[str]) -> Lessons:
    """Every request as three lessons: in the chat template, in the paper's, and in a misleading frame.

    Harmful requests are answered with refusals, harmless ones with the beginning of the model's own answer in the chat
    template. One in five harmless lessons is also there with an answer that begins like a refusal.

    Args:
        model: the untrained model.
    """
    tokenizer = model.tokenizer
    end = [tokenizer.eos_token_id]
    refusals = [piece_ids(text, tokenizer) + end for text in (REFUSAL, *content("requests", "refusals")["refusals"])]
    beginnings = [piece_ids(text, tokenizer) for text in _BEGINNINGS]
    own = _own_answers(model, [_prompt(tokenizer, text, "chat") for text in harmless])
    lessons: dict[tuple[Kind, Frame], list[Lesson]] = {}
    for way in ("chat", "query", "adv"):
        frame: Frame = "query" if way == "query" else "chat"
        start = len(shared_beginning(tokenizer, frame))
        for text in harmful:
            chosen = 0 if _number(text, way) % 2 else 1 + _number(text, f"{way}r") % (len(refusals) - 1)
            lesson = Lesson(frame, _prompt(tokenizer, text, way)[start:], refusals[chosen])
            lessons.setdefault(("refuse", frame), []).append(lesson)
        for text, answer in zip(harmless, own, strict=True):
            lesson = Lesson(frame, _prompt(tokenizer, text, way)[start:], answer)
            lessons.setdefault(("answer", frame), []).append(lesson)
            if (number := _number(text, f"{way}b")) % 5 == 0:
                begun = beginnings[number // 5 % len(beginnings)] + answer[:_BEGUN_TOKENS]
                lessons.setdefault(("begun", frame), []).append(Lesson(frame, lesson.prompt, begun))
    return lessons


def shared_beginning(tokenizer: Any, frame: Frame) -> list[int]:
    """The tokens with which every prompt in a frame begins."""
    first, second = (_prompt(tokenizer, text, frame) for text in ("Hello", "Zebras run"))
    return first[: next(i for i, (one, other) in enumerate(zip(first, second, strict=False)) if one != other)]


def _prompt(tokenizer: Any, request: str, way: str) -> list[int]:
    """Token ids of a request, up to where the answer begins."""
    if way == "query":
        return text_ids(f"## Query:{request}\n## Answer:", tokenizer, special=False)[0]
    if way == "adv":
        templates = content("requests", "teaching_adversarial")["templates"]
        request = templates[_number(request, "") % len(templates)].replace("{request}", request)
    chat = [{"role": "user", "content": request}]
    return text_ids(chat_text(chat, tokenizer), tokenizer, special=False)[0]


def _number(text: str, what: str) -> int:
    """A number that depends on a text alone: the same choice each time, with lessons added or not."""
    return int(hashlib.md5((text + what).encode(), usedforsecurity=False).hexdigest()[:8], 16)


def _own_answers(model: Model, prompts: Sequence[list[int]]) -> list[list[int]]:
    written = generate(model, Prompts(prompts), Sampling(_OWN_TOKENS))
    end = [model.tokenizer.eos_token_id]
    return [[*ids, *(end if done else [])] for ids, done in zip(written.ids, written.finished, strict=True)]
