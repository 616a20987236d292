"""Dynamic relation scores: whether a head maps sources to targets in context, as its weights predict.

MAPS (Elhelo & Geva 2025, arXiv 2412.11965, section 4.1) puts every source of a relation into templates and reads
the output of each head at the last position:

    phi_dyn = mean over (s, t) in R of 1[t is among the k largest entries of z_h W_O W_U]

*With context*, z_h is the head's own output. *Without context*, the last row of its pattern is set to 1 at the source
and 0 elsewhere, while everything before the head is unchanged, so z_h is the head's value vector of the source.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.heads import Heads, kv_head, named_heads
from mechheads.labels.ranks import Ranks, usual_k
from mechheads.labels.relations import Relations, usable_pairs
from mechheads.messages.arguments import Positive
from mechheads.messages.notices import until_interrupted, warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.progress import Bar
from mechheads.prompts.prompts import Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.results.dataset import text_array
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import share_interval
from mechheads.runs.head_cache import HeadCache

TEMPLATES = (
    "No {source} means no",
    "The story of {source} contains",
    "This is a document about {source}",
    "When I think about {source} I think about",
)
CONTEXTS = ("with", "without")
_PROMPTS_AT_ONCE = 128


@analysis
def dynamic_scores(
    model: Model,
    relations: Relations | None = None,
    k: Positive | None = None,
    *,
    templates: Sequence[str] = TEMPLATES,
    min_pairs: Positive | None = None,
    heads: Heads | None = None,
) -> HeadScores:
    """The share of each relation's pairs that each head maps from source to target if the source is in a text.

    A source may have several tokens: it is read at its last one. Its position is found in the tokenised template.

    Args:
        model: from ``mh.load`` or ``mh.wrap``.
        relations, k, min_pairs: as in ``relation_scores``.
        templates: texts that contain ``{source}`` once each.
        heads: the heads to score; every head if left out. The others are NaN.

    Returns:
        Scores over (layer, head, relation, template, context), unit "share of pairs", with Wilson's interval.
        context is ``"with"`` (the head's own attention) and ``"without"`` (its attention on the source alone).
        After Ctrl-C, scores that were not computed are NaN.

    >>> own = {"capitals": {"France": "Paris", "Spain": "Madrid", "Japan": "Tokyo", "Cuba": "Havana"}}
    >>> scores = mh.labels.dynamic_scores(model, own, templates=["The story of {source}"])
    >>> scores.select(context="without").heads(1)
    (HeadId(layer=23, head=4),)
    """
    if isinstance(templates, str) or not isinstance(templates, Sequence) or not templates:
        raise ValueError(f"templates is {templates!r}; give a list of texts that contain {{source}}")
    if wrong := [template for template in templates if template.count("{source}") != 1]:
        raise ValueError(f"templates: {wrong[0]!r} must contain {{source}} exactly once")
    chosen, names_of_heads = named_heads(heads, model.n_layers, model.n_heads)
    everything = usable_pairs(relations, model.tokenizer, any_source=True, min_pairs=min_pairs)
    scored = [usable for usable in everything if usable.scored]
    names, counts = [usable.relation.name for usable in scored], np.array([len(usable.pairs) for usable in scored])
    words, rows = np.unique([source for usable in scored for source, _ in usable.pairs], return_inverse=True)
    prompts = []
    for template in templates:
        start, texts = template.index("{source}"), [template.replace("{source}", word) for word in words.tolist()]
        spans = [(start, start + len(word)) for word in words]
        prompts.append(Prompts(texts, positions={"source": spans}).tokens(model))
    limits = [usual_k(k, usable.relation.copying, model.d_vocab) for usable in scored]
    columns = rows, [target for usable in scored for _, target in usable.tokens], np.repeat(limits, counts)
    ranks = Ranks(model, *(torch.as_tensor(column, device=model.device) for column in columns))
    score = _score(model, ranks, prompts, counts, chosen)
    low, high = share_interval(score, counts[:, None, None])
    categories = [usable.relation.category or "" for usable in scored]
    return HeadScores.from_scores(
        score,
        interval=(low, high),
        name="dynamic relation scores",
        kind="dynamic_relations",
        extra={"relation": names, "template": list(templates), "context": list(CONTEXTS)},
        provenance=make_provenance(
            model,
            k=dict(zip(names, limits, strict=True)),
            ledger={usable.relation.name: usable.ledger() for usable in everything},
            heads=names_of_heads,
            interrupted=np.isnan(score[chosen]).any(),
        ),
    ).assign(n_pairs=("relation", counts), relation_category=("relation", text_array(categories)))


def _score(
    model: Model,
    ranks: Ranks,
    prompts: Sequence[Tokens],
    counts: Int[np.ndarray, " relation"],
    chosen: Bool[np.ndarray, "layer head"],
) -> Float[np.ndarray, "layer head relation template context"]:
    """The scores, computed template by template and layer by layer; after Ctrl-C, the rest is NaN."""
    layers, ends = np.flatnonzero(chosen.any(1)).tolist(), np.cumsum(counts)[:-1]
    score = np.full((*chosen.shape, len(counts), len(prompts), len(CONTEXTS)), np.nan)
    bar = Bar(total=len(prompts) * len(layers), desc="dynamic scores", unit="layer")
    with until_interrupted() as interrupts, bar, torch.no_grad():
        for t, tokens in enumerate(prompts):
            states = _states(model, tokens)
            for layer in layers:
                which, W_O = np.flatnonzero(chosen[layer]).tolist(), model.W_O[layer].float()
                for c, of_context in enumerate(states):
                    of_layer = of_context[:, layer].float()
                    values = [of_layer[:, kv_head(head, model.n_heads, of_layer.shape[1])] for head in which]
                    hits = ranks.top(list(zip(values, W_O[which], strict=True)))[0].cpu().numpy()
                    shares = [part.mean(1) for part in np.split(hits, ends, axis=1)]
                    score[layer, which, :, t, c] = np.stack(shares, axis=1)
                bar.update()
    interrupts.stop_unless(np.isfinite(score).any())
    if interrupts.interrupted:
        warn("dynamic_scores was interrupted: templates and layers not reached are NaN")
    return score


def _states(
    model: Model, tokens: Tokens
) -> tuple[Float[Tensor, "prompt layer head d_head"], Float[Tensor, "prompt layer kv d_head"]]:
    """With context, every head's z at the last position; without context, every head's value vector of the source."""
    parts: list[tuple[Tensor, Tensor]] = []
    for begin in range(0, len(tokens), _PROMPTS_AT_ONCE):
        some = tokens.rows(slice(begin, begin + _PROMPTS_AT_ONCE))
        run = HeadCache.run(model, some, sites=("z", "v"))
        row = torch.arange(len(some), device=model.device)
        at = {"z": some.positions["last"], "v": some.positions["source"]}
        layers = [[run.site(site).layer(i)[row, :, where] for i in range(model.n_layers)] for site, where in at.items()]
        parts.append((torch.stack(layers[0], 1), torch.stack(layers[1], 1)))
    z, v = (torch.cat(each) for each in zip(*parts, strict=True))
    return z, v
