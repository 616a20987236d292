"""The lines that ``benchmarks.mutants`` breaks are still there."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutant_lines import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.file}: {mutant.breaks}")
def test_a_line_to_break_occurs_once_and_has_tests(mutant: Mutant) -> None:
    assert (ROOT / "mechheads" / mutant.file).read_text("utf-8").count(mutant.old) == 1
    assert mutant.new != mutant.old and mutant.tests
    assert all((ROOT / "tests" / one).exists() for one in mutant.tests)
