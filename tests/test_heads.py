"""Names of heads: what is printed can be read, what does not exist is refused."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mechheads.heads import HeadId, check_head, check_heads, kv_head, parse_heads
from mechheads.results.scores import HeadScores

counts = st.integers(0, 10**6)
heads = st.builds(HeadId, counts, counts)


@given(heads)
def test_parses_what_it_prints(head):
    assert HeadId.parse(str(head)) == head
    assert HeadId.parse(f"  {str(head).lower()} ") == head
    assert HeadId.parse((head.layer, head.head)) == head
    assert HeadId.parse(head) is head
    assert eval(repr(head), {"HeadId": HeadId}) == head


@given(heads, heads)
def test_order_is_by_layer_then_head(a, b):
    assert (a < b) == ((a.layer, a.head) < (b.layer, b.head))
    assert (a == b) == (str(a) == str(b))
    assert (hash(a) == hash(b)) or a != b


NO_HEADS = ["", "L1", "H2", "1.2", "L1H", "LH2", "L-1H2", "L1H2 L3H4", "L1H2.q", "L1.5H2", "xL1H2"]
NO_HEADS += [7, None, (1,), (1, 2, 3), [1, 2], (1.5, 2), ("1", "2"), ((0, 1), (1, 2))]


@pytest.mark.parametrize("thing", NO_HEADS)
def test_what_is_no_head_is_refused(thing):
    with pytest.raises(ValueError, match=r'is not a head; write "L9H6", \(9, 6\) or HeadId\(9, 6\)'):
        HeadId.parse(thing)


@pytest.mark.parametrize("pair", [(-1, 0), (0, -1)])
def test_heads_count_from_zero(pair):
    with pytest.raises(ValueError, match="layer and head count from 0"):
        HeadId.parse(pair)


@given(st.integers(1, 8), st.integers(1, 8), st.integers(0, 9), st.integers(0, 9))
def test_a_head_is_in_the_model_or_an_error(n_layers, n_heads, layer, head):
    if layer < n_layers and head < n_heads:
        assert check_head((layer, head), n_layers, n_heads) == HeadId(layer, head)
    else:
        message = (
            f"head L{layer}H{head} is out of range: this model has layers 0..{n_layers - 1} with heads 0..{n_heads - 1}"
        )
        if head < n_layers and layer < n_heads:
            message += f'. Did you mean "L{head}H{layer}"?'
        with pytest.raises(ValueError) as caught:
            check_head((layer, head), n_layers, n_heads)
        assert str(caught.value) == message


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 3)), min_size=1))
def test_heads_come_sorted_and_once(pairs):
    mixed = [f"L{layer}H{head}" if index % 2 else (layer, head) for index, (layer, head) in enumerate(pairs)]
    assert check_heads(mixed, 3, 4) == tuple(HeadId(*pair) for pair in sorted(set(pairs)))


@pytest.mark.parametrize("one", ["L1H2", (1, 2), HeadId(1, 2)])
def test_one_head_alone_is_a_list_of_one_and_a_tuple_of_two_heads_is_two_heads(one):
    assert check_heads(one, 2, 3) == (HeadId(1, 2),)
    for two in (((0, 1), one), ("L0H1", one)):
        assert check_heads(two, 2, 3) == (HeadId(0, 1), HeadId(1, 2))


def test_a_result_stands_for_its_heads_in_their_order():
    effect = HeadScores.from_scores(np.array([[0.2, np.nan, 0.7]]), name="mine", kind="mine")
    group = SimpleNamespace(heads=(HeadId(0, 2), HeadId(0, 1)))
    assert parse_heads(effect, 1, 3) == (HeadId(0, 2), HeadId(0, 0))
    assert parse_heads(group, 1, 3) == (HeadId(0, 2), HeadId(0, 1))
    with pytest.raises(ValueError, match="head L0H2 is out of range"):
        check_heads(effect, 1, 2)


@pytest.mark.parametrize(
    ("n_heads", "n_kv_heads", "wanted"),
    [(9, 3, [0, 0, 0, 1, 1, 1, 2, 2, 2]), (4, 2, [0, 0, 1, 1]), (4, 4, [0, 1, 2, 3]), (4, 1, [0, 0, 0, 0])],
)
def test_query_heads_share_key_value_heads_in_neighbouring_groups(n_heads, n_kv_heads, wanted):
    assert [kv_head(head, n_heads, n_kv_heads) for head in range(n_heads)] == wanted
