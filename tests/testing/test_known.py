"""Models whose heads are known: each does what its facts say, and methods find its heads."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.behaviour.profile import NAMES
from mechheads.data import folder
from mechheads.heads import HeadId, Mlp, Node, check_heads
from mechheads.testing.known import KnownModel, behaving_model, compiled_model, read_known, trained_model
from support import oracles
from support.behaving import make_behaving, write_behaving
from support.levels import few

COLUMNS = {name: column for column, name in NAMES.items()}
KNOWN = Path(str(folder("known")))


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


COMPILED: dict[str, Callable[[str], str | None]] = {
    function.__name__: function
    for function in (reverse, induction, pattern, histogram, distinct, majority, brackets, indirect_object)
}
COMPILED["phi3_induction"] = induction
"""What a program gives after a text of one-letter words; "to" is T, and "and" is A."""
compiled = pytest.mark.parametrize("name", few(COMPILED, "reverse", "indirect_object"))


def wanted(name: str, text: str) -> list[str | None]:
    short = "".join({"to": "T", "and": "A"}.get(word, word) for word in text.split())
    return [COMPILED[name](short[: end + 1]) for end in range(len(short))]


made_by_compiler = functools.cache(compiled_model)


def ids(there: KnownModel, texts: Any) -> torch.Tensor:
    return torch.tensor(there.model.tokenizer([texts] if isinstance(texts, str) else list(texts)).input_ids)


@compiled
def test_a_compiled_model_gives_what_its_program_gives(name: str) -> None:
    there, compared = made_by_compiler(name), 0
    for text in (*there.pairs(20).clean, *there.texts[:10]):
        logits = oracles.forward(there.model, ids(there, text))[0, 1:]
        for row, value in zip(logits, wanted(name, str(text)), strict=True):
            if value is not None:
                right = torch.zeros(len(row))
                right[there.model.tokenizer.vocab[f"▁{value}"]] = 20
                assert float((row - right).abs().max()) < 0.5, text
                compared += 1
    assert compared >= 20


@compiled
def test_pairs_have_the_answers_of_the_program(name: str) -> None:
    there = made_by_compiler(name)
    pairs = there.pairs(200)
    for clean, corrupted, *answers in zip(pairs.clean, pairs.corrupted, pairs.answer, pairs.wrong, strict=True):
        assert len(clean.split()) == len(corrupted.split()) and answers[0] != answers[1]
        assert answers == [f" {wanted(name, text)[-1]}" for text in (clean, corrupted)]


@compiled
def test_without_an_other_head_nothing_changes_and_without_a_known_one_the_program_breaks(name: str) -> None:
    there = made_by_compiler(name)
    broken = dict.fromkeys(there.heads, False)
    for text in there.pairs(6).clean:
        tokens = ids(there, text)
        base = oracles.forward(there.model, tokens)
        nothing = torch.zeros(tokens.shape[1], there.model.d_head)
        for head in (*there.others, *there.heads):
            change = (oracles.with_z(there.model, tokens, head.layer, head.head, nothing) - base)[0, 1:].abs().amax(-1)
            if head in broken:
                there_is = torch.tensor([value is not None for value in wanted(name, str(text))])
                broken[head] |= bool((change[there_is] > 10).any())
            else:
                assert float(change.max()) < 1e-3, head
    assert all(broken.values()), broken


@compiled
def test_patching_and_ablation_rank_the_heads_of_a_compiled_model_first(name: str) -> None:
    there = made_by_compiler(name)
    scores = [
        mh.activation_patch(there.model, there.pairs(), site="z", metric=mh.logit_diff),
        mh.ablate(there.model, there.pairs().clean),
        mh.ablate(there.model, there.pairs().clean, intervention="resample"),
    ]
    for found in scores:
        size = np.abs(found.dataset["values"].values).mean(-1)
        assert min(size[head.layer, head.head] for head in there.heads) > 0.5, found.name
        assert max(size[head.layer, head.head] for head in there.others) < 1e-3, found.name


@compiled
def test_a_profile_names_what_heads_of_a_compiled_model_attend_to(name: str) -> None:
    there = made_by_compiler(name)
    check_profile(there, mh.profile_heads(there.model, there.texts))


def check_profile(there: KnownModel, profile: mh.behaviour.HeadProfile) -> None:
    """Heads that attend as a profile can say have the name, and more of it than all others."""
    for behaviour in {it.attends for it in there.heads.values() if it.attends}:
        excess = profile.select(behaviour=COLUMNS[behaviour]).dataset["excess"].values
        planted = np.zeros(excess.shape, dtype=bool)
        for head, it in there.heads.items():
            if it.attends == behaviour:
                planted[head.layer, head.head] = True
                assert behaviour in profile.names(head)
        assert excess[planted].min() > excess[~planted].max(), behaviour


def check_same(path: Path, atol: float) -> None:
    """A file is as the one that comes with the package."""
    with np.load(path) as one, np.load(KNOWN / path.name) as other:
        assert one.files == other.files
        assert one["about"].tobytes() == other["about"].tobytes()
        for name in one.files:
            np.testing.assert_allclose(one[name], other[name], atol=atol)


def followed(text: str, other: str, variable: str | None) -> str | None:
    """Words are single letters: the one after the first copy of the last, where "before" is read off the other text."""
    text, other = text.replace(" ", ""), other.replace(" ", "")
    if variable == "follower":
        text = other
    at = (other if variable == "before" else text)[:6].find(text[-1])
    return None if at < 0 else text[at + 1]


def receiver(text: str, other: str, variable: str | None) -> str:
    if variable == "mover":
        return receiver(other, other, None)
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


TRAINED = {"induction": followed, "indirect_object": receiver, "comparison": comparison}
"""The answer to a text if a variable, or none, has its value from another text."""
trained = pytest.mark.parametrize("name", few(TRAINED, next(iter(TRAINED))))
made_by_training = functools.cache(trained_model)


@functools.cache
def run_source(program: str) -> dict[str, Any]:
    """The names of a program of Python, which comes with a trained model."""
    module = sys.modules["program"] = ModuleType("program")  # where dataclasses look for the names of types
    exec(program, vars(module))
    return vars(module)


def site(node: Node) -> str:
    return oracles.mlp(node.layer) if isinstance(node, Mlp) else oracles.name(node.layer, "z")


def answers(logits: torch.Tensor, there: KnownModel) -> list[str]:
    return [there.model.tokenizer.decode([token]).strip() for token in logits[:, -1].argmax(-1).tolist()]


def interchanged(there: KnownModel, node: Node) -> list[str]:
    """The answers to clean texts if one node gives what it gives in the corrupted ones, by TransformerLens' hooks."""
    pairs, kept = there.pairs(200), []
    oracles.forward(
        there.model, ids(there, pairs.corrupted), [(site(node), lambda value, hook: kept.append(value.clone()))]
    )

    def replace(value: torch.Tensor, hook: Any) -> torch.Tensor:
        if isinstance(node, Mlp):
            return kept[0]
        value = value.clone()
        value[:, :, node.head] = kept[0][:, :, node.head]
        return value

    return answers(oracles.forward(there.model, ids(there, pairs.clean), [(site(node), replace)]), there)


