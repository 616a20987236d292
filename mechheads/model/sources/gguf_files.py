"""GGUF files: what transformers reads of them, and the folders in which it is cached for later processes.

transformers reads the keys and tensors that it knows and silently ignores all others, such as the scaling of rotations.
Each that it ignores is an error, unless it is known to change no number.
"""

from __future__ import annotations

import hashlib
import math
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import platformdirs
import torch
import transformers
from filelock import FileLock
from gguf import GGUFReader, GGUFValueType
from safetensors import SafetensorError
from transformers.modeling_gguf_pytorch_utils import (
    GGUF_TO_TRANSFORMERS_MAPPING,
    TENSOR_PROCESSORS,
    TensorProcessor,
    get_gguf_hf_weights_map,
)

from mechheads.io.text import file_sample
from mechheads.model.sources import ModelSourceError
from mechheads.model.sources.reading import explained, no_progress_bars, read_model

_CONVERSION = 3
"""Rises whenever ``convert`` writes something else, so that older folders in a cache are not used."""
_ABOUT_THE_FILE = ("GGUF.", "general.", "tokenizer.", "quantize.", "imatrix.", "split.")
"""Beginnings of keys that say nothing of what the network computes. The notes of other tools are texts."""
_IN_THE_SHAPES = ("feed_forward_length", "expert_feed_forward_length", "expert_shared_feed_forward_length")
"""Sizes that the tensors' shapes say too; transformers checks these."""
_HARMLESS = (*_IN_THE_SHAPES, "context_length", "tensor_data_layout")


def cache_directory() -> Path:
    """The folder in which mechheads keeps its files: ``MECHHEADS_CACHE``, or else the user's cache directory."""
    chosen = os.environ.get("MECHHEADS_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("mechheads", appauthor=False)


def cached_folder(name: str, make: Callable[[Path], Path], *, what: str, task: str, size: Callable[[], int]) -> Path:
    """A folder of the cache, which ``make`` makes at the first call from an empty one; ``size``: its most bytes."""
    cache = cache_directory()
    folder = cache / name
    if folder.is_dir():
        return folder
    most = size()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):
            if not folder.is_dir():
                if (free := shutil.disk_usage(cache).free) < most:
                    raise OSError(f"{free / 1e9:.1f} GB are free")
                print(f"mechheads: {task} (once, to {folder}, up to {most / 1e9:.1f} GB)", file=sys.stderr)
                _make(folder, make)
    except (OSError, SafetensorError) as error:
        raise ModelSourceError(
            f"{what} cannot be stored in {cache}: {error}; free {most / 1e9:.1f} GB there, or set the environment "
            "variable MECHHEADS_CACHE to another folder"
        ) from error
    return folder


def _make(folder: Path, make: Callable[[Path], Path]) -> None:
    workshop = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(workshop, ignore_errors=True)  # left by a process that was killed
    workshop.mkdir()
    try:
        os.replace(make(workshop), folder)
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def converted_folder(file: Path) -> Path:
    """A cached folder with all that transformers reads from a GGUF file, converted at the first call."""
    known_by = hashlib.sha256(repr((file_sample(file), file.stat().st_mtime_ns)).encode()).hexdigest()
    return cached_folder(
        f"gguf-{known_by[:16]}-transformers-{transformers.__version__}-{_CONVERSION}",
        lambda workshop: convert(file, workshop / "made"),
        what=f"the converted weights of {file.name}",
        task=f"converting {file.name} to safetensors",
        size=lambda: 4 * count_numbers(file) + 10**7,
    )


def count_numbers(file: Path) -> int:
    """How many numbers the tensors of a GGUF file have."""
    name = f"name_or_path {str(file)!r}"
    with file.open("rb") as content:
        if content.read(4) != b"GGUF":
            raise ModelSourceError(f"{name} is not a model: it does not begin like a GGUF file")
    try:
        return sum(int(tensor.n_elements) for tensor in GGUFReader(file).tensors)
    except (ValueError, IndexError, KeyError, OverflowError, RecursionError) as error:
        raise ModelSourceError(
            f"{name} is cut short or damaged: its {os.path.getsize(file):,} bytes end "
            f"before the tensors that its header lists ({error}); download it again"
        ) from error


