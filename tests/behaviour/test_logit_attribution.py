"""The parts of a logit: they sum to it, and each is what a plain computation gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.behaviour.frozen import FrozenRun
from support.levels import few
from support.micro import FRANCE_RUN, micro  # noqa: F401
from support.releases import only_on_4
from support.weight_surgery import load

TEXTS = [" The capital of France is", " The capital of Spain is the big", " When John and Mary"]
PROMPTS = mh.Prompts(TEXTS, [" Paris", " Madrid", " went"], [" Rome", " Berlin", " is"])
PAIRS = mh.PromptPairs([" The capital of France is"], [" The capital of Italy is"], [" Paris"], [" Rome"])


@pytest.fixture(scope="module", params=few(("gpt2", "gemma", "llama", "neox"), "llama"))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def everything(scores: mh.HeadScores) -> np.ndarray:
    """The sum of all parts [prompt]."""
    data = scores.dataset
    heads = np.nansum(data["values"].values, axis=tuple(range(data["values"].ndim - 1)))
    one_a_layer = (data["mlp"] + data["bias"]).sum("layer").values
    return heads + one_a_layer + data["embedding"].values + data["output_bias"].values


def logits_of(model: mh.Model, tokens: Any) -> Tensor:
    """The model's own logits after the last token, one prompt at a time [prompt, d_vocab]."""
    rows = [ids[:length][None] for ids, length in zip(tokens.ids, tokens.lengths, strict=True)]
    return torch.cat([model.backend.own_logits(ids)[:, -1] for ids in rows]).double()


class Plain:
    """The parts of heads with plain transformers: what goes into each W_O and norm, and norms written out."""

    PARTS: ClassVar = {  # the layers, W_O in a layer, the final norm
        "gpt2": ("transformer.h", "attn.c_proj", "transformer.ln_f"),
        "llama": ("model.layers", "self_attn.o_proj", "model.norm"),
        "neox": ("gpt_neox.layers", "attention.dense", "gpt_neox.final_layer_norm"),
        "gemma": ("model.layers", "self_attn.o_proj", "model.norm"),
    }

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.model = name, load(folder).double()
        layers, self.w_o, norm = self.PARTS[name]
        self.layers, self.norm = self.model.get_submodule(layers), self.model.get_submodule(norm)

    def heads(self, ids: Tensor, answer: int, wrong: int) -> np.ndarray:
        """The part of each head in logit(answer) - logit(wrong) of one prompt [layer, head]."""
        into: dict[Any, Tensor] = {}
        after = [layer.post_attention_layernorm for layer in self.layers] if self.name == "gemma" else []
        W_Os = [layer.get_submodule(self.w_o) for layer in self.layers]
        hooks = [
            module.register_forward_pre_hook(lambda module, given: into.update({module: given[0][0, -1].detach()}))
            for module in (self.norm, *after, *W_Os)
        ]
        logits = self.model(ids).logits[0, -1].detach()
        for hook in hooks:
            hook.remove()
        W_U = self.model.get_output_embeddings().weight.detach()
        slope = 1.0
        if (cap := getattr(self.model.config, "final_logit_softcapping", None)) is not None:
            before = cap * torch.atanh(logits / cap)
            slope = (logits[answer] - logits[wrong]) / (before[answer] - before[wrong])
        parts = []
        for layer, W_O in enumerate(W_Os):
            weight = W_O.weight.detach() if self.name == "gpt2" else W_O.weight.detach().T
            written = torch.stack([z @ w for z, w in zip(into[W_O].view(4, -1), weight.view(4, -1, 32), strict=True)])
            if after:
                written = self._frozen(after[layer], into[after[layer]], written)
            parts.append(slope * self._frozen(self.norm, into[self.norm], written) @ (W_U[answer] - W_U[wrong]))
        return torch.stack(parts).numpy()

    def _frozen(self, norm: Any, at: Tensor, x: Tensor) -> Tensor:
        """A norm without its bias, with the statistics of its input ``at``."""
        scale = norm.weight.detach()
        if self.name in ("gpt2", "neox"):
            return (x - x.mean(-1, keepdim=True)) / (at.var(unbiased=False) + norm.eps).sqrt() * scale
        eps = norm.eps if self.name == "gemma" else norm.variance_epsilon
        return x / (at.square().mean() + eps).sqrt() * (1 + scale if self.name == "gemma" else scale)


@pytest.mark.parametrize("by", ["head", "source"])
def test_the_parts_sum_to_the_difference_of_the_logits(name, by, loaded):
    model = loaded(name)
    scores = mh.behaviour.logit_attribution(model, PROMPTS, by=by)
    tokens = PROMPTS.tokens(model)
    logits, row = logits_of(model, tokens), torch.arange(3)
    wanted = logits[row, tokens.answer] - logits[row, tokens.wrong]
    np.testing.assert_allclose(scores.dataset["total"], wanted, atol=1e-4)
    np.testing.assert_allclose(everything(scores), wanted, atol=1e-4)
    assert scores.kind == "logit_attribution" and scores.unit == "logits"
    assert scores.provenance["attributed"] == "logit(answer) - logit(wrong)"


def test_each_head_is_what_plain_transformers_and_norms_written_out_give(name, tiny, loaded):
    model, plain = loaded(name), Plain(name, tiny(name))
    scores, tokens = mh.behaviour.logit_attribution(model, PROMPTS), PROMPTS.tokens(model)
    assert scores.values is not None
    for i, length in enumerate(tokens.lengths):
        wanted = plain.heads(tokens.ids[i : i + 1, :length], int(tokens.answer[i]), int(tokens.wrong[i]))
        np.testing.assert_allclose(scores.values[..., i], wanted, atol=1e-4)


