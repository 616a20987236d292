"""The atlas: labels, patching, safety heads and roles of every head of one model, in one table."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechheads.engine.racing import Race
from mechheads.engine.sweep import plan
from mechheads.gating import Roles, head_roles
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.basic import UniformAttention
from mechheads.labels import HeadLabels, label_heads
from mechheads.labels.relations import Relation, load_relations
from mechheads.labels.static import RelationScorer
from mechheads.labels.usable_pairs import in_vocabulary
from mechheads.model.backends.temporary_changes import alone
from mechheads.patching.activation import activation_patch
from mechheads.prompts.prompts import PromptPairs
from mechheads.prompts.tokens import single_token
from mechheads.results.agreement import compare_roles
from mechheads.results.dataset import shown_ends
from mechheads.results.html import head_names
from mechheads.results.scores import HeadScores
from mechheads.safety.heads.ablations import PAPER_KINDS
from mechheads.safety.heads.ships import SafetyHeads, compare_ablations
from mechheads.safety.requests.requests import load_requests, request_prompts
from mechheads.studies.short_fit import CAPITALS, KEPT, TRIED, choose_starts, fit_briefly
from mechheads.studies.study import QUICK_RELATIONS, Stages, save_parts, stop_if_partial, teller
from mechheads.units import show_seconds

if TYPE_CHECKING:
    import xarray as xr

    from mechheads.model.model import Model

TEMPLATE = "Every school child in the world should know that the capital city of {country} is called"
_COLUMNS = {
    "score": "{}",
    "ci_low": "{}_ci_low",
    "ci_high": "{}_ci_high",
    "range_low": "{}_range_low",
    "range_high": "{}_range_high",
    "generalized_ships": "generalized_{}",
    "generalized_ships_low": "generalized_{}_ci_low",
    "generalized_ships_high": "generalized_{}_ci_high",
    "estimate": "{}_estimate",
    "n_prompts": "{}_n_prompts",
}
"""The variables of a view, and the names of their columns in the table."""
_SAFETY_HEADS = 10
_RACE = 0.5
"""The share of the exhaustive sweep's time that a race for ten heads takes on the package's 20 requests."""


@dataclass
class Atlas(Stages):
    """Labels, patching effects, safety scores and roles of every head of one model, from ``mh.build_atlas``.

    Attributes:
        model: name of the model.
        relations: phi of every head and relation, from weights.
        labels: categories of the heads, from ``relations``.
        patching: activation patching of prompts about capitals: the share of the logit difference that each head's z
            restores, 0 for none and 1 for all of it.
        safety: for each ablation, the ten heads with the largest Ships, found by racing (see ``mh.safety_heads``), with
            their Generalized Ships. The other heads have an ``estimate`` of Ships, from the requests until they were
            dropped.
        roles: which heads facilitate naming capitals, interfere with it or do not matter, by a short fit of gates.
        patterns: attention patterns of the three heads with the largest patching effect, and their tokens.
        seconds: time that each stage took.
        notes: what was left out, and why.
        interrupted: whether Ctrl-C ended the work. Heads that were not reached are NaN.
    """

    model: str
    relations: HeadScores | None = None
    labels: HeadLabels | None = None
    patching: HeadScores | None = None
    safety: dict[str, SafetyHeads] = field(default_factory=dict)
    roles: Roles | None = None
    patterns: tuple[dict[HeadLike, np.ndarray], list[str]] | None = None

    @property
    def results(self) -> dict[str, HeadScores]:
        """Every result, by the name of its file without ``.nc``."""
        parts: dict[str, HeadScores | None] = {
            "relations": self.relations,
            "labels": self.labels,
            "patching": self.patching,
        }
        parts |= {f"safety_{ablation}": scores for ablation, scores in self.safety.items()}
        return {name: part for name, part in (parts | dict(self.roles or {})).items() if part is not None}

    @property
    def views(self) -> dict[str, HeadScores]:
        """One score of every head from each analysis, by the name of its column in the table."""
        views: dict[str, HeadScores] = {}
        if self.labels is not None:
            views["phi"] = _phi(self.labels)
        if self.patching is not None:
            views["patching"] = self.patching
        views |= {f"ships_{ablation}": scores for ablation, scores in self.safety.items()}
        return views | dict(self.roles or {})

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: categories, best relation, and each view's score with its interval.

        Columns: layer, head, categories, best_relation, then ``phi`` (of the best relation), ``patching``,
        ``ships_undifferentiated``, ``ships_scaling``, ``generalized_ships_undifferentiated``,
        ``generalized_ships_scaling``, ``facilitation``, ``interference`` and ``irrelevance``. Each score also has
        ``_ci_low`` and ``_ci_high``, or ``_range_low`` and ``_range_high`` if there are two clusters, such as two
        seeds. Where heads raced, ``ships_..._estimate`` is the mean over the ``ships_..._n_prompts`` requests on which
        a head was measured; the scores of dropped heads are NaN. Analyses that were not run have no columns.
        """
        sizes = next(iter(self.results.values()))
        heads = check_heads(None, sizes.n_layers, sizes.n_heads)
        table = pd.DataFrame({"layer": [h.layer for h in heads], "head": [h.head for h in heads]})
        if self.labels is not None:
            table["categories"] = ["; ".join(self.labels.of(head)) for head in heads]
            table["best_relation"] = _best(self.labels)["best_relation"].values.ravel()
        for name, scores in self.views.items():
            for variable, column in _COLUMNS.items():
                if variable in scores.dataset:
                    table[column.format(name)] = scores.dataset[variable].values.ravel()
        return table.set_index(pd.Index(head_names(table)))

    def agreement(self) -> pd.DataFrame:
        """Spearman's rank correlation of every two views, with intervals over layers.

        The views are the scores of the table, with Ships as estimated, and ``|patching|``, the absolute value: some
        views, such as Ships, have no sign. The three roles come from the same gates, so they are bound to correlate
        with each other.

        Returns:
            One row for every two views, with view, other, spearman, ci_low, ci_high and n, as in
            ``mh.gating.compare_roles``. No rows if there are fewer than two views.
        """
        views = {name: estimated(scores) for name, scores in self.views.items()}
        if self.patching is not None:
            views["|patching|"] = HeadScores.from_scores(
                np.abs(self.patching.scores.values), name="|patching|", unit=self.patching.unit, kind=self.patching.kind
            )
        rows = []
        while len(views) > 1:
            name = next(iter(views))
            rows.append(compare_roles({name: views.pop(name)}, views))
        if not rows:
            return pd.DataFrame(columns=["view", "other", "spearman", "ci_low", "ci_high", "n"])
        return pd.concat(rows, ignore_index=True).drop(columns="label").rename(columns={"role": "view"})

    def save(self, folder: str | Path) -> list[Path]:
        """Write every result (.nc), the table (heads.csv) and ``agreement()`` (agreement.csv) to a folder.

        ``mh.studies.write_page`` writes the figures.

        Returns:
            The paths of the files.
        """
        return save_parts(folder, self.results, {"heads": self.to_dataframe(), "agreement": self.agreement()})

    def summary(self, top: int = 3) -> str:
        """The result in a few lines of text."""
        lines = [f"Model      {self.model}"]
        if self.labels is not None:
            counts = self.labels.counts()
            lines.append("Categories " + ", ".join(f"{name} {n}" for name, n in counts.items() if n))
            for category in self.labels.categories:
                part = self.labels.select(category=category)
                faint = int(part.dataset["below_floor"].sum())
                none, more = ("", " more") if counts[category] else (": no head", "")
                below = f" ({faint}{more} below the floor of {self.labels.provenance['floor']})" if faint else ""
                lines += _top_lines(
                    part,
                    top,
                    lambda row, d: f"  {d['best_relation'].values[row.layer, row.head]}",
                    f"{category}, phi{none}{below}",
                )
        if self.patching is not None:
            lines += _top_lines(self.patching, top, None, "Patching capitals, share restored")
        for ablation, scores in self.safety.items():
            lines += _top_lines(
                scores,
                top,
                lambda row, d: f"  {d['generalized_ships'].values[row.layer, row.head]:.2g} degrees",
                f"Safety heads, {ablation}: Ships, nats",
            )
        if self.roles is not None:
            always = self.roles.always()
            for role, scores in self.roles.items():
                share = f"{always[role]:.1%} of heads in every seed"
                lines += _top_lines(scores, top, None, f"{scores.name}, gate ({share})")
        return "\n".join([*lines, *self.closing_lines])


