"""Generation against a plain loop of full forward passes and against transformers' own, on every tiny architecture."""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import mechheads as mh
from mechheads.engine.memory import Cost
from mechheads.generation.generate import Generated, Sampling, check_writing, end_tokens, generate, generate_under
from mechheads.interventions.new_z import HeadChange
from mechheads.limits import Limits
from support import oracles
from support.ctrl_c import stopped_at
from support.levels import ONE_FIRST, on_two
from support.releases import TRANSFORMERLENS_4

ARCHITECTURES = ONE_FIRST

generation = importlib.import_module("mechheads.generation.generate")
PROMPTS = [
    " The capital of France is",
    " yes",
    " When John and Mary went to the store John gave a book to",
    " The capital of Italy is",
    " no I cannot help",
]
NEW = 9
SAMPLED = Sampling(NEW, temperature=2.0, top_k=5)
QUIET: dict[str, Any] = {"sampling": Sampling(NEW)}
DRAWN: dict[str, Any] = {"sampling": SAMPLED}
"""Tiny models repeat themselves when greedy; drawn tokens tell whether all probabilities are right."""


@pytest.fixture
def mine(tiny) -> mh.Model:
    """A model to change."""
    return mh.load(tiny("llama"))


def rows_of(model: mh.Model, prompts: Sequence[Any] = PROMPTS) -> list[list[int]]:
    tokens = mh.Prompts(prompts).tokens(model)
    return [row[:length] for row, length in zip(tokens.ids.tolist(), tokens.lengths.tolist(), strict=True)]


def plain(
    model: mh.Model,
    hooks: list[tuple[str, Callable]] | None = None,
    *,
    ends: Sequence[int] = (),
    prompts: Sequence[Any] = PROMPTS,
    new: int = NEW,
    drawn: bool = False,
) -> tuple[tuple[tuple[int, ...], bool], ...]:
    """New ids of each prompt and whether it ended: a full forward pass for each token, drawn as ``SAMPLED`` says."""
    ends = ends or end_tokens(model)
    found = []
    for row in rows_of(model, prompts):
        chances = torch.from_numpy(np.random.default_rng([0, 0, *row]).random(new, dtype=np.float32))
        written: list[int] = []
        ended = False
        while len(written) < new and not ended:
            logits = oracles.forward(model, torch.tensor([row + written]), hooks)[0, -1]
            best = logits.topk(SAMPLED.top_k or len(logits))
            reached = (best.values / SAMPLED.temperature).softmax(-1).cumsum(-1)
            token = int(best.indices[int((reached <= chances[len(written)]).sum()) if drawn else 0])
            ended = token in ends
            written += [] if ended else [token]
        found.append((tuple(written), ended))
    return tuple(found)


def of(written: Generated) -> tuple[tuple[tuple[int, ...], bool], ...]:
    return tuple(zip(written.ids, written.finished, strict=True))


def as_hooks(model: mh.Model, changes: Sequence[HeadChange]) -> list[tuple[str, Callable]]:
    """The changes as hooks for whole rows, one after the other."""

    def hook(change: HeadChange) -> Callable:
        def put(value: Tensor, hook: Any) -> Tensor:
            value = value.clone()
            value[:, :, change.head] = change.function(value[:, :, change.head])
            return value

        return put

    return [(model.hook_name(change.site, change.layer), hook(change)) for change in changes]


@on_two
def test_greedy_equals_a_full_forward_for_each_token(small):
    written = generate(small, PROMPTS, **QUIET)
    assert of(written) == plain(small)
    assert written.texts == tuple(small.tokenizer.decode(ids, skip_special_tokens=True) for ids in written.ids)
    assert len({len(row) for row in rows_of(small)}) > 3  # ragged


