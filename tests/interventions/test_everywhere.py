"""An intervention of one's own, and each name of the table, in every function that takes an intervention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import pytest
from torch import Tensor

import mechheads as mh
from mechheads.interventions.basic import InterventionName
from mechheads.labels import removal
from mechheads.patching import Resample, Scale, UniformAttention
from support.made_gates import made_gates
from support.texts import CLEAN, PAIRS, WORD_PAIRS

PROMPTS = PAIRS.side("clean")
TEXTS = CLEAN
CIRCUIT = ["L0H1", "L1H2", "L2H0"]
OFF = ["L0H1", "L1H2"]
TASK = mh.Task([" The capital of France is", " no", " a big dog"], [" Paris", " yes cat", " gave"])
WORDS = mh.Relation("words", None, WORD_PAIRS, few_shot=[" {source} is {target}"])
SEED = 3

CLASSES: dict[str, Any] = {
    "patch": mh.Patch(),
    "zero": mh.Zero(),
    "mean": mh.Mean(),
    "resample": Resample(SEED),
    "uniform": UniformAttention(),
    "undifferentiated": UniformAttention(1e-4),
    "scaling": Scale(1e-4),
}


@dataclass(frozen=True)
class Negate:
    """The intervention of README."""

    def __call__(self, z: Tensor, context: Any) -> Tensor:
        return -z


def negated(z: Tensor, context: Any) -> Tensor:
    """A function without a store."""
    return -z


@mh.metric(unit="share", share=True)
def probability(logits: Tensor, context: Any) -> Tensor:
    """Shows every change, as accuracy does not."""
    return mh.log_prob(logits, context).exp()


def removed(model: mh.Model, rule: Any) -> np.ndarray:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(removal, "accuracy", probability)
        patched.setattr(removal, "LEAST_ACCURACY", 0)
        found = removal.cumulative_removal(model, WORDS, CIRCUIT, intervention=rule, shots=0, n=4, draws=1)
    return found.values


def curves(model: mh.Model, rule: Any) -> np.ndarray:
    keep, drop = np.random.default_rng(0).random((2, 2, model.n_layers, model.n_heads))
    gates = made_gates(keep, drop)
    return mh.gating.role_curve(model, TASK, gates, counts=[0, 2, 5], draws=1, intervention=rule).values


ON_PAIRS: dict[str, Callable[[mh.Model, Any], np.ndarray]] = {
    "sweep": lambda model, rule: mh.sweep(model, PAIRS, intervention=rule).values.values,
    "ablate": lambda model, rule: mh.ablate(model, PAIRS, intervention=rule).values.values,
    "patch_sets": lambda model, rule: mh.patching.patch_sets(model, PAIRS, [CIRCUIT, OFF], intervention=rule).values,
    "faithfulness": lambda model, rule: (
        mh.patching.faithfulness(model, PAIRS, CIRCUIT, intervention=rule).table["circuit"].to_numpy()
    ),
}
ON_PROMPTS: dict[str, Callable[[mh.Model, Any], np.ndarray]] = {
    "sweep of prompts": lambda model, rule: mh.sweep(model, PROMPTS, intervention=rule).values.values,
    "ablation_effects": lambda model, rule: mh.gating.ablation_effects(model, TASK, intervention=rule).values.values,
    "cumulative_removal": removed,
}
ON_TEXT: dict[str, Callable[[mh.Model, Any], np.ndarray]] = {
    "generate": lambda model, rule: np.array(mh.generate(model, TEXTS, 8, off=OFF, intervention=rule).ids),
    "task_log_prob": lambda model, rule: mh.task_log_prob(model, TASK, OFF, intervention=rule),
    "role_curve": curves,
}
EVERY_PLACE = {**ON_PAIRS, **ON_PROMPTS, **ON_TEXT}
"""Every function that takes an intervention, by name: from a model and an intervention to numbers."""

REFUSED = {
    **{(place, "patch"): "takes values from the source run of a pair" for place in (*ON_PROMPTS, *ON_TEXT)},
    **{(place, "resample"): "must treat every row and every position on its own" for place in ON_TEXT},
}
"""What cannot work, and what is said."""


@pytest.mark.parametrize("place", EVERY_PLACE)
def test_an_intervention_of_ones_own_works_everywhere(place: str, llama: mh.Model) -> None:
    given, expected, zero = (EVERY_PLACE[place](llama, rule) for rule in (Negate(), Scale(-1.0), mh.Zero()))
    np.testing.assert_allclose(given, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(EVERY_PLACE[place](llama, negated), expected, rtol=1e-5, atol=1e-5)
    assert given.shape != zero.shape or np.nanmax(np.abs(given - zero)) > 1e-3


NAMED = [(place, name) for place in EVERY_PLACE for name in CLASSES if place == "sweep" or (place, name) in REFUSED]
NAMED += [(place, "mean") for place in EVERY_PLACE if place != "sweep"]
"""A name is looked up in the same way everywhere."""


@pytest.mark.parametrize(("place", "name"), NAMED)
def test_a_name_is_its_class_or_is_refused_in_one_sentence(place: str, name: str, llama: mh.Model) -> None:
    measure = mh.settings(seed=SEED)(EVERY_PLACE[place])
    if (place, name) in REFUSED:
        for rule in (name, CLASSES[name]):
            with pytest.raises(ValueError, match=REFUSED[place, name]):
                measure(llama, rule)
        return
    np.testing.assert_array_equal(measure(llama, name), measure(llama, CLASSES[name]))


@pytest.mark.parametrize("place", EVERY_PLACE)
def test_what_is_no_intervention_is_refused_in_one_sentence(place: str, llama: mh.Model) -> None:
    with pytest.raises(ValueError, match=r"intervention is 'means'; choose one of 'patch', .*Did you mean \"mean\"\?"):
        EVERY_PLACE[place](llama, "means")
    with pytest.raises(ValueError, match=r"intervention is 3; give an intervention, such as .*, or a name"):
        EVERY_PLACE[place](llama, 3)


def test_the_classes_here_are_all_names_of_the_table() -> None:
    assert tuple(CLASSES) == get_args(InterventionName)
