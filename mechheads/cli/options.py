"""Options that commands share, values checked before anything is imported or computed, and errors in a sentence."""

from __future__ import annotations

import errno
import inspect
import os
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from mechheads.data import names

_OTHER_NAMES = {
    "model": ("name_or_path", "models"),
}
"""The names that functions have for an option besides its own."""
_NOT_HERE = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM)
"""The errors of a folder that another folder may not have."""
_PYTHON = re.compile(r"\bmh\.\w|\b[a-z_]+=[^\s=]|\w\(")
"""What only Python takes: a name of the package, a keyword argument, a call."""


class Command(TyperCommand):
    """A command that tells errors in a sentence: of what was given, of files and folders, of memory."""

    def get_short_help_str(self, limit: int = 0) -> str:
        return super().get_short_help_str(limit=200)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as stop:
            typer.echo(str(stop) or "Interrupted before there was a result.", err=True)
            raise typer.Exit(130) from stop
        except Exception as error:
            if not _is_told(error):
                raise
            options = {param.name: param.opts[0] for param in self.params if param.opts[0].startswith("--")}
            typer.echo(f"Error: {in_options(_sentence(error, '--out' in options.values()), options)}", err=True)
            raise typer.Exit(1) from error


def _is_told(error: Exception) -> bool:
    """Whether an error is about what was given or about the machine; anything else is a mistake of the package."""
    if isinstance(error, (typer.Exit, typer.Abort)) or getattr(error, "errno", None) == errno.EPIPE:
        return False
    kinds = (ValueError, OSError, ImportError, MemoryError, sqlite3.Error)
    return isinstance(error, kinds) or _is_out_of_memory(error) or _is_raised_here(error)


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"


def _is_raised_here(error: Exception) -> bool:
    """Whether a RuntimeError is a message of the package, and not of a library below it."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    home = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__"))
    return type(error) is RuntimeError and home.split(".")[0] == "mechheads"


def _sentence(error: Exception, has_out: bool) -> str:
    """What an error says, in one line."""
    text = " ".join(str(error).split()) or type(error).__name__
    if _is_out_of_memory(error):
        return f"memory ran out ({text})"
    if isinstance(error, sqlite3.Error):
        return f"the ledger cannot be read or written: {text}"
    if not isinstance(error, OSError) or error.errno is None:
        return text
    what = f"{error.filename}: " if error.filename else ""
    reason = (error.strerror or text)[0].lower() + (error.strerror or text)[1:]
    elsewhere = "; give another folder with --out" if has_out and error.errno in _NOT_HERE else ""
    return f"{what}{reason}{elsewhere}"


def in_options(text: str, options: Mapping[str, str]) -> str:
    """A message of a function in the words of a command: with options for arguments, and no advice for Python alone."""
    known = {other: option for name, option in options.items() for other in (name, *_OTHER_NAMES.get(name, ()))}
    if not known:
        return text
    names = "|".join(sorted(known, key=len, reverse=True))
    unmistakable = "|".join(name for name in known if "_" in name) or "$^"
    text = re.sub(
        rf"(?<![\w.(-])({names})=(?:\"([^\"]*)\"|'([^']*)'|([\w.+-]+))",
        lambda found: f"{known[found[1]]} {''.join(filter(None, found.groups()[1:]))}",
        text,
    )
    before, after = (
        r"^|(?<=[;.:] )|(?<=\bleave )|(?<=\bwithout )",
        r" (?:is|are|has|contains|leave|out)\b|: |[ ,]'|[.,;]|$",
    )
    for told in (rf"(?:{before})({names})(?={after})", rf"\b({unmistakable})\b"):
        text = re.sub(told, lambda found: known[found[1]], text)
    first, *advice = re.split(r"(?<=[;.]) ", text)
    taken = [part for part in advice if not _PYTHON.search(part)]
    return " ".join([first, *taken]).rstrip(" ;,:.") if len(taken) < len(advice) else text


def fail(wrong: str, given: object, names: Sequence[str] = ()) -> typer.BadParameter:
    """The error of an option's value; it names the one that may be meant."""
    from mechheads.messages.arguments import did_you_mean

    return typer.BadParameter(f"{wrong}.{did_you_mean(given, names)}".removesuffix("."))


