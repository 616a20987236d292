"""Builds the atlas of a model: one analysis after the other, without those that cannot be done."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

from mechheads.behaviour import logit_attribution
from mechheads.behaviour.examples import profile_and_examples
from mechheads.behaviour.windows import Texts
from mechheads.engine.report import AnswerWarning
from mechheads.heads import HeadId
from mechheads.labels import label_heads, relation_scores
from mechheads.labels.relations import LEAST_PAIRS, Relations, in_vocabulary
from mechheads.limits import current
from mechheads.messages.notices import stop_if
from mechheads.metrics import Metric, kl_divergence, log_prob, logit_diff
from mechheads.model.analysis import analysis, written
from mechheads.model.model import Model
from mechheads.patching.activation import activation_patch
from mechheads.patching.circuits import faithfulness_curve
from mechheads.patching.path import path_matrix
from mechheads.prompts.encoding import token_strings
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.metadata import SUBJECTS
from mechheads.results.provenance import in_call
from mechheads.results.scores import HeadScores
from mechheads.safety.heads.ablations import PAPER_KINDS
from mechheads.safety.heads.safety_heads import compare_ablations
from mechheads.safety.requests import Requests, Side, load_requests
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import HeadPatterns, head_patterns
from mechheads.studies.questions import (
    PARTS,
    TEMPLATES,
    Names,
    PairsLike,
    Questions,
    capital_pairs,
    first,
)
from mechheads.studies.study import QUICK_RELATIONS, difference, finished, progress_printer

T = TypeVar("T")
_PAIRS, _QUICK_PAIRS = 16, 8
_REQUESTS, _SAFETY_HEADS = 8, 10
"""How many of the package's requests, and of their look-alikes, are used; and how many heads count as first."""
_TEXT, _QUICK_TEXT = 6000, 2000
"""How many tokens of text are read, by default and with ``quick``."""
_PAIRS_OF_PATHS = 4
_SENDERS, _RECEIVERS = 12, 3
"""How many heads with the largest effect send a patched path, and how many of these receive one."""
_SHOWN, _TOKENS_SHOWN = 8, 512
"""The most prompts of your own pairs whose patterns are in the atlas, and the most tokens of all together."""
_RESULTS = {part: part for part in ("patching", "labels", "safety")} | {"text": "profile"}
"""The field of an atlas that a finished part always fills."""


@analysis
def build_atlas(
    model: Model,
    *,
    pairs: PairsLike | None = None,
    relations: Relations | None = None,
    requests: Requests = None,
    texts: Texts = None,
    only: Names = None,
    quick: bool = False,
    resume: Atlas | None = None,
    after_each: Callable[[Atlas], object] | None = None,
) -> Atlas:
    """What every head of a model does on text, labels from weights, activation patching and safety heads.

    Ctrl-C returns the atlas so far; with ``mh.settings(store=)``, finished work also survives a kill. In a shell,
    ``mechheads atlas`` does the same.

    Args:
        pairs: the prompts that are patched, or a file with the columns ``clean``, ``corrupted`` and optionally
            ``answer``, ``wrong`` and ``cluster``. Effects are on the logit difference; without ``wrong``, on the
            log-probability of ``answer``; without both, on the next-token distribution, as KL divergence.
        relations: as in ``mh.relation_scores``: names, files or relations.
        requests: as in ``mh.safety_heads``; by default eight of the package, each with its harmless look-alike.
        texts: as in ``mh.profile_heads``.
        only: the parts to do: "patching", "text" (profile and examples), "labels",
            "causes" (patterns, direct effects, circuit and paths) and "safety" (by Undifferentiated Attention).
        quick: less text, and fewer relations, pairs and requests of the package: a first look.
        resume: an atlas of the same study, such as an interrupted one or ``mh.studies.Atlas.load(folder)``: parts that
            are done are taken from it, and its own scores.
        after_each: called with the atlas so far after each analysis, for example to save it.

    By default, the pairs are about capitals, the requests are harmful, and the relations and texts are the package's.
    An analysis of these is left out if its words are not in the vocabulary, or its prompts are too long for the
    context; ``notes`` says which and why.

    Raises:
        ValueError: before any work, if something does not exist, cannot be read or does not fit the model, or
            ``resume`` is of another study.

    >>> pairs = mh.PromptPairs(["The keys", "The cars"], ["The key", "The car"], [" are"] * 2, [" is"] * 2)
    >>> atlas = mh.build_atlas(model, pairs=pairs, only=["patching"])
    >>> atlas.patching.n_layers, atlas.pairs[0]["answer"]
    (30, ' are')
    """
    if not callable(after_each or print):
        raise ValueError(f"after_each is {after_each!r}; give a function of the atlas")
    inputs = {"pairs": pairs, "relations": relations, "requests": requests, "texts": texts}
    questions = Questions.of(model, quick=quick, only=only, **inputs)
    builder = _Builder(model, questions, resume, after_each or (lambda atlas: None))
    # The questions are in ``study``, as hashes, and not in the provenance of each result.
    in_call({"seed": current().seed, "quick": quick}, builder.run)
    return builder.atlas


