"""What code reads from outside itself, found in its bytecode."""

from __future__ import annotations

import dis
import itertools
import types
from collections.abc import Iterator


def reads(code: types.CodeType) -> Iterator[tuple[str, ...]]:
    """What code reads from outside: ``("torch", "nn")`` for ``torch.nn``, ``("", "torch")`` for ``import torch``."""
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
