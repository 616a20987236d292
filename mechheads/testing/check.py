"""``check``: a test that your own intervention or metric gives in the engine what full forward passes give."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_runs import AnyPrompts, CachedRuns
from mechheads.engine.head_sets import SetRun
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.proved import Provable, claim_of
from mechheads.engine.sweep import sweep
from mechheads.engine.work import UnitRuns
from mechheads.gating.gates import task_log_prob
from mechheads.gating.task import Task
from mechheads.generation.generate import generate
from mechheads.heads import HeadId
from mechheads.interventions.basic import Zero, needs_of, site_of
from mechheads.interventions.new_z import CheckedIntervention
from mechheads.limits import settings
from mechheads.metrics import MetricContext, MetricInfo, check_value, metric, name_of, read_positions
from mechheads.model.load import from_transformers
from mechheads.model.model import Model
from mechheads.model.proof import NotProved, plain
from mechheads.patching.circuits import patch_sets
from mechheads.prompts.prompts import PromptPairs, Prompts, as_prompts
from mechheads.prompts.tokens import Tokens, Unpadded
from mechheads.runs.head_cache import KEY_SITES, HeadCache
from mechheads.testing.known import word_tokenizer

TOLERANCE = 1e-4
_PLAIN = "expected a @dataclass(frozen=True) whose fields are plain numbers, texts and tuples of them"
_PADDING = 2
_LENGTHS = (4, 7, 5)
_WRITTEN = 2


class CheckFailed(AssertionError):
    """An intervention or a metric breaks a rule that the engine relies on; the message names the place."""

    def __init__(self, message: str) -> None:
        super().__init__(message)


@dataclass(frozen=True, repr=False)
class Report:
    """The comparisons that an intervention or a metric has passed in ``check``; prints as a short list."""

    of: str
    found: tuple[str, ...]

    def __str__(self) -> str:
        return "\n  ".join([f"{self.of}: right", *self.found])

    __repr__ = __str__


def check(thing: Any, model: Model | None = None, prompts: AnyPrompts | None = None) -> Report:
    """A check of your own intervention or metric against full forward passes.

    It runs on two heads of a small model and is compared, to 1e-4, with full forward passes of each prompt alone and
    unpadded, in which TransformerLens hooks set the new z: in ``mh.sweep``, in a set of both heads
    (``mh.patching.patch_sets``) and, if an intervention treats every token by itself, in text (``mh.generate``,
    ``mh.task_log_prob``). Before that, ``check`` tests that it gives the same values twice and with more padding; that
    a dataclass is equal to its copy; and that an intervention returns a finite tensor like its input and reads no
    activation that ``needs`` does not name.

    Args:
        thing: a metric if ``@mh.metric`` declares it or its first argument is ``logits``; else an intervention.
        model: by default, a tiny random Llama with grouped keys and values, whose words are 0 to 249.
        prompts: by default, three pairs of random tokens of different lengths, with answers and wrong answers.

    Returns:
        A short list of the comparisons, which all agree.

    Raises:
        CheckFailed: an AssertionError that names the fault.
        ValueError: if the prompts cannot be run, or the model is in half precision.

    >>> mh.testing.check(mh.patching.UniformAttention())
    UniformAttention(epsilon=0.0, through='q'): right
      mh.sweep of L0H1 and L1H3 agrees with full forward passes to ...
      mh.patching.patch_sets of both agrees with full forward passes to ...
      mh.generate and mh.task_log_prob without both agree with full forward passes
    >>> mh.testing.check(mh.logit_diff).of
    'logit_diff'

    An intervention that wrongly reads the padding of short prompts:

    >>> def flatten(z, context):
    ...     return z.mean(1, keepdim=True).expand_as(z)
    >>> mh.testing.check(flatten)
    Traceback (most recent call last):
    mechheads.testing.check.CheckFailed: flatten: L0H1 at token 0 of prompt ... changes by ...
    """
    __tracebackhide__ = True
    if isinstance(thing, type) or not callable(thing):
        raise CheckFailed(f"{thing!r} cannot be called with (value, context); give a function, or an instance")
    model = tiny_model() if model is None else model
    if model.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"model is in {model.dtype}; the check compares to 1e-4, so load it with dtype=torch.float32")
    first, reads = next(iter(inspect.signature(thing).parameters), ""), getattr(thing, "reads", "last")
    if prompts is None:
        places = [reads] if isinstance(reads, str | int) else reads
        prompts = tiny_pairs(model, [it for it in places if isinstance(it, str) and it not in ("last", "all")])
    resolved = prompts if isinstance(prompts, PromptPairs) else as_prompts(prompts)
    with warnings.catch_warnings(), settings(progress=False):
        warnings.simplefilter("ignore")
        if dataclasses.is_dataclass(thing):  # workers and ledgers need it
            try:
                again = copy.deepcopy(thing)
                equal = bool(again == thing) and hash(again) == hash(thing)
            except Exception as error:
                raise CheckFailed(f"{name_of(thing)} cannot be hashed and compared ({error}); {_PLAIN}") from error
            if not equal:
                raise CheckFailed(f"{name_of(thing)} is not equal to its copy; {_PLAIN}")
        return _Trial(thing, hasattr(thing, "reads") or first == "logits", model, resolved).report()


@metric(unit="nats")
def log_prob_of_0(logits: Tensor, context: MetricContext) -> Tensor:
    return logits[:, -1].log_softmax(-1)[:, 0]


class _Trial:
    """An intervention with a plain metric, or a metric with a plain intervention, on two heads of a model."""

    def __init__(self, thing: Any, is_metric: bool, model: Model, prompts: Prompts | PromptPairs) -> None:
        self.name, self.model, self.prompts, self.is_metric = name_of(thing), model, prompts, is_metric
        self.rule, self.metric = (Zero(), thing) if is_metric else (thing, log_prob_of_0)
        sides = prompts.tokens(model)
        self.tokens, self.other = sides if isinstance(sides, tuple) else (sides, None)
        last, read = HeadId(model.n_layers - 1, model.n_heads - 1), MetricInfo.of(self.metric).read
        some = dict.fromkeys((HeadId(0, min(1, model.n_heads - 1)), last))
        self.heads = [head for head in some if read is None or head != read.head]
        self.site = site_of(self.rule)
        self.size = model.n_heads // model.n_kv_heads if self.site in KEY_SITES else 1  # heads that share an activation

    def report(self) -> Report:
        """The report of a trial that passed; otherwise ``CheckFailed`` is raised."""
        __tracebackhide__ = True
        try:
            read_positions(self.metric, self.tokens)
            for head in self.heads:
                self.check_value(head)
        except CheckFailed:
            raise
        except Exception as error:
            raise CheckFailed(f"{self.name} raised {type(error).__name__}: {error}") from error
        options: dict[str, Any] = {"intervention": self.rule, "metric": self.metric}
        direction: dict[str, Any] = {"direction": "noising"} if self.other is not None else {}  # as mh.sweep's
        try:
            swept: Any = sweep(self.model, self.prompts, heads=self.heads, **options)
            together = patch_sets(self.model, self.prompts, [self.heads], **options, **direction)
            in_text = () if self.is_metric else (self.text(),)
        except ValueError as error:
            raise CheckFailed(f"{self.name} is refused: {error}") from error
        spec = Spec(self.prompts, self.rule, self.metric, self.heads)
        job = make_ready(CachedRuns(self.model, self.prompts), spec)
        units, sets = UnitRuns(job), SetRun(job)
        off = max(self.gap(job, units, (it, 0), swept.values.values[it.layer, it.head]) for it in self.heads)
        of_set = self.gap(job, sets, frozenset(self.heads), together.values[0])
        return Report(
            self.name,
            (
                f"mh.sweep of {' and '.join(map(str, self.heads))} agrees with full forward passes to {off:.1g}",
                f"mh.patching.patch_sets of both agrees with full forward passes to {of_set:.1g}",
                *in_text,
            ),
        )

    def check_value(self, head: HeadId) -> None:
        """Check that the new activation of a head is the same at a second call and with more padding."""
        first = self.value(head, 0)
        for padding, when in (
            (0, "at a second call; draw random numbers with context.noise(seed)"),
            (_PADDING, "if there is more padding; read only what context.mask marks as real"),
        ):
            now = self.value(head, padding)[tuple(map(slice, first.shape))]
            by = (now.double() - first.double()).abs().flatten(2).amax(-1).masked_fill(~self.tokens.mask, 0)
            if by.max() > TOLERANCE * max(float(first[self.tokens.mask].abs().max()), 1e-6):
                row, token = divmod(int(by.argmax()), by.shape[1])
                raise CheckFailed(
                    f"{self.name}: {head} at token {token} of prompt {row} changes by {by.max():.3g} {when}"
                )

    def value(self, head: HeadId, padding: int) -> Tensor:
        """The new activation of a head in runs that cache only the sites in ``needs``, with more random padding."""
        sites = tuple(dict.fromkeys((*needs_of(self.rule), self.site, "z")))
        padded = [_padded(tokens, padding) for tokens in (self.tokens, self.other) if tokens is not None]
        runs = [HeadCache.run(self.model, tokens, sites=sites) for tokens in padded]
        base, source = runs if len(runs) == 2 else (*runs, None)
        first, rule = HeadId(head.layer, head.head // self.size * self.size), CheckedIntervention(self.rule)
        new = rule.apply(base.site(self.site)[first][:, None], [first], base, source)[:, 0]
        rule.check_finite()
        return new

    def gap(self, job: Job, run: Provable, unit: Any, ours: Any) -> float:
        """The largest difference between the engine's changes of the metric and those of plain forward passes."""
        furthest = 0.0
        for row, change in enumerate(ours.tolist()):
            one = self.tokens.rows(slice(row, row + 1))
            one = replace(one, ids=one.ids[:, : int(one.lengths)])
            claim = claim_of(job, run, unit, row, 0, job.evaluator.base_states[row])
            base, changed = (each[None] for each in plain(job.backend, [replace(claim, edits=()), claim]))
            context = MetricContext(base.clone(), one, read_positions(self.metric, one)[1])
            before, after = (self.measured(logits, context) for logits in (base, changed))
            off = abs(change - (after - before)) / max(1.0, abs(before), abs(after))
            if not off <= TOLERANCE:
                heads = self.heads if isinstance(unit, frozenset) else unit[:1]
                raise CheckFailed(
                    f"{self.name}: the engine changes {name_of(self.metric)} of prompt {row} by {change:.6g} at "
                    f"{' and '.join(map(str, heads))}, but a full forward pass of this prompt alone with the same z "
                    f"changes it by {after - before:.6g}; they should agree to 1e-4"
                )
            furthest = max(furthest, off)
        return furthest

    def measured(self, logits: Float[Tensor, "1 position d_vocab"], context: MetricContext) -> float:
        """The metric of one prompt, checked to be the same twice."""
        values = [self.metric(logits.clone(), context) for _ in range(2)]
        value, again = (float(check_value(self.metric, value, 1)) for value in values)
        if not abs(value - again) <= TOLERANCE * max(1.0, abs(value)):
            raise CheckFailed(f"{self.name} gave {value:.6g} and {again:.6g} for the same logits; expected one number")
        return value

    def text(self) -> str:
        """The line of the report on text: it agrees with full forward passes, or why the intervention is refused."""
        rows = [Unpadded(row) for row in self.tokens.unpadded]
        firsts = dict.fromkeys(HeadId(head.layer, head.head // self.size * self.size) for head in self.heads)
        off = [HeadId(first.layer, first.head + i) for first in firsts for i in range(self.size)]
        try:
            task_log_prob(self.model, Task(rows, [Unpadded([0])] * len(rows)), off, intervention=self.rule)
            generate(self.model, Prompts(rows), _WRITTEN, off=off, intervention=self.rule)
        except NotProved:
            raise
        except ValueError as error:
            return f"cannot be used in text: {error}"
        return "mh.generate and mh.task_log_prob without both agree with full forward passes"


def _padded(tokens: Tokens, padding: int) -> Tokens:
    """The same prompts with random tokens after them."""
    ids = torch.nn.functional.pad(tokens.ids, (0, padding))
    drawn = torch.randint(int(ids.max()) + 1, ids.shape, generator=torch.Generator().manual_seed(0)).to(ids.device)
    return replace(tokens, ids=torch.where(replace(tokens, ids=ids).mask, ids, drawn)) if padding else tokens


@functools.cache
def tiny_model() -> Model:
    """A random Llama with 2 layers of 4 heads that share 2 key/value heads; its vocabulary is the numbers 0 to 249."""
    from transformers import AutoModelForCausalLM, LlamaConfig

    tokenizer = word_tokenizer([*map(str, range(250))], "tiny", 512)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    generator = torch.Generator().manual_seed(0)
    with torch.random.fork_rng(devices=[]):
        llama = AutoModelForCausalLM.from_config(config, attn_implementation="eager", dtype=torch.float32).eval()
        for weight in llama.parameters():
            mean, spread = (1.0, 0.2) if weight.ndim == 1 else (0.0, 1.2 * weight.shape[1] ** -0.5)
            weight.data.normal_(mean, spread, generator=generator)
        return from_transformers(llama, tokenizer, "tiny")


def tiny_pairs(model: Model, positions: Sequence[str] = ()) -> PromptPairs:
    """Three pairs of random tokens, of different lengths, that differ in their second token, with named positions."""
    generator = torch.Generator().manual_seed(0)
    clean = [torch.randint(model.d_vocab, (n,), generator=generator).tolist() for n in _LENGTHS]
    corrupted = [[first, (second + 1) % model.d_vocab, *rest] for first, second, *rest in clean]
    answer: list[str | int] = torch.randint(model.d_vocab, (len(clean),), generator=generator).tolist()
    wrong: list[str | int] = [(int(token) + 1) % model.d_vocab for token in answer]
    one, other = ([Unpadded(row) for row in side] for side in (clean, corrupted))  # random tokens may be padding
    return PromptPairs(one, other, answer, wrong, {name: [1, 2, 1] for name in positions})


def check_answer(answer: Any, is_right: Callable[[Any], Any], *, right: str, hint: str) -> None:
    """Print whether an answer is right, and a hint if it is wrong.

    Args:
        answer: the reader's answer; ``None`` or ``...`` if there is none yet.
        is_right: a function that takes the answer and returns whether it is right. If it raises, the answer is wrong.
        right: printed after a right answer.
        hint: printed after a wrong answer.

    >>> mh.testing.check_answer("L23H4", lambda head: head == "L23H4", right="It copies.", hint="Look at layer 23.")
    Right: It copies.
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
