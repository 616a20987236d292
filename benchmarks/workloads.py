"""The workloads: what each measures, and its prompts as token ids, which are the same for every tool."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from benchmarks import flops
from benchmarks.flops import Shape

if TYPE_CHECKING:
    from mechheads import Model, PromptPairs
    from mechheads.labels.relations import UsablePairs

Head = tuple[int, int]
Ids = list[list[int]]

EARLY = "The country {country} lies very far away from here, and its capital city is called"
TOKENS, LONG, SEED = 16, 256, 0
REQUEST, SHOTS, UPDATES, MIN_PAIRS = 17, 3, 2, 30
"""Tokens of a request in its template, shots of a prompt for gates, updates of gates, and the fewest pairs of words."""

TITLES = {
    "W1": "activation patching of z at all positions, logit difference at the last",
    "W1-early": "the same, with pairs that differ from token 2 of 16 on",
    "W2a": "path patching of every head to the final logits",
    "W2b": "path patching of every earlier head to the query of one late head",
    "W3": "zero ablation of every head, KL at the last position",
    "W6": "activation patching of z at the last position only, long prompts",
    "Ships-U": "Ships of every head for requests, Undifferentiated Attention",
    "Ships-S": "Ships of every head for requests, Scaling Contribution",
    "gates": "two updates of the gates of all heads",
    "labels": "which pairs of words every head's weights map, 19 relations, no null",
}
Kind = Literal["activation", "path", "ablation", "undifferentiated", "scaling", "gates", "labels"]


@dataclass(frozen=True)
class ModelSpec:
    """A model as a transformers folder.

    Attributes:
        receiver: the late head of W2b.
        trained: whether the model is trained, so that prompts are texts; otherwise they are random ids.
    """

    name: str
    folder: str
    device: str
    receiver: Head
    trained: bool


@dataclass(frozen=True)
class Workload:
    """One sweep over heads. All prompts have as many tokens.

    Attributes:
        kind: ``activation`` puts z of the source run into the base run; ``path`` does so for the path to
            ``receiver`` only; ``ablation`` sets z to 0; ``undifferentiated`` and ``scaling`` multiply q and z by nearly
            0; ``gates`` fits a factor of every head's z; ``labels`` reads weights only.
        base, source: token ids of the run that is changed, and of the run that z comes from; for ``labels`` one row
            with each source of the relations' pairs once.
        answer, wrong: token ids for the logit difference; without them the metric is KL(base || changed). For ``gates``
            the targets are ``answer``.
        last_only: z changes at the last position only, not at all positions.
        receiver: ``final``, or the layer and head whose query is the receiver; None unless ``kind`` is ``path``.
    """

    name: str
    kind: Kind
    base: Ids
    source: Ids | None = None
    answer: list[int] | None = None
    wrong: list[int] | None = None
    last_only: bool = False
    receiver: Head | str | None = None

    @property
    def title(self) -> str:
        return TITLES[self.name]

    @property
    def n_tokens(self) -> int:
        return len(self.base[0])

    @property
    def differ(self) -> list[int] | None:
        """The first token of each prompt at which the two runs differ."""
        if self.source is None:
            return None
        pairs = zip(self.base, self.source, strict=True)
        return [next(i for i, (a, b) in enumerate(zip(*pair, strict=True)) if a != b) for pair in pairs]

    @property
    def changed(self) -> list[int]:
        """The first position of each prompt at which z changes."""
        if self.last_only:
            return [self.n_tokens - 1] * len(self.base)
        return self.differ or [0] * len(self.base)

    @property
    def whole(self) -> bool:
        """Whether all heads take part in every step, so that no tool can run a sample."""
        return self.kind == "gates"

    def heads(self, shape: Shape) -> list[Head]:
        """Every head of the sweep; with a head as the receiver, only the heads in earlier layers."""
        layers = self.receiver[0] if isinstance(self.receiver, tuple) else shape.n_layers
        return [(layer, head) for layer in range(layers) for head in range(shape.n_heads)]

    def flops(self, shape: Shape, heads: Sequence[Head]) -> int:
        """The least FLOPs that the sweep over these heads needs; see ``benchmarks.flops``.

        0 for ``labels``, for which there is no such number: a logit that cannot be among the largest needs no product.
        """
        if self.kind == "gates":
            return UPDATES * len(self.base) * flops.gate_update(shape, self.n_tokens)
        if self.kind == "labels":
            return 0
        return flops.needed(
            shape,
            heads,
            differ=self.differ,
            changed=self.changed,
            end=self.n_tokens,
            receiver=self.receiver,
            logits=None if self.answer is None else 2,
        )


def sample(heads: Sequence[Head], count: int) -> list[Head]:
    """``count`` of these heads, spread evenly over the layers."""
    count = min(count, len(heads))
    return [heads[int((i + 0.5) * len(heads) / count)] for i in range(count)]


def default_model(device: str) -> ModelSpec:
    """SmolLM2-135M-Instruct, the model of ``mh.load()``."""
    from mechheads.model.sources.default import default_folder

    return ModelSpec("SmolLM2-135M-Instruct", str(default_folder()), device, (26, 2), True)


def random_model(device: str, folder: Path) -> ModelSpec:
    """A random model of GPT-2 small's shape, written to ``folder`` with the default model's tokenizer.

    Weights are drawn with a standard deviation of 0.06, three times GPT-2's, so that heads have effects to compare.
    """
    import torch
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    from mechheads.model.sources.default import default_folder

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = GPT2LMHeadModel(GPT2Config(initializer_range=0.06))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(default_folder(), trust_remote_code=False).save_pretrained(folder)
    return ModelSpec("random, GPT-2 small's shape", str(folder), device, (10, 7), False)


def build(name: str, model: Model, spec: ModelSpec, *, quick: bool) -> Workload:
    """The workload of that name, with 8 prompts (W6: 4 of 256 tokens); ``quick`` takes 2 prompts, and 64 tokens."""
    n, long = (2, 64) if quick else (4 if name == "W6" else 8, LONG)
    if name == "W3":
        return Workload(name, "ablation", sentences(model)[:n])
    if name in ("Ships-U", "Ships-S"):
        return Workload(name, "undifferentiated" if name == "Ships-U" else "scaling", requests(model, n))
    if name == "gates":
        return Workload(name, "gates", *few_shot(model, n))
    if name == "labels":
        sources = {source for kept in usable(model) for source, _ in kept.tokens}
        return Workload(name, "labels", [sorted(source for source in sources if source is not None)])
    pairs_of = _texts if spec.trained else _random
    clean, corrupted, answer, wrong = pairs_of(model, name, n, long)
    if name in ("W1", "W1-early", "W6"):
        return Workload(name, "activation", corrupted, clean, answer, wrong, last_only=name == "W6")
    receiver = {"W2a": "final", "W2b": spec.receiver}[name]
    return Workload(name, "path", clean, corrupted, answer, wrong, receiver=receiver)


def requests(model: Model, n: int) -> Ids:
    """The first ``n`` requests of the package whose prompts, in the paper's template, have the most common length."""
    from mechheads.safety import load_requests, request_prompts

    tokens = request_prompts(model, load_requests()).tokens(model)
    rows = [row[:length].tolist() for row, length in zip(tokens.ids, tokens.lengths, strict=True)]
    return _even([row for row in rows if len(row) == REQUEST][:n], REQUEST)


