"""Sweeps with a store: killed, interrupted or repeated they end with the same bits, and what changes starts anew."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.engine.answer_check import AnswerWarning
from mechheads.engine.evaluate import Evaluator
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.runs.head_cache import HeadCache
from support.levels import few

PROMPTS = [" The capital of France is", " The capital of Spain is the big"]


def capitals(wrong: str = " Rome") -> mh.PromptPairs:
    others = [" The capital of Italy is", " The capital of Germany is the small"]
    return mh.PromptPairs(PROMPTS, others, answer=[" Paris", " Madrid"], wrong=[wrong, " Berlin"])


HEADS = ["L0H1", "L1H0", "L1H2", "L2H3"]
ONE_BY_ONE: dict[str, Any] = {"budget": Limits(tokens=1, logit_rows=1)}
"""Every unit is a wave of its own."""

SWEEPS: dict[str, Callable[..., mh.HeadScores]] = {
    "ablation": lambda model, **given: mh.ablate(
        model, PROMPTS, heads=HEADS, positions=[1, 2, 4], progress=False, **(ONE_BY_ONE | given)
    ),
    "patching": lambda model, **given: mh.activation_patch(
        model, capitals(), site="k", progress=False, **(ONE_BY_ONE | given)
    ),
    "paths": lambda model, **given: mh.path_patch(
        model,
        capitals(),
        receivers=["L2H1.q", "L2.mlp"],
        senders=HEADS,
        positions=[3, -1],
        progress=False,
        **(ONE_BY_ONE | given),
    ),
    "matrix": lambda model, **given: mh.path_matrix(
        model, capitals(), receivers=["L2H0.v", "final"], senders=HEADS[:3], progress=False, **(ONE_BY_ONE | given)
    ),
}


@pytest.fixture(scope="module")
def small(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many copies were judged, wave by wave; every unit is a wave of its own."""
    seen: list[int] = []
    judge = Evaluator.__call__

    def noting(self: Evaluator, final: torch.Tensor) -> np.ndarray:
        seen.append(len(final))
        return judge(self, final)

    monkeypatch.setattr(Evaluator, "__call__", noting)
    return seen


def same(one: mh.HeadScores, other: mh.HeadScores) -> bool:
    """Whether two results are the same to the bit."""
    return one.values.values.tobytes() == other.values.values.tobytes() and one.dataset.identical(other.dataset)


WORKER = """
import json, mmap, os, signal, sys, time
import torch
torch.set_num_threads(1)
import mechheads as mh
from mechheads.engine.evaluate import Evaluator
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits

folder, model, moments = sys.argv[1], mh.load(sys.argv[2]), json.loads(sys.argv[3])
one = Limits(tokens=1, logit_rows=1)  # every unit is a wave of its own
log = os.open(f"{folder}/log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
lines = mmap.mmap(-1, 1)  # shared with the children: how many lines one has written


def note(*words):
    os.write(log, (",".join(words) + "\\n").encode())
    lines[0] = min(lines[0] + 1, 255)


def sweep(store=None):
    prompts = [" The capital of France Italy Spain Germany is Paris Rome Madrid"]
    return mh.ablate(model, prompts, positions="each", budget=one, progress=False, store=store)


sweep().save(f"{folder}/undisturbed.nc")
judge, finished, commit = Evaluator.__call__, Ledger.finished, Ledger.commit


def judging(self, final):
    time.sleep(0.01)  # so that a fast machine is not done before the last kill
    values = judge(self, final)
    note("judged", str(len(final)))
    return values


def finding(self):
    units = finished(self)
    note("found", *units)
    return units


def committing(self, units):
    note("computed", *units)
    commit(self, units)
    note("committed", *units)


Evaluator.__call__, Ledger.finished, Ledger.commit = judging, finding, committing
for wanted, seconds in moments:
    lines[0] = 0
    child = os.fork()
    if not child:
        sweep(f"{folder}/store")
        lines[0] = 255
        signal.pause()  # done before it was killed: wait for that
    given_up = time.monotonic() + 10  # a thread that held a lock at the fork holds it for ever
    while lines[0] < wanted and time.monotonic() < given_up:
        time.sleep(0.0005)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL
sweep(f"{folder}/store").save(f"{folder}/resumed.nc")
"""