class _Builder:
    """The parts of an atlas that are still to do, with their inputs; no pairs if there are too few capitals."""

    def __init__(
        self, model: Model, questions: Questions, resume: Atlas | None, show: Callable[[Atlas], object]
    ) -> None:
        self.model, self.questions, self._show = model, questions, show
        self.atlas = _starting_atlas(model, questions, resume)
        self.left = [part for part in questions.parts if part not in self.atlas.done]
        n_pairs = _QUICK_PAIRS if questions.quick else _PAIRS
        self.pairs = capital_pairs(model, n_pairs) if questions.pairs is None else questions.pairs
        self.metric = _metric(self.pairs)
        self.requests, self.look_alikes = questions.requests, None
        if questions.requests is None:
            which = slice(0, 2 * _REQUESTS, 5 if questions.quick else 2)
            sides = (load_requests(name, "test")[which] for name in ("harmful", "harmless"))
            self.requests, self.look_alikes = map(list, sides)
        self._do_part: dict[str, Callable[[], None]] = {
            "patching": self._patching,
            "text": self._text,
            "labels": self._labels,
            "causes": self._causes,
            "safety": self._safety,
        }
        self._describe()

    def run(self) -> None:
        """Do everything that is left, until Ctrl-C."""
        say = progress_printer()
        say(f"{self.model!r}")
        if done := [part for part in self.questions.parts if part in self.atlas.done]:
            say(f"kept from before: {', '.join(done)}")
        if not self.left:
            say("nothing is left to do")
        with self.atlas.interruptible():
            if self.questions.pairs is None:  # few and short, so that the page soon shows something
                self._do("patching")
            for part in PARTS:
                self._do(part)

    def _describe(self) -> None:
        """Record the questions in the atlas."""
        atlas, names, parts = self.atlas, self.questions.names, set(self.questions.parts)
        if parts & {"patching", "causes"} and self.pairs is not None:
            atlas.pairs = _texts_of(self.model, self.pairs)
            atlas.asked |= _entry(SUBJECTS if self.questions.pairs is None else names, "pairs")
            if self.questions.pairs is None:
                n, wordings = len(self.pairs), min(len(self.pairs), len(TEMPLATES))
                atlas.asked["pairs_vary"] = f"{n} pairs, {n} countries, {wordings} wordings, as plain text"
        if "safety" in parts:
            atlas.requests = [*Side.of(self.model, self.requests, "query").texts]
            atlas.asked |= _entry(SUBJECTS if self.questions.requests is None else names, "requests")
            if self.look_alikes is not None:
                n = len(self.look_alikes)
                atlas.asked["requests_vary"] = f"{n} requests, {n} categories, each with a harmless look-alike"

    def _do(self, part: str) -> None:
        """Do one part if it is still to do, and show the atlas."""
        if part in self.left:
            self.left.remove(part)
            self._do_part[part]()
            if self.atlas.results or self.atlas.tables:
                self._show(self.atlas)
            if self.left:
                done = len(self.questions.parts) - len(self.left)
                progress_printer()(f"{done} of {len(self.questions.parts)} parts are done; Ctrl-C keeps them")

    @contextmanager
    def _part(self, part: str) -> Iterator[None]:
        """A stage for a whole part: the part is done after the last line, and left out if it cannot be done."""
        with self.atlas.leaving_out(PARTS[part][0]), self.atlas.stage(part):
            yield
            self.atlas.done.append(part)

    @property
    def _n_tokens(self) -> int:
        return _QUICK_TEXT if self.questions.quick else _TEXT

    def _patching(self) -> None:
        if self.pairs is None:
            self.atlas.note("patching left out: fewer than 2 countries have a name and a capital of one token each")
            return
        with self._part("patching"):
            self.atlas.patching = activation_patch(self.model, self.pairs, normalize=True, metric=self.metric)
            finished(self.atlas.patching)
            if self.metric is log_prob:
                self.atlas.note("the pairs have no wrong answers: effects are on the log-probability of the answers")
            if self.metric is kl_divergence:
                self.atlas.note(
                    "the pairs have no answers: effects are on the next-token distribution, as KL divergence, which "
                    "has no sign, and the direct effect is in the logit of the most likely token"
                )

    def _text(self) -> None:
        with self._part("text"):
            profile, examples = profile_and_examples(self.model, self.questions.texts, n_tokens=self._n_tokens)
            texts = "" if self.questions.texts is None else f", {written(self.questions.texts) or 'texts'}"
            call = f"mh.profile_heads(model{texts}, n_tokens={self._n_tokens}{_seed()})"
            self.atlas.profile = profile.with_provenance(call=call)
            self.atlas.examples = self._with_call(examples, "text", "examples")
            stop_if(self.atlas.examples.interrupted)

    def _with_call(self, result: T, parts: str, field: str) -> T:
        """A table with the call that gives it again: an atlas of these parts alone."""
        inputs = {"pairs": self.questions.pairs, "texts": self.questions.texts}
        own = "".join(f", {name}={written(value) or name}" for name, value in inputs.items() if value is not None)
        table: Any = result
        call = (
            f"mh.build_atlas(model{own}, only={parts.split(',')}"
            f"{', quick=True' * self.questions.quick}{_seed()}).{field}"
        )
        return replace(table, provenance={**table.provenance, "call": call})

    def _labels(self) -> None:
        relations, options = self.questions.relations, dict[str, Any]()
        with self._part("labels"):
            own = relations if relations or not self.questions.quick else QUICK_RELATIONS
            if relations is None and self.questions.quick:
                relations = in_vocabulary(QUICK_RELATIONS, self.model.tokenizer)
                options = {"min_pairs": LEAST_PAIRS}
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                scores = relation_scores(self.model, relations, **options)
            for warning in caught:
                self.atlas.note(str(warning.message))
            call = f"mh.relation_scores(model{f', {written(own)}' if own else ''}{_seed()})"
            self.atlas.relations = scores.with_provenance(call=call)
            self.atlas.labels = label_heads(self.atlas.relations)
            finished(self.atlas.relations)

    def _causes(self) -> None:
        """Patterns, direct effects, circuit and paths, as far as each can be computed."""
        model, atlas, pairs = self.model, self.atlas, self.pairs
        with atlas.stage("causes"), warnings.catch_warnings():
            warnings.simplefilter("ignore", AnswerWarning)  # the patching has warned
            with atlas.leaving_out("patterns"):
                atlas.patterns = self._with_call(self._patterns(), "causes", "patterns")
            if pairs is not None:
                with atlas.leaving_out("direct effects"):
                    atlas.direct = finished(logit_attribution(model, pairs))
                if atlas.patching is None or "patching" not in atlas.done:  # an interrupted one ranks too few heads
                    atlas.note("circuit and paths left out: they begin with the heads of the patching")
                    return
                with atlas.leaving_out("circuit"):
                    curve = faithfulness_curve(model, pairs, atlas.patching, self.metric)
                    atlas.circuit = self._with_call(curve, "patching,causes", "circuit")
                with atlas.leaving_out("paths"):
                    senders, receivers = path_ends(atlas.patching)
                    few, metric = first(pairs, _PAIRS_OF_PATHS), self.metric
                    atlas.paths = finished(path_matrix(model, few, receivers=receivers, senders=senders, metric=metric))
            atlas.done.append("causes")

    def _patterns(self) -> HeadPatterns:
        """The patterns in the clean prompts; of your own pairs, in as many as a page has room for."""
        pairs = self.pairs
        if pairs is None or self.questions.pairs is None:
            return head_patterns(self.model, [] if pairs is None else pairs.clean)
        few = first(pairs, _SHOWN)
        rows = few.side("clean").tokens(self.model).strings
        n = 0
        while n < len(rows) and sum(map(len, rows[: n + 1])) <= _TOKENS_SHOWN:
            n += 1
        return head_patterns(self.model, few.clean[:n], _as_texts(few.clean[:n], rows))

    def _safety(self) -> None:
        with self._part("safety"):
            self.atlas.safety = compare_ablations(
                self.model,
                self.requests,
                _SAFETY_HEADS,
                harmless=self.look_alikes,
                ablations=PAPER_KINDS[:1],
            )
            for scores in self.atlas.safety.values():
                finished(scores)


