"""One model over several simulated devices: the same numbers, and no operation with tensors of two devices."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.fingerprints import model_fingerprint
from mechheads.model.backends.devices import _copies_to, moved
from mechheads.model.load import in_dtype, load_again
from support.every_analysis import ANALYSES, MORE
from support.levels import few
from support.releases import only_on_3
from support.simulated_devices import MixedDevices, simulation
from support.texts import CLEAN

QUIET: dict[str, Any] = {"progress": False}
ROOM = {"lazy:0": "1 GB", "lazy:1": "1 GB"}
FIRST, SECOND, THIRD = (torch.device("lazy", number) for number in range(3))
OFTEN = (
    *("ablate", "patch v", "mlps", "paths", "paths of MLPs", "frozen MLPs", "edges", "attribution"),
    *("logits", "profile", "copying", "generate"),
)
"""Analyses that are always tried: every line that moves a tensor in any of them moves one in these."""
PARTS = ("model.embed_tokens", "model.layers.0", "model.layers.1", "model.layers.2", "model.norm", "lm_head")


@pytest.fixture(scope="module", autouse=True)
def devices() -> Iterator[None]:
    with simulation():
        yield


@pytest.fixture(scope="module")
def both(tiny: Callable[[str], Path]) -> tuple[mh.Model, mh.Model]:
    """The model on the CPU, and over two devices."""
    given: dict[str, Any] = {"dtype": torch.float64}
    folder = tiny("llama")
    return mh.load(folder, backend="bridge", **given), mh.load(folder, device_map="auto", max_memory=ROOM, **given)


@pytest.fixture(scope="module")
def llama(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"), device_map="auto", max_memory=ROOM)


@pytest.mark.parametrize("analysis", few([*ANALYSES, *MORE], *OFTEN))
def test_every_analysis_gives_the_same(analysis: str, both: tuple[mh.Model, mh.Model]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted, found = ((ANALYSES | MORE)[analysis](model) for model in both)
    if isinstance(wanted, (str, list)):
        assert found == wanted
    else:
        np.testing.assert_allclose(found, wanted, atol=1e-6, rtol=1e-6)


@pytest.mark.release
def test_gates_are_fitted_the_same(tiny: Callable[[str], Path], llama: mh.Model) -> None:
    task = mh.Task(CLEAN[:2], [" Paris", " Madrid"])
    one, two = (
        mh.fit_gates(model, task, seeds=1, updates=2, **QUIET).losses["loss"]
        for model in (mh.load(tiny("llama"), backend="bridge"), llama)
    )
    np.testing.assert_allclose(two, one, rtol=1e-4)


def test_each_part_is_on_its_device(llama: mh.Model) -> None:
    on = llama.backend.devices
    assert (on.home, on.blocks, on.end) == (FIRST, (FIRST, FIRST, SECOND), SECOND)
    for layer, block in enumerate(llama.model.blocks):
        assert {weight.device for weight in block.parameters()} == {on.blocks[layer]}
    run = llama.cache(CLEAN, **QUIET)
    assert [run.stores["z"].there(layer).device for layer in range(3)] == list(on.blocks)
    assert {run.z.layer(2).device, run.logits.device, llama.W_O[2].device, llama.W_U.device} == {FIRST}


def test_tied_weights_stay_with_the_embedding_and_biases_move(tiny: Callable[[str], Path]) -> None:
    model = mh.load(tiny("gpt2"), device_map="auto", max_memory=ROOM)
    assert model.backend.devices.end == FIRST and model.backend.devices.blocks[-1] == SECOND
    wanted, found = (MORE["paths of MLPs"](each) for each in (mh.load(tiny("gpt2"), backend="bridge"), model))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_its_own_run_and_the_users_hooks(llama: mh.Model, tiny: Callable[[str], Path]) -> None:
    ids = torch.tensor([[5, 9, 7, 30]], device=FIRST)
    wanted = mh.load(tiny("llama"), backend="bridge").model(ids.cpu())
    torch.testing.assert_close(llama.model(ids).cpu(), wanted)
    seen: list[torch.device] = []

    def half(value: torch.Tensor, hook: Any) -> torch.Tensor:
        seen.append(value.device)
        return value * torch.full_like(ids, 0.5, dtype=value.dtype)[..., None, None]

    llama.backend.run(ids, [(llama.hook_name("z", layer), half) for layer in range(3)])
    assert seen == [FIRST] * 3


class OnCuda:
    """Stands for a CUDA tensor, and notes what is asked of it."""

    def __init__(self, at: str, done: list[str]) -> None:
        self.device, self.is_cuda, self._done = torch.device(at), at != "cpu", done

    def pin_memory(self) -> OnCuda:
        self._done.append("pin")
        return self

    def to(self, device: torch.device, non_blocking: bool) -> OnCuda:
        self._done.append(f"{self.device} to {device}{'' if non_blocking else ', waiting'}")
        return OnCuda(str(device), self._done)

    def record_stream(self, stream: str) -> None:
        self._done.append(f"kept for {stream}")


def test_copies_between_cuda_devices_use_a_stream_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which calls are made, in which order; what a GPU does with them cannot be seen here."""
    done: list[str] = []

    class Stream:
        def __init__(self, device: torch.device) -> None:
            self.device = device

        def wait_stream(self, other: Stream) -> None:
            done.append(f"{self} waits for {other}")

        def __str__(self) -> str:
            return f"a stream of {self.device}"

    class Computing(Stream):
        def __str__(self) -> str:
            return f"computing on {self.device}"

    @contextmanager
    def stream(one: Stream) -> Iterator[None]:
        done.append(f"on {one}")
        yield
        done.append("off")

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Computing)
    given: Any = OnCuda("cuda:0", done)
    assert moved(given, torch.device("cuda:0")) is given and done == []
    assert moved(given, torch.device("cuda:7")).device == torch.device("cuda:7")
    assert done == [
        "on a stream of cuda:7",
        "cuda:0 to cuda:7",
        "off",
        "computing on cuda:7 waits for a stream of cuda:7",
        "kept for computing on cuda:7",
    ]
    done.clear()
    for at, to in (("cpu", "cuda:7"), ("cuda:7", "cpu"), ("cpu", "mps:0")):
        given = OnCuda(at, done)
        moved(given, torch.device(to))
    assert done == ["pin", "cpu to cuda:7", "cuda:7 to cpu, waiting", "cpu to mps:0, waiting"]
    _copies_to.cache_clear()


