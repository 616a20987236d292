"""The answer to an exercise is right, not right, or missing."""

from __future__ import annotations

from typing import Any

import pytest

import mechheads as mh


def said(answer: Any, capsys: pytest.CaptureFixture[str]) -> str:
    mh.testing.check_answer(answer, lambda number: 1 / number == 0.5, right="Half.", hint="Halve it.")
    return capsys.readouterr().out


def test_check_answer_says_right_or_gives_the_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(2, capsys) == "Right: Half.\n"
    assert said(4, capsys) == "Not yet: Halve it.\n"


@pytest.mark.parametrize("missing", [None, ...])
def test_check_answer_waits_for_an_answer(missing: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(missing, capsys) == "No answer yet.\n"


def test_check_answer_takes_an_error_for_a_wrong_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(0, capsys) == "Not yet: the check stopped with ZeroDivisionError: division by zero\nHalve it.\n"


def test_check_answer_takes_any_truth_value(capsys: pytest.CaptureFixture[str]) -> None:
    mh.testing.check_answer("x", lambda text: text, right="Some text.", hint="Give a text.")
    assert capsys.readouterr().out == "Right: Some text.\n"
