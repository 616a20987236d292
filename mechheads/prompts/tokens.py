"""Texts, chats and token ids: checked, and tokenised for one model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from mechheads.io.text import check_unicode, described, entries, whole_number
from mechheads.messages.notices import Wrapped, warn
from mechheads.prompts.chats import chat_tokens, is_chat
from mechheads.prompts.encoding import added_tokens, ids_after, piece_ids, text_ids, text_of, token_strings

if TYPE_CHECKING:
    import torch
    from jaxtyping import Bool, Int
    from torch import Tensor

Chat = Sequence[Mapping[str, Any]]
PromptLike = str | Chat | Sequence[int]
PositionLike = str | int | tuple[int, int]
"""A piece of the prompt that occurs once, a token index, or a (start, end) span of characters."""
_UNPADDED = 'the texts, or the ids of each without padding, tokenizer(texts)["input_ids"]'
"""The advice for padded rows."""


class Unpadded(tuple[int, ...]):
    """The token ids of one prompt that the package made itself, so they hold no padding."""

    __slots__ = ()


def read_prompts(prompts: Any, name: str) -> list[Any]:
    """The prompts of a list, each checked to be a text, a chat or a row of token ids; ``name`` is the argument."""
    if isinstance(prompts, Mapping) and "input_ids" in prompts:
        raise ValueError(f"{name} is the output of a tokenizer; give {_UNPADDED}")
    return [_prompt(item, f"{name}[{index}]", name) for index, item in enumerate(entries(prompts, name, "prompts"))]


def read_texts(texts: Any, name: str) -> list[str]:
    """The texts of a list, each checked to be a string; ``name`` is the argument."""
    for index, text in enumerate(read := list(entries(texts, name, "texts"))):
        if not isinstance(text, str):
            raise ValueError(f"{name}[{index}] is {described(text)}; it must be a text")
    return read


def read_answers(answers: Any, name: str) -> list[str | int]:
    """The answers of a list, each checked to be a text or a token id; ``name`` is the argument."""
    read: list[str | int] = []
    for index, answer in enumerate(entries(answers, name, "answers")):
        token = answer if isinstance(answer, str) else whole_number(answer)
        if token is None:
            raise ValueError(
                f'{name}[{index}] is {described(answer)}; give a text, such as " Paris", or a token id, a whole number'
            )
        read.append(token)
    return read


def _prompt(item: Any, where: str, name: str) -> Any:
    """One prompt: a string, a list of messages or a row of token ids."""
    if isinstance(item, str) or type(item) is Unpadded:
        return item
    if isinstance(item, Sequence) and not isinstance(item, (bytes, bytearray, memoryview)):
        return item if is_chat(item) else _ids(item, where)
    how = "give a string, a chat (a list of messages) or a list of token ids"
    if isinstance(item, Mapping) and "role" in item:
        raise ValueError(f"{where} is one message of a chat; a chat is a list of messages, so write {name}=[[message]]")
    if whole_number(item) is not None:
        raise ValueError(f"{where} is {described(item)}; {how}. One row of ids is [[...]]")
    raise ValueError(f"{where} is {described(item)}; {how}")


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


@runtime_checkable
class Reader(Protocol):
    """The part of a model that tokenising prompts needs."""

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
class Tokens(Wrapped):
    """Prompts tokenised for one model.

    Attributes:
        ids: token ids [prompt, pos], padded on the right.
        lengths: number of real tokens of each prompt [prompt].
        positions: named positions, each [prompt]; ``last`` is always defined.
        answer, wrong: token ids of the correct and the wrong answer [prompt]; None if there are none.
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
        return self._real.clone()

    @cached_property
    def _real(self) -> Bool[Tensor, "prompt pos"]:
        import torch

        return torch.arange(self.ids.shape[1], device=self.ids.device) < self.lengths[:, None]

    @property
    def on_cpu(self) -> Tokens:
        """The same tokens on the CPU, for code that reads single numbers: reading each from a GPU would wait for it."""
        return self if self.ids.device.type == "cpu" else self._on_cpu

    @cached_property
    def _on_cpu(self) -> Tokens:
        return self.on("cpu")

    def on(self, device: torch.device | str) -> Tokens:
        """The same tokens on a device; this object itself if it is there already."""
        import torch

        here, device = self.ids.device, torch.device(device)

        def there(ids: Tensor | None) -> Any:
            return None if ids is None else ids.to(device, non_blocking=here.type == "cpu")

        if here == device:
            return self
        positions = {name: there(where) for name, where in self.positions.items()}
        ids, lengths, answer, wrong = map(there, (self.ids, self.lengths, self.answer, self.wrong))
        moved = Tokens(ids, lengths, positions, answer, wrong, self.cluster, self.strings)
        if here.type == "cpu":
            vars(moved)["_on_cpu"] = self
        return moved

    @property
    def unpadded(self) -> list[list[int]]:
        """The ids of each prompt, without padding."""
        tokens = self.on_cpu
        return [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]

    def rows(self, rows: slice | Int[Tensor, " row"]) -> Tokens:
        """The tokens of some of the prompts."""
        if self.ids.device.type != "cpu":
            return self.on_cpu.rows(rows if isinstance(rows, slice) else rows.cpu()).on(self.ids.device)
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

    def position(self, name: str) -> Int[Tensor, "prompt"] | None:
        """The position of this name, or of the token with this text if each prompt has it once; otherwise None."""
        import torch

        if name in self.positions:
            return self.positions[name]
        indices = [[index for index, token in enumerate(row) if token == name] for row in self.strings]
        once = all(len(row) == 1 for row in indices)
        return torch.tensor([row[0] for row in indices], device=self.ids.device) if once else None

    def fingerprint(self) -> str:
        """A short hash of ids, named positions, answers and clusters: equal prompts have equal fingerprints."""
        digest = hashlib.sha256()
        for row in self.unpadded:
            digest.update(repr(row).encode())
        for name in sorted(self.positions):
            digest.update(f"{name}={self.on_cpu.positions[name].tolist()}".encode())
        for ids in (self.on_cpu.answer, self.on_cpu.wrong):
            digest.update(repr(None if ids is None else ids.tolist()).encode())
        digest.update(repr(self.cluster).encode())
        return digest.hexdigest()[:16]


