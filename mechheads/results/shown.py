"""Results as terminals and notebooks show them: heads by name, the score among the first columns, no rounding noise."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any
from unicodedata import east_asian_width

import numpy as np
import pandas as pd
from pandas.api.types import is_integer_dtype

from mechheads.messages.arguments import did_you_mean
from mechheads.messages.notices import WIDTH, wrapped
from mechheads.results.kinds import EXPLORER, citation, draw
from mechheads.results.provenance import call_of

OPEN = ".explore() shows it in a page of all heads"
_HEADING = 80
"""The longest text in a heading."""
_NOISE = 1e-9
"""Values below this share of the largest value of their column are shown as 0, except probabilities."""
_LEAST = 1e-15
_PROBABILITY = re.compile(r"p|q|[pq]_.+|.+_[pq](_value)?")
"""The names of columns of probabilities."""
_LEAST_P = 0.001
_MOST_COLUMNS = 8
_MOST_ROWS = 60
"""A longer table is shown by its first rows."""
_FIRST_ROWS = 10
_LONGEST = (40, 28, 20, 14, 10, 7)
"""The longest text in a cell of a terminal: the first of these lengths at which the most important columns fit."""
FEW = "too few"
"""The text in place of a missing interval."""
_HEAD = re.compile(r"L\d+(H\d+|\.mlp)")
_INTERVAL = "interval"


def ranks(scores: Any) -> list[int]:
    """The ranks of a column of scores: 1 for the largest; equal scores share the better rank."""
    return scores.rank(method="min", ascending=False).astype(int).tolist()


def titled(name: str, provenance: Mapping[str, Any]) -> str:
    """The name of a result with the heads that were ablated throughout, and how, by its provenance."""
    rules, by_rule = provenance.get("given"), dict[str, list[str]]()
    for head, rule in rules.items() if isinstance(rules, Mapping) else ():
        by_rule.setdefault(shortened(rule), []).append(head)
    ablated = ", ".join(f"{' and '.join(heads)} ({rule})" for rule, heads in by_rule.items())
    return f"{name}, given {ablated}" if ablated else name


def shortened(text: str) -> str:
    """The text, or its beginning if it is too long for a heading."""
    return text if len(text) <= _HEADING else f"{text[: _HEADING - 3]}..."


def heading(text: str) -> str:
    """The text as a heading, with a capital letter."""
    return text[:1].upper() + text[1:]


class Rows(pd.DataFrame):
    """Rows of a result: a DataFrame of all their numbers, which shows at most eight columns, the score among the first.

    With ``attrs["n"]``, the number of prompts that scores are means over, a missing interval is shown as "too few", and
    an interval without width as "all n equal". ``attrs["first"]`` names the columns that are shown first; without it,
    these are heads, labels, score, interval and family p. Other columns are shown if they are selected, as in
    ``table[["score", "q_value"]]``.

    >>> table = pd.DataFrame({"layer": [23], "head": [4], "score": [0.51234567], "ci_low": [0.2], "ci_high": [0.8]})
    >>> Rows(table.assign(p_value=[0.00001]))
    head    score    interval  p_value
    L23H4  0.5123  [0.2, 0.8]  < 0.001
    """

    @property
    def _constructor(self) -> type[Rows]:
        return Rows

    def __repr__(self) -> str:
        return "\n".join(text_table(self))

    def _repr_html_(self) -> str:
        return html_table(self)


class Shown:
    """A result that ``print`` and notebooks show by its ``repr``, notes and a table, and the explorer in a page."""

    provenance: Any

    @property
    def call(self) -> str:
        """The Python call that gives this result again, for a model called ``model``; empty if none is known."""
        return call_of(self.provenance)

    def explore(self, path: str | Path | None = None) -> Any:
        """Show the result in a page of all heads to search, filter and compare; ``path`` as in ``mh.explore``."""
        return draw(EXPLORER, self, path)

    def citation(self) -> str:
        """BibTeX of the papers that this kind of result is based on, and a line with the library versions."""
        return citation(self._analysis(), self.provenance.get("versions"))

    def _analysis(self) -> str:
        """The name of the analysis in ``mechheads.results.kinds``."""
        raise NotImplementedError

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        """The table, and lines of text above it."""
        raise NotImplementedError

    def __str__(self) -> str:
        table, notes = self._shown()
        return "\n".join([*map(wrapped, (repr(self), *notes)), *text_table(table), wrapped(OPEN)])

    def _repr_html_(self) -> str:
        table, notes = self._shown()
        lines = "<br>".join(map(escape, (repr(self), OPEN, *notes)))
        return f"<div><p>{lines}</p>{html_table(table) if len(table.columns) else ''}</div>"


def chosen(table: pd.DataFrame, columns: Sequence[str] | None) -> Rows:
    """Some columns of a table, in this order; all for None."""
    if isinstance(columns, str):
        raise ValueError(f"columns is the text {columns!r}; give a list, such as [{columns!r}]")
    known = list(map(str, table))
    for name in columns or ():
        if name not in known:
            meant = did_you_mean(name, known)
            raise ValueError(f"columns: there is no {name!r}; choose among {', '.join(known)}.{meant}")
    rows = Rows(table if columns is None else table[list(columns)])
    rows.attrs = dict(table.attrs) | ({} if columns is None else {"first": list(columns)})
    return rows


def pairs_left_out(ledger: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A line with how many pairs of relations were scored, and how many not, by reason; no line if all were scored."""
    total, scored = (sum(counts.get(name, 0) for counts in ledger.values()) for name in ("given", "kept"))
    if total == scored:
        return []
    whose = f"{len(ledger)} relations: " if len(ledger) > 1 else ""
    left_out: dict[str, int] = {}
    for reason, pairs in (item for counts in ledger.values() for item in counts.get("lost", {}).items()):
        shown = "more than one token" if reason.endswith("of several tokens") else reason
        shown = "explained by a rival" if whose and shown.startswith("explained by") else shown
        left_out[shown] = left_out.get(shown, 0) + len(pairs)
    return [f"{whose}{scored:,} of {total:,} pairs; {', '.join(f'{shown}: {n:,}' for shown, n in left_out.items())}"]


