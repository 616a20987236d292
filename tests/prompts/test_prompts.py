"""Prompts and pairs: what is tokenised, where things are, and what is refused."""

# pyright: reportOptionalMemberAccess=false, reportOptionalIterable=false
from __future__ import annotations

import json
import re
import warnings
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings, strategies as st

import mechheads as mh
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import join_clusters

ARCHITECTURES = ["gpt2", "llama"]

FRANCE = " The capital of France is"
ROWS = [(" France", " Italy"), (" Spain", " Germany")]
ANSWERS = [(" Paris", " Rome"), (" Madrid", " Berlin")]


@pytest.fixture(scope="module")
def gpt2(loaded) -> mh.Model:
    """A model whose tokenizer puts nothing before a text."""
    return loaded("gpt2")


def ids(model: mh.Model, text: str) -> list[int]:
    return model.tokenizer(text).input_ids


def refused(message: str):
    """The whole message, or its beginning where it ends in dots."""
    pattern = re.escape(message.removesuffix("...")) + ("" if message.endswith("...") else r"\Z")
    return pytest.raises(ValueError, match=r"\A" + pattern)


# -- tokens ---------------------------------------------------------------------------------------------


def test_only_a_tokenizer_that_begins_texts_does_so(gpt2, llama):
    words = (" The", " capital", " of", " France", " is")
    assert mh.Prompts([FRANCE]).tokens(gpt2).strings == (words,)
    assert mh.Prompts([FRANCE]).tokens(llama).strings == (("<bos>", *words),)


@settings(max_examples=30)
@given(texts=st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=4))
def test_any_text_is_tokenised_as_alone(gpt2, texts):
    tokens = mh.Prompts(texts).tokens(gpt2)
    for i, (row, text) in enumerate(zip(tokens.ids, texts, strict=True)):
        n = len(ids(gpt2, text))
        assert row[:n].tolist() == ids(gpt2, text) and (row[n:] == 0).all()
        assert gpt2.tokenizer.decode(row[:n]) == text
        assert (len(tokens.strings[i]), tokens.lengths[i], tokens.positions["last"][i]) == (n, n, n - 1)
        assert tokens.mask[i].tolist() == [True] * n + [False] * (tokens.ids.shape[1] - n)


def test_chats_follow_the_models_template_and_open_the_answer(model):
    chat = [{"role": "user", "content": "Is Paris big?"}]
    wanted = model.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
    tokens = mh.Prompts([chat, FRANCE]).tokens(model)  # chats and texts may stand side by side
    assert tokens.unpadded == [wanted, ids(model, FRANCE)]


def test_ids_are_taken_as_they_are(small):
    for row in ([5, 6, 7], (5, 6, 7), [np.int64(5), 6, torch.tensor(7)]):
        tokens = mh.Prompts([row, [9]]).tokens(small)
        assert tokens.ids.tolist() == [[5, 6, 7], [9, 0, 0]]


def test_rows_keep_everything_in_step(gpt2):
    tokens = mh.Prompts(
        [FRANCE, " The dog", " The cat is"],
        [" Paris", " yes", " no"],
        [" Rome", " no", " yes"],
        {"two": [1, 0, 2]},
        ["a", "b", "a"],
    ).tokens(gpt2)
    part = tokens.rows(slice(1, 3))
    assert torch.equal(part.ids, tokens.ids[1:])
    assert part.lengths.tolist() == [2, 3]
    assert {name: at.tolist() for name, at in part.positions.items()} == {"last": [1, 2], "two": [0, 2]}
    assert part.answer.tolist() == tokens.answer.tolist()[1:]
    assert part.wrong.tolist() == tokens.wrong.tolist()[1:]
    assert part.cluster == ("b", "a")
    assert mh.Prompts([FRANCE, f"{FRANCE} the"]).tokens(gpt2).cluster == ("0", "1")
    assert part.strings == tokens.strings[1:]


# -- answers --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("column", ["answer", "wrong"])
def test_an_answer_of_several_tokens_names_them(small, column):
    pieces = [small.tokenizer.decode([i]) for i in small.tokenizer(" Lyon", add_special_tokens=False).input_ids]
    assert len(pieces) > 1
    with refused(
        f"{column}[1] = ' Lyon' is not one token but {pieces}; "
        "choose an answer that is one token (often with a leading space), or give a token id"
    ):
        mh.Prompts([FRANCE] * 2, **{column: [" Paris", " Lyon"]}).tokens(small)


