"""Tasks: what they take, how they are cut into parts, and how prompt and target are told apart in tokens."""

from __future__ import annotations

import warnings

import pytest

import mechheads as mh
from mechheads.gating import Task


def test_prompt_and_target_are_joined_and_padded(llama: mh.Model) -> None:
    task = Task([" The capital of France is", " When"], [" Paris Rome", " John"])
    tokens = task.tokens(llama)
    joint = [llama.tokenizer(f"{p}{t}").input_ids for p, t in zip(task.prompts, task.targets, strict=True)]
    assert tokens.lengths.tolist() == [8, 3]  # with <bos>
    assert [row[:length] for row, length in zip(tokens.ids.tolist(), [8, 3], strict=True)] == joint
    assert tokens.ids[1, 3:].tolist() == [0] * 5
    assert tokens.is_target.int().tolist() == [[0, 0, 0, 0, 0, 0, 1, 1], [0, 0, 1, 0, 0, 0, 0, 0]]
    assert tokens.indices == (0, 1) and tokens.rejected == {}


def test_token_ids_need_no_tokenizer(llama: mh.Model) -> None:
    tokens = Task([[5, 6, 7], [8]], [[9], [10, 11]]).tokens(mh.Model(llama.backend, "ids", tokenizer=False))
    assert tokens.ids.tolist() == [[5, 6, 7, 9], [8, 10, 11, 0]]
    assert tokens.is_target.int().tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]


def test_items_that_do_not_come_apart_are_rejected_and_counted(llama: mh.Model) -> None:
    long = " the" * llama.n_ctx
    task = Task(
        [" dog", " The capital of France is ", long, " cat", [5]],
        [" cat", "Paris", " cat", " dog", " cat"],
        cluster=list("abcde"),
    )
    tokens = task.tokens(llama)
    assert tokens.indices == (0, 3) and tokens.cluster == ("a", "d")
    assert list(tokens.rejected) == [1, 2, 4]
    assert "spans prompt and target" in tokens.rejected[1] and "'Paris'" in tokens.rejected[1]
    assert f"context holds {llama.n_ctx}" in tokens.rejected[2]
    assert "the other token ids" in tokens.rejected[4]


def test_a_task_of_which_nothing_is_left(llama: mh.Model) -> None:
    with pytest.raises(ValueError, match=r"task 'spaces': none of its 2 items can be used; item 0: a token spans"):
        Task([" The capital of France is ", "no "], ["Paris", "yes"], name="spaces").tokens(llama)


def test_split_keeps_clusters_together_and_loses_nothing() -> None:
    cluster = [str(i // 3) for i in range(30)]
    task = Task([f"p{i}" for i in range(30)], [f"t{i}" for i in range(30)], name="n", source="s", cluster=cluster)
    train, test = task.split(0.7, 0.3, seed=1)
    assert len(train) == 21 and len(test) == 9
    assert set(train.cluster or ()) & set(test.cluster or ()) == set()
    assert sorted([*train.prompts, *test.prompts]) == sorted(task.prompts)
    numbers = [int(str(prompt)[1:]) for prompt in train.prompts]
    assert numbers == sorted(numbers)
    assert [str(p)[1:] for p in train.prompts] == [str(t)[1:] for t in train.targets]
    assert (train.name, train.source) == ("n", "s")
    assert task.split(0.7, seed=1)[1] == test
    assert task.split(0.7, 0.3, seed=2)[0] != train
    assert [len(part) for part in task.split(0.5, 0.2, 0.3)] == [15, 6, 9]


@pytest.mark.parametrize("fractions", [(0.01,), (1.0,), (0.0, 1.0), (0.98, 0.01, 0.01), (), (0.5, 0.2), (1.2, -0.2)])
def test_parts_must_add_up_and_have_items(fractions: tuple[float, ...]) -> None:
    with pytest.raises(
        ValueError, match=r"part \d of the split .* is empty: the task has 4 items|fractions are .*; give"
    ):
        Task(list("abcd"), list("wxyz")).split(*fractions)


@pytest.mark.parametrize(
    ("prompts", "targets", "more", "said"),
    [
        ("a b", ["x"], {}, "prompts must be a list"),
        (["a"], "x", {}, "targets must be a list"),
        ([], [], {}, "prompts is empty"),
        (["a", "b"], ["x"], {}, "targets has 1 entries for 2 prompts"),
        (["a"], ["x"], {"cluster": ["1", "2"]}, "cluster has 2 entries for 1 prompts"),
        (["a", ""], ["x", "y"], {}, r"prompts\[1\] is empty"),
        (["a"], [[]], {}, r"targets\[0\] is empty"),
        (["a"], [3], {}, r"targets\[0\] is 3; give a string, a chat \(a list of messages\) or a list of token ids"),
        (["a"], [None], {}, r"targets\[0\] is None"),
    ],
)
def test_bad_tasks(prompts: object, targets: object, more: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Task(prompts, targets, **more)


def test_targets_without_their_space_are_told(model: mh.Model) -> None:
    prompts = ["The capital of France is", "The capital of Italy is", "The capital of Spain is"]
    with pytest.warns(UserWarning, match=r"with a leading space, 3 of 3 are much more likely, such as ' Paris' \("):
        mh.task_log_prob(model, Task(prompts, ["Paris", "Rome", "Madrid"]))
    with warnings.catch_warnings(action="error"):
        mh.task_log_prob(model, Task(prompts, [" Paris", " Rome", " Madrid"]))
        mh.task_log_prob(model, Task(["2 + 2 = ("], ["4"]))


@pytest.mark.parametrize("name", ["task_log_prob", "ablation_effects", "fit_gates"])
def test_what_is_no_task_is_named(llama: mh.Model, name: str) -> None:
    with pytest.raises(ValueError, match=r"task is a list; give mh\.Task\(prompts"):
        getattr(mh.gating, name)(llama, [" a"])
