"""Weights read from safetensors are those of the loaded model, and nothing else is read."""

from __future__ import annotations

import gc
import importlib.metadata
import json
import re
import shutil
import weakref
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import mechheads as mh
from mechheads.model.sources import ModelSourceError
from mechheads.model.stored_weights import open_weights
from support import tiny as tiny_models
from support.levels import few
from support.releases import TRANSFORMERLENS_4
from support.texts import WORD_PAIRS

KINDS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "gpt_neox", "phi", "phi3")
_TINY_NAMES = {"gpt2": "gpt2", "llama": "llama", "gpt_neox": "neox", "gemma2": "gemma", "qwen3": "qwen"}
LOADABLE = [kind for kind in KINDS if TRANSFORMERLENS_4 or kind not in ("gemma", "gemma3_text", "phi")]
"""What the installed TransformerLens loads."""

FORMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "shards": {"max_shard_size": "20KB"},
    "bfloat16": {"dtype": torch.bfloat16, "max_shard_size": "20KB"},
    "float16": {"dtype": torch.float16},
}
IDS = torch.tensor([5, 300, 0, 6, 7, 300])


def make_config(kind: str, tokenizer: Any) -> transformers.PreTrainedConfig:
    """A tiny model of that ``model_type``, with grouped heads where it has them."""
    if kind in _TINY_NAMES:
        return tiny_models.make_config(_TINY_NAMES[kind], tokenizer)
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 1 if kind == "gemma" else 2,
        "max_position_embeddings": 64,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": 2,
    }
    if kind in ("gemma", "gemma3_text"):
        sizes |= {"head_dim": 16}
    if kind in ("mistral", "gemma3_text"):
        sizes |= {"sliding_window": 64}
    return transformers.AutoConfig.for_model(kind, **sizes)


SANDWICHED = ("gemma2", "gemma3_text")


def build(kind: str, folder: Path, dtype: torch.dtype = torch.float32, **saving: Any) -> Path:
    """Save the tiny random model of a kind, and its tokenizer."""
    tokenizer = tiny_models.make_tokenizer(begins=False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.AutoModelForCausalLM.from_config(make_config(kind, tokenizer), dtype=torch.float32)
        for name, parameter in model.named_parameters():
            tiny_models.randomise(name, parameter, kind)
    model.to(dtype).save_pretrained(folder, **saving)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``made("llama", "shards")``: the folder of a tiny model."""

    @cache
    def folder(kind: str, form: str = "whole") -> Path:
        return build(kind, tmp_path_factory.mktemp("weights") / f"{kind}-{form}", **FORMS[form])

    return folder


@pytest.fixture
def copied(made: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The same in a folder that a test may damage."""
    return lambda kind, form="whole": Path(shutil.copytree(made(kind, form), tmp_path / "copy"))


def some_states() -> Tensor:
    return torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))


def same(got: Tensor, wanted: Tensor, tolerance: float = 0.0) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted.float(), atol=tolerance, rtol=tolerance)


# -- numbers --------------------------------------------------------------------------------------------


def head_weights(kind: str, attention: Any, head: int, d_head: int, n_kv_heads: int) -> tuple[Tensor, Tensor]:
    """W_V [d_model, d_head] and W_O [d_head, d_model] of one query head, cut out of transformers' own parameters."""

    def part(index: int) -> slice:
        return slice(index * d_head, (index + 1) * d_head)

    shared = head * n_kv_heads // 4
    if kind == "gpt2":
        return attention.c_attn.weight[:, part(8 + head)], attention.c_proj.weight[part(head)]
    if kind == "gpt_neox":
        return attention.query_key_value.weight[part(3 * head + 2)].T, attention.dense.weight[:, part(head)].T
    if kind == "phi3":
        return attention.qkv_proj.weight[part(4 + n_kv_heads + shared)].T, attention.o_proj.weight[:, part(head)].T
    output = attention.dense if kind == "phi" else attention.o_proj
    return attention.v_proj.weight[part(shared)].T, output.weight[:, part(head)].T


def norms(kind: str, model: Any) -> tuple[list[Any], Any, Any]:
    """The norms before each layer's attention, before the first MLP, and at the end."""
    trunk = model.base_model
    if kind == "gpt2":
        return [block.ln_1 for block in trunk.h], trunk.h[0].ln_2, trunk.ln_f
    before = {"phi": "input_layernorm", "gemma2": "pre_feedforward_layernorm"}
    before["gemma3_text"] = before["gemma2"]
    last = {"gpt_neox": "final_layer_norm", "phi": "final_layernorm"}
    return (
        [block.input_layernorm for block in trunk.layers],
        getattr(trunk.layers[0], before.get(kind, "post_attention_layernorm")),
        getattr(trunk, last.get(kind, "norm")),
    )


