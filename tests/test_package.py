"""The package as a whole: light to import, its imports run one way, its parts small, its dependencies pinned."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from types import ModuleType

import pytest

import mechheads

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "mechheads"

FLOORS: list[set[str]] = [
    {"_version", "heads", "limits", "data", "io", "messages"},
    {"progress", "prompts", "results"},
    {"model", "plots", "metrics"},
    {"runs", "ledger"},
    {"interventions", "scale"},
    {"engine"},
    {"patching", "generation"},
    {"labels", "safety"},
    {"gating", "behaviour"},
    {"testing", "studies"},
    {"explorer"},
    {"cli"},
    {"__main__"},
]
"""A file may import from its own room and from the floors before it, lazily and for types too."""

UPWARD = {
    ("model/model.py", "runs"): "Model.cache gives a HeadCache",
    ("model/loading.py", "engine"): "how a model is resumed is tried at loading",
    ("model/loading.py", "runs"): "the run that is proved at loading is a HeadCache",
}
"""Every arrow that runs up, and what it is for."""


FACES: list[ModuleType] = [mechheads, *(getattr(mechheads, name) for name in mechheads._FOLDERS)]
PUBLIC = {
    (getattr(value, "__module__", ""), getattr(value, "__qualname__", ""))
    for face in FACES
    for value in (getattr(face, name) for name in face.__all__)
}
"""Module and qualified name of every public function and class."""

CATCHES = {
    "mechheads/cli.py": "the exit code of an interrupted command",
    "mechheads/engine/work.py": "gives the waves that are done, unless they are stored, and raises again",
}
"""Files that catch Ctrl-C, and what for."""

STAMPS = {
    "mechheads/ledger/ledger.py": "when a sweep began, for people; nothing goes by it",
    "mechheads/prompts/chats.py": "the date of a chat template that asks for today's; the provenance names it",
}
"""Files that read the wall clock, and what for."""

DOORS = {
    "mechheads/prompts/encoding.py": "gives the tokens of every text, whole or a piece",
    "mechheads/prompts/chats.py": "puts a chat into its template",
}
"""Files that use a tokenizer or a chat template, and what for."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def part(path: Path) -> str:
    """The module or folder of the package that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(node: ast.AST, path: Path, *, lazy: bool, types: bool) -> Iterator[str]:
    """Full names of what a file imports; with ``lazy`` inside functions too, with ``types`` for types alone too."""
    for child in ast.iter_child_nodes(node):
        if is_for_types(child) and not types:
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            package = list(path.relative_to(ROOT).parent.parts)
            above = package[: len(package) - child.level + 1] if child.level else []
            base = ".".join([*above, *([child.module] if child.module else [])])
            yield from (f"{base}.{alias.name}" for alias in child.names)
        elif lazy or not isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from imports(child, path, lazy=lazy, types=types)


def imported(path: Path, *, lazy: bool, types: bool = False) -> set[str]:
    return set(imports(parsed(path), path, lazy=lazy, types=types))


@cache
def own(path: Path) -> set[str]:
    """Full names of what a file takes from the package."""
    return {name for name in imported(path, lazy=True, types=True) if name.split(".")[0] == "mechheads"}


def own_parts(path: Path) -> set[str]:
    return {name.split(".")[1] for name in own(path) if "." in name} - {part(path), "__version__"}


def libraries(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imported(path, lazy=True)}


def test_importing_loads_what_is_used_and_no_more() -> None:
    """The package alone loads no heavy library; scores and figures load neither torch nor, until drawn, plotly."""
    figures = [f"mechheads.plots.{path.stem}" for path in (PACKAGE / "plots").glob("[!_]*.py")]
    code = f"""
