"""Relations: lists of (source, target) words such as (France, Paris), each with a category, and their usable pairs."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from textwrap import shorten
from typing import Any

from mechheads.data import content, names
from mechheads.io.rows import KINDS, Table
from mechheads.io.text import cell_text, check_unicode, described, entries, read_json
from mechheads.messages.arguments import check_arguments, checked, did_you_mean
from mechheads.messages.notices import Wrapped, warn
from mechheads.prompts.encoding import piece_ids, single_token

_NO_SOURCE = "not given"
_SHOWN = 160
"""The number of characters of a source that are shown."""


@dataclass(frozen=True)
class WordList(Wrapped):
    """A list of words, such as English words; case is ignored.

    As a rival of a relation it explains every pair whose target is in the list: a head that raises an English word
    for an English word may do something else than translate.

    Attributes:
        name: a short name.
        words: the words, without leading spaces.
        source: where the words come from.

    >>> mh.labels.WordList("fruit", ["apple", "Pear"]).explains("pomme", "pear")
    True
    """

    name: str
    words: Sequence[str]
    source: str = _NO_SOURCE

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise ValueError("name is empty; a word list needs a name")
        words = entries(self.words, "words", "words")
        if not all(isinstance(word, str) and word.strip() for word in words):
            raise ValueError(f"words of {self.name!r} must be a list of words, not {str(self.words)[:50]!r}")
        folded = tuple(dict.fromkeys(word.strip().casefold() for word in words))
        if not folded:
            raise ValueError(f"word list {self.name!r} has no words; give at least one")
        object.__setattr__(self, "words", folded)

    def explains(self, source: str, target: str) -> bool:
        """Whether the target is one of the words; the source does not matter."""
        return target.casefold() in self._known

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.words)

    def __repr__(self) -> str:
        return f"<WordList {self.name!r}: {len(self.words)} words, {self.words[0]}, ...>"


CATEGORIES = ("Knowledge", "Linguistic", "Algorithmic", "Translation")
"""The four categories of MAPS. A relation may have a category of another name, which then is a label of its own."""


@dataclass(frozen=True)
class Relation(Wrapped):
    """Pairs of words in one relation, such as countries and their capitals.

    Attributes:
        name: a short name, unique among the relations that are scored together.
        category: the label of a head that implements the relation: one of ``CATEGORIES`` or a name of your own.
            With ``None``, the label is the name of the relation.
        pairs: (source, target) words, without leading spaces; or a dict of them.
        source: where the pairs come from and how they were checked.
        copying: whether targets repeat their sources; such relations are scored with a smaller k.
        few_shot: worked examples as templates, such as ``"The capital of {source} is {target}."``. A prompt consists of
            several filled-in examples and a last one that ends before the target.
        rivals: other reasons why a head may raise a target for a source: other relations, which explain the pairs that
            they also contain, and word lists, which explain the targets that they contain. Each is an object, the name
            of one of the package, or the path of a relation's file. Pairs that a rival explains are not scored.

    >>> from mechheads.labels import Relation
    >>> Relation("rhymes", "Linguistic", {"cat": "hat", "moon": "spoon"}, source="made up here")
    <Relation 'rhymes' (Linguistic): 2 pairs, cat -> hat, ...; made up here>
    """

    name: str
    category: str | None = None
    pairs: Sequence[Sequence[str]] | Mapping[str, str] = ()
    source: str = _NO_SOURCE
    copying: bool = False
    few_shot: Sequence[str] = ()
    rivals: Sequence[Rival | str | Path] = ()

    def __post_init__(self) -> None:
        check_arguments(type(self), {"name": self.name})
        if not self.name.strip():
            raise ValueError("name is empty; a relation needs a name")
        if isinstance(self.pairs, Mapping):
            object.__setattr__(self, "pairs", tuple(self.pairs.items()))
        if not isinstance(self.category, str | None):
            kind = type(self.category).__name__
            raise ValueError(f"category of relation {self.name!r} is a {kind}; give a name, and pairs as pairs=...")
        check_arguments(type(self), vars(self))
        if self.category is not None and re.fullmatch(r"\s*|Unclassified|\d+ categories", self.category):
            raise ValueError(
                f"category of relation {self.name!r} is {self.category!r}; name what its heads do, e.g. "
                f"{CATEGORIES[0]!r}, or give None for no category"
            )
        pairs = tuple(_pair(pair, self.name) for pair in entries(self.pairs, "pairs", "pairs of words"))
        if not pairs:
            raise ValueError(f"relation {self.name!r} has no pairs; give at least one (source, target)")
        object.__setattr__(self, "pairs", pairs)
        templates = self.few_shot
        listed = isinstance(templates, Sequence) and not isinstance(templates, str)
        if not listed or not all(isinstance(template, str) for template in templates):
            raise ValueError(f"few_shot of relation {self.name!r} must be a list of templates, not {templates!r}")
        for template in templates:
            what = f"few_shot of relation {self.name!r} has {template!r}"
            if template.count("{source}") != 1:
                raise ValueError(f"{what}; a template must contain {{source}} exactly once")
            if not template.partition("{source}")[2].count(" {target}") == template.count("{target}") == 1:
                raise ValueError(
                    f'{what}; it must contain " {{target}}", with a space before it, once and after {{source}}'
                )
        object.__setattr__(self, "few_shot", tuple(templates))
        for rival in entries(self.rivals, "rivals", "relations"):
            _check_rival(rival, self.name)
        object.__setattr__(self, "rivals", tuple(self.rivals))

    @classmethod
    @checked
    def load(cls, name_or_path: str | Path) -> Relation:
        """Load a relation of the package by its name, or from a JSON file that holds one object with its fields.

        ``from_file`` takes pairs from the columns of a table.

        Args:
            name_or_path: a name from ``relation_names()``, or the path of a file.

        >>> from mechheads.labels import Relation
        >>> Relation.load("country_to_capital").pairs[0]
        ('Afghanistan', 'Kabul')
        """
        fields = _fields(name_or_path)
        try:
            return cls(**fields)
        except ValueError as error:
            raise ValueError(f"{name_or_path} is not a relation: {error}") from error

    @classmethod
    @checked
    def from_file(
        cls,
        file: str | Path,
        *,
        source: str | None = None,
        target: str | None = None,
        name: str | None = None,
        category: str | None = None,
    ) -> Relation:
        """Pairs from two columns of a file that ``mechheads.io.rows`` reads; a pair that repeats another is left out.

        Give templates, rivals and ``copying`` by ``dataclasses.replace(relation, few_shot=[...])``.

        Args:
            file: CSV, TSV, JSON, JSON lines or Parquet.
            source, target: the columns of the sources and of the targets.
            name: by default, the name of the file without its ending.
            category: as in ``Relation``.

        Returns:
            The relation. Its repr says how many rows were used, and which columns were not.

        >>> import tempfile
        >>> from pathlib import Path
        >>> file = Path(tempfile.mkdtemp(), "antonyms.jsonl")
        >>> _ = file.write_text('{"input": "hot", "output": "cold"}\\n{"input": "big", "output": "small"}\\n')
        >>> mh.Relation.from_file(file, source="input", target="output")
        <Relation 'antonyms': 2 pairs, hot -> cold, ...; antonyms.jsonl, all 2 rows of 'input', 'output'>
        """
        table = Table.of(file)
        call = f"Relation.from_file({table.name!r}, source=..., target=...)"
        columns, rows = table.texts_of(call, source=source, target=target)
        every = list(zip(*columns.values(), strict=True))
        pairs = list(dict.fromkeys(every))
        repeated = f"; {len(every) - len(pairs)} repeat another and are left out" * (len(every) > len(pairs))
        return cls(Path(file).stem if name is None else name, category, pairs, source=f"{rows}{repeated}")

    @property
    def fingerprint(self) -> str:
        """A short hash of the parts that scores depend on: pairs, pairs that rivals explain, and the copying flag."""
        content: list[Any] = [self.pairs, self.copying]
        if any(self.explained.values()):
            content.append(sorted({pair for pairs in self.explained.values() for pair in pairs}))
        return hashlib.sha256(json.dumps(content, ensure_ascii=False).encode()).hexdigest()[:16]

    def explains(self, source: str, target: str) -> bool:
        """Whether a pair is one of this relation's pairs, ignoring case."""
        return (source.casefold(), target.casefold()) in self._folded

    @cached_property
    def explained(self) -> dict[str, tuple[tuple[str, str], ...]]:
        """The pairs that each rival explains, by the rival's name; a pair may be explained by several."""
        loaded = [_load_rival(rival) for rival in self.rivals]
        return {rival.name: tuple((a, b) for a, b in self.pairs if rival.explains(a, b)) for rival in loaded}

    @cached_property
    def _folded(self) -> frozenset[tuple[str, str]]:
        return frozenset((source.casefold(), target.casefold()) for source, target in self.pairs)

    def __repr__(self) -> str:
        first, rest = " -> ".join(next(iter(self.pairs))), ", ..." if len(self.pairs) > 1 else ""
        category = "" if self.category is None else f" ({self.category})"
        n = len(self.pairs)
        origin = "" if self.source == _NO_SOURCE else f"; {shorten(self.source, _SHOWN, placeholder='...')}"
        return f"<Relation {self.name!r}{category}: {n} pair{'s' * (n != 1)}, {first}{rest}{origin}>"