def head_names(table: pd.DataFrame) -> list[str]:
    """``L23H4`` for each row, from its layer and head."""
    return [f"L{layer}H{head}" for layer, head in zip(table["layer"], table["head"], strict=True)]


def tidy(table: pd.DataFrame) -> pd.DataFrame:
    """The table as texts, with heads by name first, an interval's ends in one column, and without empty columns."""
    first, n = table.attrs.get("first", ()), table.attrs.get("n")
    table = pd.DataFrame(table)
    if {"layer", "head"} <= set(table) and all(isinstance(head, int) for head in table["head"].tolist()):
        table = table.reset_index(drop=True).assign(head=head_names(table)).drop(columns="layer")
    elif not isinstance(table.index, pd.RangeIndex):
        are_heads = table.index.name is None and all(_HEAD.fullmatch(str(name)) for name in table.index)
        are_numbers = table.index.name is None and is_integer_dtype(table.index)
        drop = are_numbers or (are_heads and "head" in table)
        table = table.reset_index(drop=drop, names="head" if are_heads and not drop else None)
    if {"head", "layer", "index"} <= set(table):
        table = table.drop(columns=["layer", "index"])
    texts = {name: cells for name, cells in _columns(table, n) if any(cells) or not cells}
    return pd.DataFrame({name: texts[name] for name in _in_order(list(texts), first)})


def html_table(table: pd.DataFrame, choose: bool = True) -> str:
    """The first eight columns of ``tidy`` as HTML, with everything escaped; ``choose`` as in ``text_table``."""
    shown = tidy(_first_rows(table))
    columns = list(shown)[:_MOST_COLUMNS]
    head = "".join(f"<th>{escape(name)}</th>" for name in _headings(columns))
    rows = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in shown[columns].itertuples(index=False))
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    rest = "".join(f"<p>{escape(line)}</p>" for line in _left_out(table, list(shown)[len(columns) :], choose))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def text_table(table: pd.DataFrame, choose: bool = True) -> list[str]:
    """The lines of ``tidy`` for a terminal: as many columns as fit, at most eight, and the names of the others."""
    shown = tidy(_first_rows(table))
    names = list(shown)[:_MOST_COLUMNS]
    important = 1 + max(
        (names.index(name) for name in ("score", _INTERVAL, "p_family", "null_phi") if name in names), default=0
    )
    cells, fit = dict[str, list[str]](), 0
    for longest in _LONGEST:
        headings = dict(zip(names, _headings(names), strict=True))
        cells = {name: [_cut(text, longest) for text in (headings[name], *shown[name])] for name in names}
        widths = [max(map(_width, column)) for column in cells.values()]
        fit = int((np.cumsum(widths) + 2 * np.arange(len(widths)) <= WIDTH).sum())
        if fit >= important:
            break
    columns = [_aligned(cells[name]) for name in names[:fit]]
    lines = ["  ".join(row).rstrip() for row in zip(*columns, strict=True)]
    return [*lines, *map(wrapped, _left_out(table, list(shown)[fit:], choose))]


