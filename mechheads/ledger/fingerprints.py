"""Fingerprints: hashes of metrics, interventions and models that are the same in every process until one changes.

Of a metric, an intervention or a plain value, everything that decides what it gives is walked: bytecode and constants,
defaults, closures and the globals that a function reads, the fields of a frozen dataclass and the code of its class.
What an installed library defines counts by its name and the library's version. Everything else is refused: its content
may change without a trace in any code.

Of a model, its present state counts: its weights and its modules. A model with hooks is an error.
"""

from __future__ import annotations

import builtins
import dataclasses
import dis
import functools
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import re
import struct
import sys
import sysconfig
import types
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from mechheads._version import __version__
from mechheads.model.backends.carried import carried, home, inner, modules_of

if TYPE_CHECKING:
    import torch

PYTHON = f"python {sys.version_info.major}.{sys.version_info.minor}"

_Parts = bytes | memoryview | Sequence[Any] | dict[Any, Any]
_PARTS: dict[type, Callable[[Any], _Parts]] = {
    **dict.fromkeys((types.NoneType, types.EllipsisType, types.NotImplementedType), lambda _: b""),
    **dict.fromkeys((bool, int), lambda x: hex(x).encode()),
    float: lambda x: struct.pack(">d", x),
    complex: lambda x: struct.pack(">dd", x.real, x.imag),
    str: lambda x: x.encode("utf-8", "surrogatepass"),
    **dict.fromkeys((bytes, memoryview, tuple, list, dict), lambda x: x),
    **dict.fromkeys((slice, range), lambda x: (x.start, x.stop, x.step)),
    re.Pattern: lambda x: (x.pattern, x.flags),
    property: lambda x: (x.fget, x.fset, x.fdel),
    **dict.fromkeys((staticmethod, classmethod), lambda x: (x.__func__,)),
    functools.partial: lambda x: (x.func, x.args, x.keywords, vars(x)),
    type(functools.cache(len)): lambda x: (vars(x),),
    types.MethodType: lambda x: (x.__func__, x.__self__),
    **dict.fromkeys((types.MethodDescriptorType, types.WrapperDescriptorType), lambda x: (x.__objclass__, x.__name__)),
    types.CodeType: lambda x: (
        *(x.co_code, x.co_exceptiontable, x.co_flags, x.co_argcount, x.co_posonlyargcount, x.co_kwonlyargcount),
        *(x.co_consts, x.co_names, x.co_varnames, x.co_freevars, x.co_cellvars),
    ),
}
"""What values of Python's own types consist of: bytes, or parts."""
_PURE = {
    *("abc", "base64", "bisect", "builtins", "cmath", "collections", "collections_abc", "contextlib", "copy"),
    *("dataclasses", "decimal", "enum", "fractions", "functools", "hashlib", "heapq", "itertools", "json", "math"),
    *("numbers", "operator", "re", "reprlib", "statistics", "string", "struct", "textwrap", "types", "typing"),
    *("unicodedata", "warnings", "zlib"),
}
"""The modules of Python's own library that compute from their arguments alone."""
_NOT_PURE = {"open", "input", "eval", "exec", "globals", "__import__"}
"""The functions of ``builtins`` that do not."""
_READS_FILES = re.compile(
    r"load(?!s$)\w*|read_(?!positions)\w+|(gen)?from_?(txt|file|regex|pretrained)|\w*(memmap|open)"
)
"""Names of functions and methods that read files."""
_CHANGES = (
    "a way to read files, the environment, the network, or names computed at run time, which may change unnoticed; "
    "read them first, and keep the value in a field or a global"
)
_ATTRIBUTE = ("LOAD_ATTR", "LOAD_METHOD")
_BY_PYTHON = {
    *("__module__", "__doc__", "__dict__", "__weakref__", "__slots__", "__firstlineno__", "__static_attributes__"),
    *("__annotations__", "__annotate__", "__annotate_func__", "__annotations_cache__", "__conditional_annotations__"),
    *("__orig_bases__", "__parameters__", "__type_params__", "__dataclass_fields__", "__dataclass_params__"),
    *("_abc_impl", "__slotnames__"),  # the latter is kept by copyreg once an instance was copied or pickled
}
"""Class attributes that Python adds, and that decide no result."""
_WHERE = {
    *("_name_or_path", "name_or_path", "model_name", "tokenizer_name", "transformers_version"),
    *("device", "n_devices", "hf_device_map", "_old_forward"),
}
"""Settings that only say where a model came from and where it is; accelerate keeps methods that it replaces."""
_THEIR_OWN = {"torch", "transformers", "transformer_lens", "accelerate", "mechheads"}
"""Libraries that import functions of each other."""
_ONLY_THEIR_OWN = ("transformers.models.", "transformers.AttentionInterface", "torch.nn.functional")
"""Files and tables in which no other library has functions, unless it put them there."""
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)


