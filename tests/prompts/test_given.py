"""Every container that people bring, at every door: the same as a list, or refused with the name of the argument."""

from __future__ import annotations

import copy
import re
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import mechheads as mh
from mechheads.behaviour.windows import windows_of
from mechheads.prompts.given import Unpadded
from mechheads.prompts.prompts import as_prompts
from mechheads.prompts.tokens import check_padding
from mechheads.results.scores import HeadScores
from mechheads.safety.requests.prompts import Sides, request_prompts
from mechheads.safety.requests.texts import text_tokens
from mechheads.studies.head_patterns import head_patterns

TEXTS = [" The capital of France is", " The capital of Italy is"]
LONG = [" When John and Mary went to the store gave a book no I cannot help Sure" * 3, " The capital of" * 12]


class Column(Sequence[Any]):
    """As a column of ``datasets``, which is a sequence of its cells."""

    def __init__(self, cells: Sequence[Any]) -> None:
        self.cells = cells

    def __getitem__(self, at: Any) -> Any:
        return self.cells[at]

    def __len__(self) -> int:
        return len(self.cells)


class Dataset:
    """As a ``datasets.Dataset``: it has names of columns, and iterating gives rows."""

    column_names = ("prompt", "answer")

    def __len__(self) -> int:
        return 2

    def __iter__(self) -> Any:
        return iter([{"prompt": text, "answer": " Paris"} for text in TEXTS])


def filtered(texts: Sequence[str]) -> Any:
    """A column of which rows were left out, so that its index begins at 1 and has a gap."""
    frame = pd.DataFrame({"text": ["no", texts[0], "no", *texts[1:]]})
    return frame[frame["text"] != "no"]["text"]


READ: dict[str, Callable[[list[str]], Any]] = {
    "tuple": tuple,
    "deque": deque,
    "iterator": iter,
    "generator": lambda texts: (text for text in texts),
    "values of a dict": lambda texts: dict(enumerate(texts)).values(),
    "array of objects": lambda texts: np.array(texts, dtype=object),
    "array of texts": np.array,
    "Series": pd.Series,
    "filtered Series": filtered,
    "Series of categories": lambda texts: pd.Series(texts, dtype="category"),
    "Series of pandas texts": lambda texts: pd.Series(texts, dtype="string"),
    "Categorical": pd.Categorical,
    "Index": pd.Index,
    "column of a data set": Column,
}
"""Containers that are read, and how each is made of a list."""
REFUSED: dict[str, tuple[Callable[[list[str]], Any], str]] = {
    "text": (lambda texts: texts[0], " must be a list of"),
    "frame": (
        lambda texts: pd.DataFrame({"prompt": texts, "answer": " Paris"}),
        " is a DataFrame with the columns 'prompt', 'answer'; give one column, such as {name}=table['prompt']",
    ),
    "dict of columns": (
        lambda texts: {"prompt": texts},
        " is a dict with the keys 'prompt'; give one column, such as {name}=table['prompt']",
    ),
    "data set": (lambda texts: Dataset(), " is a Dataset with the columns 'prompt', 'answer'; give one column"),
    "splits of a data set": (
        lambda texts: {"train": Dataset()},
        " is a dict with the keys 'train'; give one column of one of them, such as {name}=table['train']['prompt']",
    ),
    "structured array": (
        lambda texts: np.array([(texts[0], 1)], dtype=[("prompt", "U40"), ("n", "i8")]),
        " is a ndarray with the columns 'prompt', 'n'; give one column",
    ),
    "set": (set, " is a set; give a list of"),
    "keys of a dict": (lambda texts: dict.fromkeys(texts).keys(), " is a dict_keys; give a list of"),
    "bytes": (lambda texts: b"text", " is b'text'; give a list of"),
    "number": (lambda texts: 5, " is 5; give a list of"),
    "text of an array": (lambda texts: np.array("a"), " is one value, array('a', dtype='<U1'); give a list of"),
    "three dimensions": (lambda texts: torch.zeros(1, 2, 3), " is a Tensor of torch.float32 with the shape (1, 2, 3)"),
    "numbers with a point": (lambda texts: torch.zeros(2, 3), " is a Tensor of torch.float32 with the shape (2, 3)"),
    "booleans": (lambda texts: np.ones((2, 3), bool), " is a ndarray of bool with the shape (2, 3)"),
    "entry None": (lambda texts: [*texts, None], "[2] is None"),
    "entry NaN": (lambda texts: pd.Series([*texts, float("nan")], index=[5, 6, 9]), "[2] is missing (nan)"),
    "entry NA": (lambda texts: pd.Series([*texts, pd.NA], dtype="string"), "[2] is missing (<NA>)"),
    "entry of bytes": (lambda texts: [texts[0], b"a"], "[1] is b'a'"),
    "entry True": (lambda texts: [texts[0], True], "[1] is True"),
    "entry with a point": (lambda texts: [texts[0], 5.7], "[1] is 5.7"),
    "entry of bytes in an array": (lambda texts: np.array([b"a", b"b"]), "[0] is b'a'"),
    "rows of a table": (lambda texts: [{"prompt": texts[0], "n": 1}], "[0] is a dict with the keys 'prompt', 'n'"),
    "rows of texts": (lambda texts: [texts], "[0] "),
}
"""Containers that are refused, and what is said after the name of the argument."""


