"""The recipes of the papers' figures: their settings, and the numbers that the papers print."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import plotly.graph_objects as go
import pytest

import mechheads as mh
from mechheads.data import names
from mechheads.studies import figures, load_recipe, recipe_figure
from mechheads.studies.figures import FIGURES
from mechheads.studies.figures.panels import PaperFigure

ITEMS = "\n".join(
    f'{{"prompt": " The{a} is", "target": "{b}"}}'
    for a, b in ((" France", " Paris"), (" Italy", " Rome"), (" Spain", " Madrid"), (" Germany", " Berlin"))
)


@pytest.mark.parametrize("name", names("recipes"))
def test_every_setting_is_an_argument_of_its_figure(name: str):
    recipe = load_recipe(name)
    draw, data = FIGURES[recipe.figure]
    given = set(inspect.signature(draw).parameters)
    assert {*recipe.settings, data, "out", "quick"} <= given
    assert len(recipe.models) in (2, 4) and recipe.differs


def test_settings_are_those_of_the_papers():
    assert load_recipe("maps").settings["rule"] == "maps" and load_recipe("maps").settings["source"] == "first_mlp"
    assert load_recipe("ships").settings["requests"] == ["JailbreakBench", "MaliciousInstruct"]
    asked = load_recipe("chg").settings
    assert (asked["seeds"], asked["updates"]) == (10, 500)
    printed = load_recipe("chg").printed.set_index(["model", "task", "role", "share"])["printed"].to_dict()
    assert len(printed) == 48
    assert printed["meta-llama/Llama-3.1-8B", "common_sense", "facilitation", "always"] == 18.7
    assert printed["meta-llama/Llama-3.2-1B", "math", "interference", "any"] == 26.0


def made(panels: dict[str, Any], **tables: pd.DataFrame) -> PaperFigure:
    return PaperFigure(go.Figure(), panels, tables, (), ())


def test_printed_shares_stand_next_to_ours():
    metadata = {"model": "meta-llama/Llama-3.2-1B", "task": "syntax"}
    shares = pd.DataFrame(
        [
            {**metadata, "role": "facilitation", "always": 0.022, "any": 0.7, "mean": 0.3},
            {**metadata, "role": "irrelevance", "always": 0.5, "any": 0.9, "mean": 0.6},
            {**metadata, "model": "gpt2", "role": "facilitation", "always": 0.1, "any": 0.7, "mean": 0.3},
        ]
    )
    found = load_recipe("chg").compare(made({}, shares=shares)).set_index("share")
    assert found["printed"].to_dict() == {"always": 1.2, "any": 72.1}
    assert found["difference"].round(6).to_dict() == {"always": 1.0, "any": -2.1}
    assert set(found["role"]) == {"facilitation"}


def test_the_largest_phi_of_a_relation_stands_next_to_ours(loaded: Callable[[str], mh.Model]):
    small = loaded("llama")
    relation = mh.Relation("adj_antonym", "Linguistic", [(" yes", " no"), (" Rome", " Paris"), (" Italy", " Spain")])
    labels = mh.label_heads(mh.relation_scores(small, relation, min_pairs=2))
    panels = {"openai-community/gpt2-xl": labels, "mine": labels}
    found = load_recipe("maps").compare(made(panels))
    assert found[["model", "relation", "printed"]].values.tolist() == [
        ["openai-community/gpt2-xl", "adj_antonym", 0.38]
    ]
    largest = float(labels.dataset["phi"].max())
    assert found["ours"].item() == largest and found["difference"].item() == pytest.approx(largest - 0.38)


@pytest.mark.slow
def test_a_recipe_draws_its_figure_for_other_models(tiny: Callable[[str], Path], tmp_path: Path, monkeypatch):
    task = tmp_path / "mine.jsonl"
    task.write_text(ITEMS)
    asked = load_recipe("chg")
    as_printed = replace(asked, printed=asked.printed[:2].assign(model="llama", task="mine", printed=50.0))
    monkeypatch.setattr(figures, "load_recipe", lambda name: as_printed)
    drawn = recipe_figure("chg", [tiny("llama")], data=[task], out=tmp_path / "out", quick=True)
    assert list(drawn.panels) == ["mine"] and drawn.notes[0].startswith("Nam et al. 2025")
    assert any(note.startswith("fits end early") for note in drawn.notes)
    compared = pd.read_csv(tmp_path / "out" / "printed.csv")
    assert compared["printed"].tolist() == [50.0, 50.0]
    assert (compared["ours"] - compared["printed"]).tolist() == pytest.approx(compared["difference"].tolist())
    assert (tmp_path / "out" / "printed.csv") in drawn.files
