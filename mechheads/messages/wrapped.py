"""Text that fits into a terminal, or into a sentence."""

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


def first_sentence(error: BaseException) -> str:
    """The first sentence of another library's error message, with the type of the error."""
    lines = str(error).strip().splitlines() or [""]
    said = lines[0].split(". ")[0].rstrip(".")
    said = said if len(said) <= 200 else f"{said[:200]}..."
    return f"{said} ({type(error).__name__})" if said else type(error).__name__


class Wrapped:
    """Something whose ``print`` is its ``repr`` in lines that fit into a terminal."""

    def __str__(self) -> str:
        return wrapped(repr(self))
