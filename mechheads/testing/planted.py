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
from typing import TYPE_CHECKING, get_args

import numpy as np
import torch
from numpy.random import Generator, default_rng

from mechheads.heads import HeadId, check_head
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.suggest import did_you_mean
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.testing.planting import NAMES, PAIRS, RELATIONS, Kind, Writer, blank_gpt2, make_language, widths

if TYPE_CHECKING:
    from mechheads.labels.relations import Relation

_LEAST_D_HEAD, _N_DEFAULT = 8, 17


@dataclass(frozen=True)
class PlantedHead:
    """What is planted in one head.

    Attributes:
        kind: one of

            - ``"implements"``: maps each source to its target, by its weights and in context.
            - ``"suppresses"``: the same with the opposite sign: it lowers the target's logit below all others.
            - ``"unattended"``: has the weights of a head that implements, but always attends to the first token.
            - ``"tags"``: writes a code of each source that W_U does not read; by its weights, a random map.
            - ``"in context"``: by its weights, also a random map. But if a head of an earlier layer tagged the source
              that it attends to, it reads the code and writes the target.
        relations: names of the relations.

    Raises:
        ValueError: if the kind or a relation is not known, or there are no relations.

    >>> mh.testing.PlantedHead("suppresses", ["plurals"])
    PlantedHead(kind='suppresses', relations=('plurals',))
    """

    kind: Kind
    relations: Sequence[str]

    def __post_init__(self) -> None:
        check_known("kind", self.kind, Kind)
        names = [self.relations] if isinstance(self.relations, str) else self.relations
        object.__setattr__(self, "relations", tuple(dict.fromkeys(names)))
        if not self.relations:
            raise ValueError("relations is empty; name the relations that the head holds, or leave the head out")
        if unknown := [name for name in self.relations if name not in NAMES]:
            raise ValueError(
                f"there is no relation {unknown[0]!r} to plant; choose among {', '.join(NAMES)}."
                f"{did_you_mean(unknown[0], NAMES)}"
            )


Held = str | Sequence[str] | PlantedHead
Plant = Mapping[str, Held] | Mapping[HeadId, Held] | Mapping[tuple[int, int], Held]


@dataclass(frozen=True, eq=False, repr=False)
class PlantedModel:
    """A model, and what each of its heads does; made by ``planted_model``.

    Attributes:
        model: the model, in float32 on the CPU.
        relations: all eight relations, planted or not. Their words are single tokens, and no word is a source in two
            relations.
        heads: what is planted in which head. Every other head is a random map of the same size.
        looks_at: for every head, the relations whose sources it attends to; if empty, it attends to the first token.
        noise, seed: the arguments of ``planted_model``.
    """

    model: Model
    relations: tuple[Relation, ...]
    heads: dict[HeadId, PlantedHead]
    looks_at: dict[HeadId, tuple[str, ...]]
    noise: float
    seed: int

    @property
    def categories(self) -> dict[HeadId, tuple[str, ...]]:
        """What labels should find: the categories of all heads that implement, are unattended, or work in context.

        A head "in context" reads a tag that another head writes: it is not in the weights of this head alone, but it is
        in the residual stream of a token.

        >>> planted = mh.testing.planted_model(plant={"L2H3": ["capitals"], "L4H1": ["plurals", "capitals"]})
        >>> planted.categories[mh.HeadId(4, 1)]
        ('Knowledge', 'Linguistic')
        """
        return {
            head: tuple(dict.fromkeys(category for name, category, *_ in RELATIONS if name in held.relations))
            for head, held in self.heads.items()
            if held.kind in ("implements", "unattended", "in context")
        }

    def __repr__(self) -> str:
        kinds = Counter(held.kind for held in self.heads.values())
        planted = ", ".join(f"{kinds[kind]} {kind}" for kind in get_args(Kind) if kind in kinds)
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
    """A small transformer in which the function of every head is known, for testing an analysis.

    It has a made-up language of 2,048 words, with eight relations of 36 pairs each, two in every category of MAPS
    (Elhelo & Geva 2024, arXiv 2412.11965): capitals and founders, plurals and opposites, copies and doubles, to_north
    and to_south. Words and relations are always the same; heads and weights change with the seed.
    ``help(mh.testing.planted)`` describes how the weights are made and what each head attends to.

    Args:
        seed: for heads and weights; no global seed is set. The vocabulary, and the weights of a head, do not depend on
            what is planted in other heads.
        n_layers, n_heads: the number of layers, and of heads in each. The size of a head is
            ``d_head = d_model / n_heads``.
        d_model: the width of the residual stream. A head has room for about d_model / 2 pairs.
        noise: the error of W_V W_O of a planted head, as a share of its Frobenius norm. It matters more if a head has
            nearly as many pairs as it has room for, or more than ``d_head``.
        plant: which heads implement which relations, as in ``{"L2H3": ["capitals"]}``; a ``PlantedHead`` instead of
            the names makes a head do something else. ``{}`` plants nothing, as a null model. By default, random heads
            get 12 plants that implement, 2 that suppress what two others implement, 1 unattended, 1 in context, and 1
            that tags for it. Every relation is in one or two of the 12 heads, and two of them have two relations of
            different categories.

    Raises:
        ValueError: if sizes do not fit together, a relation is not known, a head does not exist or is named
            twice, a head has more pairs than ``d_model`` has room for, or no earlier head tags for a head "in context".

    >>> planted = mh.testing.planted_model()
    >>> planted
    <PlantedModel of 48 heads, seed 0: 12 implements, 2 suppresses, 1 unattended, 1 in context, 1 tags>
    >>> planted.relations[0]
    <Relation 'capitals' (Knowledge): 36 pairs, sofo -> sofoburg, ...>
    >>> labels = mh.label_heads(planted.model, planted.relations, rule="maps")
    >>> all(labels.of(head) == planted.categories.get(head, ()) for head in planted.looks_at)
    True
    """
    _check_numbers(seed, n_layers, n_heads, d_model, noise)
    if plant is None:
        heads = _draw_heads(n_layers, n_heads, default_rng([seed, 0]))
    else:
        heads = _read_plant(plant, n_layers, n_heads)
    for head, held in heads.items():
        _check_room(f"plant gives {head}", len(held.relations), d_model, n_heads)
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


