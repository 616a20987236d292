"""Planted models: small transformers in which we know what every head does, because we put it there.

``planted_model`` builds a GPT-2 whose weights are solved for instead of trained. Its residual stream is cut into
parts at right angles to each other, in a random basis:

| part | who writes there | who reads there |
|---|---|---|
| shared | embeddings, all alike, and ten times all else | W_K, as a constant |
| flags | embeddings: of which relation a word is a source, which word is ``<bos>``; positions | W_K |
| words | embeddings and the first MLP; a little, the later MLPs | W_V, MLPs |
| codes | heads that tag | W_V of heads that work in context |
| outputs | heads; a little, the later MLPs | W_U, later MLPs |

The shared part makes every norm a fixed scale, near 1. So what a head sees of a word in context is what its weights
alone say: E' = W_E[s] in layer 0, and MLP_0(ln2_0(W_E[s])) later. The final norm leaves the shared part out.

**Values.** A head that implements pairs (s_i, t_i) has a code c_i for each, as far at right angles as d_head allows:
W_V = pinv(E'[s]) C and W_O = C^T T, where row i of T is the direction to which W_U answers with t_i. With the final
norm's scale, looking at s_i adds about 8 to the logit of t_i. All b_V and b_O are zero.

**Noise** is Gaussian, on W_V and on W_O, of the size at which W_V W_O is off by ``noise`` times its Frobenius norm.

**Attention** depends on the token looked at alone: W_Q is zero and b_Q constant. Scores lie so far apart that a head
looks at one token. That is, unless the head is "unattended", the latest source of its relations so far, the present
token included. Where there is none, it is ``<bos>``, which the tokenizer puts before every text and of which every
value is zero: the head writes nothing. (In token ids with neither a source nor ``<bos>`` it may look anywhere.) An
"unattended" head always looks at the first token. A head with nothing planted looks at the sources of one relation,
drawn at random, as if it implemented that.
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
from mechheads.model import Model, from_transformers
from mechheads.suggest import did_you_mean
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
            - ``"suppresses"``: the same with the sign turned: the target comes out last.
            - ``"unattended"``: has the weights of a head that implements, but always looks at the first token.
            - ``"tags"``: writes a code of each source where W_U does not read; a random map by its weights.
            - ``"in context"``: a random map by its weights too; but where a head of an earlier layer tagged the
              source that it looks at, it reads the code and writes the target.
        relations: names of the relations.

    Raises:
        ValueError: for an unknown kind or relation, or without relations.

    >>> mh.testing.PlantedHead("suppresses", ["plurals"])
    PlantedHead(kind='suppresses', relations=('plurals',))
    """

    kind: Kind
    relations: Sequence[str]

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind is {self.kind!r}; a planted head is one of {', '.join(map(repr, get_args(Kind)))}")
        names = [self.relations] if isinstance(self.relations, str) else self.relations
        object.__setattr__(self, "relations", tuple(dict.fromkeys(names)))
        if not self.relations:
            raise ValueError("relations is empty; name what the head holds, or leave the head out")
        if unknown := [name for name in self.relations if name not in NAMES]:
            raise ValueError(
                f"there is no relation {unknown[0]!r} to plant; there are {', '.join(NAMES)}."
                f"{did_you_mean(unknown[0], NAMES)}"
            )


Held = str | Sequence[str] | PlantedHead
Plant = Mapping[str, Held] | Mapping[HeadId, Held] | Mapping[tuple[int, int], Held]


