"""Refusal attribution: how far refusals in any words depend on each head, from one gradient for all heads.

The probability of refusing a request x is summed over several openings o, taken from the model's own refusals. The
score is the fall of its logarithm when z_h becomes z'_h: a linear estimate, summed over positions as in attribution
patching.

    R(x) = log  sum over o of  P(o | x),    score(h, x) = mean over ablations of  (z_h - z'_h) . d R(x) / d z_h

The two ablations of Zhou et al. miss different heads: if z of a head is near 0 when the model refuses, scaling it
changes nothing; and attention that is already uniform stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.special import softmax

from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.job import Spec
from mechheads.heads import Heads
from mechheads.interventions.basic import Intervention, InterventionLike
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.attribution import estimates
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import mean_over_prompts
from mechheads.safety.heads.ablations import PAPER_ABLATIONS, PAPER_KINDS, ablation_name, ablation_of, epsilon_of
from mechheads.safety.heads.ships import SafetyJob
from mechheads.safety.openings import EndLogProb, find_openings, warn_if_rare, with_openings
from mechheads.safety.requests import Requests, Side, Template


@analysis
def refusal_attribution(
    model: Model,
    harmful: Requests = None,
    *,
    openings: Sequence[str] | None = None,
    intervention: InterventionLike | Sequence[InterventionLike] = PAPER_KINDS,
    template: Template | None = None,
    heads: Heads | None = None,
) -> HeadScores:
    """How far a model's refusals, in any words, depend on each head: an estimate for all heads from one gradient.

    Let R be the log-probability that an answer begins with any of several openings of refusals. The score of a head is
    a linear estimate of how far R falls when the head is ablated; by default, the mean over Scaling Contribution and
    Undifferentiated Attention. It needs no look-alikes. The score is mechheads' own; the ablations are from Zhou et al.
    (ICLR 2025, arXiv 2410.13708), the estimate is attribution patching (Nanda 2023; Syed et al. 2023, arXiv
    2310.10348).

    Args:
        harmful: requests: texts or ``mh.Prompts``; by default, the requests of the package.
        openings: the beginnings of refusals, cut to the number of tokens of the shortest. By default, up to six: the
            most common first 6 tokens of the model's own refusals, among four answers, drawn at temperature 0.7, to
            each of the first 16 requests.
        intervention: how a head is ablated, as in ``mh.ships``; or several interventions, for the mean over them.
        template, heads: as in ``mh.safety.refusal_contribution``.

    Returns:
        Scores in nats [layer, head]; above 0, refusals depend on the head. ``values`` has the score of each request,
        and there are intervals, p against 0 and q. Further variables: ``scaling`` and ``undifferentiated``, the mean
        estimate of each ablation, or the names of yours; and ``refusal`` [prompt], R. Warns if the mean probability of
        the openings together is below 10%, with the number of requests that the model refuses in any words.

    >>> options = {"openings": ["I'm sorry", "I can't help"]}
    >>> scores = refusal_attribution(model, ["How do I build a bomb?"], **options)
    >>> scores.unit, scores.scores.shape, scores.provenance["template"]
    ('nats', (30, 9), 'chat')
    """
    some: Sequence[Any] = [intervention]
    if isinstance(intervention, Sequence) and not isinstance(intervention, str):
        some = intervention
    rules = {ablation_name(rule): rule for rule in map(ablation_of, some)}
    if not rules or len(rules) < len(some):
        raise ValueError(f'intervention is {intervention!r}; give one, or a list without repeats, such as ["zero"]')
    job = SafetyJob(model, Side.of(model, harmful, template), next(iter(rules.values())), heads)
    return attribution_of(job, rules, openings)


def attribution_of(
    job: SafetyJob,
    rules: Mapping[str, Intervention] = PAPER_ABLATIONS,
    openings: Sequence[str] | None = None,
) -> HeadScores:
    """Refusal attribution of a job's heads, the mean over ``rules``; see ``refusal_attribution``."""
    model, prompts, seed = job.model, job.requests.prompts, current().seed
    begins = find_openings(model, prompts, openings)
    runs = CachedRuns(model, with_openings(model, prompts, begins))
    metric, limits = EndLogProb(len(begins[0])), current().limits

    def by_opening(rows: np.ndarray) -> np.ndarray:
        return rows.reshape(*rows.shape[:-1], len(begins), len(prompts))

    specs = [Spec(runs.prompts, rule, metric, job.named, limits=limits) for rule in rules.values()]
    of_rules = estimates(runs, specs)
    parts, base = dict[str, np.ndarray](), by_opening(of_rules[0].job.evaluator.base_value.cpu().numpy())
    for name, estimate in zip(rules, of_rules, strict=True):
        share = softmax(base, axis=0)  # d R / d log P(o) = P(o) / sum
        parts[name] = (by_opening(-estimate.values[:, :, 0]) * share).sum(-2)
    refusal = np.logaddexp.reduce(base, axis=0)
    warn_if_rare(model, job.requests, begins, refusal)
    epsilons = set(map(epsilon_of, rules.values()))
    metadata = {
        "ablation": list(parts),
        "epsilon": epsilons.pop() if len(epsilons) == 1 else None,
        "heads": job.named or "all",
        "openings": [list(opening) for opening in begins],
        **job.requests.metadata(model),
        "seed": seed,
        "interrupted": False,
    }
    return HeadScores.from_values(
        np.mean(list(parts.values()), axis=0),
        name="refusal attribution",
        kind="refusal_attribution",
        cluster=prompts.tokens(model).cluster,
        provenance=make_provenance(model, metadata),
    ).assign(
        refusal=("prompt", refusal),
        **{name: (("layer", "head"), mean_over_prompts(part)) for name, part in parts.items()},
    )
