"""Figures whose panels come from workers, against those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.gating.fit import fit
from mechheads.gating.fit.gates import log_probs
from mechheads.studies import recipe_figure, repeat_figure, roles_figure, safety_figure
from mechheads.studies.figures import output, roles as roles_module, safety as safety_module
from mechheads.studies.figures.request import read_request
from mechheads.workers.messages import Answer, Lost, Request
from support.ctrl_c import stopped_at
from support.figure_requests import roles_request, safety_request
from support.made_workers import MadeWorkers

pytestmark = pytest.mark.release

NEAR: dict[str, Any] = {"rtol": 1e-3, "atol": 2e-3}
"""Fits seed by seed round differently from fits of all seeds at once, and go apart."""
Given = dict[str, Any]


@pytest.fixture(autouse=True)
def without_kaleido(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "has_kaleido", lambda: False)


@pytest.fixture
def asked_safety(tiny, tmp_path: Path) -> Given:
    return safety_request(tiny, tmp_path)


@pytest.fixture
def asked_roles(tiny, tmp_path: Path) -> Given:
    return roles_request(tiny, tmp_path)


def close(ours: pd.DataFrame, alone: pd.DataFrame) -> None:
    """Two tables are the same up to rounding."""
    assert ours.columns.tolist() == alone.columns.tolist()
    numbers = ours.select_dtypes("number").columns
    np.testing.assert_allclose(ours[numbers], alone[numbers], **NEAR)
    pd.testing.assert_frame_equal(ours.drop(columns=numbers), alone.drop(columns=numbers))


def test_safety_panels_by_workers_are_those_of_one_process(asked_safety: Given, tmp_path: Path) -> None:
    workers = MadeWorkers(2)
    ours = safety_figure(**asked_safety, workers=workers)
    alone = safety_figure(**asked_safety | {"out": tmp_path / "alone"})
    assert len(workers.computed) >= 2 * 2 * 2 * 3, "two models, two sets of requests, two ablations, batches of each"
    assert list(ours.panels) == list(alone.panels)
    close(ours.tables["heads"], alone.tables["heads"])
    files = [folder / "figure.json" for folder in (asked_safety["out"], tmp_path / "alone")]
    assert read_request(files[0])[0] == read_request(files[1])[0]
    assert "workers" not in read_request(files[0])[0].settings


def test_role_curves_by_workers_are_those_of_one_process(asked_roles: Given, tmp_path: Path) -> None:
    workers = MadeWorkers(2)
    ours = roles_figure(**asked_roles, workers=workers)
    alone = roles_figure(**asked_roles | {"out": tmp_path / "alone"})
    units = [str(unit) for batch in workers.computed for unit in batch]
    assert units.count("the fit keep and drop of seed 1") == 2, "each model has its own"
    assert units.count("the curve of interference") == units.count("the curve of random 5") == 2
    close(ours.tables["curves"], alone.tables["curves"])
    files = [folder / "figure.json" for folder in (asked_roles["out"], tmp_path / "alone")]
    assert read_request(files[0])[0] == read_request(files[1])[0]


def test_an_interrupted_safety_figure_goes_on_with_workers(asked_safety: Given, tmp_path: Path, monkeypatch) -> None:
    asked_safety |= {"ablations": ["scaling"]}
    alone = safety_figure(**asked_safety | {"out": tmp_path / "alone"})
    with monkeypatch.context() as patch:
        patch.setattr(safety_module, "compare_ablations", stopped_at(2, mh.safety.compare_ablations))
        assert safety_figure(**asked_safety).interrupted
    workers = MadeWorkers(2)
    whole = safety_figure(**asked_safety, workers=workers)
    assert not whole.interrupted and workers.computed
    close(whole.tables["heads"], alone.tables["heads"])
    monkeypatch.setattr(safety_module, "load", lambda *_args, **_options: pytest.fail("a model was loaded"))
    assert not safety_figure(**asked_safety, workers=MadeWorkers(3)).interrupted


@pytest.mark.parametrize("first", ["one process", "workers"])
def test_a_half_done_fit_goes_on_by_other_means(asked_roles: Given, tmp_path: Path, monkeypatch, first: str) -> None:
    """The first call is interrupted in the middle of the fits; the second one goes on from its checkpoint."""
    asked_roles["models"] = asked_roles["models"][:1]
    alone = roles_figure(**asked_roles | {"out": tmp_path / "alone"})
    seeds: list[str] = []

    def press(replica: int, request: Any) -> Answer | Lost | None:
        if isinstance(request, Request):
            seeds.append(str(request.batch.units[0]))
            if len(seeds) == 2:
                raise KeyboardInterrupt
        return None

    begin, go_on = MadeWorkers(1, press), MadeWorkers(1)
    with monkeypatch.context() as patch:
        if first == "one process":
            patch.setattr(fit, "log_probs", stopped_at(4, log_probs))  # the first two calls are for the estimate
        asked_first = asked_roles | {"workers": begin if first == "workers" else None}
        with (
            pytest.warns(UserWarning, match="the same call continues"),
            pytest.raises(KeyboardInterrupt, match="goes on"),
        ):
            roles_figure(**asked_first)
    assert list(asked_roles["out"].rglob("gates.checkpoint"))
    whole = roles_figure(**asked_roles, workers=go_on if first == "one process" else None)
    assert seeds == (["the fit none of seed 0", "the fit none of seed 1"] if first == "workers" else [])
    assert bool(go_on.computed) == (first == "one process")
    close(whole.tables["curves"], alone.tables["curves"])
    assert not list(asked_roles["out"].rglob("gates.checkpoint"))


def test_what_one_process_has_drawn_workers_repeat(asked_safety: Given, tmp_path: Path) -> None:
    made = safety_figure(**asked_safety | {"ablations": ["scaling"], "models": asked_safety["models"][:1]})
    workers = MadeWorkers(2)
    again = repeat_figure(asked_safety["out"] / "figure.json", tmp_path / "again", progress=False, workers=workers)
    assert workers.computed
    close(again.tables["heads"], made.tables["heads"])


def test_a_recipe_takes_workers(asked_roles: Given, tmp_path: Path) -> None:
    given: Given = {"data": asked_roles["tasks"], "quick": True, "progress": False}
    workers = MadeWorkers(2)
    ours = recipe_figure("chg", asked_roles["models"][:1], out=tmp_path / "ours", workers=workers, **given)
    alone = recipe_figure("chg", asked_roles["models"][:1], out=tmp_path / "alone", **given)
    assert workers.computed
    close(ours.tables["curves"], alone.tables["curves"])


@pytest.mark.parametrize("draw", [safety_figure, roles_figure])
def test_workers_that_are_none_are_refused_before_a_model_is_loaded(draw: Any, tmp_path: Path, monkeypatch) -> None:
    for module in (safety_module, roles_module):
        monkeypatch.setattr(module, "load", lambda *_args, **_options: pytest.fail("a model was loaded"))
    with pytest.raises(ValueError, match=r"workers is 2; give replicas of the model, such as mh\.scale\.Local\(2\)"):
        draw(out=tmp_path / "out", workers=2, progress=False)
    assert not (tmp_path / "out").exists()


def test_the_estimate_is_that_of_one_process(asked_safety: Given, capsys: pytest.CaptureFixture[str]) -> None:
    asked_safety |= {"ablations": ["scaling"], "models": asked_safety["models"][:1], "progress": True}
    safety_figure(**asked_safety, workers=MadeWorkers(1))
    assert " without workers; Ctrl-C keeps finished panels" in capsys.readouterr().err