def encode(item: PromptLike, index: int, model: Reader) -> tuple[list[int], str | None, Any]:
    """The ids of one prompt, its text (None for token ids), and each token's span of characters, if it is known."""
    what, text, offsets = f"prompt {index}", None, None
    ids: list[Any]
    chat = is_chat(item)
    if (chat or isinstance(item, str)) and model.tokenizer is None:
        raise ValueError("this model has no tokenizer; give prompts as token ids, or wrap(model, tokenizer)")
    if isinstance(item, str):
        if not item:
            raise ValueError(f"{what} is empty; a prompt needs at least one token")
        text = check_unicode(item, what)
        ids, offsets = text_ids(text, model.tokenizer)
    elif chat:
        ids, text, offsets = chat_tokens(item, model.tokenizer, what)
    else:
        ids = [*item]
    check_row(ids, what, model)
    if not isinstance(item, str):
        _warn_of_ends(ids, text, what, model.tokenizer)
    return ids, text, offsets


def check_row(ids: Sequence[int], what: str, model: Reader) -> None:
    """Check that a model can run a row of tokens."""
    if not len(ids):
        raise ValueError(f"{what} is empty; a prompt needs at least one token")
    if not 0 <= min(ids) <= max(ids) < model.d_vocab:
        token = next(each for each in ids if not 0 <= each < model.d_vocab)
        raise ValueError(
            f"{what} contains token id {token}, outside 0..{model.d_vocab - 1}: the model has no embedding for it. Use "
            "the tokenizer that the model was trained with"
        )
    if len(ids) > model.n_ctx:
        raise ValueError(f"{what} has {len(ids)} tokens; this model's context holds {model.n_ctx}")
    if len(ids) > (alike := model.alike_up_to):
        raise ValueError(
            f"{what} has {len(ids)} tokens; beyond {alike} tokens this model changes the rotation of every "
            f"position (LongRoPE), so runs of different lengths are not comparable. Give at most {alike} tokens"
        )


