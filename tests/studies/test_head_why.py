"""Why heads look where they look: all heads together against one call for each, and from where paths are patched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.results.scores import HeadScores
from mechheads.studies.head_why import OTHERS, SHOWN, HeadWhy, first_parts, head_why, path_ends
from support.levels import architectures
from support.releases import only_on_4
from support.tiny_families import build

NORMED_LATE = "hunyuan", "llama4"
"""q and k are normed after rotation, in llama4 in some layers only."""
ARCHITECTURES = [
    *architectures("gpt2", "llama", "neox", "gemma"),
    *(pytest.param(name, marks=[only_on_4]) for name in ("gemma3", "bloom", *NORMED_LATE)),
]
PROMPTS = [[10, 20, 30, 40, 50, 60, 70], [11, 22, 33, 44, 55]]
ROWS = [np.random.default_rng(seed).integers(3, 370, 40).tolist() for seed in range(5)]


@pytest.fixture(scope="module")
def examples(loaded) -> mh.behaviour.HeadExamples:
    return mh.behaviour.head_examples(loaded("llama"), ROWS, window=16)


@pytest.fixture(scope="module")
def found(loaded, examples) -> HeadWhy:
    return head_why(loaded("llama"), examples, PROMPTS)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_all_heads_together_are_one_call_for_each(loaded, name, tmp_path):
    if name in NORMED_LATE:
        build(name, tmp_path)
    model = mh.load(tmp_path) if name in NORMED_LATE else loaded(name)
    table = head_why(model, None, PROMPTS).table
    assert set(table["head"]) == {
        f"L{layer}H{head}" for layer in range(model.n_layers) for head in range(model.n_heads)
    }
    for _, rows in list(table.groupby(["head", "text"]))[::3]:
        row = rows.iloc[0]
        head, text = row["head"], int(row["text"])
        one = mh.behaviour.attention_attribution(
            model, [PROMPTS[text]], head, query=int(row["query"]), key=int(row["key"])
        )
        pattern = model.cache([PROMPTS[text]]).pattern[head][0, -1]
        assert row["key"] == int(pattern[1:].argmax()) + 1 and row["weight"] == pytest.approx(
            float(pattern[row["key"]])
        )
        for side in ("query", "key"):
            mine = rows[rows["side"] == side]
            parts = one.parts(side).set_index("part")["score"].to_dict()
            total = one.query.dataset["total"].item()
            assert sum(parts.values()) == pytest.approx(total, abs=1e-4)
            np.testing.assert_allclose(mine["score"].sum(), total, atol=1e-4)
            assert int(mine["n"].sum()) == len(parts)
            assert row["total"] == pytest.approx(total, abs=1e-4)
            for part, score in zip(mine["part"], mine["score"], strict=True):
                assert part == OTHERS or score == pytest.approx(parts[part], abs=1e-4)
            least = mine["score"].iloc[:-1].abs().min()
            assert all(abs(value) <= least + 1e-4 for part, value in parts.items() if part not in set(mine["part"]))


def test_each_head_has_an_example_of_its_own(found, examples):
    of_text = found.table[found.table["chosen"].str.startswith("ordinary")].drop_duplicates(["head", "text"])
    assert of_text["head"].is_unique and set(of_text["head"]) == set(examples.table["head"])
    for row in of_text.to_dict("records"):
        part = row["chosen"].removeprefix("ordinary text (activity: ").removesuffix(")")
        texts = [tuple(examples.words[word] for word in window if word >= 0) for window in examples.tokens]
        window = [found.texts[row["text"]] == text for text in texts]
        shown = examples.table[(examples.table["head"] == row["head"]) & (examples.table["part"] == part)]
        fitting = shown[[window[at] for at in shown["window"]]]
        assert ((fitting["query"] == row["query"]) & (fitting["key"] == row["key"])).any()
        assert row["weight"] == pytest.approx(fitting["weight"].iloc[0], abs=0.51 / 255)


def test_without_texts_there_is_nothing_to_split(loaded):
    with pytest.raises(ValueError, match="neither an example of text nor a short prompt"):
        head_why(loaded("llama"), None, [[5]])


def test_it_survives_a_file(found, tmp_path):
    again = HeadWhy.load(found.save(tmp_path / "why.nc"))
    pd.testing.assert_frame_equal(again.table, found.table)
    assert again.texts == found.texts


def test_the_first_parts_and_the_others_are_everything():
    parts = {str(at): value for at, value in enumerate(np.random.default_rng(0).normal(size=9).tolist())}
    shown = first_parts(parts)
    assert len(shown) == SHOWN + 1 and sum(score for *_, score in shown) == pytest.approx(sum(parts.values()))
    assert first_parts({"embedding": 2.0}) == [("embedding", 1, 2.0), (OTHERS, 0, 0)]


def made(rows: list[tuple[str, str, float]]) -> HeadWhy:
    """Heads with one part each, in a prompt."""
    names = ("head", "part", "score")
    table: Any = pd.DataFrame(rows, columns=names).assign(chosen="prompt 1")  # type: ignore[arg-type]
    return HeadWhy(table, ((),), {})


def test_paths_into_the_strongest_head_come_from_the_heads_that_it_reads():
    """The strongest head is also the earliest of the strong ones, as in the default model."""
    effect = np.zeros((6, 2))
    effect[2, 0], effect[4, 1], effect[5] = 0.7, -0.2, 0.1
    effect[3:5, 0] = 0.01
    patching = HeadScores.from_scores(effect, name="effect", kind="activation_patch")
    why = made([("L2H0", "L1H1", 2.0), ("L2H0", "L0H0", -3.0), ("L2H0", "L1.mlp", 9.0), ("L0H1", "L0H1", 5.0)])
    senders, receivers = path_ends(patching, why)
    assert {"L1H1", "L0H0"} <= set(map(str, senders)) and "L0H1" not in map(str, senders[:6])
    assert receivers[:4] == ["final", "L2H0.q", "L2H0.k", "L2H0.v"]
    senders, receivers = path_ends(patching, None)
    assert receivers[0] == "final" and len(receivers) == 10


def test_a_head_of_the_first_layer_has_no_paths_into_it():
    effect = np.zeros((2, 8))
    effect[0] = np.arange(8, 0, -1)
    patching = HeadScores.from_scores(effect, name="effect", kind="activation_patch")
    assert path_ends(patching, None) == ([mh.HeadId(0, head) for head in range(8)], ["final"])
