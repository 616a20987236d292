"""Requests and the prompts they make."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mechheads as mh
from mechheads.data import content
from mechheads.safety import load_requests, request_prompts
from mechheads.safety.requests import Sides


def data(name: str) -> list[dict[str, str]]:
    return content("requests", name)["requests"]


def test_each_set_has_60_different_requests_six_of_each_of_ten_categories():
    sets = data("harmful"), data("harmless")
    assert len({request["text"] for requests in sets for request in requests}) == 120
    for requests in sets:
        counts = Counter((request["category"], request["split"]) for request in requests)
        assert len({category for category, _ in counts}) == 10
        assert all(number == {"train": 4, "test": 2}[split] for (_, split), number in counts.items())
        for text in (request["text"] for request in requests):
            assert text == text.strip() and text[-1] in ".?" and len(text.split()) <= 12


def test_each_harmless_request_resembles_the_harmful_one_at_its_place():
    harmful, harmless = load_requests(), load_requests("harmless")
    one, other = ([(each["category"], each["split"]) for each in data(name)] for name in ("harmful", "harmless"))
    assert one == other

    def likeness(one: str, other: str) -> float:
        words, others = (set(re.findall(r"\w+", text.lower())) for text in (one, other))
        return len(words & others) / len(words | others)

    for i, request in enumerate(harmless):
        alike = [likeness(request, other) for other in harmful]
        assert alike[i] == max(alike) >= 0.25, request
        assert request.split()[0] == harmful[i].split()[0]


def test_splits_part_a_set():
    train, test, both = (load_requests("harmless", split) for split in ("train", "test", None))
    assert (len(train), len(test)) == (40, 20)
    assert set(train) | set(test) == set(both)
    with pytest.raises(ValueError, match="split is 'dev'; choose one of 'train', 'test'"):
        load_requests("harmful", "dev")  # pyright: ignore[reportArgumentType]


def test_no_lesson_comes_twice_or_shares_five_words_with_the_sets_to_test_with():
    lessons = [text for name in ("harmful", "harmless") for text in load_requests(f"teaching_{name}")]
    assert len({text.lower() for text in lessons}) == len(lessons)

    def fives(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"[\w']+", text.lower())
        return {tuple(words[i : i + 5]) for i in range(len(words) - 4)}

    asked = {five for name in ("harmful", "harmless") for text in load_requests(name) for five in fives(text)}
    assert [text for text in lessons if not asked.isdisjoint(fives(text))] == []


def test_templates(llama: mh.Model):
    text = "Who gave Mary {q} and {x}?"
    assert request_prompts(llama, [text]).items == [f"## Query:{text}\n## Answer:"]
    assert request_prompts(llama, (text, text)).items == request_prompts(llama, [text, text]).items
    assert request_prompts(llama, [text], "bare").items == [text]
    chat = request_prompts(llama, [text], "chat")
    assert chat.items == [[{"role": "user", "content": text}]]
    written = llama.tokenizer.decode(chat.tokens(llama).ids[0])
    assert written == f"user: {text}\nassistant:"


@pytest.mark.parametrize(
    ("requests", "message"),
    [
        ("no", r"requests: 'no' is neither a file nor .* Give one request as a list, \['no'\]"),
        ([], "requests is empty"),
        (["no", " "], r"requests\[1\] is ' '"),
        ([["no"]], r"requests\[0\] is \['no'\]; it must be a text"),
    ],
)
def test_bad_requests(llama: mh.Model, requests: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        request_prompts(llama, requests)


@pytest.mark.usefixtures("brief_answers")
def test_a_file_is_opened_wherever_requests_are_taken(tmp_path: Path, llama: mh.Model):
    file, mixed = tmp_path / "a.csv", tmp_path / "mixed.csv"
    file.write_text("prompt\nGo on.\nStay.\n")
    mixed.write_text("prompt,label\nIs it?,safe\nGo on.,unsafe\nStay.,unsafe\nMay I?,safe\n")
    assert request_prompts(llama, str(file), "bare").items == ["Go on.", "Stay."]
    unsafe = load_requests(mixed, column="prompt", where={"label": "unsafe"})
    safe = load_requests(mixed, part="safe", column="prompt", where={"label": "safe"})
    sides = Sides.of(llama, unsafe, safe, "bare")
    assert (sides.harmful.texts, sides.harmless.texts) == (("Go on.", "Stay."), ("Is it?", "May I?"))
    options: dict[str, Any] = {"heads": ["L0H1"]}
    found = mh.safety_heads(llama, requests=file, **options)
    expected = mh.safety_heads(llama, ["Go on.", "Stay."], **options)
    np.testing.assert_array_equal(found.scores, expected.scores)
    np.testing.assert_array_equal(mh.safety_heads(llama, requests=unsafe, **options).scores, expected.scores)
    with pytest.raises(
        ValueError, match=r"mixed.csv has the columns 'prompt' .*load_requests\('mixed.csv', column=\.\.\."
    ):
        mh.safety_heads(llama, requests=mixed, **options)


def test_control_tokens_in_a_request_are_refused_but_for_the_bare_template(llama: mh.Model):
    with pytest.raises(ValueError, match=r"requests\[1\] has '<eos>' in it, which the tokenizer reads as a control"):
        request_prompts(llama, ["no", "a<eos>b"], "query")
    with pytest.raises(ValueError, match="prompt 1: message 0 has '<eos>' in its content"):
        request_prompts(llama, ["no", "a<eos>b"], "chat").tokens(llama)
    assert len(request_prompts(llama, ["no", "a<eos>b"], "bare").tokens(llama)) == 2
