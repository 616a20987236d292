"""An atlas of refusals and its command, on a tiny model: what is run, written, said, and kept by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.explorer.page import write_page
from mechheads.explorer.payload import atlas_payload
from mechheads.ledger.ledger import Ledger
from mechheads.safety import AnswerSettings, load_requests
from mechheads.safety.answers import refusal
from mechheads.safety.requests import prompts
from mechheads.safety.requests.requests import Request
from mechheads.studies import refusals
from mechheads.studies.atlas import ATLAS_FILES
from mechheads.studies.refusals import REFUSAL_TABLES, TOGETHER
from support.made_workers import MadeWorkers

SECRET = " Mary gave a <b>dog</b>"
TEXTS = {
    "harmful": [" When John went", " Paris or Rome", SECRET, " no cat", " two big"],
    "harmless": [" When Mary went", " Paris and Rome", " Mary gave a book", " yes cat", " two small"],
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in the few words that a tiny vocabulary holds."""

    def load(name: Any = "harmful", split: Any = None, **options: Any) -> Any:
        if name not in TEXTS:
            return load_requests(name, split, **options)
        tested = [text for text in (*TEXTS[name], " John went") for _ in range(3)]
        some = {"train": TEXTS[name] * 6, "test": tested, None: TEXTS[name]}[split]
        return tuple(Request(text, "none") for text in some)

    for module in (refusals, prompts):
        monkeypatch.setattr(module, "load_requests", load)
    monkeypatch.setattr(refusal, "ordinary_texts", lambda: (" a dog gave", " Mary went to the store"))


def judging(verdict: str):
    return lambda request, answer: verdict


def atlas_of(
    small: mh.Model,
    monkeypatch: pytest.MonkeyPatch,
    judge: Any,
    group: Any = "query",
    critical: int = 2,
    workers: Any = None,
    **options: Any,
) -> mh.studies.Atlas:
    monkeypatch.setattr(refusals, "AnswerSettings", partial(AnswerSettings, judge))
    count_as(judge("", ""), monkeypatch)
    asked = mh.studies.RefusalSettings(3, critical, group)
    build = mh.settings(workers=workers)(mh.build_atlas)
    return build(small, only=["safety"], refusals=asked, quick=True, **options)


