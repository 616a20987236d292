"""What the page of a run says of every head: the numbers of ``mh.profile_heads``, from the run's own patterns."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.behaviour.measure import BEHAVIOURS, MEASURES, measure
from mechheads.explorer.collect import patterns_of
from mechheads.explorer.page import alt_text, svg
from mechheads.explorer.payload import run_payload
from mechheads.explorer.run_columns import GROUP, run_table

TEXTS = ["The capital of France is", "Paris , Rome , Paris , Rome , Paris", "one two"]


@pytest.fixture(scope="module")
def small(loaded) -> mh.Model:
    return loaded("llama")


@pytest.fixture(scope="module")
def run(small):
    return small.cache(TEXTS, sites=("pattern",))


def test_the_numbers_are_those_of_a_profile(small, run):
    table = run_table([run.attention])
    expected = []
    for prompt, strings in enumerate(run.tokens.strings):
        ids = run.tokens.ids[prompt : prompt + 1, : len(strings)]
        found, _ = measure(small, ids)
        expected.append(found[..., 0].numpy())
    for name in (*BEHAVIOURS, "entropy", "distance"):
        values = np.stack([each[MEASURES.index(name)].ravel() for each in expected])
        if name == "distance":
            values = values[[len(strings) > 2 for strings in run.tokens.strings]]
        if np.isnan(values).all():
            assert f"to_{name}" not in table
            continue
        column = table[name if name in table else f"to_{name}"]
        np.testing.assert_allclose(column, np.nanmean(values, axis=0), rtol=1e-4, atol=1e-6)


def test_a_page_of_a_run_is_coloured_and_says_over_what_its_numbers_are_means(run):
    page = run_payload("a run", patterns_of(run.attention), run_table([run.attention])).page
    (model,) = page["models"]
    assert model["views"] == [] and model["categories"] is None
    columns = {column["name"]: column for column in model["columns"]}
    assert [*columns][:4] == ["layer", "head", "to_first", "to_previous"]
    values = columns["to_previous"]["values"]
    strongest = int(np.argmax(values))
    head = f"L{strongest // model['nHeads']}H{strongest % model['nHeads']}"
    assert page["start"]["head"] == head and page["start"]["chosen"].get("colour") == "to_previous"
    for column in model["columns"][2:]:
        assert column["group"] == GROUP and "A mean over" in column["meaning"] and column["unit"]
        assert column["low"] is column["high"] is column["q"] is None
    assert {*model["methods"][0]["columns"]} == {*columns} - {"layer", "head"}
    assert "profile_heads" in model["cautions"][0]
    assert f"To the previous token: {head} {max(values):.2g}" in alt_text(page)


def test_without_scripts_the_picture_has_the_same_shades(run):
    page = run_payload("a run", patterns_of(run.attention), run_table([run.attention])).page
    (model,) = page["models"]
    values = np.array(next(column["values"] for column in model["columns"] if column["name"] == "to_previous"))
    rects = ElementTree.fromstring(svg(page)).findall("{http://www.w3.org/2000/svg}rect")
    fills = [rect.get("fill") for rect in rects]
    assert fills[int(values.argmax())] == "#08306b" and fills[int(values.argmin())] == "#e3ebf7"


def test_one_prompt_is_no_mean_over_prompts_and_a_short_one_has_few_columns(small):
    run = small.cache(["one"], sites=("pattern",))
    n = len(run.tokens.strings[0])
    page = run_payload("a run", patterns_of(run.attention), run_table([run.attention])).page
    names = [column["name"] for column in page["models"][0]["columns"]]
    assert ("to_first" in names) == (n > 2) and "entropy" in names
    assert "over the prompts" not in page["models"][0]["columns"][-1]["meaning"]


def test_a_prompt_counts_as_much_as_another_however_long(small, run):
    runs = [small.cache([text], sites=("pattern",)).attention for text in TEXTS[:2]]
    alone = [run_table([run]) for run in runs]
    both = run_table([small.cache(TEXTS[:2], sites=("pattern",)).attention])
    pd.testing.assert_frame_equal(run_table(runs), both)
    mean = np.mean([table["to_first"] for table in alone], axis=0)
    np.testing.assert_allclose(both["to_first"], mean, atol=1e-6)
