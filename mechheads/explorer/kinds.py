"""What the page says of scores, by their kind: each kind in ``mechheads.results.kinds`` has its words here.

What depends on the call comes from the provenance of the scores: the metric, the site, which run was changed, by what.
A kind of your own gets words from its name, its unit, its metric and its intervention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mechheads.behaviour.head_profile import NAMES
from mechheads.explorer.about import CAPITAL, About, differs_in, short
from mechheads.explorer.column import (
    BY_WEIGHTS,
    FIRST,
    IN_REFUSALS,
    IN_TASKS,
    ON_TEXT,
    ROLES_GROUP,
    Column,
    Rule,
    added,
    among_first,
    differs,
    in_every_start,
    is_tested,
    labelled,
    null_of,
    restored,
)

_UNSETTLED = "These prompts do not settle it."
_AMONG = (
    f"It is among the {FIRST} heads with the largest values.",
    f"At least {FIRST} heads have larger values.",
    f"It may be among the {FIRST} heads with the largest values.",
)
_OTHER = ("Other prompts.", "Other prompts.", "More prompts: they narrow the interval and lower q.")
_WEIGHTS_CHANGE = ("Other weights only.", "Other weights only.", "Other weights only.")


def column_for(about: About) -> Column:
    """What the page says of scores, by their kind."""
    scores = about.scores
    made = _KINDS.get(scores.kind.partition("+")[0], _of_unknown_kind)(about)
    signed = bool((scores.scores.values < 0).any())
    return replace(made, unit=made.unit or scores.unit, signed=signed if made.rule is among_first else made.signed)


def known_kinds() -> list[str]:
    """The kinds that have words here."""
    return list(_KINDS)


def _rule(about: About) -> Rule:
    """How verdicts follow from what a metric gives: a divergence is never 0, so only its size says something."""
    if not is_tested(about.scores):
        return among_first
    return restored if about.is_share else differs


def _measured(about: About, column: Column) -> Column:
    """The column of scores that a metric gives, with the rule that its null, interval and q allow."""
    rule = _rule(about)
    texts = _AMONG if rule is among_first else column.texts
    return replace(column, group=IN_TASKS, signed=True, rule=rule, texts=texts)


def _meaning(about: About, how: str) -> str:
    """What a score is: a share of the metric, or its change."""
    return f"The {'share' if about.is_share else 'change'} of {about.metric}{' that changes' * about.is_share}{how}."


def _what_changes(about: About) -> str:
    """The end of a sentence about a value."""
    return (
        f"{{value}} of {about.metric} changes." if about.is_share else f"{about.metric} changes by {{value}} {{unit}}."
    )


def _patching(about: About) -> Column:
    denoising = about.of("base", "corrupted") != "clean"
    source, base = ("clean", "corrupted") if denoising else ("corrupted", "clean")
    site, share = about.site, about.is_share
    if denoising and share:
        meaning = f"The share of {about.metric} that the head's {site} from the clean run restores."
        sentence = f"Its {site} from the clean run restores {{value}} of {about.metric}."
    elif share:
        meaning = f"The share of {about.metric} that the head's {site} from the corrupted run takes away."
        sentence = f"Its {site} from the corrupted run takes away {{value}} of {about.metric}."
    else:
        meaning = f"The change of {about.metric} if the head's {site} in the {base} run comes from the {source} one."
        sentence = f"With its {site} from the {source} run, {about.metric} changes by {{value}} {{unit}}."
    if denoising:
        texts = (
            f"Its {site} carries something of {differs_in(about.asked)} to the answer.",
            f"Its {site} carries next to nothing of {differs_in(about.asked)} to the answer.",
            _UNSETTLED,
        )
        change = (
            "Other prompts, or noising instead of denoising: a head can be enough without being needed.",
            "Noising, in which backup heads do not hide it; other prompts.",
            "More pairs of prompts: they narrow the interval and lower q.",
        )
        caution = (
            "A head whose output restores an answer is enough for it, not needed: other heads may do the same, and "
            "later layers may undo an ablation."
        )
    else:
        texts = (
            f"The answer needs its {site} in these prompts.",
            f"The answer hardly needs its {site} in these prompts.",
            _UNSETTLED,
        )
        change = (
            "Other prompts, or denoising instead of noising: a head can be needed without being enough.",
            "Denoising; several heads at once, since others can stand in for one.",
            "More pairs of prompts: they narrow the interval and lower q.",
        )
        caution = "Other heads may stand in for one that is noised: little change does not say that it does nothing."
    here = ", here prompts about capitals" if about.capitals else ""
    what = "another country" if about.capitals else "something else"
    whole = "the whole logit difference between the two capitals" if about.capitals else "the whole difference"
    scale = f"0 means no change, 1 means that {whole} is {'restored' if denoising else 'gone'}"
    method = (
        f"The corrupted prompt names {what}. One head's {site} in the {base} run is replaced with its value in the "
        f"{source} run: {scale if share else f'the score is the change of {about.metric}'}."
    )
    return _measured(
        about,
        Column(
            "Patching",
            "",
            meaning,
            IN_TASKS,
            sentence=sentence,
            texts=texts,
            change=change,
            method=("Patching" if denoising else "Patching, noising", method),
            cautions=(
                f"Patching speaks of the prompts that were patched{here}. A head with no effect in them may matter in "
                "others.",
                caution,
            ),
            part="patching" if denoising else "noising",
        ),
    )


def _attribution(about: About) -> Column:
    run = "corrupted" if about.of("base") == "corrupted" else "clean"
    how = f"if its {about.site} in the {run} run came from the other one"
    return _measured(
        about,
        Column(
            "Attribution patching",
            "",
            f"An estimate, from gradients, of the change of {about.metric} {how}.",
            IN_TASKS,
            sentence=f"By its gradient, {about.metric} would change by {{value}} {{unit}} {how}.",
            texts=("Its estimated effect differs from 0.", "Its estimated effect is next to nothing.", _UNSETTLED),
            change=("Patching the head itself.", "Patching the head itself.", "More pairs of prompts."),
            method=(
                "Attribution patching",
                f"The effect of patching every head at once, as a straight line from gradients of {about.metric}.",
            ),
            cautions=("Attribution patching is an estimate: where a head saturates, its effect can be far from it.",),
            part="attribution",
        ),
    )


def _ablation(about: About) -> Column:
    return _measured(
        about,
        Column(
            "Ablation",
            "",
            _meaning(about, f" if {about.change}"),
            IN_TASKS,
            sentence=f"If {about.change}, {_what_changes(about)}",
            texts=("What the model says depends on it.", "What the model says hardly depends on it.", _UNSETTLED),
            change=(
                "Another ablation, or other prompts.",
                "Ablating several heads at once, since others can stand in for one; other prompts.",
                "More prompts: they narrow the interval and lower q.",
            ),
            method=("Ablation", f"One head at a time: {about.change}. The score is the change of {about.metric}."),
            cautions=(
                "Other heads can stand in for one that is ablated: little change does not say that it does nothing.",
            ),
            part="ablation",
        ),
    )


def _path(about: About) -> Column:
    given = about.selected("receiver") or ", ".join(about.all_of("receivers")) or "final"
    to = short(given.replace("final", "the logits"))
    run = "clean" if about.of("direction") == "denoising" else "corrupted"
    how = f" if only the path from the head to {to} comes from the {run} run"
    return _measured(
        about,
        Column(
            f"Path to {to}",
            "",
            _meaning(about, how),
            IN_TASKS,
            sentence=f"If only its path to {to} comes from the {run} run, {_what_changes(about)}",
            texts=(f"It works through {to}.", f"It hardly works through {to}.", _UNSETTLED),
            change=("Other prompts.", "Other prompts; other paths.", "More pairs of prompts."),
            method=(
                "Path patching",
                f"Only what a head sends to one receiver comes from the other run; the score is the change of "
                f"{about.metric}. All other heads keep their values.",
            ),
            part="path",
        ),
    )


_REPAIR = {
    "total": ("Total effect", "with everything after it reacting"),
    "direct": ("Direct effect", "with all other heads and MLPs frozen"),
    "repair": ("Reaction of later layers", "as total minus direct effect"),
}


def _repair(about: About) -> Column:
    label, how = _REPAIR.get(about.selected("effect") or "", ("Self-repair", "total, direct and the difference"))
    return _measured(
        about,
        Column(
            label,
            "",
            f"The change of {about.metric} if the head is ablated, {how}.",
            IN_TASKS,
            sentence=f"{label}: {about.metric} changes by {{value}} {{unit}}.",
            change=_OTHER,
            method=(
                "Self-repair",
                f"A head is ablated twice: once everything after it reacts, once all is frozen. The score is the "
                f"change of {about.metric}; the difference is what later layers do about it.",
            ),
        ),
    )


def _direct(about: About) -> Column:
    to = f"the logit of {CAPITAL}, minus that of the wrong one" if about.capitals else about.of("attributed", "a logit")
    what = f"{CAPITAL}, minus the wrong one" if about.capitals else to
    return Column(
        "Direct part",
        "logits",
        f"What the head itself adds to {to}.",
        IN_TASKS,
        signed=True,
        sentence=f"The head itself adds {{value}} logits to {what}.",
        rule=added if is_tested(about.scores) else among_first,
        texts=("It writes to the answer directly.", "It hardly writes to the answer directly.", _UNSETTLED)
        if is_tested(about.scores)
        else _AMONG,
        change=("Other prompts.", "Other prompts; patching shows what it does through later heads.", "More prompts."),
        method=(
            "Direct part",
            "The residual stream at the last token is a sum, to which every head has added something. With the final "
            "norm frozen, each summand has its own part in the logits.",
        ),
        part="direct",
    )


def _phi(about: About) -> Column:
    return Column(
        "Phi",
        "share of pairs",
        "The share of the best relation's pairs that its weights map to the target.",
        BY_WEIGHTS,
        sentence="By its weights, the head maps {value} of the pairs of {relation} from source to target.",
        rule=labelled,
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
        method=CATEGORIES,
        cautions=(
            "A category is about weights and single tokens. It does not say that the head does this in context, nor "
            "that it does nothing else.",
        ),
        part="phi",
    )


CATEGORIES = (
    "Categories",
    "phi is the share of a relation's pairs whose target is among the ten strongest outputs of the head for the "
    "source, by its weights. A head gets a category if phi of one of the category's relations exceeds the phi of "
    "shuffled targets by at least the floor, at a false discovery rate of 5%.",
)
COPYING = (
    "Copying by weights",
    "The sum of the eigenvalues of the map from tokens to logits through the head, divided by the sum of their "
    "absolute values. q compares it with heads that read and write random directions.",
)
_SHIPS_METHOD = (
    "Ships",
    "The KL divergence of the next token's distribution after a request, without the head; in nats. Generalized Ships "
    "is the angle by which the states of all requests turn.",
)


def _labels(about: About) -> Column:
    category = about.selected("category")
    if category is None:
        return _phi(about)
    of = f"The share of pairs of the best {category} relation that its weights map to the target."
    sentence = f"By its weights, it maps {{value}} of the pairs of its best {category} relation."
    return replace(_phi(about), label=f"Phi, {category}", meaning=of, sentence=sentence, part="")


def _relations(about: About) -> Column:
    relation = about.selected("relation")
    of = "the relation at which it is largest" if relation is None else relation.replace("_", " ")
    context = " in context" if about.scores.kind == "dynamic_relations" else ""
    by = "from its output" if context else "by its weights"
    return Column(
        "Relation",
        "share of pairs",
        f"The share of the pairs of {of} whose target the head gives{context}, {by}.",
        BY_WEIGHTS if not context else IN_TASKS,
        sentence=f"It gives the target of {{value}} of the pairs of {of}{context}, {by}.",
        rule=among_first,
        texts=_AMONG,
        change=_WEIGHTS_CHANGE if not context else _OTHER,
        method=(
            "Relations",
            "The share of a relation's pairs whose target is among the strongest outputs of the head.",
        ),
    )


def _when(ablation: str) -> str:
    known = {
        "undifferentiated": "the head attends to all tokens alike",
        "scaling": "the head writes almost nothing",
    }
    return known.get(ablation, f"ablation: {ablation}")


def _ships(about: About) -> Column:
    ablation = str(about.of("ablation", "unknown"))
    request = "a harmful request" if about.asked.get("requests") == "harmful requests" else "a request"
    return Column(
        f"Ships, {ablation}",
        "nats",
        f"The change of the next token's distribution after {request} if {_when(ablation)}.",
        IN_REFUSALS,
        sentence=f"Without it, the next token's distribution after {request} moves by {{value}} nats.",
        rule=among_first,
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
        method=_SHIPS_METHOD,
        cautions=(
            "Ships measures any change of the answer, not a change in refusing: a model that refuses nothing has heads "
            "with large Ships too.",
        ),
        part=f"ships {ablation}",
    )


def generalized_ships(about: About) -> Column:
    """The angle that safety heads have besides Ships."""
    ablation = str(about.of("ablation", "unknown"))
    return Column(
        f"Generalized Ships, {ablation}",
        "degrees",
        f"The angle by which the states of all requests together turn if {_when(ablation)}.",
        IN_REFUSALS,
        sentence="Without it, the states of all requests together turn by {value} degrees.",
        rule=among_first,
        texts=_AMONG,
        change=("Other requests.", "Another ablation, or other requests.", "More requests."),
        method=_SHIPS_METHOD,
    )


_DISAGREE = "The starts disagree."
_LONGER = "A longer fit, or more starts."
_ROLES = {
    "facilitation": (
        "The gate stays open in the fit that pulls gates shut.",
        "Its gate stays open at {value} although gates are pulled shut.",
        ("The task needs it.", "The task does not need it.", _DISAGREE),
    ),
    "interference": (
        "The gate stays shut in the fit that pulls gates open.",
        "Its gate is shut by {value} although gates are pulled open.",
        ("It hinders the task.", "It does not hinder the task.", _DISAGREE),
    ),
    "irrelevance": (
        "The gate follows the pull in both fits.",
        "Its gate follows the pull by {value}.",
        ("The task does not depend on it.", "The task depends on it.", _DISAGREE),
    ),
}


def _role(about: About) -> Column:
    role = about.scores.name.partition(",")[0]
    if role not in _ROLES or about.scores.values is None:
        return _of_one_kind(
            "Gate", "How far the gate of the head is open after the fit.", "Its gate is open by {value}."
        )(about)
    meaning, sentence, texts = _ROLES[role]
    goal = "capitals become likely" if about.asked.get("task") == "naming the capital" else "the task goes well"
    return Column(
        role.capitalize(),
        "gate",
        meaning,
        ROLES_GROUP,
        sentence=sentence,
        rule=in_every_start,
        texts=texts,
        change=(_LONGER, _LONGER, _LONGER),
        method=(
            "Roles",
            f"Every head gets a gate, and all gates are fitted together so that {goal}. Facilitation: the gate stays "
            "open in the fit that pulls gates shut. Interference: it stays shut in the fit that pulls gates open. "
            "Irrelevance: it follows the pull in both.",
        ),
        cautions=(
            "Roles come from a few short fits. The three come from the same gates, so they must correlate with each "
            "other.",
        ),
        part=role,
    )


def _profile(about: About) -> Column:
    behaviour = about.selected("behaviour") or about.scores.name
    what = NAMES.get(behaviour, behaviour)
    return Column(
        f"Attention, {what}",
        "",
        f"The share of attention, on ordinary text, that makes a head {what}.",
        ON_TEXT,
        sentence=f"On ordinary text, {{value}} of its attention is {what}.",
        rule=among_first,
        texts=_AMONG,
        change=("Other texts.", "Other texts.", "More text."),
    )


def _composition(about: About) -> Column:
    way = str(about.of("way", "")).upper() or "its"
    receiver = about.selected("receiver") or "later heads"
    return _of_one_kind(
        f"{way}-composition",
        f"How much of what {receiver} reads comes from the subspace that the head writes to, by the norms of weights.",
        f"By weights, its output meets what {receiver} reads with {{value}}.",
        BY_WEIGHTS,
    )(about)


def _of_one_kind(label: str, meaning: str, sentence: str, group: str = IN_TASKS) -> Callable[[About], Column]:
    """What is said of a kind whose words do not depend on the call."""

    def column(about: About) -> Column:
        rule = differs if is_tested(about.scores) else among_first
        texts = ("It differs from what chance gives.", "", _UNSETTLED) if rule is differs else _AMONG
        change = _WEIGHTS_CHANGE if group == BY_WEIGHTS else _OTHER
        signed = bool((about.scores.scores.values < 0).any())
        return Column(
            label, "", meaning, group, signed, sentence, rule, texts, change, method=(label, meaning), part=label
        )

    return column


def _of_unknown_kind(about: About) -> Column:
    """What is said of scores of a sweep, or of a kind of your own: which metric and intervention they come from."""
    scores = about.scores
    tested = is_tested(scores)
    if about.of("intervention") or about.of("metric"):
        meaning = _meaning(about, f" if {about.change}" if about.of("intervention") else "")
    else:
        meaning = f"Scores of the kind {short(scores.kind)}."
    said = f"If {about.change}, {_what_changes(about)}" if about.of("intervention") else "Its score is {value} {unit}."
    null = null_of(scores) or 0.0
    texts = (f"It differs from {null:g}.", f"It is next to {null:g}.", _UNSETTLED) if tested else _AMONG
    signed = bool(np.nanmin(scores.scores.values, initial=0.0) < 0)
    name = short(scores.name)
    return Column(
        name, "", meaning, IN_TASKS, signed, said, _rule(about), texts, _OTHER, method=(name, meaning), part=name
    )


_KINDS: dict[str, Callable[[About], Column]] = {
    "activation_patch": _patching,
    "path_patch": _path,
    "path_matrix": _path,
    "attribution": _attribution,
    "edge_nodes": _of_one_kind(
        "Size of outgoing edges",
        "The sum of the absolute scores of the edges that leave the head.",
        "Its outgoing edges have scores of {value} {unit} together.",
    ),
    "mib": _of_one_kind(
        "Importance", "The importance of the head in a file of the MIB benchmark.", "Its importance is {value}."
    ),
    "learned_ranking": _of_one_kind(
        "Learned ranking",
        "The logit of the head's gate; the order of heads is what was learned.",
        "The logit of its gate is {value}.",
    ),
    "ablate": _ablation,
    "profile": _profile,
    "copying": _of_one_kind(
        "Copying by weights",
        "Whether the head raises the tokens that it attends to, by its weights: 1 copies, -1 suppresses.",
        "By its weights it copies by {value}: 1 copies all that it attends to, -1 suppresses it.",
        BY_WEIGHTS,
    ),
    "composition": _composition,
    "logit_attribution": _direct,
    "function_vector": _of_one_kind(
        "Function vector",
        "The change of the metric if the head's output in prompts with shuffled labels is replaced with its mean over "
        "worked examples.",
        "Its mean output over worked examples changes the metric by {value} {unit}.",
    ),
    "successor": _of_one_kind(
        "Successor",
        "The share of members of ordered sequences that the head maps to the next one, by its weights.",
        "By its weights it maps {value} of the members of sequences to the next.",
        BY_WEIGHTS,
    ),
    "retrieval": _of_one_kind(
        "Retrieval",
        "The share of a needle's tokens that the head attends to most while they are copied from a long text.",
        "It attends most to {value} of the needle's tokens as they are copied.",
    ),
    "copy_suppression": _of_one_kind(
        "Copy suppression",
        "What the head adds to the logit of a token that is predicted already, by attending to it.",
        "It changes the logit of the predicted token that it attends to by {value}.",
        ON_TEXT,
    ),
    "self_repair": _repair,
    "relations": _relations,
    "dynamic_relations": _relations,
    "labels": _labels,
    "ships": _ships,
    "generalized_ships": generalized_ships,
    "safety": _ships,
    "sahara": _of_one_kind(
        "Sahara",
        "How far the answers to requests move if this head is ablated beside those that were chosen before.",
        "Beside the heads that were chosen before, it moves the answers by {value} {unit}.",
        IN_REFUSALS,
    ),
    "refusal_contribution": _of_one_kind(
        "Refusal Contribution",
        "How far the head raises the beginning of a refusal; above 0, it makes the model refuse.",
        "It raises the beginning of a refusal by {value} nats.",
        IN_REFUSALS,
    ),
    "refusal_attribution": _of_one_kind(
        "Refusal attribution",
        "An estimate, from gradients, of how far refusals depend on the head; above 0, they do.",
        "By its gradient, refusals depend on it by {value} nats.",
        IN_REFUSALS,
    ),
    "refusal_direction": _of_one_kind(
        "Refusal direction",
        "What the head writes along the refusal direction for a request, minus that for a harmless look-alike.",
        "For requests it writes {value} more along the refusal direction than for harmless look-alikes.",
        IN_REFUSALS,
    ),
    "gates": _role,
    "roles": _role,
}
