"""The look that every figure can have, what none does, and how figures are saved."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

import mechheads as mh
from mechheads import plots


@pytest.fixture
def scores() -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.eye(4) - 0.2, name="white", unit="ones", kind="demo")


def square(**options: Any) -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.eye(2), name="square", **({"kind": "demo"} | options))


def safety() -> mh.HeadScores:
    angle = {f"generalized_ships{end}": (("layer", "head"), np.eye(2)) for end in ("", "_low", "_high")}
    return square(kind="safety", provenance={"ablation": "zero", "k": 1}).assign(**angle)


DRAWN: dict[str, Callable[..., go.Figure]] = {
    "attention": lambda **look: plots.attention(np.eye(2), ["white", "#222222"], **look),
    "heatmap": lambda **look: plots.heatmap(square(), **look),
    "path_map": lambda **look: plots.path_map(
        mh.HeadScores.from_scores(np.eye(2)[None], name="paths", kind="demo", extra={"receiver": ["a", "b"]}), **look
    ),
    "role_map": lambda **look: plots.role_map({"facilitation": square(kind="roles")}, **look),
    "safety_grid": lambda **look: plots.safety_grid({"panel": {"zero": safety()}}, **look),
    "safety_map": lambda **look: plots.safety_map(safety(), **look),
}
"""Each figure but the map of categories, which needs labels, and the curves."""


@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_json_shows_its_title_literally_and_leaves_plotly_as_it_was(name):
    before = plotly.io.templates.default
    figure = DRAWN[name](title="<b> & $x$", theme="dark")
    again = json.loads(figure.to_json())
    assert again["layout"]["title"]["text"] == "&lt;b&gt; &amp; &#36;x&#36;"
    assert again["layout"]["modebar"] == {"remove": ["sendChartToCloud"]}
    assert again["data"] and plotly.io.templates.default == before


def test_every_figure_takes_a_theme():
    for name in set(plots.__all__) - {"save"}:
        assert inspect.signature(getattr(plots, name)).parameters["theme"].default == "light", name


def brightness(colour: str) -> float:
    return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) / 3


def test_a_dark_figure_has_the_same_numbers_in_other_colours(scores):
    light, dark = (mh.plots.heatmap(scores, theme=theme) for theme in ("light", "dark"))
    np.testing.assert_array_equal(light.data[0].z, dark.data[0].z)
    assert list(light.data[0].text[0]) == list(dark.data[0].text[0])
    assert light.layout.title.text == dark.layout.title.text == "White"
    page = light.layout.template.layout
    assert (page.paper_bgcolor, page.font.color) == ("white", "#222222")
    page = dark.layout.template.layout
    assert brightness(page.paper_bgcolor) < 50 and brightness(page.font.color) > 200
    for figure, sign in ((light, -1), (dark, 1)):
        scale = [brightness(colour) for _, colour in figure.layout.coloraxis.colorscale]
        middle = scale[len(scale) // 2]
        assert sign * (scale[0] - middle) > 0 and sign * (scale[-1] - middle) > 0


def test_an_html_file_is_whole_and_needs_no_network(scores, tmp_path):
    path = mh.plots.save(mh.plots.heatmap(scores), tmp_path / "a.html")
    text = path.read_text("utf-8")
    assert "Plotly.newPlot" in text and "<script src" not in text


def test_a_picture_has_the_size_of_the_figure(scores, tmp_path, monkeypatch):
    asked: list[dict[str, Any]] = []

    def draw(_: Any, **options: Any) -> bytes:
        asked.append(options)
        return b"drawn"

    monkeypatch.setattr(go.Figure, "to_image", draw)
    figure = mh.plots.heatmap(scores).update_layout(width=400, height=500)
    for name in ("a.pdf", "b.PNG"):
        assert mh.plots.save(figure, tmp_path / name, scale=3).read_bytes() == b"drawn"
    size = {"width": 400, "height": 500}
    assert asked == [{"format": "pdf", "scale": 1, **size}, {"format": "png", "scale": 3, **size}]


def test_what_cannot_be_saved_says_what_to_do(scores, tmp_path, monkeypatch):
    figure = mh.plots.heatmap(scores)
    with pytest.raises(ValueError, match=r"must end in \.pdf, \.svg, \.png or \.html"):
        mh.plots.save(figure, tmp_path / "a.jpeg")
    with pytest.raises(ValueError, match="scale is 0; it must be above 0"):
        mh.plots.save(figure, tmp_path / "a.png", scale=0)

    def fail(*_: Any, **__: Any) -> bytes:
        raise RuntimeError("no browser\nwas found")

    monkeypatch.setattr(go.Figure, "to_image", fail)
    (tmp_path / "a.png").write_bytes(b"before")
    with pytest.raises(RuntimeError, match="no browser"):
        mh.plots.save(figure, tmp_path / "a.png")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.png", b"before")]
