"""Prompts and pairs of prompts: texts or token ids, named positions, answers and clusters.

Rows are padded on the right. A causal model never looks ahead, so the real tokens have the same activations as without
padding, no attention mask is needed, and position ``i`` of a row is token ``i`` of its prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, Literal

from mechheads.io.rows import Table
from mechheads.io.text import described, entries, labels, shown
from mechheads.messages.arguments import check_arguments, checked
from mechheads.messages.notices import Wrapped, warn
from mechheads.prompts.chats import is_chat
from mechheads.prompts.encoding import token_strings
from mechheads.prompts.tokens import (
    PositionLike,
    PromptLike,
    Reader,
    Tokens,
    Unpadded,
    answer_ids,
    check_padding,
    encode,
    read_answers,
    read_prompts,
    read_texts,
    tokens_at,
)

Side = Literal["clean", "corrupted"]


@dataclass(frozen=True, repr=False)
class Prompts(Wrapped):
    """Prompts for one run: texts, chats or token ids.

    Args:
        items: each a string, a chat (list of ``{"role": ..., "content": ...}``, rendered with the model's own chat
            template and the opening of the assistant's answer) or a list of token ids without padding. Make a list of
            any other container: ``list(iterator)``, ``array.tolist()``, ``table[column].tolist()``.
        answer: the expected next token of each prompt, as text (``" Paris"``, one token) or, as a whole number, its
            id. ``PromptPairs.from_file`` reads numbers in files as text.
        wrong: the token that the answer is compared with, as text or id.
        positions: named positions. Each entry is a piece of text that occurs once in its prompt (the position is
            its last token), a token index, or a (start, end) span of characters. ``last`` is always defined.
        cluster: a label for each prompt, a text or a whole number (1 and "1" are the same). Prompts with the same label
            (an entity, a template) are not independent, and intervals are computed over clusters. By default every
            prompt is its own cluster, and copies of a prompt are one cluster, whatever their answers.

    Strings are tokenised by the model's own tokenizer, with its beginning token once and without an end token. An
    answer has the token that it has after its prompt.

    >>> prompts = mh.Prompts(["The capital of France is"], answer=[" Paris"], positions={"subject": [" France"]})
    >>> prompts.tokens(model).positions["subject"].tolist()
    [3]
    """

    items: Sequence[PromptLike]
    answer: Sequence[str | int] | None = None
    wrong: Sequence[str | int] | None = None
    positions: Mapping[str, Sequence[PositionLike]] = field(default_factory=dict)
    cluster: Sequence[str] | None = None

    def __post_init__(self) -> None:
        _read_fields(self, "items")
        if not len(self.items):
            raise ValueError("items is empty; give at least one prompt")
        columns = {"answer": self.answer, "wrong": self.wrong, "cluster": self.cluster}
        columns |= {f"positions[{name!r}]": column for name, column in self.positions.items()}
        for name, column in columns.items():
            if column is not None and len(column) != len(self.items):
                n = len(self.items)
                raise ValueError(f"{name} needs one entry for each of the {n} prompts, got {len(column)} entries")
        if "last" in self.positions:
            raise ValueError('positions["last"] is reserved for the last token; choose another name')
        if self.cluster is None:
            joined = join_clusters(range(len(self)), self.items)
            object.__setattr__(self, "cluster", joined if len(set(joined)) < len(self) else None)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        lines = _example(self.items, self.answer)
        return f"<{_summary('Prompts', len(self), 'prompt', self.positions, self.cluster)}\n  {lines}>"

    def tokens(self, model: Reader) -> Tokens:
        """Tokenise the prompts for a model.

        Raises:
            ValueError: if a prompt is empty or longer than the model's context, an answer is not one
                token, or a named position is not found.
        """
        import torch

        rows = [encode(item, index, model) for index, item in enumerate(self.items)]
        check_padding(
            {
                index: ids
                for index, (item, (ids, text, _)) in enumerate(zip(self.items, rows, strict=True))
                if text is None and type(item) is not Unpadded
            },
            model.tokenizer,
        )
        lengths = torch.tensor([len(ids) for ids, _, _ in rows])
        ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.long)
        for row, (row_ids, _, _) in zip(ids, rows, strict=True):
            row[: len(row_ids)] = torch.tensor(row_ids)
        positions = {"last": lengths - 1}
        for name, column in self.positions.items():
            last = [tokens_at(column[index], name, index, *row)[-1] for index, row in enumerate(rows)]
            positions[name] = torch.tensor(last)
        return Tokens(
            ids=ids,
            lengths=lengths,
            positions=positions,
            answer=answer_ids(self.answer, "answer", model, rows),
            wrong=answer_ids(self.wrong, "wrong", model, rows),
            cluster=tuple(map(str, range(len(rows)) if self.cluster is None else self.cluster)),
            strings=tuple(tuple(token_strings(row_ids, model.tokenizer)) for row_ids, _, _ in rows),
        ).on(model.device)


@dataclass(frozen=True, repr=False)
class PromptPairs(Wrapped):
    """Clean prompts and corrupted prompts that align with them token by token.

    Args:
        clean, corrupted: the prompts, as in ``Prompts``; the two prompts of a pair must have the same number of tokens.
        answer: the correct next token for the clean prompt.
        wrong: the correct next token for the corrupted prompt.
        positions: named positions, as in ``Prompts``; a tuple ``(clean, corrupted)`` of lists if the texts differ.
        cluster: as in ``Prompts``. By default every pair is its own cluster, and pairs that share a prompt, clean or
            corrupted, are one, also if they share it through other pairs: France and Italy, Italy and Spain.
        source: where the pairs come from, for readers of the repr.

    Raises:
        ValueError: if the lists differ in length; when they are tokenised, if a pair does not align. The message names
            the pair and shows both rows of tokens.

    >>> pairs = mh.PromptPairs(
    ...     clean=["The capital of France is"], corrupted=["The capital of Italy is"],
    ...     answer=[" Paris"], wrong=[" Rome"])
    >>> len(pairs)
    1
    """

    clean: Sequence[PromptLike]
    corrupted: Sequence[PromptLike]
    answer: Sequence[str | int] | None = None
    wrong: Sequence[str | int] | None = None
    positions: Mapping[str, Any] = field(default_factory=dict)
    cluster: Sequence[str] | None = None
    source: str = ""

    def __post_init__(self) -> None:
        _read_fields(self, "clean", "corrupted")
        if len(self.clean) != len(self.corrupted):
            raise ValueError(
                f"clean has {len(self.clean)} prompts, but corrupted has {len(self.corrupted)}; give one of each a pair"
            )
        self.side("clean")
        self.side("corrupted")
        if self.cluster is None:
            joined = join_clusters(range(len(self)), self.clean, self.corrupted)
            object.__setattr__(self, "cluster", joined if len(set(joined)) < len(self) else None)
        elif (shared := _shared_between(self.cluster, self.clean, self.corrupted)) is not None:
            one, other, prompt = shared
            warn(
                f"pairs {one} and {other} share the prompt {shown(prompt)}, but have the labels "
                f"{self.cluster[one]!r} and {self.cluster[other]!r}, and clusters count as independent: intervals may "
                "be too narrow, and p too small. Give pairs that share a prompt the same label, or leave cluster out"
            )

    def __len__(self) -> int:
        return len(self.clean)

    def __repr__(self) -> str:
        clean, corrupted = _example(self.clean, self.answer), _example(self.corrupted, self.wrong)
        summary = _summary("PromptPairs", len(self), "pair", self.positions, self.cluster)
        source = f"\n  {self.source}" if self.source else ""
        return f"<{summary}\n  clean:     {clean}\n  corrupted: {corrupted}{source}>"

    @checked
    def side(self, side: Side) -> Prompts:
        """The clean or the corrupted prompts. Both carry the same ``answer``, the correct token for the clean side."""
        which, items = (0, self.clean) if side == "clean" else (1, self.corrupted)
        positions = {
            name: column[which] if isinstance(column, tuple) else column for name, column in self.positions.items()
        }
        own = list(map(str, range(len(self))))  # a prompt may be in several pairs
        every = own if self.cluster is None else self.cluster
        return Prompts(items, self.answer, self.wrong, positions, every)

    def tokens(self, model: Reader) -> tuple[Tokens, Tokens]:
        """Tokenise both sides and check that they align; see ``Prompts.tokens``."""
        clean, corrupted = self.side("clean").tokens(model), self.side("corrupted").tokens(model)
        for index, (a, b) in enumerate(zip(clean.strings, corrupted.strings, strict=True)):
            if len(a) != len(b):
                first = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
                raise ValueError(
                    f"pair {index} does not align: clean has {len(a)} tokens and corrupted has {len(b)}; "
                    f"they first differ at token {first}\n"
                    f"  clean:     {_show_tokens(a, first)}\n  corrupted: {_show_tokens(b, first)}\n"
                    "rewrite the pair so that both have the same number of tokens (names of equal token length help)"
                )
        for name in ("answer", "wrong"):
            one, other = getattr(clean.on_cpu, name), getattr(corrupted.on_cpu, name)
            if one is not None and (differ := one != other).any():
                index = int(differ.nonzero()[0])
                texts = token_strings([int(one[index]), int(other[index])], model.tokenizer)
                raise ValueError(
                    f"{name}[{index}] is the token {texts[0]!r} ({int(one[index])}) after the clean prompt and "
                    f"{texts[1]!r} ({int(other[index])}) after the corrupted one; end both prompts alike, or give a "
                    "token id"
                )
        for name in self.positions:
            if (moved := clean.on_cpu.positions[name] != corrupted.on_cpu.positions[name]).any():
                index = int(moved.nonzero()[0])
                raise ValueError(
                    f"positions[{name!r}] of pair {index} is token {int(clean.positions[name][index])} in clean "
                    f"and {int(corrupted.positions[name][index])} in corrupted; it must be the same in both"
                )
        return clean, corrupted

    @classmethod
    @checked
    def from_file(
        cls,
        file: str | Path,
        *,
        clean: str | None = None,
        corrupted: str | None = None,
        answer: str | None = None,
        wrong: str | None = None,
        cluster: str | None = None,
    ) -> PromptPairs:
        """Pairs from the columns of a file that ``mechheads.io.rows`` reads.

        Texts are used as they are, so an answer needs its leading space (``" is"``). In JSON and Parquet, prompts may
        also be chats or lists of token ids. A whole number is read as text: the answer 9 is ``"9"``. If all prompts are
        token ids, which CSV cannot store, it is a token id.

        Args:
            file: CSV, TSV, JSON, JSON lines or Parquet.
            clean, corrupted: the columns of the prompts.
            answer, wrong, cluster: the columns of the answers and the cluster labels, if the file has them.

        Returns:
            The pairs. Their repr says how many rows were used, and which columns were not.

        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "agreement.csv")
        >>> _ = path.write_text("good,bad,verb\\nThe keys,The key, are\\n")
        >>> mh.PromptPairs.from_file(path, clean="good", corrupted="bad", answer="verb")
        <PromptPairs: 1 pair
          clean:     'The keys' -> ' are'
          corrupted: 'The key'
          agreement.csv, its one row of 'good', 'bad', 'verb'>
        """
        table = Table.of(file)
        optional = {"answer": answer, "wrong": wrong, "cluster": cluster}
        named: dict[str, Any] = {name: column for name, column in optional.items() if column is not None}
        call = f"PromptPairs.from_file({table.name!r}, clean=..., corrupted=..., answer=..., wrong=..., cluster=...)"
        columns = table.pick(call, clean=clean, corrupted=corrupted, **named)
        fields: dict[str, Any] = {side: table.prompts(columns.pop(side)) for side in ("clean", "corrupted")}
        of_ids = all(isinstance(prompt, list) and not is_chat(prompt) for side in fields.values() for prompt in side)
        for name, column in columns.items():
            fields[name] = table.ids(column) if of_ids and name != "cluster" else None
            fields[name] = fields[name] or table.texts(column)
        used = [str(column) for column in (clean, corrupted, *columns.values())]
        return cls(**fields, source=f"{table.name}, {table.summary(used)}")

    @classmethod
    @checked
    def from_templates(
        cls,
        templates: str | Sequence[str],
        fields: Mapping[str, Sequence[tuple[str, str]]],
        *,
        answer: Sequence[tuple[str, str]],
    ) -> PromptPairs:
        """Pairs from templates filled with rows of (clean, corrupted) texts; every field becomes a named position.

        All pairs made from one row form a cluster. Rows that share a prompt, such as (France, Italy) and (Italy,
        France), are one.

        Args:
            templates: one or several, such as ``"The capital of {subject} is"``. Braces that are text are doubled, as
                in ``str.format``: ``"\\\\frac{{1}}{{2}} of {subject}"``.
            fields: for each name in braces, its (clean, corrupted) texts, one pair per row.
            answer: the (clean, corrupted) next tokens, one pair per row.

        >>> pairs = mh.PromptPairs.from_templates(
        ...     "The capital of {subject} is", {"subject": [("France", "Italy"), ("Spain", "Japan")]},
        ...     answer=[(" Paris", " Rome"), (" Madrid", " Tokyo")])
        >>> pairs.corrupted
        ['The capital of Italy is', 'The capital of Japan is']
        """
        if not isinstance(fields, Mapping):
            raise ValueError(f"fields is {described(fields)}; give a dict of names and their (clean, corrupted) texts")
        templates = [templates] if isinstance(templates, str) else read_texts(templates, "templates")
        n_rows = len(_two_sides(answer, "answer"))
        if not n_rows or not templates:
            raise ValueError("templates or answer is empty; give at least one template and one row")
        parts = {template: _parts(template, fields) for template in templates}
        for name, column in fields.items():
            if len(_two_sides(column, f"fields[{name!r}]")) != n_rows:
                raise ValueError(f"fields[{name!r}] has {len(column)} rows, but answer has {n_rows}; give one per row")
            for template, pieces in parts.items():
                if [one for _, one in pieces].count(name) != 1:
                    raise ValueError(f"template {template!r} must contain {{{name}}} exactly once")
        filled: tuple[list[str], list[str]] = ([], [])
        spans: dict[str, tuple[list, list]] = {name: ([], []) for name in fields}
        for template in templates:
            for row in range(n_rows):
                for side in (0, 1):
                    text, where = _fill(parts[template], {name: column[row][side] for name, column in fields.items()})
                    filled[side].append(text)
                    for name in fields:
                        spans[name][side].append(where[name])
        cluster = [f"row {row}" for _ in templates for row in range(n_rows)]
        return cls(
            clean=filled[0],
            corrupted=filled[1],
            answer=[pair[0] for pair in answer] * len(templates),
            wrong=[pair[1] for pair in answer] * len(templates),
            positions=spans,
            cluster=join_clusters(cluster, *filled),
        )


def join_clusters(labels: Iterable[object], *sides: Sequence[PromptLike]) -> list[str]:
    """The labels of rows; rows that share a prompt, directly or through other rows, all get the first row's label."""
    rows = list(map(str, labels))
    parent = {label: label for label in rows}

    def root(label: str) -> str:
        while parent[label] != label:
            parent[label] = label = parent[parent[label]]
        return label

    order = {label: at for at, label in enumerate(dict.fromkeys(rows))}
    first: dict[object, str] = {}
    for side in sides:
        for label, prompt in zip(rows, side, strict=True):
            one, other = sorted((root(label), root(first.setdefault(_key(prompt), label))), key=order.__getitem__)
            parent[other] = one
    joined = [root(label) for label in rows]
    if len(sides) > 1 and len(set(joined)) == 1 < len(order):
        warn(
            f"all {len(rows)} pairs share prompts, directly or through other pairs, so they are one cluster, which "
            "counts as one observation: there will be no interval, and p is 1. Give each prompt to one pair only; or, "
            "if the pairs may count as independent, give each its own cluster label"
        )
    return joined


