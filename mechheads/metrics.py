"""Metrics: one number per prompt, computed from the logits at the positions that the metric reads.

A metric is a function ``(logits, context) -> value per prompt`` with logits
[prompt, position, d_vocab]. It reads the last token of each prompt unless ``@metric`` declares otherwise. It may read
the pattern or the z of one head in place of the logits; then runs end at that head's layer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.heads import HeadId, HeadLike
from mechheads.messages.arguments import checked, did_you_mean
from mechheads.prompts.tokens import Tokens

F = TypeVar("F", bound=Callable)
Vocab = Literal["all", "answers"]
Reads = str | int | Sequence[str | int]
"""Which positions a metric reads; see ``metric``."""
_FAR = 20.0
"""Nats. Above this d, a term is computed from q itself: p exp(d) is inaccurate if p is too small for float32."""
IN_CACHE = 2**18
"""How many logits a CPU compares at a time, so that they stay in its cache for about ten passes."""


@dataclass(frozen=True)
class Activation:
    """The pattern or the z of one head, which a metric reads in place of the logits."""

    head: HeadId
    site: Literal["pattern", "z"]

    def __str__(self) -> str:
        return f"{self.head}.{self.site}"

    @classmethod
    def parse(cls, activation: str | Activation) -> Activation:
        """Read ``"L17H5.pattern"`` or ``"L17H5.z"``."""
        if isinstance(activation, Activation):
            return activation
        head, _, site = activation.rpartition(".") if isinstance(activation, str) else ("", "", "")
        if site in ("pattern", "z"):
            return cls(HeadId.parse(head), site)
        raise ValueError(
            f'activation is {activation!r}; give the pattern or the z of a head, such as "L17H5.pattern" or "L17H5.z", '
            "or leave it out to read logits"
        )

    def follows(self, site: str) -> bool:
        """Whether it is this activation of the same head, or is computed from it."""
        return self.site == "z" or site not in ("v", "z")


@dataclass(frozen=True)
class MetricContext:
    """What a metric can use besides the logits.

    Attributes:
        base_logits: the logits of the base run, without the intervention [prompt, position, d_vocab]. For a metric that
            reads a head's pattern or z, these values of the base run.
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
    reads: Reads = "last"
    unit: str = ""
    null: float | None = 0.0
    vocab: str = "all"
    bounds: tuple[float | None, float | None] = (None, None)
    share: bool = False
    activation: str | Activation | None = None
    copies: bool = False

    @classmethod
    def of(cls, metric: Metric) -> MetricInfo:
        names = [each.name for each in fields(cls)[1:]]
        return cls(name_of(metric), **{each: getattr(metric, each) for each in names if hasattr(metric, each)})

    @property
    def read(self) -> Activation | None:
        """The activation that it reads; None for logits."""
        return None if self.activation is None else Activation.parse(self.activation)

    def bounds_of_changes(self, scale: float = 1.0) -> tuple[float, float, bool]:
        """The bounds of a change of the metric divided by ``scale``, and whether it is the change of a share."""
        low, high = (0.0, 1.0) if self.share else self.bounds
        most = inf if low is None or high is None else high - low
        low, high = sorted(each / scale for each in (0.0 if self.null is None else -most, most))
        return low, high, self.share and high > 0


