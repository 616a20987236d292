"""Dynamic scores against a loop of full forward passes, and their correlation with static ones."""

# pyright: reportOptionalMemberAccess=false, reportGeneralTypeIssues=false
from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.labels import dynamic
from mechheads.results.scores import HeadScores
from support.texts import CAPITALS

TEMPLATES = [" When {source} went to the store", " yes the capital of {source}"]
PAIRS = [*CAPITALS, ("Gerry", "big")]


def relation(copying: bool = False) -> mh.Relation:
    return mh.Relation("capitals", "Knowledge", PAIRS, copying=copying)


def slow(model: mh.Model, template: str, k: int) -> np.ndarray:
    """phi_dyn of every head [layer, head, context], from one cached run a prompt and whole rows of logits."""
    hits = np.zeros((model.n_layers, model.n_heads, 2, len(PAIRS)))
    group = model.n_heads // model.n_kv_heads
    for i, (source, target) in enumerate(PAIRS):
        text = template.replace("{source}", source)
        run = model.cache([text], sites=("z", "pattern", "v"), progress=False)
        own = model.tokenizer(f" {target}", add_special_tokens=False)["input_ids"][0]
        before = len(model.tokenizer(template[: template.index("{source}")] + source)["input_ids"])
        for layer in range(model.n_layers):
            for head in range(model.n_heads):
                values = run.v.layer(layer)[0, head // group]
                pattern = run.pattern[layer, head][0]
                for c, row in enumerate((pattern[-1], np.eye(len(pattern), dtype=np.float32)[before - 1])):
                    weights = pattern.new_tensor(np.asarray(row))
                    logits = (weights @ values) @ model.W_O[layer][head] @ model.W_U
                    hits[layer, head, c, i] = float((logits > logits[own]).sum() < k)
    return hits.mean(-1)


@pytest.mark.transformerlens
@pytest.mark.parametrize("kind", ["gpt2", "llama", "neox", "gemma"])
def test_equals_the_slow_loop(kind: str, tiny: Any) -> None:
    model = mh.load(tiny(kind))
    scores = mh.labels.dynamic_scores(model, relation(), k=60, templates=TEMPLATES, min_pairs=5, progress=False)
    assert scores.extra_dims == ("relation", "template", "context")
    for t, template in enumerate(TEMPLATES):
        wanted = slow(model, template, 60)
        np.testing.assert_allclose(scores.scores.values[:, :, 0, t], wanted, atol=1e-9)
    assert 0 < scores.scores.values.mean() < 1
    assert scores.provenance["ledger"]["capitals"]["kept"] == 5  # " Gerry" is several tokens, which is fine here


@pytest.mark.transformerlens
def test_relations_that_are_skipped_are_in_the_ledger(tiny: Any) -> None:
    short = mh.Relation("short", None, [("France", "Paris"), ("Italy", "Zurich")])
    with pytest.warns(UserWarning, match=r"fewer than 5 single-token pairs are skipped: short \(1 of 2\)"):
        scores = mh.labels.dynamic_scores(
            mh.load(tiny("llama")),
            [relation(), short],
            heads="L0H0",
            templates=TEMPLATES[:1],
            min_pairs=5,
            progress=False,
        )
    lost = {"target of several tokens": ["Italy -> Zurich"]}
    assert scores.dataset["relation"].values.tolist() == ["capitals"]
    assert scores.provenance["ledger"]["short"] == {"given": 2, "kept": 1, "scored": False, "lost": lost}


@pytest.mark.transformerlens
def test_some_heads_have_the_numbers_that_they_have_among_all(tiny: Any) -> None:
    model = mh.load(tiny("llama"))
    options: dict[str, Any] = {"k": 60, "templates": TEMPLATES, "min_pairs": 5, "progress": False}
    whole = mh.labels.dynamic_scores(model, relation(), **options).scores.values
    some = mh.labels.dynamic_scores(model, relation(), heads=["L2H3", (0, 1), "L2H0"], **options)
    for layer, head in np.ndindex(3, 4):
        wanted = whole[layer, head] if (layer, head) in {(2, 3), (0, 1), (2, 0)} else np.full((1, 2, 2), np.nan)
        np.testing.assert_array_equal(some.scores.values[layer, head], wanted)
    assert not some.provenance["interrupted"]


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_keeps_the_templates_that_are_done(tiny: Any, monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    model, read, calls = mh.load(tiny("llama")), dynamic._read, []

    def stop(*args: Any) -> Any:
        calls.append(args)
        if len(calls) == at:
            raise KeyboardInterrupt
        return read(*args)

    options: dict[str, Any] = {"k": 60, "templates": TEMPLATES, "min_pairs": 5, "progress": False}
    whole = mh.labels.dynamic_scores(model, relation(), **options).scores.values
    monkeypatch.setattr(dynamic, "_read", stop)
    if at == 1:
        with pytest.raises(KeyboardInterrupt):
            mh.labels.dynamic_scores(model, relation(), **options)
        return
    with pytest.warns(UserWarning, match="dynamic_scores was interrupted: templates and layers not reached are NaN"):
        part = mh.labels.dynamic_scores(model, relation(), **options)
    np.testing.assert_array_equal(part.scores.values[:, :, :, 0], whole[:, :, :, 0])
    assert np.isnan(part.scores.values[:, :, :, 1]).all()
    assert part.provenance["interrupted"]


@pytest.mark.slow
@pytest.mark.transformerlens
def test_capitals_are_read_where_the_weights_say(model: mh.Model) -> None:
    capitals = mh.Relation("capitals", "Knowledge", mh.Relation.load("country_to_capital").pairs[:60])
    static = mh.relation_scores(model, capitals, min_pairs=10, progress=False)
    dynamic = mh.labels.dynamic_scores(
        model, capitals, min_pairs=10, templates=["The story of {source} contains"], progress=False
    )
    assert str(dynamic.select(context="without").heads(1)[0]) == "L23H4"
    table = mh.labels.score_correlations(static, dynamic)
    r = table.set_index(["context", "template"])["r"]
    assert r["without", "all"] > 0.8
    assert table["template"].tolist() == ["The story of {source} contains", "all"] * 2


def scores(values: np.ndarray, dims: list[str]) -> HeadScores:
    labels = {"relation": ["r"], "template": ["t0", "t1"], "context": ["with"]}
    extra = {dim: labels[dim][: values.shape[2 + i]] for i, dim in enumerate(dims)}
    return HeadScores.from_scores(values, name="made", unit="share", kind="demo", extra=extra)


def made(rng: np.random.Generator) -> tuple[HeadScores, HeadScores]:
    x = rng.random((20, 4, 1))
    y = 0.5 * x[..., None, None] + 0.2 * rng.random((20, 4, 1, 2, 1))
    return scores(x, ["relation"]), scores(y, ["relation", "template", "context"])


def test_the_scatter_shows_every_head_and_template() -> None:
    static, dynamic = made(np.random.default_rng(2))
    table: pd.DataFrame = mh.labels.score_correlations(static, dynamic)
    figure = mh.plots.static_dynamic(static, dynamic, table, title="<b>both</b>")
    (trace,) = figure.data
    assert len(trace.x) == len(trace.y) == 160
    np.testing.assert_allclose(trace.y[:80], dynamic.scores.values[:, :, 0, 0, 0].ravel())
    np.testing.assert_allclose(trace.x[80:], static.scores.values[:, :, 0].ravel())
    assert trace.text[5] == "<b>L1H1</b> t0"
    assert figure.layout.title.text == "&lt;b&gt;both&lt;/b&gt;"
    pooled = table.set_index("template").loc["all"]
    told = f"r<br>r = {pooled.r:.2f} [{pooled.ci_low:.2f}, {pooled.ci_high:.2f}] with context"
    assert figure.layout.annotations[0].text == told
    unsure = mh.plots.static_dynamic(static, dynamic, table.assign(ci_low=np.nan))
    assert unsure.layout.annotations[0].text == f"r<br>r = {pooled.r:.2f} with context"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"templates": ["nothing here"]}, r"'nothing here' must contain \{source\} exactly once"),
        ({"templates": "a {source}"}, "give a list of texts"),
        ({"templates": []}, "give a list of texts"),
        ({"k": 0}, "k is 0"),
        ({"heads": ["L2H4"]}, "head L2H4 is out of range"),
        ({"heads": []}, "heads is empty"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, Any], message: str) -> None:
    sizes: Any = SimpleNamespace(d_vocab=10, n_layers=3, n_heads=4)
    with pytest.raises(ValueError, match=message):
        mh.labels.dynamic_scores(sizes, relation(), **options)


@pytest.mark.parametrize("use", [mh.labels.score_correlations, mh.plots.static_dynamic])
def test_results_that_do_not_belong_together_are_refused(use: Any) -> None:
    static, dynamic = made(np.random.default_rng(3))
    other = scores(np.zeros((2, 4, 1, 2, 1)), ["relation", "template", "context"])
    elsewhere = HeadScores(static.dataset.assign_coords(relation=["s"]))
    with pytest.raises(ValueError, match=r"static .*needs"):
        use(dynamic, dynamic)
    with pytest.raises(ValueError, match="20 x 4 heads, but dynamic has 2 x 4"):
        use(static, other)
    with pytest.raises(ValueError, match="share no relation"):
        use(elsewhere, dynamic)
