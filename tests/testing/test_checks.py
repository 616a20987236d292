"""``mechheads.testing``: what is sound passes, and each fault fails the check that is made for it, and no other."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.patching import Resample, Scale, UniformAttention
from mechheads.testing import CheckFailed, check_intervention, check_metric, checks, other_places, trials
from support.levels import few

SITES = ("z", "q", "k", "v", "pattern", "scored_q")
BUILT_IN = [
    mh.Zero(),
    mh.Mean(),
    Resample(3),
    Scale(0.4),
    UniformAttention(),
    *map(mh.Patch, SITES),
]
METRICS = [mh.logit_diff, mh.log_prob, mh.patching.accuracy, mh.kl_divergence]


@pytest.mark.parametrize("intervention", BUILT_IN, ids=str)
def test_built_in_interventions_pass(intervention):
    report = check_intervention(intervention)
    assert report.passed and len(report.checks) == 13
    assert str(report).startswith(f"{intervention}: all 13 checks passed\n  callable: takes (value, context)\n")
    assert "  engine: mh.sweep of L0H1 and L1H3 agrees with full forward passes to " in str(report)
    assert "  sets: mh.patching.patch_sets of L0H1 and L1H3 agrees with full forward passes to " in str(report)
    refused = isinstance(intervention, mh.Patch | Resample)
    text = "cannot be used in text: " if refused else "mh.generate and mh.task_log_prob without L0H1 and L1H3 agree"
    assert f"  text: {text}" in str(report)
    kinds = {note.split(":")[0] for note in report.notes}
    expected = {
        mh.Mean(): {"looks at other prompts", "looks ahead"},
        Resample(3): {"looks at other prompts"},
    }
    assert kinds == expected.get(intervention, set())


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.__name__)
def test_built_in_metrics_pass(metric):
    report = check_metric(metric)
    assert report.passed and len(report.checks) == 11
    (gradient,) = report.notes
    assert (
        gradient
        == {
            mh.logit_diff: "can be used with attribution_patch: it has a gradient at the unchanged run",
            mh.log_prob: "can be used with attribution_patch: it has a gradient at the unchanged run",
            mh.patching.accuracy: "cannot be used with attribution_patch: it has no gradient",
            mh.kl_divergence: "cannot be used with attribution_patch: its gradient is zero at the unchanged run",
        }[metric]
    )


@pytest.mark.parametrize("name", few(["gpt2", "qwen", "gemma"], "qwen"))
def test_a_model_of_ones_own_is_checked_too(loaded, name):
    model = loaded(name)
    prompts = mh.Prompts([" The capital of France is", " yes", " one two three"], answer=[" Paris", " no", " dog"])
    for intervention in (UniformAttention(), mh.Patch("k"), mh.Mean()):
        assert check_intervention(intervention, model).passed
    assert check_intervention(Resample(), model, prompts).passed
    assert check_intervention(mh.Zero(), model, [" yes"]).passed
    assert check_metric(mh.log_prob, model, prompts).passed


def negate(z, context):
    return -z


def test_nothing_global_changes():
    checks.tiny_model.cache_clear()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy(), torch.is_grad_enabled()
    check_intervention(negate)
    check_metric(mh.log_prob)
    after = torch.get_rng_state(), random.getstate(), np.random.get_state()[1], torch.is_grad_enabled()
    assert torch.equal(before[0], after[0]) and before[1] == after[1]
    assert (before[2] == after[2]).all() and before[3] == after[3]


def test_half_precision_is_refused(tiny):
    model = mh.load(tiny("gpt2"), dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"model is in torch\.bfloat16; .* load it with dtype=torch\.float32"):
        check_intervention(mh.Zero(), model)


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


@dataclass(frozen=True)
class Steered:
    by: torch.Tensor = field(default_factory=lambda: torch.ones(8))

    def __call__(self, z, context):
        return z + self.by


def raises(z, context):
    raise KeyError("nothing there")


def random_z(z, context):
    return torch.rand_like(z)


def writes_z(z, context):
    context.base.z[context.head].zero_()
    return z / 2


def writes_mask(z, context):
    context.mask[:] = True
    return z / 2


def writes_tokens(z, context):
    context.source.tokens.ids.add_(1)
    return z / 2


def from_q(z, context):
    return context.base.q[context.head]


def if_kept(z, context):
    return z if "pattern" in context.base.stores else -z


def flatten(z, context):
    return z.mean(1, keepdim=True).expand_as(z)


def cut_last(z, context):
    z[:, -1] = 0
    return z


def spread(pattern, context):
    return torch.ones_like(pattern) / pattern.shape[-1]


def over_length(z, context):
    return z * context.mask[..., None] / z.shape[1]


def undefined_in_padding(v, context):
    return v.masked_fill(~context.mask[..., None], torch.nan)


BROKEN_INTERVENTIONS = [
    ("callable", mh.Zero, "is the class Zero; expected an instance, Zero(...)"),
    ("callable", "zero", "is 'zero', which cannot be called; expected a function of (value, context)"),
    ("callable", lambda z: -z, "takes (z); expected (value, context)"),
    ("pickle", Thawed(), "cannot be hashed (unhashable type: 'Thawed'); expected a @dataclass(frozen=True)"),
    ("pickle", Unequal(), "is not equal to itself after pickling; expected a @dataclass(frozen=True)"),
    ("pickle", Does(lambda z, context: -z), "cannot be pickled ("),
    ("pickle", Steered(), "is not equal to itself after pickling"),
    ("site", Does(site="qk"), "site 'qk' of the intervention is not known; choose among z, pattern, q, k, v."),
    ("runs", raises, "it raised KeyError: 'nothing there'; it should run without an error"),
    (
        "tensor",
        lambda z, context: z[:1],
        "gave [1, 7, 8] float32 on cpu for L0H1; expected the same as its input, [3, 7",
    ),
    ("tensor", lambda z, context: z.double(), "gave [3, 7, 8] float64 on cpu for L0H1"),
    ("tensor", lambda z, context: None, "gave a NoneType for L0H1"),
    ("finite", lambda z, context: z / 0, "numbers that are not finite at real tokens of L0H1; expected none"),
    ("repeatable", random_z, "a second call for L0H1 differs by up to"),
    ("read-only", writes_z, "wrote into context.base.z, layer 0; it should change a copy, made with .clone()"),
    ("read-only", writes_mask, "wrote into context.mask"),
    ("read-only", writes_tokens, "wrote into context.source.tokens.ids"),
    ("needs", Does(from_q, needs=("z",)), "needs is ('z',), and with only these kept: this run did not keep 'q'"),
    ("needs", Does(if_kept, needs=()), "needs is (), and with only these kept L0H1 changes by"),
    ("needs", Does(needs="z"), "needs is the text 'z'; expected a tuple, needs = ('z',)"),
    ("needs", Does(needs=("w",)), "needs names 'w'; expected some of z, pattern, q, k, v, scored_q"),
    ("padding", flatten, "L0H1 at token 0 of prompt"),
    ("padding", cut_last, "L0H1 at token 6 of prompt 1, a real token, changes by"),
    ("padding", Does(spread, "pattern"), "if the padding after the prompts changes; it should read only real tokens"),
    ("padding", over_length, "where context.mask is True"),
    ("engine", Does(undefined_in_padding, "v"), "by nan at L0H1, but a full forward pass of this prompt alone"),
]


def fails_one(check, broken, name, message, n=11):
    with pytest.raises(CheckFailed) as caught:
        check(broken)
    (failed,) = caught.value.report.failed
    assert failed.name == name and message in failed.seen
    assert str(caught.value).endswith(f" fails 1 of {n} checks\n  {name}: {failed.seen}")


@pytest.mark.parametrize(("check", "broken", "message"), BROKEN_INTERVENTIONS)
def test_a_broken_intervention_fails_one_check(check, broken, message):
    fails_one(check_intervention, broken, check, message, 13)


def test_numbers_are_said_where_padding_leaks():
    """Twice as wide padding with uniform attention: 1/7 of a row's weight becomes 1/9."""
    with pytest.raises(CheckFailed, match=rf"changes by {1 / 7 - 1 / 9:.3g} if the padding"):
        check_intervention(Does(spread, "pattern"))


