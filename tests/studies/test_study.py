"""Work in stages: timed, told, and ended early without losing what is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import mechheads as mh
import mechheads.studies.study
from mechheads.studies.study import Stages, check_folder, claim_folder, finished, save_parts, study_of


@dataclass
class Work(Stages):
    found: int = 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time it is; a test moves it on."""
    now = [100.0]
    monkeypatch.setattr(mechheads.studies.study.time, "perf_counter", lambda: now[0])
    return now


def test_stages_are_timed_and_told(clock: list[float], capsys: pytest.CaptureFixture):
    work = Work(3)
    assert (work.found, work.seconds, work.notes, work.interrupted) == (3, {}, [], False)
    with mh.settings(progress=True), work.stage("looking"):
        clock[0] += 4.2
    with work.stage("thinking"):
        clock[0] += 190
    assert work.seconds == pytest.approx({"looking": 4.2, "thinking": 190})
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "looking ...\n")


def test_ctrl_c_ends_the_block_and_is_noted(clock: list[float]):
    work = Work()
    with work.interruptible():
        work.found = 1
        with work.stage("long"):
            clock[0] += 2
            raise KeyboardInterrupt
    assert (work.found, work.interrupted, work.seconds) == (1, True, {"long": 2.0})
    assert work.notes == ["interrupted: these are the results until then; heads that were not reached are NaN"]
    with pytest.raises(RuntimeError), work.interruptible():
        raise RuntimeError
    assert len(work.notes) == 1


def test_a_stage_that_a_model_cannot_be_asked_for_is_left_out():
    work = Work()
    with work.leaving_out("letters"):
        raise ValueError("there are none")
    assert work.notes == ["letters left out: there are none"]
    assert not work.interrupted
    with work.leaving_out("words"):
        raise torch.OutOfMemoryError
    assert work.notes[1] == "words left out: memory ran out"
    for error in (KeyboardInterrupt, TypeError, RuntimeError):
        with pytest.raises(error), work.leaving_out("letters"):
            raise error


def test_what_was_interrupted_inside_ends_the_work():
    def scores(last: float) -> mh.HeadScores:
        return mh.HeadScores.from_scores(np.array([[1.0, last]]), name="demo", unit="", kind="demo")

    finished(scores(0.0))
    with pytest.raises(KeyboardInterrupt):
        finished(scores(np.nan))
    with pytest.raises(KeyboardInterrupt):
        finished(scores(0.0).with_provenance(interrupted=True))


def one_head(value: float) -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.array([[value]]), name="demo", unit="", kind="demo")


ANOTHER = "holds the results of another study: {} is {!r} there and {!r} here. Give another folder, or move or delete"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "b"}, ANOTHER.format("model", "a", "b")),
        ({"quick": "True"}, ANOTHER.format("quick", "False", "True")),
        ({"seed": "1"}, ANOTHER.format("seed", None, "1")),
    ],
)
def test_a_folder_is_of_one_study(tmp_path: Path, change: dict[str, str], said: str):
    study = {"model": "a", "quick": "False"}
    save_parts(tmp_path, {"one": one_head(1.0), "two": one_head(2.0)}, {}, study)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for refuses in (
        check_folder,
        claim_folder,
        lambda *given: save_parts(given[0], {"one": one_head(3.0)}, {}, given[1]),
    ):
        with pytest.raises(ValueError) as refused:
            refuses(tmp_path, study | change)
        assert said in str(refused.value)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    save_parts(tmp_path, {"one": one_head(3.0)}, {}, study)
    assert {path.name for path in tmp_path.iterdir()} == {"one.nc", "study.json"}
    assert mh.HeadScores.load(tmp_path / "one.nc").scores.values.tolist() == [[3.0]]


def test_a_folder_is_claimed_before_its_results_and_free_until_there_are_some(tmp_path: Path):
    claim_folder(tmp_path / "out", {"model": "a"})
    claim_folder(tmp_path / "out", {"model": "b"})
    assert json.loads((tmp_path / "out" / "study.json").read_text())["study"] == {"model": "b"}
    (tmp_path / "out" / "gates.ledger").touch()
    with pytest.raises(ValueError, match="holds the results of another study: model is 'b' there and 'a' here"):
        claim_folder(tmp_path / "out", {"model": "a"})


def test_a_study_knows_weights_configuration_and_tokenizer(tiny: Callable[[str], Path], tmp_path: Path):
    """A change of one of them is another study, under the same name of the model."""
    shutil.copytree(tiny("llama"), tmp_path / "llama")
    model = mh.load(tmp_path / "llama")
    whole = study_of(model, seed=0)
    assert study_of(mh.load(tmp_path / "llama"), seed=0) == whole

    def differs(other: mh.Model) -> list[str]:
        now = study_of(other, seed=0)
        return [part for part in whole | now if whole.get(part) != now.get(part)]

    model.tokenizer.chat_template = "{{ messages }}"
    assert differs(model) == ["tokenizer"]
    config = json.loads((tmp_path / "llama" / "config.json").read_text())
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
    other = mh.load(tmp_path / "llama")
    assert differs(other) == ["configuration"]
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    assert differs(other) == ["weights", "configuration"]


@pytest.mark.parametrize("name", ["study.json", "atlas.json"])
def test_a_damaged_description_of_a_folder_is_refused(tmp_path: Path, name: str):
    mh.studies.Atlas("a model", patching=one_head(1.0), study={"seed": "0"}).save(tmp_path)
    for text in ("[]", "{}"):
        (tmp_path / name).write_text(text)
        with pytest.raises(ValueError, match=rf"{name} is damaged"):
            mh.studies.Atlas.load(tmp_path) if name == "atlas.json" else check_folder(tmp_path, {"seed": "1"})
