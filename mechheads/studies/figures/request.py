"""What a figure shows: its models, data, settings and libraries, in a form that a file can repeat."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mechheads._version import __version__
from mechheads.files.checksums import file_sha256, read_sealed_json, sealed_json
from mechheads.files.replacing import write_file

ModelNames = str | Path | Sequence[str | Path] | None
"""Models by name, as ``mh.load`` takes them; a hub name may end in ``@`` and a revision."""
_FORMAT = "mechheads figure 1"
_LIBRARIES = ("transformer-lens", "transformers", "torch")


@dataclass(frozen=True)
class FigureRequest:
    """What a figure shows.

    Attributes:
        figure: "categories", "safety" or "roles".
        models: the models as they were named, local ones by their full path.
        data: the data sets of each model's panels, by their short names; "" if a model has one panel.
        checksums: a checksum of each data set that does not come with the package, by its name or full path.
        settings: the other arguments of the figure's function.
        versions: the versions of the libraries.
    """

    figure: str
    models: tuple[str, ...]
    data: tuple[str, ...]
    checksums: dict[str, str]
    settings: dict[str, Any]
    versions: dict[str, str]

    @classmethod
    def of(
        cls,
        figure: str,
        models: Sequence[str],
        settings: Mapping[str, Any],
        *,
        data: Sequence[str] = ("",),
        checksums: Mapping[str, str] | None = None,
    ) -> FigureRequest:
        """A request with the installed versions."""
        versions = {"mechheads": __version__} | {name: importlib.metadata.version(name) for name in _LIBRARIES}
        return cls(figure, tuple(models), tuple(data), dict(checksums or {}), dict(settings), versions)

    @property
    def panels(self) -> list[tuple[str, str]]:
        """Model and data set of each panel."""
        return [(model, data) for model in self.models for data in self.data]

    def differences(self, other: FigureRequest) -> list[str]:
        """What another request has that this one does not, one line for each."""
        mine, its = (_flat(asdict(request)) for request in (self, other))
        return [
            f"{name}: {_shown(its.get(name))} instead of {_shown(mine.get(name))}"
            for name in dict.fromkeys([*mine, *its])
            if mine.get(name) != its.get(name)
        ]


def write_request(path: Path, request: FigureRequest, panels: Sequence[Mapping[str, Any]]) -> None:
    """Write a request, and what is known of each panel, as JSON, completely or not at all."""
    content = {"format": _FORMAT, **asdict(request), "panels": list(panels)}
    write_file(path, sealed_json(content) + "\n")


def read_request(path: Path) -> tuple[FigureRequest, list[dict[str, Any]]]:
    """A request and its panels, from a file of ``write_request``.

    Raises:
        ValueError: if there is no such file, or it is not the file of a figure.
    """
    if not path.is_file():
        raise ValueError(f"there is no file {str(path)!r}; give the figure.json of a figure")
    content = read_sealed_json(path)
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise ValueError(f"{path} is not the file of a figure, or was written by another version of mechheads")
    try:
        panels = content.pop("panels")
        models, data = tuple(content.pop("models")), tuple(content.pop("data"))
        return FigureRequest(models=models, data=data, **content), panels
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def model_names(models: ModelNames, default: str) -> list[str]:
    """Names of models, local ones as full paths.

    Raises:
        ValueError: if there are none, or one is repeated or not a name.
    """
    listed: list[Any] = [default] if models is None else [models] if isinstance(models, (str, Path)) else list(models)
    for model in listed:
        if not isinstance(model, (str, Path)):
            raise ValueError(
                f"models contains a {type(model).__name__}; give names, folders or GGUF files: models are loaded one "
                "after the other"
            )
    names = [full_path(model) for model in listed]
    check_different(names, "models")
    return names


def data_names(data: str | Path | Sequence[str | Path], argument: str) -> list[str]:
    """Names of data sets, files as full paths.

    Raises:
        ValueError: if there are none, or one is repeated.
    """
    names = [full_path(one) for one in ([data] if isinstance(data, (str, Path)) else data)]
    check_different(names, argument)
    return names


def full_path(name: str | Path) -> str:
    """The full path of a file or folder that exists, or the name as it is."""
    path = Path(name).expanduser()
    return str(path.resolve()) if os.path.exists(path) else str(name)


def check_different(names: Sequence[str], argument: str) -> None:
    """Check that there are names and that none is repeated.

    Raises:
        ValueError: naming the argument.
    """
    if not names:
        raise ValueError(f"{argument} is empty; give at least one")
    if twice := [name for name in dict.fromkeys(names) if list(names).count(name) > 1]:
        raise ValueError(f"{argument} contains {twice[0]!r} twice; give each once")


def split_revision(name: str) -> tuple[str, str | None]:
    """A hub name and its revision, if it has one.

    >>> split_revision("EleutherAI/pythia-70m@step3000"), split_revision("gpt2")
    (('EleutherAI/pythia-70m', 'step3000'), ('gpt2', None))
    """
    if os.path.exists(name) or "@" not in name:
        return name, None
    base, _, revision = name.rpartition("@")
    return base, revision


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Names for people: a local file or folder by its own name, unless two are alike."""
    short = {name: _short(name) for name in names}
    return {name: own if list(short.values()).count(own) == 1 else name for name, own in short.items()}


def file_checksum(path: str | Path) -> str:
    """A short checksum of a file."""
    return file_sha256(Path(path))[:16]


def text_checksum(texts: Iterable[str]) -> str:
    """A short checksum of texts."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()[:16]


def _short(name: str) -> str:
    path = Path(name)
    if not path.is_absolute():
        return name
    return path.name if path.is_dir() else path.stem


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    """The leaves of nested dicts, by their dotted names."""
    if not isinstance(value, dict):
        return {name: list(value) if isinstance(value, tuple) else value}
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{name}.{key}" if name else key).items()}


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)