@checked
def metric(
    function: Callable[..., Any] | None = None,
    /,
    *,
    reads: Reads = "last",
    unit: str = "",
    null: float | None = 0.0,
    vocab: Vocab = "all",
    bounds: tuple[float | None, float | None] = (None, None),
    share: bool = False,
    activation: str | None = None,
    copies: bool = False,
) -> Any:
    """Decorator that declares what a metric reads and measures; a function without it gets these defaults.

    The function itself is not changed: ``mh.metric(reads="subject", unit="nats")(mh.log_prob)`` is a new metric. A bare
    ``@mh.metric`` declares the defaults.

    Args:
        reads: ``"last"``, a number of last tokens, ``"all"``, the name of one of the prompts' positions, or a list of
            names and token indices.
        unit: the unit of its values, for axes and tables.
        null: the change of the metric under the null hypothesis that a head does nothing; p values test against it.
            None if there is no such test, for example for a divergence, which is never below 0.
        vocab: ``"answers"`` if the metric reads only the logits of ``context.answer`` and ``context.wrong``. Then only
            these are computed, and d_vocab is smaller.
        bounds: the least and the largest value that the metric can have, such as ``(0, 1)`` for a probability or
            ``(0, None)`` for a divergence. Then intervals contain no impossible change.
        share: whether the value of each prompt is 0 or 1, as in ``mh.patching.accuracy``, so that it gets
            intervals for proportions.
        activation: the pattern or the z of one head, such as ``"L17H5.pattern"``, that the metric reads at these
            positions in place of the logits: it is called with the pattern [prompt, query, key] or z
            [prompt, position, d_head]. Runs end there, so heads of this layer and later ones have no effect.
        copies: whether the function also takes logits [copy, prompt, position, d_vocab] of several changed runs, with
            the context of one, and returns [copy, prompt]. Then it is called once for many heads, which saves time on
            a GPU; it must not write into the context. The metrics of the package do.

    Raises:
        ValueError: if ``vocab`` or ``activation`` is not known, ``bounds`` are not a lower and a higher number, or
            ``share`` or ``copies`` is neither True nor False.

    >>> @mh.metric(reads="all", unit="nats")
    ... def mean_entropy(logits, context):
    ...     p = logits.softmax(-1)
    ...     entropy = -(p * p.clamp_min(1e-30).log()).sum(-1) * context.mask
    ...     return entropy.sum(-1) / context.mask.sum(-1)
    >>> @mh.metric(activation="L17H5.pattern", unit="share of attention", bounds=(0, 1))
    ... def attention_to_the_first_token(pattern, context):
    ...     return pattern[:, -1, 0]
    """
    read = None if activation is None else Activation.parse(activation)
    low, high = bounds
    if low is not None and high is not None and not low < high:
        raise ValueError(f"bounds is {bounds}; the first must be below the second, and None is for no bound")
    if function is not None and not callable(function):
        raise ValueError(f"metric is given {function!r}; name its arguments, such as @mh.metric(unit='nats')")

    def declare(function: F) -> F:
        @functools.wraps(function)
        def declared(logits: Tensor, context: MetricContext) -> Tensor:
            return function(logits, context)

        declared.reads, declared.unit, declared.null, declared.vocab = reads, unit, null, vocab  # type: ignore[attr-defined]
        declared.bounds, declared.share, declared.activation = bounds, share, read  # type: ignore[attr-defined]
        declared.copies = copies or MetricInfo.of(function).copies  # type: ignore[attr-defined]
        return declared  # type: ignore[return-value]

    return declare if function is None else declare(function)


def read_positions(
    metric: Metric, tokens: Tokens
) -> tuple[Int[Tensor, "prompt position"], Bool[Tensor, "prompt position"]]:
    """The positions that a metric reads, and which of them are real tokens."""
    where, shortest = MetricInfo.of(metric).reads, int(tokens.on_cpu.lengths.min())
    if isinstance(where, int):
        if not 1 <= where <= shortest:
            raise ValueError(
                f"metric reads the last {where} tokens, but the shortest prompt has {shortest}; give longer prompts, "
                "or a metric with a smaller reads="
            )
        at = tokens.lengths[:, None] - where + torch.arange(where, device=tokens.lengths.device)
        return at, torch.ones_like(at, dtype=torch.bool)
    if where == "all":
        mask = tokens.mask
        return torch.arange(mask.shape[1], device=mask.device).expand_as(mask), mask
    at = positions_of([where] if isinstance(where, str) else where, tokens, "metric reads")
    return at, torch.ones_like(at, dtype=torch.bool)


def positions_of(places: Sequence[str | int], tokens: Tokens, what: str) -> Int[Tensor, "prompt position"]:
    """Positions of the prompts: by name, the text of a token, or a token index, which is from the end if negative."""
    positions, shortest = [], int(tokens.on_cpu.lengths.min())
    for place in places:
        if isinstance(place, str) and (at := tokens.position(place)) is not None:
            positions.append(at)
        elif isinstance(place, str):
            known, meant = ", ".join(tokens.positions), did_you_mean(place, [*tokens.positions, "all"])
            raise ValueError(
                f'{what} position {place!r}; these prompts have {known} (or "all"), or give a token that each has '
                f"once.{meant}"
            )
        elif not -shortest <= place < shortest:
            raise ValueError(f"{what} token {place}, but the shortest prompt has {shortest} tokens")
        else:
            positions.append(torch.full_like(tokens.lengths, place) if place >= 0 else tokens.lengths + place)
    return torch.stack(positions, 1)