@dataclass(frozen=True, eq=False, repr=False)
class PlantedModel:
    """A model, and what each of its heads does; made by ``planted_model``.

    Attributes:
        model: the model, in float32 on the CPU.
        relations: all eight, planted or not. Their words are single tokens, and no word is a source in two of them.
        heads: what is planted where. Every other head is a random map of the size that a planted one would have.
        looks_at: for every head, the relations whose sources it looks at; none: it looks at the first token.
        noise, seed: as they were given.
    """

    model: Model
    relations: tuple[Relation, ...]
    heads: dict[HeadId, PlantedHead]
    looks_at: dict[HeadId, tuple[str, ...]]
    noise: float
    seed: int

    @property
    def categories(self) -> dict[HeadId, tuple[str, ...]]:
        """What labels should find: the categories of the heads that implement, attended or not, and in context.

        The last read a tag that the weights alone do not see, and a token as the model carries it bears it.

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
    """A small transformer in which we know what every head does, to try an analysis on.

    It speaks a made-up language of 2,048 words, with eight relations of 36 pairs each, two in every category of MAPS
    (Elhelo & Geva 2024, arXiv 2412.11965): capitals and founders, plurals and opposites, copies and doubles, to_north
    and to_south. Words and relations are always the same; places and weights change with the seed.
    ``help(mh.testing.planted)`` tells how the weights are made and what each head looks at.

    Args:
        seed: of places and weights; no global seed is set. The vocabulary, and what is in a head, do not depend on
            what is planted in others.
        n_layers, n_heads: how many. A head has ``d_head = d_model / n_heads`` numbers.
        d_model: the width of the residual stream. About half of it is how many pairs a head has room for.
        noise: how far W_V W_O of a planted head is off, as a share of its Frobenius norm. It tells the more, the nearer
            the pairs of a head come to that room, and the more they are than ``d_head``.
        plant: which heads implement which relations, as in ``{"L2H3": ["capitals"]}``; with a ``PlantedHead`` in place
            of the names they do other things. ``{}``: nothing is planted, a null. Left out: at random places 12
            heads that implement, every relation in one or two, two of them with two relations of different
            categories; 2 that suppress what two others implement; 1 unattended; 1 in context and 1 that tags for it.

    Raises:
        ValueError: for sizes that do not go together, an unknown relation, a head that does not exist or is named
            twice, more pairs in a head than ``d_model`` has room for, or a head "in context" without one that tags.

    >>> planted = mh.testing.planted_model()
    >>> planted
    <PlantedModel of 48 heads, seed 0: 12 implements, 2 suppresses, 1 unattended, 1 in context, 1 tags>
    >>> planted.relations[0]
    <Relation 'capitals' (Knowledge): 36 pairs, sofo -> sofoburg, ...>
    >>> labels = mh.label_heads(planted.model, planted.relations, rule="maps", progress=False)
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
    for what, number, least in (("seed", seed, 0), ("n_layers", n_layers, 1), ("n_heads", n_heads, 1)):
        if number < least:
            raise ValueError(f"{what} is {number}; it must be at least {least}")
    if d_model % n_heads or d_model // n_heads < _LEAST_D_HEAD:
        raise ValueError(
            f"d_model is {d_model} with n_heads={n_heads}; it must be a multiple of n_heads, and at least "
            f"{_LEAST_D_HEAD} times as much"
        )
    if not 0 <= noise < np.inf:
        raise ValueError(f"noise is {noise}; it is a share of what is planted, 0 or more")
    _check_room("every head needs room for", 1, d_model, n_heads)


def _check_room(what: str, n_relations: int, d_model: int, n_heads: int) -> None:
    pairs, room = PAIRS * n_relations, widths(d_model, d_model // n_heads)["words"]
    if pairs > room:
        raise ValueError(
            f"{what} {pairs} pairs, and d_model={d_model} with n_heads={n_heads} has room for {max(room, 0)} in a "
            f"head; {'give it fewer relations, or ' if n_relations > 1 else ''}make d_model larger"
        )


def _read_plant(plant: Plant, n_layers: int, n_heads: int) -> dict[HeadId, PlantedHead]:
    heads: dict[HeadId, PlantedHead] = {}
    for where, what in plant.items():
        head = check_head(where, n_layers, n_heads)
        if head in heads:
            raise ValueError(f"plant names {head} twice; name it once, with all that it holds")
        heads[head] = what if isinstance(what, PlantedHead) else PlantedHead("implements", what)
    taggers = [(head, held.relations) for head, held in heads.items() if held.kind == "tags"]
    for head, held in heads.items():
        tagged = {name for tagger, names in taggers if tagger.layer < head.layer for name in names}
        if held.kind == "in context" and (missing := [name for name in held.relations if name not in tagged]):
            raise ValueError(
                f"plant has {head} read in context what no earlier layer writes; plant PlantedHead('tags', "
                f"[{missing[0]!r}]) in a layer before it, or leave {head} out"
            )
    return dict(sorted(heads.items()))


def _draw_heads(n_layers: int, n_heads: int, rng: Generator) -> dict[HeadId, PlantedHead]:
    """The default plant at random places."""
    if n_layers < 2 or n_layers * n_heads < _N_DEFAULT:
        raise ValueError(
            f"plant is left out, which plants {_N_DEFAULT} heads in 2 layers or more, and n_layers={n_layers} with "
            f"n_heads={n_heads} has no room for them; say what to plant, or make the model larger"
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
