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

import pytest
import torch
import transformers

import mechheads as mh
from support import tiny as tiny_models

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
