"""Waves that follow each other through several devices: a simulated schedule, against one that counts the ticks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
import torch

from mechheads.engine.pipeline import cuts_of, idle_share, least_waves, spread
from mechheads.heads import HeadId
from mechheads.model.sources.cuts import cut_by_work

EVERY = [HeadId(layer, head) for layer in range(80) for head in range(64)]
"""The heads of a model of 80 layers."""


def on(*parts: int) -> list[torch.device]:
    """Blocks on devices 0, 1, ... with so many blocks each."""
    return [torch.device("cuda", number) for number, blocks in enumerate(parts) for _ in range(blocks)]


def between(cuts: Sequence[int]) -> list[torch.device]:
    """80 blocks on devices that begin at these layers."""
    bounds = [0, *cuts, 80]
    return on(*(end - begin for begin, end in pairwise(bounds)))


def layers_of(waves: Sequence[Sequence[HeadId]]) -> list[list[int]]:
    return [[head.layer for head in wave] for wave in waves]


def idle_by_ticks(waves: Sequence[Sequence[int]], blocks: Sequence[torch.device]) -> float:
    """The slow way: at each tick, every device that can does one copy's share of one layer."""
    devices = list(dict.fromkeys(blocks))
    left = [
        [sum(layer <= at for at, there in enumerate(blocks) if there == device for layer in wave) for device in devices]
        for wave in waves
    ]
    ticks = busy = 0
    while any(map(any, left)):
        now = [
            next((n for n, wave in enumerate(left) if wave[place]), None) for place in range(len(devices))
        ]  # the first wave that is not done on each device
        able = [(wave, place) for place, wave in enumerate(now) if wave is not None and not any(left[wave][:place])]
        for wave, place in able:
            left[wave][place] -= 1
        busy, ticks = busy + len(able), ticks + 1
    return 1 - busy / (ticks * len(devices))


@pytest.mark.parametrize("parts", [(3, 3), (4, 2), (2, 1, 3), (1, 1, 4)])
@pytest.mark.parametrize("size", [1, 3, 5])
def test_the_idle_share_is_that_of_a_schedule_tick_by_tick(parts: tuple[int, ...], size: int) -> None:
    heads = [HeadId(layer, head) for layer in range(6) for head in range(3)]
    for waves in (layers_of(spread(heads, size)), [[head.layer] for head in heads]):
        assert idle_share(waves, on(*parts)) == pytest.approx(idle_by_ticks(waves, on(*parts)))


def test_batches_wait_for_their_last_wave() -> None:
    waves, blocks = [[0, 1, 2, 3]] * 4, on(3, 1)
    assert idle_share(waves, blocks, 1) > idle_share(waves, blocks, 2) > idle_share(waves, blocks)
    one, two = (idle_by_ticks(waves[:n], blocks) for n in (1, 2))
    assert idle_share(waves, blocks, 1) == pytest.approx(one) and idle_share(waves, blocks, 2) == pytest.approx(two)


def test_80_layers_on_four_devices() -> None:
    cuts = cut_by_work([1] * 80, [80] * 4)
    assert cuts == (39, 56, 69) and all(abs(cut - 80 * (i / 4) ** 0.5) < 1.5 for i, cut in enumerate(cuts, 1))
    waves = least_waves(between(cuts), 1)
    assert waves == 40
    size = len(EVERY) // waves
    assert idle_share(layers_of(spread(EVERY, size)), between(cuts)) < 0.1


def test_what_other_ways_would_give() -> None:
    by_work, equal, size = between([39, 56, 69]), between([20, 40, 60]), len(EVERY) // 40
    neighbours = [EVERY[start : start + size] for start in range(0, len(EVERY), size)]
    spread_out = layers_of(spread(EVERY, size))
    assert idle_share(spread_out, by_work, 1) == pytest.approx(0.75)  # one device at a time, as with layer offload
    assert 0.4 < idle_share(layers_of(neighbours), by_work) < 0.5
    assert 0.4 < idle_share(spread_out, equal) < 0.5
    assert 0.4 < idle_share(layers_of(neighbours), equal) < 0.5


def test_more_waves_or_parts_wait_less() -> None:
    by_work = between([39, 56, 69])
    idle = [idle_share(layers_of(spread(EVERY, size)), by_work) for size in (512, 128, 32, 8)]
    assert idle == sorted(idle, reverse=True) and idle[-1] < 0.03


def test_waves_of_one_head_are_spread_too() -> None:
    assert idle_share(layers_of(spread(EVERY, 1)), between([39, 56, 69])) < 0.05


def test_every_head_is_in_one_wave_in_layer_order() -> None:
    for size in (1, 7, 64, 5120, 9999):
        waves = spread(EVERY, size)
        assert sorted(head for wave in waves for head in wave) == EVERY
        assert all(wave == sorted(wave) and len(wave) <= size for wave in waves)


def test_a_device_that_comes_twice_holds_up_the_next_wave() -> None:
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    assert idle_share([[0]] * 8, [first, second, first]) == 0.5  # what is launched first on a device runs first


def test_one_device_never_waits() -> None:
    assert idle_share([[0, 2], [1]], on(3)) == 0 and cuts_of(on(3)) == () and least_waves(on(3), 1) == 1
    assert cuts_of(on(2, 1)) == (2,) and least_waves(on(2, 1), 7) == 3
