"""Measures of every head on windows of text, computed layer by layer while the model runs; only means are stored.

``mh.profile_heads`` lists the keys of each behaviour. Only queries that have such a key are counted. Except for
``first`` and ``self``, keys of the query q lie between 1 and q - 1 (the *middle*). The null of a behaviour is the same
attention with the keys of each query permuted: within the middle, or among all keys for ``first`` and ``self``. Its
mean over all permutations is the attention to all permuted keys, times the share of them that the behaviour has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from mechheads.behaviour.programs import PROGRAMS, fits_of, patterns_of, without_later_keys
from mechheads.model.model import Model
from mechheads.model.parts import Stopped, until_stopped
from mechheads.model.proof import Claim, last_and_drawn

BEHAVIOURS = ("first", "self", "previous", "duplicate", "induction", "delimiter")
MOVED = tuple(f"{name}_moved" for name in BEHAVIOURS)
"""The behaviours again, with attention weighted by the norm of v W_O."""
FITS = tuple(f"{name}_fit" for name in PROGRAMS)
"""How well each program of the package fits the pattern, J."""
OTHERS = ("position", "position_null", "entropy", "distance", "norm", "copying")
MEASURES = (
    *BEHAVIOURS,
    *(f"{name}_null" for name in BEHAVIOURS),
    *MOVED,
    *(f"{name}_null" for name in MOVED),
    *OTHERS,
    *FITS,
)
_OF_TEXT = -2
"""The number of runs of windows in proofs; they are not cached runs."""
_POOLS = [0, 0, 1, 1, 1, 1]
"""The keys among which each behaviour's keys are permuted: 0, all keys; 1, the middle."""
DELIMITER = re.compile(r"[\W_]+")
"""A token of punctuation, spaces and line ends."""
_COPYING = slice(2, None, 4)
"""The queries at which copying is measured."""


def measure(
    model: Model,
    ids: Int[Tensor, "window pos"],
    layers: Sequence[int] = (),
    also: Callable[..., None] = lambda layer, **activations: None,
) -> tuple[Float[Tensor, "measure layer head window"], Float[Tensor, "layer head pos"]]:
    """The measures in some layers, by default in all, and the attention within the middle at each distance, on the CPU.
    A measure is NaN for a window that has no queries for it."""
    measures, stream = _Measures(model, ids), list[Tensor]()

    def see(layer: int, **activations: Tensor) -> None:
        measures.see(layer, **activations)
        stream[:] = [activations["resid_pre"][-1]]
        also(layer, **activations)

    layers = layers or range(model.n_layers)
    each_layer(model, ids, layers, ("resid_pre", "v", "pattern", "z"), see)
    _claim(model, ids[-1], layers[-1], *stream)
    return measures.values.cpu(), measures.at_distance


def _claim(model: Model, ids: Int[Tensor, " pos"], layer: int, stream: Float[Tensor, "pos d_model"]) -> None:
    """Have the residual stream of a window before a block proved, once in an analysis."""
    if model.backend.proofs.new(_OF_TEXT, 0, (0,)):
        own, reads = tuple(ids.tolist()), (model.hook_name("resid_pre", layer), itemgetter(0))
        at = tuple(sorted(last_and_drawn(own)))
        claim = Claim("the residual stream of a window of text", own, at, stream[[*at]], (), reads)
        model.backend.proofs.claim([claim])


def each_layer(
    model: Model, ids: Int[Tensor, "window pos"], layers: Sequence[int], sites: Sequence[str], see: Callable[..., None]
) -> None:
    """Run some windows, and pass the activations of some layers to ``see``, layer by layer, in float32."""
    activations: dict[str, Tensor] = {}

    def note(value: Tensor, hook: Any, site: str, layer: int) -> None:
        activations[site] = value.detach().float()
        if site == sites[-1]:
            see(layer, **activations)
            activations.clear()
            if layer == layers[-1]:
                raise Stopped

    hooks = [
        (model.hook_name(site, layer), partial(note, site=site, layer=layer)) for layer in layers for site in sites
    ]
    until_stopped(layers[-1], partial(model.backend.run, ids, hooks))


