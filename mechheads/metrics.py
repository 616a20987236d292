"""Metrics: one number a prompt from the logits at the positions that matter.

A metric is a function ``(logits, context) -> value per prompt`` with logits
[prompt, position, d_vocab]. It reads the last token of each prompt unless ``@metric`` says otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.suggest import did_you_mean
from mechheads.tokens import Tokens

F = TypeVar("F", bound=Callable)

_FAR = 20.0
"""Nats: where a token gains more, exp(d) times its probability may lose it, which may be too small for float32."""
_IN_CACHE = 2**18
"""Logits that a CPU compares at a time: some ten passes go over them."""


@dataclass(frozen=True)
class MetricContext:
    """What a metric may look at besides the logits.

    Attributes:
        base_logits: the logits of the run that is intervened on [prompt, position, d_vocab].
        tokens: the prompts, with ``answer`` and ``wrong`` token ids [prompt].
        mask: True where a read position is a real token [prompt, position].
    """

    base_logits: Float[Tensor, "prompt position d_vocab"]
    tokens: Tokens
    mask: Bool[Tensor, "prompt position"]
    shared: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def base_log_probs(self) -> Float[Tensor, "prompt position d_vocab"]:
        """``base_logits.log_softmax(-1)``, computed once for all copies; not to be written to."""
        if "log_probs" not in self.shared:
            self.shared["log_probs"] = self.base_logits.log_softmax(-1)
        return self.shared["log_probs"]

    @property
    def base_probs(self) -> Float[Tensor, "prompt position d_vocab"]:
        """``base_logits.softmax(-1)``, likewise."""
        if "probs" not in self.shared:
            self.shared["probs"] = self.base_log_probs.exp()
        return self.shared["probs"]

    @property
    def answer(self) -> Int[Tensor, " prompt"]:
        """The answers' token ids; an error where the prompts have none."""
        if self.tokens.answer is None:
            raise ValueError("this metric needs answers; give the prompts answer=[...]")
        return self.tokens.answer

    @property
    def wrong(self) -> Int[Tensor, " prompt"]:
        """The wrong answers' token ids; an error where the prompts have none."""
        if self.tokens.wrong is None:
            raise ValueError("this metric needs wrong answers to compare with; give the prompts wrong=[...]")
        return self.tokens.wrong


@runtime_checkable
class Metric(Protocol):
    """What a sweep takes as a metric."""

    def __call__(
        self, logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext, /
    ) -> Float[Tensor, " prompt"]: ...


def metric(
    *, reads: str | int = "last", unit: str = "", null: float | None = 0.0, vocab: Literal["all", "answers"] = "all"
) -> Callable[[F], F]:
    """Declare what a metric of your own reads and means; a bare function is taken with these defaults.

    The function itself stays as it is: ``mh.metric(reads="subject", unit="nats")(mh.log_prob)`` is another metric.

    Args:
        reads: ``"last"``, a number of last tokens, ``"all"``, or the name of one of the prompts' positions.
        unit: what it counts in, for axes and tables.
        null: its change where a head does nothing, which p values test against; None where there is no such
            test, as for a divergence, which cannot fall below 0 and so always lies above it.
        vocab: ``"answers"`` for one that looks at logits of ``context.answer`` and ``context.wrong`` alone: no
            others are computed then, and d_vocab is smaller.

    >>> @mh.metric(reads="all", unit="nats")
    ... def mean_entropy(logits, context):
    ...     p = logits.softmax(-1)
    ...     entropy = -(p * p.clamp_min(1e-30).log()).sum(-1) * context.mask
    ...     return entropy.sum(-1) / context.mask.sum(-1)
    """

    if vocab not in ("all", "answers"):
        raise ValueError(f'vocab is {vocab!r}; choose "all" or "answers"')

    def declare(function: F) -> F:
        @functools.wraps(function)
        def declared(logits: Tensor, context: MetricContext) -> Tensor:
            return function(logits, context)

        declared.reads, declared.unit, declared.null, declared.vocab = reads, unit, null, vocab  # type: ignore[attr-defined]
        return declared  # type: ignore[return-value]

    return declare


def read_positions(
    metric: Metric, tokens: Tokens
) -> tuple[Int[Tensor, "prompt position"], Bool[Tensor, "prompt position"]]:
    """The positions a metric reads and which of them are real tokens.

    Raises:
        ValueError: if the prompts have no position of that name.
    """
    where = getattr(metric, "reads", "last")
    if isinstance(where, int):
        if not 1 <= where <= int(tokens.lengths.min()):
            raise ValueError(
                f"metric reads the last {where} tokens; the shortest prompt has {int(tokens.lengths.min())}"
            )
        at = tokens.lengths[:, None] - where + torch.arange(where, device=tokens.lengths.device)
        return at, torch.ones_like(at, dtype=torch.bool)
    if where == "all":
        mask = tokens.mask
        return torch.arange(mask.shape[1], device=mask.device).expand_as(mask), mask
    if where not in tokens.positions:
        known = ", ".join(tokens.positions)
        meant = did_you_mean(where, [*tokens.positions, "all"])
        raise ValueError(f'metric reads position {where!r}; these prompts have {known} (or "all").{meant}')
    at = tokens.positions[where][:, None]
    return at, torch.ones_like(at, dtype=torch.bool)


