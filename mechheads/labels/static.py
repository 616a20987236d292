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

M is never formed and nothing is sorted: t is in the top k exactly if fewer than k entries of its row are
larger than its own. Most pairs fail that among a few columns of W_U already (the relations' own targets, then
a part of the vocabulary); only the rows of the others are computed in full, and decide.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm.auto import tqdm

from mechheads.labels.relations import Relation, RelationLike, load_relations
from mechheads.netcdf import text_array
from mechheads.scores import HeadScores
from mechheads.stats import share_interval
from mechheads.tokens import single_token

if TYPE_CHECKING:
    from mechheads.model import Model


@dataclass(frozen=True)
class _Kept:
    """A relation and those of its pairs whose two words are one token each."""

    relation: Relation
    pairs: list[tuple[str, str]]
    tokens: list[tuple[int, int]]


def relation_scores(
    model: Model,
    relations: RelationLike | Iterable[RelationLike] | None = None,
    k: int = 10,
    *,
    k_copying: int = 1,
    first_mlp: bool = True,
    min_pairs: int = 30,
    memory: int = 2**28,
    progress: bool = True,
) -> HeadScores:
    """Share of each relation's pairs that each head maps from source to target, from weights alone.

    A pair counts if " source" and " target" are one token each; a tie counts for the target, as only
    strictly larger entries are ahead of it (the paper's code breaks ties by token id). A head that writes
    nothing for a source, as a pruned head does, hits nothing. The MLP runs in the model's dtype, all else in
    float32.

    Args:
        model: from ``mh.load`` or ``mh.wrap``.
        relations: names, paths of JSON files or ``Relation`` objects; ``None``: those of the package.
        k: a target is hit among the k largest entries. The paper takes 10, and 25 for Llama-3: a large
            vocabulary needs a larger k.
        k_copying: k for relations that copy (the paper: 1, and 3 for Llama-3).
        first_mlp: whether layers from 1 on see tokens through the first MLP. The paper's code leaves it out
            for Llama-3.1-70B.
        min_pairs: relations with fewer single-token pairs are skipped: a warning and
            ``provenance["skipped"]`` say which. Of relations that you name, one without any such pair is an
            error.
        memory: bytes that a block of logits may take.
        progress: whether to show a bar.

    Returns:
        Scores over (layer, head, relation), unit "share of pairs": phi, with Wilson's interval for a share of pairs.
        ``values`` holds 1 for a hit and 0 for none, per pair, NaN beyond a relation's last pair. Further
        variables: ``suppression`` (layer, head, relation), ``n_pairs`` and ``relation_category`` (relation)
        and ``pair`` (relation, prompt). There is no null yet, so p and q are NaN. After Ctrl-C the layers
        that were done are returned and the others are NaN.

    Raises:
        ValueError: for an unknown relation, one without single-token pairs, a model without a tokenizer, or
            weights that are not finite; before any score is computed.

    >>> phi = mh.relation_scores(model, "country_to_capital")
    >>> phi
    <HeadScores 'relation scores' in share of pairs: 30 layers x 9 heads x 1 relation, 38 prompts>
    >>> phi.heads(1)
    (HeadId(layer=23, head=4),)
    """
    for what, number in {"k": k, "k_copying": k_copying, "min_pairs": min_pairs, "memory": memory}.items():
        if number < 1:
            raise ValueError(f"{what} is {number}; it must be at least 1")
    loaded = load_relations(relations)
    everything = [_single_tokens(relation, model) for relation in loaded]
    if relations is not None:
        for kept in everything:
            _check_any(kept, model)
    scored = _long_enough(everything, min_pairs)
    limits = [k_copying if kept.relation.copying else k for kept in scored]
    about = model.provenance()
    longest = max(len(kept.pairs) for kept in scored)
    hits = np.full((2, model.n_layers, model.n_heads, len(scored), longest), np.nan)
    _fill(hits, model, scored, limits, first_mlp=first_mlp, memory=memory, progress=progress)
    names = [kept.relation.name for kept in scored]
    words = [
        f"{kept.pairs[i][0]} -> {kept.pairs[i][1]}" if i < len(kept.pairs) else ""
        for kept in scored
        for i in range(longest)
    ]
    scores = HeadScores.from_values(
        hits[0],
        name="relation scores",
        unit="share of pairs",
        kind="relations",
        extra={"relation": names},
        null=None,
        provenance={
            **about,
            "k": dict(zip(names, limits, strict=True)),
            "first_mlp": first_mlp,
            "min_pairs": min_pairs,
            "ties": "count for the target",
            "pairs_kept": {kept.relation.name: len(kept.pairs) for kept in everything},
            "pairs_given": {relation.name: len(relation.pairs) for relation in loaded},
            "skipped": [kept.relation.name for kept in everything if kept not in scored],
            "relations": {relation.name: relation.fingerprint for relation in loaded},
            "prompts": {
                kept.relation.name: [kept.relation.fingerprint, limit, len(kept.pairs)]
                for kept, limit in zip(scored, limits, strict=True)
            },
            "interrupted": bool(np.isnan(hits[0, -1, -1]).all()),
        },
        variables={
            "suppression": (("layer", "head", "relation"), _share(hits[1])),
            "n_pairs": ("relation", [len(kept.pairs) for kept in scored]),
            "relation_category": ("relation", _text([kept.relation.category or "" for kept in scored])),
            "pair": (("relation", "prompt"), text_array(words, (len(scored), longest))),
        },
    )
    low, high = share_interval(scores.scores.values, np.array([len(kept.pairs) for kept in scored]))
    dims = scores.scores.dims
    return HeadScores(scores.dataset.assign(ci_low=(dims, low), ci_high=(dims, high)))


