"""An analysis as a file, to be run somewhere else: JSON, and tensors in a safetensors file next to it.

The file names functions and classes, and holds no code: whoever reads it imports them. A file grants itself nothing. It
may name interventions, metrics, prompts and the like of mechheads; modules of others, and a model that brings code of
its own, only if the reader allows them.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mechheads._version import __version__
from mechheads.files.checksums import file_sha256, read_sealed_json, sealed_json
from mechheads.files.replacing import write_file
from mechheads.files.tensors import TensorFile
from mechheads.heads import HeadId
from mechheads.limits import Settings, current, settings
from mechheads.model.model import Model
from mechheads.model.sources.source import Source

_FORMAT = "mechheads analysis 1"
_FIELDS = {"format", "mechheads", "function", "model", "arguments", "seed"}
_CHATS = ("date", "control_tokens")
"""Settings that say how chats are read; a file has those that were set."""
_TENSORS = TensorFile("mechheads analysis tensors 1", "{path} does not hold an analysis' tensors", ())
_SPLIT = ("model", "workers", "store", "budget", "progress", "seed")
"""Arguments that are not of the analysis itself: they say how it runs."""
_NAMES = ("requests", "harmful", "harmless", "relations", "texts")
"""Arguments that may be a name or a file."""
_FIELDS_OF_NAMES = ("rivals",)
"""Fields of relations that may be a name or a file."""
_OPEN = (
    "behaviour",
    "engine",
    "gating",
    "heads",
    "interventions",
    "labels",
    "metrics",
    "patching",
    "prompts",
    "safety",
)
"""The parts of mechheads of which a file may make things. Others open files, start processes or connect to machines."""


@dataclass(frozen=True)
class Analysis:
    """A function of mechheads, its arguments and the source of its model.

    Attributes:
        function: such as ``mh.activation_patch``.
        source: what loads the model.
        arguments: all arguments but the model, by name.
        seed: as in ``mh.settings``.
        chats: how chats are read: ``date`` and ``control_tokens`` of ``mh.settings``, as far as they were set.
    """

    function: Callable[..., Any]
    source: Source
    arguments: Mapping[str, Any]
    seed: int
    chats: Mapping[str, Any] = field(default_factory=dict)


def write_analysis(path: str | os.PathLike[str], function: Callable[..., Any], model: Model, **arguments: Any) -> Path:
    """Write an analysis to a file, with the seed and the date of ``mh.settings``, for ``mechheads run``.

    Args:
        path: a JSON file; tensors go into a safetensors file of the same name.
        function: a function of mechheads whose finished units a ledger keeps, such as ``mh.activation_patch``.
        model: the model, from ``mh.load``.
        arguments: the other arguments, by name.

    Returns:
        The path of the JSON file.

    Raises:
        ValueError: if the function is another one, the model was not loaded by ``mh.load``, or an argument has no form
            in a file. Interventions and metrics must be defined at the top of a module that can be imported.

    >>> import tempfile
    >>> from pathlib import Path
    >>> path = Path(tempfile.mkdtemp()) / "zero.json"
    >>> written = mh.scale.write_analysis(path, mh.ablate, model, prompts=["The capital of France is"], heads=["L23H4"])
    >>> mh.scale.read_analysis(written).arguments["heads"]
    ['L23H4']
    """
    path = Path(path)
    _check_function(function)
    known = inspect.signature(function).parameters
    if wrong := [name for name in arguments if name not in known or name in _SPLIT]:
        allowed = ", ".join(name for name in known if name not in _SPLIT)
        raise ValueError(f"{wrong[0]} is not an argument of the analysis itself; choose from {allowed}")
    if model.source is None:
        raise ValueError(f"model {model.name!r} was made by mh.wrap, so no file can name it; load it with mh.load")
    tensors: dict[str, Tensor] = {}
    written = {
        "format": _FORMAT,
        "mechheads": __version__,
        "function": _name(function),
        "model": _encode(model.source, tensors, "model"),
        "arguments": {name: _encode(value, tensors, name) for name, value in arguments.items()},
        "seed": current().seed,
    }
    chats = {name: getattr(current(), name) for name in _CHATS}
    if chats := {name: value for name, value in chats.items() if value != getattr(Settings, name)}:
        written["chats"] = chats
    if tensors:
        _TENSORS.write(beside := path.with_suffix(".safetensors"), tensors, {})
        written["tensors"] = file_sha256(beside)
    return write_file(path, sealed_json(written))


def read_analysis(
    path: str | os.PathLike[str], allow: Collection[str] = (), *, trust_remote_code: bool = False
) -> Analysis:
    """Read an analysis that ``write_analysis`` wrote.

    Args:
        allow: modules besides mechheads from which it may take functions and classes; they are imported.
        trust_remote_code: whether the model may run code that comes with it, if the file asks for this.

    Raises:
        ValueError: if the file is not an analysis, or asks for something that is not allowed or does not exist.
    """
    path = Path(path)
    found = read_sealed_json(path)
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError(f"{path} is not an analysis; write one with mh.scale.write_analysis")
    if wrong := sorted(set(found) - {"tensors", "chats"} ^ _FIELDS):
        raise ValueError(f"{path} is damaged: {wrong[0]!r} is unknown or missing; write it again")
    reader = _Reader(path, _tensors_of(path, found.get("tensors")), {"mechheads", *allow})
    try:
        return _analysis(found, reader, trust_remote_code)
    except (AttributeError, KeyError, RecursionError, TypeError) as error:
        raise ValueError(
            f"{path} is not an analysis as mh.scale.write_analysis writes it: {type(error).__name__}: {error}"
        ) from error


def _analysis(found: Mapping[str, Any], reader: _Reader, trust_remote_code: bool) -> Analysis:
    function = reader.named(found["function"])
    _check_function(function)
    if wrong := [name for name in found["arguments"] if name in _SPLIT]:
        raise ValueError(
            f"{reader.path} sets {wrong[0]}, which only who runs an analysis may set; take it out of the file"
        )
    arguments = {name: reader.decode(value) for name, value in found["arguments"].items()}
    inspect.signature(function).bind_partial(**arguments)
    _check_names(reader.path, arguments)
    if isinstance(seed := found["seed"], bool) or not isinstance(seed, int):
        raise ValueError(f"{reader.path} has the seed {seed!r}; it must be a whole number")
    chats = found.get("chats", {})
    if not isinstance(chats, dict) or set(chats) - set(_CHATS):
        raise ValueError(f"{reader.path} reads chats by {chats!r}; it may set {' and '.join(_CHATS)}")
    settings(**chats)  # says what is wrong with them
    return Analysis(function, _source(found["model"], reader, trust_remote_code), arguments, seed, chats)


def _check_names(path: Path, arguments: Mapping[str, Any], names: Collection[str] = _NAMES) -> None:
    """Check that nothing that may be a name is the name of a file, which would be read then."""
    several = ("relations", *_FIELDS_OF_NAMES)
    for name in names:
        given = arguments.get(name)
        for one in given if isinstance(given, (list, tuple, dict)) and name in several else [given]:
            if isinstance(one, str) and os.path.isfile(Path(one).expanduser()):
                raise ValueError(
                    f"{path} asks to read the file {one!r} as {name}; write the analysis with what the file holds, as "
                    "mh.safety.open_requests or mh.labels.load_relations give it"
                )


def _tensors_of(path: Path, wanted: str | None) -> dict[str, Tensor]:
    """The tensors next to a file, which says the hash that they must have."""
    beside = path.with_suffix(".safetensors")
    if wanted is None:
        return {}
    tensors, _ = _TENSORS.read(beside)
    if file_sha256(beside) != wanted:
        raise ValueError(f"{beside} holds the tensors of another analysis than {path}; copy both files together")
    return tensors


def _source(written: Any, reader: _Reader, trust_remote_code: bool) -> Source:
    """What loads the model of a file."""
    name, fields = written["$made"] if isinstance(written, dict) and "$made" in written else (None, None)
    if name != _name(Source):
        raise ValueError(f"{reader.path} does not say which model it is of; write it with mh.scale.write_analysis")
    source = Source(**reader.decode(fields))
    if source.trust_remote_code and not trust_remote_code:
        raise ValueError(
            f"{reader.path} asks to run code that comes with the model {source.name_or_path!r}; if you trust this "
            "code, allow it: --trust-remote-code, or read_analysis(..., trust_remote_code=True)"
        )
    return source


def _check_function(function: Any) -> None:
    if not getattr(function, "keeps_units", False) or not function.__module__.startswith("mechheads."):
        raise ValueError(
            f"function is {function!r}; give an analysis of mechheads whose finished units a ledger keeps, such as "
            "mh.sweep, mh.safety_heads or mh.fit_gates"
        )


def _name(thing: Any) -> str:
    return f"{thing.__module__}:{thing.__qualname__}"


def _encode(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """A value as JSON; tensors are put aside. A dict with one key that begins with "$" stands for something else."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, HeadId):
        return {"$head": str(value)}
    if isinstance(value, torch.dtype):
        return {"$dtype": str(value).removeprefix("torch.")}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (Tensor, np.ndarray)):
        tensors[key := f"{where} {len(tensors)}"] = torch.as_tensor(value).detach().cpu().contiguous()
        return {"$array" if isinstance(value, np.ndarray) else "$tensor": key}
    if isinstance(value, tuple):
        return {"$tuple": [_encode(one, tensors, where) for one in value]}
    if isinstance(value, list):
        return [_encode(one, tensors, where) for one in value]
    if isinstance(value, dict) and all(isinstance(key, str) and not key.startswith("$") for key in value):
        return {key: _encode(one, tensors, where) for key, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name) for each in dataclasses.fields(value) if each.init}
        return {"$made": [_name(_importable(type(value), where)), _encode(fields, tensors, where)]}
    if inspect.isfunction(value):
        return {"$function": _name(_importable(value, where))}
    raise ValueError(
        f"{where} is {value!r}, which has no form in a file; give numbers, texts, lists or frozen dataclasses"
    )


