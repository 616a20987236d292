"""The metrics that come with the package: logit difference, log-probability, accuracy, KL divergence."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.messages.arguments import did_you_mean
from mechheads.metrics.base import Metric, MetricContext, MetricInfo, metric, name_of

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
    """The metric itself, or a metric of the package by its name.

    Raises:
        ValueError: if no metric has that name, or it is not a function.

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


def as_metric_of_logits(metric: Metric | str, function: str, instead: str) -> Metric:
    """``as_metric`` for a function that needs the logits.

    Args:
        function: the name of the function; ``instead``: what to use for a metric that reads a head.

    Raises:
        ValueError: as ``as_metric``, or if the metric reads a head's pattern or z.
    """
    found = as_metric(metric)
    if (read := MetricInfo.of(found).read) is not None:
        raise ValueError(
            f"metric {name_of(found)} reads {read}, and {function} needs a metric of logits, such as mh.logit_diff; "
            f"for what a head reads use {instead}"
        )
    return found
