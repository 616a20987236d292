"""Planted models hold what they say: by their weights, in context, and in what each head looks at."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.heads import HeadId
from support import oracles
from support.levels import few
from support.planted_models import PlantedHead, PlantedModel, planted_model

OF_EACH_KIND = {
    (1, 2): PlantedHead("implements", ["plurals", "capitals"]),
    (0, 5): PlantedHead("tags", "doubles"),
    (2, 7): PlantedHead("in context", ["doubles"]),
    (2, 0): PlantedHead("suppresses", ["to_south"]),
    (1, 4): PlantedHead("unattended", ["copies"]),
}


@pytest.fixture(scope="module")
def planted() -> Callable[..., PlantedModel]:
    """``planted_model``, which makes each of its models once."""

    @cache
    def default(seed: int) -> PlantedModel:
        return planted_model(seed=seed)

    return default


@pytest.fixture(scope="module")
def small() -> PlantedModel:
    """A head of each kind in three layers."""
    return planted_model(seed=5, n_layers=3, plant=OF_EACH_KIND)


def ids(planted: PlantedModel, words: Iterable[str]) -> list[int]:
    return [planted.model.tokenizer.convert_tokens_to_ids(f"▁{word}") for word in words]


def shares(planted: PlantedModel) -> dict[tuple[HeadId, str], tuple[float, float]]:
    """phi and the suppression score of every head and relation, from the formula: form M, take the top."""
    model, found = planted.model, {}
    meanings = model.first_mlp(model.W_E)
    for head in planted.looks_at:
        E = model.W_E if head.layer == 0 else meanings
        W_VO = model.W_V[head.layer][head.head] @ model.W_O[head.layer][head.head]
        for relation in planted.relations:
            sources, targets = (ids(planted, words) for words in zip(*relation.pairs, strict=True))
            M, k = E[sources] @ W_VO @ model.W_U, 1 if relation.copying else 10
            hits = [
                np.mean([target in best for target, best in zip(targets, rows.topk(k).indices.tolist(), strict=True)])
                for rows in (M, -M)
            ]
            found[head, relation.name] = hits[0], hits[1]
    return found


def check_shares(planted: PlantedModel) -> None:
    for (head, name), (phi, suppression) in shares(planted).items():
        held = planted.heads.get(head)
        kind = held.kind if held is not None and name in held.relations else None
        assert (phi >= 0.9) if kind in ("implements", "unattended") else (phi < 0.1), (head, kind, name, phi)
        assert (suppression >= 0.9) if kind == "suppresses" else (suppression < 0.1), (head, kind, name, suppression)


@pytest.mark.parametrize("seed", few([0, 1], 0))
def test_weights_hold_what_was_planted_and_nothing_else(planted, seed):
    check_shares(planted(seed))


def test_a_null_holds_nothing():
    null = planted_model(seed=3, plant={})
    assert null.heads == {} and null.categories == {} and len(null.looks_at) == 48
    check_shares(null)
    assert repr(null) == "<PlantedModel of 48 heads, seed 3: nothing planted>"


@pytest.mark.parametrize("seed", few([0, 1], 0))
def test_labels_from_weights_are_the_categories(planted, seed):
    there = planted(seed)
    labels = mh.label_heads(there.model, there.relations, rule="maps")
    assert {head: labels.of(head) for head in there.looks_at if labels.of(head)} == there.categories


def prompts_of(planted: PlantedModel, name: str) -> tuple[list[Tensor], list[int]]:
    """Some prompts of a relation with two examples each, and the targets asked for."""
    (relation,) = (relation for relation in planted.relations if relation.name == name)
    pairs = relation.pairs
    texts = []
    for i in range(4):
        examples = [relation.few_shot[0].format(source=pairs[j][0], target=pairs[j][1]) for j in (10 + i, 20 + i)]
        texts.append("\n".join([*examples, relation.few_shot[0].partition(" {target}")[0].format(source=pairs[i][0])]))
    encoded = [torch.tensor([planted.model.tokenizer(text).input_ids]) for text in texts]
    return encoded, ids(planted, [target for _, target in pairs[:4]])


def adds(planted: PlantedModel, head: HeadId, name: str) -> list[float]:
    """By how much a head raises the logit of each target asked for: full runs with and without it."""
    model, effects = planted.model, []
    for prompt, target in zip(*prompts_of(planted, name), strict=True):
        nothing = torch.zeros(prompt.shape[1], model.d_head)
        off = oracles.with_z(model, prompt, head.layer, head.head, nothing)
        effects.append(float((oracles.forward(model, prompt) - off)[0, -1, target]))
    return effects


@pytest.mark.parametrize("which", few(["default", "small"], "small"))
def test_what_heads_do_in_context(planted, small, which):
    there = planted(1) if which == "default" else small
    expected = {"implements": 8, "in context": 8, "suppresses": -8, "unattended": 0, "tags": 8}
    for head, held in there.heads.items():
        for name in held.relations:
            effects = adds(there, head, name)
            assert np.mean(effects) == pytest.approx(expected[held.kind], abs=2), (head, held)
            if held.kind == "unattended":
                assert np.abs(effects).max() < 1e-4


def test_in_context_it_is_the_tag_that_is_read(small):
    """Without the head that tags, the one in context adds nothing; other heads stay as they are."""
    model = small.model

    def last(prompt: Tensor, off: list[HeadId]) -> Tensor:
        return oracles.forward(model, prompt, oracles.z_hooks({(head.layer, head.head): 0 for head in off}))[0, -1]

    reader, tagger, other = HeadId(2, 7), HeadId(0, 5), HeadId(1, 2)
    for prompt, target in zip(*prompts_of(small, "doubles"), strict=True):
        without_tags = last(prompt, [tagger]) - last(prompt, [tagger, reader])
        assert abs(float(without_tags[target])) < 3
    for prompt, target in zip(*prompts_of(small, "capitals"), strict=True):
        without_tags = last(prompt, [tagger]) - last(prompt, [tagger, other])
        assert float(without_tags[target]) == pytest.approx(8, abs=3)