RelationLike = Relation | str | Path
Relations = RelationLike | Sequence[RelationLike] | Mapping[str, Mapping[str, str] | Sequence[Sequence[str]]]
"""The forms that ``load_relations`` accepts."""
_BY_NAME = 'give pairs of your own by a name, {"opposites": {"hot": "cold", ...}}'
Rival = Relation | WordList
"""Something that may explain pairs of another relation."""


def relation_names() -> tuple[str, ...]:
    """Names of the relations that come with the package.

    >>> from mechheads.labels import relation_names
    >>> len(relation_names())
    20
    """
    return names("relations")


def load_relations(relations: Relations | None = None) -> tuple[Relation, ...]:
    """Relations by their names, from files, from ``Relation`` objects, or from pairs of words by a name.

    Args:
        relations: a name from ``relation_names()``, a ``Relation``, the path of a file (see ``Relation.load``; of a
            table, give ``Relation.from_file(file, source=, target=)``), or a list of these; or a dict of your own
            pairs by names, ``{"opposites": {"hot": "cold"}, "plurals": [("cat", "cats")]}``. ``None`` for all of the
            package.

    >>> from mechheads.labels import load_relations
    >>> [relation.name for relation in load_relations(["name_copying", "english_to_french"])]
    ['name_copying', 'english_to_french']
    >>> load_relations({"opposites": {"hot": "cold", "big": "small"}})
    (<Relation 'opposites': 2 pairs, hot -> cold, ...>,)
    """
    several: Any = relation_names() if relations is None else relations
    if isinstance(several, (Relation, str, Path)):
        several = [several]
    if not isinstance(several, (Mapping, list, tuple)):
        raise ValueError(f"relations is {described(several)}; give names, files or mh.Relation objects; {_BY_NAME}")
    loaded = []
    for index, one in enumerate(several):
        if isinstance(several, Mapping):
            if not isinstance(pairs := several[one], (Mapping, list, tuple)):
                raise ValueError(f"relations maps {one!r} to {described(pairs)}; {_BY_NAME}")
            one = Relation(one, pairs=pairs)
        elif not isinstance(one, (Relation, str, Path)):
            raise ValueError(f"relations[{index}] is {described(one)}; give a name, a file or mh.Relation; {_BY_NAME}")
        loaded.append(one if isinstance(one, Relation) else Relation.load(one))
    if not loaded:
        raise ValueError("relations is empty; name at least one, or leave it out to use those of the package")
    names = [relation.name for relation in loaded]
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"relations contains {twice[0]!r} twice; give each relation its own name")
    return tuple(loaded)


