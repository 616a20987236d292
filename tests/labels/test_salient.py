"""Salient operations against the formula, token by token over the whole vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch

import mechheads as mh
from mechheads.labels.salient import salient_operations
from mechheads.prompts.encoding import token_strings
from support.levels import few

ARCHITECTURES = few(("gpt2", "llama", "neox"), "llama")


def plain_loop(model: mh.Model, layer: int, head: int, n: int, top: int, first_mlp: bool, folded: bool) -> list[Any]:
    """id, token, sigma, maps_to and suppresses of the n most amplified tokens, in float64."""
    W_V, W_O, W_U = model.W_V[layer][head].double(), model.W_O[layer][head].double(), model.W_U.double()
    if folded:
        W_V = torch.diag(model.attention_scale(layer).double()) @ W_V
        W_O = W_O @ torch.diag(model.attention_out_scale(layer).double())
        W_U = torch.diag(model.final_scale().double()) @ W_U
    sigma, written = [], []
    for token in range(model.d_vocab):
        e = model.W_E[[token]]
        e = (model.first_mlp(e) if layer and first_mlp else e)[0].double()
        written.append(e @ W_V @ W_O)
        sigma.append(float(written[-1].norm() / e.norm()))
    rows = []
    for token in sorted(range(model.d_vocab), key=lambda token: -sigma[token])[:n]:
        order = sorted(range(model.d_vocab), key=(written[token] @ W_U).tolist().__getitem__)
        names = [repr(token_strings([i], model.tokenizer)[0]) for i in order]
        rows.append(
            [token, repr(token_strings([token], model.tokenizer)[0]), sigma[token], names[: -top - 1 : -1], names[:top]]
        )
    return rows


def check(found: pd.DataFrame, expected: list[Any]) -> None:
    assert found.index.name == "id"
    assert list(found.columns) == ["token", "sigma", "maps_to", "suppresses"]
    assert found.index.tolist() == [row[0] for row in expected]
    for row, (_, token, sigma, maps_to, suppresses) in zip(found.to_dict("records"), expected, strict=True):
        assert row["sigma"] == pytest.approx(sigma, rel=1e-4)
        assert (row["token"], row["maps_to"], row["suppresses"]) == (token, maps_to, suppresses)


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (2, 2)])
def test_equal_to_the_formula(small: mh.Model, layer: int, head: int) -> None:
    check(salient_operations(small, (layer, head)), plain_loop(small, layer, head, 15, 5, True, False))


@pytest.mark.parametrize("norm", ["raw", "folded"])
def test_choices(loaded: Callable[[str], mh.Model], norm: Any) -> None:
    model = loaded("gemma")
    found = salient_operations(model, "L2H1", n=4, top=3, norm=norm)
    check(found, plain_loop(model, 2, 1, 4, 3, True, norm == "folded"))


@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        ("L3H0", {}, "head L3H0 is out of range: this model has layers 0..2 with heads 0..3"),
        ("L0H0", {"n": 0}, "n is 0; it must be at least 1 and at most"),
        ("L0H0", {"norm": "both"}, "norm is 'both'; choose one of 'raw', 'folded'"),
    ],
)
def test_errors(llama: mh.Model, head: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        salient_operations(llama, head, **options)
