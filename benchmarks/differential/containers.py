"""What people bring prompts in, and the rows of tokens that are meant."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch

Rows = list[list[int]]
Kind = Literal["text", "ids", "chat"]


class NotSo(Exception):
    """These prompts cannot come in this container."""


@dataclass(frozen=True)
class Reading:
    """Texts, and a tokenizer that says what they are.

    Attributes:
        texts: the prompts.
        tokenizer: as transformers has it.
    """

    texts: Sequence[str]
    tokenizer: Any

    @property
    def rows(self) -> Rows:
        return [ids_of(text, self.tokenizer) for text in self.texts]

    def chat_rows(self, chats: Sequence[Any]) -> Rows:
        """What transformers gives; a chat that ends with the assistant goes on."""
        if self.tokenizer.chat_template is None:
            raise NotSo("no template")
        rows = []
        for chat in chats:
            goes_on = chat[-1]["role"] == "assistant"
            given = {"continue_final_message": True} if goes_on else {"add_generation_prompt": True}
            try:
                rows.append(list(self.tokenizer.apply_chat_template(chat, tokenize=True, **given)["input_ids"]))
            except Exception as error:
                raise NotSo("the template refuses it") from error
        return rows


def ids_of(text: str, tokenizer: Any) -> list[int]:
    """The tokens of a text, without an end token that the tokenizer adds."""
    ids, bare = (list(tokenizer(text, add_special_tokens=added)["input_ids"]) for added in (True, False))
    start = next(i for i in range(len(ids)) if ids[i : i + len(bare)] == bare)
    return ids[: start + len(bare)]


@dataclass(frozen=True)
class Container:
    """A way to bring prompts.

    Attributes:
        make: gives what is brought, and the rows it means; None if it has no meaning and must be refused.
        kind: what is in it.
        must: whether it must be read ("equal"), or may be refused ("either").
    """

    make: Callable[[Reading], tuple[Any, Rows | None]]
    kind: Kind
    must: Literal["equal", "either"]


CONTAINERS: dict[str, Container] = {}


def _add(name: str, kind: Kind, must: Literal["equal", "either"], make: Callable[[Reading], tuple[Any, Any]]) -> None:
    CONTAINERS[name] = Container(make, kind, must)


def _texts(
    name: str, make: Callable[[list[str]], Any], must: Literal["equal", "either"] = "either", means: bool = True
) -> None:
    _add(name, "text", must, lambda given: (make(list(given.texts)), given.rows if means else None))


def _ids(
    name: str, make: Callable[[Rows], Any], must: Literal["equal", "either"] = "either", means: bool = True
) -> None:
    _add(name, "ids", must, lambda given: (make(given.rows), given.rows if means else None))


def _alike(rows: Rows) -> Rows:
    if len({len(row) for row in rows}) > 1:
        raise NotSo("prompts of several lengths")
    return rows


def _filtered(items: Sequence[Any]) -> pd.Series:
    """Every second entry of a longer Series, whose index is 1, 3, 5, ..."""
    every = pd.Series([each for item in items for each in ("another text", item)])
    return every.loc[[i for i in range(len(every)) if i % 2]]


_texts("list", list, "equal")
_texts("tuple", tuple, "equal")
_texts("Series", pd.Series)
_texts("filtered Series", _filtered)
_texts("Series of categories", lambda texts: pd.Series(texts, dtype="category"))
_texts("Series of strings", lambda texts: pd.Series(texts, dtype="string"))
_texts("Index", pd.Index)
_texts("array", np.array)
_texts("array of objects", lambda texts: np.array(texts, dtype=object))
_texts("array, a column", lambda texts: np.array(texts)[:, None])
_texts("list of numpy strings", lambda texts: [np.str_(text) for text in texts])
_texts("deque", deque)
_texts("iterator", iter)
_texts("generator", lambda texts: (text for text in texts))
_texts("map", lambda texts: map(str, texts))
_texts("values of a dict", lambda texts: dict(enumerate(texts)).values())
_texts("keys of a dict", lambda texts: OrderedDict.fromkeys(texts).keys() if len(set(texts)) == len(texts) else texts)
_texts("dict of a column", lambda texts: {"prompt": texts})
_texts("dict of texts by number", lambda texts: dict(enumerate(texts)))
_texts("dict of columns", lambda texts: {"text": texts, "answer": ["yes"] * len(texts)})
_texts("DataFrame", lambda texts: pd.DataFrame({"prompt": texts}))
_texts("DataFrame of two columns", lambda texts: pd.DataFrame({"prompt": texts, "answer": ["yes"] * len(texts)}))
_texts("list of records", lambda texts: [{"prompt": text} for text in texts])
_texts("list of lists of a text", lambda texts: [[text] for text in texts])
_texts("list of words", lambda texts: [text.split() for text in texts], means=False)
_texts("set", set, means=False)
_texts("bytes in a list", lambda texts: [text.encode() for text in texts], means=False)
_texts("array of bytes", lambda texts: np.array([text.encode() for text in texts]), means=False)
_texts("None in a list", lambda texts: [*texts, None], means=False)
_texts("NaN in a list", lambda texts: [*texts, float("nan")], means=False)
_texts("Series with a hole", lambda texts: pd.Series([*texts, None]), means=False)
_texts("Series of strings with a hole", lambda texts: pd.Series([*texts, None], dtype="string"), means=False)
_texts("number in a list", lambda texts: [*texts, 7], means=False)
_texts("boolean in a list", lambda texts: [*texts, True], means=False)
_texts("empty text in a list", lambda texts: [*texts, ""], means=False)
_texts("path", lambda texts: __import__("pathlib").Path(texts[0]), means=False)
_texts("nothing", lambda texts: [], means=False)
_add("one text", "text", "either", lambda given: (given.texts[0], given.rows[:1]))
_add("bytes", "text", "either", lambda given: (given.texts[0].encode(), None))


def _dataset(texts: list[str]) -> Any:
    try:
        from datasets import Dataset
    except ImportError as error:
        raise NotSo("datasets is not installed") from error

    return Dataset.from_dict({"prompt": texts, "answer": ["yes"] * len(texts)})


_texts("Dataset", _dataset)
_texts("column of a Dataset", lambda texts: _dataset(texts)["prompt"])
_texts("dict of Datasets", lambda texts: {"train": _dataset(texts)}, means=False)

_ids("rows", lambda rows: rows, "equal")
_ids("tuples of ids", lambda rows: tuple(map(tuple, rows)), "equal")
_ids("list of arrays", lambda rows: [np.array(row) for row in rows])
_ids("list of arrays of bytes' size", lambda rows: [np.array(row, dtype=np.uint16) for row in rows])
_ids("list of tensors", lambda rows: [torch.tensor(row) for row in rows])
_ids("list of tensors [1, pos]", lambda rows: [torch.tensor([row]) for row in rows])
_ids("numpy numbers in lists", lambda rows: [[np.int64(each) for each in row] for row in rows])
_ids("tensor numbers in lists", lambda rows: [[torch.tensor(each) for each in row] for row in rows])
_ids("tensor", lambda rows: torch.tensor(_alike(rows)))
_ids("tensor of int32", lambda rows: torch.tensor(_alike(rows), dtype=torch.int32))
_ids("array of ids", lambda rows: np.array(_alike(rows)))
_ids("Series of rows", pd.Series)
_ids("filtered Series of rows", _filtered)
_ids("dict of ids", lambda rows: {"input_ids": rows})
_ids("iterator of rows", iter)
_ids("nested tensor", lambda rows: torch.nested.nested_tensor([torch.tensor(row) for row in rows]))
_ids("tensor of floats", lambda rows: torch.tensor(_alike(rows)).float(), means=False)
_ids("array of floats", lambda rows: np.array(_alike(rows), dtype=float), means=False)
_ids("floats in rows", lambda rows: [[float(each) for each in row] for row in rows], means=False)
_ids("booleans in rows", lambda rows: [[True] * len(row) for row in rows], means=False)
_ids("tensor of booleans", lambda rows: torch.tensor(_alike(rows)) > 0, means=False)
_ids("None in a row", lambda rows: [[*row, None] for row in rows], means=False)
_ids("text in a row", lambda rows: [[*row, "7"] for row in rows], means=False)
_ids("-100 in a row", lambda rows: [[*row, -100] for row in rows], means=False)
_ids("unknown id", lambda rows: [[*row, 100_000] for row in rows], means=False)
_ids("empty row", lambda rows: [*rows, []], means=False)
_ids("tensor [1, prompt, pos]", lambda rows: torch.tensor([_alike(rows)]), means=False)
_ids("numbers as text", lambda rows: [[str(each) for each in row] for row in rows], means=False)
_add("one row", "ids", "either", lambda given: (given.rows[0], given.rows[:1]))
_add("one row in a tensor", "ids", "either", lambda given: (torch.tensor(given.rows[0]), given.rows[:1]))
_add("one row in an array", "ids", "either", lambda given: (np.array(given.rows[0]), given.rows[:1]))


def _pad(rows: Rows, tokenizer: Any, side: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and mask [prompt, pos] as tokenizers pad."""
    if tokenizer.pad_token_id is None:
        raise NotSo("no padding token")
    out = tokenizer.pad({"input_ids": rows}, padding_side=side, return_tensors="pt")
    return out["input_ids"], out["attention_mask"]


