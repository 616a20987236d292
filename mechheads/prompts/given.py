"""What people give as prompts, texts and answers: read by its type, or refused with its place.

A prompt is a text, a chat or a row of token ids. A collection of prompts is a list of these, an array, a tensor, a
column of a table, an iterator, or the output of a tokenizer, whose mask says which tokens are padding. An answer is a
text or, as a whole number, a token id; a number in a column of a table is neither, as files have texts that look like
numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mechheads.io.columns import columns_of, described, is_table_column, listed, opened, whole_number
from mechheads.prompts.chats import is_chat

_OF_TOKENIZERS = {
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "special_tokens_mask",
    "offset_mapping",
    "length",
    "num_truncated_tokens",
    "overflowing_tokens",
    "overflow_to_sample_mapping",
}
"""What the output of a tokenizer may hold."""


class Unpadded(tuple[int, ...]):
    """The token ids of one prompt that are known to be free of padding, because a mask said so or we made them."""

    __slots__ = ()


def read_prompts(given: Any, name: str) -> Sequence[Any]:
    """Prompts as a sequence of texts, chats and rows of token ids, each checked to be one of these.

    Args:
        name: the argument, for messages.

    Raises:
        ValueError: if it is no collection of prompts, or an entry is no prompt.

    >>> import numpy as np
    >>> read_prompts({"input_ids": [[0, 5, 6], [7, 8, 9]], "attention_mask": [[0, 1, 1], [1, 1, 1]]}, "prompts")
    [(5, 6), (7, 8, 9)]
    >>> read_prompts(np.array([[1, 2], [3, 4]]), "prompts"), read_prompts(iter(["a", "b"]), "prompts")
    ([[1, 2], [3, 4]], ['a', 'b'])
    >>> read_prompts(["a", None], "prompts")
    Traceback (most recent call last):
    ValueError: prompts[1] is None; give a string, a chat (a list of messages) or a list of token ids
    """
    return _or_same(given, list(each_prompt(given, name)))


def _or_same(given: Any, read: list[Any]) -> Sequence[Any]:
    """What was read; a list or tuple that it equals stays the object that it is."""
    same = isinstance(given, (list, tuple)) and all(a is b for a, b in zip(given, read, strict=True))
    return given if same else read


def each_prompt(given: Any, name: str) -> Iterator[Any]:
    """The prompts of ``read_prompts``, one after the other: those of an iterator are read as they are needed."""
    if _is_tokenized(given):
        yield from _rows(given, name)
        return
    for index, item in enumerate(opened(given, name, "prompts")):
        yield _prompt(item, f"{name}[{index}]", name)


def read_texts(given: Any, name: str) -> Sequence[str]:
    """Texts as a sequence of strings.

    Raises:
        ValueError: if it is no collection of texts, or an entry is no text.

    >>> read_texts(("a", "b"), "texts")
    ('a', 'b')
    """
    texts = list(opened(given, name, "texts"))
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{index}] is {described(text)}; it must be a text")
    return _or_same(given, texts)


def read_answers(given: Any, name: str) -> Sequence[str | int]:
    """Answers as a sequence of texts and token ids.

    Raises:
        ValueError: if it is no collection of answers, an entry is neither, or numbers come from a column of a table.

    >>> read_answers([" Paris", 5], "answer")
    [' Paris', 5]
    >>> read_answers([5.7], "answer")
    Traceback (most recent call last):
    ValueError: answer[0] is 5.7; give a text, such as " Paris", or a token id, a whole number
    """
    in_table = is_table_column(given)
    read: list[str | int] = []
    for index, answer in enumerate(opened(given, name, "answers")):
        token = answer if isinstance(answer, str) else whole_number(answer)
        if token is None:
            raise ValueError(
                f'{name}[{index}] is {described(answer)}; give a text, such as " Paris", or a token id, a whole number'
            )
        if in_table and not isinstance(token, str):
            raise ValueError(
                f"{name}[{index}] is the number {token} in a column of a table, which may be a text or a token id; "
                f"give texts, such as {name}=[str(number) for number in column], or ids, {name}=list(column)"
            )
        read.append(token)
    return _or_same(given, read)


def _prompt(item: Any, where: str, name: str) -> Any:
    """One prompt: a string, a list of messages or a row of token ids.

    Raises:
        ValueError: if it is something else.
    """
    if isinstance(item, str) or type(item) is Unpadded:
        return item
    if _is_tokenized(item):
        keys = [key for key in ("input_ids", "attention_mask") if key in item]
        (row,) = _rows({key: _as_batch(item[key], f'{where}["{key}"]') for key in keys}, where)
        return row
    if isinstance(item, Mapping) and "role" in item:
        raise ValueError(f"{where} is one message of a chat; a chat is a list of messages, so write {name}=[[message]]")
    if (columns := columns_of(item)) is not None:
        take = f"; take one of them: [row[{columns[0]!r}] for row in {name}]" if columns else ""
        raise ValueError(f"{where} is {described(item)}{take}")
    thing: Any = item
    item = listed(thing, where) if getattr(thing, "ndim", None) == 1 else thing
    if isinstance(item, Sequence) and not isinstance(item, (bytes, bytearray, memoryview)):
        return item if is_chat(item) else _ids(item, where)
    if whole_number(item) is not None:
        raise ValueError(f"{where} is {item}; give a string, a chat or a list of token ids. One row of ids is [[...]]")
    raise ValueError(f"{where} is {described(item)}; give a string, a chat (a list of messages) or a list of token ids")


def _ids(row: Sequence[Any], where: str) -> Sequence[int]:
    """A row of token ids as whole numbers of Python."""
    if all(type(token) is int for token in row):
        return row
    ids = [whole_number(token) for token in row]
    if None in ids:
        at = ids.index(None)
        raise ValueError(
            f"{where} must be text, a chat, or a list of integer token ids; got {described(row)}, whose entry {at} is "
            f"{described(row[at])}"
        )
    return ids  # type: ignore[return-value]


def _is_tokenized(given: Any) -> bool:
    """Whether something is the output of a tokenizer, and nothing else."""
    return isinstance(given, Mapping) and "input_ids" in given and set(given) <= _OF_TOKENIZERS


def _as_batch(rows: Any, name: str) -> Any:
    """What a tokenizer gives of one text as that of a list with this text."""
    rows = listed(rows, name)
    return rows if len(rows) and isinstance(rows[0], Sequence) else [rows]


def _rows(tokenized: Mapping[str, Any], name: str) -> Iterator[Sequence[int]]:
    """The rows of a tokenizer's output, without the tokens that its mask hides.

    Raises:
        ValueError: if it is of one text, its mask does not fit, or a row has no tokens or a gap.
    """
    ids, mask = (_listed(tokenized.get(key), f'{name}["{key}"]') for key in ("input_ids", "attention_mask"))
    if ids is None or (ids and not isinstance(ids[0], (list, tuple))):
        raise ValueError(f"{name} is a tokenizer's output for one text; give the output for a list, tokenizer([text])")
    if mask is not None and [len(row) for row in ids] != [len(row) if isinstance(row, list) else -1 for row in mask]:
        raise ValueError(f'{name}["attention_mask"] has another shape than {name}["input_ids"]; give one entry a token')
    for index, row in enumerate(ids):
        row = _ids(row, f'{name}["input_ids"][{index}]')
        if mask is None:
            yield row
            continue
        where = f'{name}["attention_mask"][{index}]'
        shown = [whole_number(each) if not isinstance(each, bool) else int(each) for each in mask[index]]
        if set(shown) - {0, 1}:
            other = next(each for each, one in zip(mask[index], shown, strict=True) if one not in (0, 1))
            raise ValueError(f"{where} holds {other!r}; give 1 for each token of the prompt and 0 for padding")
        real = [at for at, one in enumerate(shown) if one]
        if not real:
            raise ValueError(f"{where} hides every token; a prompt needs at least one token")
        if real[-1] - real[0] + 1 != len(real):
            raise ValueError(
                f"{where} hides tokens between others; only padding before or after a prompt can be left out, so give "
                "the rows of ids that the model should read"
            )
        yield Unpadded(row[real[0] : real[-1] + 1])


def _listed(rows: Any, name: str) -> list[Any] | None:
    return None if rows is None else [listed(row, name) for row in listed(rows, name)]
