"""Patching and ablating sets of heads together, many sets at once.

Each set is one copy of the base run with an edit of z for every head of the set. The copies of many sets
go through the layers as one wave, so that a set costs no more than its first layer asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.altered import altered_z
from mechheads.answers import warn_of_answers
from mechheads.backends.changes import alone
from mechheads.bars import Bar
from mechheads.cache import KEY_SITES
from mechheads.heads import HeadId, HeadLike, check_head
from mechheads.interventions import Intervention, Patch, site_of
from mechheads.jobs import AnyPrompts, Job, prepare
from mechheads.judge import Judge
from mechheads.metrics import Metric, as_metric, logit_diff, name_of
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.plans import tokens_in_flight
from mechheads.prompts import PromptPairs
from mechheads.shown import html_result
from mechheads.spill import LayerStore, budget_bytes
from mechheads.stats import clustered_interval, mean_over_prompts, q_values, sign_flip_p
from mechheads.sweeps import new_z
from mechheads.wave import Edit, Wave
from mechheads.windows import Window

PATCH = Patch()


@dataclass(frozen=True, eq=False)
class SetScores:
    """The effect of each of several sets of heads, with intervals, per-prompt values and provenance.

    Attributes:
        sets: the heads of each set, in order of layer and head.
        values: of each set and prompt; NaN where the metric was not finite.
        table: one row a set: heads, n_heads, score, ci_low, ci_high, p_value, q_value.
        name, unit: of the scores.
        provenance: what it takes to repeat them.
    """

    sets: tuple[tuple[HeadId, ...], ...]
    values: Float[np.ndarray, "set prompt"]
    table: pd.DataFrame
    name: str
    unit: str
    provenance: dict[str, Any]

    def __repr__(self) -> str:
        n = len(self.sets)
        return f"<SetScores {self.name!r} in {self.unit}: {n} set{'s' * (n != 1)}, {self.values.shape[1]} prompts>"

    def _repr_html_(self) -> str:
        return html_result(self, self.table)


@alone
def patch_sets(
    model: Model,
    prompts: AnyPrompts,
    sets: Iterable[Iterable[HeadLike]],
    *,
    intervention: Intervention = PATCH,
    metric: Metric | str = logit_diff,
    direction: Literal["denoising", "noising"] = "denoising",
    positions: str = "all",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SetScores:
    """Patch or ablate the heads of a set all at once, set by set.

    Every head's new z is worked out from the runs as they are, before anything is changed, and all those of
    a set are put in together. For a patch, zero or a mean that is all there is to it; ``mh.Scale`` of a late
    head, for one, is a share of the z it had in the base run, whatever the set does to the heads before it.

    Args:
        prompts: pairs, or with an ablation plain prompts too.
        sets: each a list of heads.
        intervention: what each head's activation becomes, as in ``mh.sweep``; left out, z of the other run.
        metric: what is measured, as in ``mh.sweep``.
        direction: of pairs, ``"denoising"`` changes the corrupted run, ``"noising"`` the clean one.
        positions: ``"all"`` or the name of one position.
        normalize, budget, progress: as in ``mh.sweep``.
        seed: of the random sign patterns of p.

    Returns:
        metric(changed) - metric(base) of each set, in the metric's unit, or as a share of the difference
        between the runs.

    Raises:
        ValueError: for a set that is empty, names a head twice or one that is not there, and for other
            arguments that do not fit; before anything is run.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> effect = mh.patch_sets(model, pairs, [["L23H4"], ["L23H4", "L20H1"]], progress=False)
    >>> effect.table[["heads", "n_heads"]].values.tolist()
    [['L23H4', 1], ['L20H1 L23H4', 2]]
    """
    metric = as_metric(metric)
    check_intervention("intervention", intervention, prompts)
    if direction not in ("denoising", "noising"):
        raise ValueError(f'direction is {direction!r}; choose "denoising" or "noising"')
    if not isinstance(positions, str) or positions == "each":
        raise ValueError(f'positions is {positions!r}; for sets of heads give "all" or the name of one position')
    if isinstance(sets, (str, HeadId)) or not isinstance(sets, Iterable):
        raise ValueError(f'sets is {sets!r}; give a list of sets, each a list of heads: [["L9H6", "L10H0"], ["L9H9"]]')
    parsed = tuple(head_set(heads, model, f"sets[{i}]") for i, heads in enumerate(sets))
    if not parsed or not all(parsed):
        raise ValueError(
            "sets is empty" if not parsed else f"sets[{parsed.index(())}] is empty; name at least one head"
        )
    on_pairs = isinstance(prompts, PromptPairs)
    runs = SetRuns(
        model, prompts, intervention, metric=metric, heads=sorted(set().union(*parsed)), positions=positions,
        base="corrupted" if on_pairs and direction == "denoising" else "clean", budget=budget, progress=progress,
    )  # fmt: skip
    scale = runs.judge.distance() if normalize else 1.0
    with set_bar(len(parsed), "sets of heads", progress) as bar:
        changes = (runs.values([frozenset(heads) for heads in parsed], bar.update) - runs.base_value) / scale
    if undefined := [i for i, change in enumerate(changes) if np.isnan(change).any()]:
        warn(f"metric {name_of(metric)} gave values that are not finite for sets {undefined[:5]}: NaN")
    cluster, null = runs.job.tokens.cluster, getattr(metric, "null", 0.0)
    low, high = clustered_interval(changes, cluster)
    p = np.full(len(parsed), np.nan) if null is None else sign_flip_p(changes, cluster, null=null, seed=seed)
    table = pd.DataFrame({
        "heads": [" ".join(map(str, heads)) for heads in parsed], "n_heads": [len(heads) for heads in parsed],
        "score": mean_over_prompts(changes), "ci_low": low, "ci_high": high, "p_value": p, "q_value": q_values(p),
    })  # fmt: skip
    return SetScores(
        parsed,
        changes,
        table,
        name=f"{said(intervention)} of sets of heads" + (f", {direction}" if on_pairs else ""),
        unit="share restored" if normalize else getattr(metric, "unit", ""),
        provenance=runs.provenance()
        | {"positions": positions, "direction": direction if on_pairs else None, "normalize": normalize, "seed": seed},
    )


class SetRuns:
    """Runs with the z of sets of heads replaced.

    Args:
        heads: those that sets may hold; None for all.
        model, prompts, intervention, metric, positions, base, budget, progress: as in ``mh.sweep``.
    """

    def __init__(
        self,
        model: Model,
        prompts: AnyPrompts,
        intervention: Intervention,
        *,
        metric: Metric,
        heads: Sequence[HeadLike] | None = None,
        positions: str = "all",
        base: str = "clean",
        budget: int | str | None,
        progress: bool,
    ) -> None:
        self.intervention, self.metric = intervention, metric
        self.job = prepare(
            model, prompts, intervention, metric=metric, heads=heads, positions=positions, base=base,
            budget=budget, progress=progress,
        )  # fmt: skip
        self.judge = Judge(metric, self.job.base, self.job.source)
        warn_of_answers(self.job, metric)
        self.base_value: Float[np.ndarray, " prompt"] = self.judge.base_value.cpu().numpy()
        self._z, self._first = replaced_z(self.job)
        self._ready: tuple[int, Wave, dict[HeadId, Edit]] | None = None
        plan = self.job.plan
        tokens = tokens_in_flight(model, budget_bytes(budget) // 4, plan.pos)
        self.at_once = max(1, tokens // (plan.rows * plan.width))

    def values(
        self, replaced: Sequence[Set[HeadId]], done: Callable[[int], object] = lambda n: None
    ) -> Float[np.ndarray, "set prompt"]:
        """The metric when all these heads are replaced together; that of the base run where there are none.

        Args:
            done: told how many sets were finished, as they come.
        """
        values = np.tile(self.base_value, (len(replaced), 1))
        changed = [i for i, heads in enumerate(replaced) if heads]
        done(len(replaced) - len(changed))
        for start in range(0, len(changed), self.at_once):
            some = changed[start : start + self.at_once]
            values[some] += self.judge(self._final([replaced[i] for i in some]))
            done(len(some))
        return values

    def _final(self, sets: Sequence[Set[HeadId]]) -> Float[Tensor, "set prompt position d_model"]:
        parts = []
        for begin in range(0, len(self.job.tokens), self.job.plan.rows):
            wave, edits = self._wave(begin)
            parts.append(wave.run([[edits[head] for head in heads] for heads in sets]))
        return torch.cat(parts, dim=1)

    def _wave(self, begin: int) -> tuple[Wave, dict[HeadId, Edit]]:
        """The wave of some prompts and every head's edit in it; kept until others are asked for."""
        if self._ready is None or self._ready[0] != begin:
            job, rows = self.job, slice(begin, begin + self.job.plan.rows)
            pos = job.tokens.ids.shape[1]
            window = Window.from_start(self._first[rows], job.at[rows], job.model.layout, pos)
            edits = {
                head: Edit(head.layer, "z", head.head, window.take(self._z[head.layer][rows, head.head]))
                for head in job.heads
            }
            self._ready = begin, Wave(job.base, rows, window), edits
        return self._ready[1], self._ready[2]

    def provenance(self) -> dict[str, Any]:
        """What all results of these runs remember."""
        return self.job.model.provenance() | {
            "intervention": said(self.intervention),
            "metric": name_of(self.metric),
            "prompts": self.job.fingerprint(),
            "n_prompts": len(self.job.tokens),
        }


