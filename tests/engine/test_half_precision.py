"""Half precision reports how far it is from float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mechheads as mh

PAIRS = mh.PromptPairs(
    [" The capital of France is", " The capital of Spain is"],
    [" The capital of Italy is", " The capital of Germany is"],
    [" Paris", " Madrid"],
    [" Rome", " Berlin"],
)


@pytest.fixture(scope="module")
def half(tiny) -> mh.Model:
    return mh.load(tiny("llama"), dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def wide(half, tiny) -> mh.Model:
    """The same rounded weights in float32."""
    model = mh.load(tiny("llama"))
    with torch.no_grad():
        for parameter in model.model.parameters():
            parameter.copy_(parameter.bfloat16())
    return model


def analyses():
    yield "sweep", lambda model: mh.activation_patch(model, PAIRS)
    yield "positions", lambda model: mh.ablate(model, PAIRS, positions="each")
    yield "paths", lambda model: mh.path_patch(model, PAIRS, receivers="L2H1.q")
    yield "where a head looks", lambda model: mh.ablate(model, PAIRS, metric=mh.patching.attention_to("L2H1", 2))
    yield "matrix", lambda model: mh.path_matrix(model, PAIRS, receivers=["final", "L2H1.v"])


@pytest.mark.parametrize("run", [run for _, run in analyses()], ids=[name for name, _ in analyses()])
def test_the_difference_on_the_sample_is_the_difference_from_float32(half, wide, run):
    result, exact = run(half), run(wide)
    assert half.dtype == torch.bfloat16 and next(half.model.parameters()).dtype == torch.bfloat16
    precision = result.provenance["precision"]
    assert len(precision["sample"]) == 4
    off = [
        np.abs(np.asarray(result.values[head.layer, head.head] - exact.values[head.layer, head.head]))
        for head in map(mh.HeadId.parse, precision["sample"])
    ]
    assert precision["largest_difference"] == pytest.approx(np.nanmax(off), abs=1e-4)
    assert precision["mean_difference"] == pytest.approx(np.nanmean(off), abs=1e-4)
    assert precision["largest_difference"] > 0
    assert f"within {precision['largest_difference']:.2g} of float32 on 4 heads" in repr(result)


def test_the_sample_holds_the_strongest_heads(half):
    result = mh.activation_patch(half, PAIRS)
    size = np.abs(np.asarray(result.values)).mean(-1)
    strongest = mh.HeadId(*map(int, np.unravel_index(size.argmax(), size.shape)))
    assert str(strongest) in result.provenance["precision"]["sample"]


def test_float32_says_nothing(wide):
    assert "precision" not in mh.activation_patch(wide, PAIRS).provenance


def test_no_room_is_said(half, monkeypatch):
    monkeypatch.setattr("mechheads.engine.half_precision._free_memory", lambda: 0)
    assert "no room" in mh.activation_patch(half, PAIRS).provenance["precision"]
