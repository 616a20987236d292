"""Text and log-probabilities with heads off and directions added, against full forward passes with plain hooks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.generation import Sampling, continuation_log_probs, sample_texts
from support import oracles
from support.levels import ONE_FIRST

ARCHITECTURES = ONE_FIRST

PROMPTS = [" The capital of France is", " yes", " When John and Mary went to the store John gave a book to"]
NEW, OFF = 7, ["L0H1", "L1H2", (2, 0)]
CHANCES = {"temperature": 2.0, "top_k": 5, "seed": 3}
REQUESTS = [
    (" The capital of France is", " Paris"),
    (" The capital of Italy is", " Rome yes no"),
    (" yes ", "a big dog"),
]


def rows_of(model: mh.Model, prompts: Any = PROMPTS) -> list[list[int]]:
    tokens = mh.Prompts(prompts).tokens(model)
    return [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]


def plain_hooks(model: mh.Model, ablation: str, steer: dict[int, Tensor], rows: list[list[int]]) -> list[Any]:
    """Plain hooks that do to whole rows what ``off``, ``ablation`` and ``steer`` say."""
    heads = [mh.HeadId.parse(head) for head in OFF]
    run = [model.cache([row], sites=("z",)).z for row in rows]

    def off(head: mh.HeadId) -> Callable[..., Tensor]:
        every = torch.cat([z[head][0] for z in run])

        def put(value: Tensor, hook: Any) -> Tensor:
            value = value.clone()
            value[:, :, head.head] = every.mean(0) if ablation == "mean" else 0
            return value

        return put

    def uniform(head: mh.HeadId) -> Callable[..., Tensor]:
        def put(pattern: Tensor, hook: Any) -> Tensor:
            pattern = pattern.clone()
            seen = pattern[:, head.head] > 0
            pattern[:, head.head] = seen / seen.sum(-1, keepdim=True)
            return pattern

        return put

    def add(direction: Tensor) -> Callable[..., Tensor]:
        return lambda value, hook: value + direction

    hooks: list[Any] = [(f"blocks.{layer}.hook_resid_pre", add(direction)) for layer, direction in steer.items()]
    if ablation == "uniform":
        return hooks + [(model.hook_name("pattern", head.layer), uniform(head)) for head in heads]
    return hooks + [(model.hook_name("z", head.layer), off(head)) for head in heads]


def direction_for(model: mh.Model) -> Tensor:
    return torch.randn(model.d_model, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("ablation", ["mean", "zero", "uniform"])
def test_text_with_heads_off_is_that_of_full_forward_passes(small: mh.Model, ablation: str) -> None:
    steer = {1: direction_for(small)}
    written = mh.generate(small, PROMPTS, Sampling(NEW, **CHANCES), off=OFF, intervention=ablation, steer=steer)
    rows = rows_of(small)
    hooks = plain_hooks(small, ablation, steer, rows)
    noise = torch.rand(len(PROMPTS), NEW, generator=torch.Generator().manual_seed(3))
    for i, row in enumerate(rows):
        for step, token in enumerate(written.ids[i]):
            logits = oracles.forward(small, torch.tensor([row + list(written.ids[i][:step])]), hooks)[0, -1]
            best = logits.topk(5)
            reached = (best.values / 2).softmax(-1).cumsum(-1)
            assert min(abs(reached - noise[i, step])) < 1e-4 or token == int(
                best.indices[int((reached <= noise[i, step]).sum())]
            )


def test_a_number_is_the_most_new_tokens_and_nothing_off_changes_nothing(llama: mh.Model) -> None:
    assert mh.generate(llama, PROMPTS, 5) == mh.generate(llama, PROMPTS, Sampling(5), off=[])
    plain = mh.generate(llama, PROMPTS, 5)
    assert mh.generate(llama, PROMPTS, 5, steer={0: torch.zeros(llama.d_model)}) == plain


def test_an_intervention_of_ones_own_turns_heads_off(llama: mh.Model) -> None:
    class Negate:
        def __call__(self, z: Tensor, context: mh.patching.Context) -> Tensor:
            return -z

    sampling = Sampling(NEW, **CHANCES)
    given = mh.generate(llama, PROMPTS, sampling, off=["L1H1"], intervention=mh.patching.Scale(-1.0))
    assert mh.generate(llama, PROMPTS, sampling, off=["L1H1"], intervention=Negate()) == given
    assert given.ids != mh.generate(llama, PROMPTS, sampling).ids


def test_text_is_passed_on_while_it_is_written(llama: mh.Model) -> None:
    pieces: list[tuple[int, str]] = []
    prompts = [f" The capital of {country} is" for country in ("France", "Spain", "Italy")]  # of one length
    written = mh.generate(
        llama, prompts, Sampling(NEW, **CHANCES), stream=lambda prompt, text: pieces.append((prompt, text))
    )
    for i, text in enumerate(written.texts):
        assert "".join(piece for prompt, piece in pieces if prompt == i) == text
    turns = [prompt for prompt, _ in groupby(pieces, key=lambda piece: piece[0])]
    assert len(turns) > len(set(turns))  # prompts are written side by side, none before another


@pytest.mark.parametrize("ablation", ["mean", "zero", "uniform"])
def test_continuations_are_as_likely_as_full_forward_passes_say(small: mh.Model, ablation: str) -> None:
    steer = {0: direction_for(small)}
    rows = rows_of(small, [context + continuation for context, continuation in REQUESTS])
    starts = [len(row) for row in rows_of(small, [context.rstrip() for context, _ in REQUESTS])]
    found = continuation_log_probs(small, REQUESTS, off=OFF, intervention=ablation, steer=steer)
    hooks = plain_hooks(small, ablation, steer, rows)
    for row, start, one in zip(rows, starts, found, strict=True):
        log_p = oracles.forward(small, torch.tensor([row]), hooks)[0].double().log_softmax(-1)
        each = [float(log_p[at - 1, row[at]]) for at in range(start, len(row))]
        assert one.log_prob == pytest.approx(sum(each), abs=2e-3)
        assert one.greedy == all(int(log_p[at - 1].argmax()) == row[at] for at in range(start, len(row)))
    small_parts = mh.settings(budget=mh.patching.Limits(run_tokens=1))(continuation_log_probs)(
        small, REQUESTS, off=OFF, intervention=ablation, steer=steer
    )
    assert [one.log_prob for one in small_parts] == pytest.approx([one.log_prob for one in found], abs=1e-3)


def test_a_harness_asks_as_the_lm_evaluation_harness_does(llama: mh.Model) -> None:
    found = continuation_log_probs(llama, [list(request) for request in REQUESTS])  # type: ignore[misc]
    assert all(isinstance(value, tuple) and len(value) == 2 for value in found)
    best = int(oracles.forward(llama, torch.tensor(rows_of(llama, [" yes"])))[0, -1].argmax())
    word = llama.tokenizer.decode([best])
    if llama.tokenizer(" yes" + word)["input_ids"][-1] == best:
        assert continuation_log_probs(llama, [(" yes", word)])[0].greedy


class Positional:
    """Depends on the position, so it cannot change text that is written token by token."""

    needs: ClassVar = ()

    def __call__(self, z: Tensor, context: Any) -> Tensor:
        return z * torch.arange(z.shape[1])[:, None]


class Keys:
    """Turns all keys round, which two heads share on grouped queries."""

    site: ClassVar = "k"
    needs: ClassVar = ()

    def __call__(self, k: Tensor, context: Any) -> Tensor:
        return -k


def test_keys_that_heads_share_are_changed_once(llama: mh.Model) -> None:
    def turned(value: Tensor, hook: Any) -> Tensor:
        return torch.cat([-value[:, :, :1], value[:, :, 1:]], 2)

    found = continuation_log_probs(llama, REQUESTS, off=["L1H1", "L1H0"], intervention=Keys())
    rows = rows_of(llama, [context + continuation for context, continuation in REQUESTS])
    starts = [len(row) for row in rows_of(llama, [context.rstrip() for context, _ in REQUESTS])]
    for row, start, one in zip(rows, starts, found, strict=True):
        log_p = oracles.forward(llama, torch.tensor([row]), [(llama.hook_name("k", 1), turned)])[0].log_softmax(-1)
        each = [float(log_p[at - 1, row[at]]) for at in range(start, len(row))]
        assert one.log_prob == pytest.approx(sum(each), abs=2e-3)
    with pytest.raises(
        ValueError, match="intervention changes k, which L1H0, L1H1 share; turn off L1H0 too, or give one on"
    ):
        mh.generate(llama, PROMPTS, 2, off=["L1H1"], intervention=Keys())


def test_the_mean_of_a_given_run_is_put_in(llama: mh.Model) -> None:
    mean = mh.patching.MeanOf(llama.cache(PROMPTS))
    given = mh.generate(llama, PROMPTS, NEW, off=OFF, intervention=mean)
    assert given == mh.generate(llama, PROMPTS, NEW, off=OFF, intervention="mean")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"off": ["L99H0"]}, "off: .*L99H0"),
        ({"off": None}, "off is None; give a list of heads, or leave it out"),
        ({"off": ["L0H0"], "intervention": 3}, "intervention is 3; give an intervention, such as"),
        ({"steer": [1]}, "steer is .*give a dict of a layer and a vector"),
        ({"off": ["L0H0"], "intervention": "median"}, "intervention is 'median'"),
        ({"off": ["L0H0"], "intervention": Positional()}, "gives a token another value when it comes alone"),
        ({"off": ["L0H0"], "intervention": mh.patching.Resample()}, "intervention: "),
        ({"steer": {9: torch.zeros(4)}}, "steer names layer 9; this model has layers 0..2"),
        ({"steer": {0: torch.zeros(4)}}, r"steer\[0\] is shape \[4\]; give a tensor of \d+ finite numbers"),
        ({"steer": {0: 3}}, r"steer\[0\] is int"),
    ],
)
def test_what_cannot_be_changed_is_said(llama: mh.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mh.generate(llama, PROMPTS, 2, **options)
    with pytest.raises(ValueError, match=message):
        continuation_log_probs(llama, REQUESTS, **options)
    assert not any(point.has_hooks() for point in llama.model.hook_dict.values())


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ([], "requests is empty; give pairs of a context and a continuation"),
        ([" yes"], r"requests\[0\] is ' yes'; give a context and a continuation, two texts"),
        ([(" yes", "")], r"requests\[0\]: the continuation has no tokens"),
        ([(" yes" * 70, " no")], r"requests\[0\] has 72 tokens; this model's context holds 64"),
    ],
)
def test_requests_that_cannot_be_answered_are_said(llama: mh.Model, requests: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        continuation_log_probs(llama, requests)


def test_texts_of_the_models_own_differ_and_begin_as_asked(small: mh.Model) -> None:
    texts = mh.settings(seed=2)(sample_texts)(small, 4, start=" yes", max_new_tokens=9)
    assert len(set(texts)) == 4 and all(text.startswith(" yes") for text in texts)
    assert texts == mh.settings(seed=2)(sample_texts)(small, 4, start=" yes", max_new_tokens=9)
    assert texts != mh.settings(seed=3)(sample_texts)(small, 4, start=" yes", max_new_tokens=9)
    profile = mh.profile_heads(small, sample_texts(small, 3, max_new_tokens=30), window=16)
    assert profile.provenance["n_windows"] >= 2
    with pytest.raises(ValueError, match="n is 0; it must be at least 1"):
        sample_texts(small, 0)


def test_the_command_writes_with_heads_off(tiny: Callable[[str], Path], llama: mh.Model) -> None:
    arguments = ["generate", PROMPTS[0], PROMPTS[1], "--model", str(tiny("llama")), "--tokens", "6"]
    for options, off in (([], []), (["--off", "L0H1", "--off", "L1H2", "--intervention", "zero"], ["L0H1", "L1H2"])):
        done = CliRunner().invoke(main, [*arguments, *options])
        assert done.exit_code == 0, done.output
        texts = mh.generate(llama, PROMPTS[:2], 6, off=off, intervention="zero").texts
        for prompt, text in zip(PROMPTS, texts, strict=False):
            assert f"{prompt}{text}\n" in done.output
    one = CliRunner().invoke(main, [*arguments[:2], *arguments[3:]])
    assert one.output == f"{PROMPTS[0]}{mh.generate(llama, PROMPTS[:1], 6).texts[0]}\n"
    failed = CliRunner().invoke(main, [*arguments, "--off", "L99H0"])
    assert failed.exit_code == 1 and "L99H0" in failed.output and "Traceback" not in failed.output
