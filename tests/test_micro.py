"""A model with weights set by hand: patching and ablation give the numbers worked out on paper.

Two layers of four heads, no MLP, no positions, and a norm that changes nothing (see ``micro_model``).
Every prompt has three tokens, " the", a country and " is"; the residual stream starts as

    token     france  italy  query  key
    the            0      0      1    0
    France         1      0      1    ln 3
    Italy          0      1      2    ln 2
    is             0      0      1    0

Layer 0: heads 0 and 1 share one key/value head, whose value is (france, italy).
    Head 0 looks at countries: token i attends to token j in proportion to exp(query_i * key_j), which is
    1 for " the" and " is". Row by row (token 0 sees itself only):
        France:  (1),  (1, 3)/4,  (1, 3, 1)/5   so  z = 0, 3/4, 3/5 of france
        Italy:   (1),  (1, 4)/5,  (1, 2, 1)/4   so  z = 0, 4/5, 1/2 of italy      (Italy's query is 2)
        and writes z to the coordinates "moved france" and "moved italy".
    Head 1 has no query, so it looks everywhere alike: z = 0, 1/2, 1/3 of the country.
        It writes 6 z to the logits of " Paris" (for france) and " Rome" (for italy).
Layer 1: heads 0 and 1 share a value too, (moved france, moved italy); both look everywhere alike.
    Head 0 writes 30 z to the logits of " Paris" and " Rome".
    Head 1 writes 30 z where nothing reads it.
Heads 2 and 3 of both layers are all zeros.

The metric is logit(Paris) - logit(Rome) at " is".
    France run:  head L0H1 gives 6 * 1/3 = 2, head L1H0 gives 30 * (0 + 3/4 + 3/5)/3 = 13.5:   +15.5
    Italy run:   head L0H1 gives 6 * 1/3 = 2, head L1H0 gives 30 * (0 + 4/5 + 1/2)/3 = 13:     -15
"""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import mechheads as mh
import tiny as tiny_models

pytestmark = pytest.mark.transformerlens

FRANCE_RUN, ITALY_RUN = 15.5, -15.0
FRANCE, ITALY, QUERY, KEY, MOVED_FRANCE, MOVED_ITALY, PARIS, ROME, UNREAD, BIG = range(10)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> mh.Model:
    folder = tmp_path_factory.mktemp("micro") / "model"
    micro_model(folder)
    return mh.load(folder)


@torch.no_grad()
def micro_model(folder: Path) -> None:
    """Save the model above, as a Llama.

    Its norm divides by the root of the mean square. The coordinate BIG is 2^20 for every token and so is
    all that counts: the root of 2^40 / 16 is 2^18. The norm's weight of 2^18 puts that back, and the norm
    gives out what it is given.
    Rotation would turn queries and keys by their position. Coordinate 1 of the 4 in a head turns by
    theta^(-1/2) radians a token: with theta = 10^12 that is nothing, so queries and keys live there.
    Scores are divided by sqrt(d_head) = 2, so the key is written twice as large.
    """
    tokenizer = tiny_models.make_tokenizer(begins=False)
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=16,
        rope_parameters={"rope_type": "default", "rope_theta": 1e12},
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        parameter.fill_(2.0**18 if "norm" in name else 0.0)

    def token(text: str) -> int:
        (only,) = tokenizer(text).input_ids
        return only

    embedding, unembedding = model.model.embed_tokens.weight, model.lm_head.weight
    embedding[:, BIG] = 2.0**20
    embedding[:, QUERY] = 1
    embedding[token(" France"), FRANCE] = 1
    embedding[token(" France"), KEY] = math.log(3)
    embedding[token(" Italy"), ITALY] = 1
    embedding[token(" Italy"), QUERY] = 2
    embedding[token(" Italy"), KEY] = math.log(2)
    unembedding[token(" Paris"), PARIS] = 1
    unembedding[token(" Rome"), ROME] = 1

    # transformers keeps [out, in]; head h has rows (q, k, v) or columns (o) 4 h to 4 h + 3
    first, second = (layer.self_attn for layer in model.model.layers)
    first.q_proj.weight[4 * 0 + 1, QUERY] = 1
    first.k_proj.weight[4 * 0 + 1, KEY] = 2
    first.v_proj.weight[4 * 0 + 0, FRANCE] = 1
    first.v_proj.weight[4 * 0 + 1, ITALY] = 1
    first.o_proj.weight[MOVED_FRANCE, 4 * 0 + 0] = 1
    first.o_proj.weight[MOVED_ITALY, 4 * 0 + 1] = 1
    first.o_proj.weight[PARIS, 4 * 1 + 0] = 6
    first.o_proj.weight[ROME, 4 * 1 + 1] = 6
    second.v_proj.weight[4 * 0 + 0, MOVED_FRANCE] = 1
    second.v_proj.weight[4 * 0 + 1, MOVED_ITALY] = 1
    second.o_proj.weight[PARIS, 4 * 0 + 0] = 30
    second.o_proj.weight[ROME, 4 * 0 + 1] = 30
    second.o_proj.weight[UNREAD, 4 * 1 + 0] = 30
    second.o_proj.weight[UNREAD, 4 * 1 + 1] = 30
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


