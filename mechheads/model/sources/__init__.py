"""Sources of models: the default model, a hub name, a local folder or a GGUF file.

Each gives a plain transformers model with eager attention, so the rest of the package does not depend on the source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

BackendName = Literal["bridge", "hooked"]


class ModelSourceError(ValueError):
    """A model cannot be loaded. The message says which model, what is wrong with it and what to do."""


@dataclass(frozen=True)
class Source:
    """The arguments of ``mh.load`` that gave a model, without its device; a path is absolute, a revision the commit."""

    name_or_path: str
    revision: str | None = None
    dtype: torch.dtype = torch.float32
    backend: BackendName | None = None
    max_memory: int | str | Mapping[str | int, int | str] | None = None
    device_map: str | Mapping[str, int | str] | None = None