def _shared_between(labels: Sequence[str], *sides: Sequence[PromptLike]) -> tuple[int, int, PromptLike] | None:
    """The first two rows of different clusters that share a prompt, and this prompt."""
    first: dict[object, int] = {}
    for at, prompts in enumerate(zip(*sides, strict=True)):
        for prompt in prompts:
            if labels[before := first.setdefault(_key(prompt), at)] != labels[at]:
                return before, at, prompt
    return None


def _key(prompt: PromptLike) -> object:
    """A key that equal prompts share, whether they are lists or tuples."""
    return prompt if isinstance(prompt, str) else repr(list(prompt))


def as_prompts(prompts: Prompts | Sequence[PromptLike], name: str = "prompts") -> Prompts:
    """``Prompts`` of a list of strings, chats or ids; ``Prompts`` themselves unchanged. ``name`` is the argument."""
    if isinstance(prompts, PromptPairs):
        raise ValueError(
            f'{name} are PromptPairs, which have two sides; give one side, pairs.side("clean") or '
            'pairs.side("corrupted")'
        )
    if isinstance(prompts, Prompts):
        return prompts
    if not len(read := read_prompts(prompts, name)):
        raise ValueError(f"{name} is empty; give at least one prompt")
    return Prompts(read)


def _read_fields(new: Prompts | PromptPairs, *sides: str) -> None:
    """Check the fields of new prompts or pairs, and replace them by lists of prompts, answers, positions and labels."""
    fields: dict[str, Any] = {name: read_prompts(getattr(new, name), name) for name in sides}
    fields |= {
        name: read_answers(answers, name) for name in ("answer", "wrong") if (answers := getattr(new, name)) is not None
    }
    if not isinstance(new.positions, Mapping):
        raise ValueError(
            f"positions is {described(new.positions)}; give a dict of names, such as "
            'positions={"subject": [" France", " Italy"]}'
        )
    fields["positions"] = {name: _position_lists(name, column, new) for name, column in new.positions.items()}
    if new.cluster is not None:
        fields["cluster"] = labels(new.cluster)
    check_arguments(type(new), vars(new))
    for name, value in fields.items():
        object.__setattr__(new, name, value)


