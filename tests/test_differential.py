"""The machine that looks for new kinds of mistakes: it judges fixed cases rightly, and finds what is planted."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mechheads as mh
from benchmarks.differential import __main__ as machine
from benchmarks.differential.cases import Case, Outcome, cases, run_case
from benchmarks.differential.models import Shelf

TEXTS = ((0, 40, 7), (90, 3, 150, 21))


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("models"))


@pytest.mark.parametrize(
    "case",
    [
        Case(texts=TEXTS),
        Case("ablate, mean, logit difference", texts=TEXTS, architecture="gpt2", last=True),
        Case("patch z", "rows", TEXTS, dtype="bfloat16"),
        Case("path to the logits", "tuple", TEXTS, answers="texts"),
        Case("generate", "chats", TEXTS, template="chatml"),
        Case("task, heads off", texts=TEXTS, tokenizer="llama-2"),
        Case("logit attribution", texts=TEXTS, file="sharded"),
    ],
    ids=str,
)
def test_ordinary_cases_are_equal(case: Case, shelf: Shelf) -> None:
    assert run_case(case, shelf).verdict == "equal"


@pytest.mark.parametrize(
    "case",
    [
        Case(container="nothing"),
        Case(container="unknown id"),
        Case(file="weight has another shape"),
        Case("patch z", answers="one too many"),
    ],
    ids=str,
)
def test_a_case_without_a_meaning_is_refused(case: Case, shelf: Shelf) -> None:
    assert run_case(case, shelf).verdict == "refused"


def test_a_planted_mistake_is_found_and_made_small(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """An ablation that is wrong by a hundredth for a Series, whatever else is special about the case."""
    own = mh.ablate

    def wrong(model: mh.Model, prompts: Any, **named: Any) -> mh.HeadScores:
        scores = own(model, list(prompts), **named)
        return scores * 1.01 if type(prompts).__name__ == "Series" else scores

    monkeypatch.setattr(mh, "ablate", wrong)
    world = ("gpt2", "bytes, left", "chatml", "float32", "plain")
    monkeypatch.setattr(machine, "worlds", lambda *_: [world])
    monkeypatch.setattr(
        machine, "cases", lambda _: cases([world], analysis=("ablate, zero, KL",), container=("Series",))
    )
    looking = machine.Search(lambda case: run_case(case, shelf), time.monotonic() + 60)
    looking.batch(0, random.Random(0))
    (found, outcome), *more = looking.found
    assert not more and outcome.what == "wrong numbers"
    assert found == Case("ablate, zero, KL", "Series", found.texts)
    assert len(found.texts) == 1


def test_every_kind_of_error_is_judged(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a ValueError or TypeError of mechheads that names an argument is a refusal."""

    def raising(error: Exception) -> Callable[..., Any]:
        def raise_it(*given: Any, **named: Any) -> Any:
            raise error

        return raise_it

    for error in (KeyError("prompts"), RuntimeError("prompts are bad"), ValueError("prompts are bad, says this test")):
        monkeypatch.setattr(mh, "ablate", raising(error))
        outcome = run_case(Case("ablate, zero, KL"), shelf)
        assert (outcome.verdict, outcome.what.split(" (")[0]) == ("finding", "error of a library")


def test_a_model_that_is_left_otherwise_is_a_finding(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    own = mh.ablate

    def forgets(model: mh.Model, prompts: Any, **named: Any) -> mh.HeadScores:
        torch.rand(1)
        return own(model, prompts, **named)

    monkeypatch.setattr(mh, "ablate", forgets)
    outcome = run_case(Case("ablate, zero, KL"), shelf)
    assert (outcome.what, outcome.why) == ("left behind", "changed: torch's random numbers")


def test_the_search_draws_the_same_for_a_seed_and_explains_what_it_knows() -> None:
    """Without models: each patching of z is a finding, which is told once, at its smallest."""

    def run(case: Case) -> Outcome:
        return Outcome("finding", "made") if case.analysis == "patch z" else Outcome("equal")

    drawn = []
    for _ in range(2):
        looking = machine.Search(run, time.monotonic() + 60)
        chance = random.Random(3)
        for number in range(3):
            looking.batch(number, chance)
        drawn.append(list(looking.ended))
        assert [case.special for case, _ in looking.found] == [{"analysis": "patch z"}]
    assert drawn[0] == drawn[1]
    assert "| patch z | 0 | 0 |" in machine.table(looking.ended)


def test_the_command_ends_with_1_if_there_was_a_finding(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def quick(case: Case, shelf: Shelf) -> Outcome:
        return Outcome("finding", "made", "up") if case.around == "autocast" else Outcome("equal")

    monkeypatch.setattr(machine, "time", SimpleNamespace(monotonic=itertools.count().__next__))  # one second a case
    monkeypatch.setattr(machine, "run_case", quick)
    assert machine.main(["--minutes", "6"]) == 1
    said = capsys.readouterr().out
    assert "# FINDING: made: up" in said and "around='autocast'" in said and "1 findings" in said
    monkeypatch.setattr(machine, "run_case", lambda case, shelf: Outcome("equal"))
    assert machine.main(["--minutes", "0.2"]) == 0
