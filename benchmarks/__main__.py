"""mechheads compared with TransformerLens and with the arithmetic limit: ``python -m benchmarks``, about 15 minutes.

mechheads runs each workload over all heads. TransformerLens takes one or two forward passes for each head, and every
head costs the same. So it runs a sample of heads spread evenly over the layers, and its time, without its cached runs,
is scaled to all heads. Both times are given. A plain loop stands in where TransformerLens has nothing of the kind.

All tools of a workload take turns, at least three times and as often as its share of the time allows. A run of
everything is written to ``benchmarks/results.json``, workload by workload; ``python -m benchmarks.table`` puts its
numbers into README.md, and the documentation is built from it.
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
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from benchmarks import machine, runner, workloads
from benchmarks.flops import Shape
from benchmarks.measure import SAMPLE, Measurement, measure, told
from benchmarks.table import markdown
from benchmarks.tools import KINDS, NAMES
from benchmarks.tools.base import mechheads_model

MODELS = ("default", "gpt2")
RECORDED = runner.ROOT / "benchmarks" / "results.json"
START = time.monotonic()


def main() -> None:
    args = _arguments()
    warnings.simplefilter("ignore", UserWarning)  # random models prefer wrong answers
    results: dict[str, Any] = {"schema": 2, "provenance": _provenance(args), "interrupted": False, "models": []}
    n = len(args.models) * len(args.workloads)
    _say(f"{n} workloads, about {args.minutes:g} minutes; at least {args.rounds} rounds of each")
    try:
        for name in args.models:
            with _model(name, args.device) as spec:
                _run_model(spec, args, 60 * args.minutes / n, results)
    except KeyboardInterrupt:
        results["interrupted"] = True
        _say("interrupted: the results so far are kept")
    finally:
        _keep(results, args.out)
    print(markdown(results))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=tuple(workloads.TITLES), default=list(workloads.TITLES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tools", nargs="+", choices=tuple(NAMES), default=list(NAMES))
    parser.add_argument("--minutes", type=float, default=15.0, help="how long it may take, if three rounds fit")
    parser.add_argument("--heads", type=int, help="number of heads that TransformerLens runs; default: 2 to 6")
    parser.add_argument("--device", default="cpu", help='"cpu" or "cuda"')
    parser.add_argument(
        "--out", type=Path, help=f"write the results to this JSON file; for a run of everything, {RECORDED.name} here"
    )
    parser.add_argument("--quick", action="store_true", help="one round of 2 heads and 2 prompts, to see that it works")
    args = parser.parse_args()
    args.rounds = 3
    if args.quick:
        args.rounds, args.minutes, args.heads = 1, 0, args.heads or 2
    elif (args.workloads, args.models, args.tools) == ([*workloads.TITLES], [*MODELS], [*NAMES]):
        args.out = args.out or RECORDED
    if args.minutes < 0 or (args.heads is not None and args.heads < 1):
        parser.error("--minutes must be at least 0, and --heads at least 1")
    return args


def _run_model(spec: workloads.ModelSpec, args: argparse.Namespace, seconds: float, results: dict[str, Any]) -> None:
    """Run every workload on one model, each for so many seconds; results are kept as workloads end."""
    shape = Shape.of(AutoConfig.from_pretrained(spec.folder, trust_remote_code=False))
    _say(f"{spec.name}: {shape.n_layers} layers x {shape.n_heads} heads")
    entry: dict[str, Any] = {"model": spec.name, "shape": vars(shape), "tools": {}, "results": []}
    results["models"].append(entry)
    runners: dict[str, runner.LoadedTool] = {}
    failed: dict[str, str] = {}
    workload_of = partial(workloads.build, model=mechheads_model(spec), spec=spec, quick=args.quick)
    asked = [workload_of(name) for name in args.workloads]
    for key in args.tools:
        if not any(workload.kind in KINDS[key] for workload in asked):
            continue
        try:
            runners[key] = runner.LoadedTool(key, spec)
        except Exception as error:
            failed[key] = told(error)
            _say(f"{NAMES[key]} cannot be loaded: {failed[key]}")
            continue
        entry["tools"][key] = {"name": NAMES[key], "how": runners[key].how}
    for workload in asked:
        heads = workload.heads(shape)
        sampled = workloads.sample(heads, args.heads or SAMPLE.get(workload.name, 6))
        able = {key: runner for key, runner in runners.items() if workload.kind in KINDS[key]}
        errors = {key: error for key, error in failed.items() if workload.kind in KINDS[key]}
        whole = not args.quick or workload.kind in ("gates", "labels")  # which we run over all heads in any case
        measurement = Measurement(workload, shape, heads if whole else sampled, sampled, errors=errors)
        try:
            measure(measurement, able, seconds, args.rounds, spec.device, _say)
        finally:
            entry["results"].append(measurement.to_json())
            _keep(results, args.out)


@contextmanager
def _model(name: str, device: str) -> Iterator[workloads.ModelSpec]:
    if name == "default":
        yield workloads.default_model(device)
        return
    with tempfile.TemporaryDirectory(prefix="mechheads") as folder:
        yield workloads.random_model(device, Path(folder))


def _provenance(args: argparse.Namespace) -> dict[str, Any]:
    return {
        "machine": machine.description(args.device),
        "versions": machine.versions(),
        "dtype": "float32",
        "minutes": args.minutes,
        "quick": args.quick,
        "note": " ".join((__doc__ or "").split("\n\n")[1].split()),
    }


def _keep(results: dict[str, Any], out: Path | None) -> None:
    """Write what there is so far."""
    measured = [result for model in results["models"] for result in model["results"]]
    speeds = [max(each.values()) for result in measured for each in result["matmul_each"]]
    results["provenance"]["matmul_flops_per_second"] = statistics.median(speeds) if speeds else None
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _say(text: str) -> None:
    minutes, seconds = divmod(int(time.monotonic() - START), 60)
    print(f"{minutes:3d}:{seconds:02d}  {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
