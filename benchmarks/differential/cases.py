"""One case: drawn, run in both ways, and judged."""

from __future__ import annotations

import dataclasses
import random
import re
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import transformers
from hypothesis import strategies as st

import mechheads as mh
from benchmarks.differential import containers
from benchmarks.differential.changes import CHANGES, SURROUNDINGS, NotThere
from benchmarks.differential.containers import CONTAINERS, NotSo, Reading
from benchmarks.differential.models import (
    ARCHITECTURES,
    DTYPES,
    FILES,
    TEMPLATES,
    TOKENIZERS,
    Shelf,
    is_routed,
)
from benchmarks.differential.oracles import ANALYSES, ANSWERS, CLUSTERS, Question, new_store
from support.plain import Plain, load_plain
from support.tiny_families import FAMILIES, WORDS

Verdict = Literal["equal", "refused", "finding", "not possible"]
BEFORE = ("nothing", "run", "ledger", "job")
"""What was done with a model before its change: the same analysis, with a ledger or without, or a job prepared."""

SECONDS = 120
"""A case that takes longer hangs."""


@dataclass(frozen=True)
class Case:
    """What is drawn; the first of each kind is the ordinary one."""

    analysis: str = "cache"
    container: str = "list"
    texts: tuple[tuple[int, ...], ...] = ((0, 1),)
    architecture: str = "llama"
    tokenizer: str = "bytes"
    template: str = "none"
    dtype: str = "float32"
    file: str = "plain"
    change: str = "nothing"
    before: str = "nothing"
    around: str = "nothing"
    answers: str = "ids"
    cluster: str = "none"
    last: bool = False

    @property
    def special(self) -> dict[str, Any]:
        """What is not ordinary in it."""
        own = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {name: value for name, value in own.items() if value != getattr(_ORDINARY, name)}

    def script(self) -> str:
        """A script that runs it, from the root of the repository."""
        given = ", ".join(f"{name}={value!r}" for name, value in self.special.items())
        return f"from benchmarks.differential.cases import Case, show\n\nshow(Case({given}))"


_ORDINARY = Case()


@dataclass(frozen=True)
class Outcome:
    """How a case ended.

    Attributes:
        verdict: its kind.
        what: one or two words of what is wrong.
        why: the whole of it.
        told: the warnings of mechheads.
    """

    verdict: Verdict
    what: str = ""
    why: str = ""
    told: tuple[str, ...] = ()


World = tuple[str, str, str, str, str]
"""Architecture, tokenizer, template, dtype and file: what a loaded model depends on."""


def worlds(chance: random.Random, n: int) -> list[World]:
    """The ordinary world, and some others; models are loaded once for many cases."""

    def mostly(names: Iterable[str], share: float) -> str:
        first, *others = names
        return first if chance.random() < share else chance.choice(others)

    drawn = [
        (
            mostly(ARCHITECTURES, 0.1),
            mostly(TOKENIZERS, 0.3),
            mostly(TEMPLATES, 0.3),
            mostly(DTYPES, 0.75),
            mostly(FILES, 0.75),
        )
        for _ in range(n)
    ]
    return [("llama", "bytes", "none", "float32", "plain"), *drawn]


def _mostly(names: Iterable[str], ordinary: int) -> st.SearchStrategy[Any]:
    """One of some names; the first ``ordinary`` times as often as another."""
    first, *others = names
    return st.sampled_from([*[first] * ordinary, *others])


