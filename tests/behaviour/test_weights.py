"""Circuits in the weights against full matrices, and their null against drawn rotations."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import mechheads as mh
import mechheads.behaviour.circuits
from mechheads.behaviour import composition_scores, copying_scores, head_directions
from mechheads.behaviour.circuits import sides, singular
from mechheads.behaviour.composition import Way, _variance
from mechheads.prompts.encoding import token_strings
from support import weight_surgery
from support.levels import ONE_FIRST
from support.planted_models import PlantedHead, planted_model

ARCHITECTURES = ONE_FIRST


def whole(model: mh.Model, circuit: str, layer: int, head: int) -> Tensor:
    """QK or OV as a full matrix."""
    scale = model.attention_scale(layer).double().diag()
    if circuit == "QK":
        return scale @ model.W_Q[layer][head].double() @ model.W_K[layer][head].double().T @ scale
    out = model.attention_out_scale(layer).double().diag()
    return scale @ model.W_V[layer][head].double() @ model.W_O[layer][head].double() @ out


@pytest.mark.parametrize("circuit", ["QK", "OV"])
def test_singular_directions_are_those_of_the_full_matrix(small: mh.Model, circuit: str) -> None:
    for layer in range(small.n_layers):
        u, s, v = singular(*sides(small, layer, circuit))  # type: ignore[arg-type]
        for head in range(small.n_heads):
            full = whole(small, circuit, layer, head)
            torch.testing.assert_close(
                s[head].double(), torch.linalg.svdvals(full)[: small.d_head], rtol=1e-3, atol=1e-6
            )
            made = u[head] @ s[head].diag() @ v[head].T
            torch.testing.assert_close(made.double(), full, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("way", ["Q", "K", "V"])
def test_composition_is_that_of_full_matrices(small: mh.Model, way: Way) -> None:
    found = composition_scores(small, way)
    receivers = found.dataset["receiver"].values.tolist()
    for layer, head in np.ndindex(small.n_layers, small.n_heads):
        M = whole(small, "OV", layer, head)
        for at, name in enumerate(receivers):
            later = mh.HeadId.parse(name)
            score = found.scores.values[layer, head, at]
            if later.layer <= layer:
                assert np.isnan(score)
                continue
            N = whole(small, "OV" if way == "V" else "QK", later.layer, later.head)
            N = N.T if way == "K" else N
            expected = (M @ N).norm() / (M.norm() * N.norm())
            assert score == pytest.approx(float(expected), rel=2e-3)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_composition_is_that_of_transformerlens_if_norms_do_not_scale(
    name: str, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny(name), tmp_path / name)
    plain = weight_surgery.load(folder)
    with torch.no_grad():
        for parameter, weight in plain.named_parameters():
            if parameter.endswith(("ln_1.weight", "input_layernorm.weight")):
                weight.fill_(1.0)
    plain.save_pretrained(folder)
    model = mh.load(folder)
    for way in get_args(Way):
        found = model.model.all_composition_scores(way)
        theirs = getattr(found, "scores", found).detach().flatten(2)
        ours = composition_scores(model, way).scores.values
        later = np.isfinite(ours)
        np.testing.assert_allclose(ours[later], theirs.numpy()[later], rtol=1e-4)


def test_the_null_is_that_of_drawn_rotations() -> None:
    d, rng = 24, np.random.default_rng(0)
    for ranks in ((3, 8), (8, 8), (1, 2)):
        M, N = (rng.normal(size=(d, rank)) @ np.diag(rng.uniform(0.2, 2, rank)) for rank in ranks)
        M, N = M / np.linalg.norm(M), N / np.linalg.norm(N)
        turned = scipy.stats.ortho_group.rvs(d, size=4000, random_state=rng)
        drawn = ((M.T @ turned @ N) ** 2).sum((1, 2))
        a, b = (float((np.linalg.svd(X)[1] ** 4).sum()) for X in (M, N))
        variance = float(_variance(torch.tensor(a), torch.tensor(b), d))
        assert drawn.mean() == pytest.approx(1 / d, rel=0.05)
        assert drawn.var() == pytest.approx(variance, rel=0.12)
        p = scipy.stats.gamma.sf(drawn, 1 / (d**2 * variance), scale=d * variance)
        for level in (0.05, 0.2, 0.5):
            assert abs((p <= level).mean() - level) < 0.03, (ranks, level)


def test_random_weights_compose_by_chance(llama: mh.Model) -> None:
    found = composition_scores(llama, "K")
    later = np.isfinite(found.scores.values)
    assert np.nanmean(np.abs(found.dataset["z"].values)) < 2
    assert found.dataset["expected"].values[later] == pytest.approx(llama.d_model**-0.5)
    p = found.dataset["p_value"].values[later]
    assert ((p >= 0) & (p <= 1)).all() and np.isnan(found.dataset["p_value"].values[~later]).all()
    assert ((found.dataset["z"].values[later] > 0.5) <= (p < 0.5)).all() and p[
        found.scores.values[later].argmax()
    ] < 0.2


def test_copying_is_by_the_eigenvalues_of_the_map_from_tokens_to_logits(
    small: mh.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechheads.behaviour.circuits, "_TOKENS", 100)
    found = copying_scores(small)
    E, U = small.W_E.double(), small.final_scale().double()[:, None] * small.W_U.double()
    E, U = E - E.mean(0), U - U.mean(1, keepdim=True)
    for layer, head in np.ndindex(small.n_layers, small.n_heads):
        eigenvalues = torch.linalg.eigvals(E @ whole(small, "OV", layer, head) @ U)
        expected = float(eigenvalues.real.sum() / eigenvalues.abs().sum())
        assert found.scores.values[layer, head] == pytest.approx(expected, abs=2e-3)


def test_a_planted_head_that_copies_and_one_that_suppresses_are_told_from_the_others() -> None:
    suppresses = PlantedHead("suppresses", ["copies"])
    made = planted_model(plant={"L0H3": ["copies"], "L0H5": suppresses})
    found = copying_scores(made.model)
    score, null, spread = (found.dataset[name].values for name in ("score", "null", "null_std"))
    assert score[0, 3] > 0.35 and score[0, 5] < -0.35
    others = np.ones(score.shape, dtype=bool)
    others[0, [3, 5]] = False
    assert abs(score[others]).max() < 0.35
    assert abs(null).max() < 0.15 and 0.01 < spread.min() < spread.max() < 0.2
    assert found["L0H3"]["q_value"] < 0.05 and found["L0H5"]["q_value"] < 0.05
    again = mh.settings(seed=1)(copying_scores)(made.model)
    assert (again.dataset["score"].values == score).all() and (again.dataset["null"].values != null).any()


def test_directions_name_the_tokens_nearest_to_them(llama: mh.Model) -> None:
    found = head_directions(llama, "L1H2", n=2, top=3)
    u, s, v = (each[0] for each in singular(*(side[2, None] for side in sides(llama, 1, "OV"))))
    assert found["singular"].tolist() == pytest.approx(s[:2].tolist())
    assert found["share"].tolist() == pytest.approx((s[:2] ** 2 / (s**2).sum()).tolist())
    written = (llama.final_scale() * v[:, 0]) @ llama.W_U
    for column, best in (
        ("reads", llama.W_E @ u[:, 0]),
        ("writes", written),
        ("reads_negative", -llama.W_E @ u[:, 0]),
        ("writes_negative", -written),
    ):
        tokens = map(repr, token_strings(best[: len(llama.tokenizer)].topk(3).indices.tolist(), llama.tokenizer))
        assert found[column].iloc[0] == "  ".join(tokens)
    assert list(head_directions(llama, "L1H2", "QK", n=1))[2:] == ["query", "key", "query_negative", "key_negative"]


def test_what_cannot_be_is_said(llama: mh.Model) -> None:
    with pytest.raises(ValueError, match="way is 'O'"):
        composition_scores(llama, "O")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="L9H0"):
        head_directions(llama, "L9H0")
    with pytest.raises(ValueError, match="circuit is 'VO'"):
        head_directions(llama, "L0H0", "VO")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n is 99; it must be at least 1 and at most 8"):
        head_directions(llama, "L0H0", n=99)
