"""Which lines can break without a test noticing: ``python -m benchmarks.mutants``.

Breaks the lines of ``mutant_lines``, one at a time, in a copy of the tree, and runs the tests that always run and
should notice. The lines are chosen: each gives a wrong number in silence when it is broken. Tools that break every
operator (mutmut, cosmic-ray) make tens of thousands of mutants of this package, most of which fail loudly or change
nothing. Each costs seconds, though tests run in forks of a process that has imported torch.

A mutant that no test of its own notices is tried on all tests that always run. Results are kept in a file, so the same
command goes on where it stopped; mutants that lived, or whose text or tests have changed, are tried again.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mutant_lines import MUTANTS, Mutant

ROOT = Path(__file__).parent.parent
COPIED = ("mechheads", "tests", "benchmarks", "docs", "notebooks", "pyproject.toml", "README.md", "CONTRIBUTING.md")
_PATIENCE = 1800.0
"""So many seconds the tests of a mutant may take; what hangs counts as noticed."""
TOO_LONG = "too long"
_WARM = multiprocessing.get_context("forkserver")
_WARM.set_forkserver_preload(["torch", "transformers", "transformer_lens", "xarray", "plotly", "scipy.stats", "pytest"])


def main() -> None:
    """Try every mutant and print which ones the tests notice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="words: mutants whose file or text has one of them")
    parser.add_argument("--out", type=Path, default=Path("mutants.json"), help="where results are kept")
    parser.add_argument(
        "--own", action="store_true", help="run the tests of each mutant only, not all tests if it lives"
    )
    asked = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
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
        self._sound: set[str] = set()
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__", "node_modules"))
            else:
                shutil.copy(source, folder / name)

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """Whether a mutant is noticed, and by which test."""
        key = key_of(mutant)
        if not self.known.get(key, {"noticed": False})["noticed"]:
            start = time.perf_counter()
            by = self._noticed(mutant)
            self.known[key] = {"noticed": by is not None, "by": by, "seconds": time.perf_counter() - start}
            self._out.write_text(json.dumps(self.known, indent=1), "utf-8")
        return self.known[key]

    def _noticed(self, mutant: Mutant) -> str | None:
        file = self.folder / "mechheads" / mutant.file
        whole = file.read_text("utf-8")
        if whole.count(mutant.old) != 1:
            raise ValueError(f"{mutant.file} has {mutant.old!r} {whole.count(mutant.old)} times, not once")
        _write(file, whole.replace(mutant.old, mutant.new))
        try:
            by = self._failing([f"tests/{one}" for one in mutant.tests])
            if by is None and self._whole:
                by = self._failing(["tests", "-n", "2"])
        finally:
            _write(file, whole)
        if by is not None and by != TOO_LONG and by not in self._sound:
            if self._failing([by]) is not None:
                raise ValueError(f"{by} fails on the unbroken package")
            self._sound.add(by)
        return by

    def _failing(self, arguments: list[str]) -> str | None:
        """The first test that fails, ``TOO_LONG`` if they take more time than allowed, None if all pass."""
        found = self.folder / "failing"
        found.unlink(missing_ok=True)
        process = _WARM.Process(target=_run_tests, args=(self.folder, arguments, found))
        process.start()
        process.join(_PATIENCE)
        if process.exitcode is None:
            process.kill()
            process.join()
            return TOO_LONG
        if process.exitcode == 0:
            return None
        return found.read_text("utf-8") if found.exists() else f"status {process.exitcode}"


def _run_tests(folder: Path, arguments: list[str], found: Path) -> None:
    os.chdir(folder)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    common = ["-q", "-x", "-p", "no:cacheprovider"] + ([] if "-n" in arguments else ["-n", "0"])
    sys.exit(pytest.main([*common, *arguments], plugins=[_FirstFailure(found)]))


class _FirstFailure:
    """A plugin of pytest that writes down which test failed, or which file could not be read."""

    def __init__(self, found: Path) -> None:
        self._found = found

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._of(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._of(report)

    def _of(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed and not self._found.exists():
            self._found.write_text(report.nodeid, "utf-8")


def _write(file: Path, text: str) -> None:
    """Write a module, and forget how it was compiled."""
    file.write_text(text, "utf-8")
    Path(cache_from_source(str(file))).unlink(missing_ok=True)


if __name__ == "__main__":
    main()
