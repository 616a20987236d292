"""Methods that find heads, on models whose heads are known: ``python -m benchmarks.truth``.

Nine models were compiled from programs: the heads that the program needs are known, and all others attend at random and
write where nothing reads. In three planted models, the heads that hold a relation are known. Three models were trained
to known circuits: other heads do what training left them with, but no answer depends on it. Every method scores all
heads on the same pairs; AUROC says how often a head that is needed has a larger absolute score than one that is not.
Intervals are over the models, resampled together for all methods.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import mechheads as mh
from benchmarks.truth.causal_programs import CAUSAL_PROGRAMS
from benchmarks.truth.planted import planted_model
from benchmarks.truth.programs import PROGRAMS
from mechheads.testing import KnownModel, compiled_model, trained_model

PLACE = Path(__file__).with_name("truth.json")
N_PAIRS = 24
RELATIONS = ("capitals", "plurals", "to_north")
RESAMPLES = 10_000
ROUNDING = 1e-5
"""Smaller scores count as 0. They are in logits, or shares of these, and an answer is worth 8 or more."""


@dataclass(frozen=True)
class Known:
    """A model, pairs for it, and which of its heads are needed.

    Attributes:
        kind: compiled, planted or trained.
        needed: [layer, head].
    """

    name: str
    kind: str
    model: mh.Model
    pairs: mh.PromptPairs
    needed: np.ndarray


def known_model(name: str, kind: str, made: KnownModel) -> Known:
    """A compiled or trained model."""
    return Known(name, kind, made.model, made.pairs(N_PAIRS), _marked(made.model, made.heads))


def planted(relation: str, seed: int) -> Known:
    """A planted model, asked for a relation: the heads that hold it are needed, unless they never see its words."""
    made = planted_model(seed=seed)
    words = next(each for each in made.relations if each.name == relation).pairs[:N_PAIRS]
    turned = [*words[1:], words[0]]
    columns = ([pair[i] for pair in of] for of in (words, turned) for i in (0, 1))
    clean, answer, corrupted, wrong = columns
    pairs = mh.PromptPairs(clean, corrupted, [f" {word}" for word in answer], [f" {word}" for word in wrong])
    held = [head for head, of in made.heads.items() if relation in of.relations and of.kind != "unattended"]
    return Known(f"planted {relation}", "planted", made.model, pairs, _marked(made.model, held))


def _marked(model: mh.Model, heads: Any) -> np.ndarray:
    needed = np.zeros((model.n_layers, model.n_heads), dtype=bool)
    for head in heads:
        needed[head.layer, head.head] = True
    return needed


def _gates(known: Known) -> np.ndarray:
    task = mh.gating.Task(list(map(str, known.pairs.clean)), list(map(str, known.pairs.answer or ())), name=known.name)
    roles = mh.head_roles(mh.fit_gates(known.model, task, seeds=3, updates=100))
    return roles["facilitation"].scores.values


def _ablated(kind: Any) -> Callable[[Known], np.ndarray]:
    def score(known: Known) -> np.ndarray:
        pairs = known.pairs
        prompts = mh.Prompts(pairs.clean, answer=pairs.answer, wrong=pairs.wrong)
        return mh.ablate(known.model, prompts, kind=kind, metric="logit_diff").scores.values

    return score


METHODS: dict[str, Callable[[Known], np.ndarray]] = {
    "patching, denoising": lambda known: mh.activation_patch(known.model, known.pairs).scores.values,
    "patching, noising": lambda known: mh.activation_patch(known.model, known.pairs, direction="noising").scores.values,
    "path patching to the logits": lambda known: mh.path_patch(known.model, known.pairs).scores.values,
    "attribution patching": lambda known: mh.patching.attribution_patch(known.model, known.pairs).scores.values,
    "attribution, 5 steps": lambda known: (
        mh.patching.attribution_patch(known.model, known.pairs, steps=5).scores.values
    ),
    "zero ablation": _ablated("zero"),
    "mean ablation": _ablated("mean"),
    "resample ablation": _ablated("resample"),
    "direct logit attribution": lambda known: mh.behaviour.logit_attribution(known.model, known.pairs).scores.values,
    "gates, facilitation": _gates,
}
COMBINED = "patching both ways and mean ablation, mean rank"
_PARTS = ("patching, denoising", "patching, noising", "mean ablation")


def main() -> None:
    """Score all heads by all methods, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    known = [known_model(name, "compiled", compiled_model(name)) for name in PROGRAMS]
    known += [planted(relation, options.seed + i) for i, relation in enumerate(RELATIONS)]
    known += [known_model(f"trained {name}", "trained", trained_model(name)) for name in CAUSAL_PROGRAMS]
    found: dict[str, list[float]] = {name: [] for name in (*METHODS, COMBINED)}
    seconds = dict.fromkeys(METHODS, 0.0)
    for each in known:
        scores = {}
        for name, method in METHODS.items():
            start = time.perf_counter()
            size = np.abs(method(each))
            scores[name] = np.where(size < ROUNDING, 0.0, size)
            seconds[name] += time.perf_counter() - start
            found[name].append(auroc(scores[name], each.needed))
        ranks = [np.argsort(np.argsort(scores[name].ravel())) for name in _PARTS]
        found[COMBINED].append(auroc(np.mean(ranks, axis=0).reshape(each.needed.shape), each.needed))
        print(each.name, {name: round(of[-1], 3) for name, of in found.items()}, flush=True)
    sizes = [{"heads": each.needed.size, "needed": int(each.needed.sum())} for each in known]
    result = {
        "models": [{"name": each.name, "kind": each.kind, **size} for each, size in zip(known, sizes, strict=True)],
        "auroc": found,
        "table": table(found, options.seed),
        "kinds": kinds(found, [each.kind for each in known], options.seed),
        "seconds": seconds,
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    for row in result["table"]:
        print(row)


def auroc(scores: np.ndarray, needed: np.ndarray) -> float:
    """How often a needed head has a larger score than another one; a tie is half a time.

    >>> auroc(np.array([0.1, 0.9, 0.5]), np.array([False, True, False]))
    1.0
    """
    one, other = scores[needed][:, None], scores[~needed][None]
    return float((one > other).mean() + (one == other).mean() / 2)


def table(found: dict[str, list[float]], seed: int) -> list[dict[str, Any]]:
    """The mean of each method over models, and how far it is behind the best mean, with 95% intervals over models."""
    values = np.array(list(found.values()))
    draws = np.random.default_rng(seed).integers(0, values.shape[1], (RESAMPLES, values.shape[1]))
    means, best = values[:, draws].mean(-1), int(values.mean(1).argmax())
    rows = []
    for name, own, drawn in zip(found, values, means, strict=True):
        low, high = np.quantile(drawn, (0.025, 0.975))
        behind = np.quantile(means[best] - drawn, (0.025, 0.975))
        rows.append(
            {
                "method": name,
                "auroc": float(own.mean()),
                "interval": [float(low), float(high)],
                "least": float(own.min()),
                "behind the best": float(values[best].mean() - own.mean()),
                "behind, interval": behind.tolist(),
            }
        )
    return sorted(rows, key=lambda row: -row["auroc"])


def kinds(found: dict[str, list[float]], of: list[str], seed: int) -> list[dict[str, Any]]:
    """The mean of each method over each kind of models, and how much higher it is on trained than on compiled ones.

    The interval of the difference is over models, which are resampled within their kind.
    """
    rows = []
    for name, values in found.items():
        groups = {kind: np.array([value for value, its in zip(values, of, strict=True) if its == kind]) for kind in of}
        rng = np.random.default_rng(seed)
        drawn = {kind: rng.choice(each, (RESAMPLES, len(each))).mean(1) for kind, each in groups.items()}
        means = {kind: float(each.mean()) for kind, each in groups.items()}
        above = np.quantile(drawn["trained"] - drawn["compiled"], (0.025, 0.975)).tolist()
        difference = {"trained - compiled": means["trained"] - means["compiled"], "interval": above}
        rows.append({"method": name, **means, **difference})
    return rows


if __name__ == "__main__":
    main()