def _columns(table: pd.DataFrame, n: int | None) -> Iterator[tuple[str, list[str]]]:
    """The columns as texts; ``ci_low`` and ``ci_high`` are one, "interval"; ``n`` is as in ``Rows``, or a column."""
    names = list(map(str, table))
    counts = table["n"].tolist() if "n" in names else [n] * len(table)
    for name in names:
        base, _, end = name.rpartition("_")
        if end == "high" and f"{base}_low" in names:
            continue
        if end == "low" and f"{base}_high" in names:
            low, high = (_texts(base, table[f"{base}_{side}"].tolist(), ".3g") for side in ("low", "high"))
            ends = [f"[{a}, {b}]" if a and b else "" for a, b in zip(low, high, strict=True)]
            if base == "ci" and "score" in names:
                ends = _mark_few(table, ends, counts)
            elif base in names:  # a share, or a further score: it has an interval unless there are too few prompts
                known = table[base].notna().tolist()
                ends = [end or FEW * has for end, has in zip(ends, known, strict=True)]
            yield _interval_name(base), ends
        else:
            yield name, _texts(name, table[name].tolist())


def _mark_few(table: pd.DataFrame, ends: list[str], counts: Sequence[int | None]) -> list[str]:
    """Intervals as texts, or a note on too few or equal values; the count of a score that is no mean is 0 or None."""
    equal, known = (table["ci_low"] == table["ci_high"]).tolist(), table["score"].notna().tolist()
    rows = zip(ends, counts, equal, known, strict=True)
    return [end if not n else f"all {n} equal" if same else end or FEW * has for end, n, same, has in rows]


def _interval_name(base: str) -> str:
    """The column of an interval, from the name of its ends without ``_low`` and ``_high``."""
    if base in ("ci", "range"):
        return _INTERVAL if base == "ci" else base
    end = "range" if base.endswith("_range") else _INTERVAL
    return f"{re.sub('_(range|ci)$', '', base)} {end}"


def _in_order(names: list[str], first: Sequence[str]) -> list[str]:
    """The columns in the order in which they are shown; ``first`` names an interval by one or both of its ends."""
    leading = [re.sub("^(.*)_(low|high)$", lambda end: _interval_name(end[1]), name) for name in first]
    if not leading:
        before = next((names.index(name) for name in (_INTERVAL, "score") if name in names), -1)
        rest = [name for name in names if name not in ("p_family", "note")]
        leading = [*rest[: before + 1], "null_phi", "p_family", "note", "range"]
    return list(dict.fromkeys(name for name in ("head", *leading, *names) if name in names))


def _headings(names: Sequence[str]) -> list[str]:
    """The headings of columns: an interval right after its own number is headed "interval" alone."""
    return [
        name.removeprefix(f"{before} ") if before else name for before, name in zip(("", *names), names, strict=False)
    ]


def _first_rows(table: pd.DataFrame) -> pd.DataFrame:
    return table if len(table) <= _MOST_ROWS else table.head(_FIRST_ROWS)


def _left_out(table: pd.DataFrame, columns: Sequence[str], choose: bool) -> list[str]:
    """Lines about rows and columns that are not shown."""
    more = len(table) - len(_first_rows(table))
    lines = [f"and {more:,} more rows"] if more else []
    names = []
    for name in columns:
        base = re.sub(f" ?{_INTERVAL}$", "", name).replace(" range", "_range")
        is_interval = base != name or name == "range"
        names += [f"{base or 'ci'}_low", f"{base or 'ci'}_high"] if is_interval else [name]
    how = " (choose with columns=[...])" if choose else ""
    return [*lines, f"not shown: {', '.join(names)}{how}"] if names else lines


def _texts(name: str, cells: list[Any], form: str = ".4g") -> list[str]:
    numbers = [abs(cell) for cell in cells if isinstance(cell, float) and np.isfinite(cell)]
    noise = max(_LEAST, _NOISE * max(numbers, default=0.0))
    is_probability = _PROBABILITY.fullmatch(name) is not None
    return [_text(cell, noise, form, is_probability) for cell in cells]


def _text(cell: Any, noise: float, form: str, is_probability: bool) -> str:
    if not isinstance(cell, float):
        return "" if cell is None or cell is pd.NA else str(cell)
    if np.isnan(cell):
        return ""
    if is_probability:
        return f"< {_LEAST_P}" if cell < _LEAST_P else f"{cell:.2g}"
    return "0" if abs(cell) <= noise else f"{cell:{form}}"


def _width(text: str) -> int:
    """How many columns of a terminal a text takes."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)


def _cut(text: str, longest: int) -> str:
    """The text in one line, or its beginning if it is longer."""
    text = "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in text)
    if _width(text) <= longest:
        return text
    while _width(text) > longest - 3:
        text = text[:-1]
    return f"{text}..."


def _aligned(cells: list[str]) -> list[str]:
    """The cells of a column, filled up to its width: numbers to the right, texts to the left."""
    width = max(map(_width, cells))
    are_numbers = all(re.fullmatch(r"[-\d<\[].*|inf|", cell) for cell in cells[1:])
    fills = [" " * (width - _width(cell)) for cell in cells]
    return [fill + cell if are_numbers else cell + fill for fill, cell in zip(fills, cells, strict=True)]