def _check_numbers(seed: int, n_layers: int, n_heads: int, d_model: int, noise: float) -> None:
    check_at_least(0, seed=seed)
    check_at_least(1, n_layers=n_layers, n_heads=n_heads)
    if d_model % n_heads or d_model // n_heads < _LEAST_D_HEAD:
        raise ValueError(
            f"d_model is {d_model} with n_heads={n_heads}; it must be a multiple of n_heads, and at least "
            f"{_LEAST_D_HEAD} times as much"
        )
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise is {noise}; it must be a share of the planted weights, 0 or more")
    _check_room("every head needs room for", 1, d_model, n_heads)


def _check_room(what: str, n_relations: int, d_model: int, n_heads: int) -> None:
    pairs, room = PAIRS * n_relations, widths(d_model, d_model // n_heads)["words"]
    if pairs > room:
        raise ValueError(
            f"{what} {pairs} pairs, but d_model={d_model} with n_heads={n_heads} has room for {max(room, 0)} in a "
            f"head; {'give it fewer relations, or ' if n_relations > 1 else ''}use a larger d_model"
        )


def _read_plant(plant: Plant, n_layers: int, n_heads: int) -> dict[HeadId, PlantedHead]:
    heads: dict[HeadId, PlantedHead] = {}
    for where, what in plant.items():
        head = check_head(where, n_layers, n_heads)
        if head in heads:
            raise ValueError(f"plant names {head} twice; name it once, with everything that it holds")
        heads[head] = what if isinstance(what, PlantedHead) else PlantedHead("implements", what)
    taggers = [(head, held.relations) for head, held in heads.items() if held.kind == "tags"]
    for head, held in heads.items():
        tagged = {name for tagger, names in taggers if tagger.layer < head.layer for name in names}
        if held.kind == "in context" and (missing := [name for name in held.relations if name not in tagged]):
            raise ValueError(
                f"plant has {head} read tags in context that no earlier layer writes; plant PlantedHead('tags', "
                f"[{missing[0]!r}]) in a layer before it, or leave {head} out"
            )
    return dict(sorted(heads.items()))


def _draw_heads(n_layers: int, n_heads: int, rng: Generator) -> dict[HeadId, PlantedHead]:
    """The default plant, in random heads."""
    if n_layers < 2 or n_layers * n_heads < _N_DEFAULT:
        raise ValueError(
            f"the default plant needs {_N_DEFAULT} heads in 2 or more layers; n_layers={n_layers} with "
            f"n_heads={n_heads} has too few. Choose what to plant with plant=, or use a larger model"
        )
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