class _Measures:
    """The measures of all layers."""

    def __init__(self, model: Model, ids: Tensor) -> None:
        self._model, self._ids = model, ids
        self._keys = Keys(keys_of(ids, delimiters(model.tokenizer, model.d_vocab)))
        self._programs = [each if name == "uniform" else each.to_sparse() for name, each in patterns_of(ids).items()]
        self._read = model.W_U[:, ids].float() * model.final_scale()[:, None, None]  # [d_model, window, pos]
        shape = (len(MEASURES), model.n_layers, model.n_heads, len(ids))
        self.values = torch.full(shape, torch.nan, dtype=torch.float64, device=ids.device)
        self.at_distance = torch.zeros(model.n_layers, model.n_heads, ids.shape[1], dtype=torch.float64)

    def see(self, layer: int, resid_pre: Tensor, v: Tensor, pattern: Tensor, z: Tensor) -> None:
        """Measure a layer."""
        model = self._model
        W_O = written_by(model, layer)
        squares = W_O @ W_O.mT
        features = self._keys.features(pattern, norm_of(values_of(model, v), squares).transpose(1, 2))
        self.values[: len(features), layer] = features
        further = dict(zip(FITS, fits_of(pattern, self._programs), strict=True))
        further["entropy"] = entropy(pattern)
        further["norm"] = (norm_of(z, squares) / resid_pre.norm(dim=-1)[..., None])[:, 1:].mean(1)
        with only_middle(pattern):
            at_distance, of_distance = self._keys.at_distance(pattern)
            attended = pattern[:, :, _COPYING].max(-1).indices  # argmax takes twice as long
        self.at_distance[layer] = at_distance.sum(0)
        further |= of_distance | {"copying": self._copying(attended, z, W_O)}
        for name, values in further.items():
            self.values[MEASURES.index(name), layer] = values.T.double()

    def _copying(
        self, attended: Int[Tensor, "window head query"], z: Tensor, W_O: Tensor
    ) -> Float[Tensor, "window head"]:
        """How often the head raises the logit of the token it attends to most above the logit of another token."""
        middle = self._keys.middle[_COPYING]
        raised = (W_O.flatten(0, 1) @ self._read.flatten(1)).view(*W_O.shape[:2], *self._ids.shape)
        logits = (z[:, _COPYING].permute(2, 0, 1, 3) @ raised.transpose(1, 2)).transpose(0, 1)
        token = self._ids[:, None].expand(-1, attended.shape[1], -1).gather(-1, attended)
        same = self._ids[:, None, None] == token[..., None]
        below = torch.where(same, 0.5, (logits < logits.gather(-1, attended[..., None])).float()) * middle
        others = middle.sum(-1) - 1
        share = (below.sum(-1) - 0.5) / others.clamp_min(1)
        return (share * (others > 0)).sum(-1) / (others > 0).sum().clamp_min(1)


@contextmanager
def only_middle(pattern: Float[Tensor, "window head pos pos"]) -> Iterator[None]:
    """A context in which a pattern is 0 outside the middle, in place: a copy would cost more than reading it."""
    outside = [(each, each.clone()) for each in (pattern[..., 0], pattern.diagonal(dim1=-2, dim2=-1))]
    try:
        for each, _ in outside:
            each.zero_()
        yield
    finally:
        for each, value in outside:
            each.copy_(value)


class Keys:
    """The keys of each behaviour in some windows, and the measures of attention to them."""

    def __init__(self, keys: Bool[Tensor, "window behaviour pos pos"]) -> None:
        n = keys.shape[-1]
        position = torch.arange(n, device=keys.device)
        back = position[:, None] - position
        self.middle = (back > 0) & (position >= 1) & (position[:, None] >= 2)
        self._pairs_at_distance = torch.bincount(back[self.middle], minlength=n).double()
        masks = dict(zip(BEHAVIOURS, keys.unbind(1), strict=True))
        self._delimits = masks["delimiter"][:, None, -1].float()
        self._copies = [masks[name].nonzero(as_tuple=True) for name in ("duplicate", "induction")]
        count = keys.sum(-1)
        counted = (count > 0) & (position >= 2)
        self._has = counted.any(-1).T[:, None]
        pool = torch.stack([position + 1, position - 1])[_POOLS].clamp_min(1)
        of_query = counted / counted.sum(-1, keepdim=True).clamp_min(1)
        self._of_query = torch.stack([of_query, of_query * count / pool], dim=1)[:, :, :, None]

    def features(
        self, pattern: Float[Tensor, "window head pos pos"], size: Float[Tensor, "window head pos"]
    ) -> Float[Tensor, "feature head window"]:
        """Attention to the keys of each behaviour and its null; then both with attention weighted by ``size``."""
        weight = torch.stack([torch.ones_like(size), size])
        columns = torch.stack([weight, weight * self._delimits], dim=-1).permute(1, 2, 3, 0, 4).flatten(-2)
        total, delimiter = (pattern @ columns).unflatten(-1, (2, 2)).permute(4, 3, 0, 1, 2)
        itself = pattern.diagonal(dim1=-2, dim2=-1) * weight
        previous = pad(pattern.diagonal(-1, -2, -1) * weight[..., :-1], (1, 0))
        attention = [pattern[..., 0] * weight[..., :1], itself, previous]
        for window, query, key in self._copies:
            seen = pattern[window, :, query, key][:, None] * weight.permute(1, 3, 0, 2)[window, key]
            by_query = torch.zeros_like(weight.permute(1, 3, 0, 2), memory_format=torch.contiguous_format)
            by_query.flatten(0, 1).index_add_(0, window * pattern.shape[-1] + query, seen)
            attention.append(by_query.permute(2, 0, 3, 1))
        attention.append(delimiter - itself * self._delimits)
        pools = torch.stack([total, total - attention[0] - itself])[_POOLS]
        both = torch.stack([torch.stack(attention), pools]).permute(2, 3, 0, 1, 4, 5)
        both[1] /= total[1, :, None, None].clamp_min(torch.finfo(total.dtype).tiny)
        return (both * self._of_query).sum(-1).permute(0, 2, 3, 4, 1).masked_fill(~self._has, torch.nan).flatten(0, 2)

    def at_distance(
        self, middle: Float[Tensor, "window head pos pos"]
    ) -> tuple[Float[Tensor, "window head distance"], dict[str, Float[Tensor, "window head"]]]:
        """The attention at each distance, from a pattern within the middle, and the measures that depend on it."""
        sums, count = self._by_distance(middle), self._pairs_at_distance
        mass, tiny = sums.sum(-1), torch.finfo(torch.float64).tiny
        by_mean = mass**2 / count.sum()
        squares = torch.linalg.vector_norm(middle, dim=(-1, -2)).double() ** 2
        share = ((sums**2 / count.clamp_min(1)).sum(-1) - by_mean) / (squares - by_mean).clamp_min(tiny)
        by_chance = (int((count > 0).sum()) - 1) / max(int(count.sum()) - 1, 1)
        return sums, {
            "position": share,
            "position_null": torch.full_like(share, by_chance),
            "distance": (sums * torch.arange(len(count), device=sums.device)).sum(-1) / mass.clamp_min(tiny),
        }

    def _by_distance(self, middle: Float[Tensor, "window head pos pos"]) -> Float[Tensor, "window head distance"]:
        """The sum of attention over all pairs at each distance, by a view whose columns are the distances."""
        n = middle.shape[-1]
        flat = middle.flatten(2)
        rows = flat.as_strided((*flat.shape[:2], n - 1, n), (*flat.stride()[:2], n + 1, 1), flat.storage_offset() + 2)
        return rows.sum(2).double().flip(-1)


