"""What makes a function an analysis: it has its model to itself, and its results say how it was called.

Every analysis takes what ``mh.settings`` takes of ``OPTIONS``, for one call, and its arguments are checked against
their annotations.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from os import PathLike
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload, runtime_checkable

import numpy as np
import torch

from mechheads.heads import HeadId
from mechheads.limits import Budget, Workers, current, settings
from mechheads.messages.arguments import bound, check_arguments
from mechheads.model.backends.base import Backend
from mechheads.model.backends.state import alone
from mechheads.model.called import called
from mechheads.prompts.chats import as_here
from mechheads.results.provenance import call_now, in_call, plain_value

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)

OPTIONS = ("budget", "progress", "workers", "store", "seed")
"""What every analysis takes of ``mh.settings``."""
_PARAMETERS = [inspect.signature(settings).parameters[name] for name in OPTIONS]
_DOCUMENTED = "It also takes ``budget``, ``progress``, ``workers``, ``store`` and ``seed``, as ``mh.settings`` does."


@runtime_checkable
class Analysis(Protocol[P, Result]):
    """The type of an analysis: that of the function, and ``OPTIONS``.

    A type checker reads calls without options in full. In a call with options, it reads only the first of them, because
    Python cannot add keywords to the type of another function; the call itself checks the others.
    """

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
    """Decorator for a function whose first argument is a model.

    A call has the model to itself and leaves it as it was, whatever happens. Its keywords and the choices and bounds in
    its annotations are checked before it begins (see ``check_arguments``). It takes ``OPTIONS`` besides its own
    arguments; they are in its signature and its docstring. The options of the call, its keyword-only arguments, the
    seed, and the text of the outermost call are in the provenance of every result that it makes (``make_provenance``).
    """
    signature = inspect.signature(function)
    shown = _with_options(signature)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> R:
        arguments = bound(function, shown, args, kwargs).arguments
        how = {name: kwargs.pop(name) for name in OPTIONS if name in kwargs}
        model = next(iter(arguments.values()), None)
        if [*arguments][:1] == ["model"] and (model is None or isinstance(model, (str, Path, torch.nn.Module))):
            given_as = type(model).__name__ if isinstance(model, torch.nn.Module) else repr(model)
            raise ValueError(f"model is {given_as}; give a model from mh.load or mh.wrap")
        check_arguments(function, arguments)
        with settings(**how):
            backend = getattr(model, "backend", None)
            given = signature.bind(*args, **kwargs)
            bound_as_given = dict(given.arguments)
            given.apply_defaults()
            seed = {"seed": current().seed} if current().seed else {}
            text = call_now() or called(call, signature, bound_as_given | seed)
            options = _options(signature, given.arguments) | ({"call": text} if text else {})
            run = as_here(options)(partial(in_call, options, partial(function, *args, **kwargs)))
            return alone(backend, run) if isinstance(backend, Backend) else run()

    call.__signature__ = shown  # type: ignore[attr-defined]
    call.__doc__ = _documented(function.__doc__)
    return cast(Analysis[P, R], call)


def _with_options(signature: inspect.Signature) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    last = len(parameters) - any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters)
    return signature.replace(parameters=[*parameters[:last], *_PARAMETERS, *parameters[last:]])


def _documented(doc: str | None) -> str | None:
    """A docstring that names the options after its first paragraph."""
    if doc is None:
        return None
    first, _, rest = inspect.cleandoc(doc).partition("\n\n")
    return "\n\n".join(filter(None, (first, _DOCUMENTED, rest)))


def _options(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are plain values; an analysis records others itself, as what it made of them."""
    options = {
        name: value
        for name, value in given.items()
        if signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        and isinstance(value, (str, bool, int, float, np.generic, HeadId))
    }
    return {"seed": current().seed} | {name: plain_value(name, value) for name, value in options.items()}
