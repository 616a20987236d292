"""Role curves: the change in a task when the top k heads of a role are gated off rather than on.

    change(k) = log p(target | top k gated 0) - log p(target | the same k gated 1),   all other gates at G+

If the roles order heads well, the curve of facilitation falls below 0, the curve of interference rises above 0, and the
curve of irrelevance stays near 0 (Nam et al. 2025, arXiv 2505.13737).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int

from mechheads.engine.dispatch import each_by_workers, setup_of_each
from mechheads.engine.job import intervention_for
from mechheads.engine.report import describe_intervention
from mechheads.gating.fitted import Gates, Reduce
from mechheads.gating.gates import turned_off, under_gates, usable_items
from mechheads.gating.roles import ROLES, Roles, head_roles
from mechheads.gating.task import Task, TaskTokens
from mechheads.heads import HeadId
from mechheads.interventions.basic import Intervention, InterventionLike
from mechheads.io.text import entries, whole_number
from mechheads.limits import Limits, current
from mechheads.messages.arguments import NotNegative, check_at_least
from mechheads.messages.notices import stop_if, until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import clustered_interval, mean_over_prompts
from mechheads.results.tables import Curves


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve to measure: the order of heads (flat indices), and the set of gates ``base`` that it is over."""

    which: str
    base: int
    keep: Float[np.ndarray, "layer head"]
    order: Int[np.ndarray, " rank"]

    def __str__(self) -> str:
        return f"the curve of {self.which}"


@dataclass(frozen=True, eq=False)
class MeasureCurve:
    """Measures a curve for growing numbers of heads; it can be sent to workers."""

    tokens: TaskTokens
    steps: tuple[int, ...]
    intervention: Intervention
    reduce: Reduce
    limits: Limits

    def __call__(self, model: Model, curve: Curve, bar: Bar | None = None) -> Float[np.ndarray, "step item"]:
        """log p with the first k heads of the order off minus log p with them gated on; 0 for no heads."""
        tried = [k for k in self.steps if k > 0]
        first = np.zeros((len(tried), curve.keep.size), dtype=bool)
        for row, k in enumerate(tried):
            first[row, curve.order[:k]] = True
        chosen = torch.tensor(first).view(-1, *curve.keep.shape)
        shut, opened = (torch.cat(pair) for pair in ((chosen, chosen & False), (chosen & False, chosen)))
        keep = torch.tensor(curve.keep, dtype=torch.float32).expand(len(shut), -1, -1)
        items = self.tokens.to(model.device)
        gates, changes = turned_off(model, items, keep.masked_fill(opened, 1), shut, self.intervention)
        off, on = np.split(under_gates(model, items, gates, changes, reduce=self.reduce, bar=bar), 2)
        changes = np.zeros((len(self.steps), off.shape[1]))
        changes[len(self.steps) - len(tried) :] = off - on
        return changes


Over = Literal["items", "seeds"]


