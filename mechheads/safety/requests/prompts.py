"""Prompts made from requests, however these are given: texts, the name of a set, a file, or prompts.

``Side`` is what all analyses of requests work with: it is resolved once, from what a user gives.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from mechheads.generation.generate import Generated
from mechheads.io.text import described, entries
from mechheads.messages.arguments import check_known, checked
from mechheads.model.model import Model
from mechheads.prompts.chats import chat_text, continues, control_tokens_in, is_chat, messages_of
from mechheads.prompts.prompts import PromptPairs, Prompts, as_prompts
from mechheads.prompts.tokens import PromptLike
from mechheads.safety.answers.rules import is_mark, open_thought
from mechheads.safety.requests.requests import Part, Request, RequestSet, load_requests

Template = Literal["query", "bare", "chat"]
Requests = Sequence[str] | RequestSet | Prompts | str | Path | None
"""Texts, prompts, a set, name or file of ``mh.safety.load_requests``, or ``None`` for the requests of the package."""

TEMPLATES: dict[str, str | None] = {"query": "## Query:{q}\n## Answer:", "bare": "{q}", "chat": None}
"""``query`` is the template of the safety-head paper, ``bare`` the request alone, ``chat`` the model's own template."""


def opened(requests: Requests, part: Part = "unsafe", name: str = "requests") -> Sequence[str] | Prompts:
    """Requests with names and files opened; by default, the 60 requests of the package of this part."""
    if requests is None:
        return load_requests("harmful" if part == "unsafe" else "harmless").texts
    if isinstance(requests, (str, Path)):
        return load_requests(requests, part=part).texts
    if isinstance(requests, RequestSet):
        return requests.texts
    if isinstance(requests, (Prompts, PromptPairs)):
        return as_prompts(requests, name)
    return entries(requests, name, "texts")


@checked
def request_prompts(model: Model, requests: Requests = None, template: Template = "query") -> Prompts:
    """Requests as prompts for a model, up to the beginning of its answer.

    Args:
        requests: texts, to which the template is applied; a set, name or file of ``mh.safety.load_requests``; ``None``
            for the 60 harmful requests of the package; or ``Prompts``, which are used as they are.
        template: ``"query"``, ``"bare"`` or ``"chat"``; see ``TEMPLATES``.

    >>> from mechheads.safety import request_prompts
    >>> request_prompts(model, ["How do I pick a lock?"]).items
    ['## Query:How do I pick a lock?\\n## Answer:']
    """
    return Side.of(model, requests, template).prompts


def _in_template(model: Model, requests: Sequence[str] | Prompts, template: Template, name: str) -> Prompts:
    """Opened requests as prompts; ``name`` is their argument."""
    check_known("template", template, TEMPLATES)
    if isinstance(requests, Prompts):
        return requests
    if not len(requests):
        raise ValueError(f"{name} is empty; give at least one, or leave it out to use the requests of the package")
    for index, request in enumerate(requests):
        if isinstance(request, Request):
            raise ValueError(f"{name}[{index}] is a Request; give its .text, or the .texts of the whole set")
        if isinstance(request, Path) or (isinstance(request, str) and os.path.isfile(request)):
            raise ValueError(f"{name}[{index}] is the path of a file; give it alone, as {name}={str(request)!r}")
        if not isinstance(request, str) or not request.strip():
            raise ValueError(
                f"{name}[{index}] is {described(request)}; it must be a text. Give chats and ids as mh.Prompts"
            )
    pattern = TEMPLATES[template]
    if template == "query" and model.tokenizer is not None:
        for index, request in enumerate(requests):
            if found := control_tokens_in(request, model.tokenizer):
                raise ValueError(
                    f"{name}[{index}] has {found[0]!r} in it, which the tokenizer reads as a control token; take it out"
                )
    if pattern is not None:
        return Prompts([pattern.replace("{q}", request) for request in requests])
    if not model.chat_template:
        others = " or ".join(repr(name) for name in TEMPLATES if name != "chat")
        raise ValueError(f"template 'chat': {model.name} has no chat template; choose {others}, or give mh.Prompts")
    return Prompts([[{"role": "user", "content": request}] for request in requests])


