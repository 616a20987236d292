"""Deltas: what is added to a few heads, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import mechheads as mh
import mechheads.model.sources.load
from mechheads.heads import HeadId
from mechheads.model.sources.default import SIDES, Delta

CHANGED = (HeadId(0, 3), HeadId(2, 0), HeadId(2, 1))
METADATA = {"model": "tiny", "seed": 3, "heads": ["L0H3"]}


@pytest.fixture
def delta() -> Delta:
    drawn = torch.Generator().manual_seed(0)
    return Delta(
        {
            head: {"W_Q": torch.randn(32, 8, generator=drawn), "W_O": torch.randn(8, 32, generator=drawn)}
            for head in (CHANGED[1], CHANGED[0], CHANGED[2])
        },
        METADATA,
    )


def weights(model: mh.Model) -> dict[str, list[Tensor]]:
    """All matrices of all heads, by kind, layer after layer."""
    return {kind: [getattr(model, kind)[layer].clone() for layer in range(3)] for kind in ("W_Q", "W_K", "W_V", "W_O")}


def check_change(before: mh.Model, after: mh.Model, delta: Delta, atol: float) -> None:
    """Exactly the heads of a delta changed, by exactly what it says."""
    old, new = weights(before), weights(after)
    for kind in old:
        for layer in range(3):
            for head in range(4):
                both: Any = delta.weights.get(HeadId(layer, head), {})
                wanted = both.get(kind, torch.zeros_like(old[kind][layer][head]))
                torch.testing.assert_close(new[kind][layer][head] - old[kind][layer][head], wanted, atol=atol, rtol=0)
    torch.testing.assert_close(after.W_E, before.W_E)
    torch.testing.assert_close(after.W_U, before.W_U)


def saved(delta: Delta, path: Path) -> Path:
    """A file of a delta, in half precision, as those of the package are."""
    tensors = {f"{head}.{side}": both[side].half() for head, both in delta.weights.items() for side in SIDES}
    save_file(tensors, path, {"about": json.dumps(delta.metadata)})
    return path


def test_it_is_read_from_half_precision(delta: Delta, tmp_path: Path):
    again = Delta.load(saved(delta, tmp_path / "some.safetensors"))
    assert again.heads == delta.heads == CHANGED and again.metadata == METADATA
    for head in CHANGED:
        assert set(again.weights[head]) == set(SIDES)
        for side in SIDES:
            assert again.weights[head][side].dtype == torch.float32
            torch.testing.assert_close(again.weights[head][side], delta.weights[head][side].half().float())


def test_a_named_model_is_the_default_one_with_its_delta(
    tiny: Callable[[str], Path], delta: Delta, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = saved(delta, tmp_path / "some.safetensors")
    monkeypatch.setattr(mechheads.model.sources.load, "shipped", lambda name: path)
    monkeypatch.setattr(mechheads.model.sources.load, "default_folder", lambda: tiny("llama"))
    after = mh.load("smollm2-135m-refusal")
    assert after.name == "smollm2-135m-refusal"
    check_change(mh.load(tiny("llama")), after, Delta.load(path), atol=1e-6)
    with pytest.raises(ValueError, match="revision"):
        mh.load("smollm2-135m-refusal", revision="main")
