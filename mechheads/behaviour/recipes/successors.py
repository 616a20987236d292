"""Successor heads: heads that raise the next member of a sequence, such as " Tuesday" for " Monday", by weights alone.

Gould et al. 2024, "Successor Heads: Recurring, Interpretable Attention Heads In The Wild", arXiv 2312.09230, section 3.
With M = E' W_V W_O W_U as in ``mh.relation_scores``, restricted to the members of a sequence,

    score = mean over members s with a successor t of 1[the largest entry of row s of M is that of t]

| paper | here |
|---|---|
| E', the first MLP's output for the embedding | ``source="first_mlp"``; by default the best of three readings counts |
| ordinal sequences | ``SEQUENCES`` |
| share of tokens whose successor has the largest logit among the members | ``scores`` at layer, head |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int

from mechheads.labels.readings import READINGS, SOURCES, Norm, Readings, Source
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.interrupted import until_interrupted
from mechheads.messages.progress import Bar
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.model import Model
from mechheads.model.stored_weights import StoredWeights
from mechheads.prompts.encoding import single_token
from mechheads.results.netcdf import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values, share_interval

SEQUENCES: dict[str, tuple[str, ...]] = {
    "days": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    "months": (
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ),
    "number words": (
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
        "fifteen",
    ),
    "ordinals": ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth", "tenth"),
    "digits": tuple("0123456789"),
    "letters": tuple("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
}
"""Each from its first member to its last; the last has no successor."""
_OTHERS = {"predecessor": -1, "itself": 0}
"""Where else the largest entry may be, as steps from the source."""


@alone
@torch.no_grad()
def successor_scores(
    model: Model | StoredWeights,
    sequences: Mapping[str, Sequence[str]] | None = None,
    *,
    source: Source = "all",
    norm: Norm = "folded",
    min_members: int = 5,
    draws: int = 9999,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """The share of members of ordinal sequences for which each head raises the successor most, by its weights.

    A head is given the token of a member as it reads it (``source``), and its output is compared with the unembeddings
    of all members of the sequence. The null shuffles the successors among the members of each sequence: a head that
    prefers some members, or members near to the source, hits some of them by that alone. As in ``mh.relation_scores``,
    the best of the readings counts, in each shuffle too.

    Args:
        model: from ``mh.load`` or ``mh.wrap``, or ``mh.labels.open_weights`` for a model that stays on disk.
        sequences: for each name, the members in order; by default days, months, number words, ordinals, digits and
            letters. A member counts if it is one token; each sequence is read with a leading space or without,
            whichever gives more members.
        source, norm: as in ``mh.relation_scores``. The paper uses ``source="first_mlp"``.
        min_members: sequences with fewer members are left out; ``provenance["sequences"]`` says how many each has.
        draws: the number of shuffles.
        seed: for the shuffles.

    Returns:
        Scores [layer, head], unit "share of pairs", with Wilson's intervals, and one-sided p and q against shuffled
        successors; ``values`` [layer, head, pair]. ``by_sequence`` (layer, head, sequence) is the score of each
        sequence; ``null`` the mean over shuffles; ``reading`` the reading that counts, the one with the most hits;
        ``contrast`` how many standard deviations (over members) the successor lies above the mean of the others;
        ``predecessor`` and ``itself`` the shares for which these have the largest entry: a head that copies, or that
        raises neighbours on both sides, shows there. After Ctrl-C, layers that were not scored are NaN.

    Raises:
        ValueError: if an argument is not valid, or no sequence has enough members.

    Gould et al. 2024 (arXiv 2312.09230).

    >>> found = mh.behaviour.successor_scores(model, progress=False)
    >>> found.dataset["by_sequence"].sizes["sequence"], bool(found.scores.max() <= 1)
    (6, True)
    """
    check_at_least(1, draws=draws)
    check_at_least(3, min_members=min_members)
    check_known("source", source, SOURCES)
    check_known("norm", norm, ("raw", "folded"))
    if model.tokenizer is None:
        raise ValueError("model has no tokenizer to read sequences with; give one: mh.wrap(model, tokenizer=...)")
    asked = SEQUENCES if sequences is None else sequences
    every = [_Sequence.of(name, members, model.tokenizer) for name, members in asked.items()]
    scored = [each for each in every if len(each.ids) >= min_members and each.pairs]
    if not scored:
        counts = ", ".join(f"{each.name}: {len(each.ids)}" for each in every)
        raise ValueError(
            f"sequences: none has {min_members} members that are one token for this model ({counts}); give others, or "
            "a smaller min_members"
        )
    work = _Scorer(model, scored, source, norm, draws, seed)
    done = 0
    with until_interrupted() as guard:
        for layer in Bar(range(model.n_layers), desc="successors", unit="layer", disable=not progress, leave=False):
            work.score(layer)
            done = layer + 1
    guard.stop_unless(done)
    guard.warn(f"{done} of {model.n_layers} layers")
    work.forget(slice(done, None) if guard.interrupted else slice(0, 0))
    about = {each.name: {"members": len(each.ids), "pairs": len(each.pairs), "form": each.form} for each in every}
    return work.result(
        make_provenance(
            model,
            sequences=about,
            source=source,
            norm=norm,
            no_reading=work.readings.missing,
            draws=draws,
            seed=seed,
            interrupted=guard.interrupted,
        )
    )


@dataclass(frozen=True)
class _Sequence:
    """The members of a sequence that are one token.

    Attributes:
        form: how they are written: with " " before them or with nothing.
        ids: their tokens.
        at: the place of each in the whole sequence.
        pairs: indices in ``ids`` of a member and its successor.
        words: the members.
    """

    name: str
    form: str
    ids: tuple[int, ...]
    at: tuple[int, ...]
    words: tuple[str, ...]

    @classmethod
    def of(cls, name: str, members: Sequence[str], tokenizer: Any) -> _Sequence:
        if isinstance(members, str) or not all(isinstance(member, str) and member for member in members):
            raise ValueError(f"sequences[{name!r}] is {members!r}; give a list of words in order")
        found = []
        for form in (" ", ""):
            tokens = [(i, single_token(form + member, tokenizer)) for i, member in enumerate(members)]
            kept = [(i, token) for i, token in tokens if token is not None]
            words = tuple(members[i] for i, _ in kept)
            found.append(cls(name, form, tuple(token for _, token in kept), tuple(i for i, _ in kept), words))
        return max(found, key=lambda each: len(each.ids))

    @property
    def pairs(self) -> list[tuple[int, int]]:
        return [(i, i + 1) for i, (a, b) in enumerate(pairwise(self.at)) if b == a + 1]


class _Scorer:
    """Scores layer by layer.

    Attributes:
        readings: how heads read the members.
    """

    def __init__(
        self,
        model: Model | StoredWeights,
        scored: Sequence[_Sequence],
        source: Source,
        norm: Norm,
        draws: int,
        seed: int,
    ) -> None:
        self._model, self._scored, self._folded = model, scored, norm == "folded"
        ids = torch.tensor([token for each in scored for token in each.ids], device=model.device)
        self.readings = Readings(model, ids, source, norm)
        columns = torch.cat([model.unembedding(token, token + 1) for token in ids.tolist()], dim=1).to(ids.device)
        self._columns = model.final_scale().float()[:, None] * columns if self._folded else columns
        sizes = [len(each.ids) for each in scored]
        self._slices = [slice(end - size, end) for size, end in zip(sizes, np.cumsum(sizes).tolist(), strict=True)]
        self._shuffles = _shuffles([len(each.pairs) for each in scored], draws, seed)
        n_pairs = self._shuffles.shape[1]
        shape = model.n_layers, model.n_heads
        self._hits = np.full((*shape, n_pairs), np.nan)
        self._one = {name: np.full(shape, np.nan) for name in ("p", "null", "contrast", *_OTHERS)}
        self._reading = np.full(shape, -1)

    def score(self, layer: int) -> None:
        """Score the heads of a layer."""
        W_O = self._model.W_O[layer].float()
        if self._folded:
            W_O = W_O * self._model.attention_out_scale(layer).float()
        written = W_O @ self._columns
        found = {name: (values @ written).cpu().numpy() for name, values in self.readings.at(layer).items()}
        for head in range(self._model.n_heads):
            self._score_head(layer, head, {name: entries[head] for name, entries in found.items()})

    def _score_head(self, layer: int, head: int, entries: Mapping[str, Float[np.ndarray, "member member"]]) -> None:
        tables = {name: [table[part, part] for part in self._slices] for name, table in entries.items()}
        steps = {name: np.concatenate([_steps(*each) for each in self._with(table)]) for name, table in tables.items()}
        contrasts = {name: self._contrast(table) for name, table in tables.items()}
        best = max(steps, key=lambda name: ((steps[name] == 1).sum(), contrasts[name]))
        seen = int((steps[best] == 1).sum())
        totals = np.max([self._totals(table) for table in tables.values()], axis=0)
        at = layer, head
        self._hits[at] = steps[best] == 1
        self._reading[at] = READINGS.index(best)  # type: ignore[arg-type]
        self._one["p"][at] = (1 + (totals >= seen).sum()) / (1 + len(totals))
        self._one["null"][at] = totals.mean() / len(steps[best])
        self._one["contrast"][at] = contrasts[best]
        for name, step in _OTHERS.items():
            self._one[name][at] = (steps[best] == step).mean()

    def _with(self, tables: Sequence[np.ndarray]) -> list[tuple[np.ndarray, _Sequence]]:
        return list(zip(tables, self._scored, strict=True))

    def _contrast(self, tables: Sequence[np.ndarray]) -> float:
        return float(np.concatenate([_contrasts(*each) for each in self._with(tables)]).mean())

    def _totals(self, tables: Sequence[np.ndarray]) -> Int[np.ndarray, " draw"]:
        """How many members have the largest entry at the successor of the member that a shuffle gives them."""
        total, start = np.zeros(len(self._shuffles), dtype=int), 0
        for table, each in self._with(tables):
            largest, pairs = _largest(table), np.array(each.pairs)
            targets = pairs[:, 1][self._shuffles[:, start : start + len(pairs)]]
            total += (largest[pairs[:, 0]] == targets).sum(1)
            start += len(pairs)
        return total

    def forget(self, layers: slice) -> None:
        """Set the results of layers to "not measured"."""
        for values in (self._hits, *self._one.values()):
            values[layers] = np.nan
        self._reading[layers] = -1

    def result(self, provenance: Mapping[str, Any]) -> HeadScores:
        dims, names = ("layer", "head"), [each.name for each in self._scored]
        of_pair = np.repeat(np.arange(len(names)), [len(each.pairs) for each in self._scored])
        pairs = [f"{each.words[a]} -> {each.words[b]}" for each in self._scored for a, b in each.pairs]
        by_sequence = [mean_over_prompts(self._hits[..., of_pair == i]) for i in range(len(names))]
        reading = [READINGS[i] if i >= 0 else "" for i in self._reading.ravel().tolist()]
        one = {name: values for name, values in self._one.items() if name != "p"}
        found = HeadScores.from_values(
            self._hits,
            name="successors by weights",
            kind="successor",
            provenance=provenance,
            variables={
                **{name: (dims, values) for name, values in one.items()},
                "reading": (dims, text_array(reading, self._reading.shape)),
                "by_sequence": ((*dims, "sequence"), np.stack(by_sequence, axis=-1)),
                "sequence": ("sequence", text_array(names)),
                "pair": ("prompt", text_array(pairs)),
                "pair_sequence": ("prompt", text_array([names[i] for i in of_pair])),
            },
        )
        low, high = share_interval(found.scores.values, np.array(len(pairs)))
        p = self._one["p"]
        statistics = {"ci_low": low, "ci_high": high, "p_value": p, "q_value": q_values(p)}
        return HeadScores(found.dataset.assign({name: (dims, values) for name, values in statistics.items()}))


def _shuffles(pairs: Sequence[int], draws: int, seed: int) -> Int[np.ndarray, "draw pair"]:
    """Random orders of the pairs within each sequence; the index is that within the sequence."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.permuted(np.tile(np.arange(n), (draws, 1)), axis=1) for n in pairs], axis=1)


def _largest(table: Float[np.ndarray, "member member"]) -> Int[np.ndarray, " member"]:
    """The member with the largest entry of each row; -1 if the head writes nothing for it."""
    return np.where((table == table[:, :1]).all(1), -1, table.argmax(1))


def _steps(table: Float[np.ndarray, "member member"], sequence: _Sequence) -> Float[np.ndarray, " pair"]:
    """How many steps after its source the member with the largest entry comes; NaN if the head writes nothing."""
    largest, at = _largest(table), np.array(sequence.at)
    sources = [a for a, _ in sequence.pairs]
    return np.where(largest[sources] < 0, np.nan, at[largest[sources]] - at[sources])


def _contrasts(table: Float[np.ndarray, "member member"], sequence: _Sequence) -> Float[np.ndarray, " pair"]:
    """How many standard deviations of its row the successor lies above the mean of the other members."""
    sources, targets = np.array(sequence.pairs).T
    own, rows = table[sources, targets], table[sources]
    apart = own - (rows.sum(1) - own) / (rows.shape[1] - 1)
    spread = rows.std(1)
    return np.divide(apart, spread, out=np.zeros_like(apart), where=spread > 0)
