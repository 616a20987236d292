"""The sentences at the top of an atlas claim what the results carry, and no more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.gating import ROLES, Roles
from mechheads.results.curves import Curves
from mechheads.safety import SafetyHeads
from mechheads.studies.atlas import Atlas
from mechheads.studies.findings import of_circuit, of_own

ASKED = {"pairs": "the capital", "task": "naming the capital", "requests": "harmful requests"}
HOSTILE = '<img src=x onerror="alert(1)">\n\x1b[31m\u202e'


def effects(n: int, *, large: float = 0.0, other: float = 0.0, **about: Any) -> mh.HeadScores:
    """Effects of 4 x 5 heads in ``n`` prompts: noise, and ``large`` in L1H2, ``other`` in L3H1."""
    values = 0.02 * np.random.default_rng(0).normal(size=(4, 5, n))
    values[1, 2] += large
    values[3, 1] += other
    given: dict[str, Any] = {"name": "made", "unit": "share restored", "kind": "activation_patch"}
    return mh.HeadScores.from_values(values, **(given | about))


def said(atlas: Atlas) -> list[str]:
    return [finding.text for finding in atlas.findings()]


def test_patching_names_the_heads_whose_interval_and_family_p_say_so():
    patching = effects(12, large=0.7, other=-0.2)
    first, rest = Atlas("m", patching=patching, asked=ASKED).findings()
    row = patching["L1H2"]
    assert row["p_family"] <= 0.05 and row["ci_low"] > 0
    assert first.text.startswith("Patched for the capital, L1H2 restores 7")
    assert "; L3H1 goes the other way, -2" in first.text
    data = patching.dataset
    clear = (data["p_family"] <= 0.05) & ((data["ci_low"] > 0) | (data["ci_high"] < 0))
    assert f"{int(clear.sum())} of 20 heads differ from 0 (family p at most 0.05, 12 pairs)." in first.text
    assert first.link["filter"].startswith("patching_p_family <= 0.05")
    assert (first.link["head"], first.link["pane"], first.link["colour"]) == ("L1H2", "cause", "patching")
    assert rest.text == "Nothing else was measured."


@pytest.mark.parametrize(
    ("refused", "told"),
    [
        (
            {"n": 6, "of": 8, "judge": "rule_judge"},
            "The model refused 6 of 8 (75% [41%, 93%], judged by rules that agree with labels on 0.75 to 0.91 of "
            "refusals (small models) or 0.80 to 1.00 (chat models)).",
        ),
        (
            {"n": 0, "of": 8, "same": 7, "judge": "mine"},
            "The model refused none of 8 and gave the same answer to 7 (0% [0%, 32%], judged by mine), so this says "
            "nothing about refusals.",
        ),
        (None, "Whether the model refuses was not judged."),
    ],
)
def test_ships_say_how_many_requests_the_model_refuses(refused, told):
    data = effects(8, large=0.7, kind="safety", unit="nats").dataset
    columns = ["in_top", *(f"{name}{end}" for name in ("ships", "generalized_ships") for end in ("", "_low", "_high"))]
    scores = SafetyHeads(data.assign(dict.fromkeys(columns, data["score"])))
    scores = scores.with_provenance(k=3, score="ships", **({} if refused is None else {"refused": refused}))
    text = said(Atlas("m", safety={"scaling": scores}, asked=ASKED))[0]
    assert text.startswith(
        "After harmful requests, the next token changes most if L1H2 writes almost nothing (0.697 nats ["
    )
    assert text.endswith(f"]) (8 requests). {told}")


def test_a_head_that_one_prompt_carries_is_told_with_its_prompt():
    values = 0.001 * np.random.default_rng(0).normal(size=(4, 5, 12))
    values[1, 2, 7] = 6.0
    patching = mh.HeadScores.from_values(values, name="made", unit="share restored", kind="activation_patch")
    pairs = [{"clean": f"prompt {at}", "corrupted": "", "answer": "", "wrong": ""} for at in range(12)]
    assert '; one pair carries L1H2: "prompt 7" (' in said(Atlas("m", patching=patching, pairs=pairs))[0]
    assert "; one pair carries L1H2: number 8 (" in said(Atlas("m", own={"mine": patching}))[0]
    assert "carries L" not in said(Atlas("m", patching=effects(12, large=0.7), pairs=pairs))[0]


def test_nothing_found_is_said():
    atlas = Atlas("m", patching=effects(12), asked=ASKED)
    text, _ = said(atlas)
    assert text.startswith("Patched for the capital, none of 20 heads can be told from 0; at most, L")
    assert "(family p " in text and text.endswith(", 12 pairs).")
    assert "filter" not in atlas.findings()[0].link


def test_six_prompts_are_enough_for_one_head():
    patching = effects(6, large=0.7)
    assert (patching.dataset["q_value"] > 0.1).all()
    text = said(Atlas("m", patching=patching, asked=ASKED))[0]
    assert text.startswith("Patched for the capital, L1H2 restores 7")
    assert text.endswith("1 of 20 heads differs from 0 (family p at most 0.05, 6 pairs).")


def test_a_head_that_only_its_own_interval_sets_apart_is_no_finding():
    values = np.random.default_rng(0).normal(size=(4, 5, 8))
    patching = mh.HeadScores.from_values(values, name="made", unit="share restored", kind="activation_patch")
    alone = (patching.dataset["ci_low"] > 0) | (patching.dataset["ci_high"] < 0)
    assert alone.any()
    text = said(Atlas("m", patching=patching, asked=ASKED))[0]
    assert "the furthest from 0 of 20 heads; 8 pairs do not tell it from chance among so many (family p 0." in text


@pytest.mark.parametrize(
    ("scores", "why"),
    [
        (
            effects(1, large=0.7),
            "of the logit difference, the largest of 20 heads (1 pair; 6 or more would allow a test",
        ),
        (effects(2, large=0.7), "(range of two clusters "),
        (effects(2, large=0.7), "2 pairs; 6 or more would allow a test over heads)"),
        (effects(4, large=0.7), "4 pairs; 6 or more would allow a test over heads"),
        (
            effects(8, large=0.7, cluster=list("aabbccdd")),
            "8 pairs in 4 clusters; 6 or more would allow a test over heads",
        ),
    ],
)
def test_too_few_prompts_give_the_largest_value_and_no_more(scores, why):
    text = said(Atlas("m", patching=scores))[0]
    assert why in text and "differ" not in text.replace("logit difference", "")
    assert text.startswith("Patched for the answer, L1H2 restores ")


def test_partial_results_say_of_how_many_heads_they_are():
    values = np.full((4, 5, 12), np.nan)
    values[:2] = 0.001 * np.random.default_rng(0).normal(size=(2, 5, 12))
    scores = mh.HeadScores.from_values(values, name="made", unit="share restored", kind="activation_patch")
    text, rest = said(Atlas("m", patching=scores, interrupted=True))
    assert "none of the 10 of 20 heads that were reached can be told from 0" in text
    assert rest == "The work was interrupted. Nothing else was measured."
    nothing = mh.HeadScores.from_values(np.full((2, 2, 6), np.nan), name="made", unit="", kind="activation_patch")
    assert said(Atlas("m", patching=nothing))[0] == "Patched for the answer, no head was reached."


def test_own_scores_come_first_and_stay_text():
    own = {
        HOSTILE: effects(12, large=2.0, unit="logits", kind="demo"),
        "no test": effects(12, large=2.0, unit="nats", kind="demo", null=None),
        "plain": mh.HeadScores.from_scores(np.eye(5)[:4], name="made", unit="", kind="demo"),
        "fourth": effects(12),
    }
    atlas = Atlas("m", own=own, patching=effects(12, large=0.7))
    first, second, third, fourth, *_ = atlas.findings()
    assert first.text.startswith('In "<img src=x onerror="alert(1)"> \ufffd[31m\ufffd", L1H2 has 2.0')
    assert all(letter.isprintable() for finding in atlas.findings() for letter in finding.text)
    assert second.text.startswith('In "no test", L1H2 has 2.0') and "not tested against 0, 12 prompts" in second.text
    assert third.text.startswith('In "plain", L0H0 has 1.0, the largest of 20 heads, as do 3 others (nothing says')
    assert fourth.text.startswith("Patched for") and third.link["colour"] == "plain"
    assert "&lt;img" in atlas._repr_html_() and "<img" not in atlas._repr_html_()
    assert "\x1b" not in str(atlas) and "\x1b" not in atlas.summary()


def test_another_level_is_named():
    assert "12 pairs, intervals of 80%" in said(Atlas("m", patching=effects(12, level=0.8)))[0]


def test_roles_need_every_start():
    gates = np.full((4, 5, 3), 0.2)
    gates[1, 2], gates[3, 1] = 0.9, [0.9, 0.9, 0.4]
    low = np.full((4, 5, 3), 0.2)
    scores = {
        role: mh.HeadScores.from_values(gates if role == "facilitation" else low, name=role, unit="gate", kind="roles")
        for role in ROLES
    }
    text, rest = said(Atlas("m", roles=Roles(scores), asked=ASKED))[0], said(Atlas("m", roles=Roles(scores)))[-1]
    assert text == (
        "By fitted gates, naming the capital needs L1H2 in all 3 starts; 0 heads hinder it, 0 do not matter (of 20 "
        "heads; a gate of at least 0.5)."
    )
    assert rest == "Nothing else was measured."
    none = Roles(scores | {"facilitation": scores["interference"]})
    assert "the task needs none of 20 heads in all 3 starts" in said(Atlas("m", roles=none))[0]


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ([0.5, 0.95, 1.0], "the first 2 heads by patching keep 95% of the logit difference, L0H1 alone 50%"),
        ([0.92, 0.95, 1.0], "L0H1 alone keeps 92% of the logit difference (the 3 pairs that ranked it)."),
        ([0.1, 0.2, 0.3], "even the first 4 heads by patching keep only 30% of the logit difference, L0H1 alone 10%"),
    ],
)
def test_a_circuit_is_the_first_that_keeps_nine_tenths(kept, text):
    rows = [{"which": "heads", "k": k, "score": score} for k, score in zip((1, 2, 4), kept, strict=True)]
    table = pd.DataFrame(rows).assign(ci_low=np.nan, ci_high=np.nan)
    heads = tuple(mh.HeadId(0, head) for head in (1, 2, 3, 4))
    curve = Curves("circuit", "logit_diff", table, {"heads": heads}, np.zeros((3, 3)), {}, {})
    finding = of_circuit(curve, "the capital")
    assert finding is not None and f"With all others patched for the capital, {text}" in finding.text
    assert finding.link["section"] == "circuits"


def test_a_circuit_with_a_wide_interval_settles_nothing():
    table = pd.DataFrame(
        {"which": "heads", "k": [1, 2], "score": [0.5, 1.0], "ci_low": [-0.2, 0.1], "ci_high": [1.0, 1.9]}
    )
    curve = Curves(
        "circuit", "logit_diff", table, {"heads": (mh.HeadId(0, 1), mh.HeadId(0, 2))}, np.zeros((2, 4)), {}, {}
    )
    finding = of_circuit(curve, "the capital")
    assert finding is not None
    assert "how few heads keep the logit difference is not settled: the first 2 heads by patching keep" in finding.text


def test_an_atlas_without_results_says_nothing():
    atlas = Atlas("nothing")
    assert atlas.findings() == [] and " ".join(str(atlas).split()) == repr(atlas)


def test_the_answer_comes_first_in_text_and_summary():
    atlas = Atlas("m", patching=effects(12, large=0.7), asked=ASKED)
    sentence = said(atlas)[0]
    for text in (str(atlas), atlas.summary()):
        lines = text.split("\n")
        assert lines[1] == "Naming the capital"
        assert lines[2].startswith("- Patched for the capital, L1H2")
        assert sentence in " ".join(line.strip().removeprefix("- ") for line in lines)
    assert repr(atlas).startswith("<Atlas of m, 4 x 5 heads: patching.")
    assert atlas._repr_html_().count("<li>") == 1


def test_heads_that_share_the_largest_value_are_counted():
    def told(values: Any) -> str:
        scores = mh.HeadScores.from_scores(np.asarray(values, float), name="x", kind="demo")
        return of_own("mine", scores, "mine").text

    assert told([[0, 0], [0, 0]]) == 'In "mine", each of 4 heads has 0 (nothing says how sure that is).'
    assert told([[1, 0], [0, 0]]) == 'In "mine", L0H0 has 1.0, the largest of 4 heads (nothing says how sure that is).'
    assert "L0H1 has 1.0, the largest of 4 heads, as does 1 other (" in told([[0, 1], [1, 0]])
    assert "L0H1 has 1.0, the largest of 4 heads, as do 2 others (" in told([[0, 1], [1, 1]])
    assert "L1H0 has 2.0, the largest of the 2 of 4 heads whose value is finite (" in told([[np.inf, 1], [2, -np.inf]])


def test_of_many_labels_the_one_where_a_head_is_furthest_is_told_first():
    values = np.zeros((2, 2, 3))
    values[1, 0] = [0.1, 3.0, -0.5]
    own = {
        "mine": mh.HeadScores.from_scores(values, name="x", kind="demo", extra={"pos": ["a", "b", "c"]}),
        "theirs": mh.HeadScores.from_scores(np.eye(2) * 0.2, name="x", kind="demo"),
    }
    told = [text.partition(" (")[0] for text in said(Atlas("m", own=own))]
    assert told[:3] == [
        'In "mine, pos b", L1H0 has 3.0, the largest of 4 heads',
        'In "mine, pos c", L1H0 has -0.50, the furthest from 0 of 4 heads',
        'In "theirs", L0H0 has 0.20, the largest of 4 heads, as does 1 other',
    ]
