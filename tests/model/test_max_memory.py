"""Models whose weights do not fit into memory: the same numbers, and one block in memory at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

import mechheads as mh
from mechheads.engine.sweep import plan
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


@pytest.mark.parametrize("name", ["gpt2", "neox"])
def test_weights_that_transformerlens_splits_are_refused(name: str, tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="max_memory"):
        mh.load(tiny(name), max_memory="150 KB")
