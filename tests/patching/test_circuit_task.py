"""Circuit tasks: answers that are right by another computation, splits that share nothing, and any tokenizer."""

from __future__ import annotations

import re
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.special import softmax

import mechheads as mh
from mechheads.data import content
from mechheads.patching import task_items
from mechheads.patching.circuit_task import NOT_ALIGNED, NOT_ONE_TOKEN, TWICE, fitting
from mechheads.patching.task_items import Item, ProbabilityDifference

SPLITS: tuple[Literal["train", "test"], ...] = ("train", "test")
CAPITALS = dict(content("relations", "country_to_capital")["pairs"])


def decoded(model: mh.Model, ids: Any) -> list[str]:
    return [model.tokenizer.decode([token]) for token in ids]


def right_answer(name: str, text: str) -> str | set[str]:
    """What comes next, worked out from the text alone."""
    if name == "indirect_object":
        first, second = re.findall(r"(\w+) and (\w+)", text)[0]
        return f" {second if text.count(f' {first}') == 2 else first}"
    if name == "gendered_pronoun":
        women = set(task_items._WOMEN.split())
        return " she" if women & set(re.findall(r"\w+", text)) else " he"
    if name == "docstring":
        arguments = re.findall(r"self, ([^)]*)\)", text)[0].split(", ")
        described = re.findall(r":param (\w+):", text)
        return f" {arguments[arguments.index(described[-1]) + 1]}"
    if name == "arithmetic":
        a, sign, b = re.findall(r"(\d+) ([+-]) (\d+)", text)[0]
        return f"{'' if text.endswith(' ') else ' '}{int(a) + int(b) if sign == '+' else int(a) - int(b)}"
    if name == "capitals":
        (country,) = (each for each in sorted(CAPITALS, key=len)[::-1] if re.search(rf"\b{each}\b", text))
        return f" {CAPITALS[country]}"
    assert name == "repeated_pattern"
    *shown, (x, y) = (line.split()[1:] for line in text.split("\n"))
    return f" {x if shown[0][2] == shown[0][0] else y}"


@pytest.mark.release
@pytest.mark.parametrize("split", SPLITS)
@pytest.mark.parametrize("name", [name for name in mh.patching.CIRCUIT_TASKS if name != "greater_than"])
def test_answers_are_right_and_pairs_align(model: mh.Model, name: str, split: Any) -> None:
    task = mh.patching.circuit_task(model, name, 24, split=split)
    task.pairs.tokens(model)
    assert len(task) == 24 and len({*zip(task.pairs.clean, task.pairs.corrupted, strict=True)}) == 24
    clean, corrupted = ([str(text) for text in side] for side in (task.pairs.clean, task.pairs.corrupted))
    assert decoded(model, task.pairs.answer) == [right_answer(name, text) for text in clean]
    if name == "indirect_object":  # its corrupted prompts name nobody twice
        subjects = [re.findall(r"(\w+) (?:gave|handed|passed|offered|threw|lent)", text)[0] for text in clean]
        assert decoded(model, task.pairs.wrong) == [f" {subject}" for subject in subjects]
    else:
        assert decoded(model, task.pairs.wrong) == [right_answer(name, text) for text in corrupted]


@pytest.mark.slow
def test_a_larger_year_is_the_answer(model: mh.Model) -> None:
    task = mh.patching.circuit_task(model, "greater_than", 24)
    task.pairs.tokens(model)
    for clean, corrupted, answer in zip(
        task.pairs.clean, task.pairs.corrupted, decoded(model, task.pairs.answer), strict=True
    ):
        century, year = re.findall(r"(\d\d)(\d\d) to", str(clean))[0]
        assert str(clean).endswith(f"to the year {century}") and f"{century}01 to" in str(corrupted)
        assert int(answer) == int(year[0]) + 1  # each digit is a token of the default model
    assert task.metric == ProbabilityDifference(tuple(model.tokenizer.convert_tokens_to_ids([*"0123456789"])), 2)


@pytest.mark.release
@pytest.mark.parametrize("name", mh.patching.CIRCUIT_TASKS)
def test_the_default_model_rather_gives_the_answer(model: mh.Model, name: str) -> None:
    task = mh.patching.circuit_task(model, name, 24, split="test")
    run = model.cache(task.pairs.clean, sites=("z",))
    final = run.final_at(run.tokens.lengths[:, None] - 1)[:, 0]
    row, logits = torch.arange(24), model.backend.unembed(final)
    answer, wrong = torch.tensor(task.pairs.answer), torch.tensor(task.pairs.wrong)
    assert int((logits[row, answer] > logits[row, wrong]).sum()) > 12


