"""What was never measured for want of a GPU, in one command: ``python -m benchmarks.gpu``.

A random Llama is saved to a folder, and these are measured with it:

1. activation patching of all heads on one GPU, against one forward pass of TransformerLens for each head;
2. the memory that this takes, against the plan's;
3. blocks that are read from disk to the GPU, against all weights on it;
4. with two or more GPUs: a worker on each, against one process;
5. and the model spread over all of them, against the whole model on one.

Times are of a second call. Without a GPU the command says so and ends with status 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import mechheads as mh
from benchmarks.offload import make_model
from benchmarks.tiny_families import WORDS
from mechheads.engine.memory import UNSEEN, PeakBytes
from mechheads.units import show_bytes, show_seconds

QUIET: dict[str, Any] = {"progress": False}
SAMPLE = 18
"""How many heads TransformerLens runs; every head costs it the same, so its time is scaled to all of them."""


def main() -> None:
    """Measure everything that this machine can."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--folder", type=Path, help="where the model is saved; a temporary folder by default")
    asked = parser.parse_args()
    gpus = torch.cuda.device_count()
    if not gpus:
        print("this machine has no GPU that torch can use, so there is nothing to measure", file=sys.stderr)
        sys.exit(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        size = make_model(folder, asked.layers, asked.width)
        names = ", ".join(torch.cuda.get_device_name(number) for number in range(gpus))
        print(f"a Llama of {asked.layers} layers, {show_bytes(size)} of weights in float32, on {names}", flush=True)
        measure(folder, pairs_of(asked.prompts, asked.tokens), [f"cuda:{number}" for number in range(gpus)], size)


def measure(folder: Path, pairs: mh.PromptPairs, devices: Sequence[str], size: int) -> None:
    """Print every measurement that so many devices allow.

    Args:
        size: the bytes of the model's weights.
    """
    load = partial(mh.load, folder, backend="bridge")
    model = load(device=devices[0])
    alone = timed(model, pairs)
    print(against_transformerlens(model, pairs, alone))
    print(memory(model, pairs))
    del model
    print(from_disk(load(device=devices[0], max_memory=size // 2), pairs, alone))
    if len(devices) < 2:
        print("one GPU only: workers and several devices were not measured")
        return
    model = load(device=devices[0])
    print(by_workers(model, pairs, devices, alone))
    del model
    print(spread(load(device_map="auto", max_memory=dict.fromkeys(devices, size)), pairs, alone))


def pairs_of(prompts: int, tokens: int) -> mh.PromptPairs:
    """Pairs of random words that differ at the second."""
    generator = torch.Generator().manual_seed(1)
    rows = [[WORDS[i] for i in torch.randint(3, len(WORDS), (tokens,), generator=generator)] for _ in range(prompts)]
    clean, other = (["".join(f" {w}" for w in [row[0], word, *row[2:]]) for row in rows] for word in WORDS[:2])
    return mh.PromptPairs(clean, other, answer=[f" {WORDS[0]}"] * prompts, wrong=[f" {WORDS[1]}"] * prompts)


def patch(model: mh.Model, pairs: mh.PromptPairs, **given: Any) -> mh.HeadScores:
    """The sweep that everything here is measured on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a random model prefers wrong answers
        return mh.activation_patch(model, pairs, metric=mh.logit_diff, **QUIET, **given)


def seconds(run: Callable[[], Any]) -> float:
    """How long a second call takes."""
    for _ in range(2):
        start = time.perf_counter()
        run()
        for number in range(torch.cuda.device_count()):
            torch.cuda.synchronize(number)
    return time.perf_counter() - start


def timed(model: mh.Model, pairs: mh.PromptPairs, **given: Any) -> tuple[float, np.ndarray]:
    """The seconds of the sweep and its scores."""
    scores = patch(model, pairs, **given).scores.values
    return seconds(lambda: patch(model, pairs, **given)), scores


def against_transformerlens(model: mh.Model, pairs: mh.PromptPairs, alone: tuple[float, np.ndarray]) -> str:
    """The sweep and TransformerLens' forward passes with one head's z of the clean run each."""
    clean, other = (model.cache(prompts, sites=("z",), **QUIET) for prompts in (pairs.clean, pairs.corrupted))
    bridge, ids, last = model.model, other.tokens.ids, other.tokens.ids.shape[1] - 1
    right, wrong = (model.tokenizer.convert_tokens_to_ids(f"Ġ{word}") for word in WORDS[:2])
    every = [mh.HeadId(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    sample = every[:: max(1, len(every) // SAMPLE)]

    def put(value: Tensor, hook: Any, head: mh.HeadId) -> Tensor:
        value[:, :, head.head] = clean.z[head]
        return value

    def difference(logits: Tensor) -> Tensor:
        return logits[:, last, right].float() - logits[:, last, wrong].float()

    @torch.no_grad()
    def one_by_one() -> np.ndarray:
        before = difference(bridge(ids))
        hooks = [[(f"blocks.{head.layer}.attn.hook_z", partial(put, head=head))] for head in sample]
        after = [difference(bridge.run_with_hooks(ids, fwd_hooks=hook)) for hook in hooks]
        return torch.stack([each - before for each in after]).mean(1).cpu().numpy()

    theirs = one_by_one()
    took = seconds(one_by_one) * len(every) / len(sample)
    off = max(abs(alone[1][head.layer, head.head] - theirs[i]) for i, head in enumerate(sample))
    return (
        f"{len(every)} heads, {len(pairs)} pairs: {show_seconds(alone[0])}; TransformerLens {show_seconds(took)} "
        f"({took / alone[0]:.1f} times as long, scaled from {len(sample)} heads); largest difference {off:.1e}"
    )


def memory(model: mh.Model, pairs: mh.PromptPairs) -> str:
    """The sweep's memory beside the model, as planned and as it was."""
    planned = mh.plan(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted").bytes
    if model.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(model.device)
        before = torch.cuda.memory_allocated(model.device)
        patch(model, pairs)
        used = torch.cuda.max_memory_allocated(model.device) - before
    else:
        with PeakBytes() as counted:
            patch(model, pairs)
        used = counted.peak + UNSEEN
    return f"memory: {show_bytes(used)}, planned {show_bytes(planned)}"


def from_disk(model: mh.Model, pairs: mh.PromptPairs, alone: tuple[float, np.ndarray]) -> str:
    """The sweep with half of the weights on disk."""
    took, scores = timed(model, pairs)
    on_disk: Any = model.backend.on_disk
    speed = on_disk.bytes_read / on_disk.seconds
    return (
        f"half of the weights on disk: {show_seconds(took)} against {show_seconds(alone[0])}; read at "
        f"{show_bytes(speed)}/s; largest difference {abs(scores - alone[1]).max():.1e}"
    )


def by_workers(model: mh.Model, pairs: mh.PromptPairs, devices: Sequence[str], alone: tuple[float, np.ndarray]) -> str:
    """The sweep by a worker on each device."""
    with mh.scale.Local(len(devices), devices=list(devices)) as workers:
        took, scores = timed(model, pairs, workers=workers)
    return (
        f"{len(devices)} workers: {show_seconds(took)}, {alone[0] / took:.2f} times as fast as one process; "
        f"largest difference {abs(scores - alone[1]).max():.1e}"
    )


def spread(model: mh.Model, pairs: mh.PromptPairs, alone: tuple[float, np.ndarray]) -> str:
    """The sweep with the model over all devices."""
    took, scores = timed(model, pairs)
    return (
        f"spread over {len(model.backend.devices.each)} devices: {show_seconds(took)} against "
        f"{show_seconds(alone[0])}; largest difference {abs(scores - alone[1]).max():.1e}"
    )


if __name__ == "__main__":
    main()
