"""``Node``: what circuits consist of, attention heads and MLPs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from mechheads.heads import HeadId, HeadLike, check_head, check_heads

_MLP = re.compile(r"[Ll](\d+)\.mlp")

Nodes = Literal["heads", "all"]
"""Which nodes are meant: heads, or heads and MLPs."""


@dataclass(frozen=True, order=True)
class Mlp:
    """The MLP of a layer; it prints as ``L9.mlp``.

    >>> str(Mlp(9))
    'L9.mlp'
    """

    layer: int

    def __str__(self) -> str:
        return f"L{self.layer}.mlp"


Node = HeadId | Mlp
NodeLike = HeadLike | Mlp


def in_order(nodes: Iterable[Node]) -> tuple[Node, ...]:
    """Nodes in the order in which a model computes them: by layer, heads before the MLP.

    >>> [str(node) for node in in_order([Mlp(0), HeadId(1, 0), HeadId(0, 2)])]
    ['L0H2', 'L0.mlp', 'L1H0']
    """
    return tuple(sorted(nodes, key=lambda node: (node.layer, isinstance(node, Mlp), getattr(node, "head", 0))))


def every_node(n_layers: int, n_heads: int, nodes: Nodes = "all") -> tuple[Node, ...]:
    """All nodes of a model of this size, in order."""
    mlps = [Mlp(layer) for layer in range(n_layers)] if nodes == "all" else []
    return in_order([*check_heads(None, n_layers, n_heads), *mlps])


def check_node(node: NodeLike, n_layers: int, n_heads: int) -> Node:
    """Parse a node and check that a model of this size has it.

    Raises:
        ValueError: if it cannot be parsed or the model does not have it.

    >>> check_node("L2.mlp", 3, 4), check_node("L2H1", 3, 4)
    (Mlp(layer=2), HeadId(layer=2, head=1))
    """
    if isinstance(node, str) and (match := _MLP.fullmatch(node.strip())):
        node = Mlp(int(match[1]))
    if not isinstance(node, Mlp):
        return check_head(node, n_layers, n_heads)
    if not 0 <= node.layer < n_layers:
        raise ValueError(f"{node} is out of range: this model has layers 0..{n_layers - 1}")
    return node