def count_as(verdict: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the model refuse all or none of the requests that are answered first."""
    counted = {"n": 6 * (verdict == "refused"), "of": 6, "same": 0, "judge": "rule_judge", "tokens": 32}
    monkeypatch.setattr(refusals, "count_refusals", lambda model, side: counted)


RANKINGS = ["refusal attribution", "Ships, undifferentiated", "Ships, scaling"]
NOT_SHARED = ["refusals counted", "refusal attribution"]
"""Stages of a few runs, which have no units for workers."""
TESTED = [*RANKINGS, TOGETHER]


def test_a_model_that_refuses_nothing_has_no_refusal_to_ablate(small, short, monkeypatch, tmp_path):
    atlas = atlas_of(small, monkeypatch, judging("complied"))
    assert atlas.refusals is not None
    counted = atlas.refusals.provenance["refused"]
    assert (counted["n"], counted["of"]) == (0, 6)
    assert set(atlas.tables) == {"refusals"} and atlas.results == {} and not atlas.rankings
    assert atlas.refusals.tests == {} and atlas.refusals.curve is None
    (question,) = atlas.questions()
    assert question.rows == [] and list(question.tables) == ["Requests refused"]
    written = {path.name for path in atlas.save(tmp_path)}
    assert written == {"refusals.nc", "heads.csv", "atlas.json"}
    assert str(mh.studies.Atlas.load(tmp_path)) == str(atlas)
    page = write_page(atlas, tmp_path / "index.html").read_text("utf-8")
    assert "Harmful requests" in page or "harmful requests" in page
    again = atlas_of(small, monkeypatch, judging("refused"), resume=mh.studies.Atlas.load(tmp_path))
    assert str(again) == str(atlas), "what is done is kept"


@pytest.mark.slow
def test_a_model_that_refuses_whatever_is_ablated_has_no_few_heads(small, short, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="a mean probability of"):
        atlas = atlas_of(small, monkeypatch, judging("refused"))
    found, attribution = atlas.refusals, atlas.refusal_attribution
    assert found is not None and attribution is not None
    assert list(atlas.rankings) == RANKINGS == [name for name in found.tests if name != TOGETHER]
    assert found.openings
    assert all(test.provenance["judged"] == "judged by <lambda>" for test in found.tests.values())
    assert found.curve is not None and found.curve.table["k"].tolist() == [0, 1, 2] * 2
    assert found.curve.provenance["ablation"] == "scaling"
    assert all(scores.dataset.sizes["prompt"] == 5 for scores in atlas.rankings.values())
    for name in RANKINGS:
        test = found.tests[name]
        assert test.answers["condition"].tolist().count("intact") == 2 * 6, "tested on requests that ranked nothing"
        assert test.heads == tuple(sorted(atlas.rankings[name].heads(2)))
        assert "attack success does not rise" in test.reasons
        by = "undifferentiated" if name == "Ships, undifferentiated" else "scaling"
        assert test.provenance["ablation"] == by
    first: Any = atlas.to_dataframe()["refusal_attribution"].idxmax()
    assert first == str(attribution.heads(1)[0])
    (question,) = atlas.questions()
    assert list(question.tables) == ["Requests refused", "first_heads", "overlap", "tests", "curve"]
    tables = atlas.refusal_tables()
    listed = tables["first_heads"]
    ranked = {name: scores.heads(3) for name, scores in atlas.rankings.items()}
    for row in listed.to_dict("records"):
        assert row["rankings"] == sum(row["head"] in map(str, heads) for heads in ranked.values())
    assert set(listed["head"]) == {str(head) for heads in ranked.values() for head in heads}
    assert set(tables["tests"]["heads"]) == set(found.tests)
    files = {path.name for path in atlas.save(tmp_path)}
    assert files >= {f"{name}.csv" for name in (*REFUSAL_TABLES, "heads")}
    again = mh.studies.Atlas.load(tmp_path)
    np.testing.assert_array_equal(again.refusal_attribution.scores, attribution.scores)
    assert str(again) == str(atlas) and again.refusals is not None
    pd.testing.assert_frame_equal(again.refusals.table, found.table)
    page = write_page(atlas, tmp_path / "index.html").read_text("utf-8")
    assert "<b>dog</b>" not in page
    model = atlas_payload(atlas).page["model"]
    shown = {table["name"]: table for table in model["tables"]}
    assert list(shown)[:2] == ["The first heads of each ranking", "Agreement between rankings"]
    assert [name for name, table in shown.items() if table["folded"]] == ["Requests and answers"]
    assert any(SECRET in row for row in shown["Requests and answers"]["rows"])
    (circuit,) = model["circuits"]
    assert circuit["name"].startswith("Attack success without the first heads by Refusal attribution")
    (question,) = model["questions"]
    assert list(question["views"]) == ["refusal_attribution", "ships_undifferentiated", "ships_scaling"]


@pytest.mark.slow
def test_groups_are_ranked_and_named_as_groups(small, short, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="a mean probability of"):
        atlas = atlas_of(small, monkeypatch, judging("refused"), group="kv", critical=1)
    assert atlas.refusals is not None
    assert atlas.refusals.provenance["unit"] == "key/value group"
    for scores in atlas.rankings.values():
        assert scores.provenance["group"] == "kv" and all(head.head % 2 == 0 for head in scores.heads(3))
    assert all(len(test.heads) % 2 == 0 for test in atlas.refusals.tests.values())
    write_page(atlas, tmp_path / "index.html")
    drawn = mh.plots.safety_map(list(atlas.safety.values()))
    assert drawn.layout.title.text.startswith("Key/value groups with the largest Ships of")


@pytest.mark.slow
def test_alone_and_together_are_the_same(small, short, monkeypatch):
    with pytest.warns(UserWarning, match="a mean probability of"):
        atlas = atlas_of(small, monkeypatch, judging("refused"))
    alone = mh.ships(small, TEXTS["harmful"], intervention="scaling")
    together = atlas.safety["scaling"]
    for head in together.heads(3):
        assert together[str(head)]["score"] == pytest.approx(alone[str(head)]["score"], rel=1e-5)
    shared = atlas.refusal_tables()["overlap"].set_index(["a", "b"])
    both = set(together.heads(3)) & set(atlas.safety["undifferentiated"].heads(3))
    assert shared.loc[("Ships, undifferentiated", "Ships, scaling"), "shared"] == len(both)


@pytest.mark.slow
def test_every_stage_of_several_runs_is_computed_by_workers(small, short, monkeypatch):
    workers, computed = MadeWorkers(1), {}
    stage = mh.studies.Atlas.stage

    @contextmanager
    def counted(atlas: mh.studies.Atlas, name: str) -> Iterator[None]:
        before = len(workers.computed)
        with stage(atlas, name):
            yield
        computed[name] = len(workers.computed) - before

    monkeypatch.setattr(mh.studies.Atlas, "stage", counted)
    with pytest.warns(UserWarning, match="a mean probability of"):
        atlas = atlas_of(small, monkeypatch, judging("refused"), workers=workers)
    assert [name for name, batches in computed.items() if not batches] == NOT_SHARED
    assert list(computed) == list(atlas.seconds)


def test_workers_that_cannot_load_the_model_are_refused_before_it_runs(small):
    wrapped = mh.wrap(small.model, small.tokenizer)
    wrapped.backend.run = None
    build, asked = mh.settings(workers=MadeWorkers(1))(mh.build_atlas), mh.studies.RefusalSettings(critical=2)
    with pytest.raises(ValueError, match=r"made by mh\.wrap, so workers cannot load it"):
        build(wrapped, only="safety", refusals=asked)


def test_ctrl_c_keeps_what_is_done(small, short, monkeypatch, tmp_path):
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(refusals, "refusal_tests", interrupt)
        atlas = atlas_of(small, monkeypatch, judging("refused"))
    assert atlas.interrupted and atlas.done == []
    assert set(atlas.results) == {"refusal_attribution", "safety_undifferentiated", "safety_scaling"}
    assert "The work was interrupted." in str(atlas)
    atlas.save(tmp_path)
    with pytest.warns(UserWarning, match="a mean probability of"):
        whole = atlas_of(small, monkeypatch, judging("refused"), resume=mh.studies.Atlas.load(tmp_path))
    assert whole.done == ["safety"] and whole.refusals is not None and list(whole.refusals.tests) == TESTED


def test_requests_of_a_file_or_list_are_ranked_and_answered(small, monkeypatch, tmp_path):
    file = tmp_path / "mine.csv"
    file.write_text("prompt\n" + "".join(f" Mary gave {i}\n" for i in range(18)))
    seen, one = [], mh.studies.RefusalSettings(critical=1)
    monkeypatch.setattr(refusals.RefusalStages, "run", lambda stages: seen.append(stages.requests.answered))
    for requests in (file, [f" Mary gave {i}" for i in range(18)]):
        mh.build_atlas(small, only="safety", requests=requests, refusals=one)
    assert seen[0] == seen[1]
    assert seen[0][0] == [f" Mary gave {i}" for i in range(2, 18, 3)]
    assert set(seen[0][1]) <= set(load_requests("harmless").texts)
    file.write_text("prompt\n" + "".join(f" Mary gave {i}\n" for i in range(17)))
    with pytest.raises(ValueError, match=r"mine.csv has 17 harmful requests; give at least 18"):
        mh.build_atlas(small, only="safety", requests=str(file), refusals=one)
    with pytest.raises(ValueError, match=r"requests are prompts, but refusals= needs texts"):
        mh.build_atlas(small, only="safety", requests=mh.Prompts([" a", " b"]), refusals=one)


def test_what_does_not_fit_is_refused_before_any_work(small):
    with pytest.raises(ValueError, match="group is 'head'; choose one of 'query', 'kv'"):
        mh.studies.RefusalSettings(group="head")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="critical is 4; the model has 6 key/value groups, so give 3 or fewer"):
        mh.build_atlas(small, only="safety", refusals=mh.studies.RefusalSettings(critical=4, group="kv"))
    with pytest.raises(ValueError, match=r"refusals is True; give mh\.studies\.RefusalSettings or None"):
        mh.build_atlas(small, only="safety", refusals=True)  # type: ignore[arg-type]


def test_the_atlas_of_a_model_that_refuses_nothing_has_a_page(small, short, monkeypatch, tmp_path: Path):
    atlas = atlas_of(small, monkeypatch, judging("complied"), group="kv", critical=1)
    assert atlas.refusals is not None and not atlas.refusals.tests
    atlas.save(tmp_path)
    write_page(atlas, tmp_path / "index.html")
    names = {path.name for path in tmp_path.iterdir()}
    assert {"index.html", "study.json"} < names <= {*ATLAS_FILES, "index.html", "study.json"}


def test_a_killed_study_goes_on_and_writes_no_answer_again(small, short, monkeypatch, tmp_path: Path):
    commit, units = Ledger.commit, []

    class Killed(BaseException):
        """The end of a process: nothing handles it."""

    def counted(ledger: Ledger, new: Any, **more: Any) -> Any:
        kept = commit(ledger, new, **more)
        units.append((ledger.about["analysis"], str(ledger.about["prompts"]), *new))
        if len(units) in ends:
            ends.remove(len(units))
            raise Killed
        return kept

    def study(name: str) -> mh.studies.Atlas:
        with mh.settings(store=tmp_path / name), pytest.warns(UserWarning, match="a mean probability of"):
            return atlas_of(small, monkeypatch, judging("refused"), group="kv", critical=1)

    monkeypatch.setattr(Ledger, "commit", counted)
    ends: list[int] = []
    study("whole.ledger")
    whole = list(units)
    units.clear()
    ends.append(1)
    with pytest.raises(Killed):
        study("killed.ledger")
    assert len(whole) > len(units)
    study("killed.ledger")
    assert units == whole