class Unknowing:
    """A tokenizer that knows no word."""

    unk_token_id, is_fast = 7, False

    def __call__(self, text, **options):
        return {"input_ids": [7]}


def test_single_token(small):
    assert small.tokenizer.decode([single_token(" Paris", small.tokenizer)]) == " Paris"
    assert single_token("Paris", small.tokenizer) is None
    assert single_token(" Paris is", small.tokenizer) is None
    assert single_token(" Lissabon", Unknowing()) is None


# -- positions ------------------------------------------------------------------------------------------


def test_positions_by_text_by_span_and_by_index(small):
    begin = len(ids(small, ""))  # 1 with a beginning token
    start = FRANCE.index("France")
    where = {
        "text": [" France"],
        "part of a token": ["ranc"],
        "several tokens": ["capital of France"],  # the last of them
        "span": [(start, start + len("France"))],
        "index": [begin + 3],
        "from the end": [-2],
        "numpy": [np.int64(begin + 3)],
        "torch": [torch.tensor(begin + 3)],
    }
    tokens = mh.Prompts([FRANCE], positions=where).tokens(small)
    found = {name: at.tolist() for name, at in tokens.positions.items()}
    assert found == {"last": [begin + 4]} | {name: [begin + 3] for name in where}


def test_a_token_that_each_prompt_has_once_is_a_position_by_its_text(small):
    texts = [FRANCE, " France is"]
    tokens = mh.Prompts(texts, positions={"subject": [" France"] * 2, " is": [0, 0]}).tokens(small)
    assert tokens.position(" France").tolist() == tokens.positions["subject"].tolist()
    assert tokens.position(" is").tolist() == [0, 0]  # a name comes first
    assert tokens.position(" capital") is None and tokens.position(" Franc") is None
    named, by_text = (
        mh.ablate(
            small,
            mh.Prompts([FRANCE], positions={"subject": [" France"]}),
            positions=place,
            intervention="zero",
            progress=False,
        )
        for place in ("subject", " France")
    )
    np.testing.assert_array_equal(named.scores, by_text.scores)


# -- bad input ------------------------------------------------------------------------------------------

TWO = [FRANCE] * 2
MADE = {
    "items is empty; give at least one prompt": lambda: mh.Prompts([]),
    **{
        f"{column} needs one entry for each of the 2 prompts, got 1 entries": partial(
            mh.Prompts, TWO, **{column: [" Paris"]}
        )
        for column in ("answer", "wrong", "cluster")
    },
    **{
        f"{column} must be a list of {what}, got one string; write ['ab']": partial(mh.Prompts, TWO, **{column: "ab"})
        for column, what in (("answer", "answers"), ("wrong", "answers"), ("cluster", "labels"))
    },
    "positions['it'] needs one entry for each of the 2 prompts, got 3 entries": lambda: mh.Prompts(
        TWO, positions={"it": [1, 1, 1]}
    ),
    'positions["last"] is reserved for the last token; choose another name': lambda: mh.Prompts(
        [FRANCE], positions={"last": [2]}
    ),
    "clean has 2 prompts, but corrupted has 1; give one of each a pair": lambda: mh.PromptPairs(TWO, [FRANCE]),
    **{
        f"template {template!r} must contain {{country}} exactly once": partial(
            mh.PromptPairs.from_templates, [" of{country}", template], {"country": ROWS}, answer=ANSWERS
        )
        for template in (" The capital is", " The{country} of{country} is")
    },
    "fields['country'] has 1 rows, but answer has 2; give one per row": lambda: mh.PromptPairs.from_templates(
        " of{country}", {"country": ROWS[:1]}, answer=ANSWERS
    ),
}
"""What cannot be prompts or pairs for any model, by the message."""


@pytest.mark.parametrize("message", MADE)
def test_what_cannot_be_prompts_is_refused(message):
    with refused(message):
        MADE[message]()


