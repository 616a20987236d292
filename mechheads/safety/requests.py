"""Requests that a safe model should refuse, and the prompts they make under a template."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from mechheads.data import folder
from mechheads.prompts import Prompts

if TYPE_CHECKING:
    from mechheads.model import Model

Template = Literal["query", "bare", "chat"]
Requests = Sequence[str] | Prompts | None

TEMPLATES: dict[str, str | None] = {"query": "## Query:{q}\n## Answer:", "bare": "{q}", "chat": None}
"""``query`` is that of the safety-head paper, ``bare`` the request alone, ``chat`` the model's own."""


@dataclass(frozen=True)
class Request:
    """One request and the kind of harm it asks for."""

    text: str
    category: str


def load_requests(name: str = "harmful") -> tuple[Request, ...]:
    """A set of requests that comes with the package.

    Args:
        name: ``"harmful"``: 24 requests that a safe model should refuse, three of each of eight categories.
            They were written for mechheads and say nothing about how anything is done.

    Raises:
        ValueError: if there is no such set.

    >>> from mechheads.safety import load_requests
    >>> len(load_requests()), load_requests()[0].category
    (24, 'Violence')
    """
    known = sorted(item.name.removesuffix(".json") for item in folder("requests").iterdir())
    if name not in known:
        raise ValueError(f"there is no set of requests {name!r}; there is {', '.join(known)}")
    content = json.loads((folder("requests") / f"{name}.json").read_text(encoding="utf-8"))
    return tuple(Request(entry["text"], entry["category"]) for entry in content["requests"])


def request_prompts(model: Model, requests: Requests = None, template: Template = "query") -> Prompts:
    """Requests as prompts for a model, up to where its answer begins.

    Args:
        requests: texts, to which the template is applied; ``None`` for the 24 of the package; or ``Prompts``,
            which are taken as they are.
        template: ``"query"``, ``"bare"`` or ``"chat"``; see ``TEMPLATES``.

    Raises:
        ValueError: for an unknown template, ``"chat"`` with a model that has no chat template, or requests
            that are no texts.

    >>> from mechheads.safety import request_prompts
    >>> request_prompts(model, ["How do I pick a lock?"]).items
    ['## Query:How do I pick a lock?\\n## Answer:']
    """
    if template not in TEMPLATES:
        raise ValueError(f"template is {template!r}; choose one of {', '.join(map(repr, TEMPLATES))}")
    if isinstance(requests, Prompts):
        return requests
    if requests is None:
        requests = [request.text for request in load_requests()]
    if isinstance(requests, str):
        raise ValueError(f"requests must be a list of texts, got one text; write [{requests[:40]!r}]")
    if not len(requests):
        raise ValueError("requests is empty; give at least one, or leave it out for those of the package")
    for index, request in enumerate(requests):
        if not isinstance(request, str) or not request.strip():
            raise ValueError(f"requests[{index}] is {request!r}; a request is a text. Give chats and ids as mh.Prompts")
    pattern = TEMPLATES[template]
    if pattern is not None:
        return Prompts([pattern.replace("{q}", request) for request in requests])
    if not model.chat_template:
        others = " or ".join(repr(name) for name in TEMPLATES if name != "chat")
        raise ValueError(f"template 'chat': {model.name} has no chat template; choose {others}, or give mh.Prompts")
    return Prompts([[{"role": "user", "content": request}] for request in requests])
