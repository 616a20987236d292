"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

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


Out = Annotated[Path, typer.Option(help="Folder for the results.")]
Relations = Annotated[
    list[str] | None,
    typer.Option(help="A relation's name or a file; can be repeated. Default: all relations of the package."),
]


@dataclass(frozen=True)
class Machine:
    """What computes."""

    device: Device = "auto"
    workers: Annotated[
        Any,
        typer.Option(
            parser=_workers,
            metavar="N|ADDRESS",
            help="What computes: a number of workers on this machine, such as 4, each with a GPU if --device is one; "
            'or the address of a Ray cluster, such as 10.0.0.5:6379, or "auto" for the one that runs here. 1 is this '
            "process.",
        ),
    ] = "1"


@dataclass(frozen=True)
class Question:
    """What an atlas asks, in place of the questions of the package."""

    pairs: Annotated[
        Path | None,
        typer.Option(
            help="Your own pairs to patch: CSV, JSON, JSONL or Parquet with the columns clean, corrupted and, if you "
            "have them, answer, wrong and cluster. Default: capitals."
        ),
    ] = None
    relations: Relations = None
    requests: Annotated[
        str | None,
        typer.Option(help="JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file, in place of the package's."),
    ] = None
    task: Annotated[str | None, typer.Option(help=f"Default: naming capitals. Or: {TASKS}")] = None
    texts: Annotated[
        Path | None, typer.Option(help="A file of texts with empty lines between them. Default: prose of the package.")
    ] = None


@dataclass(frozen=True)
class Labelling:
    """How heads are labelled."""

    relations: Relations = None
    rule: Annotated[
        str, typer.Option(help='What gives a label: "null", more hits than shuffled targets; "maps", phi >= 0.15.')
    ] = "null"
    source: Annotated[
        str,
        typer.Option(
            help='The form in which heads read a token: "embedding", "first_mlp" (as in the paper), "carried", or '
            '"all" for the best of the three.'
        ),
    ] = "all"
    min_pairs: Annotated[int, typer.Option(help="Relations with fewer single-token pairs are skipped.")] = 30
    on_disk: Annotated[
        bool, typer.Option(help="Read weights from safetensors layer by layer, without loading the model.")
    ] = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command in which each parameter that is a dataclass of options stands for these options.

    >>> from mechheads.cli.options import Machine, grouped
    >>> def command(machine: Machine, quick: bool = False) -> None:
    ...     print(machine.device, quick)
    >>> list(inspect.signature(grouped(command)).parameters)
    ['device', 'workers', 'quick']
    >>> grouped(command)(device="cpu", workers=None, quick=True)
    cpu True
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, Any] = {}
    hints = get_type_hints(command, include_extras=True)
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if isinstance(hint, type) and is_dataclass(hint):
            groups[parameter.name] = hint
            of = get_type_hints(hint, include_extras=True)
            options = inspect.signature(hint).parameters
            parameters += [option.replace(annotation=of[name]) for name, option in options.items()]
        else:
            parameters.append(parameter.replace(annotation=hint))

    def run(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{option: given.pop(option) for option in inspect.signature(group).parameters})
        command(**given)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    vars(run)["__signature__"] = inspect.Signature(parameters)
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run
