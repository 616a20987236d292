"""``HeadWhy``: why every head looks where it looks: its score for a key, by the first parts of query and key.

As ``mh.behaviour.attention_attribution``, for one pair of tokens at a time, but for all heads together: each text runs
once. A score that is linear in the stream is a direction of the stream at each token, so what a head, an MLP or a bias
writes is computed once and multiplied with the directions of all later heads.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.behaviour.examples import PARTS, HeadExamples
from mechheads.behaviour.frozen_maps import FrozenRun, tolerance
from mechheads.behaviour.frozen_scores import FrozenScores, ScoringBlock
from mechheads.heads import HeadId, check_heads
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.encoding import token_strings
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import PromptLike
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

SHOWN = 5
"""Parts of each side that are kept; the others are summed."""
OTHERS = "others"
_WINDOWS = 4
"""Windows of the examples that run again: of 270 heads, all but one have an example in one of the best four of 34."""

_PROMPTS, _LONGEST = 2, 128
"""Prompts that run, and of how many tokens each at most."""
_SENDERS, _RECEIVERS, _READ = 8, 3, 4
"""Heads with the largest effect, those of them whose inputs are patched, and of each the heads that it reads most."""


@dataclass(frozen=True, eq=False, repr=False)
class HeadWhy(TableResult):
    """Why every head looks where it looks, in one of its examples of text and in prompts.

    Attributes:
        table: rows for each head and pair of tokens: the ``text`` (a number in ``texts``) and why it was ``chosen``,
            the ``query`` and the ``key`` with the attention to it as ``weight``, and the ``total``: the head's score
            for the key minus that for the other keys, as ``mh.behaviour.attention_attribution`` has it. Of each
            ``side``, query and key, there is a row for each of the first parts, and one for the sum of the ``n``
            others; their ``score`` sums to the total.
        texts: the tokens of each text.
        provenance: what is needed to repeat it.
    """

    KIND = "head_why"
    name, unit = "why heads look there", KINDS[KIND].unit

    table: pd.DataFrame
    texts: tuple[tuple[str, ...], ...]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class _Pair:
    """A query and a key of a head, or None for the key with most attention besides the first token."""

    head: HeadId
    chosen: str
    query: int
    key: int | None


@analysis
def head_why(model: Model, examples: HeadExamples | None, prompts: Sequence[PromptLike] = ()) -> HeadWhy:
    """Why every head looks where it looks, in an example of its text and from the last token of the first prompts.

    Args:
        examples: those of the model. A few windows run again, and a head has the example in them that is highest in its
            activity.
        prompts: the first two run, unless they are long; the key is the one with most attention besides the first
            token.

    Raises:
        ValueError: if there is nothing to run, or the parts do not give the run's own pattern, because the architecture
            computes scores in another way.
    """
    heads = check_heads(None, model.n_layers, model.n_heads)
    asked = [] if examples is None else list(_of_examples(examples))
    few = prompts[:_PROMPTS]
    for number, ids in enumerate(Prompts(list(few)).tokens(model).unpadded if few else ()):
        if 1 < len(ids) <= _LONGEST:
            asked.append((ids, [_Pair(head, f"prompt {number + 1}", len(ids) - 1, None) for head in heads]))
    if not asked:
        raise ValueError("there is neither an example of text nor a short prompt")
    blocks = _Blocks(model, 1 + max((pair.query for _, pairs in asked for pair in pairs), default=0))
    rows: list[dict[str, Any]] = []
    with torch.no_grad():
        for text, (ids, pairs) in enumerate(asked):
            rows += [{"text": text, **row} for row in _Text(model, ids, pairs, blocks).rows()]
    table = pd.DataFrame(rows).sort_values(["layer", "index", "text"], kind="stable", ignore_index=True)
    texts = tuple(tuple(token_strings(ids, model.tokenizer)) for ids, _ in asked)
    return HeadWhy(table, texts, make_provenance(model, texts=list(map(len, texts))))


def _of_examples(examples: HeadExamples) -> Iterator[tuple[list[int], list[_Pair]]]:
    """A few windows, and for each head the example in them that has most activity."""
    table: Any = examples.table[examples.table["part"] != "random"]
    table = table.assign(rank=table["part"].map({part: at for at, part in enumerate(PARTS)}))
    rank = table.pivot_table("rank", "head", "window", "min", fill_value=len(PARTS))
    windows: list[Any] = []
    while len(windows) < min(_WINDOWS, rank.shape[1]):
        best = rank[windows].min(axis=1) if windows else pd.Series(len(PARTS), rank.index)
        windows.append(rank.clip(upper=best, axis=0).sum().idxmin())
    few = table[table["window"].isin(windows)].sort_values("rank", kind="stable").drop_duplicates("head")
    for window, some in few.groupby("window"):
        numbers = examples.tokens[window]
        pairs = [
            _Pair(HeadId.parse(row.head), f"ordinary text (activity: {row.part})", row.query, row.key)
            for row in some.itertuples()
        ]
        yield examples.ids[numbers[numbers >= 0]].tolist(), pairs


class _Blocks:
    """The blocks of heads, which share what is measured of them if the scores then give the run's own pattern."""

    def __init__(self, model: Model, length: int) -> None:
        self._model, self._length, self._known = model, length, list[ScoringBlock]()
        self._last: ScoringBlock | None = None

    def fitting(self, head: HeadId, length: int) -> Iterator[ScoringBlock]:
        """The block of a head as others were measured, first as the one that fitted last; then measured itself."""
        for known in sorted(self._known, key=lambda block: block is not self._last):
            self._last = known
            yield self._like(known, head, length)
        self._last = ScoringBlock(self._model, head, self._length)
        self._known.append(self._last)
        yield self._like(self._last, head, length)

    def _like(self, known: ScoringBlock, head: HeadId, length: int) -> ScoringBlock:
        block = ScoringBlock(self._model, head, length)
        block.rotations = {which: turned[:length] for which, turned in known.rotations.items()}
        block.of_positions, block.scale = known.of_positions[:length, :length], known.scale
        block.reshaped = known.reshaped
        return block


