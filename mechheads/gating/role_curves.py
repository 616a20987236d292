"""Role curves: the change in a task's log-probability when the top k heads of a role are gated off rather than on.

    change(k) = log p(target | top k gated 0) - log p(target | the same k gated 1),   all other gates at G+

If the roles order heads well, the curve of facilitation falls below 0, the curve of interference rises above 0, and the
curve of irrelevance stays near 0 (Nam et al. 2025, arXiv 2505.13737).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch

from mechheads.engine.job import intervention_for
from mechheads.engine.report import describe_intervention
from mechheads.gating.fitted import Gates, Reduce
from mechheads.gating.gates import turned_off, under_gates, usable_items
from mechheads.gating.roles import ROLES, head_roles
from mechheads.gating.task import Task
from mechheads.heads import HeadId
from mechheads.interventions.basic import InterventionLike
from mechheads.io.text import entries, whole_number
from mechheads.limits import current
from mechheads.messages.arguments import NotNegative, check_at_least
from mechheads.messages.notices import until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import clustered_interval, mean_over_prompts
from mechheads.results.tables import Curves


@analysis
def role_curve(
    model: Model,
    task: Task,
    gates: Gates,
    *,
    counts: int | Sequence[int] = 50,
    draws: NotNegative = 5,
    intervention: InterventionLike = "zero",
    reduce: Reduce = "mean",
) -> Curves:
    """The change in a task's log-probability when the top k heads of each role are gated off, for growing k.

    The change is log p(target | top k gated 0) - log p(target | the same k gated 1). Gates and roles are means over
    seeds.

    Args:
        model, task: as in ``mh.task_log_prob``; items that the gates were not fitted to are better evidence.
        gates: the result of ``fit_gates``; its roles order the heads, and others stay at their gates of the fit "keep".
        counts: the numbers of heads to gate off; or the largest, for every number up to 10 and then every fifth.
        draws: the number of random orders of heads to compare with.
        intervention: the output of the top k heads that are off, as in ``mh.task_log_prob``.
        reduce: ``"mean"`` or ``"sum"`` over the tokens of a target.

    Returns:
        The change in nats, a line for each role and random order, with a value for each item and intervals over items,
        by clusters. After Ctrl-C, curves that were not measured are NaN.
    """
    roles, steps = head_roles(gates), _check(model, gates, counts)
    rule = intervention_for("intervention", intervention, task.prompts)
    tokens = usable_items(model, task)
    keep = torch.tensor(gates["keep"].mean(0), dtype=torch.float32)
    # heads with equal scores stay in order of layer and head
    orders = {role: np.argsort(-roles[role].scores.values.ravel(), kind="stable") for role in ROLES}
    rng = np.random.default_rng(current().seed)
    orders |= {f"random {draw + 1}": rng.permutation(keep.numel()) for draw in range(draws)}
    values, tried = np.full((len(orders), len(steps), len(tokens)), np.nan), [k for k in steps if k > 0]
    bar, done = Bar(total=2 * len(tried) * len(tokens) * len(orders), desc="role curves", leave=False), 0
    with until_interrupted() as interrupts, bar:
        for line, order in zip(values, orders.values(), strict=True):
            first = torch.zeros(len(tried), keep.numel(), dtype=torch.bool)
            for row, k in enumerate(tried):
                first[row, order[:k]] = True
            first = first.view(-1, *keep.shape)
            shut, opened = torch.cat([first, first & False]), torch.cat([first & False, first])
            set_gates, changes = turned_off(model, tokens, keep.masked_fill(opened, 1), shut, rule)
            off, on = np.split(under_gates(model, tokens, set_gates, changes, reduce=reduce, bar=bar), 2)
            line[:] = np.concatenate([np.zeros((len(steps) - len(tried), len(tokens))), off - on])
            done += 1
    interrupts.warn(f"{done} of {len(orders)} curves")
    values = values.reshape(-1, len(tokens))
    low, high = clustered_interval(values, tokens.cluster)
    table = pd.DataFrame(
        {
            "which": np.repeat(list(orders), len(steps)),
            "k": np.tile(steps, len(orders)),
            "score": mean_over_prompts(values),
            "ci_low": low,
            "ci_high": high,
        }
    )
    ranked = {
        which: tuple(HeadId(*divmod(int(flat), model.n_heads)) for flat in order[: max(steps)])
        for which, order in orders.items()
    }
    metadata = make_provenance(
        model,
        task=task.name,
        items=tokens,
        n_items=len(tokens),
        counts=steps,
        intervention=describe_intervention(rule),
        interrupted=interrupts.interrupted,
        gates=gates.provenance,
    )
    return Curves("role_curves", task.name, table, ranked, values, {}, metadata)


def _check(model: Model, gates: Gates, counts: int | Sequence[int]) -> list[int]:
    """The numbers of heads to gate off; checks the arguments."""
    shape = model.n_layers, model.n_heads
    if (fitted := gates["keep"].shape[1:]) != shape:
        raise ValueError(f"gates are from a model of {fitted} layers and heads; this model has {shape}")
    if gates.interrupted:
        raise ValueError("the fit of gates was interrupted; repeat mh.fit_gates with the same store")
    n_heads = model.n_layers * model.n_heads
    if isinstance(counts, int):
        check_at_least(1, counts=counts)
        last = min(counts, n_heads)
        return sorted({*range(min(last, 10) + 1), *range(10, last + 1, 5), last})
    numbers = [whole_number(count) for count in entries(counts, "counts", "numbers of heads")]
    steps = [] if None in numbers else sorted({count for count in numbers if count is not None})
    if not steps or steps[0] < 0 or steps[-1] > n_heads or steps[-1] == 0:
        raise ValueError(f"counts are {counts!r}; give numbers of heads from 0 to {n_heads}, at least one above 0")
    return steps
