"""Arithmetic: sums and differences whose result is one token, such as "7 + 2 =" -> " 9".

Nikankin et al. 2024, "Arithmetic Without Algorithms", arXiv 2410.21272, whose task MIB (Mueller et al. 2025) uses. The
corrupted prompt has another second number. Tokenizers differ in whether numbers begin with a space, and in how many
digits a token has: the space ends the prompt or begins the answer, and results are as large as one token allows.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechheads.patching.tasks.items import Item, Split

SOURCE = "Nikankin et al. 2024, Arithmetic Without Algorithms, arXiv 2410.21272; Mueller et al. 2025 (MIB)"
_TEMPLATES = (
    "{a} {sign} {b} =",
    "Question: What is {a} {sign} {b}? Answer:",
    "We calculate {a} {sign} {b} and get",
)
_LARGEST = 50


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    i = 0
    while True:
        template, sign = _TEMPLATES[i % len(_TEMPLATES)], "+-"[i // len(_TEMPLATES) % 2]
        largest = 9 if rng.random() < 0.5 else _LARGEST
        a, b, other = (int(number) for number in rng.integers(1, largest + 1, 3))
        result, wrong = (a + each if sign == "+" else a - each for each in (b, other))
        # Both orders of two numbers belong to one split.
        mine = (a * b + a + b) % 2 == (0 if split == "train" else 1)
        if mine and result != wrong and min(result, wrong) >= 0:
            clean, corrupted = (template.format(a=a, b=each, sign=sign) for each in (b, other))
            yield Item(clean, corrupted, f" {result}", f" {wrong}", f"{a} {sign} {b}")
            yield Item(f"{clean} ", f"{corrupted} ", str(result), str(wrong), f"{a} {sign} {b}")
            i += 1
