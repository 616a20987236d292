"""What a page gets: the data of its first view, and blocks that it opens when they are asked for.

The types are those of ``front/src/data.ts``.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from mechheads._version import __version__
from mechheads.behaviour.head_profile import LEAST, NAMES, PROFILED, HeadProfile
from mechheads.explorer.changes import change_columns, compared, start_with
from mechheads.explorer.encode import block, plain
from mechheads.explorer.head_payload import head_blocks, pattern_pane, shared
from mechheads.explorer.run_columns import run_columns, run_start, run_table
from mechheads.explorer.views import cautions, column_of, columns, methods, tensions, views
from mechheads.heads import HeadId, check_heads
from mechheads.labels import HeadLabels
from mechheads.results.curves import Curves
from mechheads.results.scores import HeadScores
from mechheads.runs.head_tensor import Attention
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import KEPT, HeadPatterns

SCHEMA = 1
_PATH = re.compile(r"[/\\.~]|[A-Za-z]:[/\\]")
"""How the path of a file or folder begins, unlike the name of a model of the hub."""


@dataclass(frozen=True)
class Payload:
    """What a page gets.

    Attributes:
        page: the data of its first view, as JSON has it.
        blocks: what it opens later, deflated and in base64, by id: ``mh-shared-M`` and ``mh-heads-M-L`` of model M and
            layer L.
    """

    page: dict[str, Any]
    blocks: dict[str, str]


def atlas_payload(
    atlases: Sequence[Atlas], live: dict[str, Any] | None = None, heads: Collection[HeadId] | None = None
) -> Payload:
    """The payload of a page about one or several models.

    Args:
        live: where an own text can be run, for a page that is not offline.
        heads: only these heads get cards.
    """
    blocks = {}
    with _without_collecting():
        for number, atlas in enumerate(atlases):
            blocks[f"mh-shared-{number}"] = block(shared(atlas))
            blocks |= {f"mh-heads-{number}-{layer}": block(part) for layer, part in head_blocks(atlas, heads)}
    names = shown_names([atlas.model for atlas in atlases])
    models = [_model(atlas, name) for atlas, name in zip(atlases, names, strict=True)]
    changes = compared(atlases, models)
    for change in changes:
        models[change["model"]]["columns"] += change_columns(change, names[0])
    page = _page("atlas", f"The attention heads of {', '.join(names)}", models, live)
    return Payload(page | {"changes": changes} | start_with(changes), blocks)


@contextmanager
def _without_collecting() -> Iterator[None]:
    """Make many small lists, none of which refers to itself: looking for such lists takes half of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def shown_names(models: Sequence[str]) -> list[str]:
    """The names of models for a page: of a file or folder its last part, unless two models would have one name.

    >>> shown_names(["/data/models/llama-7b", "org/name"])
    ['llama-7b', 'org/name']
    """
    names = [re.split(r"[/\\]", name.rstrip("/\\"))[-1] if _PATH.match(name) else name for name in models]
    return [name if names.count(name) == 1 and name else full for name, full in zip(names, models, strict=True)]


def run_payload(
    name: str,
    attention: Attention,
    prompt_names: Sequence[str],
    live: dict[str, Any] | None = None,
    *,
    kept: int = KEPT,
) -> Payload:
    """The payload of a page about the patterns of one run.

    Args:
        prompt_names: of the prompts of the run.
        live: as in ``atlas_payload``.
        kept: how many keys of each query are shown, besides the first token.
    """
    n_layers, n_heads = attention.sizes
    patterns, table = HeadPatterns.of([attention], prompt_names, kept=kept), run_table(attention)
    prompts = [{"name": each, "tokens": patterns.tokens(i)} for i, each in enumerate(patterns.table["name"])]
    texts = {name: [] for name in ("words", "windows", "pairs", "requests", "seeds")} | {"prompts": prompts}
    blocks = {"mh-shared-0": block(texts)}
    panes = ("text", "pattern", "weights", "cause", "paths", "safety", "roles", "alike")
    for layer in range(n_layers):
        heads = [HeadId(layer, head) for head in range(n_heads)]
        cards = [
            {"head": str(head), "layer": layer, "index": head.head}
            | dict.fromkeys(panes)
            | {"pattern": pattern_pane(patterns, head)}
            for head in heads
        ]
        blocks[f"mh-heads-0-{layer}"] = block({"layer": layer, "heads": cards})
    model = _empty_model(name, n_layers, n_heads) | run_columns(table, len(prompts))
    start = {"start": run_start(table)}
    return Payload(_page("run", f"Attention patterns of {name}", [model], live) | start, blocks)


