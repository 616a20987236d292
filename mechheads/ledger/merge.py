"""Several ledgers as one: the parts of a sweep that ran on several machines."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from mechheads.ledger.ledger import Ledger


@dataclass(frozen=True)
class Merged:
    """What a merge did: how many sweeps and units ``into`` holds now, and how many of the units are new."""

    into: Path
    sweeps: int
    units: int
    new: int


def merge(parts: Sequence[str | os.PathLike[str]], into: str | os.PathLike[str]) -> Merged:
    """Copy the units of several ledgers into one. The parts are not changed; merging again changes nothing.

    Args:
        parts: ledgers of the same sweeps, such as those that ``mechheads run --part`` wrote.
        into: the ledger that gets all units; created if it does not exist.

    Raises:
        ValueError: if a part is not a ledger or is damaged, the parts are of different sweeps or were cut into other
            batches, or a unit has other values in another part. Units of the parts before it stay in ``into``.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from mechheads.ledger.ledger import Ledger
    >>> folder = Path(tempfile.mkdtemp())
    >>> for part in (1, 2):
    ...     with Ledger(folder / f"part-{part}", "a key", {}) as ledger:
    ...         kept = ledger.commit({f"L{part}H0 0": np.array([0.5])})
    >>> mh.scale.merge([folder / "part-1", folder / "part-2"], folder / "all").units
    2
    """
    if isinstance(parts, (str, os.PathLike)) or not parts:
        raise ValueError(f'parts is {parts!r}; give a list of ledgers, such as ["part-1.ledger", "part-2.ledger"]')
    sweeps = {Path(part): Ledger.list(part) for part in parts}
    first, *others = sweeps
    keys = {sweep["key"] for sweep in sweeps[first]}
    for part in others:
        if {sweep["key"] for sweep in sweeps[part]} != keys:
            raise ValueError(
                f"{part} does not hold the same sweeps as {first}: something that decides the numbers differed, such "
                "as the model's weights, the kind of device, or the version of a library; `mechheads runs list` shows "
                "what each holds. Run that part again with the same files and versions"
            )
    new = 0
    for part, held in sweeps.items():
        for sweep in held:
            new += _copy(part, Path(into), sweep["key"])
    found = [sweep for sweep in Ledger.list(into) if sweep["key"] in keys]
    return Merged(Path(into), len(found), sum(sweep["units"] for sweep in found), new)


def _copy(part: Path, into: Path, key: str) -> int:
    """Copy the units and settings of one sweep; returns how many units are new."""
    with closing(Ledger.read(part, key)) as source, closing(Ledger(into, key, source.about)) as target:
        before = set(target.finished())
        units = source.finished()
        for name, value in source.settings().items():
            if target.remember(name, value) != value:
                raise ValueError(
                    f"{part} was cut into other batches than the parts before it ({name}), so together they would not "
                    "be the whole: run it again into a new ledger, with the same number of parts, budget and workers"
                )
        for name, values in target.commit(units).items():
            if values.tobytes() != units[name].tobytes():
                raise ValueError(f"unit {name!r} of {part} is already in {into} with other values")
    return len(units.keys() - before)
