"""Path patching: what one head tells another, or the logits, along the paths that lead straight there.

Two runs (Wang et al. 2022; Goldowsky-Dill et al. 2023). In the first, one sender's z comes from the other
run, every other head's z stays frozen, and the inputs of the receivers are noted. In the second, the base
run gets these inputs of the receivers in place of its own, and everything else follows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.answers import warn_of_answers
from mechheads.backends.changes import alone
from mechheads.bars import Bar
from mechheads.frozen import Frozen, MLPs, Receiver, check_frozen
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions import Patch
from mechheads.jobs import Job, Positions, Unit, inside, prepare
from mechheads.judge import Judge
from mechheads.metrics import Metric, as_metric, logit_diff, name_of
from mechheads.model import Model
from mechheads.notices import warn
from mechheads.patching.receivers import FINAL, Group, check_reached, parse_receivers
from mechheads.plans import in_halves
from mechheads.precision import with_precision
from mechheads.prompts import PromptPairs
from mechheads.scores import HeadScores
from mechheads.sweeps import new_z
from mechheads.wave import Edit, Wave
from mechheads.windows import Window


@alone
def path_patch(
    model: Model,
    pairs: PromptPairs,
    *,
    receivers: str | Sequence[str] = FINAL,
    senders: Sequence[HeadLike] | HeadLike | None = None,
    metric: Metric | str = logit_diff,
    direction: Literal["noising", "denoising"] = "noising",
    mlps: MLPs = "recomputed",
    positions: Positions = "all",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    store: str | PathLike[str] | None = None,
) -> HeadScores:
    """Patch the paths from one head to the receivers, sender by sender.

    Args:
        pairs: clean and corrupted prompts that align token for token.
        receivers: ``"final"``, the residual stream before the final norm, so the direct way to the logits; or
            the ``q``, ``k`` or ``v`` of heads (``"L26H2.q"``), or the inputs of MLPs (``"L5.mlp"``), all
            those of a list together. With grouped-query attention k and v are those of this query head alone.
        senders: the heads to try; left out, every head. One that comes before none of the receivers has no path
            to them: its score is 0, by the architecture and not by measurement.
        metric: what is measured, as in ``mh.sweep``.
        direction: ``"noising"``: the clean run with paths from the corrupted one, what is needed;
            ``"denoising"``: the corrupted run with paths from the clean one, what is enough.
        mlps: ``"recomputed"``: paths may lead through MLPs; ``"frozen"``: the direct edges alone.
        positions: where the sender's z changes, as in ``mh.sweep``.
        normalize, budget, seed, progress, store: as in ``mh.sweep``.

    Returns:
        metric(patched) - metric(base) of each sender [layer, head(, pos), prompt], in the metric's unit; with
        ``normalize`` divided by the mean difference of the other run from the base run.

    Raises:
        ValueError: if the pairs do not align, a receiver comes before every sender, or an argument does not fit;
            before anything is run.

    Wang et al. 2022 (arXiv 2211.00593), section 3.1; Goldowsky-Dill et al. 2023 (arXiv 2304.05969).

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> direct = mh.path_patch(model, pairs, senders=["L23H4", "L5H0"], progress=False)
    >>> abs(direct["L23H4"]["score"]) > abs(direct["L5H0"]["score"])
    True
    """
    metric = as_metric(metric)
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    group = parse_receivers(names, model)
    if len(names) > 1 and FINAL in names:
        raise ValueError(f'receivers: "final" must stand alone, got {names}; mh.path_matrix takes them one by one')
    values, labels, job, judge, about = _measure(
        model, pairs, [tuple(r for r in group if r is not None) or None], senders, metric, direction, mlps, positions,
        normalize, budget, progress, store,
    )  # fmt: skip
    result = _scores(
        values[:, :, 0] if labels else values[:, :, 0, 0],
        f"path patching to {', '.join(names)}, {direction}",
        {"pos": labels} if labels else None,
        job, judge, metric, normalize, seed, about | {"receivers": names}, "path_patch",
    )  # fmt: skip

    def again(other: Model, sample: Sequence[HeadId]) -> HeadScores:
        return path_patch(
            other, pairs, receivers=receivers, senders=sample, metric=metric, direction=direction, mlps=mlps,
            positions=positions, normalize=normalize, budget=budget, progress=False,
        )  # fmt: skip

    return with_precision(model, result, again)


@alone
def path_matrix(
    model: Model,
    pairs: PromptPairs,
    *,
    receivers: Sequence[str],
    senders: Sequence[HeadLike] | HeadLike | None = None,
    metric: Metric | str = logit_diff,
    direction: Literal["noising", "denoising"] = "noising",
    mlps: MLPs = "recomputed",
    normalize: bool = False,
    budget: int | str | None = None,
    seed: int = 0,
    progress: bool = True,
    store: str | PathLike[str] | None = None,
) -> HeadScores:
    """The paths from every sender to every receiver, each receiver on its own.

    Args:
        receivers: two or more names as in ``mh.path_patch``, ``"final"`` among them if you like.
        senders, metric, direction, mlps, normalize, budget, seed, progress, store: as in ``mh.path_patch``.

    Returns:
        As ``mh.path_patch``, with one more dimension, ``receiver``; 0 where there is no path.
        ``mh.plots.path_matrix`` draws it.

    Raises:
        ValueError: as ``mh.path_patch``.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> matrix = mh.path_matrix(
    ...     model, pairs, receivers=["final", "L26H2.q"], senders=["L23H4", "L20H1"], progress=False
    ... )
    >>> matrix.extra_dims
    ('receiver',)
    """
    metric = as_metric(metric)
    names = [receivers] if isinstance(receivers, str) else list(receivers)
    groups = [None if receiver is None else (receiver,) for receiver in parse_receivers(names, model)]
    values, _, job, judge, about = _measure(
        model, pairs, groups, senders, metric, direction, mlps, "all", normalize, budget, progress, store
    )
    result = _scores(
        values[:, :, :, 0],
        f"paths from heads to receivers, {direction}",
        {"receiver": names},
        job, judge, metric, normalize, seed, about | {"receivers": names}, "path_matrix",
    )  # fmt: skip

    def again(other: Model, sample: Sequence[HeadId]) -> HeadScores:
        return path_matrix(
            other, pairs, receivers=receivers, senders=sample, metric=metric, direction=direction, mlps=mlps,
            normalize=normalize, budget=budget, progress=False,
        )  # fmt: skip

    return with_precision(model, result, again)


def _measure(
    model: Model,
    pairs: PromptPairs,
    groups: Sequence[Group],
    senders: Any,
    metric: Metric,
    direction: str,
    mlps: MLPs,
    positions: Positions,
    normalize: bool,
    budget: int | str | None,
    progress: bool,
    store: str | PathLike[str] | None,
) -> tuple[Float[np.ndarray, "layer head group place prompt"], list[Any], Job, Judge, dict[str, Any]]:
    """Every sender's effect through every group of receivers."""
    if not isinstance(pairs, PromptPairs):
        raise ValueError(f"pairs is a {type(pairs).__name__}; path patching needs mh.PromptPairs")
    if direction not in ("noising", "denoising"):
        raise ValueError(f'direction is {direction!r}; choose "noising" or "denoising"')
    if mlps not in ("recomputed", "frozen"):
        raise ValueError(f'mlps is {mlps!r}; choose "recomputed" or "frozen"')
    check_reached([receiver for group in groups for receiver in group or ()], senders, model)
    names = [[FINAL] if group is None else [str(receiver) for receiver in group] for group in groups]
    interrupted = False
    with ExitStack() as keep_open:
        job = prepare(
            model, pairs, Patch(), metric=metric, heads=senders, positions=positions,
            base="clean" if direction == "noising" else "corrupted", budget=budget, progress=progress,
            store=store, keep_open=keep_open, about={"receivers": names, "mlps": mlps},
        )  # fmt: skip
        judge = Judge(metric, job.base, job.source)
        warn_of_answers(job, metric)
        scale = judge.distance() if normalize else 1.0
        paths = _Paths(job, groups, mlps)
        values = np.full((model.n_layers, model.n_heads, len(groups), len(job.places), len(job.tokens)), np.nan)
        finished = {} if job.ledger is None else job.ledger.finished()
        bar = Bar(total=len(job.units), disable=not progress, leave=False, desc=f"paths from {len(job.heads)} heads")
        try:
            with bar:
                for units in paths.waves():
                    if not all(f"{head} {place}" in finished for head, place in units):
                        finals = in_halves(paths.run, units)
                        changes = np.stack([judge(final) for final in finals], axis=1)
                        news = {f"{h} {p}": change for (h, p), change in zip(units, changes, strict=True)}
                        finished |= news
                        if job.ledger is not None:
                            job.ledger.commit(news)
                    for head, place in units:
                        values[head.layer, head.head, :, place] = finished[f"{head} {place}"] / scale
                    bar.update(len(units))
        except KeyboardInterrupt:
            interrupted = True
            done = int(np.isfinite(values).any((2, 4)).sum())
            warn(f"interrupted after {done} of {len(job.units)} senders; the rest are NaN")
    labels = [place.label for place in job.places if place.label is not None]
    if labels:
        values[..., ~inside(job.places)] = np.nan
    about = {"direction": direction, "mlps": mlps, "positions": positions if isinstance(positions, str)
             else list(positions), "senders": "all" if senders is None else [str(head) for head in job.heads],
             "interrupted": interrupted}  # fmt: skip
    return values, labels, job, judge, about


