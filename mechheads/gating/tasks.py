"""Tasks by name (syntax, common sense, arithmetic, induction, relations), from files, and from published data sets."""

from __future__ import annotations

import operator
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from mechheads.data import content
from mechheads.gating.task import Question, Task, check_n, lettered, question_task, some_items
from mechheads.io.rows import Table, Where, columns_called, rows
from mechheads.labels.few_shot import few_shot_prompts
from mechheads.labels.relations import Relation, RelationLike, load_relations, relation_names
from mechheads.messages.arguments import NotNegative, check_at_least, checked, did_you_mean
from mechheads.model.model import Model
from mechheads.prompts.encoding import single_token

T = TypeVar("T")
_DATA = content("tasks", "math")
STORIES: dict[str, Any] = _DATA["stories"]
MOST = 100 * len(STORIES)
"""The largest number of problems: each story has at least 100 different ones."""
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
_DEFAULT_N, _WORDS, _IN_PROMPT = 200, 1000, 10


def task_names() -> tuple[str, ...]:
    """The names that ``load_task`` accepts: the tasks of the package and its relations."""
    return (*_TASKS, "aba_abb", *relation_names())


def relation_task(model: Model, relation: RelationLike, *, shots: int = 4, n: int | None = None, seed: int = 0) -> Task:
    """A task from a relation: every source whose target is one token, once in each few-shot template."""
    relation = load_relations(relation)[0]
    prompts: list[str] = []
    targets: list[str] = []
    sources: list[str] = []
    for number, one in enumerate([replace(relation, few_shot=[form]) for form in relation.few_shot] or [relation]):
        few_shot = few_shot_prompts(model, one, shots=shots, n=len(relation.pairs), seed=seed + number)
        prompts += map(str, few_shot.items)
        targets += map(str, few_shot.answer or ())
        sources += map(str, few_shot.cluster or ())
    task = Task(prompts, targets, name=relation.name, source=relation.source, cluster=sources)
    return some_items(task, n, seed)


def induction_task(model: Model, *, n: int = _DEFAULT_N, seed: int = 0) -> Task:
    """A task of word patterns after four examples; the target is the last word of ``x^y^x`` and ``x^y^y`` in turn."""
    check_at_least(1, n=n)
    words = _common_words(model)
    rng = np.random.default_rng(seed)
    prompts, targets = [], []
    for item in range(n):
        last = item % 2
        drawn = [words[i] for i in rng.choice(len(words), size=_IN_PROMPT, replace=False)]
        *examples, question = zip(drawn[::2], drawn[1::2], strict=True)
        lines = [f"{pair[0]}^{pair[1]}^{pair[last]}" for pair in examples]
        prompts.append("\n".join([*lines, f"{question[0]}^{question[1]}^"]))
        targets.append(question[last])
    source = f"Words of the vocabulary of {model.name} in the patterns ABA and ABB, drawn at random."
    return Task(prompts, targets, name="aba_abb", source=source)


def _common_words(model: Model) -> list[str]:
    """The lower-case words that are one token each, with a leading space, in the order of the vocabulary."""
    tokenizer: Any = model.tokenizer
    if tokenizer is None:
        raise ValueError("the model has no tokenizer for the prompts; give one: mh.wrap(model, tokenizer=...)")
    words: list[str] = []
    for token in range(len(tokenizer)):
        word = tokenizer.decode([token]).strip()
        if re.fullmatch("[a-z]{3,}", word) and single_token(f" {word}", tokenizer) == token:
            words.append(f" {word}")
            if len(words) == _WORDS:
                break
    if len(words) < _IN_PROMPT:
        raise ValueError(
            f"the model's vocabulary has {len(words)} lower-case English words that are one token; "
            f"an induction prompt needs {_IN_PROMPT}"
        )
    return words


