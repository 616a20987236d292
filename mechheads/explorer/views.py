"""What the page says of the columns of an atlas' table: their words, a verdict on every head, methods and cautions.

A view is a column with scores of its own. What the page says of its values is in one ``Column``: its name and unit,
what a value means in a sentence, the rule by which a verdict follows from value, interval and q, and what each verdict
says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mechheads.explorer.encode import plain
from mechheads.results.dataset import RANGE
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas

LEAST_RESTORED = 0.05
"""The share of the difference that a head must restore for a yes."""
LEAST_DIRECT = 0.05
"""The share of the logit difference that a head must add for a yes."""
FDR = 0.1
"""The largest q of a yes of patching and of direct parts. Among hundreds of heads, eight pairs hardly give less."""
FIRST = 10
"""How many heads are the first by Ships."""
LEAST_GATE = 0.5
"""The gate from which on a head has a role."""

_OUTCOMES = YES, NO, UNCLEAR = "yes", "no", "unclear"


class Verdicts(NamedTuple):
    """A rule in words, and for which heads each verdict holds, [layer, head]. The first that holds counts."""

    rule: str
    holds: dict[str, Any]

    def values(self) -> list[str | None]:
        """The verdict on each head; None if none holds."""
        verdicts = np.select([*self.holds.values()], [*self.holds], "")
        return [verdict or None for verdict in verdicts.ravel().tolist()]


Rule = Callable[[HeadScores], Verdicts]
"""How verdicts follow from scores."""


def _beyond(scores: HeadScores, rule: str, least: float = 0.0) -> Verdicts:
    """Yes if the score is so large, its interval excludes 0 and q is small; no if the interval lies within this."""
    value, low, high, q = (scores.dataset[name].values for name in ("score", "ci_low", "ci_high", "q_value"))
    holds = {
        YES: (np.abs(value) >= least) & ((low > 0) | (high < 0)) & ~(q > FDR),
        NO: np.maximum(np.abs(low), np.abs(high)) < least,
        UNCLEAR: np.isfinite(value),
    }
    return Verdicts(rule, holds)


def _differs(scores: HeadScores) -> Verdicts:
    return _beyond(scores, f"Yes if the interval excludes 0 and q is at most {FDR:g}; otherwise unclear.")


def _restored(scores: HeadScores) -> Verdicts:
    rule = (
        f"Yes if it restores at least {LEAST_RESTORED:g}, the interval excludes 0 and q is at most {FDR:g}; no if the "
        f"whole interval lies between -{LEAST_RESTORED:g} and {LEAST_RESTORED:g}."
    )
    return _beyond(scores, rule, LEAST_RESTORED)


def _added(scores: HeadScores) -> Verdicts:
    total = scores.dataset["total"].values.mean() if "total" in scores.dataset else np.nan
    least = LEAST_DIRECT * abs(float(total)) if np.isfinite(total) else 0.0
    rule = (
        f"Yes if it adds at least {LEAST_DIRECT:.0%} of the mean logit difference ({least:.2g} logits) in either "
        f"direction, the interval excludes 0 and q is at most {FDR:g}; no if the whole interval is smaller."
    )
    return _beyond(scores, rule, least)


def _labelled(labels: HeadScores) -> Verdicts:
    """Yes if a head has a category."""
    data, settings = labels.dataset, labels.provenance
    reached = np.isfinite(data["score"].values).any(-1)
    if settings["rule"] == "maps":
        rule = f"Yes if phi is at least {settings['tau']:g}, the paper's rule."
    else:
        rule = (
            f"Yes if phi exceeds that of shuffled targets by at least {settings['floor']:g} with q of at most "
            f"{settings['fdr']:g}; unclear if it is as significant but smaller."
        )
    member, below = (data[name].values.any(-1) & reached for name in ("member", "below_floor"))
    return Verdicts(rule, {YES: member, UNCLEAR: below, NO: reached})


def _among_first(scores: HeadScores) -> Verdicts:
    value, high = scores.scores.values, scores.dataset["ci_high"].values
    in_order = np.sort(value[np.isfinite(value)])[::-1]
    tenth = in_order[min(FIRST, in_order.size) - 1] if in_order.size else np.inf
    rule = f"Yes if it is among the {FIRST} largest; unclear if its interval reaches the {FIRST}th; otherwise no."
    return Verdicts(rule, {YES: value >= tenth, UNCLEAR: high >= tenth, NO: np.isfinite(value)})


def _in_every_start(scores: HeadScores) -> Verdicts:
    values = scores.dataset["values"].values
    reached, has = np.isfinite(values).all(-1), values >= LEAST_GATE
    rule = f"Yes if it is at least {LEAST_GATE:g} in every start, no if in none."
    return Verdicts(rule, {YES: has.all(-1) & reached, NO: ~has.any(-1) & reached, UNCLEAR: reached})


@dataclass(frozen=True)
class Column:
    """A column that has a value of its own, and what the page says of it.

    Attributes:
        label, unit, meaning: its name for people, the unit of its values, and what they measure.
        group: the heading under which it stands.
        signed: whether values can be negative; then the first heads are those furthest from 0.
        sentence: what a ``{value}`` says of a head; it may name its ``{unit}`` and ``{relation}``.
        rule: how a verdict on each head follows from the scores.
        texts, change: what yes, no and unclear say of a head, and what could change each.
        judges: the result of the atlas that the rule reads, if these are not the view's own scores.
    """

    label: str
    unit: str
    meaning: str
    group: str
    signed: bool = False
    sentence: str = ""
    rule: Rule = _differs
    texts: tuple[str, str, str] = ("It differs from 0.", "", "These prompts do not settle it.")
    change: tuple[str, str, str] = ("Other prompts.", "", "More prompts.")
    judges: str | None = None


_TEXT, _WEIGHTS, _TASKS, _REFUSALS, _ROLES = "On text", "By weights", "In tasks", "In refusals", "Roles"
_SHARE = "share of attention"

_DISAGREE = "The starts disagree."
_LONGER = "A longer fit, or more starts."


def _role(label: str, meaning: str, *, sentence: str, texts: tuple[str, str, str]) -> Column:
    """A role that gates give."""
    change = (_LONGER, _LONGER, _LONGER)
    return Column(label, "gate", meaning, _ROLES, sentence=sentence, rule=_in_every_start, texts=texts, change=change)


COLUMNS = {
    "layer": Column("Layer", "", "The layer of the head, counted from 0.", "Where"),
    "head": Column("Head", "", "The number of the head in its layer, counted from 0.", "Where"),
    "names": Column("Names", "", "What the head is called for what it attends to in ordinary text.", _TEXT),
    "to_first": Column("To the first token", _SHARE, "Attention to the first token of a text.", _TEXT),
    "to_self": Column("To the token itself", _SHARE, "Attention from a token to itself.", _TEXT),
    "to_previous": Column("To the previous token", _SHARE, "Attention to the token just before.", _TEXT),
    "to_duplicate": Column("To duplicates", _SHARE, "Attention to earlier copies of the token.", _TEXT),
    "to_induction": Column("Induction", _SHARE, "Attention to tokens that follow an earlier copy of the token.", _TEXT),
    "to_delimiter": Column("To delimiters", _SHARE, "Attention to punctuation and line ends.", _TEXT),
    "by_position": Column(
        "By position", "share of variance", "The share of the variance of attention that distance explains.", _TEXT
    ),
    "entropy": Column("Entropy", "nats", "How widely attention is spread: 0 if it is on one token.", _TEXT),
    "distance": Column("Distance", "tokens", "How far back the head attends on average.", _TEXT),
    "norm": Column(
        "Size of the output", "share", "The norm of the head's output relative to the residual stream.", _TEXT
    ),
    "copying": Column(
        "Copying in text",
        "",
        "How far what the head writes raises the tokens that it attends to.",
        _TEXT,
        True,
    ),
    "categories": Column("Categories", "", "What the head does according to its weights.", _WEIGHTS),
    "best_relation": Column("Best relation", "", "The relation with the strongest evidence for a category.", _WEIGHTS),
    "phi": Column(
        "Phi",
        "share of pairs",
        "The share of the best relation's pairs that its weights map to the target.",
        _WEIGHTS,
        sentence="By its weights, the head maps {value} of the pairs of {relation} from source to target.",
        rule=_labelled,
        texts=(
            "Its weights implement a relation.",
            "Its weights implement none of the relations that were tested.",
            "Its weights hint at a relation, but for few pairs.",
        ),
        change=(
            "Other forms in which the head could read tokens, or patching in which the relation plays no part.",
            "A relation that was not tested.",
            "More pairs of the relation.",
        ),
        judges="labels",
    ),
    "copying_by_weights": Column(
        "Copying by weights",
        "share of the eigenvalues",
        "Whether the head raises the tokens that it attends to, by its weights: 1 copies, -1 suppresses.",
        _WEIGHTS,
        True,
    ),
    "patching": Column(
        "Patching",
        "share restored",
        "The share of the difference between two capitals that the head's output from the clean run restores.",
        _TASKS,
        signed=True,
        sentence="Its output from the clean run restores {value} of the logit difference between two capitals.",
        rule=_restored,
        texts=(
            "Its output carries something of the country to the answer.",
            "Its output carries next to nothing of the country to the answer.",
            "These prompts do not settle it.",
        ),
        change=(
            "Other prompts, or noising instead of denoising: a head can be enough without being needed.",
            "Noising, in which backup heads do not hide it; other prompts.",
            "More pairs of prompts: they narrow the interval and lower q.",
        ),
    ),
    "direct": Column(
        "Direct part",
        "logits",
        "What the head itself adds to the logit of the capital, minus that of the wrong one.",
        _TASKS,
        signed=True,
        sentence="The head itself adds {value} logits to the capital, minus the wrong one.",
        rule=_added,
        texts=(
            "It writes to the answer directly.",
            "It hardly writes to the answer directly.",
            "These prompts do not settle it.",
        ),
        change=("Other prompts.", "Other prompts; patching shows what it does through later heads.", "More prompts."),
    ),
    "facilitation": _role(
        "Facilitation",
        "The gate stays open in the fit that pulls gates shut.",
        sentence="Its gate stays open at {value} although gates are pulled shut.",
        texts=("The task needs it.", "The task does not need it.", _DISAGREE),
    ),
    "interference": _role(
        "Interference",
        "The gate stays shut in the fit that pulls gates open.",
        sentence="Its gate is shut by {value} although gates are pulled open.",
        texts=("It hinders the task.", "It does not hinder the task.", _DISAGREE),
    ),
    "irrelevance": _role(
        "Irrelevance",
        "The gate follows the pull in both fits.",
        sentence="Its gate follows the pull by {value}.",
        texts=("The task does not depend on it.", "The task depends on it.", _DISAGREE),
    ),
}
"""The columns of ``Atlas.to_dataframe`` that have a value of their own, but for Ships; its prompts are on capitals."""


def _ships(ablation: str) -> Column:
    """Ships by an ablation."""
    return Column(
        f"Ships, {ablation}",
        "nats",
        f"The change of the next token's distribution after a harmful request if {_when(ablation)}.",
        _REFUSALS,
        sentence="Without it, the next token's distribution after a harmful request moves by {value} nats.",
        rule=_among_first,
        texts=(
            f"It is among the {FIRST} heads on which the answer depends most.",
            f"At least {FIRST} heads matter more to the answer.",
            f"It may be among the {FIRST} heads on which the answer depends most.",
        ),
        change=(
            "Other requests; harmless look-alikes, on which a head of every answer scores as high.",
            "Another ablation, or other requests.",
            "More requests.",
        ),
    )


def _when(ablation: str) -> str:
    known = {
        "undifferentiated": "the head attends to all tokens alike",
        "scaling": "the head writes almost nothing",
    }
    return known.get(ablation, f"ablation: {ablation}")


def column_of(name: str) -> Column:
    """What is known of a column that has a value of its own; of an unknown one, its name."""
    if name in COLUMNS:
        return COLUMNS[name]
    if name.startswith("ships_"):
        return _ships(name.removeprefix("ships_"))
    if name.startswith("generalized_ships_"):
        ablation = name.removeprefix("generalized_ships_")
        meaning = f"The angle by which the states of all requests together turn if {_when(ablation)}."
        return Column(f"Generalized Ships, {ablation}", "degrees", meaning, _REFUSALS)
    sentence = f"{name} is {{value}} {{unit}}."
    return Column(name, "", f"The column {name} of the table.", "Other", sentence=sentence)


def views(atlas: Atlas) -> list[dict[str, Any]]:
    """What every view of an atlas says of every head."""
    made = []
    table = atlas.to_dataframe()
    for name, scores in atlas.views.items():
        column = column_of(name)
        verdicts = column.rule(atlas.results[column.judges] if column.judges else scores)
        ranged = is_ranged(table, name)
        ends = [f"{name}_{end}" for end in (RANGE if ranged else ("ci_low", "ci_high"))]
        low, high = (end if end in table and table[end].notna().to_numpy().any() else None for end in ends)
        made.append(
            {
                "name": name,
                "title": column.label,
                "unit": column.unit or scores.unit,
                "value": name,
                "low": low,
                "high": high,
                "range": ranged,
                "q": f"{name}_q" if f"{name}_q" in table else None,
                "rankBy": "absolute" if column.signed else "value",
                "sentence": column.sentence,
                "verdict": {
                    "rule": verdicts.rule,
                    "texts": dict(zip(_OUTCOMES, column.texts, strict=True)),
                    "change": dict(zip(_OUTCOMES, column.change, strict=True)),
                    "values": verdicts.values(),
                },
                "group": {_REFUSALS: "ships", _ROLES: "roles"}.get(column.group),
            }
        )
    return made


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
        "ships_undifferentiated",
        YES,
        "ships_scaling",
        NO,
        "The ablations disagree: where it attends matters, but without its output the answer stays much the same. "
        "Uniform attention may write something that it never writes by itself.",
    ),
    (
        "ships_scaling",
        YES,
        "ships_undifferentiated",
        NO,
        "The ablations disagree: its output matters, but hardly where it attends.",
    ),
    (
        "facilitation",
        YES,
        "patching",
        NO,
        "The gates need it, but its output carries nothing of the country: it may do the same in every prompt of the "
        "task.",
    ),
    ("patching", YES, "irrelevance", YES, "Patching says that it matters, the gates that other heads can replace it."),
    (
        "facilitation",
        YES,
        "interference",
        YES,
        "Both gates stay where they started: the short fit may not have moved them.",
    ),
)


def tensions(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts of two views that speak against each other."""
    known = {view["name"] for view in found}
    return [
        {"a": {"view": a, "verdict": one}, "b": {"view": b, "verdict": other}, "text": text}
        for a, one, b, other, text in _TENSIONS
        if {a, b} <= known
    ]


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
        column = column_of(of or name)
        label, meaning, unit = column.label, column.meaning, column.unit
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


