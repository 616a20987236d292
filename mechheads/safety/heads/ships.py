"""Ships and Generalized Ships: how much each head's ablation changes a model's answer to a request.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708).

Ships(q, h) of one request are ``ships(...).values``; Generalized Ships(Q, h) of a set of requests are
``generalized_ships(...).scores``; ``ablations.py`` has the ablations. Both measure any change of the answer, not only
safety: a head that every answer needs scores high too. See ``refusal_contribution`` for a score that corrects for this.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_runs import Ablated, CachedRuns, Given
from mechheads.engine.dispatch import Values
from mechheads.engine.job import Job, Spec, Unit, make_ready
from mechheads.engine.report import describe_given
from mechheads.engine.work import Finished, Read, UnitRuns, Work, batches, finish
from mechheads.heads import HeadId, Heads, check_heads
from mechheads.interventions.basic import Intervention, InterventionLike
from mechheads.ledger.key import Store
from mechheads.limits import current
from mechheads.messages.notices import interrupted_after, warn
from mechheads.metrics import kl_divergence
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.tokens import Tokens
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.shown import titled
from mechheads.results.stats import mean_over_prompts
from mechheads.safety.heads.ablations import ablation_metadata, ablation_name, ablation_of, other_ablations
from mechheads.safety.heads.angles import Rotation
from mechheads.safety.requests import Requests, Side, Sides, Template


@dataclass(frozen=True)
class Measured:
    """The results of one pass over the heads; heads that were not selected or not reached are NaN."""

    tokens: Tokens
    kl: Float[np.ndarray, "layer head prompt"]
    angle: Float[np.ndarray, "3 layer head"]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class ShipsKind:
    """The measures of a pass over the heads: the KL of each prompt, and the angle of ``r`` singular vectors."""

    with_kl: bool = False
    r: int | None = None

    def stored_in(self, path: str | PathLike[str] | None) -> Store:
        """The store of these measures of each head."""
        return Store(path, analysis="ships", with_kl=self.with_kl, r=self.r)

    def __call__(self, job: Job) -> Work:
        return Work(job, self, UnitRuns(job), self.reading(job))

    def reading(self, job: Job) -> Read:
        """A function that computes a row of values of each head against the base run: KLs, the angle, its interval."""
        rotation = None
        if self.r is not None:
            rotation = Rotation(last_states(job.base.final_at(job.at)), self.r, job.tokens.cluster)

        def read(units: Sequence[Unit], finals: list[Tensor]) -> Values:
            kl = job.evaluator(finals[0]) if self.with_kl else [()] * len(finals[0])
            turned = [()] * len(kl) if rotation is None else [rotation(last_states(states)) for states in finals[0]]
            return [np.concatenate(both) for both in zip(kl, turned, strict=True)]

        return read


_KL = ShipsKind(with_kl=True)


@dataclass(frozen=True, eq=False)
class SafetyJob:
    """Everything that defines a score of heads: a score is a function from a job to values.
    ``kind``: the measures of a pass after the requests; ``runs``: the intact runs that jobs share."""

    model: Model
    requests: Side
    intervention: Intervention
    heads: Heads | None = None
    look_alikes: Side | None = None
    others: Ablated = ()  # heads of ``given=``, which are ablated in every run
    kind: ShipsKind = _KL
    runs: CachedRuns | None = None

    @property
    def named(self) -> tuple[HeadId, ...] | None:
        """The heads that are measured, in order of layer and head; None for all."""
        return None if self.heads is None else check_heads(self.heads, self.model.n_layers, self.model.n_heads)

    @property
    def sides(self) -> Sides:
        """The requests and their look-alikes, one for each."""
        if self.look_alikes is None:
            raise ValueError("look-alikes are missing; give a harmless one for each request")
        sides = Sides(self.requests, self.look_alikes)
        sides.check_pairs()
        return sides

    @cached_property
    def after_requests(self) -> Measured:
        """The results of one pass over the heads after the requests."""
        return measure(self)

    @cached_property
    def after_look_alikes(self) -> Measured:
        """The KL of each head after the look-alikes, from a second pass."""
        return measure(replace(self, requests=self.sides.harmless, kind=_KL, runs=None))

    def metadata(self) -> dict[str, Any]:
        """The record of the ablation and the requests in a result's provenance."""
        metadata = ablation_metadata(self.intervention) | describe_given(self.others)
        return metadata | self.requests.metadata(self.model)


