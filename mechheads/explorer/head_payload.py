"""The cards of heads: what an atlas holds of each head, pane by pane, and what all cards of a model share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, UInt8

from mechheads.behaviour.head_examples import PARTS, HeadExamples
from mechheads.explorer.columns import comparable
from mechheads.explorer.encode import plain
from mechheads.explorer.weights_payload import compositions, paths_pane, weights_pane
from mechheads.heads import HeadId, check_heads
from mechheads.results.dataset import RANGE
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import HeadPatterns

ACTIVITY = (
    "The largest size, over the tokens of a window, of what the head moves there from all tokens but the first, as a "
    "share of the residual stream."
)
LEAST = 8
"""Attention to a key, in 255ths, that is kept."""
STEP = 5
"""Attention in examples is rounded to so many 255ths, 2%, so that a page of all heads stays small."""
SIZES_STEP = 15
"""The same for the sizes of what tokens offer."""
_MANY = 512
"""If a model has more heads, each part of the examples has one."""
_ALIKE = 8
_OF_EXAMPLES = ("window", "text", "activity", "query", "key", "weight")
_REPAIR = {
    "total": (
        "Total effect",
        "The change of the logit difference if its output comes from the corrupted run and everything after it reacts.",
    ),
    "direct": ("Direct effect", "The same with all other heads and MLPs frozen: only the logits see the change."),
    "repair": (
        "Reaction of later layers",
        "Total minus direct effect. If the direct effect is negative, a positive reaction is self-repair.",
    ),
}


def shared(atlas: Atlas) -> dict[str, Any]:
    """The texts that all heads' cards share."""
    examples, patterns = atlas.examples, atlas.patterns
    prompts = (
        []
        if patterns is None
        else [{"name": name, "tokens": patterns.tokens(i)} for i, name in enumerate(patterns.table["name"])]
    )
    return {
        "words": [] if examples is None else list(examples.words),
        "windows": [] if examples is None else [row[row >= 0].tolist() for row in examples.tokens],
        "prompts": prompts,
        "pairs": atlas.pairs,
        "requests": atlas.requests,
        "seeds": [] if atlas.roles is None else _prompts(next(iter(atlas.roles.values()))),
    }


def head_blocks(atlas: Atlas, heads: Collection[HeadId] | None = None) -> Iterator[tuple[int, dict[str, Any]]]:
    """The cards of all heads, or of some, by layer."""
    cards = _Cards(atlas)
    wanted = check_heads(None, *atlas.sizes) if heads is None else sorted(heads)
    for layer in sorted({head.layer for head in wanted}):
        yield layer, {"layer": layer, "heads": [cards.of(head) for head in wanted if head.layer == layer]}


def linked_heads(atlas: Atlas, head: HeadId) -> set[HeadId]:
    """A head, and the heads that its card links to."""
    card = _Cards(atlas).of(head)
    paths, alike = card["paths"] or {}, card["alike"] or {}
    lists = [paths.get("senders", []), paths.get("receivers", []), alike.get("heads", [])]
    lists += [way[side] for way in paths.get("composition", []) for side in ("senders", "receivers")]
    return {head, *(HeadId.parse(each["head"]) for found in lists for each in found if each["head"] is not None)}


class _Cards:
    """Makes the cards of an atlas."""

    def __init__(self, atlas: Atlas) -> None:
        self.atlas = atlas
        self._alike = _nearest(atlas.to_dataframe())
        self._each = 1 if atlas.sizes[0] * atlas.sizes[1] > _MANY else 2
        self._texts = {} if atlas.examples is None else _by_head(atlas.examples)
        self._composed = None if atlas.weights is None else compositions(atlas.weights.table)
        self._effects = _effects(atlas)

    def of(self, head: HeadId) -> dict[str, Any]:
        """The card of one head."""
        atlas = self.atlas
        return {
            "head": str(head),
            "layer": head.layer,
            "index": head.head,
            "text": self._text(head),
            "pattern": None if atlas.patterns is None else pattern_pane(atlas.patterns, head),
            "weights": weights_pane(atlas, head),
            "cause": self._cause(head),
            "paths": paths_pane(atlas, head, self._composed),
            "safety": _safety_pane(atlas, head),
            "roles": _roles_pane(atlas, head),
            "alike": self._alike(head),
        }

    def _text(self, head: HeadId) -> dict[str, Any] | None:
        rows = self._texts.get(str(head))
        return (
            None if rows is None or self.atlas.examples is None else _text_pane(self.atlas.examples, rows, self._each)
        )

    def _cause(self, head: HeadId) -> dict[str, Any] | None:
        effects = [effect.of(head) for effect in self._effects if effect.has[head.layer, head.head]]
        return {"effects": effects} if effects else None


