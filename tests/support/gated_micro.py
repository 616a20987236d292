"""A model with weights set by hand in which one head is needed, one hurts, and the others do nothing.

Two layers of four heads, no MLP, no positions, and a norm that changes nothing (see ``Blank``). No head has
queries or keys, so each looks everywhere alike. A prompt is " the", a country and " is": three tokens, so that at its
end every z is a third of the country's value.

    L0H1 writes 24 z to the logit of the country's capital:   +8
    L1H2 writes -12 z to the same:                            -4
    L1H0 writes 24 z where nothing reads it; the other heads write nothing.

With gates g and h on the first two, and V tokens, the capital has the logit s = 8 g - 4 h and all others 0, so

    log p = s - log(e^s + V - 1),        d log p / d g = 8 (1 - p),        d log p / d h = -4 (1 - p)
"""

from __future__ import annotations

import math
from pathlib import Path

import torch

import mechheads as mh
from mechheads.gating import Task
from support.blank import Blank

CAPITALS = {" France": " Paris", " Italy": " Rome", " Spain": " Madrid", " Germany": " Berlin"}
NEEDED, HURTS = (0, 1), (1, 2)
DEAD = [(layer, head) for layer in range(2) for head in range(4) if (layer, head) not in (NEEDED, HURTS)]
UNREAD = 14


@torch.no_grad()
def build(folder: Path) -> mh.Model:
    """Save the model above, and load it."""
    blank = Blank()
    first, second = blank.attention
    for i, (country, capital) in enumerate(CAPITALS.items()):
        blank.embedding[blank.token(country), i] = 1
        blank.unembedding[blank.token(capital), 4 + i] = 1
        first.v_proj.weight[i, i] = 1  # key/value head 0: query heads 0 and 1
        first.o_proj.weight[4 + i, 4 * 1 + i] = 24
        second.v_proj.weight[i, i] = 1
        second.v_proj.weight[4 + i, i] = 1  # key/value head 1: query heads 2 and 3
        second.o_proj.weight[4 + i, 4 * 2 + i] = -12
        second.o_proj.weight[UNREAD, 4 * 0 + i] = 24
    return blank.load(folder)


def capitals() -> Task:
    """Each country's capital."""
    return Task([f" the{country} is" for country in CAPITALS], list(CAPITALS.values()), name="capitals")


def log_p(model: mh.Model, g: float, h: float) -> float:
    """What the targets get under gates g and h, on paper."""
    s = 8 * g - 4 * h
    return s - math.log(math.exp(s) + model.d_vocab - 1)
