"""Text, chats and token ids, tokenised for one model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, SupportsIndex, runtime_checkable

from mechheads.files.text import check_unicode

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Int
    from torch import Tensor

Chat = Sequence[Mapping[str, str]]
PromptLike = str | Chat | Sequence[int]
PositionLike = str | int | tuple[int, int]
"""A piece of the prompt that occurs once, a token index, or a (start, end) span of characters."""


@runtime_checkable
class Reader(Protocol):
    """What tokenising prompts needs from a model."""

    tokenizer: Any
    d_vocab: int
    n_ctx: int

    @property
    def alike_up_to(self) -> int:
        """The largest prompt length up to which runs of different lengths are comparable."""
        ...

    @property
    def device(self) -> torch.device: ...


@dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """Prompts tokenised for one model.

    Attributes:
        ids: token ids [prompt, pos], padded on the right.
        lengths: number of real tokens of each prompt [prompt].
        positions: named positions, each [prompt]; ``last`` is always defined.
        answer, wrong: token ids of the correct and the wrong answer [prompt]; None if not given.
        cluster: the label of the cluster of each prompt.
        strings: the tokens as text, without padding, for figures and messages.
    """

    ids: Int[Tensor, "prompt pos"]
    lengths: Int[Tensor, "prompt"]
    positions: dict[str, Int[Tensor, "prompt"]]
    answer: Int[Tensor, "prompt"] | None
    wrong: Int[Tensor, "prompt"] | None
    cluster: tuple[str, ...]
    strings: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.lengths)

    def __repr__(self) -> str:
        n, pos = self.ids.shape
        return f"<Tokens of {n} prompt{'s' * (n != 1)}, up to {pos} each; positions {', '.join(self.positions)}>"

    @property
    def mask(self) -> Bool[Tensor, "prompt pos"]:
        """True for real tokens, False for padding."""
        import torch

        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]

    def rows(self, rows: slice | Int[Tensor, " row"]) -> Tokens:
        """The tokens of some of the prompts."""
        chosen = range(len(self))[rows] if isinstance(rows, slice) else rows.tolist()
        return Tokens(
            self.ids[rows],
            self.lengths[rows],
            {name: where[rows] for name, where in self.positions.items()},
            None if self.answer is None else self.answer[rows],
            None if self.wrong is None else self.wrong[rows],
            tuple(self.cluster[row] for row in chosen),
            tuple(self.strings[row] for row in chosen),
        )

    def on(self, device: torch.device) -> Tokens:
        """The same prompts with their tensors on another device."""
        return Tokens(
            self.ids.to(device),
            self.lengths.to(device),
            {name: where.to(device) for name, where in self.positions.items()},
            None if self.answer is None else self.answer.to(device),
            None if self.wrong is None else self.wrong.to(device),
            self.cluster,
            self.strings,
        )

    def fingerprint(self) -> str:
        """A short hash of ids, named positions, answers and clusters: equal prompts have equal fingerprints."""
        digest = hashlib.sha256()
        for row, length in zip(self.ids.tolist(), self.lengths.tolist(), strict=True):
            digest.update(repr(row[:length]).encode())
        for name in sorted(self.positions):
            digest.update(f"{name}={self.positions[name].tolist()}".encode())
        for ids in (self.answer, self.wrong):
            digest.update(repr(None if ids is None else ids.tolist()).encode())
        digest.update(repr(self.cluster).encode())
        return digest.hexdigest()[:16]


def begin_tokens(tokenizer: Any) -> list[int]:
    """The tokens that the tokenizer puts before every text, such as a beginning-of-sequence token."""
    bare, whole = (tokenizer("The", add_special_tokens=added)["input_ids"] for added in (False, True))
    starts = [i for i in range(len(whole) - len(bare) + 1) if whole[i : i + len(bare)] == bare]
    return list(whole[: starts[0]]) if bare and starts else []


def shorten(thing: object, most: int = 60) -> str:
    """The ``repr`` of an object; if it is long, its middle is replaced by dots."""
    text = repr(thing)
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 + 5 :]}"


def token_strings(ids: Sequence[int], tokenizer: Any) -> list[str]:
    """The text of each token id, or the id itself if there is no tokenizer."""
    return [str(token) if tokenizer is None else tokenizer.decode([token]) for token in ids]


def single_token(text: str, tokenizer: Any) -> int | None:
    """The id of a text that is one token in the middle of a sentence, else ``None``."""
    ids = tokenizer(check_unicode(text, "a text"), add_special_tokens=False)["input_ids"]
    if len(ids) > 1 and text.startswith(" "):
        anchor = tokenizer(":", add_special_tokens=False)["input_ids"]
        after = tokenizer(":" + text, add_special_tokens=False)["input_ids"]
        if after[: len(anchor)] == anchor:
            ids = after[len(anchor) :]
    return ids[0] if len(ids) == 1 and ids[0] != tokenizer.unk_token_id else None


def encode(item: PromptLike, index: int, model: Reader) -> tuple[list[int], str | None, Any]:
    """The ids of one prompt, its text (None for token ids), and the character span of each token."""
    tokenizer = model.tokenizer
    text = offsets = None
    if isinstance(item, str) or (len(item) and isinstance(item[0], Mapping)):
        if tokenizer is None:
            raise ValueError("this model has no tokenizer; give prompts as token ids, or wrap(model, tokenizer)")
        chat = not isinstance(item, str)
        text = _chat_text(item, tokenizer) if chat else item
        if not text:
            raise ValueError(f"prompt {index} is empty; a prompt needs at least one token")
        check_unicode(text, f"prompt {index}")
        encoded = tokenizer(text, add_special_tokens=not chat, return_offsets_mapping=tokenizer.is_fast)
        ids, offsets = list(encoded.input_ids), encoded.get("offset_mapping")
    else:
        if not all(isinstance(token, SupportsIndex) for token in item):
            raise ValueError(f"prompt {index} must be text, a chat, or a list of integer token ids; got {item!r}")
        ids = [int(token) for token in item]  # type: ignore[arg-type]
        if ids and not 0 <= min(ids) <= max(ids) < model.d_vocab:
            raise ValueError(f"prompt {index} contains token ids outside 0..{model.d_vocab - 1}")
    if not ids:
        raise ValueError(f"prompt {index} is empty; a prompt needs at least one token")
    if len(ids) > model.n_ctx:
        raise ValueError(f"prompt {index} has {len(ids)} tokens; this model's context holds {model.n_ctx}")
    if len(ids) > (alike := model.alike_up_to):
        raise ValueError(
            f"prompt {index} has {len(ids)} tokens; beyond {alike} tokens this model changes the rotation of every "
            f"position (LongRoPE), so runs of different lengths are not comparable. Give at most {alike} tokens"
        )
    return ids, text, offsets


def _chat_text(chat: Any, tokenizer: Any) -> str:
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError("this model has no chat template; give prompts as plain strings or token ids")
    try:
        return tokenizer.apply_chat_template(list(chat), tokenize=False, add_generation_prompt=True)
    except Exception as error:  # a chat template is a program that comes with the model
        raise ValueError(f"this model's chat template fails: {error}; give prompts as plain strings") from error


def locate(where: PositionLike, name: str, index: int, ids: list[int], text: str | None, offsets: Any) -> int:
    """The token index of a named position; the position of a span is its last token."""
    if isinstance(where, SupportsIndex):
        where = int(where)
        if not -len(ids) <= where < len(ids):
            raise ValueError(f"positions[{name!r}] of prompt {index} is {where}; the prompt has {len(ids)} tokens")
        return where % len(ids)
    if text is None or offsets is None:
        raise ValueError(
            f"positions[{name!r}] of prompt {index} must be a token index, because this prompt has no text offsets"
        )
    if isinstance(where, str):
        times = sum(text.startswith(where, i) for i in range(len(text)))
        if times != 1 or not where:
            raise ValueError(
                f"positions[{name!r}] of prompt {index}: {where!r} occurs {times} times in {text!r}; "
                "give a piece that occurs once, a (start, end) span of characters, or a token index"
            )
        start = text.index(where)
        where = (start, start + len(where))
    inside = [i for i, (start, end) in enumerate(offsets) if max(start, where[0]) < min(end, where[1])]
    if not inside:
        raise ValueError(f"positions[{name!r}] of prompt {index}: no token is in characters {where} of {text!r}")
    return inside[-1]


def answer_ids(answers: Sequence[str | int] | None, name: str, model: Reader) -> torch.Tensor | None:
    import torch

    if answers is None:
        return None
    ids = []
    for index, answer in enumerate(answers):
        if isinstance(answer, str) and not model.tokenizer:
            raise ValueError(f"{name}[{index}] = {answer!r}: this model has no tokenizer; give a token id")
        token = single_token(answer, model.tokenizer) if isinstance(answer, str) else int(answer)
        if token is None:
            pieces = token_strings(model.tokenizer(answer, add_special_tokens=False).input_ids, model.tokenizer)
            raise ValueError(
                f"{name}[{index}] = {answer!r} is not one token but {pieces}; "
                "choose an answer that is one token (often with a leading space), or give a token id"
            )
        if not 0 <= token < model.d_vocab:
            raise ValueError(f"{name}[{index}] = {token} is outside the vocabulary 0..{model.d_vocab - 1}")
        ids.append(token)
    return torch.tensor(ids, device=model.device)
