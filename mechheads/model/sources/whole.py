"""Check that a model is the one that its files describe: each tensor has a place in it, and each place has a tensor.

transformers loads what fits, and reports what does not: scales of quantised weights, biases and norms that the config
does not name. It also takes 8-bit codes for numbers, which it does not report.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from safetensors import safe_open
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

from mechheads.io.text import read_json
from mechheads.model.sources.source import ModelSourceError

_WHOLE = ("model.safetensors", "pytorch_model.bin")
"""The files that transformers looks for, the first one first; of each, also an index of several files."""
NUMBERS = ("F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16")
"""Dtypes of weights, as safetensors and torch name them."""
_MASK = re.compile(r"\.(attn|attention)\.(attention\.)?(bias|masked_bias|causal_mask)$")
"""Names of the causal mask in files of older versions of transformers."""


class Stored(NamedTuple):
    """How a file holds a tensor."""

    dtype: str
    shape: tuple[int, ...]


def weight_files(folder: Path) -> list[Path]:
    """The files in a folder from which transformers reads a model's weights; none if there are none.

    Raises:
        ValueError: if an index is damaged, or lists a file that is not there.
    """
    for name in _WHOLE:
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if not index.is_file():
            continue
        content = read_json(index)
        places = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(places, dict) or not all(isinstance(file, str) for file in places.values()):
            raise ValueError(f"{index.name} has no weight_map from tensors to files")
        files = sorted({folder / file for file in places.values()})
        if absent := [file.name for file in files if not file.is_file()]:
            raise ValueError(
                f"{index.name} lists {len(files)} files, and {len(absent)} of them are not in the folder, the first "
                f"is {absent[0]}; download the model again"
            )
        return files
    return []


def stored_tensors(files: Iterable[Path]) -> dict[str, Stored]:
    """How files hold their tensors, by name. No tensor is read."""
    found: dict[str, Stored] = {}
    for file in files:
        if file.suffix == ".safetensors":
            with safe_open(file, "pt") as content:
                for name in content.keys():  # noqa: SIM118 (a file is not a dict)
                    part = content.get_slice(name)
                    found[name] = Stored(part.get_dtype(), tuple(part.get_shape()))
        else:
            for name, tensor in torch.load(file, map_location="meta", weights_only=True).items():
                if isinstance(tensor, torch.Tensor):
                    found[name] = Stored(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
    return found


def is_quantised(config: transformers.PreTrainedConfig, source: str) -> bool:
    """Whether a model's weights are quantised in a way that transformers knows.

    Raises:
        ModelSourceError: if it does not know it, and would take the codes for the weights.
    """
    found = False
    for part in (config, config.get_text_config(decoder=True)):
        about = getattr(part, "quantization_config", None)
        if not about:
            continue
        about = about if isinstance(about, Mapping) else vars(about)
        method = about.get("quant_method")
        by_flag = about.get("load_in_8bit") or about.get("load_in_4bit")
        if not by_flag and str(getattr(method, "value", method)) not in AUTO_QUANTIZATION_CONFIG_MAPPING:
            raise ModelSourceError(
                f"model {source!r} is quantised: the quantization_config of its config.json has the quant_method "
                f"{method!r}, which transformers {transformers.__version__} does not know, so it would take the codes "
                "for the weights. Load the model from weights that are not quantised"
            )
        found = True
    return found


def check_whole(
    model: Any, report: Mapping[str, Any], stored: Mapping[str, Stored], source: str, *, quantised: bool
) -> None:
    """Check what transformers reports about a model that it has loaded, and that no codes were taken for weights.

    Args:
        report: what ``from_pretrained`` gives with ``output_loading_info``.
        stored: the tensors of the files.
        quantised: whether transformers made the weights from codes.

    Raises:
        ModelSourceError: if a tensor has no place in the model, or a weight no tensor; it is named.
    """
    if missing := sorted(report["missing_keys"]):
        raise ModelSourceError(
            f"model {source!r} is incomplete: {len(missing)} of its weights are missing from its files, the first is "
            f"{missing[0]}, and would be random numbers; download the model again"
        )
    if wrong := sorted(report["mismatched_keys"]):
        name, found, wanted = wrong[0]
        raise ModelSourceError(
            f"model {source!r} does not fit its config.json: the tensor {name} has the shape {list(found)}, and the "
            f"config implies {list(wanted)} (tensors of another shape: {len(wrong)}). The sizes in config.json are "
            "wrong, or the file belongs to another model"
        )
    if extra := sorted(name for name in report["unexpected_keys"] if not _MASK.search(name)):
        raise ModelSourceError(
            f"model {source!r} would be another model here: the tensor {extra[0]} of its files has no place in a "
            f"{type(model).__name__} with this config.json{_what_it_may_be(extra[0])} (tensors without a place: "
            f"{len(extra)}). Correct config.json, or load the model from other weights. If you know that such tensors "
            "do not change its logits, load it with transformers, save it with save_pretrained, and load that folder"
        )
    names = {name for name, _ in model.named_parameters()}
    of_base = f"{model.base_model_prefix}."
    codes = [
        name
        for name, how in sorted(stored.items())
        if how.dtype not in NUMBERS and not names.isdisjoint((name, of_base + name))
    ]
    if codes and not quantised:
        raise ModelSourceError(
            f"model {source!r} has weights that are stored as codes, not as numbers: the tensor {codes[0]} is stored "
            f"as {stored[codes[0]].dtype}, and config.json has no quantization_config that says how to read it. Load "
            "the model from weights in float32, float16 or bfloat16"
        )


def _what_it_may_be(name: str) -> str:
    last = name.rpartition(".")[2]
    if "scale" in last or last in ("qweight", "qzeros", "g_idx", "weight_packed", "absmax", "SCB"):
        return "; it belongs to quantised weights, whose codes would be taken for the weights"
    return ""
