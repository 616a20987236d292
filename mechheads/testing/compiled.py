"""Models that were compiled from programs: what every head does is known from the program.

A program in RASP (Weiss et al. 2021, arXiv 2106.06981) was compiled by tracr (Lindner et al. 2023, arXiv 2301.05062) to
a transformer without norms. ``compiled_model`` puts its weights into a GPT-2 that computes the same:

- each norm has weights of 1e6 and an epsilon of 1e12, so that it only subtracts the mean, and one more direction of the
  residual stream keeps the mean at zero;
- ReLU, one position for each word, and the values of the program as words of the vocabulary, whose logit is 20 if the
  program gives it and 0 otherwise. Where the program gives nothing, all logits are 0. A token that is no word of the
  program is read as one of its words.

One more program was compiled by torchwright (Porter 2026, github.com/physicsrob/torchwright) to a Phi-3 with its norms,
rotations and gates; its final norm is scaled so that logits are 20 here too. tracr and torchwright have the Apache
licence, version 2.0.

The compilers make the heads that the program needs. All others attend at random, and write to directions that nothing
reads. ``benchmarks/compile_programs.py`` and ``benchmarks/compile_phi3.py`` have the programs and compile them.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from numpy.random import Generator, default_rng

from mechheads.data import folder
from mechheads.heads import HeadId
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs
from mechheads.testing.compiled_weights import Compiled, as_gpt2, as_phi3
from mechheads.testing.planting import word_tokenizer
from mechheads.testing.programs import LONGEST, PROGRAMS, CompiledHead, draw_pairs


@dataclass(frozen=True, eq=False, repr=False)
class CompiledModel:
    """A model that was compiled from a program, and what its heads do; made by ``compiled_model``.

    Attributes:
        name: the name of the program.
        model: the model, in float32 on the CPU.
        program: the text of the program, as Python: in RASP, or a graph for torchwright.
        words: the words that texts consist of.
        heads: what each head does that the program needs.
        seed: the argument of ``compiled_model``.
    """

    name: str
    model: Model
    program: str
    words: tuple[str, ...]
    heads: dict[HeadId, CompiledHead]
    seed: int

    @property
    def idle(self) -> tuple[HeadId, ...]:
        """All other heads. No answer depends on what they write.

        >>> len(mh.testing.compiled_model("reverse").idle)
        6
        """
        every = (HeadId(layer, head) for layer in range(self.model.n_layers) for head in range(self.model.n_heads))
        return tuple(head for head in every if head not in self.heads)

    def prompts(self, n: int = 24, seed: int = 0) -> list[str]:
        """Texts for the program, drawn at random, whose last word has a value.

        Raises:
            ValueError: if ``n`` is less than 1 or ``seed`` less than 0.

        >>> mh.testing.compiled_model("indirect_object").prompts(2)
        ['c and e , , , , e , , to', ', , c and b , c and and , to']
        """
        check_at_least(1, n=n)
        check_at_least(0, seed=seed)
        rng = default_rng(seed)
        return [" ".join(self._draw(rng)) for _ in range(n)]

    def texts(self, n: int = 48, seed: int = 0) -> list[str]:
        """Random words, as many as the model reads, for a profile. The program need not have values for them.

        Raises:
            ValueError: if ``n`` is less than 1 or ``seed`` less than 0.

        >>> made = mh.testing.compiled_model("induction")
        >>> profile = mh.profile_heads(made.model, made.texts(), progress=False)
        >>> [made.heads[head].variable for head in profile.named("previous-token")]
        ['before']
        """
        check_at_least(1, n=n)
        check_at_least(0, seed=seed)
        return [" ".join(row) for row in default_rng(seed).choice(self.words, (n, LONGEST))]

    def expected(self, prompt: str) -> list[str | None]:
        """What the program gives after each word of a text, and so the model's next word; None if it has no value.

        >>> mh.testing.compiled_model("reverse").expected("a b c | c b")
        [None, None, None, 'c', 'b', 'a']
        """
        return PROGRAMS[self.name].run(prompt.split())

    def pairs(self, n: int = 24, seed: int = 0) -> PromptPairs:
        """Pairs of texts of the same length with different values at the last word, for patching.

        Raises:
            ValueError: if ``n`` is less than 1 or ``seed`` less than 0.

        >>> made = mh.testing.compiled_model("induction")
        >>> effect = mh.activation_patch(made.model, made.pairs(), site="z", metric=mh.logit_diff, progress=False)
        >>> sorted(effect.top(2).index) == sorted(map(str, made.heads))
        True
        """
        check_at_least(1, n=n)
        check_at_least(0, seed=seed)
        return draw_pairs(self._draw, lambda words: PROGRAMS[self.name].run(words)[-1], n, seed)

    def _draw(self, rng: Generator) -> list[str]:
        return PROGRAMS[self.name].draw(rng)

    def __repr__(self) -> str:
        heads = " ".join(f"{head}={each.variable}" for head, each in self.heads.items())
        return f"<CompiledModel {self.name!r}, seed {self.seed}: {heads}, {len(self.idle)} idle>"


def compiled_model(name: str, *, n_heads: int = 4, seed: int = 0) -> CompiledModel:
    """A transformer that was compiled from a program, for testing what finds heads and circuits.

    ``help(mh.testing.compiled)`` describes how the weights are made.

    Args:
        name: the program: reverse, induction, pattern, histogram, distinct, majority, brackets, indirect_object, or
            phi3_induction, which is a Phi-3 instead of a GPT-2.
        n_heads: the number of heads in each layer, used or not.
        seed: for which head is which, and for the weights of heads that the program does not need.

    Raises:
        ValueError: if there is no such program, or one of its layers has more heads than ``n_heads``.

    >>> made = mh.testing.compiled_model("induction")
    >>> made
    <CompiledModel 'induction', seed 0: L0H2=before L1H3=induction, 6 idle>
    >>> made.heads[mh.HeadId(1, 3)].does
    'attends to the word after a copy of this one'
    """
    check_known("name", name, PROGRAMS)
    check_at_least(0, seed=seed)
    check_at_least(1, n_heads=n_heads)
    compiled = Compiled.read(Path(str(folder("compiled") / f"{name}.safetensors")))
    if n_heads < compiled.most_heads:
        raise ValueError(
            f"n_heads is {n_heads}, but {name!r} has {compiled.most_heads} heads in one layer; give at least as many"
        )
    variables = {
        HeadId(layer, int(number)): variable
        for layer, of in enumerate(compiled.layers)
        for number, variable in zip(default_rng([seed, 0, layer]).permutation(n_heads), of, strict=False)
    }
    new = [answer for answer in compiled.answers if answer not in compiled.words]
    tokenizer = word_tokenizer([*compiled.words, *new], name, compiled.n_positions)
    write = as_phi3 if compiled.config else as_gpt2
    with torch.random.fork_rng(devices=[]):
        model = from_transformers(write(compiled, tokenizer, variables, n_heads, seed), tokenizer, f"compiled-{name}")
    known = {head.variable: head for head in PROGRAMS[name].heads}
    heads = {head: known[variable] for head, variable in sorted(variables.items()) if variable in known}
    return CompiledModel(name, model, compiled.program, compiled.words, heads, seed)