def _fill(
    hits: np.ndarray,
    model: Model,
    scored: Sequence[_Kept],
    limits: Sequence[int],
    *,
    first_mlp: bool,
    memory: int,
    progress: bool,
) -> None:
    """Write hits and suppressions [2, layer, head, relation, pair] layer by layer, until done or Ctrl-C."""
    pairs = [pair for kept in scored for pair in kept.tokens]
    sources, source_of = np.unique([s for s, _ in pairs], return_inverse=True)
    device = model.device
    at = {
        "source_of": torch.as_tensor(source_of, device=device),
        "target": torch.as_tensor([t for _, t in pairs], device=device),
        "limit": torch.as_tensor(np.repeat(limits, [len(kept.pairs) for kept in scored]), device=device),
    }
    with torch.no_grad():
        embedded = model.W_E[torch.as_tensor(sources, device=device)]
        seen = (embedded.float(), model.first_mlp(embedded).float() if first_mlp else embedded.float())
        unembedding = model.W_U.float()
        _check_finite(model, seen, unembedding)
        finder = _TopK(unembedding, **at, memory=memory)
        done = 0
        try:
            n_units = model.n_layers * model.n_heads
            with tqdm(total=n_units, desc="relation scores", unit="head", disable=not progress) as bar:
                for layer in range(model.n_layers):
                    found = []
                    for written in _outputs(model, layer, seen[min(layer, 1)]):
                        found.append(torch.stack(finder(written)).float().cpu().numpy())
                        bar.update()
                    _place(hits[:, layer], np.stack(found, axis=1), scored)
                    done = layer + 1
        except KeyboardInterrupt:
            if not done:
                raise
            warnings.warn(
                f"relation_scores was stopped: layers 0..{done - 1} are scored, the later ones are NaN",
                stacklevel=3,
            )


def _outputs(
    model: Model, layer: int, seen: Float[Tensor, "source d_model"]
) -> Iterator[Float[Tensor, "source d_model"]]:
    """What each head of a layer writes to the residual stream for each source: E'[s] W_V W_O."""
    for W_V, W_O in zip(model.W_V[layer].float(), model.W_O[layer].float(), strict=True):
        yield (seen @ W_V) @ W_O