@pytest.mark.parametrize(
    ("kind", "form"), [*((kind, form) for kind in KINDS for form in ("whole", "bfloat16")), ("llama", "float16")]
)
def test_everything_is_what_transformers_has(kind: str, form: str, made: Callable[..., Path]) -> None:
    dtype = FORMS[form].get("dtype", torch.float32)
    weights = open_weights(made(kind, form))
    reference: Any = transformers.AutoModelForCausalLM.from_pretrained(made(kind, form), dtype=dtype)
    config = reference.config
    n_kv_heads = {"gpt2": 4, "gpt_neox": 4, "gemma": 1}.get(kind, 2)
    d_head = {"gemma": 16, "gemma2": 16, "gemma3_text": 16}.get(kind, 8)
    assert (weights.n_layers, weights.n_heads, weights.n_kv_heads) == (3, 4, n_kv_heads)
    assert (weights.d_head, weights.d_model, weights.d_vocab) == (d_head, 32, config.vocab_size)
    assert (weights.dtype, weights.device) == (dtype, torch.device("cpu"))
    with torch.no_grad():
        same(weights.embed(IDS), reference.get_input_embeddings().weight[IDS])
        W_U = reference.get_output_embeddings().weight.T
        same(weights.unembedding(0, weights.d_vocab), W_U)
        same(weights.unembedding(17, 130), W_U[:, 17:130])
        before, before_mlp, last = norms(kind, reference)
        gemma = float(kind.startswith("gemma"))
        same(weights.final_scale(), last.weight.float() + gemma)
        blocks = reference.base_model.h if kind == "gpt2" else reference.base_model.layers
        for layer, block in enumerate(blocks):
            attention = next(block.get_submodule(n) for n in ("attn", "attention", "self_attn") if hasattr(block, n))
            wanted = [head_weights(kind, attention, head, d_head, n_kv_heads) for head in range(4)]
            same(weights.W_V[layer], torch.stack([W_V for W_V, _ in wanted]))
            same(weights.W_O[layer], torch.stack([W_O for _, W_O in wanted]))
            same(weights.attention_scale(layer), before[layer].weight.float() + gemma)
            after = block.post_attention_layernorm.weight.float() + 1 if kind in SANDWICHED else torch.ones(32)
            same(weights.attention_out_scale(layer), after)
        mlp = blocks[0].mlp.float()
        wanted = mlp(before_mlp.float()(some_states()))
    assert wanted.std() > 0.05
    same(weights.first_mlp(some_states()), wanted, 2e-6)


@pytest.mark.parametrize("form", ["shards", "bfloat16"])
@pytest.mark.parametrize("kind", few(LOADABLE, "llama", "gemma2", "gpt2"))
def test_everything_is_what_the_loaded_model_has(kind: str, form: str, made: Callable[..., Path]) -> None:
    folder = made(kind, form)
    weights, model = open_weights(folder), mh.load(folder)
    for size in ("n_layers", "n_heads", "n_kv_heads", "d_head", "d_model", "d_vocab", "name", "revision"):
        assert getattr(weights, size) == getattr(model, size)
    same(weights.embed(IDS), model.W_E[IDS], 1e-6)
    same(weights.unembedding(0, weights.d_vocab), model.W_U)
    for layer in range(3):
        same(weights.W_V[layer], model.W_V[layer])
        same(weights.W_O[layer], model.W_O[layer])
        same(weights.attention_scale(layer), model.attention_scale(layer), 1e-5)
        same(weights.attention_out_scale(layer), model.attention_out_scale(layer), 1e-5)
    same(weights.final_scale(), model.final_scale(), 1e-5)
    same(weights.first_mlp(some_states()), model.first_mlp(some_states()), 2e-6)
    same(weights.first_mlp(some_states()[0, 0]), model.first_mlp(some_states()[0, 0]), 2e-6)
    ours, theirs = weights.provenance(), model.provenance()
    for key in ("model", "revision", "normalization", "device", "n_layers", "n_heads", "n_kv_heads"):
        assert ours[key] == theirs[key]


def capitals() -> mh.Relation:
    return mh.Relation("capitals", "Knowledge", WORD_PAIRS[:5])


