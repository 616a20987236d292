"""Scores of nodes in the files of MIB's circuit track, which its evaluation and its leaderboard read.

Such a file is JSON: ``cfg`` with the sizes of the model, ``nodes`` with a score for each, and ``edges``. Heads are
called ``a3.h2``, MLPs ``m3``. A node without a score always belongs to the circuit: in our files ``input`` and, if MLPs
were not measured, the MLPs. So MIB's evaluation at the level of nodes measures the same circuits as
``mh.patching.circuit_curve``: with ``nodes="all"`` if MLPs have scores, and otherwise with ``nodes="heads"``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from mechheads.files.replacing import replacing
from mechheads.files.text import read_json
from mechheads.heads import Mlp, every_node
from mechheads.model.model import Model
from mechheads.results.mlps import has_mlps
from mechheads.results.scores import HeadScores

_NODE = re.compile(r"a(\d+)\.h(\d+)|m(\d+)")


def save_mib(scores: HeadScores, model: Model, path: str | Path) -> Path:
    """Write the scores of nodes to a file of MIB's circuit track.

    Args:
        scores: a score for every head, and for every MLP if they were measured with ``nodes="all"``.
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
            name = f"m{node.layer}"
        else:
            score, name = scores.scores.values[node.layer, node.head], f"a{node.layer}.h{node.head}"
        nodes[name] = {"in_graph": True} | ({} if score is None else {"score": float(score)})
    written = {
        "cfg": {
            "n_layers": model.n_layers,
            "n_heads": model.n_heads,
            "parallel_attn_mlp": bool(getattr(model.model.cfg, "parallel_attn_mlp", False)),
            "d_model": model.d_model,
        },
        "nodes": nodes | {"logits": {"in_graph": True}},
        "edges": {},
    }
    with replacing(Path(path)) as unfinished:
        Path(unfinished).write_text(json.dumps(written), "utf-8")
    return Path(path)


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
        raise ValueError(f"{path} has no scores of heads; files with scores of edges only cannot be read")
    scores = HeadScores.from_scores(heads, name=Path(path).stem, kind="mib")
    if np.isnan(mlps).all():
        return scores
    return HeadScores(scores.dataset.assign(mlp_score=("layer", mlps)))
