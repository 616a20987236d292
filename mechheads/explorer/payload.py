"""What a page gets: the data of its first view, and blocks that it opens when they are asked for.

The types are those of ``front/src/data.ts``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from mechheads._version import __version__
from mechheads.behaviour.head_profile import LEAST, NAMES, PROFILED, HeadProfile
from mechheads.explorer.changes import change_columns, compared, start_with
from mechheads.explorer.encode import block, blocks, plain
from mechheads.explorer.head_payload import head_blocks, panes, pattern_pane, shared, space_block
from mechheads.explorer.run_columns import run_columns, run_start
from mechheads.explorer.views import cautions, column_of, columns, methods, tensions, views, words
from mechheads.heads import HeadId, check_heads
from mechheads.labels import HeadLabels
from mechheads.limits import without_collecting
from mechheads.results.curves import Curves, is_random
from mechheads.results.html import tidy
from mechheads.results.mlps import has_mlps
from mechheads.results.record import GROUPS
from mechheads.results.scores import HeadScores
from mechheads.results.tables import TableResult
from mechheads.studies.atlas import Atlas
from mechheads.studies.by_question import Question
from mechheads.studies.head_patterns import HeadPatterns
from mechheads.studies.own import own_file

SCHEMA = 1
_ROWS = 200
"""The most rows of a table that is no view of heads."""
_PATH = re.compile(r"[/\\.~]|[A-Za-z]:[/\\]")
"""How the path of a file or folder begins, unlike the name of a model of the hub."""


@dataclass(frozen=True)
class Payload:
    """What a page gets.

    Attributes:
        page: the data of its first view, as JSON has it.
        blocks: what it opens later, deflated and in base64, by id: ``mh-shared-M``, ``mh-space-M`` and ``mh-heads-M-L``
            of model M and layer L.
    """

    page: dict[str, Any]
    blocks: dict[str, str]


def atlas_payload(
    atlases: Sequence[Atlas],
    live: dict[str, Any] | None = None,
    heads: Collection[HeadId] | None = None,
    tables: Sequence[Mapping[str, TableResult]] = (),
) -> Payload:
    """The payload of a page about one or several models.

    Args:
        live: where an own text can be run, for a page that is not offline.
        heads: only these heads get cards.
        tables: for each atlas, further results by their names: curves stand with the circuits, others as tables.
    """
    with without_collecting():
        packed = blocks(part for number, atlas in enumerate(atlases) for part in _opened_later(number, atlas, heads))
    names = shown_names([atlas.model for atlas in atlases])
    more = tables or [{}] * len(atlases)
    models = [_model(*each) for each in zip(atlases, names, more, strict=True)]
    changes = compared(atlases, models)
    for change in changes:
        models[change["model"]]["columns"] += change_columns(change, names[0])
    page = _page("atlas", f"The attention heads of {', '.join(names)}", models, live)
    return Payload(page | {"changes": changes} | start_with(changes), packed)


def _opened_later(number: int, atlas: Atlas, heads: Collection[HeadId] | None) -> Iterator[tuple[str, Any]]:
    """What goes into the blocks of a model, by their ids."""
    yield f"mh-shared-{number}", shared(atlas)
    for layer, part in head_blocks(atlas, heads):
        yield f"mh-heads-{number}-{layer}", part
    if atlas.space is not None:
        yield f"mh-space-{number}", space_block(atlas.space, heads)


def shown_names(models: Sequence[str]) -> list[str]:
    """The names of models for a page: of a file or folder its last part, unless two models would have one name.

    Models of one name, such as one before and after a change, are numbered.

    >>> shown_names(["/data/models/llama-7b", "org/name"])
    ['llama-7b', 'org/name']
    >>> shown_names(["gpt2", "gpt2"])
    ['gpt2 (1)', 'gpt2 (2)']
    """
    names = [re.split(r"[/\\]", name.rstrip("/\\"))[-1] if _PATH.match(name) else name for name in models]
    names = [name if names.count(name) == 1 and name else full for name, full in zip(names, models, strict=True)]
    numbers = [names[: at + 1].count(name) for at, name in enumerate(names)]
    return [
        f"{name} ({number})" if names.count(name) > 1 else name for name, number in zip(names, numbers, strict=True)
    ]


def run_payload(
    name: str, patterns: HeadPatterns, table: pd.DataFrame | None = None, live: dict[str, Any] | None = None
) -> Payload:
    """The payload of a page about the patterns of runs.

    Args:
        table: what the runs themselves say of every head, from ``run_table``; None if only their patterns are there.
        live: as in ``atlas_payload``.
    """
    n_layers, n_heads = patterns.first.shape[:2]
    prompts = [{"name": each, "tokens": patterns.tokens(i)} for i, each in enumerate(patterns.table["name"])]
    texts = {name: [] for name in ("words", "windows", "pairs", "requests", "seeds")} | {"prompts": prompts}
    blocks = {"mh-shared-0": block(texts)}
    panes = ("text", "pattern", "space", "weights", "cause", "paths", "safety", "roles", "alike")
    for layer in range(n_layers):
        heads = [HeadId(layer, head) for head in range(n_heads)]
        cards = [
            {"head": str(head), "layer": layer, "index": head.head}
            | dict.fromkeys(panes)
            | {"pattern": pattern_pane(patterns, head)}
            for head in heads
        ]
        blocks[f"mh-heads-0-{layer}"] = block({"layer": layer, "heads": cards})
    told = {} if table is None else run_columns(table, len(prompts))
    start = {"model": 0, "head": "L0H0"} if table is None else run_start(table)
    page = _page("run", f"Attention patterns of {name}", [_empty_model(name, n_layers, n_heads) | told], live)
    return Payload(page | {"start": start}, blocks)


def _page(kind: str, title: str, models: list[dict[str, Any]], live: dict[str, Any] | None) -> dict[str, Any]:
    return {"schema": SCHEMA, "kind": kind, "version": __version__, "title": title, "models": models, "live": live}


def _empty_model(name: str, n_layers: int, n_heads: int) -> dict[str, Any]:
    """A model of which nothing was measured."""
    lists = (
        "answer",
        "notes",
        "methods",
        "cautions",
        "columns",
        "views",
        "agreement",
        "questions",
        "tensions",
        "circuits",
        "tables",
    )
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
        "panes": ["pattern"],
        "categories": None,
        "behaviours": None,
    }


def _model(atlas: Atlas, name: str, more: Mapping[str, TableResult]) -> dict[str, Any]:
    found, table, said = views(atlas), atlas.to_dataframe(), words(atlas)
    results = _named(atlas, more)
    names = list(map(str, table))
    curves = {own: result for own, result in more.items() if isinstance(result, Curves)}
    return _empty_model(name, *atlas.sizes) | {
        "nKvHeads": None if atlas.weights is None else atlas.weights.provenance.get("n_kv_heads"),
        "dHead": None if atlas.weights is None else atlas.weights.singular.shape[-1],
        "answer": [{"text": finding.text, "link": finding.link} for finding in atlas.findings()],
        "summary": atlas.summary(5),
        "notes": [*atlas.notes, *_notes(atlas)],
        "interrupted": atlas.interrupted,
        "seconds": dict(atlas.seconds),
        "provenance": plain({name: result.provenance for name, result in results.items()}),
        "citations": {name: result.citation() for name, result in results.items()},
        "methods": methods(names, said),
        "cautions": cautions(names, said),
        "columns": _of_questions(columns(table, said), found),
        "views": found,
        "questions": [_question(each) for each in atlas.questions()],
        "agreement": [
            {
                "view": row["view"],
                "other": row["other"],
                **plain({key: row[name] for key, name in _AGREEMENT.items()}),
            }
            for row in atlas.agreement().to_dict("records")
        ],
        "tensions": tensions(found, atlas),
        "circuits": [
            *([] if atlas.circuit is None else [_circuit(atlas.circuit)]),
            *(line for own, result in curves.items() for line in _lines(own, result)),
        ],
        "tables": [_table(own, result) for own, result in more.items() if own not in curves],
        "panes": panes(atlas),
        "categories": None if atlas.labels is None else _categories(atlas.labels, atlas.relations),
        "behaviours": None if atlas.profile is None else _behaviours(atlas.profile),
    }


_QUESTIONS = {GROUPS["text"]: "text", GROUPS["weights"]: "weights"}
"""Questions of columns that are no views, by their headings."""


def _of_questions(made: list[dict[str, Any]], found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The columns with the question of each: that of its view, or that of its heading; None if it is of none."""
    keys = {view["name"]: view["question"] for view in found}
    for column in made:
        name = (column["of"] or column["name"]).removeprefix("generalized_")
        column["question"] = keys.get(name, _QUESTIONS.get(column["group"]))
    return made


