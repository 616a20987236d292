"""Fingerprints: the same in another process, another for what gives another result, an error for what has none."""

from __future__ import annotations

import copy
import enum
import functools
import importlib
import importlib.metadata
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
from collections import Counter, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.fingerprints import PYTHON, fingerprint, release_of, weights_fingerprint


def define(source: str, **names: Any) -> Any:
    """What ``thing`` is after this source, as a notebook's cell defines it."""
    space: dict[str, Any] = {"__name__": "notebook", "mh": mh, "torch": torch, "np": np, "dataclass": dataclass}
    space |= {"functools": functools, "os": os, "sys": sys, "Path": Path, "enum": enum} | names
    exec(compile(source, f"/cell/{id(space)}.py", "exec", dont_inherit=True), space)
    return space["thing"]


def frozen(
    body: str, before: str = "", decorator: str = "@dataclass(frozen=True)", given: str = "", end: str = "= Scaled()"
) -> str:
    """The source of a dataclass with this body, and of an instance of it."""
    indented = "".join(f"    {line}\n" for line in body.splitlines())
    return f"{before}\n{decorator}\nclass Scaled{given}:\n{indented}thing {end}"


def net() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(40, 50), torch.nn.BatchNorm1d(50), torch.nn.Linear(50, 4))


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
WORDS = {"one", "two", "three"}
def helper(x): return inner(x) + 2
def inner(x): return x * 3 if x else thing
def make(k):
    def thing(logits, context, /, low=4, *, high=5):
        try:
            total = [row for row in logits if row in {1, "b", 6} | WORDS]
            return (lambda y: y + k + LIMIT)(helper(total))
        except ValueError:
            return np.exp(logits) + len(context)
    return thing
