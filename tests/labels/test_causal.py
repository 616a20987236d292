"""Causal evidence for relations against one full forward pass a head, prompt by prompt."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
import transformers

import mechheads as mh
from mechheads.heads import HeadId
from mechheads.labels import causal, removal as removals
from mechheads.labels.causal import relation_evidence
from mechheads.labels.few_shot import few_shot_pairs, few_shot_prompts
from mechheads.labels.removal import cumulative_removal
from mechheads.results.scores import HeadScores
from mechheads.results.stats import share_interval
from mechheads.results.tables import Curves
from support import oracles
from support.ctrl_c import stopped_at
from support.levels import few

ARCHITECTURES = few(("gpt2", "llama", "gemma"), "llama")

TEMPLATE = " The capital of {source} is {target}"
SOURCES = ("France", "Italy", "Spain", "Germany", "big", "small", "one", "dog", "John", "yes", "store")
TARGETS = ("Paris", "Rome", "Madrid", "Berlin", "bigger", "smaller", "two", "cat", "Mary", "no", "book")
SOME = ["L0H1", "L1H2", "L2H0", "L2H3"]
ASKED: dict[str, Any] = {"n": 3, "shots": 2}
TOLERANCE = 1e-4


def turned(by: int) -> mh.Relation:
    """The words above, with the targets moved on."""
    targets = TARGETS[by:] + TARGETS[:by]
    return mh.Relation(f"turned by {by}", None, list(zip(SOURCES, targets, strict=True)), few_shot=[TEMPLATE])


def two_ways() -> list[mh.Relation]:
    """Each allows two pairs of prompts, the same in both; what is right in one is wrong in the other."""
    others = [("went to", "Sure"), ("the store and", "gave")]
    both = {"forth": ("Paris", "Rome"), "back": ("Rome", "Paris")}
    return [
        mh.Relation(name, None, [*zip(("France", "Italy"), targets, strict=True), *others], few_shot=[TEMPLATE])
        for name, targets in both.items()
    ]


TOO_FEW = mh.Relation("too few", None, [("France", "Paris"), ("Italy", "Zurich")], few_shot=[TEMPLATE])


def diff(model: mh.Model, tokens: Any, prompt: int) -> float:
    return oracles.logit_diff(oracles.forward(model, oracles.ids_of(tokens, prompt))[0], tokens, prompt)


def gap(model: mh.Model, relation: mh.Relation) -> float:
    pairs = few_shot_pairs(model, relation, **ASKED)
    clean, corrupted = pairs.tokens(model)
    return float(np.mean([diff(model, clean, i) - diff(model, corrupted, i) for i in range(len(pairs))]))


@cache
def told_apart(model: mh.Model) -> tuple[mh.Relation, mh.Relation, mh.Relation]:
    """A relation that this random model happens to know, a shorter one, and one it has the wrong way round."""
    known = next(one for one in map(turned, range(11)) if gap(model, one) > 0.02)
    short, wrong = sorted(two_ways(), key=lambda one: -gap(model, one))
    assert gap(model, short) == pytest.approx(-gap(model, wrong), abs=TOLERANCE)
    return known, short, wrong


def test_effects_equal_one_full_forward_each(small: mh.Model) -> None:
    known, short, _ = told_apart(small)
    found = relation_evidence(small, [known, short], heads=SOME, **ASKED)
    assert found.relations == (known.name, short.name)
    assert found.left_out == {}
    total, direct = np.asarray(found.total.values), np.asarray(found.direct.values)
    assert total.shape == direct.shape == (3, 4, 2, 3)
    assert np.isnan(total[:, :, 1, 2]).all()
    others = [head for head in np.ndindex(3, 4) if str(HeadId(*head)) not in SOME]
    assert all(np.isnan(values[head]).all() for values in (total, direct) for head in others)
    for i, relation in enumerate((known, short)):
        pairs = few_shot_pairs(small, relation, **ASKED)
        clean, corrupted = pairs.tokens(small)
        away = gap(small, relation)
        assert float(found.total.dataset["gap"][i]) == pytest.approx(away, abs=TOLERANCE)
        for prompt in range(len(pairs)):
            ids, other = oracles.ids_of(corrupted, prompt), oracles.ids_of(clean, prompt)
            runs = [oracles.activations(small, each) for each in (ids, other)]
            before = diff(small, corrupted, prompt)
            for layer, head in ((HeadId.parse(name).layer, HeadId.parse(name).head) for name in SOME):
                patched = oracles.patched_logits(small, ids, *runs, layer, head, "z")
                expected = (oracles.logit_diff(patched, corrupted, prompt) - before) / away
                assert total[layer, head, i, prompt] == pytest.approx(expected, abs=TOLERANCE / away)
                path = oracles.path_first_run(small, ids, *runs, (layer, head))[0]
                expected = (oracles.logit_diff(path, corrupted, prompt) - before) / away
                assert direct[layer, head, i, prompt] == pytest.approx(expected, abs=TOLERANCE / away)


def test_what_cannot_be_tested_alone_is_an_error(llama: mh.Model) -> None:
    _, _, wrong = told_apart(llama)
    with pytest.raises(ValueError, match=r"^relation 'too few' has too few usable pairs"):
        relation_evidence(llama, TOO_FEW, **ASKED)
    with pytest.raises(
        ValueError, match=r"none of them can be tested: relation 'too few' .* wrong one of the two targets"
    ):
        relation_evidence(llama, [TOO_FEW, wrong], **ASKED)


def test_a_stopped_run_keeps_what_is_done(llama: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C within the sweep of the second relation's direct effect."""
    known, short, wrong = told_apart(llama)
    last = mh.Relation("last", None, known.pairs, few_shot=known.few_shot)
    calls: list[str] = []

    def stop(*args: Any, **options: Any) -> HeadScores:
        calls.append("")
        found = mh.path_patch(*args, **options)
        if len(calls) < 2:
            return found
        values = np.asarray(found.values).copy()
        values[2] = np.nan
        dataset = found.dataset.assign(values=(found.dataset["values"].dims, values))
        return HeadScores(dataset).with_provenance(interrupted=True)

    monkeypatch.setattr(causal, "path_patch", stop)
    with pytest.warns(UserWarning, match="relation_evidence was interrupted: effects not measured are NaN"):
        found = relation_evidence(llama, [wrong, known, short, last], **ASKED)
    assert len(calls) == 2
    assert found.relations == (known.name, short.name, "last")
    assert list(found.left_out) == [wrong.name]
    assert found.total.provenance["interrupted"]
    assert found.direct.provenance["interrupted"]
    measured = [np.isfinite(scores.scores).all("head").values.tolist() for scores in (found.total, found.direct)]
    assert measured[0] == [[True, True, False]] * 3
    assert measured[1] == [[True, True, False]] * 2 + [[True, False, False]]


