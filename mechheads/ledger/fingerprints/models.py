"""The fingerprint of a model in its present state: its weights and its modules. A model with hooks is an error."""

from __future__ import annotations

import enum
import functools
import json
import sys
import types
import zlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from mechheads.ledger.fingerprints.libraries import is_walked, release_of
from mechheads.ledger.fingerprints.walk import Walk

if TYPE_CHECKING:
    import torch

_BOOTED_BY = {"torch", "transformers", "transformer_lens", "accelerate"}
"""Libraries whose own hooks and forwards belong to a model as they load it."""
_OWN = {"mechheads.model.backends.on_disk", "mechheads.model.backends.devices"}
"""The hooks of these modules read weights that are on disk, and move inputs to their device."""
_HOOKS = ("forward_hooks", "forward_pre_hooks", "backward_hooks", "backward_pre_hooks")
_WHERE = {
    *("_name_or_path", "name_or_path", "model_name", "tokenizer_name", "transformers_version"),
    *("device", "n_devices", "hf_device_map"),
}
"""Settings that only say where a model came from and where it is."""


def model_fingerprint(module: torch.nn.Module, what: str) -> str:
    """A hash of everything in a model that decides what it computes, as far as this can be seen: 64 hexadecimal digits.

    It covers every bit of each weight; the class of every module, the code of classes that do not belong to a library,
    and methods replaced in a library's class; the numbers, texts and functions that modules store beyond weights.

    Args:
        what: the argument that needs the fingerprint, for messages, such as ``"store"``.

    Raises:
        ValueError: if the model carries hooks or a replaced ``forward``, which may compute anything, or a module's
            code cannot be fingerprinted.

    >>> from mechheads.ledger.fingerprints import model_fingerprint
    >>> len(model_fingerprint(model.model, "store"))
    64
    """
    if found := carried_hooks(module):
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ValueError(
            f"{what}: the model carries {found[0]}{more}, which may change its numbers in any way, so results with and "
            f"without it could not be distinguished. Remove it (model.model.reset_hooks() for hooks of "
            f"TransformerLens, handle.remove() for torch hooks, del module.forward), or leave {what} out"
        )
    walk = Walk([f"{what}: the model"])
    walk.add(weights_fingerprint(module))
    _Structure(walk).add("", module)
    return walk.hash.hexdigest()


def structure_fingerprint(module: torch.nn.Module, what: str) -> str:
    """A hash of a model's modules and their settings, without weights and hooks: 64 hexadecimal digits.

    Args:
        what: as in ``model_fingerprint``.

    Raises:
        ValueError: if a module's code cannot be fingerprinted.
    """
    walk = Walk([f"{what}: the model"])
    _Structure(walk).add("", module)
    return walk.hash.hexdigest()


def weights_fingerprint(module: torch.nn.Module) -> str:
    """A hash of a model's weights: 64 hexadecimal digits.

    It covers the name, shape and dtype of each parameter and buffer, and a checksum of all its values.

    >>> from mechheads.ledger.fingerprints import weights_fingerprint
    >>> len(weights_fingerprint(model.model))
    64
    """
    from mechheads.model.backends.on_disk import stored_weight

    walk = Walk(["weights"])
    weights = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    sums: dict[int, tuple[Any, ...]] = {}
    for name, weight in sorted(weights.items()):
        if id(weight) not in sums:
            sums[id(weight)] = checksum(stored_weight(module, weight), walk)
        walk.add((name, *sums[id(weight)]))
    return walk.hash.hexdigest()


def checksum(tensor: torch.Tensor, walk: Walk) -> tuple[str, tuple[int, ...], int]:
    """The dtype, the shape and a checksum of the bits of a tensor, computed at the speed of memory."""
    return str(tensor.dtype), tuple(tensor.shape), zlib.crc32(walk.bytes_of(tensor))


def modules_of(module: torch.nn.Module, name: str = "") -> Iterator[tuple[str, torch.nn.Module, bool]]:
    """Every module inside a module under each of its names, and whether it occurs for the first time.

    Attributes are followed too, because a bridge holds the model that it wraps outside its own submodules.
    """
    import torch

    met: set[int] = set()
    left = [(name, module)]
    while left:
        name, module = left.pop()
        yield name, module, id(module) not in met
        if id(module) not in met:
            met.add(id(module))
            inside = {key: value for key, value in vars(module).items() if isinstance(value, torch.nn.Module)}
            left += [(f"{name}.{key}", part) for key, part in (inside | module._modules).items() if part is not None]


def carried_hooks(module: torch.nn.Module) -> list[str]:
    """The hooks and replaced forwards that a model carries, besides those of the libraries that load it, in words."""
    from torch.nn.modules import module as everywhere

    found = [
        f"a torch hook on every module ({_called(hook)})"
        for kind in _HOOKS
        for hook in getattr(everywhere, f"_global_{kind}").values()
        if not _is_booted(hook)
    ]
    for name, part, new in modules_of(module):
        if not new:
            continue
        where = name.removeprefix(".") or "the model"
        is_point = hasattr(part, "fwd_hooks")
        if is_point and (part.fwd_hooks or part.bwd_hooks):
            found.append(f"a TransformerLens hook on {part.name or where}")
        else:
            found += [
                f"a torch hook on {where} ({_called(hook)})"
                for kind in _HOOKS
                for hook in getattr(part, f"_{kind}").values()
                if is_point or not _is_booted(hook)
            ]
        kept = [vars(part).get("forward"), vars(part).get("_hf_hook")]
        if not all(value is None or _is_booted(value) for value in kept):
            found.append(f"a replaced forward in {where}")
    return found