def no_position(logits, context):
    return logits[:, -1, 0]


def alone_or_not(logits, context):
    return logits[:, -1, 0] - logits[:, -1, 0].mean()


def squeezed(logits, context):
    return logits[:, -1, 0].squeeze()


def writes_answer(logits, context):
    context.tokens.answer.zero_()
    return logits[:, -1, 0]


def not_on_zeros(logits, context):
    if not logits.any():
        raise ValueError("no logits")
    return logits[:, -1, 0]


BROKEN_METRICS = [
    ("callable", mh.HeadId, "is the class HeadId; expected an instance, HeadId(...)"),
    ("callable", "kl", "is 'kl', which cannot be called; expected a function of (logits, context)"),
    ("callable", lambda logits: logits, "takes (logits); expected (logits, context)"),
    ("reads", mh.metric(reads=99)(no_position), "reads the last 99 tokens, but the shortest prompt has"),
    ("runs", raises, "it raised KeyError: 'nothing there'"),
    ("value", lambda logits, context: logits.mean(), "gave shape [] for 3 prompts; it should return one value each"),
    ("value", lambda logits, context: 1.0, "gave float for 3 prompts"),
    (
        "finite",
        lambda logits, context: logits[:, 0, 0] * torch.nan,
        "gave [nan, nan, nan] for the unchanged run; expected",
    ),
    ("finite", lambda logits, context: 0 / (logits - context.base_logits)[:, 0, 0], "for the unchanged run"),
    ("repeatable", lambda logits, context: torch.rand(len(logits)), "a second call with the same logits differs by up"),
    ("read-only", writes_answer, "wrote into context.tokens.answer; it should change a copy, made with .clone()"),
    ("batch", alone_or_not, "the value of prompt 0 is 0 alone and "),
    ("batch", squeezed, "gave [] float32 on cpu for one prompt alone; expected shape [1]"),
    ("padding", mh.metric(reads="all")(lambda logits, context: logits[..., 0].mean(1)), "values change by up to"),
    ("padding", mh.metric(reads="all")(no_position), "it should read only positions where context.mask is True"),
    ("padding", lambda logits, context: logits[:, 0, 0] + context.tokens.ids.shape[1], "values change by up to"),
    ("unchanged", lambda logits, context: (1e8 * logits[:, 0, 0]).sin(), "with rounding errors of a millionth"),
    ("engine", not_on_zeros, "it raised ValueError: no logits; it should run without an error"),
]