# Removal: a llama that says nothing but the targets above, and relations that are what it says.


@pytest.fixture(scope="module")
def wordy(tiny: Callable, tmp_path_factory: pytest.TempPathFactory) -> mh.Model:
    folder = tmp_path_factory.mktemp("wordy") / "llama"
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny("llama"))
    whole = transformers.AutoModelForCausalLM.from_pretrained(tiny("llama"), dtype=torch.float32)
    said = [tokenizer(f" {word}", add_special_tokens=False).input_ids[0] for word in TARGETS]
    with torch.no_grad():
        kept = whole.lm_head.weight[said].clone()
        whole.lm_head.weight.zero_()
        whole.lm_head.weight[said] = kept
    whole.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return mh.load(folder)


TEMPLATES = {"capital": " The capital of {source} is {target}", "help": " I cannot help {source} {target}"}
NO_SHOTS: dict[str, Any] = {"shots": 0, "n": 11}


@cache
def spoken(model: mh.Model, template: str, wrong: int = 0) -> mh.Relation:
    """What the model says after each source, but for some to which it is put wrong."""
    pairs = []
    for i, source in enumerate(SOURCES):
        text = TEMPLATES[template].replace("{source}", source).replace(" {target}", "")
        logits = oracles.forward(model, torch.tensor([model.tokenizer(text).input_ids]))
        said = model.tokenizer.decode([int(logits[0, -1].argmax())]).strip()
        pairs.append((source, "Sure" if i < wrong else said))
    return mh.Relation(f"{template} {wrong}", None, pairs, few_shot=[TEMPLATES[template]])


def right_without(model: mh.Model, relation: mh.Relation, heads: Iterable[HeadId], seed: int = 0) -> list[float]:
    """Whether the answer is right when these heads write nothing at the last token: one full forward a prompt."""
    tokens = few_shot_prompts(model, relation, seed=seed, **NO_SHOTS).tokens(model)
    assert tokens.answer is not None

    def silence(z: torch.Tensor, hook: Any, head: int) -> torch.Tensor:
        z = z.clone()
        z[0, -1, head] = 0
        return z

    hooks = [(oracles.name(head.layer, "z"), partial(silence, head=head.head)) for head in heads]
    return [
        float(oracles.forward(model, oracles.ids_of(tokens, i), hooks)[0, -1].argmax() == tokens.answer[i])
        for i in range(len(tokens))
    ]


