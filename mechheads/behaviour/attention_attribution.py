"""Why a head attends to a key: its score for the key, split over the parts of the stream at the query and the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.frozen import FrozenMap, FrozenRun, ScoringBlock, frozen_side, tolerance
from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.job import resolve
from mechheads.heads import HeadId, HeadLike, Mlp, check_head
from mechheads.limits import Limits, current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.notices import until_interrupted
from mechheads.metrics import positions_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.tokens import Tokens
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import bounded_interval
from mechheads.results.tables import TableResult

Place = int | str
_PAIRED = 8
"""The number of parts of each side in the table of pairs."""
Side = Literal["query", "key"]
_THROUGH: dict[Side, str] = {"query": "through its query", "key": "through the keys"}
_NOTHING = 1e-12
"""Smaller parts are rounding: the model has no such part."""
_REST = "everything else"
_LISTED = 8
"""The number of parts of each side that are printed."""
_OTHERS = "others"


@dataclass(frozen=True, eq=False, repr=False)
class AttentionAttribution(TableResult):
    """The parts of the score of a head for a key, from ``mh.behaviour.attention_attribution``.

    Attributes:
        name: the head whose attention is attributed, and the keys that its score is compared with.
        query: the part of each earlier head at the query [layer, head, prompt], in nats; later heads are NaN. Its
            ``dataset`` has the other parts of the query: ``mlp`` [layer, prompt], ``bias`` [layer, prompt] (b_O and the
            biases of norms), ``embedding`` [prompt] (tokens), ``position_embedding`` [prompt] (learned positions),
            ``constant`` [prompt] (b_Q and the bias of the norm before it), ``position_bias`` [prompt] (ALiBi, which is
            in no stream); ``total`` [prompt], the sum of all parts; and ``attention`` [prompt], the head's attention to
            the key.
        key: the same for the key, and for the keys that it is compared with.
        table: the products of the parts of both sides. A row for each pair of the ``query`` and ``key`` parts with the
            largest means, and of the remainder of each side: ``score``, the mean over prompts, and its interval
            ``ci_low`` to ``ci_high``. The rows sum to the total without ``position_bias``.
        provenance: the model, prompts and options that repeat it.
    """

    KIND: ClassVar[str] = "attention_attribution"
    unit = KINDS[KIND].unit
    name: str
    query: HeadScores
    key: HeadScores
    table: pd.DataFrame
    provenance: dict[str, Any]

    def parts(self, side: Side, k: int | None = None) -> pd.DataFrame:
        """All parts of one side, those with the largest means first.

        Args:
            side: ``"query"`` or ``"key"``.
            k: the number of parts to name; the last row, ``"everything else"``, has the others. By default all.

        Returns:
            A row for each part: ``part``, such as ``"L16H0"``, ``"L3.mlp"``, ``"embedding"``, ``"positions"``,
            ``"biases"`` or ``"position bias"``; ``score``, its mean over prompts in nats, and the interval ``ci_low``
            to ``ci_high``. The scores sum to the mean of ``total``.
        """
        check_known("side", side, Side)
        data = (self.query if side == "query" else self.key).dataset
        values, layers = data["values"].values, HeadId.parse(self.provenance["head"]).layer
        rows = [(str(HeadId(*at)), values[at]) for at in np.ndindex(layers, values.shape[1])]
        rows += [(str(Mlp(layer)), data["mlp"].values[layer]) for layer in range(layers)]
        biases = data["bias"].sum("layer").values + data["constant"].values
        rows += [("embedding", data["embedding"].values), ("positions", data["position_embedding"].values)]
        rows += [("biases", biases), ("position bias", data["position_bias"].values)]
        rows = [(name, each) for name, each in rows if np.abs(each).max() > _NOTHING]
        rows.sort(key=lambda row: -abs(row[1].mean()))
        if k is not None:
            check_at_least(1, k=k)
            rest = sum((each for _, each in rows[k:]), np.zeros_like(biases))
            rows = [*rows[:k], (_REST, rest)]
        return _means(
            [{"part": name} for name, _ in rows], np.stack([each for _, each in rows]), data["cluster"].values
        )

    def __repr__(self) -> str:
        n = self.key.dataset.sizes["prompt"]
        total = self.key.dataset["total"].values.mean()
        return f"<{type(self).__name__} {self.name!r}: {total:+.3g} {self.unit}, {n} prompt{'s' * (n != 1)}>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        """The largest parts of each side and the remainder, and whether 0 is in their intervals."""
        some = [self.parts(side, _LISTED).assign(side=side) for side in get_args(Side)]
        table = pd.concat(some, ignore_index=True)
        low, high = np.asarray(table["ci_low"]), np.asarray(table["ci_high"])
        inside = np.where((low <= 0) & (high >= 0), "yes", "no")
        table["includes_0"] = np.where(np.isnan(low), "too few", inside)
        return table.reindex(columns=["side", "part", "score", "ci_low", "ci_high", "includes_0"]), ()


@analysis
def attention_attribution(
    model: Model,
    prompts: AnyPrompts,
    head: HeadLike,
    *,
    query: Place = "last",
    key: Place,
    against: Place = _OTHERS,
) -> AttentionAttribution:
    """The parts of a head's score for a key, by the parts of the residual stream at the query and at the key.

    Before softmax, the score of query i for key j is s(i, j) = scale * q_i . k_j. With the statistics of all norms
    frozen at the values of this run, q_i is linear in the stream at i, and k_j in the stream at j, and a stream is the
    embedding plus what every earlier head, MLP and bias has added. Softmax depends only on the differences of scores.
    So the score for the key is split after the mean of the scores for the other keys, weighted by the pattern p of this
    run, is subtracted:

        total = s(i, j) - sum over k != j of p(i, k) s(i, k) / (1 - p(i, j))

    This is the slope of log p(i, j) along s, divided by 1 - p(i, j). The part of a summand of the query is its product
    with the keys as they are, and the part of a summand of the keys its product with the query as it is. So the parts
    of each side sum to the total. In a model with soft caps, the score is the one before the cap.

    These are parts of the score, not effects of removing a part, which ``mh.path_patch`` measures with the receivers
    ``"L5H1.q"`` and ``"L5H1.k"``.

    Args:
        prompts: prompts or, of pairs, the clean side.
        head: the head whose attention is attributed, such as ``"L16H0"``.
        query, key: the positions: a token index (from the end if negative), a name in the prompts' ``positions``, or
            the text of a token that each prompt has once (``" France"``). ``"last"`` is the last token.
        against: the keys that the score is compared with: ``"others"``, all other keys, as above; or one other key,
            named like ``key``: then s(i, j) - s(i, k) is split.

    Returns:
        The parts of both sides, and the products of the strongest of them. After Ctrl-C, for the prompts done until
        then.

    Raises:
        ValueError: if the head does not see the key; or if the parts do not give the run's own pattern, because the
            architecture computes scores in another way.

    Elhage et al. 2021 (A Mathematical Framework for Transformer Circuits), who write scores as such a product; Kamath
    et al. 2025 (Tracing Attention Computation Through Feature Interactions), who split them over features.

    >>> why = mh.behaviour.attention_attribution(model, [[*range(1000, 1010)] * 2], "L17H5", query=15, key=6)
    >>> why.key.heads(1)  # the induction head reads what the previous-token head has put into the key
    (HeadId(layer=16, head=0),)
    >>> bool(abs(why.parts("key")["score"].sum() - why.key.dataset["total"].mean()) < 1e-6)
    True
    """
    at = check_head(head, model.n_layers, model.n_heads)
    tokens = resolve(model, prompts).tokens["clean"]
    places = _resolve(tokens, query, key, against)
    with torch.no_grad():
        block = ScoringBlock(model, at, places.length)
        _check_seen(block, places)
    step = _prompts_at_once(block, current().limits)
    starts = range(0, len(places), step)
    parts: list[dict[str, np.ndarray]] = []
    with until_interrupted() as interrupts, torch.no_grad():
        for start in Bar(starts, desc="attributing attention", disable=len(starts) == 1, leave=False):
            some = slice(start, start + step)
            parts.append(_values(ScoreParts(block, tokens.rows(some), places.rows(some)), block.scale))
    interrupts.stop_unless(parts)
    interrupts.warn(f"{step * len(parts)} of {len(places)} prompts", "the parts are of these")
    tokens = tokens.rows(slice(step * len(parts)))
    metadata = make_provenance(
        model,
        {"head": at, "prompts": tokens, "n_prompts": len(tokens), "query": query, "key": key},
        against=against,
        heads=[HeadId(layer, other) for layer in range(at.layer) for other in range(model.n_heads)],
        interrupted=interrupts.interrupted,
    )
    values = {name: np.concatenate([each[name] for each in parts], axis=-1) for name in parts[0]}
    return _result(model, at, tokens, values, metadata)


def _resolve(tokens: Tokens, query: Place, key: Place, against: Place) -> Places:
    """The positions of query, key and other key in each prompt, checked."""
    places = {"query": query, "key": key} | ({} if against == _OTHERS else {"against": against})
    at = {name: positions_of([place], tokens, f"{name}:")[:, 0] for name, place in places.items()}
    for name, where in at.items():
        if (late := where > at["query"]).any():
            row = int(late.int().argmax())
            raise ValueError(
                f"{name} is token {int(where[row])} of prompt {row}, which comes after the query, token "
                f"{int(at['query'][row])}; a head sees the query and what comes before it"
            )
    other = at.get("against")
    if (alone := at["query"] == 0 if other is None else at["key"] == other).any():
        what = "the query is the first token" if other is None else "key and against are the same token"
        raise ValueError(f"prompt {int(alone.int().argmax())}: {what}, so there is no other key to compare with")
    return Places(at["query"], at["key"], other, int(at["query"].max()) + 1)


def _check_seen(block: ScoringBlock, places: Places) -> None:
    """Check that the head's attention window reaches the keys."""
    for name, at in (("key", places.key), ("against", places.other)):
        if at is not None and (hidden := block.of_positions[places.query, at] == -torch.inf).any():
            row = int(hidden.int().argmax())
            raise ValueError(
                f"{name} is token {int(at[row])} of prompt {row}, which {block.head} does not see from token "
                f"{int(places.query[row])}, because its window is shorter"
            )


