"""At every door a list is read, and anything else is refused with the name of the argument."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import mechheads as mh
from mechheads.prompts.prompts import as_prompts
from mechheads.prompts.tokens import check_padding
from mechheads.results.scores import HeadScores

TEXTS = [" The capital of France is", " The capital of Italy is"]
FRAME = pd.DataFrame({"prompt": TEXTS, "answer": " Paris"})
REFUSED: dict[str, Any] = {
    " must be a list of": TEXTS[0],
    " is a list_iterator": iter(TEXTS),
    " is a ndarray with the shape (2,); give a list of": np.array(TEXTS),
    " is a Tensor with the shape (2, 2); give a list of": torch.tensor([[3, 4], [5, 6]]),
    " is a Series with the shape (2,); give a list of": FRAME["prompt"],
    " is a DataFrame with the shape (2, 2); give a list of": FRAME,
    " is a dict with the keys 'prompt'; give a list of": {"prompt": TEXTS},
    " is {'a'}; give a list of": {"a"},
    " is b'text'; give a list of": b"text",
    " is 5; give a list of": 5,
    "[2] is None": [*TEXTS, None],
    "[1] is b'a'": [TEXTS[0], b"a"],
    "[1] is True": [TEXTS[0], True],
    "[1] is 5.7": [TEXTS[0], 5.7],
    "[0] is a dict with the keys 'prompt', 'n'": [{"prompt": TEXTS[0], "n": 1}],
}
"""What is refused, by what is said after the name of the argument."""


def _task(prompts: Any) -> mh.Task:
    return mh.Task(prompts, [" Paris", " Rome"])


DOORS: dict[str, tuple[str, Callable[[mh.Model, Any], Any]]] = {
    "Prompts": ("items", lambda model, given: mh.Prompts(given)),
    "clean": ("clean", lambda model, given: mh.PromptPairs(given, TEXTS)),
    "cache": ("prompts", lambda model, given: model.cache(given)),
    "ablate": ("prompts", lambda model, given: mh.ablate(model, given)),
    "generate": ("prompts", lambda model, given: mh.generate(model, given, 1)),
    "logits": ("prompts", lambda model, given: mh.behaviour.logit_attribution(model, given)),
    "task": ("prompts", lambda model, given: _task(given)),
    "targets": ("targets", lambda model, given: mh.Task(TEXTS, given)),
    "ships": ("requests", lambda model, given: mh.ships(model, given)),
    "harmful": ("harmful", lambda model, given: mh.safety.refusal_contribution(model, given, TEXTS)),
    "profile": ("texts", lambda model, given: mh.profile_heads(model, given)),
    "loss": ("texts", lambda model, given: mh.safety.text_loss(model, given)),
}
"""Where texts go in, by the argument's name."""
NAMES_ARE_READ = {"ships", "harmful", "profile"}
"""Here a text alone is the name of a set, or of a file."""


@pytest.mark.parametrize("door", DOORS)
def test_no_door_takes_anything_but_a_list(loaded: Any, door: str) -> None:
    model, (name, enter) = loaded("gpt2"), DOORS[door]
    for said, given in REFUSED.items():
        if isinstance(given, str) and door in NAMES_ARE_READ:
            continue
        with pytest.raises(ValueError, match=rf"\A{re.escape(name + said)}"):
            enter(model, iter(TEXTS) if "iterator" in said else given)


# -- token ids and padding ------------------------------------------------------------------------------------

ROWS = {
    "prompts is the output of a tokenizer; give the texts, or the ids of each without padding": {"input_ids": [[3, 4]]},
    "prompts[0] is a dict with the keys 'input_ids'; give a string, a chat": [{"input_ids": [3, 4]}],
    "prompts[0] is 3; give a string, a chat (a list of messages) or a list of token ids. One row of ids is [[": [3, 4],
    "prompts[0] is a Tensor with the shape (2,); give a string, a chat": [torch.tensor([3, 4])],
    "prompts[0] must be text, a chat, or a list of integer token ids; got [3, True], whose entry 1 is True": [
        [3, True]
    ],
    "prompts[0] must be text, a chat, or a list of integer token ids; got [3, 5.0]": [[3, 5.0]],
    "prompts[0] is one message of a chat; a chat is a list of messages, so write prompts=[[mess": [
        {"role": "user", "content": "a"}
    ],
    "prompts is a dict with the keys 'role', 'content'; give a list": {"role": "user", "content": "a"},
}


