"""Planted models: small transformers in which the function of every head is known, because its weights were computed.

``planted_model`` builds a GPT-2 whose weights are computed instead of trained. Its residual stream is divided into
mutually orthogonal parts, in a random basis:

| part | written by | read by |
|---|---|---|
| shared | embeddings, the same in all, ten times as large as everything else | W_K, as a constant |
| flags | embeddings: the relation in which a word is a source, which word is ``<bos>``; positions | W_K |
| words | embeddings and the first MLP; a little by the later MLPs | W_V, MLPs |
| codes | heads that tag | W_V of heads that work in context |
| outputs | heads; a little by the later MLPs | W_U, later MLPs |

The shared part makes every norm a fixed scale, near 1. So a head reads a word in context exactly as its weights alone
would read it: E' = W_E[s] in layer 0, and MLP_0(ln2_0(W_E[s])) later. The final norm removes the shared part.

**Values.** A head that implements pairs (s_i, t_i) has a code c_i for each pair. The codes are as nearly orthogonal as
d_head allows. W_V = pinv(E'[s]) C and W_O = C^T T; row i of T is the direction that W_U maps to t_i. With the final
norm's scale, attending to s_i adds about 8 to the logit of t_i. All b_V and b_O are zero.

**Noise** is Gaussian, on W_V and on W_O, scaled so that W_V W_O is off by ``noise`` times its Frobenius norm.

**Attention** depends only on the key token: W_Q is zero and b_Q is constant. Scores are so far apart that a head
attends to one token: the latest source of its relations so far, including the present token. If there is none, it
attends to ``<bos>``, which the tokenizer puts before every text and whose values are all zero, so the head writes
nothing. (In token ids with neither a source nor ``<bos>`` it may attend to any token.) An "unattended" head always
attends to the first token. A head with nothing planted attends to the sources of one relation, drawn at random, as if
it implemented this relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Float64
from numpy.random import Generator, default_rng
from scipy.optimize import brentq

from mechheads.heads import HeadId, check_head
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.testing.known import SPECIAL, word_tokenizer

if TYPE_CHECKING:
    from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

    from mechheads.labels.relations import Relation


PlantedKind = Literal["implements", "suppresses", "unattended", "in context", "tags"]
"""A head maps sources to targets; lowers the targets' logits; would map, but attends to the first token; writes the
target where an earlier head tagged the source; writes a tag that W_U does not read. The last two are random by weights.
"""
Matrix = Float64[np.ndarray, "row column"]

PAIRS, _VOCABULARY, _CONTEXT = 36, 2048, 128
_WORD, _MEANING, _WRITTEN, _LATER_MLP = 0.25, 1.5, 0.25, 0.1
"""Norms in the residual stream: of a word's embedding, and of the outputs of the first MLP, a head and a later MLP."""
_UNEMBEDDING, _FINAL_SCALE = 2.0, 16.0
_STEP = 12.0
"""How many nats the attention score of a token is above the score of the token before it, if their flags are equal."""
_OTHER = (
    ". , : ; ? ! The the A a of is are was in on and to by for one two One no No not When I think it It This this "
    "document about story contains means North South In called word same again twice says opposite capital founder"
)
RELATIONS = (
    ("capitals", "Knowledge", "{0}burg", "The capital of {source} is {target}."),
    ("founders", "Knowledge", "{0}son", "The founder of {source} is {target}."),
    ("plurals", "Linguistic", "{0}s", "One {source}, two {target}."),
    ("opposites", "Linguistic", "un{0}", "The opposite of {source} is {target}."),
    ("copies", "Algorithmic", "{0}", "The same word again: {source} {target}."),
    ("doubles", "Algorithmic", "{0}{0}", "The word {source} twice is {target}."),
    ("to_north", "Translation", "{0}ven", "In the North {source} is called {target}."),
    ("to_south", "Translation", "{0}lao", "In the South {source} is called {target}."),
)
"""Name, category, how a target is made from its source, template."""
NAMES = tuple(name for name, *_ in RELATIONS)


@dataclass(frozen=True)
class PlantedHead:
    """What is planted in one head, with the names of its relations."""

    kind: PlantedKind
    relations: Sequence[str]

    def __post_init__(self) -> None:
        names = [self.relations] if isinstance(self.relations, str) else self.relations
        object.__setattr__(self, "relations", tuple(dict.fromkeys(names)))


