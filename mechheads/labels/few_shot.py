"""Few-shot prompts of a relation: worked examples, one per line, and a last one that ends before its target."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from mechheads.labels.relations import Relation, RelationLike, load_relations
from mechheads.messages.arguments import check_at_least
from mechheads.model.model import Model
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs, Prompts, join_clusters
from mechheads.prompts.tokens import encode, tokens_at

Pair = tuple[str, str]
_LEAST = 2


def few_shot_prompts(model: Model, relation: RelationLike, *, shots: int = 4, n: int = 24, seed: int = 0) -> Prompts:
    """Prompts that ask for targets of a relation after a few worked examples.

    Each question is a pair whose target is one token, including the leading space. Examples are other such pairs of
    the relation; no example shares a word, as source or as target, with the question.

    Args:
        relation: a relation with few-shot templates, of which the first is used.
        shots: the number of worked examples before the question; with 0, the prompt is the question alone.
        n: the largest number of prompts, each about another source; a relation with fewer usable pairs gives fewer.
        seed: the seed by which questions and examples are drawn.

    Returns:
        The prompts with the answers, the position ``source`` (the last token of the question's source), and this source
        as the cluster.

    Raises:
        ValueError: if the relation has no template, an argument does not fit, or fewer than 2 prompts (1 if
            ``n`` is 1) can be made.

    >>> prompts = few_shot_prompts(model, "country_to_capital", shots=2, n=1)
    >>> print(prompts.items[0])
    The capital of Switzerland is Bern.
    The capital of Ireland is Dublin.
    The capital of Egypt is
    >>> prompts.answer
    [' Cairo']
    """
    form = _Form(model, relation, shots, n)
    drawn = form.questions(lambda pair: [pair], n, seed, "")
    texts, spans = zip(*(form.fill(examples, source) for (source, _), _, examples in drawn), strict=True)
    return Prompts(
        list(texts),
        answer=[f" {target}" for (_, target), _, _ in drawn],
        positions={"source": list(spans)},
        cluster=[source for (source, _), _, _ in drawn],
    )


def few_shot_pairs(model: Model, relation: RelationLike, *, shots: int = 4, n: int = 16, seed: int = 0) -> PromptPairs:
    """Pairs of few-shot prompts that differ only in the source of the question.

    The corrupted prompt asks about the source of another pair, which has the same number of tokens and shares no word
    with the first. Both prompts have the same examples, in which no word of either pair occurs.

    Args:
        relation, shots, n, seed: as in ``few_shot_prompts``.

    Returns:
        The pairs with ``answer`` and ``wrong``, the targets of the clean and the corrupted source; the position
        ``source``; and the clean source as the cluster, joined if pairs share a prompt.

    >>> pairs = few_shot_pairs(model, "country_to_capital", shots=1, n=1)
    >>> print(pairs.clean[0], pairs.corrupted[0], sep="\\n")
    The capital of Syria is Damascus.
    The capital of Egypt is
    The capital of Syria is Damascus.
    The capital of Peru is
    """
    form = _Form(model, relation, shots, n)
    shapes = form.shapes()

    def partners(pair: Pair) -> list[Pair]:
        return [other for other in form.pool if shapes[other[0]] == shapes[pair[0]] and not set(pair) & set(other)]

    drawn = form.questions(partners, n, seed, ", with another source of as many tokens")
    clean, clean_spans = zip(*(form.fill(examples, pair[0]) for pair, _, examples in drawn), strict=True)
    corrupted, other_spans = zip(*(form.fill(examples, other[0]) for _, other, examples in drawn), strict=True)
    return PromptPairs(
        list(clean),
        list(corrupted),
        answer=[f" {target}" for (_, target), _, _ in drawn],
        wrong=[f" {target}" for _, (_, target), _ in drawn],
        positions={"source": (clean_spans, other_spans)},
        cluster=join_clusters([source for (source, _), _, _ in drawn], clean, corrupted),
    )


class _Form:
    """A relation's first template, and ``pool``: the possible questions, which are pairs whose target is one token."""

    def __init__(self, model: Model, relation: RelationLike, shots: int, n: int) -> None:
        check_at_least(1, n=n)
        check_at_least(0, shots=shots)
        self.model, self.shots = model, shots
        self.relation: Relation = load_relations([relation])[0]
        name, templates = self.relation.name, self.relation.few_shot
        if not templates:
            raise ValueError(
                f"relation {name!r} has no few-shot templates; give it one: "
                'few_shot=["The capital of {source} is {target}."]'
            )
        if model.tokenizer is None:
            raise ValueError("model has no tokenizer to tokenise the prompts; give one: mh.wrap(model, tokenizer=...)")
        self._before, rest = templates[0].split("{source}")
        self._between, self._end = rest.split("{target}")
        self.pool: list[Pair] = [
            (source, target)
            for source, target in self.relation.pairs
            if single_token(f" {target}", model.tokenizer) is not None
        ]

    def fill(self, examples: Sequence[Pair], source: str) -> tuple[str, tuple[int, int]]:
        """A prompt, and the span of characters of its question's source."""
        lines = [f"{self._before}{s}{self._between}{t}{self._end}" for s, t in examples]
        start = "\n".join([*lines, self._before])
        return f"{start}{source}{self._between[:-1]}", (len(start), len(start) + len(source))

    def shapes(self) -> dict[str, tuple[int, int]]:
        """For the question about each source alone, its number of tokens and the index of the source's last token."""
        shapes: dict[str, tuple[int, int]] = {}
        for source, _ in self.pool:
            text, span = self.fill([], source)
            ids, text, offsets = encode(text, len(shapes), self.model)
            shapes[source] = len(ids), tokens_at(span, "source", len(shapes), ids, text, offsets)[-1]
        return shapes

    def questions(
        self, partners: Callable[[Pair], list[Pair]], n: int, seed: int, needs: str
    ) -> list[tuple[Pair, Pair, list[Pair]]]:
        """Questions in random order, each source once, each with a partner and with examples for both, in which none of
        their words occurs and no source occurs twice."""
        rng, questions = np.random.default_rng(seed), dict[str, tuple[Pair, Pair, list[Pair]]]()
        for index in rng.permutation(len(self.pool)):
            pair = self.pool[index]
            if len(questions) == n or pair[0] in questions or not (others := partners(pair)):
                continue
            other = others[rng.integers(len(others))]
            free = [each for each in self.pool if {*pair, *other}.isdisjoint(each)]
            drawn = {free[i][0]: free[i] for i in rng.permutation(len(free))}
            if len(drawn) >= self.shots:
                questions[pair[0]] = pair, other, list(drawn.values())[: self.shots]
        if len(questions) < min(n, _LEAST):
            raise ValueError(
                f"relation {self.relation.name!r} has too few usable pairs for this model: {len(self.pool)} of its "
                f"{len(self.relation.pairs)} have a target that is one token, and {len(questions)} of them can be "
                f"asked for after {self.shots} examples of other words{needs}; at least {min(n, _LEAST)} are needed. "
                "Give it more pairs, or use fewer shots"
            )
        return list(questions.values())
