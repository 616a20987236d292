"""The metrics of the package: logit difference, log-probability, accuracy, KL divergence, attention to a token."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.heads import HeadId, HeadLike
from mechheads.messages.arguments import checked, did_you_mean
from mechheads.metrics.base import Activation, Metric, MetricContext, MetricInfo, metric, name_of, positions_of

_FAR = 20.0
"""Nats. Above this d, a term is computed from q itself: p exp(d) is inaccurate if p is too small for float32."""
IN_CACHE = 2**18
"""Logits that a CPU compares at a time, because about ten passes go over them."""


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
    found = as_metric(metric)
    if (read := MetricInfo.of(found).read) is not None:
        raise ValueError(
            f"metric {name_of(found)} reads {read}, and {function} needs a metric of logits, such as mh.logit_diff; "
            f"for what a head reads use {instead}"
        )
    return found


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
        there, before = (each[:, 0].gather(1, at)[:, 0] for each in (pattern, context.base))
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
