"""Programs in the place of heads: held against one full forward with the pattern hooked, and models that are known."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
from mechheads.behaviour import AttentionProgram
from mechheads.behaviour.programs import PROGRAMS, _statistics
from mechheads.prompts.encoding import token_strings
from mechheads.results.stats import jackknife_variance
from support.levels import few
from support.programs import slow
from support.texts import CLEAN, PAIRS

ROWS = [
    [5, 6, 7, 8, 5, 6, 9, 7, 8, 5, 6, 7, 3, 3, 4, 9],
    [9, 8, 7, 9, 8, 7, 6, 5, 9, 8, 7, 6, 5, 4, 3, 9],
    [*range(3, 19)],
]


@pytest.fixture(params=few(("llama", "gpt2", "gemma", "neox"), "llama"))
def model(request: pytest.FixtureRequest, loaded: Any) -> mh.Model:
    return loaded(request.param)


def halves(tokens: list[str]) -> list[list[float]]:
    """Half of the weight for the token itself, the rest for the token before."""
    return [[0.5 * (k == q) + 0.5 * (k == max(q - 1, 0)) for k in range(len(tokens))] for q in range(len(tokens))]


def hooked(model: mh.Model, ids: list[int], patterns: dict[mh.HeadId, Any]) -> Tensor:
    """Log-probabilities of one full forward of the wrapped model with patterns put in [pos, d_vocab]."""

    def put(value: Tensor, hook: Any, at: int, new: Any) -> Tensor:
        value = value.clone()
        value[0, at] = torch.as_tensor(np.asarray(new), dtype=value.dtype)
        return value

    hooks = [(model.hook_name("pattern", it.layer), partial(put, at=it.head, new=new)) for it, new in patterns.items()]
    return model.model.run_with_hooks(torch.tensor([ids]), fwd_hooks=hooks)[0].detach().double().log_softmax(-1)


def hooked_losses(model: mh.Model, ids: list[int], patterns: dict[mh.HeadId, Any]) -> float:
    """The mean loss, in nats a token."""
    return float(-hooked(model, ids, patterns)[range(len(ids) - 1), ids[1:]].mean())


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_programs_of_the_package_are_what_they_say_key_by_key(name: str) -> None:
    for tokens in (["a", "b", "c", "a", "b", "a", "a", "c", "d", "a", "b", "c"], ["x"], ["x", "x", "x"]):
        np.testing.assert_allclose(AttentionProgram(name).weights(tokens), slow(name, tokens), atol=1e-6)


def test_every_number_is_that_of_full_forwards_with_the_pattern_hooked(model: mh.Model) -> None:
    programs = {"L1H2": "induction", "L0H1": halves, "L2H0": "self"}
    found = mh.behaviour.test_program(model, ROWS, programs, window=16)
    heads = {"L0H1": halves, "L1H2": lambda tokens: slow("induction", tokens), "L2H0": lambda t: slow("self", t)}
    assert found.table["heads"].tolist() == [*heads, "L0H1 L1H2 L2H0"]
    assert found.table["program"].tolist() == ["halves", "induction", "self", "halves induction self"]
    run = model.cache(ROWS)
    for i, ids in enumerate(ROWS):
        smaller = larger = 0.0
        tokens = token_strings(ids, model.tokenizer)
        weights = {mh.HeadId.parse(head): np.asarray(of(tokens)) for head, of in heads.items()}
        uniform = slow("uniform", tokens)
        intact = hooked_losses(model, ids, {})
        of_window = found.windows.groupby("heads", sort=False).nth(i).reset_index(drop=True)
        for row, some in enumerate([*([head] for head in weights), list(weights)]):
            by_program = hooked_losses(model, ids, {head: weights[head] for head in some}) - intact
            by_uniform = hooked_losses(model, ids, dict.fromkeys(some, uniform)) - intact
            assert of_window["program_loss"].to_numpy()[row] == pytest.approx(by_program, abs=2e-5)
            assert of_window["uniform_loss"].to_numpy()[row] == pytest.approx(by_uniform, abs=2e-5)
        for row, (head, of_head) in enumerate(weights.items()):
            A = run.pattern[head][i].detach().double().numpy()
            one, other = np.minimum(A, of_head).sum(), np.maximum(A, of_head).sum()
            assert of_window["fit"].to_numpy()[row] == pytest.approx(one / other, abs=1e-5)
            smaller, larger = smaller + one, larger + other
        assert of_window["fit"].to_numpy()[3] == pytest.approx(smaller / larger, abs=1e-5)


def test_excess_is_over_the_best_program_that_reads_no_tokens(model: mh.Model) -> None:
    found = mh.behaviour.test_program(model, ROWS, {"L0H1": halves, "L2H0": "self"}, window=16)
    run = model.cache(ROWS)
    for row, (head, own, skipped) in enumerate((("L0H1", halves, ""), ("L2H0", None, "self"))):
        fits = []
        for i, ids in enumerate(ROWS):
            A, tokens = run.pattern[head][i].detach().double().numpy(), token_strings(ids, model.tokenizer)
            each = [own(tokens) if own else slow("self", tokens)]
            each += [slow(name, tokens) for name in ("first", "previous", "self", "uniform") if name != skipped]
            fits.append([np.minimum(A, B).sum() / np.maximum(A, B).sum() for B in each])
        mine, *others = np.array(fits).T
        best = max(others, key=np.mean)
        assert found.table["excess"].to_numpy()[row] == pytest.approx((mine - best).mean(), abs=1e-5)


def repeated_words() -> list[str]:
    """Eight words in some order, and the first seven of them again."""
    draw = np.random.default_rng(0)
    orders = [draw.permutation(list("abcdefgh")).tolist() for _ in range(12)]
    return [" ".join([*order, *order[:7]]) for order in orders]


def test_the_right_programs_of_a_compiled_model_lose_nothing_and_wrong_ones_much() -> None:
    made, texts = mh.testing.compiled_model("induction"), repeated_words()
    before, induction = made.heads
    assert [it.name for it in made.heads.values()] == ["before", "induction"]
    right = mh.behaviour.test_program(made.model, texts, {before: "previous", induction: "induction"}, window=16).table
    assert (
        right["fit"].to_numpy().min() > 0.999
        and right["program_loss"].abs().to_numpy().max() < 1e-4 < 1 < right["uniform_loss"].to_numpy().min()
    )
    for name in ("share", "share_low", "share_high"):
        np.testing.assert_allclose(right[name], 1, atol=1e-4)
    wrong = mh.behaviour.test_program(made.model, texts, {before: "self", induction: "previous"}, window=16).table
    assert (
        wrong["fit"].to_numpy().max() < 0.1
        and wrong["program_loss"].to_numpy().min() > 10
        and wrong["share_high"].to_numpy().max() < 0
    )


def test_the_interval_of_the_share_is_that_of_leaving_out_each_text_where_texts_are_many() -> None:
    draw = np.random.default_rng(0)
    uniform = draw.normal(0.5, 0.1, (1, 400))
    program = 0.3 * uniform + draw.normal(0, 0.05, (1, 400))
    measured = {"fit": uniform, "excess": uniform, "program_loss": program, "uniform_loss": uniform}
    columns = _statistics(measured, [*range(400)])
    share = 1 - program.mean() / uniform.mean()
    without = np.array([1 - np.delete(program, i).mean() / np.delete(uniform, i).mean() for i in range(400)])
    error = np.sqrt(jackknife_variance(without))
    assert columns["share"][0] == pytest.approx(share)
    assert columns["share_low"][0] == pytest.approx(share - 1.966 * error, abs=2e-4)
    assert columns["share_high"][0] == pytest.approx(share + 1.966 * error, abs=2e-4)
    undefined = _statistics(measured | {"uniform_loss": uniform - 0.5}, [*range(400)])
    assert np.isnan([undefined[name] for name in ("share", "share_low", "share_high")]).all()


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("inductoin", r"program is 'inductoin'; choose one of .* Did you mean \"induction\"\?"),
        (lambda tokens: np.ones((2, 2)), r"gives shape \[2, 2\]; for 16 tokens give weights of shape \[16, 16\]"),
        (
            lambda tokens: np.tri(len(tokens)),
            "gives a row that does not consist of numbers of at least 0 that sum to 1",
        ),
        (lambda tokens: np.full((len(tokens), len(tokens)), np.nan), "gives a row that does not consist of"),
        (lambda tokens: np.ones((16, 16)) / 16, "gives weight from token 0 to token 1, which comes later"),
        (lambda tokens: "none", "fails for 16 tokens"),
    ],
)
def test_what_is_no_program_is_told_in_one_sentence(program: Any, message: str, loaded: Any) -> None:
    with pytest.raises(ValueError, match=message):
        mh.behaviour.test_program(loaded("llama"), ROWS, {"L0H1": program}, window=16)


def test_a_program_is_an_intervention_that_passes_every_check_and_can_be_given(model: mh.Model) -> None:
    rule = AttentionProgram("previous")
    assert "mh.patching.patch_sets of both agrees with full forward passes" in str(mh.testing.check(rule))
    given = mh.activation_patch(model, PAIRS, given={"L0H1": rule})
    alone = mh.activation_patch(model, PAIRS)
    assert np.isnan(given["L0H1"]["score"]) and not np.allclose(given["L1H1"]["score"], alone["L1H1"]["score"])


@pytest.mark.parametrize("new", [5])
def test_text_is_written_as_by_full_forwards_of_the_text_so_far(new: int, model: mh.Model) -> None:
    heads = ["L0H1", "L1H2", "L2H0"]
    for program in ("induction", "previous", halves):
        rule = AttentionProgram(program)
        prompts = [*CLEAN, CLEAN[0] + CLEAN[1], CLEAN[0] + CLEAN[2]]
        found = mh.generate(model, prompts, new, off=heads, intervention=rule)
        for text, ids, ended in zip(mh.Prompts(prompts).tokens(model).unpadded, found.ids, found.finished, strict=True):
            so_far, written = list(text), []
            for _ in range(new):
                weights = rule.weights(token_strings(so_far, model.tokenizer))
                log_p = hooked(model, so_far, dict.fromkeys(map(mh.HeadId.parse, heads), weights))
                written.append(int(log_p[-1].argmax()))
                so_far.append(written[-1])
            assert list(ids) == written[: len(ids)] and (ended or len(ids) == new)
