"""Relation scores layer by layer: the settings, how a layer's heads are scored, and what was found so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Bool

from mechheads.labels.nulls import matching_null, matchings
from mechheads.labels.ranks import HeadPath, Ranks, Ties
from mechheads.labels.readings import READINGS, Norm, Reading, Readings, Source
from mechheads.labels.usable_pairs import KeptPairs, Targets
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.model.stored_weights import StoredWeights

if TYPE_CHECKING:
    from mechheads.model.model import Model

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
    min_effect: float = 0.01
    draws: int = 9999

    def __post_init__(self) -> None:
        check_at_least(1, draws=self.draws)
        if not 0 <= self.min_effect <= 1:
            raise ValueError(f"min_effect is {self.min_effect}; it must be a share of pairs, between 0 and 1")
        check_known("ties", self.ties, Ties)


USUAL = ScoringSettings()


@dataclass(frozen=True, kw_only=True)
class Scoring(ScoringSettings):
    """The settings, and the other arguments of ``relation_scores``.

    Raises:
        ValueError: if an argument is not allowed.
    """

    k: int
    k_copying: int
    source: Source = "all"
    norm: Norm = "folded"
    targets: Targets = "single"
    min_pairs: int = 30
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(1, k=self.k, k_copying=self.k_copying, min_pairs=self.min_pairs)
        check_known("source", self.source, Source)
        check_known("norm", self.norm, Norm)
        check_known("targets", self.targets, Targets)


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

    def forget(self, layers: slice) -> None:
        """Reset some layers, as if they had not been scored."""
        self.reading[:, layers] = -1
        for array in (self.hits, self.p, self.null, self.each, self.contrast):
            array[:, layers] = np.nan


class LayerScorer:
    """Scores the heads of one layer after the other.

    Args:
        scored: the relations, each with at least one pair.

    Attributes:
        limits: k for each relation.
        names: the readings that are used.
        missing: why the other readings are not used.

    Raises:
        ValueError: if the model does not have the reading asked for, or its weights are not finite.
    """

    def __init__(self, model: Model | StoredWeights, scored: Sequence[KeptPairs], scoring: Scoring) -> None:
        self.model, self.scored, self.scoring = model, scored, scoring
        self.limits = [scoring.k_copying if kept.relation.copying else scoring.k for kept in scored]
        tokens = [pair for kept in scored for pair in kept.tokens]
        ids, source_of = np.unique([source for source, _ in tokens if source is not None], return_inverse=True)
        per_relation = [len(kept.pairs) for kept in scored]
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
                limit=torch.as_tensor(np.repeat(self.limits, per_relation), device=device),
                ties=scoring.ties,
            )
            self._final_scale = model.final_scale().float() if scoring.norm == "folded" else None
        self.names, self.missing = self._readings.names, self._readings.missing
        every = range(model.n_heads)
        whole = isinstance(model, StoredWeights) or model.dtype != torch.float32
        self._together = [every] if whole else [range(head, head + 1) for head in every]
        """The heads of a layer that are scored together: all if W_U is read or converted each time, else one by one, as
        each head's product with W_U then serves its hits and its null."""

    @torch.no_grad()
    def score(self, found: Found, layer: int) -> None:
        """Score a layer: the hits of its heads for the best reading, and the null if there are enough hits."""
        readings, paths = self._paths(layer)
        found.p[:, layer] = 1.0
        at = {name: readings.index(name if name in readings else "embedding") for name in self.names}
        for heads in self._together:
            of_heads = {head: paths[head] for head in heads}
            hits = torch.stack(self._ranks.top([path for some in of_heads.values() for path in some])).cpu().numpy()
            tested: list[tuple[Side, int, int]] = []
            for head, own in zip(heads, np.split(hits, len(heads), axis=1), strict=True):
                for name, i in at.items():
                    contrast = self._ranks.contrast(of_heads[head][i], self._pairs_of)
                    found.contrast[READINGS.index(name), layer, head] = contrast.cpu().numpy()
                    shares = [own[0, i, pairs].mean() for pairs in self._pairs_of]
                    found.each[READINGS.index(name), layer, head] = shares
                tested += self._keep_best(found, (layer, head), own, readings)
            self._test(found, layer, of_heads, tested)

    def _paths(self, layer: int) -> tuple[list[Reading], list[list[HeadPath]]]:
        """The readings of a layer, and for each head its values for each reading with its W_O."""
        W_O = self.model.W_O[layer].float()
        if self._final_scale is not None:
            W_O = W_O * self.model.attention_out_scale(layer).float() * self._final_scale
        values = self._readings.at(layer)
        by_head = zip(*values.values(), strict=True)
        return list(values), [[(each, out) for each in read] for read, out in zip(by_head, W_O, strict=True)]

    def _keep_best(
        self,
        found: Found,
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
            found.hits[(slice(None), *at, relation, slice(own.shape[-1]))] = most
            found.reading[(slice(None), *at, relation)] = np.where(most.any(-1), places[best], -1)
            many = (most.sum(-1) >= 2) & (most.mean(-1) >= self.scoring.min_effect)
            for side in np.flatnonzero(many).tolist():
                tested.append((-1 if side else 1, at[1], relation))
        return tested

    def _test(
        self,
        found: Found,
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
            found.p[at], found.null[at] = matching_null(of_pairs, self._drawn)


def _check_finite(model: Model | StoredWeights) -> None:
    for layer in range(model.n_layers):
        for name, weight in (("W_V", model.W_V[layer]), ("W_O", model.W_O[layer])):
            if not torch.isfinite(weight).all():
                raise ValueError(f"{name} of layer {layer} holds NaN or infinite numbers")
