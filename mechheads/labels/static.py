"""Relation scores: what each head maps each token to, computed from its weights.

The method is MAPS (Elhelo & Geva 2025, "Inferring Functionality of Attention Heads from their Parameters",
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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float

from mechheads.heads import Heads, check_heads
from mechheads.labels.nulls import matching_null, matchings
from mechheads.labels.ranks import HeadPath, Ranks, Ties, usual_k
from mechheads.labels.readings import READINGS, Norm, Reading, Readings, Source
from mechheads.labels.relations import Relations, load_relations
from mechheads.labels.usable_pairs import KeptPairs, Targets, keep_pairs, long_enough
from mechheads.ledger.key import Store
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Share, check_arguments
from mechheads.messages.interrupted import until_interrupted
from mechheads.messages.warn import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.dataset import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values, share_interval

Side = Literal[1, -1]
"""Whether a score counts the largest entries of a row (1) or the smallest (-1)."""

TIES = {"target": "count for the target", "index": "count for the larger token id"}


@dataclass(frozen=True, kw_only=True)
class ScoringSettings:
    """How words, ties and the null of relation scores are handled.

    Attributes:
        leading_space: whether words are tokenised with a leading space.
        ties: ``"target"``: only strictly larger entries are ahead of a target; ``"index"``: at a tie the larger
            token id is ahead, as in a stable sort that is then reversed. The paper's code uses the order of
            ``torch.topk``.
        min_effect: scores below it, or of a single pair, are not tested: their p is 1.
        draws: the number of shuffles of the null, for relations of more than seven pairs.

    Raises:
        ValueError: if a value is not allowed.

    >>> untested = mh.labels.ScoringSettings(min_effect=1.0)
    >>> phi = mh.relation_scores(model, "country_to_capital", source="embedding", scoring=untested)
    >>> bool((phi.dataset["p_value"] == 1).all())
    True
    """

    leading_space: bool = True
    ties: Ties = "target"
    min_effect: Share = 0.01
    draws: Positive = 9999

    def __post_init__(self) -> None:
        check_arguments(type(self), vars(self))


USUAL = ScoringSettings()


@dataclass(frozen=True, kw_only=True)
class Scoring(ScoringSettings):
    """The settings, and the other arguments of ``relation_scores``."""

    k: Positive | None = None
    k_copying: Positive | None = None
    source: Source = "all"
    norm: Norm = "folded"
    targets: Targets = "single"
    min_pairs: Positive | None = None
    seed: int = 0


@dataclass(frozen=True)
class Found:
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
    def empty(cls, n_layers: int, n_heads: int, scored: Sequence[KeptPairs]) -> Found:
        shape = (2, n_layers, n_heads, len(scored))
        longest = max(len(kept.pairs) for kept in scored)
        hits, p, null = np.full((*shape, longest), np.nan), np.full(shape, np.nan), np.full(shape, np.nan)
        each, contrast = np.full((2, len(READINGS), *shape[1:]), np.nan)
        return cls(hits, p, null, np.full(shape, -1), each, contrast)

    def row(self, layer: int, pairs: Bool[np.ndarray, "relation pair"]) -> Float[np.ndarray, " value"]:
        """What was found for a layer, to be stored; ``pairs`` are those that each relation has."""
        hits = np.packbits(self.hits[:, layer][..., pairs].astype(bool))
        return np.concatenate([array[:, layer].astype(np.float64).ravel() for array in self._small] + [hits])

    def take(self, layer: int, row: Float[np.ndarray, " value"], pairs: Bool[np.ndarray, "relation pair"]) -> None:
        """Take over what ``row`` gave for a layer."""
        for array in self._small:
            part, row = np.split(row, [array[:, layer].size])
            array[:, layer] = part.reshape(array[:, layer].shape)
        of_layer = self.hits[:, layer]
        shape = of_layer[..., pairs].shape
        of_layer[..., pairs] = np.unpackbits(row.astype(np.uint8), count=math.prod(shape)).reshape(shape)
        of_layer[np.isnan(self.p[:, layer])] = np.nan  # heads that were not asked for

    @property
    def _small(self) -> tuple[np.ndarray, ...]:
        return self.p, self.null, self.reading, self.each, self.contrast

    def forget(self, layers: slice) -> None:
        """Reset some layers, as if they had not been scored."""
        self.reading[:, layers] = -1
        for array in (self.hits, self.p, self.null, self.each, self.contrast):
            array[:, layers] = np.nan


@analysis
def relation_scores(
    model: Model,
    relations: Relations | None = None,
    k: Positive | None = None,
    *,
    k_copying: Positive | None = None,
    source: Source = "all",
    norm: Norm = "folded",
    targets: Targets = "single",
    min_pairs: int | None = None,
    scoring: ScoringSettings = USUAL,
    heads: Heads | None = None,
) -> HeadScores:
    """Share of each relation's pairs that each head maps from source to target, computed from weights.

    A pair counts if " source" and " target" are one token each. A head that writes nothing for a source, such as a
    pruned head, has no hit. The first MLP and the model run in the model's dtype, everything else in float32.

    Args:
        model: from ``mh.load`` or ``mh.wrap``; with ``mh.load(max_memory=)``, weights stay on disk.
        relations: names of relations of the package, ``Relation`` objects, or your own pairs of words by a name (see
            ``mh.labels.load_relations``). ``None`` for all relations of the package.
        k: a target is a hit if it is among the k largest entries. By default, as in the paper: 10, and 25 for a
            vocabulary of 100,000 tokens or more, such as Llama 3's.
        k_copying: k for relations that copy; by default 1, and 3 for such a vocabulary.
        source: how a head reads a token. ``"embedding"``: as its row of W_E. ``"first_mlp"``: as the first MLP's
            output for that row, from layer 1 on, as in the paper (whose code omits it for Llama-3.1-70B).
            ``"carried"``: as the residual stream at the head's layer when the model runs on the token after a neutral
            word, averaged over a few such words, after the norm before attention. ``"all"``: for each head and
            relation, the one of these with the largest score.
        norm: ``"folded"`` multiplies the scale of the norm before attention into W_V, of a norm after attention
            into W_O and of the final norm into W_U; ``"raw"`` does not, as in the paper.
        targets: ``"first"`` also uses targets of several tokens, by their first token; the variable ``by_first``
            marks these pairs.
        min_pairs: relations with fewer single-token pairs are skipped; a warning and ``provenance["ledger"]`` name
            them. By default, 30 for the relations of the package; relations that you name are scored with any number
            of pairs, with a warning if it is below 30, which a label needs. A relation that you name and that has no
            such pair is an error.
        scoring: how ties count, the smallest score that is tested, and the rest; see ``mh.labels.ScoringSettings``.
        heads: the heads to score, as in ``mh.sweep``; every head if left out. The others are NaN.

    Returns:
        Scores over (layer, head, relation), unit "share of pairs": phi, with Wilson's interval for a share of
        pairs, and p and q against shuffled targets (one-sided; see ``labels.nulls``; q over these heads and all
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
        lacks a reading. After Ctrl-C the layers scored so far are returned and the others are NaN. With
        ``mh.settings(store=)``, the file keeps each layer, and the same call goes on.

    Raises:
        ValueError: if a relation is not known or has no single-token pairs, the model has no tokenizer or not the
            ``source`` asked for, or its weights are not finite. It is raised before any score is computed.

    >>> opposites = {"hot": "cold", "big": "small", "new": "old", "high": "low", "good": "bad"}
    >>> own = mh.relation_scores(model, {"opposites": opposites})
    >>> own.extra_dims, own.dataset["n_pairs"].item()
    (('relation',), 5)
    >>> phi = mh.relation_scores(model, "country_to_capital")
    >>> phi
    <HeadScores 'relation scores' in share of pairs: 30 layers x 9 heads x 1 relation, 38 pairs>
    >>> phi.heads(2), phi.dataset["reading"].sel(layer=23, head=4).item()
    ((HeadId(layer=29, head=2), HeadId(layer=23, head=4)), 'first_mlp')
    """
    whole = Scoring(
        **vars(scoring),
        k=k,
        k_copying=k_copying,
        source=source,
        norm=norm,
        targets=targets,
        min_pairs=min_pairs,
        seed=current().seed,
    )
    return RelationScorer(model, relations, whole, heads=heads).scores()


_DIMS = ("layer", "head", "relation")


class RelationScorer:
    """Relation scores of a model, layer by layer. When it is made, words are chosen and readings run."""

    def __init__(self, model: Model, relations: Relations | None, scoring: Scoring, heads: Heads | None = None) -> None:
        self._heads = check_heads(heads, model.n_layers, model.n_heads)
        k, k_copying = usual_k(model.d_vocab, scoring.k, scoring.k_copying)
        self._model, self._scoring, self._loaded = model, scoring, load_relations(relations)
        named = relations is not None
        self._everything = keep_pairs(
            self._loaded, model.tokenizer, leading_space=scoring.leading_space, targets=scoring.targets, named=named
        )
        self._scored = long_enough(self._everything, scoring.min_pairs, named)
        self._about = model.provenance()
        self._limits = [k_copying if kept.relation.copying else k for kept in self._scored]
        tokens = [pair for kept in self._scored for pair in kept.tokens]
        ids, source_of = np.unique([source for source, _ in tokens if source is not None], return_inverse=True)
        per_relation = [len(kept.pairs) for kept in self._scored]
        device, ends = model.device, np.cumsum(per_relation).tolist()
        self._pairs_of = [slice(end - size, end) for end, size in zip(ends, per_relation, strict=True)]
        self._drawn = cache(lambda n: matchings(n, scoring.draws, scoring.seed))
        with torch.no_grad():
            self._readings = Readings(model, torch.as_tensor(ids, device=device), scoring.source, scoring.norm)
            _check_finite(model)
            self._ranks = Ranks(
                model,
                source_of=torch.as_tensor(source_of, device=device),
                target=torch.as_tensor([target for _, target in tokens], device=device),
                limit=torch.as_tensor(np.repeat(self._limits, per_relation), device=device),
                ties=scoring.ties,
            )
            self._final_scale = model.final_scale().float() if scoring.norm == "folded" else None
        self._names = self._readings.names
        self._apart = self._ranks.by_hubs and model.dtype == torch.float32
        """Whether heads are scored one by one, because each head's product with W_U serves its hubs, hits and null. The
        heads of a layer are scored together if it is not needed, or if W_U is converted each time."""
        self._found = Found.empty(model.n_layers, model.n_heads, self._scored)
        self._ready: set[int] = set()
        self._which = np.array([np.arange(max(per_relation)) < size for size in per_relation])
        self._store = Store(current().store, analysis="relation_scores")
        self._asked = "all" if heads is None else list(map(str, self._heads))
        pairs = [relation.fingerprint for relation in self._loaded]
        self._ledger = self._store.open(model, {}, relations=pairs, scoring=scoring, heads=self._asked)
        for name, row in ({} if self._ledger is None else self._ledger.finished()).items():
            self._found.take(int(name), row, self._which)
            self._ready.add(int(name))

    def scores(self) -> HeadScores:
        """Score all layers, until done or Ctrl-C."""
        with self._store:
            done = self._score_layers()
        self._ledger = None
        found = self._found
        scores = HeadScores.from_values(
            found.hits[0],
            name="relation scores",
            kind="relations",
            extra={"relation": [kept.relation.name for kept in self._scored]},
            provenance=make_provenance(self._about, self._settings(), interrupted=done < self._model.n_layers),
            variables=self._variables(),
        )
        low, high = share_interval(scores.scores.values, scores.dataset["n_pairs"].values)
        statistics = {"ci_low": low, "ci_high": high, "p_value": found.p[0], "q_value": q_values(found.p[0])}
        return HeadScores(scores.dataset.assign({name: (_DIMS, array) for name, array in statistics.items()}))

    def _score_layers(self) -> int:
        """Score layers until done or Ctrl-C; how many were."""
        model, done = self._model, 0
        bar = Bar(total=len(self._heads), desc="relation scores", unit="head")
        with until_interrupted() as interrupts, bar:
            for layer in range(model.n_layers):
                self.score(layer)
                bar.update(len(self._of_layer(layer)))
                done = layer + 1
        interrupts.stop_unless(done)
        if interrupts.interrupted:
            self._found.forget(slice(done, None))
            warn(f"relation_scores was interrupted: layers 0..{done - 1} are scored, the later ones are NaN")
        return done

    def _of_layer(self, layer: int) -> list[int]:
        """The heads of a layer that are scored."""
        return [head.head for head in self._heads if head.layer == layer]

    @torch.no_grad()
    def score(self, layer: int) -> None:
        """Score a layer: the hits of its heads for the best reading, and the null if there are enough hits."""
        asked = self._of_layer(layer)
        if layer in self._ready or not asked:
            return
        found, (readings, paths) = self._found, self._paths(layer)
        found.p[:, layer, asked] = 1.0
        at = {name: readings.index(name if name in readings else "embedding") for name in self._names}
        for heads in [[head] for head in asked] if self._apart else [asked]:
            of_heads = {head: paths[head] for head in heads}
            hits = torch.stack(self._ranks.top([path for some in of_heads.values() for path in some])).cpu().numpy()
            tested: list[tuple[Side, int, int]] = []
            for head, own in zip(heads, np.split(hits, len(heads), axis=1), strict=True):
                for name, i in at.items():
                    contrast = self._ranks.contrast(of_heads[head][i], self._pairs_of)
                    found.contrast[READINGS.index(name), layer, head] = contrast.cpu().numpy()
                    shares = [own[0, i, pairs].mean() for pairs in self._pairs_of]
                    found.each[READINGS.index(name), layer, head] = shares
                tested += self._keep_best((layer, head), own, readings)
            self._test(layer, of_heads, tested)
        self._ready.add(layer)
        if self._ledger is not None:
            self._ledger.commit({str(layer): found.row(layer, self._which)})

    def _paths(self, layer: int) -> tuple[list[Reading], list[list[HeadPath]]]:
        """The readings of a layer, and for each head its values for each reading with its W_O."""
        W_O = self._model.W_O[layer].float()
        if self._final_scale is not None:
            W_O = W_O * self._model.attention_out_scale(layer).float() * self._final_scale
        values = self._readings.at(layer)
        by_head = zip(*values.values(), strict=True)
        return list(values), [[(each, out) for each in read] for read, out in zip(by_head, W_O, strict=True)]

    def _keep_best(
        self,
        at: tuple[int, int],
        hits: Bool[np.ndarray, "side reading pair"],
        readings: Sequence[Reading],
    ) -> list[tuple[Side, int, int]]:
        """Keep the hits of a head's best reading; returns (side, head, relation) of the scores to test."""
        places, tested = np.array([READINGS.index(name) for name in readings]), list[tuple[Side, int, int]]()
        for relation, pairs in enumerate(self._pairs_of):
            own = hits[..., pairs]
            best = own.mean(-1).argmax(1)
            most = np.take_along_axis(own, best[:, None, None], axis=1)[:, 0]
            self._found.hits[(slice(None), *at, relation, slice(own.shape[-1]))] = most
            self._found.reading[(slice(None), *at, relation)] = np.where(most.any(-1), places[best], -1)
            many = (most.sum(-1) >= 2) & (most.mean(-1) >= self._scoring.min_effect)
            for side in np.flatnonzero(many).tolist():
                tested.append((-1 if side else 1, at[1], relation))
        return tested

    def _test(
        self,
        layer: int,
        paths: Mapping[int, Sequence[HeadPath]],
        tested: Sequence[tuple[Side, int, int]],
    ) -> None:
        """p and the mean of the null for some scores, which are in the order of their heads."""
        tables = self._ranks.hits(
            [(path, self._pairs_of[relation], side) for side, head, relation in tested for path in paths[head]]
        )
        for side, head, relation in tested:
            of_pairs = np.stack([table.cpu().numpy() for table in islice(tables, len(paths[head]))])
            at = int(side < 0), layer, head, relation
            self._found.p[at], self._found.null[at] = matching_null(of_pairs, self._drawn)

    def _settings(self) -> dict[str, Any]:
        """How relations were scored, and what was kept of them, for a result's provenance."""
        scoring, scored = self._scoring, self._scored
        limit_of = {kept.relation.name: limit for kept, limit in zip(scored, self._limits, strict=True)}
        return {
            "k": limit_of,
            "source": scoring.source,
            "no_reading": self._readings.missing,
            "norm": scoring.norm,
            "leading_space": scoring.leading_space,
            "targets": scoring.targets,
            "ties": TIES[scoring.ties],
            "min_pairs": scoring.min_pairs,
            "min_effect": scoring.min_effect,
            "draws": scoring.draws,
            "seed": scoring.seed,
            "heads": self._asked,
            "ledger": {kept.relation.name: kept.ledger(kept in scored) for kept in self._everything},
            "relations": {relation.name: relation for relation in self._loaded},
            "prompts": {
                kept.relation.name: [kept.relation, limit_of[kept.relation.name], len(kept.pairs)] for kept in scored
            },
        }

    def _variables(self) -> dict[str, Any]:
        """The further variables of the scores: for each name its dimensions and values."""
        found, scored = self._found, self._scored
        used = [(i, name) for i, name in enumerate(READINGS) if name in self._names]
        longest = found.hits.shape[-1]
        words = [" -> ".join(kept.pairs[i]) if i < len(kept.pairs) else "" for kept in scored for i in range(longest)]
        by_first = [i < len(kept.pairs) and kept.by_first[i] for kept in scored for i in range(longest)]
        return {
            "null_phi": (_DIMS, found.null[0]),
            "reading": (_DIMS, _names(found.reading[0])),
            **{f"phi_{name}": (_DIMS, found.each[i]) for i, name in used},
            "contrast": (_DIMS, _best_contrast(found.contrast)),
            **{f"contrast_{name}": (_DIMS, found.contrast[i]) for i, name in used},
            "suppression": (_DIMS, mean_over_prompts(found.hits[1])),
            "suppression_reading": (_DIMS, _names(found.reading[1])),
            "p_suppression": (_DIMS, found.p[1]),
            "null_suppression": (_DIMS, found.null[1]),
            "n_pairs": ("relation", np.array([len(kept.pairs) for kept in scored])),
            "relation_category": ("relation", text_array([kept.relation.category or "" for kept in scored])),
            "pair": (("relation", "prompt"), text_array(words, (len(scored), longest))),
            "by_first": (("relation", "prompt"), np.array(by_first).reshape(len(scored), longest)),
        }


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


def _check_finite(model: Model) -> None:
    for layer in range(model.n_layers):
        for name, weight in (("W_V", model.W_V[layer]), ("W_O", model.W_O[layer])):
            if not torch.isfinite(weight).all():
                raise ValueError(f"{name} of layer {layer} holds NaN or infinite numbers")
