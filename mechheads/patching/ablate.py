"""Ablation of one head at a time."""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from typing import Literal

from mechheads.engine.cached_runs import AnyPrompts
from mechheads.engine.job import Job, Spec, given
from mechheads.engine.places import Positions
from mechheads.engine.report import About
from mechheads.engine.sweep import run_spec
from mechheads.heads import HeadLike, Nodes
from mechheads.interventions.base import Intervention
from mechheads.interventions.basic import Scale, UniformAttention, as_intervention
from mechheads.limits import Budget, Workers, settings
from mechheads.messages.arguments import check_known
from mechheads.metrics.base import Metric, name_of
from mechheads.metrics.basic import as_metric, kl_divergence
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.scores import HeadScores

Ablation = Literal["zero", "mean", "resample", "scale", "uniform"]


@analysis(keeps_units=True)
def ablate(
    model: Model | Job,
    prompts: AnyPrompts | Job | None = None,
    *,
    kind: Ablation | Intervention = "zero",
    factor: float = 0.0,
    metric: Metric | str = kl_divergence,
    heads: Sequence[HeadLike] | HeadLike | None = None,
    positions: Positions = "all",
    budget: Budget = None,
    seed: int | None = None,
    progress: bool | None = None,
    workers: Workers | None = None,
    store: str | PathLike[str] | None = None,
    nodes: Nodes = "heads",
) -> HeadScores:
    """Ablate one head at a time and measure how the metric changes.

    Args:
        prompts: prompts; for pairs, the clean side is used.
        kind: ``"zero"``; ``"mean"`` (over all tokens of these prompts); ``"resample"`` (another prompt's z);
            ``"scale"`` (z times ``factor``); ``"uniform"`` (q times ``factor``; with 0, the head attends equally to
            every token so far); or an intervention.
        factor: for ``"scale"`` and ``"uniform"``.
        metric: what is measured; by default, KL(intact || ablated) at the last token.
        heads, positions, budget, seed, progress, workers, store, nodes: as in ``mh.sweep``.

    Returns:
        metric(ablated) - metric(intact) [layer, head(, pos), prompt], in the metric's unit.

    Raises:
        ValueError: if an argument is not valid; before the sweep starts.

    >>> kl = mh.ablate(model, ["The capital of France is"], heads=["L23H4", "L0H0"], progress=False)
    >>> bool(kl.scores.sel(layer=23, head=4) > 0)
    True
    """
    model, asked, cached = given(model, prompts)
    with settings(budget=budget, seed=seed, progress=progress, workers=workers, store=store):
        ablation = make_ablation(kind, factor)
        spec = Spec(asked, ablation, as_metric(metric), heads, positions, nodes=nodes)
        name = kind if isinstance(kind, str) else name_of(kind)
        return run_spec(model, spec, About(f"{name} ablation", "ablate"), runs=cached)


def make_ablation(kind: Ablation | Intervention, factor: float = 0.0) -> Intervention:
    """The ablation of that name, as an intervention.

    Raises:
        ValueError: if there is no such ablation.
    """
    if isinstance(kind, str):
        check_known("kind", kind, Ablation)
    if kind == "scale":
        return Scale(factor)
    return UniformAttention(factor) if kind == "uniform" else as_intervention(kind, "kind")
