"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

ModelName = Annotated[
    str | None,
    typer.Option(help="Hub name, Hugging Face folder or GGUF file. Default: SmolLM2-135M-Instruct, downloaded once."),
]
Device = Annotated[
    str, typer.Option(help='Device of the model: "cpu", "cuda", "mps" or "auto" (CUDA if there is any, else the CPU).')
]
TASKS = "syntax, common_sense, math, aba_abb, a relation, or a file: prompts or inputs with answers, BLiMP, GSM8K, ..."


def _workers(asked: str) -> int | str | None:
    """What ``--workers`` asks for; None for 1, which is this process."""
    from mechheads.limits import check_workers

    given = int(asked) if asked.isdecimal() else asked
    if given == 1:
        return None
    try:
        check_workers(given)
    except (ValueError, ImportError) as error:
        raise typer.BadParameter(str(error)) from error
    return given


_WORKERS = (
    "What computes: a number of workers on this machine, such as 4, each with a GPU if --device is one; or the address "
    'of a Ray cluster, such as 10.0.0.5:6379, or "auto" for the one that runs here. 1 is this process.'
)
_TAKEN: dict[str, Any] = {"parser": _workers, "metavar": "N|ADDRESS"}
WorkersOption = Annotated[Any, typer.Option("--workers", help=_WORKERS, **_TAKEN)]
WorkersOfFigure = Annotated[
    Any,
    typer.Option("--workers", help=f"{_WORKERS} Not for a figure of categories, which only reads weights.", **_TAKEN),
]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Relations = Annotated[
    list[str] | None,
    typer.Option(help="A relation's name or a file; can be repeated. Default: all relations of the package."),
]
Texts = Annotated[
    Path | None, typer.Option(help="A file of texts with empty lines between them. Default: prose of the package.")
]
Pairs = Annotated[
    Path | None,
    typer.Option(
        help="Your own pairs to patch: CSV, JSON, JSONL or Parquet with the columns clean, corrupted and, if you have "
        "them, answer, wrong and cluster. Default: capitals."
    ),
]
Requests = Annotated[
    str | None,
    typer.Option(
        "--requests", help="JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file, in place of the package's."
    ),
]
Only = Annotated[
    str | None,
    typer.Option(
        help="Parts to do, with commas between: patching, text, labels, weights, causes, safety, roles. Default: all."
    ),
]
Skip = Annotated[str | None, typer.Option(help="Parts to leave out, such as safety,roles.")]
Rule = Annotated[
    str, typer.Option(help='What gives a label: "null", more hits than shuffled targets; "maps", phi >= 0.15.')
]
Source = Annotated[
    str,
    typer.Option(
        help='The form in which heads read a token: "embedding", "first_mlp" (as in the paper), "carried", or '
        '"all" for the best of the three.'
    ),
]
MinPairs = Annotated[int, typer.Option(help="Relations with fewer single-token pairs are skipped.")]
OnDisk = Annotated[bool, typer.Option(help="Read weights from safetensors layer by layer, without loading the model.")]
