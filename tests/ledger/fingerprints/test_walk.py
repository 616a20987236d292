"""Fingerprints: the same in another process, another for what gives another result, an error for what has none."""

from __future__ import annotations

import copy
import enum
import functools
import importlib.metadata
import json
import math
import os
import re
import runpy
import subprocess
import sys
from collections import Counter, namedtuple
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.fingerprints import fingerprint, libraries, weights_fingerprint

SCRIPT = """
import enum, functools, json, math, pathlib, sys
from collections import namedtuple
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import numpy as np
import torch

import mechheads as mh
from mechheads.ledger.fingerprints import fingerprint, weights_fingerprint

WORDS = {"one", "two", "three", "four", "five", "six"}
TABLE = {word: len(word) for word in WORDS}
Point = namedtuple("Point", "x y")


class Side(enum.Enum):
    LEFT = "left"
    RIGHT = "right"

    def flip(self):
        return Side.RIGHT if self is Side.LEFT else Side.LEFT


@dataclass(frozen=True)
class Gate:
    strength: float
    side: Side = Side.LEFT
    weights: torch.Tensor = field(default_factory=lambda: torch.arange(3.0))
    site = "pattern"
    needs: ClassVar = ("q", "k")

    def __call__(self, value, context):
        if context in {"a", "b", "c", "d"}:
            return Gate(2 * self.strength)(value, None)
        return [value * self.strength for _ in range(3)]

    @property
    def double(self):
        return super().__repr__() + str(TABLE)

    @classmethod
    def make(cls, text):
        import struct

        return cls(float(text) + math.pi)


@mh.metric(reads="all", unit="words")
def even(logits, context):
    return True if not context else odd(logits, WORDS & {"x", "y", "z"})


def odd(logits, context):
    return False if not context else even(np.exp(logits), torch.nn.functional.relu(context))


def closure(n):
    return lambda logits, context, *, k=Point(1, 2): logits[..., n] @ even(logits, k)


torch.manual_seed(0)
things = {
    "none": None, "bool": True, "int": 1, "float": 0.1, "str": "ü", "bytes": b"a", "tuple": (1, (2,)), "list": [1, 2],
    "dict": TABLE, "set": WORDS, "frozenset": frozenset(WORDS | {1, None}), "path": pathlib.Path("a/b"),
    "dtype": torch.bfloat16, "device": torch.device("cpu"), "array": np.arange(6.0).reshape(2, 3), "scalar": np.int8(3),
    "tensor": torch.arange(4, dtype=torch.bfloat16), "enum": Side.LEFT, "class": Gate, "instance": Gate(0.5),
    "method": Gate(0.5).__call__, "classmethod": Gate.make, "function": even, "other": odd, "closure": closure(2),
    "partial": partial(odd, context=3), "cached": functools.cache(odd), "lambda": lambda x: {*WORDS, x},
    "named": Point(1, 2), "builtin": math.log, "torch": torch.relu, "ufunc": np.log, "numpy": np.mean,
    "zero": mh.Zero(), "resample": mh.patching.Resample(3), "patch": mh.Patch("q"),
    "uniform": mh.patching.UniformAttention(),
    "kl": mh.kl_divergence, "diff": mh.logit_diff, "all": mh.metric(reads="all")(mh.log_prob),
}
found = {name: fingerprint(thing, name) for name, thing in things.items()}
found["weights"] = weights_fingerprint(torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.BatchNorm1d(50)))
if __name__ == "__main__":
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_same_in_another_process(tmp_path: Path) -> None:
    paths = [tmp_path / "here" / "script.py", tmp_path / "there" / "script.py"]
    for path, above in zip(paths, ("", "# a line\n\n\n"), strict=True):
        path.parent.mkdir()
        path.write_text(above + SCRIPT, "utf-8")
    here = runpy.run_path(str(paths[0]), run_name="__main__")["found"]
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, paths[1]], env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(there) == here
    assert len(set(here.values())) == len(here) == 41
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in here.values())


def test_copying_or_pickling_an_instance_changes_no_fingerprint() -> None:
    @dataclass(frozen=True)
    class Halve:
        factor: float = 0.5

        def __call__(self, z: float, context: object) -> float:
            return z * self.factor

    before = fingerprint(Halve())
    copy.copy(Halve())
    assert "__slotnames__" in vars(Halve) and fingerprint(Halve()) == before


def test_plain_values_are_told_apart() -> None:
    nan, other_nan = np.array([0x7FF8000000000000, 0x7FF8000000000001], dtype=np.uint64).view(np.float64).tolist()
    things = [
        *(None, ..., NotImplemented, True, False, 0, 1, -1, 10**5000, 0.0, -0.0, 1.0, nan, other_nan, math.inf, 1j),
        *("", "1", b"", b"1", "\ud800", Path("1"), (), (1,), [], [1], {}, {1: 2}, {2: 1}, set(), {1}, frozenset({1})),
        *((1, 2), ((1,), 2), (1, (2,)), ("ab", "c"), ("a", "bc"), (("a",), "bc"), slice(1), slice(0, 1), range(1)),
        *(torch.float32, torch.int64, torch.device("cpu"), torch.device("cuda", 1), torch.Size([1]), np.dtype("f4")),
        *(
            np.zeros(2),
            np.zeros((2, 1)),
            np.zeros(2, "f4"),
            np.zeros(2, ">f8"),
            np.ones(2),
            np.float64(1),
            np.float32(1),
        ),
        *(np.array([1, "a"], dtype=object), np.array([1, None], dtype=object), re.compile("a"), re.compile("a", re.I)),
        *(torch.zeros(2), torch.zeros(2, 1), torch.zeros(2).half(), torch.zeros(2).bfloat16(), torch.ones(2)),
        *(torch.tensor(1 + 2j), torch.tensor(1 - 2j), torch.zeros(0), torch.tensor(0.0)),
    ]
    found = [fingerprint(thing) for thing in things]
    twice = [things[i] for i, one in enumerate(found) if one in found[:i]]
    assert twice == []
    assert [fingerprint(thing) for thing in things] == found


def test_how_a_value_is_kept_does_not_matter() -> None:
    grid = torch.arange(6.0).reshape(2, 3)
    assert fingerprint(grid.T) == fingerprint(grid.T.contiguous()) == fingerprint(torch.nn.Parameter(grid).T)
    assert fingerprint(grid.numpy().T) == fingerprint(grid.numpy().T.copy())
    conjugate = torch.tensor([1 + 2j]).conj()
    assert fingerprint(conjugate) == fingerprint(torch.tensor([1 - 2j]))
    assert fingerprint(torch.zeros(3).half()) != fingerprint(torch.zeros(3).bfloat16())
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": [2], "a": 1})
    assert fingerprint(torch.ones(1).add) != fingerprint(torch.zeros(1).add)


def define(source: str, **names: Any) -> Any:
    """What ``thing`` is after this source, as a notebook's cell defines it."""
    space: dict[str, Any] = {"__name__": "notebook", "mh": mh, "torch": torch, "np": np, "dataclass": dataclass}
    space |= {"functools": functools, "namedtuple": namedtuple, "os": os, "sys": sys, "Path": Path} | names
    exec(compile(source, f"/cell/{id(space)}.py", "exec", dont_inherit=True), space)
    return space["thing"]


