"""Answers of a model without some of its heads to both kinds of requests, with a judge's verdict on each answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.generation.generate import Generated, Sampling, check_writing, generate_under
from mechheads.heads import HeadId
from mechheads.interventions.basic import Intervention, InterventionLike, Mean
from mechheads.interventions.new_z import EVERYWHERE, HeadChange, change_hooks
from mechheads.limits import current
from mechheads.messages.arguments import check_known
from mechheads.messages.notices import stop_if, until_interrupted, warn
from mechheads.model.backend import Hook
from mechheads.model.model import Model
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
    """Which requests are answered and how, while sets of heads are ablated; made by ``of``."""

    model: Model
    sides: Sides
    rule: Intervention
    groups: Groups
    settings: AnswerSettings

    @classmethod
    def of(
        cls, model: Model, sides: Sides, intervention: InterventionLike, groups: Groups, settings: AnswerSettings
    ) -> Answering:
        """After a check that answers can be written while the intervention ablates several heads."""
        answering = cls(model, sides, ablation_of(intervention), groups, settings)
        check_joint(model, answering.rule, groups, answering._averaged)
        for side in sides.by_kind().values():
            check_writing(model, side.prompts, settings.sampling())
        return answering

    @cached_property
    def _averaged(self) -> Tokens:
        """The tokens over which a mean ablation averages: those of the harmful requests."""
        return self.sides.harmful.prompts.tokens(self.model)

    @cached_property
    def _run(self) -> HeadCache | None:
        return HeadCache.run(self.model, self._averaged, sites=("z",)) if isinstance(self.rule, Mean) else None

    def _changes(self, heads: Sequence[HeadId]) -> list[HeadChange]:
        return joint_changes(self.model, self.rule, heads, self._averaged, self._run)

    def hooks(self, heads: Sequence[HeadId]) -> list[Hook]:
        """With these hooks the model runs without the heads."""
        return change_hooks(self.model, [(change, EVERYWHERE) for change in self._changes(heads)])

    def answers(self, sets: Mapping[str, Sequence[HeadId]]) -> tuple[pd.DataFrame, bool]:
        """Answers and verdicts, a row for each set of heads and request, and whether Ctrl-C was pressed.
        After Ctrl-C nothing new is written, and answers that are unfinished or not judged have no verdict (None)."""
        parts, work = [], until_interrupted()
        for kind, side in self.sides.by_kind().items():
            n = len(side)
            written = [Generated(("",) * n, (), (), unfinished=tuple(range(n)))] * len(sets)
            with work:
                if not work.interrupted:
                    changes = list(map(self._changes, sets.values()))
                    written = generate_under(self.model, side.prompts, changes, self.settings.sampling())
                    stop_if(written[0].interrupted)
            begun, judge = answers_begun(self.model, side.prompts), self.settings.judge
            verdicts: list[list[Verdict | None]] = [[None] * n for _ in sets]
            with work:
                for each, judged in zip(written, verdicts, strict=True):
                    answers = whole_answers(self.model, begun, each)
                    for i in sorted({*range(n)} - {*each.unfinished}):
                        judged[i] = checked_verdict(judge, side.texts[i], answers[i], i)
            for condition, each, judged in zip(sets, written, verdicts, strict=True):
                if judge is rule_judge:
                    judged = without_fixed(side.texts, each.texts, judged)
                part = {"condition": condition, "kind": kind, "request": side.texts, "answer": each.texts}
                parts.append(pd.DataFrame(part | {"verdict": pd.Series(judged, dtype=object)}))
        table = pd.concat(parts, ignore_index=True)
        if unjudged := table["verdict"].tolist().count("unjudged"):
            warn(
                f"{unjudged} of {len(table)} answers are not judged and no share counts them: the rules judge English "
                "only; give AnswerSettings(judge=...) for other languages"
            )
        return table, work.interrupted

    def about(self) -> dict[str, Any]:
        """What a result records about the answers and the ablation."""
        return make_provenance(
            self.model,
            about_ablation(self.rule, self.groups),
            asdict(self.settings.sampling()),
            template=self.sides.template,
            judge=judge_name(self.settings.judge),
            judged=judged_by(self.settings.judge),
            prompts=[side.prompts.tokens(self.model) for side in self.sides.by_kind().values()],
        )


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
