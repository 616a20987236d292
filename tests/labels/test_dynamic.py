"""Dynamic scores against a loop of full forward passes, and their correlation with static ones."""

# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from support.texts import CAPITALS

TEMPLATES = [" When {source} went to the store", " yes the capital of {source}"]
PAIRS = [*CAPITALS, ("Gerry", "big")]


def relation(copying: bool = False) -> mh.Relation:
    return mh.Relation("capitals", "Knowledge", PAIRS, copying=copying)


def slow(model: mh.Model, template: str, k: int) -> np.ndarray:
    """phi_dyn of every head [layer, head, context], from one cached run a prompt and whole rows of logits."""
    hits = np.zeros((model.n_layers, model.n_heads, 2, len(PAIRS)))
    group = model.n_heads // model.n_kv_heads
    for i, (source, target) in enumerate(PAIRS):
        text = template.replace("{source}", source)
        run = model.cache([text], sites=("z", "pattern", "v"))
        own = model.tokenizer(f" {target}", add_special_tokens=False)["input_ids"][0]
        before = len(model.tokenizer(template[: template.index("{source}")] + source)["input_ids"])
        for layer in range(model.n_layers):
            for head in range(model.n_heads):
                values = run.v.layer(layer)[0, head // group]
                pattern = run.pattern[layer, head][0]
                for c, row in enumerate((pattern[-1], np.eye(len(pattern), dtype=np.float32)[before - 1])):
                    weights = pattern.new_tensor(np.asarray(row))
                    logits = (weights @ values) @ model.W_O[layer][head] @ model.W_U
                    hits[layer, head, c, i] = float((logits > logits[own]).sum() < k)
    return hits.mean(-1)


@pytest.mark.parametrize("kind", ["llama", "gemma"])
def test_equals_the_slow_loop(kind: str, loaded: Callable[[str], mh.Model]) -> None:
    model = loaded(kind)
    scores = mh.labels.dynamic_scores(model, relation(), k=60, templates=TEMPLATES, min_pairs=5)
    assert scores.extra_dims == ("relation", "template", "context")
    for t, template in enumerate(TEMPLATES):
        wanted = slow(model, template, 60)
        np.testing.assert_allclose(scores.scores.values[:, :, 0, t], wanted, atol=1e-9)
    assert 0 < scores.scores.values.mean() < 1
    assert scores.provenance["ledger"]["capitals"]["kept"] == 5  # " Gerry" is several tokens, which is fine here


@pytest.mark.slow
def test_capitals_are_read_where_the_weights_say(model: mh.Model) -> None:
    capitals = mh.Relation("capitals", "Knowledge", mh.Relation.load("country_to_capital").pairs[:60])
    static = mh.relation_scores(model, capitals, source="first_mlp", min_pairs=10)
    dynamic = mh.labels.dynamic_scores(model, capitals, min_pairs=10, templates=["The story of {source} contains"])
    without = dynamic.select(context="without")
    assert str(without.heads(1)[0]) == "L23H4"
    assert np.corrcoef(static.scores.values.ravel(), without.scores.values.ravel())[0, 1] > 0.8


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"templates": ["nothing here"]}, r"'nothing here' must contain \{source\} exactly once"),
        ({"templates": "a {source}"}, "give a list of texts"),
        ({"heads": ["L2H4"]}, "head L2H4 is out of range"),
    ],
)
def test_bad_arguments_are_refused(llama: mh.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mh.labels.dynamic_scores(llama, relation(), **options)
