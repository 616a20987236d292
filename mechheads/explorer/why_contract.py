"""What the page gets of why a head looks where it looks; ``contract`` has everything else."""

from __future__ import annotations

from typing import TypedDict


class Why(TypedDict):
    """Why a head attends from a query to a key: its score for the key minus that for the other keys, by parts.

    The score is that before softmax; the others are weighted by their share of the attention that they have together.
    The parts of either side and what is left of it sum to ``total``.
    """

    query: int
    key: int
    weight: float  # the attention to the key, a share
    total: float
    atQuery: WhySide
    atKey: WhySide


class Looked(Why):
    """A pair of tokens in a text of the atlas: its number in ``Shared.looked``, and why it was chosen."""

    text: int
    chosen: str


class WhySide(TypedDict):
    """What the residual stream at one token gives, the largest first."""

    parts: list[WhyPart]
    others: int  # how many parts are not listed
    rest: float  # their sum


class WhyPart(TypedDict):
    """A head, such as "L3H2", an MLP, such as "L4.mlp", or "embedding", "positions", "biases" or "position bias"."""

    name: str
    value: float
