"""Successor scores against full matrices, their null against all shuffles, and planted heads."""

from __future__ import annotations

import math
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.behaviour import successor_scores
from mechheads.labels.readings import Readings
from support.blank import Blank
from support.levels import ONE_FIRST

ARCHITECTURES = ONE_FIRST

SEQUENCES = {
    "places": ["France", "Italy", "Nowhere", "Spain", "Germany", "Paris"],
    "words": ["one", "two", "three", "yes", "no"],
    "short": ["dog", "cat"],
}
PAIRS = {"places": [(0, 1), (2, 3), (3, 4)], "words": [(0, 1), (1, 2), (2, 3), (3, 4)]}
"""Places in the members that are one token."""
QUICK: dict[str, Any] = {"min_members": 3, "draws": 2000}


def tokens(model: mh.Model, name: str) -> list[int]:
    ids = [model.tokenizer(f" {word}", add_special_tokens=False).input_ids for word in SEQUENCES[name]]
    return [each[0] for each in ids if len(each) == 1]


def entries(model: mh.Model, ids: list[int], layer: int, head: int) -> dict[str, np.ndarray]:
    """Rows of M between some tokens, for each reading."""
    out = (model.W_O[layer][head] * model.attention_out_scale(layer) * model.final_scale()).double()
    values = Readings(model, torch.tensor(ids), "all", "folded").at(layer)
    return {name: (each[head].double() @ out @ model.W_U[:, ids].double()).numpy() for name, each in values.items()}


def test_scores_are_those_of_full_matrices(small: mh.Model) -> None:
    found = successor_scores(small, SEQUENCES, **QUICK)
    assert found.dataset["sequence"].values.tolist() == ["places", "words"]
    assert found.dataset["pair"].values.tolist() == [
        *("France -> Italy", "Spain -> Germany", "Germany -> Paris"),
        *("one -> two", "two -> three", "three -> yes", "yes -> no"),
    ]
    for layer, head in np.ndindex(small.n_layers, small.n_heads):
        hits: dict[str, list[bool]] = {}
        for name, pairs in PAIRS.items():
            for reading, table in entries(small, tokens(small, name), layer, head).items():
                hits.setdefault(reading, []).extend(int(table[a].argmax()) == b for a, b in pairs)
        best = max(sum(each) for each in hits.values())
        assert found[layer, head]["score"] == pytest.approx(best / 7)
        reading = str(found.dataset["reading"].values[layer, head])
        assert sum(hits[reading]) == best
        assert found.dataset["values"].values[layer, head].tolist() == hits[reading]
        by_sequence = found.dataset["by_sequence"].values[layer, head]
        assert by_sequence.tolist() == pytest.approx([np.mean(hits[reading][:3]), np.mean(hits[reading][3:])])


def test_p_is_the_share_of_shuffles_with_as_many_hits(llama: mh.Model) -> None:
    found = successor_scores(llama, SEQUENCES, **QUICK)
    orders = list(product(permutations(range(3)), permutations(range(4))))
    for layer, head in np.ndindex(llama.n_layers, llama.n_heads):
        totals = np.zeros(len(orders))
        for_reading: dict[str, np.ndarray] = {}
        for at, (name, pairs) in enumerate(PAIRS.items()):
            for reading, table in entries(llama, tokens(llama, name), layer, head).items():
                largest = [int(table[a].argmax()) for a, _ in pairs]
                each = [sum(largest[i] == pairs[j][1] for i, j in enumerate(order[at])) for order in orders]
                for_reading[reading] = for_reading.get(reading, totals) + np.array(each)
        totals = np.max(list(for_reading.values()), axis=0)
        seen = round(7 * found[layer, head]["score"])
        assert found[layer, head]["p_value"] == pytest.approx((totals >= seen).mean(), abs=0.05)
        assert found.dataset["null"].values[layer, head] == pytest.approx(totals.mean() / 7, abs=0.02)


COUNT = ["one", "two", "three", "yes", "no", "dog", "cat"]


@torch.no_grad()
def planted() -> Blank:
    """The words lie on a circle. L0H0 turns them by one step, L0H1 back by one, L0H2 not at all."""
    blank = Blank()
    angle = 2 * math.pi / len(COUNT)
    for i, word in enumerate(COUNT):
        point = torch.tensor([math.cos(i * angle), math.sin(i * angle)])
        blank.embedding[blank.token(f" {word}"), :2] = point
        blank.unembedding[blank.token(f" {word}"), 2:4] = point
    attention = blank.attention[0]
    for stored in (0, 1):
        attention.v_proj.weight[4 * stored : 4 * stored + 2, :2] = torch.eye(2)
    for head, step in ((0, 1), (1, -1), (2, 0)):
        c, s = math.cos(step * angle), math.sin(step * angle)
        attention.o_proj.weight[2:4, 4 * head : 4 * head + 2] = torch.tensor([[c, -s], [s, c]])
    return blank


def test_a_planted_successor_head_is_told_from_one_that_goes_back_and_one_that_copies(tmp_path: Path) -> None:
    model = planted().load(tmp_path / "planted")
    for source in ("all", "embedding"):
        found = successor_scores(model, {"count": COUNT}, source=source)
        assert found.scores.values.tolist() == [[1, 0, 0, 0], [0, 0, 0, 0]]
        assert found.dataset["predecessor"].values[0].tolist() == pytest.approx([0, 5 / 6, 0, 0])
        assert found.dataset["itself"].values[0].tolist() == pytest.approx([0, 0, 1, 0])
        assert found["L0H0"]["q_value"] < 0.05 and found["L0H1"]["p_value"] == 1
        assert found.dataset["contrast"].values[0, 0] > 1 > found.dataset["contrast"].values[0, 1]
    on_disk = successor_scores(mh.load(tmp_path / "planted", max_memory="least"), {"count": COUNT}, source="embedding")
    assert (on_disk.scores.values == found.scores.values).all()
