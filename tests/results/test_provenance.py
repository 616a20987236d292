"""Provenance: what JSON gives back unchanged, of whatever results are made from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mechheads.heads import HeadId
from mechheads.results.provenance import make_provenance

cells = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=5)
    | st.floats(allow_nan=False)
    | st.builds(HeadId, st.integers(0, 9), st.integers(0, 9))
    | st.floats(allow_nan=False).map(np.float64)
    | st.integers(0, 99).map(np.int32)
    | st.booleans().map(np.bool_)
)
values = st.recursive(
    cells,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
)
settings_of_any = st.dictionaries(st.text(max_size=5), values, max_size=4)


@settings(max_examples=40)
@given(settings_of_any, settings_of_any)
def test_json_gives_back_the_same(first: dict[str, Any], second: dict[str, Any]) -> None:
    made = make_provenance({"model": "m"}, first, second)
    assert json.loads(json.dumps(made)) == made
    assert make_provenance(made) == make_provenance({}, made) == made
    assert list(made) == list(dict.fromkeys(["model", *first, *second]))


def test_what_json_cannot_hold_is_named() -> None:
    with pytest.raises(ValueError, match=r"provenance cannot store seeds\[1\], a set; give texts, numbers, or lists"):
        make_provenance({}, seeds=(0, {1}))
    with pytest.raises(ValueError, match=r"provenance cannot store k\['a'\]\[0\], a complex"):
        make_provenance({}, {"k": {"a": [1j]}})
    with pytest.raises(ValueError, match="provenance cannot store limits, a dict"):
        make_provenance({}, limits={1: 2})
