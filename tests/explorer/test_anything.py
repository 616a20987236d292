"""``mh.explore`` takes anything: results, runs and models, in any mix; and the page says what they are."""

from __future__ import annotations

import importlib
import re
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.explorer.collect import collect
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.results.kinds import KINDS
from mechheads.studies.answers import own_column, own_views
from mechheads.studies.atlas import Atlas
from support.every_analysis import EVERY, REPEATED
from support.levels import few
from support.page_sample import unblock
from support.texts import CLEAN, PAIRS

HOSTILE = [
    "</script><script>",
    "<img src=x onerror=alert(1)>",
    "{value} {unit}",
    "a\u202eb\x07",
    "patching_p_family",
    "patching_q",
    "L1H2",
    "",
]
TABLES = {
    "attention_attribution",
    *("examples", "patterns", "set_scores", "faithfulness"),
    *("faithfulness_curve", "removal", "relation_evidence"),
    *(
        "head_group",
        "refusal_test",
        "attack_curve",
        "head_roles",
        "role_curves",
        "program_test",
    ),
}
NO_RESULTS = {"cache", "written", "read", "scales", "generate", "result", "first MLP"}
"""Analyses whose results are tensors and texts."""


def demo(name: str = "effect", kind: str = "demo", sizes: tuple[int, int] = (3, 4), **more: Any) -> mh.HeadScores:
    values = np.random.default_rng(len(name)).normal(size=(*sizes, 5))
    return mh.HeadScores.from_values(values, name=name, unit="logits", kind=kind, **more)


def of_model(model: str, sizes: tuple[int, int] = (3, 4), name: str = "effect") -> mh.HeadScores:
    return demo(name, sizes=sizes, provenance={"model": model})


def shown(what: Any) -> Payload:
    found = collect(what)
    return atlas_payload(found.atlas, tables=found.tables)


def model_of(what: Any) -> Any:
    model = shown(what).page["model"]
    return model


def views_of(model: Any) -> list[dict[str, Any]]:
    """The columns with scores of their own, in the order of the questions."""
    named = [name for question in model["questions"] for name in question["views"]]
    return [next(column for column in model["columns"] if column["name"] == name) for name in named]


@pytest.fixture(scope="module")
def small(loaded) -> mh.Model:
    return loaded("llama")


@pytest.fixture(scope="module")
def patched(small) -> mh.HeadScores:
    return mh.activation_patch(small, PAIRS, normalize=True)


def test_scores_have_the_name_of_their_key_or_their_own():
    one = collect({"mine": demo(), "theirs": [demo(), demo("other")]})
    assert list(one.atlas.own) == ["mine", "theirs", "theirs (2)"]
    one = collect([demo("effect"), demo("effect"), demo("other")])
    assert list(one.atlas.own) == ["effect", "effect (2)", "other"]
    assert list(one.atlas.to_dataframe()) == [
        *("layer", "head"),
        *(
            f"{name}{end}"
            for name in ("effect", "effect_2", "other")
            for end in ("", "_ci_low", "_ci_high", "_p_family", "_q")
        ),
    ]


def test_each_kind_of_result_has_its_place(small, patched):
    run = small.cache(["The capital of France is", "one"], sites=("pattern",))
    labels, profile = EVERY["labels"].run(small), EVERY["profile"].run(small)
    one = collect([{"mine": patched}, labels, profile, {"my run": run}, EVERY["safety heads"].run(small)])
    atlas = one.atlas
    assert atlas.labels is labels and atlas.profile is profile and list(atlas.own) == ["mine"]
    assert list(atlas.safety) == ["undifferentiated"] and atlas.model == small.name
    assert atlas.patterns is not None
    assert atlas.patterns.table["name"].tolist() == ["my run, prompt 0", "my run, prompt 1"]
    model = model_of([{"mine": patched}, labels, profile, run])
    assert [(column["name"], column["group"]) for column in views_of(model)] == [
        ("mine", "Your own"),
        ("phi", "By weights"),
    ]
    assert model["panes"] == ["text", "pattern", "weights", "cause"]


@pytest.mark.parametrize("name", few([name for name in EVERY if name not in NO_RESULTS], *(EVERY.keys() - REPEATED)))
def test_the_result_of_every_analysis_makes_a_page(small, name):
    page = shown(EVERY[name].run(small)).page
    model = page["model"]
    assert (model["nLayers"], model["nHeads"]) == (3, 4)
    for column in views_of(model):
        assert column["meaning"].endswith(".") and column["unit"] and any(value for value in column["values"])
    assert any(model[part] for part in ("questions", "tables", "circuits", "panes"))


def test_every_kind_of_scores_has_a_name():
    assert {name for name, kind in KINDS.items() if kind.label} == set(KINDS) - TABLES


def test_results_of_another_model_are_refused():
    for given, message in (
        (
            [of_model("one"), of_model("two")],
            r"what\[1\] is of 'two', but other results are of 'one'",
        ),
        ([demo(), demo(sizes=(1, 1))], r"what\[1\] is of 1 x 1 heads, but other results of 'a model' are of 3 x 4"),
        ([Atlas("one", patching=of_model("one"))] * 2, r"what\[1\] is a second atlas; a page shows one"),
    ):
        with pytest.raises(ValueError, match=message):
            collect(given)


def test_a_given_atlas_stays_as_it_was():
    atlas = Atlas("one", patching=of_model("one"), own={"before": demo()})
    one = collect([atlas, {"mine": of_model("one")}, demo("nameless")])
    assert list(one.atlas.own) == ["before", "mine", "nameless"] and list(atlas.own) == ["before"]
    assert one.atlas.patching is atlas.patching


