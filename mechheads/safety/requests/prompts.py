"""Prompts made from requests, however these are given: texts, the name of a set, a file, or prompts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from mechheads.messages.arguments import check_known
from mechheads.prompts.prompts import Prompts
from mechheads.safety.requests.loaders import Part, open_requests
from mechheads.safety.requests.requests import Request, load_requests

if TYPE_CHECKING:
    from mechheads.model.model import Model

Template = Literal["query", "bare", "chat"]
Requests = Sequence[str] | Prompts | str | Path | None
"""Texts, prompts, a name or file of ``mh.safety.open_requests``, or ``None`` for the requests of the package."""

TEMPLATES: dict[str, str | None] = {"query": "## Query:{q}\n## Answer:", "bare": "{q}", "chat": None}
"""``query`` is the template of the safety-head paper, ``bare`` the request alone, ``chat`` the model's own template."""


def opened(requests: Requests, part: Part = "unsafe") -> Sequence[str] | Prompts:
    """Requests with names and files opened; by default, the 60 requests of the package of this part.

    Raises:
        ValueError: if ``open_requests`` rejects the name or file.
    """
    if requests is None:
        return load_requests("harmful" if part == "unsafe" else "harmless").texts
    return open_requests(requests, part) if isinstance(requests, (str, Path)) else requests


def request_prompts(model: Model, requests: Requests = None, template: Template = "query") -> Prompts:
    """Requests as prompts for a model, up to the beginning of its answer.

    Args:
        requests: texts, to which the template is applied; a name or file of ``mh.safety.open_requests``; ``None`` for
            the 60 harmful requests of the package; or ``Prompts``, which are used as they are.
        template: ``"query"``, ``"bare"`` or ``"chat"``; see ``TEMPLATES``.

    Raises:
        ValueError: if the template is not known, if it is ``"chat"`` and the model has no chat template, or if
            ``requests`` is no file or set, or holds something that is not a text.

    >>> from mechheads.safety import request_prompts
    >>> request_prompts(model, ["How do I pick a lock?"]).items
    ['## Query:How do I pick a lock?\\n## Answer:']
    """
    check_known("template", template, TEMPLATES)
    requests = opened(requests)
    if isinstance(requests, Prompts):
        return requests
    if not len(requests):
        raise ValueError("requests is empty; give at least one, or leave it out to use the requests of the package")
    for index, request in enumerate(requests):
        if isinstance(request, Request):
            raise ValueError(f"requests[{index}] is a Request; give its .text, or the .texts of the whole set")
        if isinstance(request, Path) or (isinstance(request, str) and os.path.isfile(request)):
            raise ValueError(f"requests[{index}] is the path of a file; give it alone, as requests={str(request)!r}")
        if not isinstance(request, str) or not request.strip():
            raise ValueError(f"requests[{index}] is {request!r}; it must be a text. Give chats and ids as mh.Prompts")
    pattern = TEMPLATES[template]
    if pattern is not None:
        return Prompts([pattern.replace("{q}", request) for request in requests])
    if not model.chat_template:
        others = " or ".join(repr(name) for name in TEMPLATES if name != "chat")
        raise ValueError(f"template 'chat': {model.name} has no chat template; choose {others}, or give mh.Prompts")
    return Prompts([[{"role": "user", "content": request}] for request in requests])