def convert(file: Path, folder: Path) -> Path:
    """Write a GGUF file's weights, config and tokenizer as transformers saves them, and return the folder."""
    count_numbers(file)
    with explained(str(file)):
        config = complete_config(file)
    model, tokenizer = read_model(file.parent, dtype=torch.float32, gguf_file=file.name, config=config)
    with no_progress_bars():
        model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def complete_config(file: Path) -> transformers.PreTrainedConfig:
    """The config that transformers makes of a GGUF file, after a check that it ignores nothing that counts."""
    config = transformers.AutoConfig.from_pretrained(
        str(file.parent), gguf_file=file.name, local_files_only=True, trust_remote_code=False
    )
    reader = GGUFReader(file)
    prefix = reader.fields["general.architecture"].contents() + "."
    stated = {
        key.removeprefix(prefix): field.contents()
        for key, field in reader.fields.items()
        if not key.startswith(_ABOUT_THE_FILE) and (key.startswith(prefix) or field.types != [GGUFValueType.STRING])
    }
    if hasattr(config, "query_pre_attn_scalar"):
        is_27b = config.num_hidden_layers in (46, 62)  # no file says it, and only these divide by another number
        size = config.hidden_size // config.num_attention_heads if is_27b else _d_head(config)
        config.query_pre_attn_scalar = size
    if (rotations := _rotations_of(config)) is not None:
        if "rope.freq_base" in stated:
            rotations["rope_theta"] = stated.pop("rope.freq_base")
        if "partial_rotary_factor" in rotations and "rope.dimension_count" in stated:
            rotations["partial_rotary_factor"] = stated["rope.dimension_count"] / _d_head(config)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    tensors = {tensor.name for tensor in reader.tensors}
    converted = GGUF_TO_TRANSFORMERS_MAPPING["config"].get(config.model_type.removesuffix("_text"), {})
    lost = [
        f"{key} = {value}"
        for key, value in stated.items()
        if key not in _HARMLESS and converted.get(key) is None and not _same(value, _config_value(config, key))
    ]
    if lost := [*lost, *_lost_tensors(model, prefix[:-1], tensors)]:
        more = f" and {len(lost) - 5} more" if len(lost) > 5 else ""
        raise ModelSourceError(
            f"name_or_path {str(file)!r} would be another model here: it has {', '.join(lost[:5])}{more}, which "
            f"transformers {transformers.__version__} passes over. Load the model from a folder or the hub instead"
        )
    return config


def _rotations_of(config: Any) -> dict[str, Any] | None:
    """The part of a config that says how layers without a window rotate; None if there are no rotations."""
    rotations = getattr(config, "rope_parameters", None)
    return rotations.get("full_attention", rotations) if rotations else None


def _lost_tensors(model: Any, architecture: str, tensors: set[str]) -> Iterator[str]:
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=model.config.to_dict())
    known: set[str] = set()
    for part in {model, model.base_model}:  # for the whole tree of modules, the time grows with its square
        alone: Any = SimpleNamespace(config=model.config, state_dict=part.state_dict, named_children=tuple)
        known |= get_gguf_hf_weights_map(alone, processor).keys()
    for name in sorted(tensors):
        if name not in known and name.removesuffix(".weight") not in known:  # experts are mapped without the suffix
            yield f"the tensor {name}"


def _config_value(config: Any, key: str) -> Any:
    """The config's value for a key of a GGUF file; None if it has none."""
    if key == "attention.causal":
        return True
    if key.startswith(("attention.key_length", "attention.value_length")):
        return _d_head(config)
    if key.startswith("rope.dimension_count"):
        return int(_d_head(config) * (_rotations_of(config) or {}).get("partial_rotary_factor", 1.0))
    if key in ("rope.freq_base_swa", "rope.local.freq_base"):
        return (getattr(config, "rope_parameters", None) or {}).get("sliding_attention", {}).get("rope_theta")
    names = {
        "attention.head_count_kv": ("num_key_value_heads", "num_attention_heads"),
        "attention.layer_norm_epsilon": ("layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps"),
        "attention.sliding_window": ("sliding_window",),
        "attention.sliding_window_pattern": ("_sliding_window_pattern",),
        "attn_logit_softcapping": ("attn_logit_softcapping",),
        "final_logit_softcapping": ("final_logit_softcapping",),
        "use_parallel_residual": ("use_parallel_residual",),
        "expert_weights_norm": ("norm_topk_prob",),
        "vocab_size": ("vocab_size",),
    }.get(key, ())
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _same(value: Any, ours: Any) -> bool:
    if ours is None:
        return type(value) in (int, float) and value == 0  # how files say that there is no such thing
    if isinstance(ours, (int, float)) and isinstance(value, (int, float)):
        return math.isclose(value, ours, rel_tol=1e-6)  # a file holds float32
    return value == ours


def _d_head(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
