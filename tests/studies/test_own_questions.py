"""An atlas of your own question: own inputs, some of the parts, and going on where it stopped."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.explorer.payload import atlas_payload
from mechheads.studies import Atlas, build, build_atlas
from mechheads.studies.questions import PARTS, selected_parts
from support.ctrl_c import stopped_at
from support.page_sample import unblock
from support.same import assert_same
from support.whole_atlas import let_four_pairs_do

HOSTILE = " </script><img src=x onerror=alert(1)>"
CLEAN = [" The capital of France is", " a big dog gave", " John and Mary went", f"{HOSTILE} one"]
CORRUPTED = [" The capital of Italy is", " a small dog gave", " Mary and John went", f"{HOSTILE} two"]
ANSWER, WRONG = [" Paris", " a", " to", " yes"], [" Rome", " the", " and", " no"]
REQUESTS = [" the store", f" one two{HOSTILE}", " a book", " the big cat"]
WORDS = [" The", " France", " is", " Paris", " dog", " cat", " one", " two", " gave", " big"]
TEXTS = ["".join(WORDS[(i * j) % 10] for i in range(200)) + HOSTILE for j in (1, 3)]


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short studies: relations of four pairs."""
    let_four_pairs_do(monkeypatch)


@pytest.fixture(scope="module")
def small(loaded: Callable[[str], mh.Model]) -> mh.Model:
    return loaded("llama")


def pairs_of(**more: Any) -> mh.PromptPairs:
    return mh.PromptPairs(CLEAN, CORRUPTED, **more)


def asked() -> dict[str, Any]:
    """A whole study of one's own."""
    return {
        "pairs": pairs_of(answer=ANSWER, wrong=WRONG),
        "relations": ["country_to_capital"],
        "requests": REQUESTS,
        "texts": TEXTS,
    }


def assert_same_atlas(one: Atlas, other: Atlas) -> None:
    """Two atlases hold the same, but for the times."""
    for name in vars(one):
        if name not in ("seconds", "done"):
            assert_same(getattr(one, name), getattr(other, name))
    assert set(one.done) == set(other.done) and set(one.seconds) == set(other.seconds)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_own_pairs_are_what_is_patched(loaded: Callable[[str], mh.Model], name: str):
    model, pairs = loaded(name), pairs_of(answer=ANSWER, wrong=WRONG)
    atlas = build_atlas(model, pairs=pairs, only=["patching", "causes"])
    alone = mh.activation_patch(model, pairs, normalize=True)
    assert atlas.patching is not None and atlas.direct is not None and atlas.patterns is not None
    np.testing.assert_allclose(atlas.patching.scores, alone.scores, atol=1e-6)
    np.testing.assert_allclose(atlas.direct.scores, mh.behaviour.logit_attribution(model, pairs).scores, atol=1e-6)
    assert set(atlas.results) == {"patching", "direct", "paths"} and atlas.circuit is not None
    assert atlas.pairs[0] == {"clean": CLEAN[0], "corrupted": CORRUPTED[0], "answer": " Paris", "wrong": " Rome"}
    assert atlas.asked == {} and atlas.requests == [] and atlas.notes == []
    assert len(atlas.patterns.table) == 5 and str(atlas).startswith(f"{model.name}"[:20])
    assert "The answer (4 pairs)" in str(atlas)
    assert set(atlas.done) == {"patching", "causes"}