def _task(prompts: Any) -> mh.Task:
    return mh.Task(prompts, [" Paris", " Rome"])


DOORS: dict[str, tuple[str, Callable[[mh.Model, Any], Any]]] = {
    "Prompts": ("items", lambda model, given: mh.Prompts(given)),
    "clean": ("clean", lambda model, given: mh.PromptPairs(given, TEXTS)),
    "corrupted": ("corrupted", lambda model, given: mh.PromptPairs(TEXTS, given)),
    "cache": ("prompts", lambda model, given: model.cache(given)),
    "ablate": ("prompts", lambda model, given: mh.ablate(model, given)),
    "sweep": ("prompts", lambda model, given: mh.sweep(model, given, intervention="zero")),
    "prepare": ("prompts", lambda model, given: mh.prepare(model, given)),
    "generate": ("prompts", lambda model, given: mh.generate(model, given, 1)),
    "patterns": ("prompts", lambda model, given: head_patterns(model, given)),
    "logits": ("prompts", lambda model, given: mh.behaviour.logit_attribution(model, given)),
    "task": ("prompts", lambda model, given: _task(given)),
    "targets": ("targets", lambda model, given: mh.Task(TEXTS, given)),
    "ships": ("requests", lambda model, given: mh.ships(model, given)),
    "angle": ("requests", lambda model, given: mh.safety.generalized_ships(model, given)),
    "sahara": ("requests", lambda model, given: mh.safety.sahara(model, given)),
    "safety heads": ("requests", lambda model, given: mh.safety_heads(model, given, 2)),
    "harmful": ("harmful", lambda model, given: mh.safety.refusal_contribution(model, given, TEXTS)),
    "harmless": ("harmless", lambda model, given: mh.safety.refusal_contribution(model, TEXTS, given)),
    "profile": ("texts", lambda model, given: mh.profile_heads(model, given)),
    "examples": ("texts", lambda model, given: mh.behaviour.head_examples(model, given)),
    "loss": ("texts", lambda model, given: mh.safety.text_loss(model, given)),
    "folded": ("texts", lambda model, given: mh.safety.folded(given)),
}
"""Where texts go in, by the argument's name."""
NAMES_ARE_READ = {"ships", "angle", "sahara", "safety heads", "harmful", "harmless", "profile", "examples"}
"""Here a text alone is the name of a set, or of a file."""


@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_a_container_for_something_else(loaded: Any, door: str) -> None:
    model, (name, enter) = loaded("gpt2"), DOORS[door]
    for container, (make, said) in REFUSED.items():
        if container == "text" and door in NAMES_ARE_READ:
            continue
        wanted = re.escape(f"{name}{said}".replace("{name}", name))
        if container.startswith("entry") or container in ("rows of a table", "rows of texts"):
            wanted = re.escape(f"{name}{said[:3]}")  # the doors differ in what they say of an entry
        with pytest.raises(ValueError, match=rf"\A{wanted}"):
            enter(model, make(list(TEXTS)))


