"""The key of a sweep in a ledger: a hash of everything that decides its results and can be read off.

Any other change shows when a ledger is used again: the model and stored units must give the same numbers.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import re
import textwrap
import types
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from mechheads.io.text import file_sample
from mechheads.ledger.ledger import WITNESS, Ledger
from mechheads.metrics import name_of
from mechheads.model.backend import Backend
from mechheads.model.changes import arithmetic
from mechheads.model.core import ModelCore
from mechheads.model.on_disk import on_disk_of
from mechheads.model.proof import tolerance
from mechheads.prompts.tokens import Tokens

_BY_REPR = (
    *(types.NoneType, types.EllipsisType, bool, int, float, complex, str, bytes, range, slice, enum.Enum),
    *(torch.dtype, torch.device, np.dtype, re.Pattern),
)
_AROUND = (staticmethod, classmethod, types.MethodType, property, functools.partial, type(functools.cache(len)))
_INSIDE = ("__func__", "__self__", "fget", "fset", "func", "args", "keywords", "__wrapped__")
_BY_PYTHON = (types.MemberDescriptorType, types.GetSetDescriptorType)
_MODEL_FILES = ("config.json", "*.safetensors", "*.bin", "*.gguf")
_WITNESSES = 64
_SAMPLED = 4096
"""How many numbers of each weight count, from all of its parts."""


def mark(thing: object, what: str = "thing") -> str:
    """A hash of a metric, an intervention or a plain value: 64 hexadecimal digits, the same in every process."""
    try:
        content = repr(_content(thing, what, {}))
    except RecursionError:
        raise ValueError(f"{what} contains itself, or is nested too deeply, for a ledger to know it again") from None
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def _content(thing: Any, where: str, seen: dict[int, int]) -> object:
    """What identifies an object, as nested lists of texts; ``where`` is its place, for messages."""
    kind = type(thing)

    def inside(part: Any, step: object = None) -> object:
        return _content(part, where if step is None else f"{where} > {step}", seen)

    if isinstance(thing, _BY_REPR):
        return [kind.__qualname__, repr(thing)]
    if isinstance(thing, (torch.Tensor, np.ndarray, np.generic)):
        return _bytes(thing, where)
    if isinstance(thing, (tuple, list)):
        return [kind.__name__, *map(inside, thing)]
    if isinstance(thing, (set, frozenset)):
        return [kind.__name__, sorted(repr(inside(part)) for part in thing)]
    if isinstance(thing, Mapping):
        return [kind.__name__, sorted(repr([inside(key), inside(part, key)]) for key, part in thing.items())]
    if isinstance(thing, types.CodeType):
        return ["code", thing.co_code, thing.co_names, *map(inside, thing.co_consts)]
    if id(thing) in seen:
        return ["seen", seen[id(thing)]]
    seen[id(thing)] = len(seen)
    if isinstance(thing, _AROUND):
        return [kind.__name__, *(inside(getattr(thing, name, None)) for name in _INSIDE)]
    if isinstance(thing, types.FunctionType):
        return _function(thing, inside)
    if isinstance(thing, type) and dataclasses.is_dataclass(thing):
        return _class(thing, inside)
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        return [inside(kind), *(inside(getattr(thing, one.name), one.name) for one in dataclasses.fields(thing))]
    if isinstance(thing, types.ModuleType) or (callable(thing) and hasattr(thing, "__qualname__")):  # or compiled
        return [getattr(thing, "__module__", "module"), getattr(thing, "__qualname__", thing.__name__)]
    raise ValueError(
        f"{where} is an object of {kind.__module__}.{kind.__qualname__}, which a ledger cannot know again; keep plain "
        "values, tensors, functions or a @dataclass(frozen=True) of these in its place, or leave store out"
    )


def _bytes(values: Any, where: str) -> list[object]:
    """What identifies a tensor or an array: its dtype, its shape and its bytes, however it lies in memory."""
    if isinstance(values, torch.Tensor):
        if values.layout != torch.strided or values.is_meta or values.is_quantized:
            raise ValueError(f"{where} is a {values.layout} tensor on {values.device}; a ledger compares plain tensors")
        plain = values.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        data = plain.view(torch.uint8).numpy().tobytes()
    elif values.dtype.hasobject:
        raise ValueError(f"{where} is an array of objects; a ledger compares arrays of numbers")
    else:
        data = values.tobytes()
    return [str(values.dtype), tuple(values.shape), hashlib.sha256(data).hexdigest()]


def _function(function: types.FunctionType, inside: Any) -> list[object]:
    """What identifies a function: its source, or its code if it has none or is a lambda; for a library's, its name."""
    code, text = function.__code__, None
    if "site-packages" in Path(code.co_filename).parts:
        return [function.__module__, function.__qualname__]
    if function.__name__ != "<lambda>":
        try:
            text = textwrap.dedent(inspect.getsource(code))
        except (OSError, TypeError):
            text = None
    cells = zip(code.co_freevars, function.__closure__ or (), strict=True)
    captured = [[name, inside(cell.cell_contents, name)] for name, cell in cells if cell != types.CellType()]
    defaults = [inside(each, "a default") for each in (function.__defaults__, function.__kwdefaults__)]
    declared = {name: value for name, value in vars(function).items() if name != "__wrapped__"}
    return [function.__qualname__, text or inside(code), *defaults, captured, inside(declared)]


