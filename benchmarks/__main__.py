"""Activation patching of every head, ours and TransformerLens' own, interleaved in one process."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mechheads as mh
from mechheads.atlas import capital_pairs


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs of each tool")
    parser.add_argument("--out", type=Path, help="write the numbers to this JSON file")
    args = parser.parse_args()
    measured = activation_patching(args.repeats)
    print(json.dumps(measured, indent=2))
    if args.out:
        args.out.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


def activation_patching(repeats: int) -> dict[str, Any]:
    """8 pairs of 15 to 20 tokens, z of every head at all positions, logit difference at the last position."""
    from transformer_lens import patching

    model = mh.load()
    pairs = capital_pairs(model, 8)
    if pairs is None:
        raise RuntimeError("the default model has no single-token capitals: its tokenizer is not the expected one")
    clean, corrupted = pairs.tokens(model)
    row = torch.arange(len(pairs))
    answer, wrong = clean.answer, clean.wrong

    def metric(logits: torch.Tensor) -> torch.Tensor:
        last = logits[:, -1]
        return (last[row, answer] - last[row, wrong]).mean()

    def theirs() -> np.ndarray:
        with torch.no_grad():
            _, cache = model.model.run_with_cache(clean.ids)
            before = metric(model.model(corrupted.ids))
            after = patching.get_act_patch_attn_head_out_all_pos(model.model, corrupted.ids, cache, metric)
            return (torch.as_tensor(after) - before).numpy()

    def ours() -> np.ndarray:
        return mh.activation_patch(model, pairs, metric=mh.logit_diff, progress=False).scores.to_numpy()

    times, results = interleaved({"mechheads": ours, "TransformerLens": theirs}, repeats)
    medians = {tool: statistics.median(seconds) for tool, seconds in times.items()}
    return {
        "workload": "activation patching of z, every head, all positions",
        "model": model.provenance(),
        "prompts": len(pairs),
        "tokens": clean.lengths.tolist(),
        "threads": torch.get_num_threads(),
        "seconds": times,
        "median_seconds": medians,
        "times_faster": medians["TransformerLens"] / medians["mechheads"],
        "largest_difference": float(np.abs(results["mechheads"] - results["TransformerLens"]).max()),
    }


def interleaved(
    tools: dict[str, Callable[[], np.ndarray]], repeats: int
) -> tuple[dict[str, list[float]], dict[str, np.ndarray]]:
    """Run the tools in turn, so that a slow minute of the machine hits all of them; seconds and last results."""
    times: dict[str, list[float]] = {name: [] for name in tools}
    results: dict[str, np.ndarray] = {}
    for repeat in range(repeats):
        for name, run in tools.items():
            start = time.perf_counter()
            results[name] = run()
            times[name].append(time.perf_counter() - start)
            print(f"run {repeat + 1} of {repeats}: {name} {times[name][-1]:.1f} s", flush=True)
    return times, results


if __name__ == "__main__":
    main()