TOKENISED = {
    **{
        f"positions['it'] of prompt 0: {piece!r} occurs {times} times in {text!r}; give a piece that occurs once, "
        "a (start, end) span of characters, or a token index": mh.Prompts([text], positions={"it": [piece]})
        for text, piece, times in (
            (" and dog and", " Rome", 0),
            (" and dog and", " and", 2),
            (" and dog and", "d and", 0),
            (" and and and", " and and", 2),  # they may overlap
        )
    },
    "answer[0] = -1 is outside the vocabulary...": mh.Prompts([FRANCE], answer=[-1]),
    "positions['it'] of prompt 0 is 5; the prompt has 5 tokens": mh.Prompts(TWO, positions={"it": [5, 0]}),
    "positions['it'] of prompt 1 is 3; the prompt has 2 tokens": mh.Prompts(  # in its padding
        [FRANCE, " The dog"], positions={"it": [3, 3]}
    ),
    **{
        f"positions['it'] of prompt 0: no token is in characters {span} of {FRANCE!r}": mh.Prompts(
            [FRANCE], positions={"it": [span]}
        )
        for span in ((3, 3), (90, 95))
    },
    "positions['it'] of prompt 0 must be a token index, because this prompt has no text offsets": mh.Prompts(
        [[5, 6]], positions={"it": [" France"]}
    ),
    "prompt 0 is empty; a prompt needs at least one token": mh.Prompts([[]]),
    "prompt 1 contains token id 1000000, outside...": mh.Prompts([[4], [4, 10**6]]),
    "pair 1 does not align: clean has 5 tokens and corrupted has 7; they first differ at token 3\n"
    "  clean:     ' The' ' capital' ' of' >>' France'<< ' is'\n"
    "  corrupted: ' The' ' capital' ' of' >>' Italy'<< ' and' ' Rome' ' is'\n"
    "rewrite the pair so that both have the same number of tokens (names of equal token length help)": mh.PromptPairs(
        TWO, [" The capital of Italy is", " The capital of Italy and Rome is"]
    ),
    "pair 0 does not align: clean has 2 tokens and corrupted has 3; they first differ at token 2\n"
    "  clean:     ' The' ' dog'\n"
    "  corrupted: ' The' ' dog' >>' is'<<\n...": mh.PromptPairs([" The dog"], [" The dog is"]),
    "positions['pet'] of pair 1 is token 1 in clean and 3 in corrupted; it must be the same in both": mh.PromptPairs(
        [FRANCE, " The dog and cat"], [FRANCE, " The cat and dog"], positions={"pet": ([0, " dog"], [0, " dog"])}
    ),
}
"""What cannot be tokenised, by the message, or by its beginning where it ends in dots."""


@pytest.mark.parametrize("message", TOKENISED)
def test_what_cannot_be_tokenised_is_refused(gpt2, message):
    with refused(message):
        TOKENISED[message].tokens(gpt2)


def test_a_prompt_longer_than_the_context_is_refused(small):
    begin = len(ids(small, ""))
    whole = " and" * (64 - begin)
    assert mh.Prompts([whole]).tokens(small).lengths.tolist() == [64]
    with refused("prompt 1 has 65 tokens; this model's context holds 64"):
        mh.Prompts([whole, whole + " and"]).tokens(small)


# -- fingerprints and clusters --------------------------------------------------------------------------

words = st.sampled_from([" The", " capital", " France", " Italy", " dog", " cat"])
texts = st.lists(st.lists(words, min_size=1, max_size=4).map("".join), min_size=1, max_size=3)


@settings(max_examples=40)
@given(a=texts, b=texts)
def test_fingerprints_are_equal_where_prompts_are(gpt2, a, b):
    one, two = mh.Prompts(a).tokens(gpt2), mh.Prompts(b).tokens(gpt2)
    assert (one.fingerprint() == two.fingerprint()) == (a == b)
    assert one.fingerprint() == mh.Prompts([ids(gpt2, text) for text in a]).tokens(gpt2).fingerprint()
    longer = mh.Prompts([*a, FRANCE + " the" * 20]).tokens(gpt2)  # more padding changes nothing
    assert longer.rows(slice(0, len(a))).fingerprint() == one.fingerprint()
    assert longer.fingerprint() != one.fingerprint()


def test_fingerprints_tell_answers_positions_and_order_apart(gpt2):
    two = [FRANCE, " The dog is"]
    different = [
        mh.Prompts(two),
        mh.Prompts(two[::-1]),
        mh.Prompts(two, answer=[" Paris", " big"]),
        mh.Prompts(two, wrong=[" Paris", " big"]),
        mh.Prompts(two, answer=[" Paris", " small"]),
        mh.Prompts(two, positions={"a": [0, 1]}),
        mh.Prompts(two, positions={"a": [1, 0]}),
        mh.Prompts(two, positions={"b": [0, 1]}),
        mh.Prompts(["".join(two)]),
    ]
    prints = [prompts.tokens(gpt2).fingerprint() for prompts in different]
    assert len(set(prints)) == len(different)
    assert prints == [prompts.tokens(gpt2).fingerprint() for prompts in different]


