"""Trained models: they answer as their programs do, also after interchanges, and nothing else changes an answer."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open

import mechheads as mh
from benchmarks import train_circuits
from mechheads.data import folder
from mechheads.heads import Mlp, Node
from mechheads.testing.causal_programs import CAUSAL_PROGRAMS, is_held_out
from mechheads.testing.trained import TrainedModel, trained_model
from support import oracles
from support.levels import few

N = 300


def induction(text: str, other: str, variable: str | None) -> str | None:
    """Words are single letters: the one after the first copy of the last, where "before" is read off the other text."""
    text, other = text.replace(" ", ""), other.replace(" ", "")
    if variable == "follower":
        text = other
    at = (other if variable == "before" else text)[:6].find(text[-1])
    return None if at < 0 else text[at + 1]


def indirect_object(text: str, other: str, variable: str | None) -> str:
    if variable == "mover":
        return indirect_object(other, other, None)
    one, _, two, _, _, again, *_ = text.split()
    if variable in ("duplicate", "inhibited"):
        first, _, _, _, _, repeated, *_ = other.split()
        return two if first == repeated else one
    return ({one, two} - {again}).pop()


def comparison(text: str, other: str, variable: str | None) -> str | None:
    if variable == "compared":
        return comparison(other, other, None)
    *listed, _, number, asked = text.split()
    *other_listed, _, other_number, other_asked = other.split()
    if variable == "before":
        number = other_number
        if asked not in other_listed:
            return None
        against = listed[other_listed.index(asked) + 1]
    elif variable == "number":
        against = other_listed[other_listed.index(other_asked) + 1]
    else:
        against = listed[listed.index(asked) + 1]
    return ["less", "same", "more"][1 + int(np.sign(int(number) - int(against)))]


ORACLES = {function.__name__: function for function in (induction, indirect_object, comparison)}
names = pytest.mark.parametrize("name", few(ORACLES, next(iter(ORACLES))))
made = functools.cache(trained_model)


@functools.cache
def texts(name: str) -> tuple[list[str], list[str]]:
    return made(name).prompts(N, seed=5), made(name).prompts(N, seed=6)


def ids(there: TrainedModel, prompts: list[str]) -> torch.Tensor:
    return torch.tensor(there.model.tokenizer(prompts).input_ids)


def site(node: Node) -> str:
    return oracles.mlp(node.layer) if isinstance(node, Mlp) else oracles.name(node.layer, "z")


def answers(logits: torch.Tensor, there: TrainedModel) -> list[str]:
    return [there.model.tokenizer.decode([token]).strip() for token in logits[:, -1].argmax(-1).tolist()]


@functools.cache
def base_answers(name: str) -> list[str]:
    return answers(oracles.forward(made(name).model, ids(made(name), texts(name)[0])), made(name))


def interchanged(there: TrainedModel, node: Node) -> list[str]:
    """The answers to the texts if one node gives what it gives in the others, by TransformerLens' hooks."""
    base, other = (ids(there, prompts) for prompts in texts(there.name))
    kept: list[torch.Tensor] = []
    oracles.forward(there.model, other, [(site(node), lambda value, hook: kept.append(value.clone()))])

    def replace(value: torch.Tensor, hook: Any) -> torch.Tensor:
        if isinstance(node, Mlp):
            return kept[0]
        value = value.clone()
        value[:, :, node.head] = kept[0][:, :, node.head]
        return value

    return answers(oracles.forward(there.model, base, [(site(node), replace)]), there)


@names
def test_programs(name: str) -> None:
    there, oracle = made(name), ORACLES[name]
    for text, other in zip(*texts(name), strict=True):
        assert there.expected(text) == oracle(text, other, None)
        for it in there.nodes.values():
            assert there.interchanged(text, other, it.variable) == oracle(text, other, it.variable), it
            assert there.interchanged(text, text, it.variable) == there.expected(text)


@names
def test_the_model_answers_texts_that_training_did_not_see(name: str) -> None:
    right = [
        there == ORACLES[name](text, text, None) for there, text in zip(base_answers(name), texts(name)[0], strict=True)
    ]
    assert np.mean(right) >= 0.99


@names
def test_an_interchange_of_a_node_gives_what_an_interchange_of_its_variable_gives(name: str) -> None:
    there = made(name)
    for node, it in there.nodes.items():
        wanted = [ORACLES[name](text, other, it.variable) for text, other in zip(*texts(name), strict=True)]
        rows = list(zip(interchanged(there, node), wanted, base_answers(name), strict=True))
        assert np.mean([got == want for got, want, _ in rows if want is not None]) >= 0.95, node
        moved = [got != base for got, want, base in rows if want not in (None, base)]
        assert len(moved) > N // 5 and np.mean(moved) >= 0.95, node