@analysis
def role_curve(
    model: Model,
    task: Task,
    gates: Gates,
    roles: Roles | None = None,
    *,
    counts: int | Sequence[int] = 50,
    over: Over = "items",
    draws: NotNegative = 5,
    intervention: InterventionLike = "zero",
    reduce: Reduce = "mean",
) -> Curves:
    """The change in a task's log-probability when the top k heads of each role are gated off, for growing k.

    The change is log p(target | top k gated 0) - log p(target | the same k gated 1).

    Args:
        task: the task to measure; items that the gates were not fitted to are better evidence.
        gates: the result of ``fit_gates``; all other heads stay at their gates of the fit "keep".
        roles: the scores by which heads are ordered; by default ``head_roles(gates)``.
        counts: the numbers of heads to gate off; or the largest, with every number up to 10 and then every fifth.
        over: ``"items"``: gates and roles are averaged over seeds, and intervals are over items, by clusters.
            ``"seeds"``: each seed has its own gates and order, and intervals are over seeds.
        draws: the number of random orders of heads to compare with.
        intervention: what the top k heads give in place of 0, as in ``mh.task_log_prob``.
        reduce: ``"mean"`` or ``"sum"`` over the tokens of a target.

    Returns:
        The change in nats, a line for each role and random order, with a value for each item or seed. With
        ``over="seeds"``, ``order`` is that of the first seed. After Ctrl-C, the curves so far; the rest is NaN.

    Raises:
        RuntimeError: if a curve ends every worker that tries it.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> gates = mh.fit_gates(model, task, seeds=2, updates=1)
    >>> curves = mh.gating.role_curve(model, task, gates, counts=[0, 3], draws=1)
    >>> curves.table[["which", "k"]].values.tolist()[:4]
    [['facilitation', 0], ['facilitation', 3], ['interference', 0], ['interference', 3]]
    """
    roles = head_roles(gates) if roles is None else roles
    steps = _check(model, gates, roles, counts, over)
    rule = intervention_for("intervention", intervention, task.prompts)
    tokens = usable_items(model, task)
    keep = gates["keep"].mean(0, keepdims=True) if over == "items" else gates["keep"]
    orders = {role: _ranked(roles, role, over) for role in ROLES}
    rng = np.random.default_rng(current().seed)
    n_heads = model.n_layers * model.n_heads
    for draw in range(draws):
        orders[f"random {draw + 1}"] = np.stack([rng.permutation(n_heads) for _ in keep])
    found = {which: np.full((len(keep), len(steps), len(tokens)), np.nan) for which in orders}
    curves = [
        Curve(which, base, gate, order[base]) for which, order in orders.items() for base, gate in enumerate(keep)
    ]
    limits, done = current().limits, 0
    measure = MeasureCurve(tokens, tuple(steps), rule, reduce, limits.in_one_process)
    pairs = 2 * sum(k > 0 for k in steps) * len(tokens)

    def take(index: int, changes: Float[np.ndarray, "step item"]) -> None:
        nonlocal done
        found[curves[index].which][curves[index].base] = changes
        done += 1
        if limits.workers is not None:
            bar.update(pairs)

    bar = Bar(total=pairs * len(curves), desc="role curves", leave=False)
    with until_interrupted() as interrupts, bar:
        if limits.workers is None:
            for index, curve in enumerate(curves):
                take(index, measure(model, curve, bar))
        else:
            stop_if(each_by_workers(limits.workers, setup_of_each(model, measure), curves, take))
    interrupts.warn(f"{done} of {len(curves)} curves")
    values = np.concatenate([line[0] if over == "items" else line.mean(-1).T for line in found.values()])
    labels = tokens.cluster if over == "items" else [str(number) for number in gates.seeds]
    low, high = clustered_interval(values, labels)
    table = pd.DataFrame(
        {
            "which": np.repeat(list(found), len(steps)),
            "k": np.tile(steps, len(found)),
            "score": mean_over_prompts(values),
            "ci_low": low,
            "ci_high": high,
        }
    )
    ranked = {
        which: tuple(HeadId(*divmod(int(flat), model.n_heads)) for flat in order[0][: max(steps)])
        for which, order in orders.items()
    }
    about = make_provenance(
        model,
        task=task.name,
        items=tokens,
        n_items=len(tokens),
        counts=steps,
        intervention=describe_intervention(rule),
        interrupted=interrupts.interrupted,
        gates=gates.provenance,
    )
    return Curves("role_curves", task.name, table, ranked, values, {}, about)


def _check(model: Model, gates: Gates, roles: Roles, counts: int | Sequence[int], over: str) -> list[int]:
    """The numbers of heads to gate off, after a check that the arguments fit."""
    shape = model.n_layers, model.n_heads
    for name, found in (("gates", gates["keep"].shape[1:]), ("roles", roles["facilitation"].scores.shape)):
        if found != shape:
            raise ValueError(f"{name} are from a model of {found} layers and heads; this model has {shape}")
    if gates.interrupted:
        raise ValueError("the fit of gates was interrupted; repeat mh.fit_gates with the same store")
    if over == "seeds" and roles["facilitation"].dataset.sizes.get("prompt") != len(gates.seeds):
        raise ValueError(f'over="seeds" needs roles with the {len(gates.seeds)} seeds of the gates')
    n_heads = model.n_layers * model.n_heads
    if isinstance(counts, int):
        check_at_least(1, counts=counts)
        last = min(counts, n_heads)
        return sorted({*range(min(last, 10) + 1), *range(10, last + 1, 5), last})
    given = [whole_number(count) for count in entries(counts, "counts", "numbers of heads")]
    steps = [] if None in given else sorted({count for count in given if count is not None})
    if not steps or steps[0] < 0 or steps[-1] > n_heads or steps[-1] == 0:
        raise ValueError(f"counts are {counts!r}; give numbers of heads from 0 to {n_heads}, at least one above 0")
    return steps


def _ranked(roles: Roles, role: str, over: str) -> Int[np.ndarray, "base rank"]:
    """Flat indices of the heads, the highest score first; heads with equal scores in order of layer and head."""
    values = roles[role].scores.values[..., None] if over == "items" else roles[role].dataset["values"].values
    return np.argsort(-values.reshape(-1, values.shape[-1]).T, axis=1, kind="stable")
