"""``mh.testing.check``: what is sound passes, and each fault is told in a sentence that names it."""

from __future__ import annotations

import random
import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.generation.batch import Columns
from mechheads.interventions.basic import Context
from mechheads.patching import Resample, Scale, UniformAttention
from mechheads.runs.head_cache import HeadCache
from mechheads.testing import CheckFailed, check
from support.levels import few

SITES = ("z", "q", "k", "v", "pattern", "scored_q")
BUILT_IN = [mh.Zero(), mh.Mean(), Resample(3), Scale(0.4), UniformAttention(), *map(mh.Patch, SITES)]
METRICS = [mh.logit_diff, mh.log_prob, mh.patching.accuracy, mh.kl_divergence]


@pytest.mark.parametrize("intervention", BUILT_IN, ids=str)
def test_built_in_interventions_are_right(intervention):
    report = check(intervention)
    assert report.of == str(intervention) and len(report.found) == 3
    assert report.found[0].startswith("mh.sweep of L0H1 and L1H3 agrees with full forward passes to ")
    assert report.found[1].startswith("mh.patching.patch_sets of both agrees with full forward passes to ")
    refused = isinstance(intervention, mh.Patch | Resample)
    text = "cannot be used in text: " if refused else "mh.generate and mh.task_log_prob without both agree"
    assert report.found[2].startswith(text)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_built_in_metrics_are_right(metric):
    assert len(check(metric).found) == 2


@pytest.mark.parametrize("name", few(["gpt2", "qwen", "gemma"], "qwen"))
def test_a_model_of_ones_own_is_checked_too(loaded, name):
    model = loaded(name)
    prompts = mh.Prompts([" The capital of France is", " yes", " one two three"], answer=[" Paris", " no", " dog"])
    for intervention in (UniformAttention(), mh.Patch("k"), mh.Mean()):
        check(intervention, model)
    check(Resample(), model, prompts)
    check(mh.Zero(), model, [" yes"])
    check(mh.log_prob, model, prompts)


def negate(z, context):
    return -z


def test_nothing_global_changes():
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), torch.is_grad_enabled()
    check(negate)
    check(mh.log_prob)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1], torch.is_grad_enabled()
    assert torch.equal(before[0], after[0]) and before[1] == after[1]
    assert (before[2] == after[2]).all() and before[3] == after[3]


@dataclass(frozen=True)
class Does:
    """What a function does, as a frozen dataclass with a site and needs."""

    function: Any = negate
    site: Any = "z"
    needs: Any = ("z", "pattern", "q", "k", "v")

    def __call__(self, value, context):
        return self.function(value, context)


@dataclass
class Thawed:
    def __call__(self, z, context):
        return -z


@dataclass(frozen=True, eq=False)
class Unequal:
    def __call__(self, z, context):
        return -z


def raises(z, context):
    raise KeyError("nothing there")


def random_z(z, context):
    return torch.rand_like(z)


def from_q(z, context):
    return context.base.q[context.head]


def flatten(z, context):
    return z.mean(1, keepdim=True).expand_as(z)


def cut_last(z, context):
    z[:, -1] = 0
    return z


def spread(pattern, context):
    return torch.ones_like(pattern) / pattern.shape[-1]


def over_length(z, context):
    return z * context.mask[..., None] / z.shape[1]