@pytest.mark.parametrize(("check", "broken", "message"), BROKEN_METRICS)
def test_a_broken_metric_fails_one_check(check, broken, message):
    fails_one(check_metric, broken, check, message)


def test_an_engine_that_is_off_by_a_percent_is_seen(monkeypatch):
    right = trials.sweep
    monkeypatch.setattr(trials, "sweep", lambda *args, **options: right(*args, **options) * 1.01)
    for check, thing in ((check_intervention, mh.Patch("v")), (check_metric, mh.log_prob)):
        with pytest.raises(CheckFailed, match=r"engine: mh\.sweep changes .* at L0H1.*; they should agree to 1e-4"):
            check(thing)


def test_sets_and_text_that_are_off_are_seen(monkeypatch):
    right, twice = other_places.patch_sets, lambda *given: [change for change in changes(*given) for _ in range(2)]
    changes = other_places.changes_of
    with monkeypatch.context() as patched:
        patched.setattr(other_places, "patch_sets", lambda *args, **options: replace_values(right(*args, **options)))
        with pytest.raises(CheckFailed, match=r"sets: mh\.patching\.patch_sets changes .* at L0H1 and L1H3, but"):
            check_intervention(Scale(0.5))
    with monkeypatch.context() as patched:
        patched.setattr(other_places, "changes_of", twice)
        with pytest.raises(CheckFailed, match=r"text: mh\.(task_log_prob changes|generate continues)"):
            check_intervention(Scale(0.5))


def replace_values(found):
    return replace(found, values=found.values * 1.01)


