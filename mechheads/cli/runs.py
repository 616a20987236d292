"""``mechheads run``, ``merge`` and ``runs``: analyses from files, in parts, and the ledgers that they fill."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads.cli.options import Device, WorkersOption
from mechheads.cli.results import errors_shown
from mechheads.files.replacing import check_kind, check_place
from mechheads.limits import Limits, budget_bytes, settings

runs = typer.Typer(help="What ledgers hold: list, show, check and remove sweeps.", no_args_is_help=True)

LedgerFile = Annotated[Path, typer.Argument(help="The ledger.")]
Key = Annotated[str, typer.Argument(help="The first characters of the sweep's key, as `list` shows them.")]


def run(
    spec: Annotated[Path, typer.Argument(help="The analysis, as mh.scale.write_analysis wrote it.")],
    store: Annotated[Path, typer.Option(help="The ledger that keeps finished units; the same call goes on with it.")],
    part: Annotated[str | None, typer.Option(help="Compute one part of the units only, such as 3/16.")] = None,
    out: Annotated[Path | None, typer.Option(help="Save the result as netCDF; it needs all units.")] = None,
    workers: WorkersOption = "1",
    device: Device = "auto",
    budget: Annotated[str | None, typer.Option(help='Memory, such as "2 GB" (default 4 GB).')] = None,
    allow: Annotated[
        list[str] | None, typer.Option(help="A module that the analysis may take its code from; can be repeated.")
    ] = None,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Let the file's model run code that comes with it.")
    ] = False,
) -> None:
    """Run an analysis from a file, as a whole or one part of it, for a batch scheduler."""
    from mechheads.model.load import load_again
    from mechheads.scale.analysis_file import read_analysis

    with errors_shown():
        analysis = read_analysis(spec, allow or (), trust_remote_code=trust_remote_code)
        chosen = None if part is None else parse_part(part)
        if chosen is not None and out is not None:
            raise ValueError("--out needs all units, but --part computes some; merge the parts first")
        if out is not None:
            check_place(out)
            check_kind(out, b"\x89HDF")
        limits = Limits(memory=budget_bytes(budget), part=chosen)
        model = load_again(analysis.source, device)
        with settings(budget=limits, workers=workers, store=store, seed=analysis.seed, **analysis.chats):
            result: Any = analysis.function(model, **analysis.arguments)
        found = result if isinstance(result, dict) else {"": result}
        if out is not None:
            for name, one in found.items():
                typer.echo(f"Result     {one.save(out.with_stem(f'{out.stem}-{name}') if name else out)}")
        units = sum(sweep["units"] for sweep in _sweeps(store))
        typer.echo(f"Ledger     {store}: {units} units")
        if any(one.provenance["interrupted"] for one in found.values()):
            raise typer.Exit(130)


def merge(
    parts: Annotated[list[Path], typer.Argument(help="The ledgers of the parts.")],
    into: Annotated[Path, typer.Option(help="The ledger that gets all units.")],
) -> None:
    """Merge the ledgers of the parts of an analysis into one, with checks."""
    from mechheads.ledger.ledger import merge as merge_ledgers

    with errors_shown():
        merged = merge_ledgers(parts, into)
        typer.echo(f"{into}: {merged.units} units of {_count(merged.sweeps, 'sweep')}, {merged.new} of them new")


@runs.command("list")
def list_runs(ledger: LedgerFile) -> None:
    """The sweeps of a ledger, oldest first."""
    with errors_shown():
        for sweep in _sweeps(ledger):
            about = sweep["about"]
            what = ", ".join(about[name] for name in ("analysis", "intervention", "metric") if name in about)
            typer.echo(f"{sweep['key'][:12]}  {sweep['started']}  {sweep['units']:>7} units  {about['model']}  {what}")


@runs.command()
def show(ledger: LedgerFile, key: Key) -> None:
    """Everything that a ledger says about one sweep."""
    import json

    with errors_shown():
        typer.echo(json.dumps(_sweep(ledger, key), indent=2))


@runs.command()
def check(ledgers: Annotated[list[Path], typer.Argument(help="The ledgers.")]) -> None:
    """Check that ledgers are not damaged: the file itself, and the checksum of every unit."""
    with errors_shown():
        for ledger in ledgers:
            found = _sweeps(ledger)
            units = sum(sweep["units"] for sweep in found)
            typer.echo(f"{ledger}: no damage; {units} units of {_count(len(found), 'sweep')}")


@runs.command()
def remove(ledger: LedgerFile, key: Key) -> None:
    """Remove one sweep with its units from a ledger."""
    from mechheads.ledger.ledger import Ledger

    with errors_shown():
        sweep = _sweep(ledger, key)
        Ledger.remove(ledger, sweep["key"])
        typer.echo(f"{ledger}: removed {sweep['key'][:12]} with {sweep['units']} units")


def parse_part(part: str) -> tuple[int, int]:
    """The number of a part and of all parts.

    Raises:
        ValueError: if it is not of the form 3/16.

    >>> parse_part("3/16")
    (3, 16)
    """
    if not (match := re.fullmatch(r"(\d+)/(\d+)", part)) or not 1 <= int(match[1]) <= int(match[2]):
        raise ValueError(f"part is {part!r}; give its number, from 1, and how many there are, such as 3/16")
    return int(match[1]), int(match[2])


def _sweeps(ledger: Path) -> list[dict[str, Any]]:
    from mechheads.ledger.ledger import Ledger

    return Ledger.list(ledger)


def _sweep(ledger: Path, key: str) -> dict[str, Any]:
    """The sweep whose key begins with these characters."""
    found = [sweep for sweep in _sweeps(ledger) if sweep["key"].startswith(key)]
    if len(found) != 1:
        how = "no sweep" if not found else f"{len(found)} sweeps"
        raise ValueError(f"the ledger {ledger} holds {how} whose key begins with {key!r}; see `mechheads runs list`")
    return found[0]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
