"""Examples of heads against a slow loop over windows, queries and keys."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
import mechheads.behaviour.examples
import mechheads.behaviour.windows
from mechheads.behaviour import head_examples
from mechheads.behaviour.examples import PARTS, profile_and_examples
from mechheads.prompts.encoding import token_strings
from support.levels import ONE_FIRST

ARCHITECTURES = ONE_FIRST

WINDOW = 24


def texts_for(model: mh.Model, n: int) -> list[list[int]]:
    """Windows of random tokens, the last one shorter."""
    draw = torch.Generator().manual_seed(0)
    lengths = [WINDOW] * (n - 1) + [WINDOW - 8]
    return [torch.randint(model.d_vocab, (length,), generator=draw).tolist() for length in lengths]


def by_hand(model: mh.Model, tokens: list[int], layer: int, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Attention, the norm of what each key offers, and the activity at each query."""
    run = model.cache([tokens], sites=("pattern", "v"))
    resid = model.backend.module.run_with_cache(torch.tensor([tokens]))[1][f"blocks.{layer}.hook_resid_pre"][0].double()
    A = run.pattern[layer, head][0].double()
    W_O = model.W_O[layer][head].double() * model.attention_out_scale(layer).double()
    size = (run.v[layer, head][0].double() @ W_O).norm(dim=1)
    return A.numpy(), size.numpy(), ((A[:, 1:] @ size[1:]) / resid.norm(dim=1)).numpy()


def test_one_reading_gives_the_profile_and_examples_of_the_first_half_of_its_windows(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechheads.behaviour.examples, "USUAL_WINDOW", WINDOW)
    monkeypatch.setattr(mechheads.behaviour.examples, "_WINDOW", WINDOW // 2)
    texts = texts_for(llama, 6)
    profile, examples = profile_and_examples(llama, texts)
    assert profile.dataset.equals(mh.profile_heads(llama, texts, window=WINDOW).dataset)
    words = np.array([-1, *examples.ids])
    assert sorted(words[examples.tokens + 1].tolist()) == sorted(text[: WINDOW // 2] for text in texts)
    for layer, head in ((0, 1), (llama.n_layers - 1, llama.n_heads - 1)):
        for row in examples.of((layer, head)).itertuples():
            _, _, activity = by_hand(llama, texts[row.text][: WINDOW // 2], layer, head)
            assert row.activity == pytest.approx(activity.max(), rel=1e-3)


def test_every_example_is_that_of_a_slow_loop(small: mh.Model) -> None:
    texts = texts_for(small, 7)
    examples = head_examples(small, texts, window=WINDOW, per_quantile=3)
    for layer, head in ((0, 1), (small.n_layers - 1, small.n_heads - 1)):
        seen = [by_hand(small, tokens, layer, head) for tokens in texts]
        most = np.array([activity.max() for _, _, activity in seen])
        rows = examples.of((layer, head))
        texts_of = rows["text"].tolist()
        assert texts_of[0] == most.argmax()
        assert rows.query("part == 'lowest'")["text"].tolist() == [most.argmin()]
        for example, row in rows.iterrows():
            A, size, activity = seen[row["text"]]
            tokens = texts[row["text"]]
            n = len(tokens)
            assert float(row["activity"]) == pytest.approx(most[row["text"]], rel=1e-3)
            assert activity[row["query"]] == pytest.approx(most[row["text"]], rel=1e-3)
            words = [examples.words[at] for at in examples.tokens[row["window"]][:n]]
            assert words == token_strings(tokens, small.tokenizer)
            kept = examples.attention(example)
            assert kept.shape == (n, n)
            assert abs(kept[:, 0] - A[:, 0]).max() < 0.5 / 255 + 1e-4
            assert abs(np.where(kept > 0, kept - A, 0)).max() < 0.5 / 255 + 1e-4
            threshold = np.sort(A[:, 1:], axis=1)[:, -3]
            assert (kept[:, 1:] >= np.where(A[:, 1:] > threshold[:, None] + 1e-4, A[:, 1:] - 0.01, 0)).all()
            moved = A[row["query"]] * size
            assert moved[row["key"]] > 0.95 * moved[1:].max() - 0.02 * size.max()
            assert abs(examples.sizes[example, :n] / 255 - size / size.max()).max() < 0.5 / 255 + 1e-4


def test_every_tenth_of_the_activity_has_its_examples(llama: mh.Model) -> None:
    texts = texts_for(llama, 40)
    examples = head_examples(llama, texts, window=WINDOW, n_tokens=2000)
    assert len(examples.table) == llama.n_layers * llama.n_heads * (2 * 10 + 2 + 2)
    counts = examples.table.groupby(["head", "part"]).size().unstack()[list(PARTS)]
    assert (counts == [1, *[2] * 10, 1, 2]).all().all()
    everything = head_examples(llama, texts, window=WINDOW, n_tokens=2000, per_quantile=4)
    for head, rows in everything.table.groupby("head"):
        tenths = rows[rows["part"].str.contains("%")].groupby("part", sort=False)
        assert [part for part, _ in tenths] == list(PARTS[1:-2])
        activity = tenths["activity"].agg(["min", "max"])
        assert (activity["min"].to_numpy()[:-1] >= activity["max"].to_numpy()[1:]).all(), head
        assert all(len(set(each["text"])) == 4 for _, each in tenths)
    other = mh.settings(seed=1)(head_examples)(llama, texts, window=WINDOW, n_tokens=2000)
    assert not other.table["text"].equals(examples.table["text"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 8}, "window is 8; it must be at least 16"),
        ({"window": 300}, "window is 300; it must be at most 256"),
        ({"n_tokens": 3}, "n_tokens is 3; it must be at least 16"),
        ({"per_quantile": 0}, "per_quantile is 0; it must be at least 1"),
        ({"n_tokens": 10**6, "budget": "1 MB"}, r"n_tokens is 1000000, which needs \d+ MB .* give at most 10922"),
        ({"texts": [[9] * 20]}, "texts have fewer than two windows of at least 16 tokens; give longer texts"),
    ],
)
def test_what_cannot_be_is_said(llama: mh.Model, options: dict[str, Any], message: str) -> None:
    given = {"texts": [[9] * 20, [8] * 20]} | options
    with pytest.raises(ValueError, match=message):
        head_examples(llama, **given)
