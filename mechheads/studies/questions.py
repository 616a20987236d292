"""What an atlas asks a model: the package's capitals, or your own questions, opened and checked before any work."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mechheads.behaviour.windows import LEAST_WINDOW, Texts, texts_or_ids, windows_of
from mechheads.gating.shipped import relation_task, task_of
from mechheads.gating.task import Task
from mechheads.io.rows import columns_called
from mechheads.io.text import file_sha256
from mechheads.labels.relations import Relation, Relations, load_relations
from mechheads.labels.usable_pairs import keep_pairs
from mechheads.ledger.key import mark
from mechheads.limits import current
from mechheads.messages.arguments import check_known
from mechheads.model.model import source_of
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs, Prompts
from mechheads.results.scores import HeadScores
from mechheads.safety.requests.prompts import Requests, Side, opened
from mechheads.studies.refusals import FULL, QUICK, RefusalSettings, RequestsByUse
from mechheads.studies.study import short_hash, study_of

if TYPE_CHECKING:
    from mechheads.model.model import Model

PARTS: dict[str, tuple[str, ...]] = {
    "patching": ("patching",),
    "text": ("text",),
    "labels": ("labels",),
    "causes": ("patterns", "direct effects", "circuit", "paths"),
    "safety": ("safety heads",),
    "roles": ("roles",),
    "own": ("own score",),
}
"""The parts of an atlas in their order, and what of each a note may say is left out."""
ASKED_FOR = ("roles",)
"""Parts that are done only if ``only`` names them."""
PairsLike = PromptPairs | str | Path
TaskLike = Task | str | Path
Experiment = Callable[[Any], HeadScores]
Own = Mapping[str, HeadScores | Experiment]
Names = str | Iterable[str] | None
CAPITALS = "country_to_capital"
"""The relation that the pairs and the task of the package are made from."""
_PACKAGE = "of the package"


@dataclass(frozen=True, kw_only=True)
class Given:
    """What a user gives to ``mh.build_atlas``, as it is given; see there."""

    quick: bool = False
    updates: int = 100
    pairs: PairsLike | None = None
    relations: Relations | None = None
    requests: Requests = None
    task: TaskLike | None = None
    texts: Texts = None
    refusals: RefusalSettings | None = None
    own: Own = field(default_factory=dict)
    only: Names = None
    skip: Names = None


@dataclass(frozen=True, kw_only=True)
class Questions:
    """Questions that a model can be asked: what was given, opened. ``None`` stands for those of the package.

    Attributes:
        quick, updates, refusals, own, only: as they were given.
        texts: a file or a list.
        by_use: the requests that rank heads and those that are answered, if refusals are asked for.
        parts: the parts to do, of ``PARTS``.
        names: what ``pairs``, ``requests`` and ``task`` are called, if they have a name.
        study: what the atlas is of: the model with its weights, the seed, and all of these but ``parts`` and ``own``.
    """

    quick: bool
    updates: int
    refusals: RefusalSettings | None
    own: Own
    only: Names
    pairs: PromptPairs | None
    relations: tuple[Relation, ...] | None
    requests: Sequence[str] | Prompts | None
    task: Task | None
    texts: Texts
    by_use: RequestsByUse | None
    parts: tuple[str, ...]
    names: Mapping[str, str]
    study: dict[str, str]

    @classmethod
    def of(cls, model: Model, given: Given) -> Questions:
        """Open files, and check everything that can be checked before any work.

        Raises:
            ValueError: if something does not exist, cannot be read or does not fit the model.
        """
        parts = chosen(given.only, given.skip)
        with _named("pairs"):
            pairs = _pairs(model, given.pairs)
        with _named("relations"):
            relations = None if given.relations is None else load_relations(given.relations)
            if relations is not None and "labels" in parts:
                keep_pairs(relations, model.tokenizer, named=True)
        by_use = _by_use(model, given) if given.refusals is not None and "safety" in parts else None
        with _named("requests"):
            requests = _requests(model, given.requests)
            if requests is not None and by_use is None and "safety" in parts:
                _check_requests(model, requests)
        with _named("task"):
            task = _task(model, given.task)
        with _named("texts"):
            texts = _texts(given.texts)
            if texts is not None and "text" in parts:
                next(windows_of(model, texts, LEAST_WINDOW, LEAST_WINDOW))  # there is none if all are too short
        _check_own(model, given.own)
        if parts == ("own",) and not given.own:
            raise ValueError('"own" is the only part to do, but own is empty; give scores, or choose another part')
        names = {"pairs": _name(given.pairs), "requests": _name(given.requests), "task": _name(given.task)}
        if isinstance(given.task, Task):
            names["task"] = "" if task.name == "task" else task.name  # type: ignore[union-attr]
        about = {
            "pairs": _PACKAGE if pairs is None else _mark(pairs, _content(pairs)),
            "relations": _PACKAGE if relations is None else _mark(relations, [one.fingerprint for one in relations]),
            "requests": _PACKAGE if requests is None else _mark(requests, _content(requests)),
            "task": _PACKAGE if task is None else _mark(task, mark(task, "task")),
            "texts": _PACKAGE if texts is None else f"of your own ({_hash_of_texts(texts)})",
        }
        if by_use is not None:
            about["refusals"] = f"{given.refusals} ({short_hash([by_use.ranked, by_use.answered])})"
        return cls(
            quick=given.quick,
            updates=given.updates,
            refusals=given.refusals,
            own=dict(given.own),
            only=given.only,
            pairs=pairs,
            relations=relations,
            requests=requests,
            task=task,
            texts=texts,
            by_use=by_use,
            parts=parts,
            names={what: name for what, name in names.items() if name},
            study=study_of(
                model, study="atlas", quick=given.quick, updates=given.updates, seed=current().seed, **about
            ),
        )


@contextmanager
def _named(argument: str) -> Iterator[None]:
    """What is said of something that was given begins with the name of its argument."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(argument):
            raise
        raise ValueError(f"{argument}: {error}") from error