Check = Callable[[Any], Any]
PARTS = ("patching", "text", "labels", "causes", "safety", "roles")
RULES = ("null", "maps")
SOURCES = ("embedding", "first_mlp", "carried", "all")
INTERVENTIONS = ("patch", "zero", "mean", "resample", "uniform", "undifferentiated", "scaling")
REQUESTS = ("harmful", "harmless", "teaching_harmful", "teaching_harmless")
REQUESTS += ("JailbreakBench", "MaliciousInstruct", "AdvBench", "XSTest")
_DEVICE = re.compile(r"auto|cpu|mps|(cuda|xpu)(:\d+)?")
_SHOWN = 8
"""So many names are listed in a message."""


def one_of(known: Sequence[str]) -> Check:
    """A check of a value that is one of some names."""

    def check(given: Any) -> Any:
        if given is not None and given not in known:
            raise fail(f"{given!r} is not one of {', '.join(known)}", given, known)
        return given

    return check


def name_or_file(what: str, known: Callable[[], Sequence[str]]) -> Check:
    """A check of a value that is one of some names, or a file that is there."""

    def check(given: Any) -> Any:
        if given is not None and given not in known() and not Path(given).expanduser().exists():
            listed = f" ({', '.join(known())})" if len(known()) <= _SHOWN else ""
            raise fail(f"{given!r} is neither a file nor the name of {what}{listed}", given, known())
        return given

    return check


def several(help: str, check: Check | None = None) -> Any:
    """An option that takes several values: with commas between them, or given several times, or both."""

    def split(given: list[str] | None) -> list[str] | None:
        if not given:
            return None
        parts = [[one] if Path(one).exists() else one.split(",") for one in given]
        found = [part.strip() for of_one in parts for part in of_one if part.strip()]
        if not found:
            raise fail("it names nothing", None)
        return found if check is None else [check(part) for part in found]

    return typer.Option(help=f"{help} Several: with commas, or the option again.", metavar="A,B,...", callback=split)


def _device(given: str) -> str:
    if not _DEVICE.fullmatch(given):
        raise fail(f'{given!r} is no device; choose "cpu", "cuda", "cuda:1", "mps" or "auto"', given)
    return given


def model_name(given: str | None) -> str | None:
    if given and not os.path.exists(os.path.expanduser(given)) and (given[0] in "./~" or given.endswith(".gguf")):
        raise fail(f"there is no file or folder {given!r}", given)
    return given


def a_file(given: Path | list[Path] | None) -> Any:
    """One or several files that are there."""
    for file in given if isinstance(given, list) else [given]:
        if file is not None and not file.expanduser().is_file():
            raise fail(f"there is no file {str(file)!r}", given)
    return given


def number(help: str, least: int) -> Any:
    """An option that takes a number that is not too small."""

    def check(given: int | None) -> int | None:
        if given is not None and given < least:
            raise fail(f"{given} is too small; give {least} or more", given)
        return given

    return typer.Option(help=help, callback=check)


def above_zero(given: float | None) -> float | None:
    if given is not None and not 0 < given < float("inf"):
        raise fail(f"{given} must be above 0", given)
    return given