def _position_lists(name: str, column: Any, new: Prompts | PromptPairs) -> Any:
    """A named position as a list; for pairs, as two lists if it is a tuple of (clean, corrupted)."""
    what = f"positions[{name!r}]"
    if isinstance(new, PromptPairs) and isinstance(column, tuple):
        if len(column) != 2:
            raise ValueError(f"{what} is a tuple of {len(column)}; give a list, or a tuple of (clean, corrupted) lists")
        return tuple(list(entries(side, what, "positions")) for side in column)
    return list(entries(column, what, "positions"))


def _summary(name: str, n: int, of: str, positions: Mapping[str, Any], cluster: Sequence[str] | None) -> str:
    """The first line of a repr."""
    more = [f"position{'s' * (len(positions) != 1)} {', '.join(positions)}"] if positions else []
    if cluster is not None:
        more.append(f"{len(set(cluster))} cluster{'s' * (len(set(cluster)) != 1)}")
    return ", ".join([f"{name}: {n} {of}{'s' * (n != 1)}", *more])


def _example(items: Sequence[PromptLike], answers: Sequence[str | int] | None) -> str:
    """The first prompt and its answer, for a repr."""
    answer = "" if answers is None else f" -> {answers[0]!r}"
    return f"{shown(items[0])}{answer}{', ...' if len(items) > 1 else ''}"