GATE = """
class Base:
    floor = 0
    def bound(self, value): return value + 1
@dataclass(frozen=True)
class Gate(Base):
    strength: float = 2.0
    site = "q"
    needs = ("q",)
    def __call__(self, value, context): return self.helper(value) + self.strength * self.offset
    @staticmethod
    def helper(value): return scale * value
    @property
    def offset(self): return 3
scale = 1
thing = Gate()
"""
METRIC = """
LIMIT = 1
def helper(x): return inner(x) + 2
def inner(x): return x * 3 if x else thing
def make(k):
    def thing(logits, context, /, low=4, *, high=5):
        try:
            total = [row for row in logits if row in {1, "b", 6}]
            return (lambda y: y + k + LIMIT)(helper(total))
        except ValueError:
            return np.exp(logits) + len(context)
    return thing
thing = make(7)
"""
HALVES = {
    "a partialmethod": """
@dataclass(frozen=True)
class Scaled:
    def go(self, z, context, factor): return z * factor
    __call__ = functools.partialmethod(go, factor=0.5)
thing = Scaled()
""",
    "an instance that is called": """
@dataclass(frozen=True)
class Times:
    factor: float
    def __call__(self, z, context): return z * self.factor
@dataclass(frozen=True)
class Scaled:
    __call__ = Times(0.5)
thing = Scaled()
""",
    "a frozen decorator": """
@dataclass(frozen=True)
class logged:
    inner: object
    def __get__(self, thing, cls): return functools.partial(self.inner, thing)
@dataclass(frozen=True)
class Scaled:
    @logged
    def __call__(self, z, context): return z * 0.5
thing = Scaled()
""",
    "a metaclass": """
class Meta(type):
    @property
    def factor(cls): return 0.5
@dataclass(frozen=True)
class Scaled(metaclass=Meta):
    def __call__(self, z, context): return z * type(self).factor
thing = Scaled()
""",
    "a slot of a base": """
class Base:
    __slots__ = ("hidden",)
@dataclass(frozen=True)
class Scaled(Base):
    named: int = 1
    def __call__(self, z, context): return z * self.hidden
thing = Scaled()
object.__setattr__(thing, "hidden", 0.5)
""",
    "what replaced a cached property": """
@dataclass(frozen=True)
class Scaled:
    @functools.cached_property
    def factor(self): return 1.0
    def __call__(self, z, context): return z * self.factor
thing = Scaled()
vars(thing)["factor"] = 0.5
""",
    "a name between underscores": """
@dataclass(frozen=True)
class Scaled:
    __factor__ = 0.5
    def __call__(self, z, context): return z * self.__factor__
thing = Scaled()
""",
    "an attribute of a named tuple": """
class Scaled(namedtuple("Plain", "named")):
    def __call__(self, z, context): return z * self.factor
thing = Scaled(1)
thing.factor = 0.5
""",
}
SOURCES = {
    "gate": (GATE, "floor = 0", "floor = 1"),
    "a method of a base": (GATE, "value + 1", "value + 2"),
    "the type of a default": (GATE, "= 2.0", "= 2"),
    "a class attribute": (GATE, '= "q"', '= "k"'),
    "a tuple": (GATE, '("q",)', "()"),
    "an operator": (GATE, ") + self", ") - self"),
    "a property": (GATE, "return 3", "return 4"),
    "a global of a method": (GATE, "scale = 1", "scale = 2"),
    "a global": (METRIC, "LIMIT = 1", "LIMIT = 0"),
    "a constant of a function that is called": (METRIC, "+ 2", "+ 0"),
    "a constant of one that this calls": (METRIC, "* 3", "* 0"),
    "a default": (METRIC, "low=4", "low=0"),
    "a default by name": (METRIC, "high=5", "high=0"),
    "a constant of a set": (METRIC, "6}", "0}"),
    "a closure": (METRIC, "make(7)", "make(0)"),
    "a function in a closure": (METRIC, "make(7)", "make(helper)"),
    "what is caught": (METRIC, "ValueError", "KeyError"),
    "a function of a library": (METRIC, "np.exp", "np.log"),
    "a metric": (METRIC, "make(7)", "mh.metric()(make(7))"),
    "the class of a named tuple": ('thing = namedtuple("Pair", "x y")(1, 2)', "Pair", "Other"),
    "an argument of methods named like builtins": (
        "def thing(logits, context): return context.model.eval() or context.input or 1",
        "1",
        "2",
    ),
    **{name: (source, "0.5", "0.25") for name, source in HALVES.items()},
}
"""Source text, and a change of it that gives another result."""