def _importable(thing: Any, where: str) -> Any:
    module = importlib.import_module(thing.__module__) if thing.__module__ != "__main__" else None
    found: Any = module
    for part in thing.__qualname__.split("."):
        found = getattr(found, part, None)
    if found is not thing:
        raise ValueError(
            f"{where}: {thing.__qualname__} cannot be imported by its name; define it in a file of its own"
        )
    return thing


@dataclass(frozen=True)
class _Reader:
    """Reads the values of one file."""

    path: Path
    tensors: Mapping[str, Tensor]
    allowed: Collection[str]

    def named(self, name: str) -> Any:
        """The function or class with this name."""
        module, _, inside = name.partition(":")
        package, _, rest = module.partition(".")
        if package == "mechheads" and module not in self.allowed and rest.partition(".")[0] not in _OPEN:
            raise ValueError(f"{self.path} takes {inside} from {module}, of which a file may not make anything")
        if package not in self.allowed and module not in self.allowed:
            raise ValueError(
                f"{self.path} takes {inside} from the module {module}, which is not part of mechheads; if you trust "
                f"it, allow it: --allow {module}"
            )
        try:
            found = importlib.import_module(module)
            for part in inside.split("."):
                found = getattr(found, part)
        except (ImportError, AttributeError) as error:
            raise ValueError(f"{self.path} takes {inside} from the module {module}: {error}") from error
        if (getattr(found, "__module__", None), getattr(found, "__qualname__", None)) != (module, inside):
            raise ValueError(f"{self.path} takes {inside} from the module {module}, which only imports it")
        return found

    def decode(self, value: Any) -> Any:
        """The value that ``_encode`` encoded."""
        if isinstance(value, list):
            return [self.decode(one) for one in value]
        if not isinstance(value, dict):
            return value
        (kind, inside), *others = value.items() if value else [("", None)]
        if others or not kind.startswith("$"):
            return {key: self.decode(one) for key, one in value.items()}
        made: dict[str, Callable[[Any], Any]] = {
            "$head": HeadId.parse,
            "$dtype": self._dtype,
            "$tensor": lambda key: self.tensors[key],
            "$array": lambda key: self.tensors[key].numpy(),
            "$tuple": lambda items: tuple(map(self.decode, items)),
            "$made": lambda both: self._made(*both),
            "$function": self.named,
        }
        if kind not in made:
            raise ValueError(f"{self.path} has a value of kind {kind!r}, which this mechheads does not know")
        return made[kind](inside)

    def _dtype(self, name: str) -> torch.dtype:
        if not isinstance(found := getattr(torch, name, None), torch.dtype):
            raise ValueError(f"{self.path} has the dtype {name!r}, which torch does not know")
        return found

    def _made(self, name: str, fields: Any) -> Any:
        cls = self.named(name)
        if not (isinstance(cls, type) and dataclasses.is_dataclass(cls)):
            raise ValueError(f"{self.path} makes a {name}, which is not a dataclass")
        fields = self.decode(fields)
        _check_names(self.path, fields, _FIELDS_OF_NAMES)
        return cls(**fields)
