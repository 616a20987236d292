"""Law: the pieces that work is cut into change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mechheads as mh
from mechheads.limits import DEFAULT_BUDGET, Limits
from support.texts import PAIRS

ANALYSES: dict[str, Callable[..., Any]] = {
    "cache": lambda model, limits: mh.settings(budget=limits)(model.cache)(PAIRS.side("clean")).logits.numpy(),
    "ablate": lambda model, limits: mh.ablate(model, PAIRS, budget=limits).values,
    "activation_patch": lambda model, limits: (
        mh.activation_patch(model, PAIRS, positions="each", heads=["L0H1", "L2H2"], budget=limits).values
    ),
    "mlps": lambda model, limits: mh.activation_patch(model, PAIRS, nodes="all", budget=limits).dataset["mlp_values"],
    "attribution_patch": lambda model, limits: (
        mh.settings(budget=limits)(mh.patching.attribution_patch)(model, PAIRS).values
    ),
    "path_patch": lambda model, limits: mh.path_patch(model, PAIRS, receivers="L2H1.q", budget=limits).values,
    "patch_sets": lambda model, limits: (
        mh.settings(budget=limits)(mh.patching.patch_sets)(model, PAIRS, [["L0H1"], ["L0H1", "L2H2"]]).values
    ),
    "self_repair": lambda model, limits: mh.settings(budget=limits)(mh.patching.self_repair)(model, PAIRS).values,
    "logit_attribution": lambda model, limits: (
        mh.settings(budget=limits)(mh.behaviour.logit_attribution)(model, PAIRS).values
    ),
    "ships": lambda model, limits: mh.ships(model, PAIRS.side("clean"), budget=limits).values,
}

limits = st.builds(
    Limits,
    memory=st.sampled_from([1, 2**14, 2**17, 2**20, DEFAULT_BUDGET]),
    tokens=st.none() | st.integers(1, 64),
    logits=st.sampled_from([1, 300, 1000, 2**24]),
    logit_rows=st.integers(1, 40),
    run_tokens=st.integers(1, 40),
)


@pytest.fixture(scope="module")
def whole(llama: mh.Model) -> dict[str, Any]:
    """What each analysis gives with the default limits."""
    return {name: ask(llama, None) for name, ask in ANALYSES.items()}


@pytest.mark.filterwarnings("ignore:budget is", "ignore:the .* run prefers")
@pytest.mark.parametrize("name", ANALYSES)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limits=limits)
def test_the_pieces_that_work_is_cut_into_change_no_result(name, llama, whole, limits):
    np.testing.assert_allclose(ANALYSES[name](llama, limits), whole[name], atol=1e-5, rtol=0)
