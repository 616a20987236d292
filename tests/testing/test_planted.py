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
from mechheads.prompts.encoding import single_token
from support import oracles
from support.levels import few
from support.planted_models import PlantedHead, PlantedModel, planted_model

NAMES = ("capitals", "founders", "plurals", "opposites", "copies", "doubles", "to_north", "to_south")
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


@pytest.mark.parametrize(
    "options",
    [
        {"n_layers": 2, "n_heads": 12, "d_model": 384},
        {"n_layers": 1, "n_heads": 4, "d_model": 128, "plant": {"L0H1": ["to_south"]}},
        {"n_layers": 2, "noise": 0, "plant": {"L0H1": NAMES[:3], "L1H1": NAMES[3:6]}},
    ],
    ids=["other sizes", "one layer", "as many pairs as there is room for"],
)
def test_models_of_other_sizes_hold_what_was_planted(options):
    there = planted_model(**options)
    sizes = {"n_layers": 6, "n_heads": 8, "d_model": 256} | options
    assert all(getattr(there.model, name) == sizes[name] for name in ("n_layers", "n_heads", "d_model"))
    assert there.model.d_head == sizes["d_model"] // sizes["n_heads"]
    check_shares(there)


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


@pytest.mark.parametrize("seed", few(range(3), 0))
def test_the_default_plant(planted, seed):
    there = planted(seed)
    heads = there.heads
    assert list(heads) == sorted(heads) and len(heads) == 17
    of = {
        kind: [(head, held.relations) for head, held in heads.items() if held.kind == kind]
        for kind in ("implements", "suppresses", "unattended", "in context", "tags")
    }
    assert [len(found) for found in of.values()] == [12, 2, 1, 1, 1]
    implemented = [name for _, names in of["implements"] for name in names]
    assert sorted(set(implemented)) == sorted(NAMES) and len(implemented) == 14
    assert all(implemented.count(name) == 2 for _, (name,) in of["suppresses"])
    ((reader, read),), ((tagger, tagged),) = of["in context"], of["tags"]
    assert tagger.layer < reader.layer and tagged == read
    lengths = [len(found) for head, found in there.categories.items() if heads[head].kind == "implements"]
    assert sorted(lengths) == [1] * 10 + [2] * 2
    assert {name for found in there.categories.values() for name in found} == set(mh.labels.CATEGORIES)


def test_relations(planted):
    there = planted(0)
    assert tuple(relation.name for relation in there.relations) == NAMES
    assert [relation.category for relation in there.relations] == [c for c in mh.labels.CATEGORIES for _ in range(2)]
    assert [relation.name for relation in there.relations if relation.copying] == ["copies"]
    assert planted(1).relations == there.relations
    capitals, *_, doubles, _, _ = there.relations
    assert all(target == f"{source}burg" for source, target in capitals.pairs)
    assert all(target == source + source for source, target in doubles.pairs)
    sources = [source for relation in there.relations for source, _ in relation.pairs]
    assert len(sources) == len(set(sources)) == 8 * 36


def test_every_word_is_one_token(planted):
    there = planted(0)
    tokenizer = there.model.tokenizer
    assert len(tokenizer) == there.model.d_vocab == 2048
    for relation in there.relations:
        for pair in relation.pairs:
            for word in pair:
                token = single_token(f" {word}", tokenizer)
                assert token is not None and tokenizer.decode([token]) == f" {word}"
        for template in (*relation.few_shot, *relation.zero_shot):
            text = "\n".join([template.format(source=pair[0], target=pair[1]) for pair in relation.pairs[:3]])
            tokens = tokenizer(text).input_ids
            assert tokens[0] == tokenizer.bos_token_id and tokenizer.unk_token_id not in tokens
    assert single_token(" zzz", tokenizer) is None


def prompts_of(planted: PlantedModel, name: str) -> tuple[list[Tensor], list[int]]:
    """Some prompts of a relation with two examples each, and the targets asked for."""
    (relation,) = (relation for relation in planted.relations if relation.name == name)
    pairs = relation.pairs
    texts = []
    for i in range(4):
        examples = [relation.few_shot[0].format(source=pairs[j][0], target=pairs[j][1]) for j in (10 + i, 20 + i)]
        texts.append("\n".join([*examples, relation.zero_shot[0].format(source=pairs[i][0])]))
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


def test_the_target_comes_out_on_top():
    """Three heads that implement a relation leave no doubt."""
    plant = {"L1H0": ["founders"], "L2H3": ["founders", "copies"], "L3H5": ["founders"]}
    there = planted_model(seed=2, n_layers=4, plant=plant)
    for prompt, target in zip(*prompts_of(there, "founders"), strict=True):
        assert int(oracles.forward(there.model, prompt)[0, -1].argmax()) == target


