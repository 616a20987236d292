"""Every class of results, as the analyses make them, comes back from a file as it was."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.patching.circuit_curve import faithfulness_curve
from mechheads.results.curves import Curves
from mechheads.results.kinds import CURVES, KINDS
from mechheads.results.tables import TableResult
from mechheads.studies.head_patterns import head_patterns
from mechheads.studies.head_weights import head_weights
from support.same import assert_survives

PAIRS = mh.PromptPairs(
    [" The capital of France is", " Paris is the capital of"],
    [" The capital of Italy is", " Rome is the capital of"],
    [" Paris", " France"],
    [" Rome", " Italy"],
)
CIRCUIT = ["L0H1", "L1H2", "L2H0"]

TASK = mh.Task([" The capital of France is", " no"], [" Paris", " yes cat"], name="texts")
REQUESTS = [" The capital of France is", " When John and Mary went to the store", " a big dog"]
ANSWERED: dict[str, Any] = {
    "ablation": "zero",
    "draws": 1,
    "answers": mh.safety.AnswerSettings(lambda asked, said: "refused", "bare", max_new_tokens=4),
}
CAPITALS: dict[str, Any] = {"n": 2, "shots": 1}


def fitted(model: mh.Model) -> mh.gating.Gates:
    return mh.fit_gates(model, TASK, seeds=2, updates=1)


def evidence(model: mh.Model) -> mh.labels.CausalEvidence:
    score = np.zeros((model.n_layers, model.n_heads, 1))
    score[23, 4], score[29, 2] = 1, 0.5
    relation = {"relation": ["country_to_capital"]}
    ranking = mh.HeadScores.from_scores(score, name="phi", unit="share", kind="relations", extra=relation)
    found = mh.labels.relation_evidence(model, "country_to_capital", heads=["L23H4"], ranking=ranking, **CAPITALS)
    assert list(found.removal) == ["country_to_capital"]
    return found


MADE: dict[str, Callable[[mh.Model], TableResult]] = {
    "SetScores": lambda model: mh.patching.patch_sets(model, PAIRS, [CIRCUIT, ["L0H0"]]),
    "Faithfulness": lambda model: mh.patching.faithfulness(model, PAIRS, CIRCUIT),
    "circuit_curve": lambda model: mh.patching.circuit_curve(model, PAIRS, CIRCUIT, sizes=(0.2, 1), draws=1),
    "EdgeScores": lambda model: mh.patching.attribute_edges(model, PAIRS, by_prompt=True),
    "Completeness": lambda model: mh.patching.completeness(model, PAIRS, CIRCUIT, subsets=2),
    "Circuit": lambda model: mh.patching.minimal_circuit(model, PAIRS, threshold=0.5),
    "HeadExamples": lambda model: mh.behaviour.head_examples(model, [[1, *range(20)], [*range(30)]]),
    "IndirectObjectRoles": lambda model: mh.behaviour.indirect_object_roles(
        model,
        mh.behaviour.indirect_object_pairs(
            model,
            8,
            templates=[" The {first} and {second} to {subject} gave to"],
            names=["France", "Italy", "Spain", "Germany", "Paris", "Rome"],
        ),
        min_share=0,
    ),
    "HeadPatterns": lambda model: head_patterns(model, REQUESTS),
    "HeadWeights": lambda model: head_weights(model),
    "faithfulness_curve": lambda model: faithfulness_curve(model, PAIRS, mh.activation_patch(model, PAIRS)),
    "HeadGroup": lambda model: mh.safety.sahara(model, REQUESTS, 2, draws=1),
    "RefusalTest": lambda model: mh.safety.refusal_test(
        model, CIRCUIT, REQUESTS, REQUESTS[1:], texts=[" a big dog"], opening=" I", **ANSWERED
    ),
    "RefusalBrittleness": lambda model: mh.safety.refusal_brittleness(
        model, 2, REQUESTS, REQUESTS[1:], texts=[" a big dog"], **ANSWERED
    ),
    "attack_curve": lambda model: mh.safety.attack_curve(model, CIRCUIT, REQUESTS, REQUESTS[1:], **ANSWERED),
    "Gates": fitted,
    "Roles": lambda model: mh.head_roles(fitted(model)),
    "role_curves": lambda model: mh.gating.role_curve(model, TASK, fitted(model), counts=[0, 2], draws=1),
}
MADE_BY_THE_DEFAULT_MODEL: dict[str, Callable[[mh.Model], TableResult]] = {
    "removal": lambda model: mh.labels.cumulative_removal(
        model, "country_to_capital", ["L23H4", "L29H2"], draws=1, **CAPITALS
    ),
    "CausalEvidence": evidence,
}


def called(result: TableResult) -> str:
    """The class of a result, or the analysis that curves are of."""
    return result.kind if isinstance(result, Curves) else type(result).__name__


@pytest.mark.parametrize("name", MADE)
def test_it_survives_a_file(name: str, llama: mh.Model, tmp_path: Path) -> None:
    result = MADE[name](llama)
    assert called(result) == name
    assert_survives(result, tmp_path)


@pytest.mark.release
@pytest.mark.parametrize("name", MADE_BY_THE_DEFAULT_MODEL)
def test_what_asks_for_a_model_that_knows_survives_a_file(name: str, model: mh.Model, tmp_path: Path) -> None:
    result = MADE_BY_THE_DEFAULT_MODEL[name](model)
    assert called(result) == name
    assert_survives(result, tmp_path)


def test_what_ctrl_c_left_survives_a_file(llama: mh.Model, tmp_path: Path) -> None:
    """Missing numbers, answers and verdicts, and a table without rows."""
    whole = MADE["RefusalTest"](llama)
    assert isinstance(whole, mh.safety.RefusalTest)
    answers = whole.answers.assign(verdict=["refused", None, *[None] * (len(whole.answers) - 2)])
    table = whole.table.assign(loss=np.nan)
    about = whole.provenance | {"interrupted": True}
    part = replace(whole, answers=answers, table=table, provenance=about)
    assert part.missing == tuple(table["condition"]) and part.interrupted
    assert_survives(part, tmp_path)
    trace = mh.HeadScores.from_scores(
        np.full((3, 4, 1), np.nan), name="n", unit="nats", kind="sahara", extra={"step": [1]}
    )
    columns = ["size", "head", "group", "singly", "random", "random_low", "random_high"]
    nothing = mh.safety.HeadGroup((), trace, pd.DataFrame([], columns=columns), {"interrupted": True})
    assert_survives(nothing, tmp_path)


def test_every_class_of_the_package_is_tried() -> None:
    for module in pkgutil.walk_packages(mh.__path__, "mechheads."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    ours = {each.__name__ for each in TableResult.__subclasses__() if each.__module__.startswith("mechheads.")}
    assert ours == {name for name in (*MADE, *MADE_BY_THE_DEFAULT_MODEL) if name not in KINDS} | {"Curves"}
    assert {name for name, kind in KINDS.items() if kind.plot == CURVES} <= {*MADE, *MADE_BY_THE_DEFAULT_MODEL}
    kinds = [each.KIND for each in TableResult.__subclasses__()]
    assert len(kinds) == len(set(kinds))
