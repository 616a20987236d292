"""Text as token ids.

Two rules hold everywhere. A whole text has the tokens that its tokenizer gives it, with the tokenizer's beginning
tokens once and without an end token, because the model continues after the last word. A *piece* of a text, such as an
answer, has the tokens that it has in its context: context and piece are tokenised together, and the context's tokens
are cut off. Many tokenizers (Llama 2, Mistral, Phi-3) would put a space before a piece that is tokenised alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mechheads.io.text import check_unicode

_CONTEXTS = (":", "(", "\n", "a")
"""Contexts for a piece whose context is unknown; the first that stays a token of its own before the piece is used."""


def text_ids(text: str, tokenizer: Any, *, special: bool = True) -> tuple[list[int], list[tuple[int, int]] | None]:
    """The ids of a whole text, with beginning tokens if ``special``, and each token's span of characters, if known."""
    spans = {"return_offsets_mapping": True} if getattr(tokenizer, "is_fast", False) else {}
    bare = tokenizer(text, add_special_tokens=False, verbose=False, **spans)
    ids, offsets = list(bare["input_ids"]), bare.get("offset_mapping")
    if special and (begin := begin_tokens(tokenizer)) and ids[: len(begin)] != begin:
        ids = [*begin, *ids]
        offsets = None if offsets is None else [*[(0, 0)] * len(begin), *offsets]
    return ids, offsets


def begin_tokens(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts before every text, such as a beginning-of-sequence token."""
    return added_tokens(tokenizer)[0]


def added_tokens(tokenizer: Any) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer puts before and after every text."""
    bare, whole = (list(tokenizer("The", add_special_tokens=added)["input_ids"]) for added in (False, True))
    starts = [i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare]
    return (whole[: starts[0]], whole[starts[0] + len(bare) :]) if bare and starts else ([], [])


def ids_after(context: str, piece: str, tokenizer: Any) -> list[int] | None:
    """The token ids of a piece of text after a context; None if a token spans both."""
    before, joint = (text_ids(text, tokenizer, special=False)[0] for text in (context, context + piece))
    return joint[len(before) :] if joint[: len(before)] == before else None


def piece_ids(piece: str, tokenizer: Any) -> list[int]:
    """The token ids of a piece in the middle of a text, if its context is unknown."""
    for context in _CONTEXTS:
        if ids := ids_after(context, piece, tokenizer):
            return ids
    return list(tokenizer(piece, add_special_tokens=False)["input_ids"])


def text_of(ids: Sequence[int], tokenizer: Any) -> str | None:
    """The text that has these tokens, with beginning tokens left out if they can be; None if there is no such text."""
    begin, ids = begin_tokens(tokenizer), list(ids)
    for start in dict.fromkeys([len(begin) if ids[: len(begin)] == begin else 0, 0]):
        text = tokenizer.decode(ids[start:], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        if text_ids(text, tokenizer, special=False)[0] == ids[start:]:
            return text
    return None


def single_token(text: str, tokenizer: Any) -> int | None:
    """The id of a text that is one token in the middle of a sentence, else ``None``."""
    ids = piece_ids(check_unicode(text, "a text"), tokenizer)
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk_token_id else None


def token_strings(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token id in the middle of a text; bytes that are no character as ``"<0xE2>"``."""
    if tokenizer is None:
        return [str(token) for token in ids]
    before = text_ids(_CONTEXTS[0], tokenizer, special=False)[0]
    start = tokenizer.decode(before)
    texts = [tokenizer.decode([*before, token]).removeprefix(start) for token in ids]
    shown = zip(ids, texts, strict=True)
    return [_with_bytes(text, token, tokenizer) if "\ufffd" in text else text for token, text in shown]


def _with_bytes(text: str, token: int, tokenizer: Any) -> str:
    """The text of a token, with ``<0xE2>`` for each byte that is only a part of a character."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    # a byte-level vocabulary writes each byte as one letter
    name, bytes_of = tokenizer.convert_ids_to_tokens(token), {letter: i for i, letter in bytes_to_unicode().items()}
    if not isinstance(name, str) or not bytes_of.keys() >= set(name):
        return text
    part = bytes(map(bytes_of.__getitem__, name)).decode("utf-8", "surrogateescape")
    return re.sub("[\udc80-\udcff]", lambda byte: f"<0x{ord(byte[0]) - 0xDC00:02X}>", part)