# -- pairs ----------------------------------------------------------------------------------------------


def test_pairs_that_align(small):
    pairs = mh.PromptPairs(
        [FRANCE, " The dog"],
        [" The capital of Italy is", " The cat"],
        [" Paris", " yes"],
        [" Rome", " no"],
        {"noun": ([" France", " dog"], [" Italy", " cat"]), "first": [0, 0]},
    )
    clean, corrupted = pairs.tokens(small)
    assert (len(pairs), clean.ids.shape) == (2, corrupted.ids.shape)
    assert corrupted.ids[0, : corrupted.lengths[0]].tolist() == ids(small, " The capital of Italy is")
    for name in ("noun", "first", "last"):
        assert torch.equal(clean.positions[name], corrupted.positions[name])
    # both sides carry what the clean side asks for, so that one metric reads both runs
    assert torch.equal(clean.answer, corrupted.answer)
    assert [small.tokenizer.decode([i]) for i in clean.answer] == [" Paris", " yes"]
    assert [small.tokenizer.decode([i]) for i in corrupted.wrong] == [" Rome", " no"]


# -- templates ------------------------------------------------------------------------------------------


def test_templates_times_rows(gpt2):
    templates = [" The capital of{country} is", " the store of{country} and the capital"]
    pairs = mh.PromptPairs.from_templates(templates, {"country": ROWS}, answer=ANSWERS)
    assert pairs.clean == [
        " The capital of France is",
        " The capital of Spain is",
        " the store of France and the capital",
        " the store of Spain and the capital",
    ]
    assert pairs.corrupted[1] == " The capital of Germany is"
    assert pairs.corrupted[2] == " the store of Italy and the capital"
    assert pairs.answer == [" Paris", " Madrid"] * 2
    assert pairs.wrong == [" Rome", " Berlin"] * 2
    assert pairs.cluster == ["row 0", "row 1"] * 2
    clean, corrupted = pairs.tokens(gpt2)
    assert clean.positions["country"].tolist() == [3, 3, 3, 3]
    assert [row[3] for row in corrupted.strings] == [" Italy", " Germany"] * 2


def test_doubled_braces_of_a_template_are_text():
    pairs = mh.PromptPairs.from_templates(
        "\\frac{{1}}{{2}} of {subject} is", {"subject": [("{France}", "Italy")]}, answer=[(" Paris", " Rome")]
    )
    assert (pairs.clean, pairs.corrupted) == (["\\frac{1}{2} of {France} is"], ["\\frac{1}{2} of Italy is"])
    assert pairs.positions["subject"] == ([(15, 23)], [(15, 20)])


@settings(max_examples=30)
@given(
    pieces=st.lists(words, min_size=3, max_size=3),
    fields=st.permutations(["a", "b"]),
    values=st.lists(st.tuples(words, words), min_size=2, max_size=2),
)
def test_every_field_is_where_it_was_put(gpt2, pieces, fields, values):
    template = f"{pieces[0]}{{{fields[0]}}}{pieces[1]}{{{fields[1]}}}{pieces[2]}"
    pairs = mh.PromptPairs.from_templates(template, {"a": [values[0]], "b": [values[1]]}, answer=[(" yes", " no")])
    where = {fields[0]: [1], fields[1]: [3], "last": [4]}  # every piece and value is one token
    for tokens in pairs.tokens(gpt2):
        assert {name: at.tolist() for name, at in tokens.positions.items()} == where


TOLD = "all 2 rows of 'good', 'bad', 'a', 'w'; not used: 'id'"


