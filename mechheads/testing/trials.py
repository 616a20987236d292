"""The checks of an intervention and of a metric, one method for each check and note.

A check returns a sentence that says what was found, or raises ``Wrong`` with a sentence that also says what it expects.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from mechheads.engine.sweep import sweep
from mechheads.heads import HeadId, kv_head
from mechheads.interventions.base import Context, Intervention, needs_of, site_of
from mechheads.interventions.basic import Zero
from mechheads.metrics.base import Metric, MetricContext, MetricInfo, check_value, metric, name_of, read_positions
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HEAD_SITES, KEY_SITES, HeadCache
from mechheads.runs.layer_store import LayerStore

TOLERANCE = 1e-4
_EXTRA = 2


class Wrong(Exception):
    """What a check found and what is expected, in one sentence."""


class InterventionTrial:
    """The checks of an intervention."""

    def __init__(self, intervention: Any, model: Model, prompts: Prompts | PromptPairs) -> None:
        self.intervention, self.model, self.prompts = intervention, model, prompts
        self.runs = Runs.of(model, prompts)
        self.mask = self.runs.tokens.mask
        self.heads = some_heads(model)
        self.first: dict[HeadId, Any] = {}

    def call(self, head: HeadId, runs: Runs | None = None, value: Tensor | None = None) -> Any:
        """The intervention's result for a head, computed on copies of everything."""
        runs = (runs or self.runs).copied()
        value = runs.value(self.intervention, head) if value is None else value
        return self.intervention(value, runs.context(self.intervention, head))

    def difference(self, new: Tensor, head: HeadId, mask: Tensor) -> tuple[float, tuple[int, int]] | None:
        """How far a result is from the first result at some tokens, and where; None if only rounding differs."""
        return _difference(self.first[head], new, mask)

    def site(self) -> str:
        try:
            return f"acts on {site_of(self.intervention)}"
        except ValueError as error:
            raise Wrong(f"{error}; by default it is z") from error

    def runs_through(self) -> str:
        self.first = {head: self.call(head) for head in self.heads}
        return f"takes {names_of(self.heads)} without an error"

    def tensor(self) -> str:
        for head, new in self.first.items():
            old = self.runs.value(self.intervention, head)
            if not isinstance(new, Tensor) or (new.shape, new.dtype, new.device) != (old.shape, old.dtype, old.device):
                raise Wrong(f"gave {_describe(new)} for {head}; expected the same as its input, {_describe(old)}")
        return f"gives {_describe(self.first[self.heads[0]])}, like its input"

    def finite(self) -> str:
        for head, new in self.first.items():
            if bad := int((~new[self.mask].isfinite()).sum()):
                raise Wrong(f"gave {bad} numbers that are not finite at real tokens of {head}; expected none")
        return "every number at a real token is finite"

    def repeatable(self) -> str:
        for head in self.heads:
            if found := self.difference(self.call(head), head, self.mask):
                raise Wrong(
                    f"a second call for {head} differs by up to {found[0]:.3g}; it should be the same each time (draw "
                    "random numbers with torch.Generator().manual_seed(self.seed))"
                )
        return "a second call gives the same"

    def read_only(self) -> str:
        for head in self.heads:
            runs = self.runs.copied()
            context = runs.context(self.intervention, head)
            self.intervention(runs.value(self.intervention, head), context)
            before = _tensors(self.runs) | {"context.mask": self.mask}
            after = _tensors(runs) | {"context.mask": context.mask}
            if written := [name for name in before if not torch.equal(before[name], after[name])]:
                raise Wrong(f"wrote into {written[0]}; it should change a copy, made with .clone()")
        return "does not write to the cached runs"

    def needs(self) -> str:
        declared, needs = getattr(self.intervention, "needs", None), needs_of(self.intervention)
        known = ", ".join(HEAD_SITES)
        if isinstance(declared, str):
            raise Wrong(f"needs is the text {declared!r}; expected a tuple, needs = ({declared!r},)")
        if unknown := [site for site in needs if site not in self.runs.base.stores]:
            raise Wrong(f"needs names {unknown[0]!r}; expected some of {known}")
        for head in self.heads:
            value = self.runs.value(self.intervention, head)
            kept = f"needs is {needs!r}" if declared is not None else f"without needs, {needs!r} are kept"
            try:
                new = self.call(head, self.runs.copied(needs), value)
            except Exception as error:
                raise Wrong(f"{kept}, and with only these kept: {error}; it should name everything it reads") from error
            if found := self.difference(new, head, self.mask):
                raise Wrong(f"{kept}, and with only these kept {head} changes by {found[0]:.3g}; it should not change")
        return f"reads only {', '.join(needs) or 'nothing'} of the cached runs"

    def padding(self) -> str:
        padded, pos = self.runs.padded(), self.mask.shape[1]
        for head in self.heads:
            new = self.call(head, padded)[:, :pos]
            if site_of(self.intervention) == "pattern":
                new = new[:, :, :pos]
            if found := self.difference(new, head, self.mask):
                by, (row, token) = found
                raise Wrong(
                    f"{head} at token {token} of prompt {row}, a real token, changes by {by:.3g} if the padding after "
                    "the prompts changes; it should read only real tokens, where context.mask is True"
                )
        return "does not depend on the length or the content of padding"

    def engine(self) -> str:
        return _agrees(self.runs, self.prompts, self.intervention, self.heads, [log_prob_of_0, _log_probs_of_0])

    def looks_at_other_prompts(self) -> str | None:
        for row in range(len(self.mask)):
            others = self.mask.clone()
            others[row] = False
            changed = self.runs.with_other(row)
            for head in self.heads:
                if self.difference(self.call(head, changed), head, others):
                    return (
                        "looks at other prompts: its result for a prompt depends on the other prompts of the sweep, "
                        "as with mh.Mean and mh.patching.Resample"
                    )
        return None

    def looks_ahead(self) -> str | None:
        last = max(0, int(self.runs.tokens.lengths.min()) - 2)
        earlier = self.mask.clone()
        earlier[:, last + 1 :] = False
        changed = self.runs.with_later(last)
        if any(self.difference(self.call(head, changed), head, earlier) for head in self.heads):
            return "looks ahead: its result for a token depends on later tokens, which a causal model does not see"
        return None


