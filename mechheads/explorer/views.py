"""What the page says of the columns of an atlas' table: their words, a verdict on every head, methods and cautions.

A view is a column with scores of its own. What the page says of it follows from the kind of its scores; both this and
the words of other columns are in ``mechheads/data/kinds``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from mechheads.data import folder
from mechheads.explorer import contract
from mechheads.explorer.encode import plain
from mechheads.results.dataset import RANGE
from mechheads.results.evidence import OUTCOMES, verdicts
from mechheads.results.kinds import KINDS
from mechheads.results.record import GROUPS, Words
from mechheads.results.words import differs_in, shortened, words_of
from mechheads.studies.answers import question_of
from mechheads.studies.atlas import Atlas

_GENERALIZED = "generalized_"
_YOUR_OWN = "Your own"


def _said(kind: str) -> Words:
    words = KINDS[kind].words
    if words is None:
        raise KeyError(kind)
    return words


_TOLD: dict[str, Any] = tomllib.loads((folder("kinds") / "columns.toml").read_text("utf-8"))
_HEADINGS = {"where": "Where", "text": GROUPS["text"], "weights": GROUPS["weights"]}
_METHODS_OF = {GROUPS["text"]: tuple(_TOLD["methods"]["text"]), GROUPS["weights"]: _said("labels").method}
"""Methods of columns that have none of their own, by their group."""
COLUMNS = {
    name: Words(**about, group=group) for heading, group in _HEADINGS.items() for name, about in _TOLD[heading].items()
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


def views(atlas: Atlas) -> list[contract.View]:
    """What every view of an atlas says of every head."""
    made: list[contract.View] = []
    table, said, own, keys = atlas.to_dataframe(), words(atlas), atlas.own_views, question_of(atlas)
    for name, scores in atlas.views.items():
        column = said[name]
        judged = verdicts(scores, column.rule)
        ranged = is_ranged(table, name)
        ends = [f"{name}_{end}" for end in (RANGE if ranged else ("ci_low", "ci_high"))]
        low, high = (end if end in table and table[end].notna().to_numpy().any() else None for end in ends)
        p, q = (f"{name}_{part}" if f"{name}_{part}" in table else None for part in ("p_family", "q"))
        made.append(
            {
                "name": name,
                "title": column.label,
                "unit": column.unit,
                "value": name,
                "low": low,
                "high": high,
                "range": ranged,
                "p": p,
                "q": q,
                "rankBy": "absolute" if column.signed else "value",
                "sentence": column.sentence,
                "verdict": {
                    "rule": judged.rule,
                    "texts": dict(zip(OUTCOMES, column.texts, strict=True)),
                    "change": dict(zip(OUTCOMES, column.change, strict=True)),
                    "values": judged.values(),
                },
                "own": name in own,
                "question": keys[name],
            }
        )
    return made


def tensions(shown: Sequence[contract.View], atlas: Atlas) -> list[contract.Tension]:
    """Verdicts of two views about one question that speak against each other."""
    said, own, keys = words(atlas), atlas.own_views, question_of(atlas)
    of: dict[str, list[str]] = {}
    for view in shown:
        of.setdefault(said[view["name"]].part, []).append(view["name"])
    return [
        {
            "a": {"view": a, "verdict": tension["verdicts"][0]},
            "b": {"view": b, "verdict": tension["verdicts"][1]},
            "question": keys[a],
            "text": tension["text"].format(source=differs_in({} if {a, b} & set(own) else atlas.asked)),
        }
        for tension in _TOLD["tensions"]
        for a, b in product(*(of.get(part, []) for part in tension["views"]))
        if keys[a] == keys[b]
    ]


_ENDINGS: dict[str, contract.ColumnRole] = {
    "_ci_low": "low",
    "_ci_high": "high",
    "_range_low": "low",
    "_range_high": "high",
    "_p_family": "p",
    "_q": "q",
}
_ROLE_LABELS = {"low": "lower end", "high": "upper end", "p": "family p", "q": "q"}
_ROLE_MEANINGS = {
    "low": "The lower end of the interval of {}.",
    "high": "The upper end of the interval of {}.",
    "p": "The chance that any head comes so far from the null of {} if none differs from it.",
    "q": "The false discovery rate at which {} differs from its null.",
}
_QUESTIONS = {GROUPS["text"]: "text", GROUPS["weights"]: "weights"}
"""Questions of columns that are no views, by their headings."""


def columns(
    table: pd.DataFrame, said: Mapping[str, Words] | None = None, keys: Mapping[str, str] | None = None
) -> list[contract.Column]:
    """Every column of ``Atlas.to_dataframe``, with all values and what they mean.

    Args:
        said: what ``words`` says of views.
        keys: the question of each view; other columns have that of their heading, or none.
    """
    parent = {name: _value_of(name, table.columns) for name in table}
    made: list[contract.Column] = []
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
        key = (keys or {}).get((of or name).removeprefix(_GENERALIZED), _QUESTIONS.get(column.group))
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
                "low": mine.get("low"),
                "high": mine.get("high"),
                "p": mine.get("p"),
                "q": mine.get("q"),
                "range": ranged,
                "signed": column.signed,
                "question": key,
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


def _value_of(name: str, known: Sequence[str] | pd.Index) -> tuple[str | None, contract.ColumnRole]:
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


def methods(columns: Sequence[str], said: Mapping[str, Words]) -> list[contract.Method]:
    """How each analysis behind some of these columns measures."""
    behind: dict[tuple[str, str], list[str]] = {}
    for name in columns:
        column = column_of(_value_of(name, columns)[0] or name, said)
        if (method := column.method or _METHODS_OF.get(column.group)) is not None:
            behind.setdefault(method, []).append(name)
    return [{"name": name, "text": text, "columns": own} for (name, text), own in behind.items()]


def cautions(columns: Sequence[str], said: Mapping[str, Words]) -> list[str]:
    """What may not be concluded from these columns."""
    own = [text for name in columns if name in said for text in said[name].cautions]
    always = _ALWAYS if set(columns) - {"layer", "head"} else ()
    return [*dict.fromkeys(own), *([_OF_TEXT] if "to_first" in columns else []), *always]
