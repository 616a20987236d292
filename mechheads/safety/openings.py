"""The openings of a model's refusals, metrics of their probability, and counts of short answers that refuse."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.evaluate import Evaluator
from mechheads.generation.generate import Generated, Sampling, end_tokens, generate
from mechheads.messages.notices import stop_if, warn
from mechheads.metrics import Metric, MetricContext
from mechheads.model.model import Model
from mechheads.prompts.encoding import ids_after, piece_ids, text_of
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Unpadded, encode, read_texts
from mechheads.results.metadata import LEAST_REFUSAL, refused_of
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.judge import rule_judge, thinks, verdict, verdicts
from mechheads.safety.requests import Side, answers_begun, whole_answers

OPENING = "I'm sorry, but I can't"
"""The opening for a model that refuses nothing, so that none can be taken from its own refusals."""
_OPENING_TOKENS = 6
ANSWERED = 16
"""The number of requests that a model answers, to find its openings and to count its refusals."""
DRAWN, ANSWER_TOKENS = 4, 24
"""The answers to each request from which several openings are taken, and the tokens of an answer."""
TOKENS = 32
"""The tokens of an answer whose refusal is counted: only its beginning matters."""
_OPENINGS, _OFTEN, _TEMPERATURE = 6, 2, 0.7
"""The most openings, the refusals that must begin with each, and the temperature at which answers are drawn."""


@dataclass(frozen=True)
class OpeningLogProb:
    """A metric: the log-probability, in nats, of an answer that begins with these tokens.
    The prompts must end with the opening without its last token: see ``with_opening``."""

    opening: tuple[int, ...]
    unit: ClassVar[str] = "nats"
    null: ClassVar[float] = 0.0

    @property
    def reads(self) -> int:
        """The number of last positions that are read, one for each token of the opening."""
        return len(self.opening)

    def __call__(
        self, logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext
    ) -> Float[Tensor, " prompt"]:
        log_probs = logits.log_softmax(-1)
        return sum((log_probs[:, i, token] for i, token in enumerate(self.opening)), log_probs.new_zeros(len(logits)))


@dataclass(frozen=True)
class EndLogProb:
    """A metric: the log-probability, in nats, of each prompt's own last ``n`` tokens."""

    n: int
    unit: ClassVar[str] = "nats"
    null: ClassVar[float] = 0.0

    @property
    def reads(self) -> int:
        """The number of last positions that are read: the tokens', and the one that predicts the first."""
        return self.n + 1

    def __call__(
        self, logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext
    ) -> Float[Tensor, " prompt"]:
        tokens = context.tokens
        at = tokens.lengths[:, None] - self.n + torch.arange(self.n, device=tokens.lengths.device)
        ids = tokens.ids.gather(1, at).to(logits.device)
        return logits[:, :-1].log_softmax(-1).gather(-1, ids[..., None])[..., 0].sum(1)


def with_opening(model: Model, prompts: Prompts, opening: Sequence[int]) -> Prompts:
    """The prompts followed by an opening without its last token."""
    return _followed_by(model, prompts, [opening[:-1]] * len(prompts))


def with_openings(model: Model, prompts: Prompts, openings: Sequence[Sequence[int]]) -> Prompts:
    """All prompts followed by the first opening, then all followed by the second, and so on; openings are complete."""
    each = [_followed_by(model, prompts, [opening] * len(prompts)) for opening in openings]
    return Prompts([row for some in each for row in some.items])


def with_answer(model: Model, prompts: Prompts, n: int) -> Prompts:
    """The prompts followed by the first n tokens of the model's own answers, padded with end tokens."""
    if not n:
        return prompts
    written = generate(model, prompts, Sampling(n))
    stop_if(written.interrupted)
    return _followed_by(model, prompts, [[*ids, *end_tokens(model)[:1] * (n - len(ids))] for ids in written.ids])


def _followed_by(model: Model, prompts: Prompts, added: Sequence[Sequence[int]]) -> Prompts:
    tokens = prompts.tokens(model)
    rows = zip(tokens.unpadded, added, strict=True)
    return Prompts([Unpadded([*row, *more]) for row, more in rows], cluster=tokens.cluster)


def value_of(model: Model, prompts: Prompts, metric: Metric) -> Float[np.ndarray, " prompt"]:
    """The value of a metric for each prompt, in the model with its current hooks."""
    run = HeadCache.run(model, prompts, sites=("z",))
    return Evaluator(metric, run).base_value.cpu().numpy()


def find_opening(model: Model, prompts: Prompts, opening: str | None = None) -> tuple[int, ...]:
    """Token ids of an opening: of the text ``opening``, or the most common one in the model's own refusals.
    The model answers the first 16 requests; if it refuses none of them, the opening is ``OPENING``, with a warning."""
    if model.tokenizer is None:
        raise ValueError("the model has no tokenizer for the opening; give one: mh.wrap(model, tokenizer=...)")
    is_default = opening is None
    if any(map(thinks, answers_begun(model, some := Prompts(prompts.items[:ANSWERED])))):
        warn(
            "the prompts end inside a thought, which the chat template opens, so a refusal rarely begins right after "
            "them: log-probabilities of openings are those of a thought that begins as a refusal. Give mh.Prompts in "
            "which the thought is closed"
        )
    if opening is None:
        written = generate(model, some, Sampling(ANSWER_TOKENS))
        stop_if(written.interrupted)
        refused = [ids[:_OPENING_TOKENS] for ids, refuses in _refusals(model, some, written) if refuses]
        if refused:
            return Counter(refused).most_common(1)[0][0]
        warn(f"{model.name} refuses none of {len(some)} requests; {OPENING!r} is used as the opening")
        opening = OPENING
    if not isinstance(opening, str) or not opening:
        raise ValueError(f"opening is {opening!r}; give the beginning of a refusal, such as {OPENING!r}")
    ids = _after_prompts(model, prompts, opening)
    if ids is None and is_default:
        ids = _after_prompts(model, prompts, " " + opening)
    if ids is None:
        raise ValueError(
            f"opening {opening!r} does not have tokens of its own, or not the same, after each of the requests as the "
            "template writes them; begin it with the space or line break that stands between them"
        )
    return ids