@alone
def build_atlas(
    model: Model,
    *,
    quick: bool = False,
    updates: int = 22,
    after_each: Callable[[Atlas], object] | None = None,
    progress: bool = True,
) -> Atlas:
    """Labels from weights, activation patching and roles of every head of a model, and its ten first safety heads.

    Ctrl-C ends the work early and returns what is done. ``mechheads atlas`` does the same from a shell.

    Args:
        quick: fewer relations, pairs and requests, and no roles: a first look.
        updates: number of updates in each fit of the gates, from which the roles follow.
        after_each: called with the atlas so far after each analysis, for example to save it.
        progress: print the stages and an estimate of the time, and show progress bars, on stderr.

    An analysis is left out if its words are not in the model's vocabulary, or its prompts are too long for the model's
    context. ``notes`` says which and why. The gates are fitted briefly; ``mh.fit_gates`` fits them for longer.
    """
    atlas = Atlas(model.name)
    say = teller(progress)
    show = after_each or (lambda atlas: None)
    relations = in_vocabulary(load_relations(QUICK_RELATIONS), model.tokenizer) if quick else None
    requests = [request.text for request in load_requests(split="test")[:: 5 if quick else 1]]
    say(f"{model!r}")
    with atlas.interruptible():
        with atlas.or_left_out("patching"):
            atlas.patching = _patching(model, atlas, progress, 4 if quick else 8)
        if atlas.patching is not None:
            stop_if_partial(atlas.patching)
            show(atlas)
        scorer = None
        with atlas.or_left_out("labels"), atlas.stage("readings", progress):
            scorer = _relation_scorer(model, relations, atlas)
        seconds, starts = _estimate(model, atlas, scorer, requests, 0 if quick else updates)
        about = [f"{name} {show_seconds(took)}" for name, took in seconds.items()]
        say(f"about {show_seconds(sum(seconds.values()))}: {', '.join(about) or 'nothing'}; Ctrl-C keeps what is done")
        if scorer is not None:
            with atlas.stage("labels", progress):
                atlas.relations = scorer.scores(progress=progress)
                atlas.labels = label_heads(atlas.relations)
            stop_if_partial(atlas.relations)
            show(atlas)
        if "safety heads" in seconds:
            with atlas.stage("safety", progress):
                atlas.safety = _safety(model, requests, progress)
            for ablation, scores in atlas.safety.items():
                stop_if_partial(scores)
                atlas.notes += _how_raced(ablation, scores)
            show(atlas)
        if "roles" in seconds:
            with atlas.or_left_out("roles"), atlas.stage("roles", progress):
                gates = fit_briefly(model, starts, updates, progress=progress)
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


