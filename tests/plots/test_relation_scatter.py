"""The scatter of static against dynamic scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import mechheads as mh
from mechheads.results.scores import HeadScores
from support.made_scores import made_scores, static_and_dynamic


def test_the_scatter_shows_every_head_and_template() -> None:
    static, dynamic = static_and_dynamic(np.random.default_rng(2))
    table: pd.DataFrame = mh.labels.score_correlations(static, dynamic)
    figure = mh.plots.static_dynamic(static, dynamic, table, title="<b>both</b>")
    (trace,) = figure.data
    assert len(trace.x) == len(trace.y) == 160
    np.testing.assert_allclose(trace.y[:80], dynamic.scores.values[:, :, 0, 0, 0].ravel())
    np.testing.assert_allclose(trace.x[80:], static.scores.values[:, :, 0].ravel())
    assert trace.text[5] == "<b>L1H1</b> t0"
    assert figure.layout.title.text == "&lt;b&gt;both&lt;/b&gt;"
    pooled = table.set_index("template").loc["all"]
    told = f"r<br>r = {pooled.r:.2f} [{pooled.ci_low:.2f}, {pooled.ci_high:.2f}] with context"
    assert figure.layout.annotations[0].text == told
    unsure = mh.plots.static_dynamic(static, dynamic, table.assign(ci_low=np.nan))
    assert unsure.layout.annotations[0].text == f"r<br>r = {pooled.r:.2f} with context"


@pytest.mark.parametrize("use", [mh.labels.score_correlations, mh.plots.static_dynamic])
def test_results_that_do_not_belong_together_are_refused(use: Any) -> None:
    static, dynamic = static_and_dynamic(np.random.default_rng(3))
    other = made_scores(np.zeros((2, 4, 1, 2, 1)))
    elsewhere = HeadScores(static.dataset.assign_coords(relation=["s"]))
    with pytest.raises(ValueError, match=r"static .*needs"):
        use(dynamic, dynamic)
    with pytest.raises(ValueError, match="20 x 4 heads, but dynamic has 2 x 4"):
        use(static, other)
    with pytest.raises(ValueError, match="share no relation"):
        use(elsewhere, dynamic)
