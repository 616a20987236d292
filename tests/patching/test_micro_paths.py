"""Path patching on the model of ``test_micro``, with one more weight, against numbers worked out on paper.

Here L0H1 also writes minus its z to "moved france" and "moved italy", which L1H0 reads. So it speaks for the
country in the logits, and against it by way of L1H0: its direct and its total effect differ in sign.

    France run:  L0H1 gives Paris 6 * 1/3 = 2.
                 moved france is 0, 3/4 - 1/2, 3/5 - 1/3; L1H0 gives Paris 30 * (1/4 + 4/15)/3 = 31/6.
    Italy run:   L0H1 gives Rome 2; moved italy is 0, 4/5 - 1/2, 1/2 - 1/3; L1H0 gives Rome 30 * (3/10 + 1/6)/3 = 14/3.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

import mechheads as mh
from support.micro import MOVED_FRANCE, MOVED_ITALY, by_hand, micro_model, pair  # noqa: F401


@pytest.fixture(scope="module")
def micro(tmp_path_factory: pytest.TempPathFactory) -> mh.Model:
    blank = micro_model()
    with torch.no_grad():
        write = blank.attention[0].o_proj.weight
        write[MOVED_FRANCE, 4 * 1 + 0] = -1
        write[MOVED_ITALY, 4 * 1 + 1] = -1
    return blank.load(tmp_path_factory.mktemp("paths") / "model")


def paths(model, pair, receivers, **options) -> np.ndarray:
    return mh.path_patch(model, pair, receivers=receivers, **options).scores.to_numpy()


def close(got, wanted) -> None:
    np.testing.assert_allclose(got, wanted, atol=1e-4)


NOISING = {
    # L0H0 writes nothing that the logits read. L0H1: Rome 2 for Paris 2. L1H0: Rome 14/3 for Paris 31/6.
    "final": by_hand(0, -4, -14 / 3 - 31 / 6),
    # L0H0: moved france loses 3/4 and 3/5, moved italy gains 4/5 and 1/2: Paris -13.5, Rome +13.
    # L0H1: moved france gains 1/2 and 1/3, moved italy loses them: Paris +25/3, Rome -25/3.
    "L1H0.v": by_hand(-26.5, 50 / 3, 0),
    # The same value, but read by L1H1 alone, which writes where nothing reads.
    "L1H1.v": by_hand(0, 0, 0),
    # L1H0 has no query and no key.
    "L1H0.q": by_hand(0, 0, 0),
    "L1H0.k": by_hand(0, 0, 0),
}


@pytest.mark.parametrize("receiver", NOISING)
@pytest.mark.parametrize("mlps", ["recomputed", "frozen"])
def test_noising(micro, pair, receiver, mlps):
    close(paths(micro, pair, receiver, mlps=mlps), NOISING[receiver])


def test_denoising(micro, pair):
    # The Italy run with paths from the France run: L0H1 gives Paris 2 for Rome 2; L1H0 Paris 31/6 for Rome 14/3.
    close(paths(micro, pair, "final", direction="denoising"), by_hand(0, 4, 31 / 6 + 14 / 3))
    # L0H0: moved italy loses 4/5 and 1/2: Rome -13; moved france gains 3/4 and 3/5: Paris +13.5.
    close(paths(micro, pair, "L1H0.v", direction="denoising"), by_hand(26.5, -50 / 3, 0))


def test_direct_and_total_effect_differ_in_sign(micro, pair):
    total = mh.activation_patch(micro, pair, direction="noising")
    direct = mh.path_patch(micro, pair)
    assert direct["L0H1"]["score"] == pytest.approx(-4, abs=1e-4)
    assert total["L0H1"]["score"] == pytest.approx(-4 + 50 / 3, abs=1e-4)


def test_all_paths_of_a_head_add_up_where_the_model_is_linear(micro, pair):
    total = mh.activation_patch(micro, pair, direction="noising").scores
    parts = mh.path_matrix(micro, pair, receivers=["final", "L1H0.v", "L1H1.v"]).scores
    close(parts.sum("receiver"), total)
