"""GELU in one pass over memory, where transformers takes eight.

transformers writes the tanh formula of GPT-2 and its successors step by step,

    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))

and each step reads and writes all activations of the MLP. torch has the same formula in one step. In half precision,
each step also rounds, so there the model keeps its own.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.nn.functional import gelu
from transformers.activations import FastGELUActivation, NewGELUActivation

from mechheads.model.backends.temporary_changes import Forward

_STEP_BY_STEP = NewGELUActivation, FastGELUActivation


def step_by_step_gelus(block: nn.Module) -> list[nn.Module]:
    """The activations of a block that torch computes in one step."""
    return [part for part in block.modules() if isinstance(part, _STEP_BY_STEP)]


def gelu_in_one_step(activation: nn.Module) -> Forward:
    """The change that lets an activation run in one step."""
    return Forward(activation, partial(gelu, approximate="tanh"))
