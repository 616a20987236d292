"""Scores of nodes or edges in the files of MIB's circuit track, which its evaluation and its leaderboard read.

Such a file is JSON: ``cfg`` with the sizes of the model, ``nodes`` with a score for each, and ``edges``. Heads are
called ``a3.h2``, MLPs ``m3``, and edges ``a3.h2->a5.h1<q>``, ``input->m0`` or ``m3->logits``. MIB's scores of edges say
how much the metric falls, so ours are written with the opposite sign.

A node without a score always belongs to the circuit: in our files ``input`` and, if MLPs were not measured, the MLPs.
So MIB's evaluation at the level of nodes measures the same circuits as ``mh.patching.circuit_curve``: with
``nodes="all"`` if MLPs have scores, and otherwise with ``nodes="heads"``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from mechheads.files.replacing import write_file
from mechheads.files.text import read_json
from mechheads.heads import Mlp, every_node
from mechheads.model.model import Model
from mechheads.patching.edges.edge_scores import EdgeScores, graph_of
from mechheads.patching.edges.graph import EdgeGraph
from mechheads.results.mlps import has_mlps, with_mlp_scores
from mechheads.results.scores import HeadScores

_NODE = re.compile(r"a(\d+)\.h(\d+)|m(\d+)")


def save_mib(scores: HeadScores | EdgeScores, model: Model, path: str | Path) -> Path:
    """Write the scores of nodes or edges to a file of MIB's circuit track.

    Args:
        scores: a score for every head, and for every MLP if they were measured with ``nodes="all"``; or scores of
            edges, from ``mh.patching.attribute_edges``.
        model: the model of the scores.
        path: the JSON file, such as ``"ioi_gpt2/importances.json"``; its folder must exist.

    Returns:
        The path.

    Raises:
        ValueError: if the scores are of another model, have further dimensions, or a head or an MLP has none.

    Mueller et al. 2025, "MIB: A Mechanistic Interpretability Benchmark" (arXiv 2504.13151), section 3.

    >>> import tempfile, numpy as np
    >>> path = Path(tempfile.mkdtemp()) / "importances.json"
    >>> effect = mh.HeadScores.from_scores(np.eye(30, 9), name="effect", kind="activation_patch")
    >>> mh.patching.load_mib(mh.patching.save_mib(effect, model, path)).heads(1)
    (HeadId(layer=0, head=0),)
    """
    if isinstance(scores, EdgeScores):
        content = _edge_content(scores, model)
    else:
        content = {"nodes": _scored_nodes(scores, model), "edges": {}}
    config = {
        "n_layers": model.n_layers,
        "n_heads": model.n_heads,
        "parallel_attn_mlp": model.parallel_mlps,
        "d_model": model.d_model,
    }
    return write_file(Path(path), json.dumps({"cfg": config, **content}))


def _scored_nodes(scores: HeadScores, model: Model) -> dict[str, Any]:
    """The nodes of a file, with their scores.

    Raises:
        ValueError: if the scores are of another model, have further dimensions, or some are missing.
    """
    if (scores.n_layers, scores.n_heads) != (model.n_layers, model.n_heads):
        raise ValueError(
            f"scores are of {scores.n_layers} layers of {scores.n_heads} heads, but {model.name} has {model.n_layers} "
            f"of {model.n_heads}; give scores of the same model"
        )
    if scores.extra_dims:
        raise ValueError(f"scores have the dimensions {list(scores.extra_dims)}; select one label of each")
    of_mlps = scores.dataset["mlp_score"].values if has_mlps(scores.dataset) else None
    if not np.isfinite(scores.scores.values).all() or not (of_mlps is None or np.isfinite(of_mlps).all()):
        raise ValueError("scores: some nodes have none, and MIB would keep these in every circuit; measure all of them")
    nodes: dict[str, Any] = {"input": {"in_graph": True}}
    for node in every_node(model.n_layers, model.n_heads):
        if isinstance(node, Mlp):
            score = None if of_mlps is None else of_mlps[node.layer]
        else:
            score = scores.scores.values[node.layer, node.head]
        nodes[_mib_name(str(node))] = {"in_graph": True} | ({} if score is None else {"score": float(score)})
    return nodes | {"logits": {"in_graph": True}}


def _edge_content(scores: EdgeScores, model: Model) -> dict[str, Any]:
    """The nodes and the edges of a file, with the scores of edges.

    Raises:
        ValueError: if the scores are of another model, or some are not finite.
    """
    graph = graph_of(scores, model)
    senders, receivers = list(map(_mib_name, graph.senders)), list(map(_mib_name, graph.receivers))
    edges = {
        f"{senders[one]}->{receivers[other]}": {"score": -float(scores.score[one, other]), "in_graph": True}
        for one, other in np.argwhere(graph.edges)
    }
    return {"nodes": {name: {"in_graph": True} for name in (*senders, "logits")}, "edges": edges}


def _mib_name(name: str) -> str:
    """MIB's name of a head, an MLP or an input of a head.

    >>> _mib_name("L3H2"), _mib_name("L5H1.q"), _mib_name("L3.mlp"), _mib_name("logits")
    ('a3.h2', 'a5.h1<q>', 'm3', 'logits')
    """
    for pattern, theirs in ((r"L(\d+)H(\d+)", r"a\1.h\2"), (r"L(\d+)\.mlp", r"m\1"), (r"\.([qkv])$", r"<\1>")):
        name = re.sub(pattern, theirs, name)
    return name


def load_mib(path: str | Path) -> HeadScores:
    """Read the scores of nodes from a JSON file of MIB's circuit track.

    Returns:
        The scores of heads; those of MLPs are in ``.mlps``, if the file has them. Nodes without a score are NaN.

    Raises:
        ValueError: if the file is not such a file, or its heads have no scores.
    """
    found = read_json(Path(path))
    try:
        n_layers, n_heads, nodes = (int(found["cfg"]["n_layers"]), int(found["cfg"]["n_heads"]), found["nodes"])
        heads, mlps = np.full((n_layers, n_heads), np.nan), np.full(n_layers, np.nan)
        for name, node in nodes.items():
            if (match := _NODE.fullmatch(name)) and "score" in node:
                where: Any = heads if match[3] is None else mlps
                at = int(match[3]) if match[1] is None else (int(match[1]), int(match[2]))
                where[at] = node["score"]
    except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of MIB's circuit track ({type(error).__name__}: {error})") from error
    if np.isnan(heads).all():
        raise ValueError(f"{path} has no scores of heads; for scores of edges, use mh.patching.load_mib_edges")
    scores = HeadScores.from_scores(heads, name=Path(path).stem, kind="mib")
    if np.isnan(mlps).all():
        return scores
    return HeadScores(with_mlp_scores(scores.dataset, mlps))


def load_mib_edges(path: str | Path) -> EdgeScores:
    """Read the scores of edges from a JSON file of MIB's circuit track.

    Returns:
        The scores, without intervals. MIB's scores say how much the metric falls; these say how it changes.

    Raises:
        ValueError: if the file is not such a file, or some of its edges have no score.

    >>> import tempfile
    >>> pairs = mh.PromptPairs(["The capital of France is"], ["The capital of Italy is"], [" Paris"], [" Rome"])
    >>> found = mh.patching.attribute_edges(model, pairs)
    >>> path = mh.patching.save_mib(found, model, Path(tempfile.mkdtemp()) / "importances.json")
    >>> bool(mh.patching.load_mib_edges(path).top(9).equals(found.top(9)))
    True
    """
    found = read_json(Path(path))
    try:
        config, mlps = found["cfg"], "m0" in found["nodes"]
        graph = EdgeGraph(
            int(config["n_layers"]), int(config["n_heads"]), mlps, bool(config.get("parallel_attn_mlp", False))
        )
        senders, receivers = list(map(_mib_name, graph.senders)), list(map(_mib_name, graph.receivers))
        score = np.full(graph.edges.shape, np.nan)
        for one, other in np.argwhere(graph.edges):
            name = f"{senders[one]}->{receivers[other]}"
            if name not in found["edges"]:
                raise ValueError(f"it has no edge {name!r}")
            score[one, other] = -float(found["edges"][name]["score"])
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise ValueError(f"{path} has no scores of edges of MIB's circuit track: {error}") from error
    nothing = np.full_like(score, np.nan)
    about: dict[str, Any] = {"source": Path(path).name}
    return EdgeScores(
        graph.senders, graph.receivers, score, nothing, nothing, None, Path(path).stem, "importance", about
    )
