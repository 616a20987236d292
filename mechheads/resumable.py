"""What tells one sweep's results from another's, so that a ledger never gives back the wrong ones."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike

from mechheads.fingerprints import fingerprint, model_fingerprint
from mechheads.metrics import name_of
from mechheads.model import Model
from mechheads.store import Ledger
from mechheads.tokens import Tokens


def open_ledger(path: str | PathLike[str], model: Model, runs: Mapping[str, Tokens | None], **parts: object) -> Ledger:
    """The ledger of a sweep that is told apart by its model, its prompts and all else that decides its numbers.

    Args:
        path: the file, made if it is not there.
        runs: the prompts of the base run and of the other one.
        parts: the intervention, the metric, the positions and so on, each fingerprinted by what it is and holds.

    Raises:
        ValueError: if the model carries hooks, a part cannot be fingerprinted, or the file is no ledger; the file then
            stays as it is.
    """
    marks = {name: fingerprint(part, what=name) for name, part in parts.items()}
    prompts = {name: None if tokens is None else tokens.fingerprint() for name, tokens in runs.items()}
    whole = {
        "model": model.provenance(),
        "configuration": json.dumps(model.backend.configuration, sort_keys=True, default=str),
        "made of": model_fingerprint(model.model, "store"),
        "prompts": prompts,
    } | marks
    about = {name: name_of(part) for name, part in parts.items()} | {"model": model.name, "prompts": prompts}
    return Ledger(path, fingerprint(whole, what="sweep"), about)