@pytest.mark.parametrize(("source", "before", "after"), SOURCES.values(), ids=SOURCES)
def test_what_gives_another_result_is_another(source: str, before: str, after: str) -> None:
    assert source.count(before) == 1
    found = fingerprint(define(source))
    assert found == fingerprint(define(source)) != fingerprint(define(source.replace(before, after)))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (METRIC, "# a remark\n\n\n" + METRIC.replace("        try:", "        # another\n\n        try:")),
        (
            "def better_name(logits, context): return logits[..., 0]\nthing = better_name",
            "thing = lambda logits, context: logits[..., 0]",
        ),
        (
            HALVES["what replaced a cached property"].replace("0.5", "1.0"),
            HALVES["what replaced a cached property"].replace('vars(thing)["factor"] = 0.5', ""),
        ),
    ],
    ids=["where it stands", "its name", "a cached property that was computed"],
)
def test_what_gives_the_same_result_is_the_same(one: str, other: str) -> None:
    assert one != other and fingerprint(define(one)) == fingerprint(define(other))


def test_running_a_function_does_not_change_it() -> None:
    counted = define("def thing(n):\n    total = 0\n    for i in range(n): total += i * len('ab')\n    return total")
    before = fingerprint(counted)
    for _ in range(100):
        counted(100)
    assert fingerprint(counted) == before


