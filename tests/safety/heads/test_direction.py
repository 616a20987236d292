"""What heads write along the refusal direction, against plain runs and on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
import mechheads.runs.head_cache
from mechheads.safety import refusal_direction
from support import oracles, weight_surgery
from support.micro import micro  # noqa: F401

HARMFUL = [" The capital of France", " John gave a dog to Mary no", " yes", " Rome is big"]
HARMLESS = [" no", " When Mary went to the store John gave a book", " three cat", " Rome is"]


def parts(model: mh.Model, ids: Tensor) -> dict[str, Tensor]:
    """All that adds up to the last token's residual stream: embedding, attention and MLP of each layer, and the sum."""
    kept: dict[str, Tensor] = {}

    def keep(value: Tensor, hook: Any, at: str) -> None:
        kept[at] = value[0, -1].double()

    last = model.n_layers - 1
    names = {"start": "blocks.0.hook_resid_pre", "end": f"blocks.{last}.hook_resid_post"}
    names |= {f"mlp {layer}": f"blocks.{layer}.hook_mlp_out" for layer in range(model.n_layers)}
    names |= {f"z {layer}": oracles.name(layer, "z") for layer in range(model.n_layers)}
    hooks = [(name, lambda value, hook, at=at: keep(value, hook, at)) for at, name in names.items()]
    oracles.forward(model, ids, hooks)
    return kept


@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_heads_mlps_and_embedding_add_up_to_the_distance(loaded: Callable[[str], mh.Model], name: str):
    model = loaded(name)
    found = refusal_direction(model, HARMFUL, HARMLESS, template="query")
    query = [[f"## Query:{request}\n## Answer:" for request in side] for side in (HARMFUL, HARMLESS)]
    runs = [[parts(model, ids) for ids in weight_surgery.rows(model, side)] for side in query]
    means = [{at: torch.stack([run[at] for run in side]).mean(0) for at in side[0]} for side in runs]
    apart = means[0]["end"] - means[1]["end"]
    distance = float(apart.norm())
    unit = apart / distance
    assert found.provenance["distance"] == pytest.approx(distance, rel=1e-5)
    assert found.values is not None
    for layer in range(model.n_layers):
        for head in range(model.n_heads):
            along = model.W_O[layer][head].double() @ unit
            each = [[float(run[f"z {layer}"][head] @ along) for run in side] for side in runs]
            np.testing.assert_allclose(found.values[layer, head], np.subtract(*each), atol=1e-5)
    others = sum(
        float((means[0][at] - means[1][at]) @ unit) for at in means[0] if at == "start" or at.startswith("mlp")
    )
    assert float(found.scores.sum()) + others == pytest.approx(distance, rel=1e-5)
    assert float((found.scores < 0).sum()) > 0
    if name != "gpt2":  # all prompts end alike, so without positions their embedding is the same
        assert float((means[0]["start"] - means[1]["start"]).norm()) == 0
    back = refusal_direction(model, HARMLESS, HARMFUL, template="query")
    np.testing.assert_allclose(back.scores, found.scores, atol=1e-6)  # the direction turns round with the sides


def test_on_paper(micro: mh.Model):
    """See ``test_micro``. At " is" the two runs differ in

    moved france 3/5, moved italy -1/2      by L0H0
    Paris 2 + 13.5, Rome -(2 + 13)          by L0H1 and L1H0
    unread 13.5 - 13                        by L1H1
    """
    found = refusal_direction(micro, mh.Prompts([" the France is"]), mh.Prompts([" the Italy is"]))
    distance = (0.6**2 + 0.5**2 + 15.5**2 + 15**2 + 0.5**2) ** 0.5
    assert found.provenance["distance"] == pytest.approx(distance, rel=1e-6)
    wanted = np.zeros((2, 4))
    wanted[0, 0] = 0.6**2 + 0.5**2
    wanted[0, 1] = 2 * 15.5 + 2 * 15
    wanted[1, 0] = 13.5 * 15.5 + 13 * 15
    wanted[1, 1] = 0.5**2
    np.testing.assert_allclose(found.scores, wanted / distance, atol=1e-5)
    assert wanted.sum() / distance == pytest.approx(distance)
    assert (found.provenance["template"], found.unit) == ("prompts as given", "residual units")


def test_heads_that_are_left_out_change_nothing(loaded: Callable[[str], mh.Model]):
    model = loaded("llama")
    whole = refusal_direction(model, HARMFUL, HARMLESS)
    some = refusal_direction(model, HARMFUL, HARMLESS, heads=["L0H2", "L2H1"])
    assert set(some.heads()) == {mh.HeadId(0, 2), mh.HeadId(2, 1)}
    for head in ("L0H2", "L2H1"):
        assert some[head]["score"] == pytest.approx(whole[head]["score"], abs=1e-5)
    assert whole.provenance["template"] == "chat"


def test_bad_input_is_named(loaded: Callable[[str], mh.Model]):
    model = loaded("llama")
    for harmful, harmless, options, message in (
        (HARMFUL, HARMLESS[:3], {}, "harmful has 4 requests, harmless has 3"),
        (HARMFUL, HARMFUL, {}, "give the same states, so there is no direction"),
        (HARMFUL, HARMLESS, {"heads": "L5H0"}, "out of range"),
        (HARMFUL, HARMLESS, {"template": "poem"}, "template is 'poem'"),
        ([], [], {}, "harmful is empty"),
    ):
        with pytest.raises(ValueError, match=message):
            refusal_direction(model, harmful, harmless, **options)


def test_a_group_writes_what_its_heads_write(loaded: Callable[[str], mh.Model]):
    model = loaded("llama")
    alone, grouped = (
        refusal_direction(model, HARMFUL, HARMLESS, group=group, template="query") for group in ("query", "kv")
    )
    assert alone.values is not None and grouped.values is not None
    sums = alone.values.values[:, ::2] + alone.values.values[:, 1::2]
    for part in (grouped.values.values[:, ::2], grouped.values.values[:, 1::2]):
        np.testing.assert_allclose(part, sums, atol=1e-6)
    assert (grouped.provenance["group"], grouped.provenance["unit"]) == ("kv", "key/value group")
    assert len(grouped.heads(100)) == 3 * 2 and len(alone.heads(100)) == 3 * 4