@on_two
def test_greedy_equals_transformers_own(small, tiny):
    folder = small.name
    own = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    written = generate(small, PROMPTS, **QUIET)
    for row, ids, ended in zip(rows_of(small), written.ids, written.finished, strict=True):
        given = own.generate(
            torch.tensor([row]),
            attention_mask=torch.ones(1, len(row), dtype=torch.long),
            max_new_tokens=NEW,
            do_sample=False,
            pad_token_id=2,
        )[0, len(row) :].tolist()
        assert given == [*ids, small.tokenizer.eos_token_id][: len(given)] and ended == (len(given) > len(ids))


def test_hooks_act_in_the_prompt_and_in_every_step(small):
    def turn(value: Tensor, hook: Any) -> Tensor:
        return value.flip(-1)

    def louder(value: Tensor, hook: Any) -> None:
        value.mul_(1.5)

    hooks = [(small.hook_name("z", 0), turn), (small.hook_name("mlp_out", 1), louder)]
    written = generate(small, PROMPTS, hooks=hooks, **DRAWN)
    assert of(written) == plain(small, hooks, drawn=True)
    assert written.ids != generate(small, PROMPTS, **DRAWN).ids
    assert not any(point.fwd_hooks for point in small.model.hook_dict.values())


def conditions_for(model: mh.Model) -> list[list[HeadChange]]:
    constant = torch.linspace(-2, 2, model.d_head)
    last = model.n_kv_heads - 1
    return [
        [],
        [HeadChange(layer, head, "z", torch.zeros_like) for layer in (0, 1) for head in (1, 3)],
        [HeadChange(0, head, "scored_q", lambda q: 0.01 * q) for head in range(4)],
        [HeadChange(1, 2, "z", lambda z: constant.expand_as(z)), HeadChange(1, 2, "z", lambda z: 2 * z)],
        [HeadChange(0, last, "k", lambda k: -3 * k), HeadChange(1, 0, "v", lambda v: v.flip(-1))],
        [HeadChange(2, 0, "q", lambda q: 5 * q), HeadChange(0, last, "scored_k", lambda k: -k)],
    ]


@on_two
def test_conditions_in_one_batch_are_as_one_after_the_other(small):
    conditions = conditions_for(small)
    prompts, few = PROMPTS[:3], DRAWN | {"sampling": replace(SAMPLED, max_new_tokens=6)}
    together = generate_under(small, prompts, conditions, **few)
    assert [of(each) for each in together] == [
        plain(small, as_hooks(small, changes), prompts=prompts, new=6, drawn=True) for changes in conditions
    ]
    assert [generate_under(small, prompts, [changes], **few)[0] for changes in conditions] == together
    assert together[0] == generate(small, prompts, **few)
    assert len({each.ids for each in together}) == len(conditions)


def test_rows_that_finish_leave_and_change_nothing_for_the_others(small, monkeypatch):
    free = generate(small, PROMPTS, **DRAWN).ids

    def lengths_with(ends: tuple[int, ...]) -> set[int]:
        return {next((i for i, token in enumerate(ids) if token in ends), NEW) for ids in free}

    ends = max(combinations({token for ids in free for token in ids}, 2), key=lambda ends: len(lengths_with(ends)))
    monkeypatch.setattr(generation, "end_tokens", lambda model: ends)
    expected = plain(small, ends=ends, drawn=True)
    seen: list[int] = []
    changes = [HeadChange(1, 1, "z", torch.zeros_like)]
    hook = (small.hook_name("z", 0), lambda value, hook: seen.append(len(value)))
    assert of(generate(small, PROMPTS, hooks=[hook], **DRAWN)) == expected
    assert len({len(ids) for ids, _ in expected}) > 2 and not all(ended for _, ended in expected)
    lengths = [len(ids) + ended for ids, ended in expected]
    assert sum(seen) == sum(lengths)  # no row is computed once it is finished
    together = generate_under(small, PROMPTS, [changes, [], changes], **DRAWN)
    assert of(together[1]) == expected
    assert of(together[0]) == of(together[2]) == plain(small, as_hooks(small, changes), ends=ends, drawn=True)