def test_pairs_without_answers_are_measured_by_what_they_allow(small: mh.Model):
    only = ["patching", "causes"]
    by_answer = build_atlas(small, pairs=pairs_of(answer=ANSWER), only=only)
    assert by_answer.patching is not None and by_answer.patching.provenance["metric"] == "log_prob"
    assert by_answer.results["paths"].provenance["metric"] == "log_prob"
    assert by_answer.pairs[0]["wrong"] == ""
    assert by_answer.notes == ["the pairs have no wrong answers: effects are on the log-probability of the answers"]
    nothing = build_atlas(small, pairs=pairs_of(), only=only)
    assert set(nothing.results) == {"patching", "direct", "paths"}
    assert nothing.patching is not None and nothing.patching.provenance["metric"] == "kl_divergence"
    assert nothing.circuit is not None and nothing.circuit.table["score"].iloc[-1] > 0
    effects = atlas_payload(by_answer).blocks["mh-heads-0"]
    assert "What the head itself adds to the logits of the answer" in json.dumps(unblock(effects))
    for atlas in (by_answer, nothing):
        (direct,) = (one for each in atlas.questions() for one in each.measures if one.column == "direct")
        assert direct.least == pytest.approx(0.05 * abs(float(atlas.direct.dataset["total"].mean())))
    assert nothing.notes[0].startswith("the pairs have no answers: effects are on the next-token distribution")
    ids = mh.PromptPairs([[3, 4, 5], [6, 7, 8]], [[3, 9, 5], [6, 9, 8]], answer=[4, 5], wrong=[6, 7])
    given = build_atlas(small, pairs=ids, only=only)
    strings = ids.tokens(small)[0].strings
    assert [pair["clean"] for pair in given.pairs] == ["".join(row) for row in strings]
    assert all(pair["answer"] and pair["wrong"] for pair in given.pairs)


def test_paths_go_from_the_strongest_heads_to_the_first_three_of_them():
    effect = np.zeros((6, 4))
    effect[2, 0], effect[4, 1], effect[5] = 0.7, -0.2, 0.1
    effect[1, 2] = 0.15
    senders, receivers = build.path_ends(mh.HeadScores.from_scores(effect, name="effect", kind="activation_patch"))
    assert list(map(str, senders[:3])) == ["L2H0", "L4H1", "L1H2"] and len(senders) == 12
    assert receivers == ["final", *(f"{head}.{way}" for head in ("L2H0", "L4H1", "L1H2") for way in "qkv")]
    effect = np.zeros((2, 12))
    effect[0] = np.arange(12, 0, -1)
    senders, receivers = build.path_ends(mh.HeadScores.from_scores(effect, name="effect", kind="activation_patch"))
    assert senders == [mh.HeadId(0, head) for head in range(12)] and receivers == ["final"]


def test_parts_are_chosen_by_name(small: mh.Model):
    assert selected_parts() == ("patching", "text", "labels", "causes", "safety")
    assert selected_parts("labels") == ("labels",)
    assert selected_parts(["safety", "patching"]) == ("patching", "safety")
    for wrong, message in (
        ({"only": ["lables"]}, "only is 'lables'; choose one of 'patching'"),
        ({"only": "safty"}, 'Did you mean "safety"?'),
        ({"only": []}, "only names no part; choose among 'patching'"),
        ({"only": 3}, "only is 3; give names of parts, such as ['patching', 'text']"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            build_atlas(small, **wrong)
    atlas = build_atlas(small, only=["text"])
    assert (list(atlas.tables), list(atlas.results), atlas.asked) == (["examples"], ["profile"], {})
    assert atlas.done == ["text"]
    assert f"Parts to do: {', '.join(PARTS)}." in run("-h")[1]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"pairs": "no/file.csv"}, "there is no file 'no/file.csv'"),
        (
            {"pairs": ["a", "b"]},
            "pairs is a list; give mh.PromptPairs(clean=[...], corrupted=[...]) or a text or a path or None",
        ),
        ({"pairs": mh.PromptPairs([" one two"], [" one"])}, "pair 0 does not align"),
        ({"pairs": mh.PromptPairs([" one"], [" two"], [" a"], [" a"])}, "pairs: answer and wrong are the same token"),
        ({"pairs": mh.PromptPairs([" one"], [" one"])}, "pairs: the clean and the corrupted prompts are the same"),
        ({"pairs": mh.PromptPairs([" one"], [" two"], wrong=[" a"])}, "pairs: wrong is given, but answer is not"),
        (
            {"pairs": mh.PromptPairs([" one" * 99], [" two" * 99])},
            "pairs: prompt 0 has 100 tokens; this model's context",
        ),
        ({"pairs": mh.PromptPairs([" one"], [" two"], [" x y z"])}, "pairs: answer[0] = ' x y z' is not one token"),
        ({"relations": mh.Relation("mine", "Mine", [("one", "xyz")])}, "relations: relation 'mine' has no pair whose"),
        ({"requests": [" one"] * 8}, "requests: these are one request; give at least two different ones"),
        ({"texts": [" one two"]}, "texts have no window of at least 16 tokens; give longer texts"),
        ({"requests": "JailbreakBanch"}, 'Did you mean "JailbreakBench"?'),
        ({"texts": "no/texts.txt"}, "texts: 'no/texts.txt' is not a file; give a text file with empty lines"),
        ({"after_each": 3}, "after_each is 3; give a function of the atlas"),
        ({"resume": "atlas"}, "resume is 'atlas'; give an atlas, such as mh.studies.Atlas.load(folder)"),
    ],
)
def test_what_cannot_be_asked_is_said_before_any_work(small: mh.Model, given: dict[str, Any], message: str):
    with mh.settings(progress=True), pytest.raises(ValueError, match=re.escape(message)):
        build_atlas(small, **given)


