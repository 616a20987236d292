"""What long prompts and many prompts cost, in under ten minutes: ``python -m benchmarks.lengths``.

Random Llamas of 2, 12 and 32 layers of one small width run W1 and Ships for 4 prompts of 16 to 4,096 tokens, and for 4
to 256 prompts of 16 tokens. Beside mechheads run TransformerLens' own functions, on one head of the middle layer (with
4,096 tokens, for one prompt of the four), and their time is scaled to all heads and prompts. Where the sweep over all
heads would take long, mechheads runs three heads, in the first, the middle and the last layer, and its time is scaled
by the operations that these and all heads need.

It writes ``lengths.json`` beside this file, after every row; the documentation draws it. ``--small`` tries it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers

import mechheads as mh
from benchmarks import machine
from benchmarks.flops import Shape
from benchmarks.runner import Local
from benchmarks.table import table
from benchmarks.tiny_families import make_tokenizer
from benchmarks.workloads import Head, ModelSpec, Workload
from mechheads.engine.answer_check import AnswerWarning
from mechheads.plots.parts import Theme, grid_of, themed

if TYPE_CHECKING:
    import plotly.graph_objects as go

OUT = Path(__file__).parent / "lengths.json"
LAYERS, WIDTH, HEADS = (2, 12, 32), 128, 2
TOKENS, PROMPTS = (16, 64, 256, 1024, 4096), (4, 16, 64, 256)
CASES = [(PROMPTS[0], tokens) for tokens in TOKENS] + [(prompts, TOKENS[0]) for prompts in PROMPTS[1:]]
TITLES = {"W1": "patching every head (W1)", "Ships-U": "Ships of every head (Undifferentiated Attention)"}
WHO = {"mechheads": "mechheads", "tl4": "TransformerLens 4", "limit": "the limit"}
COLOURS, DASHES = ("#1f77b4", "#c53030", "#1b7837"), ("solid", "dash", "dot")
SHORT, RUNS, MOST = 0.3, 3, 4096
"""All heads run if the limit of a sweep is below so many seconds; such a sweep is measured so many times.

TransformerLens runs as many prompts as have so many tokens together, or one.
"""


@mh.settings(progress=False)
def main() -> None:
    """Measure every case, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="2 layers and few tokens, to see that it works")
    parser.add_argument("--minutes", type=float, default=9.5, help="no row begins after so long")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    warnings.simplefilter("ignore", AnswerWarning)  # random models prefer wrong answers
    out, start = asked.out or (None if asked.small else OUT), time.monotonic()
    results: dict[str, Any] = {
        "machine": machine.description("cpu"),
        "versions": machine.versions(),
        "width": WIDTH,
        "heads_a_layer": HEADS,
        "rows": [],
        "profiles": [],
    }
    layers, cases = (LAYERS[:1], [case for case in CASES if max(case) <= 64]) if asked.small else (LAYERS, CASES)
    total = len(layers) * len(cases) * len(TITLES)
    print(f"{total} rows and {2 * len(TITLES)} profiles, under {asked.minutes:g} minutes", file=sys.stderr)
    steps = measured_rows(layers, cases, results)
    try:
        for number, told in enumerate(steps, 1):
            print(f"{time.monotonic() - start:5.0f} s  {number} of {total}: {told}", file=sys.stderr, flush=True)
            if out:
                out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
            if time.monotonic() - start > 60 * asked.minutes:
                print("no time is left for the others", file=sys.stderr)
                break
    except KeyboardInterrupt:
        print("interrupted: the rows so far are kept", file=sys.stderr)
    print(markdown(results))


