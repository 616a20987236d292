"""Chats: checked, and written in the words of the model's own template.

A chat that ends with a message of the user is followed by what opens the assistant's answer. One that ends with a
message of the assistant goes on within this message. Everything that is given must stand in what the template writes:
many templates leave out a role that they do not know, or a system message, without a word.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from mechheads.io.text import check_unicode
from mechheads.limits import current
from mechheads.messages.warn import warn
from mechheads.prompts.encoding import text_ids
from mechheads.prompts.templates import apply_template, note, template_of

_ROLES = ("system", "user", "assistant")
"""Roles that every template may get; others must be named in the template."""
_ASSISTANT = ("assistant", "model")
"""Roles of the model itself; Gemma's templates call it ``model``."""
_EXAMPLE = '[{"role": "user", "content": "..."}]'
_SHARED = {"from", "value"}
"""The keys of a message in the form of ShareGPT."""
_TAKES_PARTS = re.compile(r"""(['"])text\1|\.text\b""")
"""What a template has that reads parts of contents; those of models that also see pictures may read nothing else."""
_MARK = "\uf8ff"
"""A letter for private use, which no template writes."""


def is_chat(item: Any) -> bool:
    """Whether an item is meant as a chat, right or wrong: a list with messages in it, or with several chats.

    >>> from mechheads.prompts.chats import is_chat
    >>> is_chat([{"role": "user", "content": "Hello"}]), is_chat("Hello"), is_chat([17, 4])
    (True, False, False)
    """
    first = next(iter(item), None) if isinstance(item, Iterable) and not isinstance(item, (str, Mapping)) else None
    return isinstance(first, Mapping) or (isinstance(first, (list, tuple)) and is_chat(first))


def chat_tokens(chat: Any, tokenizer: Any, what: str) -> tuple[list[int], str, list[tuple[int, int]] | None]:
    """The token ids of a chat, its text, and the characters of each token, if they are known.

    Args:
        what: names the chat in messages, such as "prompt 3".

    Raises:
        ValueError: as ``chat_text``.

    Warns:
        if a message has control tokens in it, which ``mh.settings(control_tokens="text")`` reads as text.
    """
    messages = messages_of(chat, what)
    text, shape = _written(messages, tokenizer, what)
    if found := next(_control_tokens(messages, tokenizer), None):
        index, token = found
        if current().control_tokens == "text":
            note("control_tokens", "text")
            return _ids_as_text(messages, shape, tokenizer), text, None
        warn(
            f"{what}: message {index} has {token!r} in its content, which the tokenizer reads as a control token: the "
            "message may end there, or another begin. To keep it as text, use "
            'mh.settings(control_tokens="text")'
        )
    ids, offsets = text_ids(text, tokenizer, special=False)
    return ids, text, offsets


def chat_text(chat: Any, tokenizer: Any, what: str = "the chat") -> str:
    """A chat in the words of the tokenizer's template, up to where the model goes on.

    Args:
        chat: messages with a role and a content: a text, or a list of parts ``{"type": "text", "text": ...}``, whose
            texts are joined as they are. If the last is the assistant's, it is continued; otherwise an answer is
            opened.

    Raises:
        ValueError: if the chat is not of this form, there is no template, it fails, or it leaves out or changes a
            message.
    """
    return _written(messages_of(chat, what), tokenizer, what)[0]


