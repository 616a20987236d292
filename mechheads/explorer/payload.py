"""The data of a page: its first view, and blocks that it opens when they are needed."""

from __future__ import annotations

import gc
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mechheads._version import __version__
from mechheads.behaviour.profile import LEAST, NAMES, PROFILED, HeadProfile
from mechheads.explorer import contract
from mechheads.explorer.contract import blocks, plain
from mechheads.explorer.head_payload import COLUMNS, Parts, columns, head_blocks, panes, shared
from mechheads.heads import HeadId, check_heads
from mechheads.labels import HeadLabels
from mechheads.results.metadata import kind_name
from mechheads.results.scores import HeadScores
from mechheads.results.shown import tidy
from mechheads.results.tables import Curves, TableResult, is_random
from mechheads.studies.answers import Question, counted, own_file
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_patterns import HeadPatterns

_ROWS = 200
"""The most rows that are shown of a table that is not about single heads."""
_PATH = re.compile(r"[/\\.~]|[A-Za-z]:[/\\]")
"""The beginning of a path of a file or folder, which the name of a model on the hub does not have."""


@dataclass(frozen=True)
class Payload:
    """The data of a page: its first view, and the blocks by id, deflated and in base64."""

    page: contract.Page
    blocks: dict[str, str]


def atlas_payload(
    atlas: Atlas,
    heads: Collection[HeadId] | None = None,
    tables: Mapping[str, TableResult] | None = None,
    folder: Path | None = None,
) -> Payload:
    """The payload of the page of an atlas."""
    parts, name = Parts(atlas), shown_name(atlas.model)
    collecting = gc.isenabled()
    gc.disable()  # it would search the many new lists again and again, and none of them is garbage
    try:
        packed = blocks(_opened_later(parts, heads))
    finally:
        if collecting:
            gc.enable()
    model = _model(parts, name, tables or {}, folder)
    return Payload(_page("atlas", f"The attention heads of {name}", model), packed)


def _opened_later(parts: Parts, heads: Collection[HeadId] | None) -> Iterator[tuple[str, Any]]:
    """The contents of the blocks, by id."""
    yield "mh-shared", shared(parts)
    for layer, part in head_blocks(parts, heads):
        yield f"mh-heads-{layer}", part


def shown_name(model: str) -> str:
    """The name of a model for a page; for a file or folder, the last part of its path."""
    return (re.split(r"[/\\]", model.rstrip("/\\"))[-1] if _PATH.match(model) else "") or model


def run_payload(name: str, patterns: HeadPatterns) -> Payload:
    """The payload of a page about the patterns of runs."""
    parts = Parts(Atlas(name, shape=patterns.first.shape[:2], patterns=patterns))
    model = _model(parts, name, {}, None)
    model["sources"], model["citation"], model["columns"], model["cautions"] = [], "", [], []
    page = _page("run", f"Attention patterns of {name}", model, "L0H0")
    return Payload(page, blocks(_opened_later(parts, None)))


def _page(kind: Literal["atlas", "run"], title: str, model: contract.Model, start: str | None = None) -> contract.Page:
    return contract.Page(schema=1, kind=kind, version=__version__, title=title, model=model, live=None, start=start)


def _model(parts: Parts, name: str, more: Mapping[str, TableResult], folder: Path | None) -> contract.Model:
    atlas = parts.atlas
    results = _named(atlas, more)
    curves = {own: result for own, result in more.items() if isinstance(result, Curves)}
    n_layers, n_heads = atlas.sizes
    provenances = [result.provenance for result in results.values()]
    return {
        "name": name,
        "nLayers": n_layers,
        "nHeads": n_heads,
        "nKvHeads": next((each["n_kv_heads"] for each in provenances if "n_kv_heads" in each), None),
        "questions": [_question(each) for each in parts.questions],
        "notes": list(atlas.notes),
        "interrupted": atlas.interrupted,
        "sources": [_source(atlas, own, result, folder) for own, result in results.items()],
        "citation": _citation(results.values()),
        "cautions": _cautions(results.values()),
        "columns": columns(parts.table, parts.known),
        "categories": None if atlas.labels is None else _categories(atlas.labels, atlas.relations),
        "behaviours": None if atlas.profile is None else _behaviours(atlas.profile),
        "circuits": [
            *([] if atlas.circuit is None else [_circuit(atlas.circuit, "circuit")]),
            *(line for own, result in curves.items() for line in _lines(own, result)),
        ],
        "tables": [_table(own, result) for own, result in more.items() if own not in curves],
        "panes": panes(parts),
    }


