"""``HeadId`` and ``Mlp``, the names of nodes; functions that check them, find key/value heads and draw random heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, SupportsIndex, runtime_checkable

import numpy as np
from jaxtyping import Bool

_PATTERN = re.compile(r"[Ll](\d+)[Hh](\d+)")


class WrongHead(ValueError):
    """A head that cannot be read or that the model does not have; an analysis adds its name and the argument."""

    def __init__(self, message: str, head: object = None) -> None:
        super().__init__(message)
        self.head = head


@dataclass(frozen=True, order=True)
class HeadId:
    """One attention head. Layers and heads count from zero: layer 9, head 6 prints as ``L9H6``.

    >>> HeadId.parse("L9H6")
    HeadId(layer=9, head=6)
    >>> str(HeadId(9, 6))
    'L9H6'
    """

    layer: int
    head: int

    def __post_init__(self) -> None:
        if not (isinstance(self.layer, int) and isinstance(self.head, int)):
            raise ValueError(f"layer and head must be integers; got layer {self.layer!r}, head {self.head!r}")
        if self.layer < 0 or self.head < 0:
            raise ValueError(f"layer and head count from 0; got layer {self.layer}, head {self.head}")

    def __str__(self) -> str:
        return f"L{self.layer}H{self.head}"

    @classmethod
    def parse(cls, head: HeadLike) -> HeadId:
        """Read ``"L9H6"``, ``(9, 6)`` or a ``HeadId``."""
        if isinstance(head, HeadId):
            return head
        if isinstance(head, str):
            if match := _PATTERN.fullmatch(head.strip()):
                return cls(int(match[1]), int(match[2]))
        elif _is_pair(head):
            return cls(int(head[0]), int(head[1]))
        numbers = re.findall(r"\d+", head) if isinstance(head, str) else []
        meant = f' Did you mean "L{numbers[0]}H{numbers[1]}"?' if len(numbers) == 2 else ""
        raise WrongHead(f'head {head!r} is not a head; write "L9H6", (9, 6) or HeadId(9, 6).{meant}', head)


HeadLike = HeadId | str | tuple[int, int]


@runtime_checkable
class OfHeads(Protocol):  # a result: the first heads of HeadScores, or the heads of a group or a test
    @property
    def heads(self) -> Any: ...


Heads = Iterable[HeadLike] | HeadLike | OfHeads


def check_head(head: HeadLike, n_layers: int, n_heads: int) -> HeadId:
    """Parse one head and check that a model of this size has it."""
    parsed = HeadId.parse(head)
    if parsed.layer >= n_layers or parsed.head >= n_heads:
        swapped = parsed.head < n_layers and parsed.layer < n_heads
        meant = f'. Did you mean "L{parsed.head}H{parsed.layer}"?' if swapped else ""
        sizes = f"layers 0..{n_layers - 1} with heads 0..{n_heads - 1}"
        raise WrongHead(f"head {parsed} is out of range: this model has {sizes}{meant}", head)
    return parsed


def check_heads(heads: Heads | None, n_layers: int, n_heads: int) -> tuple[HeadId, ...]:
    """Heads that a model of this size has, in order of layer and head, each once; ``None`` means every head."""
    return tuple(sorted(parse_heads(heads, n_layers, n_heads)))


def parse_heads(heads: Heads | None, n_layers: int, n_heads: int) -> tuple[HeadId, ...]:
    """The heads that ``check_heads`` returns, in the order in which they are named."""
    if heads is None:
        return tuple(HeadId(layer, head) for layer in range(n_layers) for head in range(n_heads))
    attribute: Any = getattr(heads, "heads", heads)
    named: Any = attribute() if callable(attribute) else attribute
    one = isinstance(named, (str, HeadId)) or _is_pair(named) or not isinstance(named, Iterable)
    each: Any = [named] if one else named
    parsed = tuple(dict.fromkeys(check_head(head, n_layers, n_heads) for head in each))
    if not parsed:
        raise ValueError("heads is empty; name at least one head, or leave it out to use every head")
    return parsed


def named_heads(
    heads: Heads | None, n_layers: int, n_heads: int
) -> tuple[Bool[np.ndarray, "layer head"], tuple[HeadId, ...] | Literal["all"]]:
    """A mask of the named heads, and their entry in the provenance: ``"all"`` if heads are left out."""
    mask, selected = np.zeros((n_layers, n_heads), dtype=bool), check_heads(heads, n_layers, n_heads)
    mask[tuple(zip(*((head.layer, head.head) for head in selected), strict=True))] = True
    return mask, "all" if heads is None else selected


def _is_pair(head: object) -> bool:
    """Whether this is a pair of integers, including numpy's."""
    return isinstance(head, tuple) and len(head) == 2 and all(isinstance(part, SupportsIndex) for part in head)


def kv_head(head: int, n_heads: int, n_kv_heads: int) -> int:
    """The key/value head that a query head reads under grouped-query attention."""
    return head // (n_heads // n_kv_heads)


def matched_heads(
    heads: Sequence[HeadId], excluded: Collection[HeadId], n_layers: int, n_heads: int, seed: Sequence[int]
) -> tuple[HeadId, ...]:
    """Random heads for comparison, one for each of ``heads``: from its layer, or from the nearest with heads left.
    The ``excluded`` heads, which include ``heads``, are not drawn.
    """
    free = [head for head in check_heads(None, n_layers, n_heads) if head not in set(excluded)]
    if len(free) < len(heads):
        raise ValueError(f"{len(heads)} heads need as many random heads to compare with; only {len(free)} are left")
    layers: dict[int, list[HeadId]] = {layer: [] for layer in range(n_layers)}
    for i in np.random.default_rng(seed).permutation(len(free)):
        layers[free[i].layer].append(free[i])
    drawn = [layers[head.layer].pop() if layers[head.layer] else None for head in heads]
    for i, head in enumerate(heads):
        if drawn[i] is None:
            nearest = min((layer for layer in layers if layers[layer]), key=lambda layer: abs(layer - head.layer))
            drawn[i] = layers[nearest].pop()
    return tuple(head for head in drawn if head is not None)


def random_sets(
    heads: Sequence[HeadId], excluded: Collection[HeadId], n_layers: int, n_heads: int, *, draws: int, seed: int
) -> dict[str, tuple[HeadId, ...]]:
    """Several draws of ``matched_heads``, named "random 1", "random 2" and so on."""
    return {f"random {i + 1}": matched_heads(heads, excluded, n_layers, n_heads, [seed, i]) for i in range(draws)}


@dataclass(frozen=True, order=True)
class Mlp:
    """The MLP of a layer; it prints as ``L9.mlp``."""

    layer: int

    def __str__(self) -> str:
        return f"L{self.layer}.mlp"


Node = HeadId | Mlp
