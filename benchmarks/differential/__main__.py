"""Look for what nobody thought of: ``python -m benchmarks.differential --minutes 10 --seed 0``; see the package."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import torch
import transformers
from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings

from benchmarks.differential.cases import Case, Outcome, cases, run_case, worlds
from benchmarks.differential.models import Shelf

Run = Callable[[Case], Outcome]

_TOGETHER = 40
"""Cases that are drawn from the same few worlds."""
_TRIES = 60
"""How often a finding is tried to be made smaller."""
_NOT_KINDS = ("texts", "last")
_KINDS = tuple(each.name for each in dataclasses.fields(Case) if each.name not in _NOT_KINDS)


class _Finding(AssertionError):
    pass


@dataclasses.dataclass
class Search:
    """Cases by how they ended, and the findings, each as small as it can be made.

    Args:
        run: judges a case.
        until: when to end, by ``time.monotonic``.
    """

    run: Run
    until: float
    ended: dict[Case, Outcome] = dataclasses.field(default_factory=dict)
    found: list[tuple[Case, Outcome]] = dataclasses.field(default_factory=list)
    told: Callable[[Case, Outcome], None] = lambda case, outcome: None

    def batch(self, number: int, worlds_of: random.Random, examples: int = _TOGETHER) -> None:
        """Draw cases until one is a finding that nothing explains yet; then make it smaller."""
        smallest: list[tuple[Case, Outcome]] = []
        tries = 0

        @seed(number)
        @settings(
            max_examples=examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=[*HealthCheck],  # pyright: ignore
            verbosity=Verbosity.quiet,
            report_multiple_bugs=False,
        )
        @given(case=cases(worlds(worlds_of, 5)))
        def look(case: Case) -> None:
            nonlocal tries
            tries += bool(smallest)
            if (not smallest and time.monotonic() > self.until) or tries > _TRIES:
                return
            outcome = self._ended(case)
            if outcome.verdict != "finding" or self._is_explained(case, outcome):
                return
            if smallest and outcome.what != smallest[0][1].what:
                return
            smallest.append((case, outcome))
            raise _Finding

        try:
            look()
        except Exception:
            if not smallest:
                raise
            self._keep(*min(smallest, key=lambda each: _size(each[0])))

    def _ended(self, case: Case) -> Outcome:
        if case not in self.ended:
            self.ended[case] = self.run(case)
        return self.ended[case]

    def _keep(self, case: Case, outcome: Outcome) -> None:
        """Keep a finding, without what is special about it and has no part in it."""
        for name in case.special:
            simpler = dataclasses.replace(case, **{name: getattr(Case(), name)})
            ended = self._ended(simpler)
            if (ended.verdict, ended.what) == ("finding", outcome.what):
                case, outcome = simpler, ended
        self.found.append((case, outcome))
        self.told(case, outcome)

    def _is_explained(self, case: Case, outcome: Outcome) -> bool:
        """Whether a finding has everything special that one before it had, and went wrong in the same way."""
        return any(
            old.what == outcome.what and _kinds(known).items() <= _kinds(case).items() for known, old in self.found
        )


def _kinds(case: Case) -> dict[str, object]:
    return {name: value for name, value in case.special.items() if name not in _NOT_KINDS}


def _size(case: Case) -> tuple[int, int, str]:
    return len(case.special), sum(map(len, case.texts)), repr(case)


def search(run: Run, minutes: float, start: int, told: Callable[[Case, Outcome], None]) -> Search:
    """Draw batch after batch until the time is over."""
    looking = Search(run, time.monotonic() + 60 * minutes, told=told)
    chance, number = random.Random(start), 0
    while time.monotonic() < looking.until:
        looking.batch(1_000_003 * start + number, chance)
        number += 1
    return looking


def table(ended: dict[Case, Outcome]) -> str:
    """How many cases ended how, by each of their parts."""
    verdicts = ("equal", "refused", "finding", "not possible")
    lines = []
    for kind in ("all", *_KINDS):
        counts: dict[str, Counter[str]] = {}
        for case, outcome in ended.items():
            counts.setdefault("all" if kind == "all" else getattr(case, kind), Counter())[outcome.verdict] += 1
        lines += ["", f"| {kind} | {' | '.join(verdicts)} |", "|---|" + "---|" * len(verdicts)]
        for name in sorted(counts, key=lambda name: -counts[name].total()):
            lines.append(f"| {name} | {' | '.join(str(counts[name][verdict]) for verdict in verdicts)} |")
    return "\n".join(lines)


def _print_finding(case: Case, outcome: Outcome) -> None:
    said = "".join(f"\n#   told: {text[:300]}" for text in outcome.told)
    print(f"\n# FINDING: {outcome.what}: {outcome.why}{said}\n{case.script()}\n", flush=True)


def main(arguments: Iterable[str] | None = None) -> int:
    """Look until the time is over, print findings and a table; 1 if there was a finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="how long; default: 10")
    parser.add_argument("--seed", type=int, default=0, help="which cases are drawn; default: 0")
    parser.add_argument("--verbose", action="store_true", help="print every case")
    asked = parser.parse_args(None if arguments is None else list(arguments))
    torch.set_num_threads(1)
    _silence()
    with tempfile.TemporaryDirectory(prefix="mh") as made:
        shelf = Shelf(Path(made))

        def run(case: Case) -> Outcome:
            outcome = run_case(case, shelf)
            if asked.verbose:
                print(f"{outcome.verdict} {outcome.what} {case.special}", file=sys.stderr, flush=True)
            return outcome

        looked = search(run, asked.minutes, asked.seed, _print_finding)
    print(table(looked.ended))
    print(f"\n{len(looked.ended)} cases, {len(looked.found)} findings")
    return int(bool(looked.found))


def _silence() -> None:
    """No bars and warnings of libraries; those of mechheads are kept with each case."""
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    logging.getLogger("transformers").setLevel(logging.ERROR)


if __name__ == "__main__":
    sys.exit(main())
