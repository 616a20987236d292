"""Effects of heads while others are ablated, against full forward passes through TransformerLens with hooks on both."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from torch import Tensor

import mechheads as mh
from mechheads.results.metadata import label_of
from support import oracles
from support.levels import ONE_FIRST
from support.texts import CLEAN, PAIRS

ARCHITECTURES = ONE_FIRST
TOLERANCE = 1e-4
GONE = ["L0H1", "L2H2"]
SEED = 3
RULES = {"zero": mh.Zero(), "mean": mh.Mean(), "resample": "resample", "scaled": mh.patching.Scale(0.4)}


class Without:
    """One prompt's run in which some heads keep a z that was computed before, by TransformerLens alone."""

    def __init__(self, model: mh.Model, ids: Tensor, z: dict[tuple[int, int], Any]) -> None:
        self.model, self.ids, self.hooks = model, ids, oracles.z_hooks(z)
        self.logits = oracles.forward(model, ids, self.hooks)
        self.seen = self.under(lambda: oracles.activations(model, ids))

    def under(self, run: Any) -> Any:
        with self.model.model.hooks(fwd_hooks=self.hooks):
            return run()

    def changed(self, layer: int, head: int, z: Any) -> Tensor:
        """Logits when another head has a new z too."""
        return oracles.forward(self.model, self.ids, [*oracles.z_hooks({(layer, head): z}), *self.hooks])


def runs_without(
    model: mh.Model, tokens: Any, kinds: dict[str, str], taken: list[dict[str, Tensor]] | None = None
) -> list[Without]:
    """Every prompt's run without some heads, whose z comes from its intact runs, or from those that are given."""
    ids = [oracles.ids_of(tokens, prompt) for prompt in range(len(tokens))]
    intact = taken or [oracles.activations(model, each) for each in ids]
    heads = {(head.layer, head.head): kinds[str(head)] for head in map(mh.HeadId.parse, kinds)}
    z = [
        {at: oracles.ablated_z(kind, intact, i, at, model.n_heads, SEED) for at, kind in heads.items()}
        for i in range(len(ids))
    ]
    return [Without(model, *each) for each in zip(ids, z, strict=True)]


def others(model: mh.Model, prompts: int) -> list[list[int]]:
    gone = [mh.HeadId.parse(name) for name in GONE]
    turns = np.argwhere(oracles.turns(model, prompts)).tolist()
    return [turn for turn in turns if mh.HeadId(*turn[:2]) not in gone]


def pairs_without(model: mh.Model, direction: str, kind: str) -> tuple[list[Without], list[Without], Any]:
    """The base runs and the source runs of the pairs without the heads, and the tokens of the base."""
    clean, corrupted = PAIRS.tokens(model)
    base, source = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    gone = dict.fromkeys(GONE, kind)
    sources = runs_without(model, source, {} if kind == "patch" else gone)
    taken = [run.seen for run in sources] if kind == "patch" else None
    return runs_without(model, base, gone, taken), sources, base


@pytest.mark.parametrize("kind", RULES)
def test_an_effect_given_heads_is_the_change_of_the_run_without_them(small, kind):
    given = dict.fromkeys(GONE, RULES[kind])
    rule = "mean" if kind == "mean" else "zero"
    found = mh.ablate(small, CLEAN, given=given, seed=SEED, intervention=rule)
    runs = runs_without(small, mh.Prompts(CLEAN).tokens(small), dict.fromkeys(GONE, kind))
    for layer, head, prompt in others(small, len(CLEAN)):
        own = oracles.ablated_z(rule, [run.seen for run in runs], prompt, (layer, head), small.n_heads)
        changed = runs[prompt].changed(layer, head, own)[0]
        expected = oracles.kl(runs[prompt].logits[0], changed)
        assert float(found.values[layer, head, prompt]) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("site", "direction", "kind"),
    [
        ("z", "denoising", "zero"),
        ("z", "noising", "mean"),
        ("z", "noising", "patch"),
        ("q", "denoising", "patch"),
        ("k", "noising", "zero"),
        ("pattern", "denoising", "mean"),
    ],
)
def test_patching_given_heads_is_between_two_runs_without_them(small, site, direction, kind):
    found = mh.activation_patch(small, PAIRS, site=site, direction=direction, given=dict.fromkeys(GONE, kind))
    bases, sources, base = pairs_without(small, direction, kind)
    for layer, head, prompt in others(small, len(PAIRS))[:: 1 if site == "z" else 3]:
        run, other = bases[prompt], sources[prompt].seen
        patch = partial(oracles.patched_logits, small, run.ids, run.seen, other, layer, head, site)
        expected = oracles.logit_diff(run.under(patch), base, prompt) - oracles.logit_diff(run.logits[0], base, prompt)
        assert float(found.values[layer, head, prompt]) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    ("direction", "kind", "receivers"),
    [
        ("noising", "zero", ["final"]),
        ("denoising", "mean", ["L2H1.q"]),
        ("noising", "mean", ["L1H0.v", "L2H1.k"]),
        ("noising", "patch", ["L2H1.q"]),
    ],
)
def test_paths_given_heads_are_those_of_the_runs_without_them(small, direction, kind, receivers):
    asked = {"receivers": receivers, "direction": direction, "given": dict.fromkeys(GONE, kind)}
    bases, sources, base = pairs_without(small, direction, kind)
    found = mh.path_patch(small, PAIRS, **asked)
    for layer, head, prompt in others(small, len(PAIRS)):
        run, other = bases[prompt], sources[prompt].seen
        hooked = partial(oracles.path_first_run, small, run.ids, run.seen, other, (layer, head))
        logits, seen = run.under(hooked)
        if receivers != ["final"]:
            logits = run.under(partial(oracles.path_second_run, small, run.ids, seen, receivers))
        expected = oracles.logit_diff(logits, base, prompt) - oracles.logit_diff(run.logits[0], base, prompt)
        assert float(found.values[layer, head, prompt]) == pytest.approx(expected, abs=TOLERANCE)
    matrix = mh.path_matrix(small, PAIRS, **asked | {"receivers": receivers[:1]})
    if len(receivers) == 1:
        np.testing.assert_allclose(matrix.values.values[:, :, 0], found.values, atol=TOLERANCE)
    assert ", given L0H1 and L2H2 (" in found.name


