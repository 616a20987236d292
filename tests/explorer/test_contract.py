"""What Python sends is what its types say, as does the page; and the sample of the browser tests is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np
import pytest

import mechheads as mh
from docs.contract import WRITTEN, text
from mechheads.explorer import contract
from mechheads.explorer.collect import collect, patterns_of
from mechheads.explorer.live import Live, TextAnswer, TextRequest, WhyAnswer
from mechheads.explorer.payload import atlas_payload, run_payload
from support.page_sample import SAMPLE, sent


def faults(value: Any, kind: Any, at: str) -> Iterator[str]:
    """Where JSON is not of a type: parts that are missing, unknown or of another type."""
    if is_typeddict(kind) and isinstance(value, dict):
        hints = get_type_hints(kind)
        yield from (f"{at} lacks {name}" for name in kind.__required_keys__ - value.keys())
        yield from (f"{at} has {name}, which is in no type" for name in value.keys() - hints.keys())
        for name in value.keys() & hints.keys():
            yield from faults(value[name], hints[name], f"{at}.{name}")
    elif get_origin(kind) in (UnionType, Union):
        each = [list(faults(value, one, at)) for one in get_args(kind)]
        yield from min(each, key=len)
    elif get_origin(kind) is Literal:
        if value not in get_args(kind):
            yield f"{at} is {value!r}"
    elif get_origin(kind) in (list, tuple) and isinstance(value, list):
        of = get_args(kind)
        for i, part in enumerate(value):
            yield from faults(part, of[i if get_origin(kind) is tuple else 0], f"{at}[{i}]")
    elif get_origin(kind) is dict and isinstance(value, dict):
        for name, part in value.items():
            yield from faults(part, get_args(kind)[1], f"{at}.{name}")
    elif kind is not Any:
        known = {str: str, int: int, float: int | float, bool: bool, NoneType: NoneType}.get(kind, ())
        if not isinstance(value, known) or (isinstance(value, bool) and kind is not bool):
            yield f"{at} is a {type(value).__name__}, not a {getattr(kind, '__name__', kind)}"


def check(content: dict[str, Any]) -> None:
    """Check a page with its blocks."""
    kinds = {"shared": contract.Shared, "heads": contract.HeadBlock}
    found = [*faults(content["page"], contract.Page, "page")]
    for name, block in content["blocks"].items():
        found += faults(block, kinds[name.split("-")[1]], name)
    assert not found, "\n".join(found[:20])


def test_the_types_of_the_page_are_those_of_python():
    assert WRITTEN.read_text(encoding="utf-8") == text(), "type python -m docs.contract, and build the page"


def test_a_page_with_every_part_is_as_the_types_say(atlas):
    content = sent(atlas_payload(atlas))
    check(content)
    model = content["page"]["model"]
    missing = {name for name in model if model[name] in (None, [], {})}
    assert missing <= {"notes", "tables"}  # else nothing was checked
    cards = content["blocks"]["mh-heads-1"]["heads"]
    assert all(pane is not None for pane in cards[0].values())


def test_a_page_of_scores_and_tables_of_your_own_is_as_the_types_say(llama):
    values = np.random.default_rng(0).normal(size=(llama.n_layers, llama.n_heads, 8))
    mine = mh.HeadScores.from_values(values, name="mine", unit="logits", kind="demo")
    pairs = mh.PromptPairs([" The cat"], [" The dog"], [" a"], [" b"])
    sets = mh.patching.patch_sets(llama, pairs, [["L0H0"], ["L1H1", "L1H2"]])
    content = sent(atlas_payload((one := collect({"mine": mine, "sets": sets})).atlas, tables=one.tables))
    check(content)
    assert content["page"]["model"]["tables"] and content["blocks"]["mh-shared"]["labels"]["mine"]


def test_a_page_of_a_run_is_as_the_types_say(llama):
    run = llama.cache([" The cat sat", " A dog"], sites=("pattern",)).attention
    check(sent(run_payload("a run", patterns_of(run))))


def test_the_answer_to_a_text_is_as_the_types_say(llama):
    for head in (None, mh.HeadId(1, 1)):
        answer = json.loads(json.dumps(Live(llama).answer(TextRequest("a", " The cat sat", head))))
        assert not [*faults(answer, TextAnswer, "answer")]
    answer = json.loads(json.dumps(Live(llama).answer(TextRequest("a", " The cat sat", mh.HeadId(1, 1), (2, 1)))))
    assert not [*faults(answer, WhyAnswer, "answer")]


def test_the_sample_of_the_browser_tests_has_every_part_that_python_sends():
    content = json.loads(SAMPLE.read_text(encoding="utf-8"))
    check(content)
    model = content["page"]["model"]
    cards = [card for name, block in content["blocks"].items() if "heads-" in name for card in block["heads"]]
    assert all(any(card[pane] is not None for card in cards) for pane in model["panes"]) and len(model["panes"]) == 6


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda page: page.pop("live"), "page lacks live"),
        (lambda page: page.update(more=1), "page has more, which is in no type"),
        (lambda page: page.update(title=None), "page.title is a NoneType"),
        (lambda page: page["model"].update(nLayers="2"), r"page.model.nLayers is a str"),
        (lambda page: page["model"]["columns"][0].update(role="other"), r"columns\[0\].role is 'other'"),
        (lambda page: page["model"].update(interrupted=0), "interrupted is a int"),
    ],
)
def test_what_is_not_of_the_type_is_found(change, says):
    content = json.loads(SAMPLE.read_text(encoding="utf-8"))
    change(content["page"])
    with pytest.raises(AssertionError, match=says):
        check(content)
