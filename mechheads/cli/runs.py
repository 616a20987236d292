"""``mechheads merge`` and ``runs``: the ledgers that analyses fill."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mechheads.cli.options import a_file, command, group

runs = group("What ledgers hold: list, show, check and remove sweeps.")

LedgerFile = Annotated[Path, typer.Argument(callback=a_file, help="The ledger.")]
LedgerFiles = Annotated[list[Path], typer.Argument(callback=a_file, help="The ledgers.")]
Key = Annotated[str, typer.Argument(help="The first characters of the sweep's key, as `list` shows them.")]


def merge(
    parts: LedgerFiles,
    into: Annotated[Path, typer.Option(help="The ledger that gets all units.")],
) -> None:
    """Merge the ledgers of the parts of an analysis into one, with checks."""
    from mechheads.ledger.ledger import merge as merge_ledgers

    merged = merge_ledgers(parts, into)
    typer.echo(f"{into}: {merged.units} units of {_count(merged.sweeps, 'sweep')}, {merged.new} of them new")


@command(runs, "mechheads runs list all.ledger", "list")
def list_runs(ledger: LedgerFile) -> None:
    """The sweeps of a ledger, oldest first."""
    for sweep in _sweeps(ledger):
        about = sweep["about"]
        what = ", ".join(about[name] for name in ("analysis", "intervention", "metric") if name in about)
        typer.echo(f"{sweep['key'][:12]}  {sweep['started']}  {sweep['units']:>7} units  {about['model']}  {what}")


@command(runs, "mechheads runs show all.ledger 3fa2c1")
def show(ledger: LedgerFile, key: Key) -> None:
    """Everything that a ledger says about one sweep."""
    import json

    typer.echo(json.dumps(_sweep(ledger, key), indent=2))


@command(runs, "mechheads runs check part1.ledger part2.ledger")
def check(ledgers: LedgerFiles) -> None:
    """Check that ledgers are not damaged: the file itself, and the checksum of every unit."""
    for ledger in ledgers:
        found = _sweeps(ledger)
        units = sum(sweep["units"] for sweep in found)
        typer.echo(f"{ledger}: no damage; {units} units of {_count(len(found), 'sweep')}")


@command(runs, "mechheads runs remove all.ledger 3fa2c1")
def remove(ledger: LedgerFile, key: Key) -> None:
    """Remove one sweep with its units from a ledger."""
    from mechheads.ledger.ledger import Ledger

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
