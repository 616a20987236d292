"""The types of all data that Python sends to the page; ``front/src/data.ts`` has the same types for the page.

``python -m docs.contract`` writes that file from the classes below and in ``live.py``; ``blocks`` and
``to_json`` write the data.

- The page: ``<script type="application/json" id="mh-page">`` is a ``Page``. Blocks are JSON, deflated and in base64, in
  ``<script type="application/octet-stream;base64" id="...">``: ``mh-shared`` is the ``Shared``, ``mh-heads-L`` the
  ``HeadBlock`` of layer L.
- The notebook widget has the page in its trait ``page``, and the blocks in ``blocks``.
- A head has the number ``layer * nHeads + head``; lists over heads are in this order. Positions and layers are counted
  from 0.
- ``None`` means not measured or not defined. NaN and infinity do not occur.
- Texts are plain text that may hold anything, such as markup, control characters and bidirectional marks.
"""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, TypedDict

import numpy as np

from mechheads.heads import HeadId

_LEVEL: int = 7
"""The level of compression: 3% fewer bytes than with 5, for a quarter more time of the whole page."""
_ESCAPED: dict[int, str] = str.maketrans({sign: f"\\u{ord(sign):04x}" for sign in "<>&"})

Num = float | None
Byte = int
"""A share in 255ths. In examples of text, attention is rounded to 5 of them and sizes to 15."""
HeadName = str
ColumnRole = Literal["place", "value", "low", "high", "p", "q"]
Way = Literal["q", "k", "v", "final"]


class Page(TypedDict):
    """The data of the page's first view."""

    schema: Literal[1]
    # "run" has patterns only, and no columns
    kind: Literal["atlas", "run"]
    version: str  # of mechheads
    title: str
    model: Model
    live: Live | None  # if texts of the reader's own can be run; None in the offline page
    start: HeadName | None  # the card that is open at first. An atlas with one has only its card, and those it links to


class Live(TypedDict):
    """The limits of a notebook's widget, which runs texts of the reader's own.

    Messages are ``{type: "text", id, text, head}`` and ``{type: "cancel", id}``; the answer is ``{type: "text",
    ...TextAnswer}`` or ``{type: "error", id, error}``; and ``{type: "page", id}`` asks for the page as a file, ``{...,
    html}``. A text with ``query`` and ``key``, numbers of tokens, is answered by a ``WhyAnswer``.
    """

    maxCharacters: int
    maxTokens: int


class Model(TypedDict):
    """A model and its results."""

    name: str
    nLayers: int
    nHeads: int
    nKvHeads: int | None  # head h has the key and value h / (nHeads / nKvHeads)
    questions: list[Question]  # the blocks at the top of the page
    notes: list[str]  # what was left out, and why
    interrupted: bool
    sources: list[Source]  # the results behind the numbers
    citation: str  # BibTeX of all results
    cautions: list[str]  # fixed texts: what may not be concluded
    columns: list[Column]
    categories: Categories | None
    behaviours: Behaviours | None
    circuits: list[Circuit]  # sets of heads with their stored faithfulness
    tables: list[Table]  # results that are about no single head
    panes: list[str]  # parts of a card that have data for some head, or that say why they have none


class Question(TypedDict):
    """A question that some results answer, and the heads whose effect is large enough to name."""

    key: str
    title: str  # such as "naming the capital"
    kind: Literal["pairs", "requests", "text", "weights", "own"]
    views: list[str]  # columns with scores of its own
    varies: str  # how many prompts, pairs, requests or windows there were, and what varies in them
    warnings: list[str]  # fixed texts about what these prompts do not allow
    rows: list[Row]
    contradictions: list[Contradiction]
    view: str | None  # the column that ranks its heads


class Interval(TypedDict):
    low: Num
    high: Num


class Row(Interval):
    """A head of a question: its value and null, and the family p if all heads were tested together."""

    head: HeadName
    measured: str
    column: str  # the column of the table that has the value
    value: Num
    null: Num
    p: Num
    n: int  # how many prompts it is a mean over; 0 if it is not a mean. Without an interval, they are too few
    unit: str
    rank: int  # 1 for the head furthest from the null; equal heads share a rank
    of: int
    note: str  # a fixed text, such as that one prompt carries it


