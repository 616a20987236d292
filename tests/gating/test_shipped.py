"""The tasks of the package: what is asked, what is right, and what the default model makes of them."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.data import folder
from mechheads.gating.task import Task
from mechheads.gating.tasks import (
    MOST,
    STORIES,
    arithmetic_problems,
    induction_task,
    load_task,
    relation_task,
)
from support.levels import few
from support.texts import WORD_PAIRS

ARCHITECTURES = ["gpt2", "llama"]

ANSWERS: dict[str, Callable[..., float]] = {
    "given": lambda has, more: has + more,
    "eaten": lambda cookies, eaten: cookies - eaten,
    "rows": lambda rows, each: sum(each for _ in range(rows)),
    "shared": lambda things, friends: things / friends,
    "price": lambda price, wares: sum(price for _ in range(wares)),
    "change": lambda price, paid: paid - price,
    "bus": lambda before, off, on: before + on - off,
    "older": lambda age, older: age + older,
    "birthday": lambda age, then: then - age,
    "ride": lambda way, days: sum(way for _ in range(days)),
    "boxes": lambda things, size: things / size,
    "pages": lambda pages, monday, tuesday: pages - (monday + tuesday),
    "compared": lambda more, fewer: more - fewer,
    "times": lambda has, times: times * has,
    "farm": lambda *animals: sum(animals),
    "chairs": lambda tables, each, more: more + tables * each,
    "savings": lambda week, weeks, spent: weeks * week - spent,
    "oven": lambda needed, over: needed - over,
    "teams": lambda girls, boys, size: girls / size + boys / size,
    "lost": lambda had, lost, new: had + new - lost,
    "eggs": lambda boxes, each, broken: boxes * each - broken,
    "degrees": lambda morning, warmer: morning + warmer,
    "class": lambda pupils, girls: pupils - girls,
    "missing": lambda needs, has: needs - has,
}
"""What each story asks for, from its numbers in the order in which they are told."""


def content(name: str) -> dict[str, Any]:
    return json.loads((folder("tasks") / f"{name}.json").read_text("utf-8"))


def read(prompt: Any) -> tuple[str, str, str]:
    """The example's question, its answer, and the question that is asked."""
    match = re.fullmatch(r"Question: (.+)\nAnswer: (.+)\n\nQuestion: (.+)\nAnswer:", prompt, re.DOTALL)
    assert match is not None, prompt
    return match[1], match[2], match[3]


def items(task: Task) -> list[tuple[str, str, str]]:
    assert task.cluster is not None
    return list(zip(map(str, task.prompts), map(str, task.targets), task.cluster, strict=True))


# Arithmetic ---------------------------------------------------------------------------------------------------------


def test_every_answer_follows_from_the_numbers_told() -> None:
    problems = arithmetic_problems(1000, seed=1)
    assert set(ANSWERS) == set(STORIES) == {problem.cluster for problem in problems}
    assert len({problem.text for problem in problems}) == 1000
    for problem in problems:
        numbers = [int(number) for number in re.findall(r"\d+", problem.text)]
        assert ANSWERS[problem.cluster](*numbers) == int(problem.answer), problem
        assert 2 <= int(problem.answer) <= 99
        assert not re.search(r"[{}]", problem.text)


def test_math_asks_a_story_after_another_one() -> None:
    known = {p.text: (p.cluster, p.answer) for p in arithmetic_problems(200, seed=2)}
    task = load_task("math", seed=2)
    assert len(task) == 200
    for prompt, target, cluster in items(task):
        example, its_answer, asked = read(prompt)
        assert known[asked] == (cluster, target.removeprefix(" "))
        assert known[example][1] == its_answer
        assert known[example][0] != cluster
    assert len(load_task("math", n=1)) == 1
    with pytest.raises(ValueError, match=f"n is 0, but task 'math' has {MOST} items"):
        load_task("math", n=0)


# Syntax -------------------------------------------------------------------------------------------------------------


def test_syntax_asks_for_the_right_answer_after_a_right_example() -> None:
    data = content("syntax")
    right: dict[str, tuple[str, str, str]] = {}
    for form in data["forms"]:
        for word, answer in form["pairs"]:
            right[form["question"].replace("{word}", word)] = (answer, form["kind"], f"{form['kind']}: {word}")
    for gap in data["gaps"]:
        for frame in gap["frames"]:
            (first, second), (one, other) = frame["sentences"], frame["choices"]
            for sentence, answer in ((first, one), (second, other)):
                for a, b in ((one, other), (other, one)):
                    right[f'Which word fills the gap, "{a}" or "{b}"? {sentence}'] = (answer, gap["kind"], first)
    task = load_task("syntax")
    assert len(task) >= 200
    assert len({read(prompt)[2] for prompt in task.prompts}) == len(task)
    first_named = []
    for prompt, target, cluster in items(task):
        example, its_answer, asked = read(prompt)
        answer, kind, group = right[asked]
        assert (target, cluster) == (f" {answer}", group)
        assert right[example][:2] == (its_answer, kind)
        assert right[example][2] != group
        if "gap" in asked:
            first_named.append(asked.index(f'"{answer}"') < asked.index(" or "))
    assert len(first_named) >= 100
    assert 0.4 < np.mean(first_named) < 0.6


