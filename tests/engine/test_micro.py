"""A model with weights set by hand (``support/micro.py``): patching and ablation give what was worked out on paper."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.interventions.new_z import AllNewZ, CheckedIntervention, first_change, new_z
from support.micro import (  # noqa: F401
    DENOISING,
    ITALY_RUN,
    MOVED_FRANCE,
    MOVED_ITALY,
    NOISING,
    PARIS,
    ROME,
    UNREAD,
    both,
    by_hand,
    micro,
    pair,
)


def ablation(micro: mh.Model, prompts: mh.Prompts, **options) -> np.ndarray:
    return (
        mh.ablate(micro, prompts, metric=mh.logit_diff, **options)
        .values.transpose("prompt", "layer", "head")
        .to_numpy()
    )


def close(got, wanted) -> None:
    np.testing.assert_allclose(got, wanted, atol=1e-4)


def test_the_runs_are_as_on_paper(micro, pair):
    close(micro.W_V[1][1, [MOVED_FRANCE, MOVED_ITALY]], [[1, 0, 0, 0], [0, 1, 0, 0]])  # head 1 reads head 0's value
    run = micro.cache([" the France is", " the Italy is"])
    france, italy = run.pattern["L0H0"]
    close(france, [[1, 0, 0], [1 / 4, 3 / 4, 0], [1 / 5, 3 / 5, 1 / 5]])
    close(italy, [[1, 0, 0], [1 / 5, 4 / 5, 0], [1 / 4, 1 / 2, 1 / 4]])
    everywhere = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]]
    for head in ("L0H1", "L0H2", "L1H0", "L1H1", "L1H3"):
        close(run.pattern[head], [everywhere] * 2)
    close(run.z["L0H0"][:, :, :2], [[[0, 0], [3 / 4, 0], [3 / 5, 0]], [[0, 0], [0, 4 / 5], [0, 1 / 2]]])
    close(run.result["L0H1"][:, 2, [PARIS, ROME]], [[2, 0], [0, 2]])
    close(run.result["L1H0"][:, 2, [PARIS, ROME]], [[13.5, 0], [0, 13]])
    tokens, _ = pair.tokens(micro)
    assert tokens.answer is not None and tokens.wrong is not None
    paris, rome = int(tokens.answer[0]), int(tokens.wrong[0])
    close(run.logits[:, 2, [paris, rome]], [[2 + 13.5, 0], [0, 2 + 13]])


# The Italy run with one activation from the France run, minus -15. The Italy run holds Rome 2 (from L0H1)
# and Rome 13 (from L1H0).
@pytest.mark.parametrize("site", DENOISING)
def test_denoising(micro, pair, site):
    effect = mh.activation_patch(micro, pair, site=site)
    close(effect.scores, DENOISING[site])
    close(effect.dataset["base_metric"], [ITALY_RUN])


# The France run with one activation from the Italy run, minus 15.5. The France run holds Paris 2 and 13.5.
@pytest.mark.parametrize("site", NOISING)
def test_noising(micro, pair, site):
    effect = mh.activation_patch(micro, pair, site=site, direction="noising")
    close(effect.scores, NOISING[site])


def test_denoising_as_a_share_of_the_difference_between_the_runs(micro, pair):
    share = mh.activation_patch(micro, pair, normalize=True)
    close(share.scores, np.array(DENOISING["z"]) / (15.5 + 15))


def test_patching_token_by_token(micro, pair):
    """z of the France run in the Italy run, at one token only."""
    each = mh.activation_patch(micro, pair, positions="each")
    # Token 0 moves nothing in either run.
    close(each.select(pos=0).scores, by_hand(0, 0, 0))
    # Token 1, L0H0: moved is 3/4 france there, still 1/2 italy at token 2:
    #     Paris 30 * (3/4)/3 = 7.5, Rome 30 * (1/2)/3 = 5 and 2.
    # The other heads write to " is" from " is" only.
    close(each.select(pos=1).scores, by_hand(7.5 - 5 - 2 + 15, 0, 0))
    # Token 2, L0H0: Rome 30 * (4/5)/3 = 8 and 2, Paris 30 * (3/5)/3 = 6. The others as at all tokens.
    close(each.select(pos=2).scores, by_hand(6 - 8 - 2 + 15, -11 + 15, 11.5 + 15))
    named = mh.activation_patch(micro, pair, positions="country")
    close(named.scores, by_hand(7.5 - 5 - 2 + 15, 0, 0))


def test_patching_the_value_of_one_token(micro, pair):
    """For v the positions are those attended to: only the country has a value that differs."""
    each = mh.activation_patch(micro, pair, site="v", positions="each")
    for pos in (0, 2):
        close(each.select(pos=pos).scores[0], [0, 0, 0, 0])
    close(each.select(pos=1).scores[0], DENOISING["v"][0])
    # L1H0 attends with 1/3 each to moved. Token 1: 3/4 france for 4/5 italy, Paris 7.5 - Rome 5 - 2.
    # Token 2: 3/5 france for 1/2 italy, Paris 6 - Rome 8 - 2.
    close(each.scores.sel(layer=1, head=0), [0, 0.5 + 15, -4 + 15])


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        # France: L0H0 and L1H0 both cost L1H0's Paris 13.5, L0H1 its Paris 2. Italy: Rome 13, Rome 2.
        ({"intervention": "zero"}, [by_hand(-13.5, -2, -13.5), by_hand(13, 2, 13)]),
        # The model is linear in z, so a quarter of z costs three quarters of what zero costs.
        (
            {"intervention": mh.patching.Scale(0.25)},
            [by_hand(-0.75 * 13.5, -0.75 * 2, -0.75 * 13.5), by_hand(0.75 * 13, 0.75 * 2, 0.75 * 13)],
        ),
        # L0H0 looks everywhere alike: z = 0, 1/2, 1/3 of the country, so L1H0 gives 30 * (1/2 + 1/3)/3 = 25/3.
        # The other heads did so already.
        ({"intervention": "uniform"}, [by_hand(25 / 3 - 13.5, 0, 0), by_hand(13 - 25 / 3, 0, 0)]),
        # Of two prompts each gets the other's z: France gets what noising gives, Italy what denoising gives.
        ({"intervention": "resample", "seed": 5}, [NOISING["z"], DENOISING["z"]]),
        # L0H0 at " is": France loses 30 * (3/5)/3 = 6, Italy 30 * (1/2)/3 = 5. The others write there anyway.
        ({"intervention": "zero", "positions": "last"}, [by_hand(-6, -2, -13.5), by_hand(5, 2, 13)]),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_ablation(micro, both, options, wanted):
    close(ablation(micro, both, **options), wanted)


def test_mean_ablation(micro, both):
    # The mean is over all six tokens of the two prompts, and it is the same for both.
    # L0H0: france (3/4 + 3/5)/6 = 0.225, italy (4/5 + 1/2)/6 = 13/60, at every token. L1H0 makes of that
    #     Paris 30 * 0.225 = 6.75 and Rome 30 * 13/60 = 6.5: together +0.25, for +13.5 (France) or -13 (Italy).
    # L0H1: (1/2 + 1/3)/6 of both countries: Paris and Rome get the same, for +2 or -2.
    # L1H0: its z is the mean of moved so far. France: 0, (3/4)/2, (3/4 + 3/5)/3, together 0.825;
    #     Italy: 0, (4/5)/2, (4/5 + 1/2)/3, together 5/6. Paris 30 * 0.825/6 = 4.125, Rome 30 * (5/6)/6 = 25/6.
    l1h0 = 4.125 - 25 / 6
    wanted = [by_hand(0.25 - 13.5, -2, l1h0 - 13.5), by_hand(0.25 + 13, 2, l1h0 + 13)]
    close(ablation(micro, both, intervention="mean"), wanted)


def test_what_nothing_reads_is_nothing(micro, pair, both):
    """L1H1 writes as much as L1H0 where nothing reads it, and the heads of zeros write nothing: 0.

    Two roundings of a logit near 16, 2^-20 each, are all that is left to chance.
    """
    rounding = 2 * 2.0**-20
    silent = ["L1H1", "L0H2", "L0H3", "L1H2", "L1H3"]
    for site in ("z", "q", "k", "v", "pattern"):
        values = mh.activation_patch(micro, pair, site=site, heads=silent).values
        assert np.nanmax(np.abs(values)) <= rounding
    for rule in ("zero", "mean", "resample", "scaling", "uniform"):
        values = mh.ablate(micro, both, intervention=rule, heads=silent).values
        assert np.nanmax(np.abs(values)) <= rounding
    assert float(micro.cache(both).result["L1H1"][0, 2, UNREAD]) == pytest.approx(13.5, abs=1e-4)


def test_kl_and_log_prob(micro, both):
    """All other words have logit 0; with n of them the France run gives Paris e^15.5 / (e^15.5 + n + 1).

    Without L0H1 the logit is 13.5. With A = log(e^15.5 + n + 1) and B = log(e^13.5 + n + 1) the
    log-probability of Paris goes from 15.5 - A to 13.5 - B; of any other word from -A to -B. So
    KL = p * (2 + B - A) + (1 - p) * (B - A) = 2 p + B - A, where p is the probability of Paris.
    """
    n = micro.d_vocab - 2
    a, b = math.log(math.exp(15.5) + n + 1), math.log(math.exp(13.5) + n + 1)
    kl = mh.ablate(micro, both, heads="L0H1")
    assert float(kl.values[0, 1, 0]) == pytest.approx(2 * math.exp(15.5 - a) + b - a, abs=1e-5)
    log_prob = mh.ablate(micro, both, heads="L0H1", metric=mh.log_prob)
    assert float(log_prob.values[0, 1, 0]) == pytest.approx(-2 + a - b, abs=1e-5)


def test_the_first_position_that_changes(micro):
    """Padding is no change; a head that does not change begins after the last position."""
    base = micro.cache([" the France is", " the"])
    old, zero = base.z["L0H0"], CheckedIntervention(mh.Zero())

    def begin(differs):
        return first_change([differs.any(1)], zero).tolist()

    def padding(z, context):
        return torch.where(context.mask[..., None], z, z + 1)

    def country(z, context):
        z[:, 1] += 1
        return z

    for change, first in ((padding, [3, 3]), (country, [1, 3])):
        new, differs = new_z(CheckedIntervention(change), base, None, [mh.HeadId(0, 0)], None)
        assert begin(differs) == first
        close(new[:, 0] - old, [[[0] * 4, [change is country] * 4, [0] * 4], [[0] * 4] * 3])
    nowhere = torch.zeros(2, 3, dtype=torch.bool)
    assert begin(new_z(CheckedIntervention(country), base, None, [mh.HeadId(0, 0)], nowhere)[1]) == [3, 3]
    keys = torch.zeros(
        2, 2, 3, dtype=torch.bool
    )  # a key of the first two heads changes at token 1, one of the others at 2
    keys[0, 0, 1] = keys[0, 1, 2] = True
    of_all = AllNewZ({0: base.z.layer(0)}, {0: keys})  # type: ignore[arg-type]
    heads = [mh.HeadId(0, head) for head in range(4)]
    differs = new_z(zero, base, None, heads, None, of_all)[1]
    assert [begin(differs[:, [head]]) for head in range(4)] == [[1, 3], [1, 3], [2, 3], [2, 3]]
    assert begin(differs) == [1, 3]
