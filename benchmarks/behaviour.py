"""Profiles: their cost, and whether the induction heads they name carry in-context copying.

``python -m benchmarks.behaviour --models default path/to/model.gguf --out behaviour.json`` measures, for each model,

- the time of a profile against plain forward passes of the same windows, interleaved;
- the agreement of induction scores from repeated random tokens with those from ordinary text, with bootstrap intervals
  over windows and rows;
- the loss on the second half of repeated random tokens when the first five induction heads (by ordinary text) are
  replaced by their means, against random heads of the same layers, with an interval over rows. If a layer has too few
  other heads, fewer heads are compared, as many on both sides.

``--planted 20`` measures, over so many models with planted heads, the area under the ROC curve of each behaviour,
and in how many models with nothing planted something is found.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import rankdata

import mechheads as mh
from benchmarks.machine import PeakMemory, clock
from benchmarks.truth.behaving import make_behaving
from mechheads.behaviour.measure import measure
from mechheads.behaviour.profile import FDR, NAMES, HeadProfile
from mechheads.behaviour.windows import windows_of
from mechheads.results.correlation import Comparison, compare
from mechheads.results.stats import clustered_interval, mean_over_prompts
from mechheads.testing import KnownModel

ROWS, LENGTH, DRAWS = 24, 64, 20
BOOTSTRAPS, FIRST = 2000, 10


@mh.settings(progress=False)
def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.behaviour", description=__doc__)
    parser.add_argument("--models", nargs="*", default=["default"])
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--planted", type=int, default=0, help="models with planted attention; 0 for none")
    parser.add_argument("--noise", type=float, default=0.5)
    parser.add_argument("--out", type=Path, default=Path("behaviour.json"))
    args = parser.parse_args()
    found: dict[str, Any] = {}
    if args.planted:
        found["planted"] = planted(args.planted, args.noise)
        print(json.dumps(found["planted"], indent=1), flush=True)
    for name in args.models:
        model = mh.load(None if name == "default" else name)
        on_text, seconds = whole(model, args.tokens)
        found[Path(name).stem] = told = {
            "heads": [model.n_layers, model.n_heads],
            "cost": cost(model, args.repeats),
            "profile": seconds,
            **induction(model, on_text),
        }
        print(json.dumps(told, indent=1), flush=True)
    args.out.write_text(json.dumps(found, indent=1) + "\n")


def planted(n: int, noise: float) -> dict[str, Any]:
    """The area under the ROC curve of each planted behaviour, and what is found where nothing is planted."""
    areas: dict[str, list[float]] = {}
    wrong = dict.fromkeys(("name", "copying score", "logit attribution", "self-repair"), 0)
    for seed in range(n):
        made, nothing = (make_behaving(seed, noise, plant) for plant in (None, {}))
        attends = {head: it.attends for head, it in made.heads.items()}
        found = mh.profile_heads(made.model, made.texts, window=100)
        scores = {
            f"attention: {name}": (found.dataset["excess"].values[..., at], of(attends, name))
            for at, name in enumerate(NAMES.values())
            if name in attends.values()
        }
        for name, (score, truth) in (scores | copied(made, found)).items():
            areas.setdefault(name, []).append(area(score, truth))
        empty = mh.profile_heads(nothing.model, nothing.texts, window=100)
        weights = mh.behaviour.copying_scores(nothing.model).dataset
        parts = mh.behaviour.logit_attribution(nothing.model, nothing.pairs()).dataset
        repair = mh.patching.self_repair(nothing.model, nothing.pairs()).select(effect="repair").dataset
        wrong["name"] += bool(empty.dataset["named"].values.any())
        wrong["copying score"] += bool((weights["q_value"].values <= FDR).any())
        wrong["logit attribution"] += bool((parts["q_value"].values <= FDR).any())
        wrong["self-repair"] += bool(((repair["q_value"].values <= FDR) & (repair["ci_low"].values >= 0.1)).any())
    return {
        "models": n,
        "noise": noise,
        "area under the ROC curve, mean and least": {
            name: [float(np.mean(each)), min(each)] for name, each in areas.items()
        },
        "models with nothing planted in which something is found": wrong,
    }


def copied(made: KnownModel, profile: mh.behaviour.HeadProfile) -> dict[str, tuple[np.ndarray, set[mh.HeadId]]]:
    """What should be highest in the heads that copy or suppress, and these heads."""
    pairs, shape = made.pairs(), (made.model.n_layers, made.model.n_heads)
    named = {head: it.name for head, it in made.heads.items()}
    negative, primary, backup = (of(named, name) for name in ("negative", "primary", "backup"))
    weights = mh.behaviour.copying_scores(made.model).dataset["score"].values
    parts = mh.behaviour.logit_attribution(made.model, pairs).dataset["score"].values
    repair = mh.patching.self_repair(made.model, pairs).select(effect="repair").dataset["score"].values
    every = [mh.HeadId(layer, head) for layer, head in np.ndindex(shape)]
    sets = [{head} for head in every] + [{head} | primary for head in every]
    found = mh.patching.patch_sets(made.model, pairs, sets, direction="noising")
    alone, both = found.values.mean(-1).reshape(2, *shape)
    (first,) = primary
    together = alone + alone[first.layer, first.head] - both
    together[first.layer, first.head] = 0
    return {
        "copying score: primary and backup": (weights, primary | backup),
        "copying score: negative": (-weights, negative),
        "profile's copying: negative": (-profile.dataset["copying"].values, negative),
        "logit attribution: negative": (-parts, negative),
        "logit attribution: primary": (parts, primary),
        "self-repair: primary": (repair, primary),
        "lost only with the primary head: backup": (together, backup),
    }


def of(heads: dict[mh.HeadId, Any], name: str) -> set[mh.HeadId]:
    return {head for head, each in heads.items() if each == name}


def area(score: np.ndarray, truth: set[mh.HeadId]) -> float:
    """The area under the ROC curve of some heads among all."""
    planted = np.zeros(score.shape, dtype=bool)
    for head in truth:
        planted[head.layer, head.head] = True
    ranks, k = rankdata(score).reshape(score.shape), planted.sum()
    return float((ranks[planted].sum() - k * (k + 1) / 2) / (k * (~planted).sum()))


def cost(model: mh.Model, repeats: int) -> dict[str, float]:
    """Median seconds of measuring a batch of windows and of a plain forward pass of it."""
    ids = next(each.ids for each in windows_of(model, None, 256, None) if each.ids.shape == (4, 256))
    seconds: dict[str, list[float]] = {"forward": [], "profile": []}
    for _ in range(repeats + 1):
        for name, run in (("forward", model.backend.own_logits), ("profile", lambda ids: measure(model, ids))):
            start = clock("cpu")
            run(ids)
            seconds[name].append(clock("cpu") - start)
    medians = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    return medians | {"ratio": medians["profile"] / medians["forward"]}


def whole(model: mh.Model, tokens: int) -> tuple[HeadProfile, dict[str, float]]:
    """A profile, its seconds and its peak memory."""
    wall, cpu = time.perf_counter(), time.process_time()
    with PeakMemory("cpu") as memory:
        found = mh.profile_heads(model, n_tokens=tokens)
    return found, {
        "tokens": found.provenance["n_tokens"],
        "windows": found.provenance["n_windows"],
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
        "peak_mb": memory.peak / 2**20,
    }


def induction(model: mh.Model, on_text: HeadProfile) -> dict[str, Any]:
    """Agreement of the two ways to find induction heads, and what in-context copying loses without the first five."""
    rows = mh.behaviour.repeated_tokens(model, ROWS, LENGTH)
    on_rows = mh.profile_heads(model, rows, window=len(rows[0]))
    scores = [each.select(behaviour="induction") for each in (on_text, on_rows)]
    ids = torch.tensor(mh.behaviour.repeated_tokens(model, ROWS, LENGTH, seed=1))
    first = scores[0].heads(5)
    return {
        "agreement": agreement(*scores),
        "first": [list(map(str, each.heads(FIRST))) for each in scores],
        **loss_without(model, ids, first),
    }


def loss_without(model: mh.Model, ids: torch.Tensor, first: Sequence[mh.HeadId]) -> dict[str, Any]:
    """The loss without the first heads, and without those of them that a random head of their layer is drawn for."""
    lost = cache(lambda heads: second_half(model, ids, heads) - intact)
    intact, draws = second_half(model, ids, ()), list(drawn(model, first))
    matched = tuple(head for head, other in zip(first, draws[0], strict=True) if other is not None)
    others = [lost(tuple(sorted(head for head in heads if head is not None))) for heads in draws]
    return {
        "loss": with_interval(intact),
        "lost without the first five": with_interval(lost(tuple(first))),
        "compared": list(map(str, matched)),
        "lost without these": with_interval(lost(matched)),
        "lost without as many random heads of the same layers": [float(other.mean()) for other in others],
        "difference": with_interval(lost(matched) - np.mean(others, axis=0)),
    }


def agreement(on_text: mh.HeadScores, on_rows: mh.HeadScores) -> dict[str, Any]:
    """Spearman's correlation of two scores over heads, and how many of the first ten they share.

    Each with the 2.5% and 97.5% quantiles over bootstrap draws of the windows of both.
    """
    values = [np.asarray(each.values).reshape(-1, each.dataset.sizes["prompt"]) for each in (on_text, on_rows)]
    draw = np.random.default_rng(0)

    def compared(columns: list[np.ndarray]) -> Comparison:
        left, right = (mean_over_prompts(each[:, at]) for each, at in zip(values, columns, strict=True))
        return compare(left, right, FIRST, ("text", "rows"))

    whole = compared([np.arange(each.shape[1]) for each in values])
    draws = [compared([draw.integers(each.shape[1], size=each.shape[1]) for each in values]) for _ in range(BOOTSTRAPS)]
    spearman, overlap = np.quantile([(each.spearman, FIRST * each.overlap) for each in draws], [0.025, 0.975], axis=0).T
    return {
        "windows": [each.shape[1] for each in values],
        "Spearman": [whole.spearman, *spearman.tolist()],
        f"shared of the first {FIRST}": [FIRST * whole.overlap, *overlap.tolist()],
        "by chance": FIRST**2 / whole.n_heads,
    }


def drawn(model: mh.Model, first: Sequence[mh.HeadId]) -> Iterator[list[mh.HeadId | None]]:
    """For each of the first heads, a random other head of its layer; None if there is no more."""
    draw = np.random.default_rng(0)
    for _ in range(DRAWS):
        heads: list[mh.HeadId | None] = []
        for head in first:
            free = [h for h in range(model.n_heads) if mh.HeadId(head.layer, h) not in {*first, *heads}]
            heads.append(mh.HeadId(head.layer, int(draw.choice(free))) if free else None)
        yield heads


def with_interval(values: np.ndarray) -> list[float]:
    """The mean over rows, and the ends of its interval."""
    low, high = clustered_interval(values, np.arange(len(values)))
    return [float(values.mean()), float(low), float(high)]


@torch.no_grad()
def second_half(model: mh.Model, ids: torch.Tensor, heads: Sequence[mh.HeadId]) -> np.ndarray:
    """The loss of each row on its second copy, in nats a token, with the z of some heads replaced by their means."""

    def mean(z: torch.Tensor, hook: Any) -> torch.Tensor:
        z = z.clone()
        for head in heads:
            if head.layer == hook.layer():
                z[:, :, head.head] = z[:, :, head.head].mean((0, 1))
        return z

    layers = sorted({head.layer for head in heads})
    final = model.backend.run(ids, [(model.hook_name("z", layer), mean) for layer in layers])
    begin = ids.shape[1] - LENGTH
    log_p = model.unembed(final[:, begin:-1]).log_softmax(-1)
    return -log_p.gather(-1, ids[:, begin + 1 :, None])[..., 0].mean(-1).double().numpy()


if __name__ == "__main__":
    main()
