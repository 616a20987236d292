"""What a page holds is what the atlas holds, number by number; texts stay texts."""

from __future__ import annotations

import copy
import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.explorer.contract import blocks, plain, to_json
from mechheads.explorer.head_payload import LEAST, SIZES_STEP, STEP
from mechheads.explorer.page import answer, page_html, policy, script, style, write_page
from mechheads.explorer.payload import Payload, atlas_payload
from support.page_sample import unblock

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--",
    "&lt;&#60;",
    "\u202egnp.exe\u2066",
    "nul \x00 bell \x07",
    "ab" * 5000,
    "שלום עולم",
    "\u2028\u2029",
    "\ud800 alone",
    "'\"`${1}",
]


NAMED = ("window", "text", "query", "key", "activity", "weight")


@pytest.fixture(scope="module")
def payload(atlas) -> Payload:
    return atlas_payload(atlas)


@pytest.fixture(scope="module")
def heads(payload, atlas) -> dict[str, dict[str, Any]]:
    """Every card by the name of its head."""
    blocks = [unblock(payload.blocks[f"mh-heads-{layer}"]) for layer in range(atlas.sizes[0])]
    return {card["head"]: card for part in blocks for card in part["heads"]}


def same(found: Any, values: Any) -> bool:
    """Whether JSON holds exactly these numbers, with null for those that are missing."""
    expected = [None if isinstance(v, float) and not np.isfinite(v) else v for v in np.asarray(values).ravel().tolist()]
    return (found if isinstance(found, list) else [found]) == expected


def test_every_column_is_that_of_the_table(payload, atlas):
    table = atlas.to_dataframe()
    found = json.loads(to_json(payload.page))["model"]["columns"]
    assert [column["name"] for column in found] == list(table)
    for column in found:
        assert same(column["values"], table[column["name"]].to_numpy()), column["name"]
        assert column["label"] and column["meaning"].endswith(".") and column["group"] != "Other"
    known = {column["name"]: column for column in found}
    assert known["patching"]["low"] == "patching_range_low" and known["patching"]["q"] == "patching_q"  # of two pairs
    assert known["phi"]["low"] == "phi_ci_low" and known["patching"]["p"] == "patching_p_family"
    assert known["phi_ci_low"]["of"] == "phi" and known["phi_ci_low"]["role"] == "low"
    assert {column["role"] for column in found if column["of"] is None} == {"place", "value"}


def test_the_tables_are_those_of_the_atlas_also_without_scripts(payload, atlas):
    found = {question.key: question for question in atlas.questions()}
    told = {question["key"]: question for question in payload.page["model"]["questions"]}
    assert list(told) == list(found)
    for key, question in found.items():
        assert told[key]["rows"] == plain([vars(row) for row in question.rows])
        assert (told[key]["title"], told[key]["varies"]) == (question.title, question.varies)
    still = page_html(payload).split('<div id="mh-root"')[1].split("</div>")[0]
    assert still.count("<tr>") == sum(len(question.rows) for question in found.values())
    hostile = copy.deepcopy(payload.page)
    (question, *_) = hostile["model"]["questions"]
    row = {"head": "L0H0", "unit": "", "value": None, "low": None, "high": None}
    rows = [row | {"measured": text} for text in HOSTILE]
    hostile["model"]["questions"] = [
        question | {"title": HOSTILE[0], "varies": "", "rows": rows, "warnings": HOSTILE[:1]}
    ]
    texts = []
    reader = HTMLParser()
    reader.handle_data = texts.append
    reader.feed(answer(hostile))
    shown = ["".join(letter if letter.isprintable() else "\ufffd" for letter in text) for text in HOSTILE]
    assert texts == [shown[0], *(text for each in shown for text in ("L0H0", each) if text), shown[0]]


def test_every_column_has_the_question_of_its_view_or_of_its_heading(payload):
    model = payload.page["model"]
    of = {column["name"]: column["question"] for column in model["columns"]}
    expected = {"patching": "pairs", "direct_ci_low": "pairs", "phi": "weights", "categories": "weights"}
    expected |= {"to_first": "text", "names": "text", "ships_undifferentiated": "requests", "layer": None}
    expected |= {"generalized_ships_undifferentiated_ci_low": "requests"}
    assert {name: of[name] for name in expected} == expected
    for question in model["questions"]:
        assert {of[view] for view in question["views"]} <= {question["key"]}
    assert {key for key in of.values() if key} == {question["key"] for question in model["questions"]}


