"""Numbers in sentences, with the digits that their interval earns."""

from __future__ import annotations

from math import floor, inf, isfinite, log10, nan

_STEPS = 4
"""An interval spans at least so many steps of the last digit, and fewer than ten times as many."""
_MORE = 2
"""Digits that are added at most, so that the end of an interval without 0 does not read as 0."""
_USUAL = 2
"""Significant digits of a number without an interval."""
_LEAST, _MOST = 1e-5, 1e12
"""Smaller and larger numbers are written with a power of ten."""


def rounded(value: float, low: float = nan, high: float = nan, unit: str = "") -> str:
    """A number with its interval, as text: the narrower the interval, the more digits.

    The interval spans 4 to 40 steps of the last digit: further digits would be chance. Without an interval, a number
    has two significant digits. Shares are percentages.

    Args:
        value: the number.
        low, high: the ends of its interval, in the same unit; NaN if there is none.
        unit: follows the number; a unit that begins with "share" makes it a percentage.

    >>> from mechheads.results.digits import rounded
    >>> rounded(0.698410, 0.598648, 0.811056, "share restored"), rounded(1.483563, 1.177481, 1.798225, "nats")
    ('70% [60%, 81%]', '1.5 nats [1.2, 1.8]')
    >>> rounded(0.0123456), rounded(12345.6, 11000, 14000)
    ('0.012', '12300 [11000, 14000]')
    """
    share = unit.startswith("share")
    if share:
        value, low, high = 100 * value, 100 * low, 100 * high
    end = "%" if share else ""
    has_ends = isfinite(low) and isfinite(high)
    places = _places(value, low, high) if has_ends else _places_of(value, _USUAL)
    ends = f" [{fixed(low, places)}{end}, {fixed(high, places)}{end}]" if has_ends else ""
    return f"{fixed(value, places)}{end}{f' {unit}' if unit and not share else ''}{ends}"


def fixed(value: float, places: int) -> str:
    """A number with so many decimal places; fewer than 0 round before the point.

    >>> from mechheads.results.digits import fixed
    >>> fixed(1234.5, -2), fixed(-0.001, 2), fixed(0.0000012, 7)
    ('1200', '0.00', '1.2e-06')
    """
    number = round(float(value), places)
    if 0 < abs(number) < _LEAST or _MOST <= abs(number) < inf:
        return f"{number:.{max(0, places + floor(log10(abs(number))))}e}"
    return f"{number + 0.0:.{max(0, places)}f}"


def _places(value: float, low: float, high: float) -> int:
    """How many decimal places an interval earns."""
    if high <= low:
        return _places_of(value, _USUAL + 1)
    places = -floor(log10((high - low) / _STEPS))
    near = min(abs(low), abs(high))
    if low > 0 or high < 0:
        places += next((more for more in range(_MORE) if round(near, places + more) > 0), _MORE)
    return places


def _places_of(value: float, digits: int) -> int:
    """Decimal places of so many significant digits."""
    return digits - 1 - floor(log10(abs(value))) if value and isfinite(value) else 0
