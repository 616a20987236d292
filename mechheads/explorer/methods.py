"""How each analysis of an atlas measures, and what may not be concluded from it: the end of the page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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
    said = [text for needs, text in _CAUTIONS if any(column.startswith(needs) for column in columns)]
    return [*said, *_ALWAYS]