def attention(keys: np.ndarray, weights: np.ndarray, first: np.ndarray) -> dict[str, Any]:
    """Sparse attention of one head in one text; keys without attention are left out.

    Args:
        keys, weights: [query, kept], the largest first; weights and ``first`` in 255ths.
    """
    kept = weights > 0
    ends = kept.sum(-1).cumsum().tolist()
    spans = [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]
    of_keys, of_weights = keys[kept].tolist(), weights[kept].tolist()
    return {
        "first": first.tolist(),
        "keys": [of_keys[span] for span in spans],
        "weights": [of_weights[span] for span in spans],
    }


def rounded(shares: UInt8[np.ndarray, "*any"], step: int) -> UInt8[np.ndarray, "*any"]:
    """Shares in 255ths, rounded to multiples of a step that divides 255."""
    return (np.rint(shares / step) * step).astype(np.uint8)


def pattern_pane(patterns: HeadPatterns, head: HeadId) -> dict[str, Any]:
    """What a head attends to in prompts."""
    keys, weights, first = (each[head.layer, head.head] for each in (patterns.keys, patterns.weights, patterns.first))
    spans = [slice(start, stop) for start, stop in patterns.table[["start", "stop"]].to_numpy().tolist()]
    found = [attention(keys[span], weights[span], first[span]) for span in spans]
    return {"prompts": [{"prompt": i, "attention": each} for i, each in enumerate(found)]}


