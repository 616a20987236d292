"""Folders of an adapter (such as LoRA): it is added to the weights of its base by peft, if peft is installed."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mechheads.files.text import read_json
from mechheads.model.sources.errors import ModelSourceError

_KINDS = ("LORA", "LOHA", "LOKR", "IA3")
"""Adapters that change weights and nothing else; others add prompts, or name further adapters to fetch."""
_WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
_ADAPTER = ("adapter_model*.safetensors", "adapter_model*.bin")
_TOKENIZER = ("tokenizer.json", "tokenizer.model", "vocab.json")


def is_adapter(folder: Path) -> bool:
    """Whether a folder holds an adapter and no whole model; a warning says if it holds both."""
    if not (folder / "adapter_config.json").is_file():
        return False
    if not _has(folder, _WEIGHTS):
        return True
    if _has(folder, _ADAPTER):
        warnings.warn(
            f"name_or_path {str(folder)!r} holds a whole model and an adapter beside it. The model is loaded, and the "
            "adapter is left out; for the model with the adapter, merge them, or move the adapter's files to a folder "
            "of their own",
            stacklevel=4,
        )
    return False


def merged(folder: Path, read: Callable[[Path], tuple[Any, Any]]) -> tuple[Any, Any]:
    """The base model of an adapter with the adapter's changes in its weights, and the tokenizer.

    Nothing is downloaded: the base must be a folder on this machine. The tokenizer is the adapter's own, if it has one.

    Args:
        read: reads the folder of a model, in float32, and its tokenizer.

    Raises:
        ModelSourceError: if peft or the base is missing, or the adapter cannot be merged.
    """
    name = f"name_or_path {str(folder)!r}"
    try:
        config = read_json(folder / "adapter_config.json")
        kind, base = (config.get(key) for key in ("peft_type", "base_model_name_or_path"))
    except (ValueError, AttributeError) as error:
        raise ModelSourceError(f"{name} cannot be read as a model: {error}") from error
    what = f"{name} is an adapter ({kind}) of {base!r}, not a whole model"
    if kind not in _KINDS or config.get("megatron_config"):
        raise ModelSourceError(
            f"{what}. mechheads merges adapters of the kinds {', '.join(_KINDS)} without code of their own; merge it "
            "yourself, save it with the base's tokenizer, and load the merged folder"
        )
    if not isinstance(base, str) or not (Path(base).expanduser() / "config.json").is_file():
        raise ModelSourceError(
            f"{what}, and its base is not a folder on this machine. Download the base, write the path of its folder as "
            "base_model_name_or_path into adapter_config.json, and load again"
        )
    if not _has(folder, _ADAPTER):
        raise ModelSourceError(f"{what}, and its weights (adapter_model.safetensors) are missing; download it again")
    try:
        import peft  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ModelSourceError(f"{what}; to load it onto its base, install peft (pip install peft)") from error
    model, tokenizer = read(Path(base).expanduser())
    try:
        model = _merge(peft, model, folder)
    except Exception as error:  # peft raises errors of any type for what it does not know
        raise ModelSourceError(f"{what}, and cannot be merged into it: {error}") from error
    if _has(folder, _TOKENIZER):
        tokenizer = type(tokenizer).from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    return model, tokenizer


def _merge(peft: Any, model: Any, folder: Path) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Found missing adapter keys")  # an error below, which names them
        adapted = peft.PeftModel.from_pretrained(model, str(folder), trust_remote_code=False)
        report = adapted.load_adapter(str(folder), "default")
    if lost := sorted([*report.missing_keys, *report.unexpected_keys]):
        raise ValueError(f"{len(lost)} of its weights have no place in the base or are missing, such as {lost[0]}")
    return adapted.merge_and_unload(safe_merge=True).eval()


def _has(folder: Path, files: tuple[str, ...]) -> bool:
    return any(next(folder.glob(names), None) is not None for names in files)
