"""Attribution: an estimate of activation patching for all heads at once, from one gradient or a few.

The effect of a new z is approximated as linear: (new z - old z) . d metric / d z, with the gradient at the base run.
One forward and one backward pass serve every head. With ``steps``, it is the mean gradient at points between the two
runs (integrated gradients), for effects that saturate. How a new q, k, v or pattern changes the head's own z is
computed exactly; only the effect of z is linear (the "QK fix" of Kramár et al. 2024).

``transformer_lens.tools.analysis.attribution_patch`` gives the same numbers for z, and the tests compare ours with it.
It is not used here for several reasons. It takes only bridges, and only pairs of one length, one by one. It keeps a
Python number for each head and token. It averages over prompts, so that no interval can be computed. And it fails if
every parameter is frozen.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.cached_runs import CachedRuns
from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job, Spec, given, make_ready
from mechheads.engine.memory import token_bytes, tokens_in_flight
from mechheads.engine.mlps import check_mlps
from mechheads.engine.places import Positions, by_place, where_reached
from mechheads.engine.report import About, describe_heads, describe_positions, report
from mechheads.engine.run import alter, passes
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.base import Context, Site, site_of
from mechheads.interventions.basic import Patch
from mechheads.interventions.new_z import apply
from mechheads.limits import Budget, Limits
from mechheads.messages.arguments import check_at_least
from mechheads.messages.progress import Bar
from mechheads.metrics.base import Metric, MetricContext, check_value, name_of, read_positions
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.backends.base import with_gradient
from mechheads.model.backends.partial_block import Stopped, until_stopped
from mechheads.model.backends.temporary_changes import alone
from mechheads.model.core import ModelCore
from mechheads.model.model import Model
from mechheads.nodes import Nodes
from mechheads.patching.mlp_attribution import attribute_mlps
from mechheads.patching.pairs import base_of, check_pairs
from mechheads.prompts.prompts import PromptPairs
from mechheads.prompts.tokens import Tokens
from mechheads.results.mlps import with_mlps
from mechheads.results.scores import HeadScores
from mechheads.runs.head_cache import HeadCache, states_at
from mechheads.runs.layer_store import LayerStore
from mechheads.runs.sites import KEY_SITES

_INSTEAD = "use mh.logit_diff, mh.log_prob or another metric that has one"


@alone
def attribution_patch(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    site: Site = "z",
    metric: Metric | str = logit_diff,
    direction: Literal["denoising", "noising"] = "denoising",
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    steps: int | None = None,
    budget: Budget = None,
    seed: int = 0,
    progress: bool = True,
    nodes: Nodes = "heads",
) -> HeadScores:
    """Estimate ``mh.activation_patch`` for all heads from one forward and one backward pass, or a few.

    The estimate is (new z - old z) . d metric / d z, summed over positions. It is exact if the model is linear after
    z, and good for small changes. It is misleading if later norms or attention saturate, or if effects cancel. With
    ``steps`` the gradient is not that of the base run, but the mean over runs whose embeddings lie between those of the
    base run and those of the other run, which helps where effects saturate (integrated gradients on inputs, as in
    EAP-IG).
    ``mh.activation_patch(..., screen=0.2)`` patches exactly the heads with the largest estimates.

    Args:
        pairs, site, direction: as in ``mh.activation_patch``. How a new q, k, v or pattern changes z is computed
            exactly; with grouped-query attention, for each query head separately.
        metric: a metric with a gradient at the base run. Accuracy has none, and the gradient of a divergence from
            the base run is 0 there.
        heads, positions, seed, progress: as in ``mh.sweep``.
        nodes: ``"all"`` estimates the effects of MLPs too, from the same backward pass; see ``mh.sweep``.
        steps: the number of points between the two runs; ``None`` for the base run alone. The points are the middles of
            equal parts, (k - 1/2) / steps of the way. The cost is that of ``steps`` gradients.
        budget: memory, in bytes or as text such as "2 GB" (default 4 GB); prompts are run in parts that fit.

    Returns:
        The estimate of metric(patched) - metric(unpatched) [layer, head(, pos), prompt], in the metric's unit.

    Raises:
        ValueError: if the pairs do not align, the metric has no gradient, or an argument is not valid.

    Nanda 2023 ("Attribution Patching"); Syed et al. 2023 (arXiv 2310.10348); Kramár et al. 2024 (arXiv 2403.00745);
    Hanna et al. 2024, "Have Faith in Faithfulness" (EAP-IG, arXiv 2403.17806), equation 4.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> mh.patching.attribution_patch(model, pairs, progress=False).heads(1)
    (HeadId(layer=23, head=4),)
    """
    model, asked, cached = given(model, pairs, "pairs")
    check_pairs(asked, "activation patching")
    base = base_of(direction)
    if steps is not None:
        check_at_least(1, steps=steps)
    spec = Spec(
        asked, Patch(site), as_metric(metric), heads, positions, base, seed=seed, limits=Limits.of(budget), nodes=nodes
    )
    check_mlps(model, spec)
    found = estimate(model, spec, runs=cached, progress=progress, steps=steps)
    warn_of_answers(found.job)
    more = {
        "intervention": repr(spec.intervention),
        "base": base,
        "positions": describe_positions(found.job),
        "heads": describe_heads(found.job),
        "nodes": nodes,
        "steps": steps,
    }
    values, extra = by_place(found.job.places, found.values)
    name = f"attribution patching of {site}, {direction}" + (f", {steps} steps" if steps else "")
    result = report(found.job, values, found.evaluator, About(name, "attribution", extra=extra, more=more))
    if found.mlps is None:
        return result
    return HeadScores(with_mlps(result.dataset, by_place(found.job.places, found.mlps)[0]))


@dataclass(frozen=True, eq=False)
class Estimate:
    """The estimate for every head, with the runs it was computed from.

    Attributes:
        values: NaN for heads that were not requested, and for prompts that do not have the place.
        job: the prepared runs.
        evaluator: holds the metric of the base run.
        mlps: the same for MLPs; None unless they were asked for.
    """

    values: Float[np.ndarray, "layer head place prompt"]
    job: Job
    evaluator: Evaluator
    mlps: Float[np.ndarray, "layer place prompt"] | None = None


@torch.inference_mode(False)
def estimate(
    model: Model, spec: Spec, *, runs: CachedRuns | None = None, progress: bool = True, steps: int | None = None
) -> Estimate:
    """The linear estimate of what a sweep of the same spec measures; ``steps`` as in ``attribution_patch``.

    Raises:
        ValueError: if the request is not valid, or the metric or the model has no gradient.
    """
    runs = CachedRuns(model, spec.prompts) if runs is None else runs
    check_gradient(spec.metric, runs.sides(spec.base)[0], model.d_vocab)
    job = make_ready(model, spec, runs=runs, progress=progress)
    evaluator = Evaluator.of(job)
    scale = evaluator.distance() if spec.normalize else 1.0
    of_heads, of_mlps = attribute(job, progress, steps)
    mlps = None if of_mlps is None else where_reached(job.places, of_mlps / scale)
    return Estimate(where_reached(job.places, of_heads / scale), job, evaluator, mlps)


def attribute(
    job: Job, progress: bool = True, steps: int | None = None
) -> tuple[Float[np.ndarray, "layer head place prompt"], Float[np.ndarray, "layer place prompt"] | None]:
    """(new z - old z) . d metric / d z for the job's intervention, NaN for other heads; then that of MLPs."""
    model, base, site = job.model, job.base, site_of(job.intervention)
    layers = sorted({head.layer for head in job.heads})
    path = Path.between(base, job.source, steps) if steps and job.source is not None else None
    watch = Watch(tuple(layers), job.spec.nodes == "all")
    gradient, of_mlps = gradients(base, job.spec.metric, watch, _rows_at_once(job), progress, path)
    values = np.full((model.n_layers, model.n_heads, len(job.places), len(job.tokens)), np.nan)
    of_keys = site in KEY_SITES  # a new key or value at one place changes z at every later token
    for places in passes(job):
        altered = alter(job, places)
        for layer in layers:
            heads = [head.head for head in job.heads if head.layer == layer]
            old = base.z.layer(layer)[:, heads]
            new = _new_z(job, layer, heads) if altered is None else altered[layer][:, heads]
            along = ((new - old).double() * gradient[layer][:, heads].double()).sum(-1)
            along = along.masked_fill(~job.tokens.mask[:, None], 0)
            for place in places:
                at = job.places[place].at
                part = along if of_keys or at is None else along * at[:, None]
                values[layer, heads, place] = part.sum(-1).T.cpu().numpy()
    return values, None if of_mlps is None else attribute_mlps(job, of_mlps)


