"""The atlas and its command, on a tiny model: what is run, what is written, what an interrupt keeps."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.safety import load_requests
from mechheads.studies import build, questions
from mechheads.studies.atlas import Atlas
from mechheads.studies.build import build_atlas
from mechheads.studies.questions import PARTS, Questions, capital_pairs
from support.ctrl_c import stopped_at
from support.whole_atlas import let_four_pairs_do


@pytest.fixture
def few(monkeypatch) -> None:
    let_four_pairs_do(monkeypatch)


@pytest.fixture(scope="module")
def built(small) -> tuple[Atlas, list[list[str]]]:
    """A whole atlas, to be left as it is, and the names of the results that there were after each analysis."""
    seen: list[list[str]] = []
    with pytest.MonkeyPatch.context() as patch:
        let_four_pairs_do(patch)
        return build_atlas(small, only=PARTS, after_each=lambda so_far: seen.append(list(so_far.results))), seen


@pytest.fixture(scope="module")
def quick(small) -> Atlas:
    return build_atlas(small, quick=True)


def test_capital_pairs_share_no_country(small, monkeypatch):
    pairs = capital_pairs(small, 8)
    assert pairs is not None and len(pairs) == 2 and len(set(pairs.cluster or ())) == 2  # of four capitals
    assert all(country in clean for country, clean in zip(pairs.cluster or (), pairs.clean, strict=True))
    assert len({*pairs.clean, *pairs.corrupted}) == len({*(pairs.answer or ()), *(pairs.wrong or ())}) == 4
    answers = dict(zip([*pairs.clean, *pairs.corrupted], [*(pairs.answer or ()), *(pairs.wrong or ())], strict=True))
    assert [answers[text] for text in answers if "France" in text] == [" Paris"]
    assert len(capital_pairs(small, 1) or []) == 1

    def fields(lacking: set[str]) -> list[tuple[Any, Any]]:
        monkeypatch.setattr(questions, "_is_known", lambda model, *words: not lacking & {*words})
        found = capital_pairs(small, 99)
        assert found is not None
        return list(zip(found.clean, found.corrupted, strict=True))

    whole = fields(set())
    assert len(whole) == 69 and len({text for pair in whole for text in pair}) == 138
    starts = [wording.partition("{country}")[0] for wording in questions.TEMPLATES]
    assert [sum(clean.startswith(start) for clean, _ in whole[:16]) for start in starts] == [4, 4, 4, 4]
    assert [clean for clean, _ in whole] != sorted(clean for clean, _ in whole)
    some = fields({"France", "Cuba", "Peru"})
    assert len(some) == 67 and len({text for pair in some for text in pair}) == 134
    assert len(set(some) - set(whole)) == 1  # two that lost their partners are a pair, and the others stay


@pytest.mark.slow
def test_atlas_holds_what_the_single_analyses_give(small, built, tmp_path):
    atlas, _ = built
    pairs = capital_pairs(small, 8)
    alone = mh.activation_patch(small, pairs, normalize=True)
    np.testing.assert_allclose(atlas.patching.scores, alone.scores, atol=1e-6)
    assert set(atlas.safety) == {"undifferentiated"}
    profile = mh.profile_heads(small, n_tokens=6000)
    assert atlas.profile is not None and atlas.profile.dataset.equals(profile.dataset)
    assert atlas.examples is not None and atlas.examples.provenance["n_tokens"] >= 3000
    others = {"profile", "relations", "labels", "patching", "safety_undifferentiated", "direct", "paths"}
    assert set(atlas.results) == others
    direct = mh.behaviour.logit_attribution(small, pairs)
    np.testing.assert_allclose(atlas.direct.values, direct.values, atol=1e-6)
    first = mh.patching.faithfulness(small, pairs, alone.heads(4, by="absolute"))
    kept = atlas.circuit.table.set_index("k").loc[4]
    assert kept["score"] == pytest.approx(first.score, abs=1e-4)
    assert kept["ci_low"] == pytest.approx(first.ci_low, abs=1e-4, nan_ok=True)  # two pairs have none
    assert atlas.circuit.heads[:4] == alone.heads(4, by="absolute") and atlas.circuit.table["k"].tolist() == [
        1,
        2,
        4,
        8,
    ]
    assert atlas.pairs[0]["clean"] == pairs.clean[0] and atlas.pairs[0]["wrong"] == pairs.wrong[0]
    table = atlas.to_dataframe()
    assert len(table) == small.n_layers * small.n_heads
    row = table.query("layer == 1 and head == 2").iloc[0]
    assert row["names"] == "; ".join(profile.names("L1H2"))
    seen = profile.select(behaviour="previous")["L1H2"]
    assert (row["to_previous"], row["to_previous_ci_low"]) == (seen["score"], seen["ci_low"])
    assert row["copying_ci_high"] == float(profile.dataset["copying_high"][1, 2])
    assert row["patching"] == pytest.approx(float(alone.scores[1, 2]), abs=1e-6)
    assert row["ships_undifferentiated"] == pytest.approx(float(atlas.safety["undifferentiated"].scores[1, 2]))
    best = atlas.labels.scores[1, 2].argmax("category")
    for column, variable in (("phi", "score"), ("phi_ci_low", "ci_low"), ("phi_ci_high", "ci_high")):
        assert row[column] == pytest.approx(float(atlas.labels.dataset[variable][1, 2, best]), nan_ok=True)
    angles = atlas.safety["undifferentiated"].dataset
    assert row["generalized_ships_undifferentiated"] == pytest.approx(float(angles["generalized_ships"][1, 2]))
    assert row["generalized_ships_undifferentiated_ci_high"] == pytest.approx(
        float(angles["generalized_ships_high"][1, 2])
    )

    files = atlas.save(tmp_path / "out")
    assert {file.name for file in files} == {
        *(f"{name}.nc" for name in [*atlas.results, "examples", "patterns", "circuit"]),
        "heads.csv",
        "atlas.json",
    }
    again = Atlas.load(tmp_path / "out")
    pd.testing.assert_frame_equal(again.to_dataframe(), table)
    assert again.results.keys() == atlas.results.keys() and again.tables.keys() == atlas.tables.keys()
    for name in ("model", "pairs", "requests", "seconds", "notes", "interrupted"):
        assert getattr(again, name) == getattr(atlas, name)
    assert str(again) == str(atlas)
    back = mh.HeadScores.load(tmp_path / "out" / "patching.nc")
    np.testing.assert_array_equal(back.scores, atlas.patching.scores)
    assert len(pd.read_csv(tmp_path / "out" / "heads.csv")) == len(table)


@pytest.mark.slow
def test_ships_after_eight_requests_stand_beside_their_contrast_with_look_alikes(small):
    atlas = build_atlas(small, only="safety")
    requests, look_alikes = (load_requests(name, "test")[:16:2] for name in ("harmful", "harmless"))
    assert atlas.requests == list(requests) and list(atlas.safety) == ["undifferentiated"]
    assert atlas.asked["requests_vary"] == "8 requests, 8 categories, each with a harmless look-alike"
    table = atlas.to_dataframe()
    way = "undifferentiated"
    scores = mh.ships(small, requests, intervention=way).scores
    np.testing.assert_allclose(table[f"ships_{way}"], scores.values.ravel(), rtol=1e-3)
    alone = mh.ships(small, requests, harmless=look_alikes, intervention=way)
    for column, name in {"": "score", "_ci_low": "ci_low", "_p_family": "p_family"}.items():
        expected = alone.dataset[name].values.ravel()
        np.testing.assert_allclose(table[f"ships_contrast_{way}{column}"], expected, atol=1e-3)
    views = {question.kind: question.view for question in atlas.questions()}
    assert views["requests"] == "ships_contrast_undifferentiated"


def test_scores_of_your_own_are_columns_and_come_back(tmp_path):
    effect = mh.HeadScores.from_values(np.arange(24.0).reshape(2, 3, 4), name="effect", unit="logits", kind="demo")
    atlas = Atlas("made", own={"my ablation, z": effect, "<b>": effect - effect}, asked={"pairs": "the capital"})
    assert atlas.to_dataframe()["my_ablation_z"].tolist() == effect.scores.values.ravel().tolist()
    atlas.save(tmp_path)
    back = Atlas.load(tmp_path)
    assert list(back.own) == ["my ablation, z", "<b>"] and back.asked == atlas.asked
    for name, scores in atlas.own.items():
        assert back.own[name].dataset.identical(scores.dataset)


def test_ctrl_c_keeps_what_is_done(small, few, monkeypatch, tmp_path):
    def interrupted(*args, **rest):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "compare_ablations", interrupted)
    atlas = build_atlas(small, quick=True)
    assert set(atlas.results) == {"profile", "relations", "labels", "patching", "direct", "paths"}
    assert any("interrupted" in note for note in atlas.notes)
    assert (tmp_path / "patching.nc") in atlas.save(tmp_path)


def test_ctrl_c_in_the_text_keeps_the_profile_and_the_examples_so_far(small, monkeypatch):
    module = importlib.import_module("mechheads.behaviour.examples")
    monkeypatch.setattr(module, "measure", stopped_at(4, module.measure))
    with pytest.warns(UserWarning, match="the result is of these"):
        atlas = build_atlas(small, quick=True)
    assert atlas.interrupted and set(atlas.results) == {"patching", "profile"} and "text" not in atlas.done
    assert atlas.examples.interrupted and atlas.profile.provenance["n_tokens"] < 2000


def test_a_model_without_words_for_relations_still_gets_the_rest(quick):
    assert quick.labels is None
    assert quick.patching is not None
    assert any("labels left out" in note for note in quick.notes)


@pytest.mark.slow
def test_command_prints_a_summary_and_names_its_files(tiny, few, tmp_path):
    with mh.settings(progress=True):
        done = CliRunner().invoke(main, ["atlas", "--model", str(tiny("llama")), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    for part in (
        "labels ...",
        "Naming the capital (",
        "Patching",
        "Faithfulness of the first k heads by patching",
        "The weights alone",
        "index.html",
        "Done in",
    ):
        assert part in done.output
    assert (tmp_path / "index.html").is_file()


def test_an_analysis_that_does_not_fit_is_left_out_and_said(small, monkeypatch):
    long = " yes" * 70
    monkeypatch.setattr(build, "load_requests", lambda name, split: [long] * 6)
    atlas = build_atlas(small, quick=True)
    assert atlas.patching is not None
    assert not atlas.safety
    assert any(note.startswith("safety heads left out: prompt 0 has") for note in atlas.notes)


def test_results_and_page_are_written_after_each_part(monkeypatch, tmp_path, tiny):
    sizes = []

    def built(model, *, after_each, **_):
        atlas = Atlas(model.name, study=Questions.of(model).study)
        for name in ("patching", "direct"):
            effect = mh.HeadScores.from_scores(np.eye(3, 4), name="effect", kind="activation_patch")
            setattr(atlas, name, effect)
            after_each(atlas)
            page = (tmp_path / "index.html").read_text()
            sizes.append((page.count('"name":"direct"') > 0, (tmp_path / f"{name}.nc").is_file()))
        return atlas

    monkeypatch.setattr(build, "build_atlas", built)
    done = CliRunner().invoke(main, ["atlas", "--model", str(tiny("llama")), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert sizes == [(False, True), (True, True)]
    assert '"name":"direct"' in (tmp_path / "index.html").read_text() and (tmp_path / "direct.nc").is_file()
