"""The look that every figure can have, and how figures are saved."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import plotly.graph_objects as go
import plotly.io
import pytest

import mechheads as mh
from mechheads.plots import saving
from mechheads.plots.parts.axes import symlog


@pytest.fixture
def scores() -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.eye(4) - 0.2, name="white", unit="ones", kind="demo")


def test_every_figure_takes_a_theme():
    for name in set(mh.plots.__all__) - {"save"}:
        assert inspect.signature(getattr(mh.plots, name)).parameters["theme"].default == "light", name


def test_themes_are_templates_that_leave_the_default_alone(scores):
    before = plotly.io.templates.default
    figure = mh.plots.heatmap(scores, theme="dark").update_layout(width=400, font_family="Times New Roman")
    assert (figure.layout.width, figure.layout.font.family) == (400, "Times New Roman")
    assert figure.layout.template.layout.paper_bgcolor == plotly.io.templates["mechheads_dark"].layout.paper_bgcolor
    assert plotly.io.templates.default == before
    assert plotly.io.templates["plotly_dark"].layout.paper_bgcolor != figure.layout.template.layout.paper_bgcolor


def test_an_unknown_theme_is_refused(scores):
    with pytest.raises(ValueError, match="theme is 'black'; it must be 'light' or 'dark'"):
        mh.plots.heatmap(scores, theme="black")  # type: ignore[arg-type]


def brightness(colour: str) -> float:
    return sum(int(colour[i : i + 2], 16) for i in (1, 3, 5)) / 3


def test_a_dark_figure_has_the_same_numbers_in_other_colours(scores):
    light, dark = (mh.plots.heatmap(scores, theme=theme) for theme in ("light", "dark"))
    np.testing.assert_array_equal(light.data[0].z, dark.data[0].z)
    assert list(light.data[0].text[0]) == list(dark.data[0].text[0])
    assert light.layout.title.text == dark.layout.title.text == "white"
    page = light.layout.template.layout
    assert (page.paper_bgcolor, page.font.color) == ("white", "#222222")
    page = dark.layout.template.layout
    assert brightness(page.paper_bgcolor) < 50 and brightness(page.font.color) > 200
    for figure, sign in ((light, -1), (dark, 1)):
        scale = [brightness(colour) for _, colour in figure.layout.coloraxis.colorscale]
        middle = scale[len(scale) // 2]
        assert sign * (scale[0] - middle) > 0 and sign * (scale[-1] - middle) > 0


def test_a_token_that_names_a_colour_stays(scores):
    figure = mh.plots.attention(np.eye(2), ["white", "#222222"], theme="dark")
    assert list(figure.layout.yaxis.ticktext) == ["white", "#222222"]


def test_a_symmetric_logarithmic_axis_is_linear_near_0_and_keeps_the_sign():
    np.testing.assert_allclose(
        symlog([-10, -1, 0, 0.25, 0.5, 5], 0.5), [-2 - np.log10(2), -1 - np.log10(2), 0, 0.5, 1, 2]
    )


def test_an_html_file_is_whole_and_needs_no_network(scores, tmp_path):
    path = mh.plots.save(mh.plots.heatmap(scores), tmp_path / "a.html")
    text = path.read_text("utf-8")
    assert "Plotly.newPlot" in text and "<script src" not in text


def test_a_picture_has_the_size_of_the_figure(scores, tmp_path, monkeypatch):
    asked: list[dict[str, Any]] = []

    def draw(_: Any, **options: Any) -> bytes:
        asked.append(options)
        return b"drawn"

    monkeypatch.setattr(saving, "has_kaleido", lambda: True)
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
    monkeypatch.setattr(saving, "has_kaleido", lambda: False)
    with pytest.raises(ImportError, match=r"pip install kaleido.*Chrome or Chromium.*\.html needs neither"):
        mh.plots.save(figure, tmp_path / "a.png")

    def fail(*_: Any, **__: Any) -> bytes:
        raise RuntimeError(("no browser\nwas found",))

    monkeypatch.setattr(saving, "has_kaleido", lambda: True)
    monkeypatch.setattr(go.Figure, "to_image", fail)
    (tmp_path / "a.png").write_bytes(b"before")
    with pytest.raises(RuntimeError, match=r"could not be drawn \(no browser\); install Chrome or Chromium"):
        mh.plots.save(figure, tmp_path / "a.png")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a.png", b"before")]