def _new_z(job: Job, layer: int, heads: Sequence[int]) -> Float[Tensor, "prompt head pos d_head"]:
    """The new z of some heads of a layer, for an intervention on z."""
    old = job.base.z.layer(layer)
    news = [
        apply(job.intervention, old[:, head], Context(HeadId(layer, head), job.base, job.source, job.tokens.mask))
        for head in heads
    ]
    return torch.stack(news, dim=1)


@dataclass(frozen=True)
class Path:
    """Points between the embeddings of two runs.

    Attributes:
        start, end: the residual stream before the first block, of the two runs.
        steps: the number of points.
    """

    start: Float[Tensor, "prompt pos d_model"]
    end: Float[Tensor, "prompt pos d_model"]
    steps: int

    @classmethod
    def between(cls, base: HeadCache, source: HeadCache, steps: int) -> Path:
        """From a run to another over prompts of the same lengths."""
        return cls(_embeddings(base), _embeddings(source), steps)

    def points(self, rows: slice) -> Iterator[Float[Tensor, "prompt pos d_model"]]:
        """The residual stream of some prompts at each point, in the middle of equal parts of the way."""
        for k in range(self.steps):
            yield torch.lerp(self.start[rows], self.end[rows], (k + 0.5) / self.steps)


def _embeddings(run: HeadCache) -> Float[Tensor, "prompt pos d_model"]:
    """The residual stream before the first block."""
    model, kept = run.need_model(), list[Tensor]()

    def keep(value: Tensor, hook: Any) -> None:
        kept.append(value.detach().clone())
        raise Stopped

    until_stopped(0, partial(model.backend.run, run.tokens.ids, [(model.hook_name("resid_pre", 0), keep)]))
    return kept[0]


