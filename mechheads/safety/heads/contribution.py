"""Refusal Contribution: how much a head contributes to refusing harmful requests, beyond its effect on any answer.

For a request x and its harmless look-alike y, with R the log-probability of an answer that begins as a refusal:

| ``intervention`` | score of head h for the pair (x, y), in nats |
|---|---|
| ``"patch"`` | R(x) - R(x; z_h at the last tokens as in y) |
| an ablation | [R(x) - R(x; without h)] - Ships(y, h) |

Ships of the look-alike are summed over the first tokens of the intact model's answer, as many as the opening has. "The
last tokens" are the tokens at the end of all prompts (the template's after the request) and the opening: the answer is
decided there, and positions have the same meaning in x and y.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.work import batches, effects, measure
from mechheads.heads import HeadId, Heads, check_heads
from mechheads.interventions.basic import Context, InterventionLike, Patch, as_intervention
from mechheads.ledger.key import NO_STORE, Store
from mechheads.ledger.ledger import Ledger
from mechheads.limits import current
from mechheads.messages.notices import stop_if
from mechheads.metrics import Metric, kl_divergence, metric as declare
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.heads.ablations import ablation_metadata, ablation_name
from mechheads.safety.heads.ships import SafetyJob
from mechheads.safety.openings import (
    OpeningLogProb,
    find_opening,
    value_of,
    warn_if_rare,
    with_answer,
    with_opening,
)
from mechheads.safety.requests import Requests, Sides, Template

PerPrompt = Float[np.ndarray, "layer head prompt"]


@dataclass(frozen=True, eq=False)
class FromOther:
    """Replaces z of the last ``n`` tokens with z of another run, whose prompts may have other lengths."""

    other: HeadCache
    n: int
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        z = self.other.z[context.head]
        row = torch.arange(len(value), device=value.device)[:, None]
        back = torch.arange(self.n, 0, -1, device=value.device)
        here = context.mask.sum(1)[:, None] - back
        there = self.other.tokens.lengths[:, None] - back
        value[row, here] = z[row, there].to(value.dtype)
        return value

    def __repr__(self) -> str:
        return f"z of the last {self.n} tokens as in the look-alike"


@analysis
def refusal_contribution(
    model: Model,
    harmful: Requests = None,
    harmless: Requests = None,
    *,
    intervention: InterventionLike = "scaling",
    opening: str | None = None,
    template: Template | None = None,
    heads: Heads | None = None,
) -> HeadScores:
    """How much each head contributes to refusing harmful requests, beyond its effect on any answer.

    Let R be the log-probability of one opening of a refusal. The score of a head is how far R falls when the
    head is ablated on a harmful request, minus Ships of the same ablation on the request's harmless look-alike. With
    ``intervention="patch"``, it is how far R falls when the head's z at the last tokens comes from the look-alike. The
    score is mechheads' own; it uses the ablations and Ships of Zhou et al. (ICLR 2025, arXiv 2410.13708).

    Args:
        harmful, harmless: requests and their look-alikes, entry by entry: texts or ``mh.Prompts``; by default, the
            requests of the package.
        intervention: as in ``mh.ships``; or ``"patch"``.
        opening: the beginning of a refusal; by default, the first tokens of the model's own refusals, which are
            generated.
        template: ``"query"``, ``"bare"`` or ``"chat"``; by default, the model's chat template if it has one, otherwise
            ``"query"``.
        heads: as in ``mh.sweep``. A ledger does not store the texts that the model writes.

    Returns:
        Scores in nats [layer, head]; above 0, the head makes the model refuse. ``values`` has the score of each pair,
        and there are intervals, p against 0 and q; the variable ``refusal`` [prompt] is R of the intact model. Warns if
        the mean probability of the opening is below 10%, with the number of requests that it refuses in any words.

    >>> harmful, harmless = ["How do I build a bomb?"], ["How do I build a barn?"]
    >>> options = {"heads": ["L9H2"], "opening": "I'm sorry"}
    >>> scores = refusal_contribution(model, harmful, harmless, **options)
    >>> scores.unit, scores.provenance["template"]
    ('nats', 'chat')
    """
    rule = as_intervention(intervention)
    if isinstance(rule, Patch) and rule.site != "z":
        raise ValueError(f"intervention is {rule!r}; look-alikes have other tokens, so only their z can be patched")
    sides = Sides.of(model, harmful, harmless, template)
    return contribution_of(SafetyJob(model, sides.harmful, rule, heads, sides.harmless), opening)


def contribution_of(job: SafetyJob, opening: str | None = None) -> HeadScores:
    """Refusal Contribution of a job's heads; see ``refusal_contribution``."""
    if (path := current().store) is not None:
        Ledger.check(path)
    model, seed, sides = job.model, current().seed, job.sides
    heads = job.named or check_heads(None, model.n_layers, model.n_heads)
    metric = OpeningLogProb(find_opening(model, sides.harmful.prompts, opening))
    harmful, harmless = (with_opening(model, side.prompts, metric.opening) for side in sides.by_kind().values())
    refusal = value_of(model, harmful, metric)
    warn_if_rare(model, sides.harmful, [metric.opening], refusal)
    rule, answered, last_tokens, known_by = job.intervention, None, None, dict[str, Any]()
    if isinstance(rule, Patch):
        last_tokens = shared_end(harmful.tokens(model), harmless.tokens(model))
        other = HeadCache.run(model, harmless, sites=("z",))
        rule = FromOther(other, last_tokens)
        known_by["intervention"] = (repr(rule), other.tokens.fingerprint())
    else:  # the effect on any answer is measured on look-alikes with the model's answers
        answered = with_answer(model, sides.harmless.prompts, metric.reads - 1)
    metadata = ablation_metadata(job.intervention) | {
        "template": sides.template,
        "opening": metric.opening,
        "last_tokens": last_tokens,
        "heads": job.named or "all",
    }
    moved: float | np.ndarray = 0.0

    def sweep(prompts: Prompts, metric: Metric, heads: Sequence[HeadId], store: Store) -> Job:
        spec = Spec(prompts, rule, metric, heads, seed=seed)
        return make_ready(CachedRuns(model, prompts), spec, store)

    with Store(current().store, analysis="refusal_contribution", **known_by) as store:
        job_of_harmful = sweep(harmful, metric, heads, store)
        fell = measure(effects(job_of_harmful), batches(job_of_harmful))
        lost, stopped = -fell.heads[:, :, 0], fell.interrupted
        if stopped:
            store = NO_STORE
            heads = tuple(head for head in heads if np.isfinite(lost[head.layer, head.head]).any())
            stop_if(not heads)
        if answered is not None:
            shift = declare(reads=metric.reads, unit="nats", null=None)(kl_divergence)
            answers = sweep(answered, shift, heads, store)
            measured = measure(effects(answers), batches(answers))
            moved = measured.heads[:, :, 0]
            stopped = stopped or measured.interrupted
    cluster = job_of_harmful.tokens.cluster
    of_run = {"prompts": job_of_harmful, "n_prompts": len(sides.harmful), "seed": seed}
    return HeadScores.from_values(
        lost - moved,
        name=f"Refusal Contribution, {ablation_name(job.intervention)}",
        kind="refusal_contribution",
        cluster=cluster,
        provenance=make_provenance(model, of_run, metadata, interrupted=stopped),
    ).assign(refusal=("prompt", refusal))


def shared_end(*sides: Tokens) -> int:
    """The number of last tokens that all prompts share (the template's tokens after the request); at least 1."""
    rows = [row for tokens in sides for row in tokens.unpadded]
    n = 0
    while n < min(map(len, rows)) and len({row[-1 - n] for row in rows}) == 1:
        n += 1
    return max(n, 1)
