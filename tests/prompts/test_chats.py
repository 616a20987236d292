"""Chats in the words of the template: continued, checked, dated; beside plain transformers."""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mechheads as mh
from mechheads.prompts import chats
from mechheads.prompts.chats import as_here, chat_text

USER = {"role": "user", "content": "Who gave a book?"}
BEGUN = {"role": "assistant", "content": "Sure"}
CHATML = (
    "{% for m in messages %}<s>{{ m['role'] }}\n{{ m['content'] }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
)
TRIMS = CHATML.replace("m['content']", "m['content'] | trim")
GEMMA = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
    "{% set role = 'model' if m['role'] == 'assistant' else m['role'] %}<s>{{ role }}\n{{ m['content'] | trim }}</s>\n"
    "{% endfor %}{% if add_generation_prompt %}<s>model\n{% endif %}"
)
NO_SYSTEM = "{% for m in messages %}{% if m['role'] != 'system' %}" + CHATML[len("{% for m in messages %}") :].replace(
    "</s>\n{% endfor %}", "</s>\n{% endif %}{% endfor %}"
)
THINKS = CHATML.replace("{{ m['content'] }}", "{{ m['content'].split('</think>')[-1] }}")
DATED = "Today is {{ strftime_now('%d %b %Y') }}.\n" + CHATML


@pytest.fixture
def tokenizer(loaded: Callable[[str], mh.Model]) -> Any:
    """A tokenizer whose template a test may replace."""
    return copy.deepcopy(loaded("gpt2").tokenizer)


def with_template(tokenizer: Any, template: str) -> Any:
    tokenizer.chat_template = template
    return tokenizer


@pytest.mark.parametrize("template", [CHATML, TRIMS, GEMMA, THINKS, "\n" + DATED])
@pytest.mark.parametrize("chat", [[USER], [USER, BEGUN], [USER, BEGUN, USER], [USER, BEGUN, USER, BEGUN]])
def test_a_chat_is_what_transformers_writes(tokenizer: Any, template: str, chat: list[dict[str, Any]]) -> None:
    with_template(tokenizer, template)
    goes_on = chat[-1] is BEGUN
    wanted = tokenizer.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=not goes_on, continue_final_message=goes_on
    )
    assert chat_text(chat, tokenizer) == wanted
    assert wanted.endswith("Sure") == goes_on


def test_a_begun_answer_goes_on_in_every_analysis(loaded: Callable[[str], mh.Model]) -> None:
    model = loaded("gpt2")
    chat = [USER, {**BEGUN, "content": "Sure, "}]
    text = model.tokenizer.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    assert mh.Prompts([chat]).tokens(model).unpadded == [ids]
    with torch.no_grad():
        wanted = model.model(torch.tensor([ids]))[0, -1]
    torch.testing.assert_close(model.cache([chat]).logits[0, -1], wanted, atol=1e-5, rtol=0)
    assert mh.generate(model, [chat], 3).ids == mh.generate(model, [ids], 3).ids


