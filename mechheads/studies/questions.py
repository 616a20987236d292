"""The questions of an atlas: the package's capitals and requests, or your own, opened and checked before any work."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from mechheads.behaviour.windows import LEAST_WINDOW, Texts, texts_or_ids, windows_of
from mechheads.io.rows import columns_called
from mechheads.io.text import file_sha256
from mechheads.labels.relations import Relation, load_relations, usable_pairs
from mechheads.limits import current
from mechheads.messages.arguments import check_known
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs, Prompts
from mechheads.safety.requests import Side, opened
from mechheads.studies.study import short_hash, study_of

if TYPE_CHECKING:
    from mechheads.model.model import Model

PARTS: dict[str, tuple[str, ...]] = {
    "patching": ("patching",),
    "text": ("text",),
    "labels": ("labels",),
    "causes": ("patterns", "direct effects", "circuit", "paths"),
    "safety": ("safety heads",),
}
"""The parts of an atlas in their order, each with its analyses as notes call them."""
PairsLike = PromptPairs | str | Path
Names = str | Iterable[str] | None
CAPITALS = "country_to_capital"
"""The relation that the pairs of the package are made from."""
_PACKAGE = "of the package"


@dataclass(frozen=True, kw_only=True)
class Questions:
    """The pairs, relations, requests and texts of an atlas, opened. ``None`` stands for the package's own."""

    quick: bool
    pairs: PromptPairs | None
    relations: tuple[Relation, ...] | None
    requests: Sequence[str] | Prompts | None
    texts: Texts
    parts: tuple[str, ...]
    names: Mapping[str, str]  # of pairs and requests, if they have one
    study: dict[str, str]  # the model, the settings and hashes of the questions

    @classmethod
    def of(cls, model: Model, *, quick: bool = False, only: Names = None, **inputs: Any) -> Questions:
        """Open files, and check everything that can be checked before any work; arguments as in ``mh.build_atlas``."""
        parts = selected_parts(only)
        with _checking("pairs"):
            pairs = _pairs(model, inputs.get("pairs"))
        with _checking("relations"):
            relations = None if inputs.get("relations") is None else load_relations(inputs["relations"])
            if relations is not None and "labels" in parts:
                usable_pairs(relations, model.tokenizer, min_pairs=1)
        with _checking("requests"):
            requests = None if inputs.get("requests") is None else opened(inputs["requests"])
            if requests is not None:
                texts = Side.of(model, requests, "query").prompts
                if "safety" in parts and len(set(texts.tokens(model).strings)) < 2:
                    raise ValueError("these are one request; give at least two different ones")
        with _checking("texts"):
            texts = _texts(inputs.get("texts"))
            if texts is not None and "text" in parts:
                next(windows_of(model, texts, LEAST_WINDOW, LEAST_WINDOW))  # there is none if all are too short
        names = {argument: _name(inputs.get(argument)) for argument in ("pairs", "requests")}
        columns = ("clean", "corrupted", "answer", "wrong", "cluster")
        content = file_sha256(texts)[:16] if isinstance(texts, Path) else short_hash(texts)
        metadata = {
            "pairs": _mark(pairs, [getattr(pairs, column, None) for column in columns]),
            "relations": _mark(relations, [relation.fingerprint for relation in relations or ()]),
            "requests": _mark(requests, requests.items if isinstance(requests, Prompts) else [*(requests or ())]),
            "texts": _PACKAGE if texts is None else f"of your own ({content})",
        }
        return cls(
            quick=quick,
            pairs=pairs,
            relations=relations,
            requests=requests,
            texts=texts,
            parts=parts,
            names={argument: name for argument, name in names.items() if name},
            study=study_of(model, study="atlas", quick=quick, seed=current().seed, **metadata),
        )


@contextmanager
def _checking(argument: str) -> Iterator[None]:
    """Let the messages of errors begin with the name of the argument."""
    try:
        yield
    except ValueError as error:
        if str(error).startswith(argument):
            raise
        raise ValueError(f"{argument}: {error}") from error


def selected_parts(only: Names = None) -> tuple[str, ...]:
    """The parts of an atlas that ``only`` names, in their order; all for None."""
    if not isinstance(only, Iterable | None):
        raise ValueError(f"only is {only!r}; give names of parts, such as [{', '.join(map(repr, [*PARTS][:2]))}]")
    named = [only] if isinstance(only, str) else [*(only or ())]
    for part in named:
        check_known("only", part, tuple(PARTS))
    if only is not None and not named:
        raise ValueError(f"only names no part; choose among {', '.join(map(repr, PARTS))}")
    return tuple(part for part in PARTS if only is None or part in named)


