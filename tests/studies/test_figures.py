"""The figures of the papers for several models: what is drawn, written, kept, resumed and refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import mechheads as mh
from mechheads.limits import current
from mechheads.studies import categories_figure, roles_figure, safety_figure
from mechheads.studies.figures import (
    categories as categories_module,
    panels,
    roles as roles_module,
)
from support.figure_requests import PAIRS, REQUESTS, roles_request, safety_request


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a model was loaded")


class Calls:
    """Calls of a function by their first argument; it fails at some of them."""

    def __init__(self, real: Callable[..., Any], errors: dict[int, BaseException] | None = None) -> None:
        self.real, self.errors, self.seen = real, errors or {}, []

    def __call__(self, first: Any, *args: Any, **options: Any) -> Any:
        self.seen.append(first)
        if error := self.errors.get(len(self.seen)):
            raise error
        return self.real(first, *args, **options)


pytestmark = pytest.mark.usefixtures("brief_answers")


@cache
def loaded(name: str) -> mh.Model:
    return mh.load(name)


def load_once(name: str, *, revision: str | None, max_memory: str | None = None) -> mh.Model:
    """``mh.load``, but each tiny model is loaded once for all tests."""
    assert revision is None
    return loaded(str(name)) if max_memory is None else mh.load(name, max_memory=max_memory)


@pytest.fixture(autouse=True)
def quick_to_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "load_model", load_once)


@pytest.fixture(autouse=True)
def quick_to_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models stay loaded here, so there is nothing to collect after each of them."""
    monkeypatch.setattr(panels, "free_memory", lambda: None)


@pytest.fixture
def relation(tmp_path: Path) -> Path:
    file = tmp_path / "capitals.json"
    file.write_text(json.dumps({"name": "capitals", "category": "Knowledge", "pairs": PAIRS}))
    return file


@pytest.fixture
def asked(tiny, relation: Path, tmp_path: Path) -> dict[str, Any]:
    """A request for two tiny models."""
    return {
        "models": [tiny("llama"), tiny("gpt2")],
        "relations": [relation],
        "rule": "maps",
        "min_pairs": 2,
        "out": tmp_path / "out",
    }


def labels_of(folder: Path, relation: Path) -> mh.labels.HeadLabels:
    scores = mh.relation_scores(loaded(str(folder)), relation, min_pairs=2)
    return mh.label_heads(scores, rule="maps")


def test_categories_are_those_of_label_heads(asked, tiny, relation):
    made = categories_figure(**asked)
    assert list(made.panels) == ["llama", "gpt2"] and not made.interrupted
    for name in made.panels:
        expected = labels_of(tiny(name), relation)
        np.testing.assert_array_equal(made.panels[name].scores, expected.scores)
        np.testing.assert_array_equal(made.panels[name].dataset["member"], expected.dataset["member"])
        counted = made.tables["counts"].query("model == @name").drop(columns="model")
        assert counted.iloc[0].to_dict() == expected.counts(once=True) and counted.to_numpy().sum() == 12
    assert [note.text for note in made.figure.layout.annotations] == ["llama", "gpt2"]
    out = asked["out"]
    written = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert written == {
        "counts.csv",
        "gpt2/labels.nc",
        "gpt2/relations.nc",
        "gpt2/study.json",
        "heads.csv",
        "index.html",
        "llama/labels.nc",
        "llama/relations.nc",
        "llama/study.json",
        "study.json",
    }
    assert {path.relative_to(out).as_posix() for path in made.files} == {
        name for name in written if not name.endswith("study.json")
    }
    heads = pd.read_csv(out / "heads.csv")
    assert heads.groupby("model").size().to_dict() == {"gpt2": 12, "llama": 12}


def test_an_interrupted_request_goes_on(asked, monkeypatch):
    scores = Calls(mh.relation_scores, {2: KeyboardInterrupt()})
    monkeypatch.setattr(categories_module, "relation_scores", scores)
    made = categories_figure(**asked)
    assert made.interrupted and list(made.panels) == ["llama"] and "the same command goes on" in str(made)
    whole = categories_figure(**asked)
    assert not whole.interrupted and isinstance(whole.panels["gpt2"], mh.labels.HeadLabels)
    assert len(scores.seen) == 3 and scores.seen[2].name == str(asked["models"][1])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (ValueError("the tensor x is damaged"), "the tensor x is damaged"),
        (torch.OutOfMemoryError("CUDA out of memory"), "memory ran out"),
    ],
)
def test_a_model_that_fails_is_named_and_the_others_are_drawn(asked, monkeypatch, error, why):
    monkeypatch.setattr(categories_module, "relation_scores", Calls(mh.relation_scores, {1: error}))
    made = categories_figure(**asked)
    assert list(made.panels) == ["gpt2"] and f"llama left out: {why}" in made.notes
    again = categories_figure(**asked)
    assert isinstance(again.panels["llama"], mh.labels.HeadLabels), "what failed is tried again"


