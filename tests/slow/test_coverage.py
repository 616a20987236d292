"""Intervals cover what they claim to, in what the benchmark wrote and in what it measures now."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import coverage

ROOT = Path(__file__).parents[2]
WRITTEN = json.loads((ROOT / "benchmarks" / "coverage.json").read_text("utf-8"))


@pytest.mark.parametrize(("effects", "least", "most"), [("normal", 0.93, 0.97), ("exponential", 0.90, 1.0)])
def test_written_coverage_of_equal_clusters_is_what_is_claimed(effects: str, least: float, most: float) -> None:
    assert WRITTEN["clusters"] == [3, 4, 5, 6, 8, 10, 12, 16, 20, 30]
    assert all(least <= share <= most for share in WRITTEN["equal"][effects])


def test_written_coverage_of_unequal_clusters_falls_no_lower() -> None:
    normal, exponential = (
        np.array(list(WRITTEN["unequal"][effects].values())) for effects in ("normal", "exponential")
    )
    assert normal.min() > 0.94 and normal.max() < 0.975
    assert exponential.min() >= 0.899


@pytest.mark.parametrize("effects", ["normal", "exponential"])
def test_coverage_now_is_what_was_written(effects: str) -> None:
    """Of 4,000 draws beside 20,000: one standard error of the difference is 0.5% at 90%."""
    for i, clusters in enumerate(WRITTEN["clusters"]):
        now = coverage.equal(effects, clusters, 4000)
        assert now == pytest.approx(WRITTEN["equal"][effects][i], abs=0.02)
    for shared, written in WRITTEN["unequal"][effects].items():
        assert coverage.unequal(effects, 8, 4000, shared) == pytest.approx(written[4], abs=0.02)


def test_sign_flips_take_asymmetry_for_an_effect() -> None:
    assert WRITTEN["false positives"]["normal"][0] == pytest.approx(10 / 256, abs=0.012)
    # 8 clusters of a rare large effect: all have one sign with a chance of 0.95 ** 8
    assert WRITTEN["false positives"]["rare and large"][0] == pytest.approx(0.95**8, abs=0.015)
    assert coverage.false_positives("rare and large", 8, 4000) == pytest.approx(0.95**8, abs=0.03)


def test_tables_have_a_row_for_each_number_of_clusters() -> None:
    lines = coverage.markdown(WRITTEN).splitlines()
    assert lines[0].startswith("| clusters | normal, equal clusters | exponential, equal clusters | normal, unequal,")
    assert lines[2].startswith(f"| 3 | {WRITTEN['equal']['normal'][0]:.1%} |")
    assert len(lines) == 2 + len(WRITTEN["clusters"])
    assert (
        coverage.markdown_of_p(WRITTEN)
        .splitlines()[2]
        .endswith(f"{WRITTEN['false positives']['rare and large'][0]:.1%} |")
    )


def test_intervals_in_bounds_hold_93_in_100() -> None:
    written = WRITTEN["bounded"]
    for name in ("share, least", "never below 0, gamma 2"):
        assert min(written[name]) >= 0.93
    assert min(written["difference, least"]) >= 0.915 and min(written["never below 0, gamma 0.5"]) >= 0.925
    for name, now in coverage.bounded(2000).items():
        assert now == pytest.approx(written[name], abs=0.03)


def test_a_family_p_holds_its_level_for_symmetric_effects_and_not_for_skewed_ones() -> None:
    at = {name: [cell["family p"] for cell in cells] for name, cells in WRITTEN["families"].items()}
    for effects in ("normal", "t3"):
        for heads in ("half shared", "independent"):
            assert np.mean([any_false for any_false, _ in at[f"{effects}, {heads}"]]) < 0.07
            assert [power for _, power in at[f"{effects}, {heads}"]][-3:] == pytest.approx([1, 1, 1], abs=0.1)
    assert max(any_false for any_false, _ in at["lognormal, independent"]) > 0.5
    assert coverage.families("normal", 6, 20, together=True)["family p"][0] < 0.25
