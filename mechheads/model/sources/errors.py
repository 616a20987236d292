"""The error that every source of models raises."""

from __future__ import annotations


class ModelSourceError(ValueError):
    """A model cannot be loaded. The message says which model, what is wrong with it and what to do."""
