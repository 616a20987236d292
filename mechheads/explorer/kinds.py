"""What the page says of scores, by their kind: each kind in ``mechheads.results.kinds`` has its words here.

What depends on the call comes from the provenance of the scores: the metric, the site, which run was changed, by what.
A kind of your own gets words from its name, its unit, its metric and its intervention.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from mechheads.behaviour.head_profile import NAMES
from mechheads.explorer.about import About, of_package
from mechheads.explorer.column import (
    BY_WEIGHTS,
    IN_REFUSALS,
    IN_TASKS,
    ON_TEXT,
    ROLES_GROUP,
    Column,
    among_first,
    differs,
    in_every_start,
    is_tested,
    labelled,
)
from mechheads.explorer.on_prompts import (
    AMONG,
    FURTHEST,
    OTHER,
    UNSETTLED,
    ablation,
    attribution,
    direct,
    meaning_of,
    patching,
    path,
    repair,
    rule_for,
    what_changes,
)
from mechheads.studies.findings import FIRST, null_of, shortened

_WEIGHTS_CHANGE = ("Other weights only.", "Other weights only.", "Other weights only.")


def column_for(about: About) -> Column:
    """What the page says of scores, by their kind."""
    scores = about.scores
    made = _KINDS.get(scores.kind.partition("+")[0], _of_unknown_kind)(about)
    if made.rule is among_first:
        signed = bool((scores.scores.values < 0).any())
        made = replace(made, signed=signed, texts=FURTHEST if signed and made.texts is AMONG else made.texts)
    unit = made.unit or scores.unit
    return replace(made, unit=unit, sentence=made.sentence if unit else made.sentence.replace(" {unit}", ""))


def known_kinds() -> list[str]:
    """The kinds that have words here."""
    return list(_KINDS)


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
        texts=AMONG,
        change=_WEIGHTS_CHANGE if not context else OTHER,
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


def _safety(about: About) -> Column:
    """Safety heads, by the score that found them."""
    return _KINDS.get(str(about.of("score")), _ships)(about)


def _ships(about: About) -> Column:
    ablation = str(about.of("ablation", "unknown"))
    request = "a harmful request" if of_package(about.asked, "requests") else "a request"
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
        texts=AMONG,
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
    goal = "capitals become likely" if of_package(about.asked, "task") else "the task goes well"
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
        texts=AMONG,
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
        texts = ("It differs from what chance gives.", "", UNSETTLED) if rule is differs else AMONG
        change = _WEIGHTS_CHANGE if group == BY_WEIGHTS else OTHER
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
        meaning = meaning_of(about, f" if {about.change}" if about.of("intervention") else "")
    else:
        meaning = f"Scores of the kind {shortened(scores.kind)}."
    said = f"If {about.change}, {what_changes(about)}" if about.of("intervention") else "Its score is {value} {unit}."
    null = null_of(scores) or 0.0
    texts = (f"It differs from {null:g}.", f"It is next to {null:g}.", UNSETTLED) if tested else AMONG
    signed = bool(np.nanmin(scores.scores.values, initial=0.0) < 0)
    name = shortened(scores.name)
    return Column(
        name, "", meaning, IN_TASKS, signed, said, rule_for(about), texts, OTHER, method=(name, meaning), part=name
    )


_KINDS: dict[str, Callable[[About], Column]] = {
    "activation_patch": patching,
    "path_patch": path,
    "path_matrix": path,
    "attribution": attribution,
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
    "ablate": ablation,
    "profile": _profile,
    "copying": _of_one_kind(
        "Copying by weights",
        "Whether the head raises the tokens that it attends to, by its weights: 1 copies, \u22121 suppresses.",
        "By its weights it copies by {value}: 100% copies all that it attends to, \u2212100% suppresses it.",
        BY_WEIGHTS,
    ),
    "composition": _composition,
    "logit_attribution": direct,
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
    "self_repair": repair,
    "relations": _relations,
    "dynamic_relations": _relations,
    "labels": _labels,
    "ships": _ships,
    "generalized_ships": generalized_ships,
    "safety": _safety,
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
