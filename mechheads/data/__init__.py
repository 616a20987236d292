"""The data that comes with the package: relations, requests, tasks and word lists with their sources, and papers."""

from __future__ import annotations

from importlib.resources import files
from importlib.resources.abc import Traversable


def folder(kind: str) -> Traversable:
    """The folder of one kind of data, such as ``"relations"``.

    >>> from mechheads.data import folder
    >>> (folder("relations") / "country_to_capital.json").is_file()
    True
    """
    return files(__name__) / kind
