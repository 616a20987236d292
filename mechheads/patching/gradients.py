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

Key = tuple[str, int]
"""An activation and its layer."""


@dataclass(frozen=True)
class Path:
    """``steps`` points between the embeddings of two runs."""

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
    model, streams = run.need_model(), list[Tensor]()

    def keep(value: Tensor, hook: Any) -> None:
        streams.append(value.detach().clone())
        raise Stopped

    until_stopped(0, partial(model.backend.run, run.tokens.ids, [(model.hook_name("resid_pre", 0), keep)]))
    return streams[0]


_INSTEAD = "use mh.logit_diff, mh.log_prob or another metric that has one"


@dataclass(frozen=True, eq=False)
class Watched:
    """A batch of prompts whose metric is differentiated with respect to z of some layers, and no weight.
    ``by_block``: whether only the graph of one block at a time fits into memory."""

    model: ModelCore
    tokens: Tokens
    at: Int[Tensor, "prompt position"]
    mask: Bool[Tensor, "prompt position"]
    metric: Metric
    watched: Sequence[int]
    by_block: bool = False

    @property
    def keys(self) -> list[Key]:
        """What is watched."""
        return [("z", layer) for layer in self.watched]

    def slopes(
        self,
        embeddings: Float[Tensor, "prompt pos d_model"] | None = None,
        before: Float[Tensor, "prompt position d_vocab"] | None = None,
    ) -> Sequence[Float[Tensor, "prompt pos ..."]]:
        """The gradient of the metric with respect to what is watched; arguments as in ``run``."""
        if not self.by_block:
            return torch.autograd.grad(*self.run(embeddings, before))
        return self._block_by_block(embeddings, before)

    def _block_by_block(
        self,
        embeddings: Float[Tensor, "prompt pos d_model"] | None,
        before: Float[Tensor, "prompt position d_vocab"] | None,
    ) -> list[Float[Tensor, "prompt pos ..."]]:
        """The same gradients with the graph of one block at a time, for one more forward pass.
        Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174."""
        backend, keys = self.model.backend, self.keys
        with torch.no_grad():
            start, blocks = backend.embed(self.tokens.ids)
            streams = [start if embeddings is None else embeddings]
            for layer in range(self.model.n_layers):
                streams.append(blocks(layer, streams[-1]))
        seen: dict[Key, Tensor] = {}
        gradients: dict[Key, Tensor] = {}

        def watch(value: Tensor, hook: Any, key: Key) -> Tensor:
            seen[key] = value
            return value

        def back() -> None:
            with with_gradient():
                last = streams[-1].detach().requires_grad_()
                (slope,) = torch.autograd.grad(self.measure(backend.finish(last), before), last)
            for layer in reversed(self.layers):
                with with_gradient():
                    stream = streams[layer].detach().requires_grad_()
                    end = blocks(layer, stream)
                here = [key for key in keys if key[1] == layer]
                slope, *each = torch.autograd.grad(end, [stream, *(seen.pop(key) for key in here)], slope)
                gradients.update(zip(here, each, strict=True))

        backend.under([(self.model.hook_name(*key), partial(watch, key=key)) for key in keys], back)
        return [gradients[key] for key in keys]

    def along(self, path: Path, rows: slice) -> Sequence[Float[Tensor, "prompt pos ..."]]:
        """The mean gradient over the points of a path; ``rows`` are the prompts of this batch."""
        before = self.logits()
        first, *others = path.points(rows)
        total = list(self.slopes(first, before))
        for point in others:
            for i, slope in enumerate(self.slopes(point, before)):
                total[i] = total[i] + slope
        return [each / path.steps for each in total]

    @property
    def layers(self) -> range:
        """The layers that gradients pass through."""
        return range(self.watched[0], self.model.n_layers)

    def run(
        self,
        embeddings: Float[Tensor, "prompt pos d_model"] | None = None,
        before: Float[Tensor, "prompt position d_vocab"] | None = None,
    ) -> tuple[Float[Tensor, ""], list[Float[Tensor, "prompt pos ..."]]]:
        """The sum of the metric over prompts, and what is watched, with the graph between them.
        From ``embeddings`` in place of those of the tokens; ``before``: those of the base run, if it is another one."""
        seen: dict[Key, Tensor] = {}

        def watch(value: Tensor, hook: Any, key: Key) -> Tensor:
            seen[key] = value if seen and value.requires_grad else value.detach().requires_grad_()
            return seen[key]

        every: list[Hook] = [(self.model.hook_name(*key), partial(watch, key=key)) for key in self.keys]
        if embeddings is not None:
            every.insert(0, (self.model.hook_name("resid_pre", 0), lambda value, hook: embeddings))
        with with_gradient():
            final = self.model.backend.run(self.tokens.ids, every, grad=True)
            return self.measure(final, before), [seen[key] for key in self.keys]

    def measure(
        self,
        final: Float[Tensor, "prompt pos d_model"],
        before: Float[Tensor, "prompt position d_vocab"] | None = None,
    ) -> Float[Tensor, ""]:
        """The sum of the metric over prompts, from the states after the final norm."""
        logits = self.model.unembed(states_at(final, self.at))
        base_logits = logits.detach().clone() if before is None else before
        value = self.metric(logits, MetricContext(base_logits, self.tokens, self.mask))
        return check_value(self.metric, value, len(self.tokens)).sum()

    def logits(self) -> Float[Tensor, "prompt position d_vocab"]:
        """The logits of the run itself, without a gradient."""
        with torch.no_grad():
            return self.model.unembed(states_at(self.model.backend.run(self.tokens.ids), self.at))


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients with respect to z: ``gradients[layer]`` is that of a layer [prompt, head, pos, d_head]."""

    layers: Sequence[int]
    z: LayerStore

    def __getitem__(self, layer: int) -> Float[Tensor, "prompt head pos d_head"]:
        return self.z[self.layers.index(layer)]


def gradients_of(
    base: HeadCache, metric: Metric, layers: Sequence[int], size: Size, path: Path | None = None
) -> Gradients:
    """d metric / d z for some layers, in ascending order, at a run or on the mean over a path.
    A prompt's metric depends on its own activations only, so the gradient of the sum over prompts is that of each."""
    model, tokens = base.need_model(), base.tokens
    at, mask = read_positions(metric, tokens)
    gradients, flat = Gradients(layers, LayerStore(len(layers), len(tokens), size.on_disk)), True
    starts = range(0, len(tokens), size.rows)
    with Bar(total=len(starts), desc="gradients", disable=len(starts) == 1, leave=False) as bar:
        for start in starts:
            part = slice(start, start + size.rows)
            watched = Watched(model, tokens.rows(part), at[part], mask[part], metric, layers, size.by_block)
            for i, gradient in enumerate(watched.slopes() if path is None else watched.along(path, part)):
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
    """How gradients fit into memory, of which ``bytes`` are taken besides the model, cached runs included.
    ``rows`` prompts run at once; ``by_block``: whether only the graph of one block at a time is in memory."""

    rows: int
    on_disk: bool = False
    by_block: bool = False
    bytes: int = 0

    @classmethod
    def of(cls, job: Job, layers: int) -> Size:
        """For the gradient of so many layers; warns if even the smallest parts need more than the budget."""
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
        """The graphs of as many prompts as fit, or of one block at a time if none fits or weights are on disk.
        Each layer keeps 1.5 times its working memory; by block, the stream, its gradient and twice that of z."""
        _, pos, n_read = shape
        block = 1.5 * token_bytes(model, pos)
        whole, streams = block * model.n_layers, 6 * (model.n_layers + 1) * model.d_model * model.dtype.itemsize
        logits = logit_bytes(1, n_read * model.d_vocab, limits)
        by_block = model.backend.on_disk is not None or whole * pos + logits > room
        a_row = pos * (block + streams if by_block else whole) + logits
        rows = rows_together(model, shape, a_row, room, limits)
        return cls(rows, by_block=by_block, bytes=int(rows * a_row))


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