thing = make(7)
"""
TIMES = "@dataclass(frozen=True)\nclass Times:\n    factor: object\n    def __call__(self, z, context): return z"
META = "class Meta(type):\n    @property\n    def factor(cls): return 0.5"
HALVES = {
    "an instance that is called": frozen("__call__ = Times(0.5)", TIMES),
    "a decorator": frozen("@Times\ndef __call__(self, z, context): return z * 0.5", TIMES),
    "a metaclass": frozen("pass", META, given="(metaclass=Meta)"),
    "a name between underscores": frozen("__factor__ = 0.5"),
    "a hidden attribute": frozen("pass", end="= Scaled()\nobject.__setattr__(thing, 'hidden', 0.5)"),
    "the default of a slot": frozen("x: float = 0.5", decorator="@dataclass(frozen=True, slots=True)", end="= Scaled"),
    "what dataclass would write": frozen("def __eq__(self, other): return 0.5"),
    "a closure of a lambda": "thing = (lambda factor: lambda z, context: z * factor)(0.5)",
    "an argument of a partial": "thing = functools.partial(mh.log_prob, context=0.5)",
    "a method of an instance": frozen("x: float = 0.5\ndef go(self, z, context): return z", end="= Scaled().go"),
}
CHANGES = {
    "a global of a base": (GATE, "floor = 0", "floor = 1"),
    "a method of a base": (GATE, "value + 1", "value + 2"),
    "the type of a default": (GATE, "= 2.0", "= 2"),
    "a class attribute": (GATE, '= "q"', '= "k"'),
    "a tuple": (GATE, '("q",)', "()"),
    "an operator": (GATE, ") + self", ") - self"),
    "a property": (GATE, "return 3", "return 4"),
    "a global of a method": (GATE, "scale = 1", "scale = 2"),
    "a global": (METRIC, "LIMIT = 1", "LIMIT = 0"),
    "a global set": (METRIC, '"two"', '"four"'),
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
    "the values of a tensor": ("k = torch.ones(3)\nthing = lambda z, context: z * k", "ones", "zeros"),
    "a method named like a builtin": (
        "def thing(logits, context): return context.model.eval() or context.input or 1",
        "1",
        "2",
    ),
    "the order of fields": (frozen("x: int = 1\ny: int = 1", end="= Scaled"), "x: int = 1\n    y", "y: int = 1\n    x"),
    "the default of a field": (frozen("x: object = list", end="= Scaled"), "list", "dict"),
    **{name: (source, "0.5", "0.25") for name, source in HALVES.items()},
}
"""Source text, and a change of it that gives another result."""


@pytest.mark.parametrize(("source", "before", "after"), CHANGES.values(), ids=CHANGES)
def test_what_gives_another_result_is_another(source: str, before: str, after: str) -> None:
    assert source.count(before) == 1
    found = fingerprint(define(source))
    assert found == fingerprint(define(source)) != fingerprint(define(source.replace(before, after)))


def values() -> list[Any]:
    """Values, all of them different."""
    nan, other_nan = np.array([0x7FF8000000000000, 0x7FF8000000000001], dtype=np.uint64).view(np.float64).tolist()
    plain = define("thing = lambda logits, context: logits[:, -1, 0]")
    part = functools.partial(plain)
    part.reads = "all"  # type: ignore[attr-defined]
    words, kinds = {"one", "two", "three", "four"}, (torch.float16, torch.bfloat16, torch.float64)
    return [
        *(None, ..., NotImplemented, True, False, 0, 1, -1, 10**5000, 0.0, -0.0, 1.0, nan, other_nan, math.inf, 1j),
        *("", "1", "ü", b"", b"1", "\ud800", (), (1,), [], [1], {}, {1: 2}, {2: 1}, set(), {1}, frozenset({1}), words),
        *((1, 2), ((1,), 2), (1, (2,)), ("ab", "c"), ("a", "bc"), (("a",), "bc"), slice(1), slice(0, 1), range(1)),
        *(torch.float32, torch.int64, torch.device("cpu"), torch.device("cuda", 1), torch.Size([1]), np.dtype("f4")),
        *(np.zeros(2), np.zeros((2, 1)), np.zeros(2, "f4"), np.zeros(2, ">f8"), np.ones(2), np.float64(1)),
        *(np.float32(1), re.compile("a"), re.compile("a", re.I), torch.ones(1).add, torch.zeros(1).add),
        *(torch.zeros(2), torch.zeros(2, 1), torch.ones(2), *(torch.zeros(2, dtype=kind) for kind in kinds)),
        *(torch.tensor(1 + 2j), torch.tensor(1 - 2j), torch.zeros(0), torch.tensor(0.0), plain, part),
        *(mh.metric(reads=reads, null=null)(plain) for reads in ("last", "all") for null in (0.0, None)),
        *(math.log, np.log, np.mean, torch.relu, str.lower, functools.cache(plain), define(GATE).bound),
        *(mh.Zero(), mh.patching.Resample(3), mh.Patch("q"), mh.patching.UniformAttention(), mh.patching.Scale(0.5)),
        *(mh.kl_divergence, mh.logit_diff, mh.log_prob, functools.partial(mh.log_prob), mh.Zero, torch.nn.Linear),
    ]


def keys() -> list[str]:
    """The fingerprints of all of these, and of the sources above."""
    things = [*values(), *(define(source) for source, *_ in CHANGES.values())]
    return [*map(fingerprint, things), weights_fingerprint(net())]


def test_values_are_told_apart() -> None:
    found = list(map(fingerprint, values()))
    assert [thing for i, thing in enumerate(values()) if found[i] in found[:i]] == []


def test_the_same_in_another_process() -> None:
    code = f"import json, runpy; print(json.dumps(runpy.run_path({__file__!r})['keys']()))"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(there) == keys()
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in keys())


GRID = torch.arange(6.0).reshape(2, 3)


@dataclass(frozen=True)
class Halve:
    factor: float = 0.5


def copied(thing: Any) -> Any:
    """A thing after Python has put a note of its slots into the class, as copying does."""
    copy.copy(thing)
    assert "__slotnames__" in vars(type(thing))
    return thing


def called(function: Any) -> Any:
    for _ in range(100):
        function(100)
    return function


COUNT = "def thing(n):\n    total = 0\n    for i in range(n): total += i * len('ab')\n    return total"
SAME: dict[str, tuple[Any, Any]] = {
    "where it stands": (
        define(METRIC),
        define("# a remark\n\n\n" + METRIC.replace("        try:", "        # another\n\n        try:")),
    ),
    "its name": (
        define("def better_name(logits, context): return logits[..., 0]\nthing = better_name"),
        define("thing = lambda logits, context: logits[..., 0]"),
    ),
    "after it ran": (define(COUNT), called(define(COUNT))),
    "after a copy": (Halve(), copied(Halve())),
    "after pickling": (Halve(), pickle.loads(pickle.dumps(Halve()))),
    "how a tensor lies in memory": (GRID.T, GRID.T.contiguous()),
    "a parameter": (GRID, torch.nn.Parameter(GRID)),
    "how an array lies in memory": (GRID.numpy().T, GRID.numpy().T.copy()),
    "a conjugate": (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
    "the order of a dict": ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
}


@pytest.mark.parametrize(("one", "other"), SAME.values(), ids=SAME)
def test_what_gives_the_same_result_is_the_same(one: Any, other: Any) -> None:
    assert fingerprint(one) == fingerprint(other)


@dataclass
class Loose:
    size: int = 1


class Colour(enum.Enum):
    RED = 1


def looping() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


CACHED = frozen("@functools.cached_property\ndef factor(self): return 1.0")
PARTIAL = frozen("def go(self, z, context, factor): return z\n__call__ = functools.partialmethod(go, factor=0.5)")
SLOT = frozen("pass", "class Base:\n    __slots__ = ('hidden',)", given="(Base)")
LOGGED = frozen(
    "@logged\ndef __call__(self, z, context): return z",
    "class logged:\n    def __init__(self, inner): self.inner = inner",
)
INNER = "def f(z): return bad\ndef thing(z): return f(z)"


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (
            Counter(),
            r"it is an object of collections\.Counter, which may change .* write a function, a property or a @",
        ),
        (
            Loose(),
            r"it is an object of .*\.Loose, which may change unnoticed; .* @dataclass\(frozen=True\) in its place",
        ),
        ([Loose()], r"Loose, which may"),
        (functools.partial(len, Loose()), r"Loose, which may"),
        (Loose().__eq__, r"Loose, which may"),
        (Path("a"), r"it is an object of pathlib\.PosixPath"),
        (Colour.RED, r"Colour, which may"),
        (define("class thing(enum.Enum):\n    RED = 1"), r"RED is an object of notebook\.thing"),
        (namedtuple("Point", "x y")(1, 2), r"Point, which may"),
        (np.array([1, "a"], dtype=object), r"an object of numpy\.ndarray"),
        (torch.nn.Linear(1, 1), r"an object of torch\.nn\.modules\.linear\.Linear"),
        (torch.eye(2).to_sparse(), r"a torch\.sparse_coo tensor on cpu; only a plain tensor has values"),
        (torch.empty(1, device="meta"), r"a torch\.strided tensor on meta"),
        (Halve([iter(())]), r"factor is an object of builtins\.tuple_iterator"),  # type: ignore[arg-type]
        (define("thing = lambda z, c, k=object(): k"), r"a default is an object of builtins\.object"),
        (define(INNER, bad=Counter()), r"f > bad is an object of collections\.Counter"),
        (define("def thing(z):\n    import numpy"), r"numpy is an import inside a function; import it at the top"),
        (define("def thing(z):\n    from .near import far"), r"near is an import inside a function"),
        (
            define("thing = lambda z: getattr(np, 'lo' + 'ad')(z)"),
            r"np is a module, of which anything",
        ),
        (define(frozen("pass", given="(list)")), r"an object of notebook\.Scaled"),
        (define("thing = lambda xp: lambda z: xp.exp(z)")(np), r"xp is an object of builtins\.module"),
        (define(LOGGED), r"__call__ is an object of notebook\.logged"),
        (define(CACHED), r"factor is an object of functools\.cached_property"),
        (define(PARTIAL), r"__call__ is an object of functools\.partialmethod"),
        (define(SLOT), r"hidden is an object of builtins\.member_descriptor"),
        (functools.reduce(lambda inner, _: [inner], range(5000), []), r"it contains itself, or is nested too deeply"),
        (looping(), r"it contains itself"),
    ],
)
def test_what_has_no_fingerprint_is_an_error(thing: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^metric cannot be fingerprinted: .*{message}"):
        fingerprint(thing, "metric")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("return float(open('c.txt').read())", "open"),
        ("return Path('c.txt').read_text()", "Path|read_text"),
        ("return (lambda: Path('c.txt').read_bytes())()", "Path|read_bytes"),
        ("return context.file.read_text()", "read_text"),
        ("return float(os.environ['C'])", "os"),
        ("return os.getenv('C')", "os"),
        ("return np.load('c.npy')", "load"),
        ("return np.loadtxt('c.txt')", "loadtxt"),
        ("return __import__('os').sep", "__import__"),
        ("return globals()['C']", "globals"),
        ("return eval('C')", "eval"),
        ("return sys.modules['os']", "sys"),
        ("return subprocess.check_output('date')", "subprocess"),
        ("return there('c.txt')", "there"),
        ("return load_it(context)", "load_it"),
        ("return random.random()", "random"),
    ],
)
def test_code_that_reads_files_environment_or_made_up_names_is_refused(body: str, named: str) -> None:
    names = {"subprocess": subprocess, "random": random, "there": Path.read_text, "load_it": json.load}
    metric = define(f"def thing(logits, context):\n    {body}", **names)
    message = f"^metric cannot be fingerprinted: ({named}) is a way to read files, the environment"
    with pytest.raises(ValueError, match=message):
        fingerprint(metric, "metric")


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
    with pytest.raises(ValueError, match="metric cannot be fingerprinted: own_helpers is a module, of which anything"):
        found("", "own_helpers")


def test_a_library_counts_by_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    uses = [
        "thing = lambda logits, context: np.log(logits)",
        "from numpy.linalg import norm\nthing = lambda logits, context: norm(logits)",
    ]
    before = [fingerprint(define(use)) for use in uses]
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "99")
    release_of.cache_clear()
    try:
        after = [fingerprint(define(use)) for use in uses]
    finally:
        release_of.cache_clear()
    assert all(one != other for one, other in zip(before, after, strict=True))
    monkeypatch.undo()
    assert [fingerprint(define(use)) for use in uses] == before
    assert release_of("sys") == release_of("os.path") == PYTHON
    assert release_of("jaxtyping._array_types") == f"jaxtyping {importlib.metadata.version('jaxtyping')}"
    assert release_of("yaml") == f"PyYAML {importlib.metadata.version('PyYAML')}"
    assert release_of("no_such_module") is None


def test_a_notebook_or_script_is_no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        sys.modules["__main__"], "__file__", os.__file__, raising=False
    )  # as under python -m pdb script.py
    release_of.cache_clear()
    assert release_of("__main__") is None


def test_the_codes_of_mechheads_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    used = define("thing = lambda logits, context: -mh.log_prob(logits, context)")
    before = [fingerprint(one) for one in (mh.patching.Scale(2.0), mh.log_prob, used)]
    monkeypatch.setattr(mh.patching.Scale, "__call__", lambda self, value, context: value / self.factor)
    monkeypatch.setattr(mh.log_prob.__wrapped__, "__code__", mh.patching.accuracy.__wrapped__.__code__)
    after = [fingerprint(one) for one in (mh.patching.Scale(2.0), mh.log_prob, used)]
    assert all(one != other for one, other in zip(before, after, strict=True))


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
