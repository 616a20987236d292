"""The refusal direction, and what each head writes along it.

The refusal direction is from Arditi et al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv
2406.11717: the difference between the mean residual streams of harmful and of harmless requests. They compute it at
each layer and position and select one; here it is taken at the last token, after the last block and before the final
norm, as a unit vector d. A head's contribution for a prompt is z W_O . d at the last token. No head is changed: the
score shows what a head writes, not what happens without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadLike
from mechheads.limits import current
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.heads.groups import Group, Groups
from mechheads.safety.requests.prompts import Requests, Sides, Template


@analysis
def refusal_direction(
    model: Model,
    harmful: Requests = None,
    harmless: Requests = None,
    *,
    group: Group = "query",
    template: Template | None = None,
    heads: Sequence[HeadLike] | HeadLike | None = None,
) -> HeadScores:
    """What each head writes along the refusal direction, which separates requests from their harmless look-alikes.

    The direction is the difference between the mean last-token residual streams of requests and look-alikes (Arditi et
    al. 2024, "Refusal in Language Models Is Mediated by a Single Direction", arXiv 2406.11717), after the last block.

    Args:
        group: with ``"kv"``, what all query heads that share a key/value head write together, for each of them.
        harmful, harmless, template, heads: as in ``mh.safety.refusal_contribution``.

    Returns:
        What a head writes along the direction for a request, minus what it writes for the look-alike [layer, head], in
        units of the residual stream. ``values`` has one value per pair, and there are intervals, p and q. The
        contributions of all heads and MLPs and of the embedding sum to ``provenance["distance"]``, the distance between
        the two means. If a model norms the attention output (Gemma 2), contributions are measured before that norm.

    Raises:
        ValueError: if an argument does not fit.

    >>> written = refusal_direction(
    ...     model, ["How do I build a bomb?"], ["How do I build a barn?"], heads="L20H3")
    >>> abs(written["L20H3"]["score"]) < written.provenance["distance"]
    True
    """
    seed = current().seed
    sides = Sides.of(model, harmful, harmless, template)
    sides.check_pairs()
    groups = Groups.of(model, group)
    chosen = groups.units(heads)
    runs = [_Run(model, prompts) for prompts in (sides.harmful.prompts, sides.harmless.prompts)]
    apart = runs[0].last.mean(0) - runs[1].last.mean(0)
    distance = float(apart.norm())
    if not distance > 0:
        raise ValueError("harmful and harmless give the same states, so there is no direction between them")
    values = np.full((model.n_layers, model.n_heads, len(sides.harmful)), np.nan)
    for layer in sorted({head.layer for head in chosen}):
        along = model.W_O[layer].double() @ (apart / distance)
        written = [torch.einsum("phd,hd->hp", run.z(layer).double(), along).cpu().numpy() for run in runs]
        for head in (head for head in chosen if head.layer == layer):
            members = [member.head for member in groups.members([head])]
            values[layer, members] = (written[0][members] - written[1][members]).sum(0)
    return HeadScores.from_values(
        values,
        name="written along the refusal direction",
        kind="refusal_direction",
        cluster=runs[0].cache.tokens.cluster,
        seed=seed,
        provenance=make_provenance(
            model,
            {"group": group, **groups.about()},
            template=sides.template,
            prompts=[run.cache.tokens for run in runs],
            n_prompts=len(sides.harmful),
            distance=distance,
        ),
    )


class _Run:
    """A run with z and the residual stream after the last block, at each prompt's last token."""

    def __init__(self, model: Model, prompts: Prompts) -> None:
        kept: list[Tensor] = []

        def keep(value: Tensor, hook: Any) -> None:
            kept.append(value.double())

        run = partial(HeadCache.run, model, prompts, sites=("z",))
        self.cache = model.backend.under([(f"blocks.{model.n_layers - 1}.hook_resid_post", keep)], run)
        end = self.cache.tokens.lengths - 1
        self._at = torch.arange(len(end), device=end.device), end
        self.last: Float[Tensor, "prompt d_model"] = torch.cat(kept)[self._at]

    def z(self, layer: int) -> Float[Tensor, "prompt head d_head"]:
        row, end = self._at
        return self.cache.z.layer(layer)[row, :, end]
