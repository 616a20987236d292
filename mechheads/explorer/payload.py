"""What a page gets: the data of its first view, and blocks that it opens when they are asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pandas as pd

from mechheads._version import __version__
from mechheads.behaviour.profile import LEAST, NAMES, PROFILED, HeadProfile
from mechheads.explorer import contract
from mechheads.explorer.encode import blocks, plain
from mechheads.explorer.head_payload import head_blocks, panes, shared
from mechheads.explorer.views import cautions, column_of, columns, methods, tensions, views, words
from mechheads.heads import HeadId, check_heads
from mechheads.labels import HeadLabels
from mechheads.limits import without_collecting
from mechheads.results.curves import Curves, is_random
from mechheads.results.scores import HeadScores
from mechheads.results.shown import tidy
from mechheads.results.tables import TableResult
from mechheads.studies.answers import Question
from mechheads.studies.atlas import Atlas
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
        page: the data of its first view.
        blocks: what it opens later, deflated and in base64, by id: ``mh-shared-M`` and ``mh-heads-M-L``
            of model M and layer L.
    """

    page: contract.Page
    blocks: dict[str, str]


def atlas_payload(
    atlases: Sequence[Atlas],
    live: contract.Live | None = None,
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
    return Payload(_page("atlas", f"The attention heads of {', '.join(names)}", models, live), packed)


def _opened_later(number: int, atlas: Atlas, heads: Collection[HeadId] | None) -> Iterator[tuple[str, Any]]:
    """What goes into the blocks of a model, by their ids."""
    yield f"mh-shared-{number}", shared(atlas)
    for layer, part in head_blocks(atlas, heads):
        yield f"mh-heads-{number}-{layer}", part


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


def run_payload(name: str, patterns: HeadPatterns, live: contract.Live | None = None) -> Payload:
    """The payload of a page about the patterns of runs; ``live`` as in ``atlas_payload``."""
    atlas = Atlas(name, shape=patterns.first.shape[:2], patterns=patterns)
    model = _model(atlas, name, {})
    model["provenance"], model["citations"] = {}, {}
    model["columns"], model["methods"], model["cautions"] = [], [], []
    page = _page("run", f"Attention patterns of {name}", [model], live, contract.Start(model=0, head="L0H0"))
    return Payload(page, blocks(_opened_later(0, atlas, None)))


def _page(
    kind: Literal["atlas", "run"],
    title: str,
    models: list[contract.Model],
    live: contract.Live | None,
    start: contract.Start | None = None,
) -> contract.Page:
    return {
        "schema": SCHEMA,
        "kind": kind,
        "version": __version__,
        "title": title,
        "models": models,
        "live": live,
        "start": start,
    }


def _model(atlas: Atlas, name: str, more: Mapping[str, TableResult]) -> contract.Model:
    shown, table, said = views(atlas), atlas.to_dataframe(), words(atlas)
    results = _named(atlas, more)
    provenance = {name: result.provenance for name, result in results.items()}
    names = list(map(str, table))
    curves = {own: result for own, result in more.items() if isinstance(result, Curves)}
    if atlas.refusals is not None and atlas.refusals.curve is not None:
        curves = {_ATTACKED: atlas.refusals.curve, **curves}
    n_layers, n_heads = atlas.sizes
    return {
        "name": name,
        "nLayers": n_layers,
        "nHeads": n_heads,
        "nKvHeads": next((about["n_kv_heads"] for about in provenance.values() if "n_kv_heads" in about), None),
        "questions": [_question(each) for each in atlas.questions()],
        "notes": list(atlas.notes),
        "interrupted": atlas.interrupted,
        "provenance": plain(provenance),
        "citations": {name: result.citation() for name, result in results.items()},
        "methods": methods(names, said),
        "cautions": cautions(names, said),
        "columns": columns(table, said, {view["name"]: view["question"] for view in shown}),
        "views": shown,
        "tensions": tensions(shown, atlas),
        "categories": None if atlas.labels is None else _categories(atlas.labels, atlas.relations),
        "behaviours": None if atlas.profile is None else _behaviours(atlas.profile),
        "circuits": [
            *([] if atlas.circuit is None else [_circuit(atlas.circuit)]),
            *(line for own, result in curves.items() for line in _lines(own, result)),
        ],
        "tables": [
            *_refusal_tables(atlas),
            *(_table(own, result.table, result.unit) for own, result in more.items() if own not in curves),
        ],
        "panes": panes(atlas),
    }


def _question(question: Question) -> contract.Question:
    return {
        "key": question.key,
        "title": question.title,
        "kind": question.kind,
        "views": list(question.views),
        "varies": question.varies,
        "warnings": list(question.warnings),
        "rows": [plain(vars(row)) for row in question.rows],
        "view": question.view,
    }


def _circuit(curve: Curves) -> contract.Circuit:
    points: list[contract.CircuitPoint] = [
        {"k": row["k"], "value": plain(row["score"]), "low": plain(row["ci_low"]), "high": plain(row["ci_high"])}
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


def _lines(name: str, curves: Curves) -> list[contract.Circuit]:
    """The lines of curves, one circuit each, but for those of random orders."""
    circuits = []
    for which, rows in curves.table.groupby("which", sort=False):
        if not is_random(which) and len(rows):
            order = curves.order.get(str(which), ())
            line = replace(curves, table=rows, order={str(which): order})
            circuit = _circuit(line)
            circuit["name"] = name if str(which) in ("", name) else f"{name}: {which}"
            circuit["metric"] = f"{curves.name}, {curves.unit}".strip(", ")
            circuits.append(circuit)
    return circuits


_ATTACKED = "Attack success without the first heads by Refusal attribution"
_OF_REFUSALS = {
    "first_heads": "The first heads of each ranking",
    "overlap": "Agreement between rankings",
    "tests": "Answers without the first heads of each ranking",
    "curve": _ATTACKED,
}
"""What the page calls each table about refusals."""


def _refusal_tables(atlas: Atlas) -> list[contract.Table]:
    """The tables about refusals, and the requests with their answers, which are folded."""
    if atlas.refusals is None:
        return []
    shown = [_table(_OF_REFUSALS[name], _shares(name, table)) for name, table in atlas.refusal_tables().items()]
    answers = _table("Requests and answers", atlas.refusals.answers())
    answers["folded"] = True
    return [*shown, answers]


def _shares(name: str, table: pd.DataFrame) -> pd.DataFrame:
    """A table of answers with the shares alone, what is ablated first; other tables as they are."""
    if name != "tests":
        return table
    columns = [column for column in table if not str(column).endswith(("_low", "_high"))]
    return table.reindex(columns=sorted(columns, key=lambda column: column != "heads"))


def _table(name: str, table: pd.DataFrame, unit: str = "") -> contract.Table:
    """The first rows of a table, as texts."""
    shown = tidy(table.head(_ROWS))
    return {
        "name": name,
        "unit": unit,
        "columns": list(shown),
        "rows": shown.to_numpy().tolist(),
        "of": len(table),
        "folded": False,
    }


def _named(atlas: Atlas, more: Mapping[str, TableResult]) -> dict[str, HeadScores | TableResult]:
    """The results of an atlas and further ones; your own by your names."""
    results: dict[str, HeadScores | TableResult] = {**atlas.results, **atlas.tables}
    own = {name: results.pop(own_file(name)) for name in atlas.own}
    for name, result in [*own.items(), *more.items()]:
        results[name if name not in results else f"{name} (your own)"] = result
    return results


def _categories(labels: HeadLabels, relations: HeadScores | None) -> contract.Categories:
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


def _behaviours(profile: HeadProfile) -> contract.Behaviours:
    columns_of = {name: f"by_{name}" if name == "position" else f"to_{name}" for name in PROFILED}
    names: list[contract.Behaviour] = [
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
