"""What every analysis promises, one row for each: the same again, in any budget, after a file, after Ctrl-C.

Ctrl-C comes at a chosen call of a function of the package, so that it comes at the same place each time. What a store
or a checkpoint keeps is in tests/ledger and tests/gating; Ctrl-C at each step of changing a model in
tests/slow/test_interrupts.py.
"""

from __future__ import annotations

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.limits import Limits
from mechheads.messages.notices import until_interrupted
from mechheads.results.tables import TableResult
from support import every_analysis
from support.changes import changes_on
from support.every_analysis import EVERY, REPEATED, Analysis, fields, public_analyses
from support.levels import ONE_FIRST, few
from support.same import assert_same, assert_survives

PACKAGE = str(Path(mh.__file__).parent)
PIECES = Limits(tokens=1, logit_rows=1, run_tokens=1)
"""Every head, prompt and answer alone."""
BEGINS, ENDS = until_interrupted.__enter__.__code__, until_interrupted.__exit__.__code__


class Steps:
    """Counts calls in the package, ``kept`` those while an analysis keeps what is done; raises at the n-th, from 1."""

    def __init__(
        self, at: int | None = None, error: type[BaseException] = KeyboardInterrupt, *, of_kept: bool = False
    ) -> None:
        self.at, self.error, self.of_kept = at, error, of_kept
        self.calls = self.kept = self._depth = 0
        self._counts: dict[CodeType, bool] = {}

    def __enter__(self) -> Steps:
        sys.setprofile(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _called(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call":
            return
        code = frame.f_code
        self._depth += (code is BEGINS) - (code is ENDS)
        if code not in self._counts:
            in_package = code.co_filename.startswith(PACKAGE) and "messages" not in code.co_filename
            in_package &= not code.co_name.endswith("comp>")  # Python 3.12 no longer calls these
            self._counts[code] = in_package and not code.co_flags & inspect.CO_GENERATOR  # one may be closed unseen
        if self._counts[code]:
            self.calls += 1
            self.kept += self._depth > 0
            if self.at == (self.kept if self.of_kept else self.calls) and (self._depth > 0 or not self.of_kept):
                raise self.error


@pytest.fixture(scope="module", params=ONE_FIRST)
def model(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> mh.Model:
    """A model of which every second weight wants no gradient, and every third has one from elsewhere."""
    made = mh.load(tiny(request.param))
    for i, weight in enumerate(made.model.parameters()):
        weight.requires_grad_(i % 2 == 0)
        weight.grad = torch.ones_like(weight) if i % 3 == 0 else None
    return made


@pytest.fixture(scope="module")
def undisturbed(model: mh.Model) -> Callable[[str], tuple[Any, Steps]]:
    """The result of an analysis in pieces, which leaves the model as it is, and the calls that it takes."""

    @cache
    def run(name: str) -> tuple[Any, Steps]:
        weights = [weight.detach().clone() for weight in model.model.parameters()]
        before = changes_on(model)
        with Steps() as steps:
            found = quietly(EVERY[name], model)
        assert changes_on(model) == before
        for i, (weight, value) in enumerate(zip(model.model.parameters(), weights, strict=True)):
            assert torch.equal(weight, value)
            assert weight.grad is None if i % 3 else bool((weight.grad == 1).all())
        return found, steps

    return run


def quietly(analysis: Analysis, model: mh.Model, budget: Limits | None = PIECES) -> Any:
    with warnings.catch_warnings(), mh.settings(budget=budget):
        warnings.simplefilter("ignore")
        return analysis.run(model)


def results(found: Any) -> list[mh.HeadScores | TableResult]:
    """The results in what an analysis gives that have a file."""
    parts = found.values() if isinstance(found, Mapping) and not isinstance(found, TableResult) else [found]
    return [part for part in parts if isinstance(part, (mh.HeadScores, TableResult))]


def check_same(ours: Any, theirs: Any) -> None:
    """To the bit, with all that results say about themselves."""
    for one, other in zip(results(ours), results(theirs), strict=True):
        assert_same(one, other)
    np.testing.assert_equal(fields(ours), fields(theirs))
    assert not isinstance(ours, mh.generation.Generated) or ours == theirs


pytestmark = pytest.mark.usefixtures("brief_answers")
rows = pytest.mark.parametrize("name", few(EVERY, *(set(EVERY) - REPEATED)))


@rows
def test_it_gives_the_same_in_any_budget_and_from_a_file(name, model, undisturbed, tmp_path):
    whole, _ = undisturbed(name)
    in_one = quietly(EVERY[name], model, None)
    if isinstance(whole, (mh.safety.HeadGroup, mh.generation.Generated)):  # small angles are rough
        assert repr(in_one) == repr(whole)
    else:
        for ours, wanted in zip(fields(whole).values(), fields(in_one).values(), strict=True):
            np.testing.assert_allclose(ours, wanted, atol=1e-4, rtol=1e-4)
    for result in results(whole):
        assert_survives(result, tmp_path)


@rows
def test_ctrl_c_keeps_what_is_done_an_error_leaves_nothing_and_both_the_same_again(name, model, undisturbed, tmp_path):
    analysis, before = EVERY[name], changes_on(model)
    whole, steps = undisturbed(name)
    with pytest.raises(ZeroDivisionError), Steps(steps.calls // 4, ZeroDivisionError):
        quietly(analysis, model)
    assert changes_on(model) == before
    part, said = None, []
    with warnings.catch_warnings(record=True) as caught, mh.settings(budget=PIECES):
        warnings.simplefilter("always")
        try:
            with Steps(int(analysis.at * (steps.kept or steps.calls)), of_kept=steps.kept > 0):
                part = analysis.run(model)
        except KeyboardInterrupt:
            assert analysis.kept is None
        said = [warning for warning in caught if "interrupted" in str(warning.message)]
    assert changes_on(model) == before
    if analysis.kept is not None:
        check_kept(analysis, part, whole, said, tmp_path)
    with torch.inference_mode():
        check_same(quietly(analysis, model), whole)


def check_kept(analysis: Analysis, part: Any, whole: Any, said: list[Any], folder: Path) -> None:
    """What is kept are numbers of the whole result; it says how far it came, to who asked, and survives a file."""
    assert any(re.search(f"interrupted.*{analysis.kept}", str(warning.message)) for warning in said)
    assert {warning.filename for warning in said} == {analysis.run.__code__.co_filename}
    assert isinstance(part, mh.generation.Generated) or any(each.provenance["interrupted"] for each in results(part))
    for result in results(part):
        assert_survives(result, folder)
    reached = 0
    for name, ours in fields(part).items():
        if not analysis.of_fewer and name in (all_of := fields(whole)):
            theirs = all_of[name][tuple(map(slice, ours.shape))]
            known = np.isfinite(ours)
            reached += known.sum()
            np.testing.assert_allclose(ours[known], theirs[known], atol=1e-6, rtol=1e-6)
    assert reached or analysis.of_fewer


ONLY_TOKENS = {"few_shot_pairs", "few_shot_prompts", "request_prompts"}
ONLY_TOKENS |= {"repeated_tokens"}
NO_RESULT = {"plan", "prepare", "text_loss", "task_log_prob"}
NO_RESULT |= {"salient_operations"}
OF_ANALYSES = {"build_atlas"}
OF_WHAT_A_MODEL_KNOWS = {"cumulative_removal", "relation_evidence"}
"""Their tables are in tests/labels and tests/results."""


def test_every_public_analysis_has_its_model_for_itself_and_a_row():
    analyses = public_analyses()
    without = {name for name, each in analyses.items() if "store" not in inspect.signature(each).parameters}
    assert without == ONLY_TOKENS
    source = inspect.getsource(every_analysis)
    no_row = {name for name in analyses if not re.search(rf"\b{name}\(", source)}
    assert no_row - ONLY_TOKENS == NO_RESULT | OF_ANALYSES | OF_WHAT_A_MODEL_KNOWS
