"""Write ``docs/llms.txt``, the package in one text for assistants that write code: ``python -m docs.llms``."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import mechheads
from mechheads.model.analysis import OPTIONS

HERE = Path(__file__).parent
README = HERE.parent / "README.md"


def text() -> str:
    """The whole file: what the package is, the commands, the examples, and every public name."""
    readme = README.read_text(encoding="utf-8")
    what = re.search(r"^`mechheads` (?:.+\n)+", readme, re.MULTILINE)
    commands = re.findall(r"<!-- (?:main|test)-command -->\n(```bash\n.*?```)", readme, re.DOTALL)
    examples = re.findall(r"^```python\n.*?^```", readme, re.DOTALL | re.MULTILINE)
    if what is None or len(commands) != 2 or len(examples) != 2:
        raise ValueError("README.md has not one description, two commands and two examples")
    lines = [
        "# mechheads",
        "",
        what[0],
        "Install it and write the atlas of the default model; install it and run the tests:\n",
        *commands,
        "",
        "Measure every head, then sweep an intervention of your own:\n",
        *examples,
        "",
        "Single heads give `HeadScores`, sets of heads a table; both have `.plot()`, `.save()`, `.provenance` and "
        '`.citation()`. Every error says what was given and what is allowed. Heads are named "L23H4": layer 23, '
        "head 4, both counted from 0. `mh.settings` sets memory, seed, progress bars, workers and the file that keeps "
        f"finished work; an analysis, whose arguments end in `**settings` here, takes {', '.join(OPTIONS)}. "
        "The documentation is in `docs/`; `docs/index.md` leads from a question to its call.\n",
        "# Public names",
    ]
    for name in ("", *mechheads._FOLDERS):
        module = importlib.import_module(f"mechheads.{name}".rstrip("."))
        lines += [f"\n## mh{name and f'.{name}'}\n", *(line for each in module.__all__ for line in entry(module, each))]
    return "\n".join(lines) + "\n"


def entry(module: Any, name: str) -> Iterator[str]:
    """The lines about a public name; a class has a line for each of its methods and properties too."""
    value = getattr(module, name)
    if inspect.ismodule(value):
        return
    yield f"- `{name}{signature(value)}`: {first_line(value)}".removesuffix(": ")
    if inspect.isclass(value):
        for member, what in vars(value).items():
            target = getattr(what, "__func__", getattr(what, "fget", what))
            if not member.startswith("_") and inspect.isfunction(target):
                shown = "" if isinstance(what, property) else signature(target)
                yield f"  - `.{member}{shown}`: {first_line(target)}".removesuffix(": ")


def first_line(value: Any) -> str:
    """The first sentence or line of a docstring."""
    return (inspect.getdoc(value) or "").split("\n\n")[0].replace("\n", " ")


def signature(value: Any) -> str:
    """How to call a function or class: names, types and defaults, without ``self``; empty for what is not called."""
    if not callable(value):
        return ""
    shown, starred = [], False
    parameters = inspect.signature(value).parameters
    options = OPTIONS if set(OPTIONS) < set(parameters) and value is not mechheads.settings else ()
    for each in parameters.values():
        if each.name in ("self", "cls", *options):
            continue
        if each.kind is each.KEYWORD_ONLY and not starred:
            shown.append("*")
        starred = starred or each.kind in (each.KEYWORD_ONLY, each.VAR_POSITIONAL)
        star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
        kind = "" if each.annotation is each.empty else f": {type_name(each.annotation)}"
        default = "" if each.default is each.empty else f" = {default_name(each.default)}"
        shown.append(f"{star}{each.name}{kind}{default}")
    return f"({', '.join([*shown, *(['**settings'] if options else [])])})"


def type_name(annotation: Any) -> str:
    """A type as it is written in the code."""
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def default_name(value: Any) -> str:
    """A default as it is written in the code: functions by name, settings with what differs from their own defaults."""
    if is_dataclass(value):
        given = {each.name: getattr(value, each.name) for each in fields(value)}
        changed = [f"{each.name}={given[each.name]!r}" for each in fields(value) if given[each.name] != each.default]
        return f"{type(value).__name__}({', '.join(changed)})"
    if isinstance(value, Mapping):
        return repr(dict(value))
    return getattr(value, "__name__", "..." if repr(value).startswith("<") else repr(value))


if __name__ == "__main__":
    (HERE / "llms.txt").write_text(text(), encoding="utf-8")
