"""Roles: whether a task needs a head, is hindered by it, or does not depend on it.

    facilitation = G-          open although gates are pulled shut
    interference = 1 - G+      shut although gates are pulled open
    irrelevance  = G+ (1 - G-) follows the pull

G+ are the gates of the fit "keep", G- the gates of the fit "drop" (Nam et al. 2025, arXiv 2505.13737).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Spec
from mechheads.engine.report import Metadata
from mechheads.engine.sweep import run_spec
from mechheads.gating.fitted import Gates, Reduce
from mechheads.gating.gates import usable_items
from mechheads.gating.task import Task, TaskTokens
from mechheads.heads import HeadLike
from mechheads.interventions.basic import InterventionLike, as_intervention
from mechheads.messages.arguments import Within, check_known, checked
from mechheads.metrics import Metric, MetricContext, metric, name_of
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Unpadded
from mechheads.results.dataset import RANGE
from mechheads.results.kinds import KINDS
from mechheads.results.scores import HeadScores
from mechheads.results.shown import Rows
from mechheads.results.tables import TableResult

ROLES = ("facilitation", "interference", "irrelevance")
"""The three roles, in the order of tables and figures."""


@dataclass(frozen=True, eq=False, repr=False)
class Roles(TableResult, Mapping[str, HeadScores]):
    """The three role scores of every head, each as ``HeadScores`` over seeds."""

    KIND = "head_roles"
    name, unit = "roles of heads", KINDS[KIND].unit

    scores: dict[str, HeadScores]

    @property
    def table(self) -> pd.DataFrame:
        """The same as ``to_dataframe``."""
        return self.to_dataframe()

    @property
    def provenance(self) -> dict[str, Any]:
        """The model, task and settings that repeat the analysis: the provenance of the gates."""
        return next(iter(self.scores.values())).provenance

    def __getitem__(self, role: str) -> HeadScores:
        if role not in self.scores:
            raise KeyError(f"there is no role {role!r}; choose among {', '.join(map(repr, self.scores))}")
        return self.scores[role]

    def __iter__(self) -> Iterator[str]:
        return iter(self.scores)

    def __len__(self) -> int:
        return len(self.scores)

    def shares(self, threshold: float = 0.5) -> pd.DataFrame:
        """Shares of heads with a score of at least ``threshold`` in each role: ``always`` (in every seed), ``any`` (in
        some seed) and ``mean`` (over seeds).
        """
        reached = {role: self._reached(role, threshold) for role in self}
        rows = [(role, has.all(-1).mean(), has.any(-1).mean(), has.mean()) for role, has in reached.items()]
        return pd.DataFrame(rows, columns=["role", "always", "any", "mean"])

    def to_dataframe(self) -> Rows:
        """One row per head: layer, head, and for each role the mean over seeds and its interval, ``_low``, ``_high``.

        Two seeds give no interval: ``_range_low`` and ``_range_high`` are then the smaller and the larger value.
        """
        tables = {role: scores.to_dataframe() for role, scores in self.items()}
        columns = {name: tables[ROLES[0]][name] for name in ("layer", "head")}
        for role, table in tables.items():
            columns |= {role: table["score"], f"{role}_low": table["ci_low"], f"{role}_high": table["ci_high"]}
            columns |= {f"{role}_{end}": table[end] for end in RANGE if end in table}
        return Rows(columns)

    def _reached(self, role: str, threshold: float) -> np.ndarray:
        """Whether each head has the role in each seed [layer, head, seed]."""
        Within(least=0, most=1).check("threshold", threshold)
        values = self[role].dataset["values"].values
        if np.isnan(values).any():
            raise ValueError(f"{role} is not known for every head, because the fit was interrupted")
        return values >= threshold

    def __repr__(self) -> str:
        return f"<Roles of {' x '.join(map(str, self['facilitation'].scores.shape))} heads: {', '.join(self)}>"

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        try:
            shares = self.shares().to_dict("records")
        except ValueError as error:
            return pd.DataFrame(), [str(error)]
        notes = [f"{row['role']}: always {row['always']:.0%}, any {row['any']:.0%}" for row in shares]
        return self.to_dataframe().nlargest(10, ROLES[0]), [*notes, f"The ten with the largest {ROLES[0]}:"]


@checked
def head_roles(gates: Gates) -> Roles:
    """How strongly a task needs each head, is hindered by it, or does not depend on it: three scores from gates.

    Args:
        gates: the result of ``fit_gates``.

    Returns:
        For facilitation, interference and irrelevance, a score of every head from 0 to 1: the mean over seeds, with its
        interval and the value of each seed.

    Nam et al. 2025 (arXiv 2505.13737), section 3.
    """
    if not {"keep", "drop"} <= set(gates.fits):
        raise ValueError(f"gates have the fits {', '.join(gates.fits)}; roles need keep and drop: use mh.fit_gates")
    values = role_values(gates["keep"], gates["drop"])
    return Roles({role: gates.as_scores(values[role], f"{role}, {gates.name}", "roles") for role in ROLES})


def role_values(keep: Float[np.ndarray, "*gates"], drop: Float[np.ndarray, "*gates"]) -> dict[str, np.ndarray]:
    """The three roles from G+ and G-."""
    return dict(zip(ROLES, (drop, 1 - keep, keep * (1 - drop)), strict=True))


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
        model, task: as in ``mh.task_log_prob``. Targets of several tokens cost more, because every position is then
            unembedded.
        intervention: how a head is ablated, as in ``mh.ablate``.
        heads: the heads to ablate; by default all heads.
        reduce: ``"mean"`` or ``"sum"`` over the tokens of a target.

    Returns:
        log p(target | ablated) - log p(target) [layer, head, item], in nats; below 0, the task needs the head.
    """
    check_known("reduce", reduce, Reduce)
    rule = as_intervention(intervention)
    tokens = usable_items(model, task)
    spec = Spec(_prompts(tokens), rule, _target_metric(tokens, reduce), heads)
    name = f"{intervention if isinstance(intervention, str) else name_of(rule)} ablation, {task.name}"
    effects = run_spec(CachedRuns(model, spec.prompts), spec, Metadata(name, "ablate"))
    return effects.with_provenance(task=task.name, items=tokens, reduce=reduce)


def _prompts(tokens: TaskTokens) -> Prompts:
    """Prompts of the items without their last token, which is the answer; position ``target`` precedes the target."""
    rows = [ids[:length] for ids, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]
    return Prompts(
        [Unpadded(row[:-1]) for row in rows],
        answer=[row[-1] for row in rows],
        positions={"target": tokens.is_target.int().argmax(1).sub(1).tolist()},
        cluster=tokens.cluster,
    )


def _target_metric(tokens: TaskTokens, reduce: Reduce) -> Metric:
    """A metric: the log-probability of the target's tokens."""
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
