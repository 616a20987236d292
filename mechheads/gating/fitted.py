"""``Gates``, a gate for every head and seed of each fit with loss curves, and the settings of fits."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal

import numpy as np
import pandas as pd
from jaxtyping import Float

from mechheads.messages.arguments import AboveZero, NotNegative, Within, check_arguments
from mechheads.results.kinds import KINDS
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult

Reduce = Literal["mean", "sum"]
Rate = float | tuple[float, float]
ClipSide = Literal["pulled", "both"]


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds, checked to be different."""
    number = isinstance(seeds, Integral)
    listed: list[Any] = list(range(int(seeds))) if number else list(seeds) if isinstance(seeds, Iterable) else []
    if not listed or len(set(listed)) < len(listed) or not all(isinstance(s, Integral) and int(s) >= 0 for s in listed):
        raise ValueError(f"seeds is {seeds!r}; give a number, at least 1, or a list of different integers from 0 up")
    return tuple(map(int, listed))


def check_updates(updates: int | Sequence[int], n: int = 3) -> list[int]:
    """The number of updates of each of ``n`` fits."""
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
        lr_regularised: the learning rate of the fits "keep" and "drop"; ``contrast_gates`` has one fit, with ``lr``.
        regularisation: the paper's lambda, the strength of the pull. ``fit_gates`` pulls gates open and shut with it;
            ``contrast_gates`` pulls them open, or shut if it is negative.
        regulariser: whether the pull acts on the ``"mean"`` or the ``"sum"`` of the logits over heads.
        reduce: whether the log-probability of a target is the ``"mean"`` or the ``"sum"`` over its tokens.
        clip_logits: a logit is pulled only until it reaches + or - this value.
        clip_side: with ``"pulled"``, the limit applies only on the side to which logits are pulled. With ``"both"``,
            logits beyond it on the other side are not pulled either, and a gate that starts there (1 in 28) or drifts
            there rarely comes back.
        clip_gradient: the norm to which a seed's gradient is clipped; None for no clipping.
        clip_difference: the largest difference between the two log-probabilities of a pair that counts in
            ``contrast_gates``, in nats.
        tolerance: the fit of a seed ends early on a plateau. Its objective is averaged over every 50 updates (or a few
            more, to make whole passes); if neither of the last two averages is better than all earlier ones by this
            many nats, the fit ends. None to make all updates.
        order_seed: the seed of the order of items.
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
        check_arguments(type(self), vars(self))
        check_rate(self.lr, "lr")
        check_rate(self.lr_regularised, "lr_regularised")
        if not self.regularisation:
            raise ValueError("regularisation is 0; give a number that is not 0")


USUAL = FitSettings()


@dataclass(frozen=True)
class Rules:
    """The settings that all sets of gates of a fit share."""

    seeds: tuple[int, ...]
    batch: int
    fit: FitSettings = USUAL

    def metadata(self, updates: list[int], *, unused: str) -> dict[str, Any]:
        """All settings, for provenance and the key of a store, without ``unused``, which this kind of fit ignores."""
        fit = self.fit
        rates = {name: check_rate(getattr(fit, name), name) for name in ("lr", "lr_regularised")}
        settings = {"seeds": self.seeds, "batch": self.batch, "updates": updates} | asdict(fit) | rates
        del settings[unused]
        return settings


_FAR = 1.0
"""A seed counts as stuck if its loss is this many nats or more above the loss of the median seed."""


@dataclass(frozen=True, eq=False, repr=False)
class Gates(TableResult):
    """The gates of every head, for each fit and seed; made by ``fit_gates`` or ``contrast_gates``.

    Attributes:
        name: the name of the task.
        fits: "none", "keep" (G+) and "drop" (G-), or "contrast".
        seeds: the seeds of the starting gates.
        values: the gates, from 0 to 1; NaN for a fit that has not begun. ``gates["keep"]`` has the gates of one fit.
        losses: one row per fit, seed and update (counted from 1): ``loss`` and ``objective``, without and with the
            regulariser, in nats.
        provenance: the model, task and settings that repeat the fits.
    """

    KIND = "gates"
    unit = KINDS[KIND].unit

    name: str
    fits: tuple[str, ...]
    seeds: tuple[int, ...]
    values: Float[np.ndarray, "fit seed layer head"]
    losses: pd.DataFrame
    provenance: dict[str, Any]

    def __getitem__(self, fit: str) -> Float[np.ndarray, "seed layer head"]:
        """The gates of one fit."""
        if fit not in self.fits:
            raise ValueError(f"there is no fit {fit!r}; choose among {', '.join(map(repr, self.fits))}")
        return self.values[self.fits.index(fit)]

    @property
    def table(self) -> pd.DataFrame:
        """The same as ``losses``."""
        return self.losses

    @property
    def stuck(self) -> dict[str, tuple[int, ...]]:
        """For each fit, the seeds that ended with a loss a nat or more above the median seed.

        The gates of such a seed say little about heads: usually, their gradient is nearly zero. The loss at the end is
        the mean over the last tenth of the updates. With fewer than three seeds, no seed counts as stuck.
        """
        stuck = {}
        for fit in self.fits:
            rows = self.losses[self.losses["fit"] == fit]
            curves = [np.asarray(rows["loss"][rows["seed"] == seed]) for seed in self.seeds]
            ends = np.array([curve[-max(1, len(curve) // 10) :].mean() if len(curve) else np.nan for curve in curves])
            far = ends > np.median(ends) + _FAR if len(ends) > 2 else np.zeros(len(ends), bool)
            stuck[fit] = tuple(seed for seed, is_far in zip(self.seeds, far, strict=True) if is_far)
        return stuck

    def scores(self, fit: str) -> HeadScores:
        """The gates of one fit as head scores: means over seeds, with intervals between 0 and 1."""
        return self.as_scores(self[fit], f"gates of {fit}, {self.name}", self.KIND)

    def as_scores(self, values: Float[np.ndarray, "seed layer head"], name: str, kind: str) -> HeadScores:
        return HeadScores.from_values(
            np.moveaxis(values, 0, -1),
            name=name,
            kind=kind,
            cluster=[f"seed {seed}" for seed in self.seeds],
            provenance=self.provenance,
        )

    def __repr__(self) -> str:
        _, seeds, layers, heads = self.values.shape
        stopped = ", interrupted" if self.interrupted else ""
        return (
            f"<Gates of {self.name!r}: fits {', '.join(self.fits)}; {seeds} seed{'s' * (seeds != 1)}, "
            f"{layers} layer{'s' * (layers != 1)} x {heads} heads{stopped}>"
        )

    def _shown(self) -> tuple[pd.DataFrame, list[str]]:
        last = self.losses.groupby(["fit", "seed"], sort=False).last().reset_index()
        table = pd.DataFrame(last.groupby("fit", sort=False)[["update", "loss", "objective"]].mean())
        return table, ["The last update, mean over seeds:"]
