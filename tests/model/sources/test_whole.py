"""Every tensor of a file has a place in the model, every weight a tensor; and loading leaves the process as it was."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import mechheads as mh
from mechheads.model.sources import ModelSourceError

Tiny = Callable[[str], Path]
IDS = [[5, 60, 70, 80, 90, 100]]


def copy_with(folder: Path, into: Path, new: dict[str, torch.Tensor], **config: Any) -> Path:
    shutil.copytree(folder, into)
    save_file(load_file(into / "model.safetensors") | new, into / "model.safetensors", metadata={"format": "pt"})
    metadata = json.loads((into / "config.json").read_text())
    (into / "config.json").write_text(json.dumps(metadata | config))
    return into


@pytest.mark.parametrize("how", [mh.load, partial(mh.load, max_memory="least")], ids=["in memory", "on disk"])
@pytest.mark.parametrize(
    ("name", "tensor", "words"),
    [
        ("layers.0.self_attn.q_proj.bias", torch.ones(32), "has no place in a LlamaForCausalLM"),
        ("layers.0.mlp.up_proj.weight_scale", torch.ones(()), "has no place .* belongs to quantised weights"),
    ],
)
def test_a_tensor_that_would_be_lost_or_misread_is_named(
    how: Callable[[Path], Any], name: str, tensor: torch.Tensor, words: str, tiny: Tiny, tmp_path: Path
) -> None:
    with pytest.raises(ModelSourceError, match=rf"the tensor model\.{name} .*{words}"):
        how(copy_with(tiny("llama"), tmp_path / "m", {f"model.{name}": tensor}))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        (mh.load, r"the tensor model\.layers\.1\.self_attn\.k_proj\.weight has the shape"),
        (partial(mh.load, max_memory="least"), "the stored weight of a Linear has shape"),
    ],
    ids=["in memory", "on disk"],
)
def test_a_tensor_of_another_shape_is_named(how: Callable[[Path], Any], words: str, tiny: Tiny, tmp_path: Path) -> None:
    wrong = {"model.layers.1.self_attn.k_proj.weight": torch.zeros(32, 32)}
    with pytest.raises(ValueError, match=words + r" \[32, 32\], .* implies \[16, 32\]"):
        how(copy_with(tiny("llama"), tmp_path / "m", wrong))


def test_quantised_weights_that_transformers_knows_are_read(tiny: Tiny, tmp_path: Path) -> None:
    plain = load_file(tiny("llama") / "model.safetensors")
    names = [name for name in plain if "_proj" in name]
    codes = {name: plain[name].to(torch.float8_e4m3fn) for name in names}
    scales = {f"{name}_scale_inv": torch.full((1, 1), 0.5) for name in names}
    metadata = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
    folder = copy_with(tiny("llama"), tmp_path / "m", codes | scales, quantization_config=metadata)
    wanted = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    wanted.load_state_dict(plain | {name: 0.5 * code.float() for name, code in codes.items()})
    with torch.no_grad():
        logits = wanted(torch.tensor(IDS)).logits[0]
    torch.testing.assert_close(mh.load(folder).cache(IDS).logits[0], logits, atol=1e-4, rtol=1e-4)


def test_masks_and_rotations_of_old_files_are_no_weights(tiny: Tiny, tmp_path: Path) -> None:
    mask = torch.ones(64, 64, dtype=torch.uint8).tril()[None, None]
    old = {"transformer.h.0.attn.bias": mask, "transformer.h.0.attn.masked_bias": torch.tensor(-1e4)}
    mh.load(copy_with(tiny("gpt2"), tmp_path / "gpt2", old))
    mh.load(copy_with(tiny("llama"), tmp_path / "m", {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))


def test_a_shard_that_is_not_there_is_named(tiny: Tiny, tmp_path: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"))
    shutil.copytree(tiny("llama"), tmp_path / "m", ignore=shutil.ignore_patterns("*.safetensors"))
    model.save_pretrained(tmp_path / "m", max_shard_size="40KB")
    sorted((tmp_path / "m").glob("model-*.safetensors"))[1].unlink()
    with pytest.raises(ModelSourceError, match=r"cannot be read as a model: .*model-00002-of-"):
        mh.load(tmp_path / "m")
