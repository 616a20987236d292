"""The installed library that an object belongs to: it counts by name and version, a user's own object by its code."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import sys
import sysconfig
from pathlib import Path
from typing import Any

from mechheads._version import __version__

PYTHON = f"python {sys.version_info.major}.{sys.version_info.minor}"


def library_name(thing: Any) -> tuple[str, str, str] | None:
    """Module, name and version of an object that an installed library defines under a name; None for any other."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or is_walked(module):
        return None
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return (module, name, release_of(module) or "") if found is thing else None


def is_walked(module: str) -> bool:
    """Whether the objects of a module count by their code: in the user's own modules and those of mechheads."""
    release = release_of(module)
    return release is None or release.startswith("mechheads ")


def release_of(module: str) -> str | None:
    """Name and version of the library that a module belongs to; None if it is the user's own."""
    return _top_release(module.partition(".")[0])


@functools.cache
def _top_release(top: str) -> str | None:
    if top == "mechheads":
        return f"mechheads {__version__}"
    if top == "__main__":
        return None
    if top in sys.modules:
        module = sys.modules[top]
        places = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    else:
        spec = importlib.util.find_spec(top) if top else None
        places = [] if spec is None else [spec.origin, *(spec.submodule_search_locations or ())]
    place = next((Path(place) for place in places if place and place not in ("built-in", "frozen")), None)
    if place is None:
        return PYTHON if top in sys.stdlib_module_names else None
    if {"site-packages", "dist-packages"}.isdisjoint(place.parts):
        return PYTHON if any(place.is_relative_to(sysconfig.get_path(p)) for p in ("stdlib", "platstdlib")) else None
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        owners = sorted(set(importlib.metadata.packages_distributions().get(top, ())))
        return ", ".join(f"{owner} {importlib.metadata.version(owner)}" for owner in owners) or None
