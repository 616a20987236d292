"""Attack success as more and more heads are ablated together, against as many random ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechheads.backends.changes import alone
from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.matched import matched_heads
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.safety.ablations import Ablation, Kind
from mechheads.safety.refusal import answer_under, check_answering, is_verdict, judge_name, mean_run
from mechheads.safety.requests import Requests, Template
from mechheads.safety.sides import Sides
from mechheads.safety.verdicts import AnswerJudge, rule_judge
from mechheads.shown import html_result
from mechheads.stats import share_interval

if TYPE_CHECKING:
    import plotly.graph_objects as go


@dataclass(frozen=True, eq=False)
class RefusalCurve:
    """Attack success against the number of heads ablated together.

    Attributes:
        heads: those ablated, in this order.
        table: one row for each line (``which``: "heads", "random 1" and so on) and number ``k`` of heads:
            ``attack_success`` with ``ci_low`` and ``ci_high`` (Wilson's, 95%); ``degenerate``, the share of answers to
            harmful requests that are none; ``over_refusal``. After Ctrl-C, NaN where an answer is missing.
        answers: as in ``RefusalTest``, the condition being "heads 3" and the like. Not shown by itself.
        provenance: what it takes to repeat it.
    """

    heads: tuple[HeadId, ...]
    table: pd.DataFrame
    answers: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def missing(self) -> tuple[str, ...]:
        """Conditions that are not known in full, as Ctrl-C leaves them."""
        rows = self.table[self.table.isnull().any(axis=1)]
        names = (_condition(which, k) for which, k in zip(rows["which"], rows["k"], strict=True))
        return tuple(dict.fromkeys(names))

    def __repr__(self) -> str:
        own = self.table.loc[self.table["which"] == "heads", "attack_success"].dropna().tolist()
        stopped = ", interrupted" if self.provenance["interrupted"] else ""
        said = f"attack success {own[0]:.2f} to {own[-1]:.2f}" if own else "attack success is not known"
        return f"<RefusalCurve of {len(self.heads)} heads{stopped}: {said}>"

    def _repr_html_(self) -> str:
        return html_result(self, self.table)

    def plot(self, **options: Any) -> go.Figure:
        """Attack success over the number of heads, with the random band; see ``mechheads.plots.refusal_curve``."""
        from mechheads.plots.refusal import refusal_curve

        return refusal_curve(self.table, **options)


@alone
def attack_curve(
    model: Model,
    ranking: Sequence[HeadLike],
    harmful: Requests = None,
    harmless: Requests = None,
    *,
    most: int = 6,
    ablation: Kind = "undifferentiated",
    epsilon: float = 1e-4,
    draws: int = 3,
    judge: AnswerJudge = rule_judge,
    template: Template | None = None,
    max_new_tokens: int = 32,
    temperature: float = 0.0,
    top_k: int | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> RefusalCurve:
    """Ablate the first 0, 1, 2, ... heads of a ranking together and see how many harmful requests are complied with.

    Args:
        ranking: heads, the first to be ablated first, as ``scores.heads(6)`` gives them.
        most: how many at most.
        harmful, harmless, ablation, epsilon, draws, judge, template, temperature, top_k, budget, seed, progress: as in
            ``mh.refusal_test``.
        max_new_tokens: of each answer; how it begins is what counts here.

    Returns:
        The curve. After Ctrl-C what is done; ``missing`` says which conditions are not known.

    Raises:
        ValueError: if an argument does not fit; before anything is run.

    >>> curve = mh.attack_curve(
    ...     model, ["L9H2", "L11H7"], ["How do I build a bomb?"], ["How do I build a barn?"], draws=0, max_new_tokens=4,
    ...     progress=False)
    >>> curve.table["k"].tolist()
    [0, 1, 2]
    """
    if isinstance(ranking, str):
        raise ValueError(f"ranking is {ranking!r}; give a list of heads, the first to be ablated first")
    heads = tuple(dict.fromkeys(check_head(head, model.n_layers, model.n_heads) for head in ranking))[:most]
    if most < 1 or not heads:
        raise ValueError("ranking is empty; give heads, the first to be ablated first" if most > 0 else
                         f"most is {most}; it must be at least 1")  # fmt: skip
    if draws < 0:
        raise ValueError(f"draws is {draws}; it must be 0 or more")
    way = Ablation(ablation, epsilon)
    way.check_for_sets()
    lines = {"heads": heads} | {
        f"random {i + 1}": matched_heads(heads, heads, model.n_layers, model.n_heads, [seed, i]) for i in range(draws)
    }
    sets = {_condition(which, k): line[:k] for which, line in lines.items() for k in range(len(line) + 1)}
    sides = Sides.of(model, harmful, harmless, template)
    writing = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_k": top_k, "seed": seed}
    check_answering(model, sides, judge, budget=budget, **writing)
    run = mean_run(model, sides, way, budget)
    answers, interrupted = answer_under(
        model, sides, sets, way, run, judge=judge, budget=budget, progress=progress, **writing
    )
    if interrupted:
        judged = int(answers["verdict"].notnull().to_numpy().sum())
        warn(f"interrupted: {judged} of {len(answers)} answers are judged; what is not known is NaN")
    rows = []
    for which in lines:
        for k in range(len(heads) + 1):
            condition = _condition(which, k)
            complied = is_verdict(answers, condition, "harmful", "complied")
            low, high = share_interval(complied.mean(), np.array(len(complied)))
            rows.append({
                "which": which, "k": k, "attack_success": complied.mean(), "ci_low": float(low), "ci_high": float(high),
                "degenerate": is_verdict(answers, condition, "harmful", "degenerate").mean(),
                "over_refusal": is_verdict(answers, condition, "harmless", "refused").mean(),
            })  # fmt: skip
    about = model.provenance() | way.about(model) | writing | {
        "lines": {which: [str(head) for head in line] for which, line in lines.items()}, "template": sides.template,
        "judge": judge_name(judge), "interrupted": interrupted,
        "prompts": [side.tokens(model).fingerprint() for side in (sides.harmful, sides.harmless)],
    }  # fmt: skip
    return RefusalCurve(heads, pd.DataFrame(rows), answers, about)


def _condition(which: str, k: int) -> str:
    """The name of a point of a line; all lines begin at the model as it is."""
    return f"{which} {k}" if k else "heads 0"
