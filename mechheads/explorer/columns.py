"""The columns of the page: every number of an atlas' table, what it is called, and the result behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from mechheads.explorer import contract
from mechheads.explorer.encode import plain
from mechheads.results.about import has_null, kind_name, label_of
from mechheads.results.kinds import GROUPS, kind_of
from mechheads.results.naming import shortened
from mechheads.studies.answers import question_of
from mechheads.studies.atlas import Atlas

GENERALIZED = "generalized_"
YOUR_OWN = "Your own"


class About(NamedTuple):
    """What a column is called, measures and comes from; ``question``: the key of its question."""

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
    "layer": About("Layer", "The layer of the head, counted from 0.", group="Where"),
    "head": About("Head", "The number of the head in its layer, counted from 0.", group="Where"),
    **{name: About(*text, GROUPS["text"], "text", name == "copying", "profile") for name, text in _TEXT.items()},
    "categories": About("Categories", "Categories by the weights.", "", GROUPS["weights"], "weights", False, "labels"),
    "best_relation": About("Best relation", "The relation of phi.", "", GROUPS["weights"], "weights", False, "labels"),
}
"""The columns of ``Atlas.to_dataframe`` that have a value of their own and are no scores."""


def known_columns(atlas: Atlas) -> dict[str, About]:
    """What is known of each column that has a value of its own."""
    own, keys, found = atlas.own_views, question_of(atlas), dict(COLUMNS)
    for name, scores in atlas.views.items():
        mine = name in own
        source = own[name].of[0] if mine else result_of(name)
        for kind, column in (("", name), ("generalized_ships", f"{GENERALIZED}{name}")):
            if kind and kind not in scores.dataset:
                continue
            about = kind_of(kind or kind_name(scores))
            least = np.nanmin(scores.dataset[kind or "score"].values, initial=0.0)
            found[column] = About(
                shortened(own[name].label) if mine and not kind else label_of(scores, kind),
                about.meaning or "Scores of your own.",
                about.unit if kind else scores.unit,
                YOUR_OWN if mine else GROUPS[about.question],
                keys[name],
                not kind and (has_null(scores) or bool(least < 0)),
                source,
            )
    return found


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


def columns(table: pd.DataFrame, known: Mapping[str, About]) -> list[contract.Column]:
    """Every column of ``Atlas.to_dataframe``, with all values and what they mean."""
    parent = {name: _value_of(name, table.columns) for name in table}
    made: list[contract.Column] = []
    for name in map(str, table):
        of, role = parent[name]
        about = known.get(of or name) or About(name, f"The column {name} of the table.")
        label, meaning, unit = about.label, about.meaning, about.unit
        if of is not None:
            label, meaning = f"{label}, {_ROLES[role][0]}", _ROLES[role][1].format(about.label)
            unit = "" if role in ("p", "q") else unit
        elif name in ("layer", "head"):
            role = "place"
        mine = {each_role: each for each, (whose, each_role) in reversed(parent.items()) if whose == name}
        if ranged := _is_ranged(table, name):
            mine |= {end: f"{name}_range_{end}" for end in ("low", "high")}
        mine |= dict.fromkeys(end for end in mine if not table[mine[end]].notna().to_numpy().any())
        made.append(
            {
                "name": name,
                "label": label,
                "unit": unit,
                "meaning": meaning,
                "kind": "text" if table[name].dtype.kind not in "biuf" else "number",
                "group": about.group,
                "role": role,
                "of": of,
                "low": mine.get("low"),
                "high": mine.get("high"),
                "p": mine.get("p"),
                "q": mine.get("q"),
                "range": ranged,
                "signed": about.signed,
                "question": about.question,
                "source": about.source,
                "values": plain(table[name].to_numpy()),
            }
        )
    return made


def _is_ranged(table: pd.DataFrame, name: str) -> bool:
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
