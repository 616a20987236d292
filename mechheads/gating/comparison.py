"""Roles beside other views of the same heads: what ablating one does, its labels, its safety scores.

Views are compared by Spearman's rank correlation over heads. Heads of a layer read the same residual stream and are not
independent, so intervals come from leaving out whole layers. Ranks of those that are left need no sorting anew, as the
order of the heads is always the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int, Num
from torch import Tensor
from torch.nn import functional as F

from mechheads.backends.changes import alone
from mechheads.gating.arguments import Reduce, check_reduce
from mechheads.gating.task import Task, TaskTokens
from mechheads.heads import HeadLike
from mechheads.metrics import Metric, MetricContext, metric
from mechheads.model import Model
from mechheads.patching.activation import make_ablation
from mechheads.prompts import Prompts
from mechheads.scores import HeadScores
from mechheads.stats import correlation_interval
from mechheads.sweeps import sweep

_LEAST = 3
"""Two heads always correlate."""


def compare_roles(roles: Mapping[str, HeadScores], others: Mapping[str, HeadScores]) -> pd.DataFrame:
    """Rank correlation of each role with each other score, over the heads that both have measured.

    Args:
        roles: of ``mh.head_roles``, or any scores by name.
        others: scores of the same model by name: of ``ablation_effects``, ``mh.relation_scores``, ``mh.ships``, ...

    Returns:
        One row for each role, other score, and label where that has a further dimension (a relation, say): role,
        other, label, spearman, ci_low, ci_high (95%, from leaving out each layer once:
        ``mechheads.stats.correlation_interval``) and n, the number of heads. The correlation is NaN where a score does
        not vary or fewer than three heads are left, the interval where there are fewer than three layers.

    Raises:
        ValueError: if there is nothing to compare, or scores are of models of other sizes.

    >>> import numpy as np
    >>> score = lambda values, name: mh.HeadScores.from_scores(values, name=name, unit="", kind="demo")
    >>> rising = np.arange(12.0).reshape(4, 3)
    >>> table = mh.compare_roles({"facilitation": score(rising, "a")}, {"falls": score(-(rising**3), "b")})
    >>> table[["role", "other", "spearman", "n"]].values.tolist()
    [['facilitation', 'falls', -1.0, 12]]
    """
    _check(roles, others)
    rows = []
    for (role, one), (name, other) in product(roles.items(), others.items()):
        left = one.scores.values
        for label, right in _by_label(other):
            both = np.isfinite(left) & np.isfinite(right)
            found = _spearman(left[both], right[both], np.nonzero(both)[0])
            rows.append((role, name, label, *found, int(both.sum())))
    return pd.DataFrame(rows, columns=["role", "other", "label", "spearman", "ci_low", "ci_high", "n"])


@alone
def ablation_effects(
    model: Model,
    task: Task,
    kinds: Sequence[str] = ("zero", "mean", "resample"),
    *,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    reduce: Reduce = "mean",
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> dict[str, HeadScores]:
    """What a task's targets lose as one head at a time is ablated at all positions, all others left as they are.

    Args:
        task: rejected items are left out (see ``Task.tokens``). Targets of several tokens cost more: the whole
            vocabulary is then unembedded at every position.
        kinds: of ``mh.ablate``.
        heads: the heads to try; left out, every head.
        reduce: over the tokens of a target.
        budget: memory, bytes or "2 GB" (default 4 GB).
        seed: of the other items that ``"resample"`` takes z from.
        progress: show a bar.

    Returns:
        For each kind log p(target | ablated) - log p(target) [layer, head, item], in nats: below 0 the head is
        needed. After Ctrl-C the kinds that were begun.

    Raises:
        ValueError: if a kind is not known or given twice, an argument does not fit, or no item can be used.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> effects = mh.ablation_effects(model, task, ["zero"], heads=["L23H4", "L5H0"], progress=False)
    >>> effects["zero"].heads(2)[-1]
    HeadId(layer=23, head=4)
    """
    check_reduce(reduce)
    if isinstance(kinds, str) or not kinds or len(set(kinds)) < len(kinds):
        raise ValueError(f'kinds is {kinds!r}; give a list of different ones, such as ["zero", "mean"]')
    ablations = {kind: make_ablation(kind, seed=seed) for kind in kinds}
    tokens = task.tokens(model)
    if "resample" in ablations and len(tokens) < 2:
        raise ValueError('kinds has "resample", which takes z from another item, and the task has one item to use')
    effects: dict[str, HeadScores] = {}
    for kind, ablation in ablations.items():
        effect = sweep(
            model,
            _prompts(tokens),
            intervention=ablation,
            metric=_target_metric(tokens, reduce),
            heads=heads,
            budget=budget,
            seed=seed,
            progress=progress,
            name=f"{kind} ablation, {task.name}",
            kind="ablate",
        )
        effects[kind] = effect.with_provenance(task=task.name, items=tokens.fingerprint(), reduce=reduce)
        if effect.provenance["interrupted"]:
            break
    return effects


def _prompts(tokens: TaskTokens) -> Prompts:
    """Each item without its last token, which is the answer; ``target``: where the first of its target is predicted."""
    rows = [ids[:length] for ids, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]
    return Prompts(
        [row[:-1] for row in rows],
        answer=[row[-1] for row in rows],
        positions={"target": tokens.is_target.int().argmax(1).sub(1).tolist()},
        cluster=tokens.cluster,
    )


def _target_metric(tokens: TaskTokens, reduce: Reduce) -> Metric:
    """The log-probability of the target's tokens, each given those before it."""
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


