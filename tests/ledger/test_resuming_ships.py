"""Ships and Refusal Contribution with a store: what was computed is not computed again, and the bits are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import mechheads as mh
from mechheads.cli import main
from mechheads.engine import run as engine
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.runs.head_cache import HeadCache
from mechheads.safety import compare_ablations, generalized_ships, refusal_contribution, sahara
from mechheads.scale import write_analysis
from support.levels import few
from support.made_workers import MadeWorkers

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*hardly any refusal:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*refuses none of:UserWarning"),
]

REQUESTS = ["When John went to the store", " Paris or Rome", " a big dog gave Mary a book yes", " no", "I help"]
HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes", " Rome is big"]
HARMLESS = [" no", " When Mary went to the store John gave a book", " three cat", " Rome is"]
ONE_BY_ONE = Limits(tokens=1, logit_rows=1)
"""Every unit is a wave of its own."""
BARE: dict[str, Any] = {"template": "bare", "budget": ONE_BY_ONE, "progress": False}
BEGUN: dict[str, Any] = {"opening": " no yes one", "budget": ONE_BY_ONE, "progress": False}
RACE = mh.patching.Race(2, first=3, error=0.3)

ANALYSES: dict[str, Callable[..., Any]] = {
    "ships": lambda model, **given: mh.ships(model, REQUESTS, **BARE | given),
    "angles": lambda model, **given: generalized_ships(model, REQUESTS, r=2, **BARE | given),
    "safety heads": lambda model, **given: mh.safety_heads(model, REQUESTS, 2, group="kv", **BARE | given),
    "resampled angles": lambda model, **given: mh.safety_heads(
        model, REQUESTS, 2, score="generalized_ships", **BARE | given
    ),
    "comparison": lambda model, **given: compare_ablations(model, REQUESTS, 2, **BARE | given),
    "contribution": lambda model, **given: refusal_contribution(model, HARMFUL, HARMLESS, **BEGUN | given),
    "patch": lambda model, **given: refusal_contribution(model, HARMFUL, HARMLESS, by="patch", **BEGUN | given),
    "all scores": lambda model, **given: mh.safety_heads(
        model, HARMFUL, 2, harmless=HARMLESS, **{"budget": ONE_BY_ONE, "progress": False} | given
    ),
    "groups": lambda model, **given: {"trace": sahara(model, REQUESTS, 3, r=2, **BARE | given).trace},
    "groups of means": lambda model, **given: {
        "trace": sahara(model, REQUESTS, 2, ablation="mean", score="ships", group="kv", **BARE | given).trace
    },
    "race": lambda model, **given: compare_ablations(model, REQUESTS * 2, 2, top=RACE, **BARE | given),
    "race of contribution": lambda model, **given: refusal_contribution(
        model, HARMFUL * 3, HARMLESS * 3, **{"top": RACE} | BEGUN | given
    ),
}


class Killed(BaseException):
    """The end of a process: nothing handles it."""


@pytest.fixture(scope="module")
def small(tiny) -> mh.Model:
    return mh.load(tiny("llama"))


class Carried:
    """How many units were computed, and at which the next end comes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units, self.end, self.error = 0, -1, Killed
        carry = engine.carry

        def counted(job: Any, units: Any) -> Any:
            if self.units == self.end:
                self.end = -1
                raise self.error
            self.units += len(units)
            return carry(job, units)

        monkeypatch.setattr(engine, "carry", counted)


@pytest.fixture
def carried(monkeypatch: pytest.MonkeyPatch) -> Carried:
    return Carried(monkeypatch)


def same(ours: Any, theirs: Any) -> bool:
    """Whether results are the same to the bit, with all that they say about themselves."""
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[name], theirs[name]) for name in ours)
    return ours.scores.values.tobytes() == theirs.scores.values.tobytes() and ours.dataset.identical(theirs.dataset)


