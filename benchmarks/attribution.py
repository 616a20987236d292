"""What attribution costs, in forward and backward passes: ``python -m benchmarks.attribution``.

Each way of ``mh.patching.attribution_patch``, for all heads and MLPs, beside one forward and one backward pass of the
clean prompts through TransformerLens, and TransformerLens' own ``attribution_patch``, which takes one pair at a time.
All take turns in one process; medians. Memory is the most that the process uses, with the model.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

import mechheads as mh
from benchmarks import machine
from benchmarks.scale import capitals
from mechheads.prompts.tokens import Tokens

PASS = "one forward and one backward pass"


@mh.settings(progress=False)
def main() -> None:
    """Print the median time, the number of passes and the memory of each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a name or a path; by default, the default model")
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--budget", default="1 GB")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    model = mh.load(asked.model)
    pairs = capitals(model, asked.pairs)
    clean, corrupted = pairs.tokens(model)
    print(f"{model.name}, {len(pairs)} pairs of {clean.ids.shape[1]} tokens, budget {asked.budget}")
    given: dict[str, Any] = {"direction": "noising", "nodes": "all", "budget": asked.budget}
    ways: dict[str, Callable[[], Any]] = {
        PASS: lambda: both_ways(model, clean),
        "attribution": lambda: mh.patching.attribution_patch(model, pairs, **given),
        "attribution, 5 steps": lambda: mh.patching.attribution_patch(model, pairs, steps=5, **given),
        "TransformerLens, attribution": lambda: theirs(model, clean, corrupted),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    peaks = dict.fromkeys(ways, 0.0)
    for repeat in range(asked.repeats):
        for name, way in ways.items():
            found = machine.measured(way, str(model.device))
            seconds[name].append(found.seconds)
            peaks[name] = max(peaks[name], found.peak)
            print(f"run {repeat + 1} of {asked.repeats}: {name} {found.seconds:.2f} s", file=sys.stderr)
    one = statistics.median(seconds[PASS])
    for name, each in seconds.items():
        middle = statistics.median(each)
        print(f"{name}: {middle:.2f} s, {middle / one:.1f} passes, {peaks[name] / 1e6:.0f} MB")


def both_ways(model: mh.Model, tokens: Tokens) -> torch.Tensor:
    """The gradient of the logit difference with respect to the stream before the first block."""
    seen: list[torch.Tensor] = []

    def watch(value: torch.Tensor, hook: Any) -> torch.Tensor:
        seen.append(value.detach().requires_grad_())
        return seen[0]

    with torch.enable_grad():
        logits = model.model.run_with_hooks(tokens.ids, fwd_hooks=[("blocks.0.hook_resid_pre", watch)])
        return torch.autograd.grad(difference(logits, tokens, range(len(tokens))).sum(), seen)[0]


def difference(logits: torch.Tensor, tokens: Tokens, prompts: range) -> torch.Tensor:
    """Answer minus wrong answer at the last token of each prompt."""
    if tokens.answer is None or tokens.wrong is None:
        raise ValueError("the pairs have no answers")
    rows = torch.arange(len(prompts))
    at = torch.as_tensor(tokens.lengths)[list(prompts)] - 1
    last = logits[rows, at]
    answer, wrong = (torch.as_tensor(each)[list(prompts)] for each in (tokens.answer, tokens.wrong))
    return last[rows, answer] - last[rows, wrong]


def theirs(model: mh.Model, clean: Tokens, corrupted: Tokens) -> None:
    """TransformerLens' estimate of every node, pair by pair, with gradients at the clean run."""
    from transformer_lens.tools.analysis import attribution_patch

    for prompt in range(len(clean)):
        here, there = (side.ids[prompt : prompt + 1, : int(side.lengths[prompt])] for side in (clean, corrupted))
        one = range(prompt, prompt + 1)
        attribution_patch(model.model, there, here, lambda logits, one=one: difference(logits, clean, one)[0])


if __name__ == "__main__":
    main()
