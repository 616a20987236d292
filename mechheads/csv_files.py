"""Tables to CSV files that a spreadsheet shows as they are."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What begins a cell that a spreadsheet would run."""


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table without its index, whole or not at all.

    Text that a spreadsheet would run as a formula, in a cell or a heading, gets an apostrophe before it; numbers,
    and text that is one, stay as they are.

    >>> import pandas as pd, tempfile
    >>> file = Path(tempfile.mkdtemp(), "heads.csv")
    >>> write_csv(pd.DataFrame({"relation": ["=1+1", "synonym"], "phi": [-0.5, 0.25]}), file)
    >>> print(file.read_text())
    relation,phi
    '=1+1,-0.5
    synonym,0.25
    <BLANKLINE>
    """
    unfinished = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        table.map(_inert).rename(columns=_inert).to_csv(unfinished, index=False)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
