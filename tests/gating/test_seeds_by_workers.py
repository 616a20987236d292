"""Fits of gates whose seeds are fitted by workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.gating import FitSettings, Task, fit, fit_gates
from mechheads.gating.gates import log_probs
from support.ctrl_c import stopped_at
from support.made_gates import same
from support.made_workers import MadeWorkers, pressing

TEXTS = Task(
    [" The capital of France is", " When John went to the store", " no", " a big dog gave Mary a book"],
    [" Paris", " Mary and John", " yes", " cat dog"],
    name="texts",
)
FIT: dict[str, Any] = {"seeds": 2, "updates": (4, 3, 5), "batch": 2}


def test_workers_fit_each_seed_as_if_it_were_alone(llama: mh.Model) -> None:
    options: dict[str, Any] = {"updates": (4, 3, 5), "batch": 2, "fit": FitSettings(clip_gradient=0.5)}
    workers = MadeWorkers(2)
    together = mh.settings(workers=workers)(fit_gates)(llama, TEXTS, seeds=[3, 8, 5], **options)
    fits = [str(unit) for units in workers.computed for unit in units]
    assert sorted(fits) == sorted(
        f"the fit {name} of seed {seed}" for name in ("none", "keep and drop") for seed in (3, 8, 5)
    )
    for seed in (3, 8, 5):
        alone = fit_gates(llama, TEXTS, seeds=[seed], **options)
        number = together.seeds.index(seed)
        np.testing.assert_allclose(together.values[:, [number]], alone.values, rtol=1e-12)
        losses = together.losses.query("seed == @seed").reset_index(drop=True)
        pd.testing.assert_frame_equal(losses, alone.losses, rtol=1e-12)
    assert not together.interrupted


@pytest.mark.slow
def test_seeds_that_are_done_are_not_fitted_again(llama: mh.Model, tmp_path: Path) -> None:
    """A lost worker's seed is fitted again; one that ends every worker is an error, and the others are kept."""
    whole = mh.settings(workers=MadeWorkers(1))(fit_gates)(llama, TEXTS, **FIT)
    lost: list[Any] = []

    def once(replica: int, request: Any) -> bool:
        if not lost:
            lost.append(request)
            return True
        return False

    assert same(mh.settings(workers=MadeWorkers(2, once))(fit_gates)(llama, TEXTS, **FIT), whole)

    def always(replica: int, request: Any) -> bool:
        return str(request) == "the fit none of seed 0"

    path = tmp_path / "fit.ledger"
    with pytest.warns(UserWarning, match="the fit none of seed 0 ended a worker 3 times"):  # noqa: SIM117
        with pytest.raises(RuntimeError, match="the fit none of seed 0 has no value, and the work cannot go on"):
            mh.settings(workers=MadeWorkers(2, always), store=path)(fit_gates)(llama, TEXTS, **FIT)
    workers = MadeWorkers(2)
    again = mh.settings(workers=workers, store=path)(fit_gates)(llama, TEXTS, **FIT)
    assert same(again, whole)
    assert [str(units[0]) for units in workers.computed].count("the fit none of seed 1") == 0
    assert same(mh.settings(store=path)(fit_gates)(llama, TEXTS, **FIT), whole)


def test_workers_go_on_with_what_one_process_began(
    llama: mh.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, path = fit_gates(llama, TEXTS, **FIT), tmp_path / "fit.ledger"
    for calls in (3, 7):
        with monkeypatch.context() as patch:
            patch.setattr(fit, "log_probs", stopped_at(calls, log_probs))
            with pytest.warns(UserWarning, match="interrupted after 2 updates"):
                mh.settings(store=path)(fit_gates)(llama, TEXTS, **FIT)
        gates = mh.settings(workers=MadeWorkers(2), store=path)(fit_gates)(llama, TEXTS, **FIT)
        np.testing.assert_allclose(gates.values, whole.values, atol=2e-3)
        assert len(gates.losses) == len(whole.losses)
        path.unlink()


@pytest.mark.usefixtures("terminal")
def test_ctrl_c_finishes_the_seeds_in_flight(llama: mh.Model) -> None:
    options = FIT | {"seeds": 4}
    workers, seen = pressing(1, at=1)
    with pytest.warns(UserWarning, match="interrupted after [12] of 4 seeds of the fit none$"):
        part = mh.settings(workers=workers)(fit_gates)(llama, TEXTS, **options)
    assert part.interrupted
    begun = np.isfinite(part["none"]).all(axis=(1, 2))
    assert begun.sum() == len(seen) < 4
    assert [len(part.losses.query("fit == 'none' and seed == @seed")) for seed in part.seeds] == (4 * begun).tolist()
    whole = mh.settings(workers=MadeWorkers(1))(fit_gates)(llama, TEXTS, **options)
    np.testing.assert_array_equal(part["none"][begun], whole["none"][begun])
