"""The tables of an atlas: of each question the heads whose effect is large enough to name, and fixed warnings."""

from __future__ import annotations

from typing import Any

import numpy as np

import mechheads as mh
from mechheads.studies.answers import CARRIED, FEW, LARGEST, TOO_FEW, Question, card_rows
from mechheads.studies.atlas import Atlas

ASKED = {"pairs": "the capital", "requests": "harmful requests"}


def effects(n: int, means: dict[tuple[int, int], float], **metadata: Any) -> mh.HeadScores:
    """Effects of 4 x 5 heads in ``n`` prompts: noise of 0.001 about these means."""
    values = 0.001 * np.random.default_rng(0).normal(size=(4, 5, n))
    for (layer, head), mean in means.items():
        values[layer, head] += mean
    given: dict[str, Any] = {"name": "made", "unit": "share restored", "kind": "activation_patch"}
    return mh.HeadScores.from_values(values, **(given | metadata))


def asked(**parts: Any) -> Question:
    (question,) = Atlas("m", asked=ASKED, **parts).questions()
    return question


SIZES = {(1, 2): 0.7, (3, 1): -0.2, (0, 0): 0.06, (2, 2): 0.03, (2, 3): -0.04}


def test_rows_are_the_heads_beyond_the_smallest_effect_the_largest_first_of_both_signs():
    patching = effects(12, SIZES)
    question = asked(patching=patching)
    assert [row.head for row in question.rows] == ["L1H2", "L3H1", "L0H0"]
    first, row = question.rows[0], patching["L1H2"]
    assert (first.value, first.low, first.high, first.p) == tuple(
        row[name] for name in ("score", "ci_low", "ci_high", "p_family")
    )
    assert (first.measured, first.column, first.null, first.n) == ("Patching", "patching", 0.0, 12)
    assert (question.title, question.varies, question.view) == ("naming the capital", "12 pairs", "patching")
    assert question.warnings == ()
    (wider,) = Atlas("m", patching=patching).questions(at_least=0.02)
    assert [row.head for row in wider.rows] == ["L1H2", "L3H1", "L0H0", "L2H3", "L2H2"]
    assert question.top(4)["head"].tolist() == ["L1H2", "L3H1", "L0H0", "L2H3"]
    table = question.table()
    assert list(table)[:5] == ["head", "measured", "score", "ci_low", "ci_high"] and len(table) == 3


def test_measures_contradict_each_other_where_both_are_large_or_one_is_surely_small():
    one = {(0, 0): 0.7, (0, 1): 0.7, (0, 2): 0.7, (0, 3): 0.7, (1, 0): 0.03}
    other = {(0, 0): 0.6, (0, 1): -0.6, (0, 2): 0.02, (1, 0): -0.7}
    vague = effects(12, other).values.values.copy()
    vague[0, 3] = np.linspace(-1, 1, 12)  # its interval lies neither beyond nor within
    metadata: Any = {"name": "b", "unit": "share restored", "kind": "demo"}
    own = {"a": effects(12, one), "b": mh.HeadScores.from_values(vague, **metadata)}
    shared = {name: scores.with_provenance(prompts="x") for name, scores in own.items()}
    (question,) = Atlas("m", own=shared).questions()
    found = {row.head: (row.value > 0, against.value) for row, against in question.contradictions}
    assert set(found) == {"L1H0", "L0H1", "L0H2"}
    assert Atlas("m", own={"a": shared["a"]}).questions()[0].contradictions == []


def test_a_card_has_a_row_of_every_measure_and_equal_heads_share_a_rank():
    same = mh.HeadScores.from_scores(np.array([[0.0, 2.0, -2.0, 1.0]]), name="x", unit="nats", kind="demo")
    questions = Atlas("m", own={"mine": same}).questions()
    rows = [row for at in range(4) for _, row in card_rows(questions, at)]
    assert [(row.head, row.rank, row.of) for row in rows] == [
        ("L0H0", 4, 4),
        ("L0H1", 1, 4),
        ("L0H2", 1, 4),
        ("L0H3", 3, 4),
    ]


def test_a_wide_interval_names_no_head():
    values = 0.5 * np.random.default_rng(1).normal(size=(4, 5, 8))
    noise = mh.HeadScores.from_values(values, name="x", unit="share restored", kind="activation_patch")
    low, high = (noise.dataset[end].values.ravel() for end in ("ci_low", "ci_high"))
    expected = int(((low >= 0.05) | (high <= -0.05)).sum())
    assert len(asked(patching=noise).rows) == expected < 20


def test_without_an_interval_or_a_smallest_effect_the_ten_largest_are_listed_under_a_warning():
    for scores in (
        effects(12, SIZES, unit="of my own"),
        mh.HeadScores.from_scores(np.arange(20.0).reshape(4, 5), name="x", unit="nats", kind="demo"),
    ):
        question = asked(own={"mine": scores})
        assert question.warnings == (LARGEST,) and len(question.rows) == FEW
        sizes = [abs(row.value) for row in question.rows]
        assert sizes == sorted(sizes, reverse=True)
    assert [row.head for row in question.rows[:2]] == ["L3H4", "L3H3"]


