"""Relation scores against numbers worked out by hand and against the formula written as a plain loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from mechheads.labels.classify import label_heads
from mechheads.labels.relations import Relation
from mechheads.labels.static import relation_scores
from mechheads.model.model import Model
from mechheads.results.stats import q_values


class Words:
    """A tokenizer that knows w0, w1, ... as one token each; other words fall apart into letters."""

    unk_token_id = 0

    def __call__(self, text: str, add_special_tokens: bool, verbose: bool = True) -> dict[str, Any]:
        if add_special_tokens:
            raise ValueError("weights alone cannot be run")
        word = text.removeprefix(":").strip()
        before = [1] if text.startswith(":") else []
        return {"input_ids": before + ([int(word[1:])] if word[1:].isdigit() else [1] * len(word))}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [f"w{i}" for i in ids]


class FakeModel:
    """What relation_scores asks of a model, with weights given outright."""

    name = "fake"
    device = torch.device("cpu")
    __class__ = Model  # type: ignore[assignment]  # arguments are checked by isinstance

    def __init__(self, W_E: Any, W_V: Any, W_O: Any, W_U: Any, first_mlp: Any = torch.tanh) -> None:
        self.W_E, self.W_U, self.first_mlp = W_E, W_U, first_mlp
        self.W_V, self.W_O, self.tokenizer = list(W_V), list(W_O), Words()
        self.n_layers, self.n_heads = len(self.W_V), len(self.W_V[0])
        self.d_model, self.d_vocab = W_U.shape
        self.dtype = W_U.dtype
        self.attention_scales = self.out_scales = torch.ones(self.n_layers, self.d_model)
        self.final = torch.ones(self.d_model)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.W_E[ids]

    def unembedding(self, start: int, stop: int) -> torch.Tensor:
        return self.W_U[:, start:stop].float()

    def attention_scale(self, layer: int) -> torch.Tensor:
        return self.attention_scales[layer]

    def attention_out_scale(self, layer: int) -> torch.Tensor:
        return self.out_scales[layer]

    def final_scale(self) -> torch.Tensor:
        return self.final

    def provenance(self) -> dict[str, Any]:
        return {"model": self.name}


def random_model(seed: int = 0, vocab: int = 800) -> Any:
    g = torch.Generator().manual_seed(seed)
    sizes = ((vocab, 16), (3, 4, 16, 5), (3, 4, 5, 16), (16, vocab))
    return FakeModel(*(torch.randn(size, generator=g) for size in sizes))


def relations(n: int = 40) -> list[Relation]:
    rng = np.random.default_rng(1)
    draw = rng.integers(1, 800, size=(2, n, 2))
    pairs = [[(f"w{s}", f"w{t}") for s, t in rows] for rows in draw]
    return [
        Relation("first", "Knowledge", pairs[0]),
        Relation("second", "Made up", pairs[1][: n // 2]),
        Relation("copy", "Algorithmic", [(s, s) for s, _ in pairs[0]], copying=True),
    ]


def plain_loop(model: Any, relation: Relation, ids: Callable[[str], int], k: int, first_mlp: bool = True) -> Any:
    """The formula of MAPS, a row of M at a time, in float64: hits and suppressions [2, layer, head, pair]."""
    found = np.zeros((2, model.n_layers, model.n_heads, len(relation.pairs)))
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            W_VO = model.W_V[layer][head].double() @ model.W_O[layer][head].double()
            for i, (source, target) in enumerate(relation.pairs):
                embedded = model.W_E[[ids(source)]]
                seen = model.first_mlp(embedded) if layer and first_mlp else embedded
                row = (seen.double() @ W_VO @ model.W_U.double())[0]
                own = row[ids(target)]
                found[:, layer, head, i] = (row > own).sum() < k, (row < own).sum() < k
    return found


def number(word: str) -> int:
    return int(word[1:])


def identity_model(columns: Sequence[Sequence[float]]) -> Any:
    """One head that copies its input: row s of M is W_E[s] @ W_U, and every word but w0 has W_E = (1, 0)."""
    W_U = torch.tensor(columns).T
    W_E = torch.tensor([[0.0, 0.0], *[[1.0, 0.0]] * (len(columns) - 1)])
    return FakeModel(W_E, torch.eye(2)[None, None], torch.eye(2)[None, None], W_U)


@pytest.mark.parametrize(
    ("columns", "hits"),
    [
        ([3, 5, 4, 2, 1], {1: [1, 0, 0, 0], 2: [1, 1, 0, 0], 4: [1, 1, 1, 0]}),  # w1 first, w4 last
        ([0, 7, 5, 5, 5, 1], {1: [1, 0, 0, 0, 0], 2: [1, 1, 1, 1, 0]}),  # w2, w3 and w4 tie for second
    ],
)
def test_by_hand(columns: list[float], hits: dict[int, list[int]]) -> None:
    model = identity_model([[logit, word] for word, logit in enumerate(columns)])
    relation = Relation("r", "Knowledge", [("w1", f"w{t}") for t in range(1, len(columns))])
    for k, hit in hits.items():
        scores = relation_scores(model, relation, k=k, min_pairs=1, min_effect=0.0)
        assert scores.values is not None
        assert scores.values.values[0, 0, 0].tolist() == hit
        if sum(hit) > 1:  # a single hit is not tested
            assert scores.dataset["null_phi"].item() == pytest.approx(sum(hit) / len(hit))


@pytest.mark.parametrize("source", ["first_mlp", "embedding"])
@pytest.mark.parametrize("k", [1, 40, 790])
def test_equals_the_plain_loop(k: int, source: Any) -> None:
    model, first_mlp = random_model(), source == "first_mlp"
    scores = relation_scores(model, relations(), k=k, source=source, min_pairs=1)
    assert scores.values is not None
    for i, relation in enumerate(relations()):
        hits, suppressed = plain_loop(model, relation, number, 1 if relation.copying else k, first_mlp)
        mine = scores.values.values[:, :, i]
        assert np.abs(mine[..., : len(relation.pairs)] - hits).max() == 0
        assert np.isnan(mine[..., len(relation.pairs) :]).all()
        np.testing.assert_allclose(scores.scores.values[..., i], hits.mean(-1), rtol=1e-12)
        np.testing.assert_allclose(scores.dataset["suppression"].values[..., i], suppressed.mean(-1), rtol=1e-12)


def test_q_of_some_heads_is_over_these_and_the_others_have_no_label() -> None:
    model, heads = random_model(), ["L0H0", "L1H1"]
    some = relation_scores(model, relations(), k=60, min_pairs=1, heads=heads).dataset
    at = ([0, 1], [0, 1])
    np.testing.assert_array_equal(some["q_value"].values[at], q_values(some["p_value"].values[at]))
    with pytest.warns(UserWarning, match="too few pairs"):
        assert set(label_heads(model, relations(), heads=heads).table()["head"]) == set(heads)


def test_result_tells_what_it_rests_on() -> None:
    several = [*relations(), Relation("short", "Knowledge", [("w1", "w2"), ("w3", "two words")])]
    with pytest.warns(UserWarning, match=r"fewer than 20 single-token pairs are skipped: short \(1 of 2\)"):
        scores = relation_scores(random_model(), several, min_pairs=20)
    assert scores.dataset["relation"].values.tolist() == ["first", "second", "copy"]
    assert scores.dataset["relation_category"].values.tolist() == ["Knowledge", "Made up", "Algorithmic"]
    assert scores.dataset["n_pairs"].values.tolist() == [40, 20, 40]
    metadata = scores.provenance
    lost = {"target of several tokens": ["w3 -> two words"]}
    assert metadata["ledger"]["short"] == {"given": 2, "kept": 1, "scored": False, "lost": lost}
    assert metadata["ledger"]["first"] == {"given": 40, "kept": 40, "scored": True, "lost": {}}
    assert metadata["k"] == {"first": 10, "second": 10, "copy": 1}
    assert metadata["model"] == "fake"
    assert not metadata["interrupted"]
    assert (scores.kind, scores.unit) == ("relations", "share of pairs")
    assert (scores.dataset["p_value"].values[scores.scores.values < 0.05] == 1).all()
    finite = scores.dataset.isel(relation=0)
    assert (finite["ci_low"] <= finite["score"]).all()
    assert (finite["score"] <= finite["ci_high"]).all()


def test_a_folded_norm_is_a_scale_of_what_is_read_and_of_what_is_written() -> None:
    model, g = random_model(), torch.Generator().manual_seed(3)
    model.attention_scales, model.out_scales = torch.rand(2, 3, 16, generator=g) + 0.2
    model.final = torch.rand(16, generator=g) + 0.2
    folded = random_model()
    folded.W_V = [scale[:, None] * weight for scale, weight in zip(model.attention_scales, model.W_V, strict=True)]
    folded.W_O = [weight * scale for scale, weight in zip(model.out_scales, model.W_O, strict=True)]
    folded.W_U = model.final[:, None] * folded.W_U
    options: dict[str, Any] = {"k": 60, "min_pairs": 1}
    mine, raw = (relation_scores(model, relations(), norm=norm, **options) for norm in ("folded", "raw"))
    assert np.array_equal(mine.scores, relation_scores(folded, relations(), norm="raw", **options).scores)
    assert not np.array_equal(mine.scores, raw.scores)


def test_the_null_shuffles_targets() -> None:
    columns = torch.eye(9)  # M is W_V W_O: token i gives its own row
    mapped = torch.zeros(2, 9, 9)
    for i in range(1, 7):
        mapped[0, i, i % 6 + 1] = 1.0  # a head that maps each word to the next
        mapped[1, i, 2 + (i + 1) % 2] = 1.0  # and one that maps words to w2 or w3, whatever they are
    model = FakeModel(torch.eye(9), mapped[None], torch.eye(9).expand(1, 2, 9, 9), columns)
    relation = Relation("next", "Made up", [(f"w{i}", f"w{i % 6 + 1}") for i in range(1, 7)])
    scores = relation_scores(model, relation, k=1, min_pairs=1)
    assert scores.scores.values[0, :, 0] == pytest.approx([1, 2 / 6])
    p = scores.dataset["p_value"].values[0, :, 0]
    assert p[0] == pytest.approx(1 / 720)  # of 6! matchings one has as many hits
    assert p[1] == pytest.approx(3 / 6 * 3 / 5)  # w2 must go to one of three words, and w3 to one of the other three
    assert scores.dataset["null_phi"].values[0, :, 0] == pytest.approx([1 / 6, 1 / 6])


def test_a_large_vocabulary_gets_a_larger_k() -> None:
    small, large = random_model(), random_model()
    large.d_vocab = 100_000
    large.unembedding = lambda start, stop: torch.cat([large.W_U, torch.zeros(16, 99_200)], 1)[:, start:stop]
    found = [relation_scores(m, relations()[::2]).provenance["k"] for m in (small, large)]
    assert found == [{"first": 10, "copy": 1}, {"first": 25, "copy": 3}]
