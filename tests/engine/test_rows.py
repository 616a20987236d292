"""Prompts that share rows: the same numbers as one full forward each, and fewer tokens computed."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

import mechheads as mh
from mechheads.engine import job as jobs
from mechheads.engine.rows import Packed, Packing, Window, shared_start
from mechheads.patching import UniformAttention
from support import oracles
from support.levels import few, on_two

ARCHITECTURES = few(("llama", "gpt2", "neox", "gemma", "qwen"), "llama")

BEGINNING = " When John and Mary went to the store John gave a book to"
ENDS = [" Mary and one", " France", " the big dog and the small cat is one two three", " Paris Rome"]
PROMPTS = [BEGINNING + end for end in ENDS]


def ids(*rows: list[int]) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])


def test_a_row_holds_what_prompts_share_once():
    at = torch.tensor([[4], [5]])
    packed = Packed.of(1, 3, at)
    assert packed.prompt.tolist() == [0, 0, 0, 0, 1, 1, 1]
    assert packed.position.tolist() == [1, 2, 3, 4, 3, 4, 5]
    assert packed.inside.tolist() == [[3, 6]]
    values = torch.arange(12.0).view(2, 6)
    assert packed.take(values).tolist() == [[1, 2, 3, 4, 9, 10, 11]]


def test_each_prompt_sees_the_shared_beginning_and_itself():
    packed = Packed.of(1, 3, torch.tensor([[3], [4]]))
    past, own = packed.seen(torch.ones(5, 5, dtype=torch.bool).tril())
    assert past.tolist() == [[[True]] * 5]
    assert own[0].long().tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 1, 0, 1, 0],
        [1, 1, 0, 1, 1],
    ]
    past, own = packed.seen(torch.ones(5, 5, dtype=torch.bool).tril().triu(-1))
    assert past[0, :, 0].tolist() == [True, False, False, False, False]
    assert own[0, 4].tolist() == [False, False, False, True, True]


def test_a_position_that_is_read_may_lie_in_the_shared_beginning():
    packed = Packed.of(0, 4, torch.tensor([[1, 5], [2, 4]]))
    assert packed.inside.tolist() == [[1, 5, 2, 6]]
    assert packed.position[packed.inside[0]].tolist() == [1, 5, 2, 4]
    assert packed.prompt[packed.inside[0, [1, 3]]].tolist() == [0, 1]


def test_a_prompt_that_another_begins_with_keeps_its_last_token_to_itself():
    packed = Packed.of(0, 3, torch.tensor([[2], [4]]))
    assert packed.shared == 2
    assert (packed.prompt.tolist(), packed.position.tolist()) == ([0, 0, 0, 1, 1, 1], [0, 1, 2, 2, 3, 4])


def test_what_is_shared_ends_where_any_prompt_differs():
    rows = ids([1, 2, 3, 4], [1, 2, 5, 4], [1, 2, 3, 4])
    assert shared_start(rows) == 2
    z = torch.zeros(3, 4, 2)
    z[1, 1, 0], z[2, 0, 1] = 1, 1e-9
    assert shared_start(z, 1e-8) == 1 and shared_start(z) == 0


def test_a_window_sees_the_past_of_its_own_start_and_no_token_ahead():
    start, at = torch.tensor([1, 3, 2]), torch.tensor([[4, 5], [3, 4], [2, 7]])
    window = Window.from_start(start, at, "queries", 8)
    assert (window.width, window.n_past) == (6, 3)
    visible = torch.ones(8, 8, dtype=torch.bool).tril().triu(-4)
    past, own = window.seen(visible)
    for row, positions in enumerate(window.positions.tolist()):
        assert positions == [min(int(start[row]) + i, int(at[row].max())) for i in range(6)]
        assert [positions[i] for i in window.inside[row].tolist()] == at[row].tolist()
        for i, here in enumerate(positions):
            wanted = [k for k in range(3) if k < start[row] and visible[here, k]]
            assert past[row, i].nonzero()[:, 0].tolist() == wanted
            assert own[row, i].nonzero()[:, 0].tolist() == [j for j in range(i + 1) if visible[here, positions[j]]]


def test_packing_counts_each_token_once():
    rows = ids([9, 9, 9, 1, 1], [9, 9, 9, 2], [9, 9, 9, 3, 3, 3])
    window = Window(torch.zeros(3, dtype=torch.long), 6, torch.tensor([[4], [3], [5]]), "queries")
    assert Packing.find(rows, window) == Packing(((0, 1, 2),), 9, 9)


def test_those_that_begin_alike_share_a_row_wherever_they_stand():
    long, other = list(range(20, 80)), list(range(120, 180))
    rows = ids([*long, 1], [*other, 1], [*long, 2, 3], [5, 6], [*other, 2])
    last = torch.tensor([[60], [60], [61], [1], [60]])
    found = Packing.find(rows, Window(torch.zeros(5, dtype=torch.long), 62, last, "queries"))
    assert found is not None and {frozenset(group) for group in found.groups if len(group) > 1} >= {frozenset({1, 4})}
    assert sorted(sum(found.groups, ())) == [0, 1, 2, 3, 4]
    assert found.tokens == 63 + 62 + 2


def test_prompts_alike_in_length_alone_are_not_packed():
    rows = ids([1, 2, 3], [4, 5, 6])
    assert Packing.find(rows, Window(torch.zeros(2, dtype=torch.long), 3, torch.tensor([[2], [2]]), "queries")) is None


def scores(model: mh.Model, intervention: mh.Intervention, packed: bool, monkeypatch, **options) -> torch.Tensor:
    with monkeypatch.context() as patch:
        if not packed:
            patch.setattr(jobs.Packing, "find", lambda *_: None)
        planned = mh.plan(model, PROMPTS, intervention=intervention)
        assert planned.packed == (packed and model.backend.layout == "queries")
        found = mh.sweep(model, PROMPTS, intervention=intervention, metric=mh.kl_divergence, **options)
    return torch.from_numpy(found.values.values)


@pytest.mark.parametrize(
    "intervention",
    [
        mh.patching.Scale(1e-4),
        mh.Zero(),
        mh.Mean(),
        mh.patching.Resample(1),
        UniformAttention(0.5),
        UniformAttention(1e-4, "k"),
    ],
    ids=repr,
)
def test_the_same_as_a_row_for_each_prompt(small, intervention, monkeypatch):
    one, other = (scores(small, intervention, packed, monkeypatch) for packed in (True, False))
    assert other.abs().amax() > 1e-3
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)


@on_two
def test_the_same_as_a_full_forward_for_each_prompt(small, monkeypatch):
    found = scores(small, mh.Zero(), True, monkeypatch)
    tokens = mh.Prompts(PROMPTS).tokens(small)
    for prompt in range(len(PROMPTS)):
        row = oracles.ids_of(tokens, prompt)
        before = oracles.forward(small, row)[0]
        for layer, head in ((0, 1), (1, 2), (2, 3)):
            after = oracles.with_z(small, row, layer, head, torch.zeros(row.shape[1], small.d_head))[0]
            assert float(found[layer, head, prompt]) == pytest.approx(oracles.kl(before, after), abs=1e-5)


@dataclass(frozen=True)
class OneOfThem:
    """z of the second prompt alone changes, from a token on that all share."""

    def __call__(self, z, context):
        z[1, 3:] = -z[1, 3:]
        return z


def test_prompts_that_are_not_changed_alike_part_there(small, monkeypatch):
    one, other = (scores(small, OneOfThem(), packed, monkeypatch) for packed in (True, False))
    torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-4)
    assert one[:, :, 1].amin() > 1e-6 and one[:, :, [0, 2, 3]].amax() < 1e-6


def test_a_metric_may_read_several_tokens_of_packed_prompts(small, monkeypatch):
    @mh.metric(reads=3, unit="nats")
    def entropy(logits, context):
        p = logits.softmax(-1)
        return -(p * p.log()).sum(-1) @ torch.tensor([1.0, 2.0, 4.0])

    found = {}
    for packed in (True, False):
        with monkeypatch.context() as patch:
            if not packed:
                patch.setattr(jobs.Packing, "find", lambda *_: None)
            found[packed] = mh.sweep(small, PROMPTS, intervention=mh.Zero(), metric=entropy).values
    assert float(abs(found[True] - found[False]).max()) < 1e-4
    assert float(abs(found[False]).max()) > 1e-2


def test_a_plan_says_so(loaded):
    model = loaded("llama")
    planned = mh.plan(model, PROMPTS, intervention=mh.Zero())
    if model.backend.layout != "queries":
        assert not planned.packed and "positions computed" in repr(planned)
        return
    assert "rows of" in repr(planned) and "their shared first tokens only once" in repr(planned)
    lengths = mh.Prompts(PROMPTS).tokens(model).lengths
    shared = mh.Prompts([BEGINNING]).tokens(model).lengths[0]
    assert planned.packed and planned.width == int(shared + (lengths - shared).sum())
    assert not mh.settings(budget=100_000)(mh.plan)(model, PROMPTS, intervention=mh.Zero()).packed
