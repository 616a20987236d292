"""Backups in trained models: ``python -m benchmarks.backups_trained --models 4``, about 80 s a model.

Small GPT-2s (4 layers of 4 heads) learn to continue words that come again and again. While they learn, each head is
silent in one text of ten, so that others learn to stand in for it. What stands in for what is then known from
ablating every set of up to four heads, 2,516 sets. A set *breaks* the model if fewer than half of the repeated words
are right without it and no smaller set in it does so. Two heads stand in for each other if some such set has both of
them: with the other heads of the set gone, the model needs one of the two. This is asked of the sets of up to three
heads, too, which are the first that break these models.

``mh.patching.backups`` gets one head that is gone, and ranks the others: by the growth of their effects, and beside it
by their effects one head at a time. The area under the ROC curve says how well this tells the heads that stand in from
the others. It is a mean over the heads that have both, in each model; of three models or more, there is an interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import combinations, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import cross_entropy

import mechheads as mh
from benchmarks.backups import RULES, area, over_models
from benchmarks.truth.planted import blank_gpt2
from mechheads.model.load import from_transformers
from mechheads.testing.known import SPECIAL, word_tokenizer

N_LAYERS, N_HEADS, D_HEAD, D_MLP = 4, 4, 10, 80
WORDS, LENGTH, PERIODS = 36, 20, (5, 10)
"""How many words there are, how many a text has, and after how many at least and below how many they come again."""
STEPS, ROWS, RATE, SILENT = 800, 64, 3e-3, 0.1
SIZES, TEXTS, LEAST = (3, 4), 16, 0.5
"""The most heads that are ablated together, in how many texts, and the share of right words below which it breaks."""
METRICS = {"kl_divergence": 1, "log_prob": -1}
"""Of one head at a time, the score is the KL divergence, or how far the log-probability of the next word falls."""
FEWEST = 3
"""The fewest models with an interval over them."""
Texts = tuple[Int[Tensor, "text pos"], Bool[Tensor, "text pos"]]
"""Tokens, and which of the words can be told from those before them."""


@mh.settings(progress=False)
def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=int, default=4)
    parser.add_argument("--first", type=int, default=0, help="the seed of the first model")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("backups_trained.json"))
    args = parser.parse_args()
    torch.set_num_threads(1)
    found = json.loads(args.out.read_text()) if args.out.exists() else {"models": {}}
    for seed in range(args.first, args.first + args.models):
        found["models"][str(seed)] = told = measured(seed, args.steps)
        print(json.dumps(told, indent=1), flush=True)
        names = dict.fromkeys(name for each in found["models"].values() for name in each["areas"])
        found["areas"] = (
            {}
            if len(found["models"]) < FEWEST
            else {
                name: over_models([each["areas"][name] for each in found["models"].values() if name in each["areas"]])
                for name in names
            }
        )
        args.out.write_text(json.dumps(found, indent=1) + "\n")


def measured(seed: int, steps: int) -> dict[str, Any]:
    """What stands in for what in a model, and how well each score tells it."""
    rng = np.random.default_rng(seed)
    gpt2 = trained(rng, steps, torch.Generator().manual_seed(seed))
    shares = dict(ablated(gpt2, texts(rng, TEXTS)))
    broken = {heads for heads, share in shares.items() if share < LEAST}
    breaking = {size: minimal({heads for heads in broken if len(heads) <= size}) for size in SIZES}
    tokenizer = word_tokenizer([f"w{i}" for i in range(WORDS)], "repeats", LENGTH + 1)
    model = from_transformers(gpt2, tokenizer, f"trained with silent heads, {seed}")
    ids, _ = texts(rng, TEXTS)
    prompts = mh.Prompts(ids[:, :-1].tolist(), answer=ids[:, -1].tolist())
    asked = sorted(set().union(*(heads for of_size in breaking.values() for heads in of_size)))
    areas: dict[str, list[float]] = {}
    for head, rule, (metric, sign) in product(asked, RULES, METRICS.items()):
        growth = mh.patching.backups(model, prompts, named(head), intervention=rule, metric=metric, draws=0)
        others = np.delete(np.arange(N_LAYERS * N_HEADS), head)
        scores = {"growth": growth.dataset["values"], "alone": sign * growth.dataset["alone"]}
        for size, (name, values) in product(SIZES, scores.items()):
            backup = np.isin(others, [other for heads in breaking[size] if head in heads for other in heads])
            if backup.any() and not backup.all():
                found = area(values.values.reshape(N_LAYERS * N_HEADS, -1).mean(-1)[others], backup)
                areas.setdefault(f"sets of up to {size}, {name}, {rule}, {metric}", []).append(found)
    return {
        "right": shares[frozenset()],
        "right without each head": [shares[frozenset([head])] for head in range(N_LAYERS * N_HEADS)],
        "breaking": {
            size: [" ".join(map(named, sorted(each))) for each in of_size] for size, of_size in breaking.items()
        },
        "heads asked": len(asked),
        "areas": {name: float(np.mean(each)) for name, each in areas.items()},
    }


def named(head: int) -> str:
    return str(mh.HeadId(*divmod(head, N_HEADS)))


def texts(rng: np.random.Generator, n: int) -> Texts:
    """Different words, which come again and again."""
    period = rng.integers(*PERIODS, n)
    blocks = np.stack([rng.permutation(WORDS)[: PERIODS[1]] for _ in range(n)]) + len(SPECIAL)
    at = np.arange(LENGTH)[None]
    words = np.take_along_axis(blocks, at % period[:, None], 1)
    ids = np.concatenate([np.zeros((n, 1), dtype=int), words], 1)
    return torch.from_numpy(ids), torch.from_numpy(at >= period[:, None])


def trained(rng: np.random.Generator, steps: int, generator: torch.Generator) -> Any:
    """A GPT-2 that learned with silent heads."""
    options = {"vocab_size": WORDS + len(SPECIAL), "n_positions": LENGTH + 1, "n_inner": D_MLP}
    gpt2 = blank_gpt2(N_LAYERS, N_HEADS, N_HEADS * D_HEAD, **options)
    with torch.no_grad():
        for name, weight in gpt2.named_parameters():
            if ".ln_" in name and name.endswith("weight"):
                weight.fill_(1)
            elif weight.dim() == 2:
                size = 0.3 if "transformer.w" in name else (N_HEADS * D_HEAD) ** -0.5
                weight.normal_(0, size, generator=generator)
    optimizer = torch.optim.AdamW(gpt2.parameters(), lr=RATE, weight_decay=0.01, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 100, 1 - step / steps))
    for step in range(steps):
        ids, known = texts(rng, ROWS)
        share = SILENT * min(1, max(0, 3 * step / steps - 1))  # none in the first third, all in the last
        silent = torch.rand(ROWS, N_LAYERS, N_HEADS, generator=generator) < share
        loss = cross_entropy(logits(gpt2, ids, silent)[known], ids[:, 1:][known])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(gpt2.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return gpt2


def logits(
    gpt2: Any, ids: Int[Tensor, "text pos"], silent: Bool[Tensor, "text layer head"]
) -> Float[Tensor, "text pos token"]:
    """What follows each token but the last if some heads of each text write nothing."""

    def before(module: Any, inputs: tuple[Tensor], layer: int) -> tuple[Tensor]:
        kept = (~silent[:, layer]).to(inputs[0].dtype).repeat_interleave(D_HEAD, 1)
        return (inputs[0] * kept[:, None],)

    with ExitStack() as hooks:
        for layer, block in enumerate(gpt2.transformer.h):
            hooks.callback(block.attn.c_proj.register_forward_pre_hook(partial(before, layer=layer)).remove)
        return gpt2(ids[:, :-1], use_cache=False).logits


@torch.no_grad()
def ablated(gpt2: Any, asked: Texts, at_once: int = 64) -> Iterator[tuple[frozenset[int], float]]:
    """The share of repeated words that are right without each set of heads."""
    (ids, known), n = asked, N_LAYERS * N_HEADS
    sets = [frozenset(heads) for size in range(max(SIZES) + 1) for heads in combinations(range(n), size)]
    for start in range(0, len(sets), at_once):
        some = sets[start : start + at_once]
        silent = torch.zeros(len(some), n, dtype=torch.bool)
        for row, heads in enumerate(some):
            silent[row, sorted(heads)] = True
        rows = silent.repeat_interleave(len(ids), 0).unflatten(1, (N_LAYERS, N_HEADS))
        again = ids.repeat(len(some), 1)
        right = (logits(gpt2, again, rows).argmax(-1) == again[:, 1:]).unflatten(0, (len(some), -1))
        yield from zip(some, right[:, known].double().mean(1).tolist(), strict=True)


def minimal(sets: set[frozenset[int]]) -> list[frozenset[int]]:
    """The sets that have no other one in them."""
    found: list[frozenset[int]] = []
    for heads in sorted(sets, key=len):
        if not any(other <= heads for other in found):
            found.append(heads)
    return found


if __name__ == "__main__":
    main()
