"""``HeadWeights``: what every head reads, writes and amplifies by its weights, and the heads that it composes with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.circuits import Side, copying_scores, root, sides, singular
from mechheads.behaviour.composition import composition_scores
from mechheads.heads import HeadId
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import token_strings
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

DIRECTIONS = 3
"""Singular directions of each circuit."""
TOKENS = 6
"""Tokens at each end of a direction."""
OPERATIONS = 6
"""Tokens that a head amplifies most."""
MAPPED = 4
"""Tokens that each of them is mapped to."""
READ = 4096
"""How many tokens of the vocabulary, from its beginning, are tried as what a head amplifies."""
KNOWN = 16_384
"""How many tokens of the vocabulary, from its beginning, are tried as what a head reads or writes."""
PARTNERS = 6
"""Earlier and later heads that a head composes with most, in each way."""
CIRCUITS = ("OV", "QK")
ENDS = ("reads", "writes", "reads_negative", "writes_negative")

Words = Int[Tensor, "head n top"]


@dataclass(frozen=True, eq=False, repr=False)
class HeadWeights(TableResult):
    """What every head does by its weights.

    Attributes:
        table: a row for each pair of heads that compose: the ``sender``, the ``receiver``, the ``way`` ("Q", "K" or
            "V"), and the ``score``, ``z`` and ``p`` of ``mh.behaviour.composition_scores``. The six strongest of each
            sender and of each receiver, by z.
        copying: of ``mh.behaviour.copying_scores``.
        singular: all singular values of OV and QK, the largest first.
        directions: of the first three directions of OV and QK, the tokens at ``reads`` and ``writes`` of the positive
            end and then of the negative end (of QK: query and key), among the first 16,384 of the vocabulary, as
            numbers of ``words``.
        operations: the tokens that a head amplifies most, among the first 4,096 of the vocabulary, each with those
            that it is mapped to and those that it suppresses, as numbers of ``words``.
        sigma: how much longer the head makes what it reads of each of them.
        words: the texts of tokens.
        provenance: what is needed to repeat it.
    """

    KIND = "head_weights"
    name, unit = "weights of heads", "share of the norms"

    table: pd.DataFrame
    copying: HeadScores
    singular: Float[np.ndarray, "circuit layer head d_head"]
    directions: Int[np.ndarray, "circuit layer head direction end top"]
    operations: Int[np.ndarray, "layer head operation token"]
    sigma: Float[np.ndarray, "layer head operation"]
    words: tuple[str, ...]
    provenance: dict[str, Any]


@analysis
@torch.no_grad()
def head_weights(model: Model) -> HeadWeights:
    """Read every head's weights.

    Raises:
        ValueError: if the weights give numbers that are not finite.
    """
    readings = _Readings(model)
    bar = Bar(range(model.n_layers), desc="weights", leave=False)
    parts = [readings.of_layer(layer) for layer in bar]
    stacked = {name: np.stack([part[name] for part in parts]) for name in parts[0]}
    ids = np.unique(np.concatenate([stacked["directions"].ravel(), stacked["operations"].ravel()]))
    directions, operations = (np.searchsorted(ids, stacked[name]) for name in ("directions", "operations"))
    return HeadWeights(
        _partners(model),
        copying_scores(model),
        np.moveaxis(stacked["singular"], 1, 0),
        np.moveaxis(directions, 1, 0),
        operations,
        stacked["sigma"],
        tuple(token_strings(ids.tolist(), model.tokenizer)),
        make_provenance(
            model,
            n_kv_heads=model.n_kv_heads,
            directions=DIRECTIONS,
            tokens=TOKENS,
            operations=OPERATIONS,
            read=READ,
            known=KNOWN,
        ),
    )


class _Readings:
    """Reads the weights of one layer after the other; what all layers share is computed once."""

    def __init__(self, model: Model) -> None:
        self.model = model
        known = min(KNOWN, model.d_vocab if model.tokenizer is None else min(model.d_vocab, len(model.tokenizer)))
        self._E = model.W_E[:known].float()
        self._U = model.final_scale().float()[:, None] * model.unembedding(0, known)
        self._seen = {False: self._E[:READ], True: model.first_mlp(model.W_E[: min(READ, known)]).float()}

    def of_layer(self, layer: int) -> Mapping[str, np.ndarray]:
        """What is kept of a layer: singular values, and the ids of tokens."""
        OV, QK = (singular(*sides(self.model, layer, circuit)) for circuit in CIRCUITS)
        found = {"singular": torch.stack([OV[1], QK[1]])}
        if not found["singular"].isfinite().all():
            raise ValueError(f"model: the weights of {self.model.name!r} give numbers that are not finite")
        n = min(DIRECTIONS, OV[1].shape[-1])
        products = [
            [self._embedded(OV[0][..., :n]), self._written(OV[2][..., :n])],
            [self._embedded(QK[0][..., :n]), self._embedded(QK[2][..., :n])],
        ]
        ids = [
            torch.stack([_top(sign * product, TOKENS) for sign in (1, -1) for product in circuit], dim=2)
            for circuit in products
        ]
        found["directions"] = torch.stack(ids)
        found["operations"], found["sigma"] = self._operations(layer)
        return {name: each.cpu().numpy() for name, each in found.items()}

    def _embedded(self, side: Side) -> Float[Tensor, "head direction token"]:
        return _one_product(side, self._E.T)

    def _written(self, side: Side) -> Float[Tensor, "head direction token"]:
        return _one_product(side, self._U)

    def _operations(self, layer: int) -> tuple[Int[Tensor, "head operation token"], Float[Tensor, "head operation"]]:
        """The tokens that each head amplifies most, with those that each is mapped to; and how much."""
        seen = self._seen[layer > 0]
        W_V, out = sides(self.model, layer, "OV")
        z = seen @ W_V
        lengths = (z @ root(out).mT).norm(dim=-1)
        gain = torch.nan_to_num(lengths / seen.norm(dim=-1), nan=0.0, posinf=0.0)
        sigma, chosen = gain.topk(min(OPERATIONS, gain.shape[-1]))
        written = z.gather(1, chosen[..., None].expand(-1, -1, z.shape[-1])) @ out.mT
        entries = _one_product(written.mT, self._U)
        return torch.cat([chosen[..., None], _top(entries, MAPPED), _top(-entries, MAPPED)], dim=-1), sigma


def _one_product(
    side: Float[Tensor, "head d_model n"], matrix: Float[Tensor, "d_model token"]
) -> Float[Tensor, "head n token"]:
    """side^T matrix of all heads; far faster as one product than as one for each head."""
    n_heads, _, n = side.shape
    return (side.mT.reshape(n_heads * n, -1) @ matrix).reshape(n_heads, n, -1)


def _top(products: Float[Tensor, "head n token"], top: int) -> Words:
    return products.topk(min(top, products.shape[-1]), dim=-1).indices


def _partners(model: Model) -> pd.DataFrame:
    """The strongest pairs of heads by composition: of each sender, and of each receiver."""
    names = [str(HeadId(layer, head)) for layer in range(model.n_layers) for head in range(model.n_heads)]
    tables = []
    for way in ("Q", "K", "V") if model.n_layers > 1 else ():
        data = composition_scores(model, way).dataset
        score, z, p = (data[name].values.reshape(len(names), len(names)) for name in ("score", "z", "p_value"))
        rank = np.where(np.isfinite(z), z, -np.inf)
        chosen = {
            pair
            for strongest in (_first(rank), [(a, b) for b, a in _first(rank.T)])
            for pair in strongest
            if np.isfinite(rank[pair])
        }
        a, b = np.array(sorted(chosen)).T
        columns = {"score": score[a, b], "z": z[a, b], "p": p[a, b]}
        tables.append(
            pd.DataFrame({"sender": [names[i] for i in a], "receiver": [names[i] for i in b], "way": way, **columns})
        )
    empty: dict[str, Sequence[Any]] = {name: [] for name in ("sender", "receiver", "way", "score", "z", "p")}
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(empty)


def _first(rank: Float[np.ndarray, "one other"]) -> list[tuple[int, int]]:
    order = np.argsort(-rank, axis=1, kind="stable")[:, :PARTNERS]
    return [(i, int(j)) for i, row in enumerate(order) for j in row]