def _parts(template: str, fields: Mapping[str, Any]) -> list[tuple[str, str | None]]:
    """The texts of a template, each with the name of the field after it, or None at the end."""
    twice = "write braces that are text twice, {{ and }}"
    try:
        parts = list(Formatter().parse(template))
    except ValueError as error:
        raise ValueError(f"template {template!r} cannot be read ({error}); {twice}") from error
    for _, name, form, conversion in parts:
        if name is not None and (name not in fields or form or conversion):
            raise ValueError(
                f"template {template!r} has {{{name}}}, but fields has only {sorted(fields)}; give it, or {twice}"
            )
    return [(text, name) for text, name, _, _ in parts]


def _two_sides(column: Any, what: str) -> Sequence[Any]:
    """The column, checked to be pairs of (clean, corrupted) texts."""
    for row, pair in enumerate(entries(column, what, "(clean, corrupted) texts")):
        if not isinstance(pair, (tuple, list)) or len(pair) != 2 or not all(isinstance(side, str) for side in pair):
            raise ValueError(f"{what}[{row}] is {described(pair)}; give two texts, (clean, corrupted)")
    return column


def _fill(parts: Sequence[tuple[str, str | None]], values: Mapping[str, str]) -> tuple[str, dict[str, tuple[int, int]]]:
    """The filled template and the character span of each field."""
    spans: dict[str, tuple[int, int]] = {}
    text = ""
    for before, name in parts:
        text += before
        if name is not None:
            spans[name] = (len(text), len(text) + len(values[name]))
            text += values[name]
    return text, spans


def _show_tokens(tokens: Sequence[str], first: int) -> str:
    return " ".join(f">>{token!r}<<" if i == first else repr(token) for i, token in enumerate(tokens))