class _Text:
    """A text, run once for all pairs of tokens in it."""

    def __init__(self, model: Model, ids: Sequence[int], pairs: Sequence[_Pair], blocks: _Blocks) -> None:
        self.model, self.pairs, self._blocks = model, sorted(pairs, key=lambda pair: pair.head), blocks
        self.pos = torch.arange(max(pair.query for pair in pairs) + 1, device=model.device)
        self.run = FrozenRun.of(
            model,
            torch.tensor([ids[: len(self.pos)]], device=model.device),
            torch.zeros_like(self.pos),
            self.pos,
            analysis="attention_attribution",
            attention=True,
        )

    def rows(self) -> Iterator[dict[str, Any]]:
        """The rows of the table, of all pairs whose key does not have all attention."""
        of_each = 2 * len(self.pos) * self.model.d_model * torch.float64.itemsize
        step = max(1, current().limits.memory // of_each)
        for start in range(0, len(self.pairs), step):
            some = self.pairs[start : start + step]
            scores = [_Score(self.run, self._blocks, self.pos, pair) for pair in some]
            scores = [score for score in scores if score.others > 0]
            for score, parts in zip(scores, self._parts(scores), strict=True):
                yield from score.rows(parts)

    def _parts(self, scores: Sequence[_Score]) -> list[tuple[dict[str, float], dict[str, float]]]:
        """Every part of query and key, of each score."""
        run, model, layers = self.run, self.model, [score.pair.head.layer for score in scores]
        if not scores:
            return []
        at = torch.tensor([score.pair.query for score in scores], device=self.pos.device)
        of_query, of_keys = (
            torch.stack([getattr(score, name) for score in scores]) for name in ("of_query", "of_keys")
        )
        found: list[tuple[dict[str, float], dict[str, float]]] = [({}, {}) for _ in scores]

        def put(names: Sequence[str], added: Float[Tensor, "row part d_model"], first: int) -> None:
            at_query = torch.einsum("em,epm->ep", of_query[first:], added[at[first:]])
            at_keys = of_keys[first:].flatten(1) @ added.transpose(0, 1).flatten(1).T
            for i, sides in enumerate(torch.stack([at_query, at_keys], 1).tolist(), start=first):
                for parts, values in zip(found[i], sides, strict=True):
                    for name, value in zip(names, values, strict=True):
                        parts[name] = parts.get(name, 0.0) + value

        positions = run.positions.double()
        put([_EMBEDDING, _POSITIONS], torch.stack([run.streams[0].double() - positions, positions], 1), 0)
        for layer in range(max(layers)):
            z, W_O, b_O = run.z[layer].double(), model.W_O[layer].double(), model.b_O(layer)
            written = run.written(layer, torch.float64)
            after = run.after_attention(layer, written)
            mlp = run.streams[layer + 1].double() - run.streams[layer].double() - after(written)
            bias = after(torch.zeros_like(mlp) if b_O is None else b_O.double().expand_as(mlp))
            heads = after.sized(z.transpose(0, 1)) @ after.shared(W_O)
            names = [*(f"L{layer}H{head}" for head in range(model.n_heads)), f"L{layer}.mlp", _BIASES]
            put(names, torch.stack([*heads, mlp, bias], 1), sum(each <= layer for each in layers))
        return found


_EMBEDDING, _POSITIONS, _BIASES, _POSITION_BIAS = "embedding", "positions", "biases", "position bias"
_IN_FEW_MODELS = _POSITIONS, _BIASES, _POSITION_BIAS
"""Learned positions; biases of heads and norms; and what scores have for positions alone."""
_ROUNDING = 1e-9


class _Score:
    """The score of a head for a key minus that for the others, as directions of the stream.

    Attributes:
        others: the attention that the other keys have together.
        of_query: the direction of the stream at the query; ``of_keys``: at each key.
    """

    def __init__(self, run: FrozenRun, blocks: _Blocks, pos: Tensor, pair: _Pair) -> None:
        head, at, stream = pair.head, pos[pair.query, None], run.streams[pair.head.layer].double()
        pattern = run.patterns[head.layer][pair.query, head.head].double()
        key = int(pattern[1:].argmax()) + 1 if pair.key is None else pair.key
        self.pair, self.key, self.weight = pair, key, float(pattern[key])
        rest = pattern.clone()
        rest[key] = 0
        self.others = float(rest.sum())
        weights = -rest / max(self.others, 1e-300)
        weights[key] = 1
        scores = None
        for block in blocks.fitting(head, len(pos)):
            if scores is None or {scores.block.reshaped, block.reshaped} != {None}:
                scores = FrozenScores.of(run, block, pos, at)
            else:
                scores = replace(scores, block=block)
            q, k = scores.rotated(scores.q(stream[at])), scores.k(stream)
            met = scores.met(q)
            off, largest = scores.off((met * k).sum(-1), pattern)
            self._rounding = tolerance(run.model.backend) * float(largest.clamp_min(1))
            if float(off) <= self._rounding:
                break
        else:
            raise run.inexact(f"scores differ by {float(off):.2g} from those that give the pattern of {head}")
        of_q = block.scale * scores.summed(k, weights) @ block.rotations["q"][pair.query]
        of_k = weights[:, None] * met
        nothing = torch.zeros_like(stream)
        self.of_query, self.of_keys = scores.q.back(of_q)[0], scores.k.back(of_k)
        self._constants = float((scores.q(nothing[at]) * of_q).sum()), float((scores.k(nothing) * of_k).sum())
        self._position_bias = float((weights * scores.of_positions()).where(weights != 0, 0.0).sum())
        self._total = float((met * k * weights[:, None]).sum()) + self._position_bias
        self._run = run

    def rows(self, sides: tuple[dict[str, float], dict[str, float]]) -> Iterator[dict[str, Any]]:
        """The rows of the table.

        Raises:
            ValueError: if the parts do not sum to the score.
        """
        pair = self.pair
        about = {"head": str(pair.head), "layer": pair.head.layer, "index": pair.head.head, "chosen": pair.chosen}
        about |= {"query": pair.query, "key": self.key, "weight": self.weight, "total": self._total}
        for side, parts, constant in zip(("query", "key"), sides, self._constants, strict=True):
            biases = parts.get(_BIASES, 0.0) + constant
            named = _there(parts | {_BIASES: biases, _POSITION_BIAS: self._position_bias})
            if abs(sum(named.values()) - self._total) > 10 * self._rounding:
                raise self._run.inexact(f"the parts of {pair.head} do not sum to its score")
            for part, n, score in first_parts(named):
                yield {**about, "side": side, "part": part, "n": n, "score": score}


def _there(parts: dict[str, float]) -> dict[str, float]:
    """The parts without those that few models have, if they are 0."""
    return {name: value for name, value in parts.items() if abs(value) > _ROUNDING or name not in _IN_FEW_MODELS}


def first_parts(parts: Mapping[str, float]) -> list[tuple[str, int, float]]:
    """The name, number and score of the parts of one side that are largest by size, and of the others' sum.

    >>> first_parts({"a": 1.0, "b": -3.0, "c": 0.5, "d": 2.0, "e": -1.5, "f": 0.25, "g": 0.25})[-2:]
    [('c', 1, 0.5), ('others', 2, 0.5)]
    """
    in_order = sorted(parts, key=lambda name: -abs(parts[name]))
    first, rest = in_order[:SHOWN], in_order[SHOWN:]
    return [*((name, 1, parts[name]) for name in first), (OTHERS, len(rest), sum(parts[name] for name in rest))]


def path_ends(patching: HeadScores, why: HeadWhy | None) -> tuple[list[HeadId], list[str]]:
    """Between which heads paths are patched: those with the largest effect, and those that these read most.

    Returns:
        The senders, and as receivers the logits and q, k and v of the first heads that have a sender before them.
    """
    strongest = patching.heads(_SENDERS, by="absolute")
    senders = dict.fromkeys(strongest)
    receivers = [head for head in strongest if head.layer][:_RECEIVERS]
    if why is not None:
        parts: Any = why.table[
            why.table["part"].str.fullmatch(r"L\d+H\d+") & why.table["chosen"].str.startswith("prompt")
        ]
        for head in receivers:
            of_head = parts[parts["head"] == str(head)].groupby("part")["score"].agg(lambda score: score.abs().max())
            senders |= dict.fromkeys(HeadId.parse(part) for part in of_head.nlargest(_READ).index)
    first = min(head.layer for head in senders)
    names = [f"{head}.{way}" for head in receivers if head.layer > first for way in "qkv"]
    return list(senders), ["final", *names]
