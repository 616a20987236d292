"""``wrap``: a TransformerLens model that the user already has, taken as it is; and the choice of backend."""

# pyright: reportOptionalMemberAccess=false
from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import mechheads as mh
from support.levels import architectures
from support.releases import TRANSFORMERLENS_4, only_on_3, only_on_4

TEXTS = [" The capital of France is", " When John and Mary went to the store"]
SITES = ("z", "pattern", "q", "k", "v", "resid_pre")


@pytest.fixture(scope="module", params=architectures("gpt2", "llama", "neox", "gemma"))
def small(request, tiny) -> mh.Model:
    return mh.load(tiny(request.param))


def same(got: Tensor, wanted: Tensor, tolerance: float = 5e-6) -> None:
    torch.testing.assert_close(got, wanted, atol=tolerance, rtol=tolerance)


def state(model: Any) -> dict[str, Any]:
    """All that a TransformerLens model carries and we might have touched."""
    return {
        "hooks": {name: [id(h) for h in point.fwd_hooks] for name, point in model.hook_dict.items()},
        "cfg": {key: repr(value) for key, value in vars(model.cfg).items()},
        "weights": {name: value.clone() for name, value in model.state_dict().items()},
        "grad": {name: value.requires_grad for name, value in model.named_parameters()},
        "training": [module.training for module in model.modules()],
        "forward": ["forward" in module.__dict__ for module in model.modules()],
        "tokenizer": (id(model.tokenizer), repr(model.tokenizer), model.tokenizer(" The capital").input_ids),
    }


def assert_same_state(after: dict[str, Any], before: dict[str, Any]) -> None:
    for name, value in before["weights"].items():
        assert torch.equal(after["weights"][name], value), name
    assert {k: v for k, v in after.items() if k != "weights"} == {k: v for k, v in before.items() if k != "weights"}


def test_wrap_gives_the_same_model_and_leaves_it_as_it_is(small):
    theirs = small.model
    assert type(theirs).__name__ == ("TransformerBridge" if TRANSFORMERLENS_4 else "HookedTransformer")
    before = state(theirs)
    wrapped = mh.wrap(theirs, tokenizer=small.tokenizer)
    assert wrapped.model is theirs
    mine, again = small.cache(TEXTS, sites=SITES), wrapped.cache(TEXTS, sites=SITES)
    for site in SITES:
        for layer in range(small.n_layers):
            assert torch.equal(mine.stores[site][layer], again.stores[site][layer])
    assert torch.equal(mine.logits, again.logits)
    for ours, other in ((small.W_E, wrapped.W_E), (small.W_U, wrapped.W_U), (small.W_K[1], wrapped.W_K[1])):
        assert torch.equal(ours, other)
    assert (wrapped.n_layers, wrapped.n_kv_heads, wrapped.d_vocab) == (small.n_layers, small.n_kv_heads, small.d_vocab)
    wrapped.first_mlp(wrapped.W_E[:3])
    mh.ablate(wrapped, TEXTS, intervention="uniform", heads="L1H2")
    assert_same_state(state(theirs), before)


def test_a_users_own_hooks_stay_and_count(tiny):
    theirs = mh.load(tiny("llama")).model
    seen: list[int] = []

    def watch(z: Tensor, hook: Any) -> None:
        seen.append(len(z))

    theirs.add_hook("blocks.0.attn.hook_z", watch)
    wrapped = mh.wrap(theirs)
    for calls in (1, 2):
        wrapped.cache([[5, 6, 7]])
        assert len(seen) == 2 * calls  # in the run and in its proof
    mh.ablate(wrapped, [[5, 6, 7]], heads="L0H0")
    assert len(theirs.hook_dict["blocks.0.attn.hook_z"].fwd_hooks) == 1


@pytest.mark.parametrize("thing", [None, "gpt2", torch.nn.Linear(2, 2)])
def test_wrap_of_something_else_is_an_error(thing):
    with pytest.raises(TypeError, match=rf"model is a {type(thing).__name__}; wrap takes a HookedTransformer or"):
        mh.wrap(thing)


