"""The gradient of a metric with respect to z, in batches that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mechheads.engine.job import Job
from mechheads.engine.memory import logit_bytes, rows_together
from mechheads.limits import Limits, show_bytes
from mechheads.messages.notices import warn
from mechheads.metrics import Metric, MetricContext, check_value, name_of, read_positions
from mechheads.model.backend import Hook
from mechheads.model.changes import with_gradient
from mechheads.model.core import ModelCore
from mechheads.model.parts import Stopped, until_stopped
from mechheads.progress import Bar
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HeadCache, cache_sizes, states_at, token_bytes
from mechheads.runs.head_tensor import LayerStore


@dataclass(frozen=True)
class Path:
    """``steps`` points between the embeddings of two runs."""

    start: Float[Tensor, "prompt pos d_model"]
    end: Float[Tensor, "prompt pos d_model"]
    steps: int

    @classmethod
    def between(cls, base: HeadCache, source: HeadCache, steps: int) -> Path:
        """The path from one run to another over prompts of the same lengths."""
        return cls(_embeddings(base), _embeddings(source), steps)

    def points(self, rows: slice) -> Iterator[Float[Tensor, "prompt pos d_model"]]:
        """The residual stream of some prompts at each point, in the middle of equal parts of the way."""
        for k in range(self.steps):
            yield torch.lerp(self.start[rows], self.end[rows], (k + 0.5) / self.steps)


def _embeddings(run: HeadCache) -> Float[Tensor, "prompt pos d_model"]:
    """The residual stream before the first block."""
    model, streams = run.need_model(), list[Tensor]()

    def keep(value: Tensor, hook: Any) -> None:
        streams.append(value.detach().clone())
        raise Stopped

    until_stopped(0, partial(model.backend.run, run.tokens.ids, [(model.hook_name("resid_pre", 0), keep)]))
    return streams[0]


_INSTEAD = "use mh.logit_diff, mh.log_prob or another metric that has one"


@dataclass(frozen=True, eq=False)
class GradientBatch:
    """A batch of prompts whose metric is differentiated with respect to z of some layers, and no weight."""

    model: ModelCore
    tokens: Tokens
    at: Int[Tensor, "prompt position"]
    mask: Bool[Tensor, "prompt position"]
    metric: Metric
    layers: Sequence[int]

    def slopes(
        self,
        embeddings: Float[Tensor, "prompt pos d_model"] | None = None,
        before: Float[Tensor, "prompt position d_vocab"] | None = None,
    ) -> Sequence[Float[Tensor, "prompt pos ..."]]:
        """The gradient of the sum of the metric over prompts with respect to z of each layer.
        From ``embeddings`` in place of the tokens'; ``before``: logits of the base run, if it is another one."""
        seen: dict[int, Tensor] = {}

        def watch(value: Tensor, hook: Any, layer: int) -> Tensor:
            seen[layer] = value if seen and value.requires_grad else value.detach().requires_grad_()
            return seen[layer]

        every: list[Hook] = [(self.model.hook_name("z", layer), partial(watch, layer=layer)) for layer in self.layers]
        if embeddings is not None:
            every.insert(0, (self.model.hook_name("resid_pre", 0), lambda value, hook: embeddings))
        with with_gradient():
            final = self.model.backend.run(self.tokens.ids, every, grad=True)
            logits = self.model.unembed(states_at(final, self.at))
            base_logits = logits.detach().clone() if before is None else before
            value = self.metric(logits, MetricContext(base_logits, self.tokens, self.mask))
            total = check_value(self.metric, value, len(self.tokens)).sum()
        return torch.autograd.grad(total, [seen[layer] for layer in self.layers])

    def along(self, path: Path, rows: slice) -> Sequence[Float[Tensor, "prompt pos ..."]]:
        """The mean gradient over the points of a path; ``rows`` are the prompts of this batch."""
        before = self.logits()
        first, *others = path.points(rows)
        total = list(self.slopes(first, before))
        for point in others:
            for i, slope in enumerate(self.slopes(point, before)):
                total[i] = total[i] + slope
        return [each / path.steps for each in total]

    def logits(self) -> Float[Tensor, "prompt position d_vocab"]:
        """The logits of the run itself, without a gradient."""
        with torch.no_grad():
            return self.model.unembed(states_at(self.model.backend.run(self.tokens.ids), self.at))


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients with respect to z: ``gradients[layer]`` is [prompt, head, pos, d_head]."""

    layers: Sequence[int]
    z: LayerStore

    def __getitem__(self, layer: int) -> Float[Tensor, "prompt head pos d_head"]:
        return self.z[self.layers.index(layer)]


def gradients_of(
    base: HeadCache, metric: Metric, layers: Sequence[int], size: Size, path: Path | None = None
) -> Gradients:
    """d metric / d z for some layers, in ascending order, at a run or on the mean over a path.
    A prompt's metric depends on its own activations only, so the gradient of the sum is each prompt's own."""
    model, tokens = base.need_model(), base.tokens
    at, mask = read_positions(metric, tokens)
    gradients, flat = Gradients(layers, LayerStore(len(layers), len(tokens), size.on_disk)), True
    starts = range(0, len(tokens), size.rows)
    with Bar(total=len(starts), desc="gradients", disable=len(starts) == 1, leave=False) as bar:
        for start in starts:
            part = slice(start, start + size.rows)
            batch = GradientBatch(model, tokens.rows(part), at[part], mask[part], metric, layers)
            for i, gradient in enumerate(batch.slopes() if path is None else batch.along(path, part)):
                if not gradient.isfinite().all():
                    raise ValueError(f"metric {name_of(metric)} has a gradient that is not finite at the unchanged run")
                flat = flat and not gradient.any()
                gradients.z.add(i, gradient.transpose(1, 2))
            bar.update()
    if flat:
        raise ValueError(f"metric {name_of(metric)} has a gradient of 0 at the unchanged run; {_INSTEAD}")
    return gradients


@dataclass(frozen=True)
class Size:
    """How gradients fit into memory; ``bytes``: the memory besides the model, cached runs included.
    ``rows`` prompts run at once."""

    rows: int
    on_disk: bool = False
    bytes: int = 0

    @classmethod
    def of(cls, job: Job, layers: int) -> Size:
        """The size for the gradient of this many layers; warns if even the smallest parts need more than the budget."""
        model, limit = job.model, job.spec.limits.memory
        runs = [run for run in (job.base, job.source) if run is not None]
        cached = sum(sum(cache_sizes(model, run.tokens, tuple(run.stores)).values()) for run in runs)
        z = cache_sizes(model, job.tokens, ("z",))["z"]
        cached += z * layers // model.n_layers
        room = max(limit // 4, 0 if job.plan.on_disk else limit - cached)
        if (free := model.backend.devices.free) is not None:
            room = min(room, free // 2)
        on_disk = job.base.stores["z"].on_disk or cached > limit
        prompts, pos = job.tokens.ids.shape
        size = cls.that_fits(model, (prompts, pos, job.at.shape[1]), room, job.spec.limits)
        size = replace(size, on_disk=on_disk, bytes=size.bytes + (cached // model.n_layers if on_disk else cached))
        if size.bytes > limit:
            warn(
                f"budget is {show_bytes(limit)}, but these gradients need about {show_bytes(size.bytes)} besides the "
                "model, even in the smallest parts. They are computed anyway; give fewer or shorter prompts to use "
                "less memory"
            )
        return size

    @classmethod
    def that_fits(cls, model: ModelCore, shape: tuple[int, int, int], room: int, limits: Limits) -> Size:
        """The graphs of as many prompts as fit; each layer keeps 1.5 times its working memory."""
        _, pos, n_read = shape
        graph = 1.5 * token_bytes(model, pos) * model.n_layers * pos
        a_row = graph + logit_bytes(1, n_read * model.d_vocab, limits)
        rows = rows_together(model, shape, a_row, room, limits)
        return cls(rows, bytes=int(rows * a_row))


def check_gradient(metric: Metric, tokens: Tokens, d_vocab: int) -> None:
    """Check that a metric has a gradient, also at the base run, on two prompts with random logits."""
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
