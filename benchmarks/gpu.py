"""What only a GPU can show, in one command of at most ten minutes: ``python -m benchmarks.gpu``.

It needs the repository and its packages, and downloads nothing: its models are random ones. It measures

1. every analysis of the tests on three tiny models: the numbers on the GPU against the CPU's, in float32 and bfloat16;
2. W1 to W6, Ships and gates on models of three true shapes, against TransformerLens' own functions, hooks in its way or
   a plain loop, with the limit that the card's matrix products set;
3. the memory of a sweep against its plan;
4. a profile of W1: what the card does, and how often it waits;
5. half of the weights on disk, and with two GPUs or more workers and one model over all of them.

TransformerLens runs a few heads, and its time is scaled to all of them. A part that fails is said in the table, and the
others go on. Everything is written to one JSON file after every part. Without a GPU the command ends with status 1;
``--small --device cpu`` runs it in a small form.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import mechheads as mh
from benchmarks import machine
from benchmarks.flops import Shape
from benchmarks.tools import with_loops, with_mechheads
from benchmarks.tools.with_mechheads import Mechheads
from benchmarks.tools.with_transformerlens import TransformerLens
from benchmarks.workloads import Workload, sample
from mechheads.engine.memory import UNSEEN, Cost
from mechheads.limits import show_bytes
from support.tiny_families import WORDS, make_tokenizer

TINY = ("gpt2", "llama", "gemma")
TOKENS, LONG, RUNS, SAMPLED = 16, 1024, 2, 6


@dataclass(frozen=True)
class Card:
    """Where things are measured."""

    device: str
    small: bool  # models of two layers and few prompts, to try the command itself
    until: float  # the clock at which no new part begins


@dataclass(frozen=True)
class Scale:
    """A model by its shape: the sizes of its configuration, its dtype, and how many prompts it gets."""

    name: str
    dtype: torch.dtype
    prompts: int
    sizes: dict[str, Any]


def llama(
    width: int, mlp: int, heads: tuple[int, int], vocabulary: int, *, layers: int = 32, tied: bool = False
) -> Any:
    """The configuration of a Llama; ``heads`` are those of queries and of keys."""
    return {
        "hidden_size": width,
        "intermediate_size": mlp,
        "num_hidden_layers": layers,
        "num_attention_heads": heads[0],
        "num_key_value_heads": heads[1],
        "vocab_size": vocabulary,
        "tie_word_embeddings": tied,
    }


_SMALL = llama(576, 1536, (9, 3), 49152, layers=30, tied=True)
SCALES = (
    Scale("SmolLM2-135M's shape, float32", torch.float32, 32, _SMALL),
    Scale("Llama-3.1-8B's shape, bfloat16", torch.bfloat16, 8, llama(4096, 14336, (32, 8), 128256)),
    Scale("Llama-2-7B's shape, bfloat16", torch.bfloat16, 8, llama(4096, 11008, (32, 32), 32000)),
)


@mh.settings(progress=False)
def main() -> None:
    """Measure everything that this machine can."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--small", action="store_true", help="models of two layers: whether the command works at all")
    parser.add_argument("--minutes", type=float, default=9.0, help="no part begins after so long")
    parser.add_argument("--out", type=Path, default=Path("gpu.json"))
    parser.add_argument("--only", nargs="*", default=[], help="parts whose names begin with one of these")
    asked = parser.parse_args()
    if asked.device.startswith("cuda") and not torch.cuda.device_count():
        print("this machine has no GPU that torch can use, so there is nothing to measure", file=sys.stderr)
        sys.exit(1)
    card = Card(asked.device, asked.small, time.monotonic() + 60 * asked.minutes)
    found: dict[str, Any] = {"machine": machine.description(asked.device), "versions": machine.versions(), "parts": {}}
    for name, part in parts(card):
        if asked.only and not name.startswith(tuple(asked.only)):
            continue
        print(f"\n{name}", flush=True)
        rows = found["parts"][name] = {}
        for row, run in rows_of(part, card):
            rows[row] = told = attempt(run, card)
            asked.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"  {row}: {shown(told)}", flush=True)
        tidy()


Row = tuple[str, Callable[[], Any]]
Part = Callable[[Card], Iterator[Row]]


def parts(card: Card) -> Iterator[tuple[str, Part]]:
    """Every part, by its name; each gives its rows, by their names, as calls."""
    for name in TINY[: 1 if card.small else None]:
        yield f"analyses, {name}", partial(analyses, name)
    for scale in SCALES[: 1 if card.small else None]:
        yield scale.name, partial(sweeps, scale)
    yield "weights on disk and several GPUs", several


def rows_of(part: Part, card: Card) -> Iterator[Row]:
    """The rows of a part; one row that fails, if the part cannot begin."""
    try:
        yield from part(card)
    except Exception as error:
        yield "the part", partial(_raise, error)