BROKEN = [
    (mh.Zero, "cannot be called with (value, context); give a function, or an instance"),
    (lambda z: -z, "raised TypeError: <lambda>() takes 1 positional argument but 2 were given"),
    (Thawed(), "cannot be hashed and compared (unhashable type: 'Thawed'); expected a @dataclass(frozen=True)"),
    (Unequal(), "is not equal to its copy; expected a @dataclass(frozen=True)"),
    (raises, "raises raised KeyError: 'nothing there'"),
    (lambda z, context: z[:1], "gave [1, 7, 8] for L0H1; it must return a tensor of shape [3, 7, 8]"),
    (lambda z, context: z / 0, "gave values that are not finite for L0H1"),
    (random_z, "at a second call; draw random numbers with context.noise(seed)"),
    (Does(from_q, needs=("z",)), "raised ValueError: this run did not keep 'q'"),
    (flatten, "L0H1 at token 0 of prompt 2 changes by"),
    (cut_last, "L0H1 at token 6 of prompt 1 changes by"),
    (Does(spread, "pattern"), f"changes by {1 / 7 - 1 / 9:.3g} if there is more padding; read only what context.mask"),
    (over_length, "if there is more padding"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN)
def test_a_broken_intervention_is_told(broken: Any, message: str):
    with pytest.raises(CheckFailed) as caught:
        check(broken)
    assert message in str(caught.value)


def alone_or_not(logits, context):
    return logits[:, -1, 0] - logits[:, -1, 0].mean()


BROKEN_METRICS = [
    (mh.metric(reads=99)(negate), "reads the last 99 tokens, but the shortest prompt has"),
    (lambda logits, context: logits.mean(), "it must return one value each"),
    (alone_or_not, "the engine changes alone_or_not of prompt 0 by "),
    (mh.metric(reads="all")(lambda logits, context: logits[..., 0].mean(1)), "but a full forward pass of this prompt"),
    (lambda logits, context: logits[:, 0, 0] * context.tokens.ids.shape[1], "but a full forward pass of this prompt"),
]


@pytest.mark.parametrize(("broken", "message"), BROKEN_METRICS)
def test_a_broken_metric_is_told(broken: Any, message: str):
    with pytest.raises(CheckFailed) as caught:
        check(broken)
    assert message in str(caught.value)


def test_a_metric_that_draws_is_told():
    generator = torch.Generator().manual_seed(0)
    with pytest.raises(CheckFailed, match=" for the same logits; expected one number"):
        check(lambda logits, context: torch.rand(len(logits), generator=generator))


def test_an_engine_that_is_off_by_a_percent_is_seen(monkeypatch: pytest.MonkeyPatch):
    module: Any = sys.modules["mechheads.testing.check"]
    sweep, sets, update = module.sweep, module.patch_sets, Columns.update
    with monkeypatch.context() as patched:
        patched.setattr(module, "sweep", lambda *args, **options: sweep(*args, **options) * 1.01)
        for thing in (mh.Patch("v"), mh.log_prob):
            with pytest.raises(CheckFailed, match=r"the engine changes .* at L0H1, .*; they should agree to 1e-4"):
                check(thing)
    with monkeypatch.context() as patched:
        patched.setattr(module, "patch_sets", lambda *args, **options: times(sets(*args, **options)))
        with pytest.raises(CheckFailed, match=r"the engine changes .* at L0H1 and L1H3, but a full"):
            check(Scale(0.5))
    monkeypatch.setattr(Columns, "update", lambda self, k, v, *rest: update(self, k, 1.01 * v, *rest))
    with pytest.raises(CheckFailed, match=r"is refused: model: the text written after prompt \d differs from"):
        check(Scale(0.5))


def times(found):
    return replace(found, values=found.values * 1.01)


def test_a_named_position_is_made_where_the_metric_reads_one(loaded):
    subject = mh.metric(reads="subject", unit="nats")(mh.log_prob)
    check(subject)
    with pytest.raises(CheckFailed, match="reads position 'subject'; these prompts have last"):
        check(subject, prompts=["one", "three"])
    with pytest.raises(CheckFailed, match="this metric needs answers"):
        check(mh.log_prob, loaded("gpt2"), [" yes", " no dog"])


@dataclass(frozen=True)
class Noisy:
    seed: int = 0

    def __call__(self, z, context):
        return z + context.noise(self.seed).to(z)


def test_a_random_intervention_is_right_and_its_numbers_are_those_of_seed_and_tokens(llama: mh.Model):
    assert check(Noisy()).found[2].startswith("cannot be used in text: ")
    prompts = [" The capital of France is the big", " yes", " The capital of Spain"]

    def noise(some: list[str], seed: int = 0) -> list[torch.Tensor]:
        run = HeadCache.run(llama, some, sites=("z",))
        found = Context(mh.HeadId(1, 2), run, None, run.tokens.mask).noise(seed)
        return [row[:n] for row, n in zip(found, run.tokens.lengths.tolist(), strict=True)]

    first, yes, spain = noise(prompts)
    for alone, of in zip((first, yes, spain), prompts, strict=True):
        torch.testing.assert_close(noise([of])[0], alone, rtol=0, atol=0)
    for found, expected in zip(noise(prompts[::-1]), (spain, yes, first), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    ids = mh.Prompts(prompts).tokens(llama).ids
    same = int((ids[0] == ids[2]).long().cumprod(0).sum())  # so many tokens the two begin with
    assert same > 2 and torch.equal(first[:same], spain[:same])
    assert (first[same : same + 1] != spain[same : same + 1]).all() and (noise(prompts, 1)[1] != yes).all()
    many = torch.cat(noise([" one two three cat dog book" * 8], 7))
    assert many.numel() > 300 and abs(float(many.mean())) < 0.2 and abs(float(many.std()) - 1) < 0.15


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (2, "Right: Half.\n"),
        (4, "Not yet: Halve it.\n"),
        (None, "No answer yet.\n"),
        (..., "No answer yet.\n"),
        (0, "Not yet: the check stopped with ZeroDivisionError: division by zero\nHalve it.\n"),
    ],
)
def test_the_answer_to_an_exercise_is_right_or_not_or_missing(answer, said, capsys):
    mh.testing.check_answer(answer, lambda number: [1] * (1 / number == 0.5), right="Half.", hint="Halve it.")
    assert capsys.readouterr().out == said
