"""Indirect object identification: its prompts, its steps against full forward passes, and planted roles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mechheads as mh
import mechheads.behaviour.indirect_objects as object_roles
from mechheads.behaviour import indirect_object_pairs, indirect_object_roles
from support import oracles
from support.blank import Blank
from support.levels import ONE_FIRST

ARCHITECTURES = ONE_FIRST

NAMES = ["France", "Italy", "Spain", "Germany", "Paris", "Rome", "Nowhere"]
TEMPLATES = (" When {first} and {second} went, {subject} gave to", " The {first} and {second} to {subject} gave to")


def made(model: mh.Model, n: int = 6) -> mh.PromptPairs:
    return indirect_object_pairs(model, n, templates=TEMPLATES, names=NAMES)


def test_pairs_name_two_people_and_three_others(small: mh.Model) -> None:
    pairs = made(small, 8)
    clean, corrupted = pairs.tokens(small)
    assert clean.answer is not None and clean.wrong is not None
    orders = []
    for row in range(8):
        ids, other = clean.ids[row].tolist(), corrupted.ids[row].tolist()
        at = {name: int(where[row]) for name, where in clean.positions.items()}
        assert at["last"] == int(clean.lengths[row]) - 1 and at["s1_next"] == at["s1"] + 1
        assert ids[at["io"]] == clean.answer[row] != clean.wrong[row] == ids[at["s1"]] == ids[at["s2"]]
        assert at["io"] < at["s2"] and at["s1"] < at["s2"]
        three = {at["io"], at["s1"], at["s2"]}
        assert {i for i, (a, b) in enumerate(zip(ids, other, strict=True)) if a != b} == three
        assert len({*(other[i] for i in three), *(ids[i] for i in three)}) == 5
        orders.append((row % 2, at["io"] < at["s1"]))
    assert [orders.count((template, first)) for template in (0, 1) for first in (True, False)] == [2, 2, 2, 2]
    assert made(small, 8) == pairs
    assert indirect_object_pairs(small, 8, templates=TEMPLATES, names=NAMES, seed=1) != pairs
    assert not any("Nowhere" in text for text in (*pairs.clean, *pairs.corrupted))


@pytest.fixture
def everything_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every head of a random model has a role, so every step is taken."""
    monkeypatch.setattr(object_roles, "FDR", 1.0)
    monkeypatch.setattr(object_roles, "_LEAST", 0.0)


def ablated(model: mh.Model, ids: Tensor, other: Tensor, heads: tuple[mh.HeadId, ...]) -> oracles.Activations:
    """The activations while some heads have their z of the other prompt."""
    there = oracles.activations(model, other)
    kept: oracles.Activations = {}

    def put(value: Tensor, hook: Any, layer: int) -> Tensor:
        value = value.clone()
        for head in heads:
            if head.layer == layer:
                value[0, :, head.head] = there[oracles.name(layer, "z")][0, :, head.head]
        kept[oracles.name(layer, "z")] = value.clone()
        return value

    hooks = [(oracles.name(layer, "z"), partial(put, layer=layer)) for layer in range(model.n_layers)]
    oracles.forward(model, ids, hooks)
    return kept


