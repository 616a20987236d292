"""Provenance: what is needed to repeat a result, as a dict that JSON can store without a change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import numpy as np

from mechheads.heads import HeadId

R = TypeVar("R")

_CALL: ContextVar[Mapping[str, Any]] = ContextVar("call")


def in_call(options: Mapping[str, Any], run: Callable[[], R]) -> R:
    """Run a function whose results record these options of a call in their provenance."""
    context = copy_context()
    context.run(_CALL.set, options)
    return context.run(run)


def call_now() -> str:
    """The text of the call that is running; "" if there is none."""
    return str(_CALL.get({}).get("call", ""))


def call_of(provenance: Mapping[str, Any]) -> str:
    """The Python call that gives a result again, with the labels that were selected; "" if it is not known."""
    call, selected = provenance.get("call", ""), provenance.get("selected")
    if (operation := provenance.get("operation")) is not None:
        sides = [
            call_of(side) if isinstance(side, Mapping) else repr(side)
            for side in (provenance["left"], provenance["right"])
        ]
        call = f"({sides[0]} {operation} {sides[1]})" if all(sides) else ""
    if not call or not isinstance(selected, Mapping) or not selected:
        return str(call)
    return f"{call}.select({', '.join(f'{dim}={label!r}' for dim, label in selected.items())})"


def make_provenance(source: Any, /, *settings: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The provenance of a result: the call's plain options, the provenance of its model or of another result, settings.
    Later entries replace earlier ones. Prompts, tasks and relations are stored as fingerprints, heads as names.
    """
    entries = {**_CALL.get({}), **(source if isinstance(source, Mapping) else source.provenance())}
    for part in (*settings, more):
        entries |= {name: plain_value(name, value) for name, value in part.items()}
    return entries | ({"call": call} if (call := call_now()) else {})


def plain_value(name: str, value: Any) -> Any:
    """A value in a form that JSON can store; ``name`` is its name in messages."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, HeadId):
        return str(value)
    if (fingerprint := getattr(value, "fingerprint", None)) is not None:
        return fingerprint() if callable(fingerprint) else fingerprint
    if isinstance(value, (tuple, list)):
        return [plain_value(f"{name}[{i}]", item) for i, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: plain_value(f"{name}[{key!r}]", item) for key, item in value.items()}
    kind = type(value).__name__
    raise ValueError(f"provenance cannot store {name}, a {kind}; give texts, numbers, or lists and dicts of these")
