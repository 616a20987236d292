"""Racing: the heads with the largest mean scores, without measuring every head on every prompt.

All heads are measured on a few prompts. Heads that can no longer be among the first are dropped, and the others are
measured on more prompts, half as many again at each look, until only the first heads are left or every prompt has been
used. The first heads are then measured on all prompts, so their scores are those of the exhaustive sweep.

At a look after n of C clusters of prompts, drawn at random without replacement, head i is compared with each head j on
the same clusters; y_c is the sum of a head's values over the prompts of cluster c, and d the difference y_j - y_i:

    i is behind j  if  mean(d) > (q + g (2 q^2 + 1) / 12) s sqrt((1 - n / C) / n)
    s^2 = ((n - 1) var(d) + 4 max(var(y_i), var(y_j))) / (n + 3)

Head i is dropped if it is behind as many heads as are wanted. The parts:

- 1 - n / C is the factor of a finite population: the prompts given are all there are.
- A variance from few prompts may be small by chance, so four degrees of freedom go to the larger variance of the two
  heads (Smyth 2004, "Linear Models and Empirical Bayes Methods").
- q is the quantile 1 - error / (looks x heads wanted) of Student's t with n + 3 degrees of freedom: each of the first
  heads has to pass every look (Maron & Moore 1997, "The Racing Algorithm", with Bonferroni's correction).
- Scores such as a KL have a long tail, which few prompts do not show: a head's mean is then low and its variance too. g
  is the skewness of the mean, the median over twice as many heads at the top as are wanted; half of the correction for
  skewness that ``results.stats.clustered_interval`` makes is added.

If a head's sum over every cluster can be estimated without running the head, such as by a gradient, only its difference
from the estimate has to be learned from the clusters used: y_c becomes y_c - e_c + mean(e), where e_c is the estimate,
and the mean is over all C clusters. This has the same mean over all clusters, and less variance if the estimate is good
(the difference estimator of survey sampling; Särndal et al. 1992, "Model Assisted Survey Sampling"). Where estimates
are large, they may also be wrong by more: s^2 is multiplied by how much more the estimates vary over all clusters than
over those used, if they do, for the one of the two heads for which this is more. All this is done at a look if the
heads in the lead then vary less against each other.

The error is asymptotic; docs/uncertainty.md reports it in simulation. A score that comes from one prompt in ten or
fewer is outside of what the first look can see: take ``first`` larger, or measure all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import t as student_t

from mechheads.messages.arguments import check_known

_PRIOR = 4
_GROWTH = 1.5


def _spread(sums: Float[np.ndarray, "head cluster"]) -> Float[np.ndarray, " head"]:
    """How much each head's difference from the others varies from cluster to cluster."""
    return (sums - sums.mean(0)).var(1)


