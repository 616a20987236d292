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
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Float, Int

from mechheads.labels.readings import READINGS, Norm, Readings, Source
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Within
from mechheads.messages.interrupted import until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import single_token
from mechheads.results.netcdf import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts, q_values, share_interval

SEQUENCES: dict[str, tuple[str, ...]] = {
    name: tuple(members.split())
    for name, members in {
        "days": "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "months": "January February March April May June July August September October November December",
        "number words": "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen",
        "ordinals": "first second third fourth fifth sixth seventh eighth ninth tenth",
        "digits": "0 1 2 3 4 5 6 7 8 9",
        "letters": "A B C D E F G H I J K L M N O P Q R S T U V W X Y Z",
    }.items()
}
"""Each from its first member to its last; the last has no successor."""
_OTHERS = {"predecessor": -1, "itself": 0}
"""Where else the largest entry may be, as steps from the source."""


@analysis
@torch.no_grad()
def successor_scores(
    model: Model,
    sequences: Mapping[str, Sequence[str]] | None = None,
    *,
    source: Source = "all",
    norm: Norm = "folded",
    min_members: Annotated[int, Within(least=3)] = 5,
    draws: Positive = 9999,
) -> HeadScores:
    """The share of members of ordinal sequences for which each head raises the successor most, by its weights.

    A head is given the token of a member as it reads it (``source``), and its output is compared with the unembeddings
    of all members of the sequence. The null shuffles the successors among the members of each sequence: a head that
    prefers some members, or members near to the source, hits some of them by that alone. As in ``mh.relation_scores``,
    the best of the readings counts, in each shuffle too.

    Args:
        model: from ``mh.load`` or ``mh.wrap``; with ``mh.load(max_memory=)``, weights stay on disk.
        sequences: for each name, the members in order; by default days, months, number words, ordinals, digits and
            letters. A member counts if it is one token; each sequence is read with a leading space or without,
            whichever gives more members.
        source, norm: as in ``mh.relation_scores``. The paper uses ``source="first_mlp"``.
        min_members: sequences with fewer members are left out; ``provenance["sequences"]`` says how many each has.
        draws: the number of shuffles.

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

    >>> found = mh.behaviour.successor_scores(model)
    >>> found.dataset["by_sequence"].sizes["sequence"], bool(found.scores.max() <= 1)
    (6, True)
    """
    if model.tokenizer is None:
        raise ValueError("model has no tokenizer to read sequences with; give one: mh.wrap(model, tokenizer=...)")
    asked = SEQUENCES if sequences is None else sequences
    every, scored = _readable(asked, min_members, model.tokenizer)
    ids = torch.tensor([token for each in scored for token in each.ids], device=model.device)
    readings = Readings(model, ids, source, norm)
    W_U = torch.cat([model.unembedding(token, token + 1) for token in ids.tolist()], dim=1).to(ids.device)
    if norm == "folded":
        W_U = model.final_scale().float()[:, None] * W_U
    shuffled = _shuffled_steps(scored, draws)
    layers: list[dict[str, np.ndarray]] = []
    with until_interrupted() as interrupts:
        for layer in Bar(range(model.n_layers), desc="successors", unit="layer", leave=False):
            W_O = model.W_O[layer].float()
            if norm == "folded":
                W_O = W_O * model.attention_out_scale(layer).float()
            written = W_O @ W_U
            entries = {name: (values @ written).cpu().numpy() for name, values in readings.at(layer).items()}
            layers.append(_score(entries, scored, shuffled))
    interrupts.stop_unless(layers)
    interrupts.warn(f"{len(layers)} of {model.n_layers} layers")

    def whole(name: str) -> np.ndarray:
        """A score of all layers, NaN for those that were not reached."""
        found = np.stack([layer[name] for layer in layers]).astype(float)
        return np.pad(found, [(0, model.n_layers - len(layers)), *[(0, 0)] * (found.ndim - 1)], constant_values=np.nan)

    hits, p, reading = whole("hits"), whole("p"), whole("reading")
    names, dims = [each.name for each in scored], ("layer", "head")
    of_pair = np.repeat(np.arange(len(names)), [len(each.pairs) for each in scored])
    by_sequence = [mean_over_prompts(hits[..., of_pair == i]) for i in range(len(names))]
    found = HeadScores.from_values(
        hits,
        name="successors by weights",
        kind="successor",
        provenance=make_provenance(
            model,
            sequences={
                each.name: {"members": len(each.ids), "pairs": len(each.pairs), "form": each.form} for each in every
            },
            no_reading=readings.missing,
            interrupted=interrupts.interrupted,
        ),
        variables={
            **{name: (dims, whole(name)) for name in ("null", "contrast", *_OTHERS)},
            "reading": (dims, text_array(["" if np.isnan(i) else READINGS[int(i)] for i in reading.flat], p.shape)),
            "by_sequence": ((*dims, "sequence"), np.stack(by_sequence, axis=-1)),
            "sequence": ("sequence", text_array(names)),
            "pair": (
                "prompt",
                text_array([f"{each.words[a]} -> {each.words[b]}" for each in scored for a, b in each.pairs]),
            ),
            "pair_sequence": ("prompt", text_array([names[i] for i in of_pair])),
        },
    )
    low, high = share_interval(found.scores.values, np.array(len(of_pair)))
    statistics = {"ci_low": low, "ci_high": high, "p_value": p, "q_value": q_values(p)}
    return HeadScores(found.dataset.assign({name: (dims, values) for name, values in statistics.items()}))


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


