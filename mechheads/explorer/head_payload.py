"""The columns of the page, and the cards of heads: the results of an atlas for each head, pane by pane."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Bool, UInt8

from mechheads.behaviour.examples import PARTS, HeadExamples
from mechheads.explorer import contract
from mechheads.explorer.contract import plain
from mechheads.heads import HeadId, check_heads
from mechheads.labels import HeadLabels
from mechheads.results.kinds import QuestionKind, kind_of
from mechheads.results.metadata import has_null, kind_name, label_of
from mechheads.results.scores import HeadScores
from mechheads.results.shown import shortened
from mechheads.studies.answers import card_rows, question_of
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import HeadPatterns

ACTIVITY = (
    "The largest size, over the tokens of a window, of what the head moves there from all tokens but the first, as a "
    "share of the residual stream."
)
LEAST = 8
"""The least attention to a key in examples, in 255ths; smaller weights are left out."""
STEP = 5
"""Attention in examples is rounded to multiples of so many 255ths, 2%, so that a page of all heads stays small."""
SIZES_STEP = 15
"""The same for the sizes of what tokens offer."""
_MANY = 512
"""If a model has more heads, a page shows one example of each part instead of two."""
_OF_EXAMPLES = ("window", "text", "activity", "query", "key", "weight")


class Parts:
    """The data of an atlas that several parts of a page use, computed once."""

    def __init__(self, atlas: Atlas) -> None:
        self.atlas, self.table, self.questions = atlas, atlas.to_dataframe(), atlas.questions()
        self.known = column_metadata(atlas)
        self.effects = _effects(atlas, self.known)
        self._each = 1 if atlas.sizes[0] * atlas.sizes[1] > _MANY else 2
        self._texts = {} if atlas.examples is None else _by_head(atlas.examples)

    def card(self, head: HeadId) -> contract.Head:
        """The card of one head."""
        atlas = self.atlas
        return {
            "head": str(head),
            "layer": head.layer,
            "index": head.head,
            "rows": self._rows(head),
            "text": self._text(head),
            "pattern": None if atlas.patterns is None else pattern_pane(atlas.patterns, head),
            "weights": None if atlas.labels is None else _relations(atlas.labels, atlas.relations, head),
            "cause": [each.of(head) for each in self.effects if each.measured[head.layer, head.head]] or None,
            "paths": paths_pane(atlas, head),
            "safety": _safety_pane(atlas, head),
        }

    def _rows(self, head: HeadId) -> list[contract.CardRow]:
        rows = card_rows(self.questions, head.layer * self.atlas.sizes[1] + head.head)
        return [contract.CardRow(question=question.key, **plain(vars(row))) for question, row in rows]

    def _text(self, head: HeadId) -> contract.TextPane | None:
        if self.atlas.examples is None:
            return None if self.atlas.profile is None else {"parts": [], "activity": ACTIVITY}
        rows = self._texts.get(str(head))
        return None if rows is None else _text_pane(self.atlas.examples, rows, self._each)


def shared(parts: Parts) -> contract.Shared:
    """The texts that all heads' cards share."""
    atlas = parts.atlas
    examples, patterns = atlas.examples, atlas.patterns
    prompts: list[contract.Prompt] = []
    if patterns is not None:
        prompts = [{"name": name, "tokens": patterns.tokens(i)} for i, name in enumerate(patterns.table["name"])]
    return {
        "words": [] if examples is None else list(examples.words),
        "windows": [] if examples is None else [row[row >= 0].tolist() for row in examples.tokens],
        "prompts": prompts,
        "pairs": [contract.Pair(**pair) for pair in atlas.pairs],
        "requests": atlas.requests,
        "labels": {effect.name: _prompts(effect.scores) for effect in parts.effects if effect.own},
    }


PANES = ("text", "pattern", "weights", "cause", "paths", "safety")


def panes(parts: Parts) -> list[str]:
    """The panes that a card of some head can have. A study shows all: an empty one says why."""
    atlas = parts.atlas
    has = {
        "text": atlas.examples is not None or atlas.profile is not None,
        "pattern": atlas.patterns is not None,
        "weights": atlas.labels is not None,
        "cause": bool(parts.effects),
        "paths": atlas.paths is not None,
        "safety": bool(atlas.safety),
    }
    return [name for name in PANES if has[name] or atlas.study]


