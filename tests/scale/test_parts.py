"""Analyses in parts, and their ledgers on the command line."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from support.texts import CLEAN, CORRUPTED, PAIRS

TWO_UNITS = Limits(tokens=60, logit_rows=1)
"""Two heads in a batch."""


def command(*words: object) -> str:
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return done.output


HEADS = ["L0H1", "L1H0", "L1H2", "L2H3", "L2H0"]
ANALYSES: dict[str, Callable[..., Any]] = {
    "paths": lambda model, **given: mh.path_patch(model, PAIRS, receivers=["L2H1.q"], senders=HEADS, **given),
    "all scores": lambda model, **given: mh.safety_heads(
        model, CLEAN[:2], 2, harmless=CORRUPTED[:2], heads=HEADS, **given
    ),
}


@pytest.mark.parametrize("name", ANALYSES)
@pytest.mark.filterwarnings("ignore:.*a mean probability of:UserWarning", "ignore:.*refuses none of:UserWarning")
def test_merged_parts_are_the_bits_of_one_process(small, tmp_path: Path, name: str):
    """It goes on with the first part's ledger, so that it computes the same batches."""
    analysis, parts, reached = ANALYSES[name], [], []
    for number in (1, 2, 3):
        parts.append(tmp_path / f"{number}.ledger")
        found = analysis(small, budget=replace(TWO_UNITS, part=(number, 3)), store=parts[-1])
        reached += [str(head) for head in found.heads() if head not in found.missing]
    assert sorted(reached) == sorted(HEADS)
    shutil.copy(parts[0], tmp_path / "alone.ledger")
    merged = mh.scale.merge(parts, tmp_path / "all.ledger")
    whole, alone = (analysis(small, store=tmp_path / f"{name}.ledger", budget=TWO_UNITS) for name in ("all", "alone"))
    assert whole.dataset.identical(alone.dataset)
    assert sum(sweep["units"] for sweep in Ledger.list(tmp_path / "all.ledger")) == merged.units


def test_ledgers_of_parts_on_the_command_line(small, tmp_path: Path):
    parts = [tmp_path / f"part-{number}.ledger" for number in (1, 2, 3)]
    for number, store in enumerate(parts, 1):
        with mh.settings(store=store, budget=Limits(part=(number, 3))):
            mh.ablate(small, CLEAN, intervention="mean")
    assert "12 units, 12 of them new" in command("merge", *parts, "--into", tmp_path / "all.ledger")
    with mh.settings(store=tmp_path / "all.ledger"):
        whole = mh.ablate(small, CLEAN, intervention="mean")
    np.testing.assert_allclose(whole.values, mh.ablate(small, CLEAN, intervention="mean").values, rtol=1e-5, atol=1e-6)


def test_a_profile_has_no_parts(small, tmp_path: Path):
    with (
        mh.settings(store=tmp_path / "p.ledger", budget=Limits(part=(1, 2))),
        pytest.raises(ValueError, match="part: each step of this analysis needs all steps before"),
    ):
        mh.profile_heads(small, [list(range(3, 60))], window=16)


def test_limits_of_a_part_that_is_none_are_refused():
    with pytest.raises(ValueError, match=r"part is \(0, 2\); give its number"):
        Limits(part=(0, 2))
