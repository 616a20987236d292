"""Every analysis with a store: killed, interrupted, resumed by workers or repeated it ends with the same bits.

And whatever changes the numbers starts anew.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
import mechheads.engine.work
from mechheads.engine.work import UnitRuns, unit_key
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.runs.head_cache import HeadCache
from mechheads.safety import compare_ablations, generalized_ships, refusal_contribution, sahara
from support.levels import few
from support.made_workers import MadeWorkers
from support.rules import rule_of
from support.texts import CAPITALS_CLEAN as PROMPTS, CAPITALS_PAIRS as PAIRS

pytestmark = [
    pytest.mark.usefixtures("brief_answers"),
    pytest.mark.filterwarnings("ignore:.*a mean probability of:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*refuses none of:UserWarning"),
]

ONE_BY_ONE = Limits(tokens=1, logit_rows=1)
"""Every unit is a batch of its own."""
HEADS = ["L0H1", "L1H0", "L1H2", "L2H3"]
REQUESTS = ["When John went to the store", " no", "I help"]
HARMFUL = [" The capital of France", " yes"]
HARMLESS = [" no", " three cat"]
EVERY: dict[str, Any] = {"budget": ONE_BY_ONE}
SOME = EVERY | {"heads": HEADS}
BARE, BEGUN = EVERY | {"template": "bare"}, EVERY | {"opening": " no yes"}

ANALYSES: dict[str, Callable[..., Any]] = {
    "ablation": lambda model, **given: mh.ablate(model, PROMPTS, positions=[1, 2, 4], **SOME | given),
    "patching of k": lambda model, **given: mh.activation_patch(
        model, PAIRS, site="k", positions="each", **SOME | {"heads": HEADS[1:3]} | given
    ),
    "paths to the logits": lambda model, **given: mh.path_patch(model, PAIRS, **EVERY | given),
    "matrix": lambda model, **given: mh.path_matrix(model, PAIRS, receivers=["L2H0.v", "final"], **EVERY | given),
    "ships": lambda model, **given: mh.ships(
        model, REQUESTS, intervention=rule_of("undifferentiated", epsilon=0.3), **BARE | given
    ),
    "safety heads": lambda model, **given: mh.safety_heads(
        model, REQUESTS, 2, intervention=rule_of("undifferentiated"), **BARE | given
    ),
    "comparison": lambda model, **given: compare_ablations(model, REQUESTS, 2, heads=HEADS, **BARE | given),
    "contribution": lambda model, **given: refusal_contribution(model, HARMFUL, HARMLESS, heads=HEADS, **BEGUN | given),
    "contribution by patching": lambda model, **given: refusal_contribution(
        model, HARMFUL, HARMLESS, intervention="patch", **BEGUN | given
    ),
    "all scores": lambda model, **given: mh.safety_heads(model, HARMFUL, 2, harmless=HARMLESS, **SOME | given),
    "search for a group": lambda model, **given: {
        "trace": sahara(model, REQUESTS, 3, heads=HEADS, **BARE | given).trace
    },
    "search for a group by means": lambda model, **given: {
        "trace": sahara(model, REQUESTS, 2, intervention=rule_of("mean"), score="ships", **BARE | given).trace
    },
}
ALWAYS = ("ablation", "patching of k", "matrix", "ships", "contribution", "search for a group")
"""One of each kind of work; the others before a release."""


class Killed(BaseException):
    """The end of a process: nothing handles it."""


class Computed:
    """How many units were computed in this process or by workers, and with which one the next end comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units, self.end, self.error = 0, -1, Killed
        compute = mechheads.engine.work.compute

        def counted(work: Any, batches: Any, take: Any, **more: Any) -> bool:
            def counting(units: Any, values: Any) -> None:
                if self.units == self.end:
                    self.end = -1
                    raise self.error
                self.units += len(units)
                take(units, values)

            return compute(work, batches, counting, **more)

        monkeypatch.setattr(mechheads.engine.work, "compute", counted)


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> Computed:
    return Computed(monkeypatch)


@pytest.fixture(scope="module")
def workers() -> MadeWorkers:
    return MadeWorkers(2)


def same(ours: Any, theirs: Any) -> bool:
    """Whether results are the same to the bit, with all that they say about themselves."""
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in ours)
    return ours.scores.values.tobytes() == theirs.scores.values.tobytes() and ours.dataset.identical(theirs.dataset)


def pairs_of(ours: Any, theirs: Any) -> list[tuple[mh.HeadScores, mh.HeadScores]]:
    return [(ours[name], theirs[name]) for name in ours] if isinstance(ours, dict) else [(ours, theirs)]


def stored(store: Path) -> int:
    return sum(sweep["units"] for sweep in Ledger.list(store))