class _TopK:
    """For one head's outputs: which targets are among the k largest, and the k smallest, of their rows."""

    def __init__(
        self,
        unembedding: Float[Tensor, "d_model vocab"],
        source_of: Int[Tensor, " pair"],
        target: Int[Tensor, " pair"],
        limit: Int[Tensor, " pair"],
        memory: int,
    ) -> None:
        self.unembedding = unembedding
        self.source_of, self.target, self.limit = source_of, target, limit
        width, size = unembedding.shape
        self.rows_at_once = max(1, memory // (4 * size))
        targets = unembedding[:, torch.unique(target)]
        self.screens = [targets, unembedding[:, : size // 16], unembedding[:, : size // 4]]
        self.wanted = unembedding.T[target]
        self.slack = 2 * width * torch.finfo(torch.float32).eps * targets.norm(dim=0).max()

    def __call__(self, written: Float[Tensor, "source d_model"]) -> tuple[Bool[Tensor, " pair"], Bool[Tensor, " pair"]]:
        largest = torch.zeros_like(self.target, dtype=torch.bool)
        smallest = largest.clone()
        open_rows = written.norm(dim=1)[self.source_of].nonzero()[:, 0]
        for screen in self.screens:
            parts = [self._not_ruled_out(written, rows, screen) for rows in open_rows.split(self.rows_at_once)]
            open_rows = torch.cat([open_rows[:0], *parts])
        for rows in open_rows.split(self.rows_at_once):
            logits = written[self.source_of[rows]] @ self.unembedding
            own = logits.gather(1, self.target[rows, None])
            largest[rows] = _count(logits > own) < self.limit[rows]
            smallest[rows] = _count(logits < own) < self.limit[rows]
        return largest, smallest

    def _not_ruled_out(
        self,
        written: Float[Tensor, "source d_model"],
        rows: Int[Tensor, " row"],
        screen: Float[Tensor, "d_model some"],
    ) -> Int[Tensor, " left"]:
        """The rows that some columns of W_U alone cannot rule out on both sides.

        Only entries that lead by more than float32 can be wrong count, so ties are left to the full row.
        """
        outputs = written[self.source_of[rows]]
        own = (outputs * self.wanted[rows]).sum(1, keepdim=True)
        slack = self.slack * outputs.norm(dim=1, keepdim=True)
        logits, limit = outputs @ screen, self.limit[rows]
        larger, smaller = _count(logits > own + slack), _count(logits < own - slack)
        return rows[(larger < limit) | (smaller < limit)]


def _count(mask: Bool[Tensor, "row column"]) -> Int[Tensor, " row"]:
    """How many are true in each row; on a CPU NumPy counts them ten times faster than torch."""
    if mask.device.type == "cpu":
        return torch.from_numpy(np.count_nonzero(mask.numpy(), axis=1))
    return mask.sum(1)


def _place(into: np.ndarray, found: np.ndarray, scored: Sequence[_Kept]) -> None:
    """Cut [2, head, all pairs] into [2, head, relation, pair]."""
    start = 0
    for index, kept in enumerate(scored):
        into[:, :, index, : len(kept.pairs)] = found[:, :, start : start + len(kept.pairs)]
        start += len(kept.pairs)


def _share(hits: np.ndarray) -> np.ndarray:
    counted = (~np.isnan(hits)).sum(-1)
    return np.where(counted > 0, np.nansum(hits, -1) / np.maximum(counted, 1), np.nan)


def _text(labels: list[str]) -> np.ndarray:
    return text_array(labels, (len(labels),))


def _single_tokens(relation: Relation, model: Model) -> _Kept:
    if model.tokenizer is None:
        raise ValueError("model has no tokenizer to read relations with: mh.wrap(model, tokenizer=...)")
    pairs, tokens = [], []
    for source, target in relation.pairs:
        ids = single_token(f" {source}", model.tokenizer), single_token(f" {target}", model.tokenizer)
        if ids[0] is not None and ids[1] is not None:
            pairs.append((source, target))
            tokens.append((ids[0], ids[1]))
    return _Kept(relation, pairs, tokens)


def _tokenize(tokenizer: Any, words: Sequence[str]) -> list[list[int]]:
    return tokenizer([f" {word}" for word in words], add_special_tokens=False)["input_ids"]


def _check_any(kept: _Kept, model: Model) -> None:
    if kept.pairs:
        return
    first = kept.relation.pairs[:5]
    split = _tokenize(model.tokenizer, [word for pair in first for word in pair])
    shown = [str(model.tokenizer.convert_ids_to_tokens(tokens)) for tokens in split]
    rows = "".join(f"\n  {shown[2 * i]} -> {shown[2 * i + 1]}" for i in range(len(first)))
    raise ValueError(
        f"relation {kept.relation.name!r} has no pair whose source and target are one token each in this "
        f"model's vocabulary, so nothing can be scored. Its first pairs become:{rows}"
    )


def _long_enough(everything: Sequence[_Kept], min_pairs: int) -> list[_Kept]:
    scored = [kept for kept in everything if len(kept.pairs) >= min_pairs]
    short = [
        f"{kept.relation.name} ({len(kept.pairs)} of {len(kept.relation.pairs)})"
        for kept in everything
        if kept not in scored
    ]
    if short:
        message = f"relations with fewer than {min_pairs} single-token pairs are skipped: {', '.join(short)}"
        if not scored:
            raise ValueError(f"{message}; none is left. Give more pairs, or a smaller min_pairs")
        warnings.warn(message, stacklevel=3)
    return scored


def _check_finite(model: Model, seen: tuple[Tensor, Tensor], unembedding: Tensor) -> None:
    for where, tensor in {"W_E": seen[0], "the first MLP": seen[1], "W_U": unembedding}.items():
        if not torch.isfinite(tensor).all():
            raise ValueError(f"{where} gives NaN or infinite numbers: the model's weights are damaged")
    for layer in range(model.n_layers):
        for name, weight in (("W_V", model.W_V[layer]), ("W_O", model.W_O[layer])):
            if not torch.isfinite(weight).all():
                raise ValueError(f"{name} of layer {layer} holds NaN or infinite numbers")