@pytest.mark.parametrize(("source", "norm"), [("first_mlp", "raw"), ("first_mlp", "folded"), ("embedding", "folded")])
@pytest.mark.parametrize("kind", few(["gpt2", "llama", "gemma2"], "gemma2"))
def test_relation_scores_from_disk_are_those_of_the_loaded_model(
    kind: str, source: Any, norm: Any, made: Callable[..., Path]
) -> None:
    phi, wanted = (
        mh.relation_scores(model, capitals(), k=40, source=source, norm=norm, min_pairs=5)
        for model in (open_weights(made(kind, "shards")), mh.load(made(kind, "shards")))
    )
    assert phi.values is not None and wanted.values is not None
    assert 0 < wanted.values.mean() < 1
    assert phi.values.equals(wanted.values)
    assert phi.dataset["suppression"].equals(wanted.dataset["suppression"])
    assert phi.provenance["backend"] == "safetensors"


def test_all_heads_of_a_layer_go_through_the_unembedding_together(
    made: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to score them and once for their null, and twice before: half precision is converted each time."""
    weights = open_weights(made("llama", "bfloat16"))
    convert = weights.unembedding
    passes: list[tuple[int, int]] = []
    monkeypatch.setattr(weights, "unembedding", lambda *part: passes.append(part) or convert(*part))
    phi = mh.relation_scores(weights, capitals(), k=160, min_pairs=5)
    tested = phi.dataset["null_phi"].notnull().sum(["head", "relation"])
    assert tested.values.min() >= 2
    assert passes == [(0, weights.d_vocab)] * (2 + 2 * 3)  # columns of targets and samples; covariance


def test_biases_of_the_mlp_count_where_config_asks_for_them(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "vocab_size": 300, "num_attention_heads": 4}
    config = transformers.LlamaConfig(num_hidden_layers=2, mlp_bias=True, **sizes)
    model = transformers.LlamaForCausalLM(config)
    mlp = model.model.layers[0].mlp
    with torch.no_grad():
        for part in (mlp.gate_proj, mlp.up_proj, mlp.down_proj):
            part.bias.normal_()
        wanted = mlp(model.model.layers[0].post_attention_layernorm(some_states()))
    model.save_pretrained(tmp_path)
    tiny_models.make_tokenizer(begins=False).save_pretrained(tmp_path)
    same(open_weights(tmp_path).first_mlp(some_states()), wanted, 2e-6)


def test_weights_that_nobody_holds_are_gone(made: Callable[..., Path]) -> None:
    weights = open_weights(made("llama"))
    weights.unembedding(0, 1)
    weights.attention_scale(0), weights.W_V[0], weights.W_O[0]
    gone = weakref.ref(weights)
    gc.disable()
    try:
        del weights
        assert gone() is None
    finally:
        gc.enable()


def test_results_take_no_part_in_gradients(made: Callable[..., Path]) -> None:
    assert not open_weights(made("gpt2")).first_mlp(some_states().requires_grad_()).requires_grad


def test_a_checkpoint_may_leave_out_the_name_of_its_trunk(copied: Callable[..., Path]) -> None:
    """As GPT-2's own does."""
    folder = copied("gpt2")
    wanted = open_weights(folder).W_V[2]
    tensors = load_file(folder / "model.safetensors")
    save_file(
        {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}, folder / "model.safetensors"
    )
    weights = open_weights(folder)
    same(weights.W_V[2], wanted)
    same(weights.embed(IDS), tensors["transformer.wte.weight"][IDS])


# -- what is read, and what is kept ---------------------------------------------------------------------


def test_of_the_embedding_only_the_rows_asked_for_are_read(copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.embed_tokens.weight"][8] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    weights = open_weights(folder)
    same(weights.embed(IDS), tensors["model.embed_tokens.weight"][IDS])  # 7 and 300, but not 8
    assert weights.embed(IDS[:0]).shape == (0, 32)
    with pytest.raises(ValueError, match=r"the tensor model\.embed_tokens\.weight contains NaN or infinite"):
        weights.embed(torch.tensor([7, 8]))


def test_the_unembedding_is_read_once_and_layers_each_time(copied: Callable[..., Path]) -> None:
    folder = copied("llama", "bfloat16")
    weights = open_weights(folder)
    wanted = weights.unembedding(0, 300)
    assert weights.bytes_read == 2 * 32 * weights.d_vocab
    weights.W_V[0], weights.W_V[0]
    assert weights.bytes_read == 2 * 32 * weights.d_vocab + 2 * (2 * 32 * 16)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    same(weights.unembedding(0, 300), wanted)
    with pytest.raises(FileNotFoundError):
        weights.W_V[0]


@pytest.mark.parametrize(
    ("tensor", "read"),
    [
        ("model.layers.1.self_attn.v_proj.weight", lambda weights: weights.W_V[1]),
        ("model.layers.1.self_attn.o_proj.weight", lambda weights: weights.W_O[1]),
        ("model.layers.1.input_layernorm.weight", lambda weights: weights.attention_scale(1)),
        ("model.norm.weight", lambda weights: weights.final_scale()),
        ("lm_head.weight", lambda weights: weights.unembedding(0, 1)),
    ],
)
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_damaged_numbers_are_named(tensor: str, read: Callable, bad: float, copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors[tensor].view(-1)[-1] = bad
    save_file(tensors, folder / "model.safetensors")
    weights = open_weights(folder)
    weights.W_V[0], weights.W_O[0], weights.attention_scale(0)  # other layers are sound
    with pytest.raises(ValueError, match=f"the tensor {re.escape(tensor)} contains NaN or infinite numbers"):
        read(weights)


def test_what_lies_outside_is_refused(made: Callable[..., Path]) -> None:
    weights = open_weights(made("llama"))
    last = weights.d_vocab
    for ids in ([-1], [2, last]):
        with pytest.raises(ValueError, match=rf"ids contains token ids outside 0\.\.{last - 1}"):
            weights.embed(torch.tensor(ids))
    for start, stop in ((-1, 3), (5, 4), (0, last + 1)):
        with pytest.raises(ValueError, match=rf"columns {start}\.\.{stop} are outside the vocabulary 0\.\.{last}"):
            weights.unembedding(start, stop)
    for read in (weights.W_V.__getitem__, weights.W_O.__getitem__, weights.attention_scale):
        with pytest.raises(IndexError, match=r"layer 3 is out of range: this model has layers 0\.\.2"):
            read(3)


# -- what is refused ------------------------------------------------------------------------------------


def refused(folder: Path | str, why: str, **options: Any) -> None:
    with pytest.raises(ModelSourceError, match=why) as error:
        open_weights(folder, **options)
    assert isinstance(error.value, ValueError)


def test_an_embedding_is_no_unembedding_unless_config_says_so(copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    tensors = load_file(folder / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, folder / "model.safetensors")
    refused(folder, r"is incomplete: 1 of its weights are missing from its files, the first is lm_head\.weight")
    edit_config(folder, tie_word_embeddings=True)
    same(open_weights(folder).unembedding(0, 9), tensors["model.embed_tokens.weight"][:9].T)


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


def test_a_kind_that_is_not_known_is_refused_with_those_that_are(tmp_path: Path) -> None:
    tokenizer = tiny_models.make_tokenizer(begins=False)
    sizes = {"hidden_size": 32, "ffn_dim": 48, "num_attention_heads": 4, "word_embed_proj_dim": 32}
    config = transformers.OPTConfig(vocab_size=len(tokenizer), num_hidden_layers=2, **sizes)
    transformers.OPTForCausalLM(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    refused(
        tmp_path,
        "is of model_type 'opt', for which open_weights does not know where V and O are. Known model types: llama, "
        "mistral, qwen2, .* gpt_neox. Use mh.load instead",
    )


def test_weights_of_another_shape_are_refused(copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    edit_config(folder, num_key_value_heads=1)
    with pytest.raises(ValueError, match=r"weight of a Linear has shape \[16, 32\], but .* implies \[8, 32\]"):
        mh.relation_scores(open_weights(folder), capitals(), min_pairs=5)


def test_quantised_weights_are_refused(copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] = torch.zeros(16, 32, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelSourceError, match=r"layers\.1\.self_attn\.v_proj\.weight of .* is stored as torch\.int8"):
        mh.relation_scores(open_weights(folder), capitals(), min_pairs=5)


def test_it_says_what_it_is(made: Callable[..., Path]) -> None:
    weights = open_weights(str(made("llama", "bfloat16")))
    name = str(made("llama", "bfloat16"))
    assert repr(weights) == f"StoredWeights({name!r}: 3 layers x 4 heads (2 key/value), d_model 32, bfloat16)"
    about = weights.provenance()
    versions = about.pop("versions")
    assert about == {
        "model": name,
        "revision": None,
        "dtype": "bfloat16",
        "device": "cpu",
        "backend": "safetensors",
        "normalization": "RMS",
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
    }
    assert versions["mechheads"] == mh.__version__
    assert versions["safetensors"] == importlib.metadata.version("safetensors")
