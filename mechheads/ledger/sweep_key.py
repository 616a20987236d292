"""The key of a sweep in a ledger, made of everything that decides its results."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike

from mechheads.ledger.fingerprints import fingerprint, model_fingerprint
from mechheads.ledger.ledger import Ledger
from mechheads.metrics.base import name_of
from mechheads.model.backends.state import arithmetic
from mechheads.model.model import Model
from mechheads.prompts.tokens import Tokens


def open_ledger(path: str | PathLike[str], model: Model, runs: Mapping[str, Tokens | None], **parts: object) -> Ledger:
    """The ledger of one sweep, identified by its model, its prompts and everything else that decides its results.

    Args:
        path: the file; created if it does not exist.
        runs: the prompts of the base run and of the source run.
        parts: the intervention, the metric, the positions and so on; each is fingerprinted.

    Raises:
        ValueError: if the model carries hooks, a part cannot be fingerprinted, or the file is not a ledger; the file is
            then not changed.
    """
    marks = {name: fingerprint(part, what=name) for name, part in parts.items()}
    prompts = {name: None if tokens is None else tokens.fingerprint() for name, tokens in runs.items()}
    whole = {**_model_marks(model), "prompts": prompts} | marks
    about = {name: name_of(part) for name, part in parts.items()} | {"model": model.name, "prompts": prompts}
    return Ledger(path, fingerprint(whole, what="sweep"), about)


def _model_marks(model: Model) -> dict[str, object]:
    """What tells a model, and the numbers that it gives here, from any other.

    Raises:
        ValueError: if the model carries hooks, which cannot be compared.
    """
    return {
        "model": model.provenance() | {"device": arithmetic(model.device)},
        "configuration": json.dumps(model.backend.configuration, sort_keys=True, default=str),
        "made of": model_fingerprint(model.model, "store"),
    }


class Store:
    """The file in which an analysis stores its finished units; a context manager that closes it.

    Args:
        path: the file; None stores nothing.
        about: further settings that identify the analysis; one that ``open`` gets too replaces it there.
    """

    def __init__(self, path: str | PathLike[str] | None, **about: object) -> None:
        self._path, self._about = path, about
        self._opened: list[Ledger] = []

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *exc: object) -> None:
        for ledger in self._opened:
            ledger.close()

    def open(self, model: Model, runs: Mapping[str, Tokens | None], **parts: object) -> Ledger | None:
        """The ledger of one sweep of the analysis, or None if nothing is stored; see ``open_ledger``."""
        if self._path is None:
            return None
        self._opened.append(open_ledger(self._path, model, runs, **parts | self._about))
        return self._opened[-1]


NO_STORE = Store(None)
