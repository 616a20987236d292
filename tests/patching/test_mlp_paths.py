"""MLPs as senders of path patching, against full forward passes with hooks."""

from __future__ import annotations

import numpy as np
import pytest

import mechheads as mh
from mechheads.limits import Limits
from support import oracles
from support.levels import ONE_FIRST
from support.made_workers import MadeWorkers
from support.texts import PAIRS

ARCHITECTURES = ONE_FIRST

RECEIVERS = [["final"], ["L2H1.q"], ["L1H2.q", "L2H1.k", "L2H1.v", "L2.mlp"]]


def by_loop(model: mh.Model, receivers: list[str], mlps: str, direction: str, at: int | None = None) -> np.ndarray:
    """The effect of each MLP through the receivers [layer, prompt]."""
    clean, corrupted = PAIRS.tokens(model)
    base, source = (clean, corrupted) if direction == "noising" else (corrupted, clean)
    expected = np.full((model.n_layers, len(PAIRS)), np.nan)
    for prompt in range(len(PAIRS)):
        ids, other = oracles.ids_of(base, prompt), oracles.ids_of(source, prompt)
        runs = [oracles.activations(model, each) for each in (ids, other)]
        before = oracles.logit_diff(oracles.forward(model, ids)[0], base, prompt)
        for layer in range(model.n_layers):
            first, seen = oracles.path_first_run(model, ids, *runs, (layer, None), mlps, at)
            logits = first if receivers == ["final"] else oracles.path_second_run(model, ids, seen, receivers)
            expected[layer, prompt] = oracles.logit_diff(logits, base, prompt) - before
    return expected


@pytest.mark.parametrize("receivers", RECEIVERS)
@pytest.mark.parametrize(("mlps", "direction"), [("recomputed", "noising"), ("frozen", "denoising")])
def test_every_mlp_equals_full_forwards_with_hooks(small, receivers, mlps, direction):
    given = {"receivers": receivers, "mlps": mlps, "direction": direction}
    ours = mh.path_patch(small, PAIRS, nodes="all", **given)
    expected = by_loop(small, receivers, mlps, direction)
    np.testing.assert_allclose(ours.dataset["mlp_values"], expected, atol=1e-4)
    np.testing.assert_allclose(ours.values, mh.path_patch(small, PAIRS, **given).values, atol=1e-5)


def test_an_mlp_changed_at_one_position(small):
    ours = mh.path_patch(small, PAIRS, receivers="L2H3.v", positions=[3], nodes="all")
    expected = by_loop(small, ["L2H3.v"], "recomputed", "noising", at=3)
    np.testing.assert_allclose(ours.dataset["mlp_values"].isel(pos=0), expected, atol=1e-4)


def test_a_matrix_holds_the_single_receivers(small):
    names = ["L2H1.q", "final", "L1.mlp"]
    matrix = mh.path_matrix(small, PAIRS, receivers=names, nodes="all")
    for name in names:
        alone = mh.path_patch(small, PAIRS, receivers=name, nodes="all")
        values = matrix.dataset["mlp_values"].sel(receiver=name)
        np.testing.assert_allclose(values, alone.dataset["mlp_values"], atol=1e-5)
    np.testing.assert_array_equal(matrix.dataset["mlp_values"].sel(receiver="L1.mlp")[1:], 0)


def test_mlps_are_normalised_as_heads_are(small):
    given = {"receivers": "L2H1.q", "nodes": "all"}
    raw, share = (mh.path_patch(small, PAIRS, normalize=normalize, **given) for normalize in (False, True))
    largest = np.unravel_index(np.abs(raw.values.values).argmax(), raw.values.shape)
    scale = raw.values.values[largest] / share.values.values[largest]
    np.testing.assert_allclose(share.dataset["mlp_values"] * scale, raw.dataset["mlp_values"], rtol=1e-3, atol=1e-4)


def test_parts_workers_and_a_ledger_change_nothing(small, tmp_path):
    given = {"receivers": ["L2H1.q", "final"], "nodes": "all"}
    whole = mh.path_matrix(small, PAIRS, **given)
    piecewise = mh.settings(budget=Limits(tokens=1))(mh.path_matrix)(small, PAIRS, **given)
    np.testing.assert_allclose(piecewise.dataset["mlp_values"], whole.dataset["mlp_values"], atol=1e-4)
    made = mh.settings(workers=MadeWorkers(2), store=tmp_path / "ledger")(mh.path_matrix)(small, PAIRS, **given)
    np.testing.assert_allclose(made.dataset["mlp_values"], whole.dataset["mlp_values"], atol=1e-4)
    again = mh.settings(store=tmp_path / "ledger")(mh.path_matrix)(small, PAIRS, **given)
    np.testing.assert_array_equal(again.dataset["mlp_values"], made.dataset["mlp_values"])
