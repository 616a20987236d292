"""The comparison with published heads: what it says of scores whose ranks are known, and of models that are missing."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import mechheads as mh
from benchmarks import known_heads
from mechheads.heads import HeadId
from mechheads.model.sources.source import ModelSourceError


def test_the_table_names_heads_that_gpt2_has_and_roles_that_are_compared() -> None:
    known = known_heads.published()
    assert {role for _, role in known} == set(known_heads.STEPS)
    assert all(
        head.layer < 12 and head.head < 12 for (model, _), heads in known.items() if model == "gpt2" for head in heads
    )
    assert set(known["gpt2", "name mover"]) == {HeadId(9, 9), HeadId(10, 0), HeadId(9, 6)}
    assert all(len(heads) == len(set(heads)) for heads in known.values())


def test_agreement_by_hand() -> None:
    score = np.array([[9.0, 1.0, 2.0], [8.0, 3.0, np.nan]])
    told = known_heads.agreement(score, {HeadId(0, 0)}, [HeadId(0, 0), HeadId(1, 1)])
    assert told["rank of each"] == {"L0H0": 1, "L1H1": 3}
    assert told["both"] == ["L0H0"] and told["heads measured"] == 5
    assert told["area under the ROC curve"] == pytest.approx(5 / 6)  # of six pairs, only 3 against 8 is lost


def test_without_weights_it_says_what_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> mh.Model:
        raise ModelSourceError("there are no weights")

    monkeypatch.setattr(mh, "load", load)
    monkeypatch.setattr(sys, "argv", ["known_heads", "--model", "gpt2"])
    with pytest.raises(SystemExit, match=r"there are no weights\s+Nothing was compared.*--model FOLDER --as gpt2"):
        known_heads.main()
    monkeypatch.setattr(sys, "argv", ["known_heads", "--model", "unheard-of"])
    with pytest.raises(SystemExit):
        known_heads.main()