def looked_at(planted: PlantedModel, head: HeadId, prompt: list[int]) -> list[int | None]:
    """The token that a head looks at from each token, by the rule; None where it says none."""
    relations = [relation for relation in planted.relations if relation.name in planted.looks_at[head]]
    sources = set(ids(planted, [source for relation in relations for source, _ in relation.pairs]))
    begins = prompt[0] == planted.model.tokenizer.bos_token_id
    found, latest = [], 0 if begins or not relations else None
    for place, token in enumerate(prompt):
        latest = place if token in sources else latest
        found.append(latest)
    return found


@pytest.mark.parametrize("begins", few([True, False], True))
def test_what_heads_look_at(planted, begins):
    """Also in a context that is full, with sources side by side, whatever stands between."""
    there, rng = planted(0), np.random.default_rng(0)
    assert {tuple(names) for names in there.looks_at.values()} >= {(), *((name,) for name in NAMES)}
    sources = [source for relation in there.relations for source, _ in relation.pairs]
    words = [*rng.permutation(sources).tolist()[:60], *["the", "is", ".", "tutituti"] * 16]
    crowd, sparse = ids(there, words), ids(there, ["the", "of", sources[0], "is", ".", "and", sources[40], "was"])
    for tokens in (rng.permutation(crowd).tolist(), sparse, ids(there, sources[:100])):
        prompt = ([there.model.tokenizer.bos_token_id] if begins else []) + tokens
        seen = oracles.activations(there.model, torch.tensor([prompt]))
        for head in there.looks_at:
            pattern = seen[oracles.name(head.layer, "pattern")][0, head.head]
            for row, place in zip(pattern, looked_at(there, head, prompt), strict=True):
                assert place is None or float(row[place]) > 0.99, (head, there.looks_at[head])


def test_from_the_first_token_heads_write_nothing(planted):
    there = planted(0)
    run = there.model.cache(["the of is are"])
    assert max(float(run.z[head].abs().max()) for head in there.looks_at) < 1e-4


def test_same_seed_same_model(planted):
    again, other = planted_model(seed=1), planted(0)
    assert again.heads == planted(1).heads and again.looks_at == planted(1).looks_at
    for name, weight in again.model.model.state_dict().items():
        assert torch.equal(weight, planted(1).model.model.state_dict()[name]), name
    assert other.heads != again.heads
    for layer in range(6):
        for a, b in zip(again.model.W_V[layer], other.model.W_V[layer], strict=True):
            assert float((a - b).abs().max()) > 0.01


def test_noise_is_relative_and_moves_nothing(planted):
    noisy, clean = planted(1), planted_model(seed=1, noise=0)
    assert noisy.heads == clean.heads and torch.equal(noisy.model.W_E, clean.model.W_E)
    for head in noisy.heads:
        a, b = (
            there.model.W_V[head.layer][head.head] @ there.model.W_O[head.layer][head.head] for there in (noisy, clean)
        )
        assert float((a - b).norm() / b.norm()) == pytest.approx(0.5, abs=1e-4)


def test_a_head_does_not_depend_on_the_others():
    few = planted_model(seed=4, n_layers=2, plant={"L1H2": ["capitals"]})
    many = planted_model(seed=4, n_layers=2, plant={"L1H2": ["capitals"], "L0H1": ["plurals"], "L1H3": ["copies"]})
    assert torch.equal(few.model.W_E, many.model.W_E) and torch.equal(few.model.W_U, many.model.W_U)
    for head in few.looks_at:
        same = torch.equal(few.model.W_V[head.layer][head.head], many.model.W_V[head.layer][head.head])
        assert same == (head not in (HeadId(0, 1), HeadId(1, 3)))


def test_random_heads_have_the_size_of_planted_ones():
    """Each looks at the sources of a relation, and has the size of a head that implements it in the same layer."""
    null = planted_model(seed=6, n_layers=2, plant={})
    full = planted_model(seed=6, n_layers=2, plant=null.looks_at)
    assert full.looks_at == null.looks_at and len(full.heads) == 16
    wanted = sizes(full)
    for head, size in sizes(null).items():
        assert size == pytest.approx(wanted[head], rel=0.05)


def sizes(planted: PlantedModel) -> dict[HeadId, float]:
    """The Frobenius norm of W_V W_O of every head."""
    W_V, W_O = planted.model.W_V, planted.model.W_O
    return {head: float((W_V[head.layer][head.head] @ W_O[head.layer][head.head]).norm()) for head in planted.looks_at}


def test_the_plant_of_an_author(small):
    assert list(small.heads) == [HeadId(*where) for where in sorted(OF_EACH_KIND)]
    assert small.heads[HeadId(0, 5)] == PlantedHead("tags", ["doubles"])
    in_context = {HeadId(2, 7): ("Algorithmic",)}
    assert small.categories == {HeadId(1, 2): ("Knowledge", "Linguistic"), HeadId(1, 4): ("Algorithmic",)} | in_context
    assert small.looks_at[HeadId(1, 2)] == ("plurals", "capitals") and small.looks_at[HeadId(1, 4)] == ()
    assert repr(small) == (
        "<PlantedModel of 24 heads, seed 5: 1 implements, 1 suppresses, 1 unattended, 1 in context, 1 tags>"
    )
    check_shares(small)
