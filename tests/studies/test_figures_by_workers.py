"""Figures whose panels come from workers, against those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.gating import fit
from mechheads.gating.gates import log_probs
from mechheads.studies import roles_figure, safety_figure
from mechheads.studies.figures import panels, safety as safety_module
from support.ctrl_c import stopped_at
from support.figure_requests import roles_request, safety_request
from support.made_workers import MadeWorkers

NEAR: dict[str, Any] = {"rtol": 1e-3, "atol": 2e-3}
"""Fits seed by seed round differently from fits of all seeds at once, and go apart."""
Given = dict[str, Any]


@pytest.fixture
def asked_safety(tiny, tmp_path: Path) -> Given:
    return safety_request(tiny, tmp_path) | {"ablations": ["scaling"], "models": [tiny("llama")]}


@pytest.fixture
def asked_roles(tiny, tmp_path: Path) -> Given:
    return roles_request(tiny, tmp_path) | {"models": [tiny("llama")]}


def close(ours: pd.DataFrame, alone: pd.DataFrame) -> None:
    """Two tables are the same up to rounding."""
    assert ours.columns.tolist() == alone.columns.tolist()
    numbers = ours.select_dtypes("number").columns
    np.testing.assert_allclose(ours[numbers], alone[numbers], **NEAR)
    pd.testing.assert_frame_equal(ours.drop(columns=numbers), alone.drop(columns=numbers))


@pytest.mark.slow
def test_an_interrupted_safety_figure_goes_on_with_workers(asked_safety: Given, tmp_path: Path, monkeypatch) -> None:
    alone = safety_figure(**asked_safety | {"out": tmp_path / "alone"})
    with monkeypatch.context() as patch:
        patch.setattr(safety_module, "compare_ablations", stopped_at(2, mh.safety.compare_ablations))
        assert safety_figure(**asked_safety).interrupted
    workers = MadeWorkers(2)
    whole = mh.settings(workers=workers)(safety_figure)(**asked_safety)
    assert not whole.interrupted and workers.computed
    assert list(whole.panels) == list(alone.panels)
    close(whole.tables["heads"], alone.tables["heads"])
    monkeypatch.setattr(panels, "load_model", lambda *_args, **_options: pytest.fail("a model was loaded"))
    assert not mh.settings(workers=MadeWorkers(3))(safety_figure)(**asked_safety).interrupted


@pytest.mark.slow
def test_fits_of_a_roles_figure_that_one_process_began_go_on_with_workers(
    asked_roles: Given, tmp_path: Path, monkeypatch
) -> None:
    """The first call is interrupted in the middle of the fits; the second one goes on from its ledger."""
    alone = roles_figure(**asked_roles | {"out": tmp_path / "alone"})
    with monkeypatch.context() as patch:
        patch.setattr(fit, "log_probs", stopped_at(2, log_probs))
        with (
            pytest.warns(UserWarning, match="the same call continues"),
            pytest.raises(KeyboardInterrupt, match="goes on"),
        ):
            roles_figure(**asked_roles)
    assert list(asked_roles["out"].rglob("gates.ledger"))
    workers = MadeWorkers(2)
    whole = mh.settings(workers=workers)(roles_figure)(**asked_roles)
    units = [str(unit) for batch in workers.computed for unit in batch]
    assert "the fit keep and drop of seed 1" in units
    close(whole.tables["curves"], alone.tables["curves"])
    assert not list(asked_roles["out"].rglob("gates.ledger"))


@pytest.mark.parametrize("draw", [safety_figure, roles_figure])
def test_workers_that_are_none_are_refused_before_a_model_is_loaded(draw: Any, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(panels, "load_model", lambda *_args, **_options: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match="workers is -1; give a number of workers on this machine"):
        mh.settings(workers=-1)(draw)(out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
