"""Text with heads off, against full forward passes with plain hooks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.generation import Sampling
from support import oracles
from support.levels import ONE_FIRST

ARCHITECTURES = ONE_FIRST

PROMPTS = [" The capital of France is", " yes", " When John and Mary went to the store John gave a book to"]
NEW, OFF = 7, ["L0H1", "L1H2", (2, 0)]
CHANCES = {"temperature": 2.0, "top_k": 5}


def rows_of(model: mh.Model, prompts: Any = PROMPTS) -> list[list[int]]:
    tokens = mh.Prompts(prompts).tokens(model)
    return [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]


def plain_hooks(model: mh.Model, ablation: str, rows: list[list[int]]) -> list[Any]:
    """Plain hooks that do to whole rows what ``off`` and ``ablation`` say."""
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

    if ablation == "uniform":
        return [(model.hook_name("pattern", head.layer), uniform(head)) for head in heads]
    return [(model.hook_name("z", head.layer), off(head)) for head in heads]


@pytest.mark.parametrize("ablation", ["mean", "zero", "uniform"])
def test_text_with_heads_off_is_that_of_full_forward_passes(small: mh.Model, ablation: str) -> None:
    written = mh.generate(small, PROMPTS, Sampling(NEW, **CHANCES), off=OFF, intervention=ablation, seed=3)
    rows = rows_of(small)
    hooks = plain_hooks(small, ablation, rows)
    for i, row in enumerate(rows):
        noise = torch.from_numpy(np.random.default_rng([3, 0, *row]).random(NEW, dtype=np.float32))
        for step, token in enumerate(written.ids[i]):
            logits = oracles.forward(small, torch.tensor([row + list(written.ids[i][:step])]), hooks)[0, -1]
            best = logits.topk(5)
            reached = (best.values / 2).softmax(-1).cumsum(-1)
            assert min(abs(reached - noise[step])) < 1e-4 or token == int(
                best.indices[int((reached <= noise[step]).sum())]
            )


def test_an_intervention_of_ones_own_turns_heads_off(llama: mh.Model) -> None:
    class Negate:
        def __call__(self, z: Tensor, context: mh.patching.Context) -> Tensor:
            return -z

    sampling = Sampling(NEW, **CHANCES)
    given = mh.generate(llama, PROMPTS, sampling, off=["L1H1"], intervention=mh.patching.Scale(-1.0))
    assert mh.generate(llama, PROMPTS, sampling, off=["L1H1"], intervention=Negate()) == given
    assert given.ids != mh.generate(llama, PROMPTS, sampling).ids


NOT_ALONE: dict[str, Callable[[Tensor], Any]] = {
    "by position": lambda z: z * torch.arange(z.shape[1])[:, None],
    "mean over rows": lambda z: z.mean((0, 1), keepdim=True).expand_as(z),
    "from the end": lambda z: z.flip(1),
    "of the next token": lambda z: z[:, [*range(1, z.shape[1]), -1]],
}


@pytest.mark.parametrize("name", NOT_ALONE)
def test_an_intervention_that_does_not_treat_tokens_by_themselves_is_refused(llama: mh.Model, name: str) -> None:
    with pytest.raises(ValueError, match="it gives a token another value when it comes alone"):
        mh.generate(llama, PROMPTS, 2, off=["L0H0"], intervention=lambda z, context: NOT_ALONE[name](z))


@dataclass(frozen=True)
class OnPattern:
    """Changes patterns by their values, not by the tokens."""

    site: ClassVar = "pattern"
    needs: ClassVar = ()

    def __call__(self, pattern: Tensor, context: Any) -> Tensor:
        return pattern


class Keys:
    """Turns all keys round, which two heads share on grouped queries."""

    site: ClassVar = "k"
    needs: ClassVar = ()

    def __call__(self, k: Tensor, context: Any) -> Tensor:
        return -k


def test_keys_that_heads_share_are_changed_once(llama: mh.Model) -> None:
    def turned(value: Tensor, hook: Any) -> Tensor:
        return torch.cat([-value[:, :, :1], value[:, :, 1:]], 2)

    written = mh.generate(llama, PROMPTS, 4, off=["L1H1", "L1H0"], intervention=Keys())
    for row, ids in zip(rows_of(llama), written.ids, strict=True):
        for step, token in enumerate(ids):
            before = torch.tensor([[*row, *ids[:step]]])
            logits = oracles.forward(llama, before, [(llama.hook_name("k", 1), turned)])[0, -1]
            assert float(logits.max() - logits[token]) < 1e-4
    with pytest.raises(
        ValueError, match="intervention changes k, which L1H0, L1H1 share; turn off L1H0 too, or give one on"
    ):
        mh.generate(llama, PROMPTS, 2, off=["L1H1"], intervention=Keys())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"off": ["L99H0"]}, "off: .*L99H0"),
        ({"off": None}, "off is None; give a list of heads, or leave it out"),
        ({"off": ["L0H0"], "intervention": 3}, "intervention is 3; give an intervention, such as"),
        ({"off": ["L0H0"], "intervention": "median"}, "intervention is 'median'"),
        ({"off": ["L0H0"], "intervention": OnPattern()}, "intervention is on the pattern"),
        (
            {"off": ["L0H0"], "intervention": lambda z, context: 0.0},
            "on its own, .*; on two rows of three tokens, or on",
        ),
        ({"off": ["L0H0"], "intervention": lambda z, context: z[0]}, r"of shape \[2, 3, 8\] it makes \[3, 8\]"),
        (
            {"off": ["L0H0"], "intervention": mh.patching.Resample()},
            "intervention must .* it fails: Resample takes z from",
        ),
    ],
)
def test_what_cannot_be_changed_is_said(llama: mh.Model, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mh.generate(llama, PROMPTS, 2, **options)
    assert not any(point.has_hooks() for point in llama.model.hook_dict.values())