def test_what_all_prompts_begin_with_is_computed_once_a_condition(small):
    begin = " When John and Mary went to the store John gave a book to"
    prompts = [f"{begin}{end}" for end in (" Mary", " Mary and John", "", " a big dog", " the cat", " no")]
    rows, conditions = rows_of(small, prompts), conditions_for(small)[:3]
    alike = len(rows_of(small, [begin])[0])
    assert all(row[:alike] == rows[2] for row in rows)
    seen: list[tuple[int, int]] = []
    count = HeadChange(2, 3, "z", lambda z: (seen.append(z.shape[:2]), z)[1])
    quick = DRAWN | {"sampling": replace(SAMPLED, max_new_tokens=4)}
    found = generate_under(small, prompts, [[*changes, count] for changes in conditions], **quick)
    for changes, each in zip(conditions, found, strict=True):
        assert of(each) == plain(small, as_hooks(small, changes), prompts=prompts, new=4, drawn=True)
    if TRANSFORMERLENS_4:  # on 3.9 only prompts of equal length share a batch
        first = seen[:6]  # each condition's beginning, then its rows
        assert first[:3] == [(1, alike - 1)] * 3  # the token that is read stays with each row
        assert first[3:] == [(len(rows), max(map(len, rows)) - alike + 1)] * 3


def test_every_layout_writes_the_same(small):
    expected = generate_under(small, PROMPTS, conditions_for(small), **DRAWN)
    assert len(small.backend.layouts) == 2
    for layout in small.backend.layouts:
        other = mh.wrap(small.model, small.tokenizer)
        other.backend.layout = layout
        assert generate_under(other, PROMPTS, conditions_for(small), **DRAWN) == expected


def test_sliding_windows(tiny, loaded, tmp_path):
    folder = shutil.copytree(tiny("gemma"), tmp_path / "narrow")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"sliding_window": 4}))
    narrow = mh.load(folder)
    written = generate(narrow, PROMPTS, **DRAWN)
    assert of(written) == plain(narrow, drawn=True)
    assert written.ids != generate(loaded("gemma"), PROMPTS, **DRAWN).ids


def test_little_memory_changes_nothing(llama):
    def written(**given: Any) -> list[Generated]:
        return mh.settings(**given)(generate_under)(llama, PROMPTS, conditions_for(llama)[:2], **DRAWN)

    free = written()
    assert written(budget="1 KB") == free  # each row in a batch of its own
    assert written(budget=Limits(tokens=1)) == free  # prompts are computed one by one and written on together


def test_memory_stays_within_the_budget(llama):
    peaks = {}
    for budget in ("1 MB", "4 MB"):
        with Cost() as memory:
            mh.settings(budget=budget)(generate)(llama, PROMPTS[2:3] * 100, Sampling(2))
        peaks[budget] = memory.peak
    assert peaks["1 MB"] <= 2**20 < peaks["4 MB"] <= 2**22


def test_choice_by_hand():
    logits = torch.tensor([0.2, 0.5, 0.3]).log().expand(6, 3)
    noise = torch.tensor([[0.0], [0.19], [0.21], [0.69], [0.71], [0.99]])
    prompts = torch.arange(6)
    assert Sampling(temperature=1.0).choose(noise, logits, prompts, 0).tolist() == [0, 0, 1, 1, 2, 2]
    best = [1, 1, 1, 2, 2, 2]  # 0.5 and 0.3 of 0.8: the first up to 0.625
    assert Sampling(temperature=1.0, top_k=2).choose(noise, logits, prompts, 0).tolist() == best
    squared = [0, 0, 1, 1, 1, 2]  # 0.04, 0.25, 0.09 of 0.38: up to 0.105 and 0.763
    noise[1] = 0.10
    assert Sampling(temperature=0.5).choose(noise, logits, prompts, 0).tolist() == squared
    assert Sampling(temperature=1.0, top_k=99).choose(noise, logits, prompts, 0).tolist() == [1, 1, 1, 2, 2, 0]
    assert Sampling(temperature=0.0).choose(None, logits, prompts, 0).tolist() == [1] * 6


