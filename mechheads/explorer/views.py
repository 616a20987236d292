"""What the page says of the columns of an atlas' table: their words, a verdict on every head, methods and cautions.

A view is a column with scores of its own. What the page says of it follows from the kind of its scores
(``mechheads.explorer.kinds``); the other columns have their words here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from mechheads.explorer.about import About, differs_in, of_package
from mechheads.explorer.column import (
    BY_WEIGHTS,
    IN_REFUSALS,
    NO,
    ON_TEXT,
    OUTCOMES,
    ROLES_GROUP,
    YES,
    YOUR_OWN,
    Column,
)
from mechheads.explorer.encode import plain
from mechheads.explorer.kinds import CATEGORIES, COPYING, column_for, generalized_ships
from mechheads.gating import ROLES
from mechheads.results.dataset import RANGE
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas
from mechheads.studies.findings import shortened

_SHARE = "share of attention"
_GENERALIZED = "generalized_"
_METHODS_OF = {
    ON_TEXT: (
        "On ordinary text",
        "The share of each head's attention that goes to the first token, to the token itself, to the previous token, "
        "to earlier copies of the token (duplicate), to tokens that follow an earlier copy (induction) and to "
        "delimiters; and the share of the variance of its attention that the distance explains (position). A name "
        "needs an excess over the same attention with permuted keys.",
    ),
    BY_WEIGHTS: CATEGORIES,
}
"""Methods of columns that have none of their own, by their group."""

COLUMNS = {
    "layer": Column("Layer", "", "The layer of the head, counted from 0.", "Where"),
    "head": Column("Head", "", "The number of the head in its layer, counted from 0.", "Where"),
    "names": Column("Names", "", "What the head is called for what it attends to in ordinary text.", ON_TEXT),
    "to_first": Column("To the first token", _SHARE, "Attention to the first token of a text.", ON_TEXT),
    "to_self": Column("To the token itself", _SHARE, "Attention from a token to itself.", ON_TEXT),
    "to_previous": Column("To the previous token", _SHARE, "Attention to the token just before.", ON_TEXT),
    "to_duplicate": Column("To duplicates", _SHARE, "Attention to earlier copies of the token.", ON_TEXT),
    "to_induction": Column(
        "Induction", _SHARE, "Attention to tokens that follow an earlier copy of the token.", ON_TEXT
    ),
    "to_delimiter": Column("To delimiters", _SHARE, "Attention to punctuation and line ends.", ON_TEXT),
    "by_position": Column(
        "By position", "share of variance", "The share of the variance of attention that distance explains.", ON_TEXT
    ),
    "entropy": Column("Entropy", "nats", "How widely attention is spread: 0 if it is on one token.", ON_TEXT),
    "distance": Column("Distance", "tokens", "How far back the head attends on average.", ON_TEXT),
    "norm": Column(
        "Size of the output", "share", "The norm of the head's output relative to the residual stream.", ON_TEXT
    ),
    "copying": Column(
        "Copying in text",
        "",
        "How far what the head writes raises the tokens that it attends to.",
        ON_TEXT,
        True,
    ),
    "categories": Column("Categories", "", "What the head does according to its weights.", BY_WEIGHTS),
    "best_relation": Column(
        "Best relation", "", "The relation with the strongest evidence for a category.", BY_WEIGHTS
    ),
    "copying_by_weights": Column(
        "Copying by weights",
        "share of the eigenvalues",
        "Whether the head raises the tokens that it attends to, by its weights: 1 copies, \u22121 suppresses.",
        BY_WEIGHTS,
        True,
        method=COPYING,
    ),
}
"""The columns of ``Atlas.to_dataframe`` that have a value of their own and are no views."""


def words(atlas: Atlas) -> dict[str, Column]:
    """What the page says of each view of an atlas, and of what stands beside it, by its column."""
    own, said = atlas.own_views, {}
    for name, scores in atlas.views.items():
        about = About(scores, {} if name in own else atlas.asked)
        column = column_for(about)
        said[name] = replace(column, label=shortened(own[name].label), group=YOUR_OWN) if name in own else column
        if f"{_GENERALIZED}ships" in scores.dataset:
            angle = generalized_ships(about)
            group = YOUR_OWN if name in own else angle.group
            said[f"{_GENERALIZED}{name}"] = replace(angle, group=group)
        if name == "phi":
            said[name] = replace(said[name], judges="labels")
    return said


def column_of(name: str, said: Mapping[str, Column] | None = None) -> Column:
    """What is known of a column that has a value of its own; of an unknown one, its name.

    Args:
        said: what ``words`` says of views.
    """
    known = {**COLUMNS, **(said or {})}
    if name in known:
        return known[name]
    return Column(name, "", f"The column {name} of the table.", "Other", sentence=f"{name} is {{value}} {{unit}}.")


def views(atlas: Atlas) -> list[dict[str, Any]]:
    """What every view of an atlas says of every head."""
    made = []
    table, said, own = atlas.to_dataframe(), words(atlas), atlas.own_views
    for name, scores in atlas.views.items():
        column = said[name]
        verdicts = column.rule(atlas.results[column.judges] if column.judges else scores)
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
                "q": f"{name}_q" if f"{name}_q" in table else None,
                "rankBy": "absolute" if column.signed else "value",
                "sentence": column.sentence,
                "verdict": {
                    "rule": verdicts.rule,
                    "texts": dict(zip(OUTCOMES, column.texts, strict=True)),
                    "change": dict(zip(OUTCOMES, column.change, strict=True)),
                    "values": verdicts.values(),
                },
                "group": _together(own[name].of) if name in own else _GROUPS.get(column.group),
                "own": name in own,
            }
        )
    return made


_GROUPS = {IN_REFUSALS: "ships", ROLES_GROUP: "roles"}
"""Views that come from the same numbers, by the heading of their columns."""


def _together(of: tuple[str, int]) -> str | None:
    """The group of a view of your own: views of the same scores stand together."""
    name, n_views = of
    return f"own: {name}" if n_views > 1 else None


_TENSIONS = (
    (
        "phi",
        YES,
        "patching",
        NO,
        "Its weights implement a relation, but its output changes nothing in these prompts: it may act in other "
        "contexts, or other heads do the same.",
    ),
    (
        "patching",
        YES,
        "phi",
        NO,
        "Its output matters in these prompts, but its weights implement none of the relations: it may choose or move "
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
    """Verdicts of two views that speak against each other, if both are about the same question."""
    said, own, scores = words(atlas), atlas.own_views, atlas.views
    of: dict[str, list[str]] = {}
    for view in found:
        of.setdefault(said[view["name"]].part, []).append(view["name"])
    return [
        {
            "a": {"view": a, "verdict": one},
            "b": {"view": b, "verdict": other},
            "text": text.format(source=differs_in({} if {a, b} & set(own) else atlas.asked)),
        }
        for part, one, against, other, text in _TENSIONS
        for a in of.get(part, [])
        for b in of.get(against, [])
        if "phi" in (a, b)
        or (_same_question(a, b, atlas) if a not in own and b not in own else _prompts(scores[a]) & _prompts(scores[b]))
    ]


def _same_question(a: str, b: str, atlas: Atlas) -> bool:
    """Whether two views of a study are about one question: the roles are not if only they, or only the pairs, are
    about capitals.
    """
    only_one = ((a in ROLES) != (b in ROLES)) and of_package(atlas.asked, "pairs") != of_package(atlas.asked, "task")
    return not only_one


def _prompts(scores: HeadScores) -> set[str]:
    """The prompts that scores are about, by their provenance."""
    return set(str(scores.provenance.get("prompts", "")).split("+")) - {""}


_ENDINGS = {
    "_ci_low": "low",
    "_ci_high": "high",
    "_range_low": "low",
    "_range_high": "high",
    "_q": "q",
}
_ROLE_LABELS = {"low": "lower end", "high": "upper end", "q": "q"}
_ROLE_MEANINGS = {
    "low": "The lower end of the interval of {}.",
    "high": "The upper end of the interval of {}.",
    "q": "The false discovery rate at which {} differs from its null.",
}


def columns(table: pd.DataFrame, said: Mapping[str, Column] | None = None) -> list[dict[str, Any]]:
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
            unit = "" if role == "q" else unit
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
                **{part: mine.get(part) for part in ("low", "high", "q")},
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
    "Intervals are of single heads. Among hundreds of heads some look special by chance, so prefer q values.",
    "Every number holds for this model, these texts and these prompts.",
)
_OF_TEXT = (
    "Attention is not importance: what a head attends to most it may not move at all. Attention times the size of what "
    "each token offers comes closer."
)


def methods(columns: Sequence[str], said: Mapping[str, Column]) -> list[dict[str, Any]]:
    """How each analysis behind some of these columns measures."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in columns:
        column = column_of(_value_of(name, columns)[0] or name, said)
        if (method := column.method or _METHODS_OF.get(column.group)) is not None:
            found.setdefault(method, []).append(name)
    return [{"name": name, "text": text, "columns": own} for (name, text), own in found.items()]


def cautions(columns: Sequence[str], said: Mapping[str, Column]) -> list[str]:
    """What may not be concluded from these columns."""
    found = [text for name in columns if name in said for text in said[name].cautions]
    always = _ALWAYS if set(columns) - {"layer", "head"} else ()
    return [*dict.fromkeys(found), *([_OF_TEXT] if "to_first" in columns else []), *always]