@pytest.fixture(scope="module")
def pair() -> mh.PromptPairs:
    """France is the clean run, Italy the corrupted one; country: token 1."""
    return mh.PromptPairs([" the France is"], [" the Italy is"], [" Paris"], [" Rome"], {"country": [1]})


@pytest.fixture(scope="module")
def both() -> mh.Prompts:
    """France, then Italy, both read as logit(Paris) - logit(Rome)."""
    return mh.Prompts([" the France is", " the Italy is"], [" Paris"] * 2, [" Rome"] * 2)


def by_hand(l0h0: float, l0h1: float, l1h0: float, l1h1: float = 0) -> list[list[float]]:
    """What each head should get, in the shape of a result; the heads of zeros get 0."""
    return [[l0h0, l0h1, 0, 0], [l1h0, l1h1, 0, 0]]


def ablation(micro: mh.Model, prompts: mh.Prompts, **options) -> np.ndarray:
    return (
        mh.ablate(micro, prompts, metric=mh.logit_diff, progress=False, **options)
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
DENOISING = {
    # L0H0: moved is France's, so L1H0 gives Paris 13.5 and no Rome 13: 13.5 - 2 = 11.5.
    # L0H1: Paris 2 instead of Rome 2: 2 - 13 = -11.
    # L1H0: Paris 13.5 instead of Rome 13: 13.5 - 2 = 11.5.
    "z": by_hand(11.5 + 15, -11 + 15, 11.5 + 15),
    # L0H0: at token 1 the query is 1 instead of 2, weights (1, 2)/3; the others are the same. Rome from
    # L1H0: 30 * (0 + 2/3 + 1/2)/3 = 35/3. No other head has queries.
    "q": by_hand(-2 - 35 / 3 + 15, 0, 0),
    # L0H0: France's key is ln 3, so token 1 with query 2 has weights (1, 9)/10, token 2 has (1, 3, 1)/5.
    # Rome from L1H0: 30 * (0 + 9/10 + 3/5)/3 = 15. L0H1 shares the key and has no query for it.
    "k": by_hand(-2 - 15 + 15, 0, 0),
    # L0H0: Italy's weights on France's value, 4/5 and 1/2 of france: Paris 13 - Rome 2 = 11.
    # L0H1 shares the value, patched for itself alone: as z. L1H0: all its values: as z.
    "v": by_hand(11 + 15, -11 + 15, 11.5 + 15),
    # L0H0: France's weights on Italy's value, 3/4 and 3/5 of italy: Rome 2 + 13.5. The others look
    # everywhere alike in both runs.
    "pattern": by_hand(-15.5 + 15, 0, 0),
}


@pytest.mark.parametrize("site", DENOISING)
def test_denoising(micro, pair, site):
    effect = mh.activation_patch(micro, pair, site=site, progress=False)
    close(effect.scores, DENOISING[site])
    close(effect.dataset["base_metric"], [ITALY_RUN])


# The France run with one activation from the Italy run, minus 15.5. The France run holds Paris 2 and 13.5.
NOISING = {
    "z": by_hand(2 - 13 - 15.5, 13.5 - 2 - 15.5, 2 - 13 - 15.5),
    # L0H0: query 2 at token 1, weights (1, 9)/10: Paris 30 * (9/10 + 3/5)/3 = 15.
    "q": by_hand(2 + 15 - 15.5, 0, 0),
    # L0H0: key ln 2, weights (1, 2)/3 at token 1 and (1, 2, 1)/4 at token 2: Paris 30 * (2/3 + 1/2)/3 = 35/3.
    "k": by_hand(2 + 35 / 3 - 15.5, 0, 0),
    # L0H0: France's weights on Italy's value: Paris 2 - Rome 13.5.
    "v": by_hand(2 - 13.5 - 15.5, 13.5 - 2 - 15.5, 2 - 13 - 15.5),
    # L0H0: Italy's weights on France's value: Paris 2 + 13.
    "pattern": by_hand(2 + 13 - 15.5, 0, 0),
}


@pytest.mark.parametrize("site", NOISING)
def test_noising(micro, pair, site):
    effect = mh.activation_patch(micro, pair, site=site, direction="noising", progress=False)
    close(effect.scores, NOISING[site])


def test_denoising_as_a_share_of_the_difference_between_the_runs(micro, pair):
    share = mh.activation_patch(micro, pair, normalize=True, progress=False)
    close(share.scores, np.array(DENOISING["z"]) / (15.5 + 15))


def test_patching_token_by_token(micro, pair):
    """z of the France run in the Italy run, at one token only."""
    each = mh.activation_patch(micro, pair, positions="each", progress=False)
    # Token 0 moves nothing in either run.
    close(each.select(pos=0).scores, by_hand(0, 0, 0))
    # Token 1, L0H0: moved is 3/4 france there, still 1/2 italy at token 2:
    #     Paris 30 * (3/4)/3 = 7.5, Rome 30 * (1/2)/3 = 5 and 2.
    # The other heads write to " is" from " is" only.
    close(each.select(pos=1).scores, by_hand(7.5 - 5 - 2 + 15, 0, 0))
    # Token 2, L0H0: Rome 30 * (4/5)/3 = 8 and 2, Paris 30 * (3/5)/3 = 6. The others as at all tokens.
    close(each.select(pos=2).scores, by_hand(6 - 8 - 2 + 15, -11 + 15, 11.5 + 15))
    named = mh.activation_patch(micro, pair, positions="country", progress=False)
    close(named.scores, by_hand(7.5 - 5 - 2 + 15, 0, 0))


def test_patching_the_value_of_one_token(micro, pair):
    """For v the positions are those attended to: only the country has a value that differs."""
    each = mh.activation_patch(micro, pair, site="v", positions="each", progress=False)
    for pos in (0, 2):
        close(each.select(pos=pos).scores[0], [0, 0, 0, 0])
    close(each.select(pos=1).scores[0], DENOISING["v"][0])
    # L1H0 attends with 1/3 each to moved. Token 1: 3/4 france for 4/5 italy, Paris 7.5 - Rome 5 - 2.
    # Token 2: 3/5 france for 1/2 italy, Paris 6 - Rome 8 - 2.
    close(each.scores.sel(layer=1, head=0), [0, 0.5 + 15, -4 + 15])


def test_zero_ablation(micro, both):
    # France: L0H0 and L1H0 both cost L1H0's Paris 13.5, L0H1 its Paris 2. Italy: Rome 13, Rome 2.
    close(ablation(micro, both, kind="zero"), [by_hand(-13.5, -2, -13.5), by_hand(13, 2, 13)])


def test_scale_ablation(micro, both):
    # The model is linear in z, so a quarter of z costs three quarters of what zero costs.
    wanted = [by_hand(-0.75 * 13.5, -0.75 * 2, -0.75 * 13.5), by_hand(0.75 * 13, 0.75 * 2, 0.75 * 13)]
    close(ablation(micro, both, kind="scale", factor=0.25), wanted)


def test_uniform_ablation(micro, both):
    # L0H0 looks everywhere alike: z = 0, 1/2, 1/3 of the country, so L1H0 gives 30 * (1/2 + 1/3)/3 = 25/3.
    # The other heads did so already.
    wanted = [by_hand(25 / 3 - 13.5, 0, 0), by_hand(13 - 25 / 3, 0, 0)]
    close(ablation(micro, both, kind="uniform"), wanted)


def test_resample_ablation(micro, both):
    # Of two prompts each gets the other's z: France gets what noising gives, Italy what denoising gives.
    close(ablation(micro, both, kind="resample", seed=5), [NOISING["z"], DENOISING["z"]])


def test_mean_ablation(micro, both):
    # The mean is over all six tokens of the two prompts, and it is the same for both.
    # L0H0: france (3/4 + 3/5)/6 = 0.225, italy (4/5 + 1/2)/6 = 13/60, at every token. L1H0 makes of that
    #     Paris 30 * 0.225 = 6.75 and Rome 30 * 13/60 = 6.5: together +0.25, for +13.5 (France) or -13 (Italy).
    # L0H1: (1/2 + 1/3)/6 of both countries: Paris and Rome get the same, for +2 or -2.
    # L1H0: its z is the mean of moved so far. France: 0, (3/4)/2, (3/4 + 3/5)/3, together 0.825;
    #     Italy: 0, (4/5)/2, (4/5 + 1/2)/3, together 5/6. Paris 30 * 0.825/6 = 4.125, Rome 30 * (5/6)/6 = 25/6.
    l1h0 = 4.125 - 25 / 6
    wanted = [by_hand(0.25 - 13.5, -2, l1h0 - 13.5), by_hand(0.25 + 13, 2, l1h0 + 13)]
    close(ablation(micro, both, kind="mean"), wanted)


def test_ablation_at_the_last_token_only(micro, both):
    # L0H0 at " is": France loses 30 * (3/5)/3 = 6, Italy 30 * (1/2)/3 = 5. The others write there anyway.
    wanted = [by_hand(-6, -2, -13.5), by_hand(5, 2, 13)]
    close(ablation(micro, both, kind="zero", positions="last"), wanted)


def test_what_nothing_reads_is_nothing(micro, pair, both):
    """L1H1 writes as much as L1H0 where nothing reads it, and the heads of zeros write nothing: 0.

    Two roundings of a logit near 16, 2^-20 each, are all that is left to chance.
    """
    rounding = 2 * 2.0**-20
    silent = ["L1H1", "L0H2", "L0H3", "L1H2", "L1H3"]
    for site in ("z", "q", "k", "v", "pattern"):
        values = mh.activation_patch(micro, pair, site=site, heads=silent, progress=False).values
        assert np.nanmax(np.abs(values)) <= rounding
    for kind in ("zero", "mean", "resample", "scale", "uniform"):
        values = mh.ablate(micro, both, kind=kind, heads=silent, progress=False).values
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
    kl = mh.ablate(micro, both, heads="L0H1", progress=False)
    assert float(kl.values[0, 1, 0]) == pytest.approx(2 * math.exp(15.5 - a) + b - a, abs=1e-5)
    log_prob = mh.ablate(micro, both, heads="L0H1", metric=mh.log_prob, progress=False)
    assert float(log_prob.values[0, 1, 0]) == pytest.approx(-2 + a - b, abs=1e-5)
