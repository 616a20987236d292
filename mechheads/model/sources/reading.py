"""Read a model with transformers, from a folder, a GGUF file or the hub, with unsafe and noisy options turned off.

Each tensor of the files must have a place in the model, and each place a tensor. transformers loads what fits, and
reports what does not: scales of quantised weights, biases and norms that the config does not name. It also takes 8-bit
codes for numbers, which it does not report.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
from safetensors import SafetensorError, safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils import logging as transformers_logging

from mechheads.io.text import read_json
from mechheads.model.sources.gguf_contents import complete_config
from mechheads.model.sources.placing import Room, Spread, no_warning_of_disk, place
from mechheads.model.sources.source import ModelSourceError


def read_model(
    folder: Path, *, numbers: int, dtype: torch.dtype, room: Room | Spread | None = None, **options: Any
) -> tuple[Any, Any]:
    """A model and its tokenizer from a folder, or a ``gguf_file`` in it; a config may not ask for more ``numbers``."""
    where = str(folder / options.get("gguf_file", ""))
    options |= {"local_files_only": True}
    try:
        with no_progress_bars():
            with no_larger_than(numbers, where):
                places = find_places(str(folder), room, dtype=dtype, **options)
            if "gguf_file" in options:
                with no_larger_than(numbers, where):
                    options["config"] = complete_config(folder / options["gguf_file"])
            with no_larger_than(numbers, where):
                return read(str(folder), folder, dtype=dtype, places=places, **options)
    except Exception as error:
        raise own_error(where, error) or ModelSourceError(
            f"name_or_path {where!r} cannot be read as a model: {error}"
        ) from error


def find_places(
    source: str, room: Room | Spread | None, *, dtype: torch.dtype, trust_remote_code: bool = False, **options: Any
) -> dict[str, Any]:
    """The options of ``from_pretrained`` that say where a model's weights go."""
    if isinstance(room, Spread):
        return vars(room)
    if room is None:
        return {}
    config = transformers.AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code, **options)
    check_config(config, source)
    return {"device_map": place(config, source, room, dtype=dtype, trust_remote_code=trust_remote_code)}


def read(
    source: str,
    folder: Path,
    *,
    dtype: torch.dtype,
    trust_remote_code: bool = False,
    places: Mapping[str, Any],
    config: transformers.PreTrainedConfig | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """A model with eager attention and its tokenizer, with options of ``from_pretrained``; ``folder`` has the files."""
    options["trust_remote_code"] = trust_remote_code
    config = config or transformers.AutoConfig.from_pretrained(source, **options)
    check_config(config, source)
    only_logits(config)
    of_gguf = "gguf_file" in options
    quantised = not of_gguf and is_quantised(config, source)
    tokenizer = _read_tokenizer(source, options)
    how: dict[str, Any] = {"attn_implementation": "eager", "output_loading_info": True, "dtype": dtype}
    how["ignore_mismatched_sizes"] = True  # ``check_whole`` names them
    how["adapter_kwargs"] = {"subfolder": "none"}  # with peft, transformers would put on an adapter beside the weights
    with no_warning_of_disk():
        loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
            source, config=config, **{**how, **places}, **options
        )
    model, report = loaded
    stored = {} if of_gguf else stored_tensors(weight_files(folder))
    check_whole(model, report, stored, source, quantised=quantised)
    if of_gguf:
        _forget_quantisation(model)
    return model, tokenizer


def _read_tokenizer(source: str, options: Mapping[str, Any]) -> Any:
    try:
        return transformers.AutoTokenizer.from_pretrained(source, **options)
    except (ValueError, OSError, TypeError) as error:
        if "trust_remote_code" in str(error) or any(Path(source).glob("*token*")):
            raise
        raise ModelSourceError(
            f"model {source!r} has no tokenizer; save its own there with tokenizer.save_pretrained, or give both to "
            "mh.wrap(model, tokenizer)"
        ) from error


def _forget_quantisation(model: Any) -> None:
    """Remove the quantisation settings from a model and its config: the weights of a GGUF file are read as floats."""
    model.hf_quantizer = None
    model.is_quantized = False
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.config.architectures = [type(model).__name__]


