"""``check_answer``: print whether the exercise of a notebook is solved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def check_answer(answer: Any, is_right: Callable[[Any], Any], *, right: str, hint: str) -> None:
    """Print whether an answer is right, and a hint if it is wrong.

    Args:
        answer: the reader's answer; ``None`` or ``...`` if there is none yet.
        is_right: a function that takes the answer and returns whether it is right. If it raises, the answer is wrong.
        right: printed after a right answer.
        hint: printed after a wrong answer.

    >>> mh.testing.check_answer("L23H4", lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    Right: It copies.
    >>> mh.testing.check_answer("L0H0", lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    Not yet: Look at layer 23.
    >>> mh.testing.check_answer(None, lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    No answer yet.
    """
    if answer is None or answer is ...:
        print("No answer yet.")
        return
    try:
        solved = bool(is_right(answer))
    except Exception as error:
        print(f"Not yet: the check stopped with {type(error).__name__}: {error}\n{hint}")
        return
    print(f"Right: {right}" if solved else f"Not yet: {hint}")