@names
def test_an_interchange_of_any_other_node_changes_no_answer(name: str) -> None:
    there = made(name)
    assert len(there.idle) == there.model.n_layers * (there.model.n_heads + 1) - len(there.nodes)
    for node in there.idle:
        changed = [got != base for got, base in zip(interchanged(there, node), base_answers(name), strict=True)]
        assert np.mean(changed) <= 0.01, node


@names
def test_the_truth(name: str) -> None:
    there, program = made(name), CAUSAL_PROGRAMS[name]
    assert [it.variable for it in there.nodes.values()] == [it.name for it in program.variables]
    for node, variable in zip(there.nodes, program.variables, strict=True):
        assert node.layer == variable.layer and isinstance(node, Mlp) == (variable.kind == "mlp")
    assert {**there.heads, **there.mlps} == there.nodes
    assert there.measured["accuracy"] >= 0.99 and min(there.measured["interchange"].values()) >= 0.95
    assert set(there.measured["interchange"]) == set(there.measured["moves"]) == {it.name for it in program.variables}
    assert (
        set(there.measured["changes"]) == set(map(str, there.idle)) and max(there.measured["changes"].values()) <= 0.01
    )
    assert (folder("trained") / f"{name}.safetensors").stat().st_size < 300_000  # type: ignore[attr-defined]


@names
def test_patching_finds_the_circuit(name: str) -> None:
    there = made(name)
    for direction in ("denoising", "noising"):
        effect = mh.activation_patch(there.model, there.pairs(), direction=direction, progress=False)
        size = np.abs(effect.scores.values)
        inside = min(size[head.layer, head.head] for head in there.heads)
        outside = max(size[node.layer, node.head] for node in there.idle if not isinstance(node, Mlp))
        assert inside > 2 * outside, direction


@names
def test_texts(name: str) -> None:
    there = made(name)
    rng = np.random.default_rng(0)
    trained_on = {" ".join(CAUSAL_PROGRAMS[name].draw_one(rng, held_out=False)) for _ in range(50)}
    prompts = there.prompts(50, seed=1)
    assert all(is_held_out(text.split()) for text in prompts) and not trained_on & {*prompts}
    assert prompts == there.prompts(50, seed=1) != there.prompts(50, seed=2)
    assert {*" ".join(prompts).split()} <= {*there.words}
    pairs = there.pairs(20, seed=3)
    for clean, corrupted, answer, wrong in zip(pairs.clean, pairs.corrupted, pairs.answer, pairs.wrong, strict=True):
        assert is_held_out(clean.split()) and is_held_out(corrupted.split())
        assert (answer, wrong) == tuple(f" {ORACLES[name](text, text, None)}" for text in (clean, corrupted))
        assert answer != wrong


def test_the_script_makes_such_files(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    train_circuits.make_file("induction", 0, 2, tmp_path, n_texts=100)
    assert "induction: " in capsys.readouterr().out
    shapes, nodes = [], []
    for path in (tmp_path / "induction.safetensors", str(folder("trained") / "induction.safetensors")):
        with safe_open(path, "np") as file:
            shapes.append({name: file.get_slice(name).get_shape() for name in file.keys()})  # noqa: SIM118
            nodes.append(file.metadata()["about"].partition('"training"')[0])
    assert shapes[0] == shapes[1] and nodes[0] == nodes[1]


def test_repr_and_errors() -> None:
    there = made("induction")
    first, second = there.nodes
    assert repr(there) == f"<TrainedModel 'induction': {first}=before {second}=follower, 8 idle>"
    with pytest.raises(ValueError, match="name is 'sort'; choose one of 'induction', 'indirect_object', 'comparison'"):
        trained_model("sort")
    with pytest.raises(ValueError, match="prompt has 2 words; texts of 'induction' have 8, as in '"):
        there.expected("a b")
    with pytest.raises(ValueError, match="a word of other is 'x'; choose one of 'a', 'b'"):
        there.interchanged("a b c d e f g a", "a b c d e f x a", "before")
    with pytest.raises(ValueError, match="variable is 'after'; choose one of 'before', 'follower'"):
        there.interchanged("a b c d e f g a", "a b c d e f g a", "after")
    for method in (there.prompts, there.pairs):
        with pytest.raises(ValueError, match="n is 0; it must be at least 1"):
            method(0)
        with pytest.raises(ValueError, match="seed is -1; it must be at least 0"):
            method(2, seed=-1)