class MetricTrial:
    """The checks of a metric."""

    def __init__(self, metric: Any, model: Model, prompts: Prompts | PromptPairs) -> None:
        self.metric, self.model, self.prompts = metric, model, prompts
        self.runs = Runs.of(model, prompts)
        self.tokens = self.runs.tokens
        self.generator = torch.Generator().manual_seed(0)

    def call(
        self, logits: Tensor, base: Tensor | None = None, tokens: Tokens | None = None, mask: Tensor | None = None
    ) -> Any:
        """The metric's value, computed on copies of everything."""
        base = self.base if base is None else base
        mask = self.mask if mask is None else mask
        return self.metric(logits.clone(), MetricContext(base.clone(), copied(tokens or self.tokens), mask.clone()))

    def reads(self) -> str:
        try:
            at, self.mask = read_positions(self.metric, self.tokens)
        except (ValueError, TypeError) as error:
            raise Wrong(f"{error}; choose one of these") from error
        rows = torch.arange(len(at), device=at.device)[:, None]
        self.base = self.model.unembed(self.runs.base.final[rows, at])
        noise = torch.randn(self.base.shape, generator=self.generator).to(self.base)
        self.changed, self.rounded = (self.base + size * self.base.std() * noise for size in (0.5, 1e-6))
        return f"reads {MetricInfo.of(self.metric).reads!r}"

    def runs_through(self) -> str:
        self.first, self.unchanged_value = self.call(self.changed), self.call(self.base)
        return "takes logits of the unchanged run and of another without an error"

    def value(self) -> str:
        try:
            for value in (self.first, self.unchanged_value):
                check_value(self.metric, value, len(self.tokens))
        except ValueError as error:
            raise Wrong(str(error).replace("; it must", "; it should")) from error
        self.first, self.unchanged_value = self.first.double(), self.unchanged_value.double()
        return f"gives one value for each of {len(self.tokens)} prompts"

    def finite(self) -> str:
        for value, of in ((self.unchanged_value, "the unchanged run"), (self.first, "a changed run")):
            if not value.isfinite().all():
                raise Wrong(f"gave {value.tolist()} for {of}; expected finite numbers")
        return "every value is finite"

    def repeatable(self) -> str:
        if (by := _gap(self.call(self.changed), self.first)) > TOLERANCE:
            raise Wrong(
                f"a second call with the same logits differs by up to {by:.3g}; it should be the same each time"
            )
        return "a second call gives the same"

    def read_only(self) -> str:
        tokens, mask = copied(self.tokens), self.mask.clone()
        self.metric(self.changed.clone(), MetricContext(self.base.clone(), tokens, mask))
        before = tensors_of(self.tokens) | {"mask": self.mask}
        after = tensors_of(tokens) | {"mask": mask}
        if written := [name for name in before if not torch.equal(before[name], after[name])]:
            raise Wrong(f"wrote into context.{written[0]}; it should change a copy, made with .clone()")
        return "does not write to tokens and mask"

    def batch(self) -> str:
        for row in range(len(self.tokens)):
            only = slice(row, row + 1)
            alone = self.call(self.changed[only], self.base[only], self.tokens.rows(only), self.mask[only])
            if not isinstance(alone, Tensor) or alone.shape != (1,):
                raise Wrong(f"gave {_describe(alone)} for one prompt alone; expected shape [1]")
            if _gap(alone, self.first[only]) > TOLERANCE:
                raise Wrong(
                    f"the value of prompt {row} is {float(alone):.6g} alone and {float(self.first[row]):.6g} with the "
                    "other prompts; it should be the same, because the engine splits prompts into batches"
                )
        return "the value of a prompt does not depend on the other prompts"

    def padding(self) -> str:
        tokens, base, changed, mask = widened(self.tokens, self.generator), self.base, self.changed, self.mask
        if MetricInfo.of(self.metric).reads == "all":
            mask = tokens.mask
            base, changed = (self._in_padding(logits, mask) for logits in (base, changed))
        new = self.call(changed, base, tokens, mask)
        if (by := _gap(new, self.first)) > TOLERANCE:
            raise Wrong(
                f"values change by up to {by:.3g} if the padding after the prompts changes; it should read only "
                "positions where context.mask is True"
            )
        return "does not depend on the length or the content of padding"

    def _in_padding(self, logits: Tensor, mask: Tensor) -> Tensor:
        wide = logits.new_zeros(*mask.shape, logits.shape[-1])
        wide[:, : logits.shape[1]] = logits
        return with_noise(wide, ~mask[..., None], self.generator)

    def unchanged(self) -> str:
        by = _gap(self.call(self.rounded), self.unchanged_value)
        if by > 100 * TOLERANCE:
            raise Wrong(
                f"with rounding errors of a millionth in the logits, the value of the unchanged run changes by "
                f"{by:.3g}; it should change only by rounding"
            )
        return "the value of the unchanged run is stable under rounding errors in the logits"

    def engine(self) -> str:
        return _agrees(self.runs, self.prompts, Zero(), some_heads(self.model), [self.metric])

    def writes_into_logits(self) -> str | None:
        logits, context = self.changed.clone(), MetricContext(self.base.clone(), self.tokens, self.mask)
        self.metric(logits, context)
        if torch.equal(logits, self.changed) and torch.equal(context.base_logits, self.base):
            return None
        return "writes to the logits that it is given; this is allowed, because the engine gives it copies"

    def gradient(self) -> str | None:
        cannot = "cannot be used with attribution_patch: "
        leaf = self.base.clone().requires_grad_()
        try:
            with torch.enable_grad():
                value = self.metric(leaf.clone(), MetricContext(self.base.clone(), copied(self.tokens), self.mask))
                (slope,) = torch.autograd.grad(value.sum(), leaf)
        except RuntimeError:
            return f"{cannot}it has no gradient"
        if not slope.isfinite().all():
            return f"{cannot}its gradient is not finite at the unchanged run"
        if not slope.any():
            return f"{cannot}its gradient is zero at the unchanged run"
        return "can be used with attribution_patch: it has a gradient at the unchanged run"


