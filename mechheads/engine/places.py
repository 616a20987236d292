"""The positions at which a sweep changes a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mechheads.messages.arguments import did_you_mean
from mechheads.prompts.tokens import Tokens

Positions = Literal["all", "each"] | str | Sequence[str | int]


@dataclass(frozen=True)
class Place:
    """Where a head is changed: a label for the result, and the positions [prompt, pos] or None for all."""

    label: int | str | None
    at: Bool[Tensor, "prompt pos"] | None


def find_places(positions: Positions, tokens: Tokens) -> tuple[Place, ...]:
    """The places that ``positions`` asks for, one for each separate change.

    Raises:
        ValueError: if the prompts have no position of that name, or a position is given twice.
    """
    pos = torch.arange(tokens.ids.shape[1], device=tokens.ids.device)
    if positions == "all":
        return (Place(None, None),)
    if positions == "each":
        return tuple(Place(int(p), (pos == p) & tokens.mask) for p in pos)
    if not isinstance(positions, Sequence) or not len(positions):
        raise ValueError(f'positions is {positions!r}; give "all", "each", a name, or a list of names or token indices')
    names: list[str | int] = [positions] if isinstance(positions, str) else list(positions)
    each = {
        name: torch.full_like(tokens.lengths, name) if isinstance(name, int) else tokens.position(name)
        for name in names
    }
    found = {name: at for name, at in each.items() if at is not None}
    if unknown := [str(name) for name in names if name not in found]:
        known = ", ".join(tokens.positions)
        meant = did_you_mean(unknown[0], [*tokens.positions, "all", "each"])
        raise ValueError(
            f'positions: {unknown[0]!r} is not known; these prompts have {known} (or "all", "each"), or give a token '
            f"that each has once.{meant}"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"positions: {twice[0]!r} is given twice; name each position once")
    labels = [None] if isinstance(positions, str) else names
    if len({type(label) for label in labels}) > 1:
        labels = [str(label) for label in labels]
    places = []
    for label, at in zip(labels, found.values(), strict=True):
        places.append(Place(label, (pos == torch.where(at < 0, at + tokens.lengths, at)[:, None]) & tokens.mask))
    return tuple(places)


def by_place(
    places: Sequence[Place], values: Float[np.ndarray, "*rest place prompt"]
) -> tuple[Float[np.ndarray, "*found prompt"], dict[str, list[int | str]] | None]:
    """The values in the shape of a result, and the labels of the places if they have any."""
    labels = [place.label for place in places if place.label is not None]
    return (where_reached(places, values), {"pos": labels}) if labels else (values[..., 0, :], None)


def where_reached(
    places: Sequence[Place], values: Float[np.ndarray, "*rest place prompt"]
) -> Float[np.ndarray, "*rest place prompt"]:
    """The values, with NaN for every prompt that is too short to have the place."""
    if any(place.label is None or place.at is None for place in places):
        return values
    return np.where(
        np.stack([place.at.any(1).cpu().numpy() for place in places if place.at is not None]), values, np.nan
    )
