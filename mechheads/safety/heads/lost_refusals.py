"""How far refusals become less likely without each head, beyond what its ablation does to any answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float

from mechheads.engine.evaluate import Evaluator
from mechheads.engine.job import Job, Spec, make_ready
from mechheads.engine.run import run
from mechheads.heads import HeadId, HeadLike
from mechheads.interventions.base import Intervention
from mechheads.ledger.sweep_key import NO_STORE, Store
from mechheads.messages.interrupted import stop_if
from mechheads.metrics.base import Metric, metric as declare
from mechheads.metrics.basic import kl_divergence
from mechheads.model.model import Model
from mechheads.patching.self_repair import measure_repair
from mechheads.prompts.prompts import Prompts
from mechheads.results.scores import HeadScores
from mechheads.safety.heads.groups import Groups
from mechheads.safety.requests.openings import OpeningLogProb

Heads = Sequence[HeadLike] | HeadLike | None


@dataclass(frozen=True)
class Lost:
    """What was measured.

    Attributes:
        lost: how far R falls, less what the ablation does to the answer to the look-alike.
        direct: the part of R's fall that goes directly to the logits.
    """

    lost: Float[np.ndarray, "layer head prompt"]
    direct: Float[np.ndarray, "layer head prompt"]
    cluster: list[str]
    about: dict[str, Any]

    @classmethod
    def of(cls, lost: np.ndarray, direct: np.ndarray, found: HeadScores) -> Lost:
        about = {k: v for k, v in found.provenance.items() if k not in ("intervention", "metric")}
        return cls(lost, direct, found.dataset["cluster"].values.tolist(), about)


@dataclass(frozen=True, eq=False)
class RefusalLoss:
    """Harmful requests that end with the opening of a refusal, and how a head is changed.

    Attributes:
        harmful: the requests with the opening; ``answered``: their look-alikes with the model's answers, None if
            nothing is subtracted.
        opening: R, the log-probability of the opening.
        groups: which heads are changed together.
        store: where finished heads are stored.
    """

    model: Model
    harmful: Prompts
    answered: Prompts | None
    intervention: Intervention
    opening: OpeningLogProb
    groups: Groups
    seed: int
    store: Store

    def measure(self, heads: Heads) -> Lost:
        """The total and the direct effect of every head.

        Raises:
            KeyboardInterrupt: if Ctrl-C came before the first head was finished.
        """
        every, store = self.groups.units(heads), self.store
        found = self._change(every)
        stopped = found.provenance["interrupted"]
        if stopped:
            every, store = tuple(head for head in every if head not in set(found.missing)), NO_STORE
            stop_if(not every)
        change = found.dataset["values"].values
        moved = 0.0
        if self.answered is not None:
            job, evaluator = self._job(self.answered, self._shift, every, store=store)
            measured = run(job, evaluator)
            moved = self.groups.spread(measured.values[:, :, 0])
            found = found.with_provenance(interrupted=stopped or measured.interrupted)
        return Lost.of(-change[:, :, 0] - moved, -change[:, :, 1], found)

    def _change(self, heads: Sequence[HeadId]) -> HeadScores:
        """The total and the direct change of R."""
        return measure_repair(self._job(self.harmful, self.opening, heads, store=self.store)[0])

    @property
    def _shift(self) -> Metric:
        """Ships over as many tokens as the opening has."""
        return declare(reads=self.opening.reads, unit="nats", null=None)(kl_divergence)

    def _job(self, prompts: Prompts, metric: Metric, heads: Sequence[HeadId], *, store: Store) -> tuple[Job, Evaluator]:
        """A job that changes each group of heads, and what evaluates it."""
        spec = Spec(prompts, self.intervention, metric, heads, seed=self.seed)
        job = replace(make_ready(self.model, spec, store=store), together=self.groups.size)
        return job, Evaluator(metric, job.base, limits=spec.limits)