Held = str | Sequence[str] | PlantedHead
Plant = Mapping[str, Held] | Mapping[HeadId, Held] | Mapping[tuple[int, int], Held]


@dataclass(frozen=True, eq=False, repr=False)
class PlantedModel:
    """A model, and what each of its heads does; every head in which nothing is planted is a random map."""

    model: Model
    relations: tuple[Relation, ...]
    heads: dict[HeadId, PlantedHead]
    looks_at: dict[HeadId, tuple[str, ...]]  # the relations whose sources a head attends to; if empty, the first token
    noise: float
    seed: int

    @property
    def categories(self) -> dict[HeadId, tuple[str, ...]]:
        """What labels should find: the categories of all heads that implement, are unattended, or work in context."""
        return {
            head: tuple(dict.fromkeys(category for name, category, *_ in RELATIONS if name in held.relations))
            for head, held in self.heads.items()
            if held.kind in ("implements", "unattended", "in context")
        }

    def __repr__(self) -> str:
        kinds = Counter(held.kind for held in self.heads.values())
        planted = ", ".join(f"{kinds[kind]} {kind}" for kind in get_args(PlantedKind) if kind in kinds)
        return f"<PlantedModel of {len(self.looks_at)} heads, seed {self.seed}: {planted or 'nothing planted'}>"


def planted_model(
    *,
    seed: int = 0,
    n_layers: int = 6,
    n_heads: int = 8,
    d_model: int = 256,
    noise: float = 0.5,
    plant: Plant | None = None,
) -> PlantedModel:
    """A model with what ``plant`` says in its heads, as in ``{"L2H3": ["capitals"]}``; by default as ``_draw_heads``.

    ``noise`` is a share of the Frobenius norm of W_V W_O. A head's weights do not depend on what other heads get.
    """
    if plant is None:
        heads = _draw_heads(n_layers, n_heads, default_rng([seed, 0]))
    else:
        heads = _read_plant(plant, n_layers, n_heads)
    relations, tokenizer = make_language()
    with torch.random.fork_rng(devices=[]):
        gpt2 = blank_gpt2(n_layers, n_heads, d_model)
    writer = Writer(gpt2, relations, tokenizer, default_rng([seed, 1]))
    looks_at: dict[HeadId, tuple[str, ...]] = {}
    for layer in range(n_layers):
        writer.write_mlp(layer, default_rng([seed, 2, layer]))
        for number in range(n_heads):
            rng, head = default_rng([seed, 3, layer, number]), HeadId(layer, number)
            drawn, held = NAMES[rng.integers(len(NAMES))], heads.get(head)
            names = (drawn,) if held is None else tuple(held.relations)
            looks_at[head] = () if held is not None and held.kind == "unattended" else names
            writer.write_key(head, looks_at[head])
            writer.write_map(head, None if held is None else held.kind, names, noise, rng)
    with torch.random.fork_rng(devices=[]):
        model = from_transformers(gpt2, tokenizer, f"planted-{seed}")
    return PlantedModel(model, relations, heads, looks_at, noise, seed)


def _read_plant(plant: Plant, n_layers: int, n_heads: int) -> dict[HeadId, PlantedHead]:
    held = {check_head(where, n_layers, n_heads): what for where, what in plant.items()}
    return {
        head: what if isinstance(what, PlantedHead) else PlantedHead("implements", what)
        for head, what in sorted(held.items())
    }


