"""Answers of a model without some of its heads to both kinds of requests, with a judge's verdict on each answer."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, UInt8

from mechheads.engine.each import IndependentUnits
from mechheads.generation.generate import Generated, Sampling, check_writing, generate_under
from mechheads.heads import HeadId
from mechheads.ledger.sweep_key import Store
from mechheads.limits import Limits, current, settings
from mechheads.messages.arguments import check_known
from mechheads.messages.interrupted import stop_if, until_interrupted
from mechheads.model.model import Model, source_of
from mechheads.prompts.prompts import Prompts
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import share_interval
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.answers.verdicts import (
    AnswerJudge,
    Verdict,
    check_judge,
    judged_by,
    rule_judge,
    same_answer,
    verdicts,
    without_fixed,
)
from mechheads.safety.heads.ablations import Ablation
from mechheads.safety.requests.prompts import TEMPLATES, Sides, Template, answers_begun, whole_answers


class HeadsOff(NamedTuple):
    """A condition: the heads that are ablated together, and how; workers are told its name too."""

    way: Ablation
    heads: Sequence[HeadId] = ()
    name: str = ""

    def __str__(self) -> str:
        return f"the condition {self.name!r}"


@dataclass(frozen=True)
class Write:
    """Writes the answers under a condition; it can be sent to workers.

    Attributes:
        averaged: the prompts over which a mean ablation averages.
    """

    prompts: Prompts
    averaged: Prompts
    sampling: Sampling
    limits: Limits

    def __call__(self, model: Model, condition: HeadsOff) -> UInt8[np.ndarray, " byte"]:
        run, (way, heads, _) = None, condition
        with settings(budget=self.limits):
            if way.kind == "mean":
                run = HeadCache.run(model, self.averaged, sites=("z",))
            changes = [way.changes(model, heads, run)]
            (found,) = generate_under(model, self.prompts, changes, self.sampling)
        return _packed(found)


def _packed(found: Generated) -> UInt8[np.ndarray, " byte"]:
    """Whole answers as bytes, which workers send and a ledger keeps."""
    return np.frombuffer(json.dumps([found.texts, found.ids, found.finished]).encode(), np.uint8)


def _unpacked(value: UInt8[np.ndarray, " byte"]) -> Generated:
    texts, ids, finished = json.loads(value.tobytes())
    return Generated(tuple(texts), tuple(map(tuple, ids)), tuple(finished))


@dataclass(frozen=True)
class AnswerSettings:
    """How answers are generated and judged.

    Args:
        judge: a function of (request, answer) that returns ``"refused"``, ``"complied"``, ``"deflected"``,
            ``"degenerate"`` or ``"unfinished"``, and may call a language model. By default,
            ``mh.safety.rule_judge``, which reads what the first sentences do and whether an answer repeats itself. The
            answer has what the prompt already has of it: a thought that the template opens (``<think>``), or the
            beginning of an answer that a chat ends with. In the table of answers is only what the model wrote.
        template: ``"query"``, ``"bare"`` or ``"chat"``; by default, the model's chat template if it has one, otherwise
            ``"query"``.
        max_new_tokens: largest number of tokens in an answer; the paper uses 128.
        temperature, top_k: settings for sampling; a temperature of 0 is greedy. The paper also samples with top_k 5.

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
    """Which requests are answered and how, and how sets of heads are ablated.

    Attributes:
        sides: the harmful and the harmless requests, in the template of the settings.
        way: how a head is ablated, as the result records it.

    Workers, if there are any, write the answers under one condition after the other.

    Raises:
        ValueError: if ``way`` cannot ablate several heads at once, or the settings are not valid for
            ``generate_under``. It is raised before anything is run.
    """

    model: Model
    sides: Sides
    way: Ablation
    settings: AnswerSettings

    def __post_init__(self) -> None:
        self.way.check_for_sets()
        if current().limits.workers is not None:
            source_of(self.model)
        for side in self.sides.by_kind().values():
            check_writing(self.model, side.prompts, self.settings.sampling())

    def mean_run(self) -> HeadCache | None:
        """A run of the prompts over which a mean ablation averages; None for other ablations."""
        if self.way.kind != "mean":
            return None
        return HeadCache.run(self.model, self.sides.harmful.prompts, sites=("z",))

    def answers(self, sets: Mapping[str, HeadsOff], run: HeadCache | None) -> tuple[pd.DataFrame, bool]:
        """Answers to both kinds of requests with each set of heads ablated, in shared batches, with their verdicts.

        Args:
            run: from ``mean_run``.

        Returns:
            A row for each condition and request, and whether Ctrl-C was pressed. After Ctrl-C nothing new is generated,
            and answers that are unfinished or not judged have no verdict (None).
        """
        parts, work = [], until_interrupted()
        for kind, side in self.sides.by_kind().items():
            n = len(side)
            written = [Generated(("",) * n, (), (), unfinished=tuple(range(n)))] * len(sets)
            with work:
                if not work.interrupted:
                    stop_if(self._write(side.prompts, sets, run, written))
            begun = answers_begun(self.model, side.prompts)
            part = pd.concat([_table(name, kind, side.texts, each) for name, each in zip(sets, written, strict=True)])
            part["whole"] = [text for each in written for text in whole_answers(self.model, begun, each)]
            parts.append(part.assign(verdict=_judge(part, self.settings.judge, work)).drop(columns=["done", "whole"]))
        return pd.concat(parts, ignore_index=True), work.interrupted

    def _write(
        self, prompts: Prompts, sets: Mapping[str, HeadsOff], run: HeadCache | None, written: list[Generated]
    ) -> bool:
        """Fill in the answers under each condition; whether Ctrl-C stopped this. A ledger keeps whole answers."""
        names, way = [*sets], self.settings.sampling()
        runs = {"base": prompts.tokens(self.model), "source": None if run is None else run.tokens}
        asked = {name: [off.way, list(off.heads)] for name, off in sets.items()}
        with Store(current().store, analysis="answers") as store:
            ledger = store.open(self.model, runs, sampling=way, sets=asked) if current().store is not None else None
            kept = {} if ledger is None else ledger.finished()
            for name, value in kept.items():
                written[names.index(name)] = _unpacked(value.astype(np.uint8))

            def keep(indices: Sequence[int]) -> None:
                if ledger is not None:
                    ledger.commit({names[i]: _packed(written[i]).astype(np.float64) for i in indices})

            if not (left := [i for i, name in enumerate(names) if name not in kept]):
                return False
            if current().limits.workers is None:
                conditions = [each.way.changes(self.model, each.heads, run) for each in sets.values()]
                written[:] = generate_under(self.model, prompts, conditions, way)
                if not written[0].interrupted:
                    keep(left)
                return written[0].interrupted

            def take(index: int, value: UInt8[np.ndarray, " byte"]) -> None:
                written[left[index]] = _unpacked(value)
                keep([left[index]])

            write = Write(prompts, self.sides.harmful.prompts, way, current().limits.in_one_process)
            named = [sets[names[i]]._replace(name=names[i]) for i in left]
            return IndependentUnits(self.model, write, current().limits)(named, take)

    def provenance(self) -> dict[str, Any]:
        """What a result records about the answers."""
        return make_provenance(
            self.model,
            self.way.about(self.model),
            asdict(self.settings.sampling()),
            template=self.sides.template,
            judge=_name(self.settings.judge),
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
    found: list[Any] = [None] * len(answers)
    places = iter(np.flatnonzero(answers["done"]))
    done = answers[answers["done"]]

    def noted(request: str, answer: str) -> str:
        result = judge(request, answer)
        found[next(places)] = result
        return result

    noted.__name__ = getattr(judge, "__name__", type(judge).__name__)
    with work:
        verdicts(done["request"].tolist(), done["whole"].tolist(), noted)
    if judge is rule_judge:
        for rows in answers.groupby("condition").indices.values():
            asked, written = (answers[name].iloc[rows].tolist() for name in ("request", "answer"))
            for row, one in zip(rows, without_fixed(asked, written, [found[row] for row in rows]), strict=True):
                found[row] = one
    return found


def _name(judge: AnswerJudge) -> str:
    return getattr(judge, "__name__", repr(judge))


def verdict_share(answers: pd.DataFrame, condition: str, kind: str, verdict: str) -> tuple[float, float, float]:
    """The share of answers with this verdict, and its 95% interval (Wilson's); NaN if a verdict is missing."""
    found = is_verdict(answers, condition, kind, verdict)
    low, high = share_interval(found.mean(), np.array(len(found)))
    return float(found.mean()), float(low), float(high)


def is_verdict(answers: pd.DataFrame, condition: str, kind: str, verdict: str) -> Float[np.ndarray, " prompt"]:
    """For each request of a kind, 1 if its answer under a condition has this verdict, 0 if not, NaN without verdict."""
    part = answers[(answers["condition"] == condition) & (answers["kind"] == kind)]
    return np.where(pd.isna(part["verdict"]), np.nan, part["verdict"] == verdict)


def same_told(answers: pd.DataFrame, condition: str, kind: str) -> str:
    """That one answer went to most requests of a kind, for a sentence; empty if that is not so."""
    part = answers[(answers["condition"] == condition) & (answers["kind"] == kind)]
    same, of = same_answer(part["request"].tolist(), part["answer"].tolist(), part["verdict"].tolist())
    return f"the same answer to {same} of {of} {kind} requests" if same else ""


def judged(answers: pd.DataFrame) -> str:
    """How many of the answers have a verdict, after Ctrl-C."""
    return f"{int(answers['verdict'].notnull().to_numpy().sum())} of {len(answers)} answers"