def test_what_a_metric_reads_counts() -> None:
    plain = define("thing = lambda logits, context: logits[:, -1, 0]")
    declared = [
        mh.metric(reads=reads, unit=unit, null=null)(plain)
        for reads in ("last", "all")
        for unit in ("", "nats")
        for null in (0.0, None)
    ]
    assert len({fingerprint(one) for one in [*declared, plain]}) == 9
    part = functools.partial(plain)
    before = fingerprint(part)
    part.reads = "all"
    assert fingerprint(part) != before


def test_your_own_module_counts_by_what_is_read_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)

    def found(text: str, use: str) -> str:
        (tmp_path / "own_helpers.py").write_text(text)
        for name in ("own_helpers", "__pycache__"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        sys.dont_write_bytecode = True
        return fingerprint(define(f"import own_helpers\nthing = lambda logits, context: {use}"), "metric")

    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    use = "own_helpers.double(logits)"
    first = found("def double(x): return 2 * x", use)
    assert first == found("# a remark\ndef double(x): return 2 * x\nUNUSED = object()", use)
    assert first != found("def double(x): return 3 * x", use)
    with pytest.raises(ValueError, match="metric cannot be fingerprinted: own_helpers in <lambda> is a module of your"):
        found("", "own_helpers")
    with pytest.raises(ValueError, match="own_helpers in thing is a module of your own; import it at the top"):
        fingerprint(define("def thing(x):\n    import own_helpers\n    return own_helpers.double(x)"), "metric")
    with pytest.raises(ValueError, match=r"\.near in thing is a module of your own"):
        fingerprint(define("def thing(x):\n    from .near import far\n    return far(x)"), "metric")


def test_a_library_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = [
        "thing = lambda logits, context: np.log(logits)",
        "def thing(logits, context):\n    import numpy\n    return numpy.log(logits)",
        "from numpy.linalg import norm\nthing = lambda logits, context: norm(logits)",
    ]
    before = [fingerprint(define(use)) for use in uses]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    libraries._top_release.cache_clear()
    try:
        after = [fingerprint(define(use)) for use in uses]
    finally:
        libraries._top_release.cache_clear()
    assert all(one != other for one, other in zip(before, after, strict=True))
    monkeypatch.undo()
    assert [fingerprint(define(use)) for use in uses] == before
    assert libraries.release_of("sys") == libraries.release_of("os.path") == libraries.PYTHON
    assert libraries.release_of("jaxtyping._array_types") == f"jaxtyping {importlib.metadata.version('jaxtyping')}"
    assert libraries.release_of("yaml") == f"PyYAML {importlib.metadata.version('PyYAML')}"
    assert libraries.release_of("no_such_module") is None


def test_a_notebook_or_script_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", os.__file__, raising=False
    )  # as under python -m pdb script.py
    libraries._top_release.cache_clear()
    assert libraries.release_of("__main__") is None