@metric(unit="logits", vocab="answers")
def logit_diff(logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext) -> Float[Tensor, " prompt"]:
    """Logit of the answer minus logit of the wrong answer at the last token."""
    row = torch.arange(len(logits), device=logits.device)
    return logits[row, -1, context.answer] - logits[row, -1, context.wrong]


@metric(unit="nats")
def log_prob(logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext) -> Float[Tensor, " prompt"]:
    """Log-probability of the answer at the last token."""
    row = torch.arange(len(logits), device=logits.device)
    return logits[:, -1].log_softmax(-1)[row, context.answer]


@metric(unit="share of prompts")
def accuracy(logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext) -> Float[Tensor, " prompt"]:
    """1 where the answer is the most likely next token, else 0."""
    return (logits[:, -1].argmax(-1) == context.answer).to(logits.dtype)


@metric(unit="nats", null=None)
def kl_divergence(logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext) -> Float[Tensor, " prompt"]:
    """KL(base || intervened) of the next-token distribution at the last token, over the whole vocabulary.

    Declared to read more tokens, as by ``mh.metric(reads=6, unit="nats", null=None)(mh.kl_divergence)``, it is the sum
    over them. Ships of the safety-head paper (Zhou et al., ICLR 2025) when the intervention ablates a head. With
    d = log q - log p it is summed as p (exp(d) - 1 - d): the same, as probabilities sum to one, and no term
    can fall below 0 by rounding.
    """
    at_once = len(logits) if logits.is_cuda else max(1, _IN_CACHE // max(1, logits[0].numel()))
    parts = zip(*(x.split(at_once) for x in (logits, context.base_log_probs, context.base_probs)), strict=True)
    return (torch.cat([_kl_of_logits(*part) for part in parts]) * context.mask).sum(-1)


def _kl_of_logits(
    logits: Float[Tensor, "prompt position d_vocab"],
    log_p: Float[Tensor, "prompt position d_vocab"],
    p: Float[Tensor, "prompt position d_vocab"],
) -> Float[Tensor, "prompt position"]:
    log_q = logits.log_softmax(-1)
    d = log_q - log_p
    near = d.clamp_max(_FAR)
    terms = p * (near.expm1() - near)
    if d.amax() > _FAR:
        terms = torch.where(d > _FAR, log_q.exp() - p * (1 + d), terms)
    return terms.sum(-1)


METRICS: dict[str, Metric] = {
    "logit_diff": logit_diff, "log_prob": log_prob, "accuracy": accuracy, "kl_divergence": kl_divergence,
}  # fmt: skip
"""The metrics of the package by their names."""


def as_metric(metric: Metric | str) -> Metric:
    """A metric as it is, or one of the package by its name.

    Raises:
        ValueError: if there is none of that name, or it is not a function.

    >>> as_metric("log_prob") is mh.log_prob
    True
    """
    if isinstance(metric, str):
        if metric not in METRICS:
            known = ", ".join(map(repr, METRICS))
            raise ValueError(
                f"metric {metric!r} is not known; give one of {known}, or a function.{did_you_mean(metric, METRICS)}"
            )
        return METRICS[metric]
    if not callable(metric) or isinstance(metric, type):
        raise ValueError(f'metric is {metric!r}; give a function such as mh.logit_diff, or its name, "logit_diff"')
    return metric


@dataclass(frozen=True)
class _Watched(MetricContext):
    """A context that notes which answers were looked at."""

    read: set[str] = field(default_factory=set)

    @property
    def answer(self) -> Int[Tensor, " prompt"]:
        self.read.add("answer")
        return super().answer

    @property
    def wrong(self) -> Int[Tensor, " prompt"]:
        self.read.add("wrong")
        return super().wrong


def try_metric(metric: Metric, tokens: Tokens, d_vocab: int) -> frozenset[str]:
    """Call a metric on two prompts with logits of zero, before any model is run.

    Returns:
        Which of ``answer`` and ``wrong`` it looked at.

    Raises:
        ValueError: if it needs what the prompts do not have, or does not give one value a prompt.
    """
    few = tokens.rows(slice(0, 2))
    at, mask = read_positions(metric, few)
    zeros = torch.zeros(*at.shape, d_vocab, dtype=torch.float32, device=at.device)
    context = _Watched(zeros, few, mask)
    check_value(metric, metric(zeros, context), len(few))
    return frozenset(context.read)


def check_value(metric: Metric, value: object, n: int) -> Tensor:
    """A metric's result, if it is one value for each of n prompts; else a ValueError."""
    if isinstance(value, Tensor) and value.shape == (n,):
        return value
    got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(f"metric {name_of(metric)} gave {got} for {n} prompts; it must give one value each, shape [{n}]")


def name_of(thing: object) -> str:
    """What to call a metric or an intervention in results and messages."""
    return getattr(thing, "__name__", None) or repr(thing)
