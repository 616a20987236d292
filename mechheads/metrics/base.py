"""Metrics: one number per prompt, computed from the logits at the positions that the metric reads.

A metric is a function ``(logits, context) -> value per prompt`` with logits
[prompt, position, d_vocab]. It reads the last token of each prompt unless ``@metric`` declares otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from math import inf
from typing import Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.messages.arguments import check_known, did_you_mean
from mechheads.prompts.tokens import Tokens

F = TypeVar("F", bound=Callable)
Vocab = Literal["all", "answers"]


@dataclass(frozen=True)
class MetricContext:
    """What a metric can use besides the logits.

    Attributes:
        base_logits: the logits of the base run, without the intervention [prompt, position, d_vocab].
        tokens: the prompts, with ``answer`` and ``wrong`` token ids [prompt].
        mask: True if a read position is a real token [prompt, position].
    """

    base_logits: Float[Tensor, "prompt position d_vocab"]
    tokens: Tokens
    mask: Bool[Tensor, "prompt position"]
    shared: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def base_log_probs(self) -> Float[Tensor, "prompt position d_vocab"]:
        """``base_logits.log_softmax(-1)``, computed once and shared; do not write to it."""
        if "log_probs" not in self.shared:
            self.shared["log_probs"] = self.base_logits.log_softmax(-1)
        return self.shared["log_probs"]

    @property
    def base_probs(self) -> Float[Tensor, "prompt position d_vocab"]:
        """``base_logits.softmax(-1)``, computed once and shared; do not write to it."""
        if "probs" not in self.shared:
            self.shared["probs"] = self.base_log_probs.exp()
        return self.shared["probs"]

    @property
    def answer(self) -> Int[Tensor, " prompt"]:
        """The token ids of the answers; raises a ValueError if the prompts have none."""
        if self.tokens.answer is None:
            raise ValueError("this metric needs answers; give the prompts answer=[...]")
        return self.tokens.answer

    @property
    def wrong(self) -> Int[Tensor, " prompt"]:
        """The token ids of the wrong answers; raises a ValueError if the prompts have none."""
        if self.tokens.wrong is None:
            raise ValueError("this metric needs wrong answers to compare with; give the prompts wrong=[...]")
        return self.tokens.wrong


@runtime_checkable
class Metric(Protocol):
    """The type of a metric: a function from logits and context to one value per prompt."""

    def __call__(
        self, logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext, /
    ) -> Float[Tensor, " prompt"]: ...


@dataclass(frozen=True)
class MetricInfo:
    """What a metric declares about itself; see ``metric``. A bare function has the defaults."""

    name: str
    reads: str | int = "last"
    unit: str = ""
    null: float | None = 0.0
    vocab: str = "all"
    bounds: tuple[float | None, float | None] = (None, None)
    share: bool = False

    @classmethod
    def of(cls, metric: Metric) -> MetricInfo:
        names = [each.name for each in fields(cls)[1:]]
        return cls(name_of(metric), **{each: getattr(metric, each) for each in names if hasattr(metric, each)})

    def bounds_of_changes(self, scale: float = 1.0) -> tuple[float, float, bool]:
        """Between what a change of the metric lies, divided by ``scale``, and whether it is of a share.

        >>> MetricInfo.of(mh.patching.accuracy).bounds_of_changes(), MetricInfo.of(mh.kl_divergence).bounds_of_changes()
        ((-1.0, 1.0, True), (0.0, inf, False))
        """
        low, high = (0.0, 1.0) if self.share else self.bounds
        most = inf if low is None or high is None else high - low
        low, high = sorted(each / scale for each in (0.0 if self.null is None else -most, most))
        return low, high, self.share and high > 0


def metric(
    *,
    reads: str | int = "last",
    unit: str = "",
    null: float | None = 0.0,
    vocab: Vocab = "all",
    bounds: tuple[float | None, float | None] = (None, None),
    share: bool = False,
) -> Callable[[F], F]:
    """Decorator that declares what a metric reads and measures; a function without it gets these defaults.

    The function itself is not changed: ``mh.metric(reads="subject", unit="nats")(mh.log_prob)`` is a new metric.

    Args:
        reads: ``"last"``, a number of last tokens, ``"all"``, or the name of one of the prompts' positions.
        unit: the unit of its values, for axes and tables.
        null: the change of the metric under the null hypothesis that a head does nothing; p values test against it.
            None if there is no such test, for example for a divergence, which is never below 0.
        vocab: ``"answers"`` if the metric reads only the logits of ``context.answer`` and ``context.wrong``. Then only
            these are computed, and d_vocab is smaller.
        bounds: the least and the largest value that the metric can have, such as ``(0, 1)`` for a probability or
            ``(0, None)`` for a divergence. Then no interval of a change goes beyond what is possible.
        share: whether the value of each prompt is 0 or 1, as in ``mh.patching.accuracy``, so that intervals are
            those of proportions.

    Raises:
        ValueError: if ``vocab`` is not known, or ``bounds`` are not a lower and a higher number.

    >>> @mh.metric(reads="all", unit="nats")
    ... def mean_entropy(logits, context):
    ...     p = logits.softmax(-1)
    ...     entropy = -(p * p.clamp_min(1e-30).log()).sum(-1) * context.mask
    ...     return entropy.sum(-1) / context.mask.sum(-1)
    """
    check_known("vocab", vocab, Vocab)
    low, high = bounds
    if low is not None and high is not None and not low < high:
        raise ValueError(f"bounds is {bounds}; the first must be below the second, and None is for no bound")

    def declare(function: F) -> F:
        @functools.wraps(function)
        def declared(logits: Tensor, context: MetricContext) -> Tensor:
            return function(logits, context)

        declared.reads, declared.unit, declared.null, declared.vocab = reads, unit, null, vocab  # type: ignore[attr-defined]
        declared.bounds, declared.share = bounds, share  # type: ignore[attr-defined]
        return declared  # type: ignore[return-value]

    return declare


def read_positions(
    metric: Metric, tokens: Tokens
) -> tuple[Int[Tensor, "prompt position"], Bool[Tensor, "prompt position"]]:
    """The positions that a metric reads, and which of them are real tokens.

    Raises:
        ValueError: if the prompts have no position of that name.
    """
    where = MetricInfo.of(metric).reads
    if isinstance(where, int):
        if not 1 <= where <= int(tokens.lengths.min()):
            raise ValueError(
                f"metric reads the last {where} tokens, but the shortest prompt has {int(tokens.lengths.min())}; give "
                "longer prompts, or a metric with a smaller reads="
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


@dataclass(frozen=True)
class _Watched(MetricContext):
    """A context that records which answers a metric used."""

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
        Which of ``answer`` and ``wrong`` the metric used.

    Raises:
        ValueError: if it needs something that the prompts do not have, or does not give one value per prompt.
    """
    few = tokens.rows(slice(0, 2))
    at, mask = read_positions(metric, few)
    zeros = torch.zeros(*at.shape, d_vocab, dtype=torch.float32, device=at.device)
    context = _Watched(zeros, few, mask)
    check_value(metric, metric(zeros, context), len(few))
    return frozenset(context.read)


def check_value(metric: Metric, value: object, n: int) -> Tensor:
    """A metric's result, checked to be one value for each of n prompts; raises a ValueError if it is not."""
    if isinstance(value, Tensor) and value.shape == (n,):
        return value
    got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    raise ValueError(f"metric {name_of(metric)} gave {got} for {n} prompts; it must return one value each, shape [{n}]")


def name_of(thing: object) -> str:
    """The name of a metric or an intervention in results and messages."""
    return getattr(thing, "__name__", None) or repr(thing)
