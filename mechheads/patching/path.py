"""Path patching: the effect of one head on another, or on the logits, through no other head.

It takes two runs (Wang et al. 2022; Goldowsky-Dill et al. 2023). In the first, one sender's z comes from the source
run, every other head's z is frozen, and the inputs of the receivers are recorded. In the second, the receivers of the
base run get these inputs, and everything after them is recomputed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.cached_runs import CachedRuns, Given, ablated_heads
from mechheads.engine.dispatch import Batch, Values
from mechheads.engine.evaluate import Reading
from mechheads.engine.frozen_heads import Frozen, MLPs, Receiver
from mechheads.engine.job import Job, Spec, Unit, make_ready, resolve
from mechheads.engine.plan import batches_at_least
from mechheads.engine.proved import edits_of_path, zero_of
from mechheads.engine.report import Metadata, report, warn_of_answers
from mechheads.engine.wavefront import Edit, Wave
from mechheads.engine.work import NewZ, UnitRuns, Work, measure, new_z_at, waves
from mechheads.heads import HeadLike, check_heads
from mechheads.interventions.basic import Patch
from mechheads.io.text import entries
from mechheads.ledger.key import Store
from mechheads.limits import current
from mechheads.messages.arguments import did_you_mean
from mechheads.metrics import Metric, as_metric, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.model.proof import PlainHook
from mechheads.patching.activation import Direction, base_of, check_pairs
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.scores import HeadScores

FINAL = "final"
Group = tuple[Receiver, ...] | None
"""Receivers that are replaced together; None for the final residual stream."""


@analysis
def path_patch(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    receivers: str | Sequence[str] = FINAL,
    senders: Sequence[HeadLike] | HeadLike | None = None,
    metric: Metric | str = logit_diff,
    direction: Direction = "noising",
    mlps: MLPs = "recomputed",
    given: Given | None = None,
) -> HeadScores:
    """Patch the paths from one head to the receivers, sender by sender.

    Args:
        pairs: clean and corrupted prompts that align token for token.
        receivers: ``"final"``, the residual stream before the final norm, which is the direct path to the logits; or
            the ``q``, ``k`` or ``v`` of heads (``"L26H2.q"``) and the inputs of MLPs (``"L5.mlp"``). All receivers of
            a list are patched together. With grouped-query attention, k and v are patched for this query head only.
        senders: the heads to try; every head by default. A sender that comes before no receiver has no path to them,
            so its score is 0 without a measurement.
        metric: as in ``mh.sweep``.
        direction: ``"noising"`` takes the paths of the clean run from the corrupted run: which paths are needed?
            ``"denoising"`` takes the paths of the corrupted run from the clean run: which paths are enough?
        mlps: ``"recomputed"``: paths may go through MLPs; ``"frozen"``: direct edges only.
        given: heads that are ablated all the time, in both runs of the pairs, as in ``mh.sweep``. They are neither
            senders nor receivers.

    Returns:
        metric(patched) - metric(base) of each sender [layer, head, prompt], in the metric's unit.

    Wang et al. 2022 (arXiv 2211.00593), section 3.1; Goldowsky-Dill et al. 2023 (arXiv 2304.05969).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> direct = mh.path_patch(model, pairs, senders=["L23H4", "L5H0"], progress=False)
    >>> abs(direct["L23H4"]["score"]) > abs(direct["L5H0"]["score"])
    True
    """
    inputs, names = resolve(model, pairs, "pairs"), _names(receivers)
    parsed = parse_receivers(names, inputs.model)
    if len(names) > 1 and FINAL in names:
        raise ValueError(
            f'receivers is {names}; "final" cannot be combined with others: give "final" only, or use mh.path_matrix '
            "for one receiver at a time"
        )
    groups = [tuple(receiver for receiver in parsed if receiver is not None) or None]
    base, ablated = base_of(direction), ablated_heads(given, inputs.model)
    spec = Spec(inputs.prompts, Patch(), as_metric(metric), senders, base=base, ablated=ablated)
    job, values, more = _measured(inputs, spec, groups, mlps)
    metadata = Metadata(f"path patching to {', '.join(names)}, {direction}", "path_patch", more=more, units="senders")
    return report(job, values[..., 0, :], metadata)


@analysis
def path_matrix(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    *,
    receivers: Sequence[str],
    senders: Sequence[HeadLike] | HeadLike | None = None,
    metric: Metric | str = logit_diff,
    direction: Direction = "noising",
    mlps: MLPs = "recomputed",
    given: Given | None = None,
) -> HeadScores:
    """Patch the path from every sender to every receiver, one receiver at a time.

    Args:
        receivers: names as in ``mh.path_patch``; ``"final"`` can be one of them.
        model, pairs, senders, metric, direction, mlps, given: as in ``mh.path_patch``.

    Returns:
        As ``mh.path_patch``, with the further dimension ``receiver``; 0 if there is no path. ``mh.plots.path_map``
        draws it.
    """
    inputs, names = resolve(model, pairs, "pairs"), _names(receivers)
    groups = [None if receiver is None else (receiver,) for receiver in parse_receivers(names, inputs.model)]
    base, ablated = base_of(direction), ablated_heads(given, inputs.model)
    spec = Spec(inputs.prompts, Patch(), as_metric(metric), senders, base=base, ablated=ablated)
    job, values, more = _measured(inputs, spec, groups, mlps)
    name, extra = f"paths from heads to receivers, {direction}", {"receiver": names}
    return report(job, values, Metadata(name, "path_matrix", extra=extra, more=more, units="senders"))


def _names(receivers: str | Sequence[str]) -> list[str]:
    return [receivers] if isinstance(receivers, str) else [*entries(receivers, "receivers", "names")]


def _measured(
    inputs: CachedRuns, spec: Spec, groups: Sequence[Group], mlps: MLPs
) -> tuple[Job, Float[np.ndarray, "layer head group prompt"], dict[str, Any]]:
    """Every sender's effect through every group of receivers, and the provenance of the paths."""
    check_pairs(spec.prompts, "path patching")
    _check_receivers(groups, spec, inputs.model)
    names = [[FINAL] if group is None else [str(receiver) for receiver in group] for group in groups]
    with Store(current().store, receivers=names, mlps=mlps) as store:
        job = make_ready(inputs, spec, store)
        work = path_effects(job, groups=groups, mlps=mlps)
        warn_of_answers(job)
        measured = measure(work, _batches(job, groups), groups=(len(groups),), bar="paths from ")
    direction = "noising" if spec.base == "clean" else "denoising"
    more = {"direction": direction, "mlps": mlps, "interrupted": measured.interrupted, "receivers": [*chain(*names)]}
    return job, measured.heads[..., 0, :], more


