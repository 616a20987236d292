"""Load a model (``load``), or use a transformers or TransformerLens model that you already have."""

from __future__ import annotations

import copy
import gc
import importlib.metadata
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from mechheads.limits import budget_bytes, current
from mechheads.messages.arguments import checked
from mechheads.messages.notices import first_sentence
from mechheads.model.backend import Backend, Weight
from mechheads.model.changes import as_usual, settings_restored
from mechheads.model.loading import Reference, prove_loaded, references_of
from mechheads.model.model import Model
from mechheads.model.on_disk import Room, Spread, on_disk_of
from mechheads.model.proof import versions
from mechheads.model.sources import BackendName, Source
from mechheads.model.sources.default import DEFAULT_MODEL
from mechheads.model.sources.load import load_pretrained
from mechheads.model.sources.twins import twin_of
from mechheads.prompts.encoding import text_ids


@checked
def load(
    name_or_path: str | Path | None = None,
    *,
    revision: str | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "auto",
    backend: BackendName | None = None,
    max_memory: int | str | Mapping[str | int, int | str] | None = None,
    device_map: str | Mapping[str, int | str] | None = None,
) -> Model:
    """Load a model: the default one, a hub name, a local Hugging Face folder, or a GGUF file.

    Args:
        name_or_path: by default, the model SmolLM2-135M-Instruct, which is downloaded once.
            ``"smollm2-135m-refusal"`` is the same model with six heads changed so that it refuses harmful requests;
            ``"smollm2-135m-refusal-4"`` has four other heads changed, and ``"smollm2-135m-refusal-10"`` ten others.
        revision: a hub revision.
        dtype: the dtype of the weights.
        device: where the weights go, such as ``"cuda:1"``. ``"auto"`` is the device of ``mh.settings``, or ``"cuda"``
            if available, else ``"cpu"``. ``"mps"`` has no float64 and rounds otherwise, so it is used only if named.
        backend: ``"bridge"`` (TransformerBridge) or ``"hooked"`` (HookedTransformer, TransformerLens 3.9 only).
            By default, the recommended one of the installed TransformerLens.
        max_memory: the memory that the weights may take on the device, in bytes or as text such as "8 GB". Blocks that
            do not fit stay on disk in the model's own safetensors files, and are read one at a time when they run;
            ``"least"`` leaves all of them there. The numbers are the same. By default, all weights are in memory. Uses
            the bridge. With ``device_map="auto"``, the GPUs to use and the memory of each, such as
            ``{0: "70GB", 1: "70GB"}``.
        device_map: spread the blocks over several GPUs, in place of ``device``, as accelerate does: ``"auto"`` (within
            ``max_memory``), or the GPU of each part by its name in transformers. The numbers are the same up to
            rounding. Uses the bridge.

    Returns:
        The model, ready for every analysis, with its tokenizer as ``.tokenizer``.

    Raises:
        ValueError: if there is no such model or device, the model is damaged, it has no attention heads, or its
            weights cannot stay on disk or do not fit into the devices.

    >>> mh.load()
    Model('smollm2-135m-instruct': 30 layers x 9 heads (3 key/value), d_model 576, TransformerBridge)
    """
    room = _find_room(device, max_memory, device_map)
    chosen = _choose_backend("bridge" if backend is None and room is not None else backend)
    if room is not None and chosen == "hooked":
        argument = "max_memory" if device_map is None else "device_map"
        raise ValueError(
            f"{argument}: HookedTransformer keeps all weights in the memory of one device; leave backend out or give "
            'backend="bridge"'
        )
    with settings_restored():
        pretrained = load_pretrained(
            name_or_path,
            revision=revision,
            dtype=dtype,
            device=_find_device(device),
            room=room,
        )
        model = from_transformers(pretrained.model, pretrained.tokenizer, pretrained.name, backend=chosen)
    model.revision = pretrained.revision
    path = Path(name_or_path or DEFAULT_MODEL).expanduser()
    where = str(path.absolute()) if os.path.exists(path) else pretrained.name
    model.source = Source(where, pretrained.commit, dtype, backend, max_memory, device_map)
    return model


