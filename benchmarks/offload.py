"""A model twice as large as the memory that its process may use: ``python -m benchmarks.offload``.

A random Llama is saved to a folder. Three processes then cache, sweep and profile it:

1. without a limit, all weights in memory: the numbers to reach;
2. with a limit, all weights in memory: it must die, or the limit would not bind;
3. with the same limit and ``max_memory``: the same numbers, and the reads and seconds beside those of the plan.

The limit is RLIMIT_DATA, which Linux checks at each request for private memory. It is what the process uses after it
has analysed a tiny model, so that all libraries are loaded, plus half of the weights. It also counts mapped files,
though the system may drop their pages at any time, and transformers maps all files while it loads a model. So while
the model loads, the limit is higher by the size of the files. Before each analysis the files are dropped from the
system's cache of pages, so that they are read from the disk.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

import mechheads as mh
from benchmarks.tiny_families import WORDS, make_tokenizer
from mechheads.limits import show_bytes, show_seconds

BUDGET = "96 MB"
SHARD = "64MB"
"""A file is mapped as a whole when one of its weights is read, and the limit counts that, so the files are small."""


@mh.settings(progress=False)
def main() -> None:
    """Make the model, start the three processes, and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--heads", type=int, default=12, help="how many heads are swept")
    parser.add_argument("--folder", type=Path, help="where the model is saved; a temporary folder by default")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        child(asked.folder, asked.heads, *asked.child)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = asked.folder or Path(temporary)
        make_model(folder / "tiny", 1, 64)
        size = make_model(folder / "model", asked.layers, asked.width)
        print(f"a Llama of {asked.layers} layers, {show_bytes(size)} of weights in float32")
        for way, limit in (("memory", "0"), ("memory", str(size // 2)), ("disk", str(size // 2))):
            told = start(folder, asked.heads, way, limit)
            print(f"\n{way}, {f'limit {show_bytes(size // 2)}' if limit != '0' else 'no limit'}: {told}")
        here, there = (np.load(folder / f"{name}.npz") for name in ("memory-0", f"disk-{size // 2}"))
        print("\nlargest differences: ", end="")
        print(", ".join(f"{name} {np.nanmax(abs(here[name] - there[name])):.1e}" for name in here.files))


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
    model.save_pretrained(folder, max_shard_size=SHARD)
    tokenizer.save_pretrained(folder)
    return sum(weight.nbytes for weight in model.parameters())


def start(folder: Path, heads: int, way: str, limit: str) -> str:
    """Run a child to its end; what it says, or how it died."""
    options = ["--folder", str(folder), "--heads", str(heads), "--child", way, limit]
    done = subprocess.run([sys.executable, "-m", "benchmarks.offload", *options], capture_output=True, text=True)
    if done.returncode:
        return f"died (exit code {done.returncode}): {(done.stderr.strip().splitlines() or [''])[-1][:300]}"
    return done.stdout.strip()


def child(folder: Path, heads: int, way: str, limit: str) -> None:
    """Load the model in one way, under a limit, and run every analysis."""
    mh.ablate(mh.load(folder / "tiny", backend="bridge"), [f" {WORDS[0]} {WORDS[1]}"])
    base, resident = account("VmData"), account("VmRSS")
    files = sum(file.stat().st_size for file in (folder / "model").glob("*.safetensors"))
    allow(base + int(limit) + files if int(limit) else resource.RLIM_INFINITY)
    begin = time.perf_counter()
    limited: dict[str, Any] = {"max_memory": int(limit) // 3} if way == "disk" else {"backend": "bridge"}
    model = mh.load(folder / "model", **limited)
    allow(base + int(limit) if int(limit) else resource.RLIM_INFINITY)
    print(f"loaded in {show_seconds(time.perf_counter() - begin)}{read_so_far(model)}")
    found: dict[str, Any] = {
        name: run(name, analysis, model, folder) for name, analysis in analyses(model, heads).items()
    }
    np.savez(folder / f"{way}-{limit}.npz", **found)
    print(f"peak of resident memory: {show_bytes(account('VmHWM') - resident)} more than the libraries")


def analyses(model: mh.Model, heads: int) -> dict[str, Callable[[], Any]]:
    """Every analysis; each returns its numbers."""
    generator = torch.Generator().manual_seed(1)
    rows = [[WORDS[i] for i in torch.randint(len(WORDS), (16,), generator=generator)] for _ in range(8)]
    prompts = ["".join(f" {word}" for word in row) for row in rows]
    other = ["".join(f" {word}" for word in [*row[:10], WORDS[0], *row[11:]]) for row in rows]
    answers = [f" {word}" for word in WORDS[1:3]]
    pairs = mh.PromptPairs(prompts, other, answer=answers[:1] * 8, wrong=answers[1:] * 8)
    every = [mh.HeadId(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)]
    some = every[:: max(1, len(every) // heads)]
    shared: dict[str, Any] = {"heads": some, "budget": BUDGET}
    texts = [torch.randint(10, model.d_vocab, (512,), generator=generator).tolist()]

    def cache() -> np.ndarray:
        run = mh.settings(budget=BUDGET)(model.cache)(prompts)
        return np.concatenate([run.z.layer(layer).flatten() for layer in range(model.n_layers)])

    def plan() -> np.ndarray:
        print(mh.settings(budget=BUDGET)(mh.plan)(model, prompts, intervention=mh.Zero(), heads=some))
        return np.zeros(1)

    return {
        "cache": cache,
        "plan": plan,
        "ablate": lambda: mh.ablate(model, prompts, intervention="zero", **shared).values,
        "patch": lambda: mh.activation_patch(model, pairs, metric=mh.logit_diff, **shared).values,
        "ships": lambda: mh.ships(model, prompts, template="bare", **shared).values,
        "profile": lambda: mh.profile_heads(model, texts, window=64).values,
    }


def run(name: str, analysis: Callable[[], Any], model: mh.Model, folder: Path) -> np.ndarray:
    """Run an analysis and print how long it took and what it read."""
    for file in (folder / "model").glob("*.safetensors"):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    on_disk = model.backend.on_disk
    before, begin = 0 if on_disk is None else on_disk.bytes_read, time.perf_counter()
    values = analysis()
    took = show_seconds(time.perf_counter() - begin)
    print(f"{name}: {took}{read_so_far(model, before)}")
    return np.asarray(values)


def read_so_far(model: mh.Model, before: int = 0) -> str:
    """What was read from disk since then."""
    on_disk = model.backend.on_disk
    if on_disk is None:
        return ""
    size = on_disk.bytes_read - before
    return f", {show_bytes(size)} read ({size / sum(on_disk.layer_bytes.values()):.3g} times what is on disk)"


def allow(size: int) -> None:
    """Limit the private memory of this process."""
    resource.setrlimit(resource.RLIMIT_DATA, (size, resource.RLIM_INFINITY))


def account(what: str) -> int:
    """A line of Linux' account of this process, in bytes."""
    found = re.search(rf"{what}:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    return int(found[1]) * 1024 if found else 0


if __name__ == "__main__":
    main()