_CAUTIONS = {
    "activation_patch": "Patching is about these prompts: a head without an effect may matter in others, or have a "
    "backup.",
    "attribution": "Attribution patching is an estimate: where a head saturates, its effect can be far from it.",
    "ablate": "Other heads can stand in for one that is ablated: little change does not say that it does nothing.",
    "profile": "Attention is not importance: what a head attends to most it may not move at all.",
    "labels": "A category is about weights and single tokens, not about what the head does in context.",
    "ships": "Ships counts any change of the answer, not only changes of refusing; look-alikes are its control.",
    "roles": "Roles come from short fits, and the three from the same gates.",
}
"""What may not be concluded from scores, by kind."""
_ALWAYS = (
    "Intervals are of single heads. Among hundreds of heads some look special by chance, so prefer family p.",
    "Every number holds for this model, these texts and these prompts.",
)


def _cautions(results: Iterable[HeadScores | TableResult]) -> list[str]:
    """The fixed texts of what may not be concluded from some results."""
    kinds = [kind_name(result) for result in results if isinstance(result, HeadScores)]
    return [*dict.fromkeys(_CAUTIONS[kind] for kind in kinds if kind in _CAUTIONS), *(_ALWAYS if kinds else ())]


def _citation(results: Iterable[HeadScores | TableResult]) -> str:
    """Every entry of the bibliographies once; the lines about versions come last."""
    entries = dict.fromkeys(entry for result in results for entry in result.citation().split("\n\n"))
    return "\n\n".join(sorted(entries, key=lambda entry: not entry.startswith("@")))


def _source(atlas: Atlas, name: str, result: HeadScores | TableResult, folder: Path | None) -> contract.Source:
    """A result with its call, the number of its prompts, and its file if that is in the folder of the page."""
    file = f"{own_file(name) if name in atlas.own else name}.nc"
    call, ablation = result.call, name.removeprefix("safety_")
    if call.startswith("mh.safety.compare_ablations(") and ablation in atlas.safety:
        call += f"[{ablation!r}]"
    return {
        "name": name,
        "call": call,
        "prompts": counted(result) if isinstance(result, HeadScores) else "",
        "file": file if folder is not None and (folder / file).is_file() else None,
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
        "contradictions": [{"a": plain(vars(one)), "b": plain(vars(two))} for one, two in question.contradictions],
        "view": question.view,
    }


def _circuit(curve: Curves, source: str) -> contract.Circuit:
    points: list[contract.CircuitPoint] = [
        {"k": row["k"], "value": plain(row["score"]), "low": plain(row["ci_low"]), "high": plain(row["ci_high"])}
        for row in curve.table.to_dict("records")
    ]
    return {
        "name": "The heads with the largest patching effect, when all others are patched",
        "heads": [str(head) for head in curve.heads],
        "metric": curve.name,
        "curve": points,
        "source": source,
    }


def _lines(name: str, curves: Curves) -> list[contract.Circuit]:
    """The lines of curves, one circuit each, without random orders."""
    circuits = []
    for which, rows in curves.table.groupby("which", sort=False):
        if not is_random(which) and len(rows):
            order = curves.order.get(str(which), ())
            line = replace(curves, table=rows, order={str(which): order})
            circuit = _circuit(line, name)
            circuit["name"] = name if str(which) in ("", name) else f"{name}: {which}"
            circuit["metric"] = f"{curves.name}, {curves.unit}".strip(", ")
            circuits.append(circuit)
    return circuits


def _table(name: str, result: TableResult) -> contract.Table:
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
    """The results of an atlas and further results by name; your own scores under the names that you chose."""
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
            "meaning": COLUMNS[columns_of[name]].meaning,
            "least": LEAST[name],
        }
        for name in PROFILED
    ]
    order = [each["name"] for each in names]
    heads = check_heads(None, profile.n_layers, profile.n_heads)
    return {"names": names, "of": [[order.index(name) for name in profile.names(head)] for head in heads]}