def test_the_codes_of_mechheads_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    used = define("thing = lambda logits, context: -mh.log_prob(logits, context)")
    before = [fingerprint(one) for one in (mh.patching.Scale(2.0), mh.log_prob, used)]
    monkeypatch.setattr(mh.patching.Scale, "__call__", lambda self, value, context: value / self.factor)
    monkeypatch.setattr(mh.log_prob.__wrapped__, "__code__", mh.patching.accuracy.__wrapped__.__code__)
    after = [fingerprint(one) for one in (mh.patching.Scale(2.0), mh.log_prob, used)]
    assert all(one != other for one, other in zip(before, after, strict=True))


class Colour(enum.Flag):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Kept:
    size: int
    names: list = field(default_factory=list)

    @functools.cached_property
    def twice(self) -> int:
        return 2 * self.size


def test_members_and_cached_properties() -> None:
    assert len({fingerprint(one) for one in (Colour.RED, Colour.BLUE, Colour.RED | Colour.BLUE, 1)}) == 4
    used = Kept(3)
    assert used.twice == 6
    assert fingerprint(used) == fingerprint(Kept(3)) != fingerprint(Kept(3, ["a"]))
    hidden = Kept(3)
    object.__setattr__(hidden, "other", 1)
    assert fingerprint(hidden) != fingerprint(Kept(3))


@dataclass
class Loose:
    size: int = 1


def unfinished() -> Callable[[], object]:
    def early() -> object:
        return late

    found = fingerprint(early)
    late = object()
    assert found
    return early


def looping() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


LOGGED = """
class logged:
    def __init__(self, inner): self.inner = inner
    def __get__(self, thing, cls): return functools.partial(self.inner, thing)
@dataclass(frozen=True)
class Scaled:
    @logged
    def __call__(self, z, context): return z
thing = Scaled()
"""


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Counter(), r"it is an object of collections\.Counter; make it a frozen dataclass or a module-level function"),
        (Loose(), r"it is a Loose, a dataclass that can change; write @dataclass\(frozen=True\)"),
        ([Loose()], "it is a Loose"),
        (torch.nn.Linear(1, 1), r"an object of torch\.nn\.modules\.linear\.Linear"),
        (torch.eye(2).to_sparse(), r"a torch\.sparse_coo tensor on cpu; only a plain tensor has values"),
        (torch.empty(1, device="meta"), r"a torch\.strided tensor on meta"),
        (Kept(1, [iter(())]), r"Kept\.names is an object of builtins\.tuple_iterator"),
        (define("thing = lambda z, c, k=object(): k"), r"<lambda>'s defaults is an object of builtins\.object"),
        (define("def f(z): return bad\ndef thing(z): return f(z)", bad=Counter()), r"f in thing > bad in f is an obj"),
        (define(LOGGED), r"Scaled\.__call__ is an object of notebook\.logged"),
        (unfinished(), r"late in early is an object of builtins\.object"),
        (functools.partial(len, Loose()), "it is a Loose"),
        (Loose().__eq__, "it is a Loose"),
        (functools.reduce(lambda inner, _: [inner], range(5000), []), "contains itself, or is nested too deeply"),
        (looping(), "contains itself"),
    ],
)
def test_what_has_no_fingerprint_is_an_error(thing: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^metric cannot be fingerprinted: .*{message}"):
        fingerprint(thing, "metric")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return float(open('c.txt').read())", "open"),
        ("return Path('c.txt').read_text()", "read_text"),
        ("return (lambda: Path('c.txt').read_bytes())()", "read_bytes"),
        ("return float(os.environ['C'])", "environ"),
        ("return os.getenv('C')", "getenv"),
        ("return np.load('c.npy')", "numpy.load"),
        ("return np.loadtxt('c.txt')", "loadtxt"),
        ("return __import__('os').sep", "__import__"),
        ("return globals()['C']", "globals"),
        ("return eval('C')", "eval"),
        ("return sys.modules['os']", "sys.modules"),
        ("return subprocess.check_output('date')", "subprocess.check_output"),
        ("return there('c.txt')", "there"),
        ("import os; return os.environ['C']", "environ"),
        ("from os import environ; return environ['C']", "environ"),
        ("import numpy; return numpy.load('c.npy')", "load"),
        ("from json import load; return load(1)", "load"),
        ("import urllib.request; return urllib.request.urlopen('c')", "urlopen|urllib.request"),
    ],
)
def test_code_that_reads_files_environment_or_made_up_names_is_refused(body: str, named: str) -> None:
    metric = define(f"def thing(logits, context):\n    {body}", subprocess=subprocess, there=Path.read_text)
    message = f"^metric cannot be fingerprinted: ({named}) in thing is a way to read files, the environment"
    with pytest.raises(ValueError, match=message):
        fingerprint(metric, "metric")