@trained
def test_only_interchanges_of_the_nodes_of_a_trained_model_change_its_answers(name: str) -> None:
    there, oracle = made_by_training(name), TRAINED[name]
    pairs = there.pairs(200)
    both = [(str(clean), str(corrupted)) for clean, corrupted in zip(pairs.clean, pairs.corrupted, strict=True)]
    assert pairs.answer == [f" {oracle(text, text, None)}" for text, _ in both]
    assert pairs.wrong == [f" {oracle(text, text, None)}" for _, text in both]
    base = answers(oracles.forward(there.model, ids(there, pairs.clean)), there)
    assert np.mean([f" {got}" == right for got, right in zip(base, pairs.answer, strict=True)]) >= 0.99
    heads = check_heads(None, there.model.n_layers, there.model.n_heads)
    for node in (*heads, *map(Mlp, range(there.model.n_layers))):
        found = interchanged(there, node)
        if node not in there.nodes:
            assert np.mean([got != before for got, before in zip(found, base, strict=True)]) <= 0.01, node
            continue
        right = [oracle(text, other, there.nodes[node].name) for text, other in both]
        rows = [row for row in zip(found, right, base, strict=True) if row[1] is not None]
        assert np.mean([got == want for got, want, _ in rows]) >= 0.95, node
        assert sum(want != before for _, want, before in rows) > 40, node


