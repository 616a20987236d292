"""What benchmarks of taught models share: teaching once and keeping it, what is asked, and what is written."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import mechheads as mh
from benchmarks.refusal import PLACE, count, draw
from benchmarks.teaching.training import Round, teach_refusal
from mechheads.heads import HeadId
from mechheads.model.deltas import Delta
from mechheads.safety import load_requests


@dataclass(frozen=True)
class Given:
    """What the command line says.

    Attributes:
        out: the file of the results; ``deltas``: the folder for what was taught.
        asked: the held-back requests, their look-alikes, and some requests of public files, by name.
        found: the results so far.
    """

    out: Path
    deltas: Path
    asked: dict[str, Sequence[str]]
    found: dict[str, Any]

    @classmethod
    def read(cls, description: str | None) -> Given:
        parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--out", type=Path, default=PLACE, help="what it already has is not measured again")
        parser.add_argument("--deltas", type=Path, default=Path("taught"), help="a folder for what was taught")
        parser.add_argument("--unsafe", type=Path, nargs="*", default=[], help="files with requests to refuse")
        parser.add_argument("--safe", type=Path, nargs="*", default=[], help="files with requests to answer")
        given = parser.parse_args()
        own = {name: list(load_requests(name, "test").texts) for name in ("harmful", "harmless")}
        public = {
            path.stem: draw(path, unsafe)
            for unsafe, paths in ((True, given.unsafe), (False, given.safe))
            for path in paths
        }
        found = json.loads(given.out.read_text()) if given.out.exists() else {}
        return cls(given.out, given.deltas, own | public, found)

    def counts(self, model: mh.Model) -> dict[str, dict[str, int]]:
        """How many answers to each set have each verdict, in the chat template."""
        return {name: count(model, texts, "chat") for name, texts in self.asked.items()}

    def write(self, new: dict[str, Any]) -> None:
        """Write all results, and print the new ones."""
        print(json.dumps(new, indent=1), flush=True)
        self.out.write_text(json.dumps(self.found, indent=1) + "\n")


def taught(
    path: Path,
    heads: Sequence[HeadId],
    by: Round,
    *,
    requests: tuple[Sequence[str], Sequence[str]] | None = None,
    start: Delta | None = None,
) -> Delta:
    """The delta in a file; if there is no file yet, one is taught in float32 and saved.

    The models of the package were taught in bfloat16, which a processor without its arithmetic only emulates. One round
    takes a quarter of an hour or more.
    """
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        teach_refusal(heads, requests, by=by, start=start, dtype=torch.float32).save(path)
    found = Delta.load(path)
    if found.heads != tuple(sorted(heads)):
        raise SystemExit(f"{path} has other heads; delete it, or name another folder with --deltas")
    return found
