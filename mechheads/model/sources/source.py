"""``Source``: what loads a model again, elsewhere; and the error that every source of models raises."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch

from mechheads.model.backends.base import AttnImplementation

BackendName = Literal["bridge", "hooked"]


class ModelSourceError(ValueError):
    """A model cannot be loaded. The message says which model, what is wrong with it and what to do."""


@dataclass(frozen=True)
class Source:
    """The arguments of ``mh.load`` that gave a model, without its device.

    Attributes:
        name_or_path: a name, or the absolute path of a folder or a file.
        revision: the commit, for names on the hub.
        dtype: the dtype in which the weights are loaded.
        backend, trust_remote_code, attn_implementation, max_memory, device_map: as in ``mh.load``.
    """

    name_or_path: str
    revision: str | None = None
    dtype: torch.dtype = torch.float32
    backend: BackendName | None = None
    trust_remote_code: bool = False
    attn_implementation: AttnImplementation = "sdpa"
    max_memory: int | str | Mapping[str | int, int | str] | None = None
    device_map: str | Mapping[str, int | str] | None = None
