"""Law: the pieces that work is cut into change no result."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import mechheads as mh
from mechheads.limits import DEFAULT_BUDGET, Limits
from support.every_analysis import EVERY

ANALYSES = ("cache", "patch z", "attribution", "paths", "sets", "logits", "ships")

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
    return {name: EVERY[name].numbers(llama) for name in ANALYSES}


@pytest.mark.filterwarnings("ignore:budget is", "ignore:the .* run prefers")
@pytest.mark.parametrize("name", ANALYSES)
@settings(max_examples=2, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(limits=limits)
def test_the_pieces_that_work_is_cut_into_change_no_result(name, llama, whole, limits):
    with mh.settings(budget=limits):
        np.testing.assert_allclose(EVERY[name].numbers(llama), whole[name], atol=1e-5, rtol=0)