def _fields(name_or_path: str | Path) -> dict[str, Any]:
    """The fields of a relation of the package, or of a file."""
    known = relation_names()
    if str(name_or_path) in known:
        return content("relations", str(name_or_path))
    file = Path(name_or_path).expanduser()
    if not os.path.isfile(file):  # Path.is_file raises for a name that is too long
        raise ValueError(
            f"there is no relation {str(name_or_path)!r}: it is neither a file nor one of {', '.join(known)}."
            f"{did_you_mean(str(name_or_path), known)} Or {_BY_NAME}"
        )
    read = read_json(file) if file.suffix.lower() == ".json" else None
    if not isinstance(read, dict) or not {"name", "pairs"} <= read.keys() <= Relation.__dataclass_fields__.keys():
        raise ValueError(f"{file} is not a relation: {_of_another_kind(file, read)}")
    pairs = read["pairs"]
    if isinstance(pairs, list):
        pairs = [[cell_text(word) for word in pair] if isinstance(pair, list) else pair for pair in pairs]
    return {name: value for name, value in read.items() if value is not None} | {"pairs": pairs}


def _of_another_kind(file: Path, read: Any) -> str:
    """The advice for a file that holds no relation but a table, or something else."""
    if file.suffix.lower() in KINDS and not isinstance(read, dict):
        return f"it has {Table.of(file).listed()}; write Relation.from_file({file.name!r}, source=..., target=...)"
    return (
        'it must be a JSON file of one object with the keys "name" and "pairs"; "category", "source", "copying", '
        f'"few_shot" and "rivals" are optional{"" if read is None else f". It is {described(read)}"}'
    )


