"""A study with a ledger that ends in the middle of a part goes on with the units that are missing, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mechheads as mh
from mechheads.labels.static import LayerScores
from mechheads.ledger.ledger import Ledger
from mechheads.studies import build_atlas
from mechheads.studies.questions import PARTS
from studies.test_own_questions import asked, assert_same_atlas
from support.whole_atlas import let_four_pairs_do


class Killed(BaseException):
    """The end of a process: nothing handles it."""


class Commits:
    """The units that are committed, and after how many commits of which analysis the process ends."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.units: list[tuple[str, str]] = []
        self.end: tuple[str, int] | None = None
        commit = Ledger.commit

        def counted(ledger: Ledger, units: Any, *, moving: bool = False) -> Any:
            if moving:
                return commit(ledger, units, moving=True)
            analysis = str(ledger.metadata.get("analysis", ledger.metadata.get("intervention")))
            kept = commit(ledger, units)
            self.units += [(analysis, name) for name in units]
            if self.end is not None and self.end[0] in analysis:
                self.end = self.end[0], self.end[1] - 1
                if not self.end[1]:
                    raise Killed
            return kept

        monkeypatch.setattr(Ledger, "commit", counted)

    def of(self, analysis: str) -> list[str]:
        return [name for of, name in self.units if analysis in of]


@pytest.fixture
def commits(monkeypatch: pytest.MonkeyPatch) -> Commits:
    return Commits(monkeypatch)


@pytest.fixture(scope="module")
def small(loaded: Callable[[str], mh.Model]) -> mh.Model:
    return loaded("llama")


def test_an_atlas_that_ends_in_the_labels_and_in_the_safety_heads_goes_on(
    small: mh.Model, commits: Commits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    let_four_pairs_do(monkeypatch)
    limits = mh.patching.Limits(tokens=1, logit_rows=1)

    def built(**more: Any) -> mh.studies.Atlas:
        with mh.settings(budget=limits, **more):
            return build_atlas(small, **asked(), only=["labels", "safety"])

    whole = built()
    assert not commits.units
    store = tmp_path / "ledger"
    for end in (("relation_scores", 2), ("ships", 5)):
        commits.end = end
        with pytest.raises(Killed):
            built(store=store)
    scored: list[int] = []
    paths = LayerScores._paths
    monkeypatch.setattr(LayerScores, "_paths", lambda self, layer: scored.append(layer) or paths(self, layer))
    before = len(commits.of("ships"))
    assert before >= 5
    assert_same_atlas(built(store=store), whole)
    ships = commits.of("ships")
    assert not scored and len(commits.of("relation_scores")) == 3  # each layer once, over all three runs
    assert len(ships) == small.n_layers * small.n_heads > before  # each head, once


@pytest.mark.slow
def test_a_whole_atlas_with_a_ledger_is_the_one_without(small: mh.Model, tmp_path: Path, monkeypatch):
    let_four_pairs_do(monkeypatch)
    whole = build_atlas(small, **asked(), only=PARTS)
    assert set(whole.done) == set(PARTS)
    for _ in range(2):
        assert_same_atlas(mh.settings(store=tmp_path / "ledger")(build_atlas)(small, **asked(), only=PARTS), whole)
