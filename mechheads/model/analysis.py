"""``@analysis``: the function has its model to itself and takes ``OPTIONS``, and its results record the call."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import partial, wraps
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

import numpy as np

from mechheads.heads import HeadId, WrongHead
from mechheads.limits import Budget, Workers, current, settings
from mechheads.messages.arguments import bound, check_arguments
from mechheads.model.backend import Backend
from mechheads.model.core import alone
from mechheads.prompts.chats import as_here, noting
from mechheads.results.provenance import call_now, in_call, plain_value

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)

OPTIONS = ("budget", "progress", "workers", "store", "seed")
"""The arguments of ``mh.settings`` that every analysis takes."""
_PARAMETERS = [inspect.signature(settings).parameters[name] for name in OPTIONS]
_DOCUMENTED = "It also takes ``budget``, ``progress``, ``workers``, ``store`` and ``seed``, as ``mh.settings`` does."
_FOLDERS = ("patching", "behaviour", "labels", "safety", "gating", "generation", "studies", "scale")
_MOST_ITEMS, _LONGEST, _LINE = 2000, 100_000, 100
"""A longer list or text stands as the name of its argument; a longer line has a line for each argument."""


@runtime_checkable
class Analysis(Protocol[P, Result]):
    """The type of an analysis: its function's; type checkers let a call with one of ``OPTIONS`` have any arguments."""

    __name__: str

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Result: ...
    @overload
    def __call__(self, *args: Any, budget: Budget, **others: Any) -> Result: ...
    @overload
    def __call__(self, *args: Any, progress: bool | None, **others: Any) -> Result: ...
    @overload
    def __call__(self, *args: Any, workers: Workers | None, **others: Any) -> Result: ...
    @overload
    def __call__(self, *args: Any, store: str | PathLike[str] | None, **others: Any) -> Result: ...
    @overload
    def __call__(self, *args: Any, seed: int | None, **others: Any) -> Result: ...

    def __get__(self: Analysis[Concatenate[Any, Q], R], instance: object, owner: Any = None) -> Analysis[Q, R]: ...


def analysis(function: Callable[P, R]) -> Analysis[P, R]:
    """Decorator for a function whose first argument is a model: arguments are checked, and results record the call."""
    signature = inspect.signature(function)
    parameters = list(signature.parameters.values())
    last = len(parameters) - any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    shown = signature.replace(parameters=[*parameters[:last], *_PARAMETERS, *parameters[last:]])

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        arguments = bound(function, shown, args, kwargs).arguments
        how = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        check_arguments(function, arguments)
        model = next(iter(arguments.values()), None)
        with settings(**how), as_here():
            backend = getattr(model, "backend", None)
            complete = signature.bind(*args, **kwargs)
            explicit = dict(complete.arguments)
            complete.apply_defaults()
            seed = {"seed": current().seed} if current().seed else {}
            outer = call_now()
            text = outer or called(call, signature, explicit | seed)
            options = _options(signature, complete.arguments) | ({"call": text} if text else {})
            run = noting(options)(partial(in_call, options, partial(function, *args, **kwargs)))
            try:
                return alone(backend, run) if isinstance(backend, Backend) else run()
            except WrongHead as error:
                if outer:
                    raise
                within = next((f"{name}: " for name, value in arguments.items() if _contains(value, error.head)), "")
                raise ValueError(f"{function.__name__}(): {within}{error}") from None

    call.__signature__ = shown  # type: ignore[attr-defined]
    first, _, rest = inspect.cleandoc(function.__doc__ or "").partition("\n\n")
    call.__doc__ = "\n\n".join(filter(None, (first, _DOCUMENTED, rest))) if first else None
    return cast(Analysis[P, R], call)


def _contains(value: Any, part: object) -> bool:
    """Whether a part is the value itself, or in its lists and dicts."""
    inside = [*value, *value.values()] if isinstance(value, Mapping) else value
    return value is part or (isinstance(inside, (list, tuple, set)) and any(_contains(each, part) for each in inside))


def _options(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are plain values; an analysis records the others itself."""
    options = {
        name: value
        for name, value in arguments.items()
        if signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        and isinstance(value, (str, bool, int, float, np.generic, HeadId))
    }
    return {"seed": current().seed} | {name: plain_value(name, value) for name, value in options.items()}


def public_name(what: Any) -> str:
    """The public name of a function or class, such as ``mh.patching.faithfulness``; "" if it has none."""
    name = getattr(what, "__name__", "")
    for module, prefix in [("mechheads", "mh"), *((f"mechheads.{each}", f"mh.{each}") for each in _FOLDERS)]:
        if getattr(sys.modules.get(module), name or " ", None) is what:
            return f"{prefix}.{name}"
    return ""


def called(function: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> str:
    """The call of an analysis without defaults; an argument that Python cannot write is replaced by its name."""
    name = public_name(function)
    parts = []
    for argument, value in arguments.items():
        parameter = signature.parameters.get(argument)
        default = inspect.Parameter.empty if parameter is None else parameter.default
        plain = isinstance(value, (bool, int, float, str))
        if value is None or value is default or (plain and value == default):
            continue
        text = written(value) or ("result" if _is_result(value) else argument)
        by_name = parameter is None or parameter.kind is inspect.Parameter.KEYWORD_ONLY
        parts.append(f"{argument}={text}" if by_name or len(parts) < [*arguments].index(argument) else text)
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
    """Whether a value is a result, which records its call."""
    return isinstance(getattr(type(value), "call", None), property)


def _differs(value: Any, field: Any) -> bool:
    """Whether a field of a dataclass differs from its default."""
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