def _prompts_at_once(block: ScoringBlock, limits: Limits) -> int:
    model, layers, length = block.model, block.head.layer, block.length
    heads, d_head = model.n_heads, model.d_head
    of_run = (layers + 1) * model.d_model + layers * heads * d_head
    of_block = 2 * (2 * model.d_model + 3 * model.backend.d_mlp)  # two rows for each token; see ``_of_attention``
    in_float64 = 8 * (6 * model.d_model + 2 * heads * d_head)
    vectors = 8 * 2 * layers * (heads + 2) * d_head
    a_prompt = length * ((of_run + of_block) * model.dtype.itemsize + in_float64) + vectors
    return max(1, min(limits.run_tokens // length, limits.memory // a_prompt))


def _values(run: ScoreParts, scale: float) -> dict[str, Float[np.ndarray, "*part prompt"]]:
    """The parts in a run [*part, side, prompt], and for the table of pairs ``vectors`` [part, side, d, prompt]."""
    vectors = run.vectors
    values = {name: scale * (each * run.whole.flip(0)).sum(-1) for name, each in vectors.items()}
    values["position_bias"] = run.position_bias
    values["total"] = scale * run.whole.prod(0).sum(-1) + run.position_bias
    values["attention"] = run.attention
    biases = vectors["bias"].sum(0) + vectors["constant"]
    others = torch.stack([vectors["embedding"], vectors["position_embedding"], biases])
    parts = torch.cat([vectors["heads"].flatten(0, 1), vectors["mlp"], others])
    parts[:, 0] *= scale
    values["vectors"] = parts.float().movedim(-1, -2)
    return {name: each.cpu().numpy() for name, each in values.items()}


def _result(
    model: Model, head: HeadId, tokens: Tokens, values: dict[str, Any], metadata: dict[str, Any]
) -> AttentionAttribution:
    of_heads, vectors, against = values.pop("heads"), values.pop("vectors"), metadata["against"]
    compared = f"the key {against}" if against != _OTHERS else "the other keys, weighted by the pattern"
    dims: dict[str, tuple[str, ...]] = dict.fromkeys(("mlp", "bias"), ("layer", "prompt"))

    def side(at: int, name: Side) -> HeadScores:
        parts = {name: array[..., at, :] if array.ndim > 1 else array for name, array in values.items()}
        parts = {name: _every_layer(array, model) if name in dims else array for name, array in parts.items()}
        return HeadScores.from_values(
            _every_layer(of_heads[..., at, :], model),
            name=f"part in the score of {head} at the {name}",
            kind="attention_part",
            cluster=tokens.cluster,
            provenance=metadata | {"side": name, "attributed": f"where {head} looks, {_THROUGH[name]}"},
        ).assign(**{name: (dims.get(name, ("prompt",)), array) for name, array in parts.items()})

    names = [str(HeadId(layer, other)) for layer in range(head.layer) for other in range(model.n_heads)]
    names += [*(str(Mlp(layer)) for layer in range(head.layer)), "embedding", "positions", "biases"]
    pairs = _pairs(names, np.moveaxis(vectors, -1, -2), tokens.cluster)
    return AttentionAttribution(
        f"where {head} looks, against {compared}", side(0, "query"), side(1, "key"), pairs, metadata
    )


def _every_layer(values: Float[np.ndarray, "some *rest"], model: Model) -> Float[np.ndarray, "layer *rest"]:
    """Values of some layers, and NaN for those after them."""
    whole = np.full((model.n_layers, *values.shape[1:]), np.nan)
    whole[: len(values)] = values
    return whole


def _pairs(
    names: Sequence[str], vectors: Float[np.ndarray, "part side prompt d"], cluster: Sequence[str]
) -> pd.DataFrame:
    """The products of the parts with the largest means and of the remainder of each side."""
    whole = vectors.sum(0, dtype=np.float64)
    chosen: list[list[str]] = []
    sides: list[Float[np.ndarray, "part prompt d"]] = []
    for at in (0, 1):
        mean = np.einsum("pnd,nd->p", vectors[:, at], whole[1 - at]) / len(cluster)
        largest = np.argsort(-np.abs(mean), kind="stable")[:_PAIRED]
        some = vectors[largest, at].astype(np.float64)
        chosen.append([*(names[int(part)] for part in largest), _REST])
        sides.append(np.concatenate([some, (whole[at] - some.sum(0))[None]]))
    values = np.einsum("qnd,knd->qkn", *sides)
    names_of_pairs = [{"query": q, "key": k} for q in chosen[0] for k in chosen[1]]
    return _means(names_of_pairs, values.reshape(len(names_of_pairs), -1), cluster)


def _means(
    names: Sequence[Mapping[str, str]], values: Float[np.ndarray, "row prompt"], cluster: Sequence[str] | np.ndarray
) -> pd.DataFrame:
    """A table of names, means over prompts and their intervals."""
    low, high = bounded_interval(values, cluster, bounds=None)
    return pd.DataFrame([*names]).assign(score=values.mean(-1), ci_low=low, ci_high=high)


@dataclass(frozen=True, eq=False)
class Places:
    """The query, the key and the other key (None for all others) of each prompt, and the number of tokens that run."""

    query: Int[Tensor, " prompt"]
    key: Int[Tensor, " prompt"]
    other: Int[Tensor, " prompt"] | None
    length: int

    def __len__(self) -> int:
        return len(self.query)

    def rows(self, some: slice) -> Places:
        """The positions in some of the prompts."""
        return Places(self.query[some], self.key[some], None if self.other is None else self.other[some], self.length)


class ScoreParts:
    """The parts of the score for a key, minus the score for other keys, in a run of some prompts.
    ``vectors`` [layer, head, side, prompt, d]: each part of q, and of the weighted sum of k, after rotation."""

    def __init__(self, block: ScoringBlock, tokens: Tokens, places: Places) -> None:
        self._block, self._n = block, len(places)
        layer, head, ids = block.head.layer, block.head.head, tokens.ids[:, : places.length]
        till_query = torch.arange(ids.shape[1], device=ids.device) <= places.query[:, None]
        self._prompt, self._pos = prompt, pos = till_query.nonzero(as_tuple=True)
        self._at = at = (places.query + 1).cumsum(0) - 1
        self._run = run = FrozenRun.of(block.model, ids, prompt, pos, analysis="attention_attribution", ends_at=layer)
        stream, norm = run.streams[layer], run.before_attention(layer)
        self._q = frozen_side(run, block, "q", norm.rows(at), stream[at])
        self._k = frozen_side(run, block, "k", norm, stream)
        pattern = run.patterns[layer][at, head]
        q, k, of_keys = self._rotated(self._q(stream[at].double())), self._k(stream.double()), pattern[prompt, pos]
        scores = block.scale * ((q @ block.rotation)[pos, prompt] * k).sum(-1)
        of_positions = block.of_positions[pos[at][prompt], pos]
        self._check(scores, of_positions, of_keys)
        self._weights = _weights(of_keys.double(), prompt, pos, places)
        self.attention = pattern.double().gather(1, places.key[:, None])[:, 0]
        biases = (self._weights * of_positions).masked_fill(self._weights == 0, 0)
        self.position_bias = biases.new_zeros(self._n).index_add(0, prompt, biases)
        self.whole = torch.stack([q, self._summed(k)])
        self.vectors = self._vectors()

    def _check(
        self, scores: Float[Tensor, " row"], of_positions: Float[Tensor, " row"], pattern: Float[Tensor, " row"]
    ) -> None:
        """Check that scores, up to a constant of each query, give the run's own pattern."""
        seen, cap = pattern >= torch.finfo(pattern.dtype).tiny, self._block.cap
        weights, log_p, zero = pattern.double(), pattern.double().log(), scores.new_zeros(self._n)
        capped = scores if cap is None else cap * torch.tanh(scores / cap)
        differ = (capped + of_positions - log_p).masked_fill(~seen, 0)
        mean = zero.index_add(0, self._prompt, weights * differ) / zero.index_add(0, self._prompt, weights)
        differ = (differ - mean[self._prompt]).abs().masked_fill(~seen, 0)
        off, largest = (zero.scatter_reduce(0, self._prompt, each, "amax") for each in (differ, scores.abs()))
        if not (off <= tolerance(self._block.model.backend) * largest.clamp_min(1)).all():
            raise self._run.inexact(
                f"scores differ by {off.max():.2g} from those that give the pattern of {self._block.head}"
            )

    def _rotated(self, q: Float[Tensor, "*head prompt d_head"]) -> Float[Tensor, "*head prompt d_head"]:
        """q of each query after rotation."""
        return torch.einsum("nob,...nb->...no", self._block.rotation[self._pos[self._at]], q)

    def _summed(self, k: Float[Tensor, "*head row d_head"]) -> Float[Tensor, "*head prompt d_head"]:
        """The weighted sum of k over the tokens of each prompt, after rotation."""
        weighted = k.new_zeros(*k.shape[:-2], self._n, self._block.length, k.shape[-1])
        weighted[..., self._prompt, self._pos, :] = self._weights[:, None] * k
        return torch.einsum("pob,...npb->...npo", self._block.rotation, weighted).sum(-2)

    def _vector(self, part: Float[Tensor, "row d_model"]) -> Float[Tensor, "side prompt d_head"]:
        """The vectors of a part of the stream."""
        q, k = self._q.sized(self._q.shared(part[self._at])), self._k.sized(self._k.shared(part))
        return torch.stack([self._rotated(q), self._summed(k)])

    def _of_heads(
        self, z: Float[Tensor, "row head d_head"], W_O: Float[Tensor, "head d_head d_model"], added: FrozenMap
    ) -> Float[Tensor, "head side prompt d_head"]:
        """The vectors of the heads of a layer; matrices that rows share are multiplied first."""
        z, W_O = added.sized(z.transpose(0, 1)), added.shared(W_O)
        q, k = self._q.sized(z[:, self._at] @ self._q.shared(W_O)), self._k.sized(z @ self._k.shared(W_O))
        return torch.stack([self._rotated(q), self._summed(k)], dim=1)

    def _vectors(self) -> dict[str, Tensor]:
        run = self._run
        nothing = torch.zeros_like(run.streams[0], dtype=torch.float64)
        each: dict[str, list[Tensor]] = {"heads": [], "mlp": [], "bias": []}
        streams = [self._vector(stream.double()) for stream in run.streams]
        for layer in range(self._block.head.layer):
            W_O, b_O = run.model.W_O[layer].double(), run.model.b_O(layer)
            added = run.after_attention(layer, run.written(layer, run.streams[layer].dtype))
            heads = self._of_heads(run.z[layer].double(), W_O, added)
            bias = self._vector(added(nothing if b_O is None else nothing + b_O.double()))
            each["heads"].append(heads)
            each["bias"].append(bias)
            each["mlp"].append(streams[layer + 1] - streams[layer] - heads.sum(0) - bias)
        constant = torch.stack([self._rotated(self._q(nothing[self._at])), self._summed(self._k(nothing))])
        empty = {"heads": (0, run.model.n_heads), "mlp": (0,), "bias": (0,)}
        parts = {
            name: torch.stack(vectors) if vectors else constant.new_zeros(*empty[name], *constant.shape)
            for name, vectors in each.items()
        }
        of_positions = self._vector(run.positions.double())
        embeddings = {"embedding": streams[0] - of_positions, "position_embedding": of_positions}
        return parts | embeddings | {"constant": constant}


def _weights(
    pattern: Float[Tensor, " row"], prompt: Int[Tensor, " row"], pos: Int[Tensor, " row"], places: Places
) -> Float[Tensor, " row"]:
    """The weight of the score for each token: 1 for the key, and -1 in total for the others."""
    is_key = pos == places.key[prompt]
    others = pattern.masked_fill(is_key, 0) if places.other is None else (pos == places.other[prompt]).double()
    together = others.new_zeros(len(places)).index_add(0, prompt, others)
    if not (together > 0).all():
        raise ValueError(
            "the head gives the key all of its attention in a prompt, so the other keys have no weights; name one of "
            "them in against"
        )
    return is_key.double() - others / together[prompt]
