"""A metric applied to what a sweep gives back, prompt by prompt, against the unchanged run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadId
from mechheads.jobs import Job, Place
from mechheads.metrics import Metric, MetricContext, check_value, name_of, read_positions
from mechheads.resume import gather


class Judge:
    """Applies a metric to final states, some prompts at a time, against the base run.

    Raises:
        ValueError: if the metric's value for the base run is not finite or not one number a prompt.
    """

    _LOGITS = 2**26

    def __init__(self, metric: Metric, job: Job) -> None:
        self.metric, self.job = metric, job
        self.mask = read_positions(metric, job.tokens)[1]
        step = max(1, self._LOGITS // (job.at.shape[1] * job.model.d_vocab))
        self._rows = [slice(start, start + step) for start in range(0, len(job.tokens), step)]
        self._base_final = gather(job.base.final, job.at)
        self._kept = self._base_logits(self._rows[0]) if len(self._rows) == 1 else None
        self.base_value = self._finite(self.value(self._base_final), "the unchanged run")
        self.undefined: list[HeadId] = []

    def __call__(self, final: Float[Tensor, "prompt position d_model"], head: HeadId) -> np.ndarray:
        """The metric of changed final states, less that of the base run, for each prompt.

        Where it is not finite for any prompt, all are NaN and the head is noted in ``undefined``.
        """
        change = self.value(final) - self.base_value
        if not change.isfinite().all():
            self.undefined.append(head)
            change = torch.full_like(change, torch.nan)
        return change.cpu().numpy()

    def value(self, final: Float[Tensor, "prompt position d_model"]) -> Float[Tensor, " prompt"]:
        """The metric itself."""
        parts = []
        for rows in self._rows:
            base = self._base_logits(rows) if self._kept is None else self._kept
            context = MetricContext(base.clone(), self.job.tokens.rows(rows), self.mask[rows])
            part = self.metric(self.job.model.unembed(final[rows]), context)
            part = check_value(self.metric, part, len(self.mask[rows])).double()
            parts.append(part)
        return torch.cat(parts)

    def _finite(self, value: Tensor, of: str) -> Tensor:
        if not value.isfinite().all():
            raise ValueError(f"metric {name_of(self.metric)} gave values that are not finite for {of}")
        return value

    def distance(self) -> float:
        """The metric of the source run less that of the base run, averaged over prompts.

        Raises:
            ValueError: if there is no source run, or both give the same.
        """
        if self.job.source is None:
            raise ValueError("normalize needs two runs; give PromptPairs")
        source = self._finite(self.value(gather(self.job.source.final, self.job.at)), "the other run")
        distance = float((source - self.base_value).mean())
        if abs(distance) < 1e-6:
            raise ValueError("normalize: the metric is the same for both runs, so there is nothing to restore")
        return distance

    def inside(self, places: Sequence[Place]) -> np.ndarray:
        """Which prompts reach each place [place, prompt]: shorter ones have no such token."""
        return np.stack([place.at.any(1).cpu().numpy() for place in places if place.at is not None])

    def _base_logits(self, rows: slice) -> Tensor:
        return self.job.model.unembed(self._base_final[rows])