@pytest.mark.parametrize("container", READ)
def test_every_door_reads_a_container_as_the_list(loaded: Any, container: str) -> None:
    model, make = loaded("gpt2"), READ[container]
    assert mh.Prompts(make(TEXTS)).tokens(model).strings == mh.Prompts(TEXTS).tokens(model).strings
    assert list(as_prompts(make(TEXTS)).items) == TEXTS
    pairs = mh.PromptPairs(make(TEXTS), make(TEXTS[::-1]), make([" Paris", " Rome"]), make([" Rome", " Paris"]))
    assert [side.answer.tolist() for side in pairs.tokens(model)] == [
        side.answer.tolist()
        for side in mh.PromptPairs(TEXTS, TEXTS[::-1], [" Paris", " Rome"], [" Rome", " Paris"]).tokens(model)
    ]
    assert mh.Task(make(TEXTS), make([" Paris", " Rome"])).prompts == tuple(TEXTS)
    assert list(request_prompts(model, make(TEXTS), "bare").items) == TEXTS
    sides = Sides.of(model, make(TEXTS), make(TEXTS[::-1]), "bare")
    assert (sides.harmful.texts, sides.harmless.texts) == (tuple(TEXTS), tuple(TEXTS[::-1]))
    assert text_tokens(model, make(TEXTS)).unpadded == text_tokens(model, TEXTS).unpadded
    assert list(mh.safety.folded(make(TEXTS))) == TEXTS
    read, wanted = ([w.ids.tolist() for w in windows_of(model, one, 16, None)] for one in (make(LONG), LONG))
    assert read == wanted
    assert mh.generate(model, make(TEXTS), 2).texts == mh.generate(model, TEXTS, 2).texts
    assert list(mh.Prompts(TEXTS, cluster=make(["a", "a"])).cluster or ()) == ["a", "a"]


def test_an_iterator_is_read_once_and_kept() -> None:
    prompts = mh.Prompts(iter(TEXTS), answer=iter([" Paris", " Rome"]), cluster=iter("ab"))
    assert (list(prompts.items), prompts.cluster) == (TEXTS, ["a", "b"])
    assert list(prompts.answer or ()) == [" Paris", " Rome"]
    assert len(prompts) == 2


# -- token ids and their masks ----------------------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["pt", "np", None])
def test_the_mask_of_a_tokenizers_output_is_honoured(loaded: Any, side: str, kind: str | None) -> None:
    model = loaded("llama")
    texts = [*TEXTS, " The dog"]
    padded = model.tokenizer(texts, padding=True, return_tensors=kind, padding_side=side)
    alone = [model.tokenizer(text)["input_ids"] for text in texts]
    assert [list(row) for row in mh.Prompts(padded).items] == alone
    logits, wanted = model.cache(padded).logits, model.cache(texts).logits
    for row, length in enumerate(map(len, alone)):
        torch.testing.assert_close(logits[row, :length], wanted[row, :length], atol=1e-5, rtol=0)
    assert mh.generate(model, padded, 3).ids == mh.generate(model, texts, 3).ids
    assert [list(row) for row in mh.Task(padded, [[3]] * 3).prompts] == alone
    assert [list(row) for row in mh.Prompts([model.tokenizer(text) for text in texts]).items] == alone
    without = padded["input_ids"]
    with pytest.raises(ValueError, match=r"prompt 2 (begins|ends) with '<pad>' .* times.*attention_mask"):
        model.cache(without)


ENCODED = {
    'prompts["attention_mask"][0] hides tokens between others': {
        "input_ids": [[3, 4, 5]],
        "attention_mask": [[1, 0, 1]],
    },
    'prompts["attention_mask"][0] hides every token': {"input_ids": [[3, 4]], "attention_mask": [[0, 0]]},
    'prompts["attention_mask"][0] holds 0.5': {"input_ids": [[3, 4]], "attention_mask": [[1, 0.5]]},
    'prompts["attention_mask"] has another shape': {"input_ids": [[3, 4]], "attention_mask": [[1]]},
    "prompts is a tokenizer's output for one text": {"input_ids": [3, 4], "attention_mask": [1, 1]},
    "prompts is a dict with the keys 'input_ids', 'text'; give the prompts": {"input_ids": [[3]], "text": ["a"]},
    "prompts[0] is 3; give a string, a chat or a list of token ids. One row of ids is [[...]]": torch.tensor([3, 4]),
    "prompts[0] is a Tensor of torch.int64 with the shape (1, 2)": [torch.tensor([[3, 4]])],
    "prompts[0] must be text, a chat, or a list of integer token ids; got [3, True]": [[3, True]],
    "prompts[0] is one message of a chat": [{"role": "user", "content": "a"}],
    "prompts is a dict with the keys 'role', 'content'; this is one message": {"role": "user", "content": "a"},
}