def head_blocks(parts: Parts, heads: Collection[HeadId] | None = None) -> Iterator[tuple[int, contract.HeadBlock]]:
    """The cards of all heads, or of some, by layer."""
    selected = check_heads(None, *parts.atlas.sizes) if heads is None else sorted(heads)
    for layer in sorted({head.layer for head in selected}):
        yield layer, {"layer": layer, "heads": [parts.card(head) for head in selected if head.layer == layer]}


def linked_heads(atlas: Atlas, head: HeadId) -> set[HeadId]:
    """A head, and the heads that its card links to."""
    paths = paths_pane(atlas, head)
    linked = [] if paths is None else [each["head"] for each in (*paths["senders"], *paths["receivers"])]
    return {head, *(HeadId.parse(name) for name in linked if name is not None)}


def attention(keys: np.ndarray, weights: np.ndarray, first: np.ndarray) -> contract.Attention:
    """Sparse attention of one head in one text, from arrays [query, n_keys]; the largest key first, in 255ths."""
    positive = weights > 0
    ends = positive.sum(-1).cumsum().tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    all_keys, all_weights = keys[positive].tolist(), weights[positive].tolist()
    return {
        "first": first.tolist(),
        "keys": [all_keys[span] for span in spans],
        "weights": [all_weights[span] for span in spans],
    }


def rounded(shares: UInt8[np.ndarray, "*any"], step: int) -> UInt8[np.ndarray, "*any"]:
    """Shares in 255ths, rounded to multiples of a step that divides 255."""
    return (np.rint(shares / step) * step).astype(np.uint8)


def pattern_pane(patterns: HeadPatterns, head: HeadId) -> list[contract.Pattern]:
    """What a head attends to in prompts."""
    keys, weights, first = (each[head.layer, head.head] for each in (patterns.keys, patterns.weights, patterns.first))
    spans = map(slice, patterns.table["start"].tolist(), patterns.table["stop"].tolist())
    return [
        {"prompt": i, "attention": attention(keys[span], weights[span], first[span])} for i, span in enumerate(spans)
    ]


def _by_head(examples: HeadExamples) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """The examples of each head, each with its row in the table."""
    by_head: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for at, row in enumerate(pd.DataFrame(examples.table[["head", "part", *_OF_EXAMPLES]]).to_dict("records")):
        by_head.setdefault(row["head"], []).append((at, row))
    return by_head


def _text_pane(examples: HeadExamples, rows: list[tuple[int, dict[str, Any]]], each: int) -> contract.TextPane:
    """The first few examples of each part of a head."""
    parts: dict[str, list[contract.Example]] = {part: [] for part in PARTS}
    for at, row in rows:
        if len(parts[row["part"]]) < each:
            n = int((examples.tokens[row["window"]] >= 0).sum())
            keys, weights, first, sizes = (
                of[at, :n] for of in (examples.keys, examples.weights, examples.first, examples.sizes)
            )
            large = weights * (weights >= LEAST)
            parts[row["part"]].append(
                contract.Example(
                    **{name: plain(row[name]) for name in _OF_EXAMPLES},
                    attention=attention(keys, rounded(large, STEP), rounded(first, STEP)),
                    sizes=rounded(sizes, SIZES_STEP).tolist(),
                )
            )
    return {"parts": [{"name": name, "examples": of} for name, of in parts.items() if of], "activity": ACTIVITY}


@dataclass(frozen=True)
class _Effect:
    """An effect of heads: scores without extra dimensions, which heads have one, and whether they are your own."""

    scores: HeadScores
    name: str
    title: str
    meaning: str
    measured: Bool[np.ndarray, "layer head"]
    own: bool = False

    def of(self, head: HeadId) -> contract.Effect:
        """The effect of one head."""
        numbers = _numbers(self.scores, (head.layer, head.head), _STATISTICS | _VALUES)
        return contract.Effect(name=self.name, title=self.title, unit=self.scores.unit, meaning=self.meaning, **numbers)


def _effects(atlas: Atlas, known: Mapping[str, Metadata]) -> list[_Effect]:
    """The effects of an atlas, and your own scores that are means over prompts."""
    effects, every = [], np.ones(atlas.sizes, dtype=bool)
    if atlas.patching is not None:
        effects.append(_Effect(atlas.patching, "patching", "Patching", known["patching"].meaning, every))
    if atlas.direct is not None:
        meaning = known["direct"].meaning
        effects.append(_Effect(atlas.direct, "attribution", "Direct effect in the logits", meaning, every))
    for name, view in atlas.own_views.items():
        if view.scores.values is not None:
            measured = np.asarray(np.isfinite(view.scores.scores.values))
            effects.append(_Effect(view.scores, name, view.label, known[name].meaning, measured, own=True))
    return effects


