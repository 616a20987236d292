"""What people type first: names, and receivers without a path."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mechheads as mh
from mechheads.labels import Relation

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
    "attribution_patch": lambda m, p, **k: mh.patching.attribution_patch(m, p, heads="L1H0", **k).values,
    "path_patch": lambda m, p, **k: mh.path_patch(m, p, senders="L1H0", **k).values,
    "patch_sets": lambda m, p, **k: mh.patching.patch_sets(m, p, [["L1H0"]], **k).values,
}


@pytest.mark.parametrize("name", MEASURES)
def test_a_metric_may_be_named(small, pairs, name):
    named, given = (np.asarray(MEASURES[name](small, pairs, metric=one)) for one in ("log_prob", mh.log_prob))
    np.testing.assert_allclose(named, given, atol=1e-6)
    assert said(MEASURES[name], small, pairs, metric="logprob") == (
        "metric 'logprob' is not known; give one of 'logit_diff', 'log_prob', 'accuracy', 'kl_divergence', or a "
        'function. Did you mean "log_prob"?'
    )


# -- names that are nearly right --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda m, p: Relation.load("country_to_captial"), 'Did you mean "country_to_capital"?'),
        (
            lambda m, p: mh.activation_patch(m, p, site="patterns"),
            "choose one of 'z', 'q', 'k', 'v', 'pattern', 'scored_q', 'scored_k'. Did you mean \"pattern\"?",
        ),
        (lambda m, p: mh.ablate(m, p, intervention="means"), 'Did you mean "mean"?'),
        (lambda m, p: mh.ablate(m, p, positions="lst"), 'Did you mean "last"?'),
        (lambda m, p: mh.ablate(m, p, heads="L1.H2"), 'Did you mean "L1H2"?'),
        (lambda m, p: mh.path_patch(m, p, receivers="L2H1"), 'Did you mean "L2H1.q"?'),
        (lambda m, p: mh.path_patch(m, p, receivers="L2_mlp"), 'Did you mean "L2.mlp"?'),
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
        ({"receivers": ["L2H1.q", "L2H1.q"]}, "receivers: 'L2H1.q' is given twice; name each receiver once"),
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
