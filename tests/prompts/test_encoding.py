"""A piece of text has the tokens it has where it stands, and every row begins and ends as it should."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import transformers

import mechheads as mh
from mechheads.prompts.encoding import single_token, text_ids, token_strings
from mechheads.safety.openings import find_opening
from support.tokenizers_of_others import KINDS, BesidePlain

ANSWERS = [("The book is (", "A", "B"), ("The store is\n", "I", "A"), ("The capital of France is", " Paris", " Rome")]
CHAT = [{"role": "user", "content": "The book"}]


class Known(BesidePlain):
    def ids(self, text: str) -> list[int]:
        """The tokens of a text, once, behind one beginning token."""
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids if ids[0] == 0 else [0, *ids]


@pytest.fixture(scope="module", params=KINDS)
def known(request: pytest.FixtureRequest, others: Callable[[str], Path]) -> Known:
    return Known(others(request.param))


def test_a_text_begins_once_and_does_not_end(known: Known) -> None:
    rendered = known.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    prompts = ["The capital of France is", "<bos>The capital of France is", rendered]
    tokens = mh.Prompts(prompts).tokens(known.model)
    for row, length, text in zip(tokens.ids.tolist(), tokens.lengths.tolist(), prompts, strict=True):
        assert row[:length] == known.ids(text)
        assert row[:length].count(0) == 1 and 1 not in row[:length]


def test_an_answer_has_the_token_it_has_after_its_prompt(known: Known) -> None:
    for prompt, right, wrong in ANSWERS:
        given = mh.Prompts([prompt], answer=[right], wrong=[wrong])
        ids = known.ids(prompt)
        wanted = [known.ids(prompt + answer) for answer in (right, wrong)]
        assert all(whole[:-1] == ids for whole in wanted)
        tokens = given.tokens(known.model)
        assert [int(tokens.answer[0]), int(tokens.wrong[0])] == [whole[-1] for whole in wanted]
        assert mh.Prompts([ids], [right], [wrong]).tokens(known.model).fingerprint() == tokens.fingerprint()
        base = mh.ablate(known.model, given, metric="log_prob", heads="L0H0").dataset["base_metric"].item()
        assert base == pytest.approx(known.log_prob(wanted[0], len(ids)), abs=1e-4)


def test_targets_are_those_of_the_whole_text(known: Known) -> None:
    for prompt, target, _ in ANSWERS:
        whole, start = known.ids(prompt + target), len(known.ids(prompt))
        wanted = known.log_prob(whole, start)
        task = mh.task_log_prob(known.model, mh.Task([prompt], [target]))
        assert task[0] == pytest.approx(wanted, abs=1e-4)


def test_what_is_written_follows_the_last_word(known: Known) -> None:
    ids = known.ids("The capital of France is")
    with torch.no_grad():
        for _ in range(3):
            ids = [*ids, int(known.own(torch.tensor([ids])).logits[0, -1].argmax())]
    written = mh.generate(known.model, ["The capital of France is"], 3).ids[0]
    assert [*known.ids("The capital of France is"), *written] == ids[: len(ids) - 3 + len(written)]


def test_the_opening_of_a_refusal_is_that_after_the_template(known: Known) -> None:
    text = known.tokenizer.apply_chat_template(CHAT, tokenize=False, add_generation_prompt=True)
    wanted = known.ids(text + "I cannot help")[len(known.ids(text)) :]
    for prompt in (CHAT, known.tokenizer(text, add_special_tokens=False)["input_ids"]):
        assert list(find_opening(known.model, mh.Prompts([prompt]), "I cannot help")) == wanted
        assert mh.Prompts([prompt], answer=["I"]).tokens(known.model).answer.tolist() == wanted[:1]


def test_bytes_of_a_character_that_several_tokens_make_up_are_named(known: Known) -> None:
    text = "caf\u00e9 \u65e5\u672c \U0001f600 x\ufffdy"
    shown = token_strings(text_ids(text, known.tokenizer, special=False)[0], known.tokenizer)
    named = re.findall("(?:<0x[0-9A-F]{2}>)+", "".join(shown))
    meant = [bytes.fromhex(re.sub("<0x|>", "", each)).decode() for each in named]
    assert meant == ["\u00e9", "\u65e5\u672c", "\U0001f600", "\ufffd"]
    assert "\ufffd" not in "".join(shown)


def test_bytes_of_byte_level_tokens_are_shown_beside_their_text(loaded: Callable[[str], mh.Model]) -> None:
    tokenizer = loaded("gpt2").tokenizer
    assert token_strings(text_ids(" the \u00e9", tokenizer)[0], tokenizer)[-2:] == ["<0xC3>", "<0xA9>"]


def test_a_token_across_answer_and_prompt_is_refused(loaded: Callable[[str], mh.Model]) -> None:
    model = loaded("gpt2")
    with pytest.raises(ValueError, match=r"answer\[0\] = 'Paris' and its prompt, which ends with .* share a token"):
        mh.Prompts([" The capital of France is "], answer=["Paris"]).tokens(model)
    pairs = mh.PromptPairs([" France is"], [" France is"], answer=[" Paris"], wrong=[" Rome"])
    assert pairs.tokens(model)[0].answer.tolist() == [single_token(" Paris", model.tokenizer)]


def test_ids_that_the_model_does_not_know_are_refused(
    tiny: Callable[[str], Path], loaded: Callable[[str], mh.Model]
) -> None:
    model = loaded("gpt2")
    more = transformers.AutoTokenizer.from_pretrained(tiny("gpt2"))
    more.add_tokens(["<new>"])
    wider = mh.wrap(model.model, tokenizer=more)
    with pytest.raises(ValueError, match=r"prompt 0 contains token id \d+, outside 0\.\.\d+: the model has no embedd"):
        wider.cache(["one <new>"])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("<bos>{{ messages[0]['content'] }}<eos>\n", "prompt 0 ends with an end token"),
        ("<bos><bos>{{ messages[0]['content'] }}:", r"prompt 0 begins twice with \['<bos>'\]"),
    ],
)
def test_a_template_that_ends_a_request_or_begins_twice_warns(known: Known, template: str, message: str) -> None:
    tokenizer = copy.deepcopy(known.tokenizer)
    tokenizer.chat_template = template
    model = mh.wrap(known.model.model, tokenizer=tokenizer)
    with pytest.warns(UserWarning, match=message):
        mh.Prompts([CHAT]).tokens(model)


def test_an_opening_has_the_same_tokens_after_every_request(known: Known) -> None:
    with pytest.raises(ValueError, match="does not have tokens of its own, or not the same, after each of the req"):
        find_opening(known.model, mh.Prompts([*["The book:"] * 30, "The book "]), "Paris")
