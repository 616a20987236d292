"""Fingerprints: hashes of metrics, interventions and models that are the same in every process until one changes.

A fingerprint covers what decides the result: a function's bytecode and constants, its defaults and closure, and the
global values it reads; a frozen dataclass's fields and slots, and the code of its class, bases and metaclass. Names
from installed libraries count by name and version, unless they were replaced. Line numbers, file paths, addresses and
Python's hash seed do not count. Code that reads files, the environment or names computed at run time (``open``,
``os.environ``, ``eval``, ``globals``) is an error. What a library's function looks up by itself is not covered.
"""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import hashlib
import inspect
import re
import sys
import types
from collections import namedtuple
from pathlib import PurePath
from typing import Any, NoReturn

import numpy as np

from mechheads.ledger.fingerprints.libraries import is_walked, library_name, release_of
from mechheads.ledger.fingerprints.plain_types import LEAVES, PARTS
from mechheads.ledger.fingerprints.reads import (
    LOADS,
    OUTSIDE,
    OUTSIDE_BUILTINS,
    OUTSIDE_IN,
    OUTSIDE_MODULES,
    looks_outside,
    reads,
)

_ABSENT = object()

# Class attributes that Python, dataclass and Enum add by themselves.
_SLOTS = (types.MemberDescriptorType, types.GetSetDescriptorType, type(vars(namedtuple("_", "x"))["x"]), enum.property)
_BOOKKEEPING = {"_abc_impl", "_is_protocol", "_is_runtime_protocol"} | {
    f"__{name}__"
    for name in (
        "module",
        "qualname",
        "name",
        "doc",
        "dict",
        "weakref",
        "slots",
        "slotnames",  # kept by copyreg once an instance was copied or pickled
        "annotations",
        "annotate",
        "annotate_func",
        "annotations_cache",
        "conditional_annotations",
        "firstlineno",
        "static_attributes",
        "match_args",
        "orig_bases",
        "dataclass_fields",
        "dataclass_params",
        "parameters",
        "type_params",
        "abstractmethods",
        "protocol_attrs",
        "non_callable_proto_members",
        "callable_proto_members_only",
    )
}
_BUILTINS = [getattr(builtins, name) for name in sorted(OUTSIDE_BUILTINS)]
_CHANGES = (
    "a way to read files, the environment, the network, or names computed at run time, which may change unnoticed; "
    "read them first, and keep the value in a field or a global"
)
_GENERATED = {f"__{name}__" for name in ("init", "repr", "eq", "lt", "le", "gt", "ge", "hash", "setattr", "delattr")}
_GENERATED |= {"__getstate__", "__setstate__", "__replace__"}


def fingerprint(thing: object, what: str = "thing") -> str:
    """A hash of a metric, an intervention or a plain value: 64 hexadecimal digits.

    Accepts numbers, text, bytes, paths, tuples, lists, dicts, sets, enum members, NumPy arrays, torch tensors, dtypes
    and devices, functions, partials, bound methods, and frozen dataclasses of these.

    Args:
        thing: what to fingerprint, in its present state: globals and closures count with their present values.
        what: the name of the thing in messages, such as ``"metric"``.

    Raises:
        ValueError: if it is, or reads, anything else.

    >>> from mechheads.ledger.fingerprints import fingerprint
    >>> half, quarter = mh.patching.Scale(0.5), mh.patching.Scale(0.25)
    >>> fingerprint(half) == fingerprint(mh.patching.Scale(0.5)) != fingerprint(quarter)
    True
    >>> fingerprint(lambda z, context: -z) == fingerprint(lambda z, context: -z)
    True
    """
    walk = Walk([what])
    try:
        walk.add(thing)
    except RecursionError:
        raise ValueError(f"{what} cannot be fingerprinted: it contains itself, or is nested too deeply") from None
    return walk.hash.hexdigest()