def test_a_page_has_the_name_of_the_model():
    atlas = Atlas("/models/one", patching=of_model("/models/one"))
    assert shown({"mine": of_model("/models/one"), "atlas": atlas}).page["title"] == "The attention heads of one"
    assert collect({"mine": atlas.patching}).atlas.model == "/models/one"


def test_a_model_gets_a_quick_atlas_unless_there_is_one(small, patched, monkeypatch, tmp_path):
    built: list[bool] = []

    def build(model: mh.Model, *, quick: bool) -> Atlas:
        built.append(quick)
        return Atlas(model.name, patching=demo(), notes=["quick"])

    module = importlib.import_module("mechheads.explorer.collect")
    monkeypatch.setattr(module, "build_atlas", build)
    one = collect([small, {"mine": patched}])
    assert built == [True] and one.model is small
    assert one.atlas.notes == ["quick"] and list(one.atlas.views) == ["patching", "mine"]
    one = collect([small, Atlas(small.name, patching=patched)])
    assert built == [True] and one.model is small
    with pytest.raises(ValueError, match="head L9H9 is out of range"):
        mh.head_card(small, "L9H9", tmp_path / "card.html")
    assert built == [True]


def test_what_cannot_be_shown_is_refused_before_anything_is_run(small, monkeypatch):
    monkeypatch.setattr(importlib.import_module("mechheads.explorer.collect"), "build_atlas", None)
    wanted = "give scores (mh.HeadScores.from_scores makes them of an array), labels or another result, an atlas"
    for given, message in (
        (3, "what is 3; give scores"),
        ([small, "atlas"], r"what\[1\] is 'atlas'; give"),
        ([], "what is an empty list; give"),
        ({"a": {}}, r"what\['a'\] is an empty dict"),
        ({3: demo()}, "what has the key 3; keys are the names that the page shows: give texts"),
        ([of_model("m"), of_model("m", (2, 2))], r"what\[1\] is of 2 x 2 heads, but other results of 'm' are of 3 x 4"),
        ([small, of_model(small.name, (2, 2))], "give results of one size"),
        (small.cache(CLEAN, sites=("z",)), r"what is a run without patterns; give model\.cache\(prompts, sites="),
        (Atlas("empty"), "has no result"),
        (EVERY["sets"].run(small).__class__, "what is <class"),
    ):
        with pytest.raises(ValueError, match=message):
            mh.explore(given)
    with pytest.raises(ValueError, match=re.escape(wanted)):
        mh.explore(None)
    for path, message in (("no/page.html", "no folder no"), (".", "this is a folder"), (3, "path is 3; give the path")):
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            mh.explore(small, path)  # type: ignore[arg-type]
        with pytest.raises((ValueError, FileNotFoundError), match=message):
            mh.head_card(small, "L0H0", path)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="model is 3; give a model"):
        mh.explore(demo(), model=3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the atlas is of 2 x 2 heads; give the model of the atlas"):
        mh.explore(demo(sizes=(2, 2)), model=small)


def test_names_become_columns_that_a_search_line_can_hold():
    views = own_views({name: demo() for name in [*HOSTILE, "my ablation", "my-ablation", "2nd", "é", "x" * 5000]})
    assert all(re.fullmatch(r"[^\W\d]\w*", column) and len(column) < 70 for column in views)
    assert len({column.lower() for column in views}) == len(HOSTILE) + 5
    assert [*views][4:10] == [
        "patching_p_family_score",
        "patching_q_score",
        "own_L1H2",
        "own",
        "my_ablation",
        "my_ablation_2",
    ]
    assert own_column("Patching") == "Patching" and [*own_views({"Patching": demo()}, ["patching"])] == ["Patching_2"]
    assert [*Atlas("m", patching=demo(), own={"patching": demo(), "attribution": demo()}).views] == [
        *("patching", "patching_2", "attribution_2")
    ]


def test_of_many_labels_each_head_has_the_one_furthest_from_0():
    values = np.random.default_rng(0).normal(size=(3, 4, 20, 2, 5))
    values[1, 2] = np.nan
    scores = mh.HeadScores.from_values(
        values, name="", kind="demo", unit="", extra={"pos": list(range(20)), "site": ["q", "k"]}
    )
    views = own_views({"sweep": scores})
    assert [view.label for view in views.values()] == [f"sweep, site {s}, pos furthest from 0" for s in "qk"]
    means = values.mean(-1)
    for number, view in enumerate(views.values()):
        mine = means[..., number]
        at = np.abs(np.nan_to_num(mine)).argmax(-1)
        found = view.scores
        np.testing.assert_allclose(found.scores.values, np.take_along_axis(mine, at[..., None], -1)[..., 0])
        chosen = scores.dataset["q_value"].values[0, 1, at[0, 1], number]
        assert found.dataset["q_value"].values[0, 1] == chosen  # q counts the tests of all positions
        np.testing.assert_allclose(found.values.values[0, 1], values[0, 1, at[0, 1], number])
    assert views_of(model_of({"sweep": scores}))[0]["values"][6] is None


def test_a_card_has_your_values_prompt_by_prompt():
    scores = demo(cluster=[*"aab", "<b>", "e"])
    payload = shown({"my ablation": scores})
    assert unblock(payload.blocks["mh-shared"])["labels"] == {"my_ablation": ["a", "a", "b", "<b>", "e"]}
    card = unblock(payload.blocks["mh-heads-1"])["heads"][2]
    (effect,) = card["cause"]
    assert effect["title"] == "my ablation"
    assert effect["values"] == pytest.approx(scores.values.values[1, 2].tolist())
    assert model_of(mh.HeadScores.from_scores(np.eye(3), name="a", kind="demo"))["panes"] == []