import sys
import mechheads
heavy = {{"torch", "transformer_lens", "transformers", "plotly"}}
print(*sorted((heavy | {{"xarray", "pandas", "numpy", "scipy"}}) & set(sys.modules)))
import mechheads.results.scores, mechheads.plots, {", ".join(figures)}
mechheads.plots.heatmap, mechheads.plots.attention
print(*sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "\n\n"


def closure(*begin: str) -> set[str]:
    """The modules that are imported with some modules of the package, of the package and of libraries."""
    found, todo = set[str](), list(begin)
    while todo:
        name = todo.pop()
        while name and name not in found:
            found.add(name)
            path = ROOT.joinpath(*name.split("."))
            file = next((one for one in (path.with_suffix(".py"), path / "__init__.py") if one.is_file()), None)
            if file is not None:
                todo += imported(file, lazy=False)
            name = name.rpartition(".")[0]
    return found


def test_a_model_is_loaded_without_tables_figures_and_statistics() -> None:
    """And a first sweep without figures and scipy.stats, which takes as long to import as the sweep to run."""
    loading, sweeping = closure("mechheads.model.load"), closure("mechheads.patching.activation")
    assert {"torch", "transformers"} <= loading and {"pandas", "scipy.special"} <= sweeping
    assert not {"pandas", "xarray", "scipy", "plotly", "mechheads.plots", "mechheads.results.scores"} & loading
    assert not {"scipy.stats", "plotly", "mechheads.plots"} & sweeping


def test_imports_run_down_only() -> None:
    floor = {name: number for number, names in enumerate(FLOORS) for name in names}
    assert len(FLOORS) <= 13
    files = [path for path in modules() if path != PACKAGE / "__init__.py"]
    seen = {part(path) for path in files}.union(*(own_parts(path) for path in files))
    assert seen == set(floor), "give each of these a floor, or import it from its own module"
    upward = {
        (path.relative_to(PACKAGE).as_posix(), other)
        for path in files
        for other in own_parts(path)
        if floor[other] >= floor[part(path)]
    }
    assert upward == set(UPWARD)


def test_the_face_is_small_and_whole() -> None:
    assert dir(mechheads) == mechheads.__all__ and len(dir(mechheads)) <= 46, len(dir(mechheads))
    for folder in mechheads._FOLDERS:
        names = getattr(mechheads, folder).__all__
        assert all(getattr(getattr(mechheads, folder), name) is not None for name in names), folder


def test_files_import_each_other_in_no_circle() -> None:
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in modules()}
    graph: dict[str, set[str]] = {}
    for path in modules():
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if name == "mechheads":
            continue
        taken = (each if each in names else each.rpartition(".")[0] for each in own(path))
        graph[name] = {each for each in taken if each not in ("mechheads", name)}
    TopologicalSorter(graph).prepare()  # raises CycleError, naming the circle


def test_results_know_no_model() -> None:
    for path in modules():
        if part(path) in ("heads", "results", "plots"):
            assert libraries(path) & {"torch", "transformer_lens", "transformers"} == set(), path


def test_plots_know_only_scores_and_arrays() -> None:
    for path in modules():
        if part(path) == "plots":
            assert own_parts(path) <= {"results", "heads", "io", "messages"}, path


def test_only_the_adapter_knows_transformerlens() -> None:
    knowing = {part(path) for path in modules() if "transformer_lens" in libraries(path)}
    assert knowing <= {"model"}


def test_code_that_comes_with_a_model_never_runs_by_default() -> None:
    for path in [*modules(), *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "from_pretrained":
                assert {None, "trust_remote_code"} & {keyword.arg for keyword in node.keywords}, (path, node.lineno)


def test_figures_and_tables_are_made_in_one_place() -> None:
    """Figures without the button that uploads them; CSV written completely or not at all."""
    homes = {"Figure": "parts.py", "make_subplots": "parts.py", "to_csv": "write.py"}
    for path in [*modules(), *(ROOT / "benchmarks").rglob("*.py")]:
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                assert homes.get(name, path.name) == path.name, (path, node.lineno)


def pins(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["constraints.txt", "constraints-tl3.txt"])
def test_every_dependency_is_pinned(name: str) -> None:
    pinned = pins(name)
    assert all(re.fullmatch(r"\d[\w.]*", version) for version in pinned.values())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(d for ds in project["optional-dependencies"].values() for d in ds)]
    names = {normal(re.split(r"[\[<>=]", one)[0]) for one in wanted} - {"mechheads"}
    assert names - {normal(one) for one in pinned} == set()


def test_the_two_environments_differ_in_transformerlens_only() -> None:
    main, second = pins("constraints.txt"), pins("constraints-tl3.txt")
    assert main["torch"] == "2.13.0"
    assert {k: v for k, v in main.items() if second.get(k) != v} == {"transformer-lens": "4.3.0"}
    assert {k: v for k, v in second.items() if main.get(k) != v} == {
        "transformer-lens": "3.9.0",
        "better-abc": "0.0.3",
    }