def cases(
    in_worlds: list[World], analysis: Iterable[str] = ANALYSES, container: Iterable[str] = CONTAINERS
) -> st.SearchStrategy[Case]:
    """All cases in some worlds; the simplest is the first of everything."""
    texts = st.lists(
        st.lists(st.integers(0, len(WORDS) - 1), min_size=2, max_size=7).map(tuple), min_size=1, max_size=4
    ).map(tuple)
    return st.builds(
        _sensible,
        world=st.sampled_from(in_worlds),
        analysis=st.sampled_from(list(analysis)),
        container=_mostly(container, len(CONTAINERS) // 2),
        texts=texts,
        change=_mostly(CHANGES, len(CHANGES)),
        before=_mostly(BEFORE, 3),
        around=_mostly(SURROUNDINGS, 24),
        answers=_mostly(ANSWERS, len(ANSWERS) * 2),
        cluster=_mostly(CLUSTERS, len(CLUSTERS) * 4),
        last=st.booleans(),
    )


def _sensible(world: World, **drawn: Any) -> Case:
    """The case, without what has no effect in it: a case says what it takes to see something."""
    of_world = dict(zip(("architecture", "tokenizer", "template", "dtype", "file"), world, strict=True))
    case, analysis = Case(**of_world, **drawn), ANALYSES[drawn["analysis"]]
    plain: dict[str, Any] = {}
    if CONTAINERS[case.container].kind == "chat" and case.template == "none":
        plain["template"] = "chatml"
    if not analysis.takes:
        plain |= {"container": "list", "texts": _ORDINARY.texts, "template": "none"}
    if not analysis.answers:
        plain |= {"answers": "ids", "cluster": "none"}
    if case.analysis.split(",")[0] not in ("ablate", "sweep"):
        plain["last"] = False
    if "adapter" in case.file:
        if case.analysis == "weights":
            plain["analysis"] = "cache"  # the plain way leaves adapters beside the weights
        plain["change"] = "nothing"  # a merged adapter has none of the weights that the plain way changes
    if plain.get("change", case.change) == "nothing":
        plain["before"] = "nothing"
    if case.before == "ledger" and not analysis.store:
        plain["before"] = "run"
    if case.before == "job" and not case.analysis.startswith("ablate, zero"):
        plain["before"] = "run"
    if case.dtype == "bfloat16" and is_routed(case.architecture):
        plain["dtype"] = "float32"
    if case.change == "to half precision and back":
        plain["dtype"] = "float32"
    return dataclasses.replace(case, **plain)


def run_case(case: Case, shelf: Shelf) -> Outcome:
    """Run a case in both ways, and judge it. A finding is tried again with a model that nobody has used."""
    first = _run_case(case, shelf)
    if first.verdict != "finding":
        return first
    shelf.forget()
    again = _run_case(case, shelf)
    if again.verdict == "finding":
        return again
    return dataclasses.replace(first, what=f"{first.what}, after other analyses of the same model")


def _run_case(case: Case, shelf: Shelf) -> Outcome:
    with warnings.catch_warnings(record=True) as seen, _unless_it_hangs():
        warnings.simplefilter("always")
        try:
            outcome = _run(case, shelf)
        except (NotSo, NotThere) as error:
            return Outcome("not possible", str(error))
        except _Hangs:
            outcome = Outcome("finding", "hangs", f"after {SECONDS} s")
    told = tuple(
        dict.fromkeys(
            str(each.message) for each in seen if "mechheads" in each.filename or "differential" in each.filename
        )
    )
    return dataclasses.replace(outcome, told=told)


class _Hangs(BaseException):
    pass


@contextmanager
def _unless_it_hangs() -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise _Hangs

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run(case: Case, shelf: Shelf) -> Outcome:
    folder = shelf.folder(case.architecture, case.tokenizer, case.template, case.file)
    if folder is None:
        raise NotThere(f"no {case.file!r} for {case.architecture}")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    container = CONTAINERS[case.container]
    readings = [Reading([_text(words) for words in each], tokenizer) for each in (case.texts, _corrupted(case.texts))]
    (_, rows), (_, corrupted) = (container.make(each) for each in readings)
    analysis = ANALYSES[case.analysis]
    question = Question(
        bring=lambda side: container.make(readings[side])[0],
        rows=readings[0].rows if rows is None else rows,
        corrupted=readings[1].rows if corrupted is None else corrupted,
        texts=readings[0].texts[: None if rows is None else len(rows)] if container.kind == "text" else [],
        tokenizer=tokenizer,
        heads=tuple((layer, (layer + len(case.texts[0])) % 4) for layer in range(3)),
        last=case.last,
        answers=case.answers,
        cluster=case.cluster,
    )
    if ("texts" in case.answers or "strings" in case.answers) and container.kind != "text":
        raise NotSo("texts of answers are found for texts only")
    meaningless = _meaningless(case, question, rows)
    aligned = [len(row) for row in question.rows] == [len(row) for row in question.corrupted]
    if not meaningless and analysis.pairs and not aligned:
        meaningless = "pairs that do not align"
    judge = None if meaningless else _Truth(case, folder, question, shelf)
    try:
        ours = _ours(case, folder, question, shelf)
    except (NotThere, NotSo):
        raise
    except Exception as error:
        return _refusal(error, case, may=bool(meaningless) or _may_refuse(case))
    if isinstance(ours, str):
        return Outcome("finding", "left behind", ours)
    if judge is None:
        return Outcome("finding", "read in silence", f"{meaningless}: gave {_shown(ours)}")
    try:
        return judge.outcome(ours)
    except NotThere:
        raise
    except Exception as error:
        trace = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(
            "finding", "the plain way fails", f"{type(error).__name__}: {error} [{trace.name}:{trace.lineno}]"
        )


def _text(words: tuple[int, ...]) -> str:
    return " ".join(WORDS[word] for word in words)


def _corrupted(texts: tuple[tuple[int, ...], ...]) -> list[tuple[int, ...]]:
    """Other texts of as many words."""
    return [(*words[:-1], (words[-1] + 7) % len(WORDS)) for words in texts]


def _meaningless(case: Case, question: Question, rows: Any) -> str:
    """Why the case must be refused; empty if it has a meaning."""
    if FILES[case.file][1] == "refused":
        return f"a folder with {case.file!r}"
    if rows is None:
        return f"prompts in {case.container!r}"
    if ANALYSES[case.analysis].answers:
        if not question.brought[2]:
            return f"answers in {case.answers!r}"
        if not question.clusters[1]:
            return f"clusters in {case.cluster!r}"
    return ""


def _may_refuse(case: Case) -> bool:
    """Whether a refusal is an answer too, because something is not ordinary."""
    container, analysis = CONTAINERS[case.container], ANALYSES[case.analysis]
    ordinary = (
        container.must == "equal"
        and (not analysis.takes or container.kind in analysis.takes)
        and CHANGES[case.change][1] == "equal"
        and FILES[case.file][1] == "equal"
        and case.answers in ("ids", "texts")
        and case.cluster in ("none", "texts")
        and case.architecture in FAMILIES
        and "longrope" not in case.architecture  # reads short prompts only, and says so
        and case.dtype == "float32"
        and case.around in ("nothing", "inference mode")
    )
    return not ordinary


def _model(folder: Path, dtype: torch.dtype) -> mh.Model:
    """The model of a folder; one with an adapter comes from peft."""
    if not folder.with_name(f"{folder.name} base").exists():
        return mh.load(folder, dtype=dtype)
    return mh.wrap(
        _plain(folder, dtype, double=False), transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    )


def _ours(case: Case, folder: Path, question: Question, shelf: Shelf) -> list[Any] | str:
    """What mechheads gives; a text if the model or torch is left otherwise."""
    analysis, (change, must) = ANALYSES[case.analysis], CHANGES[case.change]
    with ExitStack() as stack, mh.settings(progress=False):
        dtype = DTYPES[case.dtype]
        new = partial(_model, folder, dtype)
        model = new() if change else shelf.loaded(("ours", folder, dtype), new)
        if case.before == "ledger":
            question.store = new_store()
            stack.callback(shutil.rmtree, Path(question.store).parent, ignore_errors=True)
        run: Callable[[], list[Any]] = lambda: analysis.ours(model, question)  # noqa: E731
        if case.before == "job":
            job = mh.prepare(model, question.bring(0))
            run = lambda: question.picked(mh.ablate(job, heads=question.names, positions=question.positions))  # noqa: E731
        elif case.before != "nothing":
            analysis.ours(model, question)
        untouched = _state(model)
        if change is not None:
            _apply(change, model.model.original_model, stack)
        before = _state(model)
        own = "the model's own logits"
        if must == "either" and change is not None and before[own] == untouched[own]:
            raise NotThere("TransformerLens does not run what was changed")
        with SURROUNDINGS[case.around]():
            found = run()
        left = [name for name, value in _state(model).items() if value != before[name]]
        return f"changed: {', '.join(left)}" if left else found


def _apply(change: Callable[[Any], Any], model: Any, stack: ExitStack) -> None:
    try:
        undo = change(model)
    except NotThere:
        raise
    except Exception as error:
        raise NotThere(f"it cannot be changed so: {type(error).__name__}") from error
    if callable(undo):
        stack.callback(undo)


def _state(model: mh.Model) -> dict[str, Any]:
    """What an analysis must leave as it was."""
    own = model.model.original_model
    said = 0.0
    with torch.no_grad(), suppress(Exception):
        if not own.training:
            said = float(own(input_ids=torch.tensor([[5, 6, 7, 8]]), use_cache=False).logits.double().sum())
    return {
        "the model's own logits": said,
        "train mode": [each.training for each in own.modules()],
        "hooks": sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in own.modules()),
        "gradients": [each.requires_grad for each in own.parameters()],
        "torch's random numbers": torch.get_rng_state().numpy().tobytes(),
        "numpy's random numbers": repr(np.random.get_state()),  # pyright: ignore
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "verbosity of transformers": transformers.logging.get_verbosity(),
    }