@trained
def test_programs_of_trained_models(name: str) -> None:
    there = made_by_training(name)
    program = run_source(there.program)["CAUSAL_PROGRAMS"][name]
    assert [(it.name, it.does) for it in there.nodes.values()] == [(it.name, it.does) for it in program.variables]
    for text, other in zip(there.pairs(50).clean, there.pairs(50).corrupted, strict=True):
        for variable in program.variables:
            given = {variable.name: program.values(str(other).split())[variable.name]}
            assert program.answer(str(text).split(), given) == TRAINED[name](str(text), str(other), variable.name)


@trained
def test_patching_finds_the_circuit_of_a_trained_model(name: str) -> None:
    there = made_by_training(name)
    for direction in ("denoising", "noising"):
        effect = mh.activation_patch(there.model, there.pairs(), direction=direction)
        size = np.abs(effect.scores.values)
        inside = min(size[head.layer, head.head] for head in there.heads)
        assert inside > 2 * max(size[head.layer, head.head] for head in there.others), direction


def test_heads_of_the_behaving_model_attend_as_its_facts_say() -> None:
    there = behaving_model()
    check_profile(there, mh.profile_heads(there.model, there.texts, window=100))


def test_pairs_of_the_behaving_model() -> None:
    pairs = behaving_model().pairs(50)
    for clean, corrupted, answer, wrong in zip(pairs.clean, pairs.corrupted, pairs.answer, pairs.wrong, strict=True):
        *before, last = clean.split()
        assert before.count(last) == 1 and f" {before[before.index(last) + 1]}" == answer != wrong
        *same, new = corrupted.split()
        assert wrong[1:] in before == same and new not in before and len({*before}) == len(before)


def area(score: np.ndarray, truth: set[HeadId]) -> float:
    """The area under the ROC curve of some heads among all others."""
    every = [HeadId(layer, head) for layer, head in np.ndindex(score.shape)]
    there = np.array([score[head.layer, head.head] for head in every if head in truth])
    other = np.array([score[head.layer, head.head] for head in every if head not in truth])
    return float((there[:, None] > other).mean())


def test_negative_primary_and_backup_heads_are_found() -> None:
    there = behaving_model()
    model, pairs = there.model, there.pairs()
    of = {kind: {head for head, it in there.heads.items() if it.name == kind} for kind in ("primary", "negative")}
    backup = {head for head, it in there.heads.items() if it.name == "backup"}
    (primary,) = of["primary"]
    parts = mh.behaviour.logit_attribution(model, pairs).dataset["score"].values
    assert area(parts, {primary}) == area(-parts, of["negative"]) == 1
    repair = mh.activation_patch(model, pairs, direction="noising") - mh.path_patch(model, pairs, mlps="frozen")
    assert area(repair.dataset["score"].values, {primary}) == 1
    every = [HeadId(layer, head) for layer, head in np.ndindex(model.n_layers, model.n_heads)]
    sets = [{head} for head in every] + [{head, primary} for head in every]
    found = mh.patching.patch_sets(model, pairs, sets, direction="noising")
    alone, both = found.values.mean(-1).reshape(2, model.n_layers, model.n_heads)
    more = alone + alone[primary.layer, primary.head] - both
    more[primary.layer, primary.head] = 0
    assert area(more, backup) == 1


@pytest.mark.release
def test_where_nothing_is_planted_nothing_is_found() -> None:
    there = make_behaving(seed=1, plant={})
    assert not there.nodes
    profile = mh.profile_heads(there.model, there.texts, window=100)
    assert not profile.dataset["named"].values.any()
    parts = mh.behaviour.logit_attribution(there.model, there.pairs())
    assert not (parts.dataset["q_value"].values <= 0.05).any()


def test_the_script_makes_the_behaving_model(tmp_path: Path) -> None:
    write_behaving(tmp_path / "behaving.npz")
    check_same(tmp_path / "behaving.npz", atol=0.5)  # a step of its rounding, at most
    assert read_known("again", tmp_path / "behaving.npz").nodes == behaving_model().nodes