def test_pairs_come_from_the_columns_of_files_that_are_said(tmp_path):
    table = [
        {"good": "The keys, all", "bad": "The key, all", "a": " are", "w": 1, "id": "1"},
        {"good": "</script>", "bad": "<b>", "a": "are", "w": 2, "id": "2"},
    ]
    pd.DataFrame(table).to_csv(tmp_path / "pairs.csv", index=False)
    (tmp_path / "pairs.jsonl").write_text("\n".join(map(json.dumps, table)))
    texts = ["The keys, all", "</script>"], ["The key, all", "<b>"], [" are", "are"], ["1", "2"]
    for file in tmp_path.iterdir():
        pairs = mh.PromptPairs.from_file(file, clean="good", corrupted="bad", answer="a", wrong="w")
        assert pairs == mh.PromptPairs(*texts, source=f"{file.name}, {TOLD}")
        assert repr(pairs).endswith(f"\n  {file.name}, {TOLD}>")
    alone = mh.PromptPairs.from_file(str(tmp_path / "pairs.csv"), clean="good", corrupted="bad", cluster="id")
    assert (alone.answer, alone.wrong, alone.cluster) == (None, None, ["1", "2"])
    with pytest.raises(ValueError, match=r"pairs.csv has the columns 'good' .*; corrupted is not given; write PromptP"):
        mh.PromptPairs.from_file(tmp_path / "pairs.csv", clean="good")


def test_what_is_given_several_times_is_one_cluster(small: mh.Model):
    one, other = FRANCE, " The capital of Spain is"
    assert mh.Prompts([one, other, one], positions={"at": [1, 1, 2]}).tokens(small).cluster == ("0", "1", "0")
    assert mh.Prompts([one, one, other], answer=[" Paris", " Rome", " a"]).tokens(small).cluster == ("0", "0", "2")
    assert mh.Prompts([one, one], cluster=["a", "b"]).tokens(small).cluster == ("a", "b")
    assert mh.Prompts([[3, 4], (3, 5), (3, torch.tensor(4))]).tokens(small).cluster == ("0", "1", "0")


def by_flooding(sides: list[tuple[object, object]]) -> list[str]:
    """The first row that each row reaches by prompts in common, found by spreading to neighbours until none is new."""
    labels = []
    for row in range(len(sides)):
        reached = {row}
        while more := {i for i, a in enumerate(sides) for j in reached if set(a) & set(sides[j])} - reached:
            reached |= more
        labels.append(str(min(reached)))
    return labels


def test_pairs_that_share_a_prompt_are_one_cluster(small: mh.Model) -> None:
    one, other, third = FRANCE, " The capital of Spain is", " The capital of Italy is"
    apart = (" one two three is", " two two three is")
    rows = [  # by way of a third pair; lists and tuples of ids; none
        ([one, third, apart[0], other], [other, one, apart[1], third], ("0", "0", "2", "0")),
        ([[3, 4], [5, 6], [7, 8]], [(7, 8), [6, 5], [9, 9]], ("0", "1", "0")),
        ([one, apart[0]], [other, apart[1]], ("0", "1")),
    ]
    for clean, corrupted, wanted in rows:
        pairs = mh.PromptPairs(clean, corrupted)
        assert [side.cluster for side in pairs.tokens(small)] == [wanted] * 2
        assert (f"{len(set(wanted))} clusters" in repr(pairs)) == (len(set(wanted)) < len(pairs))


def test_clusters_are_joined_as_by_flooding() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        sides = [tuple(map(str, row)) for row in rng.integers(24, size=(12, 2))]
        with warnings.catch_warnings(action="ignore"):
            assert join_clusters(range(12), *zip(*sides, strict=True)) == by_flooding(sides)


def test_a_ring_of_pairs_warns_that_it_has_no_interval(small: mh.Model) -> None:
    ring = [FRANCE, " The capital of Spain is", " The capital of Italy is", " The capital of Germany is"]
    turned = [*ring[1:], ring[0]]
    with pytest.warns(UserWarning, match="all 4 pairs share prompts.* one cluster.* no interval, and p is 1.* one"):
        pairs = mh.PromptPairs(ring, turned, [" Paris"] * 4, [" Rome"] * 4)
    found = mh.activation_patch(small, pairs, progress=False).dataset
    assert np.isnan(found["ci_low"]).all() and (found["p_value"] > 0.999).all()
    said = r"pairs 0 and 1 share the prompt ' The capital of Spain is'.* labels 'a' and 'b'.*same label, or leave"
    with pytest.warns(UserWarning, match=said):
        given = mh.PromptPairs(ring, turned, [" Paris"] * 4, [" Rome"] * 4, cluster=list("abcd"))
    assert given.tokens(small)[0].cluster == tuple("abcd")
    with warnings.catch_warnings(action="error"):
        assert mh.PromptPairs(ring, turned, cluster=["a"] * 4).cluster == ["a"] * 4
