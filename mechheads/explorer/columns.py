"""The columns of an atlas' table: what each means, and which belong together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mechheads.explorer.encode import plain


class About(NamedTuple):
    """A column that has a value of its own."""

    label: str
    unit: str
    meaning: str
    group: str
    signed: bool = False


_TEXT, _WEIGHTS, _TASKS, _REFUSALS = "On text", "By weights", "In tasks", "In refusals"
_SHARE = "share of attention"

ABOUT = {
    "layer": About("Layer", "", "The layer of the head, counted from 0.", "Where"),
    "head": About("Head", "", "The number of the head in its layer, counted from 0.", "Where"),
    "names": About("Names", "", "What the head is called for what it attends to in ordinary text.", _TEXT),
    "to_first": About("To the first token", _SHARE, "Attention to the first token of a text.", _TEXT),
    "to_self": About("To the token itself", _SHARE, "Attention from a token to itself.", _TEXT),
    "to_previous": About("To the previous token", _SHARE, "Attention to the token just before.", _TEXT),
    "to_duplicate": About("To duplicates", _SHARE, "Attention to earlier copies of the token.", _TEXT),
    "to_induction": About("Induction", _SHARE, "Attention to tokens that follow an earlier copy of the token.", _TEXT),
    "to_delimiter": About("To delimiters", _SHARE, "Attention to punctuation and line ends.", _TEXT),
    "by_position": About(
        "By position", "share of variance", "The share of the variance of attention that distance explains.", _TEXT
    ),
    "entropy": About("Entropy", "nats", "How widely attention is spread: 0 if it is on one token.", _TEXT),
    "distance": About("Distance", "tokens", "How far back the head attends on average.", _TEXT),
    "norm": About(
        "Size of the output", "share", "The norm of the head's output relative to the residual stream.", _TEXT
    ),
    "copying": About(
        "Copying in text",
        "",
        "How far what the head writes raises the tokens that it attends to.",
        _TEXT,
        True,
    ),
    "categories": About("Categories", "", "What the head does according to its weights.", _WEIGHTS),
    "best_relation": About("Best relation", "", "The relation with the strongest evidence for a category.", _WEIGHTS),
    "phi": About(
        "Phi",
        "share of pairs",
        "The share of the best relation's pairs that its weights map to the target.",
        _WEIGHTS,
    ),
    "copying_by_weights": About(
        "Copying by weights",
        "share of the eigenvalues",
        "Whether the head raises the tokens that it attends to, by its weights: 1 copies, -1 suppresses.",
        _WEIGHTS,
        True,
    ),
    "patching": About(
        "Patching",
        "share restored",
        "The share of the difference between two capitals that the head's output from the clean run restores.",
        _TASKS,
        True,
    ),
    "direct": About(
        "Direct part",
        "logits",
        "What the head itself adds to the logit of the capital, minus that of the wrong one.",
        _TASKS,
        True,
    ),
    "facilitation": About("Facilitation", "gate", "The gate stays open in the fit that pulls gates shut.", "Roles"),
    "interference": About("Interference", "gate", "The gate stays shut in the fit that pulls gates open.", "Roles"),
    "irrelevance": About("Irrelevance", "gate", "The gate follows the pull in both fits.", "Roles"),
}
"""The columns of ``Atlas.to_dataframe`` that have a value of their own, but for Ships."""

_ABLATIONS = {
    "undifferentiated": "the head attends to all tokens alike",
    "scaling": "the head writes almost nothing",
}
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


def columns(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Every column of ``Atlas.to_dataframe``, with all values and what they mean."""
    parent = {name: _value_of(name, table.columns) for name in table}
    made = []
    for name in map(str, table):
        of, role = parent[name]
        about = about_of(of or name)
        label, meaning, unit = about.label, about.meaning, about.unit
        if of is not None:
            label, meaning = f"{label}, {_ROLE_LABELS[role]}", _ROLE_MEANINGS[role].format(of)
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
                "group": about.group,
                "role": role,
                "of": of,
                **{part: mine.get(part) for part in ("low", "high", "q")},
                "range": ranged,
                "signed": about.signed,
                "values": plain(table[name].to_numpy()),
            }
        )
    return made


def about_of(name: str) -> About:
    """What is known of a column that has a value of its own; of an unknown one, its name."""
    if name in ABOUT:
        return ABOUT[name]
    kind, _, ablation = name.rpartition("ships_")
    if kind in ("", "generalized_") and ablation:
        how = _ABLATIONS.get(ablation, f"ablation: {ablation}")
        if kind:
            meaning = f"The angle by which the states of all requests together turn if {how}."
            return About(f"Generalized Ships, {ablation}", "degrees", meaning, _REFUSALS)
        meaning = f"The change of the next token's distribution after a harmful request if {how}."
        return About(f"Ships, {ablation}", "nats", meaning, _REFUSALS)
    return About(name, "", f"The column {name} of the table.", "Other")


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
