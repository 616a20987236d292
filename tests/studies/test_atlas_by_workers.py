"""An atlas whose units come from workers."""

from __future__ import annotations

import mechheads as mh
from mechheads.studies import build
from support.made_workers import MadeWorkers


def test_the_seeds_of_an_atlas_are_tried_and_fitted_by_workers(loaded):
    small, workers = loaded("llama"), MadeWorkers(2)
    task = build.capital_task(small)
    starts, _ = mh.settings(workers=workers)(build.choose_starts)(small, task, 2)
    assert starts == build.choose_starts(small, task, 2)[0]
    before = len(workers.computed)
    assert before >= build.TRIED
    assert mh.settings(workers=workers)(build.fit_briefly)(small, task, starts, 2).seeds == tuple(starts)
    assert len(workers.computed) - before >= build.KEPT
