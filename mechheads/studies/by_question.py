"""What an atlas found, by question: pairs, requests, a task, ordinary text, the weights, or scores of your own.

Every score is evidence about one question. Two scores are about the same one if their prompts are the same, or are made
from the same relation. Only such scores agree or disagree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any, Literal, Protocol, get_args

import numpy as np

from mechheads.behaviour import HeadProfile
from mechheads.gating import ROLES, Roles
from mechheads.labels import HeadLabels
from mechheads.results.curves import Curves
from mechheads.results.evidence import clusters_needed, differs, has_null, null_of
from mechheads.results.kinds import sample_of
from mechheads.results.scores import HeadScores
from mechheads.results.words import ASKED
from mechheads.safety.heads.safety_heads import SafetyHeads
from mechheads.studies.findings import (
    Finding,
    counted,
    number_of,
    of_circuit,
    of_direct,
    of_labels,
    of_own,
    of_patching,
    of_profile,
    of_roles,
    of_ships,
    one_line,
)
from mechheads.studies.own import OwnView, own_file
from mechheads.studies.refusal_findings import of_refusals
from mechheads.studies.refusals import Refusals

Kind = Literal["own", "pairs", "requests", "task", "text", "weights"]
_TITLES = {ASKED["pairs"]: "naming the capital", ASKED["task"]: "naming the capital"}
"""What questions of the package are called."""
_USUAL = {"pairs": "the answer", "task": "the task", "requests": "the requests"}
"""What prompts are about if nothing else is known."""
_SHOWN = 5
"""How many heads of a question are drawn."""
_OWN_SENTENCES = 3


class Results(Protocol):
    """What is read of an atlas; see there."""

    labels: HeadLabels | None
    profile: HeadProfile | None
    patching: HeadScores | None
    direct: HeadScores | None
    safety: dict[str, SafetyHeads]
    refusals: Refusals | None
    roles: Roles | None
    circuit: Curves | None
    asked: dict[str, str]
    pairs: list[dict[str, str]]

    @property
    def views(self) -> dict[str, HeadScores]: ...
    @property
    def rankings(self) -> dict[str, HeadScores]: ...
    @property
    def own_views(self) -> dict[str, OwnView]: ...


@dataclass(frozen=True)
class Evidence:
    """The number of one head about a question.

    Attributes:
        head: its name.
        value, low, high: its score with the ends of its interval; None if there is none.
        shown: the same as text, with its unit.
    """

    head: str
    value: float
    low: float | None
    high: float | None
    shown: str


@dataclass(frozen=True)
class Question:
    """A question that an atlas has asked the model, and what it found, from ``Atlas.questions``.

    Attributes:
        key: its name in the data of the page.
        title: what it is about, in a few words.
        kind: what its prompts are.
        findings: its sentences, the most telling first.
        views: the columns of its scores.
        view: the column that ranks its heads.
        counted: how many prompts the scores of this column are means over.
        settles: what would settle it, if these prompts do not.
        heads: the first heads.
    """

    key: str
    title: str
    kind: Kind
    findings: tuple[Finding, ...]
    views: tuple[str, ...]
    view: str
    counted: str
    settles: str
    heads: tuple[Evidence, ...]


def question_of(atlas: Results) -> dict[str, str]:
    """The key of the question that each view of an atlas is about, by its column."""
    own, views = atlas.own_views, atlas.views
    keys = {name: _key(name) for name in views if name not in own}
    if atlas.roles is not None and _about_one_relation(atlas):
        keys |= dict.fromkeys(ROLES, "pairs")
    prompts: dict[str, set[str]] = {}
    for name, key in keys.items():
        prompts[key] = prompts.get(key, set()) | _prompts(views[name])
    for name, view in own.items():
        mine, file = _prompts(view.scores), own_file(view.of[0])
        keys[name] = next((key for key, theirs in prompts.items() if mine & theirs), file)
        prompts.setdefault(keys[name], mine)
    return keys


def questions(atlas: Results) -> list[Question]:
    """What an atlas has asked, in the order of the page: your own scores first."""
    keys, asked = question_of(atlas), _USUAL | atlas.asked
    found: dict[str, list[Finding]] = {}

    def say(key: str, finding: Finding | None) -> None:
        if finding is not None:
            found.setdefault(key, []).append(finding)

    own = atlas.own_views
    for column in list(_in_turn(own))[:_OWN_SENTENCES]:
        say(keys[column], of_own(own[column].label, own[column].scores, column))
    if atlas.patching is not None:
        say("pairs", of_patching(atlas.patching, asked["pairs"], [pair["clean"] for pair in atlas.pairs]))
    if atlas.circuit is not None:
        say("pairs", of_circuit(atlas.circuit, asked["pairs"]))
    if atlas.direct is not None and atlas.patching is None:
        say("pairs", of_direct(atlas.direct, asked["pairs"], [pair["clean"] for pair in atlas.pairs]))
    for finding in [] if atlas.refusals is None else of_refusals(atlas.refusals, atlas.rankings):
        say("requests", finding)
    if atlas.safety:
        say("requests", of_ships(atlas.safety, asked["requests"]))
    if atlas.roles is not None:
        say(keys[ROLES[0]], of_roles(atlas.roles, asked["task"]))
    if atlas.profile is not None:
        say("text", of_profile(atlas.profile))
    if atlas.labels is not None:
        say("weights", of_labels(atlas.labels))
    names = {own_file(view.of[0]): view.of[0] for view in own.values()}
    titles = {"text": "ordinary text", "weights": "the weights alone", **asked, **names}
    views = atlas.views
    return [_question(atlas, views, key, findings, keys, titles[key]) for key, findings in found.items()]


def _question(
    atlas: Results,
    scored: Mapping[str, HeadScores],
    key: str,
    findings: list[Finding],
    keys: Mapping[str, str],
    title: str,
) -> Question:
    views = tuple(name for name, of in keys.items() if of == key)
    view = findings[0].link.get("by") or (views[0] if views else "")
    scores = scored.get(view) or _of_column(atlas, view)
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind)}
    told = ("", "", ()) if scores is None else (counted(scores), _settles(scores), _first(scores))
    kind = kinds.get(key, "own")
    return Question(key, one_line(_TITLES.get(title, title)), kind, tuple(findings), views, view, *told)


def _of_column(atlas: Results, column: str) -> HeadScores | None:
    """The scores of a column that is no view: a behaviour on text."""
    behaviour = column.partition("_")[2]
    known = [] if atlas.profile is None else atlas.profile.dataset["behaviour"].values.tolist()
    return atlas.profile.select(behaviour=behaviour) if atlas.profile is not None and behaviour in known else None


def _first(scores: HeadScores) -> tuple[Evidence, ...]:
    """The heads that differ from the null, then the others, each group from the furthest on."""
    told = differs(scores).ravel()
    rows: Any = scores.to_dataframe().assign(told=told)
    rows = rows[np.isfinite(rows["score"]) & (rows["head"] % scores.together == 0)]
    rows = rows.assign(away=np.abs(rows["score"] - (null_of(scores) or 0.0)))
    rows = rows.sort_values(["told", "away"], ascending=False, kind="stable").head(_SHOWN)
    return tuple(
        Evidence(str(name), row["score"], *_ends(row), number_of(row, scores.unit)) for name, row in rows.iterrows()
    )


def _ends(row: Any) -> tuple[float | None, float | None]:
    low, high = row["ci_low"], row["ci_high"]
    return (low, high) if isfinite(low) and isfinite(high) else (None, None)


def _settles(scores: HeadScores) -> str:
    """What would tell heads apart, if these prompts do not."""
    if not has_null(scores):
        return ""
    if (enough := clusters_needed(scores)) is not None:
        return f"{enough} {sample_of(scores.kind)}s or more would allow a test over heads."
    return "" if differs(scores).any() else f"More {sample_of(scores.kind)}s would narrow the intervals."


def _key(column: str) -> str:
    if column.startswith(("ships_", "refusal_")):
        return "requests"
    if column in ROLES:
        return "task"
    return "weights" if column == "phi" else "pairs"


def _about_one_relation(atlas: Results) -> bool:
    """Whether the pairs and the task are both those of the package, which are made from one relation."""
    return all(atlas.asked.get(what) == ASKED[what] for what in ("pairs", "task"))


def _prompts(scores: HeadScores) -> set[str]:
    """The prompts that scores are about, by their provenance."""
    return set(str(scores.provenance.get("prompts", "")).split("+")) - {""}


def _in_turn(own: Mapping[str, OwnView]) -> dict[str, OwnView]:
    """A view of each of the user's scores, the one in which a head is furthest from the null, then the next of each."""

    def away(view: OwnView) -> float:
        return float(np.nanmax(np.abs(view.scores.scores.values - (null_of(view.scores) or 0)), initial=0))

    turns: Counter[tuple[str, int]] = Counter()
    turn = {}
    for column in sorted(own, key=lambda column: -away(own[column])):
        turn[column] = turns[own[column].of]
        turns[own[column].of] += 1
    return {column: own[column] for column in sorted(own, key=turn.__getitem__)}