def replaced_z(job: Job) -> tuple[LayerStore, Int[Tensor, " prompt"]]:
    """The new z of the heads of a job, layer by layer [prompt, head, pos, d_head], and where it first differs."""
    layers, site, altered = sorted({head.layer for head in job.heads}), site_of(job.intervention), None
    if site != "z":
        at = job.places[0].at if site in KEY_SITES else None
        altered = altered_z(job.model, job.base, job.source, job.intervention, at, layers, job.plan.rows)
    store, starts = LayerStore(job.model.n_layers, len(job.tokens), job.base.stores["z"].on_disk), []
    for layer in layers:
        new = job.base.z.layer(layer).clone()
        for head in job.heads:
            if head.layer == layer:
                new[:, head.head], start = new_z(job, head, 0, altered)
                starts.append(start)
        store.add(layer, new)
    return store, torch.stack(starts).amin(0)


def check_intervention(name: str, intervention: object, prompts: AnyPrompts) -> None:
    """Make sure that it is an intervention and that the prompts have what it takes.

    Raises:
        ValueError: if it is a name or a class, or a patch without pairs.
    """
    if not callable(intervention) or isinstance(intervention, type):
        raise ValueError(
            f"{name} is {intervention!r}; give an intervention, such as mh.Patch(), mh.Mean() or mh.Zero()"
        )
    if isinstance(intervention, Patch) and not isinstance(prompts, PromptPairs):
        raise ValueError(f"{name} takes z from the other run; give mh.PromptPairs, or another one, such as mh.Mean()")


def head_set(heads: Iterable[HeadLike], model: Model, name: str) -> tuple[HeadId, ...]:
    """Parse a set of heads, which may be empty.

    Raises:
        ValueError: if it is no list, or holds what is no head of the model or the same head twice.
    """
    if isinstance(heads, (str, HeadId)) or not isinstance(heads, Iterable):
        raise ValueError(f'{name} is {heads!r}; give a list of heads, such as ["L9H6", "L10H0"]')
    parsed = sorted(check_head(head, model.n_layers, model.n_heads) for head in heads)
    if twice := [head for head, after in pairwise(parsed) if head == after]:
        raise ValueError(f"{name} holds {twice[0]} twice")
    return tuple(parsed)


def said(intervention: Intervention) -> str:
    """An intervention as results name it: a dataclass with its fields, a function by its name."""
    return name_of(intervention) if hasattr(intervention, "__name__") else repr(intervention)


def set_bar(total: int, what: str, progress: bool) -> Bar:
    """A progress bar that counts sets."""
    form = "{desc} {percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go"
    return Bar(total=total, desc=what, disable=not progress, leave=False, bar_format=form)
