"""Ships, Generalized Ships and safety heads against plain loops, altered weights and a direct SVD."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from torch import Tensor

import mechheads as mh
import mechheads.safety.heads.ships
from mechheads.runs.head_cache import HeadCache
from mechheads.safety import compare_ablations, generalized_ships, safety_heads, ships
from mechheads.safety.heads.angles import Rotation, left_subspaces, principal_angles
from support import oracles
from support.levels import TWO_FIRST
from support.rules import rule_of

ARCHITECTURES = TWO_FIRST

pytestmark = pytest.mark.usefixtures("brief_answers")

REQUESTS = [
    "When John went to the store",
    " Paris or Rome",
    " a big dog gave Mary a book yes",
    " no",
    "I help",
]
QUIET: dict[str, Any] = {"template": "bare"}
KINDS = ("undifferentiated", "mean", "resample")


def plain_ablation(
    model: mh.Model, ids: Tensor, layer: int, head: int, ablation: str, epsilon: float
) -> tuple[Tensor, Tensor]:
    """Logits [pos, d_vocab] and last state after the final norm, by one hooked forward pass."""
    if ablation == "scaling":
        z = oracles.activations(model, ids)[oracles.name(layer, "z")][0, :, head] * epsilon
    else:
        q = oracles.activations(model, ids)[oracles.name(layer, "q")] * epsilon
        z = oracles.z_when(model, ids, layer, head, "q", q)
    return logits_and_state(model, ids, oracles.z_hooks({(layer, head): z}))


def logits_and_state(model: mh.Model, ids: Tensor, hooks: Any = ()) -> tuple[Tensor, Tensor]:
    """Logits [pos, d_vocab], and the last state before the final norm."""
    seen: list[Tensor] = []

    def see(value: Tensor, hook: Any) -> None:
        seen.append(value[0, -1].clone())

    logits = oracles.forward(model, ids, [*hooks, (f"blocks.{model.n_layers - 1}.hook_resid_post", see)])[0]
    return logits, seen[0]


def final_norm(model: mh.Model, states: Tensor) -> np.ndarray:
    with torch.no_grad():
        return model.model.ln_final(states[None])[0].double().numpy()


def direct_angle(x: np.ndarray, y: np.ndarray, r: int) -> float:
    """The definition, word for word, but for scipy's stable arccos."""
    u, v = (np.linalg.svd(states, full_matrices=False)[0][:, :r] for states in (x, y))
    return float(np.degrees(subspace_angles(u, v)).sum())


@pytest.mark.parametrize("ablation", ["undifferentiated", "scaling"])
def test_both_scores_are_those_of_one_full_forward_per_head_and_prompt(small: mh.Model, ablation: Any):
    found = safety_heads(small, REQUESTS, intervention=rule_of(ablation, epsilon=0.3), **QUIET)
    tokens = mh.Prompts(REQUESTS).tokens(small)
    rows = [oracles.ids_of(tokens, i) for i in range(len(tokens))]
    base, states = zip(*(logits_and_state(small, ids) for ids in rows), strict=True)
    intact = final_norm(small, torch.stack(states))
    for layer, head in [(0, 0), (1, 3), (2, 1), (2, 2)]:
        runs = [plain_ablation(small, ids, layer, head, ablation, 0.3) for ids in rows]
        expected = [oracles.kl(b, logits) for b, (logits, _) in zip(base, runs, strict=True)]
        assert found.values is not None
        np.testing.assert_allclose(found.values[layer, head], expected, atol=1e-5, rtol=1e-3)
        angle = direct_angle(intact, final_norm(small, torch.stack([state for _, state in runs])), 1)
        assert float(found.generalized_ships[layer, head]) == pytest.approx(angle, abs=0.02)


def test_ablations_share_one_run_and_are_what_each_gives_alone(llama: mh.Model, monkeypatch: pytest.MonkeyPatch):
    alone = {
        kind: mh.settings(seed=5)(safety_heads)(llama, REQUESTS, 3, intervention=rule_of(kind, epsilon=0.2), **QUIET)
        for kind in KINDS
    }
    runs: list[Any] = []
    run = HeadCache.together.__func__

    def counted(cls: Any, *args: Any, **options: Any) -> list[HeadCache]:
        runs.append(options)
        return run(cls, *args, **options)

    monkeypatch.setattr(HeadCache, "together", classmethod(counted))
    together = mh.settings(seed=5)(compare_ablations)(
        llama, REQUESTS, 3, ablations=[rule_of(kind, epsilon=0.2) for kind in KINDS], **QUIET
    )
    assert len(runs) == 1
    assert list(together) == list(KINDS)
    for kind, found in together.items():
        for name in ("score", "ci_low", "generalized_ships", "generalized_ships_high", "in_top", "values"):
            np.testing.assert_allclose(found.dataset[name], alone[kind].dataset[name], atol=1e-6, rtol=1e-5)
        assert found.provenance | {"call": ""} == alone[kind].provenance | {"call": ""}
    scores = [found.scores.values for found in together.values()]
    assert all(np.abs(a - b).max() > 1e-3 for a, b in combinations(scores, 2))