def _is_booted(thing: Any) -> bool:
    """Whether a function belongs to a library that loads models, judged by the module that defines it."""
    thing = _inner(thing)
    written = getattr(thing, "__globals__", {}).get("__name__") or (
        thing.__module__ if isinstance(thing, (type, types.BuiltinFunctionType)) else type(thing).__module__
    )
    return str(written).partition(".")[0] in _BOOTED_BY or written in _OWN


def _inner(thing: Any) -> Any:
    """The function inside partials and bound methods."""
    while isinstance(thing, (functools.partial, types.MethodType)):
        thing = thing.func if isinstance(thing, functools.partial) else thing.__func__
    return thing


def _called(thing: Any) -> str:
    thing = _inner(thing)
    return getattr(thing, "__qualname__", type(thing).__qualname__)


class _Structure:
    """Hashes the structure of a model, without its weights."""

    def __init__(self, walk: Walk) -> None:
        import torch

        self.walk, self.torch = walk, torch
        self.usual = set(vars(torch.nn.Module())) - {"training"}
        self.classes: set[type] = set()
        self.numbers: dict[int, int] = {}

    def add(self, name: str, module: torch.nn.Module) -> None:
        for where, part, new in modules_of(module, name):
            number = self.numbers.setdefault(id(part), len(self.numbers))
            self.walk.put("module", where, str(number), *_class_name(type(part)))
            if not new:
                continue
            self.walk.path.append(where.removeprefix(".") or "the whole")
            self.class_(type(part))
            if not hasattr(part, "fwd_hooks"):  # a hook point without hooks does nothing
                for key, value in sorted(vars(part).items()):
                    if key not in self.usual and key not in _WHERE:
                        self.value(key, value, own=is_walked(type(part).__module__))
            self.walk.path.pop()

    def class_(self, cls: type) -> None:
        """Hash a class: the user's own by its code, a library's by the functions that others put into it."""
        if cls in self.classes:
            return
        self.classes.add(cls)
        if is_walked(cls.__module__):
            self.walk.add(cls, cls.__qualname__)
            return
        for base in cls.__mro__:
            for key, value in sorted(vars(base).items()):
                for function in _functions(value):
                    if is_walked(function.__globals__.get("__name__", "")):
                        self.walk.put("replaced", base.__qualname__, key)
                        self.walk.add(function, f"{base.__qualname__}.{key}")

    def value(self, key: str, value: Any, own: bool) -> None:
        """Hash an attribute of a module: plain values and functions, the class of others, tensors of a user's module.

        If its name begins with an underscore, only a number or a text counts: a library may store its own state there.
        """
        public = own or not key.startswith("_")
        if isinstance(value, self.torch.nn.Module) or value is None:
            return
        if isinstance(value, self.torch.Tensor):
            if own:
                self.walk.add((key, *checksum(value, self.walk)))
        elif _is_plain(value):
            if public or (isinstance(value, (int, float, str)) and not isinstance(value, bool)):
                self.walk.add((key, value))
        elif isinstance(value, (list, tuple, dict)):
            if public:
                self.walk.put("several", key, type(value).__name__)
                for i, part in value.items() if isinstance(value, dict) else enumerate(value):
                    self.value(f"{key}[{i}]", part, own)
        elif callable(getattr(value, "to_dict", None)):
            known = {k: v for k, v in value.to_dict().items() if k not in _WHERE}
            known["_attn_implementation"] = getattr(value, "_attn_implementation", None)
            self.walk.put("configuration", key, json.dumps(known, sort_keys=True, default=_class_of))
        elif isinstance(value, (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)):
            self.walk.put("function", key)
            self.function(value, key)
        elif public:
            self.walk.put("kept", key, *_class_name(type(value)))
            if is_walked(type(value).__module__):
                self.walk.add(type(value), key)

    def function(self, value: Any, key: str) -> None:
        if isinstance(value, functools.partial):
            for part in (*value.args, *value.keywords.items()):
                self.value(f"{key}'s argument", part, own=True)
        inner = _inner(value)
        if is_walked(getattr(inner, "__globals__", {}).get("__name__") or inner.__module__ or "builtins"):
            self.walk.add(inner, key)
        else:
            self.walk.put("library", str(inner.__module__), inner.__qualname__)


def _functions(value: Any) -> Iterator[types.FunctionType]:
    """The functions that a class attribute consists of."""
    for part in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "func"))):
        if isinstance(part, types.FunctionType):
            yield part


def _class_name(cls: type) -> tuple[str, str, str]:
    return cls.__module__, cls.__qualname__, release_of(cls.__module__) or ""


def _class_of(thing: object) -> str:
    return ".".join(_class_name(type(thing)))


def _is_plain(value: Any) -> bool:
    """Whether a value is a number or text, or a container of these."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return all(map(_is_plain, value))
    if isinstance(value, dict):
        return all(map(_is_plain, (*value.keys(), *value.values())))
    torch = sys.modules["torch"]
    return type(value) in (type(None), bool, int, float, complex, str) or isinstance(
        value, (enum.Enum, np.generic, np.ndarray, torch.dtype, torch.device)
    )