def _find_room(
    device: str | torch.device, max_memory: int | str | Mapping[str | int, int | str] | None, device_map: Any
) -> Room | Spread | None:
    """Where the weights go, if not all of them go to one device."""
    if device_map is None:
        if isinstance(max_memory, Mapping):
            raise ValueError(
                'max_memory gives the memory of each GPU, which needs device_map="auto"; to leave blocks on disk, '
                'give one number, such as "8 GB"'
            )
        if max_memory is None:
            return None
        return Room(None if max_memory == "least" else budget_bytes(max_memory, "max_memory"), _find_device(device))
    if str(device) not in ("auto", "cpu"):
        raise ValueError(
            f"device is {str(device)!r} with device_map, which says where the weights go; leave device out"
        )
    if max_memory is not None and not isinstance(max_memory, Mapping):
        raise ValueError(
            f"max_memory is {max_memory!r} with device_map; give the memory of each GPU, such as "
            '{0: "70GB", 1: "70GB"}. One number leaves blocks on disk, which device_map cannot'
        )
    return Spread(device_map, max_memory)


def load_again(source: Source, device: str | torch.device) -> Model:
    """The model of a source, on another device or in another process."""
    return load(**{**vars(source), "device": device})


def _find_device(device: str | torch.device) -> torch.device:
    named = current().device if device == "auto" else device
    if named == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=named).device
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f'device {str(named)!r} is not available ({error}); choose "cpu", or "auto" to use a GPU if there is one'
        ) from error


def from_transformers(
    model: Any,
    tokenizer: Any,
    name: str,
    *,
    backend: BackendName | None = None,
    wrapped: Any = None,
) -> Model:
    """Use a transformers model with eager attention; ``wrapped`` is the user's own model with the same weights."""
    adapter: Backend
    backend = _choose_backend(backend)
    with settings_restored():
        with as_usual(model, model.device):
            try:
                references = references_of(model)
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # models with code of their own raise errors of any type
                raise ValueError(
                    f"model: {name!r} (architecture {type(model).__name__}) cannot be read: transformers cannot run "
                    f"it: {first_sentence(error)}"
                ) from error
        if backend == "hooked":
            from mechheads.model import hooked

            adapter = hooked.HookedBackend(_boot(hooked.boot, model, tokenizer, name))
        else:
            from mechheads.model import bridge

            adapter = bridge.BridgeBackend(_boot(bridge.boot, model, tokenizer, name))
        if wrapped is not None:
            adapter.note_wrapped(wrapped)
        ready = _ready(Model(adapter, name, tokenizer=tokenizer), references)
        if wrapped is not None:
            adapter.note_wrapped(wrapped)  # a model of peft takes merged adapters that are off out in its first run
        return ready


def _boot(boot: Callable[[Any, Any, str], Any], model: Any, tokenizer: Any, name: str) -> Any:
    """The TransformerLens object for a transformers model."""
    try:
        return boot(model, _own_copy(tokenizer), name)
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:  # TransformerLens raises errors of any type for architectures that it does not know
        if on_disk_of(model) is not None:
            raise ValueError(
                f"max_memory: the weights of {name!r} (architecture {type(model).__name__}) cannot stay on disk: "
                f"TransformerLens needs them when it loads the model; leave max_memory out: {first_sentence(error)}"
            ) from error
        if hasattr(model, "hf_device_map"):
            raise ValueError(
                f"device_map: {name!r} (architecture {type(model).__name__}) cannot be read in these places: "
                f'{first_sentence(error)}. Give device_map="auto", or other places'
            ) from error
        raise ValueError(
            f"model: {name!r} (architecture {type(model).__name__}) cannot be read: TransformerLens "
            f"{importlib.metadata.version('transformer-lens')} does not support it: {first_sentence(error)}"
        ) from error


def _own_copy(tokenizer: Any) -> Any:
    """A tokenizer for TransformerLens, which sets special tokens in it and does not load it once more."""
    if tokenizer is None:
        return None
    special = (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id)
    own = copy.deepcopy(tokenizer) if None in special else copy.copy(tokenizer)
    vars(own).update({key: copy.copy(value) for key, value in vars(own).items() if isinstance(value, (dict, list))})
    own.init_kwargs = {"name_or_path": ""} | own.init_kwargs | {"add_bos_token": True}
    return own


