"""Attack success as more and more heads are ablated together, compared with as many random heads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from mechheads.heads import Heads, heads_as_given
from mechheads.interventions.basic import InterventionLike
from mechheads.io.text import entries
from mechheads.limits import current
from mechheads.messages.arguments import NotNegative, Within
from mechheads.messages.interrupted import interrupted_after
from mechheads.messages.warn import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.provenance import make_provenance
from mechheads.results.tables import Curves
from mechheads.safety.answers.answering import Answering, AnswerSettings, HeadsOff, is_verdict, judged, verdict_share
from mechheads.safety.heads.ablations import Group, Groups
from mechheads.safety.requests.prompts import Requests, Sides

_SHORT = AnswerSettings(max_new_tokens=32)
"""Only the beginning of an answer matters here."""


@analysis
def attack_curve(
    model: Model,
    ranking: Heads,
    harmful: Requests = None,
    harmless: Requests = None,
    *,
    most: int | Sequence[int] = 6,
    intervention: InterventionLike = "undifferentiated",
    group: Group = "query",
    draws: NotNegative = 3,
    answers: AnswerSettings = _SHORT,
) -> Curves:
    """Attack success with the first 0, 1, 2, ... heads of a ranking ablated together.

    Args:
        ranking: the heads, in the order in which they are ablated, such as ``scores.heads(6)``; or a result.
        most: the largest number of heads; or the numbers of heads, such as ``[1, 2, 4]``, to which 0 is added. If the
            ablation is of groups, numbers of groups.
        harmful, harmless, intervention, group, draws: as in ``mh.safety.refusal_test``.
        answers: as in ``mh.safety.refusal_test``; by default with 32 tokens, because only the beginning of an answer
            matters here.

    Returns:
        Attack success of the line "heads" and of random lines; with ``group="kv"``, ``order`` has the first head of
        each group. The table also has ``deflected`` and ``degenerate``, the shares of such answers to harmful requests,
        and ``over_refusal``. ``more["answers"]`` is as in ``RefusalTest``, with conditions "heads 3" and so on. After
        Ctrl-C, the answers so far; points whose answers are incomplete are NaN.

    >>> curve = mh.safety.attack_curve(
    ...     model, ["L9H2", "L11H7"], ["How do I build a bomb?"], ["How do I build a barn?"], draws=0,
    ...     answers=mh.safety.AnswerSettings(max_new_tokens=4))
    >>> curve.table["k"].tolist()
    [0, 1, 2]
    """
    seed = current().seed
    if ranking is None or isinstance(ranking, (str, int, float)):
        raise ValueError(f"ranking is {ranking!r}; give a list of heads, in the order in which they are ablated")
    if isinstance(ranking, Sequence) and not ranking:
        raise ValueError("ranking is empty; give at least one head")
    groups = Groups.of(model, group)
    for largest in (sizes := [most] if isinstance(most, int) else entries(most, "most", "numbers of heads")) or [0]:
        Within(1).check("most", largest, whole=True)
    largest = max(sizes)
    heads = groups.firsts(heads_as_given(ranking, model.n_layers, model.n_heads))[:largest]
    wanted = range(1, largest + 1) if isinstance(most, int) else sorted(set(most))
    sizes = [0, *dict.fromkeys(min(k, len(heads)) for k in wanted)]
    random = groups.random_sets(heads, draws=draws, seed=seed)
    lines = {"heads": heads} | random
    answering = Answering(model, Sides.of(model, harmful, harmless, answers.template), groups, answers)
    rule = answering.check(intervention)
    sets = {
        _condition(which, k): HeadsOff(rule, groups.members(line[:k])) for which, line in lines.items() for k in sizes
    }
    written, interrupted = answering.answers(sets)
    if interrupted:
        warn(interrupted_after(f"{judged(written)} were judged", "unknown numbers are NaN"))
    rows, values = [], []
    for which in lines:
        for k in sizes:
            condition = _condition(which, k)
            share, low, high = verdict_share(written, condition, "harmful", "complied")
            values.append(is_verdict(written, condition, "harmful", "complied"))
            row = {
                "which": which,
                "k": k,
                "score": share,
                "ci_low": low,
                "ci_high": high,
                "deflected": verdict_share(written, condition, "harmful", "deflected")[0],
                "degenerate": verdict_share(written, condition, "harmful", "degenerate")[0],
                "over_refusal": verdict_share(written, condition, "harmless", "refused")[0],
            }
            rows.append(row)
    about = make_provenance(answering.about(rule), lines=lines, interrupted=interrupted)
    return Curves("attack_curve", "requests", pd.DataFrame(rows), lines, np.stack(values), {"answers": written}, about)


def _condition(which: str, k: int) -> str:
    """The condition of a point of a line; the first point of every line is the intact model."""
    return f"{which} {k}" if k else "heads 0"