class Walk:
    """Hashes an object and everything it depends on.

    Args:
        path: how the current object was reached, for messages; the first entry names the outermost object.
        seen: the functions and classes found so far, numbered, so that they may refer to each other.
    """

    def __init__(self, path: list[str], seen: dict[int, tuple[int, object]] | None = None) -> None:
        self.hash = hashlib.sha256()
        self.path = path
        self.seen = {} if seen is None else seen

    def put(self, tag: str, *parts: str | bytes | memoryview) -> None:
        for part in (tag, str(len(parts)), *parts):
            raw = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            self.hash.update(len(raw).to_bytes(8, "big"))
            self.hash.update(raw)

    def add(self, thing: Any, step: str | None = None) -> None:
        """Hash an object; ``step`` says how it was reached."""
        if step is not None:
            self.path.append(step)
        kind = type(thing)
        if kind in LEAVES:
            self.put(kind.__name__, LEAVES[kind](thing))
        elif kind in PARTS:
            parts = tuple(PARTS[kind](thing))
            self.put(kind.__name__, str(len(parts)))
            for part in parts:
                self.add(part)
        elif kind in (set, frozenset):
            self.put(kind.__name__, *sorted(map(self.apart, thing)))
        elif kind is dict:
            self.put("dict", str(len(thing)))
            for key in sorted(thing, key=self.apart):
                self.add(key)
                self.add(thing[key])
        elif isinstance(thing, PurePath):
            self.put("path", str(thing))
        elif isinstance(thing, enum.Enum):
            self.add(kind)
            self.add(thing.value)
        elif isinstance(thing, types.ModuleType):
            self.module(thing.__name__)
        elif name := library_name(thing):
            if name[1].rpartition(".")[2] in OUTSIDE or any(thing is one for one in _BUILTINS):
                self.refuse(_CHANGES)
            self.put("library", *name)
        elif id(thing) in self.seen:
            self.put("seen", str(self.seen[id(thing)][0]))
        elif isinstance(thing, types.FunctionType):
            self.function(thing)
        elif isinstance(thing, type):
            self.class_(thing)
        elif isinstance(thing, types.BuiltinFunctionType):
            self.builtin(thing)
        elif kind is np.ndarray or isinstance(thing, (np.generic, np.dtype)):
            self.array(thing)
        elif not self.tensor(thing):
            self.instance(thing)
        if step is not None:
            self.path.pop()

    def apart(self, thing: Any) -> bytes:
        """The digest of one element of an unordered collection."""
        walk = Walk(list(self.path), dict(self.seen))
        walk.add(thing)
        return walk.hash.digest()

    def refuse(self, why: str, step: str | None = None) -> NoReturn:
        what, *steps = self.path if step is None else [*self.path, step]
        raise ValueError(f"{what} cannot be fingerprinted: {' > '.join(steps) or 'it'} is {why}")

    def function(self, function: types.FunctionType) -> None:
        self.seen[id(function)] = len(self.seen), function
        release = release_of(function.__globals__.get("__name__", ""))
        self.put("function", release or "")
        name = function.__name__
        self.add(function.__code__)
        self.add(function.__defaults__, f"{name}'s defaults")
        self.add(function.__kwdefaults__, f"{name}'s defaults")
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            try:
                content = cell.cell_contents
            except ValueError:
                content = None
            self.add(content, f"{variable} in {name}")
        for attribute, value in sorted(vars(function).items()):
            self.add(attribute)
            self.add(value, f"{name}.{attribute}")
        if release is None:
            if outside := looks_outside(function.__code__):
                self.refuse(_CHANGES, f"{outside} in {name}")
            for read in dict.fromkeys(reads(function.__code__)):
                self.read(read, function)

    def read(self, read: tuple[str, ...], function: types.FunctionType) -> None:
        """Hash what a function reads from outside; see ``reads``."""
        name, *attributes = read
        self.put("read", name)
        if not name:
            self.module(attributes[0], f"{attributes[0]} in {function.__name__}")
            return
        value = function.__globals__.get(name, getattr(builtins, name, _ABSENT))
        while attributes and isinstance(value, types.ModuleType) and is_walked(value.__name__):
            name, *attributes = attributes
            self.put("attribute", name)
            value = getattr(value, name, _ABSENT)
        if isinstance(value, types.ModuleType):
            self.in_library(value, attributes, function)
        self.add(None if value is _ABSENT else value, f"{name} in {function.__name__}")

    def in_library(self, value: Any, attributes: list[str], function: types.FunctionType) -> None:
        """Hash what a function reads from a library: by the library's version, unless the user replaced it."""
        module, first = value.__name__, attributes[:1]
        if module.partition(".")[0] in OUTSIDE_MODULES or not (LOADS | OUTSIDE_IN.get(module, set())).isdisjoint(first):
            self.refuse(_CHANGES, f"{'.'.join([module, *first])} in {function.__name__}")
        for name in attributes:
            value = getattr(value, name, None)
            if isinstance(value, types.FunctionType) and release_of(value.__globals__.get("__name__", "")) is None:
                self.put("replaced", name)
                self.add(value, f"{name} in {function.__name__}")

    def module(self, name: str, step: str | None = None) -> None:
        release = release_of(name)
        if release is None:
            self.refuse("a module of your own; import it at the top, and read its parts as module.part", step)
        self.put("module", name, release)

    def class_(self, cls: type) -> None:
        self.seen[id(cls)] = len(self.seen), cls
        self.put("class", cls.__module__, cls.__qualname__, release_of(cls.__module__) or "", str(len(cls.__bases__)))
        for base in cls.__bases__:
            self.add(base, f"a base of {cls.__name__}")
        if type(cls) is not type:
            self.add(type(cls), f"the metaclass of {cls.__name__}")
        if issubclass(cls, enum.Enum):
            self.add({name: member.value for name, member in cls.__members__.items()}, f"{cls.__name__}'s values")
        if dataclasses.is_dataclass(cls):
            for field in dataclasses.fields(cls):
                made = field.default_factory is not dataclasses.MISSING
                self.add((field.name, field.init, made))
                self.add(field.default_factory if made else None, f"{cls.__name__}.{field.name}'s default")
        for name, value in sorted(vars(cls).items()):
            if not _is_made(cls, name, value):
                self.add(name)
                self.add(value, f"{cls.__name__}.{name}")

    def builtin(self, function: types.BuiltinFunctionType) -> None:
        owner = function.__self__
        if owner is None or isinstance(owner, (types.ModuleType, type)):
            module = function.__module__ or getattr(owner, "__module__", "")
            self.put("builtin", module, function.__qualname__, release_of(module) or "")
        else:
            self.put("method", function.__name__)
            self.add(owner)

    def array(self, thing: Any) -> None:
        """Hash a NumPy array, scalar or dtype."""
        if isinstance(thing, np.dtype):
            self.put("dtype", thing.str, str(thing))
            return
        self.put(type(thing).__name__, thing.dtype.str, str(thing.dtype), str(thing.shape))
        if thing.dtype.hasobject:
            self.add(thing.tolist())
        else:
            self.put("bytes", thing.tobytes())

    def tensor(self, thing: Any) -> bool:
        """Hash a torch object; return False if it is not one."""
        torch = sys.modules.get("torch")
        if torch is None:
            return False
        if isinstance(thing, (torch.dtype, torch.device, torch.Size)):
            self.put(type(thing).__name__, str(thing))
        elif not isinstance(thing, torch.Tensor):
            return False
        else:
            self.put("tensor", str(thing.dtype), str(tuple(thing.shape)), self.bytes_of(thing))
        return True

    def bytes_of(self, tensor: Any) -> memoryview:
        """The values of a tensor, row by row, whatever its memory layout."""
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            self.refuse(f"a {tensor.layout} tensor on {tensor.device}; only a plain tensor has values to compare")
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return memoryview(flat.view(torch.uint8).numpy())

    def instance(self, thing: Any) -> None:
        cls = type(thing)
        if isinstance(thing, tuple) and hasattr(cls, "_fields"):
            self.add(cls)
            self.add(tuple(thing))
            self.add(getattr(thing, "__dict__", {}))
            return
        if not dataclasses.is_dataclass(cls):
            self.refuse(
                f"an object of {cls.__module__}.{cls.__qualname__}; make it a frozen dataclass or a module-level "
                "function, and let it read only plain values, arrays and tensors"
            )
        if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
            self.refuse(f"a {cls.__qualname__}, a dataclass that can change; write @dataclass(frozen=True)")
        self.put("instance")
        self.add(cls)
        state = {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(cls)}
        for name, value in getattr(thing, "__dict__", {}).items():
            if not self.is_cached(thing, name, value):
                state[name] = value
        for name, value in sorted(state.items()):
            self.add(name)
            self.add(value, f"{cls.__name__}.{name}")
        for base in cls.__mro__:
            for name, slot in sorted(vars(base).items()):
                if isinstance(slot, types.MemberDescriptorType) and is_walked(base.__module__):
                    value = _held(slot, thing)
                    if value is not _ABSENT and state.get(name, _ABSENT) is not value:
                        self.put("slot", base.__qualname__, name)
                        self.add(value, f"{base.__name__}.{name}")

    def is_cached(self, thing: Any, name: str, value: Any) -> bool:
        """Whether a value is what a cached property would compute again, and not one that replaced it."""
        made = inspect.getattr_static(type(thing), name, None)
        if not isinstance(made, functools.cached_property):
            return False
        self.path.append(f"{type(thing).__name__}.{name}")
        same = self.apart(made.func(thing)) == self.apart(value)
        self.path.pop()
        return same


def _is_made(cls: type, name: str, value: Any) -> bool:
    """Whether a class attribute was added by Python, dataclass or Enum, not by the author of the class."""
    if isinstance(value, _SLOTS) or name in _BOOKKEEPING:
        return True
    if issubclass(cls, enum.Enum) and (isinstance(value, cls) or re.fullmatch(r"_[a-z]\w*_", name)):
        return True
    if dataclasses.is_dataclass(cls) and name in _GENERATED:
        code = getattr(value, "__code__", None)
        return name == "__repr__" or code is None or code.co_filename == "<string>"
    return name == "__hash__" and value is None


def _held(slot: types.MemberDescriptorType, thing: object) -> Any:
    """The content of a slot of an object."""
    try:
        return slot.__get__(thing, type(thing))
    except AttributeError:
        return _ABSENT
