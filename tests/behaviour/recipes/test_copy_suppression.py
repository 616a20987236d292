"""Copy suppression against direct logit attribution by source, and planted heads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.behaviour import copy_suppression, copying_scores
from mechheads.runs.head_cache import HeadCache
from support.blank import Blank
from support.levels import few

QUICK: dict[str, Any] = {"window": 16}
ROWS = [
    [5, 9, 30, 9, 12, 30, 41, 5, 77, 9, 12, 50, 30, 5, 61, 9],
    [8, 90, 91, 92, 90, 93, 8, 94, 95, 90, 96, 97, 8, 98, 92, 99],
]


@pytest.fixture(scope="module", params=few(("llama", "gpt2", "gemma3", "neox"), "llama"))
def small(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> mh.Model:
    backend = "bridge" if request.param == "gemma3" else None  # HookedTransformer does not know it
    return mh.load(tiny(request.param), backend=backend)


def parts_of(model: mh.Model, row: list[int], query: int) -> dict[int, np.ndarray]:
    """The parts of every head and source in the logit of each earlier token at a query [layer, head, source]."""
    tokens = sorted(set(row[1:query]))
    prompts = mh.Prompts([row[: query + 1]] * len(tokens), answer=tokens)
    parts = mh.behaviour.logit_attribution(model, prompts, by="source").dataset["values"].values
    return {token: parts[..., i] for i, token in enumerate(tokens)}


def slow(run: HeadCache, row: list[int], layer: int, query: int, given: tuple[dict, int], top: int) -> Any:
    """Effects on the predicted token and on the control's, and the attention to each [head]; None if not predicted."""
    parts, control = given
    model, earlier = run.need_model(), row[1:query]
    stream = run.stores["resid_pre"][layer][:, query]
    lens = model.unembed(model.backend.finish(stream[:, None]))[0, 0].detach()
    predicted = max(earlier, key=lambda token: float(lens[token]))
    if int((lens > lens[predicted]).sum()) >= top:
        return None
    mean = np.mean([parts[token][layer] for token in earlier], axis=0)
    found = []
    for token in (predicted, control):
        at = [key for key in range(1, query) if row[key] == token]
        found.append(-(parts[token][layer] - mean)[:, at].sum(1))
        found.append(run.pattern.layer(layer)[0, :, query, at].sum(-1).numpy())
    return [found[0], found[2], found[1], found[3]]


@pytest.mark.parametrize("top", [1000, 60])
def test_effects_are_those_of_logit_attribution_by_source(small: mh.Model, top: int) -> None:
    found = copy_suppression(small, ROWS, top=top, **QUICK)
    drawn = torch.rand(2, 4, 16, generator=torch.Generator().manual_seed(0))
    queries = [3, 7, 11, 15]
    parts = [[parts_of(small, row, query) for query in queries] for row in ROWS]
    runs = [HeadCache.run(small, [row], sites=("resid_pre", "pattern")) for row in ROWS]
    for layer in range(small.n_layers):
        means, shares = [], []
        for window, row in enumerate(ROWS):
            each = []
            for i, query in enumerate(queries):
                lens = small.unembed(
                    small.backend.finish(runs[window].stores["resid_pre"][layer][:, query][:, None])
                ).detach()
                first = max(row[1:query], key=lambda token: float(lens[0, 0, token]))
                others = [key for key in range(1, query) if row[key] != first]
                control = row[max(others, key=lambda key: float(drawn[window, i, key]))]
                each.append(slow(runs[window], row, layer, query, (parts[window][i], control), top))
            counted = [one for one in each if one is not None]
            shares.append(len(counted) / 4)
            means.append(np.mean(counted, axis=0) if counted else np.full((4, small.n_heads), np.nan))
            scale = np.nanmax(np.abs(means[-1][0]), initial=0) + 1e-3
            assert found.dataset["values"].values[layer, :, window] == pytest.approx(
                means[-1][0], abs=4e-3 * scale, nan_ok=True
            )
        assert found.dataset["predicted"].values[layer] == pytest.approx(np.mean(shares))
        if not np.isnan(means).any():
            for name, at in (("control", 1), ("attention", 2), ("attention_control", 3)):
                expected = np.mean(means, axis=0)[at]
                assert found.dataset[name].values[layer] == pytest.approx(expected, abs=4e-3 * scale)
    np.testing.assert_allclose(found.dataset["copying"].values, copying_scores(small).scores.values, atol=1e-5)


OUT, QUERY, KEY, ID = range(4)


@torch.no_grad()
def planted() -> Blank:
    """L0H0 and L0H1 give their attention to " France", which all tokens predict; one lowers it, the other raises it."""
    blank = Blank()
    blank.embedding[:, QUERY] = 1
    blank.embedding[:, OUT] = 1
    blank.embedding[blank.token(" France"), [KEY, ID]] = 1
    blank.unembedding[blank.token(" France"), OUT] = 1
    attention = blank.attention[0]
    attention.k_proj.weight[1, KEY] = 20
    attention.v_proj.weight[0, ID] = 1
    for head, written in ((0, -1), (1, 1)):
        attention.q_proj.weight[4 * head + 1, QUERY] = 1
        attention.o_proj.weight[OUT, 4 * head] = written
    return blank


def test_planted_heads_that_lower_and_raise_what_is_predicted(tmp_path: Path) -> None:
    blank = planted()
    model = blank.load(tmp_path / "planted")
    words = [blank.token(f" {word}") for word in ("Italy", "big", "dog", "cat", "one", "two", "three", "yes", "no")]
    france, rows = blank.token(" France"), []
    for seed in range(16):
        others = np.random.default_rng(seed).choice(words, 14).tolist()
        rows.append([others[0], france, *others])
    found = copy_suppression(model, rows, **QUICK)
    score = found.scores.values
    assert score[0, 0] > 0.5 > 0 > -0.5 > score[0, 1]
    assert np.delete(score.ravel(), [0, 1]) == pytest.approx(0)
    assert score[0, 0] == pytest.approx(-score[0, 1], rel=1e-3)
    assert found.dataset["control"].values == pytest.approx(0, abs=1e-3)
    assert found["L0H0"]["q_value"] < 0.05 and found.dataset["attention"].values[0, 0] > 0.99
    # the mean of W_U over earlier tokens holds the share 1 / (q - 1) of France, at the queries 3, 7, 11 and 15
    assert score[0, 0] == pytest.approx(np.mean([1 - 1 / (q - 1) for q in (3, 7, 11, 15)]), rel=1e-2)
