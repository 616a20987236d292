"""Write ``front/src/data.ts``, what the explorer's page gets, from the types of Python: ``python -m docs.contract``."""

from __future__ import annotations

import ast
import typing
from collections.abc import Iterator
from pathlib import Path

from mechheads.explorer import contract, live

WRITTEN = Path(str(contract.__file__)).parent / "front" / "src" / "data.ts"
_NAMES = {"str": "string", "int": "number", "float": "number", "bool": "boolean", "Any": "unknown"}


def text() -> str:
    """The whole file: an interface for each ``TypedDict`` of what Python sends, and a type for each name of a type."""
    lines = ["/** Written by `python -m docs.contract`; contract.py and live.py say what each part is. */"]
    for module in (contract, live):
        for part in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
            if isinstance(part, ast.Assign) and module is contract:
                lines += ["", f"export type {ast.unparse(part.targets[0])} = {_type(part.value)};"]
            elif isinstance(part, ast.ClassDef) and _is_typed(part):
                lines += ["", *_interface(part)]
    return "\n".join([*lines, ""])


def _is_typed(part: ast.ClassDef) -> bool:
    name = part.name
    return any(typing.is_typeddict(getattr(module, name, None)) for module in (contract, live))


def _interface(part: ast.ClassDef) -> Iterator[str]:
    bases = ", ".join(ast.unparse(base) for base in part.bases if ast.unparse(base) != "TypedDict")
    optional = "?" if part.keywords else ""
    yield f"export interface {part.name} {f'extends {bases} ' if bases else ''}{{"
    for field in part.body:
        if isinstance(field, ast.AnnAssign):
            yield f"  {ast.unparse(field.target)}{optional}: {_type(field.annotation)};"
    yield "}"


def _type(given: ast.expr) -> str:
    """A type of Python as TypeScript has it."""
    match given:
        case ast.Constant(value=None):
            return "null"
        case ast.Name(id=name):
            return _NAMES.get(name, name)
        case ast.BinOp(left=left, right=right):
            return f"{_type(left)} | {_type(right)}"
        case ast.Subscript(value=ast.Name(id="list"), slice=of):
            return f"({_type(of)})[]" if isinstance(of, ast.BinOp) else f"{_type(of)}[]"
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=each)):
            return f"[{', '.join(map(_type, each))}]"
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[key, value])):
            return f"Record<{_type(key)}, {_type(value)}>"
        case ast.Subscript(value=ast.Name(id="Literal"), slice=of):
            values = of.elts if isinstance(of, ast.Tuple) else [of]
            return " | ".join(_literal(value) for value in values)
    raise ValueError(f"{ast.unparse(given)} has no type of TypeScript; add it to docs/contract.py")


def _literal(value: ast.expr) -> str:
    given = ast.literal_eval(value)
    return str(given).lower() if isinstance(given, bool) else f'"{given}"' if isinstance(given, str) else str(given)


if __name__ == "__main__":
    WRITTEN.write_text(text(), encoding="utf-8")
