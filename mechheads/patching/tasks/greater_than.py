"""Greater than: "The war lasted from the year 1732 to the year 17" -> a number above 32.

Hanna et al. 2023, "How does GPT-2 compute greater-than?", arXiv 2305.00586. In the corrupted prompt the first year ends
in 01, after which almost every number is right. Where a token has one digit, the next token is the decade.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.metrics.base import MetricContext
from mechheads.patching.tasks.items import Item, Split, half, next_token
from mechheads.prompts.tokens import Reader

SOURCE = "Hanna et al. 2023, How does GPT-2 compute greater-than?, arXiv 2305.00586"
_TEMPLATE = "The {noun} lasted from the year {century}{year} to the year {century}"
_NOUNS = """
    war voyage reign siege project drought expedition conflict campaign trial construction exhibition study dispute
    marriage journey famine treaty rebellion revolution partnership friendship occupation strike
"""
_CENTURIES = range(11, 18)


@dataclass(frozen=True)
class ProbabilityDifference:
    """The probability of the numbers above the first year, minus that of the others.

    Attributes:
        numbers: the tokens of all numbers (00 to 99) or digits, in their order.
        gap: the answer of a prompt is the smallest that is right; those that count as wrong begin so far below it. It
            is 2 for digits: the decade of the first year itself is neither.
    """

    numbers: tuple[int, ...]
    gap: int
    reads = "last"
    unit = "probability"
    null = 0.0
    vocab = "all"

    def __call__(
        self, logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext
    ) -> Float[Tensor, " prompt"]:
        numbers = torch.tensor(self.numbers, device=logits.device)
        p = logits[:, -1].softmax(-1)[:, numbers]
        smallest = (numbers == context.answer[:, None]).long().argmax(1, keepdim=True)
        at = torch.arange(len(numbers), device=logits.device)
        return (p * (at >= smallest)).sum(1) - (p * (at <= smallest - self.gap)).sum(1)


def metric_of(model: Reader) -> ProbabilityDifference:
    """The measure for a tokenizer's numbers.

    Raises:
        ValueError: if neither numbers of two digits nor digits are one token.
    """
    before = _TEMPLATE.format(noun="war", century=17, year=32)
    for n_digits in (2, 1):
        found = [next_token(model, before, f"{number:0{n_digits}d}") for number in range(10**n_digits)]
        tokens = tuple(token for token in found if token is not None)
        if len(set(tokens)) == 10**n_digits:
            return ProbabilityDifference(tokens, 3 - n_digits)
    raise ValueError("the model's tokenizer has no token for each digit, nor for each number of two digits")


def in_tokens_of(model: Reader) -> tuple[Callable[[Split, np.random.Generator], Iterator[Item]], ProbabilityDifference]:
    """The items and the measure for a tokenizer's numbers; raises as ``metric_of``."""
    metric = metric_of(model)
    return partial(items, metric=metric), metric


def items(split: Split, rng: np.random.Generator, metric: ProbabilityDifference) -> Iterator[Item]:
    nouns = half(_NOUNS.split(), split)
    digits = metric.gap == 2
    while True:
        noun, century = rng.choice(nouns), rng.choice(_CENTURIES)
        year = int(rng.integers(10, 90) if digits else rng.integers(2, 99))
        clean, corrupted = (_TEMPLATE.format(noun=noun, century=century, year=text) for text in (f"{year:02d}", "01"))
        answer, wrong = (str(year // 10 + 1), "0") if digits else (f"{year + 1:02d}", "02")
        if answer != wrong:
            yield Item(clean, corrupted, answer, wrong, str(noun))