def test_drawn_tokens_have_the_models_probabilities(llama):
    n = 2000
    written = generate(llama, [" The capital of"] * n, Sampling(1, temperature=0.7, top_k=5), seed=1)
    logits = oracles.forward(llama, torch.tensor(rows_of(llama, [" The capital of"])))[0, -1]
    best = logits.topk(5)
    for token, p in zip(best.indices.tolist(), (best.values / 0.7).softmax(-1).tolist(), strict=True):
        share = sum(ids == (token,) for ids in written.ids) / n
        assert abs(share - p) < 4 * (p * (1 - p) / n) ** 0.5


def test_drawn_tokens_depend_on_seed_prompt_and_index_alone(llama):
    def drawn(new: int, prompts: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        return generate(llama, prompts, Sampling(new, 1.0), seed=4).ids

    long = drawn(NEW, PROMPTS)
    assert tuple(ids[:4] for ids in long) == tuple(ids[:4] for ids in drawn(4, PROMPTS))
    assert drawn(NEW, PROMPTS[2:]) == long[2:] and drawn(NEW, PROMPTS[::-1]) == long[::-1]
    copies = drawn(NEW, [PROMPTS[0], PROMPTS[3], PROMPTS[0]])
    assert copies[:2] == (long[0], long[3]) and copies[2] != long[0]
    assert generate(llama, PROMPTS, Sampling(NEW, 1.0, seed=4), seed=5).ids == long


SETTINGS: dict[str, Any] = {
    "repetition_penalty": 1.7,
    "no_repeat_ngram_size": 2,
    "suppress_tokens": [*range(100, 200)],
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_models_generation_settings_are_followed_as_in_its_own_generate(tiny, llama, tmp_path, name: str):
    own = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"), attn_implementation="eager")
    setattr(own.generation_config, name, SETTINGS[name])
    plainly = generate(llama, PROMPTS, **QUIET).ids
    own.save_pretrained(tmp_path)
    llama.tokenizer.save_pretrained(tmp_path)
    written = generate(mh.load(str(tmp_path)), PROMPTS, **QUIET)
    assert written.ids != plainly
    for row, ids in zip(rows_of(llama), written.ids, strict=True):
        asked = {"attention_mask": torch.ones(1, len(row), dtype=torch.long), "pad_token_id": 2}
        given = own.generate(torch.tensor([row]), max_new_tokens=NEW, do_sample=False, **asked)[0, len(row) :]
        assert given.tolist()[: len(ids)] == [*ids]


def test_stops_at_the_end_token(mine):
    free = generate(mine, PROMPTS, **QUIET)
    token = free.ids[2][3]
    mine.tokenizer.eos_token = mine.tokenizer.convert_ids_to_tokens(token)
    written = generate(mine, PROMPTS, **QUIET)
    cut = [ids[: ids.index(token)] if token in ids else ids for ids in free.ids]
    assert list(written.ids) == cut
    assert list(written.finished) == [token in ids or ended for ids, ended in zip(free.ids, free.finished, strict=True)]


def test_end_tokens_come_from_tokenizer_configurations_and_chat_template(mine):
    assert end_tokens(mine) == [1]
    mine.tokenizer.chat_template = "{% for m in messages %}{{ m['role'] }} {{ m['content'] }}<pad>\n{% endfor %}"
    assert end_tokens(mine) == [1, 2]
    mine.tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert end_tokens(mine) == [1]
    if TRANSFORMERLENS_4:  # a HookedTransformer has no generation config
        mine.model.original_model.generation_config.eos_token_id = [1, 7]
        assert end_tokens(mine) == [1, 7]
    mine.tokenizer = None
    assert end_tokens(mine) in ([], [1], [1, 7])  # a HookedTransformer does not keep the configuration


@pytest.mark.slow
def test_the_default_model_ends_its_turn(model):
    assert [model.tokenizer.decode(end) for end in end_tokens(model)] == ["<|im_end|>"]
    chat = [{"role": "user", "content": "Say yes."}]
    written = generate(model, [chat, "The capital of France is"], Sampling(3))
    assert of(written) == plain(model, prompts=[chat, "The capital of France is"], new=3)
    assert written.texts[1].startswith(" Paris")


def test_ids_and_chats_are_prompts_and_no_tokenizer_gives_numbers(mine):
    rows = rows_of(mine)
    expected = generate(mine, PROMPTS, **QUIET)
    assert generate(mine, rows, **QUIET) == expected == generate(mine, mh.Prompts(PROMPTS), **QUIET)
    chat = [{"role": "user", "content": "yes"}]
    assert of(generate(mine, [chat], **QUIET)) == plain(mine, prompts=[chat])
    mine.tokenizer = None
    bare = generate(mine, rows, **QUIET)
    assert bare.texts[0] == " ".join(map(str, bare.ids[0]))


@pytest.mark.parametrize("at", [5, NEW + 2])
def test_interrupted_it_gives_what_is_there(llama, at):
    expected = plain(llama)
    stop = stopped_at(at, lambda value, hook: None)
    with pytest.warns(UserWarning, match=r"interrupted after \d of 5 answers; the others are as far"):
        written = mh.settings(budget="1 KB")(generate)(llama, PROMPTS, hooks=[(llama.hook_name("z", 1), stop)], **QUIET)
    longest = max(range(5), key=lambda i: len(rows_of(llama)[i]))  # the longest is written first, alone
    got = min(at - 1, len(expected[longest][0]))
    assert written.ids[longest][:got] == expected[longest][0][:got] and got > 0
    assert any(ids == () and not ended for ids, ended in of(written))
    assert written.interrupted
    assert written.unfinished == tuple(i for i, row in enumerate(of(written)) if row != expected[i])
    assert (longest in written.unfinished) == (at == 5)
    assert not any(point.fwd_hooks for point in llama.model.hook_dict.values())


def test_values_out_of_range_are_an_error_and_hooks_come_off(llama):
    change = HeadChange(1, 1, "z", lambda z: torch.full_like(z, float("inf")))
    with pytest.raises(ValueError, match=r"the logits of new token 0 are not numbers \(NaN\)"):
        generate_under(llama, PROMPTS, [[change]], **QUIET)
    assert not any(point.fwd_hooks for point in llama.model.hook_dict.values())


def test_context(llama):
    longest = len(rows_of(llama)[2])
    room = llama.n_ctx - longest
    with pytest.raises(
        ValueError,
        match=rf"max_new_tokens is {room + 1}, and prompt 2 has {longest} tokens; this model's context holds 64: "
        rf"give at most {room},",
    ):
        generate(llama, PROMPTS, Sampling(room + 1))
    with pytest.raises(ValueError, match=f"give at most {room},"):
        check_writing(llama, PROMPTS, Sampling(room + 1))
    check_writing(llama, PROMPTS, Sampling(room))
    written = generate(llama, PROMPTS[2:3], Sampling(room))
    assert of(written) == plain(llama, prompts=PROMPTS[2:3], new=room)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"max_new_tokens": 0}, "max_new_tokens is 0; it must be at least 1"),
        ({"temperature": -1.0}, "temperature is -1.0; it must be at least 0"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_k": 0, "temperature": 1.0}, "top_k is 0; it must be at least 1"),
        ({"top_k": 5}, "top_k is 5, but temperature 0 draws nothing; give temperature=1.0"),
    ],
)
def test_bad_sampling(given, message):
    with pytest.raises(ValueError, match=message):
        Sampling(**given)
