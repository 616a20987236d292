"""Relation scores: what each head maps each token to, read from its weights alone.

The method is MAPS (Elhelo & Geva 2024, "Inferring Functionality of Attention Heads from their Parameters",
arXiv 2412.11965, section 3):

    M = E' W_V W_O W_U                                                    [vocab, vocab]
    phi_R = mean over (s, t) in R of 1[t is among the k largest entries of row s of M]

and the suppression score is the same on -M. E' is the embedding W_E in layer 0, and in later layers what the
first MLP makes of it, MLP_0(ln2_0(W_E)). Weights are raw (no norm folded in, no biases), in float32.

| paper | here |
|---|---|
| relation R, its pairs (s, t) | ``Relation.pairs`` |
| k, for copying relations | ``k``, ``k_copying`` |
| phi_R(h) | ``scores`` at layer, head, relation |
| suppression score | the variable ``suppression`` |

M is never formed and nothing is sorted; ``ranks.py`` says how. What the paper lacks is a null: ``nulls.py`` shuffles
the targets of a relation among its sources and asks how often as many are hit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.backends.changes import alone
from mechheads.bars import Bar
from mechheads.labels.nulls import matching_p, matchings
from mechheads.labels.ranks import HeadPath, Ranks, Ties, usual_k
from mechheads.labels.relations import RelationLike, load_relations
from mechheads.labels.vocabulary import KeptPairs, Targets, check_any, keep_pairs, long_enough
from mechheads.netcdf import text_array
from mechheads.notices import warn
from mechheads.scores import HeadScores
from mechheads.stats import mean_over_prompts, q_values, share_interval

if TYPE_CHECKING:
    from mechheads.model import Model
    from mechheads.weights import StoredWeights

Norm = Literal["raw", "folded"]
_TIES = {"target": "count for the target", "index": "count for the larger token id"}


@alone
def relation_scores(
    model: Model | StoredWeights,
    relations: RelationLike | Iterable[RelationLike] | None = None,
    k: int | None = None,
    *,
    k_copying: int | None = None,
    first_mlp: bool = True,
    norm: Norm = "raw",
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
    """Share of each relation's pairs that each head maps from source to target, from weights alone.

    A pair counts if " source" and " target" are one token each. A head that writes nothing for a source, as a
    pruned head does, hits nothing. The first MLP runs in the model's dtype, all else in float32.

    Args:
        model: from ``mh.load`` or ``mh.wrap``, or ``mh.open_weights`` for a model that stays on disk.
        relations: names, paths of JSON files or ``Relation`` objects; ``None``: those of the package.
        k: a target is hit among the k largest entries. Left out, as the paper has it: 10, and 25 for a
            vocabulary of 100,000 tokens or more, such as Llama 3's.
        k_copying: k for relations that copy; left out, 1 and 3.
        first_mlp: whether layers from 1 on see tokens through the first MLP. The paper's code leaves it out
            for Llama-3.1-70B.
        norm: ``"raw"`` as in the paper; ``"folded"`` multiplies the scales of the norm before attention into W_V
            and of the final norm into W_U.
        leading_space: whether words are looked up with a space before them.
        targets: ``"first"`` also takes targets of several tokens, by their first; the variable ``by_first``
            marks these pairs.
        ties: ``"target"``: only strictly larger entries are ahead of a target; ``"index"``: at a tie the larger
            token id is ahead, as in a stable sort that is then reversed. The paper's code takes whichever
            ``torch.topk`` gives.
        min_pairs: relations with fewer single-token pairs are skipped: a warning and
            ``provenance["ledger"]`` say which. Of relations that you name, one without any such pair is an
            error.
        min_effect: scores below it, or of a single pair, are not tested: their p is 1.
        draws: shuffles of the null, beyond seven pairs; ``seed``: of the shuffles.
        memory: bytes that a block of entries may take.
        progress: whether to show a bar.

    Returns:
        Scores over (layer, head, relation), unit "share of pairs": phi, with Wilson's interval for a share of
        pairs, and p and q against shuffled targets (one-sided; see ``labels.nulls``; q over all heads and
        relations). ``values`` holds 1 for a hit and 0 for none, per pair, NaN beyond a relation's last pair.
        Further variables: ``null_phi``, the mean under the shuffles where it was tested; ``suppression`` and
        ``p_suppression`` (layer, head, relation); ``n_pairs`` and ``relation_category`` (relation); ``pair`` and
        ``by_first`` (relation, prompt). ``provenance["ledger"]`` tells for each relation how many pairs were
        given and kept, which were lost and why. After Ctrl-C the layers that were done are returned and the
        others are NaN.

    Raises:
        ValueError: for an unknown relation, one without single-token pairs, a model without a tokenizer, or
            weights that are not finite; before any score is computed.

    >>> phi = mh.relation_scores(model, "country_to_capital")
    >>> phi
    <HeadScores 'relation scores' in share of pairs: 30 layers x 9 heads x 1 relation, 38 prompts>
    >>> phi.heads(1)
    (HeadId(layer=23, head=4),)
    """
    k, k_copying = usual_k(model.d_vocab, k, k_copying)
    numbers = {"k": k, "k_copying": k_copying, "min_pairs": min_pairs, "draws": draws, "memory": memory}
    for what, number in numbers.items():
        if number < 1:
            raise ValueError(f"{what} is {number}; it must be at least 1")
    if not 0 <= min_effect <= 1:
        raise ValueError(f"min_effect is {min_effect}; it is a share of pairs, between 0 and 1")
    for what, given, known in (("norm", norm, ("raw", "folded")), ("targets", targets, ("single", "first")),
                               ("ties", ties, tuple(_TIES))):  # fmt: skip
        if given not in known:
            raise ValueError(f'{what} is {given!r}; choose "{known[0]}" or "{known[1]}"')
    loaded = load_relations(relations)
    everything = keep_pairs(loaded, model.tokenizer, leading_space=leading_space, targets=targets)
    if relations is not None:
        for kept in everything:
            check_any(kept, model.tokenizer, leading_space)
    scored = long_enough(everything, min_pairs)
    limits = [k_copying if kept.relation.copying else k for kept in scored]
    about = model.provenance()
    found = _Found.empty(model.n_layers, model.n_heads, scored)
    null = _Null(min_effect, draws, seed)
    _fill(
        found, model, scored, limits, null, first_mlp=first_mlp, norm=norm, ties=ties, memory=memory, progress=progress
    )
    names = [kept.relation.name for kept in scored]
    longest = found.hits.shape[-1]
    words = [" -> ".join(kept.pairs[i]) if i < len(kept.pairs) else "" for kept in scored for i in range(longest)]
    by_first = [i < len(kept.pairs) and kept.by_first[i] for kept in scored for i in range(longest)]
    dims, counts = ("layer", "head", "relation"), np.array([len(kept.pairs) for kept in scored])
    scores = HeadScores.from_values(
        found.hits[0],
        name="relation scores",
        unit="share of pairs",
        kind="relations",
        extra={"relation": names},
        null=None,
        provenance={
            **about,
            "k": dict(zip(names, limits, strict=True)),
            "first_mlp": first_mlp,
            "norm": norm,
            "leading_space": leading_space,
            "targets": targets,
            "ties": _TIES[ties],
            "min_pairs": min_pairs,
            "min_effect": min_effect,
            "draws": draws,
            "seed": seed,
            "ledger": {kept.relation.name: kept.ledger(kept in scored) for kept in everything},
            "relations": {relation.name: relation.fingerprint for relation in loaded},
            "prompts": {
                kept.relation.name: [kept.relation.fingerprint, limit, len(kept.pairs)]
                for kept, limit in zip(scored, limits, strict=True)
            },
            "interrupted": bool(np.isnan(found.hits[0, -1, -1]).all()),
        },
        variables={
            "null_phi": (dims, found.null[0]),
            "suppression": (dims, mean_over_prompts(found.hits[1])),
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
    """Hits and suppressions [2, layer, head, relation, pair], their p and null means [2, layer, head, relation]."""

    hits: np.ndarray
    p: np.ndarray
    null: np.ndarray

    @classmethod
    def empty(cls, n_layers: int, n_heads: int, scored: Sequence[KeptPairs]) -> _Found:
        shape = (2, n_layers, n_heads, len(scored))
        longest = max(len(kept.pairs) for kept in scored)
        return cls(np.full((*shape, longest), np.nan), np.full(shape, np.nan), np.full(shape, np.nan))


@dataclass(frozen=True)
class _Null:
    """When a score is tested, and by how many shuffles."""

    min_effect: float
    draws: int
    seed: int


def _fill(
    found: _Found,
    model: Model | StoredWeights,
    scored: Sequence[KeptPairs],
    limits: Sequence[int],
    null: _Null,
    *,
    first_mlp: bool,
    norm: Norm,
    ties: Ties,
    memory: int,
    progress: bool,
) -> None:
    """Score layer by layer, until done or Ctrl-C."""
    tokens = [pair for kept in scored for pair in kept.tokens]
    ids, source_of = np.unique([source for source, _ in tokens if source is not None], return_inverse=True)
    per_relation = [len(kept.pairs) for kept in scored]
    device = model.device
    at = {
        "source_of": torch.as_tensor(source_of, device=device),
        "target": torch.as_tensor([target for _, target in tokens], device=device),
        "limit": torch.as_tensor(np.repeat(limits, per_relation), device=device),
    }
    ends = np.cumsum(per_relation).tolist()
    pairs_of = [slice(end - size, end) for end, size in zip(ends, per_relation, strict=True)]

    @cache
    def drawn(n: int) -> Int[np.ndarray, "draw pair"]:
        return matchings(n, null.draws, null.seed)

    with torch.no_grad():
        embedded = model.embed(torch.as_tensor(ids, device=device))
        seen = (embedded.float(), model.first_mlp(embedded).float() if first_mlp else embedded.float())
        _check_finite(model, seen)
        scale = model.final_scale() if norm == "folded" else None
        ranks = Ranks(model, **at, scale=scale, ties=ties, memory=memory)
        done = 0
        try:
            n_units = model.n_layers * model.n_heads
            with Bar(total=n_units, desc="relation scores", unit="head", disable=not progress) as bar:
                for layer in range(model.n_layers):
                    scales = model.attention_scale(layer) if norm == "folded" else 1.0
                    heads = _value_paths(model, layer, seen[min(layer, 1)] * scales)
                    _score(found, ranks, heads, pairs_of, null, drawn, layer)
                    bar.update(len(heads))
                    done = layer + 1
        except KeyboardInterrupt:
            if not done:
                raise
            for array in (found.hits, found.p, found.null):
                array[:, done:] = np.nan
            warn(f"relation_scores was stopped: layers 0..{done - 1} are scored, the later ones are NaN")


def _value_paths(model: Model | StoredWeights, layer: int, seen: Float[Tensor, "source d_model"]) -> list[HeadPath]:
    """E'[s] W_V and W_O of each head of a layer."""
    W_V, W_O = model.W_V[layer].float(), model.W_O[layer].float()
    return [(seen @ W_V[head], W_O[head]) for head in range(len(W_V))]


