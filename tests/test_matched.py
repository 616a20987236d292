"""Random heads to compare with: the laws they keep."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from mechheads.heads import HeadId, matched_heads

LAYERS, HEADS = 4, 5
EVERY = [HeadId(layer, head) for layer in range(LAYERS) for head in range(HEADS)]


def of_layers(heads: tuple[HeadId, ...] | list[HeadId]) -> Counter[int]:
    return Counter(head.layer for head in heads)


@given(st.lists(st.sampled_from(EVERY), unique=True, max_size=10), st.integers(0, 1000))
def test_as_many_others_of_the_same_layers(heads: list[HeadId], seed: int):
    drawn = matched_heads(heads, heads, LAYERS, HEADS, [seed])
    assert len(drawn) == len(set(drawn)) == len(heads)
    assert not set(drawn) & set(heads)
    assert set(drawn) <= set(EVERY)
    assert drawn == matched_heads(heads, heads, LAYERS, HEADS, [seed])
    asked, free = of_layers(heads), of_layers([head for head in EVERY if head not in heads])
    got = of_layers(drawn)
    for layer in range(LAYERS):
        assert got[layer] >= min(asked[layer], free[layer])
    if all(asked[layer] <= free[layer] for layer in range(LAYERS)):
        assert [head.layer for head in drawn] == [head.layer for head in heads]  # each stands for the one at its place


def test_where_a_layer_has_too_few_the_nearest_stands_in():
    whole = [HeadId(1, head) for head in range(HEADS)]
    drawn = matched_heads(whole[:4], whole, LAYERS, HEADS, [0])
    assert {head.layer for head in drawn} <= {0, 2}
    far = matched_heads([HeadId(3, 0)], [*EVERY[5:], HeadId(0, 1)], LAYERS, HEADS, [0])
    assert far[0].layer == 0
    heads = [HeadId(1, head) for head in range(4)]  # one is left in its layer, and that one is taken
    assert HeadId(1, 4) in matched_heads(heads, heads, LAYERS, HEADS, [0])


def test_every_free_head_of_a_layer_is_as_likely():
    drawn = Counter(matched_heads([HeadId(2, 1)], [HeadId(2, 1)], LAYERS, HEADS, [7, i])[0] for i in range(2000))
    assert set(drawn) == {HeadId(2, head) for head in (0, 2, 3, 4)}
    assert all(400 < count < 600 for count in drawn.values())


def test_too_few_others_are_an_error():
    assert len(matched_heads(EVERY[:10], EVERY[:10], LAYERS, HEADS, [0])) == 10
    with pytest.raises(ValueError, match="11 heads need as many random heads to compare with; only 9 are left"):
        matched_heads(EVERY[:11], EVERY[:11], LAYERS, HEADS, [0])
    assert matched_heads([], [], LAYERS, HEADS, [0]) == ()