def _syntax(n: int | None, seed: int) -> Task:
    data, rng = content("tasks", "syntax"), np.random.default_rng(seed)
    questions = [
        Question(form["question"].format(word=word), answer, f"{form['kind']}: {word}", form["kind"])
        for form in data["forms"]
        for word, answer in form["pairs"]
    ]
    for gap in data["gaps"]:
        for frame in gap["frames"]:
            for sentence, answer in zip(frame["sentences"], frame["choices"], strict=True):
                one, other = rng.permutation(frame["choices"])
                text = f'Which word fills the gap, "{one}" or "{other}"? {sentence}'
                questions.append(Question(text, answer, frame["sentences"][0], gap["kind"]))
    return question_task(questions, data["name"], data["source"], rng=rng, n=n)


def _common_sense(n: int | None, seed: int, name: str = "common_sense") -> Task:
    data, rng = content("tasks", "common_sense"), np.random.default_rng(seed)
    items = [(item["question"], item["options"]) for item in data["items"]]
    if name == "common_sense":
        questions = [lettered(text, options, rng) for text, options in items]
    else:
        questions = [Question(text, options[0], text) for text, options in items if "of these" not in text]
    return question_task(questions, name, data["source"], rng=rng, n=n)


def _math(n: int | None, seed: int) -> Task:
    n = _DEFAULT_N if n is None else n
    check_n(n, MOST, "math")
    questions = arithmetic_problems(max(n, len(STORIES)), seed)
    return question_task(questions, "math", content("tasks", "math")["source"], rng=np.random.default_rng(seed), n=n)


def arithmetic_problems(n: int = 200, seed: int = 0) -> list[Question]:
    """Different word problems, in rounds of one problem of each story, in random order; the cluster is the story."""
    rng, names = np.random.default_rng(seed), list(STORIES)
    problems: dict[str, Question] = {}
    while len(problems) < n:
        for i in rng.permutation(len(names)):
            while (problem := _problem_of(names[i], rng)).text in problems:
                pass
            problems[problem.text] = problem
    return list(problems.values())[:n]


def _problem_of(name: str, rng: np.random.Generator) -> Question:
    """One problem of a story; numbers are drawn again until the answer is a whole number from 2 to 99."""
    story, answer = STORIES[name], 0.5
    numbers: dict[str, int] = {}
    while not (2 <= answer <= 99 and answer == int(answer)):
        numbers = dict(zip("abc", (int(rng.integers(low, high + 1)) for low, high in story["ranges"]), strict=False))
        begin, *rest = story["answer"].split()
        answer = numbers[begin]
        for operation, number in zip(rest[::2], rest[1::2], strict=True):  # from left to right
            answer = _OPERATIONS[operation](answer, numbers[number])
    names, things = _DATA["names"], _DATA["things"]
    first, second = rng.choice(len(names), size=2, replace=False)
    ware, wares = _DATA["wares"][rng.integers(len(_DATA["wares"]))]
    fields = {"name": names[first], "friend": names[second], "things": things[rng.integers(len(things))]}
    return Question(story["text"].format(**fields, ware=ware, wares=wares, **numbers), str(int(answer)), name)


_TASKS: dict[str, Callable[[int | None, int], Task]] = {
    "syntax": _syntax,
    "common_sense": _common_sense,
    "common_sense_open": partial(_common_sense, name="common_sense_open"),
    "math": _math,
}


