"""The figure of agreement: which number stands in which cell, what is pale, and nothing read as markup."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from mechheads.plots import view_agreement

NAN = float("nan")
ROWS = [
    ("phi", "patching", 0.8, 0.6, 0.9),
    ("phi", "ships_scaling", 0.5, -0.1, 0.8),
    ("phi", "<b>", NAN, NAN, NAN),
    ("patching", "ships_scaling", -0.4, -0.6, -0.2),
    ("patching", "<b>", 0.2, NAN, NAN),
    ("ships_scaling", "<b>", 0.0, -0.3, 0.3),
]


def table(rows: list[tuple[str, str, float, float, float]] = ROWS) -> pd.DataFrame:
    return pd.DataFrame([(*row, 270) for row in rows], columns=["view", "other", "spearman", "ci_low", "ci_high", "n"])


def cells(trace: Any) -> dict[tuple[int, int], float]:
    return {(row, column): z for (row, column), z in np.ndenumerate(np.array(trace.z)) if np.isfinite(z)}


def test_every_pair_has_its_cell_below_the_diagonal() -> None:
    figure: Any = view_agreement(table())
    sure, unsure = figure.data
    assert figure.layout.xaxis.ticktext == ("phi", "patching", "ships scaling")
    assert figure.layout.yaxis.ticktext == ("patching", "ships scaling", "&lt;b&gt;")
    assert cells(sure) == {(0, 0): 0.8, (1, 1): -0.4}
    assert cells(unsure) == {(1, 0): 0.5, (2, 1): 0.2, (2, 2): 0.0}
    assert sure.texttemplate == unsure.texttemplate == "%{z:.2f}"
    assert figure.layout.yaxis.range == (2.5, -0.5)
    assert (figure.layout.coloraxis.cmin, figure.layout.coloraxis.cmax) == (-1, 1)
    assert figure.layout.title.text == "Rank correlation of views of the same heads"


def test_what_may_be_nothing_is_pale_and_its_number_grey() -> None:
    sure, unsure = view_agreement(table()).data
    assert unsure.opacity < 0.5 and sure.opacity is None
    assert (unsure.textfont.color, sure.textfont.color) == ("#8a8a8a", None)


def test_hover_tells_interval_and_number_of_heads() -> None:
    sure, unsure = view_agreement(table()).data
    assert sure.text[0][0] == "<b>phi and patching</b><br>ρ = 0.80 [0.60, 0.90]<br>270 heads"
    assert unsure.text[2][1] == "<b>patching and &lt;b&gt;</b><br>ρ = 0.20, no interval<br>270 heads"


def test_the_order_within_a_row_does_not_matter() -> None:
    """A pair stands below the diagonal whichever of the two comes first in its row."""
    turned = [(b, a, *rest) if i == 3 else (a, b, *rest) for i, (a, b, *rest) in enumerate(ROWS)]
    one, other = view_agreement(table()), view_agreement(table(turned))  # type: ignore[arg-type]
    assert cells(one.data[0]) == cells(other.data[0])
    assert one.layout.xaxis.ticktext == other.layout.xaxis.ticktext


@pytest.mark.parametrize(
    ("correlations", "said"),
    [
        (table([]), "has no rows; give a row for every two views"),
        (table().drop(columns="ci_low"), "no column 'ci_low'; give the result of Atlas.agreement"),
        (table([*ROWS, ("patching", "phi", 0.1, 0.0, 0.2)]), "'patching' and 'phi' twice"),
        (table([("phi", "phi", 1.0, 1.0, 1.0)]), "'phi' and 'phi' twice"),
    ],
)
def test_what_cannot_be_drawn(correlations: pd.DataFrame, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        view_agreement(correlations)
