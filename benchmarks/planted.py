"""Precision and recall of labels on planted models: ``python -m benchmarks.planted --out benchmarks/planted.json``.

Planted models with growing noise give precision and recall of labels, over seeds. Models with nothing planted, and
planted models with shuffled pairs, show how often there is any label: in these models every label is false.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import mechheads as mh
from benchmarks.truth.planted import PlantedModel, planted_model
from mechheads.plots.parts import figure_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

NOISES = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0)
CATEGORIES = ("Knowledge", "Linguistic", "Algorithmic", "Translation")


def found(planted: PlantedModel, relations: Iterable[mh.Relation] | None = None, **options: Any) -> set[Any]:
    """The labels of a planted model, as (head, category)."""
    form: dict[str, Any] = {"source": "first_mlp", "norm": "raw"}
    labels = mh.label_heads(planted.model, relations or planted.relations, **form | options)
    return {(head, category) for head in planted.looks_at for category in labels.of(head)}


def truth(planted: PlantedModel) -> set[Any]:
    """The true (head, category) pairs, without heads "in context", which the first MLP cannot show."""
    return {
        (head, category)
        for head, categories in planted.categories.items()
        if planted.heads[head].kind != "in context"
        for category in categories
    }


def shuffled(planted: PlantedModel) -> list[mh.Relation]:
    """The relations with shuffled targets."""
    rng = np.random.default_rng(planted.seed)
    dealt = []
    for relation in planted.relations:
        sources, targets = zip(*relation.pairs, strict=True)
        pairs = list(zip(sources, rng.permutation(targets).tolist(), strict=True))
        dealt.append(mh.Relation(relation.name, relation.category, pairs))
    return dealt


def precision_recall(planted: PlantedModel, **options: Any) -> tuple[float, float]:
    """Precision (the share of found labels that are true) and recall (the share of true labels that are found)."""
    said, true = found(planted, **options), truth(planted)
    right = len(said & true)
    return right / len(said) if said else 1.0, right / len(true)


def figure(result: dict[str, Any]) -> go.Figure:
    """Precision and recall against noise: means over seeds, and the range of single models."""
    import plotly.graph_objects as go

    drawn = figure_of()
    names = {"null": "above the null (ours)", "maps": "phi of 0.15 or more (the paper's)"}
    marks = {
        ("null", "precision"): ("#1f77b4", "solid"),
        ("null", "recall"): ("#1f77b4", "dash"),
        ("maps", "precision"): ("#ff7f0e", "solid"),
        ("maps", "recall"): ("#ff7f0e", "dash"),
    }
    for (rule, what), (colour, dash) in marks.items():
        values = np.array(result["rules"][rule][what])
        mean = values.mean(1)
        drawn.add_trace(
            go.Scatter(
                x=result["noise"],
                y=mean,
                name=f"{what}, {names[rule]}",
                mode="lines+markers",
                line={"color": colour, "dash": dash},
                error_y={
                    "symmetric": False,
                    "array": values.max(1) - mean,
                    "arrayminus": mean - values.min(1),
                    "thickness": 1,
                },
            )
        )
    drawn.update_xaxes(title_text="noise, as a share of the planted map's norm", showline=True, linecolor="#888888")
    drawn.update_yaxes(range=[0, 1.03], showline=True, linecolor="#888888", gridcolor="#eeeeee")
    drawn.update_layout(
        plot_bgcolor="white",
        font={"color": "#222222"},
        width=820,
        height=400,
        margin={"t": 20, "r": 20},
        legend={"x": 0.02, "y": 0.05},
    )
    return drawn


@mh.settings(progress=False)
def main() -> None:
    """Measure, print, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    given = parser.parse_args()
    seeds = range(given.seeds)
    result: dict[str, Any] = {"seeds": given.seeds, "noise": list(NOISES), "rules": {}, "null": {}}
    for rule in ("null", "maps"):
        table = np.array(
            [[precision_recall(planted_model(seed=s, noise=noise), rule=rule) for s in seeds] for noise in NOISES]
        )
        result["rules"][rule] = {"precision": table[..., 0].tolist(), "recall": table[..., 1].tolist()}
        for noise, row in zip(NOISES, table, strict=True):
            mean, least = row.mean(0), row.min(0)
            print(
                f"{rule} {noise:4.2f}: precision {mean[0]:.3f} (least {least[0]:.2f}), recall {mean[1]:.3f} "
                f"(least {least[1]:.2f})",
                file=sys.stderr,
            )
    for what in ("nothing planted", "pairs shuffled"):
        falsely = dict.fromkeys(CATEGORIES, 0)
        for seed in seeds:
            planted = planted_model(seed=seed, plant={} if what == "nothing planted" else None)
            said = found(planted, shuffled(planted) if what == "pairs shuffled" else None)
            for category in {category for _, category in said}:
                falsely[category] += 1
        result["null"][what] = falsely
        print(f"{what}: number of {given.seeds} models with a false label, by category: {falsely}", file=sys.stderr)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
