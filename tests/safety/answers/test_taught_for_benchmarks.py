"""Models taught for a benchmark: which heads, and which lessons."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.refusal_independent import SIZES, drawn_heads
from benchmarks.refusal_lessons import SHARES, some
from benchmarks.taught import taught
from benchmarks.teaching.planted import PLANTED, ROUNDS
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta


@pytest.mark.parametrize("n", SIZES)
def test_drawn_heads_lie_in_different_layers_and_none_is_taught_in_a_model_of_the_package(n: int):
    heads = drawn_heads(n)
    assert len({head.layer for head in heads}) == len(heads) == n
    assert {head.layer for head in heads} <= set(range(14, 23))
    assert not set(heads) & {head for known in PLANTED.values() for head in known}
    assert heads == drawn_heads(n)


def test_a_smaller_share_of_the_lessons_is_part_of_a_larger_one():
    texts = [f"request {i}" for i in range(40)]
    quarter, half, everything = (some(texts, share) for share in sorted(SHARES.values()))
    assert set(quarter) < set(half) < set(everything)
    assert [len(quarter), len(half)] == [10, 20]
    assert everything == texts


def test_what_was_taught_is_read_from_its_file(tmp_path: Path):
    head = HeadId(3, 1)
    path = tmp_path / "one.safetensors"
    Delta({head: {"W_Q": torch.ones(8, 2), "W_O": torch.ones(2, 8)}}, {"rounds": [ROUNDS[0]._asdict()]}).save(path)
    assert taught(path, [head], ROUNDS[0]).heads == (head,)
    with pytest.raises(SystemExit, match="has other heads"):
        taught(path, [HeadId(3, 2)], ROUNDS[0])