@pytest.mark.release
def test_killed_at_25_random_moments_it_ends_with_the_same_bits_and_computes_nothing_twice(
    tmp_path: Path, tiny
) -> None:
    chance = random.Random(0)
    lines = [max(0, chance.randrange(-4, 16)) for _ in range(25)]
    moments = [(wanted, chance.uniform(0, 0.01 if wanted else 0.08)) for wanted in lines]  # lines of the log, seconds
    subprocess.run([sys.executable, "-c", WORKER, tmp_path, tiny("llama"), json.dumps(moments)], check=True)
    resumed, undisturbed = (mh.HeadScores.load(tmp_path / f"{name}.nc") for name in ("resumed", "undisturbed"))
    assert same(resumed, undisturbed)
    lines = [line.split(",") for line in (tmp_path / "log").read_text().splitlines()]
    safe: set[str] = set()
    found: list[int] = []
    judged = computed = 0
    for what, *names in lines:
        if what == "found":
            assert safe <= set(names), "committed, and gone after the process was killed"
            found.append(len(names))
            judged = computed = 0
        elif what == "judged":
            judged += int(names[0])
        elif what == "computed":
            assert not safe.intersection(names), "computed again after it was committed"
            computed += len(names)
        if what != "computed" and what != "judged":
            safe.update(names)
        assert 0 <= judged - computed <= 1, "judged, and not committed"
    assert len(safe) == resumed.n_layers * resumed.n_heads * resumed.dataset.sizes["pos"]
    assert len(set(found)) >= 5, "killed before anything was done"
    assert found[-1] < len(safe), "never killed on its way"
    with Ledger(tmp_path / "store", "another key", {}):
        assert [sweep["units"] for sweep in Ledger.list(tmp_path / "store")] == [len(safe), 0]


@pytest.mark.parametrize("name", few(SWEEPS, "ablation", "matrix"))
def test_the_same_call_again_runs_no_wave(small, judged, tmp_path, name):
    sweep, store = SWEEPS[name], tmp_path / "store"
    undisturbed, units = sweep(small), len(judged)
    assert units >= 6
    assert same(sweep(small, store=store), undisturbed)
    assert len(judged) == 2 * units
    assert same(sweep(small, store=str(store)), undisturbed)
    assert len(judged) == 2 * units


@pytest.mark.parametrize("name", few(SWEEPS, "patching", "matrix"))
def test_after_ctrl_c_the_same_call_completes(small, judged, tmp_path, monkeypatch, name):
    sweep, store = SWEEPS[name], tmp_path / "store"
    undisturbed, units = sweep(small), len(judged)
    judge = Evaluator.__call__

    def interrupted(self, final):
        if len(judged) == units + 4:
            raise KeyboardInterrupt
        return judge(self, final)

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    with pytest.warns(UserWarning, match=r"^interrupted after \d+ of \d+ (units|senders); the rest are NaN$"):
        partial = sweep(small, store=store)
    assert partial.missing and partial.provenance["interrupted"]
    monkeypatch.setattr(Evaluator, "__call__", judge)
    known = np.isfinite(partial.values.values)
    assert known.any()
    np.testing.assert_array_equal(partial.values.values[known], undisturbed.values.values[known])
    with warnings.catch_warnings(action="error"):
        warnings.simplefilter("ignore", AnswerWarning)
        assert same(sweep(small, store=store), undisturbed)
    assert len(judged) == 2 * units


def test_as_many_copies_go_together_as_when_it_began(small, judged, tmp_path, monkeypatch):
    sweep, store, judge = SWEEPS["patching"], tmp_path / "store", Evaluator.__call__
    many = Limits(tokens=50, logit_rows=1)
    undisturbed = sweep(small, budget=many)
    waves = judged.copy()
    assert max(waves) > 1

    def interrupted(self, final):
        if len(judged) == len(waves) + 1:
            raise KeyboardInterrupt
        return judge(self, final)

    monkeypatch.setattr(Evaluator, "__call__", interrupted)
    with pytest.warns(UserWarning, match="interrupted"):
        sweep(small, store=store, budget=many)
    monkeypatch.setattr(Evaluator, "__call__", judge)
    assert same(sweep(small, store=store, budget=Limits(2**30, tokens=1, logit_rows=1)), undisturbed)
    assert judged == 2 * waves


