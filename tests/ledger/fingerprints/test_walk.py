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
print(json.dumps(found))
"""


@pytest.mark.slow
def test_the_same_in_another_process(tmp_path: Path) -> None:
    started = []
    for seed, folder, above in (("1", "here", ""), ("2", "there", "# a line\n\n\n")):
        path = tmp_path / folder / "script.py"
        path.parent.mkdir()
        path.write_text(above + SCRIPT, "utf-8")
        environment = os.environ | {"PYTHONHASHSEED": seed}
        started.append(subprocess.Popen([sys.executable, str(path)], env=environment, stdout=subprocess.PIPE))
    found = [json.loads(process.communicate()[0]) for process in started]
    assert found[0] == found[1]
    assert len(set(found[0].values())) == len(found[0]) == 41
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in found[0].values())
    here: dict[str, object] = {"int": 1, "dict": {"two": 3, "one": 3, "three": 5, "four": 4, "six": 3, "five": 4}}
    here |= {
        "tensor": torch.arange(4, dtype=torch.bfloat16),
        "resample": mh.patching.Resample(3),
        "kl": mh.kl_divergence,
    }
    assert {name: fingerprint(thing) for name, thing in here.items()} == {name: found[0][name] for name in here}


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
    """What ``thing`` is after this source."""
    space: dict[str, Any] = {"__name__": "notebook", "mh": mh, "torch": torch, "np": np, "dataclass": dataclass} | names
    exec(compile(source, f"/cell/{id(space)}.py", "exec", dont_inherit=True), space)
    return space["thing"]


GATE = """
class Base:
    floor = {floor}
    def bound(self, value): return value + {step}
@dataclass(frozen=True)
class Gate(Base):
    strength: float = {strength}
    site = "{site}"
    needs = {needs}
    def __call__(self, value, context): return self.helper(value) {sign} self.strength * self.offset
    @staticmethod
    def helper(value): return scale * value
    @property
    def offset(self): return {offset}
thing = Gate()
"""
GIVEN = {"floor": 0, "step": 1, "strength": 2.0, "site": "q", "needs": ("q",), "sign": "+", "offset": 3}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("floor", 1),
        ("step", 2),
        ("strength", 2),
        ("site", "k"),
        ("needs", ()),
        ("sign", "-"),
        ("offset", 4),
        ("scale", 2),
    ],
)
def test_a_changed_class_is_another(name: str, value: object) -> None:
    def gate(scale: int = 1, **changed: Any) -> str:
        return fingerprint(define(GATE.format(**GIVEN | changed), scale=scale))

    assert gate() == gate() != gate(**{name: value})


METRIC = """
LIMIT = {limit}
def helper(x): return inner(x) + {helper}
def inner(x): return x * {inner} if x else thing
def make(k):
    def thing(logits, context, /, low={low}, *, high={high}):
        {line}
        try:
            total = [row for row in logits if row in {{1, "b", {member}}}]
            return (lambda y: y + k + LIMIT)(helper(total))
        except {caught}:
            return np.{function}(logits) + len(context)
    return thing
thing = {before}make({k}){after}
"""
WRITTEN = {
    "limit": 1,
    "helper": 2,
    "inner": 3,
    "low": 4,
    "high": 5,
    "member": 6,
    "caught": "ValueError",
    "function": "exp",
    "k": 7,
    "before": "",
    "after": "",
    "line": "",
}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[(name, 0) for name in ("limit", "helper", "inner", "low", "high", "member", "k")],
        ("caught", "KeyError"),
        ("function", "log"),
        ("k", "helper"),
        ("before", "mh.metric()("),
    ],
)
def test_a_changed_function_is_another(name: str, value: object) -> None:
    def metric(**changed: Any) -> str:
        return fingerprint(define(METRIC.format(**WRITTEN | changed)))

    changed = {name: value, "after": ")" if name == "before" else ""}
    assert metric() == metric() != metric(**changed)


def test_where_a_function_stands_does_not_matter() -> None:
    moved = "# a remark\n\n\n" + METRIC.format(**WRITTEN | {"line": "# another\n\n"})
    assert fingerprint(define(moved)) == fingerprint(define(METRIC.format(**WRITTEN)))
    renamed = "def better_name(logits, context): return logits[..., 0]\nthing = better_name"
    assert fingerprint(define(renamed)) == fingerprint(define("thing = lambda logits, context: logits[..., 0]"))


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


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Counter(), r"it is an object of collections\.Counter; make it a frozen dataclass or a module-level function"),
        (Loose(), r"it is a Loose, a dataclass that can change; write @dataclass\(frozen=True\)"),
        ([Loose()], r"it is a Loose"),
        (torch.nn.Linear(1, 1), r"an object of torch\.nn\.modules\.linear\.Linear"),
        (torch.eye(2).to_sparse(), r"it is a torch\.sparse_coo tensor on cpu; only a plain tensor has values"),
        (torch.empty(1, device="meta"), r"it is a torch\.strided tensor on meta"),
        (Kept(1, [iter(())]), r"Kept\.names is an object of builtins\.tuple_iterator"),
        (define("thing = lambda z, c, k=object(): k"), r"<lambda>'s defaults is an object of builtins\.object"),
        (define("def f(z): return bad\ndef thing(z): return f(z)", bad=Counter()), r"f in thing > bad in f is an obj"),
        (unfinished(), r"late in early is an object of builtins\.object"),
        (functools.partial(len, Loose()), "it is a Loose"),
        (Loose().__eq__, "it is a Loose"),
        (functools.reduce(lambda inner, _: [inner], range(5000), []), "contains itself, or is nested too deeply"),
    ],
)
def test_what_has_no_fingerprint_is_an_error(thing: object, message: str) -> None:
    with pytest.raises(ValueError, match=f"^metric cannot be fingerprinted: .*{message}"):
        fingerprint(thing, "metric")


def test_a_list_that_holds_itself_is_an_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="contains itself"):
        fingerprint(loop)


def test_a_named_tuple_is_its_values_and_its_class() -> None:
    assert fingerprint(namedtuple("Pair", "x y")(1, 2)) == fingerprint(namedtuple("Pair", "x y")(1, 2))
    assert fingerprint(namedtuple("Pair", "x y")(1, 2)) != fingerprint(namedtuple("Other", "x y")(1, 2))


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


def test_the_weights_of_the_default_model(model: mh.Model) -> None:
    found = weights_fingerprint(model.model)
    model.cache(["The capital of France is"], progress=False)
    assert weights_fingerprint(model.model) == found


def test_it_does_not_import_torch() -> None:
    code = """
import sys
from mechheads.ledger.fingerprints import fingerprint
fingerprint((1, "a", {2.0}, lambda x: x))
print(sorted({"torch", "transformer_lens", "pandas", "xarray"} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout.strip() == b"[]"
