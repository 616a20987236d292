"""An atlas with every part, of a tiny model whose vocabulary holds four capitals."""

from __future__ import annotations

from typing import Any

import pytest

import mechheads as mh
from mechheads.studies import build
from mechheads.studies.atlas import Atlas


def let_four_pairs_do(patch: pytest.MonkeyPatch) -> None:
    """Four capitals are all that the tiny vocabulary holds: let them be enough for a relation."""
    four: dict[str, Any] = {"k": 10, "min_pairs": 2}
    patch.setattr(build, "relation_scores", lambda *given, **options: mh.relation_scores(*given, **options | four))


def whole_atlas(model: mh.Model) -> Atlas:
    """The atlas, with its warnings about the answers of a random model."""
    with pytest.MonkeyPatch.context() as patch:
        let_four_pairs_do(patch)
        return mh.build_atlas(model)