def test_runs_kept_on_disk_come_back_to_their_device(llama: mh.Model) -> None:
    run, kept = (llama.cache(CLEAN, budget=budget, **QUIET) for budget in ("1 GB", "1 KB"))
    assert kept.stores["z"].on_disk and kept.stores["z"].there(2).device == SECOND
    assert torch.equal(kept.z.layer(2), run.z.layer(2))


@pytest.mark.release
def test_a_map_of_ones_own(tiny: Callable[[str], Path]) -> None:
    where = dict(zip(PARTS, ("lazy:0", "lazy:0", "lazy:1", "lazy:1", "lazy:2", "lazy:2"), strict=True))
    model = mh.load(tiny("llama"), device_map=where)
    assert model.backend.devices.each == (FIRST, SECOND, THIRD) and model.backend.devices.end == THIRD
    wanted = mh.ablate(mh.load(tiny("llama"), backend="bridge"), CLEAN, **QUIET).scores
    np.testing.assert_allclose(mh.ablate(model, CLEAN, **QUIET).scores, wanted, atol=1e-5)


@pytest.mark.release
def test_memory_moves_the_cut(tiny: Callable[[str], Path]) -> None:
    whole = mh.load(tiny("llama"), backend="bridge").model
    block, embedding = (sum(w.nbytes for w in part.parameters()) for part in (whole.blocks[0], whole.embed))
    room = {"lazy:0": embedding + block, "lazy:1": "1 GB"}
    model = mh.load(tiny("llama"), device_map="auto", max_memory=room)
    assert model.backend.devices.blocks == (FIRST, SECOND, SECOND)
    with pytest.raises(ValueError, match=r"does not fit, block by block, into .* on lazy:0, .* on lazy:1"):
        mh.load(tiny("llama"), device_map="auto", max_memory=room | {"lazy:1": "10 KB"})


@pytest.mark.release
def test_its_fingerprint_is_that_of_the_model_on_any_device(
    llama: mh.Model, tiny: Callable[[str], Path], tmp_path: Path
) -> None:
    others = [mh.load(tiny("llama"), backend="bridge", device=device) for device in ("lazy:0", "lazy:1", "cpu")]
    assert len({model_fingerprint(model.model, "store") for model in (llama, *others)}) == 1
    stored = [mh.ablate(llama, CLEAN, store=tmp_path / "sweep.ledger", **QUIET) for _ in range(2)]
    np.testing.assert_array_equal(*(one.values for one in stored))


@pytest.mark.release
def test_copies_of_it(llama: mh.Model) -> None:
    assert llama.source is not None
    again, half = load_again(llama.source, "cpu"), in_dtype(llama, torch.bfloat16)
    assert again.backend.devices == llama.backend.devices == half.backend.devices
    np.testing.assert_array_equal(*(mh.ablate(model, CLEAN, **QUIET).scores for model in (llama, again)))
    scores = mh.ablate(half, CLEAN, **QUIET)
    assert scores.provenance["precision"]["largest_difference"] < 0.1


