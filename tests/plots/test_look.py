"""The look that every figure can have, and how figures are saved."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

import mechheads as mh
from mechheads.plots import saving
from mechheads.plots.parts import look
from mechheads.plots.parts.axes import symlog

LOOK = ("width", "height", "font", "theme")


@pytest.fixture
def scores() -> mh.HeadScores:
    return mh.HeadScores.from_scores(np.eye(4) - 0.2, name="white", unit="ones", kind="demo")


def test_every_figure_takes_a_look():
    for name in set(mh.plots.__all__) - {"save"}:
        parameters = inspect.signature(getattr(mh.plots, name)).parameters
        assert [parameters[each].default for each in LOOK] == [None, None, None, "light"], name


def test_a_size_is_that_of_the_whole_figure(scores):
    usual = mh.plots.heatmap(scores).layout
    figure = mh.plots.heatmap(scores, width=400, height=500)
    assert (figure.layout.width, figure.layout.height) == (400, 500)
    assert figure.layout.margin == usual.margin
    assert scores.plot(width=400).layout.width == 400
    with pytest.raises(ValueError, match=r"width is 100; the labels and the legend take 170 pixels.*at least 230"):
        mh.plots.heatmap(scores, width=100)
    with pytest.raises(ValueError, match="height is nan"):
        mh.plots.heatmap(scores, height=float("nan"))


def test_gaps_between_panels_keep_their_pixels_and_labels_have_room():
    labels = {"panel": ["a", "b", "c"]}
    three = mh.HeadScores.from_scores(np.zeros((30, 4, 3)), name="three", kind="demo", extra=labels)
    figures = [mh.plots.heatmap(three, width=width, height=height) for width, height in ((None, None), (500, 320))]
    gaps = []
    for figure in figures:
        layout = figure.layout
        across = layout.width - layout.margin.l - layout.margin.r
        gaps.append(across * (layout.xaxis2.domain[0] - layout.xaxis.domain[1]))
        assert layout.xaxis3.domain[1] == pytest.approx(1) and layout.xaxis.domain[0] == 0
        middles = [np.mean(axis.domain) for axis in (layout.xaxis, layout.xaxis2, layout.xaxis3)]
        assert [note.x for note in layout.annotations] == pytest.approx(middles)
    assert gaps[0] == pytest.approx(gaps[1])
    up = figures[1].layout.height - figures[1].layout.margin.t - figures[1].layout.margin.b
    assert up / len(figures[1].layout.yaxis.tickvals) >= 17


def test_what_lies_a_distance_above_the_panels_stays_there():
    figure = go.Figure().update_layout(
        width=300, height=300, margin={"l": 50, "r": 50, "t": 60, "b": 40}, legend={"y": 1.1}
    )
    look.finish(figure, width=None, height=500, font=None, theme="light")
    assert figure.layout.legend.y == pytest.approx(1 + 0.1 * 200 / 400)


@pytest.mark.parametrize(
    ("font", "family", "size"),
    [
        ("Times New Roman", "Times New Roman", None),
        (18, None, 18),
        ({"family": "Arial", "size": 9.0}, "Arial", 9),
        (None, None, None),
    ],
)
def test_a_font_is_a_family_a_size_or_both(scores, font, family, size):
    layout = mh.plots.heatmap(scores, font=font).layout
    assert (layout.font.family, layout.font.size) == (family, size)


def test_labels_grow_with_the_font():
    tokens = ["The", " end"]
    pattern = np.array([[1.0, 0.0], [0.4, 0.6]])
    usual = mh.plots.attention(pattern, tokens).layout.xaxis.tickfont.size
    assert mh.plots.attention(pattern, tokens, font=18).layout.xaxis.tickfont.size == usual * 1.5


@pytest.mark.parametrize("font", [0, 1000, True, {}, {"color": "red"}, {"size": "large"}, {"family": 3}])
def test_what_is_no_font_is_refused(scores, font):
    with pytest.raises(ValueError, match="give a family such as"):
        mh.plots.heatmap(scores, font=font)


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
    assert (light.layout.paper_bgcolor, light.layout.font.color) == ("white", "#222222")
    assert brightness(dark.layout.paper_bgcolor) < 50 and brightness(dark.layout.font.color) > 200
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
    figure = mh.plots.heatmap(scores, width=400, height=500)
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
