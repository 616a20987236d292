"""What people type first: names, pairs where prompts go, receivers without a path."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mechheads as mh
from mechheads.gating.tasks import load_task
from mechheads.generation.generate import generate
from mechheads.labels import Relation
from mechheads.metrics import METRICS, MetricInfo
from mechheads.safety import load_requests

CLEAN, CORRUPTED = [" The capital of France is", " The capital of Spain is"], [" The capital of Italy is"] * 2


@pytest.fixture(scope="module")
def pairs() -> mh.PromptPairs:
    return mh.PromptPairs(CLEAN, CORRUPTED, answer=[" Paris", " Madrid"], wrong=[" Rome", " Rome"])


def said(function, *args, **given) -> str:
    with pytest.raises(ValueError) as caught:
        function(*args, **given)
    return str(caught.value)


# -- metrics by name --------------------------------------------------------------------------------------

MEASURES = {
    "sweep": lambda m, p, **k: mh.sweep(m, p, intervention=mh.Patch(), heads="L1H0", **k).values,
    "activation_patch": lambda m, p, **k: mh.activation_patch(m, p, heads="L1H0", **k).values,
    "attribution_patch": lambda m, p, **k: mh.patching.attribution_patch(m, p, heads="L1H0", **k).values,
    "ablate": lambda m, p, **k: mh.ablate(m, p, heads="L1H0", **k).values,
    "path_patch": lambda m, p, **k: mh.path_patch(m, p, senders="L1H0", **k).values,
    "path_matrix": lambda m, p, **k: mh.path_matrix(m, p, senders="L1H0", receivers=["final", "L2H0.q"], **k).values,
    "patch_sets": lambda m, p, **k: mh.patching.patch_sets(m, p, [["L1H0"]], **k).values,
    "faithfulness": lambda m, p, **k: mh.patching.faithfulness(m, p, ["L1H0"], **k).score,
    "plan": lambda m, p, **k: mh.plan(m, p, intervention=mh.Patch(), heads="L1H0", **k).flops,
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_metric_may_be_named(small, pairs, name):
    named, given = (np.asarray(MEASURES[name](small, pairs, metric=one)) for one in ("log_prob", mh.log_prob))
    np.testing.assert_allclose(named, given, atol=1e-6)
    assert said(MEASURES[name], small, pairs, metric="logprob") == (
        "metric 'logprob' is not known; give one of 'logit_diff', 'log_prob', 'accuracy', 'kl_divergence', or a "
        'function. Did you mean "log_prob"?'
    )


def test_every_metric_of_the_package_has_its_name():
    assert {name: getattr(mh, name, None) or getattr(mh.patching, name) for name in METRICS} == METRICS
    assert set(METRICS) == {"logit_diff", "log_prob", "accuracy", "kl_divergence"}


def test_a_bare_metric_declares_the_defaults(small, pairs):
    @mh.metric
    def first(logits, context):
        return logits[:, -1, 0]

    assert MetricInfo.of(first) == MetricInfo("first")
    named = mh.metric()(first)
    np.testing.assert_array_equal(*(MEASURES["ablate"](small, pairs, metric=one) for one in (first, named)))
    assert "name its arguments" in said(mh.metric, "nats")


# -- pairs where prompts go -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "take",
    [
        lambda model, pairs: model.cache(pairs),
        lambda model, pairs: generate(model, pairs),
    ],
)
def test_pairs_where_prompts_go(small, pairs, take):
    assert said(take, small, pairs) == (
        'prompts are PromptPairs, which have two sides; give one side, pairs.side("clean") or pairs.side("corrupted")'
    )
    assert len(small.cache(pairs.side("corrupted")).tokens) == 2


# -- names that are nearly right --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m, p: Relation.load("country_to_captial"), 'Did you mean "country_to_capital"?'),
        (lambda m, p: load_task("commonsense"), 'Did you mean "common_sense"?'),
        (lambda m, p: load_requests("harmles"), 'Did you mean "harmless"?'),
        (
            lambda m, p: mh.activation_patch(m, p, site="patterns"),
            "choose one of 'z', 'q', 'k', 'v', 'pattern', 'scored_q', 'scored_k'. Did you mean \"pattern\"?",
        ),
        (lambda m, p: mh.ablate(m, p, intervention="means"), 'Did you mean "mean"?'),
        (lambda m, p: mh.ships(m, ["Hi"], intervention="undiferentiated"), 'Did you mean "undifferentiated"?'),
        (lambda m, p: mh.ablate(m, p, positions="lst"), 'Did you mean "last"?'),
        (lambda m, p: mh.ablate(m, p, metric=mh.metric(reads="Last token")(mh.log_prob)), 'Did you mean "last"?'),
        (lambda m, p: mh.ablate(m, p, heads="L1.H2"), 'Did you mean "L1H2"?'),
        (lambda m, p: mh.ablate(m, p, heads="1.2"), 'Did you mean "L1H2"?'),
        (lambda m, p: mh.path_patch(m, p, receivers="L2H1"), 'Did you mean "L2H1.q"?'),
        (lambda m, p: mh.path_patch(m, p, receivers="L2H1v"), 'Did you mean "L2H1.v"?'),
        (lambda m, p: mh.path_patch(m, p, receivers="L2_mlp"), 'Did you mean "L2.mlp"?'),
        (lambda m, p: mh.path_patch(m, p, receivers="finals"), 'Did you mean "final"?'),
        (lambda m, p: effects(m, p).select(pos="capitol"), 'Did you mean "capital"?'),
    ],
)
def test_did_you_mean(small, pairs, ask, message):
    assert message in said(ask, small, pairs)


def effects(model: mh.Model, pairs: mh.PromptPairs) -> mh.HeadScores:
    named = mh.PromptPairs(CLEAN, CORRUPTED, pairs.answer, pairs.wrong, {"capital": [" capital"] * 2})
    return mh.activation_patch(model, named, positions=["capital"], heads="L1H0")


# -- receivers without a path -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"receivers": "L0H1.q"},
            'receivers: no head comes before "L0H1.q", so there is no path to it; choose another receiver',
        ),
        (
            {"receivers": ["L2H0.v", "L1H3.k"], "senders": ["L1H0", "L2H2"]},
            'receivers: none of the senders comes before "L1H3.k", so there is no path to it; give senders of layer 0',
        ),
        (
            {"receivers": "L1.mlp", "senders": "L2H0"},
            'receivers: none of the senders comes before "L1.mlp", so there is no path to it; '
            "give senders of layers 0..1",
        ),
    ],
)
def test_receivers_that_no_sender_reaches(small, pairs, monkeypatch, given, message):
    monkeypatch.setattr(mh.patching.HeadCache, "run", None)  # the error comes before anything is run
    assert said(mh.path_patch, small, pairs, **given) == message
    receivers = np.atleast_1d(given["receivers"]).tolist()
    assert said(mh.path_matrix, small, pairs, **given | {"receivers": [*receivers, "final"]}) == message


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"receivers": []}, "receivers is empty"),
        ({"receivers": ["L2H1.q", "L2H1.q"]}, "receivers: 'L2H1.q' is given twice; name each receiver once"),
        ({"receivers": "L9H0.q"}, "'L9H0.q' does not exist; this model has layers 0..2 and heads 0..3"),
        ({"receivers": ["final", "L2H1.q"]}, '"final" cannot be combined with others'),
        ({"receivers": "L2H1.q", "mlps": "both"}, "mlps is 'both'; choose one of 'recomputed', 'frozen'"),
    ],
)
def test_paths_that_there_are_not(small, pairs, given, message):
    assert message in said(mh.path_patch, small, pairs, **given)


@pytest.mark.parametrize("name", ["llama", "neox"])
def test_heads_reach_the_mlp_beside_them_unless_it_runs_in_parallel(loaded, pairs, name):
    model = loaded(name)
    given = {"receivers": "L1.mlp", "senders": ["L1H0", "L1H1"]}
    if name == "neox":
        assert re.search(
            "none of the senders comes before .*; give senders of layer 0", said(mh.path_patch, model, pairs, **given)
        )
        given["senders"] = ["L0H0", "L1H1"]
    effect = mh.path_patch(model, pairs, **given)
    largest, least = np.abs(effect.values[1, 1]).max(), np.abs(effect.values[1]).min()
    assert largest < 1e-5 if name == "neox" else least > 1e-5