def only_logits(config: transformers.PreTrainedConfig) -> None:
    """Have a model give no attentions and hidden states beside its logits, for which some need all of their blocks."""
    for part in (config, config.get_text_config(decoder=True)):
        part.output_attentions = part.output_hidden_states = False


def check_config(config: transformers.PreTrainedConfig, source: str) -> None:
    kind = config.model_type
    text = config.get_text_config(decoder=True)
    decoder = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map")
    if type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        decoder = decoder and getattr(config, "is_decoder", False)
    if config.is_encoder_decoder or not decoder:
        raise ModelSourceError(
            f"model {source!r} is not a causal decoder but a {kind} model; mechheads reads models that predict "
            "the next token, such as GPT-2, Llama or Qwen"
        )
    if not getattr(text, "num_attention_heads", 0):
        raise ModelSourceError(
            f"model {source!r} has no attention heads (its model_type is {kind}), so there is nothing for "
            "mechheads to analyse; load a transformer"
        )


def own_error(source: str, error: BaseException) -> ModelSourceError | None:
    if isinstance(error, ModelSourceError):
        return error
    if "trust_remote_code" in str(error):
        return ModelSourceError(
            f"model {source!r} needs its own Python code, and trust_remote_code is off. Read that code; if you trust "
            "it, load with trust_remote_code=True"
        )
    if "offload_folder" in str(error):
        return ModelSourceError(
            f"the weights of model {source!r} cannot be read from where they are, because they are not in safetensors "
            "or transformers changes them when it loads them (as it does with mixtures of experts). Save the model "
            "with save_pretrained in safetensors; or if it fits in memory, use mh.load without max_memory"
        )
    if "Weights only load failed" in str(error):
        return ModelSourceError(
            f"model {source!r} has weights in a pickle (.bin) that contains more than tensors and could run code, so "
            "it is not loaded. If you trust it, convert it to safetensors"
        )
    return None


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Hide transformers' progress bars for work that takes a moment; downloads from the hub keep theirs."""
    if not transformers_logging.is_progress_bar_enabled():
        yield
        return
    hub_bars_were_off = are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.enable_progress_bar()
        if hub_bars_were_off:
            disable_progress_bars()


_SLACK = 2**20
"""How many numbers a model may have that are not in its files, such as computed positions."""


def count_stored(folder: Path) -> int:
    """An upper bound on how many numbers the weights in a folder hold; packed (quantised) weights count one per bit."""
    try:
        return sum(map(_count, weight_files(folder)))
    except (ValueError, OSError, SafetensorError) as error:
        raise ModelSourceError(f"name_or_path {str(folder)!r} cannot be read as a model: {error}") from error


def _count(file: Path) -> int:
    if file.suffix != ".safetensors":
        return file.stat().st_size
    tensors = stored_tensors([file]).values()
    if any(tensor.dtype not in NUMBERS for tensor in tensors):
        return 8 * file.stat().st_size
    return sum(math.prod(tensor.shape) for tensor in tensors)


@contextmanager
def no_larger_than(numbers: int, source: str) -> Iterator[None]:
    """Inside the ``with`` block, a model may be built with at most this many numbers, twice over for tied weights.

    transformers first builds a model without memory (on the meta device) and then fills it, so the error is raised
    before memory is allocated.
    """
    mine, seen, total = threading.get_ident(), {}, 0

    def count(module: torch.nn.Module, name: str, parameter: Any) -> None:
        nonlocal total
        if threading.get_ident() != mine or parameter is None or not parameter.is_meta or id(parameter) in seen:
            return
        seen[id(parameter)] = parameter  # kept alive, so that its id stays unique
        total += parameter.numel()
        if total > 2 * numbers + _SLACK:
            raise ModelSourceError(
                f"model {source!r}: its config asks for at least {total:,} numbers (the last of them {name}, of shape "
                f"{list(parameter.shape)}), but its files hold {numbers:,}. Its sizes are wrong (hidden_size, "
                "vocab_size, num_hidden_layers, ...), or a file of weights is missing"
            )

    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()


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
    """The files in a folder from which transformers reads a model's weights; none if there are none."""
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
    """Whether a model's weights are quantised in a way that transformers knows."""
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
    """Check what transformers' loading info says about a model, and that no codes were taken for weights."""
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
