"""Models whose heads are known: compiled from programs, trained to circuits, or built to behave.

Their weights come with the package.

**Compiled.** A program in RASP (Weiss et al. 2021, arXiv 2106.06981) was compiled by tracr (Lindner et al. 2023, arXiv
2301.05062) to a transformer without norms, and its weights were put into a GPT-2 that computes the same: each norm has
weights of 1e6 and an epsilon of 1e12, so that it only subtracts the mean, and one more direction of the residual stream
keeps the mean at zero. The logit of the program's output is 20, and other logits are 0. One more program was compiled
by torchwright (Porter 2026, github.com/physicsrob/torchwright) to a Phi-3 with its norms, rotations and gates. tracr
and torchwright have the Apache licence, version 2.0. The compilers make the heads that the program needs. All others
attend at random, and write to directions that nothing reads.

**Trained.** A program defines the model's answers, and the head or MLP that computes each of its variables. A GPT-2
with random weights was trained to it by strict interchange-intervention training (SIIT; Gupta et al. 2024, InterpBench,
arXiv 2407.14494; Geiger et al. 2022, arXiv 2112.00826):

- it gives the program's answers;
- if the output of a head or MLP of the program is replaced by its output on another text, the answer is the program's
  with the variable's value in the other text;
- if the output of any other head or MLP is replaced in the same way, the answer stays the same.

Training only interchanged outputs, so the behaviour of such a model under zero ablation is unknown.

**Behaving.** The weights of a GPT-2 were computed, so that some heads attend to the token before, to earlier copies and
so on, with noise of half their size. The other heads attend and write at random.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mechheads.data import folder
from mechheads.heads import HeadId, Mlp, Node
from mechheads.messages.arguments import check_known
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SPECIAL = ("<bos>", "<eos>", "<pad>", "<unk>")


@dataclass(frozen=True)
class KnownNode:
    """The known function of a head or MLP.

    Attributes:
        name: the variable of the program that it computes, or its behaviour.
        does: the same in words.
        attends: the name for its attention in a profile, or None if it has none. A head that has no token to attend to
            rests on the first token, so a profile may call it a sink too.
    """

    name: str
    does: str
    attends: str | None = None


@dataclass(frozen=True, eq=False, repr=False)
class KnownModel:
    """A model whose heads are known; made by ``compiled_model``, ``trained_model`` and ``behaving_model``.

    Attributes:
        model: the model, in float32 on the CPU.
        program: the text of the program that it computes, as Python; empty if it was built to behave.
        nodes: the known function of each head and MLP that has one.
        texts: texts for a profile. The program need not have an answer to them.
        all_pairs: pairs of texts of the same length with different answers after their last words: the clean and the
            corrupted texts, and the answers to both.
    """

    model: Model
    program: str
    nodes: dict[Node, KnownNode]
    texts: list[str]
    all_pairs: tuple[list[str], list[str], list[str], list[str]]

    @property
    def heads(self) -> dict[HeadId, KnownNode]:
        """The heads among the nodes."""
        return {node: it for node, it in self.nodes.items() if isinstance(node, HeadId)}

    @property
    def others(self) -> tuple[HeadId, ...]:
        """All other heads: no answer of a program depends on them; in a behaving model, they do nothing special."""
        every = (HeadId(layer, head) for layer in range(self.model.n_layers) for head in range(self.model.n_heads))
        return tuple(head for head in every if head not in self.nodes)

    def pairs(self, n: int = 24) -> PromptPairs:
        """The first pairs, for patching. ``answer`` and ``wrong`` are the answers to both texts.

        The clean text of a behaving model ends with a copy of an earlier word, and the answer is the word that followed
        it; the wrong answer is another word of the text.

        Raises:
            ValueError: if there are fewer pairs than ``n``, or ``n`` is less than 1.

        >>> known = mh.testing.compiled_model("induction")
        >>> effect = mh.activation_patch(known.model, known.pairs(), progress=False)
        >>> sorted(effect.top(2).index) == sorted(map(str, known.heads))
        True
        """
        known = len(self.all_pairs[0])
        if not 1 <= n <= known:
            raise ValueError(f"n is {n}; it must be from 1 to {known}, the number of known pairs")
        clean, corrupted, answer, wrong = (column[:n] for column in self.all_pairs)
        return PromptPairs(clean, corrupted, answer, wrong)

    def __repr__(self) -> str:
        nodes = " ".join(f"{node}={it.name}" for node, it in self.nodes.items())
        return f"<KnownModel {self.model.name!r}: {nodes}, {len(self.others)} other heads>"


def compiled_model(name: str) -> KnownModel:
    """A transformer that was compiled from a program, for tests of methods that find heads and circuits.

    ``help(mh.testing.known)`` describes its weights.

    Args:
        name: the program: reverse, induction, pattern, histogram, distinct, majority, brackets, indirect_object, or
            phi3_induction, which is a Phi-3 instead of a GPT-2.

    Raises:
        ValueError: if there is no such program.

    >>> known = mh.testing.compiled_model("induction")
    >>> known
    <KnownModel 'compiled-induction': L0H2=before L1H3=induction, 6 other heads>
    >>> known.heads[mh.HeadId(1, 3)].does
    'attends to the word after a copy of this one'
    """
    return _shipped("compiled", name)


def trained_model(name: str) -> KnownModel:
    """A transformer that was trained to a known circuit, for tests of methods that find heads and circuits.

    ``help(mh.testing.known)`` describes the training, which did not see the texts of ``pairs``.

    Args:
        name: the program: induction, indirect_object or comparison.

    Raises:
        ValueError: if there is no such program.

    >>> known = mh.testing.trained_model("indirect_object")
    >>> [it.name for it in known.nodes.values()]
    ['duplicate', 'inhibited', 'mover']
    """
    return _shipped("trained", name)


def behaving_model() -> KnownModel:
    """A transformer whose heads attend in known ways, for tests of methods that describe heads.

    Two heads have each behaviour, and one is primary: it copies the word that it attends to, and two backup heads
    replace it if it is ablated. Negative heads lower the logit of the word that they attend to.

    >>> known = mh.testing.behaving_model()
    >>> profile = mh.profile_heads(known.model, known.texts, window=100)
    >>> set(profile.named("induction")) == {head for head, it in known.heads.items() if it.attends == "induction"}
    True
    """
    return read_known("behaving", Path(str(folder("known") / "behaving.npz")))


def read_known(name: str, path: Path) -> KnownModel:
    """The model in a file of the package."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with np.load(path) as file:
        facts = json.loads(file["about"].tobytes())
        weights = {key: torch.from_numpy(file[key]) for key in file.files if key != "about"}
    config = AutoConfig.for_model(**facts["config"])
    tokenizer = word_tokenizer(facts["vocabulary"], name, config.max_position_embeddings)
    with torch.random.fork_rng(devices=[]):
        own = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        own.load_state_dict(weights)
        model = from_transformers(own, tokenizer, name)
    nodes: dict[Node, KnownNode] = {
        HeadId.parse(at) if "H" in at else Mlp(int(at.removeprefix("L").removesuffix(".mlp"))): KnownNode(*it)
        for at, it in sorted(facts["nodes"].items())
    }
    return KnownModel(model, facts["program"], nodes, facts["texts"], tuple(facts["pairs"]))


def _shipped(kind: str, name: str) -> KnownModel:
    files = {file.name for file in folder("known").iterdir() if file.name.startswith(f"{kind}-")}
    check_known("name", name, sorted(file.removeprefix(f"{kind}-").removesuffix(".npz") for file in files))
    return read_known(f"{kind}-{name}", Path(str(folder("known") / f"{kind}-{name}.npz")))


def word_tokenizer(words: Sequence[str], name: str, context: int) -> PreTrainedTokenizerFast:
    """A tokenizer in which every word is one token that decodes with a leading space. Texts begin with ``<bos>``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {token: i for i, token in enumerate([*SPECIAL, *(f"▁{word}" for word in words)])}
    tokenizer: Any = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    space = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), space])
    tokenizer.decoder = decoders.Replace("▁", " ")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", 0)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        name_or_path=name,
        add_bos_token=True,
        model_max_length=context,
    )