class CardRow(Row):
    """A row of a card, under its question."""

    question: str


class Contradiction(TypedDict):
    """A head on which two measures of one question differ; see ``Question.contradictions`` of the atlas."""

    a: Row
    b: Row


class Source(TypedDict):
    """A result, and how to get its numbers again."""

    name: str
    call: str  # the Python call, of a model called ``model``; empty if none is known
    prompts: str  # how many, in words
    file: str | None  # beside the page


class Column(TypedDict):
    """One column of the table of heads: every number of the atlas' table, to the last digit.

    The columns that belong to a value are ``low``, ``high``, ``p`` and ``q``; with ``range``, low and high are the
    means of two clusters, no interval.
    """

    name: str  # in heads.csv, and for filters such as ``patching > 0.2``
    label: str  # for people
    unit: str
    meaning: str
    kind: Literal["number", "text"]
    group: str  # its heading in menus
    role: ColumnRole  # menus and the table show "value" unless asked for more
    of: str | None  # the value that it belongs to
    low: str | None
    high: str | None
    range: bool
    p: str | None
    q: str | None
    question: str | None  # the key of its question
    signed: bool  # whether colour scales are centred on 0, and rank 1 is the largest absolute value
    source: str | None  # the name of its result
    values: list[float | str | None]  # one for each head. Of texts, several are separated by "; "


class Categories(TypedDict):
    """Categories by weights."""

    names: list[str]
    of: list[list[int] | None]  # of each head, numbers of its categories in ``names``; None if it was not reached
    below: list[list[int]]  # the same with evidence below the floor
    relations: list[Relation]
    phi: list[list[Num]]  # of each head and relation
    floor: Num  # phi exceeds phi with shuffled targets by at least this, for a label


class Relation(TypedDict):
    """A relation, and the number of its category."""

    name: str
    category: int


class Behaviours(TypedDict):
    """What heads do in text; ``of``: of each head, numbers of its names."""

    names: list[Behaviour]
    of: list[list[int]]


class Behaviour(TypedDict):
    """What a head is called, such as "induction", and the least excess over the null that its column needs."""

    name: str
    column: str
    meaning: str
    least: float


class Circuit(TypedDict):
    """A set of heads, and the faithfulness of the first k."""

    name: str
    heads: list[HeadName]
    metric: str
    curve: list[CircuitPoint]
    source: str


class CircuitPoint(Interval):
    k: int
    value: Num


class Table(TypedDict):
    """The first rows of a result, by its name; the table has ``of`` rows."""

    name: str
    unit: str
    columns: list[str]
    rows: list[list[str]]
    of: int


class Shared(TypedDict):
    """The block ``mh-shared``: texts that the cards of all heads share."""

    words: list[str]  # texts of tokens
    windows: list[list[int]]  # of ordinary text, as numbers of ``words``
    prompts: list[Prompt]  # those with patterns
    pairs: list[Pair]  # the patched pairs, in the order of ``Effect.values``
    requests: list[str]  # in the order of ``Ships.values``. Harmful: shown folded
    labels: dict[str, list[str]]  # by the names of effects of the reader's own, the labels of their prompts


class Prompt(TypedDict):
    name: str
    tokens: list[str]


class Pair(TypedDict):
    clean: str
    corrupted: str
    answer: str
    wrong: str


class HeadBlock(TypedDict):
    """The block ``mh-heads-L``: the heads of layer L."""

    layer: int
    heads: list[Head]


class Head(TypedDict):
    """The card of one head. A pane is None if its analysis was not run; ``Model.notes`` says why."""

    head: HeadName
    layer: int
    index: int
    rows: list[CardRow]  # what was measured, by question
    text: TextPane | None
    pattern: list[Pattern] | None
    weights: list[RelationEvidence] | None  # evidence for categories, the largest phi first
    cause: list[Effect] | None  # first the atlas' effects, then the reader's
    paths: PathsPane | None
    safety: list[Ships] | None  # one for each ablation


