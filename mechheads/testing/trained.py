"""Models that were trained to known circuits: which heads and MLPs matter, and for what, is known from the training.

A program in plain Python says what the model computes, and which head or MLP computes each of its variables. A GPT-2
with random weights was trained to it by strict interchange-intervention training (SIIT; Gupta et al. 2024, InterpBench,
arXiv 2407.14494; Geiger et al. 2022, arXiv 2112.00826):

- it gives the program's answers;
- if a head or MLP of the program gets what it gave in another text, the answer is the program's with the variable's
  value of the other text;
- if any other head or MLP gets what it gave in another text, the answer stays.

Unlike a compiled model, such a model has weights, norms and MLPs as training leaves them. Its other heads attend and
write, but what they write matters little. Nothing is said of what a model does if a head is taken away (zero ablation):
training only interchanged. ``benchmarks/train_circuits.py`` trains the models.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.random import default_rng
from safetensors import safe_open
from torch.nn.functional import pad

from mechheads.data import folder
from mechheads.heads import HeadId, Mlp, Node, check_node, every_node, in_order
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs
from mechheads.testing.causal_programs import CAUSAL_PROGRAMS, CausalProgram
from mechheads.testing.planting import blank_gpt2, word_tokenizer
from mechheads.testing.programs import draw_pairs

_POSITIONS = "transformer.wpe.weight"
"""Trained for ``<bos>`` and a text; one more, of zeros, makes room for an answer after the text."""


@dataclass(frozen=True)
class TrainedNode:
    """What a head or MLP was trained to compute.

    Attributes:
        variable: the variable of the program.
        does: the same in words.
    """

    variable: str
    does: str


@dataclass(frozen=True, eq=False, repr=False)
class TrainedModel:
    """A model that was trained to a known circuit; made by ``trained_model``.

    Attributes:
        name: the name of the program.
        model: the model, in float32 on the CPU.
        words: the words of texts and answers.
        nodes: what each head and MLP of the circuit does, in the order in which they are computed.
        measured: what ``benchmarks/train_circuits.py`` measured on texts that training did not see: ``"accuracy"``;
            ``"interchange"``, of each variable how often the answer after an interchange is the program's; ``"moves"``,
            of each variable how often an interchange changes the answer; ``"changes"``, the same of every other head
            and MLP.
    """

    name: str
    model: Model
    words: tuple[str, ...]
    nodes: dict[Node, TrainedNode]
    measured: Mapping[str, Any]

    @property
    def heads(self) -> dict[HeadId, TrainedNode]:
        """The heads among the nodes.

        >>> [it.variable for it in mh.testing.trained_model("comparison").heads.values()]
        ['before', 'number']
        """
        return {node: it for node, it in self.nodes.items() if isinstance(node, HeadId)}

    @property
    def mlps(self) -> dict[Mlp, TrainedNode]:
        """The MLPs among the nodes.

        >>> [it.variable for it in mh.testing.trained_model("comparison").mlps.values()]
        ['compared']
        """
        return {node: it for node, it in self.nodes.items() if isinstance(node, Mlp)}

    @property
    def idle(self) -> tuple[Node, ...]:
        """All other heads and MLPs: what they give is the same for the answer, whatever the text.

        >>> len(mh.testing.trained_model("induction").idle)
        8
        """
        every = every_node(self.model.n_layers, self.model.n_heads)
        return tuple(node for node in every if node not in self.nodes)

    def prompts(self, n: int = 24, seed: int = 0) -> list[str]:
        """Texts that training did not see, drawn at random.

        Raises:
            ValueError: if ``n`` is less than 1 or ``seed`` less than 0.

        >>> len(mh.testing.trained_model("indirect_object").prompts(2)[0].split())
        9
        """
        check_at_least(1, n=n)
        check_at_least(0, seed=seed)
        rng = default_rng(seed)
        return [" ".join(self._program.draw_one(rng, held_out=True)) for _ in range(n)]

    def pairs(self, n: int = 24, seed: int = 0) -> PromptPairs:
        """Pairs of texts with different answers, for patching. Training did not see these texts.

        Raises:
            ValueError: if ``n`` is less than 1 or ``seed`` less than 0.

        >>> made = mh.testing.trained_model("induction")
        >>> effect = mh.activation_patch(made.model, made.pairs(), site="z", metric=mh.logit_diff, progress=False)
        >>> sorted(effect.top(2).index) == sorted(map(str, made.heads))
        True
        """
        check_at_least(1, n=n)
        check_at_least(0, seed=seed)
        program = self._program
        return draw_pairs(lambda rng: program.draw_one(rng, held_out=True), program.answer, n, seed)

    def expected(self, prompt: str) -> str | None:
        """The program's answer to a text.

        Raises:
            ValueError: if the text has another length than the program's texts, or a word that they do not have.

        >>> mh.testing.trained_model("comparison").expected("red 4 blue 7 pink 1 , 5 blue")
        'less'
        """
        return self._program.answer(self._read("prompt", prompt))

    def interchanged(self, prompt: str, other: str, variable: str) -> str | None:
        """The program's answer to a text if a variable has its value from another text.

        Args:
            prompt: the text.
            other: the other text.
            variable: the name of a variable.

        Returns:
            The answer; None if the program has none, because nothing in the text fits the other value.

        Raises:
            ValueError: as for ``expected``, or if there is no such variable.

        >>> made = mh.testing.trained_model("comparison")
        >>> made.interchanged("red 4 blue 7 pink 1 , 5 blue", "red 3 grey 2 pink 7 , 2 red", "number")
        'more'
        """
        check_known("variable", variable, [it.variable for it in self.nodes.values()])
        words, others = self._read("prompt", prompt), self._read("other", other)
        return self._program.answer(words, {variable: self._program.values(others)[variable]})

    @property
    def _program(self) -> CausalProgram:
        return CAUSAL_PROGRAMS[self.name]

    def _read(self, argument: str, text: str) -> list[str]:
        words, example = text.split(), self._program.draw(default_rng(0))
        if len(words) != len(example):
            raise ValueError(
                f"{argument} has {len(words)} words; texts of {self.name!r} have {len(example)}, as in "
                f"{' '.join(example)!r}"
            )
        for word in words:
            check_known(f"a word of {argument}", word, self.words)
        return words

    def __repr__(self) -> str:
        nodes = " ".join(f"{node}={it.variable}" for node, it in self.nodes.items())
        return f"<TrainedModel {self.name!r}: {nodes}, {len(self.idle)} idle>"


def trained_model(name: str) -> TrainedModel:
    """A transformer that was trained to a known circuit, for testing what finds heads and circuits.

    ``help(mh.testing.trained)`` describes the training. The answer to a text comes after its last word.

    Args:
        name: the program: induction, indirect_object or comparison.

    Raises:
        ValueError: if there is no such program.

    >>> made = mh.testing.trained_model("indirect_object")
    >>> [it.variable for it in made.heads.values()]
    ['duplicate', 'inhibited', 'mover']
    >>> made.expected("bob and ann met , ann gave milk to")
    'bob'
    """
    check_known("name", name, CAUSAL_PROGRAMS)
    program = CAUSAL_PROGRAMS[name]
    with safe_open(Path(str(folder("trained") / f"{name}.safetensors")), "pt") as file:
        about = json.loads(file.metadata()["about"])
        weights = {at: file.get_tensor(at) for at in file.keys()}  # noqa: SIM118
    weights[_POSITIONS] = pad(weights[_POSITIONS], (0, 0, 0, 1))
    sizes = about["sizes"]
    n_layers, n_heads, n_positions = program.n_layers, sizes["n_heads"], sizes["length"] + 2
    tokenizer = word_tokenizer(program.words, name, n_positions)
    with torch.random.fork_rng(devices=[]):
        options = {"vocab_size": len(tokenizer), "n_positions": n_positions, "n_inner": sizes["d_mlp"]}
        gpt2 = blank_gpt2(n_layers, n_heads, sizes["d_model"], **options)
        gpt2.load_state_dict(weights)
        model = from_transformers(gpt2, tokenizer, f"trained-{name}")
    does = {variable.name: variable.does for variable in program.variables}
    known = {check_node(at, n_layers, n_heads): TrainedNode(it, does[it]) for it, at in about["nodes"].items()}
    return TrainedModel(name, model, program.words, {node: known[node] for node in in_order(known)}, about["held out"])
