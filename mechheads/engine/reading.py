"""What a metric reads of a run: the logits, or the pattern or the z of one head, at which the run ends."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mechheads.heads import HeadId, Node, check_head
from mechheads.limits import Limits
from mechheads.metrics.base import Activation, Metric, MetricInfo
from mechheads.model.backends.partial_block import Stopped, until_stopped
from mechheads.model.core import ModelCore
from mechheads.runs.head_cache import HeadCache, holding, states_at, tokens_in_run


@dataclass(frozen=True)
class Reading:
    """What a metric reads, and how far a run goes for it.

    Attributes:
        activation: a head's pattern or z; None for the logits.
        blocks: how many blocks run. Of the last one, only what comes before the activation.
        width: how many numbers are read at each position.
    """

    activation: Activation | None
    blocks: int
    width: int

    @classmethod
    def of(cls, metric: Metric, model: ModelCore, pos: int) -> Reading:
        """The reading of a metric of prompts of ``pos`` tokens.

        Raises:
            ValueError: if the model does not have the head.
        """
        activation = MetricInfo.of(metric).read
        if activation is None:
            return cls(None, model.n_layers, model.d_vocab)
        head = check_head(activation.head, model.n_layers, model.n_heads)
        return cls(activation, head.layer + 1, pos if activation.site == "pattern" else model.d_head)

    @property
    def ahead(self) -> int:
        """How many layers have heads and MLPs that can change what is read."""
        return self.blocks - (self.activation is not None)

    def cost(self, layer: int) -> int:
        """How many blocks run for a change in a layer."""
        return self.blocks - layer if layer < self.ahead else 0

    def reached_by(self, nodes: tuple[HeadId, ...]) -> tuple[HeadId, ...]:
        """The heads that can change what is read.

        Raises:
            ValueError: if none can.
        """
        found = tuple(node for node in nodes if node.layer < self.ahead)
        if nodes and not found:
            instead = f"give heads of layers 0..{self.ahead - 1}" if self.ahead else "choose a head of a later layer"
            raise ValueError(
                f"heads: none of them comes before {self.activation}, which the metric reads, so none can change it; "
                f"{instead}"
            )
        return found

    def takes(self, node: Node, site: str) -> bool:
        """Whether a new value of a site of a head, or of an MLP, changes what is read, if it reaches it."""
        if node.layer < self.ahead or self.activation is None:
            return True
        return node == self.activation.head and self.activation.follows(site)

    def values(
        self, run: HeadCache, at: Int[Tensor, "prompt position"], limits: Limits
    ) -> Float[Tensor, "prompt position d"]:
        """What is read of a cached run: its final states, or the activation, for which the run starts again."""
        if self.activation is None:
            return run.final_at(at)
        model, ids, parts = run.need_model(), run.tokens.ids, list[Tensor]()
        head, site = self.activation.head, self.activation.site
        held = {each: run.z[each] for each in run.held}
        at_once = max(1, tokens_in_run(model, limits, ids.shape[1]) // ids.shape[1])
        for rows in torch.arange(len(ids), device=ids.device).split(at_once):

            def stop(value: Tensor, hook: Any, rows: Tensor = rows) -> None:
                parts.append(states_at(value[:, head.head] if site == "pattern" else value[:, :, head.head], at[rows]))
                raise Stopped

            hooks = [*holding(model, held, rows), (model.hook_name(site, head.layer), stop)]
            whole = partial(model.backend.run, ids[rows], hooks)
            until_stopped(head.layer, whole)
        return torch.cat(parts)
