"""Every kind of analysis on a tiny model: the rows of the tables in tests/laws, tests/model and tests/slow."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import pandas as pd
import torch
import xarray as xr

import mechheads as mh
from mechheads.patching.circuits import faithfulness_curve
from mechheads.results.tables import TableResult
from mechheads.studies.head_patterns import head_patterns
from support.made_gates import made_gates
from support.texts import CAPITALS, CLEAN, CORRUPTED, PAIRS, WORD_PAIRS

_ONE_PAIR = mh.PromptPairs(CLEAN[:1], CORRUPTED[:1], answer=[" Paris"], wrong=[" Rome"])
_WORDS = mh.Relation("words", None, WORD_PAIRS)
_CAPITALS = mh.Relation("capitals", "Knowledge", CAPITALS)
_SMALL = mh.patching.Limits(memory=200_000, tokens=20)
_CIRCUIT = ["L0H1", "L1H2", "L2H0"]
_TASK = mh.Task([" The capital of France is", " no"], [" Paris", " yes cat"], name="texts")
_ROWS = [[1, *range(20)], [*range(3, 33)], [*range(8, 40)]]
_RANKED = mh.HeadScores.from_scores(np.arange(12.0).reshape(3, 4), name="a ranking", unit="share", kind="ablate")
_LONG = [" When John and Mary went to the store gave a book no I cannot help Sure" * 40]


_GATES = made_gates(*np.random.default_rng(0).random((2, 2, 3, 4)))


def _judge(request: str, answer: str) -> str:
    return "refused" if len(answer) % 2 else "complied"


_ANSWERED: dict[str, Any] = {
    "intervention": "zero",
    "draws": 1,
    "answers": mh.safety.AnswerSettings(_judge, "bare", max_new_tokens=4),
}
_TESTED: dict[str, Any] = {**_ANSWERED, "texts": [" a big dog"]}
_TESTED["answers"] = replace(_ANSWERED["answers"], opening=" I")


def _fitted(model: mh.Model) -> mh.gating.Gates:
    return mh.fit_gates(model, _TASK, seeds=2, updates=2)


def retrieved(model: mh.Model, **some: Any) -> mh.HeadScores:
    run = model.cache(CLEAN)
    answers = run.logits[range(len(CLEAN)), run.tokens.lengths - 1].argmax(-1).tolist()
    return mh.behaviour.retrieval_heads(
        model, mh.Prompts(CLEAN, answer=answers, positions={"place": [2] * len(CLEAN)}), **some
    )


@dataclass(frozen=True)
class Analysis:
    """An analysis, and what it promises for Ctrl-C."""

    run: Callable[[mh.Model], Any]
    kept: str | None = None  # what it says of what it keeps, as a regular expression; None if it has nothing to keep
    at: float = 0.9  # the share of the work after which Ctrl-C comes
    of_fewer: bool = False  # what it keeps are numbers of fewer inputs, not some of the whole result's numbers
    read: str = "scores"  # the numbers by which a model is compared with another

    def numbers(self, model: mh.Model) -> Any:
        """What tells a result from another, without what it says about itself."""
        found = self.run(model)
        if isinstance(found, mh.generation.Generated):
            return list(found.texts)
        if isinstance(found, mh.safety.HeadGroup):
            return repr(found)
        if isinstance(found, (torch.Tensor, tuple)):
            return np.concatenate([array.ravel() for array in fields(found).values()])
        return attrgetter(self.read)(found)


def fields(found: Any) -> dict[str, np.ndarray]:
    """Everything measured in a result, by its name."""
    if isinstance(found, torch.Tensor):
        return {"": found.float().cpu().numpy()}
    if isinstance(found, np.ndarray):
        return {"": found} if found.dtype.kind in "fiu" else {}
    if isinstance(found, mh.HeadScores):
        name = "values" if "values" in found.dataset else "score"
        return {name: found.dataset[name].values}
    if isinstance(found, xr.Dataset):
        return {str(name): array.values for name, array in found.items() if array.dtype.kind == "f"}
    if isinstance(found, pd.DataFrame):
        return {name: found[name].to_numpy() for name in found.select_dtypes("float")}
    if isinstance(found, TableResult):
        found = vars(found)
    parts = found.items() if isinstance(found, Mapping) else enumerate(found) if isinstance(found, tuple) else ()
    return {f"{name} {inner}": array for name, part in parts for inner, array in fields(part).items()}


_A = Analysis
_REST = "the rest are NaN"
_SWEEP: tuple[str, float] = (_REST, 0.5)
_OF_THESE = "of these"
ANALYSES: dict[str, Analysis] = {
    "cache": _A(lambda model: (model.cache(CLEAN).z.layer(2), model.cache(CLEAN).logits)),
    "ablate": _A(lambda model: mh.ablate(model, CLEAN, intervention="mean", metric="kl_divergence"), *_SWEEP),
    "patch z": _A(lambda model: mh.activation_patch(model, PAIRS, site="z", metric=mh.logit_diff), *_SWEEP),
    "patch k": _A(lambda model: mh.activation_patch(model, PAIRS, site="k", positions="each"), *_SWEEP),
    "paths": _A(lambda model: mh.path_patch(model, PAIRS, receivers=["L2H1.q"], metric=mh.logit_diff), *_SWEEP),
    "ships": _A(lambda model: mh.ships(model, CLEAN, template="bare"), *_SWEEP),
    "angle": _A(lambda model: mh.safety.generalized_ships(model, CLEAN, r=1, template="bare"), *_SWEEP),
    "profile": _A(lambda model: mh.profile_heads(model, [list(range(3, 60))], window=16), read="values"),
    "written": _A(lambda model: tuple(model.W_O[layer] for layer in range(3))),
    "read": _A(lambda model: (model.W_Q[1], model.W_K[1], model.W_V[1])),
    "scales": _A(lambda model: (model.attention_scale(0), model.final_scale())),
    "generate": _A(lambda model: mh.generate(model, CLEAN, 3), "of 3 answers", of_fewer=True),
}
MORE: dict[str, Analysis] = {
    "patch q": _A(lambda model: mh.activation_patch(model, PAIRS, site="q"), *_SWEEP),
    "patch v": _A(lambda model: mh.activation_patch(model, PAIRS, site="v"), *_SWEEP),
    "patch pattern": _A(lambda model: mh.activation_patch(model, _ONE_PAIR, site="pattern"), *_SWEEP),
    "uniform": _A(lambda model: mh.sweep(model, CLEAN, intervention=mh.patching.UniformAttention()), *_SWEEP),
    "small parts": _A(lambda model: mh.ablate(model, CLEAN, budget=_SMALL), *_SWEEP),
    "sets": _A(
        lambda model: mh.patching.patch_sets(model, PAIRS, [["L0H1"], ["L0H1", "L2H2"]]), *_SWEEP, read="values"
    ),
    "frozen MLPs": _A(lambda model: mh.path_patch(model, PAIRS, mlps="frozen"), *_SWEEP),
    "attribution": _A(lambda model: mh.patching.attribution_patch(model, PAIRS, steps=2)),
    "logits": _A(lambda model: mh.behaviour.logit_attribution(model, PAIRS), _OF_THESE, read="values"),
    "relation": _A(lambda model: mh.relation_scores(model, _WORDS, k=2, min_pairs=1), "layers 0", read="scores.values"),
    "contribution": _A(
        lambda model: mh.safety.refusal_contribution(model, CLEAN[:2], CORRUPTED[:2], heads=_CIRCUIT, template="bare"),
        _REST,
        0.97,
        read="values",
    ),
    "sahara": _A(lambda model: mh.safety.sahara(model, CLEAN, 2, heads=_CIRCUIT, template="bare"), _REST),
    "result": _A(lambda model: model.cache(CLEAN).result["L2H1"]),
    "first MLP": _A(lambda model: model.first_mlp(model.W_E[:4])),
}
"""Analyses of which every device, release and tokenizer gives the same numbers."""
FURTHER: dict[str, Analysis] = {
    "patch k of a head": _A(
        lambda model: mh.activation_patch(model, PAIRS, site="k", positions="each", heads="L1H2"), *_SWEEP
    ),
    "profile of two lengths": _A(
        lambda model: mh.profile_heads(model, [list(range(3, 60))], window=20), _OF_THESE, 0.6, of_fewer=True
    ),
    "matrix of paths": _A(
        lambda model: mh.path_matrix(model, PAIRS, receivers=["final", "L2H1.q", "L1.mlp"], senders=_CIRCUIT),
        *_SWEEP,
    ),
    "faithfulness": _A(lambda model: mh.patching.faithfulness(model, PAIRS, _CIRCUIT)),
    "given": _A(lambda model: mh.activation_patch(model, PAIRS, given=["L0H1"]), *_SWEEP, read="values"),
    "logits by source": _A(lambda model: mh.behaviour.logit_attribution(model, PAIRS, by="source"), _OF_THESE),
    "attention": _A(
        lambda model: mh.behaviour.attention_attribution(model, PAIRS, "L2H1", key=-2),
        _OF_THESE,
        of_fewer=True,
        read="query.values",
    ),
    "programs": _A(
        lambda model: mh.behaviour.test_program(
            model, [list(range(3, 60)), *_ROWS], {"L1H2": "induction", "L0H1": "previous"}, window=20
        ),
        _OF_THESE,
        0.75,
        of_fewer=True,
        read="windows.fit",
    ),
    "retrieval": _A(retrieved, read="values"),
    "examples": _A(lambda model: mh.behaviour.head_examples(model, _ROWS), _OF_THESE, 0.75, of_fewer=True),
    "dynamic": _A(lambda model: mh.labels.dynamic_scores(model, _WORDS, k=60, min_pairs=5), "not reached are NaN"),
    "labels": _A(lambda model: mh.label_heads(mh.relation_scores(model, _CAPITALS, k=2, min_pairs=1)), "layers 0"),
    "patterns": _A(lambda model: head_patterns(model, CLEAN)),
    "first heads": _A(lambda model: faithfulness_curve(model, PAIRS, _RANKED)),
    "safety heads": _A(lambda model: mh.safety_heads(model, CLEAN, 2), _REST, 0.2),
    "safety heads by contribution": _A(
        lambda model: mh.safety_heads(model, CLEAN, 2, harmless=CORRUPTED, heads=_CIRCUIT), "refuses is not known"
    ),
    "two ablations": _A(lambda model: mh.safety.compare_ablations(model, CLEAN, 2, heads=_CIRCUIT), _REST, 0.25),
    "refusal attribution": _A(lambda model: mh.safety.refusal_attribution(model, CLEAN, openings=["I cannot"])),
    "refusal test": _A(
        lambda model: mh.safety.refusal_test(model, _CIRCUIT, CLEAN, CORRUPTED, **_TESTED), "answers are judged"
    ),
    "attack curve": _A(
        lambda model: mh.safety.attack_curve(model, _CIRCUIT, CLEAN, CORRUPTED, **_ANSWERED), "were judged"
    ),
    "gates": _A(_fitted, "updates", of_fewer=True),
    "contrast of gates": _A(
        lambda model: mh.gating.contrast_gates(model, _TASK, mh.Task([" yes", " no"], [" no"] * 2), seeds=1, updates=2),
        "updates",
        of_fewer=True,
    ),
    "roles": _A(lambda model: mh.head_roles(_GATES)),
    "curves of roles": _A(lambda model: mh.gating.role_curve(model, _TASK, _GATES, counts=[0, 2], draws=1), *_SWEEP),
    "effects on a task": _A(
        lambda model: mh.gating.ablation_effects(model, _TASK, intervention="mean", heads=_CIRCUIT), *_SWEEP
    ),
}
"""The others, which are made of those."""
REPEATED = {"patch q", "patch v", "patch pattern", "uniform", "small parts", "frozen MLPs", "result"}
REPEATED |= {"logits by source", "contrast of gates", "labels"}
REPEATED |= {"angle", "safety heads", "patch k", "two ablations", "safety heads by contribution", "matrix of paths"}
"""Those that promise nothing that another does not, as they are made in the same way."""
EVERY = ANALYSES | MORE | FURTHER
TABLES = ("sets", "sahara", "faithfulness", "examples", "programs")
TABLES += (
    "patterns",
    "first heads",
    "refusal test",
    "attack curve",
)
TABLES += ("gates", "roles", "curves of roles", "attention")
"""One of each class of results about sets of heads."""


def public_analyses() -> dict[str, Callable[..., Any]]:
    """The public functions whose first argument is a model."""
    rooms = (mh, mh.behaviour, mh.gating, mh.generation, mh.labels, mh.patching, mh.safety, mh.studies, mh.testing)
    public = {name: getattr(room, name) for room in rooms for name in room.__all__}

    def takes_a_model(each: Any) -> bool:
        first = next(iter(inspect.signature(each).parameters.values()), None)
        return first is not None and re.search(r"\bModel\b", str(first.annotation)) is not None

    return {name: each for name, each in public.items() if inspect.isfunction(each) and takes_a_model(each)}


def assert_near(found: Any, wanted: Any, atol: float, rtol: float | None = None) -> None:
    """Compare what ``numbers`` gave: texts are the same, and numbers are near."""
    if isinstance(wanted, (str, list)):
        assert found == wanted
    else:
        np.testing.assert_allclose(found, wanted, atol=atol, rtol=atol if rtol is None else rtol)


def assert_same_numbers(
    analysis: str, models: tuple[mh.Model, mh.Model], atol: float, rtol: float | None = None
) -> None:
    """An analysis gives the same on two models."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert_near(*(EVERY[analysis].numbers(model) for model in models), atol, rtol)
