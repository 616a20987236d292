"""Objects on their way to another process of the same user; nothing is ever stored in this form."""

from __future__ import annotations

import importlib
import io
from types import ModuleType
from typing import Any

import dill


class _Pickler(dill.Pickler):
    """Sends functions and classes of notebooks and scripts with their code, and modules by their names only."""

    def reducer_override(self, thing: Any) -> Any:
        return (importlib.import_module, (thing.__name__,)) if isinstance(thing, ModuleType) else NotImplemented


def pack(thing: Any, what: str) -> bytes:
    """An object as bytes, with the code of functions and classes that are defined in a notebook or a script.

    Args:
        what: what it is, for the message.

    Raises:
        ValueError: if it cannot leave this process.
    """
    data = io.BytesIO()
    try:
        _Pickler(data, recurse=True).dump(thing)
    except Exception as error:  # dill raises errors of any type
        raise ValueError(
            f"workers: {what} cannot be sent to another process ({type(error).__name__}: {error}); define its "
            "functions and classes in a file of their own and import them, or leave workers out"
        ) from error
    return data.getvalue()


def unpack(data: bytes) -> Any:
    """The object that ``pack`` packed."""
    return dill.loads(data)