@pytest.mark.parametrize("budgets", [(None, 20_000), (20_000, None), (60_000, 20_000)])
def test_paths_resumed_with_another_budget_go_in_the_same_waves(small, tmp_path, monkeypatch, budgets):
    ends = [" dog", " cat", " book", " big", " small"]
    clean, corrupted = ([f" {number} capital of France is{end}" for end in ends] for number in ("one", "two"))
    pairs = mh.PromptPairs(clean, corrupted, answer=[" Paris"] * 5, wrong=[" Rome"] * 5)
    judge, seen = Evaluator.__call__, []

    def noting(self, final):
        if len(seen) == stop:
            raise KeyboardInterrupt
        seen.append(len(final))
        return judge(self, final)

    def paths(budget, store=None):
        few = replace(Limits.of(budget), tokens=12)  # ten senders at a time if prompts share rows, else six
        return mh.path_patch(small, pairs, receivers="final", budget=few, progress=False, store=store)

    monkeypatch.setattr(Evaluator, "__call__", noting)
    stop = -1
    undisturbed = paths(budgets[0])
    waves = seen.copy()
    assert len(waves) > 1
    seen.clear()
    stop = 1
    with pytest.warns(UserWarning, match="interrupted"):
        paths(budgets[0], tmp_path / "store")
    stop = -1
    assert same(paths(budgets[1], tmp_path / "store"), undisturbed)
    assert seen == waves


HALF = mh.patching.Scale(0.5)


def written(source: str) -> Callable[..., Any]:
    """A function from its source, as one typed into a notebook."""
    names: dict[str, Any] = {}
    exec(compile(source, "<cell>", "exec"), names)
    return names["score"]


SCORE = """
def score(logits, context):
    return logits[:, -1, 3] - 2 * logits[:, -1, 4]
"""


@pytest.mark.slow
def test_whatever_changes_is_another_sweep_and_nothing_is_stale(tiny, judged, tmp_path):
    store, folder = tmp_path / "store", tiny("llama")
    model = mh.load(folder)

    def sweep(model=model, prompts=PROMPTS, intervention=HALF, metric=None, heads=("L0H1", "L1H2"), **given):
        asked = {"intervention": intervention, "metric": metric or written(SCORE), "heads": heads} | given
        return mh.sweep(model, prompts, progress=False, **asked)

    changes: dict[str, dict[str, Any]] = {
        "nothing": {},
        "a constant of the metric": {"metric": written(SCORE.replace("2 *", "3 *"))},
        "a line of the metric": {"metric": written(SCORE.replace("- 2 *", "+ 2 *"))},
        "what the metric reads": {"metric": mh.metric(reads="all")(written(SCORE))},
        "another metric": {"metric": mh.kl_divergence},
        "a parameter of the intervention": {"intervention": mh.patching.Scale(0.25)},
        "another intervention": {"intervention": mh.Zero()},
        "a function for an intervention": {"intervention": lambda z, context: z / 3},
        "another prompt": {"prompts": [PROMPTS[0], " The capital of Spain is the small"]},
        "fewer prompts": {"prompts": PROMPTS[:1]},
        "pairs": {"prompts": capitals(), "intervention": mh.Patch()},
        "the other answer": {"prompts": capitals(wrong=" book"), "intervention": mh.Patch()},
        "the other direction": {"prompts": capitals(), "intervention": mh.Patch(), "base": "corrupted"},
        "another site": {"prompts": capitals(), "intervention": mh.Patch("v")},
        "one position": {"positions": "last"},
        "other heads": {"heads": ("L0H1", "L1H2", "L1H3")},
    }
    results = {}
    for number, (what, change) in enumerate(changes.items(), 1):
        before = len(judged)
        results[what] = sweep(**change, store=store)
        assert len(judged) > before, what
        assert len(Ledger.list(store)) == number, what

    half = mh.load(folder, dtype=torch.bfloat16)
    for _ in range(2):
        assert not np.array_equal(sweep(half, store=store).values, results["nothing"].values)
        assert [one["units"] for one in Ledger.list(store)[len(changes) :]] == [2]

    weight = next(p for name, p in model.model.named_parameters() if p.ndim == 2 and "mlp" in name)
    with torch.no_grad():
        kept, weight[0, 0] = float(weight[0, 0]), 1.0
    before = len(judged)
    nudged = sweep(store=store)
    assert len(judged) > before
    assert len(Ledger.list(store)) == len(changes) + 2
    assert same(nudged, sweep())
    assert not np.array_equal(nudged.values, results["nothing"].values)
    with torch.no_grad():
        weight[0, 0] = kept
    before = len(judged)
    for what, change in changes.items():
        assert same(sweep(**change, store=store), results[what]), what
    assert len(judged) == before
    again = sweep(store=store, seed=1, budget="1 GB", name="mine")
    assert len(judged) == before
    assert same(again, sweep(seed=1, name="mine"))
    assert same(results["nothing"], sweep())


