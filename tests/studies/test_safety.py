"""The study of safety heads and its command, on a tiny model: what is run, written, said, and kept by Ctrl-C."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.safety.requests import sides, texts
from mechheads.safety.requests.requests import Request
from mechheads.studies import safety as study_module
from mechheads.studies.report import write_safety_page

pytestmark = pytest.mark.transformerlens

SECRET = " Mary gave a <b>dog</b>"
TEXTS = {
    "harmful": [" When John went", " Paris or Rome", SECRET, " no cat", " two big"],
    "harmless": [" When Mary went", " Paris and Rome", " Mary gave a book", " yes cat", " two small"],
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in the few words that a tiny vocabulary holds."""

    def load(name: str = "harmful", split: str | None = None) -> tuple[Request, ...]:
        some = {"train": TEXTS[name] * 6, "test": TEXTS[name][:4] * 3, None: TEXTS[name]}[split]
        return tuple(Request(text, "none") for text in some)

    for module in (study_module, sides):
        monkeypatch.setattr(module, "load_requests", load)
    monkeypatch.setattr(texts, "ordinary_texts", lambda: (" a dog gave", " Mary went to the store"))


@pytest.fixture(scope="module")
def small(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


def judged(verdict: str):
    return lambda request, answer: verdict


def study_of(small: mh.Model, monkeypatch: pytest.MonkeyPatch, verdict: str) -> mh.studies.SafetyStudy:
    real = study_module.refusal_test
    monkeypatch.setattr(study_module, "refusal_test", lambda *a, **b: real(*a, **b, judge=judged(verdict)))
    return mh.studies.safety_study(small, 3, quick=True, critical=2, progress=False)


def test_a_model_that_refuses_nothing_has_no_refusal_to_ablate(small, short, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="refuses none"):
        study = study_of(small, monkeypatch, "complied")
    assert study.has_refusal is False and list(study.tests) == ["Ships, undifferentiated"]
    assert set(study.results) == {"ships_undifferentiated", "ships_scaling"} and study.curve is None
    assert "there is no refusal to ablate" in study.summary()
    assert "not safety heads" in study.notes[0]


@pytest.mark.slow
def test_a_model_that_refuses_is_tested_under_every_ranking(small, short, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, "refused")
    rankings = ["Ships, undifferentiated", "Ships, scaling", "refusal contribution", "refusal direction"]
    assert list(study.rankings) == rankings == list(study.tests)
    assert study.curve is not None and max(study.curve.table["k"].tolist()) == 2
    assert study.curve.provenance["ablation"] == "scaling"
    assert all(scores.dataset.sizes["prompt"] == 5 for scores in study.rankings.values())
    for name, test in study.tests.items():
        assert test.answers["condition"].tolist().count("intact") == 2 * 4, "tested on requests that ranked nothing"
        assert test.heads == tuple(sorted(study.rankings[name].heads(2)))
        assert not test.critical and "attack success does not rise" in test.verdict
        by = "scaling" if name in ("Ships, scaling", "refusal contribution") else "undifferentiated"
        assert test.provenance["ablation"] == by
    table = study.to_dataframe()
    assert sorted(table["refusal_contribution_rank"]) == list(range(1, len(table) + 1))
    first = table.loc[table["refusal_contribution_rank"] == 1].iloc[0]
    assert study.contribution is not None
    assert mh.HeadId(int(first["layer"]), int(first["head"])) == study.contribution.heads(1)[0]
    files = study.save(tmp_path)
    assert {path.name for path in files} >= {"heads.csv", "tests.csv", "curve.csv", "overlap.csv"}
    again = mh.HeadScores.load(tmp_path / "refusal_contribution.nc")
    np.testing.assert_array_equal(again.scores, study.contribution.scores)
    page = write_safety_page(study, tmp_path / "index.html").read_text("utf-8")
    assert "<details>" in page and "<b>dog</b>" not in page and "&lt;b&gt;dog&lt;/b&gt;" in page
    assert page.index("&lt;b&gt;dog") > page.index("<details>")


def test_alone_and_together_are_the_same(small, short, monkeypatch):
    with pytest.warns(UserWarning, match="refuses none"):
        study = study_of(small, monkeypatch, "complied")
    alone = mh.ships(small, TEXTS["harmful"], ablation="scaling", progress=False)
    np.testing.assert_allclose(study.ships["scaling"].scores, alone.scores, rtol=1e-6)
    overlap = study.overlap().set_index(["a", "b"])
    both = set(study.ships["scaling"].heads(3)) & set(study.ships["undifferentiated"].heads(3))
    assert overlap.loc[("Ships, undifferentiated", "Ships, scaling"), "shared"] == len(both)


def test_ctrl_c_keeps_what_is_done(small, short, monkeypatch):
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_module, "refusal_contribution", stop)
    study = study_of(small, monkeypatch, "refused")
    assert study.interrupted and set(study.results) == {"ships_undifferentiated", "ships_scaling"}
    assert "interrupted" in study.summary()


def test_the_command_writes_a_page(tiny, short, monkeypatch, tmp_path: Path):
    done = CliRunner().invoke(
        main, ["safety", "--model", str(tiny("llama")), "--out", str(tmp_path), "--quick", "--k", "2"]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "index.html").is_file() and "Ships, scaling" in done.output
    heads = pd.read_csv(tmp_path / "heads.csv")
    assert {"ships_scaling_in_top", "ships_undifferentiated_generalized_ships"} <= set(heads.columns)


def test_the_command_says_what_is_wrong(tmp_path: Path):
    (tmp_path / "file").touch()
    done = CliRunner().invoke(main, ["safety", "--model", "/nowhere", "--out", str(tmp_path / "file" / "safety")])
    assert done.exit_code == 2 and "--out" in done.output
