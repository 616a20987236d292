"""Relation scores: how many pairs of a relation each head maps from source to target, by its weights.

The method is MAPS (Elhelo & Geva 2025, "Inferring Functionality of Attention Heads from their Parameters",
arXiv 2412.11965, section 3):

    M = E' W_V W_O W_U                                                    [vocab, vocab]
    phi_R = mean over (s, t) in R of 1[t is among the k largest entries of row s of M]

and the suppression score is the same on -M. Each head is scored for three readings E' (``readings.py``), and the
largest phi counts. M is never formed and nothing is sorted (``ranks.py``). All computations are in float32, without
biases. docs/labels.md explains the scores.

The paper has no null. Here the targets of a relation are shuffled among its sources: a head that raises " Paris" for
every source, or prefers common words, hits some targets by that alone. Let H[i, j] be 1 if source i has target j among
its k largest, else 0. The score of the relation is the mean of H[i, i]. Under the null every matching of sources and
targets is equally likely: T = sum over i of H[i, pi(i)], pi a random permutation. p is the share of permutations with T
at least as large as the observed T. With several readings, T is the largest of theirs, all shuffled by the same pi, so
the selection of the best reading is part of the null.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain, islice, permutations, repeat
from math import factorial, lgamma, log
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int

from mechheads.heads import Heads, named_heads
from mechheads.labels.ranks import HeadPath, Ranks, usual_k
from mechheads.labels.readings import READINGS, Norm, Reading, Readings, Source
from mechheads.labels.relations import Relations, usable_pairs
from mechheads.ledger.key import Store
from mechheads.ledger.ledger import Ledger
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Share
from mechheads.messages.notices import until_interrupted, warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.dataset import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values, share_interval

EXACT_UP_TO = 7
"""Up to this number of pairs, all matchings of a relation are counted."""
LEAST_EFFECT = 0.01
"""Smaller scores are not tested by default."""
DRAWS = 9999
"""The number of random shuffles for relations of more pairs."""


@analysis
def relation_scores(
    model: Model,
    relations: Relations | None = None,
    k: Positive | None = None,
    *,
    source: Source = "all",
    norm: Norm = "folded",
    min_pairs: Positive | None = None,
    min_effect: Share = LEAST_EFFECT,
    heads: Heads | None = None,
) -> HeadScores:
    """The share of each relation's pairs that each head maps from source to target, computed from weights.

    A pair counts if " source" and " target" are one token each. A head that writes nothing for a source, such as a
    pruned head, has no hit. The first MLP and the model run in the model's dtype, everything else in float32.

    Args:
        model: from ``mh.load`` or ``mh.wrap``; with ``mh.load(max_memory=)``, weights stay on disk.
        relations: names of relations of the package, ``Relation`` objects, or your own pairs of words by a name (see
            ``mh.labels.load_relations``). ``None`` for all relations of the package.
        k: a target is a hit if fewer than k entries are larger. By default, as in the paper: 10, and 25 for a
            vocabulary of 100,000 tokens or more, such as Llama 3's. Relations that copy always have 1, or 3 for such a
            vocabulary.
        source: how a head reads a token. ``"embedding"``: as its row of W_E. ``"first_mlp"``: as the first MLP's
            output for that row, from layer 1 on, as in the paper (whose code omits it for Llama-3.1-70B).
            ``"carried"``: as the residual stream at the head's layer when the model runs on the token after a neutral
            word, averaged over a few such words, after the norm before attention. ``"all"``: for each head and
            relation, the one of these with the largest score.
        norm: ``"folded"`` multiplies the scale of the norm before attention into W_V, of a norm after attention
            into W_O and of the final norm into W_U; ``"raw"`` does not, as in the paper.
        min_pairs: relations with fewer single-token pairs are skipped; a warning and ``provenance["ledger"]`` name
            them. By default, 30 for the relations of the package; relations that you name are scored with any number
            of pairs, with a warning if it is below 30, which a label needs. A relation that you name and that has no
            such pair is an error.
        min_effect: scores below it, or of a single pair, are not tested: their p is 1.
        heads: the heads to score, as in ``mh.sweep``; every head if left out. The others are NaN.

    Returns:
        phi over (layer, head, relation), the largest share of the readings, with Wilson's interval, and p and q against
        shuffled targets (one-sided; q over these heads and all relations). ``values`` holds 1 for a hit and 0 for none,
        per pair, NaN beyond a relation's last pair. Further variables over (layer, head, relation): ``reading``, the
        one with the largest score, empty if no pair is hit; ``phi_embedding``, ``phi_first_mlp`` and ``phi_carried``;
        ``null_phi``, the mean over the shuffles if the score was tested; ``suppression``; and ``contrast``: how many
        standard deviations of its row a source raises its target above the relation's other targets, for the
        ``carried`` reading or, without it, the reading in which it is farthest from zero; and ``contrast_embedding``
        and so on. Also ``n_pairs`` and ``relation_category`` (relation), and ``pair`` (relation, prompt).
        ``provenance["ledger"]`` lists the pairs that are not scored, and why; ``provenance["no_reading"]`` names the
        readings that the model lacks, and why. After Ctrl-C, layers that were not scored are NaN.

    Raises:
        ValueError: if a relation has no single-token pairs, or the model has no tokenizer or lacks the reading
            ``source``.

    >>> phi = mh.relation_scores(model, "country_to_capital")
    >>> phi.heads(2), phi.dataset["reading"].sel(layer=23, head=4).item()
    ((HeadId(layer=29, head=2), HeadId(layer=23, head=4)), 'first_mlp')
    """
    every = usable_pairs(relations, model.tokenizer, min_pairs=min_pairs)
    scored = [usable for usable in every if usable.scored]
    limits = [usual_k(k, usable.relation.copying, model.d_vocab) for usable in scored]
    named, named_text = named_heads(heads, model.n_layers, model.n_heads)
    how: dict[str, Any] = {"source": source, "norm": norm, "min_effect": min_effect, "seed": current().seed}
    layers = LayerScores(model, [usable.tokens for usable in scored], limits, how)
    with Store(current().store, analysis="relation_scores") as store:
        pairs = [usable.relation.fingerprint for usable in scored]
        done = layers.score(store.open(model, {}, relations=pairs, limits=limits, how=how, heads=named_text), named)
    names, n_pairs = [usable.relation.name for usable in scored], [len(usable.pairs) for usable in scored]
    words = [" -> ".join(pair) for usable in scored for pair in islice(chain(usable.pairs, repeat(())), max(n_pairs))]
    scores = HeadScores.from_values(
        layers.arrays["hits"][:, 0],
        name="relation scores",
        kind="relations",
        extra={"relation": names},
        provenance=make_provenance(
            model,
            how,
            {"k": dict(zip(names, limits, strict=True)), "min_pairs": min_pairs, "heads": named_text},
            no_reading=layers.missing,
            ledger={usable.relation.name: usable.ledger() for usable in every},
            relations={usable.relation.name: usable.relation for usable in every},
            prompts={
                usable.relation.name: [usable.relation, *of_pairs]
                for usable, *of_pairs in zip(scored, limits, n_pairs, strict=True)
            },
            interrupted=done < model.n_layers,
        ),
    ).assign(
        **layers.variables(),
        n_pairs=("relation", np.array(n_pairs)),
        relation_category=("relation", text_array([usable.relation.category or "" for usable in scored])),
        pair=(("relation", "prompt"), text_array(words, (len(scored), max(n_pairs)))),
    )
    low, high = share_interval(scores.scores.values, np.array(n_pairs))
    p = layers.arrays["p"]
    statistics = {"ci_low": low, "ci_high": high, "p_value": p, "q_value": q_values(p)}
    return scores.assign(**{name: (_DIMS, array) for name, array in statistics.items()})


_DIMS = ("layer", "head", "relation")


class LayerScores:
    """Scores of some relations, each with the tokens of its pairs and its k, layer by layer.
    ``arrays``: hits among the k largest and the k smallest, for the best reading of each, and the other measures."""

    def __init__(
        self, model: Model, tokens: Sequence[Sequence[tuple[Any, int]]], limits: Sequence[int], how: Mapping[str, Any]
    ) -> None:
        self._model, self._least = model, how["min_effect"]
        sizes, every = list(map(len, tokens)), [pair for of_relation in tokens for pair in of_relation]
        ids, source_of = np.unique([source for source, _ in every], return_inverse=True)
        device, ends = model.device, np.cumsum(sizes).tolist()
        self._pairs_of = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        self._drawn = cache(lambda n: matchings(n, DRAWS, how["seed"]))
        with torch.no_grad():
            self._readings = Readings(model, torch.as_tensor(ids, device=device), how["source"], how["norm"])
            for layer in range(model.n_layers):
                for name, weight in (("W_V", model.W_V[layer]), ("W_O", model.W_O[layer])):
                    if not torch.isfinite(weight).all():
                        raise ValueError(f"{name} of layer {layer} holds NaN or infinite numbers")
            self._ranks = Ranks(
                model,
                source_of=torch.as_tensor(source_of, device=device),
                target=torch.as_tensor([target for _, target in every], device=device),
                limit=torch.as_tensor(np.repeat(limits, sizes), device=device),
            )
            self._final_scale = model.final_scale().float() if how["norm"] == "folded" else None
        self._names, self.missing = self._readings.names, self._readings.missing
        self._apart = self._ranks.by_hubs and model.dtype == torch.float32
        """Whether heads are scored one by one, because each head's product with W_U serves its hubs, hits and null. The
        heads of a layer are scored together if it is not needed, or if W_U is converted each time."""
        size = model.n_heads, len(tokens)
        shapes = {"hits": (2, *size, max(sizes)), "p": size, "null": size, "reading": size}
        shapes |= {"each": (len(READINGS), *size), "contrast": (len(READINGS), *size)}
        self.arrays = {name: np.full((model.n_layers, *shape), np.nan) for name, shape in shapes.items()}

    def score(self, ledger: Ledger | None, named: Bool[np.ndarray, "layer head"]) -> int:
        """Score the heads of each layer that is not in the ledger, until done or Ctrl-C; the number of layers done."""
        stored = {} if ledger is None else ledger.finished()
        done, bar = 0, Bar(total=int(named.sum()), desc="relation scores", unit="head")
        with until_interrupted() as interrupts, bar:
            for layer, of_layer in enumerate(named):
                arrays = {name: array[layer] for name, array in self.arrays.items()}
                if (row := stored.get(str(layer))) is not None:
                    ends = np.cumsum([array.size for array in arrays.values()])[:-1]
                    for array, part in zip(arrays.values(), np.split(row, ends), strict=True):
                        array[...] = part.reshape(array.shape)
                elif of_layer.any():
                    self._score(layer, np.flatnonzero(of_layer).tolist(), arrays)
                    if ledger is not None:
                        ledger.commit({str(layer): np.concatenate([array.ravel() for array in arrays.values()])})
                bar.update(int(of_layer.sum()))
                done = layer + 1
        interrupts.stop_unless(done)
        if interrupts.interrupted:
            for array in self.arrays.values():
                array[done:] = np.nan
            warn(f"relation_scores was interrupted: layers 0..{done - 1} are scored, the later ones are NaN")
        return done

    @torch.no_grad()
    def _score(self, layer: int, scored: Sequence[int], of_layer: Mapping[str, np.ndarray]) -> None:
        """Score some heads of a layer: their hits for the best reading, and the null if there are enough hits."""
        readings, paths = self._paths(layer)
        of_layer["p"][scored] = 1.0
        at = {name: readings.index(name if name in readings else "embedding") for name in self._names}
        for heads in [[head] for head in scored] if self._apart else [scored]:
            of_heads = {head: paths[head] for head in heads}
            hits = torch.stack(self._ranks.top([path for some in of_heads.values() for path in some])).cpu().numpy()
            tested: list[tuple[int, int]] = []
            for head, own in zip(heads, np.split(hits, len(heads), axis=1), strict=True):
                for name, i in at.items():
                    contrast = self._ranks.contrast(of_heads[head][i], self._pairs_of)
                    of_layer["contrast"][READINGS.index(name), head] = contrast.cpu().numpy()
                    shares = [own[0, i, pairs].mean() for pairs in self._pairs_of]
                    of_layer["each"][READINGS.index(name), head] = shares
                tested += self._set_best(of_layer, head, own, readings)
            self._test(of_layer, of_heads, tested)

    def _paths(self, layer: int) -> tuple[list[Reading], list[list[HeadPath]]]:
        """The readings of a layer, and for each head its values for each reading with its W_O."""
        W_O = self._model.W_O[layer].float()
        if self._final_scale is not None:
            W_O = W_O * self._model.attention_out_scale(layer).float() * self._final_scale
        values = self._readings.at(layer)
        by_head = zip(*values.values(), strict=True)
        return list(values), [[(each, out) for each in read] for read, out in zip(by_head, W_O, strict=True)]

    def _set_best(
        self,
        of_layer: Mapping[str, np.ndarray],
        head: int,
        hits: Bool[np.ndarray, "side reading pair"],
        readings: Sequence[Reading],
    ) -> list[tuple[int, int]]:
        """Store the hits of a head's best reading; returns (head, relation) of the scores to test."""
        places, tested = np.array([READINGS.index(name) for name in readings]), list[tuple[int, int]]()
        for relation, pairs in enumerate(self._pairs_of):
            own = hits[..., pairs]
            best = own.mean(-1).argmax(1)
            most = np.take_along_axis(own, best[:, None, None], axis=1)[:, 0]
            of_layer["hits"][:, head, relation, : own.shape[-1]] = most
            of_layer["reading"][head, relation] = places[best[0]] if most[0].any() else np.nan
            if most[0].sum() >= 2 and most[0].mean() >= self._least:
                tested.append((head, relation))
        return tested

    def _test(
        self,
        of_layer: Mapping[str, np.ndarray],
        paths: Mapping[int, Sequence[HeadPath]],
        tested: Sequence[tuple[int, int]],
    ) -> None:
        """p and the mean of the null for some scores, which are in the order of their heads."""
        tables = self._ranks.hits(
            [(path, self._pairs_of[relation]) for head, relation in tested for path in paths[head]]
        )
        for at in tested:
            of_pairs = np.stack([table.cpu().numpy() for table in islice(tables, len(paths[at[0]]))])
            of_layer["p"][at], of_layer["null"][at] = matching_null(of_pairs, self._drawn)

    def variables(self) -> dict[str, Any]:
        """The further variables over heads and relations: for each name its dimensions and values."""
        arrays = self.arrays
        variables = {
            "null_phi": arrays["null"],
            "reading": _names(arrays["reading"]),
            "contrast": _best_contrast(np.moveaxis(arrays["contrast"], 1, 0)),
            "suppression": mean_over_prompts(arrays["hits"][:, 1]),
        }
        for i, name in enumerate(READINGS):
            if name in self._names:
                variables |= {f"phi_{name}": arrays["each"][:, i], f"contrast_{name}": arrays["contrast"][:, i]}
        return {name: (_DIMS, values) for name, values in variables.items()}