def _pair(pair: Sequence[str], name: str) -> tuple[str, str]:
    words = tuple(pair) if isinstance(pair, Iterable) and not isinstance(pair, (str, Mapping)) else ()
    if len(words) != 2 or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError(f"relation {name!r} has the pair {pair!r}; a pair must be (source, target), two words")
    check_unicode("".join(words), f"relation {name!r}")
    return words[0].strip(), words[1].strip()


def _check_rival(rival: Any, name: str) -> None:
    if isinstance(rival, (Relation, WordList)):
        return
    known = (*names("words"), *relation_names())
    if not isinstance(rival, (str, Path)) or (str(rival) not in known and not os.path.isfile(Path(rival).expanduser())):
        raise ValueError(
            f"rivals of relation {name!r} contain {rival!r}; a rival must be a Relation, a WordList, a relation's file "
            f"or one of {', '.join(known)}.{did_you_mean(rival, known)}"
        )


def _load_rival(rival: Rival | str | Path) -> Rival:
    if isinstance(rival, (Relation, WordList)):
        return rival
    return WordList(**content("words", str(rival))) if str(rival) in names("words") else Relation.load(rival)


LEAST_PAIRS = 30
"""The usable pairs that a relation needs to label heads, and a relation of the package to be scored."""


@dataclass(eq=False)
class UsablePairs:
    """A relation and its pairs that can be scored."""

    relation: Relation
    pairs: list[tuple[str, str]] = field(default_factory=list)
    tokens: list[tuple[int | None, int]] = field(default_factory=list)  # None for a source of several
    lost: dict[str, list[str]] = field(default_factory=dict)  # pairs by the reason why they are left out
    explained: dict[str, int] = field(default_factory=dict)  # single-token pairs by the rival that explains them
    scored: bool = True  # whether there are enough pairs

    def ledger(self) -> dict[str, Any]:
        """The numbers of pairs, and the lost pairs by reason, for a result's provenance."""
        counts = {"given": len(self.relation.pairs), "kept": len(self.pairs), "scored": self.scored, "lost": self.lost}
        return counts | ({"explained": self.explained} if self.explained else {})

    def by_rivals(self) -> str:
        """The number of pairs that each rival explains, as text to append to the number of usable pairs."""
        return "".join(f"; {name} explains {n}" for name, n in self.explained.items() if n)


