"""Function-vector heads against one full forward pass for each head and prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.behaviour import function_vector, function_vector_heads
from mechheads.labels import shuffled_labels
from support.levels import ONE_FIRST
from support.oracles import activations, blend, forward, ids_of, name, with_z
from support.texts import WORD_PAIRS

ARCHITECTURES = ONE_FIRST

TEMPLATE = " {source} is {target} the"
WORDS = mh.Relation("words", None, WORD_PAIRS)
CAPITALS = mh.Relation("capitals", None, [*WORD_PAIRS[:4], ("store", "book"), ("Mary", "gave")])
QUICK: dict[str, Any] = {"shots": 3, "n": 2, "template": TEMPLATE}


def last_z(model: mh.Model, tokens: Any, row: int) -> Tensor:
    """z of every head at the last token of a prompt [layer, head, d_head]."""
    seen = activations(model, ids_of(tokens, row))
    return torch.stack([seen[name(layer, "z")][0, -1] for layer in range(model.n_layers)])


def slow(model: mh.Model, relation: mh.Relation) -> tuple[np.ndarray, np.ndarray, Tensor]:
    """Effects with the means over right and over shuffled prompts [layer, head, prompt], and the first means."""
    pairs = shuffled_labels(model, relation, shots=3, n=4, template=TEMPLATE, seed=0)
    clean, shuffled = pairs.tokens(model)
    means = [torch.stack([last_z(model, side, row) for row in (2, 3)]).mean(0) for side in (clean, shuffled)]
    effects = np.zeros((2, model.n_layers, model.n_heads, 2))
    assert clean.answer is not None
    for row in (0, 1):
        ids, answer = ids_of(shuffled, row), int(clean.answer[row])
        here = activations(model, ids)
        before = forward(model, ids)[0, -1].log_softmax(-1)[answer]
        for layer, head in np.ndindex(model.n_layers, model.n_heads):
            old = here[name(layer, "z")][0, :, head]
            for side, mean in enumerate(means):
                z = blend(old, mean[layer, head].expand_as(old), len(old) - 1)
                after = with_z(model, ids, layer, head, z)[0, -1].log_softmax(-1)[answer]
                effects[side, layer, head, row] = float(after - before)
    return effects[0], effects[1], means[0]


def test_effects_are_those_of_full_forward_passes(small: mh.Model) -> None:
    found = function_vector_heads(small, [WORDS, CAPITALS], **QUICK)
    for at, relation in enumerate((WORDS, CAPITALS)):
        values, control, means = slow(small, relation)
        rows = slice(2 * at, 2 * at + 2)
        np.testing.assert_allclose(found.dataset["values"].values[..., rows], values, atol=2e-4)
        np.testing.assert_allclose(found.dataset["by_relation"].values[..., at], values.mean(-1), atol=2e-4)
        np.testing.assert_allclose(found.dataset["control_by_relation"].values[..., at], control.mean(-1), atol=2e-4)
        np.testing.assert_allclose(found.dataset["mean_z"].values[:, :, at], means.numpy(), atol=1e-4)
    data = found.dataset
    np.testing.assert_allclose(data["excess"].values, data["score"].values - data["control"].values)
    assert data["prompt_relation"].values.tolist() == ["words"] * 2 + ["capitals"] * 2
    assert (found.kind, found.unit) == ("function_vector", "nats")
    assert "2310.15213" in found.citation()


def test_the_metric_of_both_versions_is_told(llama: mh.Model) -> None:
    found = function_vector_heads(llama, WORDS, heads="L0H0", **QUICK)
    pairs = shuffled_labels(llama, WORDS, shots=3, n=4, template=TEMPLATE, seed=0)
    for side, kept in zip(pairs.tokens(llama), ("clean_metric", "shuffled_metric"), strict=True):
        assert side.answer is not None
        for row in (0, 1):
            expected = forward(llama, ids_of(side, row))[0, -1].log_softmax(-1)[int(side.answer[row])]
            assert found.dataset[kept].values[row] == pytest.approx(float(expected), abs=1e-4)


def test_the_vector_is_what_the_heads_write_on_average(llama: mh.Model, tmp_path: Path) -> None:
    found = function_vector_heads(llama, [WORDS, CAPITALS], **QUICK)
    _, _, means = slow(llama, CAPITALS)
    expected = sum(means[layer, head] @ llama.W_O[layer][head] for layer, head in ((0, 1), (2, 3)))
    assert isinstance(expected, Tensor)
    torch.testing.assert_close(
        function_vector(llama, found, "capitals", ["L0H1", "L2H3"]), expected, rtol=1e-3, atol=1e-4
    )
    again = mh.HeadScores.load(found.save(tmp_path / "found.nc"))
    best = found.heads(2)
    torch.testing.assert_close(function_vector(llama, again, "words", 2), function_vector(llama, found, "words", best))