@pytest.mark.parametrize("content", ["Sure, ", " Sure", "\n"])
def test_spaces_that_a_template_drops_from_a_begun_answer_are_refused(tokenizer: Any, content: str) -> None:
    assert chat_text([USER, {**BEGUN, "content": content}], with_template(tokenizer, CHATML)).endswith(content)
    with pytest.raises(ValueError, match=r"the chat: its last message, the assistant's, ends with .*leave out w"):
        chat_text([USER, {**BEGUN, "content": content}], with_template(tokenizer, TRIMS))


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (USER, "is one object with the keys 'role', 'content'; a chat is a list of messages"),
        ([], "is a chat without messages"),
        ([[USER], [USER]], "message 0 is .*; each message is an object"),
        ([{"content": "Hello"}], "message 0 has the keys 'content' and no 'role'"),
        ([{**USER, "tool_calls": [1]}], "message 0 has 'tool_calls' besides its role and content, which is not read"),
        ([{**USER, "content": None}], "message 0 has the content None; it must be a text, or a list of parts"),
        ([{**USER, "content": [{"type": "image", "url": "x"}]}], "message 0: part 0 of its content is .*image"),
        ([{**USER, "content": [{"type": "text", "text": "a"}, "b"]}], "message 0: part 1 of its content is 'b'"),
        ([{**USER, "role": "human"}], "message 0 has the role 'human', which the model's chat template does not name"),
        ([USER, {**BEGUN, "content": ""}], "its last message, the assistant's, is empty; leave it out"),
    ],
)
def test_what_is_no_chat_is_refused(tokenizer: Any, chat: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        chat_text(chat, with_template(tokenizer, CHATML))


@pytest.mark.parametrize(
    ("template", "chat", "index"),
    [
        (NO_SYSTEM, [{"role": "system", "content": "Be kind."}, USER], 0),
        (NO_SYSTEM, [{"role": "system", "content": "user"}, USER], 0),  # the template writes "user" anyway
        (NO_SYSTEM, [{"role": "system", "content": "book"}, USER], 0),  # and another message has this word
        (THINKS, [USER, {**BEGUN, "content": "<think>a</think>b"}, USER], 1),
        ("{{ messages[-1]['content'] }}:", [USER, BEGUN, {**USER, "content": "Hi"}], 0),
    ],
)
def test_a_message_that_the_template_drops_is_refused(tokenizer: Any, template: str, chat: Any, index: int) -> None:
    with pytest.raises(ValueError, match=f"leaves out or changes message {index}, of the role"):
        chat_text(chat, with_template(tokenizer, template))


def test_roles_that_the_template_names_are_read(tokenizer: Any) -> None:
    assert chat_text([{**USER, "role": "user"}, {**BEGUN, "role": "model"}], with_template(tokenizer, GEMMA)).endswith(
        "model\nSure"
    )
    with pytest.raises(ValueError, match="chat template fails: no system"):
        chat_text([{"role": "system", "content": "a"}, USER], tokenizer)


# --- the date ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["2026-02-28", datetime.date(2026, 2, 28), datetime.datetime(2026, 2, 28, 12)])
def test_a_template_has_the_date_that_is_given(tokenizer: Any, given: Any) -> None:
    with mh.settings(date=given):
        assert chat_text([USER], with_template(tokenizer, DATED)).startswith("Today is 28 Feb 2026.\n<s>user")
        own = "{% set now = strftime_now( '%Y-%m-%d %H:%M' ) %}{{ now }}"
        assert "2026-02-28 00:00" in chat_text([USER], with_template(tokenizer, own + CHATML))


@pytest.mark.parametrize("date", ["28 Feb", "", 5, "2026-02-30"])
def test_what_is_no_date_is_refused(date: Any) -> None:
    with pytest.raises(ValueError, match=r"date is .*; give a day as text, such as"):
        mh.settings(date=date)


def test_the_date_is_in_the_provenance_if_the_template_reads_it(
    loaded: Callable[[str], mh.Model], tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    dated = mh.wrap(loaded("gpt2").model, tokenizer=with_template(tokenizer, DATED))
    run = mh.settings(date="2026-02-28")(mh.ablate)
    found = run(dated, [[USER]], heads="L0H0", progress=False)
    assert found.provenance["date"] == "2026-02-28"
    other = mh.settings(date="2026-03-01")(mh.ablate)(dated, [[USER]], heads="L0H0", progress=False)
    assert other.provenance["prompts"] != found.provenance["prompts"]
    assert "date" not in run(dated, ["The book"], heads="L0H0", progress=False).provenance
    assert "date" not in run(loaded("gpt2"), [[USER]], heads="L0H0", progress=False).provenance
    today = mh.ablate(dated, [[USER]], heads="L0H0", progress=False).provenance["date"]
    assert datetime.date.fromisoformat(today) <= datetime.date.today()


# --- control tokens ----------------------------------------------------------------------------------------


def test_a_control_token_in_a_message_is_refused(loaded: Callable[[str], mh.Model]) -> None:
    model = loaded("gpt2")
    with pytest.raises(ValueError, match=r"prompt 1: message 0 has '<eos>' in its content.*give the whole prompt as a"):
        mh.Prompts([[USER], [{**USER, "content": "a<eos>b"}]]).tokens(model)
    plain = mh.Prompts(["a<eos>b"]).tokens(model).unpadded[0]
    assert plain == model.tokenizer("a<eos>b", add_special_tokens=False)["input_ids"]


def test_a_thought_of_the_assistant_is_no_control_token_of_a_user(tokenizer: Any) -> None:
    tokenizer.add_tokens(["<think>"])
    with_template(tokenizer, CHATML + "{% if false %}<think>{% endif %}")
    chats.chat_tokens([USER, {**BEGUN, "content": "<think>\n"}], tokenizer, "prompt 0")
    with pytest.raises(ValueError, match="message 0 has '<think>' in its content"):
        chats.chat_tokens([{**USER, "content": "What is <think>?"}], tokenizer, "prompt 0")


# --- options of the template -------------------------------------------------------------------------------

THINKING = CHATML + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"


def test_options_of_a_template_are_passed_on_and_told(loaded: Callable[[str], mh.Model], tokenizer: Any) -> None:
    off = mh.settings(template_options={"enable_thinking": False})
    model = mh.wrap(loaded("gpt2").model, tokenizer=with_template(tokenizer, THINKING))
    plain = tokenizer.apply_chat_template([USER], tokenize=False, add_generation_prompt=True)
    wanted = tokenizer.apply_chat_template(
        [USER], tokenize=False, add_generation_prompt=True, enable_thinking=False, return_dict=False
    )
    assert chat_text([USER], tokenizer) == plain != wanted
    with off:
        assert chat_text([USER], tokenizer) == wanted
        reading = as_here()
        assert mh.ablate(model, [[USER]], heads="L0H0").provenance["template_options"] == {"enable_thinking": False}
        assert "template_options" not in mh.ablate(model, ["The book"], heads="L0H0").provenance
    with reading:  # as a worker that gets it later
        assert chat_text([USER], tokenizer) == wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"enable_thinkin": False}, "template_options has 'enable_thinkin', which does not occur in this model's chat"),
        ({"add_generation_prompt": False}, "template_options has 'add_generation_prompt', which is decided by each"),
    ],
)
def test_options_that_a_template_does_not_have_are_refused(tokenizer: Any, options: Any, message: str) -> None:
    with mh.settings(template_options=options), pytest.raises(ValueError, match=message):
        chat_text([USER], with_template(tokenizer, THINKING))