class _Paths:
    """Both runs of path patching for some senders at a time."""

    def __init__(self, job: Job, groups: Sequence[Group], mlps: MLPs) -> None:
        self.job, self.groups = job, groups
        self.mlps: MLPs = mlps
        check_frozen(job.base, job.at)
        self.receivers = sorted({r for group in groups if group for r in group}, key=str)

    def waves(self) -> list[list[Unit]]:
        """Senders that go together: of one place, in the order of their layers."""
        stack = self.job.plan.stack
        if not self.receivers:
            stack *= max(1, self.job.plan.width // self.job.at.shape[1])
        heads = sorted(self.job.heads)
        return [
            [(head, place) for head in heads[start : start + stack]]
            for place in range(len(self.job.places))
            for start in range(0, len(heads), stack)
        ]

    def run(self, units: Sequence[Unit]) -> list[Float[Tensor, "sender prompt position d_model"]]:
        """Final states of the second run, for each group of receivers."""
        news, starts = zip(*(new_z(self.job, head, place, None) for head, place in units), strict=True)
        first, step = torch.stack(starts).amin(0), self.job.plan.rows
        parts = []
        for begin in range(0, len(first), step):
            rows = slice(begin, begin + step)
            senders = [(head, new[rows]) for (head, _), new in zip(units, news, strict=True)]
            parts.append(self._some_prompts(rows, senders, first[rows]))
        return [torch.cat(of_group, dim=1) for of_group in zip(*parts, strict=True)]

    def _some_prompts(self, rows: slice, senders: Sequence[tuple[HeadId, Tensor]], start: Tensor) -> list[Tensor]:
        job, at = self.job, self.job.at[rows]
        pos = job.tokens.ids.shape[1]
        finals: dict[Group, Tensor] = {}
        if None in self.groups:
            read = [(head, new.gather(1, at[..., None].expand(-1, -1, new.shape[-1]))) for head, new in senders]
            arrived = Frozen(job.base, rows, at, self.mlps).run(read, final=True)
            finals[None] = arrived.final  # type: ignore[assignment]
        if self.receivers:
            window = Window.from_start(start, at, job.model.layout, pos)
            taken = [(head, window.take(new)) for head, new in senders]
            inputs = Frozen(job.base, rows, window.positions, self.mlps).run(taken, self.receivers).inputs
            wave, unchanged = Wave(job.base, rows, window), job.base.final_at(job.at)[rows]
            for group in self.groups:
                if group is not None:
                    finals[group] = _second_run(wave, unchanged, len(senders), group, inputs)
        return [finals[group] for group in self.groups]


def _second_run(
    wave: Wave, unchanged: Tensor, senders: int, group: tuple[Receiver, ...], inputs: dict[Receiver, Tensor]
) -> Float[Tensor, "sender prompt position d_model"]:
    """The base run with the inputs of a group of receivers replaced; as it is for senders without a path."""
    copies = [
        [Edit(r.layer, r.site, r.head, inputs[r][i]) for r in group if r in inputs and i < len(inputs[r])]
        for i in range(senders)
    ]
    final = unchanged.expand(senders, *unchanged.shape).clone()
    if reached := [i for i, copy in enumerate(copies) if copy]:
        final[reached] = wave.run([copies[i] for i in reached])
    return final


def _scores(
    values: np.ndarray,
    name: str,
    extra: dict[str, list[Any]] | None,
    job: Job,
    judge: Judge,
    metric: Metric,
    normalize: bool,
    seed: int,
    about: dict[str, Any],
    kind: str,
) -> HeadScores:
    return HeadScores.from_values(
        values,
        name=name,
        unit="share of the difference" if normalize else getattr(metric, "unit", ""),
        kind=kind,
        cluster=job.tokens.cluster,
        extra=extra,
        null=getattr(metric, "null", 0.0),
        seed=seed,
        provenance=job.model.provenance()
        | {"metric": name_of(metric), "prompts": job.fingerprint(), "n_prompts": len(job.tokens), "seed": seed,
           "normalize": normalize}
        | about,
        variables={"base_metric": (("prompt",), judge.base_value.cpu().numpy())},
    )  # fmt: skip
