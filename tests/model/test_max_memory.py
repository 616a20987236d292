"""Models whose weights do not fit into memory: the same numbers, and one block in memory at a time."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import mechheads as mh
from mechheads.engine.sweep import plan
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.model.load import load_again
from mechheads.model.on_disk import WeightsOnDisk
from mechheads.model.sources import ModelSourceError
from support.every_analysis import ANALYSES, assert_same_numbers
from support.levels import architectures, few
from support.releases import only_on_4
from support.texts import CLEAN, PAIRS

TINY = [*architectures("llama", "qwen", "gemma"), *(pytest.param(name, marks=[only_on_4]) for name in ("gemma3",))]
IDS = torch.tensor([[5, 9, 7, 30, 12, 80]])


def sizes(folder: Path) -> tuple[int, int]:
    """The bytes of the weights beside the blocks, and of one block, counted from the file."""
    stored = safetensors.torch.load_file(folder / "model.safetensors")
    blocks = [weight.nbytes for name, weight in stored.items() if ".layers." in name]
    return sum(weight.nbytes for weight in stored.values()) - sum(blocks), sum(blocks) // 3


def load_with(folder: Path, blocks: int) -> mh.Model:
    """The model with room for its embeddings and so many blocks."""
    others, block = sizes(folder)
    return mh.load(folder, max_memory=others + blocks * block)


def disk(model: mh.Model) -> WeightsOnDisk:
    assert model.backend.on_disk is not None
    return model.backend.on_disk


def blocks_in_memory(model: mh.Model) -> list[int]:
    """The layers of which any weight is in memory."""
    blocks = [block.original_component for block in model.model.blocks]
    return [layer for layer, block in enumerate(blocks) if not all(weight.is_meta for weight in block.parameters())]


@pytest.fixture(scope="module", params=TINY)
def folder(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> Path:
    return tiny(request.param)


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[mh.Model, mh.Model]:
    """The model in memory, and with all its blocks on disk."""
    return mh.load(folder, backend="bridge"), load_with(folder, 1)


@pytest.fixture(scope="module")
def llama(tiny: Callable[[str], Path]) -> mh.Model:
    return load_with(tiny("llama"), 1)


def run_of(model: mh.Model) -> mh.patching.HeadCache:
    return model.cache(CLEAN)


@pytest.mark.parametrize("analysis", few(ANALYSES, "cache", "patch z", "paths", "edges", "ships", "read"))
def test_every_analysis_gives_the_same_and_leaves_no_block_in_memory(
    analysis: str, both: tuple[mh.Model, mh.Model]
) -> None:
    assert_same_numbers(analysis, both, 2e-5, 1e-4)
    assert blocks_in_memory(both[1]) == []


def test_one_block_is_in_memory_at_a_time(llama: mh.Model) -> None:
    seen = {}

    def note(value: Any, hook: Any) -> None:
        seen[hook.layer()] = blocks_in_memory(llama)

    llama.backend.run(IDS, [(llama.hook_name("z", layer), note) for layer in range(3)])
    assert seen == {0: [0], 1: [1], 2: [2]}
    disk(llama).drop()


def test_blocks_that_fit_stay_in_memory(tiny: Callable[[str], Path]) -> None:
    model = load_with(tiny("llama"), 2)
    assert blocks_in_memory(model) == [2] and set(disk(model).layer_bytes) == {0, 1}
    run_of(model)
    assert blocks_in_memory(model) == [2]
    assert load_with(tiny("llama"), 3).backend.on_disk is None


def test_a_plan_counts_what_is_read(llama: mh.Model) -> None:
    on_disk = disk(llama)
    whole = sum(on_disk.layer_bytes.values())
    planned = plan(llama, PAIRS.clean, intervention=mh.Zero())
    before = on_disk.bytes_read
    mh.ablate(llama, PAIRS.clean, intervention="zero")
    assert (
        planned.bytes_read == on_disk.bytes_read - before == 3 * whole
    )  # one cached run, one wave of all heads, its proof
    assert planned.weights_on_disk == whole and "read 3 times" in repr(planned)


def test_small_waves_read_the_later_layers_again(llama: mh.Model) -> None:
    on_disk = disk(llama)
    block = on_disk.layer_bytes[0]
    limits = Limits(tokens=36)
    planned = mh.settings(budget=limits)(plan)(llama, PAIRS.clean, intervention=mh.Zero())
    before = on_disk.bytes_read
    mh.ablate(llama, PAIRS.clean, intervention="zero", budget=limits)
    assert planned.bytes_read > 6 * block
    assert 0 <= planned.bytes_read - (on_disk.bytes_read - before) <= planned.units * block


def test_in_memory_a_plan_reads_nothing(tiny: Callable[[str], Path]) -> None:
    planned = plan(mh.load(tiny("llama")), CLEAN, intervention=mh.Zero())
    assert planned.bytes_read == planned.reads == 0 and "weights on disk" not in repr(planned)


def test_parts_of_the_model_run_too(both: tuple[mh.Model, mh.Model]) -> None:
    for run in (lambda model: model.model(IDS), lambda model: model.first_mlp(model.W_E[:4])):
        here, there = map(run, both)
        torch.testing.assert_close(here, there, rtol=1e-4, atol=1e-5)
        disk(both[1]).drop()


def test_a_ledger_knows_it_as_the_model_in_memory(both: tuple[mh.Model, mh.Model], tmp_path: Path) -> None:
    stored = [mh.ablate(model, CLEAN, store=tmp_path / "sweep.ledger") for model in both]
    assert np.array_equal(*(one.values for one in stored))
    assert len(Ledger.list(tmp_path / "sweep.ledger")) == 1
    assert blocks_in_memory(both[1]) == []


def test_it_is_loaded_again_in_the_same_way(llama: mh.Model) -> None:
    assert llama.source is not None
    again = load_again(llama.source, "cpu")
    assert blocks_in_memory(again) == [] and disk(again).layer_bytes == disk(llama).layer_bytes


def test_an_interrupt_while_weights_are_read_leaves_the_model_whole(
    both: tuple[mh.Model, mh.Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, slots = both[1], disk(both[1])._slots[1]
    kind, read = type(slots[0]), type(slots[0]).read

    def stop(slot: Any) -> torch.Tensor:
        if slot is slots[2]:
            raise KeyboardInterrupt
        return read(slot)

    wanted = run_of(model).final
    with monkeypatch.context() as patch:
        patch.setattr(kind, "read", stop)
        with pytest.raises(KeyboardInterrupt):
            run_of(model)
    assert blocks_in_memory(model) == []
    assert torch.equal(run_of(model).final, wanted)


def test_a_memory_too_small_says_what_is_needed(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ModelSourceError, match=r"max_memory is 1 KB, but model .* needs at least .* KB: .* embeddings"):
        mh.load(tiny("llama"), max_memory="1 KB")


def test_the_least_memory_leaves_all_blocks_on_disk(tiny: Callable[[str], Path]) -> None:
    least, known = mh.load(tiny("llama"), max_memory="least"), load_with(tiny("llama"), 1)
    assert disk(least).layer_bytes == disk(known).layer_bytes and len(disk(least).layer_bytes) == 3
    assert torch.equal(run_of(least).final, run_of(known).final)


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_weights_that_transformerlens_splits_are_refused(name: str, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="max_memory"):
        mh.load(tiny(name), max_memory="150 KB")


def test_weights_in_a_pickle_are_refused(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder = shutil.copytree(tiny("llama"), tmp_path / "pickled")
    torch.save(safetensors.torch.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    others, block = sizes(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelSourceError, match=r"the weights of model .* not in safetensors .* without max_memory"):
        mh.load(folder, max_memory=others + block)
