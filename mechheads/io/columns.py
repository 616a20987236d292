"""What a collection is, decided by its type: a list, an array, a column of a table; or a table, which is none.

Nothing is guessed. A table is not iterated by the names of its columns, a set has no order, and an open file is not a
list of texts: each is refused, with what to type.
"""

from __future__ import annotations

import io
import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

_SHOWN = 60


def opened(given: Any, name: str, what: str) -> Iterable[Any]:
    """The entries of a collection in their order: a sequence, or the iterator itself if it is one.

    Args:
        name: the argument, for messages.
        what: what its entries are, in the plural, such as "prompts".

    Raises:
        ValueError: if it is no collection with an order, or a table, which is several.

    >>> import numpy as np, pandas as pd
    >>> opened(pd.Series(["a", "b"], index=[7, 3]), "texts", "texts"), opened(np.array([[1, 2]]), "prompts", "prompts")
    (['a', 'b'], [[1, 2]])
    >>> opened(pd.DataFrame({"text": ["a"], "label": [1]}), "texts", "texts")
    Traceback (most recent call last):
    ValueError: texts is a DataFrame with the columns 'text', 'label'; give one column, such as texts=table['text']
    """
    if isinstance(given, str):
        raise ValueError(f"{name} must be a list of {what}, got one string; write [{given[:40]!r}]")
    if (columns := columns_of(given)) is not None:
        raise ValueError(f"{name} is {described(given)}; {_one_column(given, name, what, columns)}")
    if isinstance(given, io.IOBase):
        raise ValueError(f"{name} is an open file; give a list of {what}, such as file.read().splitlines()")
    if isinstance(given, Set):
        raise ValueError(
            f"{name} is a {type(given).__name__}; give a list of {what}, in the order that they should have"
        )
    if isinstance(given, (bytes, bytearray, memoryview)) or not isinstance(given, (Sequence, Iterable)):
        raise ValueError(f"{name} is {described(given)}; give a list of {what}")
    thing: Any = given
    if hasattr(thing, "ndim"):
        return _of_array(thing if hasattr(thing, "tolist") else thing.to_numpy(), name, what)
    for method in ("to_list", "tolist", "to_pylist"):  # of pandas and polars, of arrays, of pyarrow
        if callable(own := getattr(thing, method, None)):
            return list(own())  # pyright: ignore[reportArgumentType]
    return given if isinstance(given, (Iterator, Sequence)) else list(given)


def is_table_column(given: Any) -> bool:
    """Whether something is a column of a table of pandas, polars, pyarrow or ``datasets``: a Series, for example.

    >>> import pandas as pd
    >>> is_table_column(pd.Series([1])), is_table_column([1])
    (True, False)
    """
    return type(given).__module__.partition(".")[0] in ("pandas", "polars", "pyarrow", "datasets")


def columns_of(given: Any) -> list[Any] | None:
    """The names of the columns of a table, or the keys of a dict; None for everything else.

    >>> columns_of({"prompt": ["a"]}), columns_of(["a"])
    (['prompt'], None)
    """
    if isinstance(given, Mapping):
        return list(given)
    if names := getattr(getattr(given, "dtype", None), "names", None):  # of a structured array
        return list(names)
    if isinstance(given, (Sequence, type)):
        return None
    for attribute in ("column_names", "columns"):  # of datasets and pyarrow, of pandas and polars
        if isinstance(names := getattr(given, attribute, None), Iterable):
            return list(names)
    is_stream = hasattr(given, "column_names") and hasattr(given, "features")  # of rows whose columns are not known
    return [] if is_stream else None


def described(thing: Any) -> str:
    """An object in words for a message: a short value itself, a table with its columns, or its type.

    >>> described(5.7), described(b"a"), described(None), described({"a": 1, "b": 2})
    ('5.7', "b'a'", 'None', "a dict with the keys 'a', 'b'")
    """
    kind = type(thing).__name__
    if (columns := columns_of(thing)) is not None:
        what = "keys" if isinstance(thing, Mapping) else "columns"
        names = f"{', '.join(map(_shown, columns[:8]))}{', ...' * (len(columns) > 8)}" or "(none)"
        return f"a {kind} with the {what} {names}"
    if thing is None:
        return "None"
    if is_missing(thing):
        return f"missing ({thing!r})"
    if hasattr(thing, "dtype") and hasattr(thing, "shape") and len(thing.shape):
        return f"a {kind} of {thing.dtype} with the shape {tuple(thing.shape)}"
    text = repr(thing)
    return text if len(text) <= _SHOWN else f"a {kind}, {_shown(thing)}"


