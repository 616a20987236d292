"""The figure of paths: which senders are drawn in which order, what is marked, and nothing read as markup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mechheads.plots.heatmap import path_map
from mechheads.results.scores import HeadScores

RECEIVERS = ["L2H1.q", "L2.mlp", "final"]
METADATA: dict[str, Any] = {"name": "paths", "unit": "logits", "kind": "path_matrix"}


def matrix(score: Any, low: Any = None, high: Any = None, receivers: Any = RECEIVERS, **options: Any) -> HeadScores:
    """Scores of [layer, head, receiver]."""
    return HeadScores.from_scores(
        np.asarray(score, float), interval=(low, high), extra={"receiver": list(receivers)}, **(METADATA | options)
    )


EFFECTS = np.array(
    [
        [[0.1, 0.0, 0.2], [0.0, 0.0, 0.0]],
        [[0.3, -2.0, 0.0], [np.nan, np.nan, np.nan]],
        [[0.0, 0.0, 1.0], [0.0, np.nan, -1.0]],
    ]
)


def test_senders_go_down_from_the_strongest_and_receivers_across_in_order():
    figure = path_map(matrix(EFFECTS))
    heat = figure.data[0]
    assert list(figure.layout.yaxis.ticktext) == ["L1H0", "L2H0", "L2H1", "L0H0"]
    np.testing.assert_array_equal(heat.z, EFFECTS[[1, 2, 2, 0], [0, 0, 1, 0]])
    assert list(figure.layout.xaxis.ticktext) == RECEIVERS
    assert list(figure.layout.xaxis.tickvals) == heat.x.tolist() == [0, 1, 2]
    assert list(figure.layout.yaxis.tickvals) == heat.y.tolist() == [0, 1, 2, 3]
    assert (figure.layout.xaxis.range, figure.layout.yaxis.range) == ((-0.5, 2.5), (3.5, -0.5))
    assert figure.layout.xaxis.title.text == "receiver"
    assert figure.layout.yaxis.title.text == "sender (4 of 5)"
    assert figure.layout.title.text == "Paths"


def test_no_more_than_20_senders_and_one_where_none_does_anything():
    figure = path_map(matrix(np.arange(5 * 6 * 3.0).reshape(5, 6, 3)))
    assert list(figure.layout.yaxis.ticktext)[:2] == ["L4H5", "L4H4"]
    assert figure.layout.yaxis.title.text == "sender (20 of 30)"
    nothing = path_map(matrix(np.zeros((2, 2, 3))))
    assert list(nothing.layout.yaxis.ticktext) == ["L0H0"]
    assert (nothing.layout.coloraxis.cmin, nothing.layout.coloraxis.cmax) == (-1, 1)
    everyone = path_map(matrix(np.ones((2, 2, 3))))
    assert everyone.layout.yaxis.title.text == "sender"


@pytest.mark.parametrize("sign", [1, -1])
def test_colours_are_centred_at_0_with_equal_ends_even_if_all_have_one_sign(sign):
    colours = path_map(matrix(sign * np.abs(EFFECTS))).layout.coloraxis
    assert (colours.cmin, colours.cmax) == (-2.0, 2.0)
    assert colours.colorscale[3] == (0.5, "#f7f7f7")
    assert colours.colorbar.title.text == "logits"


def test_a_dot_marks_the_paths_of_small_family_p():
    score, family = np.array([[[3.0, 2.0, 1.0], [-1.0, -2.0, 0.0]]]), np.array([[[0.01, np.nan, 1], [0.05, 0.051, 1]]])
    tested = matrix(score).dataset.assign(p_family=(("layer", "head", "receiver"), family))
    dots = path_map(HeadScores(tested)).data[1]
    assert list(zip(dots.y.tolist(), dots.x.tolist(), strict=True)) == [(0, 0), (1, 0)]
    assert dots.mode == "markers" and dots.hoverinfo == "skip" and dots.showlegend
    assert dots.name == "family p at most 0.05"
    bare = path_map(matrix(score)).data[1]
    assert not len(bare.x) and bare.showlegend is False


def test_hover_names_sender_receiver_value_interval_family_p_and_q():
    values = np.random.default_rng(0).normal(2, 1, size=(1, 2, 3, 6))
    scores = HeadScores.from_values(values, extra={"receiver": RECEIVERS}, **METADATA)
    strongest = int(np.abs(scores.scores.values[0]).max(1).argmax())
    row = scores[f"L0H{strongest}"].iloc[1]
    figure = path_map(scores)
    assert figure.data[0].text[0][1] == (
        f"<b>L0H{strongest}</b> to L2.mlp<br>{row['score']:.4g} logits<br>"
        f"95% interval {row['ci_low']:.4g} to {row['ci_high']:.4g}<br>"
        f"family p = {row['p_family']:.3g}<br>q = {row['q_value']:.3g}"
    )
    assert figure.data[0].hovertemplate == "%{text}<extra></extra>"
    assert figure.data[1].name == "family p at most 0.05"


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        (matrix(EFFECTS).select(receiver="final"), r"\('paths'\) have no receivers; give the result of mh"),
        (matrix(EFFECTS * np.nan), r"\('paths'\) have no sender that was measured: all are NaN"),
    ],
)
def test_what_cannot_be_drawn(scores, message):
    with pytest.raises(ValueError, match=message):
        path_map(scores)
