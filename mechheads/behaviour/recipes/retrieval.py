"""Retrieval heads: heads that attend to a fact in a long text, token by token, while it is copied into the answer.

Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality", arXiv 2404.15574, section 2:

    score = |g and k| / |k|

with k the tokens of the needle, and g those that the head copies: the token is generated while the largest attention
weight of the head lies on the same token in the needle.

| paper | here |
|---|---|
| the haystack | the package's own prose, or ``texts`` |
| the needle, with its question | two needles in each haystack; each is asked about in turn |
| the answer is generated, and scored if it contains the needle | the answer is given, token by token |
| the same head on the other needle | ``control`` |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.behaviour.against_control import against_control
from mechheads.behaviour.windows import Texts, token_stream
from mechheads.limits import current
from mechheads.messages.arguments import Within
from mechheads.messages.interrupted import until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.encoding import begin_tokens, piece_ids
from mechheads.results.netcdf import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores

Needle = tuple[str, str, str]
NEEDLES: tuple[Needle, ...] = (
    ("The key to the boat house is", "under the flat stone beside the well", "Where is the key to the boat house?"),
    ("The old map of the valley is", "behind the blue clock in the hall", "Where is the old map of the valley?"),
    ("The baker's secret spice is", "dried orange peel from the south", "What is the baker's secret spice?"),
    ("The password of the club is", "seven green birds on a wire", "What is the password of the club?"),
    ("The best seat in the theatre is", "the third one from the left door", "What is the best seat in the theatre?"),
    ("The captain's favourite song is", "the ballad of the silver river", "What is the captain's favourite song?"),
    ("The treasure of the castle is", "a wooden box of letters from Anna", "What is the treasure of the castle?"),
    ("The doctor's advice to Peter is", "to walk ten miles every Sunday", "What is the doctor's advice to Peter?"),
)
"""Each the beginning of a sentence, its end (which is the answer) and a question that asks for it."""
QUESTION = "\n\nQuestion: {question}\nAnswer:"
"""How a prompt asks; the answer follows."""
DEPTHS = (0.15, 0.4, 0.65, 0.9)


@analysis
def retrieval_heads(
    model: Model,
    texts: Texts = None,
    *,
    n: Annotated[int, Within(least=2)] = 12,
    length: Annotated[int, Within(least=16)] = 512,
    depths: Sequence[float] = DEPTHS,
    needles: Sequence[Needle] = NEEDLES,
) -> HeadScores:
    """The share of an answer's tokens during which each head attends most to the same token of the needle.

    A haystack is ordinary text with two needles, one at each of two depths. Each prompt asks about one of them and
    continues with its answer. A token of the answer counts for a head if, at the token before it, the largest attention
    weight of the head is on this token within the needle's answer. The control is the other needle's answer: the share
    of tokens for which the largest weight is on the token at the same place there, or any equal token. Both needles
    look alike and are asked about equally often at the same depths, so a head that attends to unusual sentences, or
    to a distance, has the same control as score.

    The paper lets the model generate and measures the answers that contain the needle, which mixes what a head does
    with whether the model answers at all. Here the answer is *given*, so every model and every prompt gives a score;
    ``answered`` says how often the model would have generated the token. A token that was given looks the same to a
    head as one that was generated. After the first tokens of an answer, a plain induction head also finds the needle.

    Args:
        texts: the haystack, as in ``mh.profile_heads``; by default, the package's own prose.
        n: the number of haystacks; each gives two prompts.
        length: tokens of a prompt before its answer; at most the model's context allows.
        depths: where needles lie, as shares of the haystack; at least two, and pairs of them take turns.
        needles: (beginning, answer, question); at least two.

    Returns:
        Scores [layer, head, prompt] in shares of tokens, with intervals over haystacks; ``control``, and ``excess``
        with ``excess_low`` and ``excess_high``, to which ``p_value`` and ``q_value`` belong; ``attention`` (layer,
        head): the mean attention on the token to be copied; ``answered`` (prompt): the share of the answer's tokens
        that are the model's first choice; ``depth`` and ``needle`` (prompt). After Ctrl-C, of the prompts until then.

    Raises:
        ValueError: if an argument is not valid, or the texts are too short.
        KeyboardInterrupt: if Ctrl-C came before the first prompts were done.

    Wu et al. 2024 (arXiv 2404.15574).

    >>> found = mh.behaviour.retrieval_heads(model, n=4, length=128)
    >>> found.heads(1), found.dataset["control"].max().item() < 0.2
    ((HeadId(layer=18, head=6),), True)
    """
    prompts = list(_prompts(model, texts, (n, length), depths, needles))
    found: list[dict[str, Tensor]] = []
    with until_interrupted() as interrupts, torch.no_grad():
        for prompt in Bar(prompts, desc="retrieval", leave=False):
            found.append(_measured(model, prompt))
    interrupts.stop_unless(found)
    interrupts.warn(f"{len(found)} of {len(prompts)} prompts", "the scores are of these")
    prompts = prompts[: len(found)]
    both = {name: torch.stack([each[name] for each in found], -1).double().cpu().numpy() for name in found[0]}
    return against_control(
        both["score"],
        both["control"],
        cluster=[prompt.haystack for prompt in prompts],
        name="retrieval of a needle",
        kind="retrieval",
        provenance=make_provenance(
            model,
            texts="of the package" if texts is None else "given",
            depths=list(depths),
            n_prompts=len(prompts),
            needles=[list(needle) for needle in needles],
            interrupted=interrupts.interrupted,
        ),
        variables={
            "attention": (("layer", "head"), both["attention"].mean(-1)),
            "answered": ("prompt", both["answered"]),
            "depth": ("prompt", np.array([prompt.depth for prompt in prompts])),
            "needle": ("prompt", text_array([prompt.needle for prompt in prompts])),
        },
    )


@dataclass(frozen=True)
class _Prompt:
    """A haystack with a question and its answer.

    Attributes:
        ids: of all; ``answer``: the number of those at the end that are the answer.
        own, other: where the answers of the needle and of the other needle lie in the haystack.
        haystack: the number of the haystack; prompts that share one are not independent.
    """

    ids: list[int]
    answer: int
    own: range
    other: range
    depth: float
    needle: str
    haystack: int


def _prompts(
    model: Model, texts: Texts, sizes: tuple[int, int], depths: Sequence[float], needles: Sequence[Needle]
) -> Iterator[_Prompt]:
    """Haystacks with two needles, and a prompt for each of them.

    Args:
        sizes: the number of haystacks, and the length of a prompt before its answer.

    Raises:
        ValueError: if an argument is not valid.
    """
    n, length = sizes
    if model.tokenizer is None:
        raise ValueError("model has no tokenizer to tokenise the needles; give one: mh.wrap(model, tokenizer=...)")
    if len(depths) < 2 or not all(0 <= depth <= 1 for depth in depths):
        raise ValueError(f"depths is {list(depths)}; give at least two shares of the haystack, between 0 and 1")
    if len(needles) < 2 or not all(len(needle) == 3 for needle in needles):
        raise ValueError("needles: give at least two, each (beginning, answer, question)")
    begin, rng = begin_tokens(model.tokenizer), np.random.default_rng(current().seed)
    stream = token_stream(model, texts)

    tokens = partial(piece_ids, tokenizer=model.tokenizer)  # so that an answer has the same tokens wherever it stands
    places = [(a, b) for i, a in enumerate(depths) for b in depths[i + 1 :]]
    for number in range(n):
        first, second = places[number % len(places)]
        chosen = [needles[i] for i in rng.permutation(len(needles))[:2]]
        parts = [[tokens(f" {start}"), tokens(f" {answer}"), tokens(".")] for start, answer, _ in chosen]
        questions = [tokens(QUESTION.format(question=question)) for *_, question in chosen]
        taken = sum(len(piece) for part in parts for piece in part) + max(map(len, questions)) + len(begin)
        if taken + 8 > length or length + max(len(part[1]) for part in parts) > model.n_ctx:
            raise ValueError(
                f"length is {length}; two needles and a question take {taken} tokens, and the model's context has "
                f"{model.n_ctx}: give a length between {taken + 8} and {model.n_ctx - max(len(p[1]) for p in parts)}"
            )
        hay = [next(stream, None) for _ in range(length - taken)]
        if None in hay:
            raise ValueError(f"texts are too short for {n} haystacks of {length} tokens; give more, or a smaller n")
        haystack, where = _buried([token for token in hay if token is not None], parts, (first, second), len(begin))
        for i, depth in enumerate((first, second)):
            (start, answer, _), ids = chosen[i], [*begin, *haystack, *questions[i], *parts[i][1]]
            yield _Prompt(ids, len(parts[i][1]), where[i], where[1 - i], depth, f"{start} {answer}", number)


def _buried(
    hay: list[int], parts: Sequence[Sequence[list[int]]], depths: tuple[float, float], before: int
) -> tuple[list[int], list[range]]:
    """The haystack with both needles, and where their answers lie, counted from the start of the prompt."""
    ids: list[int] = []
    where, last = [], 0
    for (start, answer, end), depth in zip(parts, depths, strict=True):
        at = round(depth * len(hay))
        ids += [*hay[last:at], *start]
        where.append(range(before + len(ids), before + len(ids) + len(answer)))
        ids += [*answer, *end]
        last = at
    return [*ids, *hay[last:]], where


def _measured(model: Model, prompt: _Prompt) -> dict[str, Tensor]:
    """The score, the control and the attention of every head while the answer is read, and the share answered."""
    ids = torch.tensor(prompt.ids, device=model.device)
    answer = ids[-prompt.answer :]
    rows = torch.arange(len(ids) - prompt.answer - 1, len(ids) - 1, device=ids.device)
    other = [prompt.other[min(i, len(prompt.other) - 1)] for i in range(prompt.answer)]
    own, control = _copies(ids, answer, prompt.own), _copies(ids, ids[other], prompt.other)
    found = torch.zeros(3, model.n_layers, model.n_heads, device=ids.device)

    def see(pattern: Float[Tensor, "1 head query key"], hook: Any, layer: int) -> None:
        attention = pattern[0, :, rows].float()
        token, largest = torch.arange(len(rows), device=ids.device), attention.argmax(-1)
        found[0, layer] = own[token, largest].float().mean(-1)
        found[1, layer] = control[token, largest].float().mean(-1)
        found[2, layer] = (attention * own).sum(-1).mean(-1)

    # a pattern is read where it is made: patterns of all layers of a long text are large
    hooks = [(model.hook_name("pattern", layer), partial(see, layer=layer)) for layer in range(model.n_layers)]
    final = model.backend.run(ids[None], hooks)
    first = model.unembed(final[:, rows])[0].argmax(-1)
    scores = dict(zip(("score", "control", "attention"), found, strict=True))
    return scores | {"answered": (first == answer).double().mean()}


def _copies(ids: Int[Tensor, " pos"], tokens: Int[Tensor, " token"], where: range) -> Bool[Tensor, "token pos"]:
    """Where each of some tokens stands in a part of a text."""
    inside = torch.zeros_like(ids, dtype=torch.bool)
    inside[where.start : where.stop] = True
    return inside & (ids == tokens[:, None])