def where(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def functions(node: ast.AST, name: str = "") -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function under a node with its qualified name."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            full = f"{name}{child.name}"
            if not isinstance(child, ast.ClassDef):
                yield full, child
            yield from functions(child, f"{full}.")


def is_public(module: str, name: str) -> bool:
    return any(module == home and f"{name}.".startswith(f"{one}.") for home, one in PUBLIC)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its docstring."""
    assert function.end_lineno is not None
    lines = function.end_lineno - function.lineno + 1
    if ast.get_docstring(function) is None:
        return lines
    docstring = function.body[0]
    assert docstring.end_lineno is not None
    return lines - (docstring.end_lineno - docstring.lineno + 1)


def test_no_function_behind_the_public_face_takes_more_than_seven_parameters() -> None:
    many = {}
    for path in modules():
        if path.name == "cli.py":  # typer makes an option of every parameter of a command
            continue
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name, function in functions(parsed(path)):
            if parameters(function) > 7 and not is_public(module, name):
                many[f"{module}.{name}"] = parameters(function)
    assert many == {}


def test_no_function_is_long() -> None:
    long = {}
    for path in modules():
        for name, function in functions(parsed(path)):
            if body_lines(function) > 80:
                long[f"{where(path)}: {name}"] = body_lines(function)
    assert long == {}


def test_no_file_is_long() -> None:
    lengths = {where(path): len(path.read_text("utf-8").splitlines()) for path in modules()}
    assert {path: length for path, length in lengths.items() if length > 600} == {}


def test_ctrl_c_is_caught_in_few_places() -> None:
    catching = {
        where(path)
        for path in modules()
        for node in ast.walk(parsed(path))
        if isinstance(node, ast.ExceptHandler)
        and node.type is not None
        and "KeyboardInterrupt" in ast.unparse(node.type)
    }
    assert catching == set(CATCHES)


def reads_wall_clock(tree: ast.Module) -> bool:
    """Whether code asks what time it is, which is no way to measure how long something takes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "time":
            if {alias.name for alias in node.names} - {"monotonic", "perf_counter", "process_time", "sleep"}:
                return True
        elif isinstance(node, ast.Import):
            if any(alias.name in ("time", "datetime") and alias.asname for alias in node.names):
                return True
        elif isinstance(node, ast.Attribute):
            name = ast.unparse(node)
            if re.fullmatch(r"time\.(time|time_ns|localtime|gmtime|ctime|asctime|strftime|clock_\w+)", name):
                return True
            if node.attr in ("now", "utcnow", "today"):
                return True
    return False


def test_durations_are_measured_by_clocks_that_do_not_jump() -> None:
    assert {where(path) for path in modules() if reads_wall_clock(parsed(path))} == set(STAMPS)


def tokenises(node: ast.AST) -> bool:
    """Whether code has a text tokenised, or a chat put into a template."""
    if not isinstance(node, ast.Call):
        return False
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    owner = getattr(getattr(node.func, "value", None), "attr", getattr(getattr(node.func, "value", None), "id", ""))
    asked = name in ("encode", "tokenize", "encode_plus", "batch_encode_plus") and "tokenizer" in owner
    return asked or name.strip("_") == "tokenizer" or name in ("apply_chat_template", "to_tokens")


def test_texts_are_tokenised_in_one_place() -> None:
    assert {where(path) for path in modules() if any(map(tokenises, ast.walk(parsed(path))))} == set(DOORS)


def test_ruff_formats_every_line() -> None:
    exempt = re.compile(r"#\s*fmt:\s*(skip|off)")
    files = [path for folder in ("mechheads", "tests", "benchmarks", "docs") for path in (ROOT / folder).rglob("*.py")]
    assert [where(path) for path in files if exempt.search(path.read_text("utf-8"))] == []


def test_nothing_is_checked_by_assert() -> None:
    """It would not be under ``python -O``."""
    found = {path.name for path in modules() if any(isinstance(node, ast.Assert) for node in ast.walk(parsed(path)))}
    assert found == set()


def test_the_top_level_is_small() -> None:
    assert sorted(path.name for path in PACKAGE.glob("*.py")) == [
        "__init__.py",
        "__main__.py",
        "_version.py",
        "cli.py",
        "heads.py",
        "limits.py",
        "metrics.py",
        "progress.py",
    ]