def test_keys_that_heads_share_are_checked_for_whole_groups():
    text = next(check.seen for check in check_intervention(Does(site="k", needs=())).checks if check.name == "text")
    assert text.startswith("mh.generate and mh.task_log_prob without L0H0 and L0H1 and L1H2 and L1H3 agree")


def test_all_failures_are_listed_and_the_cause_is_kept():
    @dataclass
    class Careless:
        needs = ()

        def __call__(self, z, context):
            return z.mean(1, keepdim=True) + context.base.q[context.head]

    with pytest.raises(AssertionError) as caught:
        check_intervention(Careless())
    lines = str(caught.value).splitlines()
    assert lines[0].endswith("Careless() fails 3 of 13 checks")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["pickle", "needs", "padding"]
    outcomes = {check.name: check.outcome for check in caught.value.report.checks}
    assert outcomes["engine"] == "not run" and outcomes["repeatable"] == "passed"
    assert "  engine (not run): needs 'pickle' to pass" in str(caught.value.report)
    assert "  padding FAILED: " in str(caught.value.report)

    with pytest.raises(CheckFailed) as caught:
        check_intervention(raises)
    assert isinstance(caught.value.__cause__, KeyError)


def test_a_named_position_is_made_where_the_metric_reads_one(loaded):
    subject = mh.metric(reads="subject", unit="nats")(mh.log_prob)
    assert "  reads: reads 'subject'" in str(check_metric(subject))
    with pytest.raises(CheckFailed, match="reads position 'subject'; these prompts have last"):
        check_metric(subject, prompts=["one", "three"])
    with pytest.raises(CheckFailed, match="this metric needs answers"):
        check_metric(mh.log_prob, loaded("gpt2"), [" yes", " no dog"])


def notes_of(report):
    return [note.split(";")[0] for note in report.notes]


class Bare:
    def __call__(self, z, context):
        return -z


def test_notes_of_interventions():
    @dataclass(frozen=True)
    class Local:
        def __call__(self, z, context):
            return -z

    assert notes_of(check_intervention(negate)) == []
    assert notes_of(check_intervention(Does(function=negate))) == []
    assert notes_of(check_intervention(Local())) == [
        "cannot be pickled, because its class is defined inside a function",
    ]
    (note,) = notes_of(check_intervention(lambda z, context: -z))
    assert note.startswith("cannot be pickled (")
    same, stored = notes_of(check_intervention(Bare()))
    assert same == "is not equal to itself after pickling"
    assert stored.startswith("cannot be used with store=: intervention")


def shifted(z, context):
    """The next token's z: of this prompt alone, but ahead."""
    last = (context.mask.sum(1) - 1)[:, None]
    at = (torch.arange(z.shape[1], device=z.device)[None] + 1).minimum(last)
    return z.gather(1, at[..., None].expand_as(z))


def of_next_prompt(z, context):
    return z * context.base.tokens.ids.roll(1, 0)[:, :1, None].double().sin().to(z)


def renormalised(pattern, context):
    """No attention to the first token, but at the first: rows still sum to 1."""
    pattern[:, 1:, 0] = 0
    return pattern / pattern.sum(-1, keepdim=True).clamp_min(1e-9)


def test_only_what_looks_ahead_or_elsewhere_is_noted():
    assert [note.split(":")[0] for note in check_intervention(shifted).notes] == ["looks ahead"]
    assert [note.split(":")[0] for note in check_intervention(of_next_prompt).notes] == ["looks at other prompts"]
    assert check_intervention(Does(renormalised, "pattern")).notes == ()


def spoils(logits, context):
    value = mh.kl_divergence(logits, context)
    logits.zero_()
    return value


@dataclass
class Loose:
    token: int = 3

    def __call__(self, logits, context):
        return logits[:, -1, self.token]


def test_notes_of_metrics():
    assert (
        "writes to the logits that it is given; this is allowed, because the engine gives it copies"
        in check_metric(spoils).notes
    )
    (gradient,) = check_metric(Loose()).notes
    assert gradient.startswith("can be used with attribution_patch")
    root = check_metric(lambda logits, context: (logits - context.base_logits)[:, 0, 0].abs().sqrt())
    assert "cannot be used with attribution_patch: its gradient is not finite at the unchanged run" in root.notes


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