@metric(unit="nats")
def log_prob_of_0(logits: Tensor, context: MetricContext) -> Tensor:
    return logits[:, -1].log_softmax(-1)[:, 0]


@metric(reads="all", unit="nats")
def _log_probs_of_0(logits: Tensor, context: MetricContext) -> Tensor:
    real = context.mask
    return torch.where(real, logits.log_softmax(-1)[..., 0], 0).sum(-1) / real.sum(-1)


def _agrees(
    runs: Runs, prompts: Prompts | PromptPairs, intervention: Any, heads: Sequence[HeadId], metrics: Sequence[Any]
) -> str:
    furthest, slow = 0.0, {head: slow_sweep(runs, intervention, [head]) for head in heads}
    for each in metrics:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = sweep(
                runs.model, prompts, intervention=intervention, metric=each, heads=list(heads), progress=False
            )
        values = np.asarray(found.values)
        for head, prompts_alone in slow.items():
            ours = values[head.layer, head.head]
            furthest = max(furthest, furthest_gap(prompts_alone, each, ours, "mh.sweep", str(head)))
    return f"mh.sweep of {names_of(heads)} agrees with full forward passes to {furthest:.1g}"


def furthest_gap(
    slow: Sequence[SlowRun], metric: Metric, ours: Float[np.ndarray, " prompt"], what: str, at: str
) -> float:
    """How far changes of a metric are at most from those in full forward passes, relative to values above 1 in size.

    Args:
        what, at: which function gave the changes, and of which heads, for the message.

    Raises:
        Wrong: if they are further than rounding.
    """
    furthest = 0.0
    for row, (alone, change) in enumerate(zip(slow, ours.tolist(), strict=True)):
        before, after = alone.measure(metric)
        off = abs(change - (after - before)) / max(1.0, abs(before), abs(after))
        if not off <= TOLERANCE:
            raise Wrong(
                f"{what} changes {name_of(metric)} of prompt {row} by {change:.6g} at {at}, but a full forward pass of "
                f"this prompt alone with the same z changes it by {after - before:.6g}; they should agree to 1e-4"
            )
        furthest = max(furthest, off)
    return furthest


