"""Ships of every head of the default model, compared with a forward pass per head: ``python -m benchmarks.safety``.

The prompts are 32 requests of the package in the paper's template, padded on the right. The plain way is
TransformerLens' own ``run_with_hooks``, as documented: q of one head times epsilon for Undifferentiated Attention, z
for Scaling Contribution, KL at the last token. It runs on a few heads spread over the layers, and its time is scaled to
all heads. Its numbers must be the same as ours.

The limit is the number of operations that an exact method needs to ablate each head at all tokens of all prompts,
divided by the speed of the best matrix product. This speed changes within seconds, so it is measured every few seconds,
between the parts of the same pass. "Times the limit" is the number of operations that products could have done during
the pass, divided by the number needed. A second, lower limit assumes that the tokens with which all prompts begin are
computed once. Memory is compared with ``mh.plan``, in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from itertools import chain
from typing import Any

import numpy as np
import torch

import mechheads as mh
from benchmarks import machine
from benchmarks.flops import Shape, base_run, cone
from mechheads.engine.run import batches
from mechheads.safety import load_requests, request_prompts
from mechheads.safety.heads.ablations import Ablation, Kind
from mechheads.safety.heads.measure_ships import Pass, ShipsKind

HEADS = [(2, 1), (12, 4), (22, 7)]
N = 32
EPSILON = 1e-4
SECONDS_A_PART = 4.0
SITES: dict[Kind, str] = {"undifferentiated": "q", "scaling": "z"}


@mh.settings(progress=False)
def main() -> None:
    """Run both in turns, and print medians, ratios and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    repeats = parser.parse_args().repeats
    model = mh.load()
    requests = [request.text for request in load_requests()[:N]]
    n_heads = model.n_layers * model.n_heads
    limits = [needed(model, requests, shared) for shared in (False, True)]
    ours: dict[str, list[float]] = {kind: [] for kind in SITES}
    plain: dict[str, list[float]] = {kind: [] for kind in SITES}
    could: dict[str, list[float]] = {kind: [] for kind in SITES}
    for repeat in range(repeats):
        for kind in SITES:
            values, seconds, flops = paced(model, requests, kind)
            loop = machine.measured(lambda kind=kind: obvious_loop(model, requests, kind), "cpu")
            ours[kind].append(seconds)
            could[kind].append(flops)
            plain[kind].append(loop.seconds * n_heads / len(HEADS))
            off = difference(values, loop.result)
            print(
                f"run {repeat + 1} of {repeats}, {kind}: mechheads {seconds:.1f} s at {flops / seconds / 1e9:.0f} "
                f"GFLOP/s, {flops / limits[0]:.2f} times the limit; the loop {loop.seconds:.1f} s for {len(HEADS)} "
                f"heads, {plain[kind][-1]:.0f} s for all; largest difference {off:.1e} nats",
                file=sys.stderr,
            )
    for kind in SITES:
        middle, room = statistics.median(ours[kind]), statistics.median(could[kind])
        print(
            f"{kind}: {middle:.1f} s, {statistics.median(plain[kind]) / middle:.1f} times faster, "
            f"{room / limits[0]:.2f} times the limit, {room / limits[1]:.2f} times the limit with a shared beginning"
        )
    both = machine.measured(lambda: mh.safety.compare_ablations(model, requests), "cpu")
    print(f"both in one pass, with Generalized Ships: {both.seconds:.1f} s")
    print(memory())


