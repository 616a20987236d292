"""Answers of a model without some of its heads to both kinds of requests, with a judge's verdict on each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.engine.dispatch import each_by_workers, setup_of_each
from mechheads.generation.generate import Generated, Sampling, check_writing, generate_under
from mechheads.heads import HeadId
from mechheads.interventions.basic import Intervention, InterventionLike, Mean
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, change_hooks
from mechheads.limits import Limits, current, settings
from mechheads.messages.arguments import check_known
from mechheads.messages.notices import stop_if, until_interrupted, warn
from mechheads.model.backend import Hook
from mechheads.model.model import Model, source_of
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import LEAST_OF_BOUNDED, share_interval
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.heads.ablations import Groups, ablation_of, about_ablation, check_joint, joint_changes
from mechheads.safety.judge import (
    AnswerJudge,
    Verdict,
    check_judge,
    checked_verdict,
    judge_name,
    judged_by,
    rule_judge,
    without_fixed,
)
from mechheads.safety.requests import TEMPLATES, Sides, Template, answers_begun, whole_answers


class HeadsOff(NamedTuple):
    """A condition: the heads that are ablated together, and how; workers are told its name too."""

    intervention: Intervention
    heads: Sequence[HeadId] = ()
    name: str = ""

    def __str__(self) -> str:
        return f"the condition {self.name!r}"


@dataclass(frozen=True)
class Write:
    """Writes the answers under a condition, in a worker; a mean ablation is over the prompts ``averaged``."""

    prompts: Prompts
    averaged: Prompts
    sampling: Sampling
    limits: Limits

    def __call__(self, model: Model, condition: HeadsOff) -> Generated:
        with settings(budget=self.limits):
            changes = joint_changes(model, condition.intervention, condition.heads, self.averaged.tokens(model))
            (written,) = generate_under(model, self.prompts, [changes], self.sampling)
        return written


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are generated and judged.

    Args:
        judge: a function of (request, answer) that returns ``"refused"``, ``"complied"``, ``"deflected"``,
            ``"degenerate"``, ``"unfinished"`` or ``"unjudged"``, and may call a language model. By default,
            ``mh.safety.rule_judge``, which reads what the first sentences do and whether an answer repeats itself. The
            answer has what the prompt already has of it: a thought that the template opens (``<think>``), or the
            beginning of an answer that a chat ends with. In the table of answers is only what the model wrote.
        template: ``"query"``, ``"bare"`` or ``"chat"``; by default, the model's chat template if it has one, otherwise
            ``"query"``.
        max_new_tokens: largest number of tokens in an answer; the paper uses 128.
        temperature, top_k: settings for sampling; a temperature of 0 is greedy. The paper also samples with top_k 5.
        opening: the beginning of a refusal, as in ``mh.safety.refusal_contribution``, whose log-probability
            ``mh.safety.refusal_test`` has in the column ``refusal``.

    Raises:
        ValueError: if ``judge`` cannot be called with a request and an answer, or another argument is out of range.

    >>> mh.safety.AnswerSettings(temperature=1.0, top_k=5).sampling()
    Sampling(max_new_tokens=64, temperature=1.0, top_k=5, seed=0)
    """

    judge: AnswerJudge = rule_judge
    template: Template | None = None
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int | None = None
    opening: str | None = None

    def __post_init__(self) -> None:
        check_judge(self.judge)
        if self.template is not None:
            check_known("template", self.template, TEMPLATES)
        self.sampling()

    def sampling(self) -> Sampling:
        """How tokens are chosen, with the seed in effect."""
        return Sampling(self.max_new_tokens, self.temperature, self.top_k, current().seed)


DEFAULT_ANSWERS = AnswerSettings()


