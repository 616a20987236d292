"""Profiles against slow loops over queries and keys, and against hand-made attention."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
import mechheads.behaviour.profile
import mechheads.behaviour.windows
from mechheads.behaviour import profile_heads
from mechheads.behaviour.measure import MEASURES, delimiters, measure
from mechheads.behaviour.profile import Totals
from mechheads.behaviour.programs import PROGRAMS
from mechheads.behaviour.windows import Windows, default_texts, windows_of
from mechheads.data import folder
from support.ctrl_c import stopped_at
from support.levels import TWO_FIRST
from support.made_workers import MadeWorkers, pressing
from support.programs import slow

ARCHITECTURES = TWO_FIRST


def ids_for(model: mh.Model, windows: int, length: int, seed: int = 0, of: int = 9) -> torch.Tensor:
    """Windows in which tokens repeat."""
    some = torch.randperm(model.d_vocab, generator=torch.Generator().manual_seed(seed))[:of]
    return some[torch.randint(of, (windows, length), generator=torch.Generator().manual_seed(seed + 1))]


def keys_by_hand(tokens: list[int], delimiter: Any, q: int) -> dict[str, tuple[list[int], list[int]]]:
    """The keys of each behaviour for query q, and the keys among which they are permuted."""
    middle, every = list(range(1, q)), list(range(q + 1))
    return {
        "first": ([0], every),
        "self": ([q], every),
        "previous": ([q - 1], middle),
        "duplicate": ([k for k in middle if tokens[k] == tokens[q]], middle),
        "induction": ([k for k in middle if tokens[k - 1] == tokens[q]], middle),
        "delimiter": ([k for k in middle if delimiter[tokens[k]]], middle),
    }


def by_hand(model: mh.Model, tokens: list[int]) -> dict[str, np.ndarray]:
    """Every measure of one window, from the cached run, query by query and key by key."""
    run = model.cache([tokens], sites=("pattern", "z", "v"))
    resid = model.backend.module.run_with_cache(torch.tensor([tokens]))[1]
    delimiter = delimiters(model.tokenizer, model.d_vocab)
    shape, n = (model.n_layers, model.n_heads), len(tokens)
    found = {name: np.full(shape, np.nan) for name in MEASURES}
    U = model.W_U.double() * model.final_scale().double()[:, None]
    for layer, head in np.ndindex(shape):
        A = run.pattern[layer, head][0].double()
        W_O = model.W_O[layer][head].double() * model.attention_out_scale(layer).double()
        values, out = run.v[layer, head][0].double() @ W_O, run.z[layer, head][0].double() @ W_O
        moved = A * values.norm(dim=1)
        moved = moved / moved.sum(1, keepdim=True)
        sums: dict[str, list[float]] = {name: [] for name in MEASURES}
        for q in range(2, n):
            for name, (keys, pool) in keys_by_hand(tokens, delimiter, q).items():
                for weights, ending in ((A, ""), (moved, "_moved")):
                    if keys:
                        sums[f"{name}{ending}"].append(float(weights[q, keys].sum()))
                        sums[f"{name}{ending}_null"].append(float(weights[q, pool].sum()) * len(keys) / len(pool))
        pairs = [(q - k, float(A[q, k])) for q in range(2, n) for k in range(1, q)]
        all_of_it = np.array([a for _, a in pairs])
        groups = [np.array([a for d, a in pairs if d == distance]) for distance in {d for d, _ in pairs}]
        between = sum(len(group) * (group.mean() - all_of_it.mean()) ** 2 for group in groups)
        sums["position"] = [between / ((all_of_it - all_of_it.mean()) ** 2).sum()]
        sums["position_null"] = [(len(groups) - 1) / (len(pairs) - 1)]
        sums["entropy"] = [float(-(A[q, : q + 1] * A[q, : q + 1].clamp_min(1e-300).log()).sum()) for q in range(n)]
        sums["distance"] = [sum(d * a for d, a in pairs) / all_of_it.sum()]
        before = resid[f"blocks.{layer}.hook_resid_pre"][0].double()
        sums["norm"] = [float(out[q].norm() / before[q].norm()) for q in range(1, n)]
        for q in range(2, n, 4):
            if q < 3:
                continue
            at = 1 + int(A[q, 1:q].argmax())
            logit = out[q] @ U[:, tokens]
            others = [k for k in range(1, q) if k != at]
            above = [1.0 if logit[at] > logit[k] else 0.5 if tokens[k] == tokens[at] else 0.0 for k in others]
            sums["copying"].append(float(np.mean(above)))
        for name, each in sums.items():
            found[name][layer, head] = np.mean(each) if each else np.nan
        for name in PROGRAMS:
            weights = slow(name, tokens)
            fit = np.minimum(A.numpy(), weights).sum() / np.maximum(A.numpy(), weights).sum()
            found[f"{name}_fit"][layer, head] = fit
    return found


def test_every_measure_is_that_of_a_slow_loop(small: mh.Model) -> None:
    ids = ids_for(small, 2, 14)
    found, at_distance = measure(small, ids)
    for window, tokens in enumerate(ids.tolist()):
        expected = by_hand(small, tokens)
        for at, name in enumerate(MEASURES):
            np.testing.assert_allclose(found[at, :, :, window], expected[name], rtol=2e-4, atol=2e-5, err_msg=name)
    pattern = small.cache(ids.tolist()).pattern
    for layer, head in np.ndindex(small.n_layers, small.n_heads):
        by_distance = [
            sum(float(pattern[layer, head][:, q, q - d].sum()) for q in range(2, 14) if q - d >= 1) for d in range(14)
        ]
        assert by_distance[0] > 0  # the token itself is not in the middle
        np.testing.assert_allclose(at_distance[layer, head, 1:], by_distance[1:], atol=1e-5)


def test_blocks_hold_the_means_of_their_windows_in_bounded_memory(llama: mh.Model) -> None:
    totals, given = Totals.none(llama, 16), np.random.default_rng(0).normal(size=(len(MEASURES), 3, 4, 1000))
    given[2, :, :, ::3] = np.nan
    batch = Windows(torch.zeros(4, 16, dtype=torch.long), [0] * 4)
    for start in range(0, 1000, 4):
        totals = totals.plus(batch, torch.from_numpy(given[..., start : start + 4]), torch.zeros(3, 4, 16))
    assert totals.windows == 1000 and totals.values.shape[-1] == 250
    expected = np.nanmean(given.reshape(len(MEASURES), 3, 4, 250, 4), axis=-1)
    np.testing.assert_allclose(totals.values, expected)


def test_interrupted_or_killed_it_goes_on_to_the_same_bits(
    llama: mh.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [ids_for(llama, 1, length, seed)[0].tolist() for seed, length in enumerate((70, 20, 33, 64, 90, 17))]
    monkeypatch.setattr(mechheads.behaviour.windows, "AT_ONCE", 64)
    whole = profile_heads(llama, texts, window=32)
    stored = mh.settings(store=tmp_path / "profile.ledger")(profile_heads)
    for call in (2, 4):
        monkeypatch.setattr(mechheads.behaviour.profile, "measure", stopped_at(call, measure))
        with pytest.warns(UserWarning, match=r"interrupted after \d+ tokens; the result is of these"):
            part = stored(llama, texts, window=32)
        assert part.provenance["interrupted"] and part.provenance["n_windows"] < whole.provenance["n_windows"]
    monkeypatch.setattr(mechheads.behaviour.profile, "measure", measure)
    assert stored(llama, texts, window=32).dataset.identical(whole.dataset)
    monkeypatch.setattr(mechheads.behaviour.profile, "measure", stopped_at(1, measure))
    assert stored(llama, texts, window=32).dataset.identical(whole.dataset)


@pytest.mark.parametrize("n", [3])
def test_workers_give_the_same_bits_in_whatever_order_they_answer(
    llama: mh.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int
) -> None:
    texts = [ids_for(llama, 1, length, seed)[0].tolist() for seed, length in enumerate((70, 20, 33, 64, 90, 17))]
    options: dict[str, Any] = {"window": 32}
    monkeypatch.setattr(mechheads.behaviour.windows, "AT_ONCE", 32)
    monkeypatch.setattr(mechheads.behaviour.windows, "_BATCHES_A_WORKER", 3)  # more than one round
    whole = profile_heads(llama, texts, **options)
    workers = MadeWorkers(n)
    workers.ray.last_first = True
    assert mh.settings(workers=workers)(profile_heads)(llama, texts, **options).dataset.identical(whole.dataset)
    first_round = [units[0].ids.tolist() for units in workers.computed][: 3 * n]
    order = [windows.ids.tolist() for windows in windows_of(llama, texts, 32, None)]
    numbers = list(map(order.index, first_round))
    assert (numbers != sorted(numbers)) == (n > 1)
    file = tmp_path / "profile.ledger"
    monkeypatch.setattr(mechheads.behaviour.profile, "measure", stopped_at(3, measure))
    with pytest.warns(UserWarning, match="interrupted after 64 tokens"):
        mh.settings(store=file)(profile_heads)(llama, texts, **options)
    monkeypatch.setattr(mechheads.behaviour.profile, "measure", measure)
    before = len(workers.computed)
    again = mh.settings(workers=workers, store=file)(profile_heads)(llama, texts, **options)
    assert again.dataset.identical(whole.dataset)
    assert len(workers.computed) - before == before - 2  # two batches were in the file


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_finishes_the_windows_in_flight(llama: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [ids_for(llama, 1, 16, seed)[0].tolist() for seed in range(8)]
    monkeypatch.setattr(mechheads.behaviour.windows, "AT_ONCE", 16)
    workers, _ = pressing(1, at=3)
    with pytest.warns(UserWarning, match="interrupted after 64 tokens; the result is of these"):
        part = mh.settings(workers=workers)(profile_heads)(llama, texts, window=16)
    assert part.dataset["values"].equals(profile_heads(llama, texts[:4], window=16).dataset["values"])


def test_windows_are_cut_from_texts_and_those_of_one_length_run_together(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mechheads.behaviour.windows, "AT_ONCE", 64)
    texts = [list(range(70)), list(range(10)), list(range(20, 72)), list(range(5, 42))]

    def cut(length: int, most: int | None) -> list[tuple[list[int], int, list[int]]]:
        found = windows_of(llama, texts, length, most)
        return [(each.ids[:, 0].tolist(), each.ids.shape[1], each.text) for each in found]

    assert cut(32, None) == [([0, 32], 32, [0, 0]), ([20, 5], 32, [2, 3]), ([52], 16, [2])]
    assert cut(16, 100) == [([0, 16, 32, 48], 16, [0, 0, 0, 0]), ([20, 36], 16, [2, 2])]
    assert cut(32, 40) == [([0], 32, [0])]
    with pytest.raises(ValueError, match=r"texts\[1\] contains token ids outside 0..374"):
        list(windows_of(llama, [[9] * 20, [600]], 16, None))


def test_every_window_of_a_text_begins_as_the_model_expects(loaded: Callable[[str], mh.Model]) -> None:
    model = loaded("gemma")
    begin, ids = model.tokenizer.bos_token_id, model.tokenizer(" yes no cat dog" * 12)["input_ids"]
    found = [each.ids for each in windows_of(model, [" yes no cat dog" * 12], 17, None)]
    assert ids[0] == begin and len(ids) == 49
    assert found[0][:, 0].tolist() == [begin] * 3 and found[0][:, 1:].flatten().tolist() == ids[1:]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"window": 8}, "window is 8; it must be at least 16"),
        ({"n_tokens": 0}, "n_tokens is 0; it must be at least 16"),
        ({"window": 10_000}, "window is 10000, but the model's context has"),
        ({"texts": "A long text, not a file. " * 400}, "texts 'A long text, .*is not a file; give a file, or a list"),
        ({"texts": [5]}, r"texts\[0\] is 5; give a string, a chat \(a list of messages\) or a list of token ids"),
        (
            {"texts": "A text, not a file."},
            "texts 'A text, not a file.' is not a file; give a file, or a list of texts",
        ),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: str, llama: mh.Model) -> None:
    with pytest.raises(ValueError, match=error):
        profile_heads(llama, **{"texts": [[9] * 40]} | options)


def test_the_corpus_has_texts_of_twelve_kinds_and_none_twice() -> None:
    kinds = {file.name: file.read_text(encoding="utf-8").split("\n----\n") for file in folder("corpus").iterdir()}
    assert len(kinds) == 12
    texts = [text for each in kinds.values() for text in each]
    assert len(set(texts)) == len(texts) and all(len(text) > 200 for text in texts)
    in_order = default_texts()
    turns = max(map(len, kinds.values()))
    expected = [kinds[name][turn] for turn in range(turns) for name in sorted(kinds) if turn < len(kinds[name])]
    assert [next(in_order) for _ in texts] == expected
