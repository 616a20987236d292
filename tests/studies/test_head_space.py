"""The space of heads: components from numpy's SVD of a plain run, norms by hand, planted planes, and noise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mechheads as mh
from mechheads.prompts.encoding import token_strings
from mechheads.studies.head_space import SPACES, HeadSpace, covariance, head_space, principal, share_of
from support import weight_surgery
from support.levels import architectures
from support.releases import only_on_4

ARCHITECTURES = [
    *architectures("gpt2", "llama", "neox"),
    *(pytest.param(name, marks=[only_on_4]) for name in ("qwen", "gemma3", "bloom")),
]
ROWS = [np.random.default_rng(seed).integers(3, 370, 64).tolist() for seed in range(6)]
NORMS = {"gemma3": 1.0, "qwen": 0.0}
"""What is added to the weight of a model's norm of q and k."""


@pytest.fixture(scope="module")
def found(loaded) -> HeadSpace:
    return head_space(loaded("llama"), ROWS)


def normed(states: torch.Tensor, folder: Path, layer: int, name: str, site: str) -> torch.Tensor:
    """q or k after the model's norm, from the file of its weights."""
    weights = load_file(folder / "model.safetensors")
    weight = weights[f"model.layers.{layer}.self_attn.{site}_norm.weight"] + NORMS[name]
    return states / (states.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_components_are_those_of_an_svd_of_a_plain_run(name, loaded, tiny):
    model = loaded(name)
    space = head_space(model, ROWS, shown=50)
    run = model.cache(ROWS, sites=SPACES)
    assert space.points.shape == (3, 3, 4, 2, 50) and space.chance == 2 / model.d_head
    at, position = space.table["window"].to_numpy(), space.table["position"].to_numpy()
    assert position.min() > 0 and len(set(zip(at, position, strict=True))) == 50
    for i, site in enumerate(SPACES):
        for layer, head in np.ndindex(3, 4):
            states = run.site(site)[layer, head]
            if name in NORMS and site != "z":
                states = normed(states, tiny(name), layer, name, site)
            states = states.double().numpy()
            flat = states[:, 1:].reshape(-1, model.d_head)
            mean = flat.mean(0)
            _, sizes, directions = np.linalg.svd(flat - mean, full_matrices=False)
            share = (sizes**2 / (sizes**2).sum())[:2]
            np.testing.assert_allclose(space.shares[i, layer, head], share, atol=1e-4)
            where = (states[at, position] - mean) @ directions[:2].T
            given = space.coordinates((layer, head), site)
            largest = np.take_along_axis(directions[:2], np.abs(directions[:2]).argmax(1)[:, None], 1)[:, 0]
            step = (space.ends[i, layer, head, :, 1] - space.ends[i, layer, head, :, 0]) / 255
            if sizes[0] > 1.02 * sizes[1] > 1.04 * sizes[2]:
                assert (np.abs(given - np.sign(largest) * where) <= step * 0.5 + 2e-3 * sizes[0]).all()


def test_activity_is_that_of_the_examples(loaded):
    model = loaded("llama")
    space = head_space(model, ROWS, shown=10_000)
    examples = mh.behaviour.head_examples(model, ROWS, window=64, per_quantile=1)
    assert len(space.table) == 6 * 63
    for head in ("L0H1", "L2H3"):
        most = float(space.of(head)["activity"].max())
        theirs = examples.of(head).query("part == 'highest'")
        assert theirs["activity"].tolist() == [pytest.approx(most, rel=1e-4)]


def test_heads_that_share_keys_have_one_k(found, loaded):
    model = loaded("llama")
    assert (model.n_heads, model.n_kv_heads) == (4, 2)
    q, k, _ = found.points
    assert (k[:, 0] == k[:, 1]).all() and (k[:, 2] == k[:, 3]).all()
    assert (k[:, 1] != k[:, 2]).any() and (q[:, 0] != q[:, 1]).any()
    assert (found.held[1, :, 0] == found.held[1, :, 1]).all()


def test_tokens_are_shown_in_their_text(found, loaded):
    texts = [[found.words[i] for i in row] for row in found.tokens]
    for row in found.table.to_dict("records"):
        assert texts[row["window"]][row["position"]] == row["token"]
    assert texts[0] == token_strings(ROWS[0], loaded("llama").tokenizer)


def test_a_planted_line_holds_all_variance(tiny, tmp_path):
    plain = weight_surgery.load(tiny("gpt2"))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        of_head = slice(64 + 2 * 8, 64 + 3 * 8)  # the values of L1H2
        line = torch.outer(torch.randn(32, generator=generator), torch.randn(8, generator=generator))
        plain.transformer.h[1].attn.c_attn.weight[:, of_head] = line
    plain.save_pretrained(tmp_path)
    mh.load(tiny("gpt2")).tokenizer.save_pretrained(tmp_path)
    space = head_space(mh.load(tmp_path), ROWS)
    np.testing.assert_allclose(space.shares[2, 1, 2], [1, 0], atol=1e-5)
    assert space.held[2, 1, 2] == pytest.approx(1, abs=1e-5)
    assert space.shares[2, 1, 1].sum() < 0.99


def test_shares_are_of_the_whole_and_signs_are_fixed():
    rng = np.random.default_rng(0)
    states = torch.tensor(rng.normal(size=(5, 200, 2)) @ rng.normal(size=(5, 2, 2)))
    shares, components = principal(covariance(states))
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_allclose(share_of(covariance(states), components), 1)
    turned, others = principal(covariance(-states))
    np.testing.assert_allclose(turned, shares)
    np.testing.assert_allclose(others, components)
    assert (components.gather(1, components.abs().argmax(1, keepdim=True)) > 0).all()
    assert principal(covariance(torch.ones(1, 9, 4)))[0].isnan().all()


def test_in_noise_the_other_half_holds_what_chance_gives():
    """The share itself is far above chance, as components fit the tokens that they come from."""
    states = torch.tensor(np.random.default_rng(0).normal(size=(200, 2, 100, 16)))
    fitted, components = principal(covariance(states[:, 0]))
    assert fitted.sum(1).mean() > 1.5 * 2 / 16
    assert float(share_of(covariance(states[:, 1]), components).mean()) == pytest.approx(2 / 16, rel=0.03)


def test_tokens_are_drawn_by_its_seed(found, loaded):
    with mh.settings(seed=1):
        other = head_space(loaded("llama"), ROWS)
    assert not other.table.equals(found.table)
    np.testing.assert_allclose(other.shares, found.shares)
    few = head_space(loaded("llama"), ROWS, n_tokens=128)
    assert few.tokens.shape == (2, 64)


def test_the_texts_of_the_package_do_without_being_named(loaded):
    space = head_space(loaded("gpt2"))
    assert space.tokens.shape == (16, 64) and space.provenance["n_tokens"] == 16 * 63
    assert space.provenance["texts"] == "of the package" and len(space.table) == 96


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"n_tokens": 127}, "n_tokens is 127; it must be at least 128"),
        ({"shown": 0}, "shown is 0"),
        ({"texts": [ROWS[0]]}, "fewer than two windows of 64 tokens"),
    ],
)
def test_what_cannot_be_done_is_said(loaded, given: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        head_space(loaded("gpt2"), **{"texts": ROWS} | given)


def test_a_head_or_a_space_that_there_is_not(found):
    with pytest.raises(ValueError, match="L9H9"):
        found.of("L9H9")
    with pytest.raises(ValueError, match="space is 'v'; give one of q, k, z"):
        found.coordinates("L0H0", "v")
