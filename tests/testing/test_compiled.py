"""Compiled models: they give what their programs give, and the heads that a program needs are the heads that matter."""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.behaviour.head_profile import NAMES
from mechheads.testing.compiled import CompiledModel, compiled_model
from mechheads.testing.programs import PROGRAMS
from support import oracles
from support.levels import few

ROOT = Path(__file__).parent.parent.parent
LENGTH = 15
COLUMNS = {name: column for column, name in NAMES.items()}


def reverse(so_far: str) -> str | None:
    given, bar, written = so_far.partition("|")
    if not bar or "|" in written or len(written) >= len(given):
        return None
    return given[::-1][len(written)]


def induction(so_far: str) -> str | None:
    found = {b for a, b in itertools.pairwise(so_far) if a == so_far[-1]}
    return min(found) if len(found) == 1 else None


def pattern(so_far: str) -> str | None:
    return None if len(so_far) < 3 else "yes" if so_far.endswith("abc") else "no"


def histogram(so_far: str) -> str:
    seen: dict[str, int] = {}
    counts = []
    for word in so_far:
        seen[word] = seen.get(word, 0) + 1
        counts.append(seen[word])
    return str(sum(count == counts[-1] for count in counts))


def distinct(so_far: str) -> str:
    return str(len({*so_far}))


def majority(so_far: str) -> str:
    a, b = so_far.count("a"), so_far.count("b")
    return "tie" if a == b else max((a, "a"), (b, "b"))[1]


def brackets(so_far: str) -> str:
    rest = so_far.replace("x", "")
    while "()" in rest:
        rest = rest.replace("()", "")
    return "wrong" if ")" in rest else "open" if rest else "closed"


def indirect_object(so_far: str) -> str | None:
    names = [word for word in so_far if word in "abcdefgh"]
    if so_far[-1] != "T" or len(names) != 3 or len({*names}) != 2:
        return None
    return next(name for name in names if names.count(name) == 1)


ORACLES: dict[str, Callable[[str], str | None]] = {
    function.__name__: function
    for function in (reverse, induction, pattern, histogram, distinct, majority, brackets, indirect_object)
}
ORACLES["phi3_induction"] = induction
"""What a program gives after a text of one-letter words; "to" is T, and "and" is A."""
names = pytest.mark.parametrize("name", few(ORACLES, "reverse", "indirect_object"))


def wanted(name: str, text: str) -> list[str | None]:
    short = "".join({"to": "T", "and": "A"}.get(word, word) for word in text.split())
    return [ORACLES[name](short[: end + 1]) for end in range(len(short))]


@functools.cache
def made(name: str, seed: int = 0) -> CompiledModel:
    return compiled_model(name, seed=seed)


def ids(there: CompiledModel, text: str) -> torch.Tensor:
    return torch.tensor([there.model.tokenizer(text).input_ids])


def answers(there: CompiledModel, values: list[str | None]) -> list[int | None]:
    vocabulary = there.model.tokenizer.vocab
    return [None if value is None else vocabulary[f"▁{value}"] for value in values]


def check_outputs(there: CompiledModel, text: str) -> int:
    """How many words of a text have a value; the model gives each with a logit of 20, and 0 to every other token."""
    values = wanted(there.name, text)
    logits, compared = oracles.forward(there.model, ids(there, text))[0, 1:], 0
    for row, value in zip(logits, answers(there, values), strict=True):
        if value is not None:
            right = torch.zeros(len(row))
            right[value] = 20
            assert float((row - right).abs().max()) < 0.5, text
            compared += 1
    return compared


@names
def test_the_model_gives_what_the_program_gives(name: str) -> None:
    there = made(name)
    prompts = there.prompts(20, seed=1)
    assert all(wanted(name, text)[-1] is not None for text in prompts)
    assert sum(check_outputs(there, text) for text in (*prompts, *there.texts(10))) >= 20


@pytest.mark.parametrize(("name", "words"), [("brackets", "()x"), ("majority", "abc"), ("histogram", "abc")])
def test_on_all_short_texts(name: str, words: str) -> None:
    for text in itertools.product(words, repeat=4):
        assert check_outputs(made(name), " ".join(text)) == 4


@names
def test_plain_programs(name: str) -> None:
    there = made(name)
    for text in (*there.prompts(50, seed=2), *there.texts(50)):
        assert there.expected(text) == wanted(name, text), text


@names
def test_without_an_idle_head_nothing_changes_and_without_another_the_program_breaks(name: str) -> None:
    there = made(name)
    broken = dict.fromkeys(there.heads, False)
    for text in there.prompts(6):
        tokens = ids(there, text)
        base = oracles.forward(there.model, tokens)
        nothing = torch.zeros(tokens.shape[1], there.model.d_head)
        for head in (*there.idle, *there.heads):
            change = (oracles.with_z(there.model, tokens, head.layer, head.head, nothing) - base)[0, 1:].abs().amax(-1)
            if head in broken:
                there_is = torch.tensor([value is not None for value in there.expected(text)])
                broken[head] |= bool((change[there_is] > 10).any())
            else:
                assert float(change.max()) < 1e-3, head
    assert all(broken.values()), broken


