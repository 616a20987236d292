"""The adapter: every TransformerLens model is the transformers model it was made from."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import importlib.metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import mechheads as mh
from support.levels import TWO_FIRST
from support.releases import TRANSFORMERLENS_4

ARCHITECTURES = TWO_FIRST

TEXTS = [" The capital of France is", " When John and Mary went to the store"]
SITES = ("z", "pattern", "q", "k", "v", "resid_pre")


def plain(folder: Path) -> Any:
    """The model as transformers has it."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    ).eval()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def both(request, tiny, loaded) -> tuple[mh.Model, Any]:
    """A tiny model as mechheads has it and as transformers has it."""
    folder = tiny(request.param)
    return loaded(request.param), plain(folder)


@pytest.fixture(scope="module")
def llama(tiny, loaded) -> tuple[mh.Model, Any]:
    return loaded("llama"), plain(tiny("llama"))


def blocks_of(reference: Any) -> Any:
    trunk = reference.base_model
    return trunk.h if hasattr(trunk, "h") else trunk.layers


def same(got: Tensor, wanted: Tensor, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


# -- numbers --------------------------------------------------------------------------------------------


def test_the_default_model_knows_the_capital_of_france(model):
    probability = model.cache(["The capital of France is"], sites=("z",)).logits[0, -1].softmax(-1)
    best = int(probability.argmax())
    assert model.tokenizer.decode([best]) == " Paris"
    assert float(probability[best]) == pytest.approx(0.77, abs=0.01)


# -- sizes, names, weights ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "n_kv_heads", "d_head"), [("gpt2", 4, 8), ("gemma", 2, 16)])
def test_sizes(tiny, loaded, name, n_kv_heads, d_head):
    small = loaded(name)
    assert (small.n_layers, small.n_heads, small.n_kv_heads) == (3, 4, n_kv_heads)
    assert (small.d_head, small.d_model, small.n_ctx) == (d_head, 32, 64)
    assert small.d_vocab == len(small.tokenizer)
    assert small.W_E.shape == (small.d_vocab, 32)
    assert small.W_U.shape == (32, small.d_vocab)
    assert (small.dtype, small.device) == (torch.float32, torch.device("cpu"))
    for weight in (small.W_Q, small.W_K, small.W_V):
        assert len(weight) == 3
        assert [layer.shape for layer in weight] == [(4, 32, d_head)] * 3
    assert [layer.shape for layer in small.W_O] == [(4, d_head, 32)] * 3
    assert repr(small).startswith(f"Model({str(tiny(name))!r}: 3 layers x 4 heads ({n_kv_heads} key/value), d_model 32")


def test_embedding_and_unembedding(both):
    small, reference = both
    same(small.W_E, reference.get_input_embeddings().weight.detach())
    same(small.W_U, reference.get_output_embeddings().weight.detach().T)
    assert small.b_U is None
    assert not small.W_E.requires_grad
    assert not small.W_U.requires_grad


def test_queries_keys_values_and_outputs_come_out_of_the_weights_and_the_norm_of_transformers(both):
    """q = norm(x) W_Q + b_Q and so on, before rotation; and what is added to x is z W_O + b_O of every head."""
    small, reference = both
    run = small.cache(TEXTS[:1], sites=SITES)
    for layer, block in enumerate(blocks_of(reference)):
        norm = getattr(block, "ln_1", None) or block.input_layernorm
        attention = next(getattr(block, name) for name in ("attn", "attention", "self_attn") if hasattr(block, name))
        out = next(getattr(attention, name) for name in ("c_proj", "dense", "o_proj") if hasattr(attention, name))
        with torch.no_grad():
            x = norm(run.stores["resid_pre"][layer])
            z = torch.stack([run.z[layer, head] for head in range(small.n_heads)], dim=2)
            same(small.attention_out(layer, z), out(z.flatten(-2)), 1e-5)
        for head in range(small.n_heads):
            for kind, site in (("Q", run.q), ("K", run.k), ("V", run.v)):
                bias = small.backend.bias(kind, layer)
                wanted = x @ getattr(small, f"W_{kind}")[layer][head] + (0 if bias is None else bias[head])
                same(site[layer, head], wanted, 1e-5)
            same(run.z[layer, head], run.pattern[layer, head] @ run.v[layer, head], 1e-5)


def test_first_mlp_is_that_of_transformers(both):
    small, reference = both
    block = blocks_of(reference)[0]
    norm = next(
        getattr(block, name)
        for name in ("pre_feedforward_layernorm", "ln_2", "post_attention_layernorm")
        if hasattr(block, name)
    )
    x = torch.randn(3, 5, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        same(small.first_mlp(x), block.mlp(norm(x)), 1e-5)
        same(small.first_mlp(x[0, 0]), block.mlp(norm(x[:1]))[0, 0], 1e-5)  # one vector
    assert not small.first_mlp(x).requires_grad


def test_unembed_caps_logits_softly_where_the_model_does(tiny, loaded):
    small, reference = loaded("gemma"), plain(tiny("gemma"))
    final = 3 * torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(1))
    raw = final @ reference.get_output_embeddings().weight.detach().T
    logits = small.unembed(final)
    same(logits, 6 * torch.tanh(raw / 6), 1e-5)  # 6 is the cap
    assert raw.abs().max() > 12 > 6 >= logits.abs().max()
    same(small.unembed(final[:, -1]), logits[:, -1], 1e-5)
    same(small.unembed(final[0, 0]), logits[0, 0], 1e-5)


# -- the rest -------------------------------------------------------------------------------------------


def test_provenance_is_what_is_needed_to_repeat_a_result(tiny, loaded):
    small = loaded("llama")
    provenance = small.provenance()
    versions = provenance.pop("versions")
    assert provenance == {
        "model": str(tiny("llama")),
        "revision": None,
        "dtype": "float32",
        "device": "cpu",
        "backend": "TransformerBridge" if TRANSFORMERLENS_4 else "HookedTransformer",
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "normalization": "RMS",
        "compatibility_mode": False,
    }
    assert versions["mechheads"] == mh.__version__
    for library in ("transformer-lens", "transformers", "torch"):
        assert versions[library] == importlib.metadata.version(library)