@pytest.mark.parametrize("name", few(ANALYSES, *ALWAYS))
def test_killed_and_interrupted_it_goes_on_by_workers_and_computes_only_what_is_missing(
    small: mh.Model, workers: MadeWorkers, computed: Computed, tmp_path: Path, name: str
) -> None:
    analysis, store = ANALYSES[name], tmp_path / "store"
    undisturbed, units = analysis(small), computed.units
    assert units >= 6
    computed.units, computed.end = 0, units // 4
    with pytest.raises(Killed):
        analysis(small, store=store)
    assert computed.units == units // 4 == stored(store)
    computed.end, computed.error = units // 2, KeyboardInterrupt
    with pytest.warns(UserWarning, match="^interrupted after "):
        partial = analysis(small, store=store)
    pairs = pairs_of(partial, undisturbed)
    assert any(one.provenance["interrupted"] for one, _ in pairs)
    for one, whole in pairs:
        known = np.isfinite(one.scores.values)
        reached = whole.scores.values[tuple(map(slice, known.shape))]
        np.testing.assert_array_equal(one.scores.values[known], reached[known])
    begun, before = computed.units, len(workers.computed)
    assert same(analysis(small, store=store, workers=workers), undisturbed)
    assert sum(map(len, workers.computed[before:])) == units - begun
    assert same(analysis(small, store=str(store)), undisturbed)
    assert computed.units == units, "a unit was computed twice, or one was not"


