"""Labels from relation scores by the paper's rule, and the category map."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from mechheads.labels import CausalEvidence, HeadLabels, label_heads
from mechheads.plots.category_map import category_map
from mechheads.results.scores import HeadScores
from mechheads.results.stats import q_values

RELATIONS = {"capital": "Knowledge", "language": "Knowledge", "past": "Linguistic", "french": "Translation"}
PHI = np.array(
    [
        [[0.10, 0.20, 0.00, 0.00], [0.14, 0.00, 0.10, 0.00], [0.00, 0.00, 0.00, 0.50]],
        [[0.90, 0.20, 0.15, 0.00], [0.30, 0.00, 0.40, 0.20], [np.nan, np.nan, np.nan, np.nan]],
    ]
)
LEGEND = ["Unclassified", "Knowledge", "Translation", "Algorithmic (not tested)", "Linguistic"]
LEGEND += ["2 categories", "3 categories", "4 categories"]


def scored(relations: dict[str, str] = RELATIONS, phi: np.ndarray = PHI) -> HeadScores:
    of_heads = {"suppression": np.zeros_like(phi), "null_phi": np.full_like(phi, np.nan), "contrast": phi}
    of_heads["reading"] = np.full(phi.shape, "", dtype=object)
    return HeadScores.from_scores(
        phi,
        interval=(phi - 0.05, phi + 0.05),
        name="relation scores",
        unit="share of pairs",
        kind="relations",
        extra={"relation": list(relations)},
        provenance={"model": "toy"},
    ).assign(
        **{name: (("layer", "head", "relation"), values) for name, values in of_heads.items()},
        n_pairs=("relation", [30] * len(relations)),
        relation_category=("relation", np.array(list(relations.values()), dtype=object)),
    )


def maps(scores: HeadScores, *args: Any, **options: Any) -> HeadLabels:
    return label_heads(scores, *args, rule="maps", **options)


def test_by_hand() -> None:
    labels = maps(scored())
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
    assert labels.counts() == {
        "Knowledge": 3,
        "Linguistic": 2,
        "Translation": 2,
        "Unclassified": 1,
        "2 categories": 1,
        "3 categories": 1,
    }
    assert (labels.kind, labels.provenance["tau"]) == ("labels", 0.15)
    assert labels.counts(once=True) == {
        "Knowledge": 1,
        "Linguistic": 0,
        "Translation": 1,
        "Unclassified": 1,
        "2 categories": 1,
        "3 categories": 1,
    }
    assert maps(scored(), tau=0.5).counts()["Unclassified"] == 3


P = np.full_like(PHI, 1.0)
P[1, 0] = [1e-6, 0.03, 1e-6, 1.0]
P[0, 0, 1] = 1e-6
NULL = np.zeros_like(PHI)
NULL[1, 0, 2] = 0.12


def with_null() -> HeadScores:
    """As ``scored``, with p, q and the mean of the null; 12 heads and relations are counted as tests, 8 as missing."""
    base = scored()
    dims = ("layer", "head", "relation")
    arrays = {"p_value": P, "q_value": q_values(P), "null_phi": NULL}
    return HeadScores(base.dataset.assign({name: (dims, array) for name, array in arrays.items()}))


def test_evidence_below_the_floor_is_listed_and_gives_no_label() -> None:
    labels = label_heads(with_null())  # at a floor of 0.1
    assert labels.of("L1H0") == ("Knowledge",)  # past is sure, but 0.15 is above its null by 0.03 only
    assert labels.counts()["Linguistic"] == 0
    assert labels.counts()["2 categories"] == 0
    rows = labels.table("L1H0").set_index("relation")
    assert rows["is_below_floor"].to_dict() == {"capital": False, "language": False, "past": True, "french": False}
    assert not rows.loc["past", "is_evidence"]
    assert set(rows["label"]) == {"Knowledge"}
    assert drawn(labels.plot())["Knowledge"].T.tolist() == [[True, False, False], [True, False, False]]
    assert hovers(labels)["L1H0"] == (
        "<b>L1H0</b><br>Knowledge: capital, φ = 0.90 [0.85, 0.95], q = 8e-06<br>"
        "below the floor: Linguistic: past, φ = 0.15 [0.10, 0.20], q = 8e-06"
    )
    high = label_heads(with_null(), floor=0.5)
    assert hovers(high)["L0H0"].startswith("<b>L0H0</b> Unclassified<br>below the floor: Knowledge: language, φ = 0.20")


def test_the_best_of_a_category_is_what_is_above_chance() -> None:
    phi, p = PHI.copy(), P.copy()
    phi[0, 0, :2], p[0, 0, :2] = [0.30, 0.08], [0.6, 1e-9]  # capital is larger, but chance explains it
    base = with_null().dataset
    dims = ("layer", "head", "relation")
    labels = label_heads(HeadScores(base.assign(score=(dims, phi), p_value=(dims, p), q_value=(dims, q_values(p)))))
    assert labels.of("L0H0") == ()
    best = labels.dataset.sel(layer=0, head=0, category="Knowledge")
    assert (best["best_relation"].item(), best["below_floor"].item()) == ("language", True)


def test_above_the_null_and_the_floor() -> None:
    labels = label_heads(with_null(), floor=0.05)
    assert labels.of("L0H0") == ("Knowledge",)  # language, 0.2
    assert labels.of("L1H0") == ("Knowledge",)  # capital; past is 0.15, of which 0.12 is the null's
    assert labels.of("L1H1") == ()  # phi 0.4 without a small p
    assert label_heads(with_null(), floor=0.02).of("L1H0") == ("Knowledge", "Linguistic")
    best = labels.dataset.sel(layer=0, head=0, category="Knowledge")
    assert (best["best_relation"].item(), best["score"].item()) == ("language", 0.20)
    assert best["q_value"].item() == pytest.approx(q_values(P)[0, 0, 1])
    assert (labels.provenance["rule"], labels.provenance["fdr"], labels.provenance["floor"]) == ("null", 0.05, 0.05)


def effects(score: np.ndarray, p: np.ndarray) -> HeadScores:
    return HeadScores.from_scores(
        score,
        interval=(score - 0.1, score + 0.1),
        p_value=p,
        name="effect",
        unit="share",
        kind="causal",
        extra={"relation": ["capital", "past"]},
    )


def test_causal_evidence_gives_verdicts_and_changes_no_label() -> None:
    total, p = np.zeros((2, 3, 2)), np.ones((2, 3, 2))
    total[1, 0], p[1, 0] = [0.4, 0.0], [1e-5, 1.0]  # L1H0 moves capitals
    total[1, 1], p[1, 1] = [0.0, 0.3], [1.0, 1e-5]  # L1H1 moves the past tense
    total[0, 2], p[0, 2] = [0.01, 0.0], [1e-5, 1.0]  # too little
    total[0, 0], p[0, 0] = [0.4, 0.0], [1e-5, 1.0]  # L0H0 moves capitals; its weights speak of languages, not patched
    direct = effects(np.zeros_like(total), np.ones_like(p))
    evidence = CausalEvidence(effects(total, p), direct, {})
    plain, labels = label_heads(with_null(), floor=0.02), label_heads(with_null(), floor=0.02, causal=evidence)
    assert np.array_equal(plain.dataset["member"], labels.dataset["member"])
    verdict = {
        (h, c): labels.dataset["verdict"].sel(layer=int(h[1]), head=int(h[3]), category=c).item()
        for h in ("L0H0", "L0H2", "L1H0", "L1H1")
        for c in labels.categories
    }
    assert {where: what for where, what in verdict.items() if what} == {
        ("L1H0", "Knowledge"): "confirmed",
        ("L1H0", "Linguistic"): "weights only",
        ("L1H1", "Linguistic"): "in context only",
    }
    elsewhere = with_null().dataset.assign_coords(relation=["other", "capital", "past", "french"])
    verdicts = label_heads(HeadScores(elsewhere), floor=0.02, causal=evidence).dataset["verdict"]
    # now its weights speak of capitals, which were patched, and L1H0's of something else
    assert verdicts.sel(layer=[0, 1], head=0, category="Knowledge").values.tolist() == ["confirmed", ""]
    table = labels.table("L1H0")
    assert table["relation"].tolist() == ["capital", "past", "language", "french"]  # evidence first
    assert table["phi"].tolist() == [0.90, 0.15, 0.20, 0.00]
    assert table["total"].iloc[0] == 0.4
    assert table["total_low"].iloc[0] == pytest.approx(0.3)
    assert np.isnan(table["total"].iloc[2])  # languages were not patched
    assert table["verdict"].tolist() == ["confirmed", "weights only", "confirmed", ""]
    assert table["relation_verdict"].tolist() == ["confirmed", "weights only", "", ""]
    assert table["is_evidence"].tolist() == [True, True, False, False]
    assert table["is_best"].tolist() == [True, True, False, True]
    assert set(table["label"]) == {"Knowledge; Linguistic"}
    assert len(labels.table()) == 24
    assert "total" not in plain.table().columns


def test_scores_without_a_null_or_tested_too_high_are_refused() -> None:
    with pytest.raises(ValueError, match="were not tested against a null"):
        label_heads(scored())
    with pytest.raises(ValueError, match=r"scores below 0\.2 were not tested"):
        label_heads(with_null().with_provenance(min_effect=0.2))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: label_heads(scored(), rule="best"), "rule is 'best'; choose"),  # type: ignore[arg-type]
        (lambda: maps(scored(), tau=15), "tau is 15"),
        (lambda: label_heads(scored(), ["capital"], heads="L0H0"), "relations, heads: cannot be used with scores"),
        (lambda: label_heads(maps(scored())), "holds no relations; give a model"),
        (lambda: category_map(scored()), "hold no categories"),
        (lambda: category_map({"gpt2": scored()}), "the scores of 'gpt2'.*hold no categories"),
    ],
)
def test_what_cannot_be_labelled(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_a_relation_without_a_category_labels_heads_with_its_name() -> None:
    said = "no category, the label is the relation: past"
    with pytest.warns(UserWarning, match=said):
        labels = maps(scored(RELATIONS | {"past": ""}))
    assert labels.categories == ("Knowledge", "Translation", "past")
    assert labels.of("L1H0") == ("Knowledge", "past") and said in labels.provenance["limits"][0]


def test_few_pairs_give_no_label_and_say_so() -> None:
    scores = scored()
    few = HeadScores(scores.dataset.assign(n_pairs=("relation", [29, 29, 40, 50])))
    with pytest.warns(UserWarning, match=r"too few pairs for a label \(min_pairs=30\): (capital|language) 29"):
        labels = maps(few)
    whole = maps(scores)
    assert whole.of("L0H0") == ("Knowledge",) and labels.of("L0H0") == ()
    row = labels.table("L0H0").iloc[0]
    assert row["relation"] == "language" and row["is_below_floor"] and not row["is_evidence"]
    assert labels.of("L1H1") == ("Linguistic", "Translation")
    allowed = few.with_provenance(min_pairs=29)
    assert maps(allowed).of("L0H0") == ("Knowledge",)


def drawn(figure: Any) -> dict[str, np.ndarray]:
    """Which cells [head, layer] each name of the legend colours, in a figure of one panel."""
    return {t.name: ~np.isnan(np.array(t.z, dtype=float)) for t in figure.data if t.type == "heatmap"}


def legend(figure: Any) -> dict[str, str]:
    """The names in the legend, without numbers, and their colours."""
    shown = [trace for trace in figure.data if trace.showlegend is not False]
    return {re.sub(r" \d+$", "", trace.name): trace.marker.color for trace in shown}


def hovers(labels: HeadLabels) -> dict[str, str]:
    """The hover text of every drawn head, by the name it begins with."""
    cells = [trace for trace in labels.plot().data if trace.type == "heatmap"]
    texts = [text for trace in cells for text in np.array(trace.text).ravel().tolist() if text]
    return {text[3:].split("<")[0]: text for text in texts}


def test_the_map_colours_every_head_once() -> None:
    figure = maps(scored()).plot()
    cells = drawn(figure)
    assert list(legend(figure)) == LEGEND
    assert {*cells} == {"Unclassified", "Knowledge", "Translation", "2 categories", "3 categories"}
    assert {name: int(cell.sum()) for name, cell in cells.items()} == {
        name: n for name, n in maps(scored()).counts(once=True).items() if n
    }
    names = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert names == [
        *("Unclassified 1", "Knowledge 1", "Translation 1", "Algorithmic (not tested)", "Linguistic 0"),
        *("2 categories 1", "3 categories 1", "4 categories 0"),
    ]
    total = sum(cell.astype(int) for cell in cells.values())
    assert np.array_equal(total.T, [[1, 1, 1], [1, 1, 0]])
    assert cells["Knowledge"].T.tolist() == [[True, False, False], [False, False, False]]
    assert cells["3 categories"].T.tolist() == [[False, False, False], [False, True, False]]