@checked
def load_task(
    source: str | Path | Relation,
    *,
    prompt: str | None = None,
    target: str | None = None,
    cluster: str | None = None,
    where: Where | None = None,
    model: Model | None = None,
    n: int | None = None,
    seed: NotNegative = 0,
) -> Task:
    """A task by its name, from a relation, or from the columns of a file.

    The tasks of the package are:

    ======================  ====================================================================================
    ``syntax``              344 questions about English forms and agreement; half of them ask which of two words
                            fills the gap of a sentence. Cluster: the word, or the two sentences of a pair.
    ``common_sense``        327 everyday questions with five lettered options; the target is the letter.
    ``common_sense_open``   the questions of ``common_sense`` that can be asked without options; the target is the text
                            of the right option. For small models: the default model is no better than chance at
                            letters, but prefers the right text in two of three questions.
    ``math``                arithmetic word problems (200 unless ``n`` is given); the target is the number.
                            Cluster: the story. Too hard for the default model, which guesses.
    ``aba_abb``             word patterns (200 unless ``n`` is given).
    ``country_to_capital``  or any other name in ``mh.labels.relation_names()``: the targets of a relation after worked
                            examples.
    ======================  ====================================================================================

    The first four ask "Question: ... Answer:" after one worked example of the same kind, drawn for each question. So do
    ``mh.gating.commonsense_qa`` and ``mh.gating.gsm8k``, which read published files, as ``mh.gating.blimp`` does.

    Args:
        source: a name; a ``Relation`` with few-shot templates; or a file that ``mechheads.io.rows`` reads.
        prompt, target: the columns of a file with the prompts and their targets; a target needs its leading space if it
            has one.
        cluster: the column of a file with the label of each item's cluster, if there is one.
        where: the rows of a file to select, as values of its columns: ``{"split": "test"}``; by default all.
        model: required for ``aba_abb`` and for relations, whose prompts consist of words that are one token.
        n: the number of items, drawn at random; ``None`` for all.
        seed: the seed of the items and their order, the worked examples and the order of options.

    Returns:
        The task. If it is from a file, its repr says how many rows were used, and which columns were not.

    >>> task = mh.gating.load_task("syntax", n=2)
    >>> print(task.prompts[0] + task.targets[0])
    Question: Which word fills the gap, "is" or "are"? The doors of the shop ___ open.
    Answer: are
    <BLANKLINE>
    Question: Which word fills the gap, "is" or "are"? The cat that chased the birds ___ asleep.
    Answer: is
    """
    if isinstance(source, Relation):
        if model is None:
            raise ValueError(f"relation {source.name!r} needs a model as a task: load_task(..., model=model)")
        return relation_task(model, source, n=n, seed=seed)
    if (name := str(source)) in task_names():
        if name in _TASKS:
            return _TASKS[name](n, seed)
        if model is None:
            raise ValueError(
                f"task {name!r} needs a model, to choose words that are one token: load_task({name!r}, model=model)"
            )
        if name == "aba_abb":
            return induction_task(model, n=_DEFAULT_N if n is None else n, seed=seed)
        return relation_task(model, name, n=n, seed=seed)
    if not os.path.isfile(file := Path(source).expanduser()):  # Path.is_file raises for a name that is too long
        known = task_names()
        raise ValueError(
            f"task {str(source)!r} is neither a file nor one of {', '.join(known)}.{did_you_mean(str(source), known)}"
        )
    call = f"load_task({file.name!r}, prompt=..., target=...)"
    label: dict[str, Any] = {} if cluster is None else {"cluster": cluster}
    texts, origin = Table.of(file).where(where or {}).texts_of(call, prompt=prompt, target=target, **label)
    task = Task(texts["prompt"], texts["target"], name=file.stem, source=origin, cluster=texts.get("cluster"))
    return task if n is None else some_items(task, n, seed)


def task_of(name_or_file: str | Path, columns: Mapping[str, Any] | None = None, **options: Any) -> Task:
    """A task by its name, or from a file whose columns are called prompt, target and cluster, or as in ``columns``."""
    name = str(name_or_file)
    own = {} if name in task_names() else columns_called(name, ("prompt", "target"), ("cluster",))
    columns = {**own, **((own and columns) or {})}
    return load_task(name_or_file, **columns, **options)


def needs_model(name: str | Path) -> bool:
    """Whether a task can be opened only with a model."""
    return str(name) in ("aba_abb", *relation_names())


@checked
def commonsense_qa(file: str | Path, *, seed: NotNegative = 0) -> Task:
    """The multiple-choice questions of CommonsenseQA (Talmor et al., 2019) as a task.

    Prompts are as in the task ``common_sense``: options in random order, and one worked example, another question of
    the file, before each question; the target is the letter. Cluster: the question. A repeated option counts once.

    Args:
        file: as published (``question`` with a ``stem`` and ``choices``, and ``answerKey``), or as on the hub
            (``question``, ``choices``, ``answerKey``).
        seed: the seed of the order of questions and options, and of the examples.
    """
    rng = np.random.default_rng(seed)
    questions = [lettered(*options, rng) for options in _each(file, _options, "CommonsenseQA")]
    return question_task(questions, Path(file).stem, f"CommonsenseQA, {Path(file).name}", rng=rng)