def path_effects(job: Job, *, groups: Sequence[Group], mlps: MLPs) -> Work:
    """The change of a job's metric along every path from heads [group, prompt]."""
    evaluator = job.evaluator

    def read(units: Sequence[Unit], finals: list[Tensor]) -> Values:
        return np.stack([evaluator(final) for final in finals], axis=1)

    return Work(job, partial(path_effects, groups=groups, mlps=mlps), Paths(job, groups, mlps), read)


def _batches(job: Job, groups: Sequence[Group]) -> list[Batch]:
    """The senders of each wave; more than in a sweep if only the read positions are computed."""
    more = 1
    if not any(groups) and batches_at_least(job.spec.limits) == 1:
        more = max(1, job.plan.width // job.at.shape[1])
    if job.ledger is not None:
        more = job.ledger.remember(f"paths{job.ledger_suffix}", more)
    return [Batch((tuple(wave),)) for wave in waves(job.measured, range(len(job.places)), more * job.plan.stack)]


class Paths:
    """Does both runs of path patching, for some senders at a time."""

    def __init__(self, job: Job, groups: Sequence[Group], mlps: MLPs) -> None:
        self.job, self.groups = job, groups
        self.mlps: MLPs = mlps
        self._units = UnitRuns(job)
        self.receivers = sorted({r for group in groups if group for r in group}, key=str)

    def __call__(self, units: Sequence[Unit]) -> list[Float[Tensor, "sender prompt position d_model"]]:
        """The final states of the second run, for each group of receivers."""
        changes, first = self._units.changes(units)
        parts = []
        for begin in range(0, len(self.job.tokens), self.job.plan.rows):
            parts.append(self._some_prompts(slice(begin, begin + self.job.plan.rows), changes, first))
        return [torch.cat(of_group, dim=1) for of_group in zip(*parts, strict=True)]

    def edits(self, unit: Unit, prompt: int, entry: int) -> list[PlainHook]:
        """The hooks of the plain forward pass of a prompt that gives the second run."""
        sender = self._units.edits(unit, prompt)
        return edits_of_path(self.job, sender, self.groups[entry], self.mlps, prompt)

    def zeroed(self) -> Paths:
        """The same paths from senders with z set to zero."""
        return Paths(zero_of(self.job), self.groups, self.mlps)

    def _some_prompts(self, rows: slice, changes: Sequence[NewZ], start: Tensor) -> list[Tensor]:
        job, at = self.job, self.job.at[rows]
        finals: dict[Group, Tensor] = {}
        if None in self.groups:
            frozen = Frozen(job.base, rows, at, self.mlps)
            finals[None] = frozen.final(new_z_at(changes, frozen.take))
        if self.receivers:
            window = job.window(start, rows)
            wave, unchanged = job.wave(rows, window), job.evaluator.base_states[rows]
            senders = new_z_at(changes, wave.take)
            inputs = Frozen(job.base, rows, window.positions, self.mlps).inputs(senders, self.receivers)
            for group in self.groups:
                if group is not None:
                    finals[group] = _second_run(wave, unchanged, len(senders), group, inputs)
        return [finals[group] for group in self.groups]


def _second_run(
    wave: Wave, unchanged: Tensor, senders: int, group: tuple[Receiver, ...], inputs: dict[Receiver, Tensor]
) -> Float[Tensor, "sender prompt position d_model"]:
    """Final states of the base run with the inputs of a group of receivers replaced; unchanged without a path."""
    copies = [
        [Edit(r.layer, r.site, r.head, inputs[r][i]) for r in group if r in inputs and i < len(inputs[r])]
        for i in range(senders)
    ]
    final = unchanged.expand(senders, *unchanged.shape).clone()
    if reached := [i for i, copy in enumerate(copies) if copy]:
        final[reached] = wave.run([copies[i] for i in reached])
    return final


def parse_receivers(names: Sequence[str], model: Model) -> list[Receiver | None]:
    """The receivers with these names; None for ``"final"``."""
    if not names:
        raise ValueError('receivers is empty; give "final", inputs of heads such as "L26H2.q", or "L5.mlp"')
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"receivers: {sorted(twice)[0]!r} is given twice; name each receiver once")
    return [None if name == FINAL else _receiver(name, model) for name in names]