@pytest.mark.parametrize("said", ROWS)
def test_ids_that_are_no_rows_are_refused(said: str) -> None:
    with pytest.raises(ValueError, match=rf"\A{re.escape(said)}"):
        as_prompts(ROWS[said])


@pytest.mark.parametrize("side", ["left", "right"])
def test_rows_that_a_tokenizer_padded_are_refused(loaded: Any, side: str) -> None:
    model, texts = loaded("llama"), [*TEXTS, " The dog"]
    padded = model.tokenizer(texts, padding=True, padding_side=side)["input_ids"]
    with pytest.raises(ValueError, match=r"prompt 2 (begins|ends) with '<pad>' .* times.*ids of each without padding"):
        model.cache(padded)
    alone = model.tokenizer(texts)["input_ids"]
    assert mh.generate(model, alone, 3).ids == mh.generate(model, texts, 3).ids


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


def test_an_end_that_is_also_the_padding_is_refused_if_rows_differ_in_it(tokenizer: Any) -> None:
    tokenizer.pad_token = tokenizer.eos_token
    eos = tokenizer.eos_token_id
    assert "ends with '<eos>' 2 times" in _said([[9, eos, eos], [8, 7, 6]], tokenizer)
    assert "ends with '<eos>', and other rows of this length do not" in _said([[9, 8, eos], [8, 7, 6]], tokenizer)
    assert "begins with '<eos>'" in _said([[eos, 9, 8]], tokenizer)  # this tokenizer begins with another token
    assert not _said([[9, 8], [9, 8, eos]], tokenizer)


# -- answers, clusters and positions --------------------------------------------------------------------------


def test_answers_are_texts_or_ids() -> None:
    assert mh.Prompts(["a", "b", "c"], answer=(" x", np.int64(5), torch.tensor(6))).answer == [" x", 5, 6]
    for entry in (5.7, 9.0, True, np.True_, None, float("nan"), pd.NA, b"a", [5], torch.tensor(5.0)):
        with pytest.raises(ValueError, match=r"answer\[1\] is .*; give a text, such as .* or a token id"):
            mh.Prompts(["a", "b"], answer=[5, entry])


def test_clusters_are_texts_or_whole_numbers() -> None:
    assert mh.Prompts(TEXTS, cluster=[1, "1"]).cluster == ["1", "1"]  # type: ignore[list-item]
    assert mh.Task(TEXTS, ["a", "b"], cluster=("x", "x")).cluster == ("x", "x")
    scores = HeadScores.from_values(np.ones((1, 1, 2)), name="a", unit="b", kind="ablate", cluster=["x", "x"])
    assert scores.dataset["cluster"].values.tolist() == ["x", "x"]


@pytest.mark.parametrize("label", [None, float("nan"), pd.NA, 1.0, True, b"a", ""])
def test_what_is_missing_or_no_label_is_no_cluster(label: Any) -> None:
    said = r"cluster\[1\] is .*, which is no cluster; give each prompt a label"
    with pytest.raises(ValueError, match=said):
        mh.Prompts(["a", "b"], cluster=["x", label])
    with pytest.raises(ValueError, match=said):
        mh.Task(["a", "b"], ["c", "d"], cluster=["x", label])
    with pytest.raises(ValueError, match=said):
        HeadScores.from_values(np.ones((1, 1, 2)), name="a", unit="b", kind="ablate", cluster=["x", label])


def test_a_position_is_a_piece_of_text_an_index_or_a_span(loaded: Any) -> None:
    for place in (True, 1.5, None):
        with pytest.raises(ValueError, match=r"positions\['at'\] of prompt 1 is .*; give a piece of the text, a token"):
            mh.Prompts(TEXTS, positions={"at": [1, place]}).tokens(loaded("gpt2"))
