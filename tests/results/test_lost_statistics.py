"""Statistics that Ctrl-C or a lack of memory ends lose no value."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mechheads as mh
from mechheads.results import dataset
from support.texts import CLEAN


@pytest.mark.parametrize(("error", "why"), [(MemoryError, "memory ran out"), (KeyboardInterrupt, "Ctrl-C")])
def test_a_sweep_whose_statistics_end_early_keeps_every_value(
    loaded: Callable[[str], mh.Model],
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    why: str,
):
    model = loaded("gpt2")
    whole = mh.ablate(model, CLEAN)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(dataset, "sign_flip_p", fail)
    monkeypatch.setattr(dataset, "bounded_interval", fail)
    with pytest.warns(UserWarning, match=f"{why} ended the statistics of .*the value of each prompt is kept"):
        found = mh.ablate(model, CLEAN)
    np.testing.assert_allclose(found.dataset["values"], whole.dataset["values"], atol=1e-6)
    np.testing.assert_allclose(found.scores, whole.scores, atol=1e-6)
    assert found.dataset[["ci_low", "p_value", "q_value"]].isnull().all().to_array().all()
    assert found.provenance["interrupted"] is (error is KeyboardInterrupt)
    assert found.missing == ()