@pytest.mark.parametrize("seed", few([0, 1], 0))
@names
def test_patching_and_ablation_rank_used_heads_first(name: str, seed: int) -> None:
    there = made(name, seed)
    pairs, prompts = there.pairs(), there.prompts()
    scores = [
        mh.activation_patch(there.model, pairs, site="z", metric=mh.logit_diff, progress=False),
        mh.ablate(there.model, prompts, progress=False),
        mh.ablate(there.model, prompts, kind="resample", progress=False),
    ]
    for found in scores:
        size = np.abs(found.dataset["values"].values).mean(-1)
        assert min(size[head.layer, head.head] for head in there.heads) > 0.5, found.name
        assert max(size[head.layer, head.head] for head in there.idle) < 1e-3, found.name


@pytest.mark.parametrize("seed", few([0, 1, 2], 0))
@names
def test_a_profile_names_what_heads_attend_to(name: str, seed: int) -> None:
    there = made(name, seed)
    profile = mh.profile_heads(there.model, there.texts(), progress=False)
    for behaviour in {it.attends for it in there.heads.values()} - {None}:
        excess = profile.select(behaviour=COLUMNS[behaviour]).dataset["excess"].values
        planted = np.zeros(excess.shape, dtype=bool)
        for head, it in there.heads.items():
            if it.attends == behaviour:
                planted[head.layer, head.head] = True
                assert behaviour in profile.names(head)
        assert excess[planted].min() > excess[~planted].max(), behaviour
    for head in there.idle:
        assert float(there.model.W_O[head.layer][head.head].norm()) > 0.5  # idle heads write too


def test_pairs() -> None:
    for name in ORACLES:
        pairs = made(name).pairs(10, seed=3)
        for clean, corrupted, answer, wrong in zip(
            pairs.clean, pairs.corrupted, pairs.answer, pairs.wrong, strict=True
        ):
            assert len(clean.split()) == len(corrupted.split()) <= LENGTH
            assert (answer, wrong) == (f" {wanted(name, clean)[-1]}", f" {wanted(name, corrupted)[-1]}")
            assert answer != wrong


def test_the_program_is_the_one_that_was_compiled() -> None:
    functions = {}
    for script in ("compile_programs", "compile_phi3"):
        source = (ROOT / "benchmarks" / f"{script}.py").read_text("utf-8")
        nodes = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
        functions |= {node.name: ast.get_source_segment(source, node) for node in nodes}
    assert set(PROGRAMS) == set(ORACLES)
    for name in PROGRAMS:
        assert made(name).program.strip() == functions[name]
        assert {head.variable for head in made(name).heads.values()} == {it.variable for it in PROGRAMS[name].heads}
        assert all(it.variable in made(name).program for it in made(name).heads.values() if it.variable != "room")
    files = list((ROOT / "mechheads" / "data" / "compiled").iterdir())
    assert {file.stem for file in files} == set(PROGRAMS) and sum(file.stat().st_size for file in files) < 200_000


def test_seeds_move_heads_and_change_only_idle_ones() -> None:
    one, same, other = made("induction"), compiled_model("induction"), made("induction", 4)
    assert one.heads == same.heads and one.heads != other.heads
    assert torch.equal(one.model.W_Q[0], same.model.W_Q[0]) and torch.equal(one.model.W_E, other.model.W_E)
    for head, it in one.heads.items():
        there = next(each for each, its in other.heads.items() if its == it)
        assert torch.equal(one.model.W_O[head.layer][head.head], other.model.W_O[there.layer][there.head])
    wide = compiled_model("brackets", n_heads=7)
    assert (wide.model.n_heads, len(wide.heads), len(wide.idle)) == (7, 3, 7 * wide.model.n_layers - 3)
    assert check_outputs(wide, "( x ( ) ) ) (") == 7
    assert repr(one) == "<CompiledModel 'induction', seed 0: L0H2=before L1H3=induction, 6 idle>"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "sort"}, "name is 'sort'; choose one of 'reverse', 'induction'"),
        ({"name": "brackets", "n_heads": 1}, "n_heads is 1, but 'brackets' has 2 heads in one layer; give at least as"),
        ({"name": "reverse", "n_heads": 0}, "n_heads is 0; it must be at least 1"),
        ({"name": "reverse", "seed": -1}, "seed is -1; it must be at least 0"),
    ],
)
def test_errors(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compiled_model(**options)


@pytest.mark.parametrize("method", ["prompts", "texts", "pairs"])
def test_errors_of_numbers(method: str) -> None:
    with pytest.raises(ValueError, match="n is 0; it must be at least 1"):
        getattr(made("reverse"), method)(0)
    with pytest.raises(ValueError, match="seed is -1; it must be at least 0"):
        getattr(made("reverse"), method)(2, seed=-1)