def _refusals(model: Model, prompts: Prompts, written: Generated) -> Iterator[tuple[tuple[int, ...], bool]]:
    """The tokens of each answer, and whether it refuses with its first words; an answer with a thought does not."""
    answers = whole_answers(model, answers_begun(model, prompts), written)
    for ids, answer in zip(written.ids, answers, strict=True):
        yield ids, not thinks(answer) and verdict(answer) == "refused"


def _after_prompts(model: Model, prompts: Prompts, opening: str) -> tuple[int, ...] | None:
    """The tokens of an opening after the requests; None if they differ between requests or merge with one's last."""
    tokenizer, each = model.tokenizer, set[tuple[int, ...] | None]()
    for index, item in enumerate(prompts.items):
        ids, text, _ = encode(item, index, model)
        text = text_of(ids, tokenizer) if text is None else text
        after = piece_ids(opening, tokenizer) if text is None else ids_after(text, opening, tokenizer)
        each.add(tuple(after) if after else None)
    return each.pop() if len(each) == 1 else None


def find_openings(model: Model, prompts: Prompts, openings: Sequence[str] | None = None) -> tuple[tuple[int, ...], ...]:
    """Token ids of several openings, cut to one length: of the texts ``openings``, or from the model's own refusals.
    Of these, each begins at least two refusals, and more than half of the answers that begin with it refuse."""
    if openings is not None:
        if not read_texts(openings, "openings"):
            raise ValueError(f"openings is {openings!r}; give a list of beginnings of refusals, such as [{OPENING!r}]")
        ids = [find_opening(model, prompts, opening) for opening in openings]
        shortest = min(map(len, ids))
        return tuple(dict.fromkeys(each[:shortest] for each in ids))
    copies = Prompts([item for item in prompts.items[:ANSWERED] for _ in range(DRAWN)])
    if model.tokenizer is not None:
        written = generate(model, copies, Sampling(ANSWER_TOKENS, _TEMPERATURE))
        stop_if(written.interrupted)
        begins = [(ids[:_OPENING_TOKENS], refuses) for ids, refuses in _refusals(model, copies, written)]
        begun, refused = Counter(ids for ids, _ in begins), Counter(ids for ids, refuses in begins if refuses)
        often = [ids for ids, n in refused.most_common() if n >= _OFTEN and 2 * n > begun[ids]]
        if whole := [ids for ids in often if len(ids) == _OPENING_TOKENS]:
            return tuple(whole[:_OPENINGS])
    return (find_opening(model, prompts),)


def count_refusals(model: Model, side: Side) -> dict[str, Any] | None:
    """Counts of the answers to a few different requests: ``n`` refusals, by the rules, ``of`` judged answers; and
    ``unjudged``. None if all answers are unfinished thoughts or there is no tokenizer."""
    if model.tokenizer is None:
        return None
    different = list({text: i for i, text in reversed([*enumerate(side.texts)])}.values())[::-1]
    some = different[:: ceil(len(different) / ANSWERED)]
    prompts = Prompts([side.prompts.items[i] for i in some])
    try:
        written = generate(model, prompts, Sampling(TOKENS))
    except ValueError:  # no room in the context, or logits that are NaN
        return None
    stop_if(written.interrupted)
    texts = [side.texts[i] for i in some]
    judged = verdicts(texts, whole_answers(model, answers_begun(model, prompts), written))
    if not (answered := len(judged) - judged.count("unfinished")):
        return None
    unjudged = judged.count("unjudged")
    counted = {"n": judged.count("refused"), "of": answered - unjudged} | ({"unjudged": unjudged} if unjudged else {})
    return counted | {"judge": rule_judge.__name__, "tokens": TOKENS}


def warn_if_rare(
    model: Model, side: Side, openings: Sequence[Sequence[int]], refusal: Float[np.ndarray, " prompt"]
) -> None:
    """Warn if openings are unlikely after requests, with the number of short answers that refuse."""
    share = float(np.exp(refusal).mean())
    if share >= LEAST_REFUSAL:
        return
    texts = ", ".join(f'"{model.tokenizer.decode(list(opening)).strip()}"' for opening in openings)
    which = f"the openings {texts} together" if len(openings) > 1 else f"the opening {texts}"
    counted = refused_of(count_refusals(model, side)) or "not judged"
    warn(
        f"{model.name} gives {which} a mean probability of {share:.1%} ({len(refusal)} requests; short answers: "
        f"{counted}); scores count only openings, and may be noise where these are so unlikely"
    )
