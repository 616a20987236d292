"""Law: an analysis of a text gives the numbers of the same analysis of the text's tokens, whatever the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mechheads as mh
from mechheads.explorer.live import Live, check
from support import every_analysis
from support.every_analysis import ANALYSES, MORE, REPEATED, assert_near
from support.tokenizers_of_others import KINDS, BesidePlain

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("brief_answers")]

CHAT: dict[str, Any] = {"template": "chat"}
NO_TEXT = {"profile", "written", "read", "scales", "relation", "first MLP"}
"""These read weights, ids or single words."""
SAFETY: dict[str, Callable[..., Any]] = {
    "ships": lambda model, *sides: mh.ships(model, sides[0], **CHAT).values,
    "angle": lambda model, *sides: mh.safety.generalized_ships(model, sides[0], r=1, **CHAT).scores,
    "contribution": lambda model, *sides: mh.safety.refusal_contribution(model, *sides, **CHAT).values,
    "sahara": lambda model, *sides: repr(mh.safety.sahara(model, sides[0], 2, **CHAT)),
    "refusals": lambda model, *sides: mh.generate(model, mh.safety.request_prompts(model, sides[0], "chat"), 3).ids,
}
"""Analyses of requests, which are put into the model's chat template."""
OF_TEXT = [name for name in (*ANALYSES, *MORE) if name not in {*NO_TEXT, *SAFETY}]
REQUESTS = ["The book", "John gave a dog to Mary", "I cannot (A)"], ["The store", "John gave a cat to Mary", "I (B)"]
TEXTS = ["The capital of France is Paris and the store is small. " * 4, "(A) I\n\nWhen John gave (B)\t12 " * 6]


class Both(BesidePlain):
    """A model with the tokenizer of a kind, and what a text's tokens are if transformers tokenises it once."""

    def __init__(self, folder: Path, kind: str) -> None:
        super().__init__(folder)
        self.kind = kind

    def ids(self, text: str) -> list[int]:
        return [0, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def after(self, text: str, piece: str) -> list[int]:
        """The tokens of a piece after a text."""
        before, joint = self.ids(text), self.ids(text + piece)
        assert joint[: len(before)] == before
        return joint[len(before) :]

    def answers(self, texts: Any, pieces: Any) -> list[int]:
        each = [self.after(text, piece) for text, piece in zip(texts, pieces, strict=True)]
        assert all(len(ids) == 1 for ids in each)
        return [ids[0] for ids in each]

    def pairs(self, pairs: mh.PromptPairs) -> mh.PromptPairs:
        clean, corrupted = ([self.ids(str(text)) for text in side] for side in (pairs.clean, pairs.corrupted))
        wanted = (self.answers(pairs.clean, column) for column in (pairs.answer, pairs.wrong))
        return mh.PromptPairs(clean, corrupted, *wanted)

    def rendered(self, request: str) -> str:
        chat = [{"role": "user", "content": request}]
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)


EVERY_KIND = {"cache", "patch z", "generate", "ships", "refusals"}
"""Texts, pairs with answers, text that is written, requests and their answers; the others encode as these do."""


def of_kinds(names: Collection[str]) -> list[Any]:
    """Each but ``REPEATED`` with one kind of tokenizer, those of ``EVERY_KIND`` with all; others are ``release``."""
    each = [(kind, name) for kind in KINDS for name in names]
    always = [(kind, name) for kind, name in each if name in EVERY_KIND or (kind == KINDS[0] and name not in REPEATED)]
    return [pytest.param(*both, marks=[] if both in always else pytest.mark.release) for both in each]


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, others: Callable[[str], Path]) -> Both:
    return Both(others(request.param), request.param)


same = partial(assert_near, atol=2e-5)


@pytest.mark.parametrize(("both", "analysis"), of_kinds(OF_TEXT), indirect=["both"], scope="module")
def test_every_analysis_of_text_is_that_of_its_tokens(both: Both, analysis: str, monkeypatch: pytest.MonkeyPatch):
    of_text = (ANALYSES | MORE)[analysis].numbers(both.model)
    for name in ("CLEAN", "CORRUPTED"):
        monkeypatch.setattr(every_analysis, name, list(map(both.ids, getattr(every_analysis, name))))
    for name in ("PAIRS", "_ONE_PAIR"):
        monkeypatch.setattr(every_analysis, name, both.pairs(getattr(every_analysis, name)))
    same(of_text, (ANALYSES | MORE)[analysis].numbers(both.model))