def _starting_atlas(model: Model, questions: Questions, resume: Atlas | None) -> Atlas:
    """The atlas to begin with: a new one, or the finished parts of ``resume``."""
    if resume is None:
        return Atlas(model.name, study=questions.study)
    if differs := difference(questions.study, resume.study):
        raise ValueError(f"resume is an atlas of another study: {differs}")
    # a part whose file was deleted is done again
    lacks = {part for part, field in _RESULTS.items() if not getattr(resume, field)}
    done = [part for part in resume.done if part not in lacks]
    again = tuple(name for part in questions.parts if part not in done for name in PARTS[part])
    return replace(
        resume,
        safety=dict(resume.safety),
        own=dict(resume.own),
        asked=dict(resume.asked),
        seconds=dict(resume.seconds),
        notes=[note for note in resume.notes if not note.startswith(("interrupted: ", *again))],
        done=done,
        interrupted=False,
    )


def path_ends(patching: HeadScores) -> tuple[list[HeadId], list[str]]:
    """The senders and receivers of the patched paths: the heads with the largest effect, and the logits."""
    senders = list(patching.heads(_SENDERS, by="absolute"))
    first = min(head.layer for head in senders)
    later = [head for head in senders if head.layer][:_RECEIVERS]
    return senders, ["final", *(f"{head}.{way}" for head in later if head.layer > first for way in "qkv")]


