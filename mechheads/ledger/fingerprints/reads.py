"""What code reads from outside itself, found in its bytecode."""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator

OUTSIDE = {
    "open",
    "fdopen",
    "read_text",
    "read_bytes",
    "loadtxt",
    "genfromtxt",
    "fromfile",
    "memmap",
    "from_file",
    "listdir",
    "load_file",
    "safe_open",
    "load_dataset",
    "from_pretrained",
    "open_memmap",
    "FileIO",
    "scandir",
    "iterdir",
    "getmtime",
    "read_csv",
    "read_json",
    "read_parquet",
    "read_pickle",
    "read_table",
    "read_excel",
    "read_hdf",
    "read_feather",
    "environ",
    "environb",
    "getenv",
    "getenvb",
    "expanduser",
    "urlopen",
    "popen",
    "import_module",
    "_getframe",
}
"""Names through which code reads data that may change while the code stays the same."""
OUTSIDE_BUILTINS = {"open", "input", "eval", "exec", "globals", "__import__"}
OUTSIDE_MODULES = {
    "subprocess",
    "socket",
    "requests",
    "urllib",
    "http",
    "sqlite3",
    "shelve",
    "dbm",
    "fileinput",
    "glob",
}
OUTSIDE_IN = {"sys": {"modules", "argv", "stdin"}}
"""Names of this kind that count only in one module."""
LOADS = {"load"}
"""Names of this kind that count only if the code imports a module; methods of these names may do anything."""


def reads(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """Global names that code reads: ``("torch", "nn")`` for ``torch.nn``, ``("", "torch")`` for ``import torch``."""
    steps = [step for step in dis.get_instructions(code) if step.opname != "EXTENDED_ARG"]
    for i, step in enumerate(steps):
        if step.opname == "IMPORT_NAME":
            level = steps[i - 2].argval
            yield "", "." * level + step.argval
        elif step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
            after = itertools.takewhile(lambda s: s.opname in ("LOAD_ATTR", "LOAD_METHOD"), steps[i + 1 :])
            yield step.argval, *(s.argval for s in after)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from reads(constant)


def looks_outside(code: types.CodeType) -> str | None:
    """The first name through which code reads a file, the environment or the network; None if there is none."""
    steps = list(dis.get_instructions(code))
    imports = any(step.opname == "IMPORT_NAME" for step in steps)
    for step in steps:
        if step.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            if step.argval in OUTSIDE or (imports and step.argval in LOADS):
                return step.argval
        elif step.opname == "IMPORT_NAME" and step.argval.partition(".")[0] in OUTSIDE_MODULES:
            return step.argval
    inner = (looks_outside(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return next(filter(None, inner), None)
