"""What a fingerprint reaches in classes and code: it changes with the result, or it is refused."""

from __future__ import annotations

import functools
import os
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mechheads.ledger.fingerprints import fingerprint


def made(source: str, **known: Any) -> Any:
    """``f``, as a notebook's cell defines it."""
    names: dict[str, Any] = {"__name__": "__main__", "functools": functools, "dataclass": dataclass, **known}
    exec(textwrap.dedent(source), names)
    return names["f"]


def partialmethod(factor: float) -> Any:
    return made(f"""
        @dataclass(frozen=True)
        class Scaled:
            def go(self, z, context, factor): return z * factor
            __call__ = functools.partialmethod(go, factor={factor})
        f = Scaled()""")


def callable_instance(factor: float) -> Any:
    return made(f"""
        @dataclass(frozen=True)
        class Times:
            factor: float
            def __call__(self, z, context): return z * self.factor
        @dataclass(frozen=True)
        class Scaled:
            __call__ = Times({factor})
        f = Scaled()""")


def frozen_decorator(factor: float) -> Any:
    return made(f"""
        @dataclass(frozen=True)
        class logged:
            inner: object
            def __get__(self, thing, cls): return functools.partial(self.inner, thing)
        @dataclass(frozen=True)
        class Scaled:
            @logged
            def __call__(self, z, context): return z * {factor}
        f = Scaled()""")


def of_metaclass(factor: float) -> Any:
    return made(f"""
        class Meta(type):
            @property
            def factor(cls): return {factor}
        @dataclass(frozen=True)
        class Scaled(metaclass=Meta):
            def __call__(self, z, context): return z * type(self).factor
        f = Scaled()""")


def slot_of_a_base(factor: float) -> Any:
    scaled = made("""
        class Base:
            __slots__ = ("hidden",)
        @dataclass(frozen=True)
        class Scaled(Base):
            named: int = 1
            def __call__(self, z, context): return z * self.hidden
        f = Scaled()""")
    object.__setattr__(scaled, "hidden", factor)
    return scaled


def overwritten_property(factor: float) -> Any:
    scaled = made("""
        @dataclass(frozen=True)
        class Scaled:
            @functools.cached_property
            def factor(self): return 1.0
            def __call__(self, z, context): return z * self.factor
        f = Scaled()""")
    vars(scaled)["factor"] = factor
    return scaled


def dunder_value(factor: float) -> Any:
    return made(f"""
        @dataclass(frozen=True)
        class Scaled:
            __factor__ = {factor}
            def __call__(self, z, context): return z * self.__factor__
        f = Scaled()""")


def attribute_of_a_named_tuple(factor: float) -> Any:
    scaled = made("""
        from collections import namedtuple
        class Scaled(namedtuple("Plain", "named")):
            def __call__(self, z, context): return z * self.factor
        f = Scaled(1)""")
    scaled.factor = factor
    return scaled


@pytest.mark.parametrize(
    "scaled",
    [
        partialmethod,
        callable_instance,
        frozen_decorator,
        of_metaclass,
        slot_of_a_base,
        overwritten_property,
        dunder_value,
        attribute_of_a_named_tuple,
    ],
)
def test_two_that_compute_different_things_have_different_fingerprints(scaled: Callable[[float], Any]) -> None:
    a, same, other = (scaled(factor)(3.0, None) for factor in (0.5, 0.5, 0.25))
    assert a == same != other
    a, same, other = (fingerprint(scaled(factor)) for factor in (0.5, 0.5, 0.25))
    assert a == same != other


def test_a_cached_property_counts_only_if_something_else_stands_in_its_place() -> None:
    fresh, used = overwritten_property(1.0), overwritten_property(1.0)
    del vars(fresh)["factor"]
    assert fingerprint(fresh) == fingerprint(used) != fingerprint(overwritten_property(2.0))
    assert "factor" not in vars(fresh)


def test_a_class_based_decorator_that_is_no_dataclass_is_refused() -> None:
    scaled = made("""
        class logged:
            def __init__(self, inner): self.inner = inner
            def __get__(self, thing, cls): return functools.partial(self.inner, thing)
        @dataclass(frozen=True)
        class Scaled:
            @logged
            def __call__(self, z, context): return z
        f = Scaled()""")
    with pytest.raises(ValueError, match=r"Scaled\.__call__ is an object of __main__\.logged; make it a frozen"):
        fingerprint(scaled, what="intervention")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ("float(open('c.txt').read())", "open in f"),
        ("Path('c.txt').read_text()", "read_text in f"),
        ("(lambda: Path('c.txt').read_bytes())()", "read_bytes in f"),
        ("float(os.environ['C'])", "environ in f"),
        ("os.getenv('C')", "getenv in f"),
        ("np.load('c.npy')", "numpy.load in f"),
        ("np.loadtxt('c.txt')", "loadtxt in f"),
        ("__import__('os').sep", "__import__ in f"),
        ("globals()['C']", "globals in f"),
        ("eval('C')", "eval in f"),
        ("sys.modules['os']", "sys.modules in f"),
        ("subprocess.check_output('date')", "subprocess.check_output in f"),
        ("there('c.txt')", "there in f"),
    ],
)
def test_code_that_reads_files_environment_or_made_up_names_is_refused(body: str, named: str) -> None:
    import subprocess
    import sys

    known = {"Path": Path, "os": os, "np": np, "sys": sys, "subprocess": subprocess, "there": Path.read_text}
    metric = made(f"def f(logits, context): return {body}", **known)
    with pytest.raises(ValueError, match=f"^metric cannot be fingerprinted: {named} is a way to read files, the envi"):
        fingerprint(metric, what="metric")


@pytest.mark.parametrize(
    "line",
    [
        "import os; return os.environ['C']",
        "from os import environ; return environ['C']",
        "import numpy; return numpy.load('c.npy')",
        "from json import load; return load(1)",
        "import urllib.request; return urllib.request.urlopen('c')",
    ],
)
def test_imports_inside_code_hide_nothing(line: str) -> None:
    metric = made(f"def f(logits, context):\n    {line}")
    with pytest.raises(ValueError, match="is a way to read files, the environment, the network"):
        fingerprint(metric)


def test_methods_that_share_a_name_with_a_builtin_are_no_reads() -> None:
    a, b = (made(f"def f(logits, context): return context.model.eval() or context.input or {x}") for x in (1, 2))
    assert fingerprint(a) != fingerprint(b)


def test_what_stands_in_place_of_a_librarys_function_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    metric = made("def f(logits, context): return np.tanh(np.linalg.norm(logits))", np=np)
    before = fingerprint(metric)
    monkeypatch.setattr(np.linalg, "norm", made("def f(x): return 2 * x"))
    twice = fingerprint(metric)
    monkeypatch.setattr(np.linalg, "norm", made("def f(x): return 3 * x"))
    assert len({before, twice, fingerprint(metric)}) == 3
    monkeypatch.undo()
    assert fingerprint(metric) == before
