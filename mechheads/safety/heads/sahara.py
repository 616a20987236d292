"""Sahara: a greedy search for the group of heads whose joint ablation rotates the states of requests the most.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708). Each step
adds the head whose ablation, together with the group so far, gives the largest Generalized Ships.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Job, make_ready
from mechheads.engine.plan import Plan
from mechheads.engine.work import Run, UnitRuns, Work
from mechheads.heads import HeadId, Heads, check_heads, random_sets
from mechheads.interventions.basic import Intervention, InterventionLike, Mean, MeanOf, UniformAttention
from mechheads.interventions.new_z import EVERYWHERE, change_hooks
from mechheads.ledger.key import Store
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.notices import stop_if, until_interrupted
from mechheads.model.analysis import analysis
from mechheads.model.backend import Hook
from mechheads.model.model import Model
from mechheads.model.proof import Claim, shortest_and_longest
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.heads.ablations import ablation_name, ablation_of, check_joint, joint_changes
from mechheads.safety.heads.safety_heads import ShipsScore
from mechheads.safety.heads.ships import SafetyJob, ShipsKind, check_r, ready, scores_of
from mechheads.safety.requests import Requests, Side, Template

_OF_GROUPS = -3
"""The number of runs of groups of heads in proofs; they are not cached runs."""
_OF_SEARCH = UniformAttention(1e-5)
"""The ablation of the paper's code for this search."""


@dataclass(frozen=True, kw_only=True)
class BesideOthers(ShipsKind):
    """The measures of each head, against the intact run, while ``others`` are ablated in the same way."""

    intervention: Intervention
    others: tuple[HeadId, ...]

    def __call__(self, job: Job) -> Work:
        without, run = self.beside(job, job.heads, job.plan)
        return Work(without, self, run, self.reading(job))

    def beside(self, intact: Job, heads: Sequence[HeadId], plan: Plan | None = None) -> tuple[Job, Run]:
        """The job of some heads while the others are ablated, and the function that runs its heads.
        The model runs once without the others. The ledger of the intact job stores values under the others' names."""
        model, rule = intact.model, self.intervention
        hooks = joint_hooks(intact, rule, self.others)
        runs = CachedRuns(model, intact.spec.prompts)
        ready = partial(make_ready, runs, replace(intact.spec, heads=heads))
        without = replace(model.backend.under(hooks, ready), ledger=intact.ledger)
        without = without.as_part(f", beside {' '.join(map(str, sorted(self.others)))}")
        without = replace(without, plan=plan or without.plan)
        of_intact = MeanOf(intact.base) if isinstance(rule, Mean) else rule
        run = UnitRuns(without.intervening(of_intact))  # which cannot be sent to workers
        return without, lambda units: model.backend.under(hooks, partial(run, units))


def joint_hooks(intact: Job, rule: Intervention, heads: Sequence[HeadId]) -> list[Hook]:
    """Hooks that ablate query heads together; a mean is of the intact run."""
    changes = joint_changes(intact.model, rule, heads, intact.tokens, intact.base)
    return change_hooks(intact.model, [(change, EVERYWHERE) for change in changes])


@dataclass(frozen=True, eq=False)
class HeadGroup(TableResult):
    """A group of heads from the greedy search of ``mh.safety.sahara``.

    Attributes:
        heads: the heads in the order in which they were added.
        trace: the score of the group so far together with each other head, at every step [layer, head, step]; NaN for
            heads that are already in the group.
        table: the score of the group at each size, compared with the same number of heads with the best single scores
            (of the first step) and with random groups from the same layers.
        provenance: the model, prompts and options that repeat the analysis.
    """

    KIND = "head_group"

    heads: tuple[HeadId, ...]
    trace: HeadScores
    table: pd.DataFrame
    provenance: dict[str, Any]

    @property
    def name(self) -> str:
        return self.trace.name

    @property
    def unit(self) -> str:
        return self.trace.unit

    def __repr__(self) -> str:
        if not self.heads:
            return "<HeadGroup: interrupted before a head was found>"
        last = self.table.iloc[-1]
        return (
            f"<HeadGroup {' '.join(map(str, self.heads))}: {last['group']:.3g} {self.trace.unit}, singly "
            f"{last['singly']:.3g}, random {last['random']:.3g}>"
        )