@pytest.mark.parametrize("said", ENCODED)
def test_ids_that_are_no_rows_are_refused(said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        as_prompts(ENCODED[said])


def test_rows_of_ids_are_read_from_tensors_and_arrays() -> None:
    for rows in (torch.tensor([[3, 4], [5, 6]]), np.array([[3, 4], [5, 6]]), [np.array([3, 4]), torch.tensor([5, 6])]):
        assert as_prompts(rows).items == [[3, 4], [5, 6]]
    chats = pd.Series([np.array([{"role": "user", "content": "a"}], dtype=object)])  # as Parquet gives them
    assert as_prompts(chats).items == [[{"role": "user", "content": "a"}]]


ROWS = torch.tensor([[3, 4], [5, 6]])


@pytest.mark.parametrize("tensor", [ROWS.to_sparse(), torch.nested.nested_tensor([*ROWS], layout=torch.jagged)])
def test_tensors_of_any_layout_are_read(tensor: torch.Tensor) -> None:
    for given in (tensor, {"input_ids": tensor}):
        assert as_prompts(given).items == [[3, 4], [5, 6]]


def test_a_tensor_without_data_is_refused() -> None:
    empty = ROWS.to("meta")
    for given, what in ((empty, "prompts"), ({"input_ids": empty}, 'prompts["input_ids"]'), ([*empty], "prompts[0]")):
        with pytest.raises(ValueError, match=re.escape(f'{what} is a tensor on the device "meta", which has a shape')):
            as_prompts(given)
    with pytest.raises(ValueError, match=r"prompts\[0\] must be text, a chat, or a list of integer token ids"):
        as_prompts([[empty[0, 0]]])


@pytest.fixture
def tokenizer(loaded: Any) -> Any:
    """A tokenizer of its own, to pad as one likes."""
    return copy.deepcopy(loaded("llama").tokenizer)


def _said(rows: list[list[int]], tokenizer: Any) -> str:
    try:
        check_padding(dict(enumerate(rows)), tokenizer)
    except ValueError as error:
        return str(error)
    return ""


def test_padding_that_is_only_padding_is_refused_at_either_end(tokenizer: Any) -> None:
    pad = tokenizer.pad_token_id
    assert pad not in (tokenizer.bos_token_id, tokenizer.eos_token_id)
    for rows in ([[pad, 9]], [[9, pad]], [[9, 8], [9, 8, 7, pad, pad]]):
        assert "Tokenizers pad with this token" in _said(rows, tokenizer)
    assert not _said([[9, pad, 8]], tokenizer)


@pytest.mark.filterwarnings("error")
def test_a_beginning_that_is_also_the_padding_is_no_padding(tokenizer: Any) -> None:
    tokenizer.pad_token = tokenizer.bos_token
    bos = tokenizer.bos_token_id
    assert not _said([[bos, 9, 8], [bos, 7, 6]], tokenizer)
    assert not _said([[bos, 9]], tokenizer)
    assert "begins with '<bos>' 2 times" in _said([[bos, bos, 9], [bos, 8, 7]], tokenizer)
    assert "ends with '<bos>'" in _said([[bos, 9, bos], [bos, 8, 7]], tokenizer)


def test_an_end_that_is_also_the_padding_is_told(tokenizer: Any) -> None:
    tokenizer.pad_token = tokenizer.eos_token
    eos = tokenizer.eos_token_id
    assert "ends with '<eos>' 2 times" in _said([[9, eos, eos], [8, 7, 6]], tokenizer)
    assert "ends with '<eos>', and other rows of this length do not" in _said([[9, 8, eos], [8, 7, 6]], tokenizer)
    assert "begins with '<eos>'" in _said([[eos, 9, 8]], tokenizer)  # this tokenizer begins with another token
    with pytest.warns(UserWarning, match="prompt 1 ends with '<eos>', which is also what the tokenizer pads with"):
        assert not _said([[9, 8], [9, 8, eos]], tokenizer)


def test_rows_that_a_mask_describes_are_not_doubted(loaded: Any) -> None:
    model = loaded("gpt2")
    pad = model.tokenizer.pad_token_id
    whole = {"input_ids": [[9, pad], [8, 7]], "attention_mask": [[1, 1], [1, 1]]}
    assert mh.Prompts(whole).tokens(model).unpadded == [[9, pad], [8, 7]]
    assert mh.Prompts([Unpadded([9, pad])]).tokens(model).unpadded == [[9, pad]]


# -- answers ------------------------------------------------------------------------------------------------


def test_answers_of_python_are_texts_or_ids() -> None:
    for ids in ([5, 6], (5, 6), np.array([5, 6]), torch.tensor([5, 6]), [np.int64(5), torch.tensor(6)]):
        assert list(mh.Prompts(["a", "b"], answer=ids).answer or ()) == [5, 6]
    for entry in (5.7, 9.0, True, np.True_, None, float("nan"), pd.NA, b"a", [5], torch.tensor(5.0)):
        with pytest.raises(ValueError, match=r"answer\[1\] is .*; give a text, such as .* or a token id"):
            mh.Prompts(["a", "b"], answer=[5, entry])
    with pytest.raises(ValueError, match=r"answer\[0\] is the number 5 in a column of a table, which may be a text or"):
        mh.Prompts(["a", "b"], answer=pd.Series([5, 6]))


# -- clusters and positions ---------------------------------------------------------------------------------


def test_clusters_are_labels_whatever_holds_them() -> None:
    frame = pd.DataFrame({"text": ["a", "b", "c"], "group": ["x", "y", "x"], "n": [1, 2, 1]})
    some = frame[frame["text"] != "b"]
    for labels in (some["group"], some["group"].astype("category"), np.array(["x", "x"]), pd.Categorical(["x", "x"])):
        assert mh.Prompts(some["text"], cluster=labels).cluster == ["x", "x"]
        assert mh.Task(some["text"], ["a", "b"], cluster=labels).cluster == ("x", "x")
        scores = HeadScores.from_values(np.ones((1, 1, 2)), name="a", unit="b", kind="ablate", cluster=labels)
        assert scores.dataset["cluster"].values.tolist() == ["x", "x"]
    for labels in (some["n"], [1, "1"], torch.tensor([1, 1])):
        assert mh.Prompts(some["text"], cluster=labels).cluster == ["1", "1"]


def test_an_empty_list_is_no_list_of_clusters() -> None:
    for make in (lambda: mh.Prompts(["a"], cluster=[]), lambda: mh.PromptPairs(["a"], ["b"], cluster=[])):
        with pytest.raises(ValueError, match="cluster needs one entry for each of the 1 prompts, got 0 entries"):
            make()


@pytest.mark.parametrize("label", [None, float("nan"), pd.NA, 1.0, True, b"a", ""])
def test_what_is_missing_or_no_label_is_no_cluster(label: Any) -> None:
    said = r"cluster\[1\] is .*, which is no cluster; give each prompt a label"
    with pytest.raises(ValueError, match=said):
        mh.Prompts(["a", "b"], cluster=["x", label])
    with pytest.raises(ValueError, match=said):
        mh.Task(["a", "b"], ["c", "d"], cluster=["x", label])
    with pytest.raises(ValueError, match=said):
        HeadScores.from_values(
            np.ones((1, 1, 2)), name="a", unit="b", kind="ablate", cluster=pd.Series(["x", label], dtype=object)
        )


def test_named_positions_are_read_from_columns_too(loaded: Any) -> None:
    model = loaded("gpt2")
    for places in (np.array([1, 2]), pd.Series([1, 2], index=[4, 9]), torch.tensor([1, 2]), iter([1, 2])):
        found = mh.Prompts(TEXTS, positions={"at": places}).tokens(model)
        assert found.positions["at"].tolist() == [1, 2]
    for place in (True, 1.5, None):
        with pytest.raises(ValueError, match=r"positions\['at'\] of prompt 1 is .*; give a piece of the text, a token"):
            mh.Prompts(TEXTS, positions={"at": [1, place]}).tokens(model)
