"""Answers of a model without some of its heads, by workers: each condition is a unit."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8

from mechheads.engine.each import Each
from mechheads.generation.generate import Generated, generate_under
from mechheads.generation.sampling import Sampling
from mechheads.heads import HeadId
from mechheads.limits import Limits, current, settings
from mechheads.model.model import Model
from mechheads.prompts.prompts import Prompts
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.heads.ablations import Ablation


class HeadsOff(NamedTuple):
    """A condition: the heads that are ablated together, and how."""

    way: Ablation
    heads: Sequence[HeadId] = ()


@dataclass(frozen=True)
class Condition:
    """A condition and its name."""

    name: str
    off: HeadsOff

    def __str__(self) -> str:
        return f"the condition {self.name!r}"


@dataclass(frozen=True)
class Write:
    """Writes the answers under a condition; it can be sent to workers.

    Attributes:
        averaged: the prompts over which a mean ablation averages.
    """

    prompts: Prompts
    averaged: Prompts
    sampling: Sampling
    limits: Limits

    def __call__(self, model: Model, condition: Condition) -> UInt8[np.ndarray, " byte"]:
        run, (way, heads) = None, condition.off
        with settings(budget=self.limits):
            if way.kind == "mean":
                run = HeadCache.run(model, self.averaged, sites=("z",))
            changes = [way.changes(model, heads, run)]
            (found,) = generate_under(model, self.prompts, changes, self.sampling)
        return np.frombuffer(json.dumps([found.texts, found.ids, found.finished]).encode(), np.uint8)


def write_by_workers(
    model: Model,
    write: Write,
    conditions: Sequence[Condition],
    take: Callable[[int, Generated], object],
) -> bool:
    """Write the answers under several conditions; ``take`` gets the index of each condition and its answers.

    Returns:
        Whether Ctrl-C stopped the work after the conditions that were in flight.

    Raises:
        RuntimeError: if a condition ended every worker that tried it.
    """

    def taken(index: int, value: UInt8[np.ndarray, " byte"]) -> None:
        texts, ids, finished = json.loads(value.tobytes())
        take(index, Generated(tuple(texts), tuple(map(tuple, ids)), tuple(finished)))

    return Each(model, write, current().limits)(conditions, taken)