def _score(
    found: _Found,
    ranks: Ranks,
    heads: Sequence[HeadPath],
    pairs_of: Sequence[slice],
    null: _Null,
    drawn: Callable[[int], Int[np.ndarray, "draw pair"]],
    layer: int,
) -> None:
    """Hits of a layer's heads, and where they are many enough the null."""
    hits = torch.stack(ranks.top(heads)).cpu().numpy()
    found.p[:, layer] = 1.0
    tested = []
    for relation, pairs in enumerate(pairs_of):
        own = hits[..., pairs]
        found.hits[:, layer, :, relation, : own.shape[-1]] = own
        many = (own.sum(-1) >= 2) & (own.mean(-1) >= null.min_effect)
        tested += [(side, head, relation) for side, head in np.argwhere(many).tolist()]
    tables = ranks.hits([(heads[head], pairs_of[relation], (1, -1)[side]) for side, head, relation in tested])
    for (side, head, relation), table in zip(tested, tables, strict=True):
        of_pairs = table.cpu().numpy()
        found.p[side, layer, head, relation] = matching_p(of_pairs, drawn)
        found.null[side, layer, head, relation] = of_pairs.mean()


def _check_finite(model: Model | StoredWeights, seen: tuple[Tensor, Tensor]) -> None:
    for where, tensor in {"W_E": seen[0], "the first MLP": seen[1]}.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{where} gives NaN or infinite numbers: the model's weights are damaged")
    for layer in range(model.n_layers):
        for name, weight in (("W_V", model.W_V[layer]), ("W_O", model.W_O[layer])):
            if not torch.isfinite(weight).all():
                raise ValueError(f"{name} of layer {layer} holds NaN or infinite numbers")


def _text(labels: list[str]) -> np.ndarray:
    return text_array(labels, (len(labels),))