def few_shot(model: Model, n: int) -> tuple[Ids, None, list[int]]:
    """Few-shot prompts about capitals, no second run, and the capitals."""
    from mechheads.labels.few_shot import few_shot_prompts

    tokens = few_shot_prompts(model, "country_to_capital", shots=SHOTS, n=4 * n).tokens(model)
    if tokens.answer is None:
        raise ValueError("the prompts have no answers")
    size = int(tokens.lengths[0])
    alike = [row for row, length in enumerate(tokens.lengths.tolist()) if length == size][:n]
    return tokens.ids[alike, :size].tolist(), None, [int(tokens.answer[row]) for row in alike]


def usable(model: Model) -> list[UsablePairs]:
    """The package's relations with their pairs of single tokens, if there are at least 30."""
    from mechheads.labels.relations import usable_pairs

    return [kept for kept in usable_pairs(None, model.tokenizer, min_pairs=0) if len(kept.pairs) >= MIN_PAIRS]


def sentences(model: Model) -> Ids:
    """The first 16 tokens of each of 32 ordinary sentences, which all begin differently."""
    from mechheads.safety.refusal import ordinary_texts

    rows = [model.tokenizer(line)["input_ids"][:TOKENS] for line in ordinary_texts()]
    return _even(rows, TOKENS)