def chosen(only: Names = None, skip: Names = None) -> tuple[str, ...]:
    """The parts of an atlas that are asked for, in their order.

    Raises:
        ValueError: if one does not exist or is no name, or none is left.

    >>> from mechheads.studies.questions import chosen
    >>> chosen(only=["labels", "patching"]), chosen(skip="safety own causes".split())
    (('patching', 'labels'), ('patching', 'text', 'labels'))
    """
    given = {"only": only, "skip": skip}
    for name, parts in given.items():
        if not isinstance(parts, Iterable | None):
            raise ValueError(
                f"{name} is {parts!r}; give names of parts, such as [{', '.join(map(repr, [*PARTS][:2]))}]"
            )
    named = {name: [parts] if isinstance(parts, str) else [*(parts or ())] for name, parts in given.items()}
    for name, parts in named.items():
        for part in parts:
            check_known(name, part, tuple(PARTS))
    wanted = [part for part in PARTS if part not in ASKED_FOR] if only is None else named["only"]
    left = tuple(part for part in PARTS if part in wanted and part not in named["skip"])
    if not left:
        raise ValueError(f"only and skip leave no part; leave one of {', '.join(map(repr, PARTS))}")
    return left


def first(pairs: PromptPairs, n: int) -> PromptPairs:
    """At most ``n`` pairs: the first of each cluster, then the second, and so on; without named positions.

    >>> from mechheads.studies.questions import first
    >>> first(mh.PromptPairs(["a", "b", "c"], ["A", "B", "C"], cluster=["x", "x", "y"]), 2).clean
    ['a', 'c']
    """
    before: dict[str, int] = {}
    turn = []
    for index in range(len(pairs)):
        label = str(index) if pairs.cluster is None else str(pairs.cluster[index])
        turn.append(before.get(label, 0))
        before[label] = turn[-1] + 1
    which = sorted(sorted(range(len(pairs)), key=lambda index: turn[index])[:n])
    columns = {name: getattr(pairs, name) for name in ("clean", "corrupted", "answer", "wrong", "cluster")}
    some: dict[str, Any] = {name: column and [column[i] for i in which] for name, column in columns.items()}
    return PromptPairs(**some)


