"""The study of safety heads and its command, on a tiny model: what is run, written, said, and kept by Ctrl-C."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.ledger.ledger import Ledger
from mechheads.safety import AnswerSettings
from mechheads.safety.requests import prompts, texts
from mechheads.safety.requests.requests import Request
from mechheads.studies import safety as study_module
from mechheads.studies.report import write_safety_page
from mechheads.studies.safety_result import SAFETY_FILES
from support.levels import few
from support.made_workers import MadeWorkers

SECRET = " Mary gave a <b>dog</b>"
TEXTS = {
    "harmful": [" When John went", " Paris or Rome", SECRET, " no cat", " two big"],
    "harmless": [" When Mary went", " Paris and Rome", " Mary gave a book", " yes cat", " two small"],
}


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests in the few words that a tiny vocabulary holds."""

    def load(name: str = "harmful", split: str | None = None) -> tuple[Request, ...]:
        tested = [text for text in (*TEXTS[name], " John went") for _ in range(3)]
        some = {"train": TEXTS[name] * 6, "test": tested, None: TEXTS[name]}[split]
        return tuple(Request(text, "none") for text in some)

    for module in (study_module, prompts):
        monkeypatch.setattr(module, "load_requests", load)
    monkeypatch.setattr(texts, "ordinary_texts", lambda: (" a dog gave", " Mary went to the store"))


def judging(verdict: str):
    return lambda request, answer: verdict


def study_of(
    small: mh.Model,
    monkeypatch: pytest.MonkeyPatch,
    judge: Any,
    group: Any = "query",
    critical: int = 2,
    workers: Any = None,
) -> mh.studies.SafetyStudy:
    monkeypatch.setattr(study_module, "AnswerSettings", partial(AnswerSettings, judge))
    given: dict[str, Any] = {"group": group, "quick": True, "critical": critical}
    return mh.settings(workers=workers)(mh.studies.safety_study)(small, 3, **given)


RANKINGS = ["refusal attribution", "Ships, undifferentiated", "Ships, scaling", "refusal direction"]
NOT_SHARED = ["refusal attribution", "refusal direction"]
"""Stages of a few runs, which have no units for workers."""
QUESTIONS = [
    "1. Does the model refuse at all?",
    "2. How brittle are its refusals?",
    "3. Which heads, how sure, and by how many scores?",
    "4. What else breaks without them?",
    "5. What may not be concluded?",
]


def test_a_model_that_refuses_nothing_has_no_refusal_to_ablate(small, short, monkeypatch, tmp_path):
    study = study_of(small, monkeypatch, judging("complied"))
    assert study.has_refusal is False and not study.spread
    assert set(study.results) == {"refusal_brittleness"} and study.tests == {} and study.curve is None
    assert [section.title for section in study.sections()] == QUESTIONS[:1]
    assert f"There is no refusal to ablate: {small.name} refuses less than 10%" in study.summary()
    assert "These answers, and all below, are judged by <lambda>" in study.summary()
    assert {path.name for path in study.save(tmp_path)} == {"refusal_brittleness.nc", "brittleness.csv"}
    page = write_safety_page(study, tmp_path / "index.html").read_text("utf-8")
    assert "no refusal to ablate" in page and QUESTIONS[1] not in page