def ring_of_capitals(model: Model, n: int) -> PromptPairs | None:
    """Pairs that ask for a capital, whose corrupted prompt names the next country: n of n countries.

    Neighbours share a prompt. That is nothing to speed, but intervals over these pairs, which count each as one
    observation, are too narrow; the atlas has ``mechheads.studies.questions.capital_pairs``, which share none.
    """
    from mechheads.labels.relations import Relation
    from mechheads.prompts.encoding import single_token
    from mechheads.prompts.prompts import PromptPairs
    from mechheads.studies.questions import CAPITALS, TEMPLATES

    def is_known(pair: Sequence[str]) -> bool:
        return all(single_token(f" {word}", model.tokenizer) is not None for word in pair)

    known = [pair for pair in Relation.load(CAPITALS).pairs if is_known(pair)][:n]
    if len(known) < 2:
        return None
    turned = [*known[1:], known[0]]
    clean, corrupted = ([TEMPLATES[0].format(country=country) for country, _ in side] for side in (known, turned))
    answer, wrong = ([f" {capital}" for _, capital in side] for side in (known, turned))
    places = {"country": ([country for country, _ in known], [country for country, _ in turned])}
    with warnings.catch_warnings(action="ignore"):  # of the prompts that are shared
        return PromptPairs(clean, corrupted, answer, wrong, places, [f"row {row}" for row in range(len(known))])


def _texts(model: Model, name: str, n: int, long: int) -> tuple[Ids, Ids, list[int], list[int]]:
    """Pairs that ask for capitals; for W6, ordinary sentences come before them, up to the length of the prompt."""
    pairs = ring_of_capitals(model, n)
    if pairs is None or len(pairs) < n:
        raise ValueError(f"model {model.name} has fewer than {n} capitals that are one token")
    if name == "W1-early":
        pairs = _early(pairs)
    clean, corrupted = pairs.tokens(model)
    if clean.answer is None or clean.wrong is None:
        raise ValueError("the pairs have no answers to compare")
    sides = [clean.ids.tolist(), corrupted.ids.tolist()]
    if name == "W6":
        filler = np.array(sentences(model)).ravel().tolist()
        before = long - clean.ids.shape[1]
        starts = [filler[row * TOKENS : row * TOKENS + before] for row in range(n)]
        sides = [[start + row for start, row in zip(starts, side, strict=True)] for side in sides]
    for side in sides:
        _even(side, len(side[0]))
    return sides[0], sides[1], clean.answer.tolist(), clean.wrong.tolist()


def _early(pairs: PromptPairs) -> PromptPairs:
    """The same countries and capitals in a sentence that names the country early."""
    from mechheads import PromptPairs

    clean, corrupted = ([EARLY.format(country=country) for country in side] for side in pairs.positions["country"])
    return PromptPairs(clean, corrupted, pairs.answer, pairs.wrong)


def _random(model: Model, name: str, n: int, long: int) -> tuple[Ids, Ids, list[int], list[int]]:
    """Pairs of random ids that share the first two thirds, or the first two tokens for W1-early."""
    tokens = long if name == "W6" else TOKENS
    shared = 2 if name == "W1-early" else 2 * tokens // 3
    random = np.random.default_rng(SEED)

    def draw(*size: int) -> np.ndarray:
        return random.integers(model.d_vocab, size=size)

    clean = draw(n, tokens)
    corrupted = np.concatenate([clean[:, :shared], (clean[:, shared:] + 1) % model.d_vocab], axis=1)
    return clean.tolist(), corrupted.tolist(), draw(n).tolist(), draw(n).tolist()


def _even(rows: Ids, tokens: int) -> Ids:
    """The rows, after a check that each has that many tokens."""
    if any(len(row) != tokens for row in rows):
        raise ValueError(f"every prompt of a workload must have {tokens} tokens, got {[len(row) for row in rows]}")
    return rows