def test_what_stands_in_place_of_a_librarys_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = define("def thing(logits, context): return np.tanh(np.linalg.norm(logits))")
    found = [fingerprint(metric)]
    for factor in (2, 3):
        monkeypatch.setattr(np.linalg, "norm", define(f"def thing(x): return {factor} * x"))
        found.append(fingerprint(metric))
    assert len(set(found)) == 3
    monkeypatch.undo()
    assert fingerprint(metric) == found[0]


def test_many_functions_that_call_each_other_are_read_once_each() -> None:
    """Along every path of calls there would be more than 60! of them."""
    calls = " + ".join(f"f{i}(x)" for i in range(60))
    assert fingerprint(define("\n".join(f"def f{i}(x): return {i} + {calls}" for i in range(60)) + "\nthing = f0"))


def net() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 4))


def test_weights_are_told_apart() -> None:
    plain = weights_fingerprint(net())
    assert weights_fingerprint(net()) == plain
    shaken = net()
    with torch.no_grad():
        for at in ((0, 0), (49, 39)):  # the first and the last value are always looked at
            shaken[0].weight[at] += 1
            assert weights_fingerprint(shaken) != plain
            shaken[0].weight.copy_(net()[0].weight)
        assert weights_fingerprint(shaken) == plain
        shaken[1].running_mean += 1e-3
    assert weights_fingerprint(shaken) != plain
    assert weights_fingerprint(net().half()) != weights_fingerprint(net().bfloat16()) != plain
    assert weights_fingerprint(net()[:2]) != plain
    renamed = torch.nn.Sequential(*net()[:2], torch.nn.Identity(), net()[2])
    assert weights_fingerprint(renamed) != plain
    with pytest.raises(ValueError, match="on meta"):
        weights_fingerprint(net().to("meta"))


def test_weights_that_lie_otherwise_in_memory_are_the_same() -> None:
    turned = net()
    turned[0].weight = torch.nn.Parameter(net()[0].weight.detach().T.contiguous().T)
    assert not turned[0].weight.is_contiguous()
    assert weights_fingerprint(turned) == weights_fingerprint(net())


def test_it_does_not_import_torch() -> None:
    code = """
import sys
from mechheads.ledger.fingerprints import fingerprint
fingerprint((1, "a", {2.0}, lambda x: x))
print(sorted({"torch", "transformer_lens", "pandas", "xarray"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"
