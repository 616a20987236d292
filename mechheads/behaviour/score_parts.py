"""The parts of a head's score for a key in one run: what each summand of the stream adds to q and to k."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.behaviour.frozen_maps import FrozenMap, FrozenRun, tolerance
from mechheads.behaviour.frozen_scores import FrozenScores, ScoringBlock
from mechheads.prompts.tokens import Tokens


@dataclass(frozen=True, eq=False)
class Places:
    """The positions in some prompts.

    Attributes:
        query, key: of each prompt.
        other: the key that is compared with; None for all others.
        length: how many tokens are run.
    """

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
    """The parts of the score for a key, minus that for other keys, in a run of some prompts.

    Attributes:
        vectors: what each part adds to q of the query, and to the weighted sum of k over the keys, after rotation:
            ``heads`` [layer, head, side, prompt, d_head], ``mlp`` and ``bias`` without the head, ``embedding`` and
            ``constant`` without the layer too.
        whole: the sum of all vectors [side, prompt, d_head].
        sources: the parts of heads by the token that they read [layer, head, side, source, prompt]; None unless wanted.
        position_bias: the part of the positions alone [prompt].
        attention: what the query gives the key [prompt].
    """

    def __init__(self, block: ScoringBlock, tokens: Tokens, places: Places, *, by_source: bool) -> None:
        """Run the prompts."""
        self._block, self._n = block, len(places)
        layer, ids = block.head.layer, tokens.ids[:, : places.length]
        till_query = torch.arange(ids.shape[1], device=ids.device) <= places.query[:, None]
        prompt, pos = till_query.nonzero(as_tuple=True)
        at = (places.query + 1).cumsum(0) - 1
        self._run = run = FrozenRun.of(
            block.model, ids, prompt, pos, analysis="attention_attribution", attention=by_source, ends_at=layer
        )
        self._scores = scores = FrozenScores.of(run, block, pos, at)
        pattern = run.patterns[layer][at, block.head.head]
        stream = run.streams[layer].double()
        q, k = scores.rotated(scores.q(stream[at])), scores.k(stream)
        of_keys = (scores.met(q) * k).sum(-1)
        off, largest = scores.off(of_keys, pattern[prompt, pos])
        if not (off <= tolerance(block.model.backend) * largest.clamp_min(1)).all():
            raise run.inexact(f"scores differ by {off.max():.2g} from those that give the pattern of {block.head}")
        self._weights = _weights(pattern[prompt, pos].double(), prompt, pos, places)
        self.attention = pattern.double().gather(1, places.key[:, None])[:, 0]
        biases = self._weights * scores.of_positions()
        self.position_bias = self._by_prompt(biases.masked_fill(self._weights == 0, 0))
        self.whole = self._after_rotation(scores.q(stream[at]), k)
        self.vectors = self._vectors()
        self.sources = self._sources() if by_source else None

    def _by_prompt(self, rows: Float[Tensor, "row *rest"]) -> Float[Tensor, "prompt *rest"]:
        return rows.new_zeros(self._n, *rows.shape[1:]).index_add(0, self._run.prompt, rows)

    def _vector(self, part: Float[Tensor, "row d_model"]) -> Float[Tensor, "side prompt d_head"]:
        return self._after_rotation(self._scores.q.linear(part[self._scores.at]), self._scores.k.linear(part))

    def _after_rotation(
        self, q: Float[Tensor, "*head prompt d_head"], k: Float[Tensor, "*head row d_head"]
    ) -> Float[Tensor, "*head side prompt d_head"]:
        return torch.stack([self._scores.rotated(q), self._scores.summed(k, self._weights)], dim=-3)

    def _of_heads(
        self, z: Float[Tensor, "row head d_head"], W_O: Float[Tensor, "head d_head d_model"], added: FrozenMap
    ) -> Float[Tensor, "head side prompt d_head"]:
        """The vectors of the heads of a layer: all that rows share is multiplied together first."""
        z, at = added.sized(z.transpose(0, 1)), self._scores.at
        W_O, q, k = added.shared(W_O), self._scores.q, self._scores.k
        return self._after_rotation(q.sized(z[:, at] @ q.shared(W_O)), k.sized(z @ k.shared(W_O)))

    def _vectors(self) -> dict[str, Tensor]:
        run, scores = self._run, self._scores
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
        constant = self._after_rotation(scores.q(nothing[scores.at]), scores.k(nothing))
        empty = {"heads": (0, run.model.n_heads), "mlp": (0,), "bias": (0,)}
        found = {
            name: torch.stack(vectors) if vectors else constant.new_zeros(*empty[name], *constant.shape)
            for name, vectors in each.items()
        }
        of_positions = self._vector(run.positions.double())
        embeddings = {"embedding": streams[0] - of_positions, "position_embedding": of_positions}
        return found | embeddings | {"constant": constant}

    def _sources(self) -> Float[Tensor, "layer head side source prompt"]:
        run, scores = self._run, self._scores
        q, k = self.whole
        of_q = torch.einsum("nob,no->nb", scores.of_queries, self._block.scale * k)
        at_query = torch.zeros_like(run.streams[0], dtype=torch.float64)
        at_query[scores.at] = scores.q.back(of_q)
        directions = at_query, scores.k.back(self._weights[:, None] * scores.met(q))
        found = []
        for layer in range(self._block.head.layer):
            added = run.after_attention(layer, run.written(layer, run.streams[layer].dtype))
            W_O = run.model.W_O[layer].double()
            of_z = [torch.einsum("hdm,rm->rhd", W_O, added.back(direction)) for direction in directions]
            by_prompt = [self._by_prompt(run.sources(layer, each)) for each in of_z]
            found.append(torch.stack(by_prompt).permute(2, 0, 3, 1))
        empty = q.new_zeros(0, run.model.n_heads, 2, self._block.length, self._n)
        return torch.stack(found) if found else empty


def _weights(
    pattern: Float[Tensor, " row"], prompt: Int[Tensor, " row"], pos: Int[Tensor, " row"], places: Places
) -> Float[Tensor, " row"]:
    """How much the score of each key counts: that of the key as 1, those of the others as -1 together."""
    is_key = pos == places.key[prompt]
    others = pattern.masked_fill(is_key, 0) if places.other is None else (pos == places.other[prompt]).double()
    together = others.new_zeros(len(places)).index_add(0, prompt, others)
    if not (together > 0).all():
        raise ValueError(
            "the head gives the key all of its attention in a prompt, so the other keys have no weights; name one of "
            "them in against"
        )
    return is_key.double() - others / together[prompt]