def test_another_configuration_of_the_same_weights_is_another_sweep(tiny, tmp_path):
    folder, store = tmp_path / "model", tmp_path / "store"
    shutil.copytree(tiny("llama"), folder)

    def sweep(**given):
        return mh.ablate(mh.load(folder), PROMPTS, heads="L1H2", progress=False, **given)

    first = sweep(store=store)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}), "utf-8")
    second = sweep(store=store)
    assert len(Ledger.list(store)) == 2
    assert same(second, sweep())
    assert not np.array_equal(second.values, first.values)


def test_paths_to_other_receivers_are_another_sweep(small, judged, tmp_path):
    def paths(store=None, **given):
        asked = {"receivers": ["L2H1.q"], "senders": ["L0H1", "L1H3"], "progress": False} | given
        return mh.path_patch(small, capitals(), store=store, **asked)

    changes: list[dict[str, Any]] = [
        {},
        {"receivers": ["L2H1.k"]},
        {"receivers": ["L2H1.q", "L2H1.k"]},
        {"receivers": "final"},
        {"mlps": "frozen"},
        {"direction": "denoising"},
        {"metric": mh.log_prob},
        {"positions": "last"},
        {"senders": ["L0H1"]},
    ]
    for number, change in enumerate(changes, 1):
        alone, before = paths(**change), len(judged)
        assert same(paths(tmp_path / "store", **change), alone), change
        assert len(judged) > before, change
        assert len(Ledger.list(tmp_path / "store")) == number, change


@pytest.fixture
def unrun(small, monkeypatch: pytest.MonkeyPatch) -> mh.Model:
    """A model that a sweep has seen before, and that must not be run again."""
    mh.ablate(small, PROMPTS[:1], heads="L0H0", progress=False)

    def never(*_args: Any, **_options: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(HeadCache, "run", never)
    monkeypatch.setattr(small.backend, "run", never)
    return small


@pytest.mark.parametrize(
    "part",
    [
        lambda thing: {"metric": lambda logits, context: (thing, logits[:, -1, 0])[1]},
        lambda thing: {"intervention": lambda z, context: (thing, z)[1]},
    ],
    ids=["metric", "intervention"],
)
def test_what_cannot_be_told_apart_is_an_error_before_the_model_is_run(unrun, tmp_path, part):
    given = {"intervention": mh.Zero(), "metric": mh.kl_divergence} | part(object())
    with pytest.raises(
        ValueError, match=r"^(metric|intervention) cannot be fingerprinted: thing in <lambda> is an obj"
    ):
        mh.sweep(unrun, PROMPTS, **given, store=tmp_path / "store", progress=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", SWEEPS)
def test_a_file_that_is_no_ledger_is_an_error_and_stays_as_it_is(unrun, tmp_path, name):
    for content in (b"layer,head,score\n0,0,1.5\n", b"SQLite format 3\0" + bytes(4080), b""):
        (tmp_path / "mine.csv").write_bytes(content)
        with pytest.raises(ValueError, match=r"mine\.csv .*was not changed"):
            SWEEPS[name](unrun, store=tmp_path / "mine.csv")
        assert (tmp_path / "mine.csv").read_bytes() == content
    assert [one.name for one in tmp_path.iterdir()] == ["mine.csv"]
