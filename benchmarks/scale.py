"""What workers cost and what they gain: ``python -m benchmarks.scale``.

1. The overhead of a batch: batches that compute nothing go through the driver, Ray, a worker and the ledger. The
   driver's own CPU time limits how many replicas it can serve; the whole round trip is what a replica waits.
2. The efficiency that follows for 8, 64 and 512 replicas, for batches of models of the size of Llama-2-7B and
   Llama-3.1-70B at a given speed of a replica. It is computed from 1, not measured on GPUs.
3. Two workers on two cores and one process with two threads, taking turns: activation patching on the default model.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechheads as mh
from mechheads.engine.dispatch import Batch, Dispatch
from mechheads.engine.memory import Chunks
from mechheads.labels.relations import Relation
from mechheads.ledger.ledger import Ledger
from mechheads.limits import Limits
from mechheads.model.model import source_of
from mechheads.prompts.encoding import single_token
from mechheads.scale.ray_cluster import Answer, Ready, Setup, library
from mechheads.studies.capitals import TEMPLATE

LLAMAS = {"Llama-2-7B": (6.5e9, 32, 1), "Llama-3.1-70B": (69.5e9, 80, 4)}
"""Parameters in blocks, layers, and GPUs of a replica."""


@dataclass(frozen=True)
class Nothing:
    """A recipe for values of a given size, without any work."""

    size: int

    def __call__(self, model: mh.Model) -> Ready:
        return lambda request: Answer([np.zeros(self.size) for _ in request.batch.units])


@mh.settings(progress=False)
def main() -> None:
    """Print the overhead, the efficiency and both times."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--units", type=int, default=16, help="units of a batch")
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64, help="tokens of a prompt that are computed")
    parser.add_argument("--teraflops", type=float, default=300.0, help="what a GPU does in a second")
    parser.add_argument("--pairs", type=int, default=8, help="pairs of the activation patching")
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    model = mh.load()
    pairs = capitals(model, asked.pairs)
    round_trip, driver = overhead(model, asked.batches, asked.units, asked.prompts)
    print(f"a batch of {asked.units} units and {asked.prompts} prompts: {1e3 * round_trip:.2f} ms round trip, ", end="")
    print(f"of which {1e3 * driver:.2f} ms CPU time of the driver")
    for name, (parameters, layers, gpus) in LLAMAS.items():
        work = 2 * parameters * asked.units * asked.prompts * asked.tokens * (layers + 1) / (2 * layers)
        seconds = work / (gpus * asked.teraflops * 1e12)
        shares = (min(seconds / (seconds + round_trip), seconds / (n * driver)) for n in (8, 64, 512))
        print(f"{name}: {seconds:.2f} s a batch; efficiency at 8, 64, 512 replicas: ", end="")
        print(", ".join(f"{share:.1%}" for share in shares))
    side_by_side(model, pairs, asked.repeats)


def overhead(model: mh.Model, batches: int, units: int, prompts: int) -> tuple[float, float]:
    """Seconds for each batch that computes nothing, all units committed to a ledger, and the driver's share of them."""
    setup = Setup("nothing", source_of(model), "cpu", library().cloudpickle.dumps(Nothing(prompts)))
    made = [Batch((tuple((mh.HeadId(0, 0), i * units + j) for j in range(units)),)) for i in range(batches)]
    with mh.scale.Ray(replicas=1) as workers, tempfile.TemporaryDirectory() as folder:
        for number, some in enumerate((made[:2], made)):  # the first run starts the worker
            with Ledger(Path(folder) / f"{number}.ledger", "nothing", {}) as ledger:

                def take(units: Sequence[Any], values: Any, ledger: Ledger = ledger) -> None:
                    ledger.commit({str(unit): value for unit, value in zip(units, values, strict=True)})

                start, before = time.perf_counter(), time.process_time()
                Dispatch(workers, setup, Chunks(), take).run(some)
                wall, driver = time.perf_counter() - start, time.process_time() - before
    return wall / batches, driver / batches


def side_by_side(model: mh.Model, pairs: mh.PromptPairs, repeats: int) -> None:
    """Print the times of one process with all threads, and of as many workers with one thread each."""
    cores = torch.get_num_threads()
    limits = Limits()
    times: dict[str, list[float]] = {"one process": [], "workers": []}
    with mh.scale.Ray(replicas=cores) as workers:
        ways = {"one process": limits, "workers": replace(limits, workers=workers)}
        mh.activation_patch(model, pairs, budget=ways["workers"])  # starts the workers
        for _ in range(repeats):
            for name, way in ways.items():
                start = time.perf_counter()
                mh.activation_patch(model, pairs, budget=way)
                times[name].append(time.perf_counter() - start)
    one, several = (statistics.median(taken) for taken in times.values())
    best = " and ".join(f"{min(taken):.2f}" for taken in times.values())
    print(f"activation patching, {len(pairs)} pairs: one process with {cores} threads {one:.2f} s, ", end="")
    print(f"{cores} workers {several:.2f} s (medians of {repeats}, taking turns; best {best})")


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


if __name__ == "__main__":
    main()
