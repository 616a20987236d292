"""The cached runs of a trial, changed in what should not matter, and the slow forward passes it is compared with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mechheads.heads import HeadId, kv_head
from mechheads.interventions.base import Context, Intervention, site_of
from mechheads.metrics.base import Activation, Metric, MetricContext, read_positions
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HEAD_SITES, KEY_SITES, HeadCache
from mechheads.runs.layer_store import LayerStore

EXTRA = 2
"""How many tokens of padding are added."""


def widened(tokens: Tokens, generator: torch.Generator) -> Tokens:
    """The same prompts with more padding, filled with random tokens."""
    ids = F.pad(tokens.ids, (0, EXTRA))
    random = torch.randint(int(ids.max()) + 1, ids.shape, generator=generator).to(ids.device)
    wide = replace(tokens, ids=ids)
    return replace(wide, ids=torch.where(wide.mask, ids, random))


def with_noise(value: Tensor, where: Tensor, generator: torch.Generator) -> Tensor:
    """The value with noise in (0, 1) added where the mask is True."""
    return value + where * torch.rand(value.shape, generator=generator).to(value)


@dataclass(frozen=True)
class Runs:
    """The cached runs of some prompts: the base run and, for pairs, the source run."""

    model: Model
    base: HeadCache
    source: HeadCache | None

    @classmethod
    def of(cls, model: Model, prompts: Prompts | PromptPairs) -> Runs:
        """The runs of the prompts, with the activations of all sites."""
        sites = (*HEAD_SITES, "resid_pre")
        base, source = prompts.tokens(model) if isinstance(prompts, PromptPairs) else (prompts.tokens(model), None)
        return cls(
            model,
            HeadCache.run(model, base, sites=sites),
            None if source is None else HeadCache.run(model, source, sites=sites),
        )

    @property
    def tokens(self) -> Tokens:
        return self.base.tokens

    def made_over(
        self,
        change: Callable[[str, Tensor], Tensor],
        tokens: Callable[[Tokens], Tokens],
        sites: Sequence[str] | None = None,
    ) -> Runs:
        """Copies in which every activation and the tokens are changed, and only some sites are kept."""

        def made_over(run: HeadCache) -> HeadCache:
            kept = run.stores if sites is None else sites
            stores = {site: LayerStore(run.n_layers, len(run.tokens)) for site in kept}
            for site, store in stores.items():
                for layer in range(run.n_layers):
                    store.add(layer, change(site, run.stores[site][layer]))
            heads = (self.model.n_heads, self.model.n_kv_heads)
            return HeadCache(self.model, tokens(run.tokens), stores, change("final", run.final), heads)

        return replace(self, base=made_over(self.base), source=None if self.source is None else made_over(self.source))

    def copied(self, sites: tuple[str, ...] | None = None) -> Runs:
        """Copies of the runs with these sites only; by default all."""
        return self.made_over(
            lambda _, value: value.clone(), copied, None if sites is None else sites or ("resid_pre",)
        )

    def padded(self) -> Runs:
        """The same prompts with more padding, and numbers other than zero at all padding.

        A pattern keeps its zeros at keys that are padding, because no real token can attend to one.
        """
        generator = torch.Generator().manual_seed(0)

        def change(site: str, value: Tensor) -> Tensor:
            value = F.pad(value, (0, EXTRA if site == "pattern" else 0, 0, EXTRA))
            mask = F.pad(self.tokens.mask, (0, EXTRA))[..., None]
            return with_noise(value, ~(mask if value.ndim == 3 else mask[:, None]), generator)

        return self.made_over(change, lambda tokens: widened(tokens, generator))

    def with_other(self, row: int) -> Runs:
        """The runs with other activations and tokens in one prompt, which keeps its length."""
        generator = torch.Generator().manual_seed(0)
        this = torch.arange(len(self.tokens), device=self.tokens.ids.device) == row

        def change(_: str, value: Tensor) -> Tensor:
            return with_noise(value, this.reshape(-1, *[1] * (value.ndim - 1)) & (value != 0), generator)

        def other(tokens: Tokens) -> Tokens:
            return replace(tokens, ids=torch.where(this[:, None] & tokens.mask, tokens.ids.roll(1, 1), tokens.ids))

        return self.made_over(change, other)

    def with_later(self, last: int) -> Runs:
        """The runs with other tokens in the base run after position ``last``."""
        ids = self.tokens.ids
        later = (torch.arange(ids.shape[1], device=ids.device) > last) & self.tokens.mask
        tokens = replace(self.tokens, ids=torch.where(later, (ids + 1) % self.model.d_vocab, ids))
        return replace(self, base=HeadCache.run(self.model, tokens, sites=tuple(self.base.stores)))

    def context(self, intervention: Intervention, head: HeadId) -> Context:
        """The context that an intervention gets for a head; for ``k`` and ``v``, for the first head of its group."""
        if site_of(intervention) in KEY_SITES:
            group = self.model.n_heads // self.model.n_kv_heads
            head = HeadId(head.layer, head.head // group * group)
        return Context(head, self.base, self.source, self.tokens.mask)

    def value(self, intervention: Intervention, head: HeadId) -> Tensor:
        """A copy of the activation that an intervention changes."""
        return self.base.site(site_of(intervention))[head].clone()


def copied(tokens: Tokens) -> Tokens:
    """A copy of the tokens in separate memory."""
    return replace(
        tokens,
        ids=tokens.ids.clone(),
        lengths=tokens.lengths.clone(),
        positions={name: where.clone() for name, where in tokens.positions.items()},
        answer=None if tokens.answer is None else tokens.answer.clone(),
        wrong=None if tokens.wrong is None else tokens.wrong.clone(),
    )


def tensors_of(tokens: Tokens) -> dict[str, Tensor]:
    """Every tensor of some tokens, by name."""
    named = {"ids": tokens.ids, "lengths": tokens.lengths, "answer": tokens.answer, "wrong": tokens.wrong}
    named |= {f"positions[{name!r}]": where for name, where in tokens.positions.items()}
    return {f"tokens.{name}": value for name, value in named.items() if value is not None}


@dataclass(frozen=True)
class SlowRun:
    """One prompt run alone, without padding, unchanged and with new z of some heads: what a metric reads, [1, pos, d].

    These are the logits, or a head's pattern or z.
    """

    tokens: Tokens
    base: Float[Tensor, "1 pos d"]
    changed: Float[Tensor, "1 pos d"]

    def measure(self, metric: Metric) -> tuple[float, float]:
        """The metric of the unchanged and of the changed run."""
        at, mask = read_positions(metric, self.tokens)
        context = MetricContext(self.base[:, at[0]], self.tokens, mask)
        before, after = (
            float(metric(logits[:, at[0]].clone(), replace(context, base_logits=context.base_logits.clone())))
            for logits in (self.base, self.changed)
        )
        return before, after


def slow_sweep(
    runs: Runs, intervention: Intervention, heads: Sequence[HeadId], read: Activation | None = None
) -> list[SlowRun]:
    """The reference for heads that are changed together: full forward passes of one prompt at a time."""
    model, site, shown = runs.model, site_of(intervention), runs.copied()
    new = {head: intervention(shown.value(intervention, head), shown.context(intervention, head)) for head in heads}
    found = []
    for row in range(len(runs.tokens)):
        tokens = runs.tokens.rows(slice(row, row + 1))
        n = int(tokens.lengths)
        tokens = replace(tokens, ids=tokens.ids[:, :n])
        hooks = []
        for head, value in new.items():
            z = value[row, :n, :n] if site == "pattern" else value[row, :n]
            if site != "z":
                z = _z_when(model, tokens.ids, head, site, z)
            hooks.append(_put(model, "z", head.layer, head.head, z))
        found.append(SlowRun(tokens, *(_read(model, tokens.ids, changes, read) for changes in ([], hooks))))
    return found


def forward(model: Model, ids: Int[Tensor, "1 pos"], hooks: list[Any] | None = None) -> Float[Tensor, "1 pos d_vocab"]:
    with torch.no_grad():
        return model.model.run_with_hooks(ids, fwd_hooks=hooks or [], attention_mask=torch.ones_like(ids))


def _read(
    model: Model, ids: Int[Tensor, "1 pos"], hooks: list[Any], read: Activation | None
) -> Float[Tensor, "1 pos d"]:
    """The logits of a forward pass, or a head's pattern or z in it."""
    if read is None:
        return forward(model, ids, hooks)
    seen: list[Tensor] = []

    def see(value: Tensor, hook: Any) -> None:
        seen.append((value if read.site == "pattern" else value.transpose(1, 2))[:, read.head.head].clone())

    forward(model, ids, [*hooks, (model.hook_name(read.site, read.head.layer), see)])
    return seen[0]


def _z_when(model: Model, ids: Int[Tensor, "1 pos"], head: HeadId, site: str, value: Tensor) -> Tensor:
    """The head's z [pos, d_head] if its q, k, v or pattern is ``value``."""
    index = kv_head(head.head, model.n_heads, model.n_kv_heads) if site in KEY_SITES else head.head
    seen: list[Tensor] = []

    def see(z: Tensor, hook: Any) -> None:
        seen.append(z[0, :, head.head].clone())

    forward(model, ids, [_put(model, site, head.layer, index, value), (model.hook_name("z", head.layer), see)])
    return seen[0]


def _put(model: Model, site: str, layer: int, index: int, value: Tensor) -> tuple[str, Callable[..., Tensor]]:
    """A hook that sets one head's activation."""

    def put(activation: Tensor, hook: Any) -> Tensor:
        activation = activation.clone()
        activation[(0, index) if site == "pattern" else (0, slice(None), index)] = value
        return activation

    return model.hook_name(site, layer), put