def test_another_request_in_the_folder_is_refused(asked, relation, monkeypatch):
    categories_figure(**asked)
    monkeypatch.setattr(panels, "load_model", refuse)
    with pytest.raises(ValueError, match="of another study: min_pairs is '2' there and '3' here"):
        categories_figure(**asked | {"min_pairs": 3})
    relation.write_text(json.dumps({"name": "capitals", "category": "Knowledge", "pairs": PAIRS[:3]}))
    with pytest.raises(ValueError, match=r"of another study: .*capitals.json is '\w+' there and '\w+' here"):
        categories_figure(**asked)


@pytest.mark.slow
def test_weights_on_disk_give_the_same_categories(asked, tiny):
    asked |= {"models": [tiny("llama"), tiny("qwen")]}
    loaded = categories_figure(**asked)
    on_disk = categories_figure(**asked | {"on_disk": True, "out": asked["out"] / "disk"})
    for name in ("llama", "qwen"):
        same = on_disk.panels[name].dataset["member"] == loaded.panels[name].dataset["member"]
        assert bool(same.all())


@pytest.fixture
def asked_safety(tiny, tmp_path: Path) -> dict[str, Any]:
    return safety_request(tiny, tmp_path)


@pytest.fixture(scope="module")
def by_requests(tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], mh.studies.PaperFigure]:
    """A request of two sets for two models, and its figure."""
    asked = safety_request(tiny, tmp_path_factory.mktemp("safety"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "load_model", load_once)
        patch.setattr("mechheads.safety.openings.TOKENS", 4)
        return asked, safety_figure(**asked)


def test_safety_panels_are_those_of_compare_ablations(by_requests, tiny):
    _, made = by_requests
    assert list(made.panels) == ["llama, mine", "llama, yours", "gpt2, mine", "gpt2, yours"]
    for panel, found in made.panels.items():
        model, data = panel.split(", ")
        texts = [text.strip() for text in REQUESTS[data]]
        expected = mh.safety.compare_ablations(loaded(str(tiny(model))), texts, 2, template="bare")
        assert list(found) == list(expected) == ["undifferentiated", "scaling"]
        for ablation, scores in found.items():
            np.testing.assert_array_equal(scores.scores, expected[ablation].scores)
    top = made.tables["top"]
    refused = made.tables["refused"]
    assert refused[["model", "requests"]].agg(", ".join, axis=1).tolist() == list(made.panels)
    assert len(top) == 4 * 2 * 2 and top["rank"].tolist() == [1, 2] * 8
    assert len(made.tables["heads"]) == 4 * 2 * 12


@pytest.mark.parametrize("sets", [1, 2])
def test_the_layout_by_ablation_takes_the_same_panels(asked_safety, by_requests, monkeypatch, sets):
    if sets == 1:
        asked = asked_safety | {"requests": asked_safety["requests"][:1]}
        first = safety_figure(**asked)
    else:
        asked, first = by_requests
    monkeypatch.setattr(panels, "load_model", refuse)
    made = safety_figure(**asked, by="ablation")
    of = ["mine", "yours"][:sets]
    names = [f"{ablation}, {data}" for data in of for ablation in ("undifferentiated", "scaling")]
    assert list(made.panels) == (names if sets == 2 else ["undifferentiated", "scaling"])
    for name, found in made.panels.items():
        ablation, _, data = name.partition(", ")
        assert list(found) == ["llama", "gpt2"]
        for model, scores in found.items():
            other = first.panels[f"{model}, {data}" if data else model][ablation]
            np.testing.assert_array_equal(scores.scores, other.scores)
    assert made.figure.layout.title.text.endswith(f" on {' and '.join(of)}")
    headings = [note.text for note in made.figure.layout.annotations]
    assert headings[:2] == [
        f"{n}{' on mine' * (sets - 1)}" for n in ("Undifferentiated Attention", "Scaling Contribution")
    ]
    assert [note.text.partition(" of ")[0] for note in first.figure.layout.annotations] == [
        "Heads with the largest Ships"
    ] * (2 * sets)
    pd.testing.assert_frame_equal(made.tables["top"], first.tables["top"])


def test_generalized_ships_rank_the_heads_if_asked(asked_safety):
    one = {"models": asked_safety["models"][:1], "requests": asked_safety["requests"][:1]}
    made = safety_figure(**asked_safety | one, score="generalized")
    for scores in made.panels["llama"].values():
        angles = scores.dataset["generalized_ships"].values
        largest = np.argsort(-angles, None)[:2]
        assert [head.layer * angles.shape[1] + head.head for head in scores.heads(2)] == largest.tolist()
    assert made.figure.layout.annotations[0].text.startswith("Heads with the largest Generalized Ships on mine")
    with pytest.raises(ValueError, match="score is 'generalized_ships' there and 'ships' here"):
        safety_figure(**asked_safety | one)


@pytest.fixture
def asked_roles(tiny, tmp_path: Path) -> dict[str, Any]:
    return roles_request(tiny, tmp_path)


def test_role_curves_are_those_of_role_curve(asked_roles, tiny):
    made = roles_figure(**asked_roles)
    assert list(made.panels) == ["capitals"] and list(made.panels["capitals"]) == ["llama", "gpt2"]
    fitted_on, tried_on = mh.gating.load_task(asked_roles["tasks"], prompt="prompt", target="target").split(0.8)
    for name, curves in made.panels["capitals"].items():
        model = loaded(str(tiny(name)))
        gates = mh.fit_gates(model, fitted_on, seeds=2, updates=2)
        expected = mh.gating.role_curve(model, tried_on, gates, counts=3)
        pd.testing.assert_frame_equal(curves.table, expected.table)
        shares = made.tables["shares"].query("model == @name").drop(columns=["model", "task"])
        pd.testing.assert_frame_equal(shares.reset_index(drop=True), mh.head_roles(gates).shares())
    assert {path.name for path in (asked_roles["out"] / "llama" / "capitals").iterdir()} == {
        "curves.nc",
        "gates.nc",
        "study.json",
    }
    assert len(made.tables["heads"]) == 24


def test_a_half_done_fit_goes_on(asked_roles, monkeypatch):
    """The second call gives the fit the ledger of the first, and the same result as an undisturbed call."""
    asked_roles["models"] = asked_roles["models"][:1]
    whole = roles_figure(**asked_roles | {"out": asked_roles["out"] / "whole"})
    real, found = mh.fit_gates, []

    def fit(*args: Any, **options: Any) -> Any:
        found.append(Path(str(current().store)).exists())
        gates = real(*args, **options)
        if len(found) == 1:
            raise KeyboardInterrupt
        return gates

    monkeypatch.setattr(roles_module, "fit_gates", fit)
    with pytest.raises(KeyboardInterrupt, match="the same command goes on"):
        roles_figure(**asked_roles)
    with pytest.raises(ValueError, match="updates is '2' there and '3' here"):
        roles_figure(**asked_roles | {"updates": 3})
    again = roles_figure(**asked_roles)
    assert found == [False, True]
    pd.testing.assert_frame_equal(again.tables["curves"], whole.tables["curves"])


def test_a_quick_look_takes_few_items(asked_roles):
    quick = roles_figure(**asked_roles | {"seeds": 10, "quick": True, "models": asked_roles["models"][0]})
    curves = quick.panels["capitals"]["llama"]
    assert curves.provenance["gates"]["seeds"] == [0, 1] and curves.provenance["gates"]["batch"] == 8


WRONG: dict[str, list[tuple[dict[str, Any], str]]] = {
    "categories": [
        ({"models": []}, "models is empty"),
        ({"models": ["gpt2", "gpt2"]}, "models contains 'gpt2' twice"),
        ({"relations": ["capital"]}, "there is no relation 'capital'"),
    ],
    "safety": [
        ({"requests": "AdvBrench"}, "'AdvBrench' is neither a file nor one of .*Did you mean \"AdvBench\""),
        ({"ablations": ["scale"]}, r"ablations\[0\] is 'scale'"),
        ({"ablations": "scaling"}, r"ablations is 'scaling'; give a list, such as \['scaling'\]"),
        ({"by": "ablation", "models": list("abcdef")}, "models has 6 models, but there are only 5 markers"),
    ],
    "roles": [
        ({"n": 1}, "n is 1"),
        ({"n": 50}, "n is 50, but task 'capitals' has 10 items"),
    ],
}


@pytest.mark.parametrize(
    ("figure", "wrong", "message"), [(figure, *row) for figure, some in WRONG.items() for row in some]
)
def test_a_wrong_request_is_refused_before_a_model_is_loaded(request, monkeypatch, figure, wrong, message):
    draw, given = {
        "categories": (categories_figure, "asked"),
        "safety": (safety_figure, "asked_safety"),
        "roles": (roles_figure, "asked_roles"),
    }[figure]
    asked = request.getfixturevalue(given)
    monkeypatch.setattr(panels, "load_model", refuse)
    with pytest.raises(ValueError, match=message):
        draw(**asked | wrong)
    assert not asked["out"].exists()