def test_every_pane_holds_what_the_atlas_holds(heads, atlas):
    assert len(heads) == atlas.sizes[0] * atlas.sizes[1]
    for name, card in heads.items():
        at = card["layer"], card["index"]
        effects = {effect["name"]: effect for effect in card["cause"]}
        assert same(effects["patching"]["values"], atlas.patching.values.values[at])
        assert same(effects["attribution"]["values"], atlas.direct.values.values[at])
        assert same(effects["attribution"]["low"], atlas.direct.dataset["ci_low"].values[at])
        for ships in card["safety"]:
            scores = atlas.safety[ships["ablation"]]
            assert same(ships["values"], scores.values.values[at]) and same(ships["score"], scores.scores.values[at])
            assert same(ships["generalized"], scores.dataset["generalized_ships"].values[at])
        table = atlas.labels.table(name)
        relations = {relation["relation"]: relation for relation in card["weights"]}
        assert len(relations) == len(table)
        for row in table.to_dict("records"):
            assert same(relations[row["relation"]]["phi"], row["phi"])
            assert same(relations[row["relation"]]["q"], row["q"])


def test_paths_end_and_begin_at_the_head(heads, atlas):
    data = atlas.paths.dataset
    for receiver in data["receiver"].values.tolist():
        scores = data["score"].sel(receiver=receiver).values
        end, _, way = receiver.partition(".")
        for (layer, head), score in np.ndenumerate(scores):
            sender = f"L{layer}H{head}"
            later = not way or layer < mh.HeadId.parse(end).layer
            sent = [p for p in heads[sender]["paths"]["receivers"] if p["head"] == (end if way else None)]
            assert [p["score"] for p in sent if p["way"] == (way or "final")] == (
                [score] if later and np.isfinite(score) else []
            )
            if way and later and np.isfinite(score):
                assert {"head": sender, "way": way, "score": score}.items() <= next(
                    p for p in heads[end]["paths"]["senders"] if (p["head"], p["way"]) == (sender, way)
                ).items()


def test_examples_and_patterns_are_those_of_the_atlas(heads, payload, atlas):
    shared = unblock(payload.blocks["mh-shared"])
    examples, card = atlas.examples, heads["L1H2"]
    rows = examples.of("L1H2")
    given = [(part["name"], one) for part in card["text"]["parts"] for one in part["examples"]]
    assert len(given) == len(rows)
    for (part, one), (at, row) in zip(given, rows.iterrows(), strict=True):
        assert [part, *(one[name] for name in NAMED)] == [row["part"], *(row[name] for name in NAMED)]
        words = [shared["words"][i] for i in shared["windows"][one["window"]]]
        assert "".join(words) == "".join(examples.words[i] for i in examples.tokens[row["window"]] if i >= 0)
        whole, n = examples.attention(at), len(words)
        found = np.zeros((n, n))
        for query, (keys, weights) in enumerate(
            zip(one["attention"]["keys"], one["attention"]["weights"], strict=True)
        ):
            found[query, keys] = weights
        found[:, 0] = one["attention"]["first"]
        assert np.abs(found / 255 - whole).max() <= max(LEAST, STEP / 2) / 255
        assert np.abs(np.array(one["sizes"]) - examples.sizes[at, :n].astype(int)).max() <= SIZES_STEP / 2
    assert [each["name"] for each in shared["prompts"]][: len(atlas.pairs)] == [pair["clean"] for pair in atlas.pairs]
    assert shared["requests"] == atlas.requests and shared["pairs"] == atlas.pairs


def test_a_pattern_is_that_of_a_run(loaded, atlas, heads):
    model = loaded("llama")
    pattern = model.cache([atlas.pairs[0]["clean"]]).pattern["L2H1"][0].numpy()
    found = heads["L2H1"]["pattern"][0]["attention"]
    np.testing.assert_allclose(np.array(found["first"]) / 255, pattern[:, 0], atol=0.5 / 255 + 1e-6)
    for query, (keys, weights) in enumerate(zip(found["keys"], found["weights"], strict=True)):
        np.testing.assert_allclose(np.array(weights) / 255, pattern[query, keys], atol=0.5 / 255 + 1e-6)
        assert 0 not in keys and weights == sorted(weights, reverse=True)


def test_the_landing_has_categories_and_names(payload, atlas):
    model = payload.page["model"]
    order = [f"L{layer}H{head}" for layer in range(atlas.sizes[0]) for head in range(atlas.sizes[1])]
    for i, head in enumerate(order):
        names = model["categories"]["names"]
        assert tuple(names[j] for j in model["categories"]["of"][i] or ()) == atlas.labels.of(head)
        called = [model["behaviours"]["names"][j]["name"] for j in model["behaviours"]["of"][i]]
        assert tuple(called) == atlas.profile.names(head)
        assert same(model["categories"]["phi"][i], atlas.relations.scores.values.reshape(len(order), -1)[i])
    (circuit,) = model["circuits"]
    assert circuit["heads"] == [str(head) for head in atlas.circuit.heads]
    assert [point["value"] for point in circuit["curve"]] == plain(atlas.circuit.table["score"].to_numpy())
    assert model["citation"].count("@") == len(set(re.findall(r"@\w+{[^,]+", model["citation"]))) > 3


