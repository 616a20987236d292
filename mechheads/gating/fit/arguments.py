"""``FitSettings``: how gates are fitted; and checks of the arguments of the fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal

from mechheads.messages.arguments import AboveZero, NotNegative, Within, check_arguments

Reduce = Literal["mean", "sum"]
Rate = float | tuple[float, float]
ClipSide = Literal["pulled", "both"]


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds, each given once."""
    listed: list[Any] = list(seeds) if isinstance(seeds, Iterable) else list(range(seeds))
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(s, Integral) and int(s) >= 0 for s in listed):
        raise ValueError(f"seeds is {seeds!r}; give a number, at least 1, or a list of different integers from 0 up")
    return tuple(map(int, listed))


def check_updates(updates: int | Sequence[int], n: int = 3) -> list[int]:
    """The number of updates of each fit."""
    each: list[Any] = list(updates) if isinstance(updates, Iterable) else [updates] * n
    if len(each) != n or not all(isinstance(count, Integral) and int(count) >= 1 for count in each):
        many = f", or one for each of the {n} fits" if n > 1 else ""
        raise ValueError(f"updates is {updates!r}; give one number of at least 1{many}")
    return list(map(int, each))


def check_rate(rate: Rate, name: str) -> tuple[float, float]:
    """A learning rate at the start and at the end."""
    ends = (rate, rate) if isinstance(rate, Real) else tuple(rate)  # type: ignore[arg-type]
    if len(ends) != 2 or not all(isinstance(end, Real) and math.isfinite(end) for end in ends):
        raise ValueError(f"{name} is {rate!r}; give a learning rate, or (start, end)")
    start, end = map(float, ends)
    if start <= 0 or end < 0:
        raise ValueError(f"{name} is {rate!r}; it must be above 0 at the start, and not negative at the end")
    return start, end


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How gates are fitted: the ``fit`` argument of ``mh.fit_gates`` and ``mh.gating.contrast_gates``.

    The defaults are for real results; docs/roles.md compares them with the paper and its code.

    Attributes:
        lr: the learning rate of the first fit: one number, or (start, end), linear in between.
        lr_regularised: that of the two fits that pull; ``contrast_gates`` has one fit, with ``lr``.
        regularisation: the paper's lambda, the strength of the pull. ``fit_gates`` pulls gates open and shut with it;
            ``contrast_gates`` pulls them open, or shut if it is negative.
        regulariser: whether the pull acts on the ``"mean"`` or the ``"sum"`` of the logits over heads.
        reduce: whether the log-probability of a target is the ``"mean"`` or the ``"sum"`` over its tokens.
        clip_logits: a logit is pulled only until it reaches + or - this value.
        clip_side: with ``"pulled"``, logits beyond the value are left alone only on the side to which they are pulled.
            With ``"both"``, logits beyond it on the other side are not pulled either, and a gate that starts there (1
            in 28) or drifts there hardly ever comes back.
        clip_gradient: the norm to which a seed's gradient is clipped; None for no clipping.
        clip_difference: the largest difference between the two log-probabilities of a pair that counts in
            ``contrast_gates``, in nats.
        tolerance: a fit of a seed ends early on a plateau. Its objective is averaged over every 50 updates (or a little
            more); if neither of the last two averages is better than all before by this many nats, the fit ends. None
            to make all updates.
        order_seed: for the order of the items.

    Raises:
        ValueError: naming the first setting that is not valid.

    >>> task = mh.Task(["The capital of France is", "The capital of Italy is"], [" Paris", " Rome"])
    >>> fast = mh.gating.FitSettings(lr=0.3, lr_regularised=(0.5, 0.2), regularisation=0.3)
    >>> mh.fit_gates(model, task, seeds=2, updates=1, fit=fast).provenance["lr"]
    [0.3, 0.3]
    """

    lr: Rate = (0.1, 0.01)
    lr_regularised: Rate = (0.5, 0.1)
    regularisation: Annotated[float, Within()] = 0.1
    regulariser: Reduce = "mean"
    reduce: Reduce = "mean"
    clip_logits: AboveZero = 4.0
    clip_side: ClipSide = "pulled"
    clip_gradient: AboveZero | None = None
    clip_difference: AboveZero = 5.0
    tolerance: Annotated[float, Within(least=0)] | None = 0.001
    order_seed: NotNegative = 0

    def __post_init__(self) -> None:
        check_rate(self.lr, "lr")
        check_rate(self.lr_regularised, "lr_regularised")
        check_arguments(type(self), vars(self))
        if not self.regularisation:
            raise ValueError("regularisation is 0; give a number that is not 0")


USUAL = FitSettings()


@dataclass(frozen=True)
class Rules:
    """What all sets of gates of a fit share."""

    seeds: tuple[int, ...]
    batch: int
    fit: FitSettings = USUAL

    def about(self, updates: list[int], *, unused: str) -> dict[str, Any]:
        """All settings, for provenance and the key of a store, but the one that this kind of fit does not use."""
        fit = self.fit
        rates = {name: check_rate(getattr(fit, name), name) for name in ("lr", "lr_regularised")}
        settings = {"seeds": self.seeds, "batch": self.batch, "updates": updates} | asdict(fit) | rates
        del settings[unused]
        return settings