def decisive(name: str, task: mh.patching.CircuitTask) -> set[str]:
    """What decides the answers of a task."""
    found = set()
    for text in map(str, task.pairs.clean):
        words = set(re.findall(r"\w+", text))
        if name == "indirect_object":
            found |= words & {*task_items.NAMES}
        elif name == "gendered_pronoun":
            found |= words & {*task_items._WOMEN.split(), *task_items._MEN.split()}
        elif name == "capitals":
            found |= {each for each in CAPITALS if re.search(rf"\b{each}\b", text)}
        elif name == "docstring":
            found |= set(re.findall(r"self, ([^)]*)\)", text)[0].split(", "))
        elif name == "arithmetic":
            found.add(str(sorted(map(int, re.findall(r"\d+", text)))))
        elif name == "greater_than":
            found.add(re.findall(r"The (\w+)", text)[0])
        else:
            found |= words
    return found


@pytest.mark.release
@pytest.mark.parametrize("name", mh.patching.CIRCUIT_TASKS)
def test_splits_share_nothing_and_a_seed_gives_the_same(model: mh.Model, name: str) -> None:
    train, test = (mh.patching.circuit_task(model, name, 24, split=split) for split in SPLITS)
    assert not decisive(name, train) & decisive(name, test)
    assert mh.patching.circuit_task(model, name, 24).pairs == train.pairs
    assert mh.patching.circuit_task(model, name, 24, seed=1).pairs != train.pairs


def test_the_measure_of_greater_than_is_a_difference_of_probabilities() -> None:
    logits = np.random.default_rng(0).normal(size=(2, 1, 30)).astype(np.float32)
    numbers = tuple(range(10, 20))
    tokens = mh.Prompts([[1, 2], [3, 4]], answer=[14, 12])
    p = softmax(logits[:, 0], axis=-1)
    context: Any = type("Context", (), {"answer": torch.tensor(tokens.answer)})()
    for gap in (1, 2):
        found = ProbabilityDifference(numbers, gap)(torch.from_numpy(logits), context)
        wanted = [p[0, 14:20].sum() - p[0, 10 : 15 - gap].sum(), p[1, 12:20].sum() - p[1, 10 : 13 - gap].sum()]
        assert found.numpy() == pytest.approx(wanted, abs=1e-6)


def test_what_does_not_fit_is_counted(small: mh.Model) -> None:
    capital = "The capital of {} is"
    items = [
        Item(capital.format("France"), capital.format("Italy"), " Paris", " Rome", "France"),
        Item(capital.format("France"), capital.format("Italy"), " Paris", " Rome", "France"),
        Item(capital.format("France"), capital.format("Spain"), " Paris", " Amsterdam", "France"),
        Item(capital.format("France"), capital.format("Italy and Spain"), " Paris", " Rome", "France"),
        Item(capital.format("Spain"), capital.format("Italy"), " Madrid", " Rome", "Spain"),
        Item(capital.format("Spain"), capital.format("Germany"), " Madrid", " Berlin", "Spain"),
    ]
    found, dropped = fitting(small, items, 2)
    assert [one.item for one in found] == [items[0], items[4]]
    assert dropped == {TWICE: 1, NOT_ONE_TOKEN: 1, NOT_ALIGNED: 1}
    assert small.tokenizer.convert_ids_to_tokens([found[0].answer, found[0].wrong]) == [
        small.tokenizer.tokenize(word)[0] for word in (" Paris", " Rome")
    ]


def test_a_tokenizer_that_cannot_express_a_task_is_named(small: mh.Model) -> None:
    with pytest.raises(ValueError, match=r"name='gendered_pronoun': .* can express 0 pairs \(.* left"):
        mh.patching.circuit_task(small, "gendered_pronoun", 4)
    with pytest.warns(UserWarning, match=r"capitals has \d+ pairs for this model instead of 64 \(\d+ left out because"):
        task = mh.patching.circuit_task(small, "capitals")
    assert 2 <= len(task) < 64 and task.dropped[NOT_ONE_TOKEN] > 0
    assert repr(task).startswith(f"<CircuitTask capitals (train), {len(task)} pairs; ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "capital"}, r"name is 'capital'; choose one of 'indirect_object', .*\. Did you mean .capitals.\?"),
        ({"name": "capitals", "split": "dev"}, "split is 'dev'; choose one of 'train', 'test'"),
        ({"name": "capitals", "n": 0}, "n is 0; it must be at least 1"),
    ],
)
def test_errors_say_what_would_be_right(small: mh.Model, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mh.patching.circuit_task(small, **options)
