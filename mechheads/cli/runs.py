"""``mechheads merge`` and ``runs``: the ledgers that analyses fill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads.cli.results import errors_shown

runs = typer.Typer(help="What ledgers hold: list, show, check and remove sweeps.", no_args_is_help=True)

LedgerFile = Annotated[Path, typer.Argument(help="The ledger.")]
Key = Annotated[str, typer.Argument(help="The first characters of the sweep's key, as `list` shows them.")]


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
