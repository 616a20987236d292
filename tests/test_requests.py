"""Requests and the prompts they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import mechheads as mh
from mechheads.safety import TEMPLATES, load_requests, request_prompts

pytestmark = pytest.mark.transformerlens


@pytest.fixture
def llama(tiny: Callable[[str], Path]) -> mh.Model:
    return mh.load(tiny("llama"))


def test_package_has_24_different_requests_three_of_each_category():
    requests = load_requests()
    assert len({request.text for request in requests}) == len(requests) == 24
    assert set(Counter(request.category for request in requests).values()) == {3}
    for request in requests:
        assert request.text == request.text.strip()
        assert request.text[-1] in ".?"
        assert len(request.text.split()) <= 12


def test_unknown_set_names_those_there_are():
    with pytest.raises(ValueError, match="there is no set of requests 'rude'; there is harmful"):
        load_requests("rude")


def test_templates(llama: mh.Model):
    text = "Who gave Mary {q} and {x}?"
    assert request_prompts(llama, [text]).items == [f"## Query:{text}\n## Answer:"]
    assert request_prompts(llama, [text], "bare").items == [text]
    chat = request_prompts(llama, [text], "chat")
    assert chat.items == [[{"role": "user", "content": text}]]
    written = llama.tokenizer.decode(chat.tokens(llama).ids[0])
    assert written == f"user: {text}\nassistant:"


def test_left_out_means_those_of_the_package(llama: mh.Model):
    texts = [request.text for request in load_requests()]
    assert request_prompts(llama, None, "bare").items == texts


def test_prompts_are_taken_as_they_are(llama: mh.Model):
    prompts = mh.Prompts(["When John"], cluster=["a"])
    assert request_prompts(llama, prompts, "chat") is prompts


def test_chat_without_a_chat_template_names_the_alternatives(llama: mh.Model):
    llama.tokenizer.chat_template = None
    with pytest.raises(ValueError, match=r"has no chat template; choose 'query' or 'bare', or give mh.Prompts"):
        request_prompts(llama, ["no"], "chat")


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ("no", r"got one text; write \['no'\]"),
        ([], "requests is empty"),
        (["no", " "], r"requests\[1\] is ' '"),
        ([["no"]], r"requests\[0\] is \['no'\]; a request is a text"),
    ],
)
def test_bad_requests(llama: mh.Model, requests: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        request_prompts(llama, requests)


def test_unknown_template(llama: mh.Model):
    assert list(TEMPLATES) == ["query", "bare", "chat"]
    with pytest.raises(ValueError, match="template is 'poem'; choose one of 'query', 'bare', 'chat'"):
        request_prompts(llama, ["no"], "poem")  # pyright: ignore[reportArgumentType]
