"""Circuits of edges by size: how faithful the first edges of a ranking are at every size.

| MIB | here |
|---|---|
| the first ``int(share * n_edges)`` edges of a ranking (``apply_topn``) | a circuit, ``k`` in the table |
| edges on no path from the input to the logits are removed (``prune``) | they change nothing; their parts do not run |
| edges outside carry the corrupted run's output (``evaluate_graph``, "patching") | ``edge_circuits`` |
| f, CPR and CMD | ``circuits_by_size``, as for circuits of heads |

Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark" (arXiv 2504.13151), section 3; Hanna et al. 2024,
"Have Faith in Faithfulness" (arXiv 2403.17806), section 2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int

from mechheads.engine.answer_check import warn_of_answers
from mechheads.engine.head_sets import set_bar
from mechheads.engine.job import Job, Spec, given, make_ready
from mechheads.engine.report import describe_intervention
from mechheads.interventions.basic import Patch
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.interrupted import until_interrupted
from mechheads.metrics.base import Metric, name_of
from mechheads.metrics.basic import as_metric, logit_diff
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.patching.circuit_curve import SIZES, check_sizes, circuits_by_size, heads_at, named_rankings
from mechheads.patching.circuits import check_gap, warn_of_nan
from mechheads.patching.edges.edge_circuits import Circuit, EdgeCircuits
from mechheads.patching.edges.edge_scores import EdgeScores, graph_of
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.patching.edges.sender_changes import find_indirect
from mechheads.patching.pairs import check_pairs
from mechheads.prompts.prompts import PromptPairs
from mechheads.results.curves import Curves
from mechheads.results.provenance import make_provenance

By = Literal["absolute", "support"]
Order = Int[np.ndarray, " edge"]


@analysis
@torch.inference_mode(False)
def edge_curve(
    model: Model | Job,
    pairs: PromptPairs | Job | None = None,
    rankings: EdgeScores | Mapping[str, EdgeScores] | None = None,
    *,
    metric: Metric | str = logit_diff,
    sizes: Sequence[float] = SIZES,
    by: By = "absolute",
    draws: int = 5,
) -> Curves:
    """How faithful the first edges of a ranking are at every size, with the areas CPR and CMD, beside random orders.

    A circuit has the first ``int(share * n_edges)`` edges. What a receiver reads is the sum of what its senders write:
    through an edge of the circuit, their output when the circuit runs on the clean prompts; through any other edge,
    their output in the corrupted run. f = (m(C) - m(no edges)) / (m(all edges) - m(no edges)), where m is the metric.

    As in MIB, edges on no path from the embedding to the logits count for the size, though they change nothing. MIB
    ranks by the absolute or by the signed score; see ``by``.

    Args:
        pairs: the two sides must be equally long.
        rankings: scores of all edges, or several of these by name, which are compared on the same prompts.
        metric: what is measured, as in ``mh.sweep``.
        sizes: shares of all edges, from small to large; by default MIB's.
        by: ``"absolute"`` ranks by absolute score, so that large edges of both signs come first. ``"support"`` starts
            with the most negative scores: the edges without which the metric falls most.
        draws: the number of random orders for comparison. Their circuits take the longest, as they touch all heads.

    Returns:
        f of every ranking and size, CPR and CMD, as from ``mh.patching.circuit_curve``. After Ctrl-C, rankings that
        were not reached are NaN.

    Raises:
        ValueError: if an argument is not valid, the metric is the same with all edges and with none, or the model puts
            a norm or a factor between a head and the residual stream (Gemma 2 and 3, Granite).
        KeyboardInterrupt: if Ctrl-C came before the first ranking was done.

    Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark" (arXiv 2504.13151), section 3.

    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> edges = mh.patching.attribute_edges(model, pairs)
    >>> found = mh.patching.edge_curve(model, pairs, edges, sizes=(0.01, 1), draws=0)
    >>> found.table["k"].tolist()
    [1232, 123211]
    """
    seed = current().seed
    model, asked, cached = given(model, pairs, "pairs")
    check_pairs(asked, "a circuit of edges")
    check_known("by", by, By)
    check_at_least(0, draws=draws)
    shares, measured = check_sizes(sizes, "edges"), as_metric(metric)
    graph = _check_direct(model)
    ranked = named_rankings(rankings, "scores of edges, from mh.patching.attribute_edges,")
    order = {name: _order(scores, model, f"rankings[{name!r}]", by) for name, scores in ranked.items()}
    rng = np.random.default_rng(seed)
    order |= {f"random {i + 1}": rng.permutation(np.flatnonzero(graph.edges)) for i in range(draws)}
    nodes = "all" if graph.mlps else "heads"
    spec = Spec(asked, Patch(), measured, base="corrupted", limits=current().limits.in_one_process, nodes=nodes)
    job = make_ready(model, spec, runs=cached)
    warn_of_answers(job)
    runs = EdgeCircuits(job, graph)
    check_gap(measured, runs.full, runs.empty, "edges")
    values = np.full((len(order), len(shares), len(runs.full)), np.nan)
    with until_interrupted() as interrupts, set_bar(values[..., 0].size, "circuits") as bar:
        for row, edges in zip(values, order.values(), strict=True):
            row[:] = runs.values([_first(graph, edges, heads_at(share, len(edges))) for share in shares], bar.update)
            warn_of_nan(measured, row)
    done = int(np.isfinite(values).all((1, 2)).sum())
    interrupts.stop_unless(done > 0)
    interrupts.warn(f"{done} of {len(order)} rankings")
    about = make_provenance(
        model,
        metric=name_of(measured),
        prompts=job,
        n_prompts=len(job.tokens),
        intervention=describe_intervention(job.intervention),
        sizes=list(shares),
        nodes="edges",
        interrupted=interrupts.interrupted,
    )
    names = {name: _names(graph, edges) for name, edges in order.items()}
    return circuits_by_size(names, values, runs.full, runs.empty, job.clean.tokens.cluster, about)


def _check_direct(model: Model) -> EdgeGraph:
    """The graph of a model in which all heads and MLPs write to the residual stream as they are.

    Raises:
        ValueError: if some do not.
    """
    if indirect := find_indirect(model):
        raise ValueError(
            f"model: layer {indirect[0]} of {model.name!r} puts a norm or a factor between its heads or MLP and the "
            "residual stream, so a circuit of edges is not defined there; use mh.patching.circuit_curve, with "
            'nodes="all" for heads and MLPs'
        )
    return EdgeGraph.of(model)


def _order(scores: EdgeScores, model: Model, name: str, by: By) -> Order:
    """The flat indices of all edges in the order of a ranking; equal ones stay in the order of computation.

    Raises:
        ValueError: if it is not a ranking of the model's edges.
    """
    if not isinstance(scores, EdgeScores):
        raise ValueError(
            f"{name} is a {type(scores).__name__}; give scores of edges, from mh.patching.attribute_edges or "
            "mh.patching.load_mib_edges"
        )
    edges = np.flatnonzero(graph_of(scores, model, name).edges)
    found = scores.score.ravel()[edges]
    return edges[np.argsort(-np.abs(found) if by == "absolute" else found, kind="stable")]


def _first(graph: EdgeGraph, order: Order, k: int) -> Circuit:
    """The circuit of the first k edges."""
    circuit = np.zeros(graph.edges.shape, dtype=bool)
    circuit.flat[order[:k]] = True
    return circuit


def _names(graph: EdgeGraph, order: Order) -> tuple[str, ...]:
    """The edges as texts, such as "L3H2->L5H1.q"."""
    ends = zip(*np.unravel_index(order, graph.edges.shape), strict=True)
    return tuple(f"{graph.senders[sender]}->{graph.receivers[receiver]}" for sender, receiver in ends)
