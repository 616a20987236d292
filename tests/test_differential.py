"""The machine that looks for new kinds of mistakes: it judges fixed cases rightly, and finds what is planted."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

import mechheads as mh
from benchmarks.differential import __main__ as machine
from benchmarks.differential.cases import Case, cases, run_case
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
