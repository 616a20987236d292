"""``result.call`` is the Python that gives a result again."""

from __future__ import annotations

import numpy as np
import pytest

import mechheads as mh
from support.texts import CLEAN, PAIRS


def again(result: mh.HeadScores, model: mh.Model) -> mh.HeadScores:
    return eval(result.call, {"mh": mh, "model": model})


CALLS = {
    "patching": lambda model: mh.activation_patch(model, PAIRS, site="v", normalize=True, metric=mh.logit_diff),
    "seed": lambda model: mh.ablate(model, CLEAN, intervention="resample", heads=["L0H1", "L2H3"], seed=5),
    "given": lambda model: mh.ablate(model, CLEAN, intervention=mh.Mean(), given={"L0H1": mh.Zero()}),
    "select": lambda model: mh.path_matrix(model, PAIRS, receivers=["final", "L2H0.q"]).select(receiver="L2H0.q"),
    "ships": lambda model: mh.ships(model, CLEAN, intervention="scaling"),
    "safety": lambda model: mh.safety_heads(model, CLEAN, 2, score="generalized_ships"),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_call_of_a_result_gives_its_numbers_again(name: str, loaded) -> None:
    model = loaded("llama")
    result = CALLS[name](model)
    repeated = again(result, model)
    np.testing.assert_array_equal(repeated.scores, result.scores)
    assert repeated.call == result.call


def test_a_table_and_what_was_made_of_a_result_have_the_call_too(loaded) -> None:
    model = loaded("llama")
    effect = mh.activation_patch(model, PAIRS)
    kept = mh.patching.faithfulness(model, PAIRS, ["L0H1", "L2H3"])
    assert kept.call.startswith("mh.patching.faithfulness(") and "['L0H1', 'L2H3']" in kept.call
    labels = mh.label_heads(mh.relation_scores(model, ["country_to_capital"], k=2, min_pairs=1))
    assert labels.call == "mh.label_heads(mh.relation_scores(model, ['country_to_capital'], 2, min_pairs=1))"
    assert (2 * effect - effect).call == f"((2.0 * {effect.call}) - {effect.call})"
    assert mh.HeadScores.from_scores(np.ones((1, 2)), name="x", kind="demo").call == ""
