"""What the heads with the largest patching effect do directly, through each other, and what later layers undo."""

from __future__ import annotations

from mechheads.behaviour import logit_attribution
from mechheads.heads import HeadId
from mechheads.messages.interrupted import stop_if
from mechheads.model.model import Model
from mechheads.patching.path import path_matrix
from mechheads.patching.self_repair import self_repair
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.scores import HeadScores

REPAIRED = 12
"""Heads whose total and direct effects are measured."""
SENDERS = 8
RECEIVERS = 3
PAIRS = 4
"""How many pairs of prompts paths are patched on."""
PATCHED = 0.5
"""The time of all this, in times of the patching of every head."""


def strongest(patching: HeadScores, n: int) -> list[HeadId]:
    """The heads with the largest absolute effect."""
    table = patching.to_dataframe().dropna(subset="score")
    best = table.assign(size=table["score"].abs()).nlargest(n, "size")
    return [HeadId(layer, head) for layer, head in best[["layer", "head"]].to_numpy(int).tolist()]


def direct_parts(model: Model, pairs: PromptPairs) -> HeadScores:
    """What each head itself adds to the logit difference of the clean prompts.

    Raises:
        ValueError: if the architecture does not allow it.
    """
    found = logit_attribution(model, pairs)
    stop_if(bool(found.provenance.get("interrupted")))
    return found


def repairs(model: Model, pairs: PromptPairs, patching: HeadScores) -> HeadScores:
    """Total and direct effect of the strongest heads, and the reaction of later layers."""
    found = self_repair(model, pairs, heads=strongest(patching, REPAIRED))
    stop_if(bool(found.provenance.get("interrupted")))
    return found


def paths_between(model: Model, pairs: PromptPairs, patching: HeadScores) -> HeadScores:
    """Paths from the strongest heads to the logits, and to q, k and v of the strongest that come after one of them.

    Raises:
        ValueError: if the architecture does not allow it.
    """
    senders = strongest(patching, SENDERS)
    first = min(head.layer for head in senders)
    later = [head for head in senders if head.layer > first][:RECEIVERS]
    receivers = ["final", *(f"{head}.{way}" for head in later for way in "qkv")]
    found = path_matrix(model, pairs, receivers=receivers, senders=senders)
    stop_if(bool(found.provenance.get("interrupted")))
    return found