@dataclass(frozen=True)
class Watch:
    """What a metric is differentiated with respect to.

    Attributes:
        layers: the layers whose z is watched, in ascending order.
        mlps: whether the output of every layer's MLP is watched too.
    """

    layers: tuple[int, ...]
    mlps: bool = False


def gradients(
    base: HeadCache, metric: Metric, watch: Watch, rows: int, progress: bool = True, path: Path | None = None
) -> tuple[LayerStore, LayerStore | None]:
    """d metric / d z [prompt, head, pos, d_head] and d metric / d MLP output [prompt, pos, d_model], by layer.

    A prompt's metric depends only on that prompt's activations, so the gradient of the sum over prompts gives every
    prompt's gradient.

    Args:
        rows: how many prompts to run at once.
        path: from the run to another; then the mean gradient along it.

    Raises:
        ValueError: if the gradient is 0 everywhere, or not finite.
    """
    model, tokens = base.need_model(), base.tokens
    at, mask = read_positions(metric, tokens)
    on_disk, flat = base.stores["z"].on_disk, True
    store = LayerStore(len(watch.layers), len(tokens), on_disk)
    of_mlps = LayerStore(model.n_layers, len(tokens), on_disk) if watch.mlps else None
    starts = range(0, len(tokens), rows)
    for start in Bar(starts, desc="gradients", disable=not progress or len(starts) == 1, leave=False):
        part = slice(start, start + rows)
        watched = Watched(model, tokens.rows(part), at[part], mask[part], metric, watch)
        each = watched.along(None if path is None else path.points(part))
        for gradient in each:
            if not gradient.isfinite().all():
                raise ValueError(f"metric {name_of(metric)} has a gradient that is not finite at the unchanged run")
            flat = flat and not gradient.any()
        for layer, gradient in zip(watch.layers, each, strict=False):
            store.add(layer, gradient.transpose(1, 2))
        if of_mlps is not None:
            for layer, gradient in enumerate(each[len(watch.layers) :]):
                of_mlps.add(layer, gradient)
    if flat:
        raise ValueError(f"metric {name_of(metric)} has a gradient of 0 at the unchanged run; {_INSTEAD}")
    return store, of_mlps