def folder(given: Path | None) -> Path | None:
    """A folder that can be made and written to, as far as one can tell."""
    if given is None:
        return None
    there = next(place for place in (given, *given.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise fail(
            f"{given} is a file; give a folder" if there == given else f"{given} cannot be created: {there} is a file",
            given,
        )
    if not os.access(there, os.W_OK | os.X_OK):
        raise fail(f"{there} cannot be written to; give another folder", given)
    return given


ModelName = Annotated[
    str | None,
    typer.Option(
        callback=model_name,
        help="Hub name, Hugging Face folder or GGUF file. Default: SmolLM2-135M-Instruct, downloaded once.",
    ),
]
ModelNames = Annotated[
    list[str] | None,
    several(
        "Hub name (with @ and a revision, if you like), Hugging Face folder or GGUF file.",
        model_name,
    ),
]
Device = Annotated[
    str,
    typer.Option(
        callback=_device,
        help='Device of the model: "cpu", "cuda", "mps" or "auto" (CUDA if there is any, else the CPU).',
    ),
]
Seed = Annotated[int, number("Seed of everything that is drawn.", least=0)]
TASKS = "syntax, common_sense, math, aba_abb, a relation, or a file with the columns prompt and target."
task_names = name_or_file(
    "a task",
    lambda: ("syntax", "common_sense", "common_sense_open", "math", "aba_abb", "capitals", *names("relations")),
)
request_names = name_or_file("a set of requests", lambda: REQUESTS)
relation_names = name_or_file("a relation", lambda: names("relations"))


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


Out = Annotated[Path, typer.Option(callback=folder, help="Folder for the results.")]
Relations = Annotated[
    list[str] | None,
    several("A relation's name or a file. Default: all relations of the package.", relation_names),
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


def _where(given: list[str] | None) -> Any:
    for one in given or ():
        if "=" not in one and given != ["all"]:
            raise fail(f"{one!r} names no value; write NAME=VALUE, or all for every row", one)
    return given


Where = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        callback=_where,
        help='The rows of these files to take, such as label=unsafe; "all" for every row. Several: the option again, '
        "with another value or column.",
    ),
]


def _rows(where: list[str] | None) -> dict[str, Any]:
    """The values of each column that the option stands for."""
    values: dict[str, list[str]] = {}
    for one in where or ():
        name, _, value = one.partition("=")
        values.setdefault(name, []).append(value)
    return {"where": "all" if where == ["all"] else values} if values else {}


@dataclass(frozen=True)
class Taken:
    """What is taken of files of requests or of tasks."""

    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="COLUMN",
            help="The column of the files of --requests that holds them, if they have others. Of those of --tasks, one "
            "with another name than prompt, target or cluster, such as prompt=question; several: the option again.",
        ),
    ] = None
    where: Where = None

    def given(self) -> dict[str, Any]:
        """The arguments of ``load_requests`` that the options stand for."""
        if self.column and len(self.column) > 1:
            raise fail("--column is given twice; requests are in one column", None)
        return ({"column": self.column[0]} if self.column else {}) | _rows(self.where)

    def of_tasks(self) -> dict[str, Any]:
        """What the options say of the files of tasks."""
        if wrong := [one for one in self.column or () if "=" not in one]:
            raise fail(f"--column {wrong[0]!r} names no part of a task; write prompt={wrong[0]}", None)
        rows = {} if self.where == ["all"] else _rows(self.where)
        return rows | dict(one.split("=", 1) for one in self.column or ())


@dataclass(frozen=True)
class Question:
    """What an atlas asks, in place of the questions of the package."""

    pairs: Annotated[
        Path | None,
        typer.Option(
            callback=a_file,
            help="Your own pairs to patch: CSV, JSON, JSONL or Parquet with the columns clean, corrupted and, if you "
            "have them, answer, wrong and cluster. Default: capitals.",
        ),
    ] = None
    relations: Relations = None
    requests: Annotated[
        str | None,
        typer.Option(
            callback=request_names,
            help="JailbreakBench, MaliciousInstruct, AdvBench, XSTest or a file, in place of the package's.",
        ),
    ] = None
    task: Annotated[str | None, typer.Option(callback=task_names, help=f"Default: naming capitals. Or: {TASKS}")] = None
    texts: Annotated[
        Path | None,
        typer.Option(
            callback=a_file,
            help="A file of texts with empty lines between them. Default: prose of the package.",
        ),
    ] = None


@dataclass(frozen=True)
class Labelling:
    """How heads are labelled."""

    relations: Relations = None
    rule: Annotated[
        str,
        typer.Option(
            callback=one_of(RULES),
            help='What gives a label: "null", more hits than shuffled targets; "maps", phi >= 0.15.',
        ),
    ] = "null"
    source: Annotated[
        str,
        typer.Option(
            callback=one_of(SOURCES),
            help='The reading, what heads are given as a word: "embedding", "first_mlp" (as in the paper), "carried", '
            'or "all" for the best of the three.',
        ),
    ] = "all"
    min_pairs: Annotated[
        int | None,
        number(
            "Relations with fewer single-token pairs are skipped. Default: 30 for the package's; those that you "
            "name are all scored, and give labels from 30 pairs on.",
            least=1,
        ),
    ] = None
    on_disk: Annotated[
        bool, typer.Option(help="Read weights from safetensors layer by layer, without loading the model.")
    ] = False


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """A command in which each parameter that is a dataclass of options stands for these options."""
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


def group(help: str, **more: Any) -> typer.Typer:
    """A group of commands, whose help and errors are plain text."""
    return typer.Typer(
        help=help,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
        **more,
    )


def command(
    of: typer.Typer, example: str, name: str | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a function to a group as a command whose help ends with an example, and that tells errors in a sentence."""

    def add(function: Callable[..., None]) -> Callable[..., None]:
        run = grouped(function)
        of.command(name, cls=Command, epilog=f"Example: {example}")(run)
        return run

    return add