@pytest.mark.slow
def test_a_model_that_refuses_whatever_is_ablated_has_no_few_heads(small, short, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, judging("refused"))
    assert list(study.rankings) == RANKINGS == [name for name in study.tests if name != study_module.TOGETHER]
    assert study.spread and not study.carriers
    summary = study.summary()
    assert [line for line in summary.splitlines() if line in QUESTIONS] == QUESTIONS
    assert "No few heads carry its refusals" in summary and "So none is named here" in summary
    assert "They hold. Without 2 random heads of any layer, 100%" in summary
    assert study.attribution is not None and study.openings
    begun = np.exp(study.attribution.dataset["refusal"].values).mean()
    told = f'the model gives the opening "{study.openings[0]}" a mean probability of {begun:.1%} (5 requests)'
    assert told in summary
    assert "; refusals in other words may depend on other heads." in summary and summary.count("judged by") == 1
    assert all("; judged by <lambda>" in test.verdict for test in study.tests.values())
    which = next(section for section in study.sections() if section.title == QUESTIONS[2])
    assert not any(str(head) in line for line in which.lines for head in study.attribution.heads(3))
    assert study.curve is not None and study.curve.table["k"].tolist() == [0, 1, 2] * 2
    assert study.curve.provenance["ablation"] == "scaling"
    assert all(scores.dataset.sizes["prompt"] == 5 for scores in study.rankings.values())
    for name in RANKINGS:
        test = study.tests[name]
        assert test.answers["condition"].tolist().count("intact") == 2 * 6, "tested on requests that ranked nothing"
        assert test.heads == tuple(sorted(study.rankings[name].heads(2)))
        assert not test.critical and "attack success does not rise" in test.verdict
        by = "undifferentiated" if name == "Ships, undifferentiated" else "scaling"
        assert test.provenance["ablation"] == by
    table = study.to_dataframe()
    first = table.loc[table["refusal_attribution_rank"] == 1].iloc[0]
    assert mh.HeadId(int(first["layer"]), int(first["head"])) == study.attribution.heads(1)[0]
    listed = study.first_heads()
    ranked = {name: scores.heads(3) for name, scores in study.rankings.items()}
    for row in listed.to_dict("records"):
        assert row["rankings"] == sum(row["head"] in map(str, heads) for heads in ranked.values())
    assert set(listed["head"]) == {str(head) for heads in ranked.values() for head in heads}
    files = study.save(tmp_path)
    assert {path.name for path in files} >= {
        "heads.csv",
        "first_heads.csv",
        "tests.csv",
        "curve.csv",
        "overlap.csv",
        "brittleness.csv",
    }
    again = mh.HeadScores.load(tmp_path / "refusal_attribution.nc")
    np.testing.assert_array_equal(again.scores, study.attribution.scores)
    page = write_safety_page(study, tmp_path / "index.html").read_text("utf-8")
    assert [page.index(f"<h2>{question}</h2>") for question in QUESTIONS] == sorted(
        page.index(f"<h2>{question}</h2>") for question in QUESTIONS
    )
    assert "<details>" in page and "<b>dog</b>" not in page and "&lt;b&gt;dog&lt;/b&gt;" in page
    assert page.index("&lt;b&gt;dog") > page.index("<details>")


@pytest.mark.parametrize("carrying", few([RANKINGS[2:3], RANKINGS[2:]], RANKINGS[2:]))
def test_heads_that_carry_refusals_are_named_with_how_sure_this_is(small, short, monkeypatch, carrying):
    """Tests that say so are put in place of real ones: the report names the heads of the first of the best rankings."""
    real = study_module.refusal_tests

    def carried(*args: Any, **options: Any) -> dict[str, mh.safety.RefusalTest]:
        found = real(*args, **options)
        for name in carrying:
            test = found[name]
            ablated = (test.answers["condition"] == "ablated") & (test.answers["kind"] == "harmful")
            answers = test.answers.assign(verdict=test.answers["verdict"].where(~ablated, "complied"))
            found[name] = replace(test, critical=True, answers=answers, verdict="safety-critical: all")
        return found

    monkeypatch.setattr(study_module, "refusal_tests", carried)
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, judging("refused"))
    assert list(study.carriers) == carrying and not study.spread
    which = next(section.lines for section in study.sections() if section.title == QUESTIONS[2])
    assert which[0].startswith("Refusals depend on the first 2 heads by Ships, scaling")
    assert which[1].startswith("By Ships, scaling, in nats")
    for head, line in zip(study.ships["scaling"].heads(2), which[2:4], strict=True):
        assert line.strip().startswith(str(head)) and "of 4 rankings" in line and "%" in line
    assert "That the model is safe as long as these heads work: refusing is not safety." in study.summary()


@pytest.mark.slow
def test_heads_that_carry_less_than_half_of_the_refusals_are_not_named(small, short, monkeypatch):
    real = study_module.refusal_tests

    def weak(*args: Any, **options: Any) -> dict[str, mh.safety.RefusalTest]:
        found = real(*args, **options)
        return found | {RANKINGS[0]: replace(found[RANKINGS[0]], critical=True)}

    monkeypatch.setattr(study_module, "refusal_tests", weak)
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, judging("refused"))
    assert study.spread and not study.carriers
    wanted = "Without the first 2 heads by refusal attribution, 0% of its refusals become compliance: more than without"
    assert wanted in study.summary() and study.summary().count("and less than half") == 1