@dataclass(frozen=True)
class Side:
    """Requests as a model gets them, resolved once from what a user gives."""

    prompts: Prompts
    template: str  # or "prompts as given"
    texts: tuple[str, ...]  # without the template, for people and judges

    @classmethod
    def of(
        cls, model: Model, requests: Requests, template: Template | None, part: Part = "unsafe", name: str = "requests"
    ) -> Side:
        """Requests by name, from a file, as texts or as prompts; by default, the package's of this part."""
        used = template or ("chat" if model.chat_template else "query")
        given = opened(requests, part, name)
        prompts = _in_template(model, given, used, name)
        if isinstance(given, Prompts):
            return cls(prompts, "prompts as given", tuple(map(_text, given.items)))
        return cls(prompts, used, tuple(given))

    def __len__(self) -> int:
        return len(self.prompts)

    def about(self, model: Model) -> dict[str, Any]:
        """What a result records about its prompts."""
        return {"template": self.template, "prompts": self.prompts.tokens(model), "n_prompts": len(self)}


@dataclass(frozen=True)
class Sides:
    """Requests that should be refused and requests that should not, in one template."""

    harmful: Side
    harmless: Side

    @classmethod
    def of(cls, model: Model, harmful: Requests, harmless: Requests, template: Template | None) -> Sides:
        """Both kinds of requests as prompts; by default, the package's, in the model's chat template if it has one."""
        return cls(
            Side.of(model, harmful, template, name="harmful"), Side.of(model, harmless, template, "safe", "harmless")
        )

    @property
    def template(self) -> str:
        """The name of the template, or "prompts as given" if both sides are."""
        templates = {side.template for side in self.by_kind().values()}
        return templates.pop() if len(templates) == 1 else (templates - {"prompts as given"}).pop()

    def by_kind(self) -> dict[str, Side]:
        """Each side by its name."""
        return {"harmful": self.harmful, "harmless": self.harmless}

    def check_pairs(self) -> None:
        """Check that there is one look-alike for each request."""
        if len(self.harmful) != len(self.harmless):
            raise ValueError(
                f"harmful has {len(self.harmful)} requests, harmless has {len(self.harmless)}; give a look-alike for "
                "each request, in the same order"
            )


def answers_begun(model: Model, prompts: Prompts) -> tuple[str, ...]:
    """What each prompt already has of its answer: how it begins in a chat, or the mark that opens a thought."""
    return tuple(_begun(item, index, model) for index, item in enumerate(prompts.items))


def _begun(item: PromptLike, index: int, model: Model) -> str:
    if model.tokenizer is None:
        return ""
    if is_chat(item):
        text = chat_text(item, model.tokenizer, f"prompt {index}")
        messages = messages_of(item)
        content = messages[-1]["content"] if continues(messages) else ""
        return open_thought(text.removesuffix(content)) + content
    if isinstance(item, str):
        return open_thought(item)
    ids = [int(token) for token in item][-_LAST:]  # pyright: ignore[reportArgumentType]
    return open_thought(model.tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))


_LAST = 24
"""How many tokens at the end of a row of ids are looked at for the mark of a thought."""


def whole_answers(model: Model, begun: Sequence[str], written: Generated) -> list[str]:
    """Answers as a judge needs them: what the prompts have of them and what was written, with the marks of thoughts."""
    texts: Sequence[str] = written.texts
    added = getattr(model.tokenizer, "added_tokens_decoder", {})
    marks = {token for token, about in added.items() if about.special and is_mark(about.content)}
    if marks and len(written.ids) == len(texts):
        hidden = {token for token, about in added.items() if about.special} - marks
        shown = [[token for token in ids if token not in hidden] for ids in written.ids]
        texts = [model.tokenizer.decode(ids, skip_special_tokens=False) for ids in shown]
    return [before + text for before, text in zip(begun, texts, strict=True)]


def _text(item: PromptLike) -> str:
    """A prompt as the user wrote it: for a chat its last message that is not the assistant's, for ids the numbers."""
    if isinstance(item, str):
        return item
    if not is_chat(item):
        return " ".join(map(str, item))
    messages = messages_of(item)
    asked = messages[:-1] if continues(messages) and len(messages) > 1 else messages
    return asked[-1]["content"]