def _patching(model: Model, atlas: Atlas, progress: bool, n: int) -> HeadScores:
    """Patching effects on up to ``n`` pairs about capitals; the atlas also gets the patterns of the strongest heads.

    Raises:
        ValueError: if there are too few pairs, or they are too long for the model.
    """
    pairs = capital_pairs(model, n)
    if pairs is None:
        raise ValueError("fewer than 2 countries have a name and a capital of one token each")
    with atlas.stage("patching", progress):
        effect = activation_patch(model, pairs, normalize=True, progress=progress)
        if not effect.missing:
            atlas.patterns = _patterns(model, pairs, effect)
    return effect


def _estimate(
    model: Model, atlas: Atlas, scorer: RelationScorer | None, requests: list[str], updates: int
) -> tuple[dict[str, float], list[int]]:
    """Estimated seconds of each analysis that can run, and the seeds of the roles; the atlas notes what is left out.

    Args:
        updates: 0 for no roles.
    """
    seconds: dict[str, float] = {}
    starts: list[int] = []
    if scorer is not None:
        seconds["labels"] = scorer.seconds()
    with atlas.or_left_out("safety heads"):
        cost = plan(model, request_prompts(model, requests), intervention=UniformAttention())
        share = 1.0 if _race(model, requests) is None else _RACE
        seconds["safety heads"] = len(PAPER_KINDS) * share * (cost.seconds or 0.0)
    with atlas.or_left_out("roles"):
        if not updates:
            raise ValueError("gates need more updates than a quick look allows")
        starts, seconds["roles"] = choose_starts(model, updates)
    return seconds, starts


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