def test_how_often_a_head_is_in_the_top_by_ships(llama: mh.Model):
    prompts = mh.Prompts(REQUESTS, cluster=["a", "a", "b", "c", "d"])
    found = mh.settings(seed=7)(safety_heads)(llama, prompts, 3, intervention="scaling")
    assert found.values is not None
    values = found.values.values.reshape(12, 5)
    members = [[0, 1], [2], [3], [4]]
    times = np.zeros(12)
    for draw in np.random.default_rng(7).multinomial(4, [1 / 4] * 4, size=1000):
        drawn = [i for cluster, n in zip(members, draw, strict=True) for i in cluster * n]
        times[np.argsort(-values[:, drawn].mean(1), kind="stable")[:3]] += 1
    np.testing.assert_allclose(found.dataset["in_top"].values.ravel(), times / 1000, atol=1e-12)
    assert found.dataset["in_top"].sum() == pytest.approx(3)
    assert ((times > 0) & (times < 1000)).any()


def test_generalized_ships_can_rank(llama: mh.Model):
    found = mh.settings(seed=2)(safety_heads)(
        llama, REQUESTS, 3, intervention=rule_of("scaling", epsilon=0.3), score="generalized_ships", **QUIET
    )
    plain = generalized_ships(llama, REQUESTS, intervention=rule_of("scaling", epsilon=0.3), **QUIET)
    np.testing.assert_allclose(found.scores, plain.scores, atol=1e-9)
    np.testing.assert_allclose(found.dataset["ci_high"], plain.dataset["ci_high"], atol=1e-9)
    assert (found.unit, found.values, found.provenance["score"]) == ("degrees", None, "generalized_ships")
    kl = ships(llama, REQUESTS, intervention=rule_of("scaling", epsilon=0.3), **QUIET)
    np.testing.assert_array_equal(found.dataset["ships"], kl.scores)
    assert found.heads() == plain.heads(3) != kl.heads(3) and "in_top" not in found.dataset


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"intervention": "poem"}, "intervention is 'poem'; choose one of 'patch', 'zero', 'mean'"),
        ({"score": "poem"}, "score is 'poem'; choose one of 'ships', 'generalized_ships'"),
        ({"intervention": mh.Zero}, "intervention is <class"),
        ({"intervention": "patch"}, r"intervention is Patch\(site='z'\), which takes values from another run"),
        ({"intervention": "resample", "requests": ["no"]}, "the number of different prompts is 1"),
        ({"heads": ["L9H0"]}, "out of range"),
        ({"requests": ["no", "no", "no"]}, "all 3 prompts are identical"),
        ({"requests": ["no"]}, "r is 1, but the number of different prompts is 1"),
    ],
)
def test_bad_input_is_named_before_any_head_is_ablated(
    llama: mh.Model, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], message: str
):
    monkeypatch.setattr(mechheads.safety.heads.ships, "finish", None)
    with pytest.raises(ValueError, match=message):
        safety_heads(llama, **({"requests": REQUESTS} | QUIET | options))


def test_angles_by_hand():
    east, north = np.array([[1.0], [0.0]]), np.array([[0.0], [1.0]])
    assert principal_angles(east, north).tolist() == [90.0]
    assert principal_angles(east, east).tolist() == [0.0]
    assert principal_angles(east, -east).tolist() == [0.0]
    half = np.array([[0.5**0.5], [0.5**0.5]])
    assert principal_angles(east, half) == pytest.approx([45.0], abs=1e-12)
    plane, tilted = np.eye(3)[:, :2], np.eye(3)[:, 1:]
    assert principal_angles(plane, tilted) == pytest.approx([0.0, 90.0], abs=1e-12)


def test_turn_by_hand():
    states = np.diag([3.0, 2.0, 1.0, 0.5])
    assert Rotation(states, 1)(states)[0] == pytest.approx(0, abs=1e-13)
    assert Rotation(states, 1)(states[:, [1, 0, 2, 3]])[0] == pytest.approx(0, abs=1e-13)  # left vectors only
    assert Rotation(states, 1)(np.diag([2.0, 3.0, 1.0, 0.5]))[0] == pytest.approx(90)
    assert Rotation(states, 2)(np.diag([0.5, 1.0, 2.0, 3.0]))[0] == pytest.approx(180)
    assert Rotation(states, 2)(np.diag([2.0, 3.0, 1.0, 0.5]))[0] == pytest.approx(0, abs=1e-13)
    assert np.isnan(Rotation(states, 1)(np.diag([2.0, 2.0, 1.0, 0.5]))[0])
    with pytest.raises(ValueError, match="singular values 1 and 2 of the intact states are equal"):
        Rotation(np.eye(3), 1)


def states_and_changed(n: int, d: int, change: float = 0.1) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n + d)
    states = rng.normal(size=(n, d)) + 3 * rng.normal(size=d)
    return states, states + change * rng.normal(size=(n, d))