def paced(model: mh.Model, requests: list[str], kind: Kind) -> tuple[np.ndarray, float, float]:
    """The pass of ``mh.ships``: KL [layer, head, prompt], seconds, and the FLOPs that products can do in this time."""
    speed, seconds, flops = _best_speed(), 0.0, 0.0
    start = machine.clock("cpu")
    asked = mh.settings(budget=None)(Pass.of)(model, requests, "query", heads=None)
    (job,) = asked.jobs([Ablation(kind, EPSILON)])
    work = ShipsKind(with_kl=True)(job)
    kl = np.full((model.n_layers, model.n_heads, len(job.tokens)), np.nan)
    steps = chain.from_iterable(map(work.compute, batches(job)))
    while True:
        units, values = next(steps, ([], []))
        for (head, _), value in zip(units, values, strict=True):
            kl[head.layer, head.head] = value
        if not units or machine.clock("cpu") - start > SECONDS_A_PART:
            spent, before = machine.clock("cpu") - start, speed
            speed = _best_speed()
            seconds, flops = seconds + spent, flops + spent * (before + speed) / 2
            start = machine.clock("cpu")
        if not units:
            return kl, seconds, flops


def _best_speed() -> float:
    return max(machine.matmul_speed("cpu").values())


def needed(model: mh.Model, requests: list[str], shared: bool) -> int:
    """FLOPs of one ablation of every head at all tokens; if ``shared``, common first tokens are counted once."""
    shape = Shape.of(model.model.original_model.config)
    tokens = request_prompts(model, requests).tokens(model)
    lengths = tokens.lengths.tolist()
    alike = int((tokens.ids == tokens.ids[0]).all(0).int().cumprod(0).sum()) if shared else 0
    once = sum(cone(shape, layer, 0, alike) - shape.unembed for layer in range(model.n_layers - 1)) if alike else 0
    each = sum(cone(shape, layer, alike, end) for layer in range(model.n_layers) for end in lengths)
    return sum(base_run(shape, end) for end in lengths) + model.n_heads * (once + each)


def obvious_loop(model: mh.Model, requests: list[str], kind: Kind) -> np.ndarray:
    """KL [head, prompt] of the sampled heads, by one full forward pass for each head."""
    tokens = request_prompts(model, requests).tokens(model)
    row, last = torch.arange(len(tokens)), tokens.lengths - 1

    def log_probs(hooks: list[Any]) -> torch.Tensor:
        logits = model.model.run_with_hooks(tokens.ids, fwd_hooks=hooks, attention_mask=tokens.mask.long())
        return logits[row, last].log_softmax(-1)

    with torch.no_grad():
        intact = log_probs([])
        found = []
        for layer, head in HEADS:

            def shrink(value: torch.Tensor, hook: Any, head: int = head) -> torch.Tensor:
                value[:, :, head] *= EPSILON
                return value

            found.append(log_probs([(f"blocks.{layer}.attn.hook_{SITES[kind]}", shrink)]))
    return np.stack([(intact.exp() * (intact - one)).sum(-1).double().numpy() for one in found])


def difference(values: np.ndarray, loop: np.ndarray) -> float:
    """The largest difference over the sampled heads and all prompts."""
    return max(float(np.abs(values[at] - row).max()) for at, row in zip(HEADS, loop, strict=True))


_IN_FRESH_PROCESS = """
import json
from benchmarks import machine, safety
import mechheads as mh
model = mh.load()
requests = [request.text for request in safety.load_requests()[:safety.N]]
heads = [(layer, 0) for layer in range(model.n_layers)]
prompts = safety.request_prompts(model, requests)
planned = mh.plan(model, prompts, intervention=mh.patching.UniformAttention(1e-4), heads=heads).bytes
before = machine.memory_level("cpu")
peak = machine.measured(lambda: mh.ships(model, requests, heads=heads), "cpu").peak
print(json.dumps([planned, peak - before]))
"""


def memory() -> str:
    """The memory that the plan says, and the memory that a fresh process takes in addition to the loaded model."""
    done = subprocess.run([sys.executable, "-c", _IN_FRESH_PROCESS], capture_output=True, text=True, check=True)
    planned, taken = json.loads(done.stdout.splitlines()[-1])
    return f"memory: planned {planned / 2**20:.0f} MB, taken {taken / 2**20:.0f} MB"


if __name__ == "__main__":
    main()
