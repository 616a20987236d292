"""``check_intervention`` and ``check_metric``: test that an extension behaves as the engine assumes."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import pickle
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.metrics.base import MetricInfo, name_of
from mechheads.model.load import load
from mechheads.model.model import Model
from mechheads.prompts.given import Unpadded
from mechheads.prompts.prompts import PromptPairs, Prompts, as_prompts
from mechheads.testing.other_places import sets, text
from mechheads.testing.trials import InterventionTrial, MetricTrial, Wrong

_PLAIN = "a @dataclass(frozen=True) whose fields are plain numbers, texts and tuples of them"


@dataclass(frozen=True)
class Check:
    """One check: its name, its outcome, and what was found."""

    name: str
    outcome: Literal["passed", "failed", "not run"]
    seen: str


@dataclass(frozen=True, repr=False)
class Report:
    """The result of checking an intervention or a metric; prints as a short list.

    Attributes:
        of: the name of the intervention or metric.
        checks: the checks, each with its name, ``"passed"``, ``"failed"`` or ``"not run"``, and what was found.
        notes: observations that are not failures.
    """

    of: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...]

    @property
    def failed(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.outcome == "failed")

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    def __str__(self) -> str:
        title = f"{self.of}: all {len(self.checks)} checks passed"
        if self.failed:
            title = f"{self.of} fails {len(self.failed)} of {len(self.checks)} checks"
        lines = [f"  {check.name}{_SIGN[check.outcome]}: {check.seen}" for check in self.checks]
        return "\n".join([title, *lines, *(f"  note: {note}" for note in self.notes)])

    __repr__ = __str__


_SIGN = {"passed": "", "failed": " FAILED", "not run": " (not run)"}


class CheckFailed(AssertionError):
    """Some checks failed. The message lists these; ``report`` holds all checks."""

    def __init__(self, report: Report) -> None:
        self.report = report
        lines = [f"  {check.name}: {check.seen}" for check in report.failed]
        super().__init__("\n".join([str(report).splitlines()[0], *lines]))


def check_intervention(intervention: Any, model: Model | None = None, prompts: AnyPrompts | None = None) -> Report:
    """A report of whether an intervention behaves as the engine assumes.

    These are the checks. The intervention takes (value, context) and names a site that exists. It returns a finite
    tensor with the shape, dtype and device of its input, and the same tensor when it is called again. It does not write
    to the cached runs, and ``needs`` declares everything that it reads. It does not depend on padding. If it is a
    dataclass, it is hashable and equal to itself after pickling. Finally, ``mh.sweep``, sets of heads
    (``mh.patching.patch_sets``, circuits, removal) and text (``mh.generate``, ``mh.task_log_prob``, role curves) agree
    to 1e-4 with full forward passes of each prompt alone, in which TransformerLens hooks set the new z. An intervention
    that does not treat every token by itself cannot be used in text; this is no failure.

    The report also notes if the intervention looks at other prompts or at later tokens, or cannot be used with
    ``store=``. These are not failures.

    Args:
        model: by default, a tiny random Llama with grouped keys and values in which every byte is a token.
        prompts: by default, three pairs of random tokens. If you give your own, give a few of different lengths, and
            pairs if the intervention reads the source run.

    Raises:
        CheckFailed: an AssertionError that lists every failed check.
        ValueError: if the prompts cannot be run, or the model is in half precision.

    >>> from mechheads.testing import check_intervention
    >>> print(check_intervention(mh.patching.UniformAttention()))
    UniformAttention(epsilon=0.0, through='q'): all 13 checks passed
      callable: takes (value, context)
      ...
      engine: mh.sweep of L0H1 and L1H3 agrees with full forward passes to ...
      sets: mh.patching.patch_sets of L0H1 and L1H3 agrees with full forward passes to ...
      text: mh.generate and mh.task_log_prob without L0H1 and L1H3 agree with full forward passes to ...

    An intervention that wrongly reads the padding of short prompts:

    >>> def flatten(z, context):
    ...     return z.mean(1, keepdim=True).expand_as(z)
    >>> check_intervention(flatten)
    Traceback (most recent call last):
    mechheads.testing.checks.CheckFailed: flatten fails 1 of 13 checks
      padding: ...
    """
    __tracebackhide__ = True
    model, prompts = _with_defaults(model, prompts, None)
    tried = InterventionTrial(intervention, model, prompts)
    checks = _Checks(intervention)
    checks.run("callable", lambda: _callable(intervention, "(value, context)", "mh.Zero()"), vital=True)
    checks.run("pickle", lambda: _pickle(intervention))
    checks.run("site", tried.site, vital=True)
    checks.run("runs", tried.runs_through, vital=True)
    checks.run("tensor", tried.tensor, vital=True)
    checks.run("finite", tried.finite, vital=True)
    checks.run("repeatable", tried.repeatable, vital=True)
    checks.run("read-only", tried.read_only)
    checks.run("needs", tried.needs)
    checks.run("padding", tried.padding)
    checks.run("engine", tried.engine, last=True)
    checks.run("sets", lambda: sets(tried), last=True)
    checks.run("text", lambda: text(tried), last=True)
    checks.note(tried.looks_at_other_prompts)
    checks.note(tried.looks_ahead)
    checks.note(lambda: _cannot_travel(intervention))
    checks.note(lambda: _cannot_be_stored(intervention, "intervention"))
    return checks.report()


def check_metric(metric: Any, model: Model | None = None, prompts: AnyPrompts | None = None) -> Report:
    """A report of whether a metric behaves as the engine assumes.

    These are the checks. The metric takes (logits, context) and reads a position that the prompts have. It returns one
    finite value per prompt, and the same values when it is called again. It does not write to tokens and mask. It does
    not depend on the other prompts of the batch, on padding, or on rounding in an unchanged run. Finally, ``mh.sweep``
    agrees with full forward passes of each prompt alone.

    The report also notes whether the metric writes to the logits, and whether it can be used with
    ``mh.patching.attribution_patch`` or ``store=``. These are not failures.

    Args:
        model, prompts: as in ``check_intervention``. The default prompts have answers, wrong answers, and the named
            position that the metric reads.

    Raises:
        CheckFailed: an AssertionError that lists every failed check.
        ValueError: if the prompts cannot be run, or the model is in half precision.

    >>> from mechheads.testing import check_metric
    >>> print(check_metric(mh.logit_diff))
    logit_diff: all 11 checks passed
      callable: takes (logits, context)
      ...
      note: can be used with attribution_patch...
    """
    __tracebackhide__ = True
    reads = MetricInfo.of(metric).reads
    places = [reads] if isinstance(reads, str | int) else reads
    named = [place for place in places if isinstance(place, str) and place not in ("last", "all")]
    model, prompts = _with_defaults(model, prompts, named[0] if named else None)
    tried = MetricTrial(metric, model, prompts)
    checks = _Checks(metric)
    checks.run("callable", lambda: _callable(metric, "(logits, context)", "mh.logit_diff"), vital=True)
    checks.run("reads", tried.reads, vital=True)
    checks.run("runs", tried.runs_through, vital=True)
    checks.run("value", tried.value, vital=True)
    checks.run("finite", tried.finite, vital=True)
    checks.run("repeatable", tried.repeatable, vital=True)
    checks.run("read-only", tried.read_only)
    checks.run("batch", tried.batch)
    checks.run("padding", tried.padding)
    checks.run("unchanged", tried.unchanged)
    checks.run("engine", tried.engine, last=True)
    checks.note(tried.writes_into_logits)
    checks.note(tried.gradient)
    checks.note(lambda: _cannot_be_stored(metric, "metric"))
    return checks.report()


class _Checks:
    """Runs checks one by one. If a vital check fails, later checks are not run: they would fail for the same reason."""

    def __init__(self, of: object) -> None:
        self.of = name_of(of)
        self.checks: list[Check] = []
        self.notes: list[str] = []
        self.stopped: str | None = None
        self.cause: Exception | None = None

    def run(self, name: str, test: Callable[[], str], *, vital: bool = False, last: bool = False) -> None:
        failed = next((check.name for check in self.checks if check.outcome == "failed"), None)
        if waits_for := self.stopped or (failed if last else None):
            self.checks.append(Check(name, "not run", f"needs {waits_for!r} to pass"))
            return
        try:
            self.checks.append(Check(name, "passed", test()))
        except Exception as error:
            seen = str(error)
            if not isinstance(error, Wrong):
                seen = f"it raised {type(error).__name__}: {error}; it should run without an error"
                self.cause = self.cause or error
            self.checks.append(Check(name, "failed", seen))
            self.stopped = name if vital else self.stopped

    def note(self, test: Callable[[], str | None]) -> None:
        try:
            note = None if self.stopped else test()
        except Exception as error:
            note = f"could not be tested further: {type(error).__name__}: {error}"
        self.notes += [note] if note else []

    def report(self) -> Report:
        __tracebackhide__ = True
        report = Report(self.of, tuple(self.checks), tuple(self.notes))
        if report.passed:
            return report
        raise CheckFailed(report) from self.cause


def _with_defaults(
    model: Model | None, prompts: AnyPrompts | None, position: str | None
) -> tuple[Model, Prompts | PromptPairs]:
    model = tiny_model() if model is None else model
    if model.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"model is in {model.dtype}; the checks compare to 1e-4, so load it with dtype=torch.float32")
    if prompts is None:
        return model, tiny_pairs(model, position)
    return model, prompts if isinstance(prompts, PromptPairs) else as_prompts(prompts)


_LENGTHS = (4, 7, 5)


@functools.cache
def tiny_model() -> Model:
    """A random Llama with 2 layers of 4 heads that share 2 key/value heads; every byte is a token.

    Its weights come from their own generator, so no global seed changes.
    """
    import transformers
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    vocabulary = ["<bos>", "<eos>", "<pad>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(vocabulary)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # pyright: ignore
    tokenizer.decoder = decoders.ByteLevel()  # pyright: ignore
    config = transformers.LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=2,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        weights = transformers.LlamaForCausalLM(config).state_dict()
        for weight in weights.values():
            if weight.ndim == 1:
                weight.normal_(1.0, 0.2, generator=generator)
            else:
                weight.normal_(0.0, 1.2 * weight.shape[1] ** -0.5, generator=generator)
        save_file(weights, Path(folder, "model.safetensors"), {"format": "pt"})
        config.save_pretrained(folder)
        transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
        ).save_pretrained(folder)
        return load(folder)


def tiny_pairs(model: Model, position: str | None = None) -> PromptPairs:
    """Three pairs of random tokens of a model, of different lengths, that differ in their second token.

    Args:
        position: a named position that the pairs should have, for a metric that reads one.
    """
    generator = torch.Generator().manual_seed(0)
    clean = [torch.randint(model.d_vocab, (n,), generator=generator).tolist() for n in _LENGTHS]
    corrupted = [[first, (second + 1) % model.d_vocab, *rest] for first, second, *rest in clean]
    answer: list[str | int] = torch.randint(model.d_vocab, (len(clean),), generator=generator).tolist()
    wrong: list[str | int] = [(int(token) + 1) % model.d_vocab for token in answer]
    one, other = ([Unpadded(row) for row in side] for side in (clean, corrupted))  # they are random: any may be padding
    return PromptPairs(one, other, answer, wrong, {} if position is None else {position: [1, 2, 1]})


def _callable(thing: Any, arguments: str, example: str) -> str:
    if isinstance(thing, type):
        raise Wrong(f"is the class {thing.__name__}; expected an instance, {thing.__name__}(...)")
    if not callable(thing):
        raise Wrong(
            f"is {thing!r}, which cannot be called; expected a function of {arguments} or an instance such as {example}"
        )
    try:
        signature = inspect.signature(thing)
    except ValueError:
        return "can be called"
    try:
        signature.bind(None, None)
    except TypeError as error:
        raise Wrong(f"takes {signature}; expected {arguments}") from error
    return f"takes {arguments}"


def _pickle(thing: Any) -> str:
    if not dataclasses.is_dataclass(thing):
        return "not a dataclass, so it need not be picklable"
    try:
        before = hash(thing)
    except TypeError as error:
        raise Wrong(f"cannot be hashed ({error}); expected {_PLAIN}") from error
    try:
        again = pickle.loads(pickle.dumps(thing)) if _can_be_found(type(thing)) else copy.deepcopy(thing)
    except Exception as error:
        raise Wrong(f"cannot be pickled ({error}); expected {_PLAIN}") from error
    try:
        equal = bool(again == thing) and hash(again) == before
    except Exception:
        equal = False
    if not equal:
        raise Wrong(f"is not equal to itself after pickling; expected {_PLAIN}")
    return "hashable, and equal to itself after pickling"


def _can_be_found(kind: type) -> bool:
    """Whether the class can be imported by its name; a class defined inside a function cannot."""
    found: Any = sys.modules.get(kind.__module__)
    for part in kind.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is kind


def _cannot_travel(thing: Any) -> str | None:
    """Why a function or class cannot be sent to another process; None if it can. This is not a failure."""
    if dataclasses.is_dataclass(thing):
        if _can_be_found(type(thing)):
            return None
        return "cannot be pickled, because its class is defined inside a function; define it at the top of a module"
    try:
        again = pickle.loads(pickle.dumps(thing))
    except Exception as error:
        return f"cannot be pickled ({error}); a function or class at the top of a module could be"
    if again == thing and hash(again) == hash(thing):
        return None
    return f"is not equal to itself after pickling; {_PLAIN} would be"


def _cannot_be_stored(thing: Any, what: str) -> str | None:
    from mechheads.ledger.key import mark

    try:
        mark(thing, what)
    except ValueError as error:
        return f"cannot be used with store=: {error}"
    return None


def check_answer(answer: Any, is_right: Callable[[Any], Any], *, right: str, hint: str) -> None:
    """Print whether an answer is right, and a hint if it is wrong.

    Args:
        answer: the reader's answer; ``None`` or ``...`` if there is none yet.
        is_right: a function that takes the answer and returns whether it is right. If it raises, the answer is wrong.
        right: printed after a right answer.
        hint: printed after a wrong answer.

    >>> mh.testing.check_answer("L23H4", lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    Right: It copies.
    >>> mh.testing.check_answer("L0H0", lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    Not yet: Look at layer 23.
    >>> mh.testing.check_answer(None, lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    No answer yet.
    """
    if answer is None or answer is ...:
        print("No answer yet.")
        return
    try:
        solved = bool(is_right(answer))
    except Exception as error:
        print(f"Not yet: the check stopped with {type(error).__name__}: {error}\n{hint}")
        return
    print(f"Right: {right}" if solved else f"Not yet: {hint}")
