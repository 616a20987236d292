"""The checks of an intervention and of a metric, one method for each check and note.

A check returns a sentence that says what was found, or raises ``Wrong`` with a sentence that also says what it expects.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from mechheads.engine.reading import Reading
from mechheads.engine.sweep import sweep
from mechheads.heads import HeadId
from mechheads.interventions.base import needs_of, site_of
from mechheads.interventions.basic import Zero
from mechheads.limits import DEFAULT_LIMITS
from mechheads.metrics.base import (
    Metric,
    MetricContext,
    MetricInfo,
    check_value,
    metric,
    name_of,
    read_positions,
)
from mechheads.model.model import Model
from mechheads.prompts.prompts import PromptPairs, Prompts
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HEAD_SITES
from mechheads.testing.slow_runs import (
    EXTRA,
    Runs,
    SlowRun,
    copied,
    slow_sweep,
    tensors_of,
    widened,
    with_noise,
)

TOLERANCE = 1e-4


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
        reading = Reading.of(self.metric, self.model, self.tokens.ids.shape[1])
        self.read = reading.activation
        self.base = self.model.unembed(self.runs.base.final[rows, at])
        if self.read is not None:
            self.base = reading.values(self.runs.base, at, DEFAULT_LIMITS)
        noise = torch.randn(self.base.shape, generator=self.generator).to(self.base)
        self.changed, self.rounded = (self._changed(size * noise) for size in (0.5, 1e-6))
        return f"reads {MetricInfo.of(self.metric).reads!r}{'' if self.read is None else f' of {self.read}'}"

    def _changed(self, noise: Tensor) -> Tensor:
        """What is read, with noise; a pattern stays one."""
        if not self._reads_pattern:
            return self.base + self.base.std() * noise
        changed = self.base * noise.exp()
        return changed / changed.sum(-1, keepdim=True)

    @property
    def _reads_pattern(self) -> bool:
        return self.read is not None and self.read.site == "pattern"

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
        if self._reads_pattern:
            base, changed = (F.pad(pattern, (0, EXTRA)) for pattern in (base, changed))
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
        heads = [head for head in some_heads(self.model) if self.read is None or head != self.read.head]
        return _agrees(self.runs, self.prompts, Zero(), heads, [self.metric])

    def writes_into_logits(self) -> str | None:
        logits, context = self.changed.clone(), MetricContext(self.base.clone(), self.tokens, self.mask)
        self.metric(logits, context)
        if torch.equal(logits, self.changed) and torch.equal(context.base_logits, self.base):
            return None
        return "writes to the logits that it is given; this is allowed, because the engine gives it copies"

    def gradient(self) -> str | None:
        cannot = "cannot be used with attribution_patch: "
        if self.read is not None:
            return f"{cannot}it reads {self.read} in place of the logits"
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
    read = MetricInfo.of(metrics[0]).read
    furthest, slow = 0.0, {head: slow_sweep(runs, intervention, [head], read) for head in heads}
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