@pytest.mark.parametrize("name", few(ANALYSES, "ships", "contribution", "groups"))
def test_killed_twice_it_computes_only_what_is_missing_and_gives_the_same_bits(small, carried, tmp_path, name):
    analysis, store = ANALYSES[name], tmp_path / "store"
    undisturbed, units = analysis(small), carried.units
    assert units >= 6
    carried.units = 0
    for end in (units // 3, 2 * units // 3):
        carried.end = end
        with pytest.raises(Killed):
            analysis(small, store=store)
        assert carried.units == end == sum(sweep["units"] for sweep in Ledger.list(store))
    for _ in range(2):
        assert same(analysis(small, store=store), undisturbed)
        assert carried.units == units, "a unit was computed twice, or one was not"


@pytest.mark.parametrize("name", few(["ships", "angles", "comparison", "groups", "race"], "race"))
def test_after_ctrl_c_the_same_call_completes(small, carried, tmp_path, name):
    analysis, store = ANALYSES[name], tmp_path / "store"
    undisturbed, units = analysis(small), carried.units
    carried.units, carried.end, carried.error = 0, units // 2, KeyboardInterrupt
    with pytest.warns(UserWarning, match="^interrupted after "):
        partial = analysis(small, store=store)
    results = partial.values() if isinstance(partial, dict) else [partial]
    assert any(one.provenance["interrupted"] for one in results)
    assert same(analysis(small, store=store), undisturbed)
    assert carried.units == units


def test_ctrl_c_on_the_harmful_side_stores_nothing_of_the_heads_that_were_reached_alone(small, carried, tmp_path):
    analysis, store = ANALYSES["contribution"], tmp_path / "store"
    undisturbed = analysis(small)
    heads = small.n_layers * small.n_heads
    carried.units, carried.end, carried.error = 0, 5, KeyboardInterrupt
    with pytest.warns(UserWarning, match="^interrupted after 5 of 12 heads"):
        partial = analysis(small, store=store)
    assert (carried.units, len(partial.missing)) == (5 + 5, heads - 5)
    reached = ~np.isnan(partial.scores.values)
    np.testing.assert_allclose(partial.scores.values[reached], undisturbed.scores.values[reached], atol=1e-6)
    assert [sweep["units"] for sweep in Ledger.list(store)] == [5]
    assert same(analysis(small, store=store), undisturbed)
    assert [sweep["units"] for sweep in Ledger.list(store)] == [heads, heads]
    assert carried.units == 10 + heads - 5 + heads


@pytest.mark.release
def test_ctrl_c_on_the_side_of_the_look_alikes_is_said_and_the_same_call_completes(small, carried, tmp_path):
    analysis, store = ANALYSES["contribution"], tmp_path / "store"
    undisturbed, units = analysis(small), carried.units
    carried.units, carried.end, carried.error = 0, units - 5, KeyboardInterrupt
    with pytest.warns(UserWarning, match="^interrupted after 7 of 12 units"):
        partial = analysis(small, store=store)
    assert partial.provenance["interrupted"] and len(partial.missing) == 5
    assert same(analysis(small, store=store), undisturbed)
    assert carried.units == units


@pytest.mark.parametrize(
    "name", few(["comparison", "contribution", "patch", "groups", "race of contribution"], "patch")
)
def test_workers_go_on_where_one_process_was_killed(small, carried, tmp_path, name):
    analysis, store = ANALYSES[name], tmp_path / "store"
    undisturbed, units = analysis(small), carried.units
    carried.units, carried.end = 0, units // 2
    with pytest.raises(Killed):
        analysis(small, store=store)
    workers = MadeWorkers(2)
    assert same(analysis(small, store=store, workers=workers), undisturbed)
    assert sum(map(len, workers.computed)) == units - units // 2


FEW = ["L0H1", "L1H0", "L2H2", "L2H3"]
SHIPS_CHANGES: list[dict[str, Any]] = [
    {},
    {"requests": REQUESTS[:4]},
    {"template": "query"},
    {"ablation": "scaling"},
    {"epsilon": 0.5},
    {"epsilon": 0.5, "through": "k"},
    {"epsilon": 0.5, "group": "kv"},
    {"ablation": "resample"},
    {"ablation": "resample", "seed": 1},
    {"heads": ["L0H1"]},
    {"heads": FEW, "requests": REQUESTS * 2, "top": RACE},
    {"heads": FEW, "requests": REQUESTS * 2, "top": RACE, "seed": 3},
    {"heads": FEW, "requests": REQUESTS * 2, "top": mh.patching.Race(3, first=3, error=0.3)},
]


def test_whatever_changes_ships_is_another_sweep(small, carried, tmp_path):
    def ships(**given: Any) -> mh.HeadScores:
        return mh.ships(small, **{"requests": REQUESTS, "heads": FEW[:1] + FEW[-1:]} | BARE | given)

    wanted = [ships(**change) for change in SHIPS_CHANGES]
    for number, (change, alone) in enumerate(zip(SHIPS_CHANGES, wanted, strict=True), 1):
        before = carried.units
        assert same(ships(store=tmp_path / "store", **change), alone), change
        assert carried.units > before, change
        assert len(Ledger.list(tmp_path / "store")) == number, change
    before = carried.units
    for change, alone in zip(SHIPS_CHANGES, wanted, strict=True):
        assert same(ships(store=tmp_path / "store", **change), alone), change
    ships(store=tmp_path / "store", seed=9, budget="1 GB")
    assert carried.units == before


def test_a_longer_search_for_a_group_computes_its_last_step_only(small, carried, tmp_path):
    def search(size: int, **given: Any) -> tuple[Any, int]:
        before = carried.units
        return sahara(small, REQUESTS, size, r=2, store=tmp_path / "store", **BARE | given), carried.units - before

    heads = small.n_layers * small.n_heads
    assert search(2)[1] == heads + heads - 1
    longer, computed = search(3)
    assert computed == heads - 2
    assert same(longer.trace, sahara(small, REQUESTS, 3, r=2, **BARE).trace)
    before = carried.units
    single = generalized_ships(small, REQUESTS, r=2, epsilon=1e-5, store=tmp_path / "store", **BARE)
    np.testing.assert_array_equal(single.scores, longer.trace.scores[..., 0])
    assert carried.units == before, "the first step is generalized_ships"
    assert search(3, draws=1, seed=4)[1] == 0
    assert search(3, epsilon=0.5)[1] == 3 * heads - 3


def test_what_is_measured_of_a_head_is_another_sweep_and_how_many_are_shown_is_not(small, carried, tmp_path):
    analyses: list[Callable[..., Any]] = [
        lambda **given: mh.ships(small, REQUESTS, **BARE | given),
        lambda **given: generalized_ships(small, REQUESTS, **BARE | given),
        lambda **given: generalized_ships(small, REQUESTS, r=2, **BARE | given),
        lambda **given: mh.safety_heads(small, REQUESTS, 2, **BARE | given),
        lambda **given: mh.safety_heads(small, REQUESTS, 2, score="generalized_ships", **BARE | given),
        lambda **given: mh.safety_heads(small, REQUESTS, 2, score="generalized_ships", seed=1, **BARE | given),
    ]
    for number, analysis in enumerate(analyses, 1):
        assert same(analysis(store=tmp_path / "store"), analysis())
        assert len(Ledger.list(tmp_path / "store")) == number
    before = carried.units
    mh.safety_heads(small, REQUESTS, 4, store=tmp_path / "store", **BARE)
    assert carried.units == before


CONTRIBUTION_CHANGES: list[dict[str, Any]] = [
    {},
    {"harmful": [*HARMFUL[:3], " Rome is small"]},
    {"harmless": [*HARMLESS[:3], " Paris is"]},
    {"opening": " yes no one"},
    {"template": "query"},
    {"by": "undifferentiated"},
    {"epsilon": 0.5},
    {"group": "kv"},
    {"by": "patch"},
    {"by": "patch", "harmless": [*HARMLESS[:3], " Paris is"]},
]


def test_whatever_changes_the_contribution_is_not_taken_from_another_one(small, carried, tmp_path):
    def contribution(**given: Any) -> mh.HeadScores:
        asked = {"harmful": HARMFUL, "harmless": HARMLESS, "heads": FEW[:1]} | BEGUN | given
        return refusal_contribution(small, **asked)

    wanted = [contribution(**change) for change in CONTRIBUTION_CHANGES]
    for change, alone in zip(CONTRIBUTION_CHANGES, wanted, strict=True):
        before = carried.units
        assert same(contribution(store=tmp_path / "store", **change), alone), change
        assert carried.units > before, change
    before = carried.units
    for change, alone in zip(CONTRIBUTION_CHANGES, wanted, strict=True):
        assert same(contribution(store=tmp_path / "store", **change), alone), change
    assert carried.units == before


@pytest.mark.parametrize("name", few(["ships", "comparison", "contribution", "all scores"], "ships"))
def test_merged_parts_are_the_whole(small, carried, tmp_path, name):
    analysis, parts = ANALYSES[name], [tmp_path / "1", tmp_path / "2"]
    undisturbed, units = analysis(small), carried.units
    carried.units = 0
    for number, part in enumerate(parts, 1):
        analysis(small, store=part, budget=Limits(tokens=1, logit_rows=1, part=(number, 2)))
    assert carried.units == units
    assert mh.scale.merge(parts, tmp_path / "all").units == units
    assert same(analysis(small, store=tmp_path / "all"), undisturbed)
    assert carried.units == units


@pytest.mark.slow
def test_a_comparison_on_the_command_line_gives_a_file_for_each_ablation(small, tmp_path: Path):
    given: dict[str, Any] = {"requests": REQUESTS, "k": 2, "template": "bare"}
    spec = write_analysis(tmp_path / "spec.json", compare_ablations, small, **given)
    words = ["run", spec, "--store", tmp_path / "store", "--out", tmp_path / "result.nc"]
    done = CliRunner().invoke(main, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    for kind, alone in compare_ablations(small, progress=False, **given).items():
        found = mh.HeadScores.load(tmp_path / f"result-{kind}.nc")
        np.testing.assert_allclose(found.values, alone.values, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ANALYSES)
def test_a_file_that_is_no_ledger_is_an_error_before_the_model_is_run(small, tmp_path, monkeypatch, name):
    ANALYSES["ships"](small, heads="L0H0")

    def never(*_args: Any, **_options: Any) -> None:
        raise AssertionError("the model was run")

    monkeypatch.setattr(HeadCache, "run", never)
    monkeypatch.setattr(small.backend, "run", never)
    (tmp_path / "mine.csv").write_text("layer,head,score\n")
    with pytest.raises(ValueError, match=r"mine\.csv .*was not changed"):
        ANALYSES[name](small, store=tmp_path / "mine.csv")
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere for the ledger"):
        ANALYSES[name](small, store=tmp_path / "nowhere" / "store")
    assert [one.name for one in tmp_path.iterdir()] == ["mine.csv"]
