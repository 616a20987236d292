"""Two panes of a head's card: its weights, and the heads that it reads from and writes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from mechheads.explorer.encode import plain
from mechheads.heads import HeadId
from mechheads.labels import HeadLabels
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_weights import CIRCUITS, HeadWeights

COPYING = (
    "Whether the head raises the tokens that it attends to, by the eigenvalues of its weights: 1 copies all, -1 "
    "suppresses all."
)
PATHS = (
    "The change of the logit difference if only the path from the sender to the receiver comes from the corrupted run."
)
_LISTED = 6


def weights_pane(atlas: Atlas, head: HeadId) -> dict[str, Any] | None:
    """What a head does by its weights; None if that was not read."""
    weights, labels = atlas.weights, atlas.labels
    if weights is None and labels is None:
        return None
    circuits = [None, None] if weights is None else [_spectrum(weights, i, head) for i in range(len(CIRCUITS))]
    return {
        "ov": circuits[0],
        "qk": circuits[1],
        "copying": None if weights is None else _copying(weights.copying, head),
        "relations": [] if labels is None else _relations(labels, atlas.relations, head),
        "operations": None if weights is None else _operations(weights, head),
    }


def paths_pane(atlas: Atlas, head: HeadId, composed: Mapping[str, list[Any]] | None) -> dict[str, Any] | None:
    """The heads that a head reads from and writes to, by weights and by path patching; None if neither was done."""
    if composed is None and atlas.paths is None:
        return None
    senders, receivers = ([], []) if atlas.paths is None else _paths(atlas.paths, head)
    return {
        "composition": [] if composed is None else composed.get(str(head), []),
        "senders": senders,
        "receivers": receivers,
        "unit": "" if atlas.paths is None else atlas.paths.unit,
        "meaning": PATHS,
    }


def _spectrum(weights: HeadWeights, circuit: int, head: HeadId) -> dict[str, Any]:
    singular = weights.singular[circuit, head.layer, head.head]
    total = float((singular**2).sum()) or 1.0
    directions = []
    for i, ends in enumerate(weights.directions[circuit, head.layer, head.head]):
        reads, writes, reads_negative, writes_negative = ([weights.words[at] for at in end] for end in ends)
        directions.append(
            {
                "singular": float(singular[i]),
                "share": float(singular[i] ** 2) / total,
                "positive": {"reads": reads, "writes": writes},
                "negative": {"reads": reads_negative, "writes": writes_negative},
            }
        )
    return {"singular": [float(f"{value:.4g}") for value in singular], "directions": directions}


def _copying(copying: HeadScores, head: HeadId) -> dict[str, Any]:
    data, at = copying.dataset.variables, (head.layer, head.head)
    numbers = {key: data[name].values[at] for key, name in (("value", "score"), ("q", "q_value"), ("null", "null"))}
    return plain(numbers) | {"meaning": COPYING}


def _relations(labels: HeadLabels, relations: HeadScores | None, head: HeadId) -> list[dict[str, Any]]:
    """The relations with most evidence of a head, and all that are evidence for a label."""
    data, at = labels.dataset.variables, (head.layer, head.head)
    names = {"phi": "phi", "low": "phi_low", "high": "phi_high", "q": "q", "null": "null_phi"}
    columns = {key: data[name].values[at] for key, name in names.items() if name in data}
    evidence, below = data["is_evidence"].values[at], data["is_below_floor"].values[at]
    reading = data["relation_reading"].values[at] if "relation_reading" in data else None
    order = np.argsort(-np.nan_to_num(data["phi"].values[at], nan=-1.0), kind="stable")
    found = []
    for rank, i in enumerate(order.tolist()):
        if rank >= _LISTED and not evidence[i]:
            continue
        found.append(
            {
                "relation": str(data["relation"].values[i]),
                "category": str(data["category_of"].values[i]),
                **dict.fromkeys(names),
                **plain({key: column[i] for key, column in columns.items()}),
                "reading": "" if reading is None else str(reading[i]),
                "evidence": bool(evidence[i]),
                "below": bool(below[i]),
                "pairs": _pairs(relations, head, i) if evidence[i] and relations is not None else None,
            }
        )
    return found


def _pairs(relations: HeadScores, head: HeadId, relation: int) -> list[dict[str, Any]] | None:
    """The pairs of a relation, and whether the head hits them."""
    if relations.values is None or "pair" not in relations.dataset:
        return None
    hits = relations.values.values[head.layer, head.head, relation]
    pairs = relations.dataset.variables["pair"].values[relation]
    found = []
    for pair, hit in zip(pairs, hits, strict=True):
        if np.isfinite(hit):
            source, _, target = str(pair).partition(" -> ")
            found.append({"source": source, "target": target, "hit": bool(hit)})
    return found


def _operations(weights: HeadWeights, head: HeadId) -> list[dict[str, Any]]:
    at = head.layer, head.head
    found = []
    for ids, sigma in zip(weights.operations[at], weights.sigma[at], strict=True):
        token, *others = (weights.words[i] for i in ids)
        half = len(others) // 2
        found.append({"token": token, "sigma": float(sigma), "mapsTo": others[:half], "suppresses": others[half:]})
    return found


def compositions(table: pd.DataFrame) -> dict[str, list[dict[str, Any]]]:
    """For every head and each way of reading, the senders and receivers that stand out most by weights.

    Args:
        table: one row for each pair of heads: sender, receiver, way, score, z and p.
    """
    columns = ["sender", "receiver", "way", "score", "z", "p"]
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for side, mine, other in (("senders", "receiver", "sender"), ("receivers", "sender", "receiver")):
        in_order = pd.DataFrame(table[columns]).sort_values("z", ascending=False, kind="stable")
        for row in in_order.groupby(["way", mine], sort=False).head(_LISTED).to_dict("records"):
            sides = found.setdefault((row["way"], row[mine]), {"senders": [], "receivers": []})
            sides[side].append(plain({"head": row[other], "score": row["score"], "z": row["z"], "p": row["p"]}))
    by_head: dict[str, list[dict[str, Any]]] = {}
    for (way, head), sides in sorted(found.items(), key=lambda item: "QKV".index(item[0][0])):
        by_head.setdefault(head, []).append({"way": way, **sides})
    return by_head


def _paths(paths: HeadScores, head: HeadId) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The paths that end and that begin at a head, the largest effects first."""
    data = paths.dataset.variables
    names = {"score": "score", "low": "ci_low", "high": "ci_high", "q": "q_value"}
    senders, receivers = [], []
    for i, name in enumerate(data["receiver"].values.tolist()):
        other, _, way = name.partition(".")
        if other == str(head):
            for layer, sender in np.argwhere(np.isfinite(data["score"].values[..., i])).tolist():
                numbers = plain({key: data[each].values[layer, sender, i] for key, each in names.items()})
                if layer < head.layer:
                    senders.append({"head": str(HeadId(layer, sender)), "way": way, **numbers})
        elif np.isfinite(data["score"].values[head.layer, head.head, i]) and _comes_later(name, head):
            numbers = plain({key: data[each].values[head.layer, head.head, i] for key, each in names.items()})
            receivers.append({"head": other if way else None, "way": way or "final", **numbers})
    for found in (senders, receivers):
        found.sort(key=lambda each: -abs(each["score"]))
    return senders, receivers


def _comes_later(receiver: str, head: HeadId) -> bool:
    name, _, way = receiver.partition(".")
    return not way or HeadId.parse(name).layer > head.layer
