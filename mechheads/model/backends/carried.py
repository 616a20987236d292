"""The hooks and replaced methods that a model carries, besides those of the libraries that load it."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_BOOTED_BY = {"torch", "transformers", "transformer_lens", "accelerate", "nnsight", "mechheads.model.backends.on_disk"}
"""Libraries and modules whose hooks and forwards belong to a model as they load it or read its weights."""
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
"""Where a torch module keeps its hooks."""


def modules_of(module: nn.Module) -> Iterator[tuple[str, nn.Module, bool]]:
    """Every module inside a module under each of its names, and whether it occurs for the first time.

    Attributes are followed too, because a bridge holds the model that it wraps outside its own submodules.
    """
    from torch import nn

    met: set[int] = set()
    left = [("the model", module)]
    while left:
        name, module = left.pop()
        new = id(module) not in met
        yield name, module, new
        if new:
            met.add(id(module))
            inside = {key: value for key, value in vars(module).items() if isinstance(value, nn.Module)}
            left += [(f"{name}.{key}", part) for key, part in (inside | module._modules).items() if part is not None]


def carried(module: nn.Module, points: Callable[[str], bool]) -> list[str]:
    """What a model carries besides what the libraries that load it put there, in words.

    These are hooks, replaced forwards and compiled modules.

    Args:
        points: whether hooks of TransformerLens count that are on a hook point of this name.
    """
    names = [(name.removeprefix("the model."), part) for name, part, new in modules_of(module) if new]
    found = hooks_everywhere()
    for long_name, part in names:
        name = long_name.replace("._original_component", "")
        is_point = hasattr(part, "fwd_hooks")
        in_use = is_point and bool(part.fwd_hooks or part.bwd_hooks)
        point = str(getattr(part, "name", None) or name)
        if in_use and (has_user_hooks(part) or part.bwd_hooks) and points(point):
            found.append(f"a TransformerLens hook on {point}")
        found += [f"a torch hook on {name} ({called(hook)})" for hook in hooks_on(part, is_point and not in_use)]
        if replaces_forward(part):
            found.append(f"a replaced forward in {name}")
        if vars(part).get("_compiled_call_impl") is not None or type(part).__module__.startswith("torch._dynamo"):
            found.append(f"a compiled module, {name}")
    return found


def has_user_hooks(point: Any) -> bool:
    """Whether a hook point has hooks besides those by which TransformerLens 4 calls one hook point from another."""
    return any(
        not getattr(getattr(handle, "user_hook", None), "__qualname__", "").startswith("_wire_symbolic_hooks.")
        for handle in point.fwd_hooks
    )


def hooks_everywhere() -> list[str]:
    """The torch hooks that every module calls, in words."""
    from torch.nn.modules import module as everywhere

    shared = [hook for kind in HOOKS for hook in getattr(everywhere, f"_global{kind}").values()]
    return [f"a torch hook on every module ({called(hook)})" for hook in shared if not is_booted(hook)]


def hooks_on(part: nn.Module, all_of_them: bool = False) -> list[Any]:
    """The torch hooks on a module; by default, without those of the libraries that load models."""
    hooks = [hook for kind in HOOKS for hook in getattr(part, kind).values()]
    return [hook for hook in hooks if all_of_them or not is_booted(hook)]


def replaces_forward(part: nn.Module) -> bool:
    """Whether a module has a ``forward`` of its own that belongs to no library that loads models."""
    return not all(value is None or is_booted(value) for value in map(vars(part).get, ("forward", "_hf_hook")))


def is_booted(thing: Any) -> bool:
    """Whether a function belongs to a library that loads models, judged by the module that defines it."""
    written = home(inner(thing))
    return not _BOOTED_BY.isdisjoint({written, written.partition(".")[0]})


def called(thing: Any) -> str:
    thing = inner(thing)
    return getattr(thing, "__qualname__", type(thing).__qualname__)


def inner(thing: Any) -> Any:
    """The function inside partials and bound methods."""
    while isinstance(thing, (functools.partial, types.MethodType)):
        thing = thing.func if isinstance(thing, functools.partial) else thing.__func__
    return thing


def home(thing: Any) -> str:
    """The module that a function, or the class of an object, is written in, whatever a decorator says."""
    return getattr(thing, "__globals__", {}).get("__name__") or getattr(thing, "__module__", None) or "builtins"