def native() -> Any:
    """The same of TransformerLens 4: a bridge with no transformers model in it."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge

    kind = {"architecture": "TransformerLensNative", "act_fn": "relu"}
    return TransformerBridge.boot_native(
        TransformerBridgeConfig(n_layers=2, d_model=16, n_ctx=20, d_head=4, n_heads=4, d_vocab=50, **kind)
    )


@only_on_4
def test_a_bridge_that_processed_its_weights_is_taken_as_it_is(tiny):
    theirs = mh.load(tiny("gpt2")).model
    theirs.enable_compatibility_mode()
    wrapped, raw = mh.wrap(theirs), mh.load(tiny("gpt2"))
    ids = [[5, 6, 7, 8]]
    run = wrapped.cache(ids)
    with torch.no_grad():
        same(run.logits, theirs(torch.tensor(ids)), 1e-5)
    same(run.logits.log_softmax(-1), raw.cache(ids).logits.log_softmax(-1), 1e-4)
    assert not torch.allclose(wrapped.W_Q[1], raw.W_Q[1], atol=1e-2)  # the norm is folded in


@only_on_4
def test_a_bridge_around_no_transformers_model_is_one_clear_error():
    with pytest.raises(ValueError, match=r"is a bridge around a NativeModel; mechheads reads"):
        mh.wrap(native())


@only_on_4
def test_hooked_is_gone_and_the_error_says_what_to_do(tiny):
    with pytest.raises(ValueError) as caught:
        mh.load(tiny("gpt2"), backend="hooked")
    version = importlib.metadata.version("transformer-lens")
    assert str(caught.value) == (
        f'backend="hooked": TransformerLens {version} no longer has HookedTransformer. Leave backend out to use '
        'TransformerBridge, or install the last release that has it: pip install "transformer-lens>=3.9,<4"'
    )


def toy(*, attn_only: bool) -> Any:
    """A small model that TransformerLens makes itself: no tokenizer, perhaps no MLP."""
    from transformer_lens import HookedTransformer, HookedTransformerConfig

    kind: dict[str, Any] = {"attn_only": True} if attn_only else {"act_fn": "relu", "d_mlp": 32}
    return HookedTransformer(
        HookedTransformerConfig(n_layers=2, d_model=16, n_ctx=20, d_head=4, n_heads=4, d_vocab=50, seed=1, **kind)
    )


@only_on_3
@pytest.mark.parametrize("attn_only", [True, False])
def test_a_toy_without_tokenizer_and_mlp_can_be_studied(attn_only):
    theirs = toy(attn_only=attn_only)
    wrapped, ids = mh.wrap(theirs), [[1, 2, 3, 4], [5, 6, 7]]
    run = wrapped.cache(ids)
    assert run.tokens.strings == (("1", "2", "3", "4"), ("5", "6", "7"))
    with torch.no_grad():
        same(run.logits[:1], theirs(torch.tensor(ids[:1])), 1e-5)
    effect = mh.ablate(wrapped, mh.Prompts(ids, answer=[7, 8]), metric=mh.log_prob)
    with torch.no_grad():
        off = theirs.run_with_hooks(
            torch.tensor(ids[:1]),
            fwd_hooks=[("blocks.0.attn.hook_z", lambda z, hook: z * (torch.arange(4) != 2)[:, None])],
        )
    wanted = (off[0, -1].log_softmax(-1) - run.logits[0, 3].log_softmax(-1))[7]
    assert float(effect.values[0, 2, 0]) == pytest.approx(float(wanted), abs=1e-5)
    if attn_only:
        with pytest.raises(ValueError, match="consists of attention only: it has no first MLP"):
            wrapped.first_mlp(wrapped.W_E[:2])


def test_a_model_with_damaged_weights_is_refused(tiny, tmp_path):
    damaged = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    with torch.no_grad():
        damaged.model.layers[1].mlp.up_proj.weight[3, 4] = torch.nan
    damaged.save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(tiny("llama")).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="NaN or infinity, so its weights are damaged"):
        mh.load(tmp_path)


def test_a_dtype_that_overflows_and_masked_tokens_are_not_called_damage(tiny, tmp_path):
    large = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("llama"))
    with torch.no_grad():
        large.model.layers[1].mlp.down_proj.weight[:] = 6e4
    large.save_pretrained(tmp_path / "large")
    tokenizer.save_pretrained(tmp_path / "large")
    assert mh.load(tmp_path / "large").n_layers
    with pytest.raises(ValueError, match=r"NaN or infinity in float16, though its weights do not.*use float32, or bf"):
        mh.load(tmp_path / "large", dtype=torch.float16)
    masked = transformers.GPTJForCausalLM(
        transformers.GPTJConfig(vocab_size=400, n_positions=64, n_embd=16, n_layer=2, n_head=2, rotary_dim=8)
    )
    with torch.no_grad():
        masked.lm_head.bias[300:] = -torch.inf
    with pytest.raises(
        ValueError, match="its unembedding gives 100 tokens a logit of -inf; give them a large negative"
    ):
        mh.wrap(masked.eval(), tokenizer)


@only_on_4
def test_a_bridge_whose_tokenizer_begins_otherwise_than_the_published_one_is_told(tiny, recwarn):
    from transformer_lens.model_bridge import TransformerBridge

    published = transformers.AutoTokenizer.from_pretrained(tiny("gpt2"))
    own = transformers.AutoModelForCausalLM.from_pretrained(tiny("gpt2"))
    bridge = TransformerBridge.boot_transformers(str(tiny("gpt2")), hf_model=own, tokenizer=published, device="cpu")
    loaded, prompts = mh.load(tiny("gpt2")), [" The capital of France is"]
    assert not [said for said in recwarn if "beginning-of-sequence" in str(said.message)]
    with pytest.warns(UserWarning, match=r"a beginning-of-sequence token before every text, .* differ from .*mh\.load"):
        begun = mh.wrap(bridge)
    assert begun.cache(prompts).tokens.unpadded[0][1:] == loaded.cache(prompts).tokens.unpadded[0]
    same(mh.wrap(bridge, published).cache(prompts).logits, loaded.cache(prompts).logits, 1e-5)


@only_on_4
def test_folded_value_biases_are_said(tiny, recwarn) -> None:
    """The z of the processed model lacks the value biases, and what the bias of the norm before them gives."""
    plain, inner = mh.load(tiny("gpt2")), mh.load(tiny("gpt2")).model
    with torch.no_grad():
        for block in plain.model.blocks, inner.blocks:
            for layer in block:
                layer.attn.v.original_component.bias.fill_(0.5)
    assert "folded_value_biases" not in mh.wrap(plain.model).provenance()
    assert not [said for said in recwarn if "value biases" in str(said.message)]
    inner.enable_compatibility_mode(disable_warnings=True)
    with pytest.warns(UserWarning, match="value biases seem to be folded into b_O.*Zero ablation.*mh.load"):
        folded = mh.wrap(inner)
    effects = [mh.ablate(model, [[3, 4, 5]], heads="L0H0") for model in (folded, plain)]
    assert [effect.provenance.get("folded_value_biases") for effect in effects] == [True, None]
    assert [", value biases folded into b_O>" in repr(effect) for effect in effects] == [True, False]
    ids, z = torch.arange(1, 7)[None], folded.hook_name("z", 0)
    with torch.no_grad():
        whole, lacking = (m.run_with_cache(ids, names_filter=z)[1][z] for m in (plain.model, inner))
    norm = plain.model.blocks[0].ln1.original_component.bias.detach()
    same(whole - lacking, (0.5 + norm @ plain.W_V[0]).squeeze(-2).expand_as(whole), 1e-5)