@analysis
def sahara(
    model: Model,
    requests: Requests = None,
    size: int = 3,
    *,
    intervention: InterventionLike = _OF_SEARCH,
    score: ShipsScore = "generalized_ships",
    template: Template = "query",
    draws: int = 5,
    heads: Heads | None = None,
) -> HeadGroup:
    """A group of heads by greedy search: each step is a sweep over all other heads with the group so far ablated.

    Args:
        size: the number of heads in the group; the paper uses 1 to 5.
        intervention: as in ``mh.ships``; it must treat every token by itself, as ``"resample"`` does not. By default
            ``UniformAttention(1e-5)``, as in the paper's code for this search. ``"mean"`` is the mean of the intact run
            at every step.
        score: the score to maximise: ``"generalized_ships"``, the paper's, with its first singular vector; or
            ``"ships"``, the mean of Ships.
        draws: the number of random groups to compare with, of the same size and layers.
        heads: the heads to choose from; every head if left out.
        requests, template: as in ``mh.safety_heads``.

    Workers compute the steps, and a ledger stores the heads of each step; this process compares the group with others.

    Returns:
        The group, the trace of all steps and the comparison. After Ctrl-C, the finished steps.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> group = mh.safety.sahara(model, requests, 2, heads=["L0H0", "L0H1", "L5H2"], draws=1)
    >>> len(group.heads), group.table.columns.tolist()
    (2, ['size', 'head', 'group', 'singly', 'random', 'random_low', 'random_high'])
    """
    check_known("score", score, get_args(ShipsScore))
    angle, rule = score == "generalized_ships", ablation_of(intervention)
    kind = ShipsKind(r=1) if angle else ShipsKind(with_kl=True)
    job = SafetyJob(model, Side.of(model, requests, template), rule, kind=kind)
    check_joint(model, rule, job.requests.prompts.tokens(model))
    candidates = check_heads(heads, model.n_layers, model.n_heads)
    if not 1 <= size <= len(candidates):
        raise ValueError(f"size is {size}; it must be 1 to {len(candidates)}, the number of heads to choose from")
    check_at_least(0, draws=draws)
    others = model.n_layers * model.n_heads - size
    if draws and others < size:
        raise ValueError(
            f"size is {size}, but only {others} other heads are left for random groups; give a smaller one, or draws=0"
        )
    if angle:
        check_r(1, job)
    with kind.stored_in(current().store) as store:
        search = _Search(job, store)
        chosen, steps = search.grow(candidates, size)
        table = search.compare(chosen, steps, draws, current().seed)
    metadata = make_provenance(model, job.metadata(), size=size, interrupted=search.interrupted)
    trace = np.stack(steps, -1) if steps else np.full((model.n_layers, model.n_heads, 1), np.nan)
    return HeadGroup(
        chosen,
        HeadScores.from_scores(
            trace,
            name=f"Sahara, {ablation_name(rule)}",
            unit="degrees" if angle else "nats",
            kind="sahara",
            extra={"step": list(range(1, trace.shape[-1] + 1))},
            provenance=metadata,
        ),
        table,
        make_provenance(metadata, heads=chosen),
    )


