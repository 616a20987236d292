"""What a model is made of: its modules, their settings, and the functions of libraries that they call.

A model is tried when it is loaded: where its hooks are, how it is resumed, whether attention may be fused. What was
found then holds as long as the model is made of the same. Weights may change; nothing that is kept depends on them.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from types import FunctionType
from typing import Any

from torch import Tensor, nn

from mechheads.model.backends.carried import HOOKS

_OF_TORCH = frozenset(vars(nn.Module()))
_ADDED = ("forward", "_compiled_call_impl")
"""Attributes of modules that usually have none of this name, in place of what their class has."""
_MOVING = ("seq_len_cached",)
"""How the names of attributes end in which transformers notes the length of the last text."""
_COMPUTES = (
    "transformers.models.",
    "transformers.masking_utils",
    "transformers.integrations.",
    "transformers.modeling_",
)
"""The files of transformers whose functions count if a model's files import them."""


def parts_of(module: nn.Module) -> list[nn.Module]:
    """Every module of a model once; a bridge holds the transformers model outside its own submodules."""
    inner = getattr(module, "original_model", None)
    found = [module, inner] if isinstance(inner, nn.Module) else [module]
    met = set(map(id, found))
    for part in found:
        for child in part._modules.values():
            if child is not None and id(child) not in met:
                met.add(id(child))
                found.append(child)
    return found


def weights_of(parts: Iterable[nn.Module]) -> list[Tensor]:
    """The weights of some modules."""
    return [weight for part in parts for weight in part._parameters.values() if weight is not None]


def namespaces_of(parts: Iterable[nn.Module]) -> dict[str, Mapping[str, Any]]:
    """The classes of some modules, the files that define them, and the files from which these import functions."""
    classes = {cls for kind in set(map(type, parts)) for cls in kind.__mro__ if cls is not object}
    files = {cls.__module__ for cls in classes} | {"torch.nn.functional"}
    spaces: dict[str, Mapping[str, Any]] = {name: vars(sys.modules[name]) for name in files if name in sys.modules}
    for space in list(spaces.values()):
        for value in list(space.values()):
            name = getattr(value, "__module__", None)
            of_library = isinstance(value, FunctionType) and isinstance(name, str) and name.startswith(_COMPUTES)
            if of_library and name in sys.modules:
                spaces[name] = vars(sys.modules[name])
    for space in list(spaces.values()):
        for value in list(space.values()):
            if type(value).__name__ in ("AttentionInterface", "AttentionMaskInterface"):
                for kind in ("_global_mapping", "_local_mapping"):
                    spaces[f"transformers.{type(value).__name__}{kind}"] = getattr(value, kind)
    return spaces | {f"{cls.__module__}.{cls.__qualname__}": vars(cls) for cls in classes}


class Structure:
    """What a model was made of when it was tried. Looking whether it still is takes a millisecond for 2,000 modules.

    Attributes:
        parts: its modules, but for hook points.
    """

    def __init__(self, module: nn.Module) -> None:
        every = parts_of(module)
        hooks = [vars(part)[kind] for part in every for kind in HOOKS]
        self._no_hooks = [found for found in hooks if not found]
        self._hooks = [(found, tuple(found.values())) for found in hooks if found]
        self.parts = [part for part in every if not hasattr(part, "fwd_hooks")]
        self._attributes = [(vars(part), itemgetter(*_settings_of(part))) for part in self.parts]
        self._children = [part._modules for part in self.parts]
        self._weights = [part._parameters for part in self.parts]
        self._before = self._now()
        self._spaces = [
            (name, space, itemgetter(*keys), keys, itemgetter(*keys)(space))
            for name, space in namespaces_of(every).items()
            if len(keys := [key for key, value in space.items() if _is_code(value)]) > 1
        ]
        self._configs = [(config, _copied(config)) for config in _configs_of(self.parts)]

    def _now(self) -> tuple[list[Any], list[Any], list[Any]]:
        return (
            [(_values(held, get), *map(held.get, _ADDED)) for held, get in self._attributes],
            [tuple(held.values()) for held in self._children],
            [(w.dtype, w.shape, w.device) for held in self._weights for w in held.values() if w is not None],
        )

    def weights(self) -> list[Tensor]:
        """The weights of its modules."""
        return weights_of(self.parts)

    def holds(self) -> bool:
        """Whether the model is made of the same, and carries the same hooks."""
        return (
            self.carries_the_same()
            and _same(self._now(), self._before)
            and all(_same(vars(config), before) for config, before in self._configs)
            and all(_values(space, get) == values for _, space, get, _, values in self._spaces)
        )

    def carries_the_same(self) -> bool:
        """Whether the same hooks are on its modules."""
        return not any(self._no_hooks) and all(tuple(found.values()) == before for found, before in self._hooks)

    def changed(self) -> list[tuple[str, str]]:
        """What differs now besides hooks: the module in which the library defines it, and what it is, in words."""
        found = []
        for config, before in self._configs:
            if (name := _differs(before, vars(config))) is not None:
                found.append((type(config).__module__, f"the setting {name} of its {type(config).__name__}"))
        for name, space, get, keys, values in self._spaces:
            if _values(space, get) != values:
                key = next(key for key, value in zip(keys, values, strict=True) if space.get(key) is not value)
                found.append((name, f"the function {name}.{key}"))
        settings, children, tensors = self._now()
        if not _same(children, self._before[1]):
            return [*found, ("torch", "its modules")]
        if tensors != self._before[2]:
            found.append(("torch", "the dtype, the shape or the device of a weight"))
        return found if _same(settings, self._before[0]) else [*found, *self._settings(settings)]

    def _settings(self, now: list[Any]) -> Iterator[tuple[str, str]]:
        for part, before, after in zip(self.parts, self._before[0], now, strict=True):
            if not _same(before, after):
                kind, names = type(part), [*_settings_of(part), *_ADDED]
                values = zip(names, *([*(got or ()), *added] for got, *added in (before, after)), strict=False)
                differ = [name for name, old, new in values if not _same(old, new)]
                yield kind.__module__, f"{differ[0] if differ else 'an attribute'} of a {kind.__name__}"


def _settings_of(part: nn.Module) -> list[str]:
    """The names of a module's attributes that count; in private ones, TransformerLens keeps what it last computed."""
    any_name = not type(part).__module__.startswith("transformer_lens.")
    named = (name for name in vars(part) if not name.endswith(_MOVING))
    return [name for name in named if any_name or name in _OF_TORCH or name[0] != "_"]


def _is_code(value: Any) -> bool:
    return callable(value) or isinstance(value, (property, classmethod, staticmethod))


def _values(space: Mapping[str, Any], get: Callable[[Any], Any]) -> Any:
    try:
        return get(space)
    except KeyError:
        return None


def _same(now: Any, before: Any) -> bool:
    try:
        return bool(now == before)
    except (RuntimeError, ValueError, TypeError):  # two tensors or arrays cannot be compared so
        return False


def _configs_of(parts: Iterable[nn.Module]) -> list[Any]:
    every = [config for part in parts for name in ("config", "cfg") if (config := vars(part).get(name)) is not None]
    return list({id(config): config for config in every if hasattr(config, "__dict__")}.values())


def _copied(config: Any) -> dict[str, Any]:
    return {
        name: copy.deepcopy(value) if isinstance(value, (list, dict)) else value for name, value in vars(config).items()
    }


def _differs(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    if _same(now, before):
        return None
    names = [*dict.fromkeys((*before, *now))]
    return next((name for name in names if not _same(before.get(name), now.get(name))), None)
