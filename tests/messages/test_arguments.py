"""Choices, bounds and keywords are checked by what signatures say, and messages say what is right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import pytest

import mechheads as mh
from mechheads.messages.arguments import AboveZero, Positive, Share, Within, checked

if TYPE_CHECKING:
    from mechheads.results.scores import HeadScores as Unknown

LAST = ("task", "name", "seed", "by", "counts")
Side = Literal["clean", "corrupted"]


@checked
def draw(
    side: Side,
    n: Positive = 0,
    *,
    of: Side | None = None,
    own: Side | str = "",
    kind: Side | mh.Zero = "clean",
    share: Share = 0.5,
    rate: AboveZero | None = None,
    width: Annotated[int, Within(least=2, most=4)] | list[int] = 2,
    unknown: Unknown | None = None,
    log: bool | None = False,
    save: bool | str = False,
    task: mh.Task | None = None,
    name: str | Path = "x",
    seed: int = 0,
    by: Mapping[str, str] | Literal["all"] = "all",
    counts: int | Sequence[int] = 1,
) -> tuple[Any, ...]:
    return side, n, of, own, kind, share, rate, width, unknown, log, save, task, name, seed, by, counts


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"side": "clan"}, "side is 'clan'; choose one of 'clean', 'corrupted'. Did you mean \"clean\"?"),
        ({"n": 0}, "n is 0; it must be at least 1"),
        ({"n": 1.5}, "n is 1.5; it must be a whole number, at least 1"),
        ({"share": 1.2}, "share is 1.2; it must be at least 0 and at most 1"),
        ({"rate": 0}, "rate is 0; it must be above 0"),
        ({"width": 5}, "width is 5; it must be at least 2 and at most 4"),
        ({"log": "no"}, "log is 'no'; give True or False or None"),
        ({"save": 0}, "save is 0; give True or False or a text"),
        ({"task": ["a"]}, "task is a list; give mh.Task(prompts=[...], targets=[...]) or None"),
        ({"name": 5}, "name is 5; give a text or a path"),
        ({"seed": "x"}, "seed is 'x'; it must be a whole number"),
        ({"by": "some"}, "by is 'some'; give 'all' or a dict"),
    ],
)
def test_what_an_annotation_does_not_allow_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError) as refused:
        draw(**{"side": "clean"} | given)
    assert str(refused.value) == said


def test_what_an_annotation_allows_is_passed_on() -> None:
    zero = mh.Zero()
    given: dict[str, Any] = {
        "of": None,
        "own": "mine",
        "kind": zero,
        "share": 1,
        "rate": 0.1,
        "width": [9],
        "unknown": 3,
        "log": np.bool_(True),
        "save": "folder",
    }
    task = mh.Task(["a"], ["b"])
    given |= {"task": task, "name": Path("x"), "seed": np.int64(2), "by": {"a": "b"}, "counts": np.arange(2)}
    found = ("corrupted", 3, None, "mine", zero, 1, 0.1, [9], 3, True, "folder", *(given[name] for name in LAST))
    assert draw("corrupted", np.int64(3), **given) == found
    assert draw("clean")[1] == 0  # what is so by default is not checked


def test_keywords_that_are_not_known_name_what_may_be_meant() -> None:
    with pytest.raises(
        TypeError, match=r"draw\(\): got an unexpected keyword argument 'shar'\. Did you mean \"share\"\?"
    ):
        draw("clean", shar=1)
    with pytest.raises(TypeError, match=r"draw\(\): missing a required argument: 'side'"):
        draw()
    with pytest.raises(
        TypeError, match=r"load\(\): got an unexpected keyword argument 'devise'\. Did you mean \"device\"\?"
    ):
        mh.load(devise="cpu")


PATHS: dict[str, Callable[[Any], object]] = {
    "mh.Gates.load": mh.gating.Gates.load,
    "mh.HeadScores.load": mh.HeadScores.load,
    "HeadScores.save": mh.HeadScores.from_values(np.ones((1, 1, 2)), name="a", unit="b", kind="demo").save,
    "Relation.load": mh.Relation.load,
    "Relation.from_file": mh.Relation.from_file,
    "PromptPairs.from_file": mh.PromptPairs.from_file,
    "Atlas.load": mh.studies.Atlas.load,
}


@pytest.mark.parametrize("of", PATHS)
@pytest.mark.parametrize("given", [5])
def test_what_is_no_path_is_refused(of: str, given: Any) -> None:
    with pytest.raises(ValueError, match=r"^(path|file|folder|name_or_path) is .*; give a text or a path$"):
        PATHS[of](given)


HEADS: dict[str, tuple[Callable[[mh.Model], object], str]] = {
    "a number": (lambda model: mh.ablate(model, [" a"], heads=5), "ablate(): heads: head 5 is not a head; write"),  # type: ignore[arg-type]
    "one of several": (lambda model: mh.ablate(model, [" a"], heads=["L0H0", "x"]), "ablate(): heads: head 'x' is not"),
    "not there": (lambda model: mh.ships(model, ["a"], heads="L9H0"), "ships(): heads: head L9H0 is out of range"),
    "switched off": (
        lambda model: mh.generate(model, [" a"], 1, off=["L0H9"]),
        "generate(): off: head L0H9 is out of range",
    ),
    "of a set": (
        lambda model: mh.safety.refusal_test(model, 7, ["a"], ["b"]),  # type: ignore[arg-type]
        "refusal_test(): heads: head 7 is not a head",
    ),
}


@pytest.mark.parametrize("what", HEADS)
def test_a_wrong_head_names_the_function_that_was_called_and_the_argument(llama: mh.Model, what: str) -> None:
    call, said = HEADS[what]
    with pytest.raises(ValueError) as refused:
        call(llama)
    assert str(refused.value).startswith(said)