@dataclass(frozen=True)
class Race:
    """How many heads to find by racing, and how surely; see ``top`` in ``mh.sweep``.

    Attributes:
        top: the number of heads to find.
        by: ``"score"`` for the largest scores, ``"absolute"`` for the largest absolute values.
        error: the probability that one of these heads is dropped.
        first: the number of prompts (or clusters of prompts) on which every head is measured. If a head's score comes
            from few prompts, take more: a head that does nothing on the first prompts may be dropped.

    Raises:
        ValueError: if one of them is not valid.

    >>> mh.patching.Race(5, by="absolute")
    Race(top=5, by='absolute', error=0.05, first=4)
    """

    top: int = 10
    by: Literal["score", "absolute"] = "score"
    error: float = 0.05
    first: int = 4

    def __post_init__(self) -> None:
        for name, least in (("top", 1), ("first", 2)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
                raise ValueError(f"{name} is {value!r}; it must be a whole number, {least} or more")
        check_known("by", self.by, ("score", "absolute"))
        if not 0 < self.error < 1:
            raise ValueError(f"error is {self.error!r}; it must be between 0 and 1, such as 0.05")

    @classmethod
    def of(cls, top: int | Race | None) -> Race | None:
        """The race that a user asks for with ``top``."""
        return top if top is None or isinstance(top, Race) else cls(top)

    def check(self, heads: int, places: int) -> None:
        """Check that so many heads of a model, each changed at so many places, can race.

        Raises:
            ValueError: if there are several places, or no more heads than are wanted.
        """
        if places > 1:
            raise ValueError(
                f"top needs one score per head, but with these positions there are {places}; name one position, or "
                "leave top out"
            )
        if heads <= self.top:
            raise ValueError(
                f"top is {self.top}, but there are only {heads} heads to choose from; give a smaller number, or leave "
                "top out"
            )

    def looks(self, clusters: int) -> list[int]:
        """How many clusters have been measured at each look."""
        looks = [min(self.first, clusters)]
        while looks[-1] < clusters:
            looks.append(min(clusters, math.ceil(_GROWTH * looks[-1])))
        return looks

    def dropped(
        self,
        sums: Float[np.ndarray, "head cluster"],
        clusters: int,
        estimates: Float[np.ndarray, "head every_cluster"] | None = None,
    ) -> Bool[np.ndarray, " head"]:
        """Which heads can no longer be among the first, from their sums over the prompts of some of the clusters.

        Args:
            estimates: estimates of the sums over each cluster, in the order of ``sums`` and then those to come.
        """
        n = sums.shape[1]
        if n < 2 or n >= clusters:
            return np.zeros(len(sums), dtype=bool)
        sums, wider = self._closer(sums, estimates)
        mean = sums.mean(1)
        off = sums - mean[:, None]
        products = off @ off.T
        own = np.diag(products)
        most, widest = np.maximum(own[:, None], own), np.maximum(wider[:, None], wider)
        sign = np.where(mean < 0, -1.0, 1.0) if self.by == "absolute" else np.ones_like(mean)
        lead = sign * mean
        level = 1 - self.error / (self.top * (len(self.looks(clusters)) - 1))
        q = student_t.ppf(level, n - 1 + _PRIOR)
        q += self._skewness(sign[:, None] * off, lead) / math.sqrt(n) * (2 * q**2 + 1) / 12
        reach = q * math.sqrt((1 - n / clusters) / n / (n - 1 + _PRIOR))
        beaten = np.ones(len(sums), dtype=bool)
        for turned in (1.0, -1.0) if self.by == "absolute" else (1.0,):
            squares = own[:, None] + own - 2 * turned * sign[:, None] * products
            spread = np.sqrt(widest * (np.maximum(squares, 0) + _PRIOR / (n - 1) * most))
            behind = lead[:, None] - turned * mean > reach * spread
            np.fill_diagonal(behind, False)
            beaten &= behind.sum(0) >= self.top
        return beaten

    def _closer(
        self, sums: Float[np.ndarray, "head cluster"], estimates: Float[np.ndarray, "head every_cluster"] | None
    ) -> tuple[Float[np.ndarray, "head cluster"], Float[np.ndarray, " head"]]:
        """Sums with the same mean over all clusters and less variance, and by how much each variance may be too small.

        The sums themselves, and ones, if the estimates do not help.
        """
        as_it_is = np.ones(len(sums))
        if estimates is None:
            return sums, as_it_is
        n, off = sums.shape[1], estimates - estimates.mean(1, keepdims=True)
        seen, whole = (off[:, :n] ** 2).mean(1), (off**2).mean(1)
        less = sums - off[:, :n]
        wider = np.where(whole > seen, whole / np.maximum(seen, np.finfo(float).tiny), as_it_is)
        first = self.leaders(less.mean(1))
        helps = (wider[first] * _spread(less[first])).sum() < _spread(sums[first]).sum()
        return (less, wider) if helps else (sums, as_it_is)

    def leaders(self, mean: Float[np.ndarray, " head"]) -> Int[np.ndarray, " leader"]:
        """The heads at the top, twice as many as are wanted."""
        return np.argsort(-np.abs(mean) if self.by == "absolute" else -mean)[: 2 * self.top]

    def _skewness(self, off: Float[np.ndarray, "head cluster"], lead: Float[np.ndarray, " head"]) -> float:
        """The median skewness of the heads in the lead, from their deviations; 0 if it is negative."""
        first = off[self.leaders(lead)]
        squared = (first**2).mean(1)
        cubed = (first**3).mean(1)[squared > 0] / squared[squared > 0] ** 1.5
        return max(0.0, float(np.median(cubed))) if len(cubed) else 0.0
