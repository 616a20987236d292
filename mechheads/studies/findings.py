"""What an atlas found, in sentences: each says how sure it is, and which view of the page shows it.

Which heads are said to differ from 0 follows from ``mechheads.results.evidence``, as do the verdicts of the page. If no
null was tested, as for Ships, or there are too few prompts for a test over heads, the sentence names the largest value
with its interval, and says so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np

from mechheads.behaviour import HeadProfile
from mechheads.behaviour.profile import FDR as FDR_OF_NAMES, NAMES, PROFILED
from mechheads.gating import Roles
from mechheads.heads import HeadId
from mechheads.labels import HeadLabels
from mechheads.results.curves import Curves, is_random
from mechheads.results.dataset import RANGE
from mechheads.results.digits import rounded
from mechheads.results.evidence import (
    LEAST_GATE,
    carrying_prompts,
    clusters_needed,
    criterion,
    differs,
    has_null,
    is_tested,
    n_clusters,
    n_prompts,
    null_of,
)
from mechheads.results.kinds import sample_of
from mechheads.results.record import FIRST
from mechheads.results.refused import refuses
from mechheads.results.scores import HeadScores
from mechheads.results.words import ABLATED, METRICS, listed, shortened
from mechheads.safety.answers.refusing import refusing
from mechheads.safety.heads.safety_heads import SafetyHeads

MOST_FAITHFUL, LEAST_FAITHFUL = 0.9, 0.5
"""The share of a metric that a circuit must keep, and that its interval must not leave."""
NAMED = 3
"""How many heads a sentence names at most."""
MEASURED = 2
"""How many of these it names with their numbers."""
LEVEL = 0.95
"""Of the intervals, unless a sentence names another."""
_DOES = {
    "induction": ("does induction", "do induction"),
    "previous-token": ("attends to the previous token", "attend to the previous token"),
    "duplicate-token": ("attends to copies of the token", "attend to copies of the token"),
    "sink": ("attends mostly to the first token", "attend mostly to the first token"),
    "delimiter": ("attends to delimiters", "attend to delimiters"),
    "positional": ("attends by position", "attend by position"),
    "self": ("attends to the token itself", "attend to the token itself"),
}
"""What heads with each name do, of one head and of several, the most telling first."""
_BEHAVIOURS = 4
"""How many of these a sentence tells."""
_ENDINGS = {"p_family": "p_family", "q_value": "q"}
"""How the column of a statistic ends."""
_SHIPS = {
    "ships": "the next token changes most",
    "generalized_ships": "the states of all requests turn most",
}


@dataclass(frozen=True)
class Finding:
    """A sentence that the results carry, and where the page shows it.

    Attributes:
        text: the sentence, as plain text.
        link: what is chosen on the page that shows it, as the keys and values of its address.

    >>> mh.studies.Finding("By its weights, L23H4 knows capitals.", {"filter": "country_to_capital"}).link
    {'filter': 'country_to_capital'}
    """

    text: str
    link: dict[str, str]


def one_line(text: str) -> str:
    """A text of somebody else for a sentence: on one line, without control characters, and not too long.

    >>> from mechheads.studies.findings import one_line
    >>> one_line("my\\n sweep")
    'my sweep'
    """
    shown = "".join(letter if letter.isprintable() else "\ufffd" for letter in re.sub(r"\s+", " ", text).strip())
    return shortened(shown)


def of_own(name: str, scores: HeadScores, column: str) -> Finding:
    """What scores of your own show; ``column`` is their column of the table."""
    link = {"colour": column, "by": column, "sort": f"-{column}"}
    return _of_heads(scores, column, _Words(f'In "{one_line(name)}"', "has"), link)


def of_patching(scores: HeadScores, about: str, texts: Sequence[str] = ()) -> Finding:
    """Which heads carry the answer, by activation patching; ``texts`` are the clean prompts."""
    metric = str(scores.provenance.get("metric", "logit_diff"))
    measure = f" of the {METRICS[metric]}" if metric in METRICS else f" of {one_line(metric)}"
    noising = scores.provenance.get("direction") == "noising"
    share = scores.unit.startswith("share")
    verb = ("takes away" if noising else "restores") if share else "changes the metric by"
    words = _Words(f"Patched for {one_line(about)}", verb, measure if share else "", texts)
    return _of_heads(scores, "patching", words, {"colour": "patching", "by": "patching", "pane": "cause"})


def of_direct(scores: HeadScores, about: str, texts: Sequence[str] = ()) -> Finding:
    """Which heads write the answer themselves; ``texts`` are the prompts."""
    words = _Words(f"Writing straight to the logits for {one_line(about)}", "adds", texts=texts)
    return _of_heads(scores, "direct", words, {"colour": "direct", "by": "direct", "pane": "cause"})


def of_labels(labels: HeadLabels) -> Finding:
    """How many heads have a category by their weights."""
    member, below = (labels.dataset[name].values.astype(bool) for name in ("member", "below_floor"))
    counts = {name: int(member[..., at].sum()) for at, name in enumerate(labels.categories)}
    several = int((member.sum(-1) > 1).sum())
    faint = int((below.any(-1) & ~member.any(-1)).sum())
    settings = labels.provenance
    how = f"q at most {settings.get('fdr')} over heads and relations"
    if settings.get("rule") == "maps":
        how = f"phi of at least {settings.get('tau')}"
    having = sorted((name for name in counts if counts[name]), key=lambda name: -counts[name])
    hint = f"; {faint} more map{'s' * (faint == 1)} some pairs, too few for a category" if faint else ""
    n, of = int(member.any(-1).sum()), _among(labels)
    if not n:
        n_relations = labels.dataset.sizes["relation"]
        relations = f"the {n_relations} relations that were" if n_relations > 1 else "the relation that was"
        text = f"By their weights, none of {of} has a category from {relations} tested ({how}){hint}."
        return Finding(text, {"colour": "phi", "by": "phi"} if _is_any(labels) else {})
    some = f", {several} of them several (counted in each)" if several else ""
    kinds = listed([f"{counts[name]} {one_line(name)}" for name in having])
    text = f"By their weights, {n} of {of} {_have(n)} a category{some}: {kinds} ({how}){hint}."
    return Finding(text, {"filter": " or ".join(_quoted(name) for name in having)})


def of_profile(profile: HeadProfile) -> Finding:
    """What heads attend to in ordinary text."""
    windows = profile.dataset.sizes.get("prompt", 0)
    sure = f"q at most {FDR_OF_NAMES:g}" + (f", {_count(windows, 'window')}" if windows else "")
    heads = {name: profile.named(name) for name in _DOES}
    told = [name for name in _DOES if heads[name]][:_BEHAVIOURS]
    if not told:
        text = f"On ordinary text, none of {_among(profile)} attends to anything that has a name ({sure})."
        return Finding(text, {"colour": "to_induction", "by": "to_induction"})
    parts = []
    for at, name in enumerate(told):
        n = len(heads[name])
        who = _some(heads[name], NAMED) if at == 0 else str(n)
        parts.append(f"{who} {_DOES[name][n > 1]}")
    behaviour = PROFILED[list(NAMES.values()).index(told[0])]
    column = f"by_{behaviour}" if behaviour == "position" else f"to_{behaviour}"
    link = {"filter": told[0], "colour": column, "by": column, "head": str(heads[told[0]][0]), "pane": "text"}
    missing = f", of {_among(profile)}" if profile.missing else ""
    return Finding(f"On ordinary text, {listed(parts)} ({sure}{missing}).", link)


def of_ships(safety: Mapping[str, SafetyHeads], requests: str) -> Finding | None:
    """On which heads the answer to requests depends most, by each ablation, and whether the model refuses at all.

    None if no head was reached.
    """
    known = {name: scores for name, scores in safety.items() if len(scores.missing) < scores.scores.size}
    if not known:
        return None
    parts, first = [], {}
    for ablation, scores in known.items():
        row = scores.to_dataframe().loc[str(scores.heads(1)[0])]
        first[ablation] = str(row.name)
        does = ABLATED.get(ablation, "").removeprefix("it ")
        when = f"if {row.name} {does}" if does else f"under {one_line(ablation)} of {row.name}"
        parts.append(f"{when} ({number_of(row, scores.unit)})")
    ablation, scores = next(iter(known.items()))
    score = scores.provenance.get("score", "ships")
    most = _SHIPS.get(score, f"{one_line(score).replace('_', ' ')} is largest")
    shared = _shared(*list(known.values())[:2]) if len(known) > 1 else ""
    sure = f"{_count(n_prompts(scores), 'request')}{f', {_among(scores)}' if scores.missing else ''}"
    refused = scores.provenance.get("refused")
    counted = f"The model {refusing(refused)}" if refused else "Whether the model refuses was not judged"
    nothing = ", so this says nothing about refusals" if refuses(refused) is False else ""
    text = f"After {one_line(requests)}, {most} {' or '.join(parts)}{shared} ({sure}). {counted}{nothing}."
    link = {"colour": f"ships_{ablation}", "by": f"ships_{ablation}", "top": str(FIRST)}
    return Finding(text, link | {"head": first[ablation], "pane": "safety"})


def of_roles(roles: Roles, task: str) -> Finding:
    """Which heads a task needs in every start of the gates."""
    data = roles["facilitation"].dataset
    starts = data.sizes["prompt"]
    everywhere = {role: (scores.dataset["values"].values >= LEAST_GATE).all(-1) for role, scores in roles.items()}
    order = np.argsort(-np.where(everywhere["facilitation"], data["score"].values, -np.inf), axis=None, kind="stable")
    n = {role: int(has.sum()) for role, has in everywhere.items()}
    n_heads = roles["facilitation"].n_heads
    needed = [HeadId(int(at) // n_heads, int(at) % n_heads) for at in order[: n["facilitation"]]]
    each = {1: "its one start", 2: "both starts"}.get(starts, f"all {starts} starts")
    of = _among(roles["facilitation"])
    rest = f"{_count(n['interference'], 'head')} hinder{'s' * (n['interference'] == 1)} it, " + (
        f"{n['irrelevance']} {'does' if n['irrelevance'] == 1 else 'do'} not matter"
    )
    lead = f"By fitted gates, {one_line(task)} needs"
    needs = f"{_some(needed, NAMED)} in {each}" if needed else f"none of {of} in {each}"
    within = f"of {of}; " if needed else ""
    text = f"{lead} {needs}; {rest} ({within}a gate of at least {LEAST_GATE:g})."
    link = {"colour": "facilitation", "by": "facilitation", "pane": "roles"}
    more = {"filter": "facilitation = yes", "head": str(needed[0])} if needed else {}
    return Finding(text, link | more)


def of_circuit(curve: Curves, about: str) -> Finding | None:
    """How few of the first heads by patching keep the metric; None if no point was reached."""
    rows: Any = curve.table[~curve.table["which"].map(is_random)]
    rows = rows[(rows["which"] == next(iter(curve.order))) & rows["score"].notna()]
    if rows.empty or "k" not in rows:
        return None
    near = rows["score"] >= MOST_FAITHFUL
    enough = rows[near & ~(rows["ci_low"] < LEAST_FAITHFUL)]
    metric = METRICS.get(curve.name, one_line(curve.name))
    only, which = ("", "the") if len(enough) or near.any() else ("only ", "even the")
    if near.any() and enough.empty:
        which = f"how few heads keep the {metric} is not settled: the"
    row = enough.iloc[0] if len(enough) else rows.loc[rows["score"].idxmax()]
    k, heads = int(row["k"]), [str(head) for head in curve.heads]
    kept = f"keep{'s' * (k == 1)} {only}{number_of(row, 'share')} of the {metric}"
    alone = rows[rows["k"] == 1]
    first = f", {heads[0]} alone {number_of(alone.iloc[0], 'share')}" if k > 1 and len(alone) else ""
    who = f"{heads[0]} alone" if k == 1 else f"{which} first {k} heads by patching"
    n = curve.values.shape[-1]
    pairs = f"the {_count(n, 'pair')} that ranked {'it' if k == 1 else 'them'}"
    text = f"With all others patched for {one_line(about)}, {who} {kept}{first} ({pairs})."
    link = {"filter": " ".join(heads[:k]), "by": "patching", "colour": "patching", "section": "circuits"}
    return Finding(text, link)


def of_rest(missing: Sequence[str], measured: int, interrupted: bool) -> Finding | None:
    """What was not measured; None if everything was.

    Args:
        missing: names of the analyses without a result.
        measured: how many have one.
    """
    stopped = "The work was interrupted. " if interrupted else ""
    if missing and measured <= 1:
        said = "Nothing else was measured."
    else:
        said = f"Not measured: {listed(missing)}." if missing else ""
    return Finding(f"{stopped}{said}".strip(), {"section": "left-out"}) if stopped or said else None


@dataclass(frozen=True)
class _Words:
    """A sentence about single heads: ``lead``, HEAD ``verb`` NUMBER ``of``."""

    lead: str
    verb: str
    of: str = ""
    texts: Sequence[str] = ()


def _of_heads(scores: HeadScores, column: str, words: _Words, link: dict[str, str]) -> Finding:
    """Which heads differ from the null; if that cannot be told, the largest value."""
    told = differs(scores).ravel()
    rows: Any = scores.to_dataframe().assign(differs=told)
    rows = rows[np.isfinite(rows["score"]) & (rows["head"] % scores.together == 0)]
    if rows.empty:
        return Finding(f"{words.lead}, no head was reached.", link)
    null = null_of(scores) or 0.0
    rows = rows.assign(away=rows["score"] - null).sort_values("away", key=np.abs, ascending=False, kind="stable")
    rows = rows[~rows.index.duplicated()]  # of scores with labels, the row of each head that is furthest from the null
    beyond = rows[rows["differs"]]
    if beyond.empty:
        return Finding(_largest(scores, rows, words), link | {"head": str(rows.index[0])})
    up = beyond["away"] > 0 if (beyond["away"] > 0).any() else beyond["away"] < 0
    first, others = beyond[up].iloc[:MEASURED], beyond[~up].iloc[:1]
    numbers = [number_of(row, scores.unit) for row in first.to_dict("records")]
    said = [f"{first.index[0]} {words.verb} {numbers[0]}{words.of}"]
    said += [f"{name} {number}" for name, number in zip(first.index[1:], numbers[1:], strict=True)]
    against = [f"; {name} goes the other way, {number_of(row, scores.unit)}" for name, row in others.iterrows()]
    sure = f"; {len(beyond)} of {_among(scores)} differ{'s' * (len(beyond) == 1)} from {null:g}"
    test = criterion(scores)
    small = rows[test.statistic] <= test.most
    marked = f"{_quoted(f'{column}_{_ENDINGS[test.statistic]}')} <= {test.most:g}"
    if len(beyond) < small.sum():
        low, high = (_quoted(f"{column}_ci_{end}") for end in ("low", "high"))
        marked += f" and ({low} > {null:g} or {high} < {null:g})"
    sure = f"{sure} ({_joined(str(test), counted(scores))})."
    carried = "".join(_carried(scores, row, words) for _, row in first.iterrows())
    text = f"{words.lead}, {listed(said)}{''.join(against)}{carried}{sure}"
    return Finding(text, link | {"head": str(first.index[0]), "filter": marked})


def _carried(scores: HeadScores, row: Any, words: _Words) -> str:
    """That one prompt carries the score of a row, if it does."""
    at = int(carrying_prompts(scores)[row["layer"], row["head"]])
    if at < 0:
        return ""
    which = f'"{one_line(words.texts[at])}"' if at < len(words.texts) else f"number {at + 1}"
    return f"; one {sample_of(scores.kind)} carries {row.name}: {which}"


def _largest(scores: HeadScores, rows: Any, words: _Words) -> str:
    """The largest value, which stands first, and why it is no more than that."""
    row, alike = rows.iloc[0], int((rows["score"] == rows["score"].iloc[0]).sum())
    said = f"{row.name} {words.verb} {number_of(row, scores.unit)}{words.of}"
    of, null, carried = _among(scores), null_of(scores), _carried(scores, row, words)
    if is_tested(scores):
        test = criterion(scores)
        sure = f"{test.called} {row[test.statistic]:.2g}"
        if row["ci_low"] > (null or 0) or row["ci_high"] < (null or 0):
            some = counted(scores) or "the numbers"
            why = f"{some} do not tell it from chance among so many ({sure})"
            return f"{words.lead}, {said}, the furthest from {null or 0:g} of {of}{carried}; {why}."
        why = _joined(sure, counted(scores))
        return f"{words.lead}, none of {of} can be told from {null or 0:g}; at most, {said}{carried} ({why})."
    if has_null(scores) and (enough := clusters_needed(scores)):
        why = f"{counted(scores)}; {enough} or more would allow a test over heads"
    else:
        why = "nothing says how sure that is"
        if isfinite(row["ci_low"]):
            why = _joined("not tested against 0" if null is None else "", counted(scores)) or "not tested against 0"
    if null is not None and row["ci_low"] <= null <= row["ci_high"]:
        return f"{words.lead}, none of {of} stands out; at most, {said}{carried} ({why})."
    if alike == len(rows) > 1:
        return f"{words.lead}, each of {of}{said.removeprefix(str(row.name))} ({why})."
    extreme = "the largest" if row["score"] > 0 else "the furthest from 0"
    others = "" if alike == 1 else f", as {'does 1 other' if alike == 2 else f'do {alike - 1} others'}"
    return f"{words.lead}, {said}, {extreme} of {of}{others}{carried} ({why})."


def number_of(row: Any, unit: str) -> str:
    """The score of a row with its interval, or with the range of two clusters."""
    low, high = row.get("ci_low", nan), row.get("ci_high", nan)
    if isfinite(low) and isfinite(high):
        return rounded(row["score"], low, high, unit)
    low, high = (row.get(end, nan) for end in RANGE)
    if isfinite(low) and isfinite(high):
        number, _, ends = rounded(row["score"], low, high, unit).rpartition(" [")
        return f"{number} (range of two clusters {ends[:-1].replace(', ', ' to ')})"
    return rounded(row["score"], unit=unit)


def counted(scores: HeadScores) -> str:
    """How many prompts the scores are means of."""
    clusters = n_clusters(scores)
    if clusters is None:
        return ""
    prompts = _count(n_prompts(scores), sample_of(scores.kind))
    within = f"{prompts} in {_count(clusters, 'cluster')}" if clusters < n_prompts(scores) else prompts
    return within if scores.level in (None, LEVEL) else f"{within}, intervals of {scores.level:.0%}"


def _among(scores: HeadScores) -> str:
    """How many heads were measured: ``270 heads``, or ``the 120 of 270 heads that were reached``."""
    step, every = scores.together, scores.n_layers * scores.n_heads - len(scores.provenance.get("given", ()))
    called = ("head", "heads") if step == 1 else ("group of heads", "groups of heads")
    known, of = (every - len(scores.missing)) // step, _count(every // step, *called)
    finite = int(np.isfinite(scores.scores.values).reshape(scores.n_layers, scores.n_heads, -1).any(-1).sum()) // step
    if finite < known:
        return f"the {finite} of {of} whose value is finite"
    return of if not scores.missing else f"the {known} of {of} that {'was' if known == 1 else 'were'} reached"


def _count(n: int, one: str, many: str = "") -> str:
    """A number with its noun.

    >>> from mechheads.studies.findings import _count
    >>> _count(1, "prompt"), _count(3, "prompt"), _count(2, "group of heads", "groups of heads")
    ('1 prompt', '3 prompts', '2 groups of heads')
    """
    return f"{n:,} {one if n == 1 else many or f'{one}s'}"


def _joined(*parts: str) -> str:
    """What is known, with commas."""
    return ", ".join(part for part in parts if part)


def _have(n: int) -> str:
    return "has" if n == 1 else "have"


def _some(heads: Sequence[HeadId], n: int) -> str:
    """The first heads, and how many more there are.

    >>> from mechheads.studies.findings import _some
    >>> _some([HeadId(0, 1), HeadId(2, 3), HeadId(4, 5)], 2)
    'L0H1, L2H3 and 1 more'
    """
    more = len(heads) - n
    names = list(map(str, heads[:n]))
    return f"{', '.join(names)} and {more} more" if more > 0 else listed(names)


def _quoted(name: str) -> str:
    """A name as it must stand in the page's search line."""
    is_word = re.fullmatch(r"[^\W\d][\w.'-]*", name) and name.lower() not in ("and", "or", "not")
    return name if is_word else '"{}"'.format(name.replace('"', ""))


def _is_any(scores: HeadScores) -> bool:
    return bool(np.isfinite(scores.scores.values).any())


def _shared(one: SafetyHeads, other: SafetyHeads) -> str:
    """How many of their first heads two ablations share; nothing if there are hardly more heads."""
    n, k = one.n_layers * one.n_heads // one.together, FIRST
    if one.missing or other.missing or one.together != other.together or n < 2 * k:
        return ""
    shared = len({*one.heads(k)} & {*other.heads(k)})
    return f"; they share {shared} of their first {k} heads, {k * k / n:.1g} by chance"
