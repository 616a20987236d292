"""Chats, checked and rendered with the model's own chat template.

After a chat that ends with a message of the user, the template opens the assistant's answer. A chat that ends with a
message of the assistant goes on within this message. Every message must appear in the rendered text: many templates
silently leave out a role that they do not know, or a system message.

A template that reads today's date with ``strftime_now`` gets the date of ``mh.settings``, or the day on which the
analysis began, and the result's provenance names it.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from mechheads.io.text import check_unicode, shown
from mechheads.limits import current, settings
from mechheads.prompts.encoding import text_ids

_ROLES = ("system", "user", "assistant")
"""Roles that every template may get; others must be named in the template."""
_ASSISTANT = ("assistant", "model")
"""Roles of the model itself; Gemma's templates call it ``model``."""
_EXAMPLE = '[{"role": "user", "content": "..."}]'
_MARK = "\uf8ff"
"""A character for private use, which no template writes."""


def is_chat(item: Any) -> bool:
    """Whether an item is meant as a chat, valid or not: a list whose first entry is an object."""
    first = next(iter(item), None) if isinstance(item, Iterable) and not isinstance(item, (str, Mapping)) else None
    return isinstance(first, Mapping)


def chat_tokens(chat: Any, tokenizer: Any, what: str) -> tuple[list[int], str, list[tuple[int, int]] | None]:
    """The token ids of a chat, its text, and each token's span of characters, if it is known."""
    messages = messages_of(chat, what)
    text = _rendered(messages, tokenizer, what)
    template = template_of(tokenizer)
    for index, message in enumerate(messages):
        by_model = message["role"] in _ASSISTANT
        if controls := control_tokens_in(message["content"], tokenizer, "" if by_model else template):
            raise ValueError(
                f"{what}: message {index} has {controls[0]!r} in its content, which the tokenizer reads as a control "
                "token: the message may end there, or another begin. Take it out, or give the whole prompt as a string"
            )
    ids, offsets = text_ids(text, tokenizer, special=False)
    return ids, text, offsets


def chat_text(chat: Any, tokenizer: Any, what: str = "the chat") -> str:
    """The text of a chat, up to where the model goes on: after the opening of an answer, or after its last message."""
    return _rendered(messages_of(chat, what), tokenizer, what)


