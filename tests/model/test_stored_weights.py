"""Weights read from safetensors are those of the loaded model, and nothing else is read."""

from __future__ import annotations

import gc
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
from support.releases import TRANSFORMERLENS_4
from support.texts import WORD_PAIRS

FAMILIES = ("gpt2", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "gpt-neox", "phi", "phi3")
LOADABLE = [name for name in FAMILIES if TRANSFORMERLENS_4 or name not in ("gemma", "gemma3", "phi")]
"""What the installed TransformerLens loads."""

FORMS: dict[str, dict[str, Any]] = {
    "shards": {"max_shard_size": "20KB"},
    "bfloat16": {"dtype": torch.bfloat16, "max_shard_size": "20KB"},
    "float16": {"dtype": torch.float16},
}
IDS = torch.tensor([5, 300, 0, 6, 7, 300])


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, tiny: Callable[[str], Path], family: Callable[[str], Path]
) -> Callable[..., Path]:
    """``made("gpt2", "shards")``: the folder of a tiny model, with its weights in that form."""

    @cache
    def folder(name: str, form: str = "") -> Path:
        whole = tiny("llama") if name == "llama" else family(name)
        if not form:
            return whole
        saving = dict(FORMS[form])
        model = transformers.AutoModelForCausalLM.from_pretrained(whole, dtype=saving.pop("dtype", torch.float32))
        again = tmp_path_factory.mktemp("weights") / f"{name}-{form}"
        shutil.copytree(whole, again, ignore=shutil.ignore_patterns("*.safetensors"))
        model.save_pretrained(again, **saving)
        return again

    return folder


@pytest.fixture
def copied(made: Callable[..., Path], tmp_path: Path) -> Callable[..., Path]:
    """The same in a folder that a test may damage."""
    return lambda name, form="": Path(shutil.copytree(made(name, form), tmp_path / "copy"))


def some_states() -> Tensor:
    return torch.randn(2, 3, 32, generator=torch.Generator().manual_seed(0))


def same(got: Tensor, wanted: Tensor, tolerance: float = 0.0) -> None:
    assert got.dtype == torch.float32
    torch.testing.assert_close(got, wanted.float(), atol=tolerance, rtol=tolerance)


# -- numbers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "form"),
    [*((name, "shards") for name in LOADABLE), ("gpt2", "bfloat16"), ("gemma2", "bfloat16"), ("llama", "float16")],
)
def test_everything_is_what_the_loaded_model_has(name: str, form: str, made: Callable[..., Path]) -> None:
    folder = made(name, form)
    weights, model = open_weights(folder), mh.load(folder)
    for size in ("n_layers", "n_heads", "n_kv_heads", "d_head", "d_model", "d_vocab", "name", "revision"):
        assert getattr(weights, size) == getattr(model, size)
    same(weights.embed(IDS), model.W_E[IDS], 1e-6)
    same(weights.unembedding(0, weights.d_vocab), model.W_U)
    same(weights.unembedding(17, 130), model.W_U[:, 17:130])
    assert (weights.dtype, weights.device) == (FORMS[form].get("dtype", torch.float32), torch.device("cpu"))
    for layer in range(weights.n_layers):
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
    assert ours["backend"] == "safetensors" and ours["versions"].keys() >= {"mechheads", "safetensors"}
    assert repr(weights).startswith(f"StoredWeights({str(folder)!r}: {model.n_layers} layers x {model.n_heads} heads (")
    assert not weights.first_mlp(some_states().requires_grad_()).requires_grad


def capitals() -> mh.Relation:
    return mh.Relation("capitals", "Knowledge", WORD_PAIRS[:5])


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
    assert passes == [(0, weights.d_vocab)] * (2 + 2 * 3)  # columns of targets; covariance


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


def test_a_kind_that_is_not_known_is_refused_with_those_that_are(family: Callable[[str], Path]) -> None:
    known = "Known model types: llama, mistral, qwen2, .* gpt_neox. Use mh.load instead"
    with pytest.raises(ModelSourceError, match=f"is of model_type 'opt', for which open_weights does not .* {known}"):
        open_weights(family("opt"))


def test_weights_of_another_shape_are_refused(copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 1}))
    with pytest.raises(ValueError, match=r"k_proj\.weight has the shape \[16, 32\], .* implies \[8, 32\]"):
        open_weights(folder)


def test_quantised_weights_are_refused(copied: Callable[..., Path]) -> None:
    folder = copied("llama")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.1.self_attn.v_proj.weight"] = torch.zeros(16, 32, dtype=torch.int8)
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelSourceError, match=r"tensor model\.layers\.1\.self_attn\.v_proj\.weight is stored as I8"):
        open_weights(folder)