class _Truth:
    """What plain transformers gives.

    A change is made and undone before our own run, because some change what both share.
    """

    def __init__(self, case: Case, folder: Path, question: Question, shelf: Shelf) -> None:
        self.case, self.question = case, question
        self._change = CHANGES[case.change][0]

        def load(*, exact: bool) -> Any:
            def new() -> Any:
                return _plain(folder, DTYPES[case.dtype], double=exact and FAMILIES[family].double)

            return new() if self._change else shelf.loaded(("plain", folder, case.dtype, exact), new)

        family = case.architecture.removesuffix("-bidirectional")
        self._models = [load(exact=True)]
        if case.dtype == "bfloat16":
            self._models.append(load(exact=False))
        if self._change is not None:  # so that a change that is not possible is seen at once
            with ExitStack() as stack:
                _apply(self._change, _plain(folder, torch.float32, double=False), stack)

    def outcome(self, ours: list[Any]) -> Outcome:
        checks = []
        for model in self._models:
            with ExitStack() as stack, torch.no_grad():
                if self._change is not None:
                    _apply(self._change, model, stack)
                try:
                    checks.append(ANALYSES[self.case.analysis].check(Plain(model), self.question, ours))
                except ValueError as error:
                    if "zip()" in str(error):
                        return Outcome("finding", "other prompts", f"{len(ours)} for {len(self.question.rows)}")
                    raise
        off = _differences(checks, self.case.dtype)
        return Outcome("finding", "wrong numbers", "; ".join(off)) if off else Outcome("equal")