# Common sense -------------------------------------------------------------------------------------------------------


def test_common_sense_letters_are_those_of_the_right_options() -> None:
    right = {item["question"]: item["options"] for item in content("common_sense")["items"]}
    task = load_task("common_sense")
    assert len(task) == len(right)
    for prompt, target, cluster in items(task):
        example, its_letter, asked = read(prompt)
        for text, letter in ((asked, target.strip()), (example, its_letter)):
            question, *lines = text.split("\n")
            options = dict(line.split(": ", 1) for line in lines)
            assert list(options) == ["A", "B", "C", "D", "E"]
            assert options[letter] == right[question][0]
            assert sorted(options.values()) == sorted(right[question])
        assert cluster == asked.split("\n")[0] != example.split("\n")[0]
        assert re.fullmatch(" [A-E]", target)
    assert all(45 <= count <= 85 for count in Counter(task.targets).values())
    other = load_task("common_sense", seed=1)
    assert dict(zip(task.cluster or (), task.targets, strict=True)) != dict(
        zip(other.cluster or (), other.targets, strict=True)
    )


# Induction ----------------------------------------------------------------------------------------------------------


def test_induction_follows_its_pattern(small: mh.Model) -> None:
    task = induction_task(small, n=20)
    assert task.name == "aba_abb"
    for index, (prompt, target) in enumerate(zip(task.prompts, task.targets, strict=True)):
        *lines, asked = str(prompt).split("\n")
        examples = [line.split("^") for line in lines]
        a, b, nothing = asked.split("^")
        assert nothing == ""
        assert len(examples) == 4
        assert all(third == (first if index % 2 == 0 else second) for first, second, third in examples)
        assert target == (a if index % 2 == 0 else b)
        words = [word for first, second, _ in examples for word in (first, second)] + [a, b]
        assert len(set(words)) == 10
        assert all(re.fullmatch(" [a-z]{3,}", word) for word in words)


# Relations ----------------------------------------------------------------------------------------------------------

PAIRS = WORD_PAIRS[:5]
TEMPLATES = (" The capital of {source} is {target}", " France and {source} gave {target}")


def test_a_relation_is_asked_in_all_its_templates(small: mh.Model) -> None:
    relation = mh.Relation("words", None, [*PAIRS, ("one", "Zurich")], source="here", few_shot=TEMPLATES)
    task = relation_task(small, relation, shots=2)
    assert (task.name, task.source) == ("words", "here")
    asked = Counter()
    for prompt, target, cluster in items(task):
        *lines, last = prompt.split("\n")
        template = 0 if last.startswith(" The capital") else 1
        assert last == TEMPLATES[template].split(" {target}")[0].format(source=cluster)
        assert target == f" {dict(PAIRS)[cluster]}"
        assert len(lines) == 2
        assert all(line in [TEMPLATES[template].format(source=s, target=t) for s, t in PAIRS] for line in lines)
        asked[cluster, template] += 1
    assert asked == Counter({(source, template): 1 for source, _ in PAIRS for template in (0, 1)})
    few = relation_task(small, relation, shots=2, n=3)
    assert (few.prompts, few.targets) == (task.prompts[:3], task.targets[:3])
    with pytest.raises(ValueError, match="n is 11, but task 'words' has 10 items; give 1 to 10, or None for all"):
        relation_task(small, relation, shots=2, n=11)
    with pytest.raises(ValueError, match="n is 0, but task 'words' has 10 items"):
        relation_task(small, relation, n=0)
    with pytest.raises(ValueError, match="relation 'bare' has no few-shot templates"):
        relation_task(small, mh.Relation("bare", None, PAIRS))


# On the default model -----------------------------------------------------------------------------------------------


NAMES = ["syntax", "common_sense", "common_sense_open", "math", "aba_abb", "country_to_capital"]


@pytest.mark.parametrize("name", few(NAMES, "math", "country_to_capital"))
def test_no_item_is_rejected(model: mh.Model, name: str) -> None:
    task = load_task(name, model=model)
    assert len(task) >= (60 if name == "country_to_capital" else 200)
    assert task.tokens(model).rejected == {}