def first(pairs: PromptPairs, n: int) -> PromptPairs:
    """At most ``n`` pairs: the first of each cluster, then the second, and so on; without named positions."""
    before: dict[str, int] = {}
    turn = []
    for index in range(len(pairs)):
        label = str(index) if pairs.cluster is None else str(pairs.cluster[index])
        turn.append(before.get(label, 0))
        before[label] = turn[-1] + 1
    which = sorted(sorted(range(len(pairs)), key=lambda index: turn[index])[:n])
    columns = {name: getattr(pairs, name) for name in ("clean", "corrupted", "answer", "wrong", "cluster")}
    selected: dict[str, Any] = {name: column and [column[i] for i in which] for name, column in columns.items()}
    return PromptPairs(**selected)


def _pairs(model: Model, pairs: PairsLike | None) -> PromptPairs | None:
    """Pairs, read from a file if they are in one, and checked to align."""
    if pairs is None:
        return None
    loaded: Any = pairs
    if isinstance(pairs, (str, Path)):
        columns = columns_called(pairs, ("clean", "corrupted"), ("answer", "wrong", "cluster"))
        loaded = PromptPairs.from_file(pairs, **columns)
    if not isinstance(loaded, PromptPairs):
        raise ValueError(
            f"pairs is a {type(pairs).__name__}; give mh.PromptPairs, or a file with the columns clean and corrupted"
        )
    clean, corrupted = loaded.tokens(model)
    if clean.wrong is not None and clean.answer is None:
        raise ValueError("wrong is given, but answer is not; give both, answer alone, or neither")
    if clean.answer is not None and clean.wrong is not None and bool((clean.answer == clean.wrong).all()):
        raise ValueError("answer and wrong are the same token in every pair, so there is no difference to measure")
    if torch.equal(clean.ids, corrupted.ids):
        raise ValueError("the clean and the corrupted prompts are the same in every pair, so patching changes nothing")
    return loaded


def _texts(texts: Texts) -> Texts:
    """A file or a list, because texts are read more than once; an iterator is read only as far as needed."""
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


def _name(source: object) -> str:
    """The name of a file without its suffix, or the name of requests of the package; empty for other sources."""
    if not isinstance(source, (str, Path)):
        return ""
    return Path(source).stem if os.path.isfile(Path(source).expanduser()) else str(source)


def _mark(items: Any, content: object) -> str:
    """The number of items and a hash of their content, for the study that a folder records."""
    return _PACKAGE if items is None else f"{len(items)} of your own ({short_hash(content)})"


TEMPLATES = (
    "Every school child in the world should know that the capital city of {country} is called",
    "The capital of {country} is the city of",
    "Question: What is the capital city of {country}? Answer:",
    "The government of {country} has its seat in the city of",
)
"""The wordings, which pairs take in turn."""


def capital_pairs(model: Model, n: int) -> PromptPairs | None:
    """Up to ``n`` pairs of prompts that ask for a capital, each with two countries of its own; None if there are none.
    Countries and capitals are one token each; order, partners and wordings are arbitrary but always the same.
    """
    every = sorted(Relation.load(CAPITALS).pairs, key=lambda pair: hashlib.sha256(pair[0].encode()).digest())
    known = [[pair for pair in two if _is_known(model, *pair)] for two in zip(every[::2], every[1::2], strict=False)]
    whole = [(TEMPLATES[at % len(TEMPLATES)], *two) for at, two in enumerate(known) if len(two) == 2]
    single = [two[0] for two in known if len(two) == 1]
    pairs = [*whole, *((TEMPLATES[0], *two) for two in zip(single[::2], single[1::2], strict=False))][:n]
    if not pairs:
        return None
    return PromptPairs(
        [wording.format(country=one[0]) for wording, one, _ in pairs],
        [wording.format(country=other[0]) for wording, _, other in pairs],
        answer=[f" {one[1]}" for _, one, _ in pairs],
        wrong=[f" {other[1]}" for _, _, other in pairs],
        cluster=[one[0] for _, one, _ in pairs],
    )


def _is_known(model: Model, *words: str) -> bool:
    """Whether each word is one token of the model's vocabulary."""
    return all(single_token(f" {word}", model.tokenizer) is not None for word in words)
