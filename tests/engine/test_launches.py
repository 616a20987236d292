"""How many operations an analysis starts on a GPU, and how often the CPU waits for one, counted on a simulated device.

A GPU starts an operation in some 5 microseconds, however small it is, so what is done for each head takes longer than
the blocks of a small model.
"""

from __future__ import annotations

import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import mechheads as mh
from mechheads.engine.report import AnswerWarning
from support import tiny as tiny_models
from support.releases import only_on_4
from support.simulated_devices import Simulated, simulation

pytestmark = only_on_4

LAYERS, HEADS = 30, 9
_FREE = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view", "lift_fresh", "set_"}
"""Operations that only make tensors, as views do."""
_READS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2"}
"""Operations whose result the CPU waits for."""
_INDEXED = {"index", "index_put", "index_put_"}
_INSIDE = str(Path(mh.__file__).parent)


class Launches(TorchDispatchMode):
    """Counts operations with tensors on a simulated device by the file of the package that asks for them."""

    def __init__(self) -> None:
        super().__init__()
        self.started: Counter[str] = Counter()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out, name = func(*args, **(kwargs or {})), func.overloadpacket.__name__
        if any(isinstance(leaf, Simulated) for leaf in tree_leaves((args, kwargs, out))):
            where = _asked_by(sys._getframe(1))
            self.waits[where] += _waits(name, args, kwargs or {}, out)
            view = any(each.alias_info is not None and not each.alias_info.is_write for each in func._schema.returns)
            self.started[where] += not view and name not in _FREE and name != "_local_scalar_dense"
        return out


def _waits(name: str, args: Any, kwargs: dict[str, Any], out: Any) -> bool:
    if name in ("_to_copy", "copy_"):
        to, of = (args[0], args[1]) if name == "copy_" else (out, args[0])
        there = isinstance(of, Simulated)
        return there != isinstance(to, Simulated) and (there or not kwargs.get("non_blocking"))
    indices = [index for index in args[1] if index is not None] if name in _INDEXED else []
    return name in _READS or any(index.dtype == torch.bool or not isinstance(index, Simulated) for index in indices)


def _asked_by(frame: Any) -> str:
    while frame is not None and not frame.f_code.co_filename.startswith(_INSIDE):
        frame = frame.f_back
    return "" if frame is None else str(Path(frame.f_code.co_filename).relative_to(_INSIDE))


def test_what_is_counted() -> None:
    with simulation(), Launches() as counted:
        x = torch.arange(6.0, device="lazy:0").view(2, 3)
        assert counted.started.total() == 1 and not counted.waits.total()
        x[torch.tensor([1, 0], device="lazy:0").clone()]
        waits = counted.waits.total()
        for many, wait in enumerate(
            (lambda: x[0, 0].item(), lambda: x[x > 1], lambda: x.cpu(), lambda: x[torch.tensor([1])], x.nonzero), 1
        ):
            wait()
            assert counted.waits.total() == waits + many
        torch.ones(3).to("lazy:0", non_blocking=True)
        assert counted.waits.total() == waits + many


@pytest.fixture(scope="module")
def many_heads(tmp_path_factory: pytest.TempPathFactory) -> Iterator[mh.Model]:
    """A Llama with the layers and heads of the default model, on a simulated device."""
    folder, tokenizer = tmp_path_factory.mktemp("many"), tiny_models.make_tokenizer(begins=False)
    config = transformers.LlamaConfig(
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=3,
        hidden_size=36,
        intermediate_size=48,
        max_position_embeddings=tiny_models.CONTEXT,
        **tiny_models.vocabulary_of(tokenizer),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        for name, parameter in made.named_parameters():
            tiny_models.randomise(name, parameter, "llama")
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with simulation():
        model = mh.load(folder, device="lazy:0")
        pair = mh.PromptPairs(TEXTS[0][:1], TEXTS[1][:1], answer=[" Paris"], wrong=[" Rome"])
        mh.activation_patch(model, pair, heads="L29H8")  # what is found out once for a model
        mh.path_patch(model, pair, senders="L29H8")
        mh.ships(model, mh.Prompts(TEXTS[0][:1]))
        yield model


def _texts() -> tuple[list[str], list[str]]:
    """Eight texts of 16 words, and the same with another third word."""
    draw, words = random.Random(0), tiny_models.WORDS.split()[:30]
    rows = [[draw.choice(words) for _ in range(16)] for _ in range(8)]
    other = [[*row[:2], draw.choice([word for word in words if word != row[2]]), *row[3:]] for row in rows]
    return [" " + " ".join(row) for row in rows], [" " + " ".join(row) for row in other]


TEXTS = _texts()
PAIRS = mh.PromptPairs(*TEXTS, answer=[" Paris"] * 8, wrong=[" Rome"] * 8)
ONE_WAVE = mh.patching.Limits(tokens=2**30)


ANALYSES: dict[str, tuple[Callable[[mh.Model], Any], int]] = {
    "activation patching": (lambda model: mh.activation_patch(model, PAIRS, metric=mh.logit_diff), 8_200),
    "activation patching, KL": (lambda model: mh.activation_patch(model, PAIRS, metric=mh.kl_divergence), 8_200),
    "paths": (lambda model: mh.path_patch(model, PAIRS, metric=mh.logit_diff), 9_900),
    "Ships": (lambda model: mh.ships(model, mh.Prompts(TEXTS[0])), 8_200),
}
"""Each analysis, and the most operations that it may start; some 4,000 are those of the blocks, 1,300 to 3,100 those of
the one proof of a call."""
OF_FILES = {
    "engine/evaluate.py": 30,
    "engine/frozen_heads.py": 750,
    "engine/rows.py": 110,
    "engine/wavefront.py": 300,
    "interventions/new_z.py": 750,
    "metrics/basic.py": 60,
}
"""The most operations that these files may start; one for each head is 270, with which the new z are put in place."""


@pytest.mark.slow
@pytest.mark.parametrize("analysis", ANALYSES)
def test_operations_are_started_for_layers_and_waves_not_for_heads(analysis: str, many_heads: mh.Model) -> None:
    run, most = ANALYSES[analysis]
    with mh.settings(budget=ONE_WAVE), warnings.catch_warnings(), Launches() as counted:
        warnings.simplefilter("ignore", AnswerWarning)  # a random model prefers wrong answers
        run(many_heads)
    assert counted.waits.total() <= 10 + 30, counted.waits  # the second for the one proof of a call, of any size
    assert counted.started.total() <= most, counted.started
    assert {file: counted.started[file] for file, few in OF_FILES.items() if counted.started[file] > few} == {}


def test_a_metric_of_many_copies_at_once_gives_what_it_gives_of_each(loaded: Callable[[str], mh.Model]) -> None:
    def squares(logits: torch.Tensor, context: Any) -> torch.Tensor:
        return (logits[..., -1, :] - context.base_logits[..., -1, :]).square().sum(-1)

    each, together = (
        mh.ablate(loaded("gpt2"), TEXTS[0], metric=mh.metric(copies=copies)(squares)).values for copies in (False, True)
    )
    assert float(each.min()) > 0
    np.testing.assert_allclose(each, together, rtol=1e-6)