def _readable(
    asked: Mapping[str, Sequence[str]], min_members: int, tokenizer: Any
) -> tuple[list[_Sequence], list[_Sequence]]:
    """Every sequence, and those with enough members.

    Raises:
        ValueError: if there is none, or one is not a list of words.
    """
    every = [_Sequence.of(name, members, tokenizer) for name, members in asked.items()]
    scored = [each for each in every if len(each.ids) >= min_members and each.pairs]
    if not scored:
        counts = ", ".join(f"{each.name}: {len(each.ids)}" for each in every)
        raise ValueError(
            f"sequences: none has {min_members} members that are one token for this model ({counts}); give others, or "
            "a smaller min_members"
        )
    return every, scored


def _shuffled_steps(scored: Sequence[_Sequence], draws: int) -> Int[np.ndarray, "draw pair"]:
    """How many steps after each source its successor comes, if successors are shuffled within their sequence."""
    rng, found = np.random.default_rng(current().seed), []
    for each in scored:
        sources, successors = np.array(each.at)[np.array(each.pairs).T]
        found.append(rng.permuted(np.tile(successors, (draws, 1)), axis=1) - sources)
    return np.concatenate(found, axis=1)


def _score(
    entries: Mapping[str, Float[np.ndarray, "head member member"]],
    scored: Sequence[_Sequence],
    shuffled: Int[np.ndarray, "draw pair"],
) -> dict[str, np.ndarray]:
    """Which pairs each head of a layer hits [head, pair] with the best of its readings, and the other scores [head]."""
    ends = np.cumsum([len(each.ids) for each in scored]).tolist()
    parts = [slice(end - len(each.ids), end) for each, end in zip(scored, ends, strict=True)]
    found = [
        [_steps_and_contrasts(table[:, part, part], each) for part, each in zip(parts, scored, strict=True)]
        for table in entries.values()
    ]
    steps = np.stack([np.concatenate([each for each, _ in of_reading], axis=-1) for of_reading in found])
    contrast = np.stack([np.concatenate([each for _, each in of_reading], axis=-1).mean(-1) for of_reading in found])
    hits, heads = (steps == 1).sum(-1), np.arange(steps.shape[1])
    best = np.array([max(range(len(found)), key=lambda i: (hits[i, head], contrast[i, head])) for head in heads])
    own, seen = steps[best, heads], hits[best, heads]
    totals = np.stack([(steps[:, head, None] == shuffled).sum(-1).max(0) for head in heads])
    known: list[str] = list(READINGS)
    names = list(entries)
    return {
        "hits": own == 1,
        "reading": np.array([known.index(names[i]) for i in best]),
        "contrast": contrast[best, heads],
        "null": totals.mean(-1) / shuffled.shape[1],
        "p": (1 + (totals >= seen[:, None]).sum(-1)) / (1 + len(shuffled)),
        **{name: (own == step).mean(-1) for name, step in _OTHERS.items()},
    }


def _steps_and_contrasts(
    table: Float[np.ndarray, "head member member"], sequence: _Sequence
) -> tuple[Float[np.ndarray, "head pair"], Float[np.ndarray, "head pair"]]:
    """What each head raises for the source of each pair of a sequence.

    Returns:
        how many steps after its source the member with the largest entry comes, NaN if the head writes nothing; and
        how many standard deviations of the row the successor lies above the mean of the other members.
    """
    at, (sources, targets) = np.array(sequence.at), np.array(sequence.pairs).T
    rows = np.ascontiguousarray(table[:, sources])
    silent = (rows == rows[..., :1]).all(-1)
    steps = np.where(silent, np.nan, at[rows.argmax(-1)] - at[sources])
    own = rows[:, np.arange(len(targets)), targets]
    apart = own - (rows.sum(-1) - own) / (rows.shape[-1] - 1)
    spread = rows.std(-1)
    return steps, np.divide(apart, spread, out=np.zeros_like(apart), where=spread > 0)
