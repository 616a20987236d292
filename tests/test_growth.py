"""The benchmark of growth: it measures each size, and its table divides the growth of the time by that of the size."""

from __future__ import annotations

import json

import pytest

from benchmarks import growth


@pytest.mark.parametrize("axis", list(growth.SMALL))
def test_each_size_has_a_line(axis: str, capsys: pytest.CaptureFixture[str]) -> None:
    growth.measure("ablate", axis, list(growth.SMALL[axis]))
    points = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [point["size"] for point in points] == list(growth.SMALL[axis])
    assert all(point["seconds"] > 0 and point["mb"] >= 0 for point in points)


def test_the_table_divides_growth_by_growth() -> None:
    points = [{"size": size, "seconds": seconds, "mb": 1.0} for size, seconds in ((10, 0.5), (100, 1.0), (1000, 30.0))]
    shown = growth.shown({"ablate": {"prompts": points, "heads": points[:1]}})
    assert shown.splitlines()[2:] == ["| ablate | 3.00 (30.0 s) |  |"]