def _safety_pane(atlas: Atlas, head: HeadId) -> list[contract.Ships] | None:
    if not atlas.safety:
        return None
    names = {
        "score": "score",
        "low": "ci_low",
        "high": "ci_high",
        "generalized": "generalized_ships",
        "generalizedLow": "generalized_ships_low",
        "generalizedHigh": "generalized_ships_high",
        **_VALUES,
    }
    return [
        contract.Ships(ablation=ablation, unit=scores.unit, **_numbers(scores, (head.layer, head.head), names))
        for ablation, scores in atlas.safety.items()
    ]


_STATISTICS = {"score": "score", "low": "ci_low", "high": "ci_high", "p": "p_family", "q": "q_value"}
_VALUES = {"values": "values"}
"""Keys of the page, and the variables of scores that they stand for."""


def _numbers(scores: HeadScores, at: tuple[int, ...], names: Mapping[str, str]) -> dict[str, Any]:
    """The numbers of scores at an index, by the keys of the page; None, or no values, for variables they lack."""
    data = scores.dataset.variables
    missing = {"values": []}
    return plain({key: data[name].values[at] if name in data else missing.get(key) for key, name in names.items()})


def _prompts(scores: HeadScores) -> list[str]:
    """The cluster labels of the prompts, or starts, that scores are means over."""
    return [] if "cluster" not in scores.dataset else [str(label) for label in scores.dataset["cluster"].values]


PATHS = (
    "The change of the logit difference if only the path from the sender to the receiver comes from the corrupted run."
)
_LISTED = 6


def paths_pane(atlas: Atlas, head: HeadId) -> contract.PathsPane | None:
    """The heads that a head reads from and writes to, by path patching; None without path patching."""
    paths = atlas.paths
    if paths is None:
        return None
    data, mine = paths.dataset.variables, (head.layer, head.head)
    senders: list[contract.Path] = []
    receivers: list[contract.Path] = []

    def path(other: str | None, way: Any, at: tuple[int, int, int]) -> contract.Path:
        return contract.Path(head=other, way=way, **_numbers(paths, at, _STATISTICS))

    for i, name in enumerate(data["receiver"].values.tolist()):
        other, _, way = name.partition(".")
        if other == str(head):
            for layer, sender in np.argwhere(np.isfinite(data["score"].values[..., i])).tolist():
                if layer < head.layer:
                    senders.append(path(str(HeadId(layer, sender)), way, (layer, sender, i)))
        elif (not way or HeadId.parse(other).layer > head.layer) and np.isfinite(data["score"].values[(*mine, i)]):
            receivers.append(path(other if way else None, way or "final", (*mine, i)))
    for listed in (senders, receivers):
        listed.sort(key=lambda each: -abs(each["score"] or 0.0))
    return {"senders": senders, "receivers": receivers, "unit": paths.unit, "meaning": PATHS}


def _relations(labels: HeadLabels, relations: HeadScores | None, head: HeadId) -> list[contract.RelationEvidence]:
    """The relations with the largest phi of a head, and all that are evidence for a label."""
    data, at = labels.dataset.variables, (head.layer, head.head)
    names = {"phi": "phi", "low": "phi_low", "high": "phi_high", "q": "q", "null": "null_phi"}
    evidence, below = data["is_evidence"].values[at], data["is_below_floor"].values[at]
    reading = data["relation_reading"].values[at] if "relation_reading" in data else None
    order = np.argsort(-np.nan_to_num(data["phi"].values[at], nan=-1.0), kind="stable")
    listed = [i for rank, i in enumerate(order.tolist()) if rank < _LISTED or evidence[i]]
    return [
        contract.RelationEvidence(
            relation=str(data["relation"].values[i]),
            category=str(data["category_of"].values[i]),
            reading="" if reading is None else str(reading[i]),
            evidence=bool(evidence[i]),
            below=bool(below[i]),
            pairs=_pairs(relations, head, i) if evidence[i] and relations is not None else None,
            **_numbers(labels, (*at, i), names),
        )
        for i in listed
    ]