def _raise(error: Exception) -> None:
    raise error


def attempt(run: Callable[[], Any], card: Card) -> Any:
    """What a row measured, or why there is nothing."""
    if time.monotonic() > card.until:
        return "left out: no time was left"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # random models prefer wrong answers
        try:
            return run()
        except Exception:
            return f"failed: {traceback.format_exc(limit=-4)}"


def tidy() -> None:
    """Give memory back."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def shown(told: Any) -> str:
    if not isinstance(told, dict):
        return str(told)
    return ", ".join(
        f"{key} {value:.3g}" if isinstance(value, float) else f"{key} {value}" for key, value in told.items()
    )


def analyses(name: str, card: Card) -> Iterator[Row]:
    """How far every analysis on the card is from the CPU's in float32, as a part of its largest number."""
    from support import every_analysis, tiny

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tiny.build(name, folder)
        load = partial(mh.load, folder, backend="bridge")
        here = load()
        there = {str(dtype)[6:]: load(device=card.device, dtype=dtype) for dtype in (torch.float32, torch.bfloat16)}
        for analysis, one in (every_analysis.ANALYSES | every_analysis.MORE).items():
            yield analysis, partial(both_apart, one.numbers, here, there)


def both_apart(run: Callable[[mh.Model], Any], here: mh.Model, there: dict[str, mh.Model]) -> dict[str, float | str]:
    wanted = run(here)
    return {dtype: apart(partial(run, model), wanted) for dtype, model in there.items()}


def apart(run: Callable[[], Any], wanted: Any) -> float | str:
    """The largest difference, divided by the largest number that was wanted."""
    try:
        found = run()
    except Exception:
        return f"failed: {traceback.format_exc(limit=-3)}"
    if isinstance(wanted, (str, list)):
        return "the same" if found == wanted else f"{found} for {wanted}"
    found, wanted = np.asarray(found, dtype=float), np.asarray(wanted, dtype=float)
    there = np.isfinite(wanted)
    if (np.isfinite(found) != there).any():
        return "numbers are missing in one of them"
    return float(abs(found - wanted)[there].max() / (abs(wanted[there]).max() or 1.0))


def random_model(scale: Scale, card: Card) -> mh.Model:
    """A Llama of that shape, drawn on the card."""
    sizes: dict[str, Any] = scale.sizes | ({"num_hidden_layers": 2, "vocab_size": 600} if card.small else {})
    config = transformers.LlamaConfig(
        max_position_embeddings=4096, initializer_range=1.2 * sizes["hidden_size"] ** -0.5, **sizes
    )
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    with torch.device(card.device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=scale.dtype).eval()
    with tempfile.TemporaryDirectory() as folder:  # TransformerLens reads the tokenizer once more
        config.save_pretrained(folder)
        make_tokenizer().save_pretrained(folder)
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return mh.model.load.from_transformers(model, tokenizer, scale.name)


def sweeps(scale: Scale, card: Card) -> Iterator[Row]:
    """W1 to W6, Ships and gates on one shape, with memory and a profile."""
    start = machine.clock(card.device)
    model = random_model(scale, card)
    took = machine.clock(card.device) - start
    yield "loading", lambda: {"seconds": took}
    speed = best_speed(card.device, scale.dtype)
    yield "matrix products", lambda: {"TFLOP/s": speed / 1e12}
    ours, theirs = Mechheads(), TransformerLens()
    ours.model, theirs.model = model, model.model
    theirs.device, theirs.n_layers = card.device, model.n_layers
    shape = Shape.of(model.model.original_model.config)
    prompts = 2 if card.small else scale.prompts
    asked = list(workloads(model, prompts, 64 if card.small else LONG))
    first = asked[0]
    pairs = ours._pairs(first, corrupted_base=True)
    yield "W1 of one head", lambda: {"seconds": timed(model, pairs, heads=["L0H0"])[0]}
    for workload in asked:
        yield workload.name, partial(compared, workload, ours, theirs, shape, speed)
    yield "gates", partial(gates, model, card)
    yield "memory of W1", partial(memory, model, pairs, card)
    yield "profile of W1", partial(profile, partial(run_ours, ours, first, shape), card)


def best_speed(device: str, dtype: torch.dtype, size: int = 8192) -> float:
    """FLOP/s of a large matrix product, the best of five."""
    size = size if device.startswith("cuda") else 512
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = [machine.measured(lambda: left @ right, device).seconds for _ in range(6)]
    return 2 * size**3 / min(seconds[1:])