@only_on_4
@pytest.mark.parametrize("name", few(("gpt2", "llama", "neox"), "llama"), indirect=True)
def test_heads_are_those_of_transformerlens_where_it_folds_the_final_norm(name, tiny):
    """Without folded norms, TransformerLens leaves the scale of the final norm out."""
    model = mh.load(tiny(name))
    tokens = PROMPTS.tokens(model)
    rows = [ids[:length].tolist() for ids, length in zip(tokens.ids, tokens.lengths, strict=True)]
    prompts = mh.Prompts(rows, tokens.answer.tolist(), tokens.wrong.tolist())
    ours = mh.behaviour.logit_attribution(model, prompts).values
    model.model.enable_compatibility_mode(disable_warnings=True, fold_value_biases=False)
    theirs = []
    for i, ids in enumerate(rows):
        _, cache = model.model.run_with_cache(torch.tensor([ids]))
        heads = cache.stack_head_results(layer=-1, pos_slice=-1)
        found = cache.logit_attrs(heads, tokens.answer[i : i + 1], tokens.wrong[i : i + 1], pos_slice=-1)
        theirs.append(found.detach().reshape(3, 4))
    np.testing.assert_allclose(ours, torch.stack(theirs, dim=-1), atol=1e-4)
    folded = mh.behaviour.logit_attribution(mh.wrap(model.model), prompts).values
    np.testing.assert_allclose(folded, ours, atol=1e-4)


def test_sources_sum_to_heads_and_padding_is_not_measured(name, loaded):
    model = loaded(name)
    heads = mh.behaviour.logit_attribution(model, PROMPTS)
    sources = mh.behaviour.logit_attribution(model, PROMPTS, by="source")
    assert sources.values is not None
    np.testing.assert_allclose(sources.values.sum("source"), heads.values, atol=1e-4)
    lengths = PROMPTS.tokens(model).lengths.tolist()
    measured = sources.values.notnull().isel(layer=0, head=0)
    assert measured.sum("source").values.tolist() == lengths
    assert sources.dataset["source"].values.tolist() == list(range(max(lengths)))


def test_a_model_worked_out_by_hand(micro):
    """Head L0H1 gives 2 and L1H0 gives 13.5; L0H0 only writes what L1H0 reads."""
    prompt = mh.Prompts([" the France is"], [" Paris"], [" Rome"])
    scores = mh.behaviour.logit_attribution(micro, prompt)
    wanted = np.zeros((2, 4))
    wanted[0, 1], wanted[1, 0] = 2, 13.5
    np.testing.assert_allclose(scores.scores, wanted, atol=1e-3)
    assert scores.dataset["total"].item() == pytest.approx(FRANCE_RUN, abs=1e-3)
    sources = mh.behaviour.logit_attribution(micro, prompt, by="source")
    assert sources.dataset["source"].values.tolist() == ["0 the", "1 France", "2 is"]
    np.testing.assert_allclose(sources.scores[0, 1], [0, 2, 0], atol=1e-3)
    np.testing.assert_allclose(sources.scores[1, 0], [0, 7.5, 6], atol=1e-3)  # 30/3 of 3/4 and of 3/5


def test_what_is_attributed_follows_from_the_answers(llama):
    tokens = PROMPTS.tokens(llama)
    logits, row = logits_of(llama, tokens), torch.arange(3)
    for prompts, wanted, attributed in (
        (TEXTS, logits.amax(-1), "the logit of the most likely token"),
        (mh.Prompts(TEXTS, PROMPTS.answer), logits[row, tokens.answer], "the logit of the answer"),
    ):
        scores = mh.behaviour.logit_attribution(llama, prompts)
        np.testing.assert_allclose(everything(scores), wanted, atol=1e-4)
        assert scores.provenance["attributed"] == attributed and attributed in scores.name
    clean = mh.behaviour.logit_attribution(llama, PAIRS)
    np.testing.assert_allclose(clean.values, mh.behaviour.logit_attribution(llama, PAIRS.side("clean")).values)


def test_a_model_that_reads_its_last_state_otherwise_is_refused(tiny):
    model = mh.load(tiny("llama"))
    model.model.unembed.register_forward_hook(lambda module, given, out: -1.5 * out)
    with pytest.raises(ValueError, match=r"the attributed run of prompt \d differs from the model's own forward pass"):
        mh.behaviour.logit_attribution(model, PROMPTS)


def test_bad_arguments_are_errors_before_the_model_runs(llama, monkeypatch):
    monkeypatch.setattr(FrozenRun, "of", lambda *_, **__: pytest.fail("the model ran"))
    with pytest.raises(ValueError, match="by is 'token'; choose one of 'head', 'source'"):
        mh.behaviour.logit_attribution(llama, PROMPTS, by="token")
    with pytest.raises(ValueError, match="budget is 0"):
        mh.settings(budget=0)(mh.behaviour.logit_attribution)(llama, PROMPTS)
    with pytest.raises(ValueError, match=r"answer\[0\] = ' Parisian' is not one token"):
        mh.behaviour.logit_attribution(llama, mh.Prompts(TEXTS[:1], [" Parisian"]))


def test_parts_that_miss_the_logit_are_refused(llama, monkeypatch):
    usual = type(llama.backend).transform_logits
    monkeypatch.setattr(type(llama.backend), "transform_logits", lambda self, logits: usual(self, logits) + 1)
    with pytest.raises(ValueError, match=r"the parts differ from the logit by up to"):
        mh.behaviour.logit_attribution(llama, mh.Prompts(TEXTS, PROMPTS.answer))
