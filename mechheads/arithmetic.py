"""Sums, differences, products and ratios of head scores."""

from __future__ import annotations

import json
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from mechheads.scores import HeadScores

_NUMBER = (int, float)


class Arithmetic:
    """``+ - * /`` with a number, or with scores over the same heads, labels and prompts.

    Where scores are means over prompts, the values are combined prompt by prompt and every statistic is
    computed anew, with the left side's level and seed. A prompt on which a ratio divides
    by zero counts as not measured. The null goes through the same operation (a difference of two untested
    scores is tested against 0); where that gives no number, there is no p. Scores that are no means keep
    their interval and p under a number, and have none when combined with each other.
    """

    def __add__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.add, "+")

    def __radd__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.add, "+", reflected=True)

    def __sub__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.sub, "-")

    def __rsub__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.sub, "-", reflected=True)

    def __mul__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.mul, "*")

    def __rmul__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.mul, "*", reflected=True)

    def __truediv__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.truediv, "/")

    def __rtruediv__(self, other: Any) -> HeadScores:
        return _combine(self, other, operator.truediv, "/", reflected=True)


def check_aligned(left: HeadScores, right: HeadScores, prompts: bool = False) -> None:
    """Make sure that two scores lie over the same heads and labels, and on request the same prompts.

    Raises:
        ValueError: naming the first thing that differs.
    """
    for what in ("n_layers", "n_heads", "extra_dims"):
        mine, theirs = getattr(left, what), getattr(right, what)
        if mine != theirs:
            raise ValueError(f"{left.name!r} and {right.name!r} do not align: {what} is {mine} and {theirs}")
    for dim in left.extra_dims:
        if left.dataset[dim].values.tolist() != right.dataset[dim].values.tolist():
            raise ValueError(f"{left.name!r} and {right.name!r} do not align: their labels of {dim} differ")
    if not prompts:
        return
    if _is_mean(left) != _is_mean(right):
        raise ValueError(f"{left.name!r} and {right.name!r} do not align: only one of them is a mean over prompts")
    if _is_mean(left):
        mine, theirs = left.dataset.sizes["prompt"], right.dataset.sizes["prompt"]
        if mine != theirs:
            raise ValueError(f"{left.name!r} and {right.name!r} do not align: {mine} and {theirs} prompts")
        if left.dataset["cluster"].values.tolist() != right.dataset["cluster"].values.tolist():
            raise ValueError(f"{left.name!r} and {right.name!r} do not align: their prompts' clusters differ")
        mine, theirs = _prompts(left), _prompts(right)
        if mine and theirs and mine != theirs:
            raise ValueError(f"{left.name!r} and {right.name!r} do not align: their prompts differ")


def _prompts(scores: HeadScores) -> Any:
    """The fingerprint of the prompts; of those of one relation where one was selected."""
    prompts = scores.provenance.get("prompts")
    chosen = scores.provenance.get("selected", {}).get("relation")
    return prompts[chosen] if isinstance(prompts, dict) and isinstance(chosen, str) else prompts


def _combine(scores: Any, other: Any, op: Callable, symbol: str, reflected: bool = False) -> HeadScores:
    from mechheads.scores import HeadScores

    if isinstance(other, (int, float, np.integer, np.floating)) and not isinstance(other, bool):
        other = float(other)
        if symbol == "/" and not reflected and other == 0:
            raise ValueError(f"{scores.name!r} cannot be divided by zero")
    elif isinstance(other, HeadScores):
        check_aligned(scores, other, prompts=True)
    else:
        return NotImplemented
    left, right = (other, scores) if reflected else (scores, other)
    about: dict[str, Any] = {
        "name": f"{_name(left)} {symbol} {_name(right)}",
        "unit": _unit(scores, other, symbol, reflected),
        "kind": "+".join(dict.fromkeys(part for side in (left, right) for part in _kind(side))),
        "provenance": {"operation": symbol, "left": _provenance(left), "right": _provenance(right)}
        | {key: value for key, value in scores.provenance.items() if key == "versions"},
        "extra": {dim: scores.dataset[dim].values.tolist() for dim in scores.extra_dims},
    }
    with np.errstate(divide="ignore", invalid="ignore"):
        if _is_mean(scores):
            values = op(_array(left, "values"), _array(right, "values"))
            recorded = json.loads(scores.dataset.attrs["statistics"])
            options: dict[str, Any] = {name: recorded[name] for name in ("level", "seed")}
            options["null"] = _null(left, right, op, symbol)
            values = np.where(np.isfinite(values), values, np.nan) if symbol == "/" else values
            return HeadScores.from_values(values, cluster=scores.dataset["cluster"].values.tolist(), **about, **options)
        score = op(_array(left, "score"), _array(right, "score"))
        if isinstance(other, HeadScores) or (symbol == "/" and reflected):
            return HeadScores.from_scores(np.where(np.isfinite(score), score, np.nan), **about)
        ends = [op(_array(left, end), _array(right, end)) for end in ("ci_low", "ci_high")]
    return HeadScores.from_scores(
        score,
        ci_low=np.minimum(*ends),
        ci_high=np.maximum(*ends),
        p_value=scores.dataset["p_value"].values,
        **about,
    )


def _is_mean(scores: HeadScores) -> bool:
    return "statistics" in scores.dataset.attrs


def _array(side: HeadScores | float, variable: str) -> Any:
    return side if isinstance(side, _NUMBER) else side.dataset[variable].values


def _null(left: HeadScores | float, right: HeadScores | float, op: Callable, symbol: str) -> float | None:
    nulls = [
        side if isinstance(side, _NUMBER) else json.loads(side.dataset.attrs["statistics"])["null"]
        for side in (left, right)
    ]
    if symbol == "-" and nulls == [None, None]:
        return 0.0
    if None in nulls or (symbol == "/" and nulls[1] == 0):
        return None
    return op(*nulls)


def _name(side: HeadScores | float) -> str:
    if isinstance(side, _NUMBER):
        return f"{side:g}"
    name = side.name
    return f"({name})" if any(f" {symbol} " in name for symbol in "+-*/") else name


def _kind(side: HeadScores | float) -> list[str]:
    return [] if isinstance(side, _NUMBER) else side.kind.split("+")


def _provenance(side: HeadScores | float) -> Any:
    if isinstance(side, _NUMBER):
        return side
    return {"name": side.name, "kind": side.kind, "unit": side.unit, **side.provenance}


def _unit(scores: HeadScores, other: HeadScores | float, symbol: str, reflected: bool) -> str:
    if isinstance(other, _NUMBER):
        return f"1/({scores.unit})" if symbol == "/" and reflected else scores.unit
    mine, theirs = scores.unit, other.unit
    if symbol in "+-" and mine != theirs:
        raise ValueError(
            f"{scores.name!r} is in {mine} and {other.name!r} in {theirs}: "
            f"only scores in one unit can be joined by {symbol!r}"
        )
    if symbol in "+-":
        return mine
    if symbol == "*":
        return f"{mine} x {theirs}"
    return "ratio" if mine == theirs else f"{mine} per {theirs}"