def _pairs(model: Model, pairs: PairsLike | None) -> PromptPairs | None:
    """Pairs, checked to align.

    Raises:
        ValueError: if they do not, or there is no such file.
    """
    if pairs is None:
        return None
    found: Any = pairs
    if isinstance(pairs, (str, Path)):
        columns = columns_called(pairs, ("clean", "corrupted"), ("answer", "wrong", "cluster"))
        found = PromptPairs.from_file(pairs, **columns)
    if not isinstance(found, PromptPairs):
        raise ValueError(
            f"pairs is a {type(pairs).__name__}; give mh.PromptPairs, or a file with the columns clean and corrupted"
        )
    clean, corrupted = found.tokens(model)
    if clean.wrong is not None and clean.answer is None:
        raise ValueError("wrong is given, but answer is not; give both, answer alone, or neither")
    if clean.answer is not None and clean.wrong is not None and bool((clean.answer == clean.wrong).all()):
        raise ValueError("answer and wrong are the same token in every pair, so there is no difference to measure")
    if torch.equal(clean.ids, corrupted.ids):
        raise ValueError("the clean and the corrupted prompts are the same in every pair, so patching changes nothing")
    return found


def _requests(model: Model, requests: Requests) -> Sequence[str] | Prompts | None:
    if requests is None:
        return None
    found = opened(requests)
    Side.of(model, found, "query")
    return found


def _check_requests(model: Model, requests: Sequence[str] | Prompts) -> None:
    """Raise a ValueError if the model cannot read them, or they are not different."""
    if len(set(Side.of(model, requests, "query").prompts.tokens(model).strings)) < 2:
        raise ValueError("these are one request; give at least two different ones")


def _by_use(model: Model, given: Given) -> RequestsByUse:
    """The requests for everything about refusals, checked with its settings.

    Raises:
        ValueError: if they do not fit each other or the model.
    """
    if not isinstance(given.refusals, RefusalSettings):
        raise ValueError(f"refusals is {given.refusals!r}; give mh.studies.RefusalSettings()")
    given.refusals.groups(model)
    if current().limits.workers is not None:
        source_of(model)  # the answers to come need workers that can load it
    return RequestsByUse.of(given.requests, QUICK if given.quick else FULL)


def _task(model: Model, task: TaskLike | None) -> Task | None:
    """A task, of which the items that the model cannot read are left out."""
    if task is None:
        return None
    if not isinstance(task, Task):
        task = task_of(task, model=model)
    return task.items(task.tokens(model).kept)


def _texts(texts: Texts) -> Texts:
    """A file or a list: texts are read more than once. Of an iterator, which may have no end, what is enough.

    Raises:
        ValueError: if there is no such file, or something is no text.
    """
    if texts is None:
        return None
    if isinstance(texts, (str, Path)):
        file = Path(texts).expanduser()
        if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
            raise ValueError(
                f"texts: {str(texts)[:60]!r} is not a file; give a text file with empty lines between the texts, or a "
                "list of texts"
            )
        return file
    return texts_or_ids(texts)


def _check_own(model: Model, own: Own) -> None:
    if not isinstance(own, Mapping):
        raise ValueError(f'own is a {type(own).__name__}; give a dict with names, such as own={{"my sweep": scores}}')
    for name, scores in own.items():
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"own has the name {name!r}; give each score a name, as text")
        if isinstance(scores, HeadScores):
            check_scores(model, name, scores)
        elif not callable(scores):
            raise ValueError(
                f"own[{name!r}] is a {type(scores).__name__}; give HeadScores, or a function of the model that returns "
                "them"
            )