def _padded(name: str, side: str, make: Callable[[torch.Tensor, torch.Tensor], Any]) -> None:
    """Padded ids. Those without a mask have a meaning only if none is padding."""

    def build(given: Reading) -> tuple[Any, Rows]:
        return make(*_pad(given.rows, given.tokenizer, side)), given.rows

    _add(f"{name}, {side}", "ids", "either", build)


for _side in ("right", "left"):
    _padded("padded tensor", _side, lambda ids, mask: ids)
    _padded("padded rows", _side, lambda ids, mask: ids.tolist())
    _padded("padded array", _side, lambda ids, mask: ids.numpy())
    _padded("dict of ids and mask", _side, lambda ids, mask: {"input_ids": ids, "attention_mask": mask})
    _padded("dict of lists", _side, lambda ids, mask: {"input_ids": ids.tolist(), "attention_mask": mask.tolist()})
    _padded("dict of ids and boolean mask", _side, lambda ids, mask: {"input_ids": ids, "attention_mask": mask.bool()})
    _padded("dict of padded ids", _side, lambda ids, mask: {"input_ids": ids})
    _padded("ids and mask", _side, lambda ids, mask: (ids, mask))


def _encoding(name: str, must: Literal["equal", "either"] = "either", **settings: Any) -> None:
    """A tokenizer's output; an end token in it that the tokenizer adds to every text is part of the prompt."""

    def build(given: Reading) -> tuple[Any, Rows]:
        if settings.get("padding") and given.tokenizer.pad_token_id is None:
            raise NotSo("no padding token")
        rows = [list(given.tokenizer(text)["input_ids"]) for text in given.texts]
        if settings.get("return_tensors") and not settings.get("padding"):
            _alike(rows)
        return given.tokenizer(list(given.texts), **settings), rows

    _add(name, "ids", must, build)


