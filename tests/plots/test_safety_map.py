"""The figures of safety heads: what is drawn where, in which colour, and what the hover says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mechheads.heads import HeadId
from mechheads.plots.safety_map import safety_grid, safety_map
from mechheads.results.scores import HeadScores

SHAPE = (4, 3)


def marks(figure: Any) -> list[Any]:
    """The markers in the panels, without those of the legend."""
    return [trace for trace in figure.data if trace.showlegend is False]


def legends(figure: Any) -> list[Any]:
    """The entries of the panels' legends."""
    return [trace for trace in figure.data if trace.showlegend]


def refused(n: int) -> dict[str, int]:
    return {"n": n, "of": 8}


def shown(names: str, ablation: str = "scaling", model: str = "demo", **provenance: Any) -> HeadScores:
    """Scores by hand: the named heads lead, the first with Ships 9 (8 to 10) and an angle of 20 (18 to 22) degrees,
    each further one with 1 nat and 2 degrees less; in 93% of resamples."""
    ships, angle = np.zeros(SHAPE), np.ones(SHAPE)
    for i, head in enumerate(map(HeadId.parse, names.split())):
        ships[head.layer, head.head], angle[head.layer, head.head] = 9 - i, 20 - 2 * i
    columns = {"ships": (ships, 1), "generalized_ships": (angle, 2)}
    variables = {
        f"{name}{end}": (("layer", "head"), values + sign * width)
        for name, (values, width) in columns.items()
        for end, sign in (("", 0), ("_low", -1), ("_high", 1))
    }
    score = provenance.get("score", "ships")
    values, width = columns[score]
    return HeadScores.from_scores(
        values,
        interval=(values - width, values + width),
        name="safety heads",
        unit="nats" if score == "ships" else "degrees",
        kind="safety",
        provenance={"ablation": ablation, "k": len(names.split()), "model": model, "score": score} | provenance,
    ).assign(**variables, in_top=(("layer", "head"), np.full(SHAPE, 0.93)))


def places(trace: Any) -> list[str]:
    return [f"L{layer}H{head}" for layer, head in zip(trace.x.tolist(), trace.y.tolist(), strict=True)]


def test_the_first_k_heads_lie_at_their_layer_and_head_in_the_colour_of_their_angle():
    scores = shown("L3H2 L0H1 L1H1", "undifferentiated")
    figure = safety_map(scores)
    (trace,) = marks(figure)
    assert places(trace) == ["L3H2", "L0H1", "L1H1"]
    assert trace.marker.color.tolist() == [20, 18, 16]
    assert (trace.marker.symbol, trace.marker.coloraxis) == ("circle-open", "coloraxis")
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (0, 20)
    assert figure.layout.coloraxis.colorbar.title.text == "Generalized Ships (degrees)"
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("Layer", "Head")
    assert figure.layout.xaxis.range == (-0.7, 3.7)
    assert len(safety_map(scores.with_provenance(k=2)).data[0].x) == 2


def test_the_title_names_the_score_and_how_many_requests_were_refused():
    def title(*counts: int | None, **provenance: Any) -> str:
        kinds = ("scaling", "zero")
        seen = [{} if n is None else {"refused": refused(n)} for n in counts]
        every = [shown("L3H2 L0H1", kind, **one, **provenance) for kind, one in zip(kinds, seen, strict=False)]
        return safety_map(every).layout.title.text

    assert title(6, 6) == "Heads with the largest Ships of demo (refused 6 of 8)"
    assert title(1) == "Heads with the largest Ships of demo (refused 1 of 8)"
    assert title(0, 0) == "Heads with the largest Ships of demo (refused 0 of 8)"
    assert title(None) == "Heads with the largest Ships of demo"
    assert title(6, None) == "Heads with the largest Ships of demo"
    assert title(0, score="generalized_ships").startswith("Heads with the largest Generalized Ships of demo")


def test_every_ablation_has_its_mark_and_name_on_one_scale():
    kinds = ("resample", "mean", "zero", "scaling", "undifferentiated")
    figure = safety_map([shown("L0H1", kind) for kind in kinds])
    assert [(trace.name, trace.marker.symbol) for trace in marks(figure)] == [
        ("Undifferentiated Attention", "circle-open"),
        ("Scaling Contribution", "x-thin-open"),
        ("zero ablation", "square-open"),
        ("mean ablation", "diamond-open"),
        ("resample ablation", "triangle-up-open"),
    ]
    assert {trace.marker.coloraxis for trace in marks(figure)} == {"coloraxis"}
    assert safety_map(shown("L0H1", "mean")).data[0].marker.symbol == "diamond-open"