def workloads(model: mh.Model, prompts: int, long: int) -> Iterator[Workload]:
    """W1 to W6 and Ships on random tokens; pairs share their first two thirds, or two tokens for W1-early."""
    random = np.random.default_rng(0)
    late = (model.n_layers - 1, model.n_heads // 2)

    def pairs(name: str, kind: Any, n: int, tokens: int, shared: int, **given: Any) -> Workload:
        clean = random.integers(3, 600, (n, tokens))
        other = np.concatenate([clean[:, :shared], 3 + (clean[:, shared:] - 2) % 597], axis=1).tolist()
        answers = random.integers(3, 600, (2, n)).tolist()
        base, source = (clean.tolist(), other) if kind == "path" else (other, clean.tolist())
        return Workload(name, kind, base, source, *answers, **given)

    thirds = 2 * TOKENS // 3
    yield pairs("W1", "activation", prompts, TOKENS, thirds)
    yield pairs("W1-early", "activation", prompts, TOKENS, 2)
    yield pairs("W2a", "path", prompts, TOKENS, thirds, receiver="final")
    yield pairs("W2b", "path", prompts, TOKENS, thirds, receiver=late)
    yield Workload("W3", "ablation", random.integers(3, 600, (prompts, TOKENS)).tolist())
    yield pairs("W6", "activation", max(2, prompts // 4), long, 2 * long // 3, last_only=True)
    for kind in ("undifferentiated", "scaling"):
        yield Workload(f"Ships, {kind}", kind, random.integers(3, 600, (prompts, TOKENS)).tolist())


def run_ours(ours: Mechheads, workload: Workload, shape: Shape) -> np.ndarray:
    return ours.run(workload, None, workload.heads(shape))


def compared(
    workload: Workload, ours: Mechheads, theirs: TransformerLens, shape: Shape, speed: float
) -> dict[str, Any]:
    """One workload, by us over all heads and by TransformerLens over a few."""
    every = workload.heads(shape)
    few = sample(every, SAMPLED)
    cached: Any = theirs.prepare(workload)
    theirs.run(workload, cached, few[:1])
    run_ours(ours, workload, shape)
    times: list[tuple[float, float]] = []
    values, wanted = np.zeros(0), np.zeros(0)
    for _ in range(RUNS):
        mine = machine.measured(partial(run_ours, ours, workload, shape), theirs.device)
        prepared = machine.measured(partial(theirs.prepare, workload), theirs.device)
        other = machine.measured(partial(theirs.run, workload, prepared.result, few), theirs.device)
        times.append((mine.seconds, prepared.seconds + other.seconds * len(every) / len(few)))
        values, wanted = mine.result, other.result
    return row_of(times, workload.flops(shape, every) / speed, values[[every.index(head) for head in few]], wanted)


def row_of(
    times: Sequence[tuple[float, float]], limit: float, values: np.ndarray, wanted: np.ndarray
) -> dict[str, Any]:
    """Medians, and the largest difference divided by the largest number."""
    mine, other = (statistics.median(column) for column in zip(*times, strict=True))
    return {
        "seconds": mine,
        "TransformerLens": other,
        "times as long": other / mine,
        "times the limit": mine / limit,
        "apart": float(abs(values - wanted).max() / abs(wanted).max()),
    }


def gates(model: mh.Model, card: Card) -> dict[str, Any]:
    """Two updates of gates, against a plain loop of TransformerLens and torch."""
    prompts, targets = texts(8, TOKENS)
    task = mh.Task(prompts, targets)
    times = []
    mine = plain = machine.measured(lambda: np.zeros(1), card.device)
    for _ in range(RUNS + 1):
        mine = machine.measured(partial(with_mechheads.gates, model, task), card.device)
        plain = machine.measured(partial(with_loops.gates, model, task), card.device)
        times.append((mine.seconds, plain.seconds))
    ours, theirs = (statistics.median(column) for column in zip(*times[1:], strict=True))
    off = float(abs(mine.result - plain.result).max())
    return {"seconds": ours, "plain loop": theirs, "times as long": theirs / ours, "apart": off}


def texts(prompts: int, tokens: int) -> tuple[list[str], list[str]]:
    """Prompts of random words, and a word after each."""
    generator = torch.Generator().manual_seed(1)
    rows = [[WORDS[i] for i in torch.randint(len(WORDS), (tokens + 1,), generator=generator)] for _ in range(prompts)]
    return ["".join(f" {word}" for word in row[:-1]) for row in rows], [f" {row[-1]}" for row in rows]


def memory(model: mh.Model, pairs: mh.PromptPairs, card: Card) -> dict[str, Any]:
    """The sweep's memory beside the model, as planned and as it was."""
    planned = mh.plan(model, pairs, intervention=mh.Patch(), metric=mh.logit_diff, base="corrupted").bytes
    if card.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(card.device)
        before = torch.cuda.memory_allocated(card.device)
        patch(model, pairs)
        used = torch.cuda.max_memory_allocated(card.device) - before
    else:
        with Cost() as counted:
            patch(model, pairs)
        used = counted.peak + UNSEEN
    return {"used": show_bytes(used), "planned": show_bytes(planned)}


def profile(run: Callable[[], Any], card: Card) -> dict[str, Any]:
    """What the card does during a run: how long, in how many kernels, and what takes longest."""
    from torch.profiler import ProfilerActivity, profile

    on_card = card.device.startswith("cuda")
    seconds = machine.measured(run, card.device).seconds
    with profile(activities=[ProfilerActivity.CUDA if on_card else ProfilerActivity.CPU]) as seen:
        machine.measured(run, card.device)
    events = seen.key_averages()

    def time_of(event: Any) -> float:
        return (event.self_device_time_total if on_card else event.self_cpu_time_total) / 1e6

    kernels = [event for event in events if time_of(event) > 0]
    busy = sum(map(time_of, kernels))
    top = sorted(kernels, key=time_of, reverse=True)[:8]
    return {
        "seconds": seconds,
        "busy": busy,
        "kernels": sum(event.count for event in kernels),
        "calls": {event.key: event.count for event in events if "ynchronize" in event.key or "Memcpy" in event.key},
        "most": {event.key[:60]: f"{time_of(event):.3g} s in {event.count}" for event in top},
    }


def pairs_of(prompts: int, tokens: int) -> mh.PromptPairs:
    """Pairs of random words that differ at the second."""
    rows, _ = texts(prompts, tokens)
    clean, other = ([text.replace(text.split(" ")[2], word, 1) for text in rows] for word in WORDS[:2])
    return mh.PromptPairs(clean, other, answer=[f" {WORDS[0]}"] * prompts, wrong=[f" {WORDS[1]}"] * prompts)


def patch(model: mh.Model, pairs: mh.PromptPairs, **given: Any) -> mh.HeadScores:
    return mh.activation_patch(model, pairs, metric=mh.logit_diff, **given)


def timed(model: mh.Model, pairs: mh.PromptPairs, **given: Any) -> tuple[float, np.ndarray]:
    """The seconds of a second sweep, and its scores."""
    patch(model, pairs, **given)
    second = machine.measured(partial(patch, model, pairs, **given), model.device.type)
    return second.seconds, second.result.scores.values


def make_model(folder: Path, layers: int, width: int) -> int:
    """Save a random Llama and a tokenizer; its bytes."""
    tokenizer = make_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=256,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(folder, max_shard_size="64MB")
    tokenizer.save_pretrained(folder)
    return sum(weight.nbytes for weight in model.parameters())


def several(card: Card) -> Iterator[Row]:
    """One model with a part of its weights on disk, and on several GPUs if there are."""
    pairs = pairs_of(8, TOKENS)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        size = make_model(folder, *((2, 64) if card.small else (16, 2048)))
        load = partial(mh.load, folder, backend="bridge")
        alone = timed(load(device=card.device), pairs)
        yield "all weights in memory", lambda: {"seconds": alone[0], "weights": show_bytes(size)}
        yield "on disk", lambda: from_disk(load(device=card.device, max_memory=int(0.9 * size)), pairs, alone)
        devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
        if len(devices) < 2:
            yield "several GPUs", lambda: "not measured: there is one"
            return
        yield "workers", lambda: by_workers(load(device=devices[0]), pairs, len(devices), alone)
        room: dict[str | int, int | str] = dict.fromkeys(range(len(devices)), size)
        yield "spread", lambda: spread(load(device_map="auto", max_memory=room), pairs, alone)


def from_disk(model: mh.Model, pairs: mh.PromptPairs, alone: tuple[float, np.ndarray]) -> dict[str, Any]:
    """The sweep with a part of the weights on disk."""
    took, scores = timed(model, pairs)
    on_disk: Any = model.backend.on_disk
    return {"seconds": took, "read": f"{show_bytes(on_disk.bytes_read / on_disk.seconds)}/s", **beside(scores, alone)}


def by_workers(model: mh.Model, pairs: mh.PromptPairs, n: int, alone: tuple[float, np.ndarray]) -> dict[str, Any]:
    """The sweep by a worker on each device."""
    with mh.scale.Ray(replicas=n) as workers:
        took, scores = timed(model, pairs, workers=workers)
    return {"seconds": took, "workers": n, **beside(scores, alone)}


def spread(model: mh.Model, pairs: mh.PromptPairs, alone: tuple[float, np.ndarray]) -> dict[str, Any]:
    """The sweep with the model over all devices."""
    took, scores = timed(model, pairs)
    return {"seconds": took, "devices": len(model.backend.devices.each), **beside(scores, alone)}


def beside(scores: np.ndarray, alone: tuple[float, np.ndarray]) -> dict[str, Any]:
    return {"apart": float(abs(scores - alone[1]).max() / abs(alone[1]).max())}


if __name__ == "__main__":
    main()
