"""The metric of a sweep's final states, prompt by prompt, compared with the base run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.engine.reading import Reading
from mechheads.limits import DEFAULT_LIMITS, Limits
from mechheads.metrics.base import Metric, MetricContext, MetricInfo, check_value, name_of, read_positions
from mechheads.metrics.basic import IN_CACHE
from mechheads.model.backends.parts import moved
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HeadCache


class Evaluator:
    """Computes the metric of final states and its difference from the base run, in parts that fit into memory.

    Args:
        base: the base run; ``source``: the source run, if there is one.

    Raises:
        ValueError: if the metric of the base run is not finite or is not one number per prompt.
    """

    def __init__(
        self, metric: Metric, base: HeadCache, source: HeadCache | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self.metric, self.base, self.source, self._limits = metric, base, source, limits
        self.model = base.need_model()
        self.reading = Reading.of(metric, self.model, base.tokens.ids.shape[1])
        self.at, self.mask = read_positions(metric, base.tokens)
        self._takes_copies = MetricInfo.of(metric).copies
        few = self.reading.activation is None and MetricInfo.of(metric).vocab == "answers"
        self._tokens, self._vocab = _answer_vocab(base.tokens) if few else (base.tokens, None)
        self._logits_a_prompt = self.at.shape[1] * (self.reading.width if self._vocab is None else len(self._vocab))
        self._memory: Tensor | None = None
        self.base_states = self.reading.values(base, self.at, limits)
        step = max(1, self._limits.logits_at_once // self._logits_a_prompt)
        self._rows = [slice(start, start + step) for start in range(0, len(self.mask), step)]
        self._shared: dict[int, dict[str, Tensor]] = {}
        self._kept = self._read(self.base_states[self._rows[0]]) if len(self._rows) == 1 else None
        self._base = self.value(self.base_states[None])[0]
        self.base_value = self._finite(self._base, "the unchanged run")

    def __call__(self, final: Float[Tensor, "copy prompt position d_model"]) -> Float[np.ndarray, "copy prompt"]:
        """metric(final) - metric(base) for each copy and prompt; exactly 0 for a copy that equals the base run.

        If the metric is not finite for one prompt of a copy, the whole copy is NaN.
        """
        change = torch.zeros(len(final), len(self.mask), dtype=torch.float64, device=final.device)
        changed = (final != self.base_states).flatten(1).any(1).cpu()
        if changed.all():
            change = self.value(final) - self._base
        elif changed.any():
            some = moved(changed.nonzero()[:, 0], final.device)
            change[some] = self.value(final[some]) - self._base
        return change.masked_fill(~change.isfinite().all(1, keepdim=True), torch.nan).cpu().numpy()

    def value(self, final: Float[Tensor, "copy prompt position d_model"]) -> Float[Tensor, "copy prompt"]:
        """The metric of each copy and prompt."""
        parts = []
        for rows in self._rows:
            base = self._read(self.base_states[rows]) if self._kept is None else self._kept
            tokens, mask = self._tokens.rows(rows), self.mask[rows]
            copies = min(len(final), max(1, self._limits.logits_at_once // (len(mask) * self._logits_a_prompt)))
            unembeds = self.reading.activation is None and self._vocab is None
            if unembeds and (self._memory is None or len(self._memory) < copies * mask.numel()):
                self._memory = self.model.backend.logit_memory(copies * mask.numel())
            values, shared = [], self._shared.setdefault(rows.start, {}) if len(self._rows) == 1 else {}
            for some in final[:, rows].split(copies):
                values.append(self._of_copies(self._read(some, self._memory), base, tokens, mask, shared).double())
            parts.append(torch.cat(values))
        return torch.cat(parts, dim=1)

    def _of_copies(
        self, logits: Float[Tensor, "copy prompt position d"], base: Tensor, *context: Any
    ) -> Float[Tensor, "copy prompt"]:
        """The metric of some copies, in memory of its own; on a CPU, of as many at a time as its cache holds."""
        if not self._takes_copies:
            values = [self.metric(one, MetricContext(base.clone(), *context)) for one in logits]
            return torch.stack([check_value(self.metric, value, logits.shape[1]) for value in values])
        at_once = max(1, IN_CACHE // max(1, logits[0].numel())) if logits.device.type == "cpu" else len(logits)
        return torch.cat(
            [
                check_value(self.metric, self.metric(some, MetricContext(base, *context)), logits.shape[1], len(some))
                for some in logits.split(at_once)
            ]
        )

    def _finite(self, value: Tensor, of: str) -> Tensor:
        """The values on the CPU, which are checked."""
        value = value.cpu()
        if not value.isfinite().all():
            raise ValueError(f"metric {name_of(self.metric)} gave values that are not finite for {of}")
        return value

    def distance(self) -> float:
        """metric(source) - metric(base), averaged over prompts.

        Raises:
            ValueError: if there is no source run, or the metric is the same for both runs.
        """
        if self.source is None:
            raise ValueError("normalize=True needs two runs; give mh.PromptPairs, or leave normalize out")
        states = self.reading.values(self.source, self.at, self._limits)
        source = self._finite(self.value(states[None])[0], "the other run")
        distance = float((source - self.base_value).mean())
        if abs(distance) < 1e-6:
            raise ValueError(
                f"normalize=True: metric {name_of(self.metric)} is the same for both runs, so there is no difference "
                "to divide by; leave normalize out, or give other prompts"
            )
        return distance

    def _read(
        self, states: Float[Tensor, "*copy prompt position d"], into: Tensor | None = None
    ) -> Float[Tensor, "*copy prompt position width"]:
        """The logits of final states, or a head's pattern or z, in float32 or wider."""
        if self.reading.activation is None:
            return self.model.backend.unembed(states, into, self._vocab)
        return states.to(torch.promote_types(states.dtype, torch.float32), copy=True)


def _answer_vocab(tokens: Tokens) -> tuple[Tokens, Int[Tensor, " some"]]:
    """The prompts with their answers renumbered within the answer tokens, and these tokens."""
    here, device = tokens.on_cpu, tokens.ids.device
    given = {name: ids for name in ("answer", "wrong") if (ids := getattr(here, name)) is not None}
    vocab = torch.cat(list(given.values())).unique() if given else here.ids.new_zeros(1)
    renumbered = {name: torch.searchsorted(vocab, ids) for name, ids in given.items()}
    return replace(here, **renumbered).on(device), moved(vocab, device)