def _best_contrast(contrast: np.ndarray) -> np.ndarray:
    """The contrast [reading, ...] for the carried reading; without it, the one farthest from zero."""
    carried = contrast[READINGS.index("carried")]
    if not np.isnan(carried).all():
        return carried
    best = np.where(np.isnan(contrast), -1.0, np.abs(contrast)).argmax(0)
    return np.take_along_axis(contrast, best[None], axis=0)[0]


def _names(places: np.ndarray) -> np.ndarray:
    """The names of readings, from their indices in READINGS; NaN for none."""
    return text_array([READINGS[int(at)] if at >= 0 else "" for at in places.ravel().tolist()], places.shape)


def matchings(n: int, draws: int, seed: int) -> Int[np.ndarray, "draw pair"]:
    """All matchings of ``n`` sources and targets if there are few, otherwise random ones."""
    if n <= EXACT_UP_TO:
        matched = np.array(list(permutations(range(n))))
    else:
        of_pairs = np.tile(np.arange(n, dtype=np.min_scalar_type(n)), (draws, 1))
        matched = np.random.default_rng(seed).permuted(of_pairs, axis=1)
    return np.asfortranarray(matched)


def matching_null(
    hits: Bool[np.ndarray, "reading source target"], drawn: Callable[[int], Int[np.ndarray, "draw pair"]]
) -> tuple[float, float]:
    """p of the observed matching (the share of matchings with at least as many hits), and the mean share of hits."""
    n = hits.shape[-1]
    seen = int(np.diagonal(hits, axis1=1, axis2=2).sum(1).max())
    if seen == 0 and len(hits) == 1:
        return 1.0, float(hits.mean())
    order = drawn(n)
    largest = np.max([_totals(table, order) for table in hits], axis=0)
    share = float(hits.mean() if len(hits) == 1 else largest.mean() / n)
    as_many = int((largest >= seen).sum())
    if len(order) == factorial(n) and n <= EXACT_UP_TO:
        return as_many / len(order), share
    p = (1 + as_many) / (1 + len(order))
    # If no draw has as many, the bound P(T >= t) <= e_t(r) (n - t)! / n! may be smaller, with r the hits in each row or
    # column and e_t the elementary symmetric polynomial: the ways to place t hits in different rows. Over readings, the
    # bounds are added.
    if as_many:
        return p, share
    return min(p, sum(min(_bound(table.sum(axis), seen) for axis in (0, 1)) for table in hits)), share


def _totals(table: Bool[np.ndarray, "source target"], order: Int[np.ndarray, "draw pair"]) -> Int[np.ndarray, " draw"]:
    """The hits of each matching, counted source by source, which takes a quarter of the time of one step."""
    totals = np.zeros(len(order), dtype=np.int64)
    for source in np.flatnonzero(table.any(1)).tolist():
        totals += table[source].take(order[:, source])
    return totals


def _bound(counts: Int[np.ndarray, " line"], t: int) -> float:
    """e_t(counts) (n - t)! / n!, at most 1; counts are divided by n first, to stay within range."""
    n = len(counts)
    symmetric = np.zeros(t + 1)
    symmetric[0] = 1.0
    for count in counts[counts > 0] / n:
        symmetric[1:] += count * symmetric[:-1]
    if symmetric[t] == 0:
        return np.finfo(float).tiny
    logarithm = log(symmetric[t]) + t * log(n) + lgamma(n - t + 1) - lgamma(n + 1)
    return float(np.exp(min(logarithm, 0.0)))
