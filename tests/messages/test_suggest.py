"""Names that are close to known ones."""

from __future__ import annotations

import pytest

from mechheads.messages.arguments import did_you_mean

KNOWN = ["logit_diff", "log_prob", "kl_divergence", "country_to_capital", "country_to_language"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("logit_dif", "logit_diff"),
        ("Logit Diff", "logit_diff"),
        ("logprob", "log_prob"),
        ("capital", "country_to_capital"),
        ("country_capital", "country_to_capital"),
        ("nothing like it", ""),
        (3, ""),
    ],
)
def test_the_closest_known_name_is_asked_for(given: object, meant: str) -> None:
    assert did_you_mean(given, KNOWN) == (f' Did you mean "{meant}"?' if meant else "")


def test_with_nothing_known_nothing_is_asked() -> None:
    assert did_you_mean("logit_diff", []) == ""