@dataclass(frozen=True, eq=False)
class Answering:
    """Which requests are answered and how, while sets of heads are ablated; workers write a condition each."""

    model: Model
    sides: Sides
    groups: Groups
    settings: AnswerSettings

    def check(self, intervention: InterventionLike) -> Intervention:
        """The intervention, after a check that answers can be written while it ablates several heads."""
        rule = ablation_of(intervention)
        check_joint(self.model, rule, self.groups, self._averaged)
        if current().limits.workers is not None:
            source_of(self.model)
        for side in self.sides.by_kind().values():
            check_writing(self.model, side.prompts, self.settings.sampling())
        return rule

    @cached_property
    def _averaged(self) -> Tokens:
        """The tokens over which a mean ablation averages: those of the harmful requests."""
        return self.sides.harmful.prompts.tokens(self.model)

    @cached_property
    def _run(self) -> HeadCache:
        return HeadCache.run(self.model, self._averaged, sites=("z",))

    def changes(self, off: HeadsOff) -> list[HeadChange]:
        """The changes of a condition."""
        run = self._run if isinstance(off.intervention, Mean) and off.heads else None
        return joint_changes(self.model, off.intervention, off.heads, self._averaged, run)

    def hooks(self, off: HeadsOff) -> list[Hook]:
        """``changes`` as hooks: with them the model runs under the condition."""
        return change_hooks(self.model, [(change, EVERYWHERE) for change in self.changes(off)])

    def answers(self, sets: Mapping[str, HeadsOff]) -> tuple[pd.DataFrame, bool]:
        """Answers and verdicts, a row for each set of heads and request, and whether Ctrl-C was pressed.
        After Ctrl-C nothing new is written, and answers that are unfinished or not judged have no verdict (None)."""
        parts, work = [], until_interrupted()
        for kind, side in self.sides.by_kind().items():
            n = len(side)
            written = [Generated(("",) * n, (), (), unfinished=tuple(range(n)))] * len(sets)
            with work:
                if not work.interrupted:
                    stop_if(self._write(side.prompts, sets, written))
            begun = answers_begun(self.model, side.prompts)
            part = pd.concat([_table(name, kind, side.texts, each) for name, each in zip(sets, written, strict=True)])
            part["whole"] = [text for each in written for text in whole_answers(self.model, begun, each)]
            parts.append(part.assign(verdict=_judge(part, self.settings.judge, work)).drop(columns=["done", "whole"]))
        table = pd.concat(parts, ignore_index=True)
        if unjudged := table["verdict"].tolist().count("unjudged"):
            warn(
                f"{unjudged} of {len(table)} answers are not judged and no share counts them: the rules judge English "
                "only; give AnswerSettings(judge=...) for other languages"
            )
        return table, work.interrupted

    def _write(self, prompts: Prompts, sets: Mapping[str, HeadsOff], written: list[Generated]) -> bool:
        """Fill in the answers under each condition; whether Ctrl-C stopped this."""
        sampling, limits = self.settings.sampling(), current().limits
        if limits.workers is None:
            written[:] = generate_under(self.model, prompts, list(map(self.changes, sets.values())), sampling)
            return written[0].interrupted
        write = Write(prompts, self.sides.harmful.prompts, sampling, limits.in_one_process)
        named = [off._replace(name=name) for name, off in sets.items()]
        return each_by_workers(limits.workers, setup_of_each(self.model, write), named, written.__setitem__)

    def about(self, intervention: Intervention) -> dict[str, Any]:
        """What a result records about the answers and the ablation."""
        return make_provenance(
            self.model,
            about_ablation(intervention, self.groups),
            asdict(self.settings.sampling()),
            template=self.sides.template,
            judge=judge_name(self.settings.judge),
            judged=judged_by(self.settings.judge),
            prompts=[side.prompts.tokens(self.model) for side in self.sides.by_kind().values()],
        )


def _table(condition: str, kind: str, requests: Sequence[str], written: Generated) -> pd.DataFrame:
    """Answers to one kind of requests under one condition; ``done`` marks the finished answers."""
    columns = {
        "condition": condition,
        "kind": kind,
        "request": requests,
        "answer": written.texts,
        "verdict": None,
        "done": [i not in written.unfinished for i in range(len(requests))],
    }
    return pd.DataFrame(columns)


def _judge(answers: pd.DataFrame, judge: AnswerJudge, work: until_interrupted) -> list[Verdict | None]:
    """Verdicts on the finished answers, until done or Ctrl-C; the others are None."""
    judged: list[Verdict | None] = [None] * len(answers)
    requests, wholes = answers["request"].tolist(), answers["whole"].tolist()
    with work:
        for number, row in enumerate(np.flatnonzero(answers["done"]).tolist()):
            judged[row] = checked_verdict(judge, requests[row], wholes[row], number)
    if judge is rule_judge:
        for rows in answers.groupby("condition").indices.values():
            some, written = (answers[name].iloc[rows].tolist() for name in ("request", "answer"))
            for row, one in zip(rows, without_fixed(some, written, [judged[row] for row in rows]), strict=True):
                judged[row] = one
    return judged


def verdict_share(answers: pd.DataFrame, condition: str, kind: str, verdict: str) -> tuple[float, float, float]:
    """The share of judged answers with this verdict, and its 95% interval (Wilson's), for one kind or "both".
    NaN if a verdict is missing; with fewer than six judged answers only the ends of the interval are NaN."""
    judged = is_verdict(answers, condition, kind, verdict)[_verdicts(answers, condition, kind) != "unjudged"]
    share = judged.mean() if len(judged) else np.array(np.nan)
    low, high = share_interval(share, np.array(len(judged) if len(judged) >= LEAST_OF_BOUNDED else np.nan))
    return float(share), float(low), float(high)


def is_verdict(answers: pd.DataFrame, condition: str, kind: str, verdict: str) -> Float[np.ndarray, " prompt"]:
    """For each request of a kind, 1 if its answer under a condition has this verdict, 0 if not, NaN if not judged."""
    given = _verdicts(answers, condition, kind)
    return np.where(pd.isna(given) | (given == "unjudged"), np.nan, given == verdict)


def _verdicts(answers: pd.DataFrame, condition: str, kind: str) -> np.ndarray:
    rows = (answers["condition"] == condition) & ((answers["kind"] == kind) | (kind == "both"))
    return answers["verdict"].to_numpy(dtype=object)[rows.to_numpy()]


def judged(answers: pd.DataFrame) -> str:
    """How many of the answers have a verdict, after Ctrl-C."""
    return f"{int(answers['verdict'].notnull().to_numpy().sum())} of {len(answers)} answers"