@dataclass(frozen=True)
class _RecordingContext(MetricContext):
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


def try_metric(metric: Metric, tokens: Tokens, width: int) -> frozenset[str]:
    """Which of ``answer`` and ``wrong`` a metric uses, before any model runs: called with ``width`` logits of zero at
    each position of two prompts, or with equal attention to every token so far of all prompts.
    """
    read = MetricInfo.of(metric).read
    few = tokens if read is not None and read.site == "pattern" else tokens.rows(slice(0, 2))
    at, mask = read_positions(metric, few)
    values = torch.zeros(*at.shape, width, dtype=torch.float32, device=at.device)
    if few is tokens:
        values = (torch.arange(width, device=at.device) <= at[..., None]) / (at[..., None] + 1)
    context = _RecordingContext(values, few, mask)
    check_value(metric, metric(values.clone(), context), len(few))
    return frozenset(context.read)


def check_value(metric: Metric, value: object, n: int, copies: int | None = None) -> Tensor:
    """A metric's result, checked to be one value for each of n prompts, or of several copies of them."""
    shape = [n] if copies is None else [copies, n]
    if isinstance(value, Tensor) and list(value.shape) == shape:
        return value
    got = f"shape {list(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
    of = f"{n} prompts" if copies is None else f"{copies} copies of {n} prompts"
    raise ValueError(f"metric {name_of(metric)} gave {got} for {of}; it must return one value each, shape {shape}")


def name_of(thing: object) -> str:
    """The name of a metric or an intervention in results and messages."""
    return getattr(thing, "__name__", None) or repr(thing)


@metric(unit="logits", vocab="answers", copies=True)
def logit_diff(
    logits: Float[Tensor, "*copy prompt position d_vocab"], context: MetricContext
) -> Float[Tensor, "*copy prompt"]:
    """Logit of the answer minus logit of the wrong answer at the last token."""
    last = logits[..., -1, :]
    return _of_token(last, context.answer) - _of_token(last, context.wrong)


@metric(unit="nats", bounds=(None, 0), copies=True)
def log_prob(
    logits: Float[Tensor, "*copy prompt position d_vocab"], context: MetricContext
) -> Float[Tensor, "*copy prompt"]:
    """Log-probability of the answer at the last token."""
    return _of_token(logits[..., -1, :].log_softmax(-1), context.answer)


@metric(unit="share of prompts", share=True, copies=True)
def accuracy(
    logits: Float[Tensor, "*copy prompt position d_vocab"], context: MetricContext
) -> Float[Tensor, "*copy prompt"]:
    """1 if the answer is the most likely next token, else 0."""
    return (logits[..., -1, :].argmax(-1) == context.answer).to(logits.dtype)


