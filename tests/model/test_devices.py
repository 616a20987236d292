"""One model over several simulated devices: the same numbers, and no operation with tensors of two devices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.key import is_witness, model_mark, witness
from mechheads.model.load import load_again
from support.every_analysis import ANALYSES, MORE, assert_same_numbers
from support.levels import few
from support.releases import only_on_3
from support.simulated_devices import MixedDevices, simulation
from support.texts import CLEAN

FIRST, SECOND = (torch.device("lazy", number) for number in range(2))
OFTEN = (
    *("ablate", "patch v", "mlps", "paths", "paths of MLPs", "frozen MLPs", "edges", "attribution"),
    *("logits", "profile", "copying", "generate"),
)
"""Analyses that are always tried: every line that moves a tensor in any of them moves one in these."""
FIRST_PARTS = ("model.embed_tokens", "model.rotary_emb", "model.layers.0", "model.layers.1")
PLACES = dict.fromkeys(FIRST_PARTS, "lazy:0") | dict.fromkeys(("model.layers.2", "model.norm", "lm_head"), "lazy:1")


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with simulation():
        yield


@pytest.fixture(scope="module")
def both(tiny: Callable[[str], Path]) -> tuple[mh.Model, mh.Model]:
    """The model on the CPU, and over two devices."""
    given: dict[str, Any] = {"dtype": torch.float64}
    return mh.load(tiny("llama"), backend="bridge", **given), mh.load(tiny("llama"), device_map=PLACES, **given)


@pytest.mark.parametrize("analysis", few([*ANALYSES, *MORE], *OFTEN))
def test_every_analysis_gives_the_same(analysis: str, both: tuple[mh.Model, mh.Model]) -> None:
    assert_same_numbers(analysis, both, 1e-5)


def test_blocks_are_on_their_devices_and_all_else_at_home(both: tuple[mh.Model, mh.Model]) -> None:
    model = both[1]
    on, run = model.backend.devices, model.cache(CLEAN)
    assert (on.home, on.blocks) == (FIRST, (FIRST, FIRST, SECOND))
    for layer, block in enumerate(model.model.blocks):
        assert {weight.device for weight in block.parameters()} == {on.blocks[layer]}
    assert {run.z.layer(2).device, run.logits.device, model.W_O[2].device, model.W_U.device} == {FIRST}
    seen: list[torch.device] = []
    model.backend.run(run.tokens.ids, [(model.hook_name("z", 2), lambda z, hook: seen.append(z.device))])
    assert seen == [FIRST]


@pytest.mark.release
def test_a_ledger_knows_it_as_the_model_on_one_device(both: tuple[mh.Model, mh.Model]) -> None:
    assert len({model_mark(model) for model in both}) == 1
    assert is_witness(both[1], witness(both[0]))


@pytest.mark.release
def test_copies_of_it(tiny: Callable[[str], Path]) -> None:
    model = mh.load(tiny("llama"), device_map=PLACES)
    assert model.source is not None
    again = load_again(model.source, "cpu")
    assert again.backend.devices == model.backend.devices
    np.testing.assert_array_equal(*(mh.ablate(each, CLEAN).scores for each in (model, again)))


def test_a_bridge_that_accelerate_has_spread(tiny: Callable[[str], Path]) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    model = mh.wrap(TransformerBridge.boot_transformers(str(tiny("llama")), device_map=PLACES))
    wanted = mh.ablate(mh.load(tiny("llama"), backend="bridge"), CLEAN).scores
    np.testing.assert_allclose(mh.ablate(model, CLEAN).scores, wanted, atol=1e-5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "not on GPUs": (
        {"device_map": PLACES | {"lm_head": "cpu"}},
        r"device_map: 'lm_head' is on 'cpu'; parts of a model go to GPUs, and it does not fit into these",
    ),
    "memory of all": ({"device_map": "auto", "max_memory": "1 GB"}, r"max_memory is '1 GB' with device_map; give the"),
    "no map": (
        {"max_memory": {0: "1 GB"}},
        r'max_memory gives the memory of each GPU, which needs device_map="auto"',
    ),
    "device": ({"device_map": PLACES, "device": "lazy:0"}, r"device is 'lazy:0' with device_map, .* leave device out"),
    "missing": ({"device_map": {"lm_head": "lazy:0", "model.norm": "lazy:1"}}, r"cannot be read as a model"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str, tiny: Callable[[str], Path]) -> None:
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        mh.load(tiny("llama"), **given)


@only_on_3
def test_hooked_transformers_are_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match=r"device_map: HookedTransformer keeps all weights in the memory of one"):
        mh.load(tiny("llama"), backend="hooked", device_map=PLACES)
    hooked = mh.load(tiny("llama"), backend="hooked").model
    hooked.blocks[2].to(FIRST)
    with pytest.raises(ValueError, match=r"is a HookedTransformer on 2 devices; load it with mh\.load"):
        mh.wrap(hooked)


def test_workers_are_refused(both: tuple[mh.Model, mh.Model]) -> None:
    with pytest.raises(ValueError, match=r"workers: model .* is on 2 devices, and each worker would load it onto all"):
        mh.ablate(both[1], CLEAN, workers=2)


def test_the_simulation_refuses_tensors_of_two_devices() -> None:
    here, there = torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)
    for other in (there, torch.ones(2)):
        with pytest.raises(MixedDevices, match="all tensors should be on the same device"):
            here + other
    assert (here + torch.tensor(1.0)).device == here[torch.tensor([1])].device == FIRST
