"""The effect of ablating each head on a task, for comparison with roles."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechheads.engine.sweep import sweep
from mechheads.gating.fit.arguments import Reduce
from mechheads.gating.fit.gates import usable_items
from mechheads.gating.tasks.task import Task, TaskTokens
from mechheads.heads import HeadLike
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.messages.arguments import check_known
from mechheads.metrics.base import Metric, MetricContext, metric, name_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Unpadded
from mechheads.results.scores import HeadScores


@analysis
def ablation_effects(
    model: Model,
    task: Task,
    *,
    intervention: InterventionLike = "zero",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    reduce: Reduce = "mean",
) -> HeadScores:
    """The change in the log-probability of a task's targets when one head at a time is ablated at all positions.

    Args:
        task: prompts and targets; rejected items are left out (see ``Task.tokens``). Targets of several tokens cost
            more, because every position is then unembedded.
        intervention: how a head is ablated, as in ``mh.ablate``.
        heads: the heads to ablate; by default all heads.
        reduce: ``"mean"`` or ``"sum"`` over the tokens of a target.

    Returns:
        log p(target | ablated) - log p(target) [layer, head, item], in nats; below 0, the task needs the head.

    Raises:
        ValueError: if an argument does not fit, or no item can be used.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> effects = mh.gating.ablation_effects(model, task, heads=["L23H4", "L5H0"])
    >>> effects.heads(2)[-1]
    HeadId(layer=23, head=4)
    """
    check_known("reduce", reduce, Reduce)
    rule = as_intervention(intervention)
    tokens = usable_items(model, task)
    effects = sweep(
        model,
        _prompts(tokens),
        intervention=rule,
        metric=_target_metric(tokens, reduce),
        heads=heads,
        name=f"{intervention if isinstance(intervention, str) else name_of(rule)} ablation, {task.name}",
        kind="ablate",
    )
    return effects.with_provenance(task=task.name, items=tokens, reduce=reduce)


def _prompts(tokens: TaskTokens) -> Prompts:
    """Each item without its last token, which is the answer; position ``target`` predicts the target's first token."""
    rows = [ids[:length] for ids, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]
    return Prompts(
        [Unpadded(row[:-1]) for row in rows],
        answer=[row[-1] for row in rows],
        positions={"target": tokens.is_target.int().argmax(1).sub(1).tolist()},
        cluster=tokens.cluster,
    )


def _target_metric(tokens: TaskTokens, reduce: Reduce) -> Metric:
    """A metric: the log-probability of the target's tokens, each given the tokens before it."""
    several = bool((tokens.is_target.sum(1) > 1).any())

    @metric(reads="all" if several else "last", unit="nats")
    def target_log_prob(
        logits: Float[Tensor, "prompt position d_vocab"], context: MetricContext
    ) -> Float[Tensor, " prompt"]:
        if not several:
            return -F.cross_entropy(logits[:, -1], context.answer, reduction="none")
        prompts = context.tokens
        position = torch.arange(logits.shape[1], device=logits.device)
        predicts = context.mask & (position >= prompts.positions["target"][:, None])
        following = prompts.ids.roll(-1, 1).scatter(1, prompts.positions["last"][:, None], context.answer[:, None])
        each = -F.cross_entropy(logits[predicts], following[predicts], reduction="none")
        total = each.new_zeros(predicts.shape).masked_scatter(predicts, each).sum(1)
        return total / predicts.sum(1) if reduce == "mean" else total

    return target_log_prob