def measured_rows(layers: tuple[int, ...], cases: list[tuple[int, int]], results: dict[str, Any]) -> Iterator[str]:
    """Add every row to the results, the shallow models first, and say each; after each model, its profiles."""
    for n_layers in layers:
        with tempfile.TemporaryDirectory(prefix="mechheads") as folder:
            make_model(Path(folder), n_layers, max(tokens for _, tokens in cases))
            spec = ModelSpec(f"{n_layers} layers", folder, "cpu", (n_layers - 1, 0), trained=False)
            runners = {key: Local(key, spec) for key in ("mechheads", "tl4")}
            shape = Shape.of(transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False))
            for runner in runners.values():  # to warm up
                runner.run(workload("W1", 2, 16), [(0, 0)])
            for name in TITLES:
                for prompts, tokens in cases:
                    results["rows"].append(row(workload(name, prompts, tokens), shape, runners))
                    yield f"{n_layers} layers, {said(results['rows'][-1])}"
                if n_layers == layers[len(layers) // 2]:
                    for prompts, tokens in (cases[0], max(cases, key=lambda case: case[1])):
                        asked = workload(name, prompts, tokens)
                        results["profiles"].append(profile(asked, shape, runners["mechheads"]))


def make_model(folder: Path, layers: int, tokens: int) -> None:
    """Save a random Llama and a tokenizer."""
    tokenizer = make_tokenizer()
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=tokens,
        initializer_range=0.1,
    )
    torch.manual_seed(0)
    transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def workload(name: str, prompts: int, tokens: int) -> Workload:
    """Random tokens; pairs share their first two thirds."""
    random = np.random.default_rng(0)
    base = random.integers(3, 200, (prompts, tokens))
    if name == "Ships-U":
        return Workload(name, "undifferentiated", base.tolist())
    shared = 2 * tokens // 3
    other = np.concatenate([base[:, :shared], 3 + (base[:, shared:] - 2) % 197], axis=1)
    answer, wrong = random.integers(3, 200, (2, prompts)).tolist()
    return Workload(name, "activation", other.tolist(), base.tolist(), answer, wrong)


