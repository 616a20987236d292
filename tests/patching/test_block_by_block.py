"""Gradients with one block's graph at a time equal those through the whole graph; little memory takes them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.engine.memory import PeakBytes
from mechheads.limits import Limits
from mechheads.metrics import logit_diff
from mechheads.patching.gradients import Path, Size, gradients_of
from support.levels import TWO_FIRST
from support.texts import CAPITALS_PAIRS

ARCHITECTURES = TWO_FIRST

GB = 2**30


WAYS = {
    "base": lambda clean, corrupted: None,
    "steps": lambda clean, corrupted: Path.between(clean, corrupted, 3),
}


@pytest.mark.parametrize("kind", WAYS)
@pytest.mark.parametrize("first", [0, 1])
def test_gradients_equal_those_through_the_whole_graph(small, kind, first):
    clean, corrupted = (small.cache(CAPITALS_PAIRS.side(side)) for side in ("clean", "corrupted"))
    path = WAYS[kind](clean, corrupted)
    layers = range(first, small.n_layers)
    whole, parts = (
        gradients_of(clean, logit_diff, layers, Size(2, by_block=by_block), path) for by_block in (False, True)
    )
    for layer in layers:
        torch.testing.assert_close(parts[layer], whole[layer], rtol=1e-4, atol=1e-6)


def test_less_memory_is_used(llama):
    clean = llama.cache([list(range(3, 40))])
    answer = mh.metric(reads="last")(lambda logits, context: logits[:, -1, 5])
    peaks = []
    for by_block in (False, True):
        with PeakBytes() as memory:
            gradients_of(clean, answer, (0,), Size(1, by_block=by_block))
        peaks.append(memory.peak)
    assert peaks[1] < peaks[0]


def seven_billion() -> SimpleNamespace:
    """The sizes of a model with seven billion parameters."""
    backend = SimpleNamespace(d_mlp=11008, on_disk=None, devices=SimpleNamespace(free=None))
    sizes = {"n_layers": 32, "n_heads": 32, "d_model": 4096, "d_vocab": 32000}
    return SimpleNamespace(**sizes, dtype=torch.float32, device=torch.device("cpu"), backend=backend)


def test_a_long_prompt_of_a_large_model_is_planned_block_by_block():
    """A token takes 4 (6 d_model + 4 d_mlp + 3 n_heads pos) = 389,632 bytes in a block, 1.5 times that in its graph."""
    model, limits = seven_billion(), Limits()
    found = Size.that_fits(model, (10, 300, 1), 4 * GB, limits)
    a_token = 1.5 * 389_632 + 6 * 33 * 4096 * 4
    a_prompt = 300 * a_token + 3 * 4 * 32000
    assert found.by_block and found.rows == int(4 * GB // a_prompt) == 3
    assert found.bytes == int(3 * a_prompt) < 4 * GB
    least = Size.that_fits(model, (10, 300, 1), GB // 2, limits)
    assert (least.rows, least.by_block) == (1, True) and GB // 2 < least.bytes < 4 * GB / 3
    short = Size.that_fits(model, (10, 20, 1), 4 * GB, limits)
    assert not short.by_block and short.bytes < 4 * GB


@pytest.mark.parametrize("n_read", [1, 7, 20])
def test_prompts_run_together_only_if_their_logits_fit_too(n_read):
    for room in range(GB // 2, 8 * GB, GB // 8):
        found = Size.that_fits(seven_billion(), (100, 20, n_read), room, Limits())
        assert found.bytes <= room or found.rows == 1


def test_little_memory_runs_block_by_block(llama):
    whole = mh.patching.attribution_patch(llama, CAPITALS_PAIRS)
    with pytest.warns(UserWarning, match="these gradients need about"):
        parts = mh.settings(budget="20 KB")(mh.patching.attribution_patch)(llama, CAPITALS_PAIRS)
    np.testing.assert_allclose(parts.scores, whole.scores, rtol=1e-4, atol=1e-6)
