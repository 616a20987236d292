"""Read a model with transformers, from a folder, a GGUF file or the hub, with unsafe and noisy options turned off."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
from transformers.utils import logging as transformers_logging

from mechheads.model.on_disk import Room, Spread, place
from mechheads.model.sources import ModelSourceError

_MASK = re.compile(r"\.(attn|attention)\.(attention\.)?(bias|masked_bias|causal_mask)$")
"""Names of the causal mask in files of older versions of transformers."""
_CODES = ("qweight", "qzeros", "g_idx", "weight_packed", "absmax", "SCB")
"""Names of tensors of quantised weights, besides their scales."""


def read_model(folder: Path, *, dtype: torch.dtype, room: Room | Spread | None = None, **options: Any) -> Any:
    """A model and its tokenizer from a folder, or a ``gguf_file`` in it."""
    where = str(folder / options.get("gguf_file", ""))
    options |= {"local_files_only": True}
    with explained(where), no_progress_bars():
        return read(str(folder), dtype=dtype, room=room, **options)


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn any error in reading a model into one that names the model."""
    try:
        yield
    except Exception as error:
        raise own_error(where, error) or ModelSourceError(
            f"name_or_path {where!r} cannot be read as a model: {error}"
        ) from error


def read(
    source: str,
    *,
    dtype: torch.dtype,
    room: Room | Spread | None = None,
    config: transformers.PreTrainedConfig | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """A model with eager attention and its tokenizer, with options of ``from_pretrained``."""
    options["trust_remote_code"] = False
    config = config or transformers.AutoConfig.from_pretrained(source, **options)
    check_config(config, source)
    only_logits(config)
    places: dict[str, Any] = {}
    if isinstance(room, Spread):
        places = vars(room)
    elif room is not None:
        places = {"device_map": place(config, source, room, dtype=dtype)}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(source, **options)
    except (ValueError, OSError, TypeError) as error:
        if "trust_remote_code" in str(error) or any(Path(source).glob("*token*")):
            raise
        raise ModelSourceError(
            f"model {source!r} has no tokenizer; save its own there with tokenizer.save_pretrained, or give both to "
            "mh.wrap(model, tokenizer)"
        ) from error
    how: dict[str, Any] = {"attn_implementation": "eager", "output_loading_info": True, "dtype": dtype}
    how["ignore_mismatched_sizes"] = True  # ``check_whole`` names them
    how["adapter_kwargs"] = {"subfolder": "none"}  # with peft, transformers would put on an adapter beside the weights
    logging.getLogger("accelerate").setLevel(logging.ERROR)  # until loading ends: it warns that weights are on disk
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source, config=config, **{**how, **places}, **options
    )
    model, report = loaded
    check_whole(model, report, source)
    if "gguf_file" in options:
        model.hf_quantizer, model.is_quantized = None, False  # the weights are read as floats
        for name in ("quantization_config", "_pre_quantization_dtype"):
            if hasattr(model.config, name):
                delattr(model.config, name)
        model.config.architectures = [type(model).__name__]
    return model, tokenizer


def only_logits(config: transformers.PreTrainedConfig) -> None:
    """Make a model return logits alone: without attentions and hidden states, for which some need all their blocks."""
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
            f"model {source!r} needs its own Python code. Read that code; if you trust it, load the model with "
            "transformers (trust_remote_code=True), and give both to mh.wrap(model, tokenizer)"
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


def check_whole(model: Any, report: Mapping[str, Any], source: str) -> None:
    """Check what transformers' loading info says about a model."""
    if missing := sorted(report["missing_keys"]):
        raise ModelSourceError(
            f"model {source!r} is incomplete: {len(missing)} of its weights are missing from its files, the first is "
            f"{missing[0]}, and would be random numbers; download the model again"
        )
    if wrong := sorted(report["mismatched_keys"]):
        name, shape, wanted = wrong[0]
        raise ModelSourceError(
            f"model {source!r} does not fit its config.json: the tensor {name} has the shape {list(shape)}, and the "
            f"config implies {list(wanted)} (tensors of another shape: {len(wrong)}). The sizes in config.json are "
            "wrong, or the file belongs to another model"
        )
    if extra := sorted(name for name in report["unexpected_keys"] if not _MASK.search(name)):
        last = extra[0].rpartition(".")[2]
        quantised = "scale" in last or last in _CODES
        of_codes = "; it belongs to quantised weights, whose codes would be taken for the weights" if quantised else ""
        raise ModelSourceError(
            f"model {source!r} would be another model here: the tensor {extra[0]} of its files has no place in a "
            f"{type(model).__name__} with this config.json{of_codes} (tensors without a place: "
            f"{len(extra)}). Correct config.json, or load the model from other weights. If you know that such tensors "
            "do not change its logits, load it with transformers, save it with save_pretrained, and load that folder"
        )