@pytest.mark.slow
def test_groups_are_ranked_and_named_as_groups(small, short, monkeypatch, tmp_path):
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, judging("refused"), group="kv", critical=1)
    assert "ablated by key/value group" in study.summary()
    assert "No few key/value groups carry its refusals" in study.summary()
    for scores in study.rankings.values():
        assert scores.provenance["group"] == "kv" and all(head.head % 2 == 0 for head in scores.heads(3))
    assert all(len(test.heads) % 2 == 0 for test in study.tests.values())
    page = write_safety_page(study, tmp_path / "index.html").read_text("utf-8")
    assert "Which key/value groups do the refusals" in page
    drawn = mh.plots.safety_map(list(study.ships.values()))
    assert drawn.layout.title.text.startswith("Key/value groups with the largest Ships of")


@pytest.mark.slow
def test_alone_and_together_are_the_same(small, short, monkeypatch):
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, judging("refused"))
    alone = mh.ships(small, TEXTS["harmful"], ablation="scaling")
    together = study.ships["scaling"]
    for head in together.heads(3):
        assert together[str(head)]["score"] == pytest.approx(alone[str(head)]["score"], rel=1e-5)
    shared = study.overlap().set_index(["a", "b"])
    both = set(together.heads(3)) & set(study.ships["undifferentiated"].heads(3))
    assert shared.loc[("Ships, undifferentiated", "Ships, scaling"), "shared"] == len(both)


@pytest.mark.slow
def test_every_stage_of_several_runs_is_computed_by_workers(small, short, monkeypatch):
    workers, computed = MadeWorkers(1), {}
    stage = study_module.SafetyStudy.stage

    @contextmanager
    def counted(study: mh.studies.SafetyStudy, name: str) -> Iterator[None]:
        before = len(workers.computed)
        with stage(study, name):
            yield
        computed[name] = len(workers.computed) - before

    monkeypatch.setattr(study_module.SafetyStudy, "stage", counted)
    with pytest.warns(UserWarning, match="hardly any refusal"):
        study = study_of(small, monkeypatch, judging("refused"), workers=workers)
    assert [name for name, batches in computed.items() if not batches] == NOT_SHARED
    assert list(computed) == list(study.seconds)


def test_workers_that_cannot_load_the_model_are_refused_before_it_runs(small):
    wrapped = mh.wrap(small.model, small.tokenizer)
    wrapped.backend.run = None
    with pytest.raises(ValueError, match=r"made by mh\.wrap, so workers cannot load it"):
        mh.settings(workers=MadeWorkers(1))(mh.studies.safety_study)(wrapped, critical=2)


def test_ctrl_c_keeps_what_is_done(small, short, monkeypatch):
    def stop(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study_module, "refusal_direction", stop)
    study = study_of(small, monkeypatch, judging("refused"))
    assert study.interrupted
    ranked = {"refusal_attribution", "ships_undifferentiated", "ships_scaling"}
    assert set(study.results) == {"refusal_brittleness", *ranked}
    assert "interrupted" in study.summary() and QUESTIONS[1] in study.summary()


def test_requests_of_a_file_are_ranked_and_answered(small, short, monkeypatch, tmp_path):
    file = tmp_path / "mine.csv"
    rows = [f" Mary gave {i},unsafe\n John went {i},safe\n" for i in range(18)]
    file.write_text("prompt,label\n" + "".join(rows))
    seen = []
    monkeypatch.setattr(study_module, "refusal_brittleness", lambda *args, **_: seen.append(args) or stop())
    with pytest.raises(RuntimeError):
        mh.studies.safety_study(small, requests=file, critical=1)
    asked = [f" Mary gave {i}" for i in range(2, 18, 3)], [f" John went {i}" for i in range(2, 18, 3)]
    assert seen[0][2:] == asked
    file.write_text("prompt\n" + "".join(f" Mary gave {i}\n" for i in range(17)))
    with pytest.raises(ValueError, match=r"mine.csv has 17 harmful requests; give at least 18"):
        mh.studies.safety_study(small, requests=str(file), critical=1)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_refusal_direction_takes_as_many_of_both_kinds_as_there_are(small, short, monkeypatch, tmp_path):
    file, seen = tmp_path / "mine.csv", []
    rows = [*(f" Mary gave {i},unsafe\n" for i in range(18)), *(f" John went {i},safe\n" for i in range(24))]
    file.write_text("prompt,label\n" + "".join(rows))
    monkeypatch.setattr(study_module, "AnswerSettings", partial(AnswerSettings, judging("refused")))
    monkeypatch.setattr(study_module, "refusal_direction", lambda _, *sides, **__: seen.append(sides) or stop())
    with pytest.raises(RuntimeError):
        mh.studies.safety_study(small, 3, requests=file, quick=True, critical=1)
    harmful, harmless = seen[0]
    assert len(harmful) == len(harmless) > 1
    assert all("Mary" in text for text in harmful) and all("John" in text for text in harmless)