_METHODS = (
    (
        "On ordinary text",
        "The share of each head's attention that goes to the first token, to the token itself, to the previous token, "
        "to earlier copies of the token (duplicate), to tokens that follow an earlier copy (induction) and to "
        "delimiters; and the share of the variance of its attention that the distance explains (position). A name "
        "needs an excess over the same attention with permuted keys.",
        ("to_", "by_position", "names", "entropy", "distance", "norm", "copying"),
    ),
    (
        "Categories",
        "phi is the share of a relation's pairs whose target is among the ten strongest outputs of the head for the "
        "source, by its weights. A head gets a category if phi of one of the category's relations exceeds the phi of "
        "shuffled targets by at least the floor, at a false discovery rate of 5%.",
        ("categories", "best_relation", "phi"),
    ),
    (
        "Copying by weights",
        "The sum of the eigenvalues of the map from tokens to logits through the head, divided by the sum of their "
        "absolute values. q compares it with heads that read and write random directions.",
        ("copying_by_weights",),
    ),
    (
        "Patching",
        "The corrupted prompt names another country. One head's output is replaced with its value in the clean run: 0 "
        "means no change, 1 means that the whole logit difference between the two capitals is restored.",
        ("patching",),
    ),
    (
        "Direct part",
        "The residual stream at the last token is a sum, to which every head has added something. With the final norm "
        "frozen, each summand has its own part in the logits.",
        ("direct",),
    ),
    (
        "Ships",
        "The KL divergence of the next token's distribution after a harmful request, without the head; in nats. "
        "Generalized Ships is the angle by which the states of all requests turn.",
        ("ships_", "generalized_ships_"),
    ),
    (
        "Roles",
        "Every head gets a gate, and all gates are fitted together so that capitals become likely. Facilitation: the "
        "gate stays open in the fit that pulls gates shut. Interference: it stays shut in the fit that pulls gates "
        "open. Irrelevance: it follows the pull in both.",
        ("facilitation", "interference", "irrelevance"),
    ),
)
_CAUTIONS = (
    (
        "patching",
        "Patching speaks of the prompts that were patched, here prompts about capitals. A head with no effect in them "
        "may matter in others.",
    ),
    (
        "patching",
        "A head whose output restores an answer is enough for it, not needed: other heads may do the same, and later "
        "layers may undo an ablation.",
    ),
    (
        "phi",
        "A category is about weights and single tokens. It does not say that the head does this in context, nor that "
        "it does nothing else.",
    ),
    (
        "to_first",
        "Attention is not importance: what a head attends to most it may not move at all. Attention times the size of "
        "what each token offers comes closer.",
    ),
    (
        "ships_",
        "Ships measures any change of the answer, not a change in refusing: a model that refuses nothing has heads "
        "with large Ships too.",
    ),
    (
        "facilitation",
        "Roles come from a few short fits. The three come from the same gates, so they must correlate with each other.",
    ),
)
_ALWAYS = (
    "Intervals are of single heads. Among hundreds of heads some look special by chance, so prefer q values.",
    "Every number holds for this model, these texts and these prompts.",
)


def methods(columns: Sequence[str]) -> list[dict[str, Any]]:
    """How each analysis behind some of these columns measures."""
    found = []
    for name, text, beginnings in _METHODS:
        own = [column for column in columns if column.startswith(beginnings)]
        if name == "On ordinary text":
            own = [column for column in own if not column.startswith("copying_by_weights")]
        if own:
            found.append({"name": name, "text": text, "columns": own})
    return found


def cautions(columns: Sequence[str]) -> list[str]:
    """What may not be concluded from these columns."""
    found = [text for needs, text in _CAUTIONS if any(column.startswith(needs) for column in columns)]
    return [*found, *_ALWAYS]