@metric(unit="nats", null=None, bounds=(0, None), copies=True)
def kl_divergence(
    logits: Float[Tensor, "*copy prompt position d_vocab"], context: MetricContext
) -> Float[Tensor, "*copy prompt"]:
    """KL(base || intervened) of the next-token distributions at the last token, over the whole vocabulary.

    If it is declared to read more tokens, as in ``mh.metric(reads=6, unit="nats", null=None)(mh.kl_divergence)``, it is
    the sum over them. If the intervention ablates a head, this is Ships (Zhou et al., ICLR 2025). With
    d = log q - log p, the sum is taken over p (exp(d) - 1 - d). This is the same number, because probabilities sum to
    one, and rounding cannot push a term below 0.
    """
    prompts = logits.shape[-3]
    at_once = max(1, IN_CACHE * prompts // max(1, logits.numel())) if logits.device.type == "cpu" else prompts
    parts = zip(*(x.split(at_once, -3) for x in (logits, context.base_log_probs, context.base_probs)), strict=True)
    return (torch.cat([_kl_of_logits(*part) for part in parts], -2) * context.mask).sum(-1)


def _of_token(
    values: Float[Tensor, "*copy prompt d_vocab"], token: Int[Tensor, " prompt"]
) -> Float[Tensor, "*copy prompt"]:
    """The value of one token for each prompt."""
    return values.gather(-1, token.expand(values.shape[:-1])[..., None])[..., 0]


def _kl_of_logits(
    logits: Float[Tensor, "*copy prompt position d_vocab"],
    log_p: Float[Tensor, "prompt position d_vocab"],
    p: Float[Tensor, "prompt position d_vocab"],
) -> Float[Tensor, "*copy prompt position"]:
    log_q = logits.log_softmax(-1)
    d = log_q - log_p
    near = d.clamp_max(_FAR)
    terms = p * (near.expm1() - near)
    if d.device.type != "cpu" or d.amax() > _FAR:  # a GPU would wait for the answer
        terms = torch.where(d > _FAR, log_q.exp() - p * (1 + d), terms)
    return terms.sum(-1)


METRICS: dict[str, Metric] = {
    "logit_diff": logit_diff,
    "log_prob": log_prob,
    "accuracy": accuracy,
    "kl_divergence": kl_divergence,
}
"""The metrics of the package by their names."""


def as_metric(metric: Metric | str) -> Metric:
    """The metric itself, or a metric of the package by its name."""
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


def as_metric_of_logits(metric: Metric | str, function: str, instead: str) -> Metric:
    """``as_metric`` for a function that needs the logits."""
    metric = as_metric(metric)
    if (read := MetricInfo.of(metric).read) is not None:
        raise ValueError(
            f"metric {name_of(metric)} reads {read}, and {function} needs a metric of logits, such as mh.logit_diff; "
            f"for what a head reads use {instead}"
        )
    return metric


@dataclass(frozen=True)
class AttentionTo:
    """A head's attention from a query to a key; see ``attention_to``, which makes it."""

    head: HeadId
    key: str | int
    query: str | int
    log: bool
    null = 0.0
    vocab = "all"
    share = False

    @property
    def __name__(self) -> str:
        return f"{'log ' * self.log}attention of {self.head} from {_shown(self.query)} to {_shown(self.key)}"

    @property
    def reads(self) -> tuple[str | int]:
        return (self.query,)

    @property
    def activation(self) -> Activation:
        return Activation(self.head, "pattern")

    @property
    def unit(self) -> str:
        return "nats" if self.log else "share of attention"

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        return (None, 0) if self.log else (0, 1)

    def __call__(self, pattern: Float[Tensor, "prompt query key"], context: MetricContext) -> Float[Tensor, " prompt"]:
        at = positions_of([self.key], context.tokens, "key:")
        there, before = (each[:, 0].gather(1, at)[:, 0] for each in (pattern, context.base_logits))
        if (hidden := before == 0).any():
            prompt = int(hidden.long().argmax())
            raise ValueError(
                f"key: {self.head} gives token {int(at[prompt])} of prompt {prompt} no attention at all from "
                f"{_shown(self.query)}, because it comes later or outside the head's window; give a key that the "
                "query sees"
            )
        return there.log() if self.log else there


@checked
def attention_to(head: HeadLike, key: str | int, *, query: str | int = "last", log: bool = False) -> AttentionTo:
    """A metric on where a head looks: its attention from a query to a key.

    It is ``metric=`` of ``mh.sweep``, ``mh.ablate``, ``mh.activation_patch`` and ``mh.path_patch``: which heads make
    this head look there? The run ends at the head's layer, before its MLP, and no logits are computed. So it costs
    less than a metric of logits, and the effect of heads of this layer and later ones is exactly 0.

    Args:
        head: the head whose pattern is read.
        key: the token that is attended to: the name of one of the prompts' positions, the text of a token that each
            prompt has once, or a token index, of which negative ones count from the end.
        query: the token that attends, in the same way.
        log: measure the log of the attention, in nats. A small share can grow many times over, and a change of the
            log shows it. A share that is rounded to 0 has no log, so that head's effect is NaN.

    Returns:
        The metric: the share of the attention, between 0 and 1, or its log.

    Raises:
        ValueError: if the head cannot be parsed. An analysis that gets the metric raises if the prompts do not have
            the positions, or the head does not see the key from the query.

    >>> prompts = mh.Prompts(["The capital of France is"], positions={"country": [" France"]})
    >>> looks = mh.patching.attention_to("L17H5", "country")
    >>> effect = mh.ablate(model, prompts, metric=looks, progress=False)
    >>> effect.unit, bool((abs(effect.scores.sel(layer=slice(17, None))) == 0).all())
    ('share of attention', True)
    """
    return AttentionTo(HeadId.parse(head), key, query, log)


def _shown(place: str | int) -> str:
    return place if isinstance(place, str) else f"token {place}"
