"""The check that no number has changed names every result that has."""

from __future__ import annotations

import numpy as np

from benchmarks.frozen import differences


def test_it_names_what_differs() -> None:
    kept = {"same": np.ones(2), "nan": np.array([np.nan]), "off": np.ones(2), "text": np.array("a"), "gone": np.ones(1)}
    found = {**kept, "off": np.array([1, 1.5]), "text": np.array("b"), "new": np.ones(1)}
    del found["gone"]
    assert list(differences(kept, kept)) == []
    assert list(differences(kept, found)) == [
        "gone: only before",
        "new: only now",
        "off: off by 0.5, of 1",
        'text: "a" is "b"',
    ]
    assert list(differences({"x": np.ones(2)}, {"x": np.ones(3)})) == ["x: float64[2] is float64[3]"]