def _draw_heads(n_layers: int, n_heads: int, rng: Generator) -> dict[HeadId, PlantedHead]:
    """The default plant, in random heads: 12 implement, 2 suppress, 1 is unattended, 1 in context, 1 tags for it."""
    categories = rng.permutation(list(dict.fromkeys(category for _, category, *_ in RELATIONS))).tolist()
    of = {at: rng.permutation([name for name, kind, *_ in RELATIONS if kind == at]).tolist() for at in categories}
    (a, *others_a), (b, *others_b), (c, *others_c), (d, *others_d) = of.values()
    again = rng.permutation(NAMES).tolist()[:6]
    plants = [PlantedHead("implements", names) for names in ([a, b], [c, d])]
    plants += [PlantedHead("implements", name) for name in (*others_a, *others_b, *others_c, *others_d, *again)]
    plants += [PlantedHead("suppresses", name) for name in again[:2]]
    unattended, in_context = rng.permutation(NAMES).tolist()[:2]
    plants.append(PlantedHead("unattended", unattended))

    reader = HeadId(int(rng.integers(1, n_layers)), int(rng.integers(n_heads)))
    tagger = HeadId(int(rng.integers(reader.layer)), int(rng.integers(n_heads)))
    every = [HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads)]
    free = [head for head in every if head not in (reader, tagger)]
    heads = {free[i]: held for i, held in zip(rng.permutation(len(free)), plants, strict=False)}
    heads |= {reader: PlantedHead("in context", in_context), tagger: PlantedHead("tags", in_context)}
    return dict(sorted(heads.items()))


