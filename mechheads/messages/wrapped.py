"""Text that fits into a terminal."""

from __future__ import annotations

from textwrap import wrap

WIDTH = 80
"""The columns of a terminal."""


def wrapped(text: str) -> str:
    """The text in lines of at most 80 characters; what goes on in the next line is indented by two more."""
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip())]
        if len(line) <= WIDTH:
            lines.append(line)
        else:
            lines += wrap(
                line.strip(), WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
            )
    return "\n".join(lines)


class Wrapped:
    """Something whose ``print`` is its ``repr`` in lines that fit into a terminal."""

    def __str__(self) -> str:
        return wrapped(repr(self))