@pytest.mark.filterwarnings("ignore")
@pytest.mark.usefixtures("everything_counts")
def test_steps_are_paths_and_roles_follow_from_them(small: mh.Model) -> None:
    pairs = made(small)
    found = indirect_object_roles(small, pairs, most=2, min_share=0)
    clean, corrupted = pairs.tokens(small)
    strongest = {role: found.heads(role)[:2] for role in object_roles.ROLES}
    later = {
        "final": ("final", "all", None),
        "queries": ("q", "last", "name mover"),
        "values": ("v", "s2", "S-inhibition"),
        "keys": ("k", "s1_next", "induction"),
    }
    for step, (site, position, role) in later.items():
        receivers = ["final"] if role is None else [f"{h}.{site}" for h in strongest[role] if h.layer]
        if receivers:
            expected = mh.path_patch(small, pairs, receivers=receivers, positions=position)
            np.testing.assert_allclose(found.steps[step].values, expected.values, atol=1e-4)
        else:
            assert step not in found.steps
    patterns = [oracles.activations(small, oracles.ids_of(clean, row)) for row in range(len(pairs))]
    for look, (a, b) in object_roles.LOOKS.items():
        for layer, head in np.ndindex(small.n_layers, small.n_heads):
            each = [
                float(seen[oracles.name(layer, "pattern")][0, head, clean.positions[a][row], clean.positions[b][row]])
                for row, seen in enumerate(patterns)
            ]
            assert found.attention.select(look=look)[layer, head]["score"] == pytest.approx(np.mean(each), abs=1e-4)
    for row in found.table.to_dict("records"):
        assert row["effect"] == pytest.approx(found.steps[row["step"]][row["head"]]["score"])
        assert row["role"] == expected_role(row, found), row
    movers = found.heads("name mover")
    if "backup" in found.steps:
        for row in range(len(pairs)):
            ids, other = oracles.ids_of(clean, row), oracles.ids_of(corrupted, row)
            here, there = oracles.activations(small, ids), ablated(small, ids, other, movers)
            before = oracles.logit_diff(oracles.forward(small, ids)[0], clean, row)
            for head in np.argwhere(np.isfinite(found.steps["backup"].scores.values)):
                logits, _ = oracles.path_first_run(small, ids, here, there, tuple(head))
                after = oracles.logit_diff(logits, clean, row)
                assert found.steps["backup"].dataset["values"].values[(*head, row)] == pytest.approx(
                    after - before, abs=2e-4
                )


def expected_role(row: dict[str, Any], found: object_roles.IndirectObjectRoles) -> str:
    looks = found.attention[row["head"]].set_index("look")["score"]
    io, s1, s2 = (looks[f"end to {name}"] for name in ("io", "s1", "s2"))
    harms = row["effect"] < 0
    if row["step"] == "final":
        return "other" if io < max(s1, s2) else ("name mover" if harms else "negative name mover")
    if row["step"] == "backup":
        return "backup name mover" if io > max(s1, s2) and not harms else "other"
    if row["step"] == "queries":
        return "S-inhibition" if harms and io < max(s1, s2) else "other"
    if not harms:
        return "other"
    if row["step"] == "keys":
        return "previous token"
    return "duplicate token" if looks["s2 to s1"] > looks["s2 to s1 + 1"] else "induction"


ID, QUERY, KEY, MOVED = range(4)


@torch.no_grad()
def planted() -> Blank:
    """A name mover, a negative one and a backup, by hand. Prompts are such as " France and dog the dog gave to".

    France and Italy carry ID 1 and -1, and KEY; only " to" has a query. Scores are divided by 2, so keys are doubled.
    L0H0 and L0H1 give all attention of " to" to France or Italy, and write 3 ID and - ID to MOVED.
    L1H0 gives it the weight exp(a - b MOVED ID), and every other of the 7 tokens 1; it writes ID times its attention.
        intact, MOVED ID = 3 - 1 = 2, and with a = log 1.2 + 2 b: weight 1.2, attention 1.2 / 7.2 = 1/6
        L0H0 ablated, MOVED ID = -3 - 1 = -4, and with b = log(36) / 6: weight 1.2 * 36, attention 43.2 / 49.2
    logit(France) = MOVED and logit(Italy) = -MOVED; all others are 0. So the lead is 3 - 1 + 1/6.
    """
    blank, b = Blank(), math.log(36) / 6
    for name, sign in ((" France", 1), (" Italy", -1)):
        blank.embedding[blank.token(name), [ID, KEY]] = torch.tensor([sign, 1.0])
        blank.unembedding[blank.token(name), MOVED] = sign
    blank.embedding[blank.token(" to"), QUERY] = 1
    first, second = blank.attention
    for head, written in ((0, 3), (1, -1)):
        first.q_proj.weight[4 * head + 1, QUERY] = 30
        first.o_proj.weight[MOVED, 4 * head] = written
    first.k_proj.weight[1, KEY] = 2
    first.v_proj.weight[0, ID] = 1
    second.q_proj.weight[1, MOVED] = -b
    second.q_proj.weight[3, QUERY] = math.log(1.2) + 2 * b
    second.k_proj.weight[1, ID] = second.k_proj.weight[3, KEY] = 2
    second.v_proj.weight[0, ID] = 1
    second.o_proj.weight[MOVED, 0] = 1
    return blank