def test_every_number_has_a_result_with_the_call_that_gives_it_again(payload, atlas, tmp_path):
    model = payload.page["model"]
    sources = {source["name"]: source for source in model["sources"]}
    assert list(sources) == [*atlas.results, *atlas.tables]
    assert {column["source"] for column in model["columns"]} - {None} <= set(sources)
    starts = {name: source["call"].split("(")[0] for name, source in sources.items()}
    assert starts == {
        "profile": "mh.profile_heads",
        "relations": "mh.relation_scores",
        "labels": "mh.label_heads",
        "patching": "mh.activation_patch",
        "direct": "mh.behaviour.logit_attribution",
        "paths": "mh.path_matrix",
        "safety_undifferentiated": "mh.safety.compare_ablations",
        **dict.fromkeys(("examples", "patterns", "circuit"), "mh.build_atlas"),
    }
    assert sources["patching"]["prompts"] == "2 pairs" and sources["patching"]["file"] is None
    atlas.save(tmp_path)
    page = write_page(atlas, tmp_path / "index.html").read_text("utf-8")
    assert '"file":"patching.nc"' in page


def test_a_card_has_a_row_for_each_measure_with_its_rank(heads, atlas):
    questions = {question.key: question for question in atlas.questions()}
    for name, card in heads.items():
        rows = {(row["question"], row["measured"]): row for row in card["rows"]}
        for key, question in questions.items():
            if key != "weights":
                assert [measured for of, measured in rows if of == key] == [one.label for one in question.measures]
        patching = rows["pairs", "Patching"]
        assert same(patching["value"], atlas.patching[name]["score"]) and patching["n"] == 2
        size = np.abs(atlas.patching.scores.values.ravel())
        assert patching["rank"] == 1 + (size > abs(patching["value"])).sum() and patching["of"] == len(size)


def made(values: np.ndarray, spread: float, n: int = 9, kind: str = "activation_patch") -> mh.HeadScores:
    noise = spread * np.array([-1.0, 1.0, 0.0, -0.5, 0.5, 0.25, -0.25, 0.1, -0.1])[:n]
    unit = "share restored" if kind == "activation_patch" else "logits"
    return mh.HeadScores.from_values(values[..., None] + noise, name="made", unit=unit, kind=kind)


class Scripts(HTMLParser):
    """The scripts of a page by id, as a browser reads them, and its other tags."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.tags: list[str] = []
        self.sources: list[tuple[str, str]] = []
        self.id = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.sources += [(tag, name) for name, _ in attrs if name in ("src", "href", "onerror", "onload")]
        self.id = dict(attrs).get("id") or dict(attrs).get("type") or "" if tag == "script" else ""

    def handle_data(self, data: str) -> None:
        if self.id:
            self.texts[self.id] = self.texts.get(self.id, "") + data

    def handle_endtag(self, tag: str) -> None:
        self.id = ""


def test_hostile_texts_stay_texts(atlas, tmp_path):
    one = copy.copy(atlas)
    one.model, one.notes, one.requests = "".join(HOSTILE), HOSTILE, HOSTILE
    one.pairs = [dict.fromkeys(("clean", "corrupted", "answer", "wrong"), text) for text in HOSTILE]
    path = write_page(one, tmp_path / "page.html")
    page = path.read_bytes().decode("utf-8")
    read = Scripts()
    read.feed(page)
    model = json.loads(read.texts["mh-page"])["model"]
    assert model["name"] == one.model and model["notes"] == HOSTILE
    shared = unblock(read.texts["mh-shared"])
    assert shared["requests"] == HOSTILE and [pair["wrong"] for pair in shared["pairs"]] == HOSTILE
    assert set(read.tags) == {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "div",
        "h3",
        "p",
        "table",
        "tr",
        "td",
        "script",
    }
    assert read.tags.count("script") == 2 + len(atlas_payload(one).blocks) and read.sources == []
    assert not re.search(r"[\x00\u202e\u2066]", page.split("<title>")[1].split("</title>")[1])


def test_json_knows_no_nan():
    assert plain([np.nan, np.float32(0.5), np.inf, np.int8(3), np.array([np.nan, 2.0])]) == [
        None,
        0.5,
        None,
        3,
        [None, 2.0],
    ]
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json([float("nan")])
    assert unblock(blocks([("a", {"text": HOSTILE})])["a"]) == {"text": HOSTILE}


def test_the_page_needs_no_network_and_runs_its_own_script_only(payload):
    page = page_html(payload)
    assert f"<style>{style()}</style>" in page and f'<script type="module">{script()}</script>' in page
    rules = dict(rule.split(" ", 1) for rule in policy().split("; "))
    assert rules["default-src"] == "'none'" and rules["connect-src"] == "'none'"
    assert "unsafe" not in policy()
    assert "</script" not in script().lower()