def scores(model: mh.Model, value: float = 1.0) -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.full((model.n_layers, model.n_heads), value), name="mine", kind="demo")


STAGES = (
    ("activation_patch", set()),
    ("profile_and_examples", {"patching"}),
    ("label_heads", {"patching", "text"}),
    ("path_matrix", {"patching", "text", "labels"}),
    ("compare_ablations", {"patching", "text", "labels", "causes"}),
)
"""Where Ctrl-C comes, and what is done by then."""


@pytest.mark.slow
def test_after_ctrl_c_in_every_stage_the_atlas_is_the_undisturbed_one(
    small: mh.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    whole = build_atlas(small, **asked(), only=PARTS)
    assert not whole.interrupted and set(whole.done) == set(PARTS)
    atlas: Atlas | None = None
    for stage, done in STAGES:
        with monkeypatch.context() as patch:
            patch.setattr(build, stage, stopped_at(1, getattr(build, stage)))
            atlas = build_atlas(small, **asked(), only=PARTS, resume=atlas)
        assert atlas.interrupted and set(atlas.done) == done
        assert sum(note.startswith("interrupted") for note in atlas.notes) == 1
        if atlas.results:
            atlas.save(tmp_path)
            atlas = Atlas.load(tmp_path)
    atlas = build_atlas(small, **asked(), only=PARTS, resume=atlas)
    assert_same_atlas(atlas, whole)
    atlas.save(tmp_path)
    stored, times = Atlas.load(tmp_path), dict(atlas.seconds)
    capsys.readouterr()
    for stage, _ in STAGES:
        monkeypatch.setattr(build, stage, stopped_at(1, getattr(build, stage)))
    with mh.settings(progress=True):
        finished = build_atlas(small, **asked(), only=PARTS, resume=stored)
    assert not finished.interrupted and finished.seconds == times
    assert_same_atlas(finished, whole)
    said = capsys.readouterr().err
    assert "kept from before: patching, text, labels, causes, safety\nnothing is left to do\n" in said


def test_a_partial_result_is_measured_again(small: mh.Model, monkeypatch: pytest.MonkeyPatch):
    pairs, patched = pairs_of(answer=ANSWER, wrong=WRONG), build.activation_patch

    def partial(*args: Any, **options: Any) -> mh.HeadScores:
        found = patched(*args, **options)
        return mh.HeadScores(found.dataset.assign(score=found.dataset["score"].where(found.dataset["layer"] < 1)))

    with monkeypatch.context() as patch:
        patch.setattr(build, "activation_patch", partial)
        stopped = build_atlas(small, pairs=pairs, only=["patching"])
    assert stopped.interrupted and stopped.patching is not None and len(stopped.patching.missing) == 8
    again = build_atlas(small, pairs=pairs, only=["patching"], resume=stopped)
    causes = build_atlas(small, pairs=pairs, only=["causes"], resume=stopped)
    assert causes.circuit is None and causes.paths is None and causes.done == []  # they begin with the whole ranking
    assert again.patching is not None and not len(again.patching.missing) and again.notes == []
    assert_same_atlas(again, build_atlas(small, pairs=pairs, only=["patching"]))


def test_an_atlas_of_another_question_is_not_gone_on_with(small: mh.Model):
    before = build_atlas(small, pairs=pairs_of(), only="patching")
    mark = r"4 of your own \(\w{16}\)"
    for given, differs in (
        ({"pairs": pairs_of(answer=ANSWER)}, f"pairs is '{mark}' there and '{mark}' here"),
        ({}, f"pairs is '{mark}' there and 'of the package' here"),
        ({"pairs": pairs_of(), "texts": TEXTS}, r"texts is 'of the package' there and 'of your own \(\w{16}\)' here"),
        ({"pairs": pairs_of(), "quick": True}, "quick is 'False' there and 'True' here"),
    ):
        with pytest.raises(ValueError, match=f"resume is an atlas of another study: {differs}"):
            build_atlas(small, **given, resume=before)
    with mh.settings(seed=1), pytest.raises(ValueError, match="another study: seed is '0' there and '1' here"):
        build_atlas(small, pairs=pairs_of(), resume=before)
    more = build_atlas(small, pairs=pairs_of(), only="text", resume=before)
    assert more.done == ["patching", "text"] and more.patching is before.patching
    assert before.done == ["patching"] and before.profile is None


def files_of(folder: Path) -> dict[str, str]:
    """The questions of a study as files, whose texts would be harmful in a page that believed them."""
    with (folder / "capitals.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [("clean", "corrupted", "answer", "wrong"), *zip(CLEAN, CORRUPTED, ANSWER, WRONG, strict=True)]
        )
    words = [["France", "Paris"], ["Italy", "Rome"], ["Spain", "Madrid"], [f"big{HOSTILE}", "bigger"]]
    relation = {"name": f"mine{HOSTILE}", "category": "Knowledge", "pairs": words, "source": "here"}
    (folder / "mine.json").write_text(json.dumps(relation))
    (folder / "asking.jsonl").write_text("\n".join(json.dumps({"asked": text.strip()}) for text in REQUESTS))
    (folder / "texts.txt").write_text("\n\n".join(TEXTS))
    names = {"pairs": "capitals.csv", "relations": "mine.json", "requests": "asking.jsonl"}
    return {f"--{name}": str(folder / file) for name, file in (names | {"texts": "texts.txt"}).items()}


def run(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["atlas", *arguments])
    return done.exit_code, re.sub(r"\s+", " ", done.output)


@pytest.mark.slow
def test_the_command_takes_files_and_goes_on_in_its_folder(
    tiny: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files, out = files_of(tmp_path), tmp_path / "out"
    common = ["--model", str(tiny("llama")), "--out", str(out), "--only", "patching,text,labels,causes"]
    given = [each for option in files.items() for each in option]
    with monkeypatch.context() as patch:
        patch.setattr(build, "path_matrix", stopped_at(1, build.path_matrix))
        code, said = run(*common, *given)
    assert code == 130 and "shows the results until then" in said
    assert Atlas.load(out).done == ["patching", "text", "labels"]
    with monkeypatch.context() as patch:
        patch.setattr(build, "profile_and_examples", stopped_at(1, build.profile_and_examples))
        code, said = run(*common, *given)
    assert code == 0, said
    assert "Capitals (4 pairs)" in said
    atlas = Atlas.load(out)
    assert atlas.asked == {"pairs": "capitals"} and atlas.pairs[3]["clean"] == CLEAN[3] and not atlas.requests
    assert atlas.labels is not None and len(atlas.pairs) == 4 and not atlas.interrupted
    (out / "index.html").unlink()
    code, said = run(*common, *given)
    assert code == 0 and "Done in" in said
    page = (out / "index.html").read_text(encoding="utf-8")
    assert HOSTILE not in page
    code, said = run(*common, *given[2:])
    assert code == 1 and "pairs is '4 of your own" in said and "there and 'of the package' here. Give another" in said
    code, said = run("--model", str(tiny("llama")), "--out", str(out), *given, "--only", "safety", "--quick")
    assert code == 1 and "quick is 'False' there and 'True' here" in said


def test_safety_heads_of_your_own(small: mh.Model, tmp_path: Path):
    files = files_of(tmp_path)
    relations = ["country_to_capital"]
    atlas = build_atlas(small, requests=files["--requests"], relations=relations, only=["safety", "labels"])
    assert atlas.asked == {"requests": "asking"} and atlas.pairs == []
    assert atlas.requests == [request.strip() for request in REQUESTS]
    assert atlas.safety["undifferentiated"].values.sizes["prompt"] == 4
    assert atlas.labels is not None and atlas.labels.provenance["quick"] is False
    assert all(str(tmp_path) not in json.dumps(scores.provenance) for scores in atlas.results.values())
