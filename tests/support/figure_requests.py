"""Requests for figures of two tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAIRS = [["France", "Paris"], ["Italy", "Rome"], ["Spain", "Madrid"], ["Germany", "Berlin"]]
REQUESTS = {
    "mine": [" When John went", " Paris or Rome", " Mary gave a dog", " two big"],
    "yours": [" a small cat gave", " The capital of France is", " one two three"],
}
Tiny = Callable[[str], Path]


def safety_request(tiny: Tiny, folder: Path) -> dict[str, Any]:
    """Two sets of requests."""
    files = [folder / f"{name}.csv" for name in REQUESTS]
    for file, texts in zip(files, REQUESTS.values(), strict=True):
        file.write_text("\n".join(["asked", *(text.strip() for text in texts)]))
    return {
        "models": [tiny("llama"), tiny("gpt2")],
        "requests": files,
        "k": 2,
        "template": "bare",
        "out": folder / "out",
    }


def roles_request(tiny: Tiny, folder: Path) -> dict[str, Any]:
    """A task of ten items."""
    file = folder / "capitals.jsonl"
    rows = [{"prompt": f" The capital of {country} is", "target": f" {city}"} for country, city in PAIRS]
    rows += [{"prompt": f" {city} is the capital of", "target": f" {country}"} for country, city in PAIRS]
    rows += [{"prompt": " big bigger small", "target": " smaller"}, {"prompt": " one two", "target": " three"}]
    file.write_text("\n".join(map(json.dumps, rows)))
    return {
        "models": [tiny("llama"), tiny("gpt2")],
        "tasks": file,
        "seeds": 2,
        "updates": 2,
        "most": 3,
        "out": folder / "out",
    }