def _race(model: Model, requests: list[str]) -> Race | None:
    """The race for the first safety heads; None if there are too few heads or requests for one."""
    race = Race(_SAFETY_HEADS)
    return race if model.n_layers * model.n_heads > race.top and len(requests) > race.first else None


def _safety(model: Model, requests: list[str], progress: bool) -> dict[str, SafetyHeads]:
    return compare_ablations(
        model, requests, _SAFETY_HEADS, ablations=PAPER_KINDS, top=_race(model, requests), progress=progress
    )


def _how_raced(ablation: str, scores: SafetyHeads) -> list[str]:
    """A note on what a race has left out, if it has."""
    if "dropped" not in scores.dataset or not scores.dataset["dropped"].any():
        return []
    few = scores.dataset["n_prompts"].values[scores.dataset["dropped"].values]
    return [
        f"safety heads, {ablation}: {scores.dataset['dropped'].size - few.size} heads were measured on all "
        f"{scores.provenance['n_prompts']} requests, the others on {few.min()} to {few.max()}, until they could no "
        f"longer be among the first {_SAFETY_HEADS}; mh.safety_heads measures every head on all"
    ]


def estimated(scores: HeadScores) -> HeadScores:
    """The scores; if heads raced, the means over the prompts on which each was measured."""
    if "estimate" not in scores.dataset:
        return scores
    return HeadScores.from_scores(
        scores.dataset["estimate"].values, name=scores.name, unit=scores.unit, kind=scores.kind
    )


def _best(labels: HeadLabels) -> xr.Dataset:
    """Each head's category with the largest phi."""
    data = labels.dataset
    return data.isel(category=data["score"].fillna(-1).argmax("category"))


def _phi(labels: HeadLabels) -> HeadScores:
    """Phi of each head's best relation."""
    best = _best(labels)
    low, high = best["ci_low"].values, best["ci_high"].values
    about: dict[str, Any] = {"name": "phi of the best relation", "unit": labels.unit, "kind": labels.kind}
    return HeadScores.from_scores(best["score"].values, ci_low=low, ci_high=high, **about)


def _patterns(model: Model, pairs: PromptPairs, patching: HeadScores) -> tuple[dict[HeadLike, np.ndarray], list[str]]:
    """Attention patterns of the three heads with the largest patching effect, on the first clean prompt."""
    run = model.cache(pairs.clean[:1], sites=("pattern",), progress=False)
    heads = patching.heads(3)
    return {h: run.pattern[h][0].float().cpu().numpy() for h in heads}, list(run.tokens.strings[0])


def _top_lines(scores: HeadScores, top: int, more: Callable[[Any, Any], str] | None, title: str) -> list[str]:
    rows: list[Any] = list(scores.top(top).itertuples())
    n_heads = scores.n_layers * scores.n_heads
    reached = n_heads - len(scores.missing)
    lines = [title if reached == n_heads else f"{title} ({reached} of {n_heads} heads reached)"]
    for row in rows:
        text = f"  {HeadId(row.layer, row.head)!s:>7}  {row.score:8.3f}{shown_ends(row._asdict())}"
        lines.append(text + (more(row, scores.dataset) if more else ""))
    return lines
