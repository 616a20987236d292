"""mechheads compared with other tools and with the arithmetic limit: ``python -m benchmarks --out results.json``.

mechheads runs each sweep over all heads. The other tools take one or two forward passes for each head, and every head
costs the same. So they run a sample of heads spread evenly over the layers, and their time, without their cached runs,
is scaled to all heads. Both times are given.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from benchmarks import machine, runner, workloads
from benchmarks.flops import Shape
from benchmarks.measure import OURS, SAMPLE, Measurement, measure, told
from benchmarks.table import markdown
from benchmarks.tools import NAMES

MODELS = ("default", "gpt2")


def main() -> None:
    args = _arguments()
    results: dict[str, Any] = {"schema": 1, "provenance": _provenance(args), "interrupted": False, "models": []}
    try:
        for name in args.models:
            with _model(name, args.device) as spec:
                _run_model(spec, args, results["models"])
    except KeyboardInterrupt:
        results["interrupted"] = True
        _say("interrupted: the results so far are kept")
    finally:
        _finish(results, args.out)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", nargs="+", choices=tuple(workloads.TITLES), default=list(workloads.TITLES))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--tools", nargs="+", choices=tuple(NAMES), default=list(NAMES))
    parser.add_argument("--repeats", type=int, default=5, help="interleaved runs of each tool; medians are reported")
    parser.add_argument(
        "--heads", type=int, help="number of heads that the other tools run; default: 18, and 9 for W3 and W6"
    )
    parser.add_argument(
        "--tl3",
        metavar="PYTHON",
        type=Path,
        help="an interpreter with TransformerLens 3.9; default: an environment is created",
    )
    parser.add_argument("--device", default="cpu", help='"cpu" or "cuda"')
    parser.add_argument("--out", type=Path, help="write the results to this JSON file")
    parser.add_argument("--quick", action="store_true", help="one run of 2 heads and 2 prompts, to see that it works")
    args = parser.parse_args()
    if args.quick:
        args.repeats, args.heads = 1, args.heads or 2
    if args.repeats < 1 or (args.heads is not None and args.heads < 1):
        parser.error("--repeats and --heads must be at least 1")
    return args


def _run_model(spec: workloads.ModelSpec, args: argparse.Namespace, models: list[dict[str, Any]]) -> None:
    """Run every workload on one model. Results are added as workloads end, so an interruption loses nothing."""
    from transformers import AutoConfig

    from benchmarks.tools.base import mechheads_model

    shape = Shape.of(AutoConfig.from_pretrained(spec.folder, trust_remote_code=False))
    _say(f"{spec.name}: {shape.n_layers} layers x {shape.n_heads} heads")
    entry: dict[str, Any] = {"model": spec.name, "shape": vars(shape), "tools": {}, "results": []}
    models.append(entry)
    with ExitStack() as stack:
        runners: dict[str, runner.Runner] = {}
        failed: dict[str, str] = {}
        for key in args.tools:
            try:
                runners[key] = _runner(key, spec, args.tl3)
            except Exception as error:
                failed[key] = told(error)
                _say(f"{NAMES[key]} cannot be loaded: {failed[key]}")
                continue
            stack.callback(runners[key].close)
            entry["tools"][key] = {"name": NAMES[key], **runners[key].about}
        for name in args.workloads:
            workload = workloads.build(name, mechheads_model(spec), spec, quick=args.quick)
            heads = workload.heads(shape)
            sampled = workloads.sample(heads, args.heads or SAMPLE.get(name, 18))
            measurement = Measurement(workload, shape, sampled if args.quick else heads, sampled, errors=dict(failed))
            try:
                measure(measurement, runners, args.repeats, spec.device, _say)
            finally:
                entry["results"].append(measurement.to_json())


def _runner(key: str, spec: workloads.ModelSpec, tl3: Path | None) -> runner.Runner:
    if key in (OURS, "tl4"):
        return runner.Local(key, spec)
    if key == "tl3":
        return runner.Remote(key, spec, str(tl3.absolute()) if tl3 else runner.tl3_python())
    return runner.Remote(key, spec)


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
        "repeats": args.repeats,
        "quick": args.quick,
        "note": " ".join((__doc__ or "").split("\n\n", 1)[1].split()),
    }


def _finish(results: dict[str, Any], out: Path | None) -> None:
    measured = [result for model in results["models"] for result in model["results"]]
    speeds = [max(each.values()) for result in measured for each in result["matmul_each"]]
    results["provenance"]["matmul_flops_per_second"] = statistics.median(speeds) if speeds else None
    if out is not None:
        out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(markdown(results))


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
