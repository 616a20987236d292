"""What every source of models raises."""

from __future__ import annotations


class ModelSourceError(ValueError):
    """A model that cannot be loaded: the message says which one, what is wrong with it and what to do."""
