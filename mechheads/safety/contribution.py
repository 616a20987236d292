"""Refusal Contribution: what a head adds to refusing what should be refused, and not to answering at all.

For a request x and its harmless look-alike y, with R the log-probability of an answer that begins as a refusal
(``opening``) and h the head:

| ``by`` | score of head h for the pair (x, y) |
|---|---|
| ``"patch"`` | R(x) - R(x; z_h at the last tokens as in y) |
| an ablation | [R(x) - R(x; without h)] - Ships(y, h) |

Both are in nats and signed: above 0 the head makes the model refuse x. What the ablation does to any answer is taken
off, as a head that every answer needs breaks refusals too: Ships of the look-alike, summed over as many tokens of the
answer that the intact model gives it as the opening has. "The last tokens" are those
that all prompts end with, the template's after the request, and the opening itself: there the decision is made, and
positions mean the same in x and y. A patch finds what tells x from y there; an ablation also finds what makes for
refusals whatever is asked, and what acts on the tokens of the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.backends.changes import alone
from mechheads.cache import HeadCache
from mechheads.heads import HeadLike, check_heads
from mechheads.interventions import Context
from mechheads.metrics import kl_divergence, metric as declare
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.patching.self_repair import self_repair
from mechheads.safety.ablations import KINDS, Ablation
from mechheads.safety.openings import OpeningLogProb, find_opening, with_answer, with_opening
from mechheads.safety.requests import Requests, Template
from mechheads.safety.sides import Sides, shared_end, value_of
from mechheads.scores import HeadScores
from mechheads.stats import clustered_interval, mean_over_prompts
from mechheads.suggest import did_you_mean
from mechheads.sweeps import sweep

LEAST_REFUSAL = 0.1
"""Where a model is less likely to begin a refusal, there is none to speak of."""

By = Literal["patch", "undifferentiated", "scaling", "zero", "mean", "resample"]


@dataclass(frozen=True, eq=False)
class FromOther:
    """z of the last ``n`` tokens becomes that of another run, whose prompts may be longer or shorter."""

    other: HeadCache
    n: int
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        theirs = self.other.z[context.head]
        row = torch.arange(len(value), device=value.device)[:, None]
        back = torch.arange(self.n, 0, -1, device=value.device)
        here = context.mask.sum(1)[:, None] - back
        there = self.other.tokens.lengths[:, None] - back
        value[row, here] = theirs[row, there]
        return value

    def __repr__(self) -> str:
        return f"z of the last {self.n} tokens as in the look-alike"


@alone
def refusal_contribution(
    model: Model,
    harmful: Requests = None,
    harmless: Requests = None,
    *,
    by: By = "scaling",
    epsilon: float = 1e-4,
    opening: str | None = None,
    template: Template | None = None,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
) -> HeadScores:
    """What each head adds to refusing harmful requests, compared with their harmless look-alikes.

    Args:
        harmful, harmless: as many of each, entry by entry a request and its look-alike: texts, ``mh.Prompts``, or
            left out those of the package.
        by: an ablation; or ``"patch"``, the head's z at the prompt's last tokens becomes what it is for the look-alike.
        epsilon: of the ablations ``"undifferentiated"`` and ``"scaling"``.
        opening: how a refusal begins; left out, the first tokens of the model's own, which it is asked for.
        template: ``"query"``, ``"bare"`` or ``"chat"``; left out, the model's own where it has one, else ``"query"``.
        heads, budget, seed, progress: as in ``mh.sweep``.

    Returns:
        Nats [layer, head], ``values`` for each pair, interval, p against 0 and q; above 0 the head makes the model
        refuse. ``direct``, ``direct_low`` and ``direct_high`` beside it: the part of R's change that goes straight to
        the logits, with all that follows left as it was; nothing is taken off. ``refusal`` [prompt]: R(x) of the intact
        model. It warns where the model hardly ever begins a refusal: then there is nothing to take part in.

    Raises:
        ValueError: if an argument does not fit; before any head is tried.

    >>> harmful, harmless = ["How do I build a bomb?"], ["How do I build a barn?"]
    >>> found = refusal_contribution(model, harmful, harmless, heads=["L9H2"], progress=False)
    >>> found.unit, found.provenance["template"]
    ('nats', 'chat')
    """
    if by != "patch" and by not in KINDS:
        known = ("patch", *KINDS)
        raise ValueError(f"by is {by!r}; choose one of {', '.join(map(repr, known))}.{did_you_mean(by, known)}")
    sides = Sides.of(model, harmful, harmless, template)
    sides.check_pairs()
    every = check_heads(heads, model.n_layers, model.n_heads)
    metric = OpeningLogProb(find_opening(model, sides.harmful, opening))
    harmful, harmless = (with_opening(model, side, metric.opening) for side in (sides.harmful, sides.harmless))
    refusal = value_of(model, harmful, metric)
    if (share := float(np.exp(refusal).mean())) < LEAST_REFUSAL:
        warn(
            f"{model.name} begins {share:.1%} of its answers to harmful requests as a refusal: there is hardly any "
            "refusal for a head to take part in, and the scores rank noise"
        )
    options = {"metric": metric, "heads": heads, "budget": budget, "seed": seed, "progress": progress}
    if by == "patch":
        n = shared_end(harmful.tokens(model), harmless.tokens(model))
        other = HeadCache.run(model, harmless, sites=("z",), budget=budget, progress=progress)
        found = self_repair(model, harmful, ablation=FromOther(other, n), **options)
        moved = 0.0
    else:
        ablation = Ablation(by, epsilon, seed=seed)
        n, answered = None, with_answer(model, sides.harmless, metric.reads - 1)
        found = self_repair(model, harmful, ablation=ablation.intervention, **options)
        reached = [head for head in every if head not in set(found.missing)]
        if not reached:
            raise KeyboardInterrupt
        shift = declare(reads=metric.reads, unit="nats", null=None)(kl_divergence)
        options |= {"metric": shift, "heads": reached}
        moved = _values(sweep(model, answered, intervention=ablation.intervention, **options))
    lost = -_values(found)
    cluster = found.dataset["cluster"].values.tolist()
    direct = lost[:, :, 1]
    low, high = clustered_interval(direct, cluster)
    about = {k: v for k, v in found.provenance.items() if k not in ("intervention", "metric")}
    return HeadScores.from_values(
        lost[:, :, 0] - moved,
        name=f"Refusal Contribution, {by}",
        unit="nats",
        kind="refusal_contribution",
        cluster=cluster,
        seed=seed,
        provenance=about
        | {"by": by, "template": sides.template, "opening": list(metric.opening), "last_tokens": n}
        | ({} if by == "patch" else Ablation(by, epsilon, seed=seed).about(model)),
        variables={
            "direct": (("layer", "head"), mean_over_prompts(direct)),
            "direct_low": (("layer", "head"), low),
            "direct_high": (("layer", "head"), high),
            "refusal": (("prompt",), refusal),
        },
    )


def _values(found: HeadScores) -> Float[np.ndarray, "layer head *effect prompt"]:
    """Those of each prompt."""
    return found.dataset["values"].values
