"""Racing for ten heads of the default model, compared with the exhaustive sweep: ``python -m benchmarks.racing``.

Ships of the package's requests under both ablations, and activation and path patching over pairs of capitals.
Exhaustive sweep and race take turns in one process. Then 200 races run over the recorded scores, each with prompts in
another order.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

import mechheads as mh
from mechheads.labels.relations import Relation
from mechheads.patching import Race
from mechheads.prompts.encoding import single_token
from mechheads.safety import load_requests
from mechheads.studies.build import TEMPLATE

TOP = 10


def main() -> None:
    """Print shares of measurements and of CPU time, and how often the ten heads are those of the exhaustive sweep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=64)
    asked = parser.parse_args()
    model = mh.load()
    requests = [request.text for request in load_requests()][: asked.prompts]
    pairs = capitals(model, asked.prompts)
    sweeps: dict[str, Callable[[Race | None], mh.HeadScores]] = {
        "Ships, undifferentiated": lambda top: mh.ships(model, requests, top=top, progress=False),
        "Ships, scaling": lambda top: mh.ships(model, requests, ablation="scaling", top=top, progress=False),
        "activation patching": lambda top: mh.activation_patch(model, pairs, top=top, progress=False),
        "path patching": lambda top: mh.path_patch(model, pairs, direction="denoising", top=top, progress=False),
    }
    race = Race(TOP)
    for name, sweep in sweeps.items():
        seconds: dict[Race | None, list[float]] = {None: [], race: []}
        found = {}
        for _ in range(asked.repeats):
            for top in seconds:
                start = time.process_time()
                found[top] = sweep(top)
                seconds[top].append(time.process_time() - start)
        whole, few = (statistics.median(times) for times in seconds.values())
        same = set(found[None].heads(TOP)) == set(found[race].heads(TOP))
        print(
            f"{name}: {found[race].provenance['race']['share']:.1%} of the measurements, {few / whole:.1%} of the time "
            f"({few:.1f} of {whole:.1f} s), {'the same' if same else 'other'} heads; recorded scores: "
            f"{trials(found[None].values.values)}",
            flush=True,
        )


def capitals(model: mh.Model, n: int) -> mh.PromptPairs:
    """Pairs of prompts about capitals that are one token each."""
    known = [
        (country, f" {capital}")
        for country, capital in Relation.load("country_to_capital").pairs
        if all(single_token(f" {word}", model.tokenizer) is not None for word in (country, capital))
    ]
    both = [pair for shift in range(1, len(known)) for pair in zip(known, known[shift:] + known[:shift], strict=True)]
    countries, answers = ([(one[part], other[part]) for one, other in both[:n]] for part in range(2))
    return mh.PromptPairs.from_templates(TEMPLATE, {"country": countries}, answer=answers)


def trials(values: np.ndarray, n: int = 200) -> str:
    """How often a race over recorded scores finds the first heads, and at what share of the measurements."""
    table = values.reshape(-1, values.shape[-1])
    table, race, rng = table[~np.isnan(table).any(1)], Race(TOP), np.random.default_rng(0)
    right, share = 0, []
    wanted = set(np.argsort(-table.mean(1))[:TOP].tolist())
    for _ in range(n):
        found, spent = race_over(table, race, rng)
        share.append(spent)
        right += wanted == found
    return f"{right} of {n} races right at {np.mean(share):.1%}"


def race_over(
    table: np.ndarray,
    race: Race,
    rng: np.random.Generator,
    estimates: np.ndarray | None = None,
) -> tuple[set[int], float]:
    """The heads that a race over a table [head, prompt] finds, and its share of the measurements.

    Args:
        estimates: what is known of the same table before it is measured.
    """
    heads, prompts = table.shape
    order, alive, seen, spent = rng.permutation(prompts), np.arange(heads), 0, 0
    for look in race.looks(prompts):
        spent, seen = spent + len(alive) * (look - seen), look
        known = None if estimates is None else estimates[np.ix_(alive, order)]
        alive = alive[~race.dropped(table[np.ix_(alive, order[:look])], prompts, known)]
        if len(alive) <= race.top:
            break
    spent += len(alive) * (prompts - seen)
    mean = table[alive].mean(1)
    ranked = np.argsort(-(np.abs(mean) if race.by == "absolute" else mean))
    return set(alive[ranked[: race.top]].tolist()), spent / table.size


if __name__ == "__main__":
    main()