def _pairs(relations: HeadScores, head: HeadId, relation: int) -> list[contract.RelationPair] | None:
    """The pairs of a relation, and whether the head hits them."""
    if relations.values is None or "pair" not in relations.dataset:
        return None
    hits = relations.values.values[head.layer, head.head, relation]
    pairs = relations.dataset.variables["pair"].values[relation]
    measured = [(str(pair).partition(" -> "), hit) for pair, hit in zip(pairs, hits, strict=True) if np.isfinite(hit)]
    return [{"source": source, "target": target, "hit": bool(hit)} for (source, _, target), hit in measured]


GROUPS: dict[QuestionKind, str] = {
    "prompts": "In tasks",
    "requests": "In refusals",
    "text": "On text",
    "weights": "By weights",
}
"""The headings of columns in menus, by what the scores are evidence about."""
_PATH = "The effect of one path from the head to a receiver, if all other heads keep their values."
_OF_PAIRS = "The share of a relation's pairs whose target is among the strongest outputs of the head, "
_GATE = "How far the gate of the head holds its role after the fits."
MEANINGS = {
    "activation_patch": "The effect of one head's activation from the other run.",
    "path_patch": _PATH,
    "path_matrix": _PATH,
    "attribution": "An estimate, from gradients, of the effect of patching one head.",
    "ablate": "The effect of replacing one head's output.",
    "profile": "The share of attention, on ordinary text, that goes to such tokens.",
    "logit_attribution": "What the head itself adds to the logits of the answer, with the final norm frozen.",
    "attention_part": "What the head itself adds to the score before softmax, with the norms frozen.",
    "relations": f"{_OF_PAIRS}by its weights.",
    "dynamic_relations": f"{_OF_PAIRS}in context.",
    "labels": "The share of the best relation's pairs that the weights of the head map from source to target.",
    "ships": "The KL divergence of the next token's distribution after a request from that without the head.",
    "ships_contrast": "The logarithm of Ships after a request, less that of Ships after its harmless look-alike.",
    "generalized_ships": "The angle by which the states of all requests turn without the head.",
    "sahara": "How far the states of all requests turn if this head is ablated beside those that were chosen before.",
    "refusal_contribution": "How far the head raises the beginning of a refusal.",
    "refusal_attribution": "An estimate, from gradients, of how far refusals depend on the head.",
    "gates": _GATE,
    "roles": _GATE,
    "retrieval": "What the head writes to an answer from its place in the prompt, less what it writes from others.",
}
"""What each kind of scores measures."""
GENERALIZED = "generalized_"
YOUR_OWN = "Your own"


class Metadata(NamedTuple):
    """The label, meaning and source of a column; ``question``: the key of its question."""

    label: str
    meaning: str
    unit: str = ""
    group: str = "Other"
    question: str | None = None
    signed: bool = False
    source: str | None = None


_TEXT = {
    "names": ("Names", "What the head is called for what it attends to in ordinary text.", ""),
    "to_first": ("To the first token", "Attention to the first token of a text.", "share of attention"),
    "to_self": ("To the token itself", "Attention from a token to itself.", "share of attention"),
    "to_previous": ("To the previous token", "Attention to the token just before.", "share of attention"),
    "to_duplicate": ("To duplicates", "Attention to earlier copies of the token.", "share of attention"),
    "to_induction": ("Induction", "Attention to tokens after an earlier copy of the token.", "share of attention"),
    "to_delimiter": ("To delimiters", "Attention to punctuation and line ends.", "share of attention"),
    "by_position": (
        "By position",
        "The share of the variance of attention that distance explains.",
        "share of variance",
    ),
    "entropy": ("Entropy", "How widely attention is spread: 0 if it is on one token.", "nats"),
    "distance": ("Distance", "How far back the head attends on average.", "tokens"),
    "norm": ("Size of the output", "The norm of the head's output relative to the residual stream.", "share"),
    "copying": ("Copying in text", "How far what the head writes raises the tokens that it attends to.", ""),
}
COLUMNS = {
    "layer": Metadata("Layer", "The layer of the head, counted from 0.", group="Where"),
    "head": Metadata("Head", "The number of the head in its layer, counted from 0.", group="Where"),
    **{name: Metadata(*text, GROUPS["text"], "text", name == "copying", "profile") for name, text in _TEXT.items()},
    "categories": Metadata(
        "Categories", "Categories by the weights.", "", GROUPS["weights"], "weights", False, "labels"
    ),
    "best_relation": Metadata(
        "Best relation", "The relation of phi.", "", GROUPS["weights"], "weights", False, "labels"
    ),
}
"""The columns of ``Atlas.to_dataframe`` that have a value of their own and are not scores."""


