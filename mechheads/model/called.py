"""The text of a call, as Python: what gives a result again, with prompts as a name or a list."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from mechheads.heads import HeadId

_FOLDERS = ("patching", "behaviour", "labels", "safety", "gating", "generation", "studies", "scale")
_MOST_ITEMS, _LONGEST, _LINE = 2000, 100_000, 100
"""A longer list or text stands as the name of its argument; a longer line has a line for each argument."""


def public_name(what: Any) -> str:
    """The name by which users have a function or class, such as ``mh.patching.faithfulness``; "" if they have none."""
    name = getattr(what, "__name__", "")
    for module, prefix in [("mechheads", "mh"), *((f"mechheads.{each}", f"mh.{each}") for each in _FOLDERS)]:
        if getattr(sys.modules.get(module), name or " ", None) is what:
            return f"{prefix}.{name}"
    return ""


def called(function: Callable[..., Any], signature: inspect.Signature, given: Mapping[str, Any]) -> str:
    """The call of an analysis with these arguments, of a model called ``model``; "" if users do not have it.

    Arguments as they are by default are left out. What Python cannot write, such as a tensor or a function of the
    user's own, stands as the name of its argument, or of the function.
    """
    name = public_name(function)
    parts = []
    for argument, value in given.items():
        parameter = signature.parameters.get(argument)
        if value is None or (parameter is not None and _is_default(value, parameter.default)):
            continue
        text = written(value) or ("result" if _is_result(value) else argument)
        by_name = parameter is None or parameter.kind is inspect.Parameter.KEYWORD_ONLY
        parts.append(f"{argument}={text}" if by_name or len(parts) < [*given].index(argument) else text)
    return _lines(name, parts) if name else ""


def written(value: Any) -> str:
    """A value as Python writes it; "" if it cannot."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value) if len(str(value)) <= _LONGEST else ""
    if isinstance(value, (HeadId, Path)):
        return repr(str(value))
    if _is_result(value):
        return value.call
    if isinstance(value, (list, tuple)):
        return _listed("[", [written(each) for each in value[:_MOST_ITEMS]], "]") if len(value) <= _MOST_ITEMS else ""
    if isinstance(value, Mapping):
        return _listed(
            "{", [f"{written(key)}: {text}" if (text := written(each)) else "" for key, each in value.items()], "}"
        )
    if is_dataclass(value) and not isinstance(value, type):
        name = public_name(type(value))
        own = {field.name: getattr(value, field.name) for field in fields(value) if _differs(value, field)}
        texts = [f"{field}={text}" if (text := written(each)) else "" for field, each in own.items()]
        return _lines(name, texts) if name and all(texts) else ""
    return public_name(value) or (value.__name__ if inspect.isfunction(value) and value.__name__.isidentifier() else "")


def _is_result(value: Any) -> bool:
    """Whether a value is a result, which says what call gave it."""
    return isinstance(getattr(type(value), "call", None), property)


def _is_default(value: Any, default: Any) -> bool:
    return value is default or (isinstance(value, (bool, int, float, str)) and value == default)


def _differs(value: Any, field: Any) -> bool:
    """Whether a field of a dataclass is not as it is by default."""
    now = getattr(value, field.name)
    usual = field.default if field.default_factory is MISSING else field.default_factory()
    return field.init and now is not None and not (now is usual or (type(now) is type(usual) and now == usual))


def _listed(begin: str, texts: list[str], end: str) -> str:
    return f"{begin}{', '.join(texts)}{end}" if all(texts) else ""


def _lines(name: str, parts: list[str]) -> str:
    """A call in one line if it is short, else with a line for each argument."""
    line = f"{name}({', '.join(parts)})"
    if len(line) <= _LINE and "\n" not in line:
        return line
    inner = "".join(f"    {part},\n".replace("\n", "\n    ").rstrip(" ") for part in parts)
    return f"{name}(\n{inner})"
