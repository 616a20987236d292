"""What a metric reads of a run, and its values for a sweep's final states compared with the base run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.heads import HeadId, Node, check_head
from mechheads.limits import DEFAULT_LIMITS, Limits
from mechheads.metrics import (
    IN_CACHE,
    Activation,
    Metric,
    MetricContext,
    MetricInfo,
    check_value,
    name_of,
    read_positions,
)
from mechheads.model.core import ModelCore
from mechheads.model.parts import Stopped, moved, until_stopped
from mechheads.prompts.tokens import Tokens
from mechheads.runs.head_cache import HeadCache, states_at, tokens_in_run, z_hooks


@dataclass(frozen=True)
class Reading:
    """What a metric reads, an activation or logits, how many numbers at a position, and how many blocks run for it."""

    activation: Activation | None
    blocks: int
    width: int

    @classmethod
    def of(cls, metric: Metric, model: ModelCore, pos: int) -> Reading:
        """The reading of a metric on prompts of ``pos`` tokens."""
        activation = MetricInfo.of(metric).read
        if activation is None:
            return cls(None, model.n_layers, model.d_vocab)
        head = check_head(activation.head, model.n_layers, model.n_heads)
        return cls(activation, head.layer + 1, pos if activation.site == "pattern" else model.d_head)

    @property
    def ahead(self) -> int:
        """How many layers have heads and MLPs that can change the metric."""
        return self.blocks - (self.activation is not None)

    def cost(self, layer: int) -> int:
        """How many blocks run for a change in a layer."""
        return self.blocks - layer if layer < self.ahead else 0

    def cost_of(self, unit: tuple[HeadId, int] | frozenset[HeadId]) -> int:
        """How many blocks a unit, or a set of heads that change together, runs."""
        return self.cost(min(head.layer for head in (unit if isinstance(unit, frozenset) else unit[:1])))

    def reached_by(self, nodes: tuple[HeadId, ...]) -> tuple[HeadId, ...]:
        """The heads that can change the metric."""
        reached = tuple(node for node in nodes if node.layer < self.ahead)
        if nodes and not reached:
            instead = f"give heads of layers 0..{self.ahead - 1}" if self.ahead else "choose a head of a later layer"
            raise ValueError(
                f"heads: none of them comes before {self.activation}, which the metric reads, so none can change it; "
                f"{instead}"
            )
        return reached

    def takes(self, node: Node, site: str) -> bool:
        """Whether a new value at a site of a head, or of an MLP, can change what the metric reads."""
        if node.layer < self.ahead or self.activation is None:
            return True
        return node == self.activation.head and self.activation.follows(site)

    def values(
        self, run: HeadCache, at: Int[Tensor, "prompt position"], limits: Limits
    ) -> Float[Tensor, "prompt position d"]:
        """A cached run's final states, or the activation that the metric reads, for which the prompts run again."""
        if self.activation is None:
            return run.final_at(at)
        model, ids, parts = run.need_model(), run.tokens.ids, list[Tensor]()
        head, site = self.activation.head, self.activation.site
        ablated = {each: run.z[each] for each in run.ablated}
        at_once = max(1, tokens_in_run(model, limits, ids.shape[1]) // ids.shape[1])
        for rows in torch.arange(len(ids), device=ids.device).split(at_once):

            def stop(value: Tensor, hook: Any, rows: Tensor = rows) -> None:
                parts.append(states_at(value[:, head.head] if site == "pattern" else value[:, :, head.head], at[rows]))
                raise Stopped

            hooks = [*z_hooks(model, ablated, rows), (model.hook_name(site, head.layer), stop)]
            whole = partial(model.backend.run, ids[rows], hooks)
            until_stopped(head.layer, whole)
        return torch.cat(parts)


class Evaluator:
    """Computes the metric of final states and its difference from the base run, in parts that fit into memory."""

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
        columns = self.reading.width if self._vocab is None else len(self._vocab)
        self._logits_a_prompt = self.at.shape[1] * columns
        self.base_states = self.reading.values(base, self.at, limits)
        step = max(1, self._limits.logits_at_once // self._logits_a_prompt)
        self._rows = [slice(start, start + step) for start in range(0, len(self.mask), step)]
        self._shared: dict[int, dict[str, Tensor]] = {}
        self._base_logits = self._read(self.base_states[self._rows[0]]) if len(self._rows) == 1 else None
        if self._base_logits is None:
            self._base = self.value(self.base_states[None])[0]
        else:
            context = self._base_logits, self._tokens, self.mask, self._shared.setdefault(0, {})
            self._base = self._of_copies(self._base_logits[None].clone(), *context)[0].double()
        self.base_value = self._finite(self._base, "the unchanged run")

    def __call__(self, final: Float[Tensor, "copy prompt position d_model"]) -> Float[np.ndarray, "copy prompt"]:
        """metric(final) - metric(base) for each copy and prompt; exactly 0 for a copy that equals the base run.
        If the metric is not finite for one prompt of a copy, the whole copy is NaN."""
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
            base = self._read(self.base_states[rows]) if self._base_logits is None else self._base_logits
            tokens, mask = self._tokens.rows(rows), self.mask[rows]
            copies = min(len(final), max(1, self._limits.logits_at_once // (len(mask) * self._logits_a_prompt)))
            values, shared = [], self._shared.setdefault(rows.start, {}) if len(self._rows) == 1 else {}
            for some in final[:, rows].split(copies):
                values.append(self._of_copies(self._read(some), base, tokens, mask, shared).double())
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
        """The values on the CPU, after a check that they are finite."""
        value = value.cpu()
        if not value.isfinite().all():
            raise ValueError(f"metric {name_of(self.metric)} gave values that are not finite for {of}")
        return value

    def distance(self) -> float:
        """metric(source) - metric(base), averaged over prompts."""
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

    def _read(self, states: Float[Tensor, "*copy prompt position d"]) -> Float[Tensor, "*copy prompt position width"]:
        """The logits of final states, or a head's pattern or z, in float32 or wider."""
        if self.reading.activation is None:
            return self.model.backend.unembed(states, self._vocab)
        return states.to(torch.promote_types(states.dtype, torch.float32), copy=True)


def _answer_vocab(tokens: Tokens) -> tuple[Tokens, Int[Tensor, " some"]]:
    """The prompts with their answers renumbered within the answer tokens, and these tokens."""
    here, device = tokens.on_cpu, tokens.ids.device
    answers = {name: ids for name in ("answer", "wrong") if (ids := getattr(here, name)) is not None}
    vocab = torch.cat(list(answers.values())).unique() if answers else here.ids.new_zeros(1)
    renumbered = {name: torch.searchsorted(vocab, ids) for name, ids in answers.items()}
    return replace(here, **renumbered).on(device), moved(vocab, device)