@checked
def gsm8k(file: str | Path, *, seed: NotNegative = 0) -> Task:
    """The word problems of GSM8K (Cobbe et al., 2021) as a task; targets are the final numbers, without commas.

    One worked example, another problem of the file, comes before each question. Cluster: the question.

    Args:
        file: rows with ``question`` and ``answer``, which ends in ``#### 18``.
        seed: the seed of the order of problems, and of the examples.
    """
    problems = _each(file, _problem, "GSM8K")
    return question_task(problems, Path(file).stem, f"GSM8K, {Path(file).name}", rng=np.random.default_rng(seed))


def blimp(file: str | Path) -> Task:
    """The minimal pairs of a file of BLiMP (Warstadt et al., 2020) as a task, named after the file.

    The prompt is the common beginning of ``sentence_good`` and ``sentence_bad`` up to the first word that differs. The
    target is this word of the good sentence, without punctuation after it. Cluster: the prompt.
    """
    prompts, targets = zip(*_each(file, _continuation, "BLiMP"), strict=True)
    return Task(prompts, targets, name=Path(file).stem, source=f"BLiMP, {Path(file).name}", cluster=prompts)


def _each(file: str | Path, make: Callable[[Mapping[str, Any]], T], published: str) -> list[T]:
    """The result of ``make`` for each row of a file; an error names its row."""
    results = []
    for number, row in enumerate(rows(file), 1):
        try:
            results.append(make(row))
        except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
            why = f"there is no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"{Path(file).name}, row {number} is not of {published}: {why}. Its keys are "
                f"{', '.join(map(repr, row))}"
            ) from error
    return results


def _options(row: Mapping[str, Any]) -> tuple[str, list[str]]:
    """A question and its options, the right one first."""
    source, answer = row["question"], row["answerKey"]
    question, choices = (source, row["choices"]) if isinstance(source, str) else (source["stem"], source["choices"])
    if isinstance(choices, Mapping):
        choices = [{"label": one, "text": text} for one, text in zip(choices["label"], choices["text"], strict=True)]
    options = {choice["label"]: choice["text"].strip() for choice in choices}
    if not isinstance(answer, str) or answer not in options:
        raise ValueError(f"the answer is {answer!r}; the options are {', '.join(map(repr, options)) or '(none)'}")
    different = list(dict.fromkeys([options[answer], *options.values()]))
    if len(different) < 2:
        raise ValueError(f"the question {question!r} has only one option; give at least 2")
    return question.strip(), different


def _problem(row: Mapping[str, Any]) -> Question:
    text, answer = row["question"].strip(), row["answer"]
    number = re.search(r"####\s*(-?[\d.,]*\d)\s*$", answer)
    if number is None:
        raise ValueError(f'the answer ends in {answer[-30:]!r}; it must end in a number such as "#### 18"')
    return Question(text, number[1].replace(",", ""), text)


def _continuation(row: Mapping[str, Any]) -> tuple[str, str]:
    """The prompt and the target of a minimal pair."""
    good, bad = (row[f"sentence_{kind}"].split() for kind in ("good", "bad"))
    if row.get("one_prefix_method") is False:
        raise ValueError("one_prefix_method is false: the two sentences are not one beginning with two continuations")
    same = next((i for i, (a, b) in enumerate(zip(good, bad, strict=False)) if a != b), None)
    if same is None:
        raise ValueError(f"no word differs between {' '.join(good)!r} and {' '.join(bad)!r}")
    if not same:
        raise ValueError(f"the sentences differ from the first word on, so there is no prompt: {good[0]!r}")
    return " ".join(good[:same]), " " + (good[same].rstrip(".,;:!?") or good[same])
