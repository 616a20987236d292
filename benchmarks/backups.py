"""Backups against known ones: growth of effects (``mh.patching.backups``) beside the ablation of one head at a time.

``python -m benchmarks.backups --models 20 --large 2`` measures how well each score tells the backup heads from the
rest, as the area under the ROC curve:

- ``planted``: models of ``benchmarks.truth.behaving``, 6 layers of 4 heads, in which one head copies and two stand in
  for it. The interval is over models.
- ``in the shape of GPT-2``: planted models of 12 layers of 12 heads with the cast of the indirect-object circuit of
  GPT-2 small (Wang et al. 2023): three heads that copy, eight that stand in for them, two that suppress, two that do
  induction, and a previous-token head; the other 128 attend and write at random. These weights are computed, not
  trained, and the prompts are induction. The interval is over prompts, of each model.

Heads are set to zero or to their mean. Of one head at a time, the score is the KL divergence, or how far the logit
difference falls.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.stats import rankdata

import mechheads as mh
from benchmarks.truth.behaving import make_behaving
from benchmarks.truth.behaving_weights import Behaviour
from mechheads.testing import KnownModel

RULES: tuple[Any, ...] = ("zero", "mean")
SIGNS = {"kl_divergence": 1, "logit_diff": -1}
SHAPE, LENGTH = (12, 12), 16
CAST: tuple[tuple[Behaviour, int, int, int], ...] = (
    ("primary", 3, 6, 9),
    ("backup", 8, 9, 12),
    ("negative", 2, 9, 12),
    ("induction", 2, 3, 6),
)
"""Behaviours in the shape of GPT-2: how many heads have each, from which layer on and before which."""
BOOTSTRAPS = 2000


@mh.settings(progress=False)
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.backups", description=__doc__)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--large", type=int, default=2, help="models in the shape of GPT-2")
    parser.add_argument("--pairs", type=int, default=8, help="prompts of each model")
    parser.add_argument("--out", type=Path, default=Path("backups.json"))
    args = parser.parse_args()
    found: dict[str, Any] = {"prompts": args.pairs}
    small = [measured(make_behaving(seed), args.pairs) for seed in range(args.models)]
    found["planted"] = {
        name: over_models([area(score.mean(-1), backup) for score, backup in (each[name] for each in small)])
        for name in (small[0] if small else {})
    }
    print(json.dumps(found, indent=1), flush=True)
    shaped = (make_behaving(seed, plant=cast(seed), shape=SHAPE, length=LENGTH) for seed in range(args.large))
    large = [measured(made, args.pairs) for made in shaped]
    found["in the shape of GPT-2"] = [
        {name: over_prompts(score, backup) for name, (score, backup) in each.items()} for each in large
    ]
    print(json.dumps(found["in the shape of GPT-2"], indent=1), flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")


def cast(seed: int) -> dict[str, Behaviour]:
    """The heads of a model in the shape of GPT-2 that do something."""
    rng, heads = np.random.default_rng([seed, 9]), dict[str, Behaviour]()
    heads[f"L0H{rng.integers(SHAPE[1])}"] = "previous-token"
    for behaviour, n, begin, end in CAST:
        free = [f"L{layer}H{head}" for layer in range(begin, end) for head in range(SHAPE[1])]
        free = [head for head in free if head not in heads]
        heads |= {free[i]: behaviour for i in rng.permutation(len(free))[:n]}
    return heads


Scored = tuple[Float[np.ndarray, "head prompt"], Bool[np.ndarray, " head"]]
"""The scores of the heads that are not gone, and which of them are backups."""


def measured(made: KnownModel, n: int) -> dict[str, Scored]:
    """The growth and the effect alone of each head, for each ablation and metric."""
    pairs = made.pairs()
    some = mh.PromptPairs(*(getattr(pairs, side)[:n] for side in ("clean", "corrupted", "answer", "wrong")))
    of = {name: [head for head, it in made.heads.items() if it.name == name] for name in ("primary", "backup")}
    found: dict[str, Scored] = {}
    for rule in RULES:
        for metric, sign in SIGNS.items():
            growth = mh.patching.backups(made.model, some, of["primary"], intervention=rule, metric=metric, draws=0)
            left = growth.scores.notnull().values
            backup = np.zeros(left.shape, dtype=bool)
            backup[tuple(zip(*((head.layer, head.head) for head in of["backup"]), strict=True))] = True
            for name, values in (("growth", growth.dataset["values"]), ("alone", sign * growth.dataset["alone"])):
                found[f"{name}, {rule}, {metric}"] = values.values[left], backup[left]
    return found


def area(score: Float[np.ndarray, " head"], backup: Bool[np.ndarray, " head"]) -> float:
    """The area under the ROC curve of the backups among all heads."""
    ranks, k = rankdata(score), backup.sum()
    return float((ranks[backup].sum() - k * (k + 1) / 2) / (k * (~backup).sum()))


def over_models(areas: list[float]) -> dict[str, Any]:
    """The mean with its interval over models, and the least."""
    draws = np.random.default_rng(0).choice(areas, (BOOTSTRAPS, len(areas))).mean(-1)
    return {"area": float(np.mean(areas)), "interval": np.quantile(draws, [0.025, 0.975]).tolist(), "least": min(areas)}


def over_prompts(score: Float[np.ndarray, "head prompt"], backup: Bool[np.ndarray, " head"]) -> dict[str, Any]:
    """The area with its interval over prompts."""
    n, rng = score.shape[1], np.random.default_rng(0)
    draws = [area(score[:, rng.integers(n, size=n)].mean(-1), backup) for _ in range(BOOTSTRAPS)]
    return {"area": area(score.mean(-1), backup), "interval": np.quantile(draws, [0.025, 0.975]).tolist()}


if __name__ == "__main__":
    main()
