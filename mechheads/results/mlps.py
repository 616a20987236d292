"""The column of MLPs beside the heads of a result: one score for each layer, in variables named ``mlp_...``."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from mechheads.results.arithmetic import OPERATIONS, Side
from mechheads.results.dataset import RANGE, STATISTICS, table_of, tested
from mechheads.results.stats import mean_over_prompts, q_values

_PREFIX = "mlp_"


def with_mlps(heads: xr.Dataset, values: Float[np.ndarray, "layer *extra prompt"]) -> xr.Dataset:
    """The scores of heads and those of MLPs, whose statistics are computed in the same way.

    q values and the family of p values count the tests of heads and MLPs together.

    Args:
        heads: the dataset of scores that are means over prompts.
        values: one value for each MLP and prompt, and for each extra label.
    """
    statistics = json.loads(heads.attrs["statistics"])
    clusters = heads["cluster"].values.tolist()
    score = mean_over_prompts(values)
    name, of_heads = f"{heads.attrs['name']}, MLPs", heads["p_value"].values
    tests = tested(values, clusters, name=name, beside=heads["values"].values, **statistics)
    if tests.stopped:
        about = json.loads(heads.attrs["provenance"]) | {"interrupted": True}
        heads = heads.assign_attrs(provenance=json.dumps(about))
    q_mine, q_of_heads = np.split(q_values(np.concatenate([tests.p.ravel(), of_heads.ravel()])), [score.size])
    family_mine, family_of_heads = np.split(tests.family, [score.size])
    mine = (each.reshape(score.shape) for each in (q_mine, family_mine))
    arrays = dict(zip(STATISTICS, (score, *tests.interval, tests.p, *mine), strict=True))
    if RANGE[0] in heads:
        arrays |= dict(zip(RANGE, tests.ranges, strict=True))
    dims = tuple(dim for dim in heads["score"].dims if dim != "head")
    new = {_PREFIX + name: (dims, array) for name, array in arrays.items()}
    for variable, array in (("q_value", q_of_heads), ("p_family", family_of_heads)):
        new[variable] = (heads["score"].dims, array.reshape(of_heads.shape))
    return heads.assign(new | {f"{_PREFIX}values": ((*dims, "prompt"), values)})


def with_mlp_scores(heads: xr.Dataset, scores: Float[np.ndarray, " layer"]) -> xr.Dataset:
    """The scores of heads and those of MLPs, which are no means over prompts and have no statistics."""
    return heads.assign({f"{_PREFIX}score": ("layer", scores)})


def combine_mlps(left: Side, right: Side, symbol: str) -> Float[np.ndarray, "layer *extra prompt"] | None:
    """The values of MLPs when two scores, or scores and a number, are combined; None if some scores have no MLPs."""
    if not all(has_mlps(side) for side in (left, right) if isinstance(side, xr.Dataset)):
        return None
    mine, theirs = (side[f"{_PREFIX}values"].values if isinstance(side, xr.Dataset) else side for side in (left, right))
    return OPERATIONS[symbol](mine, theirs)


def has_mlps(dataset: xr.Dataset) -> bool:
    """Whether a result holds scores of MLPs."""
    return f"{_PREFIX}score" in dataset


def mlp_scores(dataset: xr.Dataset) -> xr.Dataset | None:
    """The statistics of the MLPs, under the names that those of heads have; None if MLPs were not measured."""
    if not has_mlps(dataset):
        return None
    names = [name for name in (*STATISTICS, *RANGE) if _PREFIX + name in dataset]
    return dataset[[_PREFIX + name for name in names]].rename({_PREFIX + name: name for name in names})


def mlp_table(dataset: xr.Dataset) -> pd.DataFrame | None:
    """One row for each MLP and label, named as in ``table.loc["L9.mlp"]``; None if MLPs were not measured."""
    scores = mlp_scores(dataset)
    if scores is None:
        return None
    table = table_of(scores, [str(dim) for dim in scores["score"].dims])
    return table.set_index(pd.Index([f"L{layer}.mlp" for layer in table["layer"]]))