def widths(d_model: int, d_head: int) -> dict[str, int]:
    """The widths of the parts of the residual stream. The shared part takes two axes, and the mean of the norm one."""
    flags, codes = len(RELATIONS) + 3, d_head // 2
    rest = d_model - 3 - flags - codes
    return {"flags": flags, "codes": codes, "words": rest * 9 // 16, "outputs": rest - rest * 9 // 16}


def make_language() -> tuple[tuple[Relation, ...], PreTrainedTokenizerFast]:
    """The relations, and a tokenizer of their words and others."""
    from mechheads.labels.relations import Relation

    syllables = [consonant + vowel for consonant in "bdfklmnrstv" for vowel in "aiou"]
    roots = default_rng(0).permutation([first + second for first in syllables for second in syllables]).tolist()
    relations = []
    for start, (name, category, target, few_shot) in zip(range(0, len(roots), PAIRS), RELATIONS, strict=False):
        pairs = [(source, target.format(source)) for source in roots[start : start + PAIRS]]
        relations.append(Relation(name, category, pairs, "made up", target == "{0}", [few_shot]))
    related = [word for relation in relations for pair in relation.pairs for word in pair]
    words = list(dict.fromkeys([*_OTHER.split(), *related, *roots]))[: _VOCABULARY - len(SPECIAL)]
    return tuple(relations), word_tokenizer(words, "planted", _CONTEXT)


class Writer:
    """Writes weights into a GPT-2 that is all zeros."""

    def __init__(self, gpt2: GPT2LMHeadModel, relations: Sequence[Relation], tokenizer: Any, rng: Generator) -> None:
        self.weights = {name: parameter.detach().numpy() for name, parameter in gpt2.named_parameters()}
        self.d_model = gpt2.config.n_embd
        self.d_head = self.d_model // gpt2.config.n_head
        # axes [axis, d_model] of each part of the residual stream; for each relation the axis of its flag, the ids of
        # its sources, what a head writes for each and the code that tags it; words as layer 0 and later ones read them
        self.parts = _parts(self.d_model, self.d_head, rng)
        *flags, self.start, self.recent, self.first = self.parts["flags"]
        self.flag = dict(zip(NAMES, flags, strict=True))

        ids_of = tokenizer.vocab
        ids = [np.array([[ids_of[f"▁{word}"] for word in pair] for pair in relation.pairs]) for relation in relations]
        self.sources = {name: pairs[:, 0] for name, pairs in zip(NAMES, ids, strict=True)}
        words = _WORD * unit(rng.normal(size=(_VOCABULARY, len(self.parts["words"]))))
        answers = unit(rng.normal(size=(_VOCABULARY, len(self.parts["outputs"]))))
        words[:3], answers[:3] = 0, 0
        self.wanted = {name: _WRITTEN * answers[pairs[:, 1]] for name, pairs in zip(NAMES, ids, strict=True)}
        self.tags = {name: _codes(PAIRS, len(self.parts["codes"]), rng) for name in NAMES}

        embedding = words @ self.parts["words"] + np.sqrt(self.d_model) * self.parts["shared"]
        embedding[tokenizer.bos_token_id] += self.start
        for name, sources in self.sources.items():
            embedding[sources] += self.flag[name]
        self.weights["transformer.wte.weight"][:] = embedding
        self.weights["transformer.wpe.weight"][:] = np.outer(np.arange(_CONTEXT) / _CONTEXT - 0.5, self.recent)
        self.weights["transformer.wpe.weight"][0] += self.first
        self.weights["transformer.ln_f.weight"][2:] = _FINAL_SCALE
        self.weights["lm_head.weight"][:] = _UNEMBEDDING * answers @ self.parts["outputs"]

        read = rng.normal(size=(len(self.parts["words"]), 4 * self.d_model)) * 1.5 / _WORD
        write = rng.normal(size=read.T.shape)
        normed = words * np.sqrt(self.d_model) / np.linalg.norm(embedding, axis=1, keepdims=True)
        meanings = torch.nn.functional.gelu(torch.from_numpy(normed @ read), approximate="tanh").numpy() @ write
        scale = _MEANING / np.linalg.norm(meanings, axis=1).mean()
        self.first_mlp = self.parts["words"].T @ read, scale * write @ self.parts["words"]
        self.seen = words, scale * meanings

    def write_mlp(self, layer: int, rng: Generator) -> None:
        """Write the first MLP, which maps words to the vectors that later heads read, or a later, small random MLP."""
        read, write = self.first_mlp
        if layer:
            both = np.concatenate([self.parts["words"], self.parts["outputs"]])
            read = both.T @ rng.normal(size=(len(both), len(write)))
            write = rng.normal(size=(len(write), len(both))) @ both * _LATER_MLP / np.sqrt(len(write) * len(both))
        self.weights[f"transformer.h.{layer}.mlp.c_fc.weight"][:] = read
        self.weights[f"transformer.h.{layer}.mlp.c_proj.weight"][:] = write
        for name in ("ln_1", "ln_2"):
            self.weights[f"transformer.h.{layer}.{name}.weight"][:] = 1

    def write_key(self, head: HeadId, looks_at: Sequence[str]) -> None:
        """Write W_K: scores are about 0 at sources, ``apart / 2`` lower at <bos>, and ``apart`` lower elsewhere."""
        block, first, apart = f"transformer.h.{head.layer}.attn", head.head * self.d_head, 4 * _STEP * _CONTEXT
        self.weights[f"{block}.c_attn.bias"][first] = np.sqrt(self.d_head)
        key = apart * self.first
        if looks_at:
            flags = np.sum([self.flag[name] for name in looks_at], axis=0) + self.start / 2
            key = apart * (flags - self.parts["shared"][0] / np.sqrt(self.d_model)) + _STEP * _CONTEXT * self.recent
        self.weights[f"{block}.c_attn.weight"][:, self.d_model + first] = key

    def write_map(
        self, head: HeadId, kind: PlantedKind | None, names: Sequence[str], noise: float, rng: Generator
    ) -> None:
        """Write W_V, which reads words and codes, and W_O, which writes codes and outputs.

        Heads that write or read tags use half of d_head for tags, and have a random map in the other half. Neither this
        map nor noise writes words into the half that reads tags, because the targets would then rise for any word.
        """
        words, codes, outputs = (self.parts[name] for name in ("words", "codes", "outputs"))
        W_V, W_O = np.zeros((len(words) + len(codes), self.d_head)), np.zeros((self.d_head, len(codes) + len(outputs)))
        free_V, free_O = np.zeros_like(W_V), np.zeros_like(W_O)
        free_V[: len(words)], free_O[:, len(codes) :] = 1, 1

        solved = np.linalg.pinv(np.concatenate([self.seen[head.layer > 0][self.sources[name]] for name in names]))
        wanted = np.concatenate([self.wanted[name] for name in names])
        codes_of = _codes(len(wanted), self.d_head, rng)
        W_V[: len(words)], W_O[:, len(codes) :] = solved @ codes_of, codes_of.T @ wanted
        size = float(np.linalg.norm(W_V @ W_O))
        if kind is None:
            W_V, W_O = _random(free_V, free_O, size * np.sqrt(1 + noise**2), rng)
        elif kind == "suppresses":
            W_O = -W_O
        elif kind in ("tags", "in context"):
            own, tags = slice(len(codes)), np.concatenate([self.tags[name] for name in names])
            free_V[: len(words), own], free_O[own] = 0, 0
            W_V, W_O = _random(free_V, free_O, size, rng)
            free_O[own, len(codes) :] = 1
            if kind == "tags":
                W_V[: len(words), own], W_O[own, : len(codes)] = solved @ tags, _WRITTEN * np.eye(len(codes))
                free_V[: len(words)] = 1
            else:
                W_V[len(words) :, own], W_O[own, len(codes) :] = np.eye(len(codes)) / _WRITTEN, tags.T @ wanted
                free_V[len(words) :] = 1
        if kind is not None and noise:
            W_V, W_O = with_noise(W_V, W_O, free_V, free_O, noise, rng)
        block = f"transformer.h.{head.layer}.attn"
        own = slice(head.head * self.d_head, (head.head + 1) * self.d_head)
        values = self.weights[f"{block}.c_attn.weight"][:, 2 * self.d_model :]
        values[:, own] = np.concatenate([words, codes]).T @ W_V
        self.weights[f"{block}.c_proj.weight"][own] = W_O @ np.concatenate([codes, outputs])


def _parts(d_model: int, d_head: int, rng: Generator) -> dict[str, Matrix]:
    """The axes of each part of the residual stream, all of mean 0, so that a LayerNorm only scales."""
    sizes = widths(d_model, d_head)
    columns = np.column_stack([np.ones(d_model - 2), rng.normal(size=(d_model - 2, d_model - 3))])
    axes = np.zeros((d_model - 3, d_model))
    axes[:, 2:] = np.linalg.qr(columns)[0][:, 1:].T
    parts = dict(zip(sizes, np.split(axes, np.cumsum(list(sizes.values()))[:-1]), strict=True))
    return parts | {"shared": (np.eye(1, d_model) - np.eye(1, d_model, 1)) / np.sqrt(2)}


def unit(rows: Matrix) -> Matrix:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _codes(n: int, width: int, rng: Generator) -> Matrix:
    """Codes [n, width] of length 1, as nearly orthogonal as possible."""
    axes = np.linalg.qr(rng.normal(size=(max(n, width), min(n, width))))[0]
    return unit(axes) if n > width else axes.T


def _random(free_V: Matrix, free_O: Matrix, size: float, rng: Generator) -> tuple[Matrix, Matrix]:
    """Gaussian W_V and W_O, zero outside the free entries, whose product has a given Frobenius norm."""
    W_V, W_O = rng.normal(size=free_V.shape) * free_V, rng.normal(size=free_O.shape) * free_O
    scale = np.sqrt(size / np.linalg.norm(W_V @ W_O))
    return W_V * scale, W_O * scale


def with_noise(
    W_V: Matrix, W_O: Matrix, free_V: Matrix, free_O: Matrix, noise: float, rng: Generator
) -> tuple[Matrix, Matrix]:
    """W_V and W_O with Gaussian noise in the free entries, which changes their product by a given share of its norm."""
    add_V, add_O = (
        rng.normal(size=free.shape) * free * np.linalg.norm(weight) / np.linalg.norm(free)
        for weight, free in ((W_V, free_V), (W_O, free_O))
    )
    once, twice, wanted = add_V @ W_O + W_V @ add_O, add_V @ add_O, noise * np.linalg.norm(W_V @ W_O)

    def above(scale: float) -> float:
        return float(np.linalg.norm(scale * once + scale**2 * twice) - wanted)

    a, b = np.linalg.norm(twice), np.linalg.norm(once)
    enough = (b + np.sqrt(b**2 + 4 * a * wanted)) / (2 * a)  # s with s^2 a - s b = `wanted`, and the norm is not less
    scale: Any = brentq(above, 0, enough, xtol=1e-14)
    return W_V + scale * add_V, W_O + scale * add_O


def blank_gpt2(n_layers: int, n_heads: int, d_model: int, **options: Any) -> GPT2LMHeadModel:
    """A GPT-2 whose weights are all zero."""
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": n_layers, "n_head": n_heads, "n_embd": d_model}
    options = {"vocab_size": _VOCABULARY, "n_positions": _CONTEXT, **sizes, **options}
    config = GPT2Config(tie_word_embeddings=False, bos_token_id=0, eos_token_id=1, pad_token_id=2, **options)
    gpt2 = GPT2LMHeadModel._from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
    with torch.no_grad():
        for parameter in gpt2.parameters():
            parameter.zero_()
    return gpt2
