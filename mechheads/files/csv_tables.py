"""Write tables as CSV files in which a spreadsheet runs no formulas."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mechheads.files.replacing import write_file

if TYPE_CHECKING:
    import pandas as pd

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Characters at the start of a cell that make a spreadsheet treat it as a formula."""


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Write a table as CSV, without its index. The file is written completely or not at all.

    A cell or heading that a spreadsheet would run as a formula gets a leading apostrophe. Numbers, and text that
    is a number, stay as they are.

    >>> import pandas as pd, tempfile
    >>> file = Path(tempfile.mkdtemp(), "heads.csv")
    >>> write_csv(pd.DataFrame({"relation": ["=1+1", "synonym"], "phi": [-0.5, 0.25]}), file)
    >>> print(file.read_text())
    relation,phi
    '=1+1,-0.5
    synonym,0.25
    <BLANKLINE>
    """
    write_file(path, table.map(_inert).rename(columns=_inert).to_csv(index=False))


def _inert(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and cell.startswith(_FORMULA) and not _is_number(cell) else cell


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
