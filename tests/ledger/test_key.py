"""The key of a sweep: the same in another process, another for what gives another result, or an error."""

from __future__ import annotations

import enum
import functools
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.ledger.key import is_witness, mark, model_mark, same_but_for_rounding, witness
from mechheads.ledger.ledger import Ledger

PROMPTS = [" The capital of France is", " The capital of Spain is the big"]


def define(source: str, **names: Any) -> Any:
    """What ``thing`` is after this source, as a notebook's cell defines it."""
    space: dict[str, Any] = {"__name__": "notebook", "mh": mh, "torch": torch, "np": np, "dataclass": dataclass} | names
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
    def helper(value): return value * 5
    @property
    def offset(self): return 3
thing = Gate()
"""
METRIC = """
def make(k, table):
    def thing(logits, context, /, low=4, *, high=5):
        return (lambda y: y + k + 2)(logits[:, -1, 0]) - table.sum()
    return thing
thing = mh.metric(reads="last")(make(7, torch.ones(3)))
"""
CHANGES = {
    "a value of a base": (GATE, "floor = 0", "floor = 1"),
    "a method of a base": (GATE, "value + 1", "value + 2"),
    "the type of a default": (GATE, "= 2.0", "= 2"),
    "a field": (GATE, "= Gate()", "= Gate(3.0)"),
    "a class attribute": (GATE, '= "q"', '= "k"'),
    "a tuple": (GATE, '("q",)', "()"),
    "an operator": (GATE, ") + self", ") - self"),
    "a static method": (GATE, "value * 5", "value * 6"),
    "a property": (GATE, "return 3", "return 4"),
    "a default": (METRIC, "low=4", "low=0"),
    "a default by name": (METRIC, "high=5", "high=0"),
    "a captured number": (METRIC, "make(7", "make(0"),
    "a captured tensor": (METRIC, "ones(3)", "ones(4)"),
    "a constant of a function inside": (METRIC, "+ 2)", "+ 3)"),
    "what a metric declares": (METRIC, '"last"', '"all"'),
    "a lambda on the same line": ("a, thing = lambda z, c: z, lambda z, c: -z", "a, thing =", "thing, a ="),
}
"""Source text, and a change of it that gives another result."""


@pytest.mark.parametrize(("source", "before", "after"), CHANGES.values(), ids=CHANGES)
def test_what_gives_another_result_is_another(source: str, before: str, after: str) -> None:
    assert source.count(before) == 1
    found = mark(define(source))
    assert found == mark(define(source)) != mark(define(source.replace(before, after)))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass(frozen=True)
class Halve:
    factor: float = 0.5
    site: ClassVar[str] = "z"


def double(z: Any, context: Any) -> Any:
    return 2 * z


def values() -> list[Any]:
    """Values, all of them different."""
    plain = define("thing = lambda logits, context: logits[:, -1, 0]")
    kinds = (torch.float16, torch.bfloat16, torch.float64)
    return [
        *(None, ..., True, False, 0, 1, -1, 0.0, -0.0, 1.0, math.inf, 1j, "", "1", "ü", b"", b"1", "\ud800"),
        *((), (1,), [], [1], {}, {1: 2}, {2: 1}, set(), {1}, frozenset({1}), {"one", "two", "three"}, Colour.RED),
        *((1, 2), ((1,), 2), (1, (2,)), ("ab", "c"), ("a", "bc"), slice(1), slice(0, 1), range(1), Colour.BLUE),
        *(torch.float32, torch.int64, torch.device("cpu"), torch.device("cuda", 1), np.dtype("f4"), np.float32(1)),
        *(np.zeros(2), np.zeros((2, 1)), np.zeros(2, "f4"), np.ones(2), re.compile("a"), re.compile("a", re.I)),
        *(torch.zeros(2), torch.zeros(2, 1), torch.ones(2), *(torch.zeros(2, dtype=kind) for kind in kinds)),
        *(torch.tensor(1 + 2j), torch.tensor(1 - 2j), torch.zeros(0), torch.tensor(0.0), plain, double, Halve(2)),
        *(mh.metric(reads=reads, null=null)(plain) for reads in ("last", "all") for null in (0.0, None)),
        *(math.log, np.log, np.mean, torch.relu, Halve(), Halve(0.25), Halve, functools.partial(double, context=1)),
        *(mh.Zero(), mh.patching.Resample(3), mh.Patch("q"), mh.patching.UniformAttention(), mh.patching.Scale(0.5)),
        *(mh.kl_divergence, mh.logit_diff, mh.log_prob, functools.partial(mh.log_prob), mh.Zero, Halve().__eq__),
    ]


def keys() -> list[str]:
    """The marks of all of these, and of the sources above."""
    return [mark(thing) for thing in [*values(), *(define(source) for source, *_ in CHANGES.values())]]


def test_values_are_told_apart() -> None:
    found = list(map(mark, values()))
    assert [thing for i, thing in enumerate(values()) if found[i] in found[:i]] == []


def test_the_same_in_another_process() -> None:
    code = f"import json, runpy; print(json.dumps(runpy.run_path({__file__!r})['keys']()))"
    environment = os.environ | {"PYTHONHASHSEED": "1"}
    there = subprocess.run([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, check=True).stdout
    assert json.loads(there) == keys()
    assert all(re.fullmatch("[0-9a-f]{64}", one) for one in keys())


GRID = torch.arange(6.0).reshape(2, 3)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (GRID.T, GRID.T.contiguous()),
        (GRID, torch.nn.Parameter(GRID)),
        (GRID.numpy().T, GRID.numpy().T.copy()),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j])),
        ({"a": 1, "b": [2]}, {"b": [2], "a": 1}),
        (define(METRIC), define("\n\n" + METRIC)),
        (define("thing = lambda z, c: -z"), define("# a remark\nthing = (lambda z,\n  c: -z)")),
    ],
)
def test_what_gives_the_same_result_is_the_same(one: Any, other: Any) -> None:
    assert mark(one) == mark(other)


def looping() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


@pytest.mark.parametrize(
    ("thing", "message"),
    [
        (Path("a"), r"^metric is an object of pathlib[.\w]*Path, which a ledger cannot know again; keep plain values"),
        (Halve(iter(())), r"^metric > factor is an object of builtins\.tuple_iterator"),  # type: ignore[arg-type]
        (torch.nn.Linear(1, 1), r"^metric is an object of torch\.nn\.modules\.linear\.Linear"),
        (torch.eye(2).to_sparse(), r"^metric is a torch\.sparse_coo tensor on cpu; a ledger compares plain"),
        (torch.empty(1, device="meta"), r"^metric is a torch\.strided tensor on meta"),
        (define("thing = lambda z, c, k=object(): k"), r"^metric > a default is an object of builtins\.object"),
        (looping(), "^metric contains itself, or is nested too deeply"),
    ],
)
def test_what_a_ledger_cannot_know_again_is_an_error(thing: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        mark(thing, "metric")


def test_numbers_are_the_same_but_for_rounding(llama: mh.Model) -> None:
    then = np.array([1.0, np.nan, -2.0])
    assert same_but_for_rounding(then + 0.9e-3, then, 1.0, llama.backend)
    assert not same_but_for_rounding(then + 1.1e-3, then, 1.0, llama.backend)
    assert not same_but_for_rounding(np.array([1.0, 0.0, -2.0]), then, 1.0, llama.backend)
    assert not same_but_for_rounding(np.array([np.nan, np.nan, -2.0]), then, 1.0, llama.backend)


def test_a_model_is_known_by_its_files_and_its_log_probabilities(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    (tmp_path / "copy").symlink_to(tiny("llama"))
    model, gpt2 = mh.load(tiny("llama")), mh.load(tiny("gpt2"))
    marks = {model_mark(one) for one in (model, gpt2, mh.load(tiny("llama"), dtype=torch.bfloat16))}
    assert len(marks) == 3 and model_mark(mh.load(tiny("llama"))) in marks
    before = witness(model)
    assert is_witness(mh.load(tmp_path / "copy"), before) and not is_witness(gpt2, before)
    ids = torch.tensor([[(7 * i + 3) % model.d_vocab for i in range(8)]])
    own = model.model(ids).detach()[0, -1].log_softmax(-1)[:: max(1, model.d_vocab // 64)]
    np.testing.assert_allclose(before, own.tolist(), atol=1e-4)


def test_a_wrapped_model_is_known_by_its_weights(tiny: Callable[[str], Path]) -> None:
    model = mh.wrap(mh.load(tiny("llama")).model)
    before = model_mark(model)
    weight = next(p for name, p in model.model.named_parameters() if p.ndim == 2 and "mlp" in name)
    with torch.no_grad():
        kept, weight[0, 0] = weight[0, 0].clone(), 1.0
        assert model_mark(model) != before
        weight[0, 0] = kept
    assert model_mark(model) == before


def nudge(model: mh.Model) -> Callable[[], object]:
    weight = next(p for name, p in model.model.named_parameters() if p.ndim == 2 and "mlp" in name)
    with torch.no_grad():
        weight.mul_(2)
    return lambda: weight.data.div_(2)


@pytest.mark.parametrize("kind", ["sweep", "gates", "profile"])
def test_results_of_a_model_that_was_changed_since_are_not_mixed(
    tiny: Callable[[str], Path], tmp_path: Path, kind: str
) -> None:
    from support.same import assert_same  # another process runs this file without the tests beside it

    model, store = mh.load(tiny("llama")), tmp_path / "store"
    task = mh.Task([" The capital of France is"], [" Paris"])
    calls: dict[str, Callable[[], Any]] = {
        "sweep": lambda: mh.ablate(model, PROMPTS, heads="L0H1"),
        "gates": lambda: mh.fit_gates(model, task, seeds=1, updates=1),
        "profile": lambda: mh.profile_heads(model, [list(range(3, 43))] * 2, window=32),
    }
    with mh.settings(store=store):
        before = calls[kind]()
        restore = nudge(model)
        with pytest.raises(ValueError, match=r"^store: .*store holds results of model .* gave other log-probabilities"):
            calls[kind]()
        restore()
        assert_same(calls[kind](), before)
    assert len(Ledger.list(store)) == 1


SCALE = 2.0


def scaled(z: Any, context: Any) -> Any:
    return SCALE * z


def test_stored_units_run_again_and_what_no_key_holds_is_refused(
    llama: mh.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sweep() -> mh.HeadScores:
        return mh.sweep(llama, PROMPTS, intervention=scaled, heads=["L0H1", "L1H2"], store=tmp_path / "store")

    before = sweep()
    assert sweep().dataset.identical(before.dataset)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 2.0001)  # within the tolerance: the stored numbers count
    assert sweep().dataset.identical(before.dataset)
    monkeypatch.setattr(sys.modules[__name__], "SCALE", 3.0)
    with pytest.raises(ValueError, match=r"^store: .*store holds other numbers than are computed now: .* 0 differ"):
        sweep()
    monkeypatch.undo()
    assert sweep().dataset.identical(before.dataset)