def measure(job: SafetyJob) -> Measured:
    """The results of ablating each head of a job after its requests."""
    kind = job.kind
    if kind.r is not None:
        check_r(kind.r, job)
    of_angle = {} if kind.r is None else {"r": kind.r, "angle_interval": "95%, jackknife over prompts on the log scale"}
    with kind.stored_in(current().store) as store:
        sweep = ready(job, store)
        kl, angle, finished = scores_of(kind(sweep), kind)
    if finished.interrupted:
        warn(interrupted_after(f"{len(finished.values)} of {len(sweep.heads)} heads", "the rest are NaN"))
    heads = "all" if job.heads is None else [str(head) for head in sweep.heads]
    metadata = make_provenance(job.model, job.metadata(), of_angle, heads=heads, interrupted=finished.interrupted)
    return Measured(sweep.tokens, kl, angle, metadata)


def ready(job: SafetyJob, store: Store) -> Job:
    """The sweep of a job's heads after its requests."""
    runs = CachedRuns(job.model, job.requests.prompts) if job.runs is None else job.runs
    spec = Spec(runs.prompts, job.intervention, kl_divergence, job.named, seed=current().seed, ablated=job.others)
    return make_ready(runs, spec, store)


def scores_of(
    work: Work, kind: ShipsKind
) -> tuple[Float[np.ndarray, "layer head prompt"], Float[np.ndarray, "3 layer head"], Finished]:
    """The KL of each prompt, and the angle with its interval, of the heads of a sweep; NaN for heads not reached."""
    job = work.job
    finished = finish(work, batches(job), what=f"{len(job.heads)} heads")
    shape, n = (job.model.n_layers, job.model.n_heads), len(job.tokens)
    kl, angle = np.full((*shape, n), np.nan), np.full((3, *shape), np.nan)
    for (head, _), values in finished.values.items():
        if kind.with_kl:
            kl[head.layer, head.head] = values[:n]
        if kind.r is not None:
            angle[:, head.layer, head.head] = values[-3:]
    return kl, angle, finished


def last_states(final: Tensor) -> Float[np.ndarray, "prompt d_model"]:
    """The last-token states as float64."""
    return final[:, -1].double().cpu().numpy()


def check_r(r: int, job: SafetyJob) -> None:
    """Raise a ValueError if the angle between the first r left singular vectors is not defined for a job's requests."""
    tokens, d_model = job.requests.prompts.tokens(job.model), job.model.d_model
    if not 1 <= r <= d_model:
        raise ValueError(f"r is {r}; it must be at least 1 and at most d_model, {d_model}")
    different = len(set(map(tuple, tokens.unpadded)))
    if different == 1 and len(tokens) > 1:
        raise ValueError(
            f"all {len(tokens)} prompts are identical, so the angle of Generalized Ships is undefined; "
            "give different prompts"
        )
    if different <= r:
        raise ValueError(
            f"r is {r}, but the number of different prompts is {different}; Generalized Ships needs more prompts "
            "than r: with fewer the singular vectors span the same space in every run"
        )


@analysis
def ships(
    model: Model,
    requests: Requests = None,
    *,
    harmless: Requests = None,
    intervention: InterventionLike = "undifferentiated",
    template: Template = "query",
    heads: Heads | None = None,
    given: Given | None = None,
) -> HeadScores:
    """Safety Head ImPortant Scores: how far the next-token distribution moves without a head.

    Ships(q, h) = KL(p(. | q; theta) || p(. | q; theta without h)) over the whole vocabulary at the last token
    of the prompt. Heads that every answer needs have large Ships too. With ``harmless``, the score is the contrast of
    each request q with its look-alike y, log Ships(q, h) - log Ships(y, h), which is mechheads' own.

    Args:
        harmless: a harmless look-alike of each request, in the same order.
        requests: a list of texts, a file or name of ``mh.safety.load_requests``, ``mh.Prompts`` (used without a
            template), or ``None`` for the requests of the package.
        intervention: how a head is ablated, by name or as an intervention: ``"undifferentiated"`` (it attends equally
            to all tokens so far), ``"scaling"`` (it writes almost nothing), both with the paper's epsilon, 1e-4;
            ``mh.patching.UniformAttention(1e-5)`` or ``mh.patching.Scale(1e-5)`` for another epsilon; or any other of
            ``mh.sweep``, such as ``"zero"`` or one of your own. Only ``"patch"`` needs pairs.
        template: ``"query"`` (the paper's), ``"bare"`` or ``"chat"`` (the model's own), applied to texts.
        heads, given: as in ``mh.sweep``. With grouped-query attention, only the head itself is ablated, not the other
            heads that share its keys and values; ``mh.patching.patch_sets`` ablates several heads at once.

    Returns:
        Scores in nats [layer, head], with ``values`` per prompt and intervals over prompts. p and q are NaN: a KL is
        never below 0, so there is no null to test it against. After Ctrl-C, heads that were not reached are NaN.
        With ``harmless``, the contrast of each pair (no unit), above 0 if the head matters more after the request, with
        intervals over pairs, p and family p against 0; further variables ``harmful`` and ``harmless`` [layer, head],
        Ships of both in nats. A KL below 1e-6 nats is rounding, and counts as 1e-6.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam."]
    >>> kl = mh.ships(model, requests, heads=["L0H0", "L23H4"], progress=False)
    >>> kl.unit, bool((kl.values.sel(layer=0, head=0) > 0).all())
    ('nats', True)
    """
    rule, others = ablation_of(intervention), other_ablations(given, model)
    job = SafetyJob(model, Side.of(model, requests, template), rule, heads, others=others)
    if harmless is None:
        return ships_of(job)
    return contrast_of(replace(job, look_alikes=Side.of(model, harmless, template, "safe", "harmless")))