def continues(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a chat ends with the beginning of an answer."""
    return messages[-1]["role"] in _ASSISTANT


def messages_of(chat: Any, what: str = "the chat") -> list[dict[str, str]]:
    """The messages of a chat, each with its role and its content as one text.

    Raises:
        ValueError: if it has another form; the message says what to type.

    >>> from mechheads.prompts.chats import messages_of
    >>> messages_of([{"role": "user", "content": [{"type": "text", "text": "Hello"}]}])
    [{'role': 'user', 'content': 'Hello'}]
    """
    if isinstance(chat, Mapping):
        several = [name for name in ("messages", "conversations", "conversation") if name in chat]
        how = f"give its list of messages, [{several[0]!r}]" if several else f"a chat is a list of messages, {_EXAMPLE}"
        raise ValueError(f"{what} is one object with {_keys(chat)}; {how}")
    if not len(chat):
        raise ValueError(f"{what} is a chat without messages; give at least one, {_EXAMPLE}")
    return [_message(message, f"{what}: message {index}") for index, message in enumerate(chat)]


def _message(message: Any, what: str) -> dict[str, str]:
    if isinstance(message, (list, tuple)):
        raise ValueError(f"{what} is a list, so there are several chats in one; give each as a prompt of its own")
    if not isinstance(message, Mapping):
        raise ValueError(f'{what} is {_short(message)}; each message is an object, {{"role": ..., "content": ...}}')
    if message.keys() >= _SHARED and "content" not in message:
        raise ValueError(
            f'{what} has the keys "from" and "value" of ShareGPT; write {{"role": ..., "content": message["value"]}}, '
            'with the role "user" for "human" and "assistant" for "gpt"'
        )
    for key in ("role", "content"):
        if key not in message:
            raise ValueError(f'{what} has {_keys(message)} and no {key!r}; write {{"role": ..., "content": ...}}')
    role = message["role"]
    if not isinstance(role, str) or not role:
        raise ValueError(f'{what} has the role {_short(role)}; it must be a text, such as "user"')
    if more := [key for key in message if key not in ("role", "content") and message[key] is not None]:
        raise ValueError(
            f"{what} has {more[0]!r} beside its role and content, which is not read; leave it out, or write it into "
            "the content"
        )
    return {"role": role, "content": _content(message["content"], what)}


def _content(content: Any, what: str) -> str:
    if isinstance(content, str):
        return check_unicode(content, what)
    if hasattr(content, "tolist"):
        content = content.tolist()
    form = 'a text, or a list of parts {"type": "text", "text": ...}'
    if not isinstance(content, (list, tuple)) or not content:
        raise ValueError(f"{what} has the content {_short(content)}; it must be {form}")
    texts = []
    for index, part in enumerate(content):
        given = {key: value for key, value in part.items() if value is not None} if isinstance(part, Mapping) else {}
        if given.keys() != {"type", "text"} or given["type"] != "text" or not isinstance(given["text"], str):
            raise ValueError(f"{what}: part {index} of its content is {_short(part)}; the content must be {form}")
        texts.append(given["text"])
    return check_unicode("".join(texts), what)


def _written(messages: Sequence[Mapping[str, str]], tokenizer: Any, what: str) -> tuple[str, type]:
    """The text of a chat, and the type of the contents that its template takes: a text, or a list of parts."""
    template = template_of(tokenizer)
    for index, message in enumerate(messages):
        role = message["role"]
        if role not in _ROLES and not re.search(rf"""(['"]){re.escape(role)}\1""", template):
            raise ValueError(
                f"{what}: message {index} has the role {role!r}, which the model's chat template does not name; use "
                f"{', '.join(map(repr, _ROLES))}"
            )
    if continues(messages) and not messages[-1]["content"]:
        raise ValueError(f"{what}: its last message, the assistant's, is empty; leave it out, and an answer is opened")
    first: ValueError | None = None
    for shape in (str, list) if _TAKES_PARTS.search(template) else (str,):
        try:
            text = _apply(tokenizer, messages, shape)
            index = _left_out(messages, text, template, tokenizer, shape)
            if shape is list and "'type': 'text'" in text:
                index = 0  # the parts were written as Python writes a list
            if index is not None:
                raise ValueError(
                    f"{what}: the model's chat template leaves out or changes message {index}, of the role "
                    f"{messages[index]['role']!r}; leave out what it does not write, or give the prompt as a string"
                )
            _check_end(messages, text, what)
        except ValueError as error:
            first = first or error
        else:
            return text, shape
    raise first or ValueError(f"{what} cannot be written")


def _check_end(messages: Sequence[Mapping[str, str]], text: str, what: str) -> None:
    content = messages[-1]["content"]
    if continues(messages) and not text.endswith(content):
        raise ValueError(
            f"{what}: its last message, the assistant's, ends with {content[-20:]!r}, but the model's chat template "
            f"writes {text[-20:]!r}; leave out what it does not write, such as spaces at the beginning and the end, or "
            "give the prompt as a string"
        )


def _apply(tokenizer: Any, messages: Sequence[Mapping[str, str]], shape: type, **options: Any) -> Any:
    given = [
        {"role": one["role"], "content": one["content"] if shape is str else [{"type": "text", "text": one["content"]}]}
        for one in messages
    ]
    goes_on = {"continue_final_message": True} if continues(messages) else {"add_generation_prompt": True}
    return apply_template(tokenizer, given, **goes_on, **options)


def _left_out(
    messages: Sequence[Mapping[str, str]], text: str, template: str, tokenizer: Any, shape: type
) -> int | None:
    """The first message that the template did not write, but for spaces around it; None if all are there."""
    contents = [message["content"].strip() for message in messages]
    for index, content in enumerate(contents):
        if content and text.count(content) < sum(other.count(content) for other in contents):
            return index
    anyway = "\n".join([template, *(message["role"] for message in messages)])
    if not any(content and content in anyway for content in contents):
        return None
    # a short content may be there because the template writes it anyway: write the chat again, with marks
    marked = [
        {**message, "content": f"{message['content']}{_MARK}{index}{_MARK}"} for index, message in enumerate(messages)
    ]
    again = _apply(tokenizer, marked, shape)
    return next((index for index in range(len(messages)) if f"{_MARK}{index}{_MARK}" not in again), None)


def _control_tokens(messages: Sequence[Mapping[str, str]], tokenizer: Any) -> Iterator[tuple[int, str]]:
    """Control tokens in the contents of messages, each with the index of its message.

    They are the tokenizer's special tokens and, but for the assistant's own messages, which may hold a thought, tokens
    that were added to the vocabulary and that the template writes.
    """
    template = template_of(tokenizer)
    for index, message in enumerate(messages):
        written = "" if message["role"] in _ASSISTANT else template
        yield from ((index, token) for token in control_tokens_in(message["content"], tokenizer, written))


def control_tokens_in(text: str, tokenizer: Any, template: str = "") -> list[str]:
    """The control tokens in a text: special tokens, and tokens added to the vocabulary that a template writes.

    >>> from mechheads.prompts.chats import control_tokens_in
    >>> control_tokens_in("Is it?<|im_end|>", model.tokenizer)
    ['<|im_end|>']
    """
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return [
        token.content
        for token in added
        if token.content in text and token.content.strip() and (token.special or token.content in template)
    ]


def _ids_as_text(messages: Sequence[Mapping[str, str]], shape: type, tokenizer: Any) -> list[int]:
    """The ids of a chat in which control tokens in the contents of messages are text.

    Raises:
        ValueError: if transformers cannot do that here.
    """
    if "sanitize_control_tokens" not in inspect.signature(tokenizer.apply_chat_template).parameters:
        raise ValueError(
            'control_tokens is "text", but this release of transformers, or this tokenizer, cannot read control tokens '
            "as text; update transformers, or take the control tokens out of the messages"
        )
    return [*_apply(tokenizer, messages, shape, tokenize=True, return_dict=False, sanitize_control_tokens=True)]


def _keys(message: Mapping[Any, Any]) -> str:
    shown = ", ".join(map(repr, list(message)[:6])) or "no keys"
    return f"the keys {shown}" if message else shown


def _short(thing: object) -> str:
    text = repr(thing)
    return text if len(text) <= 60 else f"{text[:57]}..."
