"""Which lines can break without a test noticing: ``python -m benchmarks.mutants``.

Breaks the lines of ``mutant_lines``, one at a time, in a copy of the tree, and runs the tests that always run and
should notice. The lines are chosen: each gives a wrong number in silence when it is broken. Tools that break every
operator (mutmut, cosmic-ray) make tens of thousands of mutants of this package, most of which fail loudly or change
nothing, and each costs seconds, because torch has to be imported.

A mutant that no test of its own notices is tried on all tests that always run. Results are kept in a file, so the same
command goes on where it stopped; a mutant whose text or tests have changed is tried again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.mutant_lines import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
COPIED = ("mechheads", "tests", "benchmarks", "docs", "notebooks", "pyproject.toml", "README.md", "CONTRIBUTING.md")
_PATIENCE = 4.0
"""A mutant may take so many times as long as the unbroken package, and a minute; what hangs counts as noticed."""


def main() -> None:
    """Try every mutant and print which ones the tests notice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="words: mutants whose file or text has one of them")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"), help="where results are kept")
    parser.add_argument(
        "--own", action="store_true", help="run the tests of each mutant only, not all tests if it lives"
    )
    asked = parser.parse_args()
    known = json.loads(asked.out.read_text("utf-8")) if asked.out.exists() else {}
    chosen = [one for one in MUTANTS if not asked.only or any(word in one.file + one.breaks for word in asked.only)]
    with tempfile.TemporaryDirectory() as temporary:
        trial = Trial(Path(temporary), known, asked.out, whole=not asked.own)
        for number, mutant in enumerate(chosen, 1):
            found = trial.of(mutant)
            said = f"noticed by {found['by']}" if found["noticed"] else "LIVES"
            print(
                f"{number}/{len(chosen)} {mutant.file}: {mutant.breaks}: {said} ({found['seconds']:.0f} s)", flush=True
            )
        report(chosen, trial.known)


def report(chosen: Sequence[Mutant], known: dict[str, Any]) -> None:
    """Print the share that was noticed, and what lives; ends with status 1 if less than 95% was noticed."""
    counted = [one for one in chosen if not one.no_change]
    lives = [one for one in counted if not known[key_of(one)]["noticed"]]
    share = 1 - len(lives) / max(1, len(counted))
    print(f"{len(counted) - len(lives)} of {len(counted)} mutants noticed ({share:.0%})")
    for one in lives:
        print(f"lives: {one.file}: {one.breaks}")
    for one in chosen:
        if one.no_change:
            print(f"not counted: {one.file}: {one.breaks}: {one.no_change}")
    sys.exit(share < 0.95)


def key_of(mutant: Mutant) -> str:
    """What a result is of."""
    return json.dumps(asdict(mutant), sort_keys=True)


class Trial:
    """A copy of the tree in which lines are broken.

    Attributes:
        known: the results so far.
    """

    def __init__(self, folder: Path, known: dict[str, Any], out: Path, *, whole: bool) -> None:
        self.folder, self.known, self._out, self._whole = folder, known, out, whole
        self._usual: dict[tuple[str, ...], float] = {}
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
            else:
                shutil.copy(source, folder / name)

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """Whether a mutant is noticed, and by which test."""
        key = key_of(mutant)
        if key not in self.known:
            start = time.perf_counter()
            by = self._noticed(mutant)
            self.known[key] = {"noticed": by is not None, "by": by, "seconds": time.perf_counter() - start}
            self._out.write_text(json.dumps(self.known, indent=1), "utf-8")
        return self.known[key]

    def _noticed(self, mutant: Mutant) -> str | None:
        usual, file = self._usual_seconds(mutant.tests), self.folder / "mechheads" / mutant.file
        whole = file.read_text("utf-8")
        if whole.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} has {mutant.old!r} {whole.count(mutant.old)} times, not once")
        file.write_text(whole.replace(mutant.old, mutant.new), "utf-8")
        try:
            by = self._failing(mutant.tests, 60 + _PATIENCE * usual)
            return self._failing((), None) if by is None and self._whole else by
        finally:
            file.write_text(whole, "utf-8")

    def _usual_seconds(self, tests: tuple[str, ...]) -> float:
        """How long the tests take on the unbroken package, on which they must pass."""
        if tests not in self._usual:
            start = time.perf_counter()
            if (failed := self._failing(tests, None)) is not None:
                raise ValueError(f"{failed} fails on the unbroken package")
            self._usual[tests] = time.perf_counter() - start
        return self._usual[tests]

    def _failing(self, tests: tuple[str, ...], seconds: float | None) -> str | None:
        """The first test that fails, "too long" if they take more time than allowed, None if all pass."""
        paths = [f"tests/{one}" for one in tests] or ["tests"]
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--no-header", "-rf"]
        command += ["-n", "0", *paths] if tests else paths
        environment = os.environ | {"PYTHONPATH": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            ended = subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=seconds
            )
        except subprocess.TimeoutExpired:
            return "too long"
        if ended.returncode == 0:
            return None
        failed = [line for line in ended.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
        return failed[0].split()[1] if failed else ended.stdout[-300:]


if __name__ == "__main__":
    main()