def fingerprint(thing: object, what: str = "thing") -> str:
    """A hash of a metric, an intervention or a plain value: 64 hexadecimal digits.

    Accepts numbers, text, bytes, tuples, lists, dicts, sets, NumPy arrays, torch tensors, dtypes and devices,
    functions, partials, bound methods, classes, and frozen dataclasses of these.

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
    walk = Walk(what)
    try:
        walk.add(thing)
    except RecursionError:
        raise ValueError(f"{what} cannot be fingerprinted: it contains itself, or is nested too deeply") from None
    return walk.hash.hexdigest()


class Walk:
    """Hashes an object and everything it depends on.

    Args:
        path: how the current object was reached, for messages; the first entry names the outermost object.
    """

    def __init__(self, *path: str) -> None:
        self.hash = hashlib.sha256()
        self.path = path
        self.seen: dict[int, tuple[int, object]] = {}

    def add(self, thing: Any, step: object = None) -> None:
        """Hash an object; ``step`` says where it was found."""
        above, self.path = self.path, (*self.path, step) if isinstance(step, str) else self.path
        tag, parts = self.parts(thing)
        self.hash.update(f"{tag} {len(parts)} ".encode())
        if isinstance(parts, (bytes, memoryview)):
            self.hash.update(parts)
        elif isinstance(parts, dict):
            for key in sorted(parts, key=self.apart):
                self.add(key)
                self.add(parts[key], key)
        else:
            for part in parts:
                self.add(part)
        self.path = above

    def parts(self, thing: Any) -> tuple[str, _Parts]:
        """The kind of an object and what is hashed of it: bytes, or other objects."""
        kind = type(thing)
        if kind in _PARTS:
            return kind.__name__, _PARTS[kind](thing)
        if kind in (set, frozenset):
            return kind.__name__, sorted(map(self.apart, thing))
        if is_of_library(thing):
            return "library", self.library(thing.__module__, thing.__qualname__)
        if id(thing) in self.seen:
            return "seen", b"%d" % self.seen[id(thing)][0]
        if isinstance(thing, (types.FunctionType, type)):
            self.seen[id(thing)] = len(self.seen), thing  # the thing itself, lest another one gets its id
            return ("class", self.class_(thing)) if isinstance(thing, type) else ("function", self.function(thing))
        if isinstance(thing, types.BuiltinFunctionType):
            owner = thing.__self__
            if owner is None or isinstance(owner, (types.ModuleType, type)):
                return "library", self.library(thing.__module__ or getattr(owner, "__module__", ""), thing.__qualname__)
            return "method", (thing.__name__, owner)
        torch = sys.modules.get("torch")
        if isinstance(thing, np.dtype) or (torch and kind in (torch.dtype, torch.device, torch.Size)):
            return kind.__name__, (str(thing),)
        if (kind is np.ndarray or isinstance(thing, np.generic)) and not thing.dtype.hasobject:
            return kind.__name__, (str(thing.dtype), thing.shape, thing.tobytes())
        if torch and kind in (torch.Tensor, torch.nn.Parameter):
            return "Tensor", (str(thing.dtype), tuple(thing.shape), self.bytes_of(thing))
        return "instance", self.instance(thing)

    def apart(self, thing: Any, step: str | None = None) -> bytes:
        """The digest of an object by itself, such as an element of an unordered collection."""
        walk = Walk(*self.path)
        walk.add(thing, step)
        return walk.hash.digest()

    def refuse(self, why: str, step: str | None = None) -> NoReturn:
        what, *steps = self.path if step is None else (*self.path, step)
        raise ValueError(f"{what} cannot be fingerprinted: {' > '.join(steps) or 'it'} is {why}")

    def library(self, module: str, name: str = "", step: str | None = None) -> tuple[str, ...]:
        """What counts of a library's module, or of something with this name in it."""
        if (release := release_of(module)) is None:
            self.refuse("compiled code that is not of an installed library", step)
        top = module.partition(".")[0].lstrip("_")
        pure = name not in _NOT_PURE if top == "builtins" else not _READS_FILES.fullmatch(name.rpartition(".")[2])
        if not pure or (release == PYTHON and top not in _PURE):
            self.refuse(_CHANGES, step)
        return module, name, release

    def function(self, function: types.FunctionType) -> Sequence[Any]:
        code, release = function.__code__, release_of(function.__globals__.get("__name__", ""))
        if code.co_qualname.startswith("__create_fn__."):  # made by dataclass, of fields that count with their class
            return ()
        read: dict[str, Any] = {}
        for path in self.reads(code) if release is None else ():
            read |= self.read(function.__globals__, path)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        # A cell without content, of a name that is not set yet, equals only another one.
        closure = {name: cell.cell_contents for name, cell in cells.items() if cell != types.CellType()}
        defaults = {"a default": (function.__defaults__, function.__kwdefaults__)}
        return release, code, defaults, closure, vars(function), read

    def reads(self, code: types.CodeType) -> Iterator[list[str]]:
        """The globals that code reads, with the attributes that it reads of them: ``["torch", "nn"]``."""
        steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
        for i, step in enumerate(steps):
            if step.opname == "IMPORT_NAME":
                self.refuse("an import inside a function; import it at the top", step.argval)
            elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                after = itertools.takewhile(lambda step: step.opname in _ATTRIBUTE, steps[i + 1 :])
                yield [step.argval, *(step.argval for step in after)]
            elif step.opname in _ATTRIBUTE and _READS_FILES.fullmatch(step.argval):
                self.refuse(_CHANGES, step.argval)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                yield from self.reads(constant)

    def read(self, space: dict[str, Any], path: list[str]) -> dict[str, Any]:
        """What counts of a global and its attributes, such as ``torch.nn.functional.relu``.

        Of a module of one's own, it is the part that is read. A library's module counts by its version; what was put
        into it in place of its own counts too.
        """
        value, found = space.get(path[0], getattr(builtins, path[0], None)), {}
        for step, name in zip(itertools.accumulate(path, "{}.{}".format), [*path[1:], None], strict=True):
            if not isinstance(value, types.ModuleType):
                if not found or type(value) in _PARTS or is_walked(home(value)):
                    return found | {step: value}
            elif name is None:
                self.refuse("a module, of which anything may be used; read its parts as module.part", step)
            elif not is_walked(value.__name__):
                found[step] = self.library(value.__name__, step=step)
            value = getattr(value, name or "", None)
        return found

    def class_(self, cls: type) -> Sequence[Any]:
        fields = {field.name: field for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {}
        made = {}
        for name, field in fields.items():
            defaults = [default for default in (field.default, field.default_factory) if default is not MISSING]
            made[name] = (field.init, field.compare, field.hash, field.kw_only, field.default is MISSING, *defaults)
        held = {
            name: value
            for name, value in vars(cls).items()
            if name not in _BY_PYTHON and not (name in fields and isinstance(value, types.MemberDescriptorType))
        }
        return cls.__module__, cls.__qualname__, cls.__bases__, type(cls), list(made), made, held

    def bytes_of(self, tensor: Any) -> memoryview:
        """The values of a tensor, row by row, whatever its memory layout."""
        import torch

        if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
            self.refuse(f"a {tensor.layout} tensor on {tensor.device}; only a plain tensor has values to compare")
        flat = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        return memoryview(flat.view(torch.uint8).numpy())

    def instance(self, thing: Any) -> Sequence[Any]:
        cls = type(thing)
        is_frozen = dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
        if not is_frozen or any(base.__module__ == "builtins" for base in cls.__mro__[:-1]):  # a list holds more
            self.refuse(
                f"an object of {cls.__module__}.{cls.__qualname__}, which may change unnoticed; write a function, a "
                "property or a @dataclass(frozen=True) in its place, or keep plain values, arrays and tensors"
            )
        fields = {field.name: getattr(thing, field.name, None) for field in dataclasses.fields(cls)}
        return cls, fields | getattr(thing, "__dict__", {})


def is_of_library(thing: Any) -> bool:
    """Whether an installed library defines an object under the name that the object has."""
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or is_walked(module):
        return False
    parts = name.split(".")
    return functools.reduce(lambda found, part: getattr(found, part, None), parts, sys.modules.get(module)) is thing


def is_walked(module: str) -> bool:
    """Whether the objects of a module count by their code: in the user's own modules and those of mechheads."""
    release = release_of(module)
    return release is None or release.startswith("mechheads ")


@functools.cache
def release_of(module: str) -> str | None:
    """Name and version of the library that a module belongs to; None if it is the user's own."""
    top = module.partition(".")[0]
    if top in ("", "__main__", "mechheads"):
        return f"mechheads {__version__}" if top == "mechheads" else None
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # a module without a file, made by code
        spec = None
    if spec is None:
        return None
    place = spec.origin or next(iter(spec.submodule_search_locations or ()), "")
    if {"site-packages", "dist-packages"}.isdisjoint(Path(place).parts):
        stdlib = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib"))
        return PYTHON if place in ("built-in", "frozen") or any(map(Path(place).is_relative_to, stdlib)) else None
    try:
        return f"{top} {importlib.metadata.version(top)}"
    except importlib.metadata.PackageNotFoundError:
        owners = sorted(set(importlib.metadata.packages_distributions().get(top, ())))
        return ", ".join(f"{owner} {importlib.metadata.version(owner)}" for owner in owners) or None


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
    if found := carried(module, lambda _: True):
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise ValueError(
            f"{what}: the model carries {found[0]}{more}, which may change its numbers in any way, so results with and "
            f"without it could not be distinguished. Remove it (model.model.reset_hooks() for hooks of "
            f"TransformerLens, handle.remove() for torch hooks, del module.forward), or leave {what} out"
        )
    walk = Walk(f"{what}: the model")
    walk.add((weights_fingerprint(module), structure_fingerprint(module, what)))
    return walk.hash.hexdigest()


def weights_fingerprint(module: torch.nn.Module) -> str:
    """A hash of a model's weights: 64 hexadecimal digits.

    It covers the name, shape and dtype of each parameter and buffer, and a checksum of all its values.

    >>> from mechheads.ledger.fingerprints import weights_fingerprint
    >>> len(weights_fingerprint(model.model))
    64
    """
    from mechheads.model.backends.on_disk import stored_weight

    walk = Walk("weights")
    weights = dict(module.named_parameters(remove_duplicate=False)) | dict(module.named_buffers(remove_duplicate=False))
    sums: dict[int, tuple[object, ...]] = {}
    for name, weight in sorted(weights.items()):
        if id(weight) not in sums:
            values = walk.bytes_of(stored_weight(module, weight))
            sums[id(weight)] = str(weight.dtype), tuple(weight.shape), zlib.crc32(values)  # at the speed of memory
        walk.add((name, *sums[id(weight)]))
    return walk.hash.hexdigest()


def structure_fingerprint(module: torch.nn.Module, what: str) -> str:
    """A hash of a model's modules and their settings, without weights and hooks: 64 hexadecimal digits.

    Args:
        what: as in ``model_fingerprint``.

    Raises:
        ValueError: if a module's code cannot be fingerprinted.
    """
    import torch

    walk, usual = Walk(f"{what}: the model"), set(vars(torch.nn.Module())) - {"training"}
    numbers: dict[int, int] = {}
    classes: set[type] = set()
    for name, part, new in modules_of(module):
        walk.add((name, numbers.setdefault(id(part), len(numbers)), _name_of(type(part))))
        if not new:
            continue
        own = is_walked(type(part).__module__)
        if type(part) not in classes:
            classes.add(type(part))
            walk.add(type(part) if own else _replaced_in(type(part)), name)
        kept = {} if hasattr(part, "fwd_hooks") else vars(part)  # a hook point without hooks does nothing
        for key, value in sorted(kept.items()):
            is_part = key in usual or key in _WHERE or isinstance(value, torch.nn.Module)
            moves = home(inner(value)).startswith("accelerate.")
            if not is_part and not moves and (own or _is_setting(key, value)):
                walk.add((key, _mark(walk, value, f"{name}.{key}", own)))
    for where, key, function in _replaced_beside(module):
        walk.add((where, key, function), f"{where}.{key}")
    return walk.hash.hexdigest()


def _replaced_beside(module: torch.nn.Module) -> list[tuple[str, str, Any]]:
    """The functions that others have put into the files of libraries that a model's classes come from."""
    from mechheads.model.backends.structure import namespaces_of, parts_of

    found = []
    for where, space in sorted(namespaces_of(parts_of(module)).items()):
        if not isinstance(space, dict) or where.partition(".")[0] not in _THEIR_OWN - {"mechheads"}:
            continue
        for key, value in sorted(space.items()):
            function = inner(value)
            if not isinstance(function, types.FunctionType) or _is_as_loaded(written := home(function)):
                continue
            if is_walked(written):
                found.append((where, key, value))
            elif where.startswith(_ONLY_THEIR_OWN):
                found.append((where, key, _name_of(function)))
    return found


def _is_as_loaded(module: str) -> bool:
    top = module.partition(".")[0]
    return top in _THEIR_OWN or (top in sys.stdlib_module_names and top != "__main__")


def _replaced_in(cls: type) -> list[tuple[str, str, types.FunctionType]]:
    """The functions that others have put into a library's class."""
    return [
        (base.__qualname__, key, function)
        for base in cls.__mro__
        for key, value in sorted(vars(base).items())
        for function in (value, *(getattr(value, name, None) for name in ("__func__", "fget", "func")))
        if isinstance(function, types.FunctionType) and is_walked(home(function))
    ]


def _is_setting(key: str, value: Any) -> bool:
    """Whether an attribute of a library's module counts; in private ones, the library may keep its own state."""
    known = type(value) in (int, float, str) or isinstance(value, _FUNCTIONS) or hasattr(value, "to_dict")
    return known or not key.startswith("_") or is_walked(home(value))


def _mark(walk: Walk, value: Any, step: str, own: bool) -> object:
    """What counts of a value that a module stores: of a library's object in a library's module, its class."""
    import torch

    if callable(getattr(value, "to_dict", None)):
        known = {key: part for key, part in value.to_dict().items() if key not in _WHERE}
        known["_attn_implementation"] = getattr(value, "_attn_implementation", None)
        return json.dumps(known, sort_keys=True, default=lambda part: _name_of(type(part)))
    if isinstance(value, (torch.nn.Module, torch.Tensor)) and not own:  # it counts among the modules or weights
        return None
    if isinstance(value, (list, tuple, dict)):
        parts = value.items() if isinstance(value, dict) else enumerate(value)
        return [(str(key), _mark(walk, part, f"{step}[{key}]", own)) for key, part in parts]
    try:
        return walk.apart(value, step)
    except ValueError:
        inside = inner(value)
        if own or is_walked(home(inside)):
            raise
        return _name_of(inside if isinstance(inside, _FUNCTIONS) else type(inside))


def _name_of(thing: Any) -> str:
    return f"{thing.__module__}.{thing.__qualname__} {release_of(thing.__module__)}"