@checked
def wrap(model: Any, tokenizer: Any = None) -> Model:
    """Use a model that you already have: one of TransformerLens, transformers or peft. It is not changed.

    A model of transformers, with adapters too, is read through modules of its own around the same weights: it may run
    as usual meanwhile, and what is written into its weights is seen here. Every analysis compares its log-probabilities
    with your model's, and raises an error if they differ, for example because your model has other adapters or
    hooks by then: wrap it again. Writing into a weight is an error too if TransformerLens copies it: in 3.9, and q, k
    and v of GPT-NeoX, BLOOM, Falcon and MPT.

    If its value biases seem to be folded into b_O (TransformerLens' own processing), a warning says what differs, and
    results have ``folded_value_biases`` in their provenance.

    Args:
        model: a ``TransformerBridge``; a ``HookedTransformer`` (TransformerLens 3.9); a causal language model of
            transformers; or a peft ``PeftModel``, with its active adapters if they are on.
        tokenizer: needed for a model of transformers or peft. For others, used instead of the model's own, which
            TransformerLens may have configured to prepend a beginning-of-sequence token.

    Returns:
        A model for every analysis, around yours.

    Raises:
        TypeError: if the model is something else, or has no tokenizer.
        ValueError: if it cannot be read, for example in training mode with dropout, without attention heads, quantised,
            or on several devices.

    >>> mh.wrap(model.model).n_heads
    9
    """
    with settings_restored():
        if (twin := twin_of(model, tokenizer)) is not None:
            return from_transformers(*twin, wrapped=model)
        names = {base.__name__ for base in type(model).__mro__}
        if "HookedTransformer" in names:
            from mechheads.model.hooked import HookedBackend as Adapter
        elif "TransformerBridge" in names:
            from mechheads.model.bridge import BridgeBackend as Adapter
        else:
            raise TypeError(
                f"model is a {type(model).__name__}; wrap takes a HookedTransformer or a TransformerBridge, a causal "
                "language model of transformers, or a PeftModel. For a name or a folder, use mh.load"
            )
        wrapped = _ready(Model(Adapter(model), model.cfg.model_name, tokenizer=tokenizer))
    if tokenizer is None and _begins_otherwise(wrapped.tokenizer):
        warnings.warn(
            "model: TransformerLens has its tokenizer put a beginning-of-sequence token before every text, which the "
            "published tokenizer does not, so effects differ from those of mh.load; for the same, give "
            "mh.wrap(model, AutoTokenizer.from_pretrained(...))",
            stacklevel=2,
        )
    wrapped.folded_value_biases = _has_folded_value_biases(wrapped)
    if wrapped.folded_value_biases:
        warnings.warn(
            "model: its value biases seem to be folded into b_O (b_V is zero in every layer, and other biases are "
            "not), as TransformerLens' processing does. Zero ablation, Scaling Contribution, gates and the parts of "
            "heads in a logit leave these biases in place and are other numbers than those of the original model; mean "
            "ablation and patching are the same. Load the original with mh.load, or without fold_value_biases",
            stacklevel=2,
        )
    return wrapped


def _begins_otherwise(tokenizer: Any) -> bool:
    """Whether a tokenizer puts a token before texts that its published version, if it is on this machine, does not."""
    arguments = getattr(tokenizer, "init_kwargs", {})
    if not arguments.get("add_bos_token") or not arguments.get("name_or_path"):
        return False
    try:
        published = transformers.AutoTokenizer.from_pretrained(
            arguments["name_or_path"], local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError):
        return False
    return text_ids(" a", tokenizer)[0] != text_ids(" a", published)[0]


def _has_folded_value_biases(model: Model) -> bool:
    """Whether no layer has a value bias, but some have others: HookedTransformer has places for all biases."""

    def some(kind: Weight) -> bool:
        biases = (model.backend.bias(kind, layer) for layer in range(model.n_layers))
        return any(bias is not None and bool(bias.any()) for bias in biases)

    has_places = model.backend.bias("V", 0) is not None
    return has_places and not some("V") and some("O") and (some("Q") or some("K"))


def _choose_backend(backend: BackendName | None) -> BackendName:
    version = importlib.metadata.version("transformer-lens")
    has_hooked = int(version.split(".")[0]) < 4
    if backend is None:
        return "hooked" if has_hooked else "bridge"
    if backend == "hooked" and not has_hooked:
        raise ValueError(
            f'backend="hooked": TransformerLens {version} no longer has HookedTransformer. Leave backend out to use '
            'TransformerBridge, or install the last release that has it: pip install "transformer-lens>=3.9,<4"'
        )
    return backend


def _ready(model: Model, references: Sequence[Reference] = ()) -> Model:
    """The model, after the proof that it may be read."""
    model.backend.changes.alone(lambda: prove_loaded(model, references))
    model.backend.loaded = versions(model.backend.weights)
    if model.backend.on_disk is not None:
        model.backend.on_disk.drop()
    return model


def free_memory() -> None:
    """Free the memory of models to which nothing refers but their own modules and hooks, which refer to each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