def _question(question: Question) -> dict[str, Any]:
    sentences = [{"text": finding.text, "link": finding.link} for finding in question.findings]
    told = {name: value for name, value in asdict(question).items() if name != "findings"}
    return told | {"sentence": sentences[0], "more": sentences[1:]}


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


def _lines(name: str, curves: Curves) -> list[dict[str, Any]]:
    """The lines of curves, one circuit each, but for those of random orders."""
    found = []
    for which, rows in curves.table.groupby("which", sort=False):
        if not is_random(which) and len(rows):
            order = curves.order.get(str(which), ())
            line = replace(curves, table=rows, order={str(which): order})
            title = name if str(which) in ("", name) else f"{name}: {which}"
            found.append(_circuit(line) | {"name": title, "metric": f"{curves.name}, {curves.unit}".strip(", ")})
    return found


def _table(name: str, result: TableResult) -> dict[str, Any]:
    """The first rows of a table, as texts."""
    shown = tidy(result.table.head(_ROWS))
    return {
        "name": name,
        "unit": result.unit,
        "columns": list(shown),
        "rows": shown.to_numpy().tolist(),
        "of": len(result.table),
    }


def _named(atlas: Atlas, more: Mapping[str, TableResult]) -> dict[str, HeadScores | TableResult]:
    """The results of an atlas and further ones; your own by your names."""
    results: dict[str, HeadScores | TableResult] = {**atlas.results, **atlas.tables}
    own = {name: results.pop(own_file(name)) for name in atlas.own}
    for name, result in [*own.items(), *more.items()]:
        results[name if name not in results else f"{name} (your own)"] = result
    return results


def _notes(atlas: Atlas) -> list[str]:
    """What the page leaves out of scores of your own."""
    return [
        f"{name}: its scores of MLPs are not on this page; scores.mlps has them"
        for name, scores in atlas.own.items()
        if has_mlps(scores.dataset)
    ]


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
