"""What the page says of the columns of an atlas' table: their words, a verdict on every head, methods and cautions.

A view is a column with scores of its own. What the page says of it follows from the kind of its scores
(``mechheads/data/kinds``); the other columns have their words here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from mechheads.explorer.encode import plain
from mechheads.results.dataset import RANGE
from mechheads.results.kinds import KINDS
from mechheads.results.record import GROUPS, Words
from mechheads.results.verdicts import NO, OUTCOMES, YES, verdicts
from mechheads.results.words import differs_in, shortened, words_of
from mechheads.studies.atlas import Atlas
from mechheads.studies.by_question import question_of

_GENERALIZED = "generalized_"
_YOUR_OWN = "Your own"
_SHARE = "share of attention"


def _said(kind: str) -> Words:
    words = KINDS[kind].words
    if words is None:
        raise KeyError(kind)
    return words


_METHODS_OF = {
    GROUPS["text"]: (
        "On ordinary text",
        "The share of each head's attention that goes to the first token, to the token itself, to the previous token, "
        "to earlier copies of the token (duplicate), to tokens that follow an earlier copy (induction) and to "
        "delimiters; and the share of the variance of its attention that the distance explains (position). A name "
        "needs an excess over the same attention with permuted keys.",
    ),
    GROUPS["weights"]: _said("labels").method,
}
"""Methods of columns that have none of their own, by their group."""


def _of_text(label: str, unit: str, meaning: str, *, signed: bool = False) -> Words:
    return Words(label, meaning, unit=unit, group=GROUPS["text"], signed=signed)


def _of_weights(label: str, meaning: str) -> Words:
    return Words(label, meaning, group=GROUPS["weights"])


COLUMNS = {
    "layer": Words("Layer", "The layer of the head, counted from 0.", group="Where"),
    "head": Words("Head", "The number of the head in its layer, counted from 0.", group="Where"),
    "names": _of_text("Names", "", "What the head is called for what it attends to in ordinary text."),
    "to_first": _of_text("To the first token", _SHARE, "Attention to the first token of a text."),
    "to_self": _of_text("To the token itself", _SHARE, "Attention from a token to itself."),
    "to_previous": _of_text("To the previous token", _SHARE, "Attention to the token just before."),
    "to_duplicate": _of_text("To duplicates", _SHARE, "Attention to earlier copies of the token."),
    "to_induction": _of_text("Induction", _SHARE, "Attention to tokens that follow an earlier copy of the token."),
    "to_delimiter": _of_text("To delimiters", _SHARE, "Attention to punctuation and line ends."),
    "by_position": _of_text(
        "By position", "share of variance", "The share of the variance of attention that distance explains."
    ),
    "entropy": _of_text("Entropy", "nats", "How widely attention is spread: 0 if it is on one token."),
    "distance": _of_text("Distance", "tokens", "How far back the head attends on average."),
    "norm": _of_text("Size of the output", "share", "The norm of the head's output relative to the residual stream."),
    "copying": _of_text(
        "Copying in text",
        "",
        "How far what the head writes raises the tokens that it attends to.",
        signed=True,
    ),
    "categories": _of_weights("Categories", "What the head does according to its weights."),
    "best_relation": _of_weights("Best relation", "The relation with the strongest evidence for a category."),
    "copying_by_weights": replace(_said("copying"), group=GROUPS["weights"], unit=KINDS["copying"].unit),
}
"""The columns of ``Atlas.to_dataframe`` that have a value of their own and are no views."""


def words(atlas: Atlas) -> dict[str, Words]:
    """What the page says of each view of an atlas, and of what stands beside it, by its column."""
    own, said = atlas.own_views, {}
    for name, scores in atlas.views.items():
        asked = {} if name in own else atlas.asked
        mine = words_of(scores, asked)
        said[name] = replace(mine, label=shortened(own[name].label), group=_YOUR_OWN) if name in own else mine
        if f"{_GENERALIZED}ships" in scores.dataset:
            beside = words_of(scores, asked, "generalized_ships")
            said[f"{_GENERALIZED}{name}"] = replace(beside, group=_YOUR_OWN) if name in own else beside
    return said


def column_of(name: str, said: Mapping[str, Words] | None = None) -> Words:
    """What is known of a column that has a value of its own; of an unknown one, its name.

    Args:
        said: what ``words`` says of views.
    """
    known = {**COLUMNS, **(said or {})}
    if name in known:
        return known[name]
    return Words(name, f"The column {name} of the table.", f"{name} is {{value}} {{unit}}.", group="Other")


def views(atlas: Atlas) -> list[dict[str, Any]]:
    """What every view of an atlas says of every head."""
    made = []
    table, said, own, keys = atlas.to_dataframe(), words(atlas), atlas.own_views, question_of(atlas)
    for name, scores in atlas.views.items():
        column = said[name]
        found = verdicts(scores, column.rule)
        ranged = is_ranged(table, name)
        ends = [f"{name}_{end}" for end in (RANGE if ranged else ("ci_low", "ci_high"))]
        low, high = (end if end in table and table[end].notna().to_numpy().any() else None for end in ends)
        made.append(
            {
                "name": name,
                "title": column.label,
                "unit": column.unit,
                "value": name,
                "low": low,
                "high": high,
                "range": ranged,
                **{part: f"{name}_{part}" if f"{name}_{part}" in table else None for part in ("p", "q")},
                "rankBy": "absolute" if column.signed else "value",
                "sentence": column.sentence,
                "verdict": {
                    "rule": found.rule,
                    "texts": dict(zip(OUTCOMES, column.texts, strict=True)),
                    "change": dict(zip(OUTCOMES, column.change, strict=True)),
                    "values": found.values(),
                },
                "own": name in own,
                "question": keys[name],
            }
        )
    return made


_TENSIONS = (
    (
        "phi",
        YES,
        "patching",
        NO,
        "Its weights implement the relation, but its output changes nothing in these prompts: it may act in other "
        "contexts, or other heads do the same.",
    ),
    (
        "patching",
        YES,
        "phi",
        NO,
        "Its output matters in these prompts, but its weights do not implement the relation: it may choose or move "
        "what other heads map.",
    ),
    (
        "patching",
        YES,
        "direct",
        NO,
        "It changes the answer, but adds little to the logits itself: later heads and MLPs read what it writes.",
    ),
    (
        "direct",
        YES,
        "patching",
        NO,
        "It adds to the logits itself, but patching it changes little: it may add the same in both runs, or later "
        "layers undo the change.",
    ),
    (
        "ships undifferentiated",
        YES,
        "ships scaling",
        NO,
        "The ablations disagree: where it attends matters, but without its output the answer stays much the same. "
        "Uniform attention may write something that it never writes by itself.",
    ),
    (
        "ships scaling",
        YES,
        "ships undifferentiated",
        NO,
        "The ablations disagree: its output matters, but hardly where it attends.",
    ),
    (
        "facilitation",
        YES,
        "patching",
        NO,
        "The gates need it, but its output carries nothing of {source}: it may do the same in every prompt of the "
        "task.",
    ),
    ("patching", YES, "irrelevance", YES, "Patching says that it matters, the gates that other heads can replace it."),
    (
        "patching",
        YES,
        "ablation",
        NO,
        "Its output is enough to change the answer, but the model does as well without it: other heads may stand in.",
    ),
    (
        "ablation",
        YES,
        "patching",
        NO,
        "The model needs it, but its output carries nothing of {source}: it may do the same in both prompts.",
    ),
    (
        "facilitation",
        YES,
        "interference",
        YES,
        "Both gates stay where they started: the short fit may not have moved them.",
    ),
)


def tensions(found: list[dict[str, Any]], atlas: Atlas) -> list[dict[str, Any]]:
    """Verdicts of two views about one question that speak against each other."""
    said, own, keys = words(atlas), atlas.own_views, question_of(atlas)
    of: dict[str, list[str]] = {}
    for view in found:
        of.setdefault(said[view["name"]].part, []).append(view["name"])
    return [
        {
            "a": {"view": a, "verdict": one},
            "b": {"view": b, "verdict": other},
            "question": keys[a],
            "text": text.format(source=differs_in({} if {a, b} & set(own) else atlas.asked)),
        }
        for part, one, against, other, text in _TENSIONS
        for a in of.get(part, [])
        for b in of.get(against, [])
        if keys[a] == keys[b]
    ]


_ENDINGS = {
    "_ci_low": "low",
    "_ci_high": "high",
    "_range_low": "low",
    "_range_high": "high",
    "_p": "p",
    "_q": "q",
}
_ROLE_LABELS = {"low": "lower end", "high": "upper end", "p": "family p", "q": "q"}
_ROLE_MEANINGS = {
    "low": "The lower end of the interval of {}.",
    "high": "The upper end of the interval of {}.",
    "p": "The chance that any head comes so far from the null of {} if none differs from it.",
    "q": "The false discovery rate at which {} differs from its null.",
}


def columns(table: pd.DataFrame, said: Mapping[str, Words] | None = None) -> list[dict[str, Any]]:
    """Every column of ``Atlas.to_dataframe``, with all values and what they mean.

    Args:
        said: what ``words`` says of views.
    """
    parent = {name: _value_of(name, table.columns) for name in table}
    made = []
    for name in map(str, table):
        of, role = parent[name]
        column = column_of(of or name, said)
        label, meaning, unit = column.label, column.meaning, column.unit
        if of is not None:
            label, meaning = f"{label}, {_ROLE_LABELS[role]}", _ROLE_MEANINGS[role].format(column.label)
            unit = "" if role in ("p", "q") else unit
        elif name in ("layer", "head"):
            role = "place"
        mine = {each_role: each for each, (whose, each_role) in reversed(parent.items()) if whose == name}
        if ranged := is_ranged(table, name):
            mine |= {end: f"{name}_range_{end}" for end in ("low", "high")}
        made.append(
            {
                "name": name,
                "label": label,
                "unit": unit,
                "meaning": meaning,
                "kind": "text" if table[name].dtype.kind not in "biuf" else "number",
                "group": column.group,
                "role": role,
                "of": of,
                **{part: mine.get(part) for part in ("low", "high", "p", "q")},
                "range": ranged,
                "signed": column.signed,
                "values": plain(table[name].to_numpy()),
            }
        )
    return made


def comparable(table: pd.DataFrame) -> list[str]:
    """The columns by which heads can be compared with each other: numbers that vary and have a value of their own."""
    return [
        str(name)
        for name in table
        if _value_of(str(name), table.columns)[0] is None
        and name not in ("layer", "head")
        and table[name].dtype.kind in "iuf"
        and np.unique(table[name].dropna()).size > 1
    ]


def is_ranged(table: pd.DataFrame, name: str) -> bool:
    """Whether a value has no interval, but the range of two clusters."""
    low = f"{name}_ci_low"
    return f"{name}_range_low" in table and not (low in table and table[low].notna().to_numpy().any())


def _value_of(name: str, known: Sequence[str] | pd.Index) -> tuple[str | None, str]:
    """The column that a column belongs to (None if it has a value of its own), and its role."""
    for ending, role in _ENDINGS.items():
        whose = name.removesuffix(ending)
        if name.endswith(ending) and whose in known:
            return whose, role
    return None, "value"


_ALWAYS = (
    "Intervals are of single heads. Among hundreds of heads some look special by chance, so prefer family p.",
    "Every number holds for this model, these texts and these prompts.",
)
_OF_TEXT = (
    "Attention is not importance: what a head attends to most it may not move at all. Attention times the size of what "
    "each token offers comes closer."
)


def methods(columns: Sequence[str], said: Mapping[str, Words]) -> list[dict[str, Any]]:
    """How each analysis behind some of these columns measures."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in columns:
        column = column_of(_value_of(name, columns)[0] or name, said)
        if (method := column.method or _METHODS_OF.get(column.group)) is not None:
            found.setdefault(method, []).append(name)
    return [{"name": name, "text": text, "columns": own} for (name, text), own in found.items()]


def cautions(columns: Sequence[str], said: Mapping[str, Words]) -> list[str]:
    """What may not be concluded from these columns."""
    found = [text for name in columns if name in said for text in said[name].cautions]
    always = _ALWAYS if set(columns) - {"layer", "head"} else ()
    return [*dict.fromkeys(found), *([_OF_TEXT] if "to_first" in columns else []), *always]
