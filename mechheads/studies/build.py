"""Builds the atlas of a model: each analysis after the other, as far as it can be done."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from mechheads.behaviour import head_examples, logit_attribution, profile_heads
from mechheads.engine.answer_check import AnswerWarning
from mechheads.engine.sweep import timed_plan
from mechheads.gating import FitSettings, fit_gates, head_roles
from mechheads.gating.fit.fitted import Gates
from mechheads.gating.tasks.shipped import relation_task
from mechheads.heads import HeadId
from mechheads.interventions.basic import UniformAttention
from mechheads.labels import label_heads
from mechheads.labels.relations import Relation, load_relations
from mechheads.labels.static import RelationScorer
from mechheads.labels.usable_pairs import in_vocabulary
from mechheads.limits import settings, show_seconds
from mechheads.messages.interrupted import stop_if
from mechheads.model.analysis import analysis
from mechheads.patching.activation import activation_patch
from mechheads.patching.circuit_curve import faithfulness_curve
from mechheads.patching.path import path_matrix
from mechheads.patching.self_repair import self_repair
from mechheads.prompts.encoding import single_token
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.scores import HeadScores
from mechheads.safety.heads.ablations import PAPER_KINDS
from mechheads.safety.heads.safety_heads import SafetyHeads, compare_ablations
from mechheads.safety.requests.prompts import request_prompts
from mechheads.safety.requests.requests import load_requests
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import head_patterns
from mechheads.studies.head_space import head_space
from mechheads.studies.head_weights import head_weights, weights_seconds
from mechheads.studies.study import QUICK_RELATIONS, stop_if_partial, study_of, teller

if TYPE_CHECKING:
    from mechheads.model.model import Model

TEMPLATE = "Every school child in the world should know that the capital city of {country} is called"
_SAFETY_HEADS = 10
_TEXT = 6000
"""How many tokens of text are read for the profile, and again for the examples."""
_QUICK_TEXT = 2000
_ON_TEXT = 2.7
"""The time of both, in plain forward passes of the text."""
_REPAIRED = 12
"""Heads whose total and direct effects are measured."""
_SENDERS, _RECEIVERS = 8, 3
"""Heads with the largest effect between which paths are patched."""
_PAIRS_OF_PATHS = 4
_CAUSES = 0.5
"""The time of direct parts, repair and paths, in times of the patching of every head."""
CAPITALS = "country_to_capital"
TRIED, KEPT = 6, 3
_FITTED_ON = 8
_TRIAL = 2, 1, 1
SHORT_FIT: dict[str, Any] = {
    "batch": _FITTED_ON,
    "fit": FitSettings(lr=(0.4, 0.05), lr_regularised=(0.4, 0.2), tolerance=None),
}
"""All prompts are in each update, and steps are large. Gates are drawn at random, and some draws shut so much of a
model that a short fit does not recover: so six draws are tried for two updates, and the best three go on."""


def atlas_study(model: Model, quick: bool = False, updates: int = 22) -> dict[str, str]:
    """What an atlas is of: the model with its weights, and the settings of ``build_atlas``."""
    return study_of(model, study="atlas", quick=quick, updates=updates)


@analysis
def build_atlas(
    model: Model, *, quick: bool = False, updates: int = 22, after_each: Callable[[Atlas], object] | None = None
) -> Atlas:
    """What every head of a model does on text, labels from weights, activation patching, safety heads and roles.

    Ctrl-C ends the work early and returns what is done. ``mechheads atlas`` does the same from a shell.

    Args:
        quick: less text, fewer relations, pairs and requests, and no roles: a first look.
        updates: number of updates in each fit of the gates, from which the roles follow.
        after_each: called with the atlas so far after each analysis, for example to save it.

    An analysis is left out if its words are not in the model's vocabulary, or its prompts are too long for the model's
    context. ``notes`` says which and why. The gates are fitted briefly; ``mh.fit_gates`` fits them for longer.
    """
    atlas = Atlas(model.name, study=atlas_study(model, quick, updates))
    say = teller()
    show = after_each or (lambda atlas: None)
    relations = in_vocabulary(load_relations(QUICK_RELATIONS), model.tokenizer) if quick else None
    atlas.requests = [request.text for request in load_requests(split="test")[:: 5 if quick else 2]]
    atlas.asked |= {"requests": "harmful requests", "task": "naming the capital"}
    say(f"{model!r}")
    with atlas.interruptible():
        pairs = None
        with atlas.or_left_out("patching"):
            pairs = _pairs(model, atlas, 4 if quick else 8)
            with atlas.stage("patching"):
                atlas.patching = activation_patch(model, pairs, normalize=True)
        if atlas.patching is not None:
            stop_if_partial(atlas.patching)
            show(atlas)
        scorer = None
        with atlas.or_left_out("labels"), atlas.stage("readings"):
            scorer = _relation_scorer(model, relations, atlas)
        n_tokens = _QUICK_TEXT if quick else _TEXT
        seconds, starts = _estimate(model, atlas, scorer, n_tokens, 0 if quick else updates)
        about = [f"{name} {show_seconds(took)}" for name, took in seconds.items()]
        say(f"about {show_seconds(sum(seconds.values()))}: {', '.join(about) or 'nothing'}; Ctrl-C keeps what is done")
        with atlas.or_left_out("text"), atlas.stage("text"):
            atlas.profile = profile_heads(model, n_tokens=n_tokens)
            stop_if_partial(atlas.profile)
            atlas.examples = head_examples(model, n_tokens=n_tokens)
        if atlas.examples is not None:
            stop_if(atlas.examples.interrupted)
            show(atlas)
        with atlas.or_left_out("space"), atlas.stage("space"):
            atlas.space = head_space(model)
        if scorer is not None:
            with atlas.stage("labels"):
                atlas.relations = scorer.scores()
                atlas.labels = label_heads(atlas.relations)
            stop_if_partial(atlas.relations)
            show(atlas)
        with atlas.or_left_out("weights"), atlas.stage("weights"):
            atlas.weights = head_weights(model)
        _causes(model, pairs, atlas)
        show(atlas)
        if "safety heads" in seconds:
            with atlas.stage("safety"):
                atlas.safety = _safety(model, atlas.requests)
            for scores in atlas.safety.values():
                stop_if_partial(scores)
            show(atlas)
        if "roles" in seconds:
            with atlas.or_left_out("roles"), atlas.stage("roles"):
                gates = fit_briefly(model, starts, updates)
                atlas.roles = head_roles(gates)
                atlas.notes.append(
                    f"roles are a first look: {KEPT} of {TRIED} starts (those whose loss fell soonest) and "
                    f"{updates} updates of each fit on {gates.provenance['n_items']} prompts for capitals; "
                    "`mechheads roles` fits longer"
                )
    return atlas


def capital_pairs(model: Model, n: int) -> PromptPairs | None:
    """Up to ``n`` pairs of prompts that ask for a capital; the corrupted prompt names the next country.

    Countries and capitals come from the relation ``country_to_capital``, and are one token each in the model's
    vocabulary. None if there are fewer than two.
    """
    capitals_of = Relation.load(CAPITALS).pairs
    known = [(country, f" {capital}") for country, capital in capitals_of if _is_known(model, country, capital)][:n]
    if len(known) < 2:
        return None
    turned = [*known[1:], known[0]]
    countries = [(a[0], b[0]) for a, b in zip(known, turned, strict=True)]
    capitals = [(a[1], b[1]) for a, b in zip(known, turned, strict=True)]
    return PromptPairs.from_templates(TEMPLATE, {"country": countries}, answer=capitals)


def _pairs(model: Model, atlas: Atlas, n: int) -> PromptPairs:
    """Up to ``n`` pairs about capitals, whose texts the atlas gets.

    Raises:
        ValueError: if there are too few.
    """
    pairs = capital_pairs(model, n)
    if pairs is None:
        raise ValueError("fewer than 2 countries have a name and a capital of one token each")
    columns = (pairs.clean, pairs.corrupted, pairs.answer or (), pairs.wrong or ())
    names = ("clean", "corrupted", "answer", "wrong")
    atlas.asked["pairs"] = "the capital"
    atlas.pairs = [dict(zip(names, map(str, row), strict=True)) for row in zip(*columns, strict=True)]
    return pairs


def _causes(model: Model, pairs: PromptPairs | None, atlas: Atlas) -> None:
    """Patterns, direct parts, repair and paths, as far as each can be had."""
    prompts = [pair["clean"] for pair in atlas.pairs]
    with atlas.stage("causes"), warnings.catch_warnings():
        warnings.simplefilter("ignore", AnswerWarning)  # the patching has warned
        with atlas.or_left_out("patterns"):
            atlas.patterns = head_patterns(model, prompts)
        if pairs is None or atlas.patching is None:
            return
        with atlas.or_left_out("direct parts"):
            atlas.direct = _finished(logit_attribution(model, pairs))
        with atlas.or_left_out("circuit"):
            atlas.circuit = faithfulness_curve(model, pairs, atlas.patching)
        with atlas.or_left_out("repair"):
            repaired = atlas.patching.heads(_REPAIRED, by="absolute")
            atlas.repair = _finished(self_repair(model, pairs, heads=repaired))
        with atlas.or_left_out("paths"):
            senders = atlas.patching.heads(_SENDERS, by="absolute")
            few = capital_pairs(model, _PAIRS_OF_PATHS) or pairs
            atlas.paths = _finished(path_matrix(model, few, receivers=_receivers(senders), senders=senders))


def _finished(found: HeadScores) -> HeadScores:
    """A result of some heads, if it was not interrupted."""
    stop_if(bool(found.provenance.get("interrupted")))
    return found


def _receivers(senders: Sequence[HeadId]) -> list[str]:
    """The logits, and q, k and v of the strongest senders that come after one of the others."""
    first = min(head.layer for head in senders)
    later = [head for head in senders if head.layer > first][:_RECEIVERS]
    return ["final", *(f"{head}.{way}" for head in later for way in "qkv")]


def _estimate(
    model: Model, atlas: Atlas, scorer: RelationScorer | None, n_tokens: int, updates: int
) -> tuple[dict[str, float], list[int]]:
    """Estimated seconds of each analysis that can run, and the seeds of the roles; the atlas notes what is left out.

    Args:
        n_tokens: how much text is read.
        updates: 0 for no roles.
    """
    seconds: dict[str, float] = {}
    starts: list[int] = []
    if scorer is not None:
        seconds["labels"] = scorer.seconds()
    seconds["weights"] = weights_seconds(model)
    if "patching" in atlas.seconds:
        seconds["causes"] = _CAUSES * atlas.seconds["patching"]
    with atlas.or_left_out("safety heads"):
        cost = timed_plan(model, request_prompts(model, atlas.requests), intervention=UniformAttention())
        tokens = cost.forwards * cost.prompts * cost.pos
        seconds["text"] = _ON_TEXT * n_tokens * (cost.seconds or 0.0) / tokens
        seconds["safety heads"] = len(PAPER_KINDS) * (cost.seconds or 0.0)
    with atlas.or_left_out("roles"):
        if not updates:
            raise ValueError("gates need more updates than a quick look allows")
        starts, seconds["roles"] = choose_starts(model, updates)
    return seconds, starts


def choose_starts(model: Model, updates: int) -> tuple[list[int], float]:
    """The seeds that lose least after two updates, and about how many seconds a fit of these takes.

    Raises:
        ValueError: if the model cannot do the task, or the loss is not finite.
        KeyboardInterrupt: after Ctrl-C.
    """
    start = time.perf_counter()
    with warnings.catch_warnings(action="ignore"), settings(progress=False):
        losses = _fit_gates(model, list(range(TRIED)), _TRIAL).losses
    last = losses.query(f"fit == 'none' and update == {_TRIAL[0]}").nsmallest(KEPT, "loss")
    per_update = (time.perf_counter() - start) / (TRIED * sum(_TRIAL))
    return sorted(last["seed"].tolist()), per_update * KEPT * 3 * updates


def fit_briefly(model: Model, seeds: list[int], updates: int) -> Gates:
    """Gates for naming capitals.

    Raises:
        ValueError: if the model cannot do the task, or the loss is not finite.
        KeyboardInterrupt: after Ctrl-C.
    """
    return _fit_gates(model, seeds, (updates, updates, updates))


def _fit_gates(model: Model, seeds: list[int], updates: tuple[int, int, int]) -> Gates:
    task = relation_task(model, CAPITALS, shots=0, n=_FITTED_ON)
    gates = fit_gates(model, task, seeds=seeds, updates=updates, **SHORT_FIT)
    stop_if(gates.interrupted)
    return gates


def _is_known(model: Model, *words: str) -> bool:
    """Whether each word is one token of the model's vocabulary."""
    return all(single_token(f" {word}", model.tokenizer) is not None for word in words)


def _relation_scorer(model: Model, relations: list[Relation] | None, atlas: Atlas) -> RelationScorer:
    """What scores relations; the atlas notes the warnings about what is left out."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        scorer = RelationScorer(model, relations)
    atlas.notes.extend(str(warning.message) for warning in caught)
    return scorer


def _safety(model: Model, requests: list[str]) -> dict[str, SafetyHeads]:
    return compare_ablations(model, requests, _SAFETY_HEADS, ablations=PAPER_KINDS)