def _check(roles: Mapping[str, HeadScores], others: Mapping[str, HeadScores]) -> None:
    """Make sure that all scores are of one model's heads.

    Raises:
        ValueError: naming the first that is not.
    """
    for name, group in (("roles", roles), ("others", others)):
        if not isinstance(group, Mapping) or not group:
            raise ValueError(f"{name} must hold scores by name, such as {{'zero': ...}}, got {group!r}")
    first = next(iter(roles.values()))
    for name, group in (("roles", roles), ("others", others)):
        for key, one in group.items():
            if one.extra_dims and name == "roles":
                raise ValueError(f"roles[{key!r}] has the dimensions {one.extra_dims}; select a label of each")
            if (one.n_layers, one.n_heads) != (first.n_layers, first.n_heads):
                raise ValueError(
                    f"{name}[{key!r}] is of {one.n_layers} x {one.n_heads} heads and the roles of {first.n_layers} x "
                    f"{first.n_heads}; compare scores of one model"
                )


def _by_label(scores: HeadScores) -> Iterator[tuple[str, Float[np.ndarray, "layer head"]]]:
    """A score of every head for each label of the further dimensions; without those one, with an empty label."""
    labels = [scores.dataset[dim].values.tolist() for dim in scores.extra_dims]
    flat = scores.scores.values.reshape(scores.n_layers, scores.n_heads, -1)
    for i, label in enumerate(product(*labels)):
        yield ", ".join(map(str, label)), flat[..., i]


def _spearman(
    left: Float[np.ndarray, " head"], right: Float[np.ndarray, " head"], layer: Int[np.ndarray, " head"]
) -> tuple[float, float, float]:
    """The correlation and its interval, from what it is without each layer."""
    if len(left) < _LEAST or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan"), float("nan"), float("nan")
    kept = np.concatenate([np.ones((1, len(left))), np.unique(layer)[:, None] != layer])
    r = _weighted_spearman(left, right, kept)
    return float(r[0]), *correlation_interval(float(r[0]), r[1:])


def _weighted_spearman(
    left: Float[np.ndarray, " head"], right: Float[np.ndarray, " head"], counts: Num[np.ndarray, "draw head"]
) -> Float[np.ndarray, " draw"]:
    """Spearman's correlation of heads that count so many times each; NaN where a score does not vary."""
    total = counts.sum(1, keepdims=True)
    one, other = (_ranks(score, counts) - (total + 1) / 2 for score in (left, right))
    with np.errstate(divide="ignore", invalid="ignore"):
        r = (counts * one * other).sum(1) / np.sqrt((counts * one**2).sum(1) * (counts * other**2).sum(1))
    return np.clip(r, -1, 1)


def _ranks(score: Float[np.ndarray, " head"], counts: Num[np.ndarray, "draw head"]) -> Float[np.ndarray, "draw head"]:
    """The mean rank, from 1, of each head among heads that count so many times each; equal ones share theirs."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.diff(score[order], prepend=-np.inf))
    of_value = np.add.reduceat(counts[:, order], starts, axis=1)
    ranks = of_value.cumsum(1) - (of_value - 1) / 2
    found = np.empty(counts.shape)
    found[:, order] = np.repeat(ranks, np.diff(starts, append=len(score)), axis=1)
    return found