def entropy(pattern: Float[Tensor, "window head pos pos"]) -> Float[Tensor, "window head"]:
    """The entropy of attention in nats, a mean over all queries."""
    total = pattern.new_zeros(pattern.shape[:2])
    for part in without_later_keys(pattern):
        logs = part.clamp_min(torch.finfo(part.dtype).tiny).log_()
        total -= logs.mul_(part).sum((-1, -2))
    return total / pattern.shape[2]


@lru_cache(maxsize=4)
def delimiters(tokenizer: Any, size: int) -> Bool[Tensor, " token"]:
    """A mask of the tokens that consist of punctuation, spaces and line ends."""
    texts = tokenizer.batch_decode([[token] for token in range(min(size, len(tokenizer)))])
    delimits = torch.zeros(size, dtype=torch.bool)
    delimits[: len(texts)] = torch.tensor([DELIMITER.fullmatch(text) is not None for text in texts])
    return delimits


def keys_of(
    ids: Int[Tensor, "window pos"], delimiter: Bool[Tensor, " token"]
) -> Bool[Tensor, "window behaviour pos pos"]:
    """The keys of each behaviour for each query."""
    n = ids.shape[1]
    position = torch.arange(n, device=ids.device)
    back = position[:, None] - position
    same = ids[:, :, None] == ids[:, None, :]
    after_copy = torch.zeros_like(same)
    after_copy[:, :, 1:] = same[:, :, :-1]
    middle = (back > 0) & (position >= 1)
    at = [back == position[:, None], back == 0, (back == 1) & middle, same & middle, after_copy & middle]
    at += [delimiter.to(ids.device)[ids][:, None, :] & middle]
    return torch.stack([mask.expand(len(ids), n, n) for mask in at], dim=1)


def written_by(model: Model, layer: int) -> Float[Tensor, "head d_head d_model"]:
    """W_O of each head, with the norm's weight or multiplier after attention."""
    return model.W_O[layer].float() * model.attention_out_scale(layer)


def values_of(model: Model, v: Float[Tensor, "window pos kv d_head"]) -> Float[Tensor, "window pos head d_head"]:
    """The values that each head reads; with grouped queries, several heads share them."""
    return v.repeat_interleave(model.n_heads // model.n_kv_heads, dim=2)


def norm_of(
    states: Float[Tensor, "window pos head d_head"], squares: Float[Tensor, "head d_head d_head"]
) -> Float[Tensor, "window pos head"]:
    """The norm of states times W_O, from W_O W_O^T."""
    by_head = states.flatten(0, 1).transpose(0, 1)
    norms = ((by_head @ squares) * by_head).sum(-1).clamp_min(0).sqrt()
    return norms.T.unflatten(0, states.shape[:2])