def _seed() -> str:
    """The seed as an argument of a call, if it is not 0."""
    return f", seed={current().seed}" if current().seed else ""


def _metric(pairs: PromptPairs | None) -> Metric:
    """The metric that the answers of the pairs allow."""
    if pairs is not None and pairs.answer is None:
        return kl_divergence
    return log_prob if pairs is not None and pairs.wrong is None else logit_diff


def _texts_of(model: Model, pairs: PromptPairs) -> list[dict[str, str]]:
    """The texts of pairs; chats and token ids as the model reads them, and missing answers as empty texts."""
    clean, corrupted = pairs.tokens(model)

    def answers(column: Sequence[str | int] | None) -> list[str]:
        every = [""] * len(pairs) if column is None else column
        return [one if isinstance(one, str) else token_strings([one], model.tokenizer)[0] for one in every]

    texts = {
        "clean": _as_texts(pairs.clean, clean.strings),
        "corrupted": _as_texts(pairs.corrupted, corrupted.strings),
        "answer": answers(pairs.answer),
        "wrong": answers(pairs.wrong),
    }
    return [{name: column[i] for name, column in texts.items()} for i in range(len(pairs))]


def _as_texts(prompts: Sequence[Any], rows: Sequence[Sequence[str]]) -> list[str]:
    """Prompts as texts; chats and ids as their tokens."""
    return [one if isinstance(one, str) else "".join(row) for one, row in zip(prompts, rows, strict=False)]


def _entry(names: Mapping[str, str], key: str) -> dict[str, str]:
    return {key: names[key]} if key in names else {}
