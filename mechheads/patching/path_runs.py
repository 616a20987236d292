"""Both runs of path patching, for some senders at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.engine.frozen_heads import Frozen, MLPs, Receiver, Sender
from mechheads.engine.job import Job, Unit
from mechheads.engine.row_layout import layout_of
from mechheads.engine.rows import Window
from mechheads.engine.run import UnitRuns
from mechheads.engine.wavefront import Edit, Wave
from mechheads.patching.receivers import Group
from mechheads.runs.head_cache import states_at


class Paths:
    """Does both runs of path patching, for some senders at a time."""

    def __init__(self, job: Job, groups: Sequence[Group], mlps: MLPs) -> None:
        self.job, self.groups = job, groups
        self.mlps: MLPs = mlps
        self._units = UnitRuns(job)
        self.receivers = sorted({r for group in groups if group for r in group}, key=str)

    def __call__(self, units: Sequence[Unit]) -> list[Float[Tensor, "sender prompt position d_model"]]:
        """The final states of the second run, for each group of receivers.

        Args:
            units: senders in the order of ``heads.in_order``, with their places.
        """
        changes = [change for unit in units for change in self._units.changes(unit)]
        first = torch.stack([start for _, _, start in changes]).amin(0)
        parts = []
        for rows in torch.arange(len(self.job.tokens), device=self.job.at.device).split(self.job.plan.rows):
            senders = [(node, new[rows]) for node, new, _ in changes]
            parts.append(self._some_prompts(rows, senders, first[rows]))
        return [torch.cat(of_group, dim=1) for of_group in zip(*parts, strict=True)]

    def _some_prompts(self, rows: Tensor, senders: Sequence[Sender], start: Tensor) -> list[Tensor]:
        job, at = self.job, self.job.at[rows]
        pos = job.tokens.ids.shape[1]
        finals: dict[Group, Tensor] = {}
        if None in self.groups:
            read = [(node, states_at(new, at)) for node, new in senders]
            arrived = Frozen(job.base, rows, at, self.mlps).run(read, final=True)
            finals[None] = arrived.final  # type: ignore[assignment]
        if self.receivers:
            window = Window.from_start(start, at, layout_of(job.model), pos)
            taken = [(node, window.take(new)) for node, new in senders]
            inputs = Frozen(job.base, rows, window.positions, self.mlps).run(taken, self.receivers).inputs
            wave, unchanged = Wave(job.base, rows, window), job.base.final_at(job.at)[rows]
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