def test_another_process_that_was_faster_gives_both_the_same_numbers(
    small: mh.Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, compute = tmp_path / "store", mechheads.engine.work.compute

    def slower(work: Any, batches: Any, take: Any, **more: Any) -> bool:
        def late(units: Any, values: Any) -> None:
            with Ledger(store, Ledger.list(store)[0]["key"], {}) as faster:
                names = [unit_key(unit, work.job.ledger_suffix) for unit in units]
                faster.commit({name: one + 1e-9 for name, one in zip(names, values, strict=True)})
            take(units, values)

        return compute(work, batches, late, **more)

    monkeypatch.setattr(mechheads.engine.work, "compute", slower)
    ours = ANALYSES["ablation"](small, store=store)
    assert (ours.scores.values != ANALYSES["ablation"](small).scores.values).any()
    assert same(ours, ANALYSES["ablation"](small, store=store))


@pytest.mark.parametrize("name", ["ablation", "contribution"])
def test_a_file_that_is_no_ledger_is_an_error_before_the_model_runs(unrun: mh.Model, tmp_path: Path, name: str) -> None:
    (tmp_path / "mine.csv").write_text("layer,head,score\n")
    with pytest.raises(ValueError, match=r"mine\.csv .*was not changed"):
        ANALYSES[name](unrun, store=tmp_path / "mine.csv")
    assert (tmp_path / "mine.csv").read_text() == "layer,head,score\n"
    assert [one.name for one in tmp_path.iterdir()] == ["mine.csv"]


@pytest.fixture
def unrun(small: mh.Model, monkeypatch: pytest.MonkeyPatch) -> mh.Model:
    """A model that a sweep has seen before, and that must not be run again."""
    mh.ablate(small, PROMPTS[:1], heads="L0H0")

    def never(*_args: Any, **_options: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(HeadCache, "run", never)
    monkeypatch.setattr(small.backend, "run", never)
    return small


@pytest.mark.parametrize(("limits", "kept"), [(Limits(tokens=30), 0), (Limits(tokens=50, logit_rows=1), 6)])
def test_as_many_units_go_together_as_when_it_began_and_half_a_batch_is_not_stored(
    small: mh.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: Limits, kept: int
) -> None:
    run, waves, store = UnitRuns.__call__, [], tmp_path / "store"
    stop = -1

    def noting(self: UnitRuns, units: Any) -> list[torch.Tensor]:
        if len(waves) == stop:
            raise KeyboardInterrupt
        waves.append(len(units))
        return run(self, units)

    def patch(budget: Limits, **given: Any) -> mh.HeadScores:
        waves.clear()
        return mh.activation_patch(small, PAIRS, site="k", budget=budget, **given)

    monkeypatch.setattr(UnitRuns, "__call__", noting)
    undisturbed, all_waves = patch(limits), waves.copy()
    stop = len(all_waves) - 1
    for given, units in (({}, 12 - all_waves[-1]), ({"store": store}, kept)):
        with pytest.warns(UserWarning, match=f"^interrupted after {units} of 12 units; the rest are NaN"):
            patch(limits, **given)
    stop = -1
    assert stored(store) == kept
    assert same(patch(ONE_BY_ONE, store=store), undisturbed)
    assert waves == ([1, 1, *all_waves[-1:]] if kept else all_waves), "two stored units run again, one by one"


def written(source: str) -> Callable[..., Any]:
    """A function from its source, as one typed into a notebook."""
    names: dict[str, Any] = {}
    exec(compile(source, "<cell>", "exec"), names)
    return names["score"]


SCORE = """
def score(logits, context):
    return logits[:, -1, 3] - 2 * logits[:, -1, 4]
"""
HALF = mh.patching.Scale(0.5)
TWO: dict[str, Any] = {"heads": HEADS[:2]}
CALLS: dict[str, Callable[..., Any]] = {
    "sweep": lambda model, prompts=PROMPTS, intervention=HALF, metric=None, **given: mh.sweep(
        model, prompts, intervention=intervention, metric=metric or written(SCORE), **TWO | given
    ),
    "paths": lambda model, **given: mh.path_patch(
        model, **{"pairs": PAIRS, "receivers": ["L2H1.q"], "senders": HEADS[:2]} | given
    ),
    "ships": lambda model, call=mh.ships, requests=REQUESTS, **given: call(
        model, requests, **TWO | {"template": "bare"} | given
    ),
    "contribution": lambda model, harmful=HARMFUL, harmless=HARMLESS, **given: refusal_contribution(
        model, harmful, harmless, **TWO | {"opening": " no yes"} | given
    ),
}
OTHER_ANSWER = mh.PromptPairs(PROMPTS, PAIRS.corrupted, answer=[" Paris", " Madrid"], wrong=[" book", " Berlin"])
CHANGES: dict[str, list[dict[str, Any]]] = {
    "sweep": [
        {},
        {"metric": written(SCORE.replace("2 *", "3 *"))},
        {"metric": written(SCORE.replace("- 2 *", "+ 2 *"))},
        {"metric": mh.metric(reads="all")(written(SCORE))},
        {"metric": mh.kl_divergence},
        {"intervention": mh.patching.Scale(0.25)},
        {"intervention": mh.Zero()},
        {"intervention": lambda z, context: z / 3},
        {"prompts": [PROMPTS[0], " The capital of Spain is the small"]},
        {"prompts": PROMPTS[:1]},
        {"prompts": PAIRS, "intervention": mh.Patch()},
        {"prompts": OTHER_ANSWER, "intervention": mh.Patch()},
        {"prompts": PAIRS, "intervention": mh.Patch(), "base": "corrupted"},
        {"prompts": PAIRS, "intervention": mh.Patch("v")},
        {"positions": "last"},
        {"heads": HEADS[:3]},
    ],
    "paths": [
        {},
        {"receivers": ["L2H1.k"]},
        {"receivers": ["L2H1.q", "L2H1.k"]},
        {"receivers": "final"},
        {"mlps": "frozen"},
        {"direction": "denoising"},
        {"metric": mh.log_prob},
        {"senders": HEADS[:1]},
    ],
    "ships": [
        {},
        {"requests": REQUESTS[:2]},
        {"template": "query"},
        {"intervention": "scaling"},
        {"intervention": rule_of("undifferentiated", epsilon=0.5)},
        {"intervention": rule_of("undifferentiated", epsilon=0.5, through="k")},
        {"intervention": "resample"},
        {"intervention": "resample", "seed": 1},
        {"heads": HEADS[1:3]},
        {"call": generalized_ships},
        {"call": generalized_ships, "r": 2},
        {"call": mh.safety_heads, "k": 2},
    ],
    "contribution": [
        {},
        {"harmful": [HARMFUL[0], " Rome is small"]},
        {"harmless": [HARMLESS[0], " Paris is"]},
        {"opening": " yes no"},
        {"template": "query"},
        {"intervention": "undifferentiated"},
        {"intervention": rule_of("scaling", epsilon=0.5)},
        {"intervention": "patch"},
        {"intervention": "patch", "harmless": [HARMLESS[0], " Paris is"]},
    ],
}
"""For each call, what changes its numbers."""


@pytest.mark.parametrize("name", CALLS)
def test_whatever_changes_the_numbers_is_another_sweep_and_nothing_is_stale(
    small: mh.Model, computed: Computed, tmp_path: Path, name: str
) -> None:
    call, store, results = CALLS[name], tmp_path / "store", []
    for change in CHANGES[name]:
        before, sweeps = computed.units, len(Ledger.list(store)) if store.exists() else 0
        results.append(call(small, store=store, **change))
        assert computed.units > before, change
        assert len(Ledger.list(store)) > sweeps, change
    assert same(call(small, **CHANGES[name][-1]), results[-1])
    before = computed.units
    for change, result in zip(CHANGES[name], results, strict=True):
        assert same(call(small, store=store, **change), result), change
    call(small, store=store, budget="1 GB", **({"seed": 9} if name == "sweep" else {}))
    assert computed.units == before


def test_another_dtype_and_another_configuration_are_other_sweeps(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    folder, store = tmp_path / "model", tmp_path / "store"
    shutil.copytree(tiny("llama"), folder)
    first = CALLS["sweep"](mh.load(folder), store=store)
    for _ in range(2):
        assert not same(CALLS["sweep"](mh.load(folder, dtype=torch.bfloat16), store=store), first)
    assert len(Ledger.list(store)) == 2
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}), "utf-8")
    other = mh.load(folder)
    assert same(CALLS["sweep"](other, store=store), CALLS["sweep"](other)) and len(Ledger.list(store)) == 3