@pytest.mark.parametrize(
    ("n", "d", "r", "change"), [(6, 40, 1, 0.1), (6, 40, 3, 0.1), (9, 4, 2, 0.1), (6, 40, 1, 100.0)]
)
def test_jackknife_leaves_each_cluster_out_and_makes_the_svd_again(n: int, d: int, r: int, change: float):
    states, changed = states_and_changed(n, d, change)
    cluster = [str(i // 2) for i in range(n)] if r == 1 else list(map(str, range(n)))
    angle, low, high = Rotation(states, r, cluster)(changed)
    assert angle == pytest.approx(direct_angle(states, changed, r), abs=1e-9)
    labels = np.array(cluster)
    each = sorted(set(cluster))
    logs = np.log([direct_angle(states[labels != c], changed[labels != c], r) for c in each])
    error = np.sqrt((len(each) - 1) ** 2 / len(each) * np.var(logs, ddof=1))
    quantile = {3: 4.302652729911275, 6: 2.5705818366147395, 9: 2.306004135204166}[len(each)]
    assert np.log(angle / low) == pytest.approx(quantile * error, rel=1e-6)
    assert high == pytest.approx(min(angle * np.exp(quantile * error), 90 * r), rel=1e-6)
    assert (angle * np.exp(quantile * error) > 90 * r) == (change > 1)


def turned_by(degrees: float, n: int, d: int, r: int) -> tuple[np.ndarray, np.ndarray]:
    """States, and states whose first left singular vector is turned out of the others' space by so many degrees."""
    rng = np.random.default_rng(n + d)
    left = np.linalg.qr(rng.normal(size=(n, r + 6)))[0]
    right = np.linalg.qr(rng.normal(size=(d, r + 5)))[0]
    sizes = 10.0 * 0.7 ** np.arange(r + 5)
    turned = left[:, :-1].copy()
    turned[:, 0] = np.cos(np.radians(degrees)) * left[:, 0] + np.sin(np.radians(degrees)) * left[:, -1]
    return left[:, :-1] * sizes @ right.T, turned * sizes @ right.T


@pytest.mark.parametrize(("n", "d"), [(20, 60), (200, 30)])
@pytest.mark.parametrize("r", [1, 5])
@pytest.mark.parametrize("degrees", [1e-9, 1e-3, 89.0])
def test_an_angle_that_is_known_is_found_however_small(n: int, d: int, r: int, degrees: float):
    states, changed = turned_by(degrees, n, d, r)
    assert Rotation(states, r)(changed)[0] == pytest.approx(degrees, rel=1e-4, abs=1e-11)


@pytest.mark.parametrize(("n", "d"), [(20, 60), (60, 60), (200, 30)])
@pytest.mark.parametrize(("r", "spread"), [(1, 1.0), (3, 1.0), (3, 1e-5), (20, 1.0)])
def test_gram_matrices_give_the_spaces_of_singular_vectors(n: int, d: int, r: int, spread: float):
    """A spread of 1e-5 is of states whose squares are too far apart: these are not squared."""
    rng = np.random.default_rng(n + d)
    states = spread * rng.normal(size=(n, d)) * np.linspace(3, 0.1, d) + 4 * rng.normal(size=d)
    weights = np.ones((3, n), dtype=bool)
    weights[1, : n // 10] = weights[2, n // 3 :: 3] = False  # some and many rows are left out
    vectors, defined = left_subspaces(states, weights, r)
    for weight, found, well in zip(weights, vectors, defined, strict=True):
        left, values, _ = np.linalg.svd(weight[:, None] * states, full_matrices=False)
        assert well == (values[r - 1] - (values[r] if r < len(values) else 0) > 1e-6 * values[0])
        assert not well or np.abs(principal_angles(left[:, :r], found)).max() < 1e-7


def test_the_contrast_is_the_log_ratio_of_both_ships_pair_by_pair(small: mh.Model):
    harmful, harmless = [" The capital of France", " yes", " Rome is big"], [" no", " three cat", " Rome is"]
    given: dict[str, Any] = {"template": "bare", "heads": ["L0H1", "L2H3"], "intervention": "scaling"}
    found = mh.ships(small, harmful, harmless=harmless, **given)
    one, other = (mh.ships(small, side, **given) for side in (harmful, harmless))
    np.testing.assert_allclose(found.values, np.log(one.values) - np.log(other.values), atol=1e-6)
    np.testing.assert_allclose(found.dataset["harmful"], one.scores)
    np.testing.assert_allclose(found.dataset["harmless"], other.scores)
    swapped = mh.ships(small, harmless, harmless=harmful, **given)
    np.testing.assert_allclose(swapped.dataset["values"], -found.dataset["values"], atol=1e-6)
    assert found.kind == "ships_contrast" and np.isfinite(found["L0H1"]["p_value"])
    same = mh.ships(small, harmful, harmless=harmful, **given)
    assert not same.dataset["values"].sel(layer=0, head=1).any() and same.dataset["p_value"].sel(layer=0, head=1) == 1
