"""What makes a function an analysis: it has its model to itself, and its results say how it was called."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import partial, wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, overload

import numpy as np
import torch

from mechheads.heads import HeadId, Mlp
from mechheads.limits import current
from mechheads.model.backends.base import Backend
from mechheads.model.backends.renewal import alone
from mechheads.prompts.templates import as_here
from mechheads.results.provenance import in_call, plain_value

P = ParamSpec("P")
R = TypeVar("R")

_HOW_IT_RUNS = {"budget", "progress", "workers", "store"}
"""Options that change no number, so that no result names them."""


@overload
def analysis(function: Callable[P, R], /) -> Callable[P, R]: ...
@overload
def analysis(*, keeps_units: bool) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
def analysis(function: Any = None, /, *, keeps_units: bool = False) -> Any:
    """Decorator for a function whose first argument is a model.

    A call has the model to itself and leaves it as it was, whatever happens. The options of the call, its keyword-only
    arguments, and the seed are in the provenance of every result that it makes (see ``make_provenance``).

    Args:
        keeps_units: whether the ledger that ``store`` names keeps what is finished, so that the same call goes on.
            Such an analysis can be written to a file and run elsewhere.
    """
    if function is None:
        return lambda function: _as_analysis(function, keeps_units)
    return _as_analysis(function, keeps_units)


def _as_analysis(function: Callable[P, R], keeps_units: bool) -> Callable[P, R]:
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{function.__name__}(): {error}") from None
        given.apply_defaults()
        model = next(iter(given.arguments.values()), None)
        if [*given.arguments][:1] == ["model"] and (model is None or isinstance(model, (str, Path, torch.nn.Module))):
            shown = type(model).__name__ if isinstance(model, torch.nn.Module) else repr(model)
            raise ValueError(f"model is {shown}; give a model from mh.load or mh.wrap")
        backend = getattr(model, "backend", None)
        options = _options(signature, given.arguments)
        run = as_here(options)(partial(in_call, options, partial(function, *args, **kwargs)))
        return alone(backend, run) if isinstance(backend, Backend) else run()

    call.keeps_units = keeps_units  # type: ignore[attr-defined]
    return call


def _options(signature: inspect.Signature, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that are plain values; an analysis records others itself, as what it made of them."""
    options = {
        name: value
        for name, value in given.items()
        if signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        and name not in _HOW_IT_RUNS
        and isinstance(value, (str, bool, int, float, np.generic, HeadId, Mlp))
    }
    return {"seed": current().seed} | {name: plain_value(name, value) for name, value in options.items()}
