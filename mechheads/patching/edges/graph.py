"""The graph of a model's residual stream: its senders, its receivers, and which senders come before which receiver.

Senders write to the residual stream: the embedding, heads and MLPs. Receivers read it: the query, key and value input
of each head, the input of each MLP, and the logits. Every sender reaches every receiver that comes after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool

from mechheads.model.model import Model

INPUT, LOGITS = "input", "logits"
READS = ("q", "k", "v")


@dataclass(frozen=True)
class EdgeGraph:
    """The senders and receivers of a model, in the order in which it computes them.

    Attributes:
        n_layers, n_heads: the sizes of the model.
        mlps: whether it has MLPs.
        parallel: whether a layer's MLP does not read what the heads of its layer write.

    >>> graph = EdgeGraph(n_layers=1, n_heads=1, mlps=True, parallel=False)
    >>> graph.senders, graph.receivers
    (('input', 'L0H0', 'L0.mlp'), ('L0H0.q', 'L0H0.k', 'L0H0.v', 'L0.mlp', 'logits'))
    >>> graph.n_edges
    8
    """

    n_layers: int
    n_heads: int
    mlps: bool
    parallel: bool

    @classmethod
    def of(cls, model: Model) -> EdgeGraph:
        """The graph of a model."""
        return cls(model.n_layers, model.n_heads, model.has_mlps, model.parallel_mlps)

    @cached_property
    def senders(self) -> tuple[str, ...]:
        """``"input"``, then the heads and the MLP of each layer, such as ``"L3H2"`` and ``"L3.mlp"``."""
        names = [INPUT]
        for layer in range(self.n_layers):
            names += [f"L{layer}H{head}" for head in range(self.n_heads)]
            names += [f"L{layer}.mlp"] * self.mlps
        return tuple(names)

    @cached_property
    def receivers(self) -> tuple[str, ...]:
        """For each layer, all heads' ``q``, ``k`` and ``v``, such as ``"L3H2.q"``, and its MLP; then ``"logits"``."""
        names = []
        for layer in range(self.n_layers):
            names += [f"L{layer}H{head}.{read}" for read in READS for head in range(self.n_heads)]
            names += [f"L{layer}.mlp"] * self.mlps
        return (*names, LOGITS)

    def heads_of(self, layer: int) -> slice:
        """Where the heads of a layer are among the senders; its MLP follows them."""
        first = 1 + layer * (self.n_heads + self.mlps)
        return slice(first, first + self.n_heads)

    def senders_of(self, layers: range) -> slice:
        """Where the heads and MLPs of some layers are among the senders; the embedding belongs to layer 0."""
        first, last = self.heads_of(layers.start), self.heads_of(layers.stop)
        return slice(first.start if layers.start else 0, last.start)

    def reads_of(self, layer: int) -> slice:
        """Where the inputs of a layer's heads are among the receivers; its MLP follows them."""
        first = layer * (3 * self.n_heads + self.mlps)
        return slice(first, first + 3 * self.n_heads)

    def before_heads(self, layer: int) -> int:
        """How many senders come before the heads of a layer."""
        return self.heads_of(layer).start

    def before_mlp(self, layer: int) -> int:
        """How many senders come before the MLP of a layer."""
        heads = self.heads_of(layer)
        return heads.start if self.parallel else heads.stop

    @cached_property
    def edges(self) -> Bool[np.ndarray, "sender receiver"]:
        """Which senders come before which receivers."""
        real = np.zeros((len(self.senders), len(self.receivers)), dtype=bool)
        for layer in range(self.n_layers):
            reads = self.reads_of(layer)
            real[: self.before_heads(layer), reads] = True
            if self.mlps:
                real[: self.before_mlp(layer), reads.stop] = True
        real[:, -1] = True
        return real

    @property
    def n_edges(self) -> int:
        return int(self.edges.sum())