def test_few_prompts_and_one_that_carries_a_head_are_told_in_fixed_words():
    assert TOO_FEW in asked(patching=effects(4, SIZES)).warnings
    values = 0.001 * np.random.default_rng(0).normal(size=(4, 5, 12))
    values[1, 2, 7] = 6.0
    values[0, 1] += 0.3
    carried = mh.HeadScores.from_values(values, name="x", unit="share restored", kind="activation_patch")
    notes = {row["head"]: row["note"] for row in asked(patching=carried).top(2).to_dict("records")}
    assert notes == {"L1H2": CARRIED, "L0H1": ""}


def test_ships_have_no_null_and_no_p():
    ships = effects(8, {(1, 2): 0.7, (0, 1): 0.05}, kind="safety", unit="nats")
    names = ["in_top", *(f"{name}{end}" for name in ("ships", "generalized_ships") for end in ("", "_low", "_high"))]
    data = ships.dataset.assign(dict.fromkeys(names, ships.dataset["score"]))
    metadata = {"k": 3, "score": "ships", "ablation": "scaling", "refused": {"n": 6, "of": 8, "judge": "rule_judge"}}
    safety = mh.safety.SafetyHeads(data).with_provenance(**metadata)
    question = asked(safety={"scaling": safety})
    assert [(row.head, row.unit) for row in question.rows] == [("L1H2", "nats")]
    assert question.tables["Requests refused"].to_dict("records") == [{"refused": 6, "of": 8}]
    assert "Requests refused" in str(question) and "Harmful requests (8 requests)" in str(question)


def test_heads_after_requests_are_ordered_by_the_contrast_with_look_alikes(monkeypatch):
    """Half as much again at least, and 0.1 nats after the requests or after the look-alikes."""
    means = {(1, 2): 1.2, (0, 1): -2.0, (2, 3): 3.0, (3, 3): 0.2}
    seen = {(1, 2): (0.3, 0.1), (0, 1): (0.05, 0.4), (2, 3): (0.02, 0.001), (3, 3): (9.0, 7.0)}
    harmful, harmless = np.zeros((4, 5)), np.zeros((4, 5))
    for at, (after, other) in seen.items():
        harmful[at], harmless[at] = after, other
    both = {"harmful": (("layer", "head"), harmful), "harmless": (("layer", "head"), harmless)}
    contrast = effects(8, means, kind="ships_contrast", unit="log ratio").assign(**both)
    monkeypatch.setattr(mh.safety.SafetyHeads, "contrast", property(lambda of: contrast))
    metadata = {"k": 3, "score": "ships", "ablation": "scaling", "refused": {"n": 6, "of": 8}}
    ships = effects(8, {(1, 2): 0.3, (3, 3): 9.0}, kind="safety", unit="nats", provenance=metadata)
    question = asked(safety={"scaling": mh.safety.SafetyHeads(ships.dataset)})
    rows = [(row.head, row.unit) for row in question.rows]
    assert rows == [("L0H1", "log ratio"), ("L1H2", "log ratio"), ("L3H3", "nats"), ("L1H2", "nats")]
    assert question.view == "ships_contrast_scaling" and question.varies == "8 pairs"
    first, known = question.rows[0], contrast["L0H1"]
    assert (first.value, first.low, first.p) == tuple(known[name] for name in ("score", "ci_low", "p_family"))
    assert question.tables["Requests refused"].to_dict("records") == [{"refused": 6, "of": 8}]


def test_weights_are_phi_of_each_relation_beside_its_null(loaded):
    labels = mh.label_heads(mh.relation_scores(loaded("llama"), ["country_to_capital"], k=2, min_pairs=1))
    data = labels.dataset.copy(deep=True)
    clear, near, wide, below = (0.7, 0.6, 0.8), (0.45, 0.42, 0.5), (0.9, 0.45, 1.0), (0.1, 0.05, 0.15)
    data["null_phi"][:] = 0.4
    for (layer, head), ends in {(1, 2): clear, (0, 1): near, (2, 3): wide, (0, 0): below}.items():
        for name, value in zip(("phi", "phi_low", "phi_high"), ends, strict=True):
            data[name][layer, head, 0] = value
    (question,) = Atlas("m", labels=mh.labels.HeadLabels(data)).questions()
    (row,) = question.rows
    assert (row.head, row.value, row.low, row.high, row.null) == ("L1H2", *clear, 0.4)
    assert (row.measured, row.unit) == ("phi of country_to_capital", "share of pairs")
    (question,) = Atlas("m", labels=labels).questions()
    assert np.isnan(labels.dataset["null_phi"].values).all()  # of so few pairs there is no null
    assert len(question.rows) == FEW and question.warnings == (LARGEST,)


def test_text_lists_the_heads_that_have_a_name_with_share_and_null(loaded):
    profile = mh.profile_heads(loaded("llama"), n_tokens=600)
    (question,) = Atlas("m", profile=profile).questions()
    for name in {row.measured for row in question.rows}:
        rows = [row for row in question.rows if row.measured == name]
        assert {row.head for row in rows} == {str(head) for head in profile.named(name)}
    for row in question.rows:
        assert np.isfinite(row.null)