class Attention(TypedDict):
    """Sparse attention of one head in one text.

    For query q, ``first[q]`` goes to token 0 and ``weights[q][i]`` to ``keys[q][i]``, the largest first; the rest goes
    to keys that are not listed.
    """

    first: list[Byte]
    keys: list[list[int]]
    weights: list[list[Byte]]


class TextPane(TypedDict):
    """What a head does in ordinary text; ``activity`` says in a sentence what activity is."""

    parts: list[Part]
    activity: str


class Part(TypedDict):
    """Examples of "highest", then ten quantiles from "90-100%" to "0-10%", "lowest" or "random" activity."""

    name: str
    examples: list[Example]


class Example(TypedDict):
    """A window of text."""

    window: int  # its number in ``Shared.windows``
    text: int  # the number of the text that it comes from
    # the largest in the window, at ``query``: what is moved there from all tokens but the first, as a share of the
    # residual stream
    activity: float
    query: int
    key: int  # from where most is moved
    weight: float  # its attention, a share
    attention: Attention
    # the norm of what each token offers, relative to the largest; attention times this is what is moved
    sizes: list[Byte]


class Pattern(TypedDict):
    """What a head attends to in a prompt, by its number in ``Shared.prompts``."""

    prompt: int
    attention: Attention


class RelationEvidence(Interval):
    """The evidence that a head implements a relation."""

    relation: str
    category: str
    phi: Num
    q: Num
    null: Num  # the mean phi of shuffled targets
    reading: str  # how the head reads tokens: "embedding", "first_mlp", "carried"
    evidence: bool  # whether it is evidence for a label
    below: bool  # whether it is as significant, but below the floor
    pairs: list[RelationPair] | None  # the relation's pairs; only of evidence


class RelationPair(TypedDict):
    """``hit``: the target is among the strongest outputs of the head for the source."""

    source: str
    target: str
    hit: bool


class Score(Interval):
    score: Num


class TestedScore(Score):
    p: Num
    q: Num


class Effect(TestedScore):
    """The effect of changing a head; ``values``: for each of ``Shared.pairs``, or of ``Shared.labels[name]``."""

    name: str
    title: str
    unit: str
    meaning: str
    values: list[Num]


class PathsPane(TypedDict):
    """The heads that a head reads from and writes to, by path patching."""

    senders: list[Path]
    receivers: list[Path]
    unit: str
    meaning: str


class Path(TestedScore):
    """``head``: the one at the other end, or None for "final", the logits."""

    head: HeadName | None
    way: Way


class Ships(Score):
    """Ships in nats, for each of ``Shared.requests`` too, and Generalized Ships in degrees."""

    ablation: str
    unit: str
    generalized: Num
    generalizedLow: Num
    generalizedHigh: Num
    values: list[Num]


def plain(value: Any) -> Any:
    """A value as JSON has it: arrays as lists, heads by their names, and None for NaN and infinity."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            cells = value.astype(object)
            cells[~np.isfinite(value)] = None
            return cells.tolist()
        return value.tolist()
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if np.isfinite(value) else None
    if isinstance(value, HeadId):
        return str(value)
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    return value


def to_json(value: Any) -> str:
    """Compact JSON whose texts are safe in any part of a page."""
    return _dumped(value).translate(_ESCAPED)


def blocks(values: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """The blocks of values by their names. Two threads deflate some while the next are made."""
    with ThreadPoolExecutor(2) as threads:
        packed = {name: threads.submit(_packed, _dumped(value)) for name, value in values}
    return {name: each.result() for name, each in packed.items()}


def _packed(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode("ascii"), _LEVEL)).decode("ascii")


def _dumped(value: Any) -> str:
    """JSON in ASCII: control characters, marks of direction and lone surrogates are escaped."""
    return json.dumps(value, allow_nan=False, separators=(",", ":"), default=plain)