def _plain(folder: Path, dtype: torch.dtype, *, double: bool) -> Any:
    """The model of a folder, or the one with its adapter; if asked for, the same weights in float64."""
    base = folder.with_name(f"{folder.name} base")
    model = load_plain(base if base.exists() else folder, dtype)
    if base.exists():
        import peft

        model = peft.PeftModel.from_pretrained(model, str(folder), trust_remote_code=False).eval()
    return model.double() if double else model


def _differences(checks: list[list[tuple[str, np.ndarray, np.ndarray]]], dtype: str) -> list[str]:
    """A line for each thing that differs by more than rounding."""
    rounding = {name: 0.0 for name, _, _ in checks[0]}
    if len(checks) > 1:
        for (name, _, truth), (_, _, rounded) in zip(*checks, strict=True):
            if truth.shape == rounded.shape:
                rounding[name] = max(rounding[name], 8 * float(np.abs(truth - rounded).max(initial=0.0)))
    # in half precision, KL divergences of some tiny models differ by 6%, and logits of 5 to 10 are rounded to 1 / 32
    share, least = (0.1, 0.05) if dtype == "bfloat16" else (2e-4, 2e-5)
    lines = []
    for name, ours, truth in checks[0]:
        if ours.shape != truth.shape:
            lines.append(f"{name} has the shape {ours.shape}, not {truth.shape}")
            continue
        most = rounding[name] + share * float(np.nan_to_num(np.abs(truth)).max(initial=0.0)) + least
        apart = np.where(np.isnan(ours) & np.isnan(truth), 0.0, np.abs(ours - truth))
        if not bool((apart <= most).all()):
            at = np.unravel_index(int(np.nan_to_num(apart, nan=np.inf).argmax()), apart.shape)
            lines.append(
                f"{name} is {ours[at]:.5g}, not {truth[at]:.5g}, at {tuple(map(int, at))} (allowed {most:.1e})"
            )
    return lines


def _shown(found: Any) -> str:
    return re.sub(r"\s+", " ", repr(found))[:160]


_PACKAGE = Path(mh.__file__).parent
_NAMES = (
    r"\b(model|prompts?|items?|clean|corrupted|pairs?|answers?|wrong|cluster|requests?|tasks?|targets?|positions|dtype|"
    r"input_ids|attention_mask|name_or_path|texts?|chats?|messages?|adapter|folder)\b"
)


def _is_of_us(error: Exception) -> bool:
    kind = type(error)
    return kind in (ValueError, TypeError) or (kind.__module__.startswith("mechheads") and issubclass(kind, ValueError))


def _refusal(error: Exception, case: Case, *, may: bool) -> Outcome:
    """Whether an error is a refusal in a sentence that names the argument."""
    text, frames = str(error), traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if Path(frame.filename).is_relative_to(_PACKAGE)]
    if not own and any(Path(frame.filename) == Path(containers.__file__) for frame in frames):
        raise NotSo(f"the container cannot be made: {text[:200]}") from error
    last = frames[-1].filename
    where = f"{Path(last).name}:{frames[-1].lineno} {frames[-1].name}"
    said = f"{type(error).__name__}: {text[:400]} [{where}]"
    if not _is_of_us(error) or not own or own[-1] is not frames[-1]:
        at = f"{Path(own[-1].filename).name} {own[-1].name}" if own else ""
        return Outcome("finding", f"error of a library ({type(error).__name__} in {at})", said)
    if len(text) > 1200 or "Traceback" in text or "\n\n" in text:
        return Outcome("finding", "a refusal that is no sentence", said)
    if not re.search(_NAMES, text):
        return Outcome("finding", "a refusal that names no argument", said)
    if not may:
        return Outcome("finding", "refuses what is ordinary", said)
    return Outcome("refused", where, said)


def show(case: Case) -> Outcome:
    """Run one case, and print how it ended."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="mh") as made, nullcontext():
        outcome = run_case(case, Shelf(Path(made)))
    print(f"{outcome.verdict}: {outcome.what}\n{outcome.why}")
    for warning in outcome.told:
        print(f"told: {warning}")
    return outcome
