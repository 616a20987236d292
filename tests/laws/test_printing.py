"""What ``print`` and notebooks show of every kind of result: it fits into a terminal, with the score in sight."""

from __future__ import annotations

import re
from typing import Any

import pandas as pd
import pytest

import mechheads as mh
from mechheads.messages.notices import WIDTH
from mechheads.results.shown import Shown
from support.every_analysis import EVERY
from support.levels import few
from support.texts import CLEAN, PAIRS


def fits(shown: str) -> bool:
    return max(map(len, shown.splitlines())) <= WIDTH


_EACH_CLASS = (
    "patch z",
    "patch k",
    "mlps",
    "sets",
    "generate",
    "profile",
    "relation",
    "dynamic",
    "labels",
    "safety heads",
    "refusal test",
    "attack curve",
    "sahara",
    "gates",
    "roles",
    "faithfulness",
    "examples",
    "description",
)


@pytest.mark.parametrize("name", few(EVERY, *_EACH_CLASS))
@pytest.mark.filterwarnings("ignore")
def test_every_result_prints_within_a_terminal(loaded, name: str) -> None:
    found = EVERY[name].run(loaded("gpt2"))
    parts = found.values() if type(found) is dict else found if isinstance(found, tuple) else [found]
    for each in parts:
        if isinstance(each, (Shown, pd.DataFrame, mh.generation.Generated)):
            assert fits(str(each)), f"\n{each}"
        if isinstance(each, Shown):
            headings = re.findall("<th>(.*?)</th>", each._repr_html_())
            assert len(headings) <= 8, headings
        if isinstance(each, mh.HeadScores) and len(each.top()):
            header = next(line for line in str(each).splitlines() if line.startswith("head"))
            assert re.search(r"\b(score|phi)\b", header), f"\n{each}"
            assert fits(str(each.top())) and fits(str(each.to_dataframe()))


@pytest.mark.parametrize(
    "of",
    [
        lambda model: model,
        lambda model: model.cache(CLEAN),
        lambda model: PAIRS,
        lambda model: mh.Prompts([" word" * 300], answer=[" a"]),
        lambda model: mh.Task([" word" * 300], [" yes" * 300], name="long " * 40),
        lambda model: mh.plan(model, PAIRS, intervention=mh.Patch(), base="corrupted"),
        lambda model: mh.prepare(model, PAIRS),
        lambda model: mh.Relation("long " * 30, pairs=[("a" * 50, "b" * 100)]),
        lambda model: mh.labels.load_relations("country_to_capital")[0],
        lambda model: mh.HeadScores.from_scores([[1.0, 2.0]], name="n " * 90, kind="demo"),
        lambda model: mh.studies.Atlas("a model"),
    ],
)
def test_what_is_asked_prints_within_a_terminal(loaded, of: Any) -> None:
    shown = str(of(loaded("gpt2")))
    assert fits(shown), f"\n{shown}"
