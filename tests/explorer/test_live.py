"""Own texts: what the model of a notebook's widget answers, and what it refuses."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.explorer import live as live_module
from mechheads.explorer.live import MAX_CHARACTERS, Live, Refused, check

TEXT = "The capital of France is"


@pytest.fixture(scope="module")
def small(loaded) -> mh.Model:
    return loaded("llama")


@pytest.fixture(scope="module")
def live(small) -> Live:
    return Live(small)


def request(**fields: Any) -> dict[str, Any]:
    return {"id": "one", "text": TEXT, "head": "L1H2"} | fields


def ask(live: Live, **fields: Any) -> Any:
    return live.answer(check(request(**fields), live.n_layers, live.n_heads))


def test_a_text_gives_what_the_package_gives(live, small):
    found = ask(live)
    run = small.cache([TEXT])
    assert found["tokens"] == list(run.tokens.strings[0]) and found["text"] == TEXT
    before = run.logits[0, -1].double().softmax(-1)
    assert [one["probability"] for one in found["next"]] == pytest.approx(before.topk(10).values.tolist(), rel=1e-4)
    pattern = run.pattern["L1H2"][0].numpy()
    np.testing.assert_allclose(np.array(found["attention"]["first"]) / 255, pattern[:, 0], atol=0.51 / 255)
    parts = mh.behaviour.logit_attribution(small, [TEXT])
    np.testing.assert_allclose(found["attribution"]["heads"], parts.values.values[..., 0].ravel(), atol=1e-5)
    rest = [*found["attribution"]["heads"], *found["attribution"]["mlp"]]
    total = sum(rest) + found["attribution"]["embedding"] + found["attribution"]["bias"]
    assert total == pytest.approx(found["attribution"]["logit"], abs=1e-3)
    kl = mh.ablate(small, [TEXT], intervention="zero", metric=mh.kl_divergence, heads="L1H2")
    assert found["ablation"]["kl"] == pytest.approx(kl["L1H2"]["score"], rel=1e-3, abs=1e-6)
    assert len(found["ablation"]["after"]) == 10 and found["notes"] == []


def test_a_query_and_a_key_give_the_parts_of_the_score(live, small):
    found = ask(live, query=4, key=3)
    assert found.keys() == {"id", "why", "seconds"}
    whole = mh.behaviour.attention_attribution(small, [TEXT], "L1H2", query=4, key=3)
    why = found["why"]
    assert why["weight"] == pytest.approx(float(small.cache([TEXT]).pattern["L1H2"][0, 4, 3]), abs=1e-5)
    for side, scores in (("atQuery", whole.query), ("atKey", whole.key)):
        listed = [part["value"] for part in why[side]["parts"]]
        parts = {part["name"]: part["value"] for part in why[side]["parts"]}
        assert listed == sorted(listed, key=abs, reverse=True) and len(listed) == 5
        assert sum(parts.values()) + why[side]["rest"] == pytest.approx(why["total"], rel=1e-2, abs=1e-3)
        of_heads = [name for name in parts if "H" in name]
        assert of_heads and all(parts[name] == pytest.approx(scores[name]["score"], rel=1e-3) for name in of_heads)
        assert why[side]["others"] == len(whole.parts("query" if side == "atQuery" else "key")) - 5
    assert why["total"] == pytest.approx(whole.query.dataset["total"].item(), rel=1e-5)
    with pytest.raises(Refused, match="query and key must be among them"):
        ask(live, query=400, key=3)
    with pytest.raises(Refused, match="the query is the first token"):
        ask(live, query=0, key=0)


def test_without_a_head_there_is_no_pattern_and_no_ablation(live):
    found = ask(live, head=None)
    assert found["attention"] is None and found["ablation"] is None and found["attribution"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"id": "a", "text": "b"}, "the request is not valid: 'head'"),
        (request(text=""), "text must be a text of 1 to"),
        (request(text="a" * (MAX_CHARACTERS + 1)), "text must be a text of 1 to"),
        (request(text="\ud800"), "text"),
        (request(head="L99H99"), "out of range"),
        (request(query=1, key=2), "the key not after the query"),
        (request(query=1, key=-1), "must be two tokens"),
        (request(query=1, key=0, head=None), "of a head"),
    ],
)
def test_a_request_that_is_not_valid_is_refused(given, message, small):
    with pytest.raises(Refused, match=message):
        check(given, small.n_layers, small.n_heads)


class Asked:
    """Requests in threads of their own, and what became of each."""

    def __init__(self, live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
        self.live, self.found, self.go_on, step = live, dict[str, str](), threading.Event(), live_module._run

        def waits(*args: Any, **rest: Any) -> Any:
            self.go_on.wait(30)
            return step(*args, **rest)

        monkeypatch.setattr(live_module, "_run", waits)

    def ask(self, name: str) -> threading.Thread:
        def run() -> None:
            try:
                self.found[name] = ask(self.live, id=name)["id"]
            except Refused as refused:
                self.found[name] = str(refused)

        thread = threading.Thread(target=run)
        thread.start()
        return thread


def test_a_run_can_be_cancelled_while_it_waits_and_while_it_runs(live, monkeypatch):
    asked = Asked(live, monkeypatch)
    threads = asked.ask("first"), asked.ask("second")
    live.cancel("second")
    live.cancel("first")
    asked.go_on.set()
    for thread in threads:
        thread.join(20)
    assert asked.found == {"second": "cancelled", "first": "cancelled"}
    assert ask(live)["id"] == "one"
