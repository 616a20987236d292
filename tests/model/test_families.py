"""Representative architectures against one full forward pass of plain transformers for each head and prompt."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers

import mechheads as mh
from mechheads.generation.generate import Sampling, generate
from support.family_trial import Trial
from support.levels import few
from support.releases import TRANSFORMERLENS_4, only_on_4
from support.tiny_families import FAMILIES, NOT_TRIED

ROUNDING = 2e-4
"""HookedTransformer rounds five times as much as transformers; the faults that were found are above 1e-2."""

EXACT = {
    "gpt2": ("learned", "before", "all", "full", "fused"),
    "llama": ("rotary", "before", "grouped", "full", "separate"),
    "llama-wide": ("rotary", "before", "grouped", "full", "biased"),
    "qwen3": ("rotary", "q and k", "grouped", "full", "separate"),
    "gemma2": ("rotary", "both", "grouped", "soft cap", "separate"),
    "gemma3": ("rotary", "both", "grouped", "window", "separate"),
    "gpt-neox": ("partial", "parallel", "all", "full", "fused"),
    "phi3-longrope": ("rotary", "before", "grouped", "full", "fused"),
    "falcon-7b": ("rotary", "parallel", "one", "full", "fused"),
    "bloom": ("alibi", "before", "all", "full", "fused"),
    "mixtral": ("rotary", "before", "grouped", "full", "separate"),
    "olmo2-mha": ("rotary", "after", "all", "full", "separate"),
    "cohere2": ("partial", "parallel", "grouped", "window", "separate"),
    "granite": ("rotary", "before", "grouped", "full", "separate"),
    "gpt-oss": ("rotary", "before", "grouped", "sinks", "biased"),
    "stablelm-parallel": ("partial", "parallel", "grouped", "full", "separate"),
    "opt": ("learned", "before", "all", "full", "biased"),
    "gpt-bigcode": ("learned", "before", "one", "full", "fused"),
    "llama4": ("partial", "before", "grouped", "window", "separate"),
    "afmoe": ("partial", "both", "grouped", "window", "separate"),
}
"""Positions, norms, queries, attention, and q, k, v of each. Some also have experts, multipliers or gates."""
ALWAYS = ("gpt2", "gemma2", "gpt-neox", "falcon-7b", "bloom", "gpt-oss")
"""One of nearly each kind is always tried, the others before a release. Single analyses have tests on a llama too."""
EXACT_ON_3 = (
    "gpt2",
    "llama",
    "qwen3",
    "gemma2",
    "gpt-neox",
    "phi3",
    "mixtral",
    "gpt-oss",
    "opt",
    "gpt-j",
    "mistral",
    "llama3-rope",
)
"""Those of which TransformerLens 3.9 makes a HookedTransformer; of the others above it says that it cannot."""

REFUSED = {
    "bitnet": r"z of a head is not its pattern times its v",
    "codegen": r"running it block by block fails: 'CodeGenAttention' object has no attribute 'embed_positions'",
    "deepseek-v3": r"q in layer 0 \(DeepseekV3DecoderLayer\) has the shape \[2, 4, 9, 12\]; 2 prompts of 9 tokens",
    "falcon-40b": r"TransformerLens \S+ does not support it: split_with_sizes",
    "falcon-h1": r"layer 0 \(FalconH1DecoderLayer\) does more with its heads' output, or with other tokens",
    "gemma4": r"running it block by block fails: It seems like you tried to call `forward` from `inputs_embeds`",
    "gpt-bigcode-mha": r"TransformerLens \S+ does not support it: GPTBigCodeArchitectureAdapter only supports",
    "jamba": r"layer 0 \(JambaMambaDecoderLayer\) has no attention heads",
    "lfm2": r"layer 0 \(Lfm2DecoderLayer\) has no attention heads",
    "modernbert-decoder": r"TransformerBridge and transformers give different logits on a prompt",
    "phimoe": r"TransformerLens \S+ does not support it: Could not determine supported architecture",
    "qwen3-next": r"layer 0 \(Qwen3NextDecoderLayer\) has no attention heads",
}
REFUSED_ON_3 = {
    "bloom": r"TransformerLens \S+ does not support it: 'BloomConfig' object has no attribute",
    "gemma3": r"TransformerLens \S+ does not support it: Gemma3ForCausalLM is not currently supported",
    "llama-yarn": r"HookedTransformer and transformers give different logits on .* 64 tokens; use backend=\"bridge\"",
    "phi3-longrope": r"HookedTransformer and transformers give different logits on .*; use backend=\"bridge\"",
    "qwen2-windows": r"HookedTransformer has no window of 4 tokens for it; use backend=\"bridge\"",
}


@pytest.mark.parametrize("name", few(EXACT if TRANSFORMERLENS_4 else EXACT_ON_3, *ALWAYS))
def test_every_analysis_gives_the_numbers_of_plain_transformers(name, family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        off = Trial(name, family(name), heads=[2]).differences()
    assert len(off) == 16
    assert {analysis: by for analysis, by in off.items() if not by <= ROUNDING} == {}


@only_on_4
@pytest.mark.parametrize("name", few(EXACT, "gemma2", "bloom"))
def test_what_is_written_into_any_weight_is_seen_or_refused(name, family):
    folder = family(name)
    model, ids = transformers.AutoModelForCausalLM.from_pretrained(folder).eval(), torch.tensor([[5, 6, 7, 8, 9]])
    wrapped = mh.wrap(model, transformers.AutoTokenizer.from_pretrained(folder))
    copied = {id(weight) for weight in wrapped.backend._copied}
    assert bool(copied) == (name in ("gpt-neox", "falcon-7b", "bloom"))
    weights = [weight for weight in model.parameters() if id(weight) not in copied]
    for at, weight in enumerate(weights):
        with torch.no_grad():
            weight.mul_(1.5 if at % 2 else -0.75)
            wanted = model(input_ids=ids).logits
        found = wrapped.cache(ids.tolist()).logits
        torch.testing.assert_close(found, wanted, atol=1e-3 * float(wanted.abs().max()), rtol=0)
    if copied:
        with torch.no_grad():
            next(weight for weight in model.parameters() if id(weight) in copied).mul_(1.5)
        for read in (lambda: wrapped.cache(ids.tolist()), lambda: wrapped.W_Q[0]):
            with pytest.raises(
                ValueError, match=r"its weights of q, k and v were written into .* wrap the model again"
            ):
                read()


@pytest.mark.parametrize("name", few(EXACT if TRANSFORMERLENS_4 else EXACT_ON_3, *ALWAYS))
def test_the_parts_of_a_logit_sum_to_that_of_plain_transformers(name, family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trial = Trial(name, family(name))
    data = mh.behaviour.logit_attribution(trial.model, trial.pairs).dataset
    parts = data["values"].sum(("layer", "head")) + (data["mlp"] + data["bias"]).sum("layer")
    parts = (parts + data["embedding"] + data["output_bias"]).values
    columns = zip(trial.clean, trial.pairs.answer, trial.pairs.wrong, strict=True)
    wanted = np.array([float(logits[-1, answer] - logits[-1, wrong]) for (logits, _), answer, wrong in columns])
    np.testing.assert_allclose(parts, wanted, atol=ROUNDING * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(("name", "why"), (REFUSED if TRANSFORMERLENS_4 else REFUSED_ON_3).items())
def test_what_cannot_be_read_is_refused_at_load_in_one_sentence(name, why, family):
    with pytest.raises(ValueError, match=why) as caught:
        mh.load(family(name))
    assert "cannot be read" in str(caught.value) and "\n" not in str(caught.value)


def test_the_oracle_finds_a_head_that_is_patched_wrongly(family):
    """A difference is a share of the largest effect, so one wrong head shows."""
    trial = Trial("llama", family("llama"), heads=[0, 1])
    ours, theirs = trial.patch("z")
    trial._apart(ours, theirs, "patch z")
    assert trial._apart(ours, theirs, "patch z") < ROUNDING
    assert trial._apart(ours[::-1], theirs, "patch z") > 100 * ROUNDING


def test_the_docs_tell_of_every_architecture():
    page = (Path(__file__).parents[2] / "docs" / "models.md").read_text("utf-8")
    assert [name for name in (*FAMILIES, *NOT_TRIED) if f"`{name}`" not in page] == []


@only_on_4
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotations_that_depend_on_the_longest_position_are_refused_beyond_it(family, dtype):
    """LongRoPE turns every position otherwise in a text of more than 16 tokens; patching was off by 4 to 6."""
    model = mh.load(family("phi3-longrope"), dtype=dtype)
    rotations = model.model.original_model.model.rotary_emb.inv_freq.clone()
    assert model.n_ctx == 64 and model.alike_up_to == 16
    assert torch.equal(model.model.original_model.model.rotary_emb.inv_freq, rotations)
    assert model.cache([[5] * 16]).z["L0H0"].shape == (1, 16, 8)
    with pytest.raises(ValueError, match=r"prompt 1 has 17 tokens; beyond 16 tokens this model changes"):
        model.cache([[5] * 4, [5] * 17])
    with pytest.raises(ValueError, match=r"prompt 0 has 10 tokens; beyond 16 .* Give at most 6"):
        generate(model, [[5] * 10], Sampling(7))


@only_on_4
def test_other_rotations_are_the_same_in_every_context(family):
    for name in ("llama-dynamic", "llama-yarn", "gemma3", "opt"):
        model = mh.load(family(name))
        assert model.alike_up_to == model.n_ctx


@only_on_4
def test_a_pattern_that_cannot_be_changed_is_not_patched_in_silence(family):
    pairs = mh.PromptPairs([[5, 6, 7]], [[5, 8, 7]], [9], [10])
    model = mh.load(family("gpt-neo"))
    with pytest.raises(ValueError, match=r"site 'pattern' of model .* can be read but not changed"):
        mh.activation_patch(model, pairs, site="pattern")
    usual = mh.load(family("gpt2"))
    assert mh.activation_patch(usual, pairs, site="pattern").scores.notnull().all()