def _page(kind: str, title: str, models: list[dict[str, Any]], live: dict[str, Any] | None) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": kind, "version": __version__, "title": title, "models": models, "live": live}


def _empty_model(name: str, n_layers: int, n_heads: int) -> dict[str, Any]:
    """A model of which nothing was measured."""
    lists = ("notes", "methods", "cautions", "columns", "views", "agreement", "tensions", "circuits")
    return {
        "name": name,
        "nLayers": n_layers,
        "nHeads": n_heads,
        "nKvHeads": None,
        "dHead": None,
        "summary": "",
        "interrupted": False,
        **{part: [] for part in lists},
        **{part: {} for part in ("seconds", "provenance", "citations")},
        "categories": None,
        "behaviours": None,
    }


def _model(atlas: Atlas, name: str) -> dict[str, Any]:
    found, table = views(atlas), atlas.to_dataframe()
    results = {**atlas.results, **atlas.tables}
    names = list(map(str, table))
    return _empty_model(name, *atlas.sizes) | {
        "nKvHeads": None if atlas.weights is None else atlas.weights.provenance.get("n_kv_heads"),
        "dHead": None if atlas.weights is None else atlas.weights.singular.shape[-1],
        "summary": atlas.summary(5),
        "notes": list(atlas.notes),
        "interrupted": atlas.interrupted,
        "seconds": dict(atlas.seconds),
        "provenance": plain({name: result.provenance for name, result in results.items()}),
        "citations": {name: result.citation() for name, result in results.items()},
        "methods": methods(names),
        "cautions": cautions(names),
        "columns": columns(table),
        "views": found,
        "agreement": [
            {
                "view": row["view"],
                "other": row["other"],
                **plain({key: row[name] for key, name in _AGREEMENT.items()}),
            }
            for row in atlas.agreement().to_dict("records")
        ],
        "tensions": tensions(found),
        "circuits": [] if atlas.circuit is None else [_circuit(atlas.circuit)],
        "categories": None if atlas.labels is None else _categories(atlas.labels, atlas.relations),
        "behaviours": None if atlas.profile is None else _behaviours(atlas.profile),
    }


_AGREEMENT = {"spearman": "spearman", "low": "ci_low", "high": "ci_high", "n": "n"}


def _circuit(curve: Curves) -> dict[str, Any]:
    names = {"value": "score", "low": "ci_low", "high": "ci_high"}
    points = [
        {"k": row["k"], **plain({key: row[name] for key, name in names.items()})}
        for row in curve.table.to_dict("records")
    ]
    last = points[-1]
    return {
        "name": "The heads with the largest patching effect, when all others are patched",
        "heads": [str(head) for head in curve.heads],
        "metric": curve.name,
        "faithfulness": last["value"],
        "low": last["low"],
        "high": last["high"],
        "curve": points,
    }


def _categories(labels: HeadLabels, relations: HeadScores | None) -> dict[str, Any]:
    data, names = labels.dataset, list(labels.categories)
    member, below = (data[name].values.reshape(-1, len(names)) for name in ("member", "below_floor"))
    reached = np.isfinite(data["score"].values).any(-1).ravel()
    of = [np.flatnonzero(row).tolist() if known else None for row, known in zip(member, reached, strict=True)]
    phi = data["phi"].values if relations is None else relations.scores.values
    kinds = data["category_of"].values.tolist()
    return {
        "names": names,
        "of": of,
        "below": [np.flatnonzero(row).tolist() for row in below],
        "relations": [
            {"name": name, "category": names.index(category)}
            for name, category in zip(data["relation"].values.tolist(), kinds, strict=True)
        ],
        "phi": plain(phi.reshape(-1, phi.shape[-1])),
        "floor": labels.provenance.get("floor"),
    }


def _behaviours(profile: HeadProfile) -> dict[str, Any]:
    columns_of = {name: f"by_{name}" if name == "position" else f"to_{name}" for name in PROFILED}
    names = [
        {
            "name": NAMES[name],
            "column": columns_of[name],
            "meaning": column_of(columns_of[name]).meaning,
            "least": LEAST[name],
        }
        for name in PROFILED
    ]
    order = [each["name"] for each in names]
    heads = check_heads(None, profile.n_layers, profile.n_heads)
    return {"names": names, "of": [[order.index(name) for name in profile.names(head)] for head in heads]}
