"""Rows of token ids that a tokenizer padded, and that came without the mask which says so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mechheads.messages.warn import warn
from mechheads.prompts.encoding import added_tokens, token_strings

_WHAT_TO_TYPE = (
    'Give the tokenizer\'s whole output, {"input_ids": ids, "attention_mask": mask}, the rows without their padding, '
    "or the texts"
)


def check_padding(
    rows: Mapping[int, Sequence[int]], tokenizer: Any, name: str = "prompt", *, warns: bool = True
) -> None:
    """Check that rows of token ids do not begin or end with padding.

    A token that is only padding is refused at either end. Many tokenizers pad with a token that has a meaning, such as
    the end of a text. A row may begin or end with one of these, but not with several, and not if rows of one length
    differ in it, as padded rows do.

    Args:
        rows: the rows that have no mask, by the number of their prompt.
        name: what a row is called in messages.
        warns: whether to warn of a row that ends with a token of both meanings.

    Raises:
        ValueError: if they do; the message says what to give instead.
    """
    if not tokenizer or not rows:
        return
    padding = [token for token in dict.fromkeys((tokenizer.pad_token_id, tokenizer.eos_token_id)) if token is not None]
    touched = {row[end] for row in rows.values() if len(row) for end in (0, -1)}
    if not touched.intersection(padding):
        return
    begin, end = added_tokens(tokenizer)
    pad, bos, eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
    anywhere = {tokenizer.unk_token_id} | ({eos} if eos != pad else set())
    meant = {
        "begins": anywhere | {*begin, eos if bos is None else bos},
        "ends": anywhere | {*end, eos},
    }
    lengths = {len(row) for row in rows.values()}
    for token in padding:
        for side, step in (("begins", 1), ("ends", -1)):
            runs = {index: _run(row[::step], token) for index, row in rows.items()}
            worst = max(runs, key=lambda index: runs[index])
            differ = len(lengths) == 1 and max(lengths) > 1 and len(set(runs.values())) > 1
            if runs[worst] > (token in meant[side]) or differ:
                times = "" if runs[worst] == 1 else f" {runs[worst]} times"
                others = ", and other rows of this length do not" * (differ and runs[worst] == 1)
                raise ValueError(
                    f"{name} {worst} {side} with {token_strings([token], tokenizer)[0]!r}{times}{others}. Tokenizers "
                    f"pad with this token, and without the mask it would be read as a part of the {name}. "
                    f"{_WHAT_TO_TYPE}"
                )
    ends = [index for index, row in rows.items() if pad == eos and len(row) > 1 and row[-1] == pad]
    if ends and warns:
        warn(
            f"{name} {ends[0]} ends with {token_strings([pad], tokenizer)[0]!r}, which is also what the tokenizer pads "
            f"with: it is taken as a token of the {name}. If it is padding, leave it out, or give the mask"
        )


def _run(row: Sequence[int], token: int) -> int:
    """How many times a token stands at the beginning of a row."""
    return next((at for at, each in enumerate(row) if each != token), len(row))