def _difference(old: Tensor, new: Tensor, mask: Tensor) -> tuple[float, tuple[int, int]] | None:
    """How far two results differ at some tokens, and where; None if only rounding differs."""
    if not mask.any():
        return None
    by = (old.double() - new.double()).abs().nan_to_num(torch.inf).flatten(2).amax(-1).masked_fill(~mask, 0)
    if by.max() <= TOLERANCE * max(float(old[mask].abs().max()), 1e-6):
        return None
    row, token = divmod(int(by.argmax()), by.shape[1])
    return float(by.max()), (row, token)


def _gap(a: Tensor, b: Tensor) -> float:
    """The largest difference between two lists of values, relative to values above 1 in size."""
    off = (a.double() - b.double()).abs() / b.double().abs().clamp_min(1)
    return float(off.nan_to_num(torch.inf).max())


def _tensors(runs: Runs) -> dict[str, Tensor]:
    """Every tensor of the runs, by the name with which an intervention accesses it."""
    named: dict[str, Tensor] = {}
    for side, run in (("base", runs.base), ("source", runs.source)):
        if run is not None:
            named |= {f"context.{side}.{name}": value for name, value in tensors_of(run.tokens).items()}
            named[f"context.{side}.final"] = run.final
            for site, store in run.stores.items():
                named |= {f"context.{side}.{site}, layer {layer}": store[layer] for layer in range(run.n_layers)}
    return named


def _describe(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    return f"{list(value.shape)} {str(value.dtype).removeprefix('torch.')} on {value.device}"


def names_of(heads: Sequence[HeadId]) -> str:
    return " and ".join(map(str, dict.fromkeys(heads)))


def some_heads(model: Model) -> tuple[HeadId, HeadId]:
    """One head of the first layer and one of the last; the first is not the first of its group, if possible."""
    return HeadId(0, min(1, model.n_heads - 1)), HeadId(model.n_layers - 1, model.n_heads - 1)


def widened(tokens: Tokens, generator: torch.Generator) -> Tokens:
    """The same prompts with more padding, filled with random tokens."""
    ids = F.pad(tokens.ids, (0, _EXTRA))
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
            value = F.pad(value, (0, _EXTRA if site == "pattern" else 0, 0, _EXTRA))
            mask = F.pad(self.tokens.mask, (0, _EXTRA))[..., None]
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
    """One prompt run alone, without padding, unchanged and with new z of some heads: logits [1, pos, d_vocab]."""

    tokens: Tokens
    base: Float[Tensor, "1 pos d_vocab"]
    changed: Float[Tensor, "1 pos d_vocab"]

    def measure(self, metric: Metric) -> tuple[float, float]:
        """The metric of the unchanged and of the changed run."""
        at, mask = read_positions(metric, self.tokens)
        context = MetricContext(self.base[:, at[0]], self.tokens, mask)
        before, after = (
            float(metric(logits[:, at[0]].clone(), replace(context, base_logits=context.base_logits.clone())))
            for logits in (self.base, self.changed)
        )
        return before, after


def slow_sweep(runs: Runs, intervention: Intervention, heads: Sequence[HeadId]) -> list[SlowRun]:
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
        found.append(SlowRun(tokens, forward(model, tokens.ids), forward(model, tokens.ids, hooks)))
    return found


def forward(model: Model, ids: Int[Tensor, "1 pos"], hooks: list[Any] | None = None) -> Float[Tensor, "1 pos d_vocab"]:
    with torch.no_grad():
        return model.model.run_with_hooks(ids, fwd_hooks=hooks or [], attention_mask=torch.ones_like(ids))


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