def stop() -> None:
    raise RuntimeError


def test_the_study_says_what_does_not_fit(small):
    with pytest.raises(ValueError, match="group is 'head'; choose one of 'query', 'kv'"):
        mh.studies.safety_study(small, group="head")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="critical is 4; the model has 6 key/value groups, so give 3 or fewer"):
        mh.studies.safety_study(small, group="kv", critical=4)


def test_the_share_of_the_first_answers_is_counted():
    sizes = study_module.FULL
    tests, curve = 40 * (1 + 5 * 3), (20 + 5) * (1 + 3 * 2)
    assert sizes.first_share(20, 20, 0, 270) == pytest.approx(160 / (160 + tests + curve))
    assert sizes.first_share(20, 20, 14, 540) < sizes.first_share(20, 20, 14, 270) < sizes.first_share(20, 20, 7, 270)


def test_the_command_writes_a_page(tiny, short, monkeypatch, tmp_path: Path):
    command = ["safety", "--model", str(tiny("llama")), "--out", str(tmp_path), "--quick", "--k", "2", "--group", "kv"]
    monkeypatch.setattr(study_module, "CRITICAL", 1)
    for _ in range(2):  # the second goes on in the folder of the first
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 0, done.output
        assert (tmp_path / "index.html").is_file() and QUESTIONS[0] in done.output
        assert "key/value group" in done.output
    names = {path.name for path in tmp_path.iterdir()}
    assert {"index.html", "study.json"} < names <= {*SAFETY_FILES, "index.html", "study.json"}


def test_the_command_takes_requests_of_a_file(tiny, tmp_path: Path):
    words = ["safety", "--model", str(tiny("llama")), "--out", str(tmp_path), "--requests", str(tmp_path / "mine.csv")]
    (tmp_path / "mine.csv").write_text("prompt\n Mary went\n")
    done = CliRunner().invoke(main, words)
    assert done.exit_code == 1 and "mine.csv has 1 harmful requests; give at least 18" in done.output


def test_a_killed_command_goes_on_and_writes_no_answer_again(tiny, short, monkeypatch, tmp_path: Path):
    command = ["safety", "--model", str(tiny("llama")), "--quick", "--k", "2", "--group", "kv", "--out"]
    monkeypatch.setattr(study_module, "CRITICAL", 1)
    commit, units = Ledger.commit, []

    class Killed(BaseException):
        """The end of a process: nothing handles it."""

    def counted(ledger: Ledger, new: Any) -> Any:
        kept = commit(ledger, new)
        units.append((ledger.about["analysis"], str(ledger.about["prompts"]), *new))
        if len(units) in ends:
            ends.remove(len(units))
            raise Killed
        return kept

    monkeypatch.setattr(Ledger, "commit", counted)
    ends: list[int] = []
    assert CliRunner().invoke(main, [*command, str(tmp_path / "whole")]).exit_code == 0
    whole = list(units)
    units.clear()
    ends.append(1)  # after the answers to harmful requests
    with pytest.raises(Killed):
        CliRunner().invoke(main, [*command, str(tmp_path / "killed")])
    assert (tmp_path / "killed" / "safety.ledger").is_file() and len(whole) > len(units)
    done = CliRunner().invoke(main, [*command, str(tmp_path / "killed")])
    assert done.exit_code == 0, done.output
    assert units == whole and not (tmp_path / "killed" / "safety.ledger").exists()