def test_a_bridge_that_accelerate_has_spread(tiny: Callable[[str], Path]) -> None:
    from transformer_lens.model_bridge import TransformerBridge

    where = dict(zip(PARTS, ("lazy:0", "lazy:0", "lazy:1", "lazy:1", "lazy:1", "lazy:1"), strict=True))
    model = mh.wrap(TransformerBridge.boot_transformers(str(tiny("llama")), device_map=where))
    wanted = mh.ablate(mh.load(tiny("llama"), backend="bridge"), CLEAN, **QUIET).scores
    np.testing.assert_allclose(mh.ablate(model, CLEAN, **QUIET).scores, wanted, atol=1e-5)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no GPU": ({"device_map": "auto"}, r'device_map="auto" spreads a model over several GPUs, and there is none'),
    "one device": ({"device_map": "auto", "max_memory": {"lazy:0": "1 GB"}}, r"and there is one\. With one GPU, give"),
    "one in the map": ({"device_map": dict.fromkeys(PARTS, "lazy:0")}, r"names one device only \(lazy:0\)"),
    "other text": ({"device_map": "balanced"}, r"device_map is 'balanced'; choose \"auto\", or give the device"),
    "disk": ({"device_map": dict.fromkeys(PARTS, "disk")}, r"'model.embed_tokens' on 'disk'; parts .* go to GPUs"),
    "disk too": (
        {"device_map": "auto", "max_memory": "1 GB"},
        r"max_memory is '1 GB' with device_map; give the memory",
    ),
    "memory only": ({"max_memory": ROOM}, r'max_memory gives the memory of each device, which needs device_map="auto"'),
    "map and memory": ({"device_map": {"": "lazy:0"}, "max_memory": ROOM}, r"says where each part goes; leave max"),
    "device": ({"device_map": "auto", "device": "lazy:0"}, r"device is 'lazy:0' with device_map, .* leave device out"),
    "missing": (
        {"device_map": {"lm_head": "lazy:0", "model.norm": "lazy:1"}},
        r"device_map: .*not give any device for",
    ),
    "bytes": ({"device_map": "auto", "max_memory": {"lazy:0": "much"}}, r"max_memory of lazy:0 is 'much'; give"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused(case: str, tiny: Callable[[str], Path]) -> None:
    given, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        mh.load(tiny("llama"), **given)


@only_on_3
def test_a_hooked_transformer_is_refused(tiny: Callable[[str], Path]) -> None:
    with pytest.raises(
        ValueError, match=r"device_map: HookedTransformer keeps all weights in the memory of one device"
    ):
        mh.load(tiny("llama"), backend="hooked", device_map="auto", max_memory=ROOM)


@only_on_3
def test_a_hooked_transformer_on_several_devices_is_refused(tiny: Callable[[str], Path]) -> None:
    hooked = mh.load(tiny("llama"), backend="hooked").model
    hooked.blocks[2].to(FIRST)
    with pytest.raises(ValueError, match=r"is a HookedTransformer on 2 devices; load it with mh\.load"):
        mh.wrap(hooked)


def test_tied_weights_in_two_places_are_refused(tiny: Callable[[str], Path]) -> None:
    parts = ("transformer.wte", "transformer.wpe", *(f"transformer.h.{layer}" for layer in range(3)))
    where = dict.fromkeys(parts, "lazy:0") | {"transformer.ln_f": "lazy:1", "lm_head": "lazy:1"}
    with pytest.raises(ValueError, match=r"wte.weight on lazy:0 and lm_head.weight on lazy:1, but these are the same"):
        mh.load(tiny("gpt2"), device_map=where)


def test_workers_are_refused(llama: mh.Model) -> None:
    with pytest.raises(ValueError, match=r"workers: model .* is on 2 devices, and each worker would load it onto all"):
        mh.ablate(llama, CLEAN, workers=2, **QUIET)


def test_the_simulation_refuses_tensors_of_two_devices() -> None:
    here, there = torch.ones(2, device=FIRST), torch.ones(2, device=SECOND)
    for other in (there, torch.ones(2)):
        with pytest.raises(MixedDevices, match="all tensors should be on the same device"):
            here + other
    with pytest.raises(MixedDevices):
        here[torch.tensor([0], device=SECOND)]
    assert (here + torch.tensor(1.0)).device == here[torch.tensor([1])].device == FIRST
    with pytest.raises((TypeError, RuntimeError)):
        here.numpy()