def column_metadata(atlas: Atlas) -> dict[str, Metadata]:
    """The metadata of each column that has a value of its own."""
    own, keys, known = atlas.own_views, question_of(atlas), dict(COLUMNS)
    for name, scores in atlas.views.items():
        mine = name in own
        source = own[name].of[0] if mine else result_of(name)
        for kind, column in (("", name), ("generalized_ships", f"{GENERALIZED}{name}")):
            if kind and kind not in scores.dataset:
                continue
            metadata = kind_of(kind or kind_name(scores))
            least = np.nanmin(scores.dataset[kind or "score"].values, initial=0.0)
            known[column] = Metadata(
                shortened(own[name].label) if mine and not kind else label_of(scores, kind),
                MEANINGS.get(kind or kind_name(scores), "Scores of your own."),
                metadata.unit if kind else scores.unit,
                YOUR_OWN if mine else GROUPS[metadata.question],
                keys[name],
                not kind and (has_null(scores) or bool(least < 0)),
                source,
            )
    return known


def result_of(view: str) -> str:
    """The name of the result behind a view of the package."""
    if view.startswith("ships_"):
        return f"safety_{view.removeprefix('ships_').removeprefix('contrast_')}"
    return "labels" if view.startswith("phi") else view


_ENDINGS: dict[str, contract.ColumnRole] = {
    "_ci_low": "low",
    "_ci_high": "high",
    "_range_low": "low",
    "_range_high": "high",
    "_p_family": "p",
    "_q": "q",
}
_ROLES = {
    "low": ("lower end", "The lower end of the interval of {}."),
    "high": ("upper end", "The upper end of the interval of {}."),
    "p": ("family p", "The chance that any head comes so far from the null of {} if none differs from it."),
    "q": ("q", "The false discovery rate at which {} differs from its null."),
}


def columns(table: pd.DataFrame, known: Mapping[str, Metadata]) -> list[contract.Column]:
    """Every column of ``Atlas.to_dataframe``, with all values and what they mean."""
    parent = {name: _value_of(name, table.columns) for name in table}
    described: list[contract.Column] = []
    for name in map(str, table):
        of, role = parent[name]
        metadata = known.get(of or name) or Metadata(name, f"The column {name} of the table.")
        label, meaning, unit = metadata.label, metadata.meaning, metadata.unit
        if of is not None:
            label, meaning = f"{label}, {_ROLES[role][0]}", _ROLES[role][1].format(metadata.label)
            unit = "" if role in ("p", "q") else unit
        elif name in ("layer", "head"):
            role = "place"
        mine = {each_role: each for each, (whose, each_role) in reversed(parent.items()) if whose == name}
        low = f"{name}_ci_low"
        has_interval = low in table and table[low].notna().to_numpy().any()
        if ranged := f"{name}_range_low" in table and not has_interval:
            mine |= {end: f"{name}_range_{end}" for end in ("low", "high")}
        mine |= dict.fromkeys(end for end in mine if not table[mine[end]].notna().to_numpy().any())
        described.append(
            {
                "name": name,
                "label": label,
                "unit": unit,
                "meaning": meaning,
                "kind": "text" if table[name].dtype.kind not in "biuf" else "number",
                "group": metadata.group,
                "role": role,
                "of": of,
                "low": mine.get("low"),
                "high": mine.get("high"),
                "p": mine.get("p"),
                "q": mine.get("q"),
                "range": ranged,
                "signed": metadata.signed,
                "question": metadata.question,
                "source": metadata.source,
                "values": plain(table[name].to_numpy()),
            }
        )
    return described


def _value_of(name: str, known: Sequence[str] | pd.Index) -> tuple[str | None, contract.ColumnRole]:
    """The column that a column belongs to (None if it has a value of its own), and its role."""
    for ending, role in _ENDINGS.items():
        whose = name.removesuffix(ending)
        if name.endswith(ending) and whose in known:
            return whose, role
    return None, "value"
