"""Safety heads by Refusal Contribution and Refusal attribution: their scores, with both Ships of the same requests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mechheads as mh
import mechheads.safety.heads.ships
import mechheads.safety.requests
from mechheads.interventions.basic import InterventionName
from mechheads.results.agreement import in_top
from mechheads.results.dataset import STATISTICS
from mechheads.safety import (
    generalized_ships,
    refusal_attribution,
    refusal_contribution,
    request_prompts,
    safety_heads,
    ships,
)
from mechheads.safety.heads.ablations import PAPER_KINDS
from support.levels import few

ARCHITECTURES = few(("gpt2", "llama", "gemma"), "llama")

pytestmark = [
    pytest.mark.usefixtures("brief_answers"),
    pytest.mark.filterwarnings("ignore:.*a mean probability of:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*refuses none of:UserWarning"),
]

HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes", " Rome is big"]
HARMLESS = [" no", " When Mary went to the store John gave a book", " three cat", " Rome is"]


def check(found: mh.safety.SafetyHeads, alone: mh.HeadScores, model: mh.Model, told: list[Any], **options: Any) -> None:
    """The ranking is that of the score alone, and both Ships of the same prompts come with it."""
    for name in alone.dataset.data_vars:
        np.testing.assert_array_equal(found.dataset[name], alone.dataset[name])
    _, kind, template, k = told
    np.testing.assert_array_equal(found.dataset["in_top"], in_top(alone, k))
    prompts = request_prompts(model, HARMFUL, template)
    for name, expected in {
        "ships": ships(model, prompts, intervention=kind, **options),
        "generalized_ships": generalized_ships(model, prompts, intervention=kind, **options),
    }.items():
        for ours, theirs in {name: "score", f"{name}_low": "ci_low", f"{name}_high": "ci_high"}.items():
            np.testing.assert_allclose(found.dataset[ours], expected.dataset[theirs], rtol=1e-6, atol=1e-9)
    assert [found.provenance[name] for name in ("score", "ablation", "template", "k", "interrupted")] == [*told, False]
    assert found.heads() == alone.heads(k)


@pytest.mark.parametrize("ablation", few([None, "undifferentiated"], None))
def test_contribution_ranks_and_ships_of_the_same_prompts_come_with_it(
    small: mh.Model, ablation: InterventionName | None
):
    kind: InterventionName = ablation or "scaling"
    template = "chat" if small.chat_template else "query"
    found = safety_heads(small, HARMFUL, 3, harmless=HARMLESS, intervention=ablation)
    alone = refusal_contribution(small, HARMFUL, HARMLESS, intervention=kind)
    check(found, alone, small, ["refusal_contribution", kind, template, 3])
    lines = mh.plots.safety_map(found).data[0].text[0].split("<br>")[2:6]
    told = ("Refusal Contribution ", "Ships ", "Generalized Ships ", "Ships against look-alikes ")
    assert all(map(str.startswith, lines, told))


@pytest.mark.parametrize("kind", few(PAPER_KINDS, "scaling"))
def test_refusal_attribution_with_both_ships(llama: mh.Model, kind: InterventionName):
    options: dict[str, Any] = {"heads": ["L0H1", "L1H2", "L2H3"]}
    found = safety_heads(llama, HARMFUL, 2, score="refusal_attribution", intervention=kind, **options)
    alone = refusal_attribution(llama, HARMFUL, **options)
    check(found, alone, llama, ["refusal_attribution", kind, "chat", 2], **options)
    every = refusal_attribution(llama, HARMFUL)
    known = np.isfinite(alone.scores.values)
    assert known.sum() == 3
    np.testing.assert_allclose(alone.scores.values[known], every.scores.values[known], rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("score", ["ships", "generalized_ships", "ships_contrast", "refusal_attribution"])
def test_the_contrast_with_look_alikes_stands_beside_every_score(llama: mh.Model, score: Any):
    options: dict[str, Any] = {"template": "bare", "intervention": "scaling"}
    prompts = mh.Prompts(HARMFUL, cluster=["a", "b", "c", "c"])
    found = safety_heads(llama, prompts, 2, harmless=HARMLESS, score=score, **options)
    alone = ships(llama, prompts, harmless=HARMLESS, **options)
    assert found.contrast is not None and (found.contrast.unit, found.contrast.kind) == ("log ratio", "ships_contrast")
    for name in (*STATISTICS, "values", "cluster", "harmful", "harmless"):
        np.testing.assert_array_equal(found.contrast.dataset[name], alone.dataset[name])
    table, ranked = found.to_dataframe(), alone if score == "ships_contrast" else found
    np.testing.assert_array_equal(table["ships_contrast"], alone.scores.values.ravel())
    np.testing.assert_array_equal(table["ships_contrast_p_family"], alone.dataset["p_family"].values.ravel())
    assert found.heads() == ranked.heads(2)
    assert mh.plots.safety_map(found).layout.title.text is not None
    assert safety_heads(llama, prompts, 2, score="ships", heads="L0H1", **options).contrast is None


def test_the_default_score_uses_what_is_given(llama: mh.Model, monkeypatch: pytest.MonkeyPatch):
    sets = {"harmful": HARMFUL, "harmless": HARMLESS}  # the package's requests are too long for a tiny model
    monkeypatch.setattr(mechheads.safety.requests, "load_requests", lambda name="harmful": sets[name])
    options: dict[str, Any] = {"heads": ["L0H1", "L2H3"]}
    package = safety_heads(llama, **options)
    assert (package.provenance["score"], package.provenance["ablation"]) == ("refusal_attribution", "scaling")
    assert package.contrast is not None and package.contrast.values is not None
    theirs = ships(llama, HARMFUL, harmless=HARMLESS, intervention="scaling", template="chat", **options)
    np.testing.assert_allclose(package.contrast.values, theirs.values, atol=1e-5)
    with_look_alikes = safety_heads(llama, HARMFUL, harmless=HARMLESS, **options)
    assert with_look_alikes.provenance["score"] == "refusal_contribution"
    without = safety_heads(llama, HARMFUL, **options)
    assert without.provenance["score"] == "ships"
    assert without.provenance["template"] == "query"
    paper = safety_heads(llama, score="ships", **options)
    assert (paper.provenance["ablation"], paper.provenance["template"]) == ("undifferentiated", "query")
    np.testing.assert_array_equal(paper.scores, ships(llama, **options).scores)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"score": "refusal_contribution"}, "harmless is missing"),
        ({"score": "ships", "harmless": HARMLESS[:2]}, "give a look-alike for each request"),
    ],
)
def test_bad_input(llama: mh.Model, options: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        safety_heads(llama, HARMFUL, **options)
