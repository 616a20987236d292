"""Text as token ids: the one door through which every text of a user becomes a row of tokens.

Two rules hold everywhere. A whole text has the tokens that its tokenizer gives it, with the beginning tokens that the
tokenizer puts before every text, once, and without an end token: what a model says next is asked after the last word. A
*piece* of a text, such as an answer, has the tokens that it has where it stands: those of context and piece together,
beyond those of the context. Many tokenizers (Llama 2, Mistral, Phi-3) would put a space before a piece that is
tokenised alone.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from typing import Any

from mechheads.io.text import check_unicode

_CONTEXTS = (":", "(", "\n", "a")
"""Where a piece stands if nobody says where; the first of them that is a token of its own before the piece is used."""


def text_ids(text: str, tokenizer: Any, *, special: bool = True) -> tuple[list[int], list[tuple[int, int]] | None]:
    """The ids of a whole text, with beginning tokens once if ``special``, and the characters of each, if known."""
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
    """The token ids of a piece of text that stands after a context; None if a token spans both."""
    before, joint = (text_ids(text, tokenizer, special=False)[0] for text in (context, context + piece))
    return joint[len(before) :] if joint[: len(before)] == before else None


def piece_ids(piece: str, tokenizer: Any) -> list[int]:
    """The token ids of a piece in the middle of a text, if nobody says after what."""
    for context in _CONTEXTS:
        if ids := ids_after(context, piece, tokenizer):
            return ids
    return list(tokenizer(piece, add_special_tokens=False)["input_ids"])


def text_of(ids: Sequence[int], tokenizer: Any) -> str | None:
    """The text that has these tokens, with or without the beginning tokens before it; None if there is no such text."""
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
    return [
        (_with_bytes(token, tokenizer) if _REPLACED in text else None) or text
        for token, text in zip(ids, texts, strict=True)
    ]


_REPLACED = "\ufffd"
"""What stands in a decoded text for bytes that are no character."""
_ONE_BYTE = re.compile("<0x([0-9A-F]{2})>")
"""The name of a byte in the vocabularies of sentencepiece."""
_PLAIN_BYTES = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHER_BYTES = [byte for byte in range(0x100) if byte not in _PLAIN_BYTES]
_BYTE_OF = {chr(byte): byte for byte in _PLAIN_BYTES} | {chr(0x100 + i): byte for i, byte in enumerate(_OTHER_BYTES)}
"""The byte of each letter in byte-level vocabularies, as GPT-2's: those that can be printed stand for themselves."""


def _with_bytes(token: int, tokenizer: Any) -> str | None:
    """The text of a token in which bytes that are no character are named; None if its bytes are not known."""
    name = tokenizer.convert_ids_to_tokens(token)
    if isinstance(name, str):
        one = _ONE_BYTE.fullmatch(name)
        if not one and not _BYTE_OF.keys() >= set(name):
            return None
        name = bytes.fromhex(one[1]) if one else bytes(_BYTE_OF[letter] for letter in name)
    return name.decode("utf-8", "mechheads.named") if isinstance(name, bytes) else None


def _named(error: UnicodeError) -> tuple[str, int]:
    """Name the bytes that are no character."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "".join(f"<0x{byte:02X}>" for byte in error.object[error.start : error.end]), error.end


codecs.register_error("mechheads.named", _named)