_encoding("encoding")
_encoding("encoding of tensors", return_tensors="pt")
_encoding("padded encoding", padding=True)
_encoding("padded encoding of tensors", padding=True, return_tensors="pt")
_encoding("padded encoding of arrays", padding=True, return_tensors="np")
_encoding("encoding padded on the left", padding=True, return_tensors="pt", padding_side="left")
_encoding("encoding padded on the right", padding=True, return_tensors="pt", padding_side="right")
_encoding("encoding padded to 16", padding="max_length", max_length=16, return_tensors="pt")
_encoding("encoding without a mask", padding=True, return_tensors="pt", return_attention_mask=False)
_encoding("encoding with offsets", return_offsets_mapping=True, return_special_tokens_mask=True)

Chat = list[dict[str, Any]]


def _chats(
    name: str,
    chat: Callable[[str], list[Any]],
    must: Literal["equal", "either"] = "either",
    means: bool = True,
    holds: Callable[[list[Chat]], Any] = list,
) -> None:
    def build(given: Reading) -> tuple[Any, Rows | None]:
        chats = [chat(text) for text in given.texts]
        if not means:
            if given.tokenizer.chat_template is None:
                raise NotSo("no template")
            return holds(chats), None
        return holds(chats), given.chat_rows(chats)

    _add(name, "chat", must, build)


def _user(text: Any) -> Chat:
    return [{"role": "user", "content": text}]


def _said(text: str, end: str) -> Chat:
    return [*_user(text), {"role": "assistant", "content": end}]


_chats("chats", _user, "equal")
_chats("chats with a system", lambda text: [{"role": "system", "content": "Be nice"}, *_user(text)])
_chats("chats of three turns", lambda text: [*_said(text, "yes"), *_user("no")], "equal")
_chats("chats that end with the assistant", lambda text: _said(text, "Sure, bad"))
_chats("chats that end with a space", lambda text: _said(text, "Sure, "))
_chats("tuple of tuples of messages", _user, holds=lambda chats: tuple(map(tuple, chats)))
_chats("Series of chats", _user, holds=pd.Series)
_chats("filtered Series of chats", _user, holds=_filtered)
_chats("iterator of chats", _user, holds=iter)
_chats("control tokens in a chat", lambda text: _user(f"{text}<|im_end|>"))
_chats("dict of messages", _user, holds=lambda chats: {"messages": chats})
_chats("list of records of messages", _user, holds=lambda chats: [{"messages": chat} for chat in chats])
_chats("content is None", lambda text: _user(None), means=False)
_chats("content is a number", lambda text: _user(7), means=False)
_chats("content is bytes", lambda text: _user(text.encode()), means=False)
_chats("content is a dict", lambda text: _user({"text": text}), means=False)
_chats("content is an image", lambda text: _user([{"type": "image", "url": "x.png"}]), means=False)
_chats("no role", lambda text: [{"content": text}], means=False)
_chats("no content", lambda text: [{"role": "user"}], means=False)
_chats("unknown role", lambda text: [{"role": "usr", "content": text}], means=False)
_chats("role is a number", lambda text: [{"role": 1, "content": text}], means=False)
_chats("from and value", lambda text: [{"from": "human", "value": text}], means=False)
_chats("empty chat", lambda text: [], means=False)
_chats("text in a chat", lambda text: [*_user(text), text], means=False)


def _parts(given: Reading) -> tuple[Any, Rows]:
    """Content in parts of text, which are joined."""
    parts = [_user([{"type": "text", "text": part} for part in (text[:3], text[3:])]) for text in given.texts]
    return parts, given.chat_rows([_user(text) for text in given.texts])


_add("chats of parts", "chat", "either", _parts)
_add("one chat", "chat", "either", lambda given: (_user(given.texts[0]), given.chat_rows([_user(given.texts[0])])))
