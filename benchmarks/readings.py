"""How well static scores rank heads by effect: ``python -m benchmarks.readings LABEL=MODEL ... --effects FOLDER``.

The causal evidence of ``mh.labels.relation_evidence`` (total and direct effect, few-shot prompts) says which eight
heads move the answer to a relation most, up or down. AUROC is the probability that a static score puts one of these
before another head. The static scores are phi and the size of ``contrast``, by each reading, with raw and with folded
norms. The paper's form is phi through the first MLP with raw weights. Intervals come from resampling the relations.

Effects take minutes per relation, so they are stored in a folder and computed once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import mechheads as mh
from mechheads.labels.readings import READINGS
from mechheads.studies.build import capital_pairs

RELATIONS = (
    "country_to_capital",
    "country_to_language",
    "object_to_superclass",
    "verb_to_past_tense",
    "noun_to_pronoun",
    "adjective_to_comparative",
    "adjective_to_superlative",
    "word_to_antonym",
    "name_copying",
    "word_to_first_letter",
)
STRONGEST, PROMPTS, DRAWS = 8, 16, 9999
EFFECTS = ("total", "direct")
NORMS = ("raw", "folded")
PAPER = "phi first_mlp raw"
UNTESTED = mh.labels.ScoringSettings(min_effect=1.0)


def effects_of(model: mh.Model, label: str, relation: str, folder: Path) -> dict[str, np.ndarray]:
    """Total and direct effect of every head [layer, head], from the folder if it has them."""
    files = {what: folder / f"{label}_{relation}_{what}.nc" for what in EFFECTS}
    if not all(file.exists() for file in files.values()):
        print(f"{label}: effects on {relation}", file=sys.stderr)
        found = mh.labels.relation_evidence(model, relation, n=PROMPTS)
        for what, file in files.items():
            getattr(found, what).save(file)
    loaded = {what: mh.HeadScores.load(file) for what, file in files.items()}
    if any(scores.provenance["model"] != model.name for scores in loaded.values()):
        raise ValueError(f"--effects {folder} holds effects of another model with the label {label}; use another label")
    return {what: scores.scores.sel(relation=relation).values for what, scores in loaded.items()}


def static_of(model: mh.Model, relations: Sequence[str]) -> dict[str, dict[str, np.ndarray]]:
    """Every static score of every relation [layer, head], by its name: the score, the reading and the norm."""
    found: dict[str, dict[str, np.ndarray]] = {name: {} for name in relations}
    for norm in NORMS:
        scores = mh.relation_scores(model, relations, norm=norm, min_pairs=10, scoring=UNTESTED)
        data = scores.dataset
        for name in relations:
            one = data.sel(relation=name)
            for reading in (*READINGS, "all"):
                end = "" if reading == "all" else f"_{reading}"
                phi, contrast = (f"phi{end}" if end else "score"), f"contrast{end}"
                found[name][f"phi {reading} {norm}"] = one[phi].values
                found[name][f"contrast {reading} {norm}"] = np.abs(one[contrast].values)
    return found


def auroc(score: np.ndarray, effect: np.ndarray) -> float:
    """The probability that one of the heads with the strongest effects scores above another head; ties count half."""
    size = np.abs(effect).ravel()
    strong = np.zeros(len(size), dtype=bool)
    strong[np.argsort(-size, kind="stable")[:STRONGEST]] = True
    ranks, n = rankdata(score.ravel()), int(strong.sum())
    return float((ranks[strong].sum() - n * (n + 1) / 2) / (n * (len(size) - n)))


def over_relations(values: np.ndarray) -> tuple[float, float, float]:
    """The mean over relations, and its 95% interval from resampling the relations."""
    drawn = np.random.default_rng(0).integers(len(values), size=(DRAWS, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975))
    return float(values.mean()), float(low), float(high)


def carriers_of(model: mh.Model) -> list[dict[str, Any]]:
    """The heads that carry a tenth of the capitals or more by activation patching, with their labels."""
    pairs = capital_pairs(model, 8)
    if pairs is None:
        return []
    patched = mh.activation_patch(model, pairs, normalize=True)
    labels = mh.label_heads(model, "country_to_capital")
    raw = mh.relation_scores(model, "country_to_capital", norm="raw", scoring=UNTESTED)
    table, found = labels.table().set_index("head"), []
    for head in patched.heads(10):
        carried, row = float(patched[head]["score"]), table.loc[str(head)]
        if carried >= 0.1:
            found.append(
                {
                    "head": str(head),
                    "carries": carried,
                    "phi": float(row["phi"]),
                    "reading": row["reading"],
                    "raw": float(raw[head]["score"].item()),
                    "labelled": bool(row["is_evidence"]),
                }
            )
    return found


def measured(model: mh.Model, label: str, relations: Sequence[str], folder: Path) -> dict[str, Any]:
    """AUROC of every static score for both effects, for each relation that can be used, and carriers of capitals."""
    static = static_of(model, relations)
    effects = {}
    for name in relations:
        try:
            effects[name] = effects_of(model, label, name, folder)
        except ValueError as error:
            print(f"{label}: {error}", file=sys.stderr)
    result: dict[str, Any] = {"relations": list(effects), "carriers": carriers_of(model)}
    for what in EFFECTS:
        result[what] = {
            score: [auroc(static[name][score], effects[name][what]) for name in effects]
            for score in static[relations[0]]
        }
        for score, values in result[what].items():
            mean, low, high = over_relations(np.array(values))
            gain = over_relations(np.array(values) - np.array(result[what][PAPER]))
            better = f"{gain[0]:+.2f} [{gain[1]:+.2f}, {gain[2]:+.2f}] against the paper's"
            each = " ".join(f"{value:.2f}" for value in values)
            print(f"{label:24s} {what:6s} {score:26s} {mean:.2f} [{low:.2f}, {high:.2f}]  {better}  {each}")
    for one in result["carriers"]:
        print(label, one)
    return result


@mh.settings(progress=False)
def main() -> None:
    """Measure the models named, print the table, and write the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "models", nargs="*", help="LABEL=MODEL, such as gemma=path/to/gemma.gguf; default: the default model"
    )
    parser.add_argument("--effects", type=Path, required=True, help="a folder that stores causal evidence")
    parser.add_argument("--relations", nargs="+", default=list(RELATIONS))
    parser.add_argument("--out", type=Path, help="add the results to this JSON file")
    given = parser.parse_args()
    given.effects.mkdir(parents=True, exist_ok=True)
    result = json.loads(given.out.read_text(encoding="utf-8")) if given.out and given.out.exists() else {}
    for one in given.models or ["smollm2="]:
        label, _, name = one.partition("=")
        result[label] = measured(mh.load(name or None), label, given.relations, given.effects)
    if given.out:
        given.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
