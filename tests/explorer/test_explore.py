"""``mh.explore`` and its kin: a page outside a notebook, a widget in one."""

from __future__ import annotations

import html
import importlib
import json
import re
import sys
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.explorer.explore import receive, saved, widget
from mechheads.explorer.live import Live
from mechheads.explorer.page import page_html, script
from mechheads.explorer.payload import Payload, atlas_payload
from mechheads.studies.atlas import Atlas
from support.page_sample import unblock

LIVE: Any = {"maxCharacters": 10, "maxTokens": 5}
needs_anywidget = pytest.mark.needs(find_spec("anywidget") is not None, "anywidget")


def demo(n_layers: int = 3, n_heads: int = 3) -> Atlas:
    effect = mh.HeadScores.from_scores(np.eye(n_layers, n_heads), name="effect", kind="activation_patch")
    return Atlas("demo", patching=effect)


def live_payload() -> Payload:
    payload = atlas_payload(demo())
    return Payload({**payload.page, "live": LIVE}, payload.blocks)


@pytest.fixture(scope="module")
def small(loaded) -> mh.Model:
    return loaded("llama")


@pytest.fixture
def notebook(monkeypatch) -> None:
    shell = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))


def data(path: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """The data of a page, and its blocks."""
    page = path.read_text("utf-8")
    blocks = dict(re.findall(r'<script type="application/octet-stream;base64" id="([\w-]+)">([\w+/=]*)</script>', page))
    return json.loads(re.findall(r'id="mh-page">(.*?)</script>', page)[0]), blocks


def test_outside_a_notebook_it_is_a_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert mh.explore(demo()).name == "explorer.html"
    page, blocks = data(tmp_path / "explorer.html")
    assert page["kind"] == "atlas" and page["live"] is None and len(blocks) == 4
    assert mh.explore(demo(), tmp_path / "mine.html") == tmp_path / "mine.html"


def test_the_card_of_a_head_opens_with_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page, blocks = data(mh.head_card(demo(), "L1H2"))
    assert page["start"] == "L1H2" and page["title"] == "L1H2 of demo"
    assert sorted(blocks) == ["mh-heads-1", "mh-shared"] and (tmp_path / "L1H2.html").exists()
    assert [card["head"] for card in unblock(blocks["mh-heads-1"])["heads"]] == ["L1H2"]
    with pytest.raises(ValueError, match="head L5H0 is out of range"):
        mh.head_card(demo(), "L5H0")


def test_a_card_holds_the_heads_that_it_links_to(atlas, tmp_path):
    name = atlas.paths.dataset["receiver"].values.tolist()[-1].partition(".")[0]
    _, blocks = data(mh.head_card(atlas, name, tmp_path / "card.html"))
    cards = {card["head"]: card for block in blocks if "heads" in block for card in unblock(blocks[block])["heads"]}
    paths = [*cards[name]["paths"]["senders"], *cards[name]["paths"]["receivers"]]
    linked = {each["head"] for each in paths if each["head"]}
    assert linked and cards.keys() == linked | {name}


def test_a_view_holds_the_patterns_of_a_run(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = ["The capital of France is", "one two"]
    run = small.cache(texts, sites=("pattern",))
    page, blocks = data(run.attention.view())
    assert page["kind"] == "run" and page["model"]["questions"] == []
    assert [each["tokens"] for each in unblock(blocks["mh-shared"])["prompts"]] == [*map(list, run.tokens.strings)]
    card = unblock(blocks["mh-heads-2"])["heads"][1]
    assert card["head"] == "L2H1" and card["text"] is None
    for i, strings in enumerate(run.tokens.strings):
        found, n = card["pattern"][i]["attention"], len(strings)
        whole = np.zeros((n, n))
        whole[:, 0] = found["first"]
        for query in range(n):
            whole[query, found["keys"][query]] = found["weights"][query]
        np.testing.assert_allclose(whole / 255, run.pattern["L2H1"][i, :n, :n].numpy(), atol=0.51 / 255)


@pytest.mark.usefixtures("notebook")
def test_a_notebook_says_what_to_install(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    with pytest.raises(
        ImportError, match=r'a widget needs anywidget: pip install "mechheads\[notebook\]"; or give path='
    ):
        mh.explore(demo(small.n_layers, small.n_heads), model=small)


@pytest.mark.usefixtures("notebook")
def test_without_a_model_a_notebook_shows_the_page_in_a_frame_and_needs_no_widget(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    for shown in (mh.explore(demo()), small.cache(["one two"], sites=("pattern",)).attention.view()):
        assert "<iframe" in shown._repr_html_() and repr(shown).startswith(("The attention heads of", "Attention patt"))
    assert '<div class="mechheads-still">Attention patterns of' in shown._repr_html_()  # there are no tables


@needs_anywidget
def test_a_large_page_is_a_widget(monkeypatch):
    explore = importlib.import_module("mechheads.explorer.explore")
    monkeypatch.setattr(explore, "_SAVED", 10)
    monkeypatch.setattr(explore, "in_notebook", lambda: True)
    assert json.loads(mh.explore(demo()).page)["live"] is None


def test_a_saved_notebook_keeps_the_page():
    payload = live_payload()
    text = saved(payload)
    inner = html.unescape(re.findall(r'srcdoc="([^"]*)"', text)[0])
    assert '"live":null' in inner and script() in inner and 'sandbox="allow-scripts allow-downloads"' in text
    assert '<div class="mechheads-still"><h3>' in text and "<td>L1H1</td>" in text
    assert "still.hidden = true" in text.split("<script>")[1]


@needs_anywidget
def test_the_widget_holds_the_same_data():
    payload = atlas_payload(demo())
    shown = widget(payload, None)
    assert json.loads(shown.page) == json.loads(json.dumps(payload.page)) and shown.blocks == payload.blocks
    bundle, _ = shown._repr_mimebundle_()
    assert bundle["text/html"] == saved(payload) and "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["text/plain"] == payload.page["title"]


@needs_anywidget
@pytest.mark.usefixtures("notebook")
def test_in_a_notebook_the_model_runs_texts(small):
    shown = mh.explore(demo(small.n_layers, small.n_heads), model=small)
    assert json.loads(shown.page)["live"]["maxTokens"] > 0


class Front:
    """Takes what is sent to the page."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []

    def send(self, message: dict[str, Any]) -> None:
        self.got.append(message)


def sent(content: Any, live: Live | None) -> list[dict[str, Any]]:
    front = Front()
    if (thread := receive(front, content, live_payload(), live)) is not None:
        thread.join()
    return front.got


def test_messages_of_the_widget_are_answered(small):
    live, asked = Live(small), {"type": "text", "id": "a", "text": "The capital of France is", "head": "L0H1"}
    (found,) = sent(asked, live)
    assert found["type"] == "text" and found["id"] == "a" and found["ablation"]["kl"] >= 0
    (found,) = sent(asked | {"head": "L9H9"}, live)
    assert found["type"] == "error" and found["id"] == "a" and "out of range" in found["error"]
    for nothing in (None, [], {"type": "other"}, {"type": "cancel", "id": "none"}):
        assert sent(nothing, live) == []


def test_a_widget_saves_its_page_without_the_kernel():
    (found,) = sent({"type": "page", "id": "b"}, None)
    assert found["id"] == "b" and found["html"] == page_html(atlas_payload(demo()))
    assert found["html"].partition('id="mh-root"')[0].endswith("<body><div ")  # the first one: here the view is written
    assert sent({"type": "text", "id": "c", "text": "a"}, None) == []
