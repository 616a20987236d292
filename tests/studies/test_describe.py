"""Descriptions of heads, by scripted writers: one that knows, one that says the same of all, one that says nothing."""

from __future__ import annotations

import re

import numpy as np
import pytest

import mechheads as mh
from mechheads.studies import Atlas, Description, describe


@pytest.fixture(scope="module")
def atlas(loaded) -> Atlas:
    model = loaded("gpt2")
    examples = mh.behaviour.head_examples(model, n_tokens=12_000)
    return Atlas("tiny", examples=examples, space=mh.studies.head_space(model), profile=mh.profile_heads(model))


class Writer:
    """Describes heads by the order of the calls, and predicts what ``predict`` gives for a description and a token."""

    def __init__(self, predict) -> None:
        self.predict, self.prompts, self.questions = predict, [], []

    def __call__(self, prompt: str) -> str:
        if prompt.startswith("In these texts"):
            self.prompts.append(prompt)
            return f" description {len(self.prompts) - 1}\n"
        self.questions.append(prompt)
        which = int(re.search(r"description (\d+)", prompt).group(1))
        return self.predict(which, len(self.questions) - 1)


def knows(atlas: Atlas, head: str, **options) -> tuple[Description, Writer]:
    """A writer that knows the head itself, and has no idea of the others."""
    blank = describe(atlas, head, lambda prompt: "5", **options)
    activity = blank.table["activity"].to_numpy()
    noise = np.random.default_rng(0).random(1000)
    writer = Writer(lambda which, at: f"{10 * (noise[at] if which else activity[at] / activity.max()):.4f} of 10")
    return describe(atlas, head, writer, **options), writer


def test_a_writer_that_knows_scores_high_and_is_shown(atlas):
    found, writer = knows(atlas, "L1H2")
    assert found.score > 0.99 and found.ci_low > 0.9 and found.stands
    assert len(found.null) == len(found.others) == 3 and max(map(abs, found.null)) < 0.5
    assert (len(writer.prompts), len(writer.questions)) == (4, 4 * 48)
    assert repr(found).startswith("<Description of L1H2: 'description 0' (score 1.00, ")
    assert "description 0" in found._repr_html_()


@pytest.mark.parametrize("answer", ["5", "I cannot say", ""])
def test_a_writer_that_says_the_same_of_all_scores_nothing_and_is_not_shown(atlas, answer):
    found = describe(atlas, "L1H2", lambda prompt: answer)
    assert found.score == 0 and found.null == (0, 0, 0) and np.isnan(found.ci_low) and not found.stands
    assert repr(found).startswith("<Description of L1H2: no description that the test bears out (score 0.00;")
    assert found.table["predicted"].isna().all() == (answer != "5")


def test_what_is_true_of_any_head_does_not_stand(atlas):
    """The same predictions from every description score as high for the others."""
    blank = describe(atlas, "L0H3", lambda prompt: "5")
    activity = blank.table["activity"].to_numpy()
    found = describe(atlas, "L0H3", Writer(lambda which, at: str(10 * activity[at % 48] / activity.max())))
    assert found.score > 0.99 and found.null == (found.score,) * 3 and not found.stands


def test_tokens_of_the_test_are_asked_for_in_their_text_and_the_writer_sees_other_passages(atlas):
    found, writer = knows(atlas, "L2H0", tested=20, others=1)
    space = atlas.space
    assert len(found.table) == 20 and len(writer.questions) == 40
    for row, question in zip(found.table.to_dict("records"), writer.questions, strict=False):
        assert f"[[{row['token']}]]\n\nHow active" in question
        window = "".join(space.words[i] for i in space.tokens[row["window"]])
        given = re.sub(r"\[\[|\]\]|<<|>>", "", found.prompt)
        assert len(window) > 60 and not any(window[at : at + 60] in given for at in range(len(window) - 59))
    known = space.of("L2H0").set_index(["window", "position"])["activity"]
    for row in found.table.to_dict("records"):
        assert row["activity"] == known[row["window"], row["position"]]
    assert found.prompt == writer.prompts[0] and "10.0: " in found.prompt


def test_answers_without_a_number_count_as_the_mean(atlas):
    found, _ = knows(atlas, "L1H2", others=1)
    half = Writer(lambda which, at: "?" if at % 2 else str(found.table["predicted"][at % 48]))
    other = describe(atlas, "L1H2", half, others=1)
    assert int(other.table["predicted"].isna().to_numpy().sum()) == 24 and 0.2 < other.score < 0.95


def test_what_is_missing_is_said(atlas):
    with pytest.raises(ValueError, match="no examples or no space; build_atlas makes both"):
        describe(Atlas("m", space=atlas.space), "L0H0", str)
    with pytest.raises(ValueError, match="L7H7"):
        describe(atlas, "L7H7", str)
    with pytest.raises(ValueError, match="tested is 3"):
        describe(atlas, "L0H0", str, tested=3)
    short = Atlas("m", examples=_only_the_tests(atlas), space=atlas.space)
    with pytest.raises(ValueError, match="every example of L0H0 is from a passage of the test"):
        describe(short, "L0H0", str, tested=96)


def _only_the_tests(atlas: Atlas) -> mh.behaviour.HeadExamples:
    """Examples whose windows are those of the space."""
    examples, space = atlas.examples, atlas.space
    tokens = space.tokens[np.arange(len(examples.tokens)) % len(space.tokens)]
    wide = np.full((len(tokens), examples.tokens.shape[1]), -1)
    wide[:, : tokens.shape[1]] = tokens
    return mh.behaviour.HeadExamples(
        examples.table,
        space.words,
        wide,
        examples.keys,
        examples.weights,
        examples.first,
        examples.sizes,
        {},
    )