def row(asked: Workload, shape: Shape, runners: dict[str, Local]) -> dict[str, Any]:
    """Seconds per head of both tools and of the limit."""
    every, speed = asked.heads(shape), max(machine.matmul_speed("cpu").values())
    middle, needed = (shape.n_layers // 2, 0), asked.flops(shape, every)
    ours = every if needed / speed < SHORT else three(shape)
    factor = needed / asked.flops(shape, ours)
    part = workload(asked.name, min(len(asked.base), max(1, MOST // asked.n_tokens)), asked.n_tokens)
    share = len(part.base) / len(asked.base)
    seconds, theirs, apart = [], [], 0.0
    for _ in range(RUNS):
        mine, other = runners["mechheads"].run(asked, ours), runners["tl4"].run(part, [middle])
        seconds.append((mine.prepare_seconds + mine.run_seconds) * factor / len(every))
        theirs.append((other.prepare_seconds / len(every) + other.run_seconds) / share)
        value = mine.values[ours.index(middle)] if share == 1 else runners["mechheads"].run(part, [middle]).values[0]
        apart = abs(value - other.values[0])
        if needed / speed >= SHORT:
            break
    return {
        "layers": shape.n_layers,
        "workload": asked.name,
        "prompts": len(asked.base),
        "tokens": asked.n_tokens,
        "heads": len(every),
        "heads_run": len(ours),
        "mechheads": statistics.median(seconds),
        "tl4": statistics.median(theirs),
        "limit": needed / speed / len(every),
        "apart": float(apart),
    }


def three(shape: Shape) -> list[Head]:
    """Head 0 of the first, the middle and the last layer."""
    return [(layer, 0) for layer in sorted({0, shape.n_layers // 2, shape.n_layers - 1})]


def said(found: dict[str, Any]) -> str:
    return (
        f"{found['workload']}, {found['prompts']} prompts of {found['tokens']} tokens: {found['mechheads']:.3g} s per "
        f"head, TransformerLens {found['tl4']:.3g} s, limit {found['limit']:.3g} s"
    )


def profile(asked: Workload, shape: Shape, ours: Local) -> dict[str, Any]:
    """Shares of mechheads' time: matrix products, attention, torch's other operations, and the rest (Python)."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU]) as seen:
        run = ours.run(asked, three(shape))
    spent = dict.fromkeys(("products", "attention", "other operations"), 0.0)
    for event in seen.key_averages():
        if event.key.startswith("aten::"):
            product = event.key.removeprefix("aten::") in ("mm", "addmm", "bmm", "baddbmm")
            kind = "products" if product else "attention" if "attention" in event.key else "other operations"
            spent[kind] += event.self_cpu_time_total / 1e6
    whole = run.prepare_seconds + run.run_seconds
    shares = {kind: seconds / whole for kind, seconds in spent.items()}
    about = {"layers": shape.n_layers, "workload": asked.name, "prompts": len(asked.base), "tokens": asked.n_tokens}
    return about | {"seconds": whole, "shares": shares | {"Python": 1 - sum(shares.values())}}


def markdown(results: dict[str, Any]) -> str:
    """A table for each workload, and a sentence for each profile."""
    about, lines = results["machine"], []
    layers = sorted({found["layers"] for found in results["rows"]})
    for name, title in TITLES.items():
        rows_of_it = [one for one in results["rows"] if one["workload"] == name]
        found = {(one["prompts"], one["tokens"], one["layers"]): one for one in rows_of_it}
        cases = [case for case in CASES if any((*case, n) in found for n in layers)]
        rows = [
            [f"{prompts} x {tokens:,}", *(_cell(found.get((prompts, tokens, n))) for n in layers)]
            for prompts, tokens in cases
        ]
        lines += ["", f"{title[0].upper()}{title[1:]}:", ""]
        lines += table(["prompts x tokens", *(f"{n} layers" for n in layers)], rows)
    lines += [
        "",
        "Milliseconds per head; in brackets, how many times as long TransformerLens takes, and how many times the "
        f"limit. {about['processor']}, threads: {about['threads']}; d_model {results['width']}, "
        f"{results['heads_a_layer']} heads a layer.",
    ]
    for one in results["profiles"]:
        shares = ", ".join(f"{share:.0%} {kind}" for kind, share in one["shares"].items())
        lines += [
            "",
            f"Where the time goes, {one['workload']} of three heads in {one['layers']} layers, {one['prompts']} "
            f"prompts of {one['tokens']:,} tokens: {shares}.",
        ]
    return "\n".join(lines).strip() + "\n"


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    ours = found["mechheads"]
    return f"{1e3 * ours:.3g} ({found['tl4'] / ours:.1f}, {ours / found['limit']:.1f})"


def figure(results: dict[str, Any], theme: Theme = "light") -> go.Figure:
    """Seconds per head over tokens and over prompts, for both workloads, with one colour for each depth."""
    drawn = grid_of(
        rows=2,
        cols=2,
        subplot_titles=[f"{name}, {held}" for name in TITLES for held in ("4 prompts", "prompts of 16 tokens")],
        vertical_spacing=0.14,
        horizontal_spacing=0.09,
    )
    layers = sorted({found["layers"] for found in results["rows"]})
    for place, (name, along) in enumerate((name, along) for name in TITLES for along in ("tokens", "prompts")):
        held, value = ("prompts", PROMPTS[0]) if along == "tokens" else ("tokens", TOKENS[0])
        for n, colour in zip(layers, COLOURS, strict=False):
            found = [one for one in results["rows"] if (one["workload"], one["layers"], one[held]) == (name, n, value)]
            for (who, title), dash in zip(WHO.items(), DASHES, strict=True):
                drawn.add_scatter(
                    x=[one[along] for one in found],
                    y=[one[who] for one in found],
                    name=f"{title}, {n} layers",
                    legendgroup=f"{who} {n}",
                    showlegend=place == 0,
                    mode="lines+markers",
                    marker={"size": 5, "color": colour},
                    line={"color": colour, "dash": dash, "width": 2 if who == "mechheads" else 1.2},
                    hovertemplate=f"{title}, {n} layers, %{{x}} {along}: %{{y:.3g}} s<extra></extra>",
                    row=place // 2 + 1,
                    col=place % 2 + 1,
                )
    for column, (along, sizes) in enumerate((("tokens", TOKENS), ("prompts", PROMPTS)), 1):
        drawn.update_xaxes(
            type="log", tickvals=sizes, ticktext=[f"{size:,}" for size in sizes], title_text=along, col=column
        )
    drawn.update_yaxes(type="log", dtick=1, showgrid=True, tickformat="~r", matches="y")
    drawn.update_yaxes(title_text="seconds per head", col=1)
    drawn.update_layout(height=760, legend={"orientation": "h", "y": -0.1}, margin={"t": 50, "r": 20})
    return themed(drawn, theme)


if __name__ == "__main__":
    main()