def _by_head(examples: HeadExamples) -> dict[str, list[tuple[int, dict[str, Any]]]]:
    """The examples of each head, each with its row in the table."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for at, row in enumerate(pd.DataFrame(examples.table[["head", "part", *_OF_EXAMPLES]]).to_dict("records")):
        found.setdefault(row["head"], []).append((at, row))
    return found


def _text_pane(examples: HeadExamples, rows: list[tuple[int, dict[str, Any]]], each: int) -> dict[str, Any]:
    """The examples of a head; of each part the first few."""
    parts: dict[str, list[Any]] = {part: [] for part in PARTS}
    for at, row in rows:
        if len(parts[row["part"]]) < each:
            n = int((examples.tokens[row["window"]] >= 0).sum())
            one = {name: plain(row[name]) for name in _OF_EXAMPLES}
            keys, weights, first, sizes = (
                of[at, :n] for of in (examples.keys, examples.weights, examples.first, examples.sizes)
            )
            kept = weights * (weights >= LEAST)
            one["attention"] = attention(keys, rounded(kept, STEP), rounded(first, STEP))
            one["sizes"] = rounded(sizes, SIZES_STEP).tolist()
            parts[row["part"]].append(one)
    found = [{"name": name, "examples": of} for name, of in parts.items() if of]
    return {"parts": found, "activity": ACTIVITY}


@dataclass(frozen=True)
class _Effect:
    """What patching says of heads: scores without extra dimensions, and which heads have one."""

    scores: HeadScores
    name: str
    title: str
    meaning: str
    has: Bool[np.ndarray, "layer head"]

    def of(self, head: HeadId) -> dict[str, Any]:
        """The effect of one head."""
        at = head.layer, head.head
        data, values = self.scores.dataset.variables, self.scores.values
        names = {"score": "score", "low": "ci_low", "high": "ci_high", "q": "q_value"}
        return {
            "name": self.name,
            "title": self.title,
            "unit": self.scores.unit,
            "meaning": self.meaning,
            **plain({key: data[variable].values[at] for key, variable in names.items()}),
            "values": [] if values is None else plain(values.values[at]),
        }


def _effects(atlas: Atlas) -> list[_Effect]:
    """The effects of an atlas; those of self-repair were measured for some heads only."""
    effects, every = [], np.ones(atlas.sizes, dtype=bool)
    if atlas.patching is not None:
        meaning = "The share of the logit difference that its output from the clean run restores in the corrupted one."
        effects.append(_Effect(atlas.patching, "patching", "Patching", meaning, every))
    if atlas.repair is not None:
        some = np.asarray(np.isfinite(atlas.repair.scores.values).any(-1))
        effects += [_Effect(atlas.repair.select(effect=name), name, *about, some) for name, about in _REPAIR.items()]
    if atlas.direct is not None:
        meaning = "What the head itself adds to the logit of the right capital, minus that of the wrong one."
        effects.append(_Effect(atlas.direct, "attribution", "Direct part in the logits", meaning, every))
    return effects


def _safety_pane(atlas: Atlas, head: HeadId) -> dict[str, Any] | None:
    if not atlas.safety:
        return None
    at = head.layer, head.head
    names = {
        "score": "score",
        "low": "ci_low",
        "high": "ci_high",
        "generalized": "generalized_ships",
        "generalizedLow": "generalized_ships_low",
        "generalizedHigh": "generalized_ships_high",
    }
    found = []
    for ablation, scores in atlas.safety.items():
        data = scores.dataset.variables
        numbers = {key: data[name].values[at] if name in data else None for key, name in names.items()}
        values = [] if scores.values is None else scores.values.values[at]
        found.append({"ablation": ablation, "unit": scores.unit, **plain(numbers), "values": plain(values)})
    return {"ships": found}


def _roles_pane(atlas: Atlas, head: HeadId) -> dict[str, Any] | None:
    if atlas.roles is None:
        return None
    at = head.layer, head.head
    roles = []
    for role, scores in atlas.roles.items():
        data = scores.dataset.variables
        ranged = RANGE[0] in data and not np.isfinite(data["ci_low"].values[at])
        low, high = (data[name].values[at] for name in (RANGE if ranged else ("ci_low", "ci_high")))
        values = [] if scores.values is None else scores.values.values[at]
        numbers = {"score": data["score"].values[at], "low": low, "high": high, "values": values}
        roles.append({"role": role, "range": ranged, **plain(numbers)})
    return {"roles": roles}


def _prompts(scores: HeadScores) -> list[str]:
    """The labels of the prompts (of roles: of the starts) behind scores."""
    return [] if "cluster" not in scores.dataset else [str(label) for label in scores.dataset["cluster"].values]


def _nearest(table: pd.DataFrame) -> Any:
    """A function that gives the heads most alike one head, by the ranks of everything that was measured."""
    names = comparable(table)
    heads = check_heads(None, *(table[["layer", "head"]].to_numpy().max(0) + 1).tolist())
    if len(names) < 3:
        return lambda head: None
    ranks = table[names].rank()
    spread = ((ranks - ranks.mean()) / ranks.std(ddof=0)).fillna(0.0).to_numpy()
    centred = spread - spread.mean(1, keepdims=True)
    unit = centred / np.maximum(np.linalg.norm(centred, axis=1, keepdims=True), np.finfo(float).tiny)
    near = unit @ unit.T
    np.fill_diagonal(near, -np.inf)
    n_heads = heads[-1].head + 1

    def of(head: HeadId) -> dict[str, Any]:
        row = near[head.layer * n_heads + head.head]
        first = np.argsort(-row, kind="stable")[: min(_ALIKE, len(row) - 1)]
        return {"heads": [{"head": str(heads[i]), "similarity": float(row[i])} for i in first], "columns": names}

    return of
