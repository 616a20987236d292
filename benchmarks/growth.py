"""How time and memory grow with prompts, tokens, layers and heads: ``python -m benchmarks.growth``, in half an hour.

Random Llamas of one small width run each analysis on 10 to 10,000 prompts of 8 tokens, on 4 prompts of 16 to 4,096
tokens, and on 8 prompts of a model with 2 to 32 layers and with 2 to 32 heads, in a budget of 200 MB. Every analysis
and axis has a process of its own with one thread, and times are of the processor. The table says how many times as long
one takes if the axis grows by the factor between its last two sizes, over this factor: 1 is linear. Sweeps over all
heads do work for each pair of layers, so for layers 4 is expected at most, and for tokens attention adds to it.

It writes ``growth.json`` beside this file. ``--small`` tries it; ``--only ablate`` runs one analysis.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

import mechheads as mh
from benchmarks import machine
from benchmarks.table import table
from benchmarks.tiny_families import make_tokenizer

OUT = Path(__file__).parent / "growth.json"
BUDGET = "200 MB"
D_HEAD = 16
AXES = {
    "prompts": (10, 100, 1000, 10000),
    "tokens": (16, 64, 256, 1024, 4096),
    "layers": (2, 8, 32),
    "heads": (2, 8, 32),
}
SMALL = {"prompts": (4, 8), "tokens": (16, 32), "layers": (2, 4), "heads": (2, 4)}
USUAL = {"prompts": 8, "tokens": 8, "layers": 2, "heads": 4}
SECONDS = 150
"""A size that follows one of a quarter of this time is left out."""

Rows = list[list[int]]


def _pairs(rows: Rows) -> mh.PromptPairs:
    """Pairs that differ in the second token, with any answers."""
    other = [[row[0], row[1] + 1, *row[2:]] for row in rows]
    return mh.PromptPairs(rows, other, [50] * len(rows), [60] * len(rows))


def _requests(rows: Rows) -> mh.Prompts:
    return mh.Prompts(rows)


ANALYSES: dict[str, Callable[[mh.Model, Rows], Any]] = {
    "cache": lambda model, rows: model.cache(rows),
    "ablate": lambda model, rows: mh.ablate(model, rows),
    "activation_patch": lambda model, rows: mh.activation_patch(model, _pairs(rows)),
    "path_patch": lambda model, rows: mh.path_patch(model, _pairs(rows), receivers=["L1H0.q"]),
    "attribution_patch": lambda model, rows: mh.patching.attribution_patch(model, _pairs(rows)),
    "self_repair": lambda model, rows: mh.patching.self_repair(model, _pairs(rows), heads=["L0H1"]),
    "logit_attribution": lambda model, rows: mh.behaviour.logit_attribution(model, _pairs(rows)),
    "ships": lambda model, rows: mh.ships(model, _requests(rows)),
    "generalized_ships": lambda model, rows: mh.safety.generalized_ships(model, _requests(rows)),
    "profile_heads": lambda model, rows: mh.profile_heads(model, rows, n_tokens=sum(map(len, rows))),
    "task_log_prob": lambda model, rows: mh.task_log_prob(model, mh.Task(rows, [[50]] * len(rows)), off="L0H1"),
    "generate": lambda model, rows: mh.generate(model, rows, 4),
}
SHORTEST = {"profile_heads": 32}
"""How many tokens prompts have at least, if fewer are too few for an analysis."""


def main() -> None:
    """Measure each analysis on each axis, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="two small sizes on each axis, to see that it works")
    parser.add_argument("--only", choices=sorted(ANALYSES), action="append", help="an analysis; may be given again")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        name, axis, *sizes = asked.measure
        measure(name, axis, [int(size) for size in sizes])
        return
    found: dict[str, Any] = {"machine": machine.description("cpu"), "budget": BUDGET, "analyses": {}}
    for name in asked.only or ANALYSES:
        for axis, sizes in (SMALL if asked.small else AXES).items():
            command = [sys.executable, "-m", "benchmarks.growth", "--measure", name, axis, *map(str, sizes)]
            done = subprocess.run(command, capture_output=True, text=True)
            points = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
            if not points:
                raise SystemExit(f"{name}, {axis}: {done.stderr.strip().splitlines()[-1]}")
            found["analyses"].setdefault(name, {})[axis] = points
            print(
                f"{name}, {axis}: " + "; ".join(f"{p['size']}: {p['seconds']:.2f} s, {p['mb']:.0f} MB" for p in points)
            )
            sys.stdout.flush()
        asked.out.write_text(json.dumps(found, indent=1) + "\n", "utf-8")
    print(shown(found["analyses"]))


@mh.settings(progress=False, budget=BUDGET)
def measure(name: str, axis: str, sizes: list[int]) -> None:
    """Run one analysis at each size, and print a line of JSON for each."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    for size in sizes:
        shape = USUAL | {axis: size}
        tokens = max(shape["tokens"], SHORTEST.get(name, 0))
        model, draw = _model(shape["layers"], shape["heads"]), random.Random(0)
        prompts = 4 if axis == "tokens" else shape["prompts"]
        rows = [[draw.randrange(40, 200) for _ in range(tokens)] for _ in range(prompts)]
        ANALYSES[name](model, rows[:2])
        before, start = _peak(), time.process_time()
        ANALYSES[name](model, rows)
        seconds = time.process_time() - start
        print(json.dumps({"size": size, "seconds": seconds, "mb": _peak() - before}), flush=True)
        if seconds > SECONDS / 4:
            break


def _peak() -> float:
    """The most memory that this process has had, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _model(layers: int, heads: int) -> mh.Model:
    tokenizer = make_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=D_HEAD * heads,
        intermediate_size=4 * D_HEAD * heads,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=D_HEAD,
        max_position_embeddings=8192,
    )
    with tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return mh.load(folder)


def shown(analyses: dict[str, dict[str, list[dict[str, float]]]]) -> str:
    """The table: how times grow between the last two sizes of each axis, over the growth of the size."""
    rows = []
    for name, axes in analyses.items():
        cells = []
        for points in axes.values():
            if len(points) < 2:
                cells.append("")
                continue
            small, large = points[-2:]
            factor = large["size"] / small["size"]
            cells.append(f"{large['seconds'] / small['seconds'] / factor:.2f} ({large['seconds']:.1f} s)")
        rows.append([name, *cells])
    return "\n".join(table(["analysis", *next(iter(analyses.values()))], rows))


if __name__ == "__main__":
    main()
