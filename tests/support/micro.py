"""A model with weights set by hand: patching and ablation give the numbers worked out on paper.

Two layers of four heads, no MLP, no positions, and a norm that changes nothing (see ``Blank``).
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

from __future__ import annotations

import math

import pytest
import torch

import mechheads as mh
from support.blank import Blank

FRANCE_RUN, ITALY_RUN = 15.5, -15.0
FRANCE, ITALY, QUERY, KEY, MOVED_FRANCE, MOVED_ITALY, PARIS, ROME, UNREAD = range(9)


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> mh.Model:
    return micro_model().load(tmp_path_factory.mktemp("micro") / "model")


@torch.no_grad()
def micro_model() -> Blank:
    """The model above; scores are divided by sqrt(d_head) = 2, so the key is written twice as large."""
    blank = Blank()
    blank.embedding[:, QUERY] = 1
    for country, coordinate, query, key in ((" France", FRANCE, 1, 3), (" Italy", ITALY, 2, 2)):
        token = blank.token(country)
        blank.embedding[token, [coordinate, QUERY, KEY]] = torch.tensor([1, query, math.log(key)])
    blank.unembedding[blank.token(" Paris"), PARIS] = 1
    blank.unembedding[blank.token(" Rome"), ROME] = 1
    first, second = blank.attention
    first.q_proj.weight[4 * 0 + 1, QUERY] = 1
    first.k_proj.weight[4 * 0 + 1, KEY] = 2
    for i, (country, moved, capital) in enumerate(((FRANCE, MOVED_FRANCE, PARIS), (ITALY, MOVED_ITALY, ROME))):
        first.v_proj.weight[4 * 0 + i, country] = 1
        first.o_proj.weight[moved, 4 * 0 + i] = 1
        first.o_proj.weight[capital, 4 * 1 + i] = 6
        second.v_proj.weight[4 * 0 + i, moved] = 1
        second.o_proj.weight[capital, 4 * 0 + i] = 30
        second.o_proj.weight[UNREAD, 4 * 1 + i] = 30
    return blank


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
