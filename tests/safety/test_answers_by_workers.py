"""Answers under several conditions, written by workers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.generation.generate import Sampling, generate_under
from mechheads.safety import AnswerSettings, attack_curve, refusal_test
from support.made_workers import MadeWorkers, pressing
from support.rules import changes_of

HARMFUL, HARMLESS = [" The capital of France is", " When John went to the"], [" a big dog gave Mary a", " no"]
BRIEF = AnswerSettings(template="bare", max_new_tokens=4, opening=" no")
FEW: dict[str, Any] = {"answers": BRIEF}
TEST: dict[str, Any] = {"texts": [" Paris and Rome"], "draws": 1}


@pytest.mark.parametrize(
    ("ablation", "temperature"), [("scaling", 0.7), pytest.param("mean", 0.0, marks=pytest.mark.release)]
)
def test_each_condition_is_written_on_its_own(llama: mh.Model, ablation: Any, temperature: float):
    workers = MadeWorkers(2)
    given: dict[str, Any] = {"intervention": ablation, "answers": replace(BRIEF, temperature=temperature)}
    test = mh.settings(workers=workers, seed=3)(refusal_test)(
        llama, ["L0H1", "L2H3"], HARMFUL, HARMLESS, **given, **TEST
    )
    assert sorted(str(unit) for units in workers.computed for unit in units) == sorted(
        2 * ["the condition 'intact'", "the condition 'ablated'", "the condition 'random 1'"]
    )
    for condition, heads in (("intact", ()), ("ablated", test.heads), ("random 1", test.random[0])):
        for kind, requests in (("harmful", HARMFUL), ("harmless", HARMLESS)):
            (alone,) = generate_under(
                llama, requests, [changes_of(llama, ablation, heads, HARMFUL)], Sampling(4, temperature, None, 3)
            )
            rows = test.answers[(test.answers["condition"] == condition) & (test.answers["kind"] == kind)]
            assert tuple(rows["answer"]) == alone.texts
    here = mh.settings(seed=3)(refusal_test)(llama, ["L0H1", "L2H3"], HARMFUL, HARMLESS, **given, **TEST)
    np.testing.assert_allclose(test.table[["loss", "refusal"]], here.table[["loss", "refusal"]], atol=1e-5)
    assert test.answers[["condition", "kind", "request"]].equals(here.answers[["condition", "kind", "request"]])


@pytest.mark.release
def test_a_curve_takes_workers_that_are_lost(llama: mh.Model):
    lost: list[Any] = []

    def trouble(replica: int, request: Any) -> bool:
        if len(lost) < 2:
            lost.append(request)
            return True
        return False

    whole = mh.settings(workers=MadeWorkers(1))(attack_curve)(
        llama, ["L0H1", "L2H3"], HARMFUL, HARMLESS, draws=0, **FEW
    )
    workers = MadeWorkers(2, trouble)
    curve = mh.settings(workers=workers, seed=3)(attack_curve)(
        llama, ["L0H1", "L2H3"], HARMFUL, HARMLESS, draws=0, **FEW
    )
    assert len(workers.lost) == 2
    assert curve.more["answers"].equals(whole.more["answers"])
    assert curve.table.equals(whole.table)
    assert not curve.missing


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_finishes_the_conditions_in_flight(llama: mh.Model):
    workers, seen = pressing(1, at=1)
    with pytest.warns(UserWarning, match=r"interrupted after \d of 12 answers were judged"):
        part = mh.settings(workers=workers, seed=3)(attack_curve)(
            llama, ["L0H1", "L2H3"], HARMFUL, HARMLESS, draws=0, **FEW
        )
    assert part.provenance["interrupted"]
    done = part.more["answers"].dropna(subset=["verdict"])
    assert len(done) == 2 * len(seen) < 6
    assert set(done["kind"]) == {"harmful"}
    assert set(done["condition"]) == {["heads 0", "heads 1", "heads 2"][i] for i in range(len(seen))}


def test_a_model_that_workers_cannot_load_is_named_first(llama: mh.Model):
    wrapped = mh.wrap(llama.model, llama.tokenizer)
    with pytest.raises(ValueError, match=r"made by mh\.wrap, so workers cannot load it"):
        mh.settings(workers=MadeWorkers(1))(attack_curve)(wrapped, ["L0H1"], HARMFUL, HARMLESS, **FEW)