def test_sets_given_heads_are_of_the_runs_without_them(small):
    given = dict.fromkeys(GONE, "mean")
    sets = [["L0H0"], ["L0H0", "L1H3"]]
    bases, sources, base = pairs_without(small, "denoising", "mean")
    found = mh.patching.patch_sets(small, PAIRS, sets, given=given)
    for row, heads in enumerate(sets):
        for prompt, run in enumerate(bases):
            at = [mh.HeadId.parse(head) for head in heads]
            other = {(h.layer, h.head): sources[prompt].seen[oracles.name(h.layer, "z")][0, :, h.head] for h in at}
            changed = oracles.forward(small, run.ids, [*oracles.z_hooks(other), *run.hooks])[0]
            expected = oracles.logit_diff(changed, base, prompt) - oracles.logit_diff(run.logits[0], base, prompt)
            assert found.values[row, prompt] == pytest.approx(expected, abs=TOLERANCE)
    assert found.name.endswith("given L0H1 and L2H2 (Mean())") and found.provenance["given"]


@pytest.mark.parametrize("kind", ["resample", "mean"])
def test_prompts_in_one_row_share_only_what_the_ablated_heads_leave_alike(small, kind):
    frames = (
        " When John and Mary went to the store the capital of {} is",
        " John gave one big cat to Mary and the dog of {} is",
    )
    words = ("France", "Italy", "Spain", "Germany")
    prompts = mh.Prompts([frame.format(word) for frame in frames for word in words])
    given = dict.fromkeys(GONE, RULES[kind])
    plan = mh.plan(small, prompts, intervention="zero", given=given)
    assert plan.packed or plan.layout != "queries"  # no other layout puts several prompts into a row
    found = mh.ablate(small, prompts, given=given, heads=["L0H0", "L1H3"], seed=SEED)
    runs = runs_without(small, prompts.tokens(small), dict.fromkeys(GONE, kind))
    for layer, head in ((0, 0), (1, 3)):
        for i, run in enumerate(runs):
            expected = oracles.kl(run.logits[0], run.changed(layer, head, 0.0)[0])
            assert float(found.values[layer, head, i]) == pytest.approx(expected, abs=TOLERANCE)


def test_a_result_says_what_was_given_and_leaves_these_heads_out(small):
    found = mh.activation_patch(small, PAIRS, given={"L0H1": "zero", "L2H2": mh.Mean()})
    assert found.name.endswith(", given L0H1 (Zero()), L2H2 (Mean())")
    assert found.provenance["given"] == {"L0H1": "Zero()", "L2H2": "Mean()"}
    assert found.missing == () and found.provenance["heads"] == "all"
    absent = [str(mh.HeadId(*at)) for at in np.argwhere(found.scores.isnull().values).tolist()]
    assert absent == ["L0H1", "L2H2"]
    assert label_of(found).endswith("given L0H1 (Zero()), L2H2 (Mean())")
    assert ", given L0H1, L2H2" in repr(mh.plan(small, CLEAN, intervention="zero", given=GONE))


def test_a_ledger_keeps_the_effects_given_different_heads_apart(small, tmp_path):
    store, given = tmp_path / "kept.ledger", [None, "L0H1", ["L0H1", "L2H2"], {"L0H1": "mean"}]
    options = {"heads": ["L1H0", "L2H3"], "intervention": "zero"}
    apart = [mh.ablate(small, CLEAN, given=each, **options).values for each in given]
    assert len({each.values.tobytes() for each in apart}) == len(given)
    for _ in range(2):
        for each, expected in zip(given, apart, strict=True):
            found = mh.ablate(small, CLEAN, given=each, store=store, **options)
            np.testing.assert_allclose(found.values, expected, atol=1e-6)


def test_ships_are_those_of_the_model_without_the_heads(small):
    options = {"template": "bare", "intervention": "zero"}
    found = mh.ships(small, CLEAN, given=GONE, **options)
    np.testing.assert_allclose(found.values, mh.ablate(small, CLEAN, given=GONE).values, atol=1e-6)
    assert found.name == "Ships, zero, given L0H1 and L2H2 (Zero())"
    angle = mh.safety.generalized_ships(small, CLEAN, given=GONE, **options)
    assert np.isnan(angle.scores.values[0, 1]) and angle.provenance["given"] == found.provenance["given"]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m: mh.ablate(m, CLEAN, given={"L0H1": "patch"}), r"given\['L0H1'\] is Patch.*source run of a pair"),
        (lambda m: mh.ablate(m, CLEAN, given="L0H1", heads="L0H1"), "heads names only heads that given ablates"),
        (lambda m: mh.path_patch(m, PAIRS, receivers="L1H1.q", given="L1H1"), "receivers: L1H1 is ablated by given"),
        (lambda m: mh.patching.patch_sets(m, PAIRS, [["L0H1"]], given="L0H1"), "sets has L0H1 in it, which given"),
        (lambda m: mh.ships(m, CLEAN, given={"L0H1": "patch"}), r"given\['L0H1'\] is Patch.*requests have only one"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(small, call, message):
    with pytest.raises(ValueError, match=message):
        call(small)