def check_padding(rows: Mapping[int, Sequence[int]], tokenizer: Any, name: str = "prompt") -> None:
    """Check that rows of ids do not begin or end with padding.
    A padding token that has another meaning may stand there once, unless all rows have one length and differ in it."""
    if not tokenizer:
        return
    pad, bos, eos = tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id
    padding, sizes = {pad, eos} - {None}, set(map(len, rows.values()))
    for side, step in (("begins", 1), ("ends", -1)):
        lines = {index: row[::step] for index, row in rows.items() if len(row)}
        firsts = {row[0] for row in lines.values()}
        if not firsts & padding:
            continue
        begin, end = added_tokens(tokenizer)
        meant = {*begin, eos if bos is None else bos} if side == "begins" else {*end, eos}
        meant |= {tokenizer.unk_token_id} | ({eos} if eos != pad else set())
        differ = len(firsts) > 1 and len(sizes) == 1 != max(sizes)
        for index, row in [line for line in lines.items() if line[1][0] in padding]:
            times = next((at for at, token in enumerate(row) if token != row[0]), len(row))
            if differ or times > (row[0] in meant):
                more = f" {times} times" if times > 1 else ", and other rows of this length do not" * differ
                raise ValueError(
                    f"{name} {index} {side} with {token_strings(row[:1], tokenizer)[0]!r}{more}. Tokenizers pad with "
                    f"this token, and it would be read as a part of the {name}. Give {_UNPADDED}"
                )


def _warn_of_ends(ids: Sequence[int], chat: str | None, what: str, tokenizer: Any) -> None:
    """Warn of token ids, or of a rendered chat, that end with end tokens or begin twice."""
    if not tokenizer:
        return
    begin, end = added_tokens(tokenizer)
    by_template = chat is not None and tokenizer.eos_token and chat.rstrip().endswith(tokenizer.eos_token)
    if by_template or (end and list(ids[-len(end) :]) == end):
        warn(
            f"{what} ends with an end token, so the model predicts what follows the end. Leave it out, or give the "
            "text, up to where the answer begins"
        )
    if begin and list(ids[: 2 * len(begin)]) == 2 * begin:
        warn(f"{what} begins twice with {token_strings(begin, tokenizer)}; leave one out, or give the text")


def tokens_at(where: Any, name: str, index: int, ids: list[int], text: str | None, offsets: Any) -> list[int]:
    """The indices of the tokens that a named position covers; the position itself is the last of them."""
    if (token := None if isinstance(where, str) else whole_number(where)) is not None:
        where = token
        if not -len(ids) <= where < len(ids):
            raise ValueError(f"positions[{name!r}] of prompt {index} is {where}; the prompt has {len(ids)} tokens")
        return [where % len(ids)]
    is_span = isinstance(where, Sequence) and len(where) == 2 and all(whole_number(end) is not None for end in where)
    if not isinstance(where, str) and not is_span:
        raise ValueError(
            f"positions[{name!r}] of prompt {index} is {described(where)}; give a piece of the text, a token index, or "
            "a (start, end) span of characters"
        )
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
    return inside


def answer_ids(
    answers: Sequence[str | int] | None, name: str, model: Reader, rows: Sequence[tuple[list[int], str | None, Any]]
) -> torch.Tensor | None:
    """The token id that each answer has after its prompt."""
    import torch

    if answers is None:
        return None
    ids = []
    for index, (answer, (row, text, _)) in enumerate(zip(answers, rows, strict=True)):
        what = f"{name}[{index}] = {answer!r}"
        token = _answer_id(answer, what, model, row, text) if isinstance(answer, str) else answer
        if not 0 <= token < model.d_vocab:
            raise ValueError(f"{name}[{index}] = {token} is outside the vocabulary 0..{model.d_vocab - 1}")
        ids.append(token)
    return torch.tensor(ids)


def _answer_id(answer: str, what: str, model: Reader, row: Sequence[int], text: str | None) -> int:
    tokenizer = model.tokenizer
    if not tokenizer:
        raise ValueError(f"{what}: this model has no tokenizer; give a token id")
    check_unicode(answer, what)
    text = text_of(row, tokenizer) if text is None else text
    ids = piece_ids(answer, tokenizer) if text is None else ids_after(text, answer, tokenizer)
    if ids is None:
        together = token_strings(text_ids(f"{text}{answer}", tokenizer, special=False)[0][-4:], tokenizer)
        raise ValueError(
            f"{what} and its prompt, which ends with {str(text)[-20:]!r}, share a token: together they end with the "
            f"tokens {together}. Move the space between them to the answer, or give a token id"
        )
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        raise ValueError(
            f"{what} is not one token but {token_strings(ids, tokenizer)}; "
            "choose an answer that is one token (often with a leading space), or give a token id"
        )
    return ids[0]
