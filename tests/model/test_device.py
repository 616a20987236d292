"""Where a model runs: the best device there is, or the one that is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import mechheads as mh
from mechheads.model.load import _find_device


@pytest.mark.parametrize(("cuda", "mps", "found"), [(1, 1, "cuda"), (1, 0, "cuda"), (0, 1, "cpu"), (0, 0, "cpu")])
def test_auto_is_cuda_or_else_the_cpu(cuda: int, mps: int, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(cuda))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: bool(mps))
    assert _find_device("auto") == torch.device(found)


def test_a_model_loads_onto_it(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    for model in (mh.load(tiny("gpt2"), device="auto"), mh.load(tiny("gpt2"))):
        assert model.device == torch.device("cpu")
        assert model.provenance()["device"] == "cpu"


@pytest.mark.parametrize("device", ["automatic", "", "cuda:99"])
def test_a_device_that_is_not_there_is_named(device: str) -> None:
    for within, given in (("auto", device), (device, "auto")):
        with (
            mh.settings(device=within),
            pytest.raises(ValueError, match=r"device '.*' is not available .* choose \"cpu\", or \"auto\""),
        ):
            mh.load(device=given)
