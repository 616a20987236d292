"""Numbers have the digits that their interval earns."""

from __future__ import annotations

import math

import numpy as np
import pytest

from mechheads.results.digits import fixed, rounded


@pytest.mark.parametrize(
    ("value", "low", "high", "unit", "text"),
    [
        (0.698410, 0.598648, 0.811056, "share restored", "70% [60%, 81%]"),
        (0.190151, 0.158809, 0.226353, "share restored", "19% [16%, 23%]"),
        (-0.118571, -0.145113, -0.101613, "share", "-12% [-15%, -10%]"),
        (1.483563, 1.177481, 1.798225, "nats", "1.5 nats [1.2, 1.8]"),
        (0.2, 0.002, 0.5, "", "0.200 [0.002, 0.500]"),
        (0.2, -0.002, 0.5, "", "0.2 [0.0, 0.5]"),
        (12345.6, 11000.0, 14000.0, "tokens", "12300 tokens [11000, 14000]"),
        (0.0123456, math.nan, math.nan, "", "0.012"),
        (0.0, math.nan, math.nan, "logits", "0 logits"),
        (1.0, 1.0, 1.0, "gate", "1.00 gate [1.00, 1.00]"),
        (4.23e299, math.nan, math.nan, "", "4.2e+299"),
        (math.inf, math.nan, math.nan, "", "inf"),
    ],
)
def test_a_narrower_interval_earns_more_digits(value, low, high, unit, text):
    assert rounded(value, low, high, unit) == text


def test_the_interval_spans_four_to_forty_steps_of_the_last_digit():
    rng = np.random.default_rng(0)
    for width in 10 ** rng.uniform(-4, 4, 200):
        text = rounded(0.0, -width / 2, width / 2)
        end = text.rpartition(" ")[2].rstrip("]")
        step = 10.0 ** -len(end.partition(".")[2]) if "." in end else 10.0 ** (len(end) - len(end.rstrip("0")))
        if "." in end or step > 1:
            assert width / step < 40 + 1e-9, (width, text)
        assert float(end) == pytest.approx(width / 2, abs=max(step, width / 4) * 0.51 + 1e-12)


def test_a_rounded_zero_has_no_sign():
    assert fixed(-0.001, 2) == "0.00" and fixed(1234.5, -2) == "1200"
