"""Ablations are what the paper defines: a copy of the model with scaled weight matrices gives the same logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.engine.work import UnitRuns, batches
from mechheads.interventions.basic import UniformAttention
from mechheads.ledger.key import NO_STORE
from mechheads.safety import ships
from mechheads.safety.heads.ships import SafetyJob, ready
from mechheads.safety.requests import Side
from support import oracles, weight_surgery
from support.levels import few
from support.rules import hooks_of, rule_of
from support.weight_surgery import Which

PROMPTS = ["When John went to the store", " Paris or Rome", " a big dog gave Mary a book yes", " no", "I help"]
WAYS = [("undifferentiated", "q"), ("undifferentiated", "k"), ("scaling", "q")]


@pytest.fixture(scope="module", params=few(("gpt2", "llama", "neox", "gemma"), "llama"))
def architecture(request: pytest.FixtureRequest, tiny: Callable[[str], Path]) -> tuple[mh.Model, Path]:
    folder = tiny(request.param)
    return mh.load(folder), folder


def weight_of(kind: str, through: str) -> Which:
    return ("q" if through == "q" else "k") if kind == "undifferentiated" else "v"


def copy_of(model: mh.Model, folder: Path, which: Which) -> Any:
    """A copy in which this weight of one query head can be scaled alone."""
    grouped = which != "q" and model.n_kv_heads < model.n_heads
    return weight_surgery.separate(folder) if grouped else weight_surgery.load(folder)


def last_logits(altered: Any, rows: Sequence[Tensor]) -> Tensor:
    return torch.stack([weight_surgery.logits(altered, ids)[-1] for ids in rows])


def engine_logits(model: mh.Model, rule: Any, head: str) -> Tensor:
    """Logits at each prompt's last token, as the sweep's engine gets them for one unit [prompt, d_vocab]."""
    side = Side.of(model, mh.Prompts(PROMPTS), "bare")
    job = ready(SafetyJob(model, side, rule, head), NO_STORE)
    (batch,) = batches(job)
    (final,) = UnitRuns(job)(batch.units)
    assert len(batch.units) == 1
    return model.unembed(final[0][:, -1])


@pytest.mark.parametrize("epsilon", [0.0, 0.5])
@pytest.mark.parametrize(("kind", "through"), WAYS)
def test_one_query_head_is_a_copy_with_scaled_weights(
    architecture: tuple[mh.Model, Path], kind: Any, through: Any, epsilon: float
):
    model, folder = architecture
    which = weight_of(kind, through)
    copy, rows = copy_of(model, folder, which), weight_surgery.rows(model, PROMPTS)
    intact = last_logits(copy, rows)
    wanted = last_logits(weight_surgery.scale(copy, [mh.HeadId(1, 2)], which, epsilon), rows)
    found = engine_logits(model, rule_of(kind, epsilon, through), "L1H2")
    torch.testing.assert_close(found, wanted, atol=1e-4, rtol=0)
    assert float((wanted - intact).abs().max()) > 3e-3
    kl = ships(model, PROMPTS, intervention=rule_of(kind, epsilon, through), heads="L1H2", template="bare")
    expected = [oracles.kl(a[None], b[None]) for a, b in zip(intact, wanted, strict=True)]
    assert kl.values is not None
    np.testing.assert_allclose(kl.values[1, 2], expected, atol=2e-6, rtol=2e-3)


def test_norms_of_q_and_k_do_not_undo_epsilon(tiny: Callable[[str], Path]):
    """Qwen norms q and k, so scaled weights change nothing: what shrinks is what the norm gives."""
    model = mh.load(tiny("qwen"))
    rows = weight_surgery.rows(model, PROMPTS)
    intact = last_logits(weight_surgery.load(tiny("qwen")), rows)
    undone = last_logits(weight_surgery.scale(weight_surgery.load(tiny("qwen")), [mh.HeadId(1, 2)], "q", 0.5), rows)
    torch.testing.assert_close(undone, intact, atol=1e-4, rtol=0)
    for epsilon in (0.0, 0.5):
        both = [engine_logits(model, UniformAttention(epsilon, through), "L1H2") for through in ("q", "k")]
        torch.testing.assert_close(both[0], both[1], atol=1e-5, rtol=0)
        assert float((both[0] - intact).abs().max()) > 1e-2
    one = weight_surgery.load(tiny("qwen"))  # the norm's weight is shared by the heads of a layer: scale all of them
    with torch.no_grad():
        one.model.layers[1].self_attn.q_norm.weight *= 0.5
    hooks = hooks_of(model, UniformAttention(0.5), [mh.HeadId(1, head) for head in range(4)], PROMPTS)
    for ids in rows:
        found = model.unembed(model.backend.run(ids, hooks))[0]
        torch.testing.assert_close(found, weight_surgery.logits(one, ids), atol=1e-4, rtol=0)


def test_k_at_one_position_reaches_later_tokens_and_q_does_not(llama: mh.Model):
    """With ``positions`` a key is where it is attended to: that of the first token matters to the last."""
    ids = weight_surgery.rows(llama, PROMPTS[:1])[0]
    for through in ("q", "k"):
        found = mh.sweep(llama, PROMPTS[:1], intervention=UniformAttention(0.0, through), heads="L2H1", positions=[1])
        site = oracles.name(2, through)
        old = oracles.activations(llama, ids)
        new = old[site].clone()
        new[:, 1] = 0
        z = oracles.z_when(llama, ids, 2, 1, through, new)
        wanted = oracles.kl(oracles.forward(llama, ids)[0], oracles.with_z(llama, ids, 2, 1, z)[0])
        assert float(found.values[2, 1, 0, 0]) == pytest.approx(wanted, abs=1e-6, rel=1e-3)
        assert (wanted > 1e-5) == (through == "k")