RANKING = [HeadId(2, 1), HeadId(0, 3), HeadId(2, 2), HeadId(1, 0)]


def randoms(found: Curves) -> list[tuple[Any, ...]]:
    """The heads of each random draw."""
    return [heads for which, heads in found.order.items() if which.startswith("random")]


def test_removal_equals_one_full_forward_each(wordy: mh.Model) -> None:
    relation, control = spoken(wordy, "capital", wrong=2), spoken(wordy, "help", wrong=1)
    found = mh.settings(seed=5)(cumulative_removal)(
        wordy, relation, map(str, RANKING), controls=control, draws=1, **NO_SHOTS
    )
    assert found.heads == tuple(RANKING)
    lines = {"relation": (relation, RANKING)}
    lines |= {f"random {i + 1}": (relation, list(drawn)) for i, drawn in enumerate(randoms(found))}
    lines |= {control.name: (control, RANKING)}
    assert found.table[["which", "k"]].values.tolist() == [[which, k] for which in lines for k in range(5)]
    for row, (k, which) in enumerate(zip(found.table["k"], found.table["which"], strict=True)):
        of, heads = lines[which]
        expected = right_without(wordy, of, heads[:k], seed=5)
        assert found.values[row].tolist() == expected
        low, high = share_interval(np.mean(expected), np.array(11))
        assert found.table.iloc[row][["score", "ci_low", "ci_high"]].tolist() == pytest.approx(
            [np.mean(expected), float(low), float(high)]
        )
    first = found.table.groupby("which", sort=False)["score"].first()
    assert first.tolist() == pytest.approx([9 / 11, 9 / 11, 10 / 11])
    assert len(set(found.table["score"].tolist())) > 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ranking": ["L0H4"]}, "head L0H4 is out of range"),
        (
            {"ranking": [(2, head) for head in range(4)] + [(1, head) for head in range(4)]},
            r"ranking has 8 heads, which leaves 4 others to draw 6 random ones from; .*, or draws=0",
        ),
        ({"controls": ["capital 0"]}, "there is no relation 'capital 0'"),
        ({"controls": [mh.Relation("random 2", None, [("one", "two")])]}, "is called 'random 2' too"),
    ],
)
def test_removal_refuses_what_does_not_fit(
    wordy: mh.Model, options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(removals, "SetRuns", lambda *args, **options: pytest.fail("too late"))
    given = {"ranking": RANKING} | NO_SHOTS | options
    with pytest.raises(ValueError, match=message):
        cumulative_removal(wordy, spoken(wordy, "capital"), **given)


def test_a_stopped_removal_keeps_what_is_done(wordy: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    relation = spoken(wordy, "capital")
    whole = cumulative_removal(wordy, relation, RANKING, draws=2, **NO_SHOTS)
    monkeypatch.setattr(removals.SetRuns, "values", stopped_at(2, removals.SetRuns.values))
    with pytest.warns(UserWarning, match="interrupted after 5 of 20 sets of heads; the rest are NaN"):
        found = cumulative_removal(wordy, relation, RANKING, controls=[spoken(wordy, "help")], draws=2, **NO_SHOTS)
    assert found.provenance["interrupted"]
    np.testing.assert_array_equal(found.values[:5], whole.values[:5])
    assert np.isnan(found.values[5:]).all()
    assert np.isnan(found.table["score"][5:]).all()


@pytest.mark.slow
def test_capitals_on_the_default_model(model: mh.Model) -> None:
    """L23H4 tells capitals, and the five heads that rank first in the weights take accuracy with them."""
    relation = mh.Relation.load("country_to_capital")
    some = ["L5H0", "L20H1", "L23H1", "L23H4", "L29H7"]
    found = relation_evidence(model, relation, n=3, shots=1, heads=some)
    assert found.total.heads(2) == found.direct.heads(2) == (HeadId(23, 4), HeadId(23, 1))
    assert 0.3 < found.total["L23H4"]["score"].item() < 1
    best = ["L23H4", "L23H5", "L23H1", "L23H2", "L23H0"]
    removal = cumulative_removal(model, relation, best, draws=1, n=6, shots=2)
    curves = removal.table.pivot(index="k", columns="which", values="score")
    assert curves["relation"].tolist()[0] >= 0.8
    assert curves["relation"].tolist()[5] <= 0.25
    assert curves["random 1"].tolist()[5] >= 0.5