@dataclass(frozen=True, eq=False)
class Watched:
    """A batch of prompts whose metric is differentiated with respect to z and MLP outputs.

    No other gradient is computed: the weights keep their ``requires_grad`` and ``grad``.
    """

    model: ModelCore
    tokens: Tokens
    at: Int[Tensor, "prompt position"]
    mask: Bool[Tensor, "prompt position"]
    metric: Metric
    watch: Watch

    def along(self, points: Iterable[Tensor] | None) -> Sequence[Float[Tensor, "prompt pos ..."]]:
        """The gradient of each watched activation, z before MLPs: of the run, or its mean over these embeddings."""
        if points is None:
            return self._gradients(None, None)
        with torch.no_grad():
            before = self.model.unembed(states_at(self.model.backend.run(self.tokens.ids), self.at))
        each = [self._gradients(point, before) for point in points]
        return [torch.stack(some).mean(0) for some in zip(*each, strict=True)]

    def _gradients(self, embeddings: Tensor | None, before: Tensor | None) -> tuple[Tensor, ...]:
        """The gradient with these embeddings; ``before`` are the logits of the run itself."""
        seen: dict[tuple[str, int], Tensor] = {}

        def watch(value: Tensor, hook: Any, key: tuple[str, int]) -> Tensor:
            seen[key] = value if seen and value.requires_grad else value.detach().requires_grad_()
            return seen[key]

        keys = [("z", layer) for layer in self.watch.layers]
        keys += [("mlp_out", layer) for layer in range(self.model.n_layers)] if self.watch.mlps else []
        hooks: list[Any] = [(self.model.hook_name(*key), partial(watch, key=key)) for key in keys]
        if embeddings is not None:
            hooks.insert(0, (self.model.hook_name("resid_pre", 0), lambda value, hook: embeddings))
        with with_gradient():
            final = self.model.backend.run(self.tokens.ids, hooks, grad=True)
            logits = self.model.unembed(states_at(final, self.at))
            base_logits = logits.detach().clone() if before is None else before
            value = self.metric(logits, MetricContext(base_logits, self.tokens, self.mask))
            total = check_value(self.metric, value, len(self.tokens)).sum()
            return torch.autograd.grad(total, [seen[key] for key in keys])


def _rows_at_once(job: Job) -> int:
    """How many prompts to run at once. Each layer keeps 1.5 times its working memory until the backward pass."""
    model, pos, limit = job.model, job.tokens.ids.shape[1], job.spec.limits.memory
    runs = [(run, tuple(run.stores)) for run in (job.base, job.source) if run is not None]
    watched = ("z", "mlp_out") if job.spec.nodes == "all" else ("z",)
    kept = [HeadCache.estimate(model, run.tokens, sites=sites).total for run, sites in [*runs, (job.base, watched)]]
    room = max(limit // 4, 0 if job.plan.on_disk else limit - sum(kept))
    if model.device.type == "cuda":
        room = min(room, torch.cuda.mem_get_info(model.device)[0] // 2)
    a_token = 1.5 * model.n_layers * token_bytes(model, pos)
    tokens = min(tokens_in_flight(model, room, pos, job.spec.limits), int(room // a_token))
    return max(1, min(tokens // pos, job.spec.limits.logits // (job.at.shape[1] * model.d_vocab)))


def check_gradient(metric: Metric, tokens: Tokens, d_vocab: int) -> None:
    """Check that a metric has a gradient, also at the base run, on two prompts with random logits.

    Raises:
        ValueError: if it has none.
    """
    few = tokens.rows(slice(0, 2))
    at, mask = read_positions(metric, few)
    here, elsewhere = torch.randn(2, *at.shape, d_vocab, generator=torch.Generator().manual_seed(0)).to(at.device)

    def slope(base_logits: Tensor) -> float:
        with torch.enable_grad():
            logits = here.clone().requires_grad_()
            try:
                value = check_value(metric, metric(logits * 1, MetricContext(base_logits.clone(), few, mask)), len(few))
                return float(torch.autograd.grad(value.sum(), logits)[0].norm())
            except RuntimeError as error:
                raise ValueError(f"metric {name_of(metric)} has no gradient ({error}); {_INSTEAD}") from error

    if slope(here) < 1e-3 * slope(elsewhere):
        raise ValueError(
            f"metric {name_of(metric)} is a distance from the base run, so its gradient there is 0 and says nothing "
            f"about the heads; {_INSTEAD}"
        )