@pytest.mark.parametrize(("both", "analysis"), of_kinds(SAFETY), indirect=["both"], scope="module")
def test_every_analysis_of_requests_is_that_of_the_tokens_of_the_template(both: Both, analysis: str):
    def ids(request: str) -> list[int]:
        return both.tokenizer(both.rendered(request), add_special_tokens=False)["input_ids"]

    wanted = (mh.Prompts([ids(request) for request in side]) for side in REQUESTS)
    same(SAFETY[analysis](both.model, *REQUESTS), SAFETY[analysis](both.model, *wanted))


def test_openings_of_refusals_are_those_that_the_model_would_write(both: Both):
    openings = ["I cannot help", "I cannot give"]
    found = mh.safety.refusal_attribution(both.model, REQUESTS[0], openings=openings)
    for request, refusal in zip(REQUESTS[0], found.dataset["refusal"].values, strict=True):
        text = both.rendered(request)
        start = len(both.tokenizer(text, add_special_tokens=False)["input_ids"])
        rows = [both.tokenizer(text + opening, add_special_tokens=False)["input_ids"] for opening in openings]
        shortest = min(map(len, rows))
        wanted = np.logaddexp.reduce([both.log_prob(row[:shortest], start) for row in rows])
        assert refusal == pytest.approx(wanted, abs=1e-4)


def test_tasks_of_text_are_those_of_their_tokens(both: Both):
    prompts, targets = (
        ["The book is (", "When John and Mary\n", "The capital of Spain is"],
        ["A)", "I gave", " Madrid big"],
    )
    of_ids = [both.ids(text) for text in prompts], [both.after(*each) for each in zip(prompts, targets, strict=True)]
    wanted = [both.log_prob([*prompt, *target], len(prompt)) for prompt, target in zip(*of_ids, strict=True)]
    tasks = mh.Task(prompts, targets), mh.Task(*of_ids)
    for task in tasks:
        np.testing.assert_allclose(mh.task_log_prob(both.model, task, reduce="sum"), wanted, atol=1e-4)
    effects = [mh.gating.ablation_effects(both.model, task).values for task in tasks]
    same(*effects)
    gates = [mh.fit_gates(both.model, task, seeds=2, updates=(2, 1, 1)) for task in tasks]
    same(*(fitted.values for fitted in gates))


def test_what_is_read_in_texts_is_read_in_their_tokens(both: Both):
    texts, ids = TEXTS, list(map(both.ids, TEXTS))
    window = 16 * (max(map(len, ids)) // 16 + 1)
    same(*(mh.profile_heads(both.model, each, window=window).values for each in (texts, ids)))
    options = {"window": window, "per_quantile": 1}
    found, wanted = (mh.behaviour.head_examples(both.model, each, **options) for each in (texts, ids))
    same(found.keys, wanted.keys)
    same(found.table["activity"].to_numpy(), wanted.table["activity"].to_numpy())
    losses = mh.safety.text_loss(both.model, texts)
    same(losses, np.array([-both.log_prob(row, 1) / (len(row) - 1) for row in ids]))


def test_own_texts_of_the_explorer_are_those_of_the_model(both: Both):
    live = Live(both.model)
    for text in ("The capital of France is", "<bos>When John", "A (B)\n"):
        answer = live.answer(check({"id": "a", "text": text, "head": "L1H1"}, live.n_layers, live.n_heads))
        if "next" not in answer:
            pytest.fail("a text without a query is answered with its next tokens")
        ids = [0, *both.ids(text)[1:][text.startswith("<bos>") :]]
        with torch.no_grad():
            wanted = both.own(torch.tensor([ids])).logits[0, -1].softmax(-1).topk(10).values
        assert len(answer["tokens"]) == len(ids)
        same(np.array([each["probability"] for each in answer["next"]]), wanted)


def test_a_position_named_by_its_text_is_the_last_token_of_that_text(both: Both):
    for before, piece, after in (("The capital of", " France", " is"), ("A ", "日本", " (I)"), ("", "When", " John")):
        prompts = mh.Prompts([before + piece + after], positions={"here": [piece]})
        assert prompts.tokens(both.model).positions["here"].tolist() == [len(both.ids(before + piece)) - 1]
