"""The figure of attack success: which numbers its lines and bands show, and what the hover says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads.plots.refusal_curve import refusal_curve

CURVES = {
    "heads": [0.05, 0.4, 0.9],
    "random 1": [0.05, 0.1, 0.3],
    "random 2": [0.05, 0.0, 0.2],
}
TABLE = pd.DataFrame(
    [
        {
            "which": which,
            "k": k,
            "attack_success": share,
            "ci_low": share / 2,
            "ci_high": (1 + share) / 2,
            "deflected": 0.01 * k if which == "heads" else 0.04,
            "degenerate": 0.02 * k if which == "heads" else 0.5,
            "over_refusal": 0.25,
        }
        for which, curve in CURVES.items()
        for k, share in enumerate(curve)
    ]
)


def lines(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data if trace.name}


def test_lines_are_the_ranking_the_mean_of_the_draws_and_answers_that_neither_refuse_nor_comply() -> None:
    figure = refusal_curve(TABLE.iloc[::-1])
    found = lines(figure)
    assert list(found) == ["random heads, 2 draws", "deflected answers", "degenerate answers", "heads of the ranking"]
    assert found["heads of the ranking"].x.tolist() == [0, 1, 2]
    assert found["heads of the ranking"].y.tolist() == CURVES["heads"]
    assert found["random heads, 2 draws"].y.tolist() == pytest.approx([0.05, 0.05, 0.25])
    assert found["degenerate answers"].y.tolist() == pytest.approx([0.0, 0.02, 0.04])
    assert found["deflected answers"].y.tolist() == pytest.approx([0.0, 0.01, 0.02])
    assert found["deflected answers"].line.dash == "dash"
    assert (found["degenerate answers"].line.dash, found["degenerate answers"].mode) == ("dot", "lines")
    assert found["degenerate answers"].line.width < found["heads of the ranking"].line.width
    assert [trace.showlegend for trace in found.values()] == [None] * 4


def test_bands_are_the_interval_and_the_range_of_the_draws() -> None:
    bands = {trace.legendgroup: trace for trace in refusal_curve(TABLE).data if trace.fill}
    own, random = bands["heads of the ranking"], bands["random heads, 2 draws"]
    assert own.x.tolist() == random.x.tolist() == [0, 1, 2, 2, 1, 0]
    np.testing.assert_allclose(own.y, [0.025, 0.2, 0.45, 0.95, 0.7, 0.525])
    np.testing.assert_allclose(random.y, [0.05, 0.0, 0.2, 0.3, 0.1, 0.05])


def test_axes_count_heads_and_show_all_shares() -> None:
    layout = refusal_curve(TABLE).layout
    assert list(layout.xaxis.tickvals) == [0, 1, 2]
    assert layout.xaxis.range[0] < 0 and layout.xaxis.range[1] > 2
    assert layout.yaxis.range[0] < 0 and layout.yaxis.range[1] > 1
    assert layout.yaxis.tickformat == ".0%"
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("number of heads ablated together", "attack success")
    assert layout.title.text == "Attack success as heads are ablated"
    assert refusal_curve(TABLE, title="<mine>").layout.title.text == "&lt;mine&gt;"
    many = pd.concat([TABLE.iloc[:1].assign(k=k) for k in range(81)])
    assert all(value == int(value) for value in refusal_curve(many).layout.xaxis.tickvals)


def test_hover_tells_all_numbers() -> None:
    found = lines(refusal_curve(TABLE))
    own = found["heads of the ranking"].text
    assert own[0].startswith("<b>no head ablated</b><br>attack success 5% [2%, 52%]")
    assert own[1] == (
        "<b>1 head ablated</b><br>attack success 40% [20%, 70%]<br>deflected 1%<br>degenerate 2%<br>over-refusal 25%"
    )
    assert own[2].startswith("<b>2 heads ablated</b>")
    assert found["degenerate answers"].text == own
    random = found["random heads, 2 draws"].text
    assert random[0].startswith("<b>no head ablated</b>")
    assert random[2] == (
        "<b>2 random heads ablated</b><br>attack success 25%, 20% to 30% over draws<br>deflected 4%<br>degenerate 50%"
    )


def test_without_random_heads_there_is_the_ranking_alone() -> None:
    alone = TABLE[TABLE["which"] == "heads"]
    assert list(lines(refusal_curve(alone))) == ["deflected answers", "degenerate answers", "heads of the ranking"]
    one = lines(refusal_curve(TABLE[TABLE["which"] != "random 2"]))
    assert one["random heads, 1 draw"].y.tolist() == CURVES["random 1"]


def test_what_a_stopped_run_did_not_reach_is_left_out() -> None:
    part = TABLE.assign(over_refusal=np.nan)
    part.loc[part["k"] == 2, ["attack_success", "ci_low", "ci_high", "deflected", "degenerate"]] = np.nan
    figure = refusal_curve(part)
    own = lines(figure)["heads of the ranking"]
    np.testing.assert_array_equal(own.y, [0.05, 0.4, np.nan])
    assert own.text[1] == (
        "<b>1 head ablated</b><br>attack success 40% [20%, 70%]<br>deflected 1%<br>degenerate 2%<br>"
        "over-refusal not known"
    )
    bands = {trace.legendgroup: trace.x.tolist() for trace in figure.data if trace.fill}
    assert bands == {"heads of the ranking": [0, 1, 1, 0], "random heads, 2 draws": [0, 1, 1, 0]}


def test_a_table_of_something_else_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no column 'ci_low'; give mh\.safety\.attack_curve"):
        refusal_curve(TABLE.drop(columns="ci_low"))
    with pytest.raises(ValueError, match="table has no rows for 'heads'"):
        refusal_curve(TABLE[TABLE["which"] != "heads"])


def test_figure_is_valid_json() -> None:
    assert json.loads(refusal_curve(TABLE).to_json())["data"][0]["type"] == "scatter"
