"""Fitting gates on the default model, compared with a plain loop: ``python -m benchmarks.gating``.

The plain loop implements the method directly: frozen weights, z times the gates in a hook of TransformerLens, logits of
the whole vocabulary at every position, the targets' log-probabilities gathered from them, and torch.optim.Adam. Both
fit the same few-shot prompts. They take turns of two updates from the same gates, with a new seed each turn, so that
other work on the machine slows both equally. Their gates must agree. Then several seeds at once are compared with the
same seeds one after the other.
"""

from __future__ import annotations

import argparse
import math
import statistics
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mechheads as mh
from benchmarks import machine
from mechheads.gating import Task
from mechheads.gating.fit.arguments import FitSettings, Rules
from mechheads.gating.fit.descent import Pull
from mechheads.gating.fit.fit import Fit, Stage, TargetLoss, run_stages, start_logits
from mechheads.gating.fit.gates import rows_at_once
from mechheads.labels.few_shot import few_shot_prompts

LR = (0.1, 0.01)
N_PROMPTS, SHOTS = 8, 3
IN_TURN = 2


@mh.settings(progress=False)
def main() -> None:
    """Run both in turns, and print medians, ratios and memory."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=4)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "seed .* ended a nat or more above")  # after two updates they may
    model = mh.load()
    prompts = few_shot_prompts(model, "country_to_capital", shots=SHOTS, n=N_PROMPTS)
    task = Task(list(map(str, prompts.items)), list(map(str, prompts.answer or ())), name="capitals")
    tokens = task.tokens(model)
    print(f"{len(tokens)} prompts of {int(tokens.lengths.min())} to {int(tokens.lengths.max())} tokens, in one batch")
    turns = math.ceil(options.updates / IN_TURN)
    print(f"{turns * IN_TURN} updates each, in turns of {IN_TURN}")
    compare(
        {
            "mechheads": lambda turn: ours(model, task, [turn], IN_TURN),
            "plain loop": lambda turn: plain_loop(model, task, turn, IN_TURN)[None],
        },
        turns,
    )
    turns = math.ceil(options.updates / IN_TURN / options.seeds)
    print(f"{options.seeds} seeds, {turns * IN_TURN} updates each, in turns of {IN_TURN}")
    seeds = range(options.seeds)
    compare(
        {
            "at once": lambda turn: ours(model, task, [turn + seed for seed in seeds], IN_TURN),
            "one after the other": lambda turn: np.concatenate(
                [ours(model, task, [turn + seed], IN_TURN) for seed in seeds]
            ),
        },
        turns,
    )


def compare(ways: dict[str, Callable[[int], np.ndarray]], turns: int) -> None:
    """Time two ways to compute the same gates, in turns, and print the comparison."""
    for way in ways.values():
        way(0)  # to warm up
    runs: dict[str, list[machine.Measured]] = {name: [] for name in ways}
    for turn in range(turns):
        for name in sorted(ways, reverse=bool(turn % 2)):
            runs[name].append(machine.measured(partial(ways[name], turn), "cpu"))
    for name in ways:
        seconds, peak = (statistics.median(getattr(run, of) for run in runs[name]) for of in ("seconds", "peak"))
        print(f"{name}: median {seconds:.2f} s per turn, peak memory {peak / 2**20:.0f} MB, with the model")
    first, second = (runs[name] for name in ways)
    pairs = list(zip(first, second, strict=True))
    ratios = [b.seconds / a.seconds for a, b in pairs]
    low, middle, high = statistics.quantiles(ratios)
    off = max(float(np.abs(a.result - b.result).max()) for a, b in pairs)
    print(
        f"{middle:.2f} times as fast (quartiles {low:.2f} and {high:.2f}), over all turns "
        f"{sum(b.seconds for _, b in pairs) / sum(a.seconds for a, _ in pairs):.2f}; gates differ by at most {off:.2g}"
    )


def ours(model: mh.Model, task: Task, seeds: list[int], updates: int) -> np.ndarray:
    """Gates after the first fit of ``fit_gates``."""
    tokens = task.tokens(model)
    rules = Rules(tuple(seeds), N_PROMPTS, FitSettings(tolerance=None))
    stage = Stage(("none",), (Pull(0.0, updates, LR),))
    fit = Fit(model, TargetLoss(tokens, "mean"), len(tokens), [stage], rules, task.name, {})
    return run_stages(fit, rows_at_once(model, tokens), None)["none"]


def plain_loop(model: mh.Model, task: Task, seed: int, updates: int) -> np.ndarray:
    """Gates after the first fit of one seed, by a direct implementation."""
    tokens = task.tokens(model)
    for weight in model.model.parameters():
        weight.requires_grad_(False)
    logits = start_logits([seed], model.n_layers, model.n_heads)[0].to(model.device).requires_grad_()
    adam = torch.optim.Adam([logits], lr=LR[0])
    slower = torch.optim.lr_scheduler.LinearLR(adam, 1.0, LR[1] / LR[0], updates)

    def gate(z: Tensor, hook: Any, layer: int, gates: Tensor) -> Tensor:
        return z * gates[layer, :, None].to(z.dtype)

    for _ in range(updates):
        gates = logits.sigmoid()
        hooks = [
            (f"blocks.{layer}.attn.hook_z", partial(gate, layer=layer, gates=gates)) for layer in range(model.n_layers)
        ]
        log_p = model.model.run_with_hooks(tokens.ids, fwd_hooks=hooks)[:, :-1].float().log_softmax(-1)
        each = log_p.gather(2, tokens.ids[:, 1:, None])[..., 0] * tokens.predicts[:, :-1]
        loss = -(each.sum(1) / tokens.predicts.sum(1)).mean()
        adam.zero_grad()
        loss.backward()
        adam.step()
        slower.step()
    return logits.sigmoid().detach().cpu().numpy()


if __name__ == "__main__":
    main()
