"""Relation scores: what each head maps each token to, computed from its weights.

The method is MAPS (Elhelo & Geva 2024, "Inferring Functionality of Attention Heads from their Parameters",
arXiv 2412.11965, section 3):

    M = E' W_V W_O W_U                                                    [vocab, vocab]
    phi_R = mean over (s, t) in R of 1[t is among the k largest entries of row s of M]

and the suppression score is the same on -M. In the paper E' is the first MLP's output for the embedding, and weights
are raw. Which E' a head reads differs between heads and between models, so each head is scored for three readings
(``readings.py``), and the largest phi counts. The scales of norms are multiplied into the weights. All computations are
in float32, without biases.

| paper | here |
|---|---|
| relation R, its pairs (s, t) | ``Relation.pairs`` |
| k, for copying relations | ``k``, ``k_copying`` |
| E' | ``source``; ``"first_mlp"`` is the paper's |
| raw weights | ``norm="raw"`` |
| phi_R(h) | ``scores`` at layer, head, relation |
| suppression score | the variable ``suppression`` |

A hit is a coarse measure: a head that lifts every capital from rank 5,000 to 50 has no hits. So there is also a graded
score, ``contrast``: how many standard deviations of its row a source raises its own target above the other targets of
the relation, averaged over pairs (``Ranks.contrast``). It ranks heads by what they do in context far better than phi
does, and best with the ``carried`` reading (docs/labels.md); labels use hits.

M is never formed and nothing is sorted; ``ranks.py`` explains how. The paper has no null; here ``nulls.py`` shuffles
the targets of a relation among its sources and counts how often as many are hit, also by the best of the readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch

from mechheads.labels.nulls import matching_null, matchings
from mechheads.labels.ranks import HeadPath, Ranks, Ties, usual_k
from mechheads.labels.readings import READINGS, SOURCES, Norm, Readings, Source
from mechheads.labels.relations import RelationLike, load_relations
from mechheads.labels.usable_pairs import KeptPairs, Targets, check_any, keep_pairs, long_enough
from mechheads.messages.progress import Bar
from mechheads.messages.warn import warn
from mechheads.model.backends.temporary_changes import alone
from mechheads.results.netcdf import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values, share_interval

if TYPE_CHECKING:
    from mechheads.model.model import Model
    from mechheads.model.stored_weights import StoredWeights

Side = Literal[1, -1]
_TIES = {"target": "count for the target", "index": "count for the larger token id"}


@alone
def relation_scores(
    model: Model | StoredWeights,
    relations: RelationLike | Iterable[RelationLike] | None = None,
    k: int | None = None,
    *,
    k_copying: int | None = None,
    source: Source = "all",
    norm: Norm = "folded",
    leading_space: bool = True,
    targets: Targets = "single",
    ties: Ties = "target",
    min_pairs: int = 30,
    min_effect: float = 0.01,
    draws: int = 9999,
    seed: int = 0,
    memory: int = 2**27,
    progress: bool = True,
) -> HeadScores:
    """Share of each relation's pairs that each head maps from source to target, computed from weights.

    A pair counts if " source" and " target" are one token each. A head that writes nothing for a source, such as a
    pruned head, has no hit. The first MLP and the model run in the model's dtype, everything else in float32.

    Args:
        model: from ``mh.load`` or ``mh.wrap``, or ``mh.labels.open_weights`` for a model that stays on disk.
        relations: names, paths of JSON files or ``Relation`` objects; ``None`` for the relations of the package.
        k: a target is a hit if it is among the k largest entries. By default, as in the paper: 10, and 25 for a
            vocabulary of 100,000 tokens or more, such as Llama 3's.
        k_copying: k for relations that copy; by default 1, and 3 for such a vocabulary.
        source: how a head reads a token. ``"embedding"``: as its row of W_E. ``"first_mlp"``: as the first MLP's
            output for that row, from layer 1 on, as in the paper (whose code omits it for Llama-3.1-70B).
            ``"carried"``: as the residual stream at the head's layer when the model runs on the token after a neutral
            word, averaged over a few such words, after the norm before attention. ``"all"``: for each head and
            relation, the one of these with the largest score; a model on disk has the first two.
        norm: ``"folded"`` multiplies the scale of the norm before attention into W_V, of a norm after attention
            into W_O and of the final norm into W_U; ``"raw"`` does not, as in the paper.
        leading_space: whether words are tokenised with a leading space.
        targets: ``"first"`` also uses targets of several tokens, by their first token; the variable ``by_first``
            marks these pairs.
        ties: ``"target"``: only strictly larger entries are ahead of a target; ``"index"``: at a tie the larger
            token id is ahead, as in a stable sort that is then reversed. The paper's code uses the order of
            ``torch.topk``.
        min_pairs: relations with fewer single-token pairs are skipped; a warning and ``provenance["ledger"]`` name
            them. If you name a relation that has no such pair, this is an error.
        min_effect: scores below it, or of a single pair, are not tested: their p is 1.
        draws: the number of shuffles of the null, for relations of more than seven pairs.
        seed: for the shuffles.
        memory: the bytes that a block of entries may take.
        progress: whether to show a progress bar.

    Returns:
        Scores over (layer, head, relation), unit "share of pairs": phi, with Wilson's interval for a share of
        pairs, and p and q against shuffled targets (one-sided; see ``labels.nulls``; q over all heads and
        relations). With several readings the score is the largest, and the null takes the largest in each shuffle too.
        ``values`` holds 1 for a hit and 0 for none, per pair, NaN beyond a relation's last pair.
        Further variables over (layer, head, relation): ``reading``, the reading with the largest score, empty if no
        pair is hit, and ``phi_embedding``, ``phi_first_mlp`` and ``phi_carried``; ``null_phi``, the mean over the
        shuffles if the score was tested; ``suppression``, ``p_suppression`` and ``suppression_reading``; ``contrast``,
        a graded score: how many standard deviations of its row a source raises its target above the relation's other
        targets (negative if it lowers it), with the ``carried`` reading, or without that with the reading in which it
        is farthest from zero; and ``contrast_embedding`` and so on. Also ``n_pairs`` and ``relation_category``
        (relation), and ``pair`` and ``by_first`` (relation, prompt). ``provenance["ledger"]`` lists for each relation
        how many pairs were given and kept, and which were lost and why; ``provenance["no_reading"]`` lists why a model
        lacks a reading. After Ctrl-C the layers scored so far are returned and the others are NaN.

    Raises:
        ValueError: if a relation is not known or has no single-token pairs, the model has no tokenizer or not the
            ``source`` asked for, or its weights are not finite. It is raised before any score is computed.

    >>> phi = mh.relation_scores(model, "country_to_capital")
    >>> phi
    <HeadScores 'relation scores' in share of pairs: 30 layers x 9 heads x 1 relation, 38 prompts>
    >>> phi.heads(2), phi.dataset["reading"].sel(layer=23, head=4).item()
    ((HeadId(layer=29, head=2), HeadId(layer=23, head=4)), 'first_mlp')
    """
    k, k_copying = usual_k(model.d_vocab, k, k_copying)
    numbers = {"k": k, "k_copying": k_copying, "min_pairs": min_pairs, "draws": draws, "memory": memory}
    for what, number in numbers.items():
        if number < 1:
            raise ValueError(f"{what} is {number}; it must be at least 1")
    if not 0 <= min_effect <= 1:
        raise ValueError(f"min_effect is {min_effect}; it must be a share of pairs, between 0 and 1")
    for what, given, known in (
        ("source", source, SOURCES),
        ("norm", norm, ("raw", "folded")),
        ("targets", targets, ("single", "first")),
        ("ties", ties, tuple(_TIES)),
    ):
        if given not in known:
            raise ValueError(f"{what} is {given!r}; choose {_either(known)}")
    loaded = load_relations(relations)
    everything = keep_pairs(loaded, model.tokenizer, leading_space=leading_space, targets=targets)
    if relations is not None:
        for kept in everything:
            check_any(kept, model.tokenizer, leading_space)
    scored = long_enough(everything, min_pairs)
    limits = [k_copying if kept.relation.copying else k for kept in scored]
    about = model.provenance()
    found = _Found.empty(model.n_layers, model.n_heads, scored)
    work = _Work(model, scored, limits, _Asked(source, norm, ties, memory, min_effect, draws, seed))
    work.fill(found, progress)
    names = [kept.relation.name for kept in scored]
    longest = found.hits.shape[-1]
    words = [" -> ".join(kept.pairs[i]) if i < len(kept.pairs) else "" for kept in scored for i in range(longest)]
    by_first = [i < len(kept.pairs) and kept.by_first[i] for kept in scored for i in range(longest)]
    dims, counts = ("layer", "head", "relation"), np.array([len(kept.pairs) for kept in scored])
    scores = HeadScores.from_values(
        found.hits[0],
        name="relation scores",
        kind="relations",
        extra={"relation": names},
        provenance=make_provenance(
            about,
            k=dict(zip(names, limits, strict=True)),
            source=source,
            no_reading=work.missing,
            norm=norm,
            leading_space=leading_space,
            targets=targets,
            ties=_TIES[ties],
            min_pairs=min_pairs,
            min_effect=min_effect,
            draws=draws,
            seed=seed,
            ledger={kept.relation.name: kept.ledger(kept in scored) for kept in everything},
            relations={relation.name: relation for relation in loaded},
            prompts={
                kept.relation.name: [kept.relation, limit, len(kept.pairs)]
                for kept, limit in zip(scored, limits, strict=True)
            },
            interrupted=np.isnan(found.hits[0, -1, -1]).all(),
        ),
        variables={
            "null_phi": (dims, found.null[0]),
            "reading": (dims, _names(found.reading[0])),
            **{f"phi_{name}": (dims, found.each[i]) for i, name in enumerate(READINGS) if name in work.names},
            "contrast": (dims, _best_contrast(found.contrast)),
            **{f"contrast_{name}": (dims, found.contrast[i]) for i, name in enumerate(READINGS) if name in work.names},
            "suppression": (dims, mean_over_prompts(found.hits[1])),
            "suppression_reading": (dims, _names(found.reading[1])),
            "p_suppression": (dims, found.p[1]),
            "null_suppression": (dims, found.null[1]),
            "n_pairs": ("relation", counts),
            "relation_category": ("relation", _text([kept.relation.category or "" for kept in scored])),
            "pair": (("relation", "prompt"), text_array(words, (len(scored), longest))),
            "by_first": (("relation", "prompt"), np.array(by_first).reshape(len(scored), longest)),
        },
    )
    low, high = share_interval(scores.scores.values, counts)
    statistics = {"ci_low": low, "ci_high": high, "p_value": found.p[0], "q_value": q_values(found.p[0])}
    return HeadScores(scores.dataset.assign({name: (dims, array) for name, array in statistics.items()}))


@dataclass(frozen=True)
class _Found:
    """The results for both directions: axis 0 of ``hits``, ``p``, ``null`` and ``reading`` is (implements, suppresses).

    Attributes:
        hits: of the best reading [2, layer, head, relation, pair].
        p, null: p and the mean of the null [2, layer, head, relation].
        reading: the index of the best reading in READINGS, -1 if there is no hit [2, layer, head, relation].
        each, contrast: phi and contrast for each reading [reading, layer, head, relation].
    """

    hits: np.ndarray
    p: np.ndarray
    null: np.ndarray
    reading: np.ndarray
    each: np.ndarray
    contrast: np.ndarray

    @classmethod
    def empty(cls, n_layers: int, n_heads: int, scored: Sequence[KeptPairs]) -> _Found:
        shape = (2, n_layers, n_heads, len(scored))
        longest = max(len(kept.pairs) for kept in scored)
        hits, p, null = np.full((*shape, longest), np.nan), np.full(shape, np.nan), np.full(shape, np.nan)
        each, contrast = np.full((2, len(READINGS), *shape[1:]), np.nan)
        return cls(hits, p, null, np.full(shape, -1), each, contrast)

    def forget(self, layers: slice) -> None:
        """Reset some layers, as if they had not been scored."""
        self.reading[:, layers] = -1
        for array in (self.hits, self.p, self.null, self.each, self.contrast):
            array[:, layers] = np.nan


@dataclass(frozen=True)
class _Asked:
    """How to score, and when to test a score with how many shuffles."""

    source: Source
    norm: Norm
    ties: Ties
    memory: int
    min_effect: float
    draws: int
    seed: int


class _Work:
    """Everything needed to score a layer.

    Attributes:
        names: the readings that are used.
        missing: why the other readings are not used.
    """

    def __init__(
        self, model: Model | StoredWeights, scored: Sequence[KeptPairs], limits: Sequence[int], asked: _Asked
    ) -> None:
        tokens = [pair for kept in scored for pair in kept.tokens]
        ids, source_of = np.unique([source for source, _ in tokens if source is not None], return_inverse=True)
        per_relation = [len(kept.pairs) for kept in scored]
        device, ends = model.device, np.cumsum(per_relation).tolist()
        self._model, self._asked, self._folded = model, asked, asked.norm == "folded"
        self._pairs_of = [slice(end - size, end) for end, size in zip(ends, per_relation, strict=True)]
        self._drawn = cache(lambda n: matchings(n, asked.draws, asked.seed))
        with torch.no_grad():
            self._readings = Readings(model, torch.as_tensor(ids, device=device), asked.source, asked.norm)
            _check_finite(model)
            self._ranks = Ranks(
                model,
                source_of=torch.as_tensor(source_of, device=device),
                target=torch.as_tensor([target for _, target in tokens], device=device),
                limit=torch.as_tensor(np.repeat(limits, per_relation), device=device),
                ties=asked.ties,
                memory=asked.memory,
            )
            self._final_scale = model.final_scale().float() if self._folded else None
        self.names, self.missing = self._readings.names, self._readings.missing

    def fill(self, found: _Found, progress: bool) -> None:
        """Score layer by layer, until done or Ctrl-C."""
        done, n_layers = 0, self._model.n_layers
        n_units = n_layers * self._model.n_heads
        try:
            with Bar(total=n_units, desc="relation scores", unit="head", disable=not progress) as bar, torch.no_grad():
                for layer in range(n_layers):
                    self._score(found, layer)
                    bar.update(self._model.n_heads)
                    done = layer + 1
        except KeyboardInterrupt:
            if not done:
                raise
            found.forget(slice(done, None))
            warn(f"relation_scores was interrupted: layers 0..{done - 1} are scored, the later ones are NaN")

    def _score(self, found: _Found, layer: int) -> None:
        """Score a layer: the hits of its heads for the best reading, and the null if there are enough hits."""
        W_O = self._model.W_O[layer].float()
        if self._final_scale is not None:
            W_O = W_O * self._model.attention_out_scale(layer).float() * self._final_scale
        values = self._readings.at(layer)
        by_head = zip(*values.values(), strict=True)
        paths: list[list[HeadPath]] = [[(each, out) for each in read] for read, out in zip(by_head, W_O, strict=True)]
        flat = torch.stack(self._ranks.top([path for of_head in paths for path in of_head]))
        hits = flat.unflatten(1, (len(paths), len(values))).transpose(1, 2).cpu().numpy()
        found.p[:, layer] = 1.0
        places = np.array([READINGS.index(name) for name in values])
        ways = {
            READINGS.index(name): list(values).index(name if name in values else "embedding") for name in self.names
        }
        for i, way in ways.items():
            contrast = [self._ranks.contrast(path, self._pairs_of) for path in (of_head[way] for of_head in paths)]
            found.contrast[i, layer] = torch.stack(contrast).cpu().numpy()
        tested: list[tuple[Side, int, int]] = []
        for relation, pairs in enumerate(self._pairs_of):
            own = hits[..., pairs]
            share = own.mean(-1)
            best = share.argmax(1)
            most = np.take_along_axis(own, best[:, None, :, None], axis=1)[:, 0]
            found.hits[:, layer, :, relation, : own.shape[-1]] = most
            found.reading[:, layer, :, relation] = np.where(most.any(-1), places[best], -1)
            for i, way in ways.items():
                found.each[i, layer, :, relation] = share[0, way]
            many = (most.sum(-1) >= 2) & (most.mean(-1) >= self._asked.min_effect)
            for side, head in np.argwhere(many).tolist():
                tested.append((-1 if side else 1, head, relation))
        tested.sort(key=lambda each: each[1])
        tables = self._ranks.hits(
            [(path, self._pairs_of[relation], sign) for sign, head, relation in tested for path in paths[head]]
        )
        for sign, head, relation in tested:
            of_pairs = np.stack([table.cpu().numpy() for table in islice(tables, len(values))])
            at = int(sign < 0), layer, head, relation
            found.p[at], found.null[at] = matching_null(of_pairs, self._drawn)


def _check_finite(model: Model | StoredWeights) -> None:
    for layer in range(model.n_layers):
        for name, weight in (("W_V", model.W_V[layer]), ("W_O", model.W_O[layer])):
            if not torch.isfinite(weight).all():
                raise ValueError(f"{name} of layer {layer} holds NaN or infinite numbers")


def _best_contrast(contrast: np.ndarray) -> np.ndarray:
    """The contrast [reading, ...] for the carried reading; without it, the one farthest from zero."""
    carried = contrast[READINGS.index("carried")]
    if not np.isnan(carried).all():
        return carried
    best = np.where(np.isnan(contrast), -1.0, np.abs(contrast)).argmax(0)
    return np.take_along_axis(contrast, best[None], axis=0)[0]


def _names(places: np.ndarray) -> np.ndarray:
    """The names of readings, from their indices in READINGS."""
    return text_array([READINGS[place] if place >= 0 else "" for place in places.ravel().tolist()], places.shape)


def _either(known: Sequence[str]) -> str:
    """``"a", "b" or "c"``."""
    *others, last = (f'"{name}"' for name in known)
    return f"{', '.join(others)} or {last}"


def _text(labels: list[str]) -> np.ndarray:
    return text_array(labels, (len(labels),))
