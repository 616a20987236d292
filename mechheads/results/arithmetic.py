"""Sums and differences of the datasets of head scores, their products with numbers, and how two scores agree.

If scores are means over prompts, the values are combined prompt by prompt and every statistic is computed again, with
the left side's seed. The null value goes through the same operation (a difference of two untested scores is
tested against 0); without one there are no p values. Scores that are not means keep interval and p value when they are
combined with a number, and have none when they are combined with each other.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Float

from mechheads.messages.arguments import check_at_least
from mechheads.messages.notices import Wrapped
from mechheads.results.dataset import build, of_means
from mechheads.results.stats import Bounds

OPERATIONS: dict[str, Callable] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}

Side = xr.Dataset | float


def check_aligned(left: xr.Dataset, right: xr.Dataset, prompts: bool = False) -> None:
    """Check that two scores have the same heads and labels, and optionally the same prompts."""
    names = f"{left.attrs['name']!r} and {right.attrs['name']!r} do not align"
    mine, theirs = (
        {"n_layers": each.sizes["layer"], "n_heads": each.sizes["head"], "extra_dims": _extra_dims(each)}
        for each in (left, right)
    )
    for size in mine:
        if mine[size] != theirs[size]:
            how = "; with .select(), choose a label of the dimension that only one has" * (size == "extra_dims")
            raise ValueError(f"{names}: {size} is {mine[size]} and {theirs[size]}{how}")
    for dim in _extra_dims(left):
        if left[dim].values.tolist() != right[dim].values.tolist():
            raise ValueError(f"{names}: their labels of {dim} differ")
    if not prompts:
        return
    if _is_mean(left) != _is_mean(right):
        raise ValueError(f"{names}: only one of them is a mean over prompts")
    if _is_mean(left):
        mine, theirs = left.sizes["prompt"], right.sizes["prompt"]
        if mine != theirs:
            raise ValueError(f"{names}: {mine} and {theirs} prompts")
        if left["cluster"].values.tolist() != right["cluster"].values.tolist():
            raise ValueError(f"{names}: their prompts' clusters differ")
        mine, theirs = _prompts(left), _prompts(right)
        if mine and theirs and mine != theirs:
            raise ValueError(f"{names}: their prompts differ")


def combine(left: Side, right: Side, symbol: str) -> xr.Dataset:
    """The dataset of a sum, difference, product or quotient."""
    op = OPERATIONS[symbol]
    first, *others = sides = [side for side in (left, right) if isinstance(side, xr.Dataset)]
    if symbol in "*/" and (others or (symbol == "/" and right is first)):
        raise ValueError(
            f"{_name(left)} {symbol} {_name(right)}: scores can only be multiplied with a number or divided by one; "
            "their .scores and .values are arrays"
        )
    if others:
        check_aligned(first, others[0], prompts=True)
    elif symbol == "/" and isinstance(right, float) and right == 0:
        raise ValueError(f"{first.attrs['name']!r} cannot be divided by zero")
    metadata: dict[str, Any] = {
        "name": f"{_name(left)} {symbol} {_name(right)}",
        "unit": _unit(left, right, symbol),
        "kind": "+".join(dict.fromkeys("+".join(each.attrs["kind"] for each in sides).split("+"))),
        "provenance": {"operation": symbol, "left": _provenance(left), "right": _provenance(right)}
        | {key: value for key, value in _stored_provenance(first).items() if key == "versions"},
        "extra": {dim: first[dim].values.tolist() for dim in _extra_dims(first)},
    }
    with np.errstate(invalid="ignore"):
        score, low, high, *values = (
            op(_array(left, name), _array(right, name))
            for name in ("score", "ci_low", "ci_high", *(["values"] if _is_mean(first) else []))
        )
    if values:
        mine, theirs = _statistics(left, symbol), _statistics(right, symbol)
        test = {
            "seed": json.loads(first.attrs["statistics"])["seed"],
            "null": _null(mine["null"], theirs["null"], symbol),
            "rounding": (max if symbol in "+-" else op)(mine["rounding"], theirs["rounding"]),
            "bounds": _bounds(mine["bounds"], theirs["bounds"], symbol),
        }
        return of_means(values[0], first["cluster"].values.tolist(), metadata, **test)
    statistics = {"score": score}
    if not others:
        statistics |= {"ci_low": np.minimum(low, high), "ci_high": np.maximum(low, high)}
        statistics |= {name: first[name].values for name in ("p_value", "p_family")}
    return build(statistics, **metadata)


def _extra_dims(scores: xr.Dataset) -> tuple[str, ...]:
    return tuple(str(dim) for dim in scores["score"].dims[2:])


def _stored_provenance(scores: xr.Dataset) -> dict[str, Any]:
    return json.loads(scores.attrs["provenance"])


def _prompts(scores: xr.Dataset) -> Any:
    """The fingerprint of the prompts; if one relation is selected, the fingerprint of its prompts."""
    provenance = _stored_provenance(scores)
    prompts, relation = provenance.get("prompts"), provenance.get("selected", {}).get("relation")
    return prompts[relation] if isinstance(prompts, dict) and isinstance(relation, str) else prompts


def _is_mean(scores: xr.Dataset) -> bool:
    return "statistics" in scores.attrs


def _array(side: Side, variable: str) -> Any:
    return side[variable].values if isinstance(side, xr.Dataset) else side


def _statistics(side: Side, symbol: str) -> dict[str, Any]:
    """Null, rounding and bounds of a side; the two bounds of a number are the number itself."""
    if not isinstance(side, xr.Dataset):
        return {"null": side, "rounding": 0.0 if symbol in "+-" else abs(side), "bounds": Bounds(side, side)}
    recorded = json.loads(side.attrs["statistics"])
    return {"rounding": 0.0} | recorded | {"bounds": Bounds.of(recorded.get("bounds"))}


def _null(mine: float | None, theirs: float | None, symbol: str) -> float | None:
    if mine is None or theirs is None:
        return 0.0 if symbol == "-" and mine is theirs else None
    return OPERATIONS[symbol](mine, theirs)


def _bounds(one: Bounds | None, two: Bounds | None, symbol: str) -> Bounds | None:
    """The bounds of a combination; a difference of two shares, or a multiple of one, is treated as a share."""
    if one is None or two is None:
        return None
    with np.errstate(invalid="ignore"):
        ends = [float(OPERATIONS[symbol](np.float64(a), np.float64(b))) for a in one[:2] for b in two[:2]]
    paired = symbol == "-" and one.share and two.share and one == two and one.low == 0
    multiple = symbol in "*/" and (one.share or two.share) and one.share != two.share and one.low >= 0
    low, high = min(ends), max(ends)
    return Bounds.of((low, high, paired or multiple)) if low < high else None


def _name(side: Side) -> str:
    if not isinstance(side, xr.Dataset):
        return f"{side:g}"
    name = side.attrs["name"]
    return f"({name})" if any(f" {symbol} " in name for symbol in OPERATIONS) else name


def _provenance(side: Side) -> Any:
    if not isinstance(side, xr.Dataset):
        return side
    return {name: side.attrs[name] for name in ("name", "kind", "unit")} | _stored_provenance(side)


def _unit(left: Side, right: Side, symbol: str) -> str:
    mine, *theirs = (side.attrs["unit"] for side in (left, right) if isinstance(side, xr.Dataset))
    if theirs and mine != theirs[0]:
        raise ValueError(
            f"{_name(left)!r} is in {mine} and {_name(right)!r} in {theirs[0]}; {symbol!r} needs scores in the same "
            "unit"
        )
    return mine


@dataclass(frozen=True)
class Comparison(Wrapped):
    """Agreement of two scores over the same heads; made by ``HeadScores.compare``.

    Attributes:
        pearson, spearman: correlation over the cells that both measured; NaN if it is not defined.
        overlap: the share of the ``k`` largest of one score that are also among the ``k`` largest of the other.
        k: how many count as the largest.
        n_heads: how many cells both measured: heads, or heads times labels if there is an extra dimension.
        names: the names of the two scores.
    """

    pearson: float
    spearman: float
    overlap: float
    k: int
    n_heads: int
    names: tuple[str, str]

    def __repr__(self) -> str:
        chance = self.k / self.n_heads if self.n_heads else float("nan")
        return (
            f"{self.names[0]!r} against {self.names[1]!r} over {self.n_heads} heads: "
            f"Pearson {self.pearson:.3f}, Spearman {self.spearman:.3f}, "
            f"top-{self.k} overlap {self.overlap:.0%} (by chance {chance:.0%})"
        )


def compare(
    left: Float[np.ndarray, " cell"], right: Float[np.ndarray, " cell"], k: int, names: tuple[str, str]
) -> Comparison:
    """Compare two score vectors cell by cell, over the cells where both are finite."""
    from scipy.stats import rankdata

    check_at_least(1, k=k)
    both = np.isfinite(left) & np.isfinite(right)
    left, right = left[both], right[both]
    k = min(k, len(left))
    shared = np.intersect1d(_largest(left, k), _largest(right, k))
    return Comparison(
        pearson=_correlation(left, right),
        spearman=_correlation(rankdata(left), rankdata(right)),
        overlap=len(shared) / k if k else float("nan"),
        k=k,
        n_heads=len(left),
        names=names,
    )


def _largest(values: np.ndarray, k: int) -> np.ndarray:
    return np.argsort(-values, kind="stable")[:k]


def _correlation(left: np.ndarray, right: np.ndarray) -> float:
    if len(left) < 2 or np.ptp(left) == 0 or np.ptp(right) == 0:
        return float("nan")
    return float(np.corrcoef(left, right)[0, 1])
