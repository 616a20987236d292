"""A round of teaching a model to refuse, kept in a file: one takes a quarter of an hour or more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from mechheads.heads import HeadId
from mechheads.model.deltas import Delta
from mechheads.safety.answers.teaching import Round, teach_refusal


def taught(
    path: Path,
    heads: Sequence[HeadId],
    by: Round,
    *,
    requests: tuple[Sequence[str], Sequence[str]] | None = None,
    start: Delta | None = None,
) -> Delta:
    """The delta in a file; if there is no file yet, one is taught in float32 and saved.

    The models of the package were taught in bfloat16, which a processor without its arithmetic only emulates.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        teach_refusal(heads, requests, by=by, start=start, dtype=torch.float32).save(path)
    found = Delta.load(path)
    if found.heads != tuple(sorted(heads)):
        raise SystemExit(f"{path} has other heads; delete it, or name another folder with --deltas")
    return found