def usable_pairs(
    relations: Relations | None, tokenizer: Any, *, any_source: bool = False, min_pairs: int | None = None
) -> list[UsablePairs]:
    """For each relation, the pairs whose words (with ``any_source`` only targets) are one token each and that no rival
    explains. A relation with fewer than ``min_pairs`` is not scored, as in ``relation_scores``; with 0, all are."""
    if tokenizer is None:
        raise ValueError("model has no tokenizer to read relations with; give one: mh.wrap(model, tokenizer=...)")

    @cache
    def token(word: str) -> int | None:
        return single_token(f" {word}", tokenizer)

    least = (LEAST_PAIRS if relations is None else 1) if min_pairs is None else min_pairs
    every, short = [], list[str]()
    for relation in load_relations(relations):
        usable = UsablePairs(relation, explained=dict.fromkeys(relation.explained, 0))
        every.append(usable)
        explained = {name: frozenset(pairs) for name, pairs in relation.explained.items()}
        for source, target in relation.pairs:
            one, other, shown = token(source), token(target), f"{source} -> {target}"
            by = [name for name, pairs in explained.items() if (source, target) in pairs]
            if other is None or (one is None and not any_source):
                several = ["target"] if any_source else ["source"] * (one is None) + ["target"] * (other is None)
                usable.lost.setdefault(f"{' and '.join(several)} of several tokens", []).append(shown)
            elif by:
                usable.lost.setdefault(f"explained by {' and '.join(by)}", []).append(shown)
                usable.explained |= {name: usable.explained[name] + 1 for name in by}
            else:
                usable.pairs.append((source, target))
                usable.tokens.append((one, other))
        n = len(usable.pairs)
        if not n and least and not any_source and relations is not None:
            raise _no_pair(usable, tokenizer)
        usable.scored = n >= least
        if not usable.scored:
            short.append(f"{relation.name} ({n} of {len(relation.pairs)}{usable.by_rivals()})")
        elif min_pairs is None and n < LEAST_PAIRS:
            warn(
                f"relation {relation.name!r} has {n} pair{'s' * (n != 1)} of single tokens{usable.by_rivals()}: "
                f"its scores are shares of so few, so their intervals are wide; a label needs {LEAST_PAIRS}"
            )
    if short:
        message = f"relations with fewer than {least} single-token pairs are skipped: {', '.join(short)}"
        if len(short) == len(every):
            raise ValueError(f"{message}; none is left. Give more pairs, or a smaller min_pairs")
        warn(message)
    return every


def in_vocabulary(relations: Relations, tokenizer: Any) -> list[Relation]:
    """The relations with a pair that can be scored; if there are none, all, so that scoring raises the reason."""
    every = usable_pairs(relations, tokenizer, min_pairs=0)
    return [usable.relation for usable in every if usable.pairs] or [usable.relation for usable in every]


def _no_pair(usable: UsablePairs, tokenizer: Any) -> ValueError:
    split = [[piece_ids(f" {word}", tokenizer) for word in pair] for pair in usable.relation.pairs]
    closest = sorted(split, key=lambda ids: len(ids[0]) + len(ids[1]))[:5]
    rows = "".join(
        "\n  " + " -> ".join(str(tokenizer.convert_ids_to_tokens(word)) for word in pair) for pair in closest
    )
    return ValueError(
        f"relation {usable.relation.name!r} has no pair whose source and target are one token each in this "
        f"model's vocabulary{usable.by_rivals()}, so nothing can be scored. The {len(closest)} pairs with the fewest "
        f"tokens are:{rows}"
    )