@pytest.mark.filterwarnings("ignore:the step")
def test_planted_roles_are_found_with_their_effects_by_hand(tmp_path: Path) -> None:
    model = planted().load(tmp_path / "planted")
    countries, animals = ["France", "Italy"] * 8, ["dog", "cat", "book", "store"] * 4
    others = ["Italy", "France"] * 8
    pairs = mh.PromptPairs(
        [f" {io} and {s} the {s} gave to" for io, s in zip(countries, animals, strict=True)],
        [f" {io} and big the small gave to" for io in others],
        answer=[f" {io}" for io in countries],
        wrong=[f" {s}" for s in animals],
        positions={"io": [0] * 16, "s1": [2] * 16, "s1_next": [3] * 16, "s2": [4] * 16},
        cluster=[f"{at}" for at in range(16)],  # or else copies would be one
    )
    found = indirect_object_roles(model, pairs, min_share=0.25)
    rows = {row["role"]: (row["head"], row["effect"]) for row in found.table.to_dict("records")}
    lead = 3 - 1 + 1 / 6
    assert len(found.table) == len(rows) == 3
    assert found.provenance["logit_diff"] == pytest.approx(lead, abs=1e-3) and found.provenance["right"] == 1
    assert rows["name mover"] == ("L0H0", pytest.approx(-6, abs=1e-3))
    assert rows["negative name mover"] == ("L0H1", pytest.approx(2, abs=1e-3))
    assert rows["backup name mover"] == ("L1H0", pytest.approx(43.2 / 49.2 - 1 / 6, abs=1e-3))
    assert found.steps["final"]["L1H0"]["score"] == pytest.approx(-2 / 6, abs=1e-3)
    assert found.roles("L1H0") == ("backup name mover",) and found.roles("L0H2") == ()
    assert found.table.set_index("head").loc["L1H0", "attention"] == pytest.approx(1 / 6, abs=1e-3)
    assert found.table.set_index("head").loc["L0H0", "share"] == pytest.approx(6 / lead, abs=1e-2)


@pytest.mark.filterwarnings("ignore:the step")
@pytest.mark.usefixtures("everything_counts")
def test_ctrl_c_keeps_the_finished_steps(llama: mh.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = made(llama)
    whole = indirect_object_roles(llama, pairs, min_share=0)
    assert len(whole.steps) > 1
    patch = object_roles.path_patch
    for call in (1, 2):
        calls = count(1)

        def stopped(*args: Any, calls: Iterator[int] = calls, call: int = call, **options: Any) -> mh.HeadScores:
            return patch(*args, **options).with_provenance(interrupted=next(calls) == call)

        monkeypatch.setattr(object_roles, "path_patch", stopped)
        if call == 1:
            with pytest.raises(KeyboardInterrupt):
                indirect_object_roles(llama, pairs, min_share=0)
            continue
        with pytest.warns(UserWarning, match="interrupted after 1 of 5 steps"):
            part = indirect_object_roles(llama, pairs, min_share=0)
        assert part.interrupted and list(part.steps) == ["final"]
        assert set(part.table["head"]) == set(whole.table["head"][whole.table["step"] == "final"])


PAIRS = mh.PromptPairs([" Paris is"], [" Rome is"], [" Paris"], [" Rome"])


@pytest.mark.parametrize(
    ("message", "call"),
    [
        (
            "2 of 3 are one token for this model; at least 5 are needed",
            lambda model: indirect_object_pairs(model, 2, names=["France", "Italy", "Nowhere"]),
        ),
        (
            "once each, in this order, each after a space",
            lambda model: indirect_object_pairs(model, 2, templates=[" {second} and {first}, {subject}"], names=NAMES),
        ),
        (
            "templates must be a list of texts",
            lambda model: indirect_object_pairs(model, 2, templates=TEMPLATES[0], names=NAMES),
        ),
        (
            "min_share is 2; it must be at least 0 and at most 1",
            lambda model: indirect_object_roles(model, min_share=2),
        ),
        ("pairs have no position 'io'", lambda model: indirect_object_roles(model, PAIRS)),
    ],
)
def test_what_cannot_be_is_said(message: str, call: Callable[[mh.Model], object], llama: mh.Model) -> None:
    with pytest.raises(ValueError, match=message):
        call(llama)