def test_hover_has_both_scores_and_the_share_of_resamples():
    lines = safety_map(shown("L3H2 L0H1")).data[0].text[1].split("<br>")
    assert lines == [
        "<b>L0H1</b>, rank 2",
        "Scaling Contribution",
        "Ships 8 nats [7, 9]",
        "Generalized Ships 18 degrees [16, 20]",
        "in_top (2) 0.93",
    ]
    every = [text.split("<br>")[0] for text in safety_map(shown("L3H2 L0H1", k=4)).data[0].text]
    assert [text.partition(", ")[2] for text in every] == ["rank 1", "rank 2", "rank 3", "rank 3"]  # two have 0 nats
    by_angle = safety_map(shown("L3H2 L0H1", score="generalized_ships")).data[0].text[1].split("<br>")
    assert by_angle[2:4] == [lines[3], lines[2]]
    bare = HeadScores(shown("L3H2").dataset.assign(generalized_ships_low=(("layer", "head"), np.full(SHAPE, np.nan))))
    assert "Generalized Ships 20 degrees<br>in_top" in safety_map(bare).data[0].text[0]


def test_a_panel_for_each_ablation_with_models_as_marks():
    figure = safety_grid(
        {
            "undifferentiated": {"<a>": shown("L3H2 L0H1", model="a"), "b": shown("L1H0", model="b")},
            "scaling": {"b": shown("L2H2", model="b"), "<a>": shown("L0H0", model="a")},
        }
    )
    assert [note.text for note in figure.layout.annotations] == ["Undifferentiated Attention", "Scaling Contribution"]
    drawn = [(trace.xaxis, trace.name, trace.marker.symbol, places(trace)) for trace in marks(figure)]
    assert drawn == [
        ("x", "&lt;a&gt;", "circle-open", ["L3H2", "L0H1"]),
        ("x", "b", "x-thin-open", ["L1H0"]),
        ("x2", "&lt;a&gt;", "circle-open", ["L0H0"]),
        ("x2", "b", "x-thin-open", ["L2H2"]),
    ]
    entries = [("&lt;a&gt;", "circle-open"), ("b", "x-thin-open")]
    assert [(one.legend, one.name, one.marker.symbol) for one in legends(figure)] == [
        (legend, *entry) for legend in ("legend", "legend2") for entry in entries
    ]
    assert {trace.legendgroup for trace in figure.data if trace.name == "b"} == {"b"}
    assert figure.layout.title.text == "Heads with the largest Ships"


@pytest.mark.parametrize("n", [2])
def test_legends_stand_at_the_upper_right_inside_each_panel_above_all_heads(n):
    names = ("a", "b", "c")
    layout = (figure := safety_grid({str(i): {m: shown("L3H2", model=m) for m in names} for i in range(n)})).layout
    height = layout.height - layout.margin.t - layout.margin.b
    for i in range(n):
        x, y, legend = (layout[f"{kind}{i + 1 if i else ''}"] for kind in ("xaxis", "yaxis", "legend"))
        assert (legend.xanchor, legend.yanchor) == ("right", "top")
        assert x.domain[1] - 0.02 < legend.x < x.domain[1] and y.domain[1] - 0.02 < legend.y < y.domain[1]
        pixels = (y.domain[1] - y.domain[0]) * height / (y.range[1] - y.range[0])
        entries = [trace for trace in legends(figure) if trace.xaxis == f"x{i + 1 if i else ''}"]
        assert [entry.name for entry in entries] == list(names)
        assert (y.range[1] - 2.5) * pixels > 20 * len(entries)
        assert max(y.tickvals) == 2 and y.title.text == "Head" and x.title.text == "Layer"


@pytest.mark.parametrize(
    ("n", "columns", "grid"),
    [
        (4, None, (2, 2)),
        (5, None, (2, 3)),
        (6, 2, (3, 2)),
        (5, 9, (2, 3)),
    ],
)
def test_panels_stand_in_rows(n: int, columns: int | None, grid: tuple[int, int]):
    layout = safety_grid({str(i): {"a": shown("L3H2")} for i in range(n)}, columns=columns).layout
    starts = [(layout[f"xaxis{i or ''}"].domain[0], layout[f"yaxis{i or ''}"].domain[0]) for i in (0, *range(2, n + 1))]
    assert (len({y for _, y in starts}), len({x for x, _ in starts})) == grid


def test_what_no_grid_can_hold():
    with pytest.raises(ValueError, match="panels must be"):
        safety_grid({})
    with pytest.raises(ValueError, match="panels must be"):
        safety_grid(shown("L0H0"))
    with pytest.raises(ValueError, match=r"panels\['demo'\] must be .*at least one series"):
        safety_grid({"demo": shown("L0H0")})
    with pytest.raises(ValueError, match=r"panels\['p'\]\['s'\] has no Generalized Ships to colour by"):
        safety_grid({"p": {"s": HeadScores.from_scores(np.ones(SHAPE), name="x", unit="nats", kind="ships")}})
    with pytest.raises(ValueError, match="there are 6 series, but only 5 markers"):
        safety_grid({"p": {str(i): shown("L0H0") for i in range(6)}})
    with pytest.raises(ValueError, match="columns is 0"):
        safety_grid({"p": {"s": shown("L0H0")}}, columns=0)