def ships_of(job: SafetyJob) -> HeadScores:
    """Ships of a job's heads; see ``ships``."""
    measured = job.after_requests
    return HeadScores.from_values(
        measured.kl,
        name=titled(f"Ships, {ablation_name(job.intervention)}", measured.provenance),
        kind="ships",
        cluster=measured.tokens.cluster,
        provenance=measured.provenance,
    )


_ROUNDING = 1e-6
"""A smaller KL is rounding, and its logarithm is noise."""


def contrast_of(job: SafetyJob) -> HeadScores:
    """log Ships of each request minus log Ships of its look-alike; see ``ships``."""
    sides, of_requests = job.sides, job.after_requests
    both = {"harmful": of_requests.kl, "harmless": np.full_like(of_requests.kl, np.nan)}
    stopped = of_requests.provenance["interrupted"]
    if not stopped:
        both["harmless"] = job.after_look_alikes.kl
        stopped = job.after_look_alikes.provenance["interrupted"]
    logs = {name: np.log(np.maximum(kl, _ROUNDING)) for name, kl in both.items()}
    harmless = sides.harmless.prompts.tokens(job.model)
    return HeadScores.from_values(
        logs["harmful"] - logs["harmless"],
        name=titled(f"Ships after requests against look-alikes, {ablation_name(job.intervention)}", job.metadata()),
        kind="ships_contrast",
        cluster=of_requests.tokens.cluster,
        provenance=make_provenance(of_requests.provenance, harmless=harmless, interrupted=stopped),
    ).assign(**{name: (("layer", "head"), mean_over_prompts(kl)) for name, kl in both.items()})


@analysis
def generalized_ships(
    model: Model,
    requests: Requests = None,
    *,
    intervention: InterventionLike = "undifferentiated",
    r: int = 1,
    template: Template = "query",
    heads: Heads | None = None,
    given: Given | None = None,
) -> HeadScores:
    """Generalized Ships: the angle by which the states of a whole set of requests rotate without a head.

    The last-token states after the final norm are stacked to [prompt, d_model], uncentred, for the intact and
    the ablated model; U_r and U'_r are their first r left singular vectors. The score is the sum over r of
    arccos of the singular values of U_r^T U'_r, computed in float64.

    Args:
        r: the number of singular vectors to compare (the paper's code: 1), less than the number of different prompts.
        requests, intervention, template, heads, given: as in ``mh.ships``.

    Returns:
        Degrees [layer, head], from 0 to 90 r, with jackknife intervals over prompts. There are no per-prompt values, p
        or q, because an angle belongs to the whole set. NaN if the angle is not defined.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> angle = mh.safety.generalized_ships(model, requests, heads="L0H0")
    >>> angle.unit, 0 < angle["L0H0"]["score"] < 90
    ('degrees', True)
    """
    rule, others = ablation_of(intervention), other_ablations(given, model)
    kind = ShipsKind(r=r)
    job = SafetyJob(model, Side.of(model, requests, template), rule, heads, others=others, kind=kind)
    return generalized_ships_of(job)


def generalized_ships_of(job: SafetyJob) -> HeadScores:
    """Generalized Ships of a job's heads; see ``generalized_ships``."""
    angle, low, high = job.after_requests.angle
    metadata = job.after_requests.provenance
    return HeadScores.from_scores(
        angle,
        interval=(low, high),
        name=titled(f"Generalized Ships, {ablation_name(job.intervention)}", metadata),
        kind="generalized_ships",
        provenance=metadata,
    )
