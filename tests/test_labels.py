"""Labels from relation scores by the paper's rule, and the category map."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads
from mechheads.labels.classify import HeadLabels, label_heads
from mechheads.labels.relations import Relation
from mechheads.plots.categories import category_map
from mechheads.scores import HeadScores

RELATIONS = {"capital": "Knowledge", "language": "Knowledge", "past": "Linguistic", "french": "Translation"}
PHI = np.array(
    [
        [[0.10, 0.20, 0.00, 0.00], [0.14, 0.00, 0.10, 0.00], [0.00, 0.00, 0.00, 0.50]],
        [[0.90, 0.20, 0.15, 0.00], [0.30, 0.00, 0.40, 0.20], [np.nan, np.nan, np.nan, np.nan]],
    ]
)
LEGEND = ["Unclassified", "Knowledge", "Translation", "2 categories", "3 categories"]
SUPPRESSION = np.zeros_like(PHI)
SUPPRESSION[0, 1, 1] = 0.80


def scored(relations: dict[str, str] = RELATIONS, phi: np.ndarray = PHI) -> HeadScores:
    return HeadScores.from_scores(
        phi,
        ci_low=phi - 0.05,
        ci_high=phi + 0.05,
        name="relation scores",
        unit="share of pairs",
        kind="relations",
        extra={"relation": list(relations)},
        provenance={"model": "toy"},
        variables={
            "suppression": (("layer", "head", "relation"), SUPPRESSION[: phi.shape[0], : phi.shape[1]]),
            "relation_category": ("relation", np.array(list(relations.values()), dtype=object)),
        },
    )


def test_by_hand() -> None:
    labels = label_heads(scored())
    assert labels.categories == ("Knowledge", "Linguistic", "Translation")
    assert labels.of("L0H0") == ("Knowledge",)
    assert labels.of("L0H1") == ()
    assert labels.of((0, 2)) == ("Translation",)
    assert labels.of("L1H0") == ("Knowledge", "Linguistic")  # 0.15 is enough
    assert labels.of("L1H1") == ("Knowledge", "Linguistic", "Translation")
    assert labels.of("L1H2") == ()
    assert [str(head) for head in labels.missing] == ["L1H2"]
    knowledge = labels.dataset.sel(category="Knowledge")
    assert knowledge["best_relation"].values.tolist() == [
        ["language", "capital", "capital"],
        ["capital", "capital", ""],
    ]
    assert knowledge["score"].values[0].tolist() == [0.20, 0.14, 0.0]
    assert knowledge["ci_high"].values[1, 0] == pytest.approx(0.95)
    assert not labels.dataset["suppresses"].any()
    assert labels.counts() == {
        "Knowledge": 3,
        "Linguistic": 2,
        "Translation": 2,
        "Unclassified": 1,
        "2 categories": 1,
        "3 categories": 1,
    }
    assert (labels.kind, labels.provenance["tau"]) == ("labels", 0.15)


def test_tau_moves_the_line() -> None:
    assert label_heads(scored(), tau=0.5).counts()["Unclassified"] == 3
    assert label_heads(scored(), tau=0.1).of("L0H1") == ("Knowledge", "Linguistic")


def test_suppression_counts_on_request() -> None:
    labels = label_heads(scored(), suppression=True)
    assert labels.of("L0H1") == ("Knowledge",)
    head = labels.dataset.sel(layer=0, head=1, category="Knowledge")
    assert (head["score"].item(), head["best_relation"].item()) == (0.8, "language")
    assert head["suppresses"].item()
    assert np.isnan(head["ci_low"].item())
    assert labels.of("L0H0") == label_heads(scored()).of("L0H0")


def test_a_category_of_ones_own() -> None:
    labels = label_heads(scored(RELATIONS | {"past": "Grammar"}))
    assert labels.categories == ("Knowledge", "Translation", "Grammar")
    assert labels.of("L1H0") == ("Knowledge", "Grammar")


def test_labels_survive_a_file(tmp_path: Path) -> None:
    labels = label_heads(scored())
    again = HeadLabels.load(labels.save(tmp_path / "labels.nc"))
    assert isinstance(again, HeadLabels)
    assert again.dataset.identical(labels.dataset)
    assert again.counts() == labels.counts()
    assert again.plot().to_json() == labels.plot().to_json()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: label_heads(scored(RELATIONS | {"past": ""})),
            "relation 'past' has no known category.*Knowledge",
        ),
        (lambda: label_heads(scored(), rule="best"), "rule is 'best'; there is \"maps\""),  # type: ignore[arg-type]
        (lambda: label_heads(scored(), tau=15), "tau is 15"),
        (lambda: label_heads(scored(), tau=0), "tau is 0"),
        (lambda: label_heads(scored(), ["capital"], k=5), "relations, k: scores are given"),
        (lambda: label_heads(label_heads(scored())), "says nothing about relations"),
        (lambda: label_heads(scored()).of("L2H0"), "out of range"),
        (lambda: category_map(scored()), "hold no categories"),
        (lambda: category_map({}), "labels is empty"),
        (lambda: category_map({"gpt2": scored()}), "the scores of 'gpt2'.*hold no categories"),
    ],
)
def test_what_cannot_be_labelled(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_relation_without_category_fails_before_the_model_is_read() -> None:
    with pytest.raises(ValueError, match="relation 'mine' has no known category"):
        label_heads(None, Relation("mine", None, [("a", "b")]))  # type: ignore[arg-type]


def test_labels_of_the_default_model(model: mechheads.Model) -> None:
    labels = label_heads(model, ["country_to_capital", "english_to_spanish"], progress=False)
    assert labels.of("L23H4") == ("Knowledge",)
    assert labels.counts()["Knowledge"] >= 3
    assert labels.dataset["best_relation"].sel(layer=23, head=4, category="Knowledge") == "country_to_capital"


def drawn(figure: Any) -> dict[str, np.ndarray]:
    """Which cells [head, layer] each name of the legend colours, in a figure of one panel."""
    return {t.name: ~np.isnan(np.array(t.z, dtype=float)) for t in figure.data if t.type == "heatmap"}


def legend(figure: Any) -> dict[str, str]:
    """The names in the legend and their colours."""
    return {trace.name: trace.marker.color for trace in figure.data if trace.showlegend is not False}


def hovers(labels: HeadLabels) -> dict[str, str]:
    """The hover text of every drawn head, by the name it begins with."""
    cells = [trace for trace in labels.plot().data if trace.type == "heatmap"]
    texts = [text for trace in cells for text in np.array(trace.text).ravel().tolist() if text]
    return {text[3:].split("<")[0]: text for text in texts}


def test_the_map_colours_every_head_once() -> None:
    figure = label_heads(scored()).plot()
    cells = drawn(figure)
    assert list(legend(figure)) == LEGEND
    assert set(legend(figure)) == set(cells)
    total = sum(cell.astype(int) for cell in cells.values())
    assert np.array_equal(total.T, [[1, 1, 1], [1, 1, 0]])
    assert cells["Knowledge"].T.tolist() == [[True, False, False], [False, False, False]]
    assert cells["3 categories"].T.tolist() == [[False, False, False], [False, True, False]]


def test_the_map_wears_the_papers_colours() -> None:
    figure = label_heads(scored()).plot()
    assert legend(figure)["Knowledge"] == "#ff7f0e"
    assert legend(figure)["Translation"] == "#d62728"
    cells = [trace for trace in figure.data if trace.type == "heatmap"]
    assert all(trace.colorscale[0][1] == legend(figure)[trace.name] for trace in cells)
    assert (figure.layout.xaxis.title.text, figure.layout.yaxis.title.text) == ("Layer", "Head")
    assert figure.layout.title.text == "toy"


def test_the_map_tells_each_heads_story_on_hover() -> None:
    text = hovers(label_heads(scored(), suppression=True))
    assert text["L1H0"] == (
        "<b>L1H0</b><br>Knowledge: capital, φ = 0.90 [0.85, 0.95]<br>Linguistic: past, φ = 0.15 [0.10, 0.20]"
    )
    assert text["L0H1"] == "<b>L0H1</b><br>Knowledge: suppresses language, φ = 0.80"
    assert hovers(label_heads(scored()))["L0H1"] == (
        "<b>L0H1</b> Unclassified<br>best Knowledge: capital, φ = 0.14 [0.09, 0.19]"
    )
    assert len(text) == 5


def test_several_models_share_one_legend() -> None:
    small = label_heads(scored(phi=PHI[:1, :2]))
    figure = category_map({"one <b>": label_heads(scored()), "two": small}, title="Heads & more")
    assert [note.text for note in figure.layout.annotations] == ["one &lt;b&gt;", "two"]
    assert figure.layout.title.text == "Heads &amp; more"
    assert list(legend(figure)) == LEGEND
    assert list(figure.layout.xaxis2.range) == [-0.5, 0.5]
    assert list(figure.layout.yaxis.range) == [-0.5, 2.5]


def test_a_class_that_only_a_later_panel_has_is_in_the_legend() -> None:
    figure = category_map({"quiet": label_heads(scored(), tau=0.6), "loud": label_heads(scored())})
    assert "3 categories" in legend(figure)


def test_names_in_the_map_are_escaped() -> None:
    labels = label_heads(scored({"<i>x": "A<b>", "y": "A<b>", "z": "B", "w": "C"}))
    figure = labels.plot()
    everything = str(figure.to_json())
    assert "A&lt;b&gt;" in legend(figure)
    assert "<i>x" not in everything.replace("\\u003c", "<")
