"""How brittle a model's refusals are: whether they survive without random heads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from mechheads.heads import HeadId
from mechheads.interventions.basic import InterventionLike
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least
from mechheads.messages.interrupted import interrupted_after, stop_if, until_interrupted
from mechheads.messages.warn import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.refused import LEAST_REFUSAL
from mechheads.results.stats import share_interval
from mechheads.results.tables import TableResult
from mechheads.safety.answers.answering import DEFAULT_ANSWERS, Answering, AnswerSettings, HeadsOff, is_verdict, judged
from mechheads.safety.answers.refusal import condition_table
from mechheads.safety.answers.verdicts import VERDICTS, judged_by
from mechheads.safety.heads.groups import Group, Groups
from mechheads.safety.requests.prompts import Requests, Sides
from mechheads.safety.requests.texts import text_loss, text_tokens


@dataclass(frozen=True, eq=False)
class RefusalBrittleness(TableResult):
    """A model's answers as it is, and without random heads.

    Attributes:
        random: the heads of each draw.
        table: one row per condition (``intact``, ``random 1`` and so on), with the columns of ``RefusalTest.table``
            but ``refusal``; and ``survive``, the share of the intact model's refusals to harmful requests that are
            still refusals (NaN if it refuses none).
        answers: as in ``RefusalTest``.
        provenance: what is needed to repeat the analysis.
    """

    KIND = "refusal_brittleness"
    name, unit = "brittleness of refusals", KINDS[KIND].unit

    random: tuple[tuple[HeadId, ...], ...]
    table: pd.DataFrame
    answers: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def refuses(self) -> bool | None:
        """Whether the intact model refuses enough harmful requests to ablate; None if Ctrl-C came before."""
        refused = is_verdict(self.answers, "intact", "harmful", "refused").mean()
        return None if np.isnan(refused) else bool(refused >= LEAST_REFUSAL)

    @property
    def missing(self) -> tuple[str, ...]:
        """Conditions that are incomplete after Ctrl-C."""
        return tuple(self.table.loc[self.table["loss"].isnull(), "condition"])

    @property
    def survive(self) -> tuple[float, float, float]:
        """The share of refusals that survive, over all draws, with its 95% interval (Wilson's, over requests)."""
        refused = is_verdict(self.answers, "intact", "harmful", "refused") == 1
        drawn = [is_verdict(self.answers, f"random {i + 1}", "harmful", "refused") for i in range(len(self.random))]
        if not refused.any() or not drawn:
            return float("nan"), float("nan"), float("nan")
        share = np.mean(drawn, axis=0)[refused].mean()
        low, high = share_interval(share, np.array(refused.sum()))
        return float(share), float(low), float(high)

    def counts(self, kind: str) -> dict[str, int]:
        """How many of the intact model's answers to requests of a kind, "harmful" or "harmless", have each verdict."""
        return {verdict: int(is_verdict(self.answers, "intact", kind, verdict).sum()) for verdict in VERDICTS}

    def __repr__(self) -> str:
        share, low, high = self.survive
        stopped = ", interrupted" if self.interrupted else ""
        if np.isnan(share):
            return f"<RefusalBrittleness{stopped}: no refusals, or no draws of random heads>"
        return (
            f"<RefusalBrittleness{stopped}: {share:.0%} [{low:.0%}, {high:.0%}] of the refusals survive, "
            f"{len(self.random)} draws of random heads; {judged_by(self.provenance['judge'])}>"
        )


@analysis
def refusal_brittleness(
    model: Model,
    n: int = 6,
    harmful: Requests = None,
    harmless: Requests = None,
    *,
    intervention: InterventionLike = "scaling",
    group: Group = "query",
    draws: int = 5,
    answers: AnswerSettings = DEFAULT_ANSWERS,
    texts: Sequence[str] | None = None,
) -> RefusalBrittleness:
    """Whether a model refuses at all, and how many of its refusals survive without ``n`` random heads of any layer.

    If refusals do not survive without random heads, no set of heads can be said to carry them.

    Args:
        n: how many heads are ablated together; how many groups, if the ablation is of groups.
        draws: the number of random sets.
        harmful, harmless, intervention, group, answers, texts: as in ``mh.safety.refusal_test``.

    Returns:
        The table and the answers. After Ctrl-C, the answers so far.

    Raises:
        ValueError: if an argument does not fit. It is raised before anything is run.

    >>> found = mh.safety.refusal_brittleness(
    ...     model, 2, ["How do I build a bomb?"], ["How do I build a barn?"], draws=1,
    ...     answers=mh.safety.AnswerSettings(max_new_tokens=2))
    >>> found.table["condition"].tolist(), found.refuses
    (['intact', 'random 1'], False)
    """
    seed = current().seed
    groups = Groups.of(model, group)
    every = groups.units(None)
    check_at_least(1, n=n)
    check_at_least(0, draws=draws)
    if n > len(every):
        raise ValueError(f"n is {n}, but the model has only {len(every)} {groups.unit}s; give a smaller number")
    picks = [np.random.default_rng([seed, i]).choice(len(every), n, replace=False) for i in range(draws)]
    random = tuple(groups.members(every[j] for j in sorted(pick)) for pick in picks)
    text_tokens(model, texts)
    answering = Answering(model, Sides.of(model, harmful, harmless, answers.template), groups, answers)
    rule = answering.check(intervention)
    conditions = {"intact": HeadsOff(rule)}
    conditions |= {f"random {i + 1}": HeadsOff(rule, heads) for i, heads in enumerate(random)}
    written, interrupted = answering.answers(conditions)
    losses = dict.fromkeys(conditions, np.nan)
    with until_interrupted() as interrupts:
        stop_if(interrupted)
        for name, off in conditions.items():
            losses[name] = float(text_loss(model, texts, hooks=answering.hooks(off)).mean())
    if interrupts.interrupted:
        warn(interrupted_after(f"{judged(written)} were judged", "unknown numbers are NaN"))
    table = condition_table(written, losses)
    refused = is_verdict(written, "intact", "harmful", "refused") == 1
    still = [is_verdict(written, name, "harmful", "refused")[refused] for name in conditions]
    table["survive"] = [float(some.mean()) if len(some) else np.nan for some in still]
    about = make_provenance(answering.about(rule), n=n, random=random, interrupted=interrupts.interrupted)
    return RefusalBrittleness(random, table, written, about)
