"""ABA and ABB: three lines show which of two words comes again, and the fourth asks for it.

    - dog sun dog
    - tree book tree
    - hat rain hat
    - milk door               -> " milk" (ABA)

Yang et al. 2025, "Emergent Symbolic Mechanisms Support Abstract Reasoning in Large Language Models", arXiv 2502.20332.
In the corrupted prompt the lines follow the other rule; the words are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mechheads.patching.tasks.items import Item, Split, half

SOURCE = "Yang et al. 2025, Emergent Symbolic Mechanisms Support Abstract Reasoning in LLMs, arXiv 2502.20332"
_WORDS = """
    dog sun tree book hat rain milk door cat moon river chair bread glass horse stone house music paper water table
    fish snow garden ship light wall road bird king salt wind gold fire hand leaf boat egg clock bridge
"""
_LINES = 3


def items(split: Split, rng: np.random.Generator) -> Iterator[Item]:
    words = half(_WORDS.split(), split)
    while True:
        drawn = [words[j] for j in rng.permutation(len(words))[: 2 * (_LINES + 1)]]
        shown, (a, b) = list(zip(drawn[:-2:2], drawn[1:-2:2], strict=True)), drawn[-2:]
        aba, abb = ("".join(f"- {x} {y} {(x, y)[rule]}\n" for x, y in shown) + f"- {a} {b}" for rule in (0, 1))
        if rng.random() < 0.5:
            yield Item(aba, abb, f" {a}", f" {b}", a)
        else:
            yield Item(abb, aba, f" {b}", f" {a}", b)