def check_scores(model: Model, name: str, scores: object) -> HeadScores:
    """Scores of your own, if they are scores of the heads of this model.

    Raises:
        ValueError: if they are something else.
    """
    if not isinstance(scores, HeadScores):
        raise ValueError(f"own[{name!r}] gives a {type(scores).__name__}; it must give HeadScores")
    if (scores.n_layers, scores.n_heads) != (model.n_layers, model.n_heads):
        raise ValueError(
            f"own[{name!r}] has {scores.n_layers} layers of {scores.n_heads} heads, but {model.name} has "
            f"{model.n_layers} of {model.n_heads}"
        )
    return scores


def mark_of(name: str, experiment: Experiment) -> str | None:
    """What an atlas remembers of a function of the user that has run; None for a function that cannot be compared."""
    try:
        return f"{begins_mark(name)}{mark(experiment, 'own')[:16]}"
    except ValueError:
        return None


def begins_mark(name: str) -> str:
    """How the marks of all functions that were given under a name begin."""
    return f"own score {name!r}: "


def _name(given: object) -> str:
    """What something is called: the name of a file without its ending, or the name that it was opened by."""
    if not isinstance(given, (str, Path)):
        return ""
    return Path(given).stem if os.path.isfile(Path(given).expanduser()) else str(given)


def _content(prompts: PromptPairs | Prompts | Sequence[str]) -> list[Any]:
    if isinstance(prompts, PromptPairs):
        return [prompts.clean, prompts.corrupted, prompts.answer, prompts.wrong, prompts.cluster]
    return [prompts.items] if isinstance(prompts, Prompts) else [*prompts]


def _mark(things: Any, content: object) -> str:
    """How many things there are, with a hash of what they are, for a folder to remember."""
    return f"{len(things)} of your own ({short_hash(content)})"


def _hash_of_texts(texts: Any) -> str:
    return file_sha256(texts)[:16] if isinstance(texts, Path) else short_hash(texts)


TEMPLATES = (
    "Every school child in the world should know that the capital city of {country} is called",
    "The capital of {country} is the city of",
    "Question: What is the capital city of {country}? Answer:",
    "The government of {country} has its seat in the city of",
)
"""The wordings, which pairs take in turn."""
FITTED_ON = 8
"""How many items the task has."""


def capital_pairs(model: Model, n: int) -> PromptPairs | None:
    """Up to ``n`` pairs of prompts that ask for a capital, with every country in one pair only.

    Countries and capitals come from the relation ``country_to_capital``, and are one token each in the model's
    vocabulary. They are in an order that is arbitrary but always the same, and so are the pairs and their wordings,
    which take turns: a country has another partner only if the vocabulary lacks its own. Each pair is a cluster, named
    after its country. None if there are fewer than two countries.
    """
    every = sorted(Relation.load(CAPITALS).pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    known = [[pair for pair in two if _is_known(model, *pair)] for two in zip(every[::2], every[1::2], strict=False)]
    whole = [(TEMPLATES[at % len(TEMPLATES)], *two) for at, two in enumerate(known) if len(two) == 2]
    left = [two[0] for two in known if len(two) == 1]
    pairs = [*whole, *((TEMPLATES[0], *two) for two in zip(left[::2], left[1::2], strict=False))][:n]
    if not pairs:
        return None
    return PromptPairs(
        [wording.format(country=one[0]) for wording, one, _ in pairs],
        [wording.format(country=other[0]) for wording, _, other in pairs],
        answer=[f" {one[1]}" for _, one, _ in pairs],
        wrong=[f" {other[1]}" for _, _, other in pairs],
        cluster=[one[0] for _, one, _ in pairs],
    )


def capital_task(model: Model) -> Task:
    """Naming capitals, without examples.

    Raises:
        ValueError: if the model's vocabulary has too few.
    """
    return relation_task(model, CAPITALS, shots=0, n=FITTED_ON)


def _is_known(model: Model, *words: str) -> bool:
    """Whether each word is one token of the model's vocabulary."""
    return all(single_token(f" {word}", model.tokenizer) is not None for word in words)
