"""Tables in readable form: heads by their names, no empty columns, no rounding noise."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd

_NOISE = 1e-9
"""Values below this share of the largest value of their column are shown as 0, except probabilities."""
_LEAST = 1e-15
_PROBABILITIES = ("p_value", "q_value", "p", "q")


def head_names(table: pd.DataFrame) -> list[str]:
    """``L23H4`` for each row, from its layer and head."""
    return [f"L{layer}H{head}" for layer, head in zip(table["layer"], table["head"], strict=True)]


def tidy(table: pd.DataFrame) -> pd.DataFrame:
    """The table as texts, with the names of heads in the first column and without empty columns.

    >>> import pandas as pd
    >>> print(tidy(pd.DataFrame({"layer": [23], "head": [4], "score": [0.51234567], "ci_low": [float("nan")]})))
        head   score
    0  L23H4  0.5123
    """
    if "layer" in table and "head" in table:
        table = table.reset_index(drop=True).assign(head=head_names(table)).drop(columns="layer")
        table = table.loc[:, ["head", *(name for name in table if name != "head")]]
    elif not isinstance(table.index, pd.RangeIndex):
        table = table.reset_index()
    columns = {str(name): _texts(str(name), table[name].tolist()) for name in table}
    return pd.DataFrame({name: texts for name, texts in columns.items() if any(texts) or not texts})


def html_table(table: pd.DataFrame) -> str:
    """``tidy`` as HTML, with everything escaped."""
    shown = tidy(table)
    head = "".join(f"<th>{escape(name)}</th>" for name in shown)
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in shown.itertuples(index=False))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def html_result(result: object, table: pd.DataFrame, *notes: str) -> str:
    """A result as HTML for a notebook: its ``repr``, notes, and a table."""
    lines = "<br>".join(map(escape, (repr(result), *notes)))
    return f"<div><p>{lines}</p>{html_table(table) if len(table.columns) else ''}</div>"


def _texts(name: str, cells: list[Any]) -> list[str]:
    numbers = [abs(cell) for cell in cells if isinstance(cell, float) and np.isfinite(cell)]
    noise = 0.0 if name in _PROBABILITIES else max(_LEAST, _NOISE * max(numbers, default=0.0))
    return [_text(cell, noise) for cell in cells]


def _text(cell: Any, noise: float) -> str:
    if isinstance(cell, float):
        return "" if np.isnan(cell) else "0" if abs(cell) <= noise else f"{cell:.4g}"
    return "" if cell is None or cell is pd.NA else str(cell)
