"""Racing finds the heads that the exhaustive sweep finds, with the same scores, from fewer measurements."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import mechheads as mh
import mechheads.engine.run_race
import mechheads.patching.race_estimates
from benchmarks.racing import race_over
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.racing import Race
from mechheads.limits import Limits
from mechheads.metrics.basic import kl_divergence
from mechheads.patching.gradients import Size
from support.levels import few

COUNTRIES = ["France", "Italy", "Spain", "Germany", "Japan", "China", "Russia", "England"]
PROMPTS = [f"{start} {country} is" for start in ("The capital of", "The king of", "A town in") for country in COUNTRIES]


def lognormal(size: np.ndarray, sigma: float, rng: np.random.Generator) -> np.ndarray:
    return size[:, None] * np.exp(rng.normal(0, sigma, (len(size), 60)))


def sizes(rng: np.random.Generator, near_ties: bool = False) -> np.ndarray:
    """Mean effects of 150 heads, twelve of them large; with near ties around the tenth."""
    size = np.exp(rng.normal(-6, 2, 150))
    size[:12] = np.exp(rng.normal(-2, 0.5, 12))
    if near_ties:
        size[6:14] = 0.05 * np.linspace(1.02, 0.98, 8)
    return size


TABLES: dict[str, Callable[[np.random.Generator], np.ndarray]] = {
    "a KL": lambda rng: lognormal(sizes(rng), 1.0, rng),
    "near ties": lambda rng: lognormal(sizes(rng, near_ties=True), 1.0, rng),
    "exact ties": lambda rng: np.concatenate([np.full((8, 60), 2.0), np.ones((6, 60)), np.zeros((136, 60))]),
    "a heavy tail": lambda rng: lognormal(sizes(rng), 1.8, rng),
    "prompts that differ": lambda rng: lognormal(sizes(rng), 0.7, rng) * np.exp(rng.normal(0, 1, 60)),
    "normal, with a sign": lambda rng: np.linspace(2, 0, 150)[:, None] ** 3 * 0.3 + rng.normal(0, 1, (150, 60)),
    "nothing but noise": lambda rng: rng.normal(0, 1, (150, 60)),
}


@pytest.mark.parametrize("name", few(TABLES, "a KL", "near ties", "a heavy tail"))
def test_in_ninety_five_of_a_hundred_trials_no_first_head_is_lost(name):
    rng = np.random.default_rng(7)
    right, share = [], []
    for _ in range(60):
        table = TABLES[name](rng)
        found, spent = race_over(table, Race(10), rng)
        mean = table.mean(1)
        right.append(len(found) == 10 and mean[list(found)].min() >= np.sort(mean)[-10])
        share.append(spent)
    assert np.mean(right) >= 0.95
    if name == "a KL":
        assert np.mean(share) < 0.5


ESTIMATES: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {
    "good": lambda table, rng: table * rng.lognormal(0, 0.2, (len(table), 1)),
    "with as much noise": lambda table, rng: table + 0.7 * table.std(1, keepdims=True) * rng.normal(0, 1, table.shape),
    "far off at times": lambda table, rng: table + 0.3 * table.std() * rng.standard_t(2, table.shape),
    "nothing but chance": lambda table, rng: rng.permuted(table, axis=1),
}


@pytest.mark.parametrize("estimates", few(ESTIMATES, "good", "far off at times"))
@pytest.mark.parametrize("name", few(["a KL", "near ties", "prompts that differ", "normal, with a sign"], "a KL"))
def test_estimates_save_measurements_if_they_are_good_and_lose_no_first_head_if_not(name, estimates):
    rng = np.random.default_rng(13)
    right, share, without = [], [], []
    for _ in range(40):
        table = TABLES[name](rng)
        known, order = ESTIMATES[estimates](table, rng), rng.integers(2**32)
        found, spent = race_over(table, Race(10), np.random.default_rng(order), estimates=known)
        without.append(race_over(table, Race(10), np.random.default_rng(order))[1])
        mean = table.mean(1)
        right.append(len(found) == 10 and mean[list(found)].min() >= np.sort(mean)[-10])
        share.append(spent)
    assert np.mean(right) >= 0.95
    assert np.mean(share) < 1.2 * np.mean(without)
    if estimates == "good":
        assert np.mean(share) < 0.6 * np.mean(without)


def test_exact_estimates_leave_nothing_to_measure():
    table = np.random.default_rng(0).normal(0, 1, (50, 40)) + np.linspace(1, 0, 50)[:, None]
    first = set(np.argsort(-table.mean(1))[:5].tolist())
    gone = Race(5).dropped(table[:, :4], 40, estimates=table)
    assert set(np.flatnonzero(~gone).tolist()) == first


def test_absolute_scores_race_by_their_size_whatever_their_sign():
    assert Race(2, by="absolute").leaders(np.array([-5.0, 1.0, 4.0, -3.0, 2.0])).tolist() == [0, 2, 3, 4]
    rng = np.random.default_rng(3)
    for _ in range(20):
        table = lognormal(sizes(rng), 0.5, rng) * np.where(rng.random(150) < 0.5, -1, 1)[:, None]
        found, spent = race_over(table, Race(8, by="absolute"), rng)
        assert found == set(np.argsort(-np.abs(table.mean(1)))[:8].tolist())
        assert spent < 0.7


def test_the_heads_in_the_lead_are_never_dropped_and_clear_losers_are():
    rng = np.random.default_rng(0)
    table = np.concatenate([5 + rng.normal(0, 0.1, (3, 8)), rng.normal(0, 0.1, (40, 8))])
    gone = Race(3).dropped(table, 50)
    assert gone.tolist() == [False] * 3 + [True] * 40
    assert not Race(3).dropped(table, 8).any()  # every prompt has been used: the means are exact
    assert Race(3).looks(50) == [4, 6, 9, 14, 21, 32, 48, 50] and Race(3).looks(3) == [3]


def exhaustive(model: mh.Model, **options) -> mh.HeadScores:
    return mh.ablate(model, PROMPTS, progress=False, **options)


@pytest.fixture(scope="module")
def llama(tiny):
    return mh.load(tiny("llama"))


@pytest.mark.parametrize("kind", ["zero", "mean", "resample", "uniform"])
def test_the_heads_found_have_the_scores_of_the_exhaustive_sweep(kind, llama):
    """Also for ablations whose new z depends on all prompts, whichever of them are run."""
    whole = exhaustive(llama, kind=kind)
    race = exhaustive(llama, kind=kind, top=mh.patching.Race(2))
    assert race.heads(2) == whole.heads(2)
    dropped = race.dataset["dropped"].values
    assert not race.missing and dropped.any()
    np.testing.assert_array_equal(np.isnan(race.scores.values), dropped)
    np.testing.assert_allclose(race.scores.values[~dropped], whole.scores.values[~dropped], atol=1e-6)
    n_prompts = race.dataset["n_prompts"].values
    assert (n_prompts[~dropped] == len(PROMPTS)).all() and (n_prompts[dropped] < len(PROMPTS)).all()
    assert race.provenance["race"]["share"] == pytest.approx(n_prompts.sum() / (12 * len(PROMPTS)))
    np.testing.assert_allclose(race.dataset["estimate"].values[~dropped], whole.scores.values[~dropped], atol=1e-6)


@pytest.fixture
def pairs() -> mh.PromptPairs:
    names = [(a, b) for a in COUNTRIES[:4] for b in COUNTRIES[:4] if a != b]
    sides = [[f"{start} {pair[side]} is" for start in ("The capital of", "In") for pair in names] for side in (0, 1)]
    return mh.PromptPairs(*sides, *([f" {pair[side]}" for pair in names * 2] for side in (0, 1)))


@pytest.mark.parametrize("receivers", ["final", ["L2H1.q", "L2H0.v"]])
def test_path_patching_races_too(receivers, llama, pairs, tmp_path):
    options = {"receivers": receivers, "normalize": True, "progress": False}
    whole = mh.path_patch(llama, pairs, **options)
    asked = mh.patching.Race(2, by="absolute", first=8)
    race = mh.path_patch(llama, pairs, top=asked, store=tmp_path / "paths.ledger", **options)
    assert race.heads(2, by="absolute") == whole.heads(2, by="absolute")
    dropped = race.dataset["dropped"].values
    assert dropped.any() and not race.missing
    np.testing.assert_allclose(race.scores.values[~dropped], whole.scores.values[~dropped], atol=1e-5)
    again = mh.path_patch(llama, pairs, top=asked, store=tmp_path / "paths.ledger", **options)
    np.testing.assert_array_equal(again.values.values, race.values.values)
    with pytest.raises(ValueError, match="top needs one score per head"):
        mh.path_patch(llama, pairs, top=2, positions="each", **options)


def test_path_patching_says_for_which_heads_a_metric_is_not_finite(llama, pairs):
    @mh.metric(unit="nats", null=0.0)
    def broken(logits, context):
        value = kl_divergence(logits, context)
        return value / (value < 1e-9)  # infinite as soon as a head does anything

    for top in (None, 2):
        with pytest.warns(UserWarning, match="not finite for L0H0"):
            found = mh.path_patch(llama, pairs, metric=broken, top=top, progress=False)
        assert mh.HeadId(0, 0) in found.missing


@pytest.mark.parametrize("site", ["z", "q", "v", "pattern"])
def test_patching_of_pairs_races_too_and_normalises_by_all_prompts(site, llama, pairs):
    options = {"site": site, "normalize": True, "progress": False}
    whole = mh.activation_patch(llama, pairs, **options)
    race = mh.activation_patch(llama, pairs, top=mh.patching.Race(2, by="absolute"), **options)
    assert race.heads(2, by="absolute") == whole.heads(2, by="absolute")
    kept = ~race.dataset["dropped"].values
    np.testing.assert_allclose(race.scores.values[kept], whole.scores.values[kept], atol=1e-5)


@pytest.mark.parametrize("site", ["z", "k"])
def test_patching_races_with_the_estimates_of_a_gradient(site, llama, pairs, monkeypatch, tmp_path):
    def race(**more):
        options = {"site": site, "normalize": True, "progress": False} | more
        return mh.activation_patch(llama, pairs, top=mh.patching.Race(2, by="absolute"), **options)

    plain = race()
    assert "estimates" not in plain.provenance["race"], "the sweep is too short for a gradient to save time"
    monkeypatch.setattr(mechheads.patching.race_estimates, "_WORTH", 0)
    helped = race(store=tmp_path / "race.ledger")
    assert helped.provenance["race"]["estimates"] == "attribution"
    assert helped.heads(2, by="absolute") == plain.heads(2, by="absolute")
    both = ~(helped.dataset["dropped"].values | plain.dataset["dropped"].values)
    np.testing.assert_allclose(helped.scores.values[both], plain.scores.values[both], atol=1e-5)
    assert helped.provenance["race"]["share"] <= plain.provenance["race"]["share"]
    again = race(store=tmp_path / "race.ledger")
    np.testing.assert_array_equal(again.values.values, helped.values.values)


@pytest.mark.parametrize("kind", ["zero", "mean", "uniform"])
def test_ablation_races_with_the_estimates_of_a_gradient(kind, llama, pairs, monkeypatch):
    options = {"kind": kind, "metric": "logit_diff", "progress": False}
    whole = mh.ablate(llama, pairs, **options)
    monkeypatch.setattr(mechheads.patching.race_estimates, "_WORTH", 0)
    race = mh.ablate(llama, pairs, top=2, **options)
    assert race.provenance["race"]["estimates"] == "attribution"
    assert race.heads(2) == whole.heads(2)
    kept = ~race.dataset["dropped"].values
    np.testing.assert_allclose(race.scores.values[kept], whole.scores.values[kept], atol=1e-5)


@pytest.mark.parametrize("why", ["no gradient", "a gradient of 0", "no memory"])
def test_a_race_without_a_gradient_that_helps_is_the_race_without_it(why, llama, pairs, monkeypatch):
    monkeypatch.setattr(mechheads.patching.race_estimates, "_WORTH", 0)
    more = {"no gradient": {"metric": "accuracy"}, "a gradient of 0": {"metric": "kl_divergence"}}.get(why, {})
    if why == "no memory":
        monkeypatch.setattr(mechheads.patching.race_estimates.Size, "of", lambda job, counts: Size(1, bytes=2**60))
    race = mh.activation_patch(llama, pairs, top=2, progress=False, **more)
    assert "estimates" not in race.provenance["race"]


def test_clusters_are_drawn_whole(llama):
    prompts = mh.Prompts(PROMPTS, cluster=[f"{i % 8}" for i in range(len(PROMPTS))])
    race = mh.ablate(llama, prompts, top=mh.patching.Race(2, first=2), progress=False)
    assert all(used % 3 == 0 for used, _ in race.provenance["race"]["looks"])
    assert race.heads(2) == mh.ablate(llama, prompts, progress=False).heads(2)


def test_an_interrupted_race_goes_on_from_its_store(llama, tmp_path, monkeypatch):
    judge, seen, few = Evaluator.__call__, [], Limits(tokens=50, logit_rows=1)

    def noting(self, final):
        if len(seen) == stop:
            raise KeyboardInterrupt
        seen.append(len(final) * final.shape[1])
        return judge(self, final)

    def race(store=None):
        asked = mh.patching.Race(2)
        return mh.ablate(llama, PROMPTS, top=asked, budget=few, progress=False, store=store)

    monkeypatch.setattr(Evaluator, "__call__", noting)
    stop, store = None, tmp_path / "sweeps.ledger"
    wanted = race()
    units = sum(seen)
    assert units == wanted.dataset["n_prompts"].sum()
    seen.clear()
    stop = 4
    with pytest.warns(UserWarning, match=r"^interrupted after \d+ of 24 prompts; heads that were not dropped"):
        first = race(store)
    assert first.provenance["interrupted"] and "interrupted" in first.provenance["race"]["stopped"]
    stop = None
    for _ in range(2):
        again = race(store)
        np.testing.assert_array_equal(again.values.values, wanted.values.values)
        assert again.provenance["race"] == wanted.provenance["race"]
        assert sum(seen) == units  # nothing was measured twice


def test_races_with_other_seeds_share_no_units_in_a_store(llama, tmp_path):
    given = {"top": mh.patching.Race(2), "progress": False}
    for seed in (0, 1):
        race = mh.ablate(llama, PROMPTS, seed=seed, store=tmp_path / "sweeps.ledger", **given)
        alone = mh.ablate(llama, PROMPTS, seed=seed, **given)
        assert race.dataset.identical(alone.dataset)


def test_ctrl_c_between_two_looks_keeps_what_was_measured(llama, monkeypatch):
    def stops(self, *args):
        raise KeyboardInterrupt

    monkeypatch.setattr(Race, "dropped", stops)
    with pytest.warns(UserWarning, match="interrupted after 4 of 24 prompts; heads that were not dropped"):
        race = mh.ablate(llama, PROMPTS, top=mh.patching.Race(2), progress=False)
    assert race.provenance["interrupted"] and not race.missing
    assert (race.dataset["n_prompts"] == 4).all()


def test_a_head_whose_metric_is_not_finite_leaves_the_race(llama):
    @mh.metric(unit="nats", null=0.0)
    def breaks(logits, context):
        value = kl_divergence(logits, context)
        return value / (value < breaks_at)  # infinite where a head does most

    whole = exhaustive(llama)
    best = whole.heads(1)[0]
    breaks_at = whole.values.sel(layer=best.layer, head=best.head).max().item() * 0.999
    with pytest.warns(UserWarning, match=f"not finite for {best}"):
        race = mh.sweep(llama, PROMPTS, intervention=mh.Zero(), metric=breaks, top=2, progress=False)
    assert best in race.missing and race.heads(2) == whole.heads(3)[1:]


def test_a_metric_that_is_never_finite_leaves_no_head(llama):
    @mh.metric(unit="nats", null=0.0)
    def broken(logits, context):
        value = kl_divergence(logits, context)
        return value / (value < 1e-9)  # infinite as soon as a head does anything

    with pytest.warns(UserWarning, match="not finite for L0H0"):
        race = mh.sweep(llama, PROMPTS, intervention=mh.Zero(), metric=broken, top=2, progress=False)
    assert len(race.missing) == 12 and race.heads(2) == ()


def test_what_cannot_race_is_refused_before_anything_is_measured(llama):
    for top, message in [
        (0, "top is 0; it must be a whole number, 1 or more"),
        (12, "top is 12, but there are only 12 heads to choose from"),
        (2.5, "top is 2.5"),
    ]:
        with pytest.raises(ValueError, match=message):
            exhaustive(llama, top=top)
    with pytest.raises(ValueError, match="top needs one score per head, but with these positions there are"):
        exhaustive(llama, top=2, positions="each")
    with pytest.raises(ValueError, match="first is 1; it must be a whole number, 2 or more"):
        Race(first=1)
    with pytest.raises(ValueError, match="by is 'size'; choose one of 'score', 'absolute'"):
        Race(by="size")
    with pytest.raises(ValueError, match="error is 1; it must be between 0 and 1"):
        Race(error=1)
