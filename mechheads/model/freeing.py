"""The memory of models that are no longer needed."""

from __future__ import annotations

import gc

import torch


def free_memory() -> None:
    """Free the memory of models to which nothing refers but their own modules and hooks, which refer to each other."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
