"""The proof: what was computed is what the model's own forward pass gives, or it is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

import mechheads as mh
from benchmarks.differential.changes import CHANGES, NotThere
from mechheads.engine.wavefront import Wave
from mechheads.gating import gates
from mechheads.generation.batch import Columns
from mechheads.generation.generate import Sampling, generate_under
from mechheads.interventions.new_z import HeadChange
from mechheads.model.proof import NotProved, apart
from support import oracles
from support.levels import few
from support.releases import only_on_4
from support.texts import CLEAN, PAIRS

HEADS = [(0, 1), (1, 0), (2, 3)]


def outside(model: mh.Model) -> Any:
    return getattr(model.model, "original_model", None) or model.model


def truth(model: mh.Model) -> np.ndarray:
    """Patching of z by one full forward pass of the model as it is for each head and prompt [head, prompt]."""
    clean, corrupted = PAIRS.tokens(model)
    found = np.zeros((len(HEADS), len(PAIRS.clean)))
    for i, (layer, head) in enumerate(HEADS):
        for j in range(len(PAIRS.clean)):
            base, source = (oracles.ids_of(tokens, j) for tokens in (corrupted, clean))
            here, there = (oracles.activations(model, ids) for ids in (base, source))
            new = oracles.patched_logits(model, base, here, there, layer, head, "z")
            found[i, j] = oracles.logit_diff(new - oracles.forward(model, base)[0], clean, j)
    return found


def measured(thing: Any, *rest: Any) -> np.ndarray:
    names = [f"L{layer}H{head}" for layer, head in HEADS]
    values = mh.activation_patch(thing, *rest, metric=mh.logit_diff, heads=names).values
    return np.stack([values.sel(layer=layer, head=head).values for layer, head in HEADS])


def steer_at_one_token(model: Any) -> None:
    def hook(module: Any, given: Any, out: Any) -> Any:
        stream = (out[0] if isinstance(out, tuple) else out).clone()
        if stream.shape[1] > 3:
            stream[:, 3] += torch.linspace(-3, 3, stream.shape[-1])
        return (stream, *out[1:]) if isinstance(out, tuple) else stream

    _block(model, 0).register_forward_hook(hook)


def steer_the_last(model: Any) -> None:
    def hook(module: Any, given: Any, out: Any) -> Any:
        stream = (out[0] if isinstance(out, tuple) else out).clone()
        stream[:, -1] += torch.linspace(-3, 3, stream.shape[-1])
        return (stream, *out[1:]) if isinstance(out, tuple) else stream

    _block(model, 1).register_forward_hook(hook)


def mean_over_tokens(model: Any) -> None:
    _mlp(model).register_forward_hook(lambda module, given, out: out + out.mean(1, keepdim=True))


def some_rows(model: Any) -> None:
    def hook(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        out = out.clone()
        out[1:] *= 0.5
        return out

    _mlp(model).register_forward_hook(hook)


def counting(model: Any) -> None:
    calls = [0]

    def hook(module: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return out * (1 + 0.5 * (calls[0] % 3))

    _mlp(model).register_forward_hook(hook)


def on_an_mlp(model: Any) -> None:
    _mlp(model).register_forward_hook(lambda module, given, out: out * 0.5)


def compiled(model: Any) -> None:
    model.compile(backend="eager")


def _block(model: Any, layer: int) -> Any:
    blocks = getattr(model.base_model, "layers", None) or model.base_model.h
    return getattr(blocks[layer], "original_component", None) or blocks[layer]


def _mlp(model: Any) -> Any:
    return getattr(_block(model, 1).mlp, "original_component", None) or _block(model, 1).mlp


OTHERS = [steer_at_one_token, steer_the_last, mean_over_tokens, some_rows, counting, on_an_mlp, compiled]
EVERY = {name: change for name, (change, _) in CHANGES.items()} | {each.__name__: each for each in OTHERS}


@pytest.mark.parametrize("family", few(["llama", "gpt2", "gemma"], "llama"))
@pytest.mark.parametrize("name", EVERY)
def test_after_a_change_numbers_are_right_or_refused(tiny: Callable[[str], Path], name: str, family: str) -> None:
    model = mh.load(tiny(family), backend="bridge")
    job = mh.prepare(model, PAIRS)
    measured(model, PAIRS)
    change, undo = EVERY[name], None
    try:
        undo = change(outside(model)) if change else None
    except (NotThere, TypeError):
        return  # the model cannot be changed so
    wanted = None
    try:
        for given in ((job,), (model, PAIRS)):
            try:
                found = measured(*given)
            except ValueError:
                continue
            wanted = truth(model) if wanted is None else wanted
            np.testing.assert_allclose(found, wanted, atol=1e-2 * max(1e-3, np.abs(wanted).max()))
    finally:
        if callable(undo):
            undo()


def test_the_message_names_the_difference_and_its_likely_reason(tiny: Callable[[str], Path]) -> None:
    model = mh.load(tiny("llama"), backend="bridge")
    mean_over_tokens(outside(model))
    message = r"differs .* by [\d.]+ of the interquartile range .*\. A torch hook is on .*mlp.*\. Undo the change"
    with pytest.raises(NotProved, match=message):
        mh.activation_patch(model, PAIRS)


@pytest.mark.parametrize("site", ["z", "k"])
@pytest.mark.parametrize("family", few(["gpt2", "llama", "gemma"], "llama"))
def test_a_wave_that_is_wrong_is_noticed(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str, site: Any
) -> None:
    model, run = mh.load(tiny(family), backend="bridge"), Wave.run
    analyses: list[Callable[[], Any]] = [
        lambda: mh.activation_patch(model, PAIRS, site=site),
        lambda: mh.activation_patch(model, PAIRS, site=site, given=["L0H1"]),
        lambda: mh.activation_patch(model, PAIRS, site=site, positions="each"),
    ]
    for analyse in analyses:
        analyse()
    monkeypatch.setattr(Wave, "run", lambda self, copies: run(self, copies) * 1.05)
    for analyse in analyses:
        with pytest.raises(NotProved, match="what the engine gives for prompt"):
            analyse()


def test_how_far_two_results_are_apart() -> None:
    theirs = torch.tensor([[0.0, 1, 2, 3, 4, -torch.inf]])
    assert apart(theirs + 5, theirs, logits=True) == pytest.approx(0, abs=1e-6)
    there = theirs[0, :5].log_softmax(-1)
    moved = theirs.clone()
    moved[0, 4] += 0.1
    wanted = float((moved[0, :5].log_softmax(-1) - there).abs().max() / 2)
    assert apart(moved, theirs, logits=True) == pytest.approx(wanted, rel=1e-5)
    assert apart(theirs[:, :5], theirs, logits=True) == torch.inf
    assert apart(torch.zeros(1, 6), theirs, logits=True) == torch.inf
    assert apart(torch.tensor([[1.0, 2.2]]), torch.tensor([[1.0, 2.0]]), logits=False) == pytest.approx(0.1)


def test_text_with_heads_off_is_proved_by_hooks(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model = mh.load(tiny("llama"), backend="bridge")
    off = [HeadChange(1, 2, "z", lambda z: 0 * z)]
    generate_under(model, CLEAN, [(), off], Sampling(4))
    monkeypatch.setattr(Columns, "update", _doubled(Columns.update))
    with pytest.raises(NotProved, match="the text written after prompt"):
        generate_under(model, CLEAN, [off], Sampling(4))


def _doubled(update: Any) -> Any:
    def doubled(self: Any, k: torch.Tensor, v: torch.Tensor, layer: int, *rest: Any) -> Any:
        keys, values = update(self, k, v, layer, *rest)
        return keys, values if k.shape[2] > 1 else 2 * values

    return doubled


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("alone", [0.0, 0.15])
def test_in_half_precision_a_prompt_that_others_round_is_proved_alone(
    tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype, alone: float
) -> None:
    model = mh.load(tiny("llama"), dtype=dtype)
    usual, monotone = model.backend.run, torch.linspace(-1, 1, model.d_model)

    def rounded(ids: torch.Tensor, *rest: Any, **more: Any) -> torch.Tensor:
        final = usual(ids, *rest, **more)
        return final + (0.15 if len(ids) > 1 else alone) * final.std() * monotone.to(final)

    model.cache(CLEAN)
    monkeypatch.setattr(model.backend, "run", rounded)
    if dtype == torch.bfloat16 and not alone:
        model.cache(CLEAN)
        return
    with pytest.raises(NotProved, match="the cached run of prompt"):
        model.cache(CLEAN)


@only_on_4
def test_what_transformerlens_rotates_into_float32_runs_in_half_precision(family: Callable[[str], Path]) -> None:
    folder = family("olmo")
    kl = mh.ablate(mh.load(folder, dtype=torch.bfloat16), CLEAN, heads="L0H1", intervention="zero").values
    wide = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    out = wide.model.layers[0].self_attn.o_proj
    d_head = out.in_features // wide.config.num_attention_heads
    zero = torch.ones(out.in_features).index_fill(0, torch.arange(d_head, 2 * d_head), 0)
    ids = [torch.tensor([row]) for row in mh.load(folder).cache(CLEAN).tokens.unpadded]
    with torch.no_grad():
        p = torch.cat([wide(row).logits[:, -1].log_softmax(-1) for row in ids])
        out.register_forward_pre_hook(lambda module, given: (given[0] * zero,))
        q = torch.cat([wide(row).logits[:, -1].log_softmax(-1) for row in ids])
    np.testing.assert_allclose(kl.values[0, 1], (p.exp() * (p - q)).sum(-1).numpy(), rtol=0.1)


TASK = mh.Task(["The capital of France is", "Two and two make"], [" Paris", " four"])
UNCACHED: dict[str, Callable[[mh.Model], Any]] = {
    "text with heads off": lambda model: mh.generate(model, CLEAN, 4, off=["L1H2"]),
    "log-probabilities of a task": lambda model: mh.task_log_prob(model, TASK, off=["L1H2"]),
    "gates": lambda model: mh.fit_gates(model, TASK, seeds=1, updates=1),
    "a group of heads": lambda model: mh.safety.sahara(model, CLEAN, 1, template="bare", draws=1, heads=["L1H2"]),
}


@pytest.mark.parametrize("name", UNCACHED)
def test_what_runs_without_a_cache_is_proved(tiny: Callable[[str], Path], name: str) -> None:
    model = mh.load(tiny("llama"), backend="bridge")
    UNCACHED[name](model)
    mean_over_tokens(outside(model))
    with pytest.raises(NotProved):
        UNCACHED[name](model)


def test_wrong_gates_are_noticed(tiny: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, final = mh.load(tiny("llama"), backend="bridge"), gates._final_states
    monkeypatch.setattr(gates, "_final_states", lambda *args: 1.05 * final(*args))
    with pytest.raises(NotProved, match="the run under gates of item"):
        mh.task_log_prob(model, TASK, off=["L1H2"])