def _class(cls: type, inside: Any) -> list[object]:
    """What identifies a class: its name, its methods, its values, and the same of its bases."""
    parts: list[object] = [cls.__qualname__]
    for base in cls.__mro__:
        if base.__module__ not in ("builtins", "abc", "typing"):
            named = {it: value for it, value in vars(base).items() if it == "__call__" or it[:2] != "__"}
            values = sorted((it, value) for it, value in named.items() if not isinstance(value, _BY_PYTHON))
            parts += [[base.__qualname__, it, inside(value, it)] for it, value in values if it != "_abc_impl"]
    return parts


def model_mark(model: ModelCore) -> str:
    """A hash of a model's name, revision, configuration and dtype, and samples of its files or else of its weights."""
    metadata = model.provenance() | {"device": arithmetic(model.device)}
    settings = json.dumps(model.backend.configuration, sort_keys=True, default=str)
    if model.source is None:
        return mark([metadata, settings, weights_mark(model.model)], "model")
    path = Path(model.source.name_or_path)
    files = [file for name in _MODEL_FILES for file in path.glob(name)] if path.is_dir() else [path]
    return mark([metadata, settings, {file.name: file_sample(file) for file in files if file.is_file()}], "model")


def weights_mark(module: torch.nn.Module) -> str:
    """A hash of name, shape and a sample of the numbers of each weight, wherever it is."""
    samples, on_disk = [], on_disk_of(module)
    for name, weight in sorted({**dict(module.named_parameters()), **dict(module.named_buffers())}.items()):
        values = (weight if on_disk is None else on_disk.read(weight)).detach().reshape(-1)
        samples.append([name, tuple(weight.shape), values[:: max(1, len(values) // _SAMPLED)].clone()])
    return mark(samples, "weights")


def same_but_for_rounding(
    now: Float[np.ndarray, "*values"], then: Float[np.ndarray, "*values"], scale: float, backend: Backend
) -> bool:
    """Whether numbers of a model differ by no more than its rounding, as its proof allows it."""
    off, known = np.abs(now - then), ~np.isnan(then)
    return bool((off[known] <= tolerance(backend) * scale).all() and np.isnan(now[~known]).all())


def witness(model: ModelCore) -> list[float]:
    """Log-probabilities that a model gives after a few tokens, by which it is known again."""
    ids = [(7 * i + 3) % model.d_vocab for i in range(min(8, model.n_ctx))]
    with torch.no_grad():
        final = model.backend.run(torch.tensor([ids], device=model.device))
        log_probs = model.unembed(final[0, -1]).float().log_softmax(-1)
    return log_probs[:: max(1, len(log_probs) // _WITNESSES)].tolist()


def is_witness(model: ModelCore, then: list[float]) -> bool:
    """Whether a model gives the log-probabilities that ``witness`` gave."""
    now, known = np.array(witness(model)), np.array(then)
    quarter, three_quarters = np.quantile(known, (0.25, 0.75))
    return same_but_for_rounding(now, known, float(three_quarters - quarter), model.backend)


class Store:
    """The file in which an analysis stores its finished units, or None; ``metadata`` becomes part of the key."""

    def __init__(self, path: str | PathLike[str] | None, **metadata: object) -> None:
        self._path, self._metadata = path, metadata
        self._opened: list[Ledger] = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        for ledger in self._opened:
            ledger.close()

    def open(self, model: ModelCore, runs: Mapping[str, Tokens | None], **parts: object) -> Ledger | None:
        """The ledger of a sweep, found by its model, prompts and parts, such as the metric; None without a file."""
        if self._path is None:
            return None
        parts |= self._metadata
        marks = {name: mark(part, name) for name, part in parts.items()}
        prompts = {name: None if tokens is None else tokens.fingerprint() for name, tokens in runs.items()}
        metadata = {name: name_of(part) for name, part in parts.items()} | {"model": model.name, "prompts": prompts}
        ledger = Ledger(self._path, mark([model_mark(model), prompts, marks], "sweep"), metadata)
        self._opened.append(ledger)
        known = ledger.settings().get(WITNESS)
        if known is None:
            ledger.remember(WITNESS, witness(model))
        elif not is_witness(model, known):
            raise ValueError(
                f"store: {ledger.path} holds results of model {model.name!r} from when it gave other log-probabilities "
                "than now: it carries a hook, or one of its weights was changed after it was loaded. Undo this, or "
                "give another path"
            )
        return ledger


NO_STORE = Store(None)