def continues(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a chat ends with the beginning of an answer, a message of the assistant."""
    return messages[-1]["role"] in _ASSISTANT


def messages_of(chat: Any, what: str = "the chat") -> list[dict[str, str]]:
    """The messages of a chat, each with its role and its content as one text."""
    if isinstance(chat, Mapping):
        raise ValueError(f"{what} is one object with {_keys(chat)}; a chat is a list of messages, {_EXAMPLE}")
    if not len(chat):
        raise ValueError(f"{what} is a chat without messages; give at least one, {_EXAMPLE}")
    return [_message(message, f"{what}: message {index}") for index, message in enumerate(chat)]


def _message(message: Any, what: str) -> dict[str, str]:
    if not isinstance(message, Mapping):
        raise ValueError(f'{what} is {shown(message)}; each message is an object, {{"role": ..., "content": ...}}')
    for key in ("role", "content"):
        if key not in message:
            raise ValueError(f'{what} has {_keys(message)} and no {key!r}; write {{"role": ..., "content": ...}}')
    role = message["role"]
    if not isinstance(role, str) or not role:
        raise ValueError(f'{what} has the role {shown(role)}; it must be a text, such as "user"')
    if more := [key for key in message if key not in ("role", "content") and message[key] is not None]:
        raise ValueError(
            f"{what} has {more[0]!r} besides its role and content, which is not read; leave it out, or write it into "
            "the content"
        )
    content = message["content"]
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    form = 'a text, or a list of parts {"type": "text", "text": ...}'
    if not isinstance(parts, (list, tuple)) or not parts:
        raise ValueError(f"{what} has the content {shown(content)}; it must be {form}")
    if wrong := [index for index, part in enumerate(parts) if not _is_text(part)]:
        part = shown(parts[wrong[0]])
        raise ValueError(f"{what}: part {wrong[0]} of its content is {part}; the content must be {form}")
    return {"role": role, "content": check_unicode("".join(part["text"] for part in parts), what)}


def _is_text(part: Any) -> bool:
    """Whether a part of a message's content is a text."""
    present = {key: value for key, value in part.items() if value is not None} if isinstance(part, Mapping) else {}
    return present.keys() == {"type", "text"} and present["type"] == "text" and isinstance(present["text"], str)


def _rendered(messages: Sequence[Mapping[str, str]], tokenizer: Any, what: str) -> str:
    """The text that the chat template makes of checked messages."""
    template, last = template_of(tokenizer), messages[-1]["content"]
    for index, message in enumerate(messages):
        role = message["role"]
        if role not in _ROLES and not re.search(rf"""(['"]){re.escape(role)}\1""", template):
            raise ValueError(
                f"{what}: message {index} has the role {role!r}, which the model's chat template does not name; use "
                f"{', '.join(map(repr, _ROLES))}"
            )
    if continues(messages) and not last:
        raise ValueError(f"{what}: its last message, the assistant's, is empty; leave it out, and an answer is opened")
    text = _apply(tokenizer, messages)
    if (index := _left_out(messages, text, template, tokenizer)) is not None:
        raise ValueError(
            f"{what}: the model's chat template leaves out or changes message {index}, of the role "
            f"{messages[index]['role']!r}; leave out what it does not write, or give the prompt as a string"
        )
    if continues(messages) and not text.endswith(last):
        raise ValueError(
            f"{what}: its last message, the assistant's, ends with {last[-20:]!r}, but the model's chat template "
            f"writes {text[-20:]!r}; leave out what it does not write, such as spaces at the beginning and the end, or "
            "give the prompt as a string"
        )
    return text


def _apply(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    goes_on = "continue_final_message" if continues(messages) else "add_generation_prompt"
    return apply_template(tokenizer, list(messages), **{goes_on: True})


def _left_out(messages: Sequence[Mapping[str, str]], text: str, template: str, tokenizer: Any) -> int | None:
    """The index of the first message that the template leaves out, apart from spaces around it; None if none."""
    contents = [message["content"].strip() for message in messages]
    for index, content in enumerate(contents):
        if content and text.count(content) < sum(other.count(content) for other in contents):
            return index
    anyway = "\n".join([template, *(message["role"] for message in messages)])
    if not any(content and content in anyway for content in contents):
        return None
    # the template itself may write a short content: render the chat again, with a mark in each message
    marks = [f"{_MARK}{index}{_MARK}" for index in range(len(messages))]
    marked = [{**message, "content": message["content"] + mark} for message, mark in zip(messages, marks, strict=True)]
    again = _apply(tokenizer, marked)
    return next((index for index, mark in enumerate(marks) if mark not in again), None)


def control_tokens_in(text: str, tokenizer: Any, template: str = "") -> list[str]:
    """The control tokens in a text: special tokens, and added tokens that occur in the template."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return [
        token.content
        for token in added
        if token.content in text and token.content.strip() and (token.special or token.content in template)
    ]


def _keys(message: Mapping[Any, Any]) -> str:
    return f"the keys {', '.join(map(repr, list(message)[:6]))}" if message else "no keys"


# -- the template of the model ---------------------------------------------------------------------------

_NOW = re.compile(r"""\bstrftime_now\(\s*(['"])([^'"]*)\1\s*\)""")
"""Where a template writes today's date."""
_OURS = ("messages", "add_generation_prompt", "continue_final_message")
"""The options that follow from each chat."""
_NOTED: ContextVar[tuple[MutableMapping[str, Any], ...]] = ContextVar("noted", default=())


@contextmanager
def noting(notes: MutableMapping[str, Any]) -> Iterator[None]:
    """A context that writes into ``notes`` how chats are rendered, for the provenance of results."""
    token = _NOTED.set((*_NOTED.get(), notes))
    try:
        yield
    finally:
        _NOTED.reset(token)


def note(name: str, value: Any) -> None:
    """Write into all current notes how chats are rendered."""
    for notes in _NOTED.get():
        notes[name] = value


def as_here() -> settings:
    """Settings that render chats as they are rendered now, with the same date, also in another process."""
    now = current()
    return settings(date=now.date or datetime.date.today(), template_options=now.template_options)


def template_of(tokenizer: Any) -> str:
    """The source of a tokenizer's chat template."""
    templates = getattr(tokenizer, "chat_template", None)
    template = templates.get("default") if isinstance(templates, Mapping) else templates
    if not template:
        raise ValueError("this model has no (default) chat template; give prompts as plain strings or token ids")
    return template


def apply_template(tokenizer: Any, messages: list[Any], **options: Any) -> str:
    """The text of ``tokenizer.apply_chat_template``, with the date and the options of the settings."""
    template = template_of(tokenizer)
    arguments = _options(template) | {"chat_template": _dated(template)} | options
    try:
        return tokenizer.apply_chat_template(messages, tokenize=False, **arguments)
    except Exception as error:  # a template is a program that comes with the model
        raise ValueError(f"this model's chat template fails: {error}; give prompts as plain strings") from error


def _options(template: str) -> dict[str, Any]:
    """The options of the settings, each of which the template must name."""
    options = dict(current().template_options or {})
    for name in options:
        if name in _OURS or not re.search(rf"\b{re.escape(name)}\b", template):
            why = "is decided by each chat" if name in _OURS else "does not occur in this model's chat template"
            raise ValueError(f"template_options has {name!r}, which {why}; leave it out")
    if options:
        note("template_options", options)
    return options


def _dated(template: str) -> str:
    """The template with the date written into it, if it reads the date."""
    if "strftime_now" not in template:
        return template
    midnight = datetime.datetime.fromisoformat(current().date or datetime.date.today().isoformat())
    note("date", midnight.date().isoformat())
    dated = _NOW.sub(lambda call: repr(midnight.strftime(call[2])), template)
    if "strftime_now(" in dated:
        raise ValueError(
            "date: this model's chat template makes up the form of the date that it reads from the clock, so it cannot "
            "be given another; write the date into model.tokenizer.chat_template"
        )
    return dated