class _Search:
    """The intact run, and the score of any group of heads against it."""

    def __init__(self, job: SafetyJob, store: Store) -> None:
        self.model, self.rule, self.kind = job.model, job.intervention, job.kind
        self.interrupted = False
        self.intact = ready(job, store)
        self.reading = self.kind.reading(self.intact)

    def grow(self, candidates: Sequence[HeadId], size: int) -> tuple[tuple[HeadId, ...], list[np.ndarray]]:
        """The heads in the order in which they are added, and the scores of each step [layer, head]."""
        chosen: list[HeadId] = []
        steps: list[np.ndarray] = []
        with until_interrupted() as interrupts:
            for _ in range(size):
                left = [head for head in candidates if head not in chosen]
                scores = self._step(left, chosen)
                if not np.isfinite(scores).any():
                    name = "ships" if self.kind.with_kl else "generalized_ships"
                    raise ValueError(f"score is {name!r}, which is not defined for any head at this step")
                steps.append(scores)
                chosen.append(self._head(np.nanargmax(scores)))
        self.interrupted |= interrupts.interrupted
        interrupts.warn(f"{len(chosen)} of {size} heads", "")
        return tuple(chosen), steps

    def _head(self, flat: Any) -> HeadId:
        """The head at a flat index."""
        return HeadId(*divmod(int(flat), self.model.n_heads))

    def _step(self, left: Sequence[HeadId], chosen: Sequence[HeadId]) -> np.ndarray:
        """The score of every remaining head together with the chosen heads [layer, head]."""
        kind, job = self.kind, replace(self.intact, heads=tuple(left))
        run: Run = UnitRuns(job)
        if chosen:
            kind = BesideOthers(kind.with_kl, kind.r, intervention=self.rule, others=tuple(chosen))
            job, run = kind.beside(self.intact, left)
        kl, angle, finished = scores_of(Work(job, kind, run, self.reading), kind)
        stop_if(finished.interrupted)
        return kl.mean(-1) if kind.with_kl else angle[0]

    def value(self, units: Sequence[HeadId]) -> float:
        """The score of a group."""
        cache = partial(HeadCache.run, self.model, self.intact.tokens, sites=("z",))
        hooks = joint_hooks(self.intact, self.rule, units)
        final = self.model.backend.under(hooks, cache).final_at(self.intact.at)
        self._claim(hooks, final)
        (values,) = self.reading([], [final[None]])
        return float(values.mean() if self.kind.with_kl else values[0])

    def _claim(self, hooks: Sequence[Hook], final: Float[Tensor, "prompt position d_model"]) -> None:
        """Have the first group's states for the shortest and the longest prompt proved, once in an analysis."""
        proofs, tokens = self.model.backend.proofs, self.intact.tokens.on_cpu
        if not proofs.new(_OF_GROUPS, 0, (0,)):
            return
        edits = [(name, partial(hook, hook=None)) for name, hook in hooks]
        for i in shortest_and_longest(tokens.lengths):
            ids = tuple(tokens.ids[i, : int(tokens.lengths[i])].tolist())
            at = tuple(self.intact.at_on_cpu[i].tolist())
            proofs.claim([Claim(f"the run without a group of heads of prompt {i}", ids, at, final[i], edits)])

    def compare(self, chosen: Sequence[HeadId], steps: Sequence[np.ndarray], draws: int, seed: int) -> pd.DataFrame:
        """The group at each size, the heads with the best single scores, and random heads; NaN after Ctrl-C."""
        columns = ["size", "head", "group", "singly", "random", "random_low", "random_high"]
        rows: list[list[Any]] = [
            [n, str(head), float(np.nanmax(step)), *[np.nan] * 4]
            for n, (head, step) in enumerate(zip(chosen, steps, strict=True), 1)
        ]
        done, sizes = 0, (self.model.n_layers, self.model.n_heads)
        with until_interrupted() as interrupts:
            for n, row in enumerate(rows, 1):
                sets = random_sets(chosen[:n], chosen[:n], *sizes, draws=draws, seed=seed)
                drawn = [self.value(heads) for heads in sets.values()]
                random = [np.mean(drawn), min(drawn), max(drawn)] if drawn else [np.nan] * 3
                row[3:] = self.value(self._singly(steps[0], n)), *random
                done = n
        self.interrupted |= interrupts.interrupted
        interrupts.warn(f"{done} of {len(rows)} sizes of the group")
        return pd.DataFrame(rows, columns=columns)

    def _singly(self, scores: np.ndarray, n: int) -> list[HeadId]:
        """The ``n`` heads with the largest scores."""
        each = np.nan_to_num(scores.ravel(), nan=-np.inf)
        return [self._head(i) for i in np.argsort(-each, kind="stable")[:n]]
