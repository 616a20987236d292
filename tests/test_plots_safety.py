"""The figure of safety heads: what is drawn where, in which colour, and what the hover says."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import numpy as np
import plotly.io
import pytest

from mechheads.plots.safety import safety_map
from mechheads.scores import HeadScores

SHAPE = (4, 3)


def safety(ablation: str = "undifferentiated", k: int = 5, seed: int = 0, model: str = "demo", **extra: Any):
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 30, size=SHAPE)
    return HeadScores.from_values(
        rng.exponential(size=(*SHAPE, 6)),
        name="safety heads",
        unit="nats",
        kind="safety",
        null=None,
        provenance={"ablation": ablation, "k": k, "model": model},
        variables={
            "generalized_ships": (("layer", "head"), angle),
            "generalized_ships_low": (("layer", "head"), angle / 2),
            "generalized_ships_high": (("layer", "head"), angle * 2),
            **extra,
        },
    )


def test_the_first_k_heads_lie_at_their_layer_and_head_in_the_colour_of_their_angle():
    scores = safety()
    figure = safety_map(scores)
    (trace,) = figure.data
    heads = scores.heads(5)
    assert trace.x.tolist() == [head.layer for head in heads]
    assert trace.y.tolist() == [head.head for head in heads]
    angles = scores.dataset["generalized_ships"].values
    assert trace.marker.color.tolist() == [angles[head.layer, head.head] for head in heads]
    assert trace.marker.symbol == "circle"
    assert trace.marker.coloraxis == "coloraxis"
    assert figure.layout.coloraxis.cmin == 0
    assert figure.layout.coloraxis.cmax == max(trace.marker.color)
    assert "degrees" in figure.layout.coloraxis.colorbar.title.text
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("Layer", "Head")
    assert figure.layout.xaxis.range == (-0.7, 3.7)
    assert figure.layout.yaxis.range == (-0.7, 2.7)
    assert figure.layout.title.text == "Top 5 safety heads of demo"
    assert len(safety_map(scores, k=2).data[0].x) == 2
    assert safety_map(scores, title="<mine>").layout.title.text == "&lt;mine&gt;"


def test_circles_and_crosses_share_one_scale():
    first, second = safety(), safety("scaling", seed=1)
    figure = safety_map([first, second])
    circle, cross = figure.data
    assert (circle.marker.symbol, cross.marker.symbol) == ("circle", "x")
    assert (circle.name, cross.name) == ("Undifferentiated Attention", "Scaling Contribution")
    assert circle.marker.size > cross.marker.size
    assert figure.layout.coloraxis.cmax == max(*circle.marker.color, *cross.marker.color)
    assert safety_map(second).data[0].marker.symbol == "x"


def test_hover_names_head_rank_scores_and_intervals():
    scores = safety()
    head = scores.heads(1)[0]
    row = scores[head]
    angle = float(scores.dataset["generalized_ships"][head.layer, head.head])
    assert safety_map(scores).data[0].text[0] == (
        f"<b>{head}</b>, rank 1<br>Undifferentiated Attention<br>"
        f"Ships {row['score']:.4g} nats (95% {row['ci_low']:.4g} to {row['ci_high']:.4g})<br>"
        f"Generalized Ships {angle:.4g} degrees (95% {angle / 2:.4g} to {angle * 2:.4g})"
    )
    without = scores.dataset.assign(generalized_ships_low=np.nan * scores.scores)
    assert safety_map(HeadScores(without)).data[0].text[0].endswith(f"{angle:.4g} degrees")


def test_what_cannot_be_drawn():
    with pytest.raises(ValueError, match="scores is empty"):
        safety_map([])
    with pytest.raises(ValueError, match="has no Generalized Ships to colour by"):
        safety_map(HeadScores.from_scores(np.ones(SHAPE), name="x", unit="nats", kind="ships"))
    with pytest.raises(ValueError, match="two of the scores are for ablation 'scaling'"):
        safety_map([safety("scaling"), safety("scaling", seed=1)])
    with pytest.raises(ValueError, match="the scores are of 2 models"):
        safety_map([safety(), safety("scaling", model="another")])
    with pytest.raises(ValueError, match="k is 0"):
        safety_map(safety(), k=0)


def test_figure_is_valid_json_and_changes_no_global_template():
    before = plotly.io.templates.default
    figure = safety_map([safety(), safety("scaling")])
    assert json.loads(figure.to_json())["data"][0]["type"] == "scatter"
    assert plotly.io.templates.default == before


def test_plotly_is_imported_only_to_draw():
    code = "import sys, mechheads.plots.safety; sys.exit('plotly' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
