"""The receivers of path patching: their names, and which senders reach them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from mechheads.engine.frozen_heads import Receiver
from mechheads.heads import check_heads
from mechheads.messages.suggest import did_you_mean
from mechheads.model.model import Model

FINAL = "final"
Group = tuple[Receiver, ...] | None
"""Receivers that are replaced together; None for the final residual stream."""


def parse_receivers(names: Sequence[str], model: Model) -> list[Receiver | None]:
    """The receivers with these names; None for ``"final"``."""
    if not names:
        raise ValueError('receivers is empty; give "final", inputs of heads such as "L26H2.q", or "L5.mlp"')
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"receivers: {sorted(twice)[0]!r} is given twice; name each receiver once")
    return [None if name == FINAL else _receiver(name, model) for name in names]


def _receiver(name: str, model: Model) -> Receiver:
    match = re.fullmatch(r"L(\d+)(?:H(\d+)\.([qkv])|\.mlp)", name) if isinstance(name, str) else None
    if match is None:
        raise ValueError(
            f'receivers: {name!r} is not a receiver; give "final", an input of a head such as "L26H2.q" (or .k, .v), '
            f'or of an MLP such as "L5.mlp".{_meant(name)}'
        )
    layer, head = int(match[1]), None if match[2] is None else int(match[2])
    if layer >= model.n_layers or (head is not None and head >= model.n_heads):
        raise ValueError(
            f"receivers: {name!r} does not exist; this model has layers 0..{model.n_layers - 1} and heads "
            f"0..{model.n_heads - 1}"
        )
    if head is None and not model.backend.d_mlp:
        raise ValueError(f"receivers: {name!r} does not exist; this model has no MLPs")
    return Receiver(layer, "mlp_out" if head is None else match[3], head)  # type: ignore[arg-type]


def _meant(name: object) -> str:
    """The sentence ``Did you mean "..."?`` for the receiver that a name may stand for, or nothing."""
    if not isinstance(name, str):
        return ""
    numbers, sites = re.findall(r"\d+", name), re.findall(r"[qkv](?=$|[^a-z])", name.lower())
    if len(numbers) == 2:
        return f' Did you mean "L{numbers[0]}H{numbers[1]}.{sites[0] if sites else "q"}"?'
    if len(numbers) == 1 and "mlp" in name.lower():
        return f' Did you mean "L{numbers[0]}.mlp"?'
    return did_you_mean(name, [FINAL])


def check_reached(receivers: Sequence[Receiver], senders: Any, model: Model) -> None:
    """Check that every receiver comes after at least one of the senders.

    Raises:
        ValueError: if one does not; the message says which heads could reach it.
    """
    first = min(head.layer for head in check_heads(senders, model.n_layers, model.n_heads))
    for receiver in receivers:
        last = receiver.layer - (receiver.head is not None or model.parallel_mlps)
        if first <= last:
            continue
        given = "no head" if senders is None else "none of the senders"
        other = "choose another receiver"
        if last >= 0:
            other = f"give senders of layer{'s 0..' + str(last) if last else ' 0'}"
        raise ValueError(f'receivers: {given} comes before "{receiver}", so there is no path to it; {other}')
