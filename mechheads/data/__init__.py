"""The data that comes with the package: relations, requests, tasks and word lists with their sources, and papers."""

from __future__ import annotations

import json
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any


def folder(kind: str) -> Traversable:
    """The folder of one kind of data, such as ``"relations"``."""
    return files(__name__) / kind


def names(kind: str) -> tuple[str, ...]:
    """The names of the JSON files of one kind, sorted."""
    files = (item.name for item in folder(kind).iterdir())
    return tuple(sorted(name.removesuffix(".json") for name in files if name.endswith(".json")))


def content(kind: str, name: str) -> dict[str, Any]:
    """The content of a JSON file."""
    return json.loads((folder(kind) / f"{name}.json").read_text(encoding="utf-8"))
