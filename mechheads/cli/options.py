"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[
    str | None,
    typer.Option(help="Hub name, Hugging Face folder or GGUF file. Default: SmolLM2-135M-Instruct, downloaded once."),
]
Device = Annotated[
    str, typer.Option(help='Device of the model: "cpu", "cuda", "mps" or "auto" (a GPU if there is one).')
]
TASKS = "syntax, common_sense, math, aba_abb, a relation, or a file: prompts or inputs with answers, BLiMP, GSM8K, ..."
_WORKERS = (
    "What computes: a number of processes, such as 4, which take several GPUs in turn; or ray:4, as many actors of Ray "
    "on this machine."
)
WorkersOption = Annotated[str, typer.Option("--workers", help=_WORKERS)]
WorkersOfFigure = Annotated[
    str, typer.Option("--workers", help=f"{_WORKERS} Not for a figure of categories, which only reads weights.")
]
Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Relations = Annotated[
    list[str] | None,
    typer.Option(help="A relation's name or a file; can be repeated. Default: all relations of the package."),
]
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