def _shown(thing: Any) -> str:
    """The ``repr`` of an object, without its middle if it is long."""
    text = repr(thing)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN // 2]}...{text[-_SHOWN // 4 :]}"


def is_missing(value: object) -> bool:
    """Whether a value is what formats have for "nothing": None, NaN, or NA and NaT of pandas.

    >>> is_missing(None), is_missing(float("nan")), is_missing(""), is_missing(0)
    (True, True, False, False)
    """
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return hasattr(value, "__float__") and not hasattr(value, "__len__") and bool(value != value)


def whole_number(value: Any) -> int | None:
    """A whole number of Python, NumPy or torch as an int; None for anything else, also for a boolean.

    >>> whole_number(7), whole_number(True), whole_number(7.0), whole_number("7")
    (7, None, None, None)
    """
    if type(value) is int:
        return value
    if isinstance(value, bool) or "bool" in str(getattr(value, "dtype", "")) or getattr(value, "ndim", 0):
        return None
    try:
        return operator.index(value)
    except (TypeError, RuntimeError):  # also of a float tensor, which has the method, and of one without data
        return None


def cell_text(value: object) -> Any:
    """A cell of a file's column of texts. A whole number is its digits, as CSV has it; all else is as it is.

    So a table means the same in every format. A boolean or a number with a point is no text: formats write these in
    different ways.

    >>> cell_text("9"), cell_text(9), cell_text(9.0), cell_text(True)
    ('9', '9', 9.0, True)
    """
    number = None if isinstance(value, str) else whole_number(value)
    return value if number is None else str(number)


def labels(given: Any, name: str = "cluster") -> list[str]:
    """Labels of clusters as text, from a list, an array or a column of a table.

    A label is a text or a whole number. 1 and "1" are the same label, as CSV has no other.

    Raises:
        ValueError: if one is missing or something else.

    >>> labels(["a", 1, "1"])
    ['a', '1', '1']
    """
    found = []
    for index, label in enumerate(opened(given, name, "labels")):
        text = cell_text(label)
        if not isinstance(text, str) or not text:
            raise ValueError(
                f"{name}[{index}] is {described(label)}, which is no cluster; give each prompt a label, a text or a "
                "whole number, or leave out the prompts that have none"
            )
        found.append(str(text))
    return found


def _one_column(given: Any, name: str, what: str, columns: Sequence[Any]) -> str:
    """What to type in place of a table."""
    if not columns:
        return "give one of its columns"
    if "input_ids" in columns:
        return (
            f"give the {what} that the tokenizer was given, or prompts of ids, "
            'mh.Prompts({"input_ids": ids, "attention_mask": mask})'
        )
    if "role" in columns and isinstance(given, Mapping):
        return f"this is one message; write one chat as [[message, ...]], and {name} as a list of chats"
    if isinstance(given, Mapping) and (inner := columns_of(given[columns[0]])):  # the splits of a data set
        return f"give one column of one of them, such as {name}=table[{columns[0]!r}][{inner[0]!r}]"
    return f"give one column, such as {name}=table[{columns[0]!r}]"


def _of_array(given: Any, name: str, what: str) -> list[Any]:
    """The entries of an array, a tensor or a Series; the rows if it has two dimensions."""
    kind = str(getattr(given, "dtype", "")).lower()
    if not given.ndim:
        raise ValueError(f"{name} is one value, {described(given)}; give a list of {what}")
    if given.ndim > 2 or (given.ndim == 2 and any(part in kind for part in ("float", "bool", "complex"))):
        raise ValueError(
            f"{name} is {described(given)}; give a list of {what}, or token ids as whole numbers with the shape "
            "[prompt, token]"
        )
    return list(given) if kind.startswith(("datetime", "timedelta")) else listed(given, name)


def listed(given: Any, name: str) -> list[Any]:
    """The entries of an array or a tensor of any layout as numbers of Python; a list stays as it is.

    Raises:
        ValueError: if it is a tensor without data.

    >>> import numpy as np
    >>> listed(np.array([[1, 2], [3, 4]]), "prompts"), listed([1, 2], "prompts")
    ([[1, 2], [3, 4]], [1, 2])
    """
    if getattr(given, "is_meta", False):
        raise ValueError(
            f'{name} is a tensor on the device "meta", which has a shape and no data; make it on another device'
        )
    if getattr(given, "is_nested", False):
        return [row.tolist() for row in given.unbind()]
    if getattr(given, "is_sparse", False) or "sparse" in str(getattr(given, "layout", "")):
        given = given.to_dense()
    return list(given.tolist()) if hasattr(given, "tolist") else given