def _receiver(name: str, model: Model) -> Receiver:
    match = re.fullmatch(r"L(\d+)(?:H(\d+)\.([qkv])|\.mlp)", name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            f'receivers: {name!r} is not a receiver; give "final", an input of a head such as "L26H2.q" (or .k, .v), '
            f'or of an MLP such as "L5.mlp".{_meant(name)}'
        )
    layer, head = int(match[1]), None if match[2] is None else int(match[2])
    if layer >= model.n_layers or (head is not None and head >= model.n_heads):
        raise ValueError(
            f"receivers: {name!r} does not exist; this model has layers 0..{model.n_layers - 1} and heads "
            f"0..{model.n_heads - 1}"
        )
    if head is None and not model.backend.d_mlp:
        raise ValueError(f"receivers: {name!r} does not exist; this model has no MLPs")
    return Receiver(layer, "mlp_out" if head is None else match[3], head)  # type: ignore[arg-type]


def _meant(name: object) -> str:
    """``Did you mean "..."?`` for the receiver that a name resembles; empty if there is none."""
    if not isinstance(name, str):
        return ""
    numbers, sites = re.findall(r"\d+", name), re.findall(r"[qkv](?=$|[^a-z])", name.lower())
    if len(numbers) == 2:
        return f' Did you mean "L{numbers[0]}H{numbers[1]}.{sites[0] if sites else "q"}"?'
    if len(numbers) == 1 and "mlp" in name.lower():
        return f' Did you mean "L{numbers[0]}.mlp"?'
    return did_you_mean(name, [FINAL])


def _check_receivers(groups: Sequence[Group], spec: Spec, model: Model) -> None:
    """Check that a path from a sender to every receiver exists, and can change what the metric reads."""
    reading, ablated = Reading.of(spec.metric, model, 1), {head for head, _ in spec.ablated}
    first = min(head.layer for head in check_heads(spec.heads, model.n_layers, model.n_heads))
    receivers = [receiver for group in groups for receiver in group or (None,)]
    for receiver in filter(None, receivers):
        last = receiver.layer - (receiver.head is not None or model.parallel_mlps)
        if first > last:
            senders = "no head" if spec.heads is None else "none of the senders"
            other = "choose another receiver"
            if last >= 0:
                other = f"give senders of layer{'s 0..' + str(last) if last else ' 0'}"
            raise ValueError(f'receivers: {senders} comes before "{receiver}", so there is no path to it; {other}')
        if receiver.node in ablated:
            raise ValueError(
                f"receivers: {receiver.node} is ablated by given, so no path to it changes anything; choose another "
                "receiver, or leave it out of given"
            )
    for receiver in receivers:
        if reading.activation is None or (receiver is not None and reading.takes(receiver.node, receiver.site)):
            continue
        head = reading.activation.head
        raise ValueError(
            f'receivers: a path to "{receiver or FINAL}" cannot change {reading.activation}, which the metric reads; '
            f'give "{head}.q" or "{head}.k", or inputs of earlier layers'
        )
