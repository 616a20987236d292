"""An atlas whose roles come from workers, against that of one process."""

from __future__ import annotations

import numpy as np
import pytest

import mechheads as mh
from mechheads.gating import ROLES
from mechheads.gating.fit.by_workers import SeedState
from mechheads.studies.build import build_atlas
from mechheads.studies.short_fit import KEPT, TRIED
from support.made_workers import MadeWorkers
from support.whole_atlas import let_four_pairs_do

pytestmark = pytest.mark.release


def test_roles_by_workers_are_those_of_one_process(tiny, monkeypatch: pytest.MonkeyPatch):
    let_four_pairs_do(monkeypatch)
    small, workers = mh.load(tiny("llama")), MadeWorkers(2)
    ours = build_atlas(small, updates=3, progress=False, workers=workers)
    alone = build_atlas(small, updates=3, progress=False)
    fits = [one for batch in workers.computed for one in batch if isinstance(getattr(one, "unit", None), SeedState)]
    assert len(fits) >= TRIED + KEPT
    assert ours.roles is not None and alone.roles is not None
    for role in ROLES:
        np.testing.assert_allclose(ours.roles[role].values, alone.roles[role].values, atol=1e-6, rtol=0)
