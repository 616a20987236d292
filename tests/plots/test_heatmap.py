"""Heatmaps and attention patterns: what is drawn where, and nothing read as markup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mechheads import plots
from mechheads.plots.heatmap import role_map
from mechheads.plots.parts import plain, token_label
from mechheads.results.scores import HeadScores

METADATA: dict[str, Any] = {"name": "effect", "unit": "logits", "kind": "demo"}


def heatmap(*args: Any, **options: Any) -> Any:
    return plots.heatmap(*args, **options)


def attention(*args: Any, **options: Any) -> Any:
    return plots.attention(*args, **options)


def scores(shape=(3, 2), **options):
    return HeadScores.from_scores(np.random.default_rng(0).normal(size=shape), **(METADATA | options))


def test_heatmap_draws_every_score_with_layers_across_and_heads_up():
    made = scores()
    figure = heatmap(made)
    (trace,) = figure.data
    np.testing.assert_array_equal(trace.z, made.scores.values.T)
    assert trace.x.tolist() == [0, 1, 2]
    assert trace.y.tolist() == [0, 1]
    assert (figure.layout.xaxis.range, figure.layout.yaxis.range) == ((-0.5, 2.5), (-0.5, 1.5))
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("Layer", "Head")
    assert trace.text[1][2].startswith("<b>L2H1</b>")
    assert figure.layout.title.text == "Effect"
    assert made.plot(title="mine").to_dict()["layout"]["title"]["text"] == "mine"


def test_signed_scores_have_equal_ends_and_others_start_at_0():
    signed = heatmap(HeadScores.from_scores(np.array([[-3.0, 1.0]]), **METADATA)).layout.coloraxis
    assert (signed.cmin, signed.cmax) == (-3.0, 3.0)
    assert signed.colorscale[3] == (0.5, "#f7f7f7")
    positive = heatmap(HeadScores.from_scores(np.array([[0.0, 2.0]]), **METADATA)).layout.coloraxis
    assert (positive.cmin, positive.cmax) == (0.0, 2.0)
    assert positive.colorscale[0] == (0.0, "#f7f7f7")
    assert positive.colorscale[-1][1] == signed.colorscale[-1][1]
    empty = heatmap(HeadScores.from_scores(np.full((2, 2), np.nan), **METADATA)).layout.coloraxis
    assert (empty.cmin, empty.cmax) == (0.0, 1.0)


def test_hover_names_head_value_interval_family_p_and_q():
    values = np.array([[[1.0, 2.0, 3.0], [0.0, 1.0, -1.0]]])
    made = HeadScores.from_values(values, **METADATA)
    row = made["L0H0"]
    trace = heatmap(made).data[0]
    assert trace.text[0][0] == (
        f"<b>L0H0</b><br>2 logits<br>95% interval {row['ci_low']:.4g} to {row['ci_high']:.4g}<br>"
        f"family p = {row['p_family']:.3g}<br>q = 0.5"
    )
    assert trace.hovertemplate == "%{text}<extra></extra>"
    bare = heatmap(HeadScores.from_scores(np.array([[1.25]]), **METADATA)).data[0]
    assert bare.text[0][0] == "<b>L0H0</b><br>1.25 logits"


def prompts(metadata: dict[str, Any] | None = None, n: int = 10) -> HeadScores:
    """Some prompts: L2H1 has effects of about 3, L0H0 of about -2; the others are spread around 0."""
    values = np.random.default_rng(1).normal(size=(30, 9, n)) * 0.01
    values -= values.mean(-1, keepdims=True)
    values[2, 1] += 3
    values[0, 0] -= 2
    return HeadScores.from_values(values, provenance=metadata, **METADATA)


def test_a_dot_marks_the_heads_of_small_family_p_and_names_stand_beside_the_strongest():
    figure = heatmap(prompts({"model": "<b>"}))
    (dots,) = [trace for trace in figure.data if trace.type == "scatter"]
    assert sorted(zip(dots.x.tolist(), dots.y.tolist(), strict=True)) == [(0, 0), (2, 1)]
    assert (dots.name, dots.showlegend) == ("family p at most 0.05", True)
    assert figure.layout.title.subtitle.text == "&lt;b&gt;, 10 prompts"
    names = {note.text: (note.x, note.y) for note in figure.layout.annotations}
    assert names["L2H1"] == (2, 1) and names["L0H0"] == (0, 0)
    assert all(text == f"L{x}H{y}" for text, (x, y) in names.items()) and len(names) <= 6
    few = heatmap(prompts(n=5))  # all intervals but those of two heads hold 0, and no test over heads is possible
    assert [trace.type for trace in few.data] == ["heatmap"]
    assert {"L2H1", "L0H0"} <= {note.text for note in few.layout.annotations}


def test_an_extra_dimension_gives_one_panel_a_label_on_one_scale():
    made = scores((3, 2, 3), extra={"relation": ["capital", "<b>plural</b>", "$x$"]})
    figure = heatmap(made)
    assert [note.text for note in figure.layout.annotations] == [
        "capital",
        "&lt;b&gt;plural&lt;/b&gt;",
        "&#36;x&#36;",
    ]
    assert {trace.coloraxis for trace in figure.data} == {"coloraxis"}
    for i, trace in enumerate(figure.data):
        np.testing.assert_array_equal(trace.z, made.scores.values[..., i].T)
    assert "&lt;b&gt;plural&lt;/b&gt;" in figure.data[1].text[0][0]
    (one,) = heatmap(made.select(relation="capital")).data
    np.testing.assert_array_equal(one.z, made.scores.values[..., 0].T)
    positions = heatmap(scores((3, 2, 2), extra={"pos": [0, 7]}))
    assert [note.text for note in positions.layout.annotations] == ["pos 0", "pos 7"]


@pytest.mark.parametrize("shape", [(1, 1), (80, 64), (30, 9, 10)])
def test_figures_have_a_sensible_size(shape):
    made = scores(shape, extra={"pos": list(range(shape[2]))} if len(shape) == 3 else None)
    figure = heatmap(made)
    assert 300 <= figure.layout.width <= 1250
    assert 250 <= figure.layout.height <= 1500
    across = figure.layout.xaxis.domain[1] - figure.layout.xaxis.domain[0]
    assert across * (figure.layout.width - 170) / shape[0] >= 5 - 1e-6
    assert len(figure.layout.xaxis.tickvals) * 17 <= across * (figure.layout.width - 170) + 17


@given(st.text())
def test_no_text_reaches_plotly_raw(text):
    for shown in (plain(text), token_label(text)):
        assert not set("<>$") & set(shown)
    assert token_label(text)
    assert "\n" not in token_label(text)


@pytest.mark.parametrize(
    ("token", "label"),
    [
        (" the", "·the"),
        ("\n\n", "↵↵"),
        ("\t", "⇥"),
        ("", "(empty)"),
        ("<br>", "&lt;br&gt;"),
        ("\x00", "\\x00"),
        ("x" * 30, "x" * 23 + "…"),
    ],
)
def test_token_labels_by_hand(token, label):
    assert token_label(token) == label


def causal(n=4, seed=0):
    pattern = np.tril(np.random.default_rng(seed).random((n, n)) + 0.1)
    return pattern / pattern.sum(1, keepdims=True)


def test_attention_keeps_rows_and_blanks_the_future():
    pattern = causal()
    pattern[2] = [0.5, 0.0, 0.5, 0.0]
    figure = attention(pattern, ["a", " b", "a", "<b>"], title="x < y")
    (trace,) = figure.data
    ahead = np.triu(np.ones((4, 4), bool), 1)
    assert np.isnan(np.asarray(trace.z)[ahead]).all()
    np.testing.assert_array_equal(np.asarray(trace.z)[~ahead], pattern[~ahead])
    np.testing.assert_allclose(np.nansum(trace.z, axis=1), 1)
    for axis in (figure.layout.xaxis, figure.layout.yaxis):
        assert list(axis.tickvals) == [0, 1, 2, 3]
        assert list(axis.ticktext) == ["a", "·b", "a", "&lt;b&gt;"]
    assert figure.layout.yaxis.range == (3.5, -0.5)
    assert figure.layout.title.text == "x &lt; y"
    assert trace.text[3][1] == "&lt;b&gt; (3) to ·b (1)"
    assert trace.hovertemplate == "%{text}<br>%{z:.3g}<extra></extra>"
    assert not figure.layout.updatemenus


@pytest.mark.parametrize(
    ("pattern", "tokens", "message"),
    [
        (np.ones((2, 3)), ["a", "b"], r"pattern has shape \(2, 3\), but there are 2 tokens"),
        (np.ones((2, 2)), ["a"], r"pattern has shape \(2, 2\), but there are 1 tokens"),
        (np.ones((0, 0)), [], r"pattern has shape \(0, 0\), but there are 0 tokens"),
        (np.full((1, 1), -1.0), ["a"], "negative or non-finite"),
        (np.full((1, 1), np.nan), ["a"], "negative or non-finite"),
        ({}, ["a"], "pattern is empty; give at least one head"),
        ({"head 3": np.ones((1, 1))}, ["a"], "'head 3' is not a head"),
    ],
)
def test_bad_patterns_are_named(pattern, tokens, message):
    with pytest.raises(ValueError, match=message):
        attention(pattern, tokens)


def role_scores(values: np.ndarray, name: str) -> HeadScores:
    return HeadScores.from_scores(
        values,
        interval=(values - 0.1, values + 0.1),
        name=name,
        unit="gate",
        kind="roles",
        provenance={"task": "<b>"},
    )


def test_a_map_for_each_role_from_0_to_1() -> None:
    roles = {
        name: role_scores(np.full((2, 3), i / 10), name)
        for i, name in enumerate(("facilitation", "interference", "irrelevance"))
    }
    roles["facilitation"].scores[1, 2] = 0.4
    figure = role_map(roles)
    assert [note.text for note in figure.layout.annotations] == ["Facilitation", "Interference", "Irrelevance"]
    assert [trace.z[0][0] for trace in figure.data] == [0, 0.1, 0.2]
    assert figure.data[0].z[2][1] == 0.4
    assert figure.data[0].text[2][1].startswith("<b>L1H2</b> Facilitation<br>0.4 gate")
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 1)
    assert figure.layout.title.text == "Roles of heads, &lt;b&gt;"
    assert role_map(roles, title="mine").layout.title.text == "mine"
    with pytest.raises(ValueError, match="roles must be the result of"):
        role_map({})
