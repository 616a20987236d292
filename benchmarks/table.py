"""The benchmark's tables; ``python -m benchmarks.table`` puts the recorded factors into README.md."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path
from typing import Any

from benchmarks.tools import NAMES

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
OURS, FACTOR = "mechheads", "times_slower_than_mechheads"
IN_README = {
    "W1": "patching every head",
    "W1-early": "the same, if prompts differ almost from the start",
    "W2a": "path patching to the logits",
    "W2b": "path patching to the query of a late head",
    "W3": "zero ablation",
    "W6": "patching the last token of a long prompt",
    "Ships-U": "Ships for harmful requests",
}
ON_GPU, GPU_NAMES = "Llama-3.1-8B's shape, bfloat16", {"Ships-U": "Ships, undifferentiated"}
_MARK = "<!-- speed -->\n"
_FAILED = "not measured"


def main() -> None:
    results, gpu = (json.loads((HERE / f"{name}.json").read_text("utf-8")) for name in ("results", "gpu"))
    README.write_text(in_readme(README.read_text("utf-8"), readme(results, gpu)), encoding="utf-8")


def readme(results: dict[str, Any], gpu: dict[str, Any]) -> str:
    """README's table: how many times as fast as TransformerLens 4, with intervals where there are any."""
    metadata = results["provenance"]
    machine = f"{metadata['machine']['cores']} cores, {metadata['matmul_flops_per_second'] / 1e9:.0f} GFLOP/s"
    found = [{one["workload"]: one["tools"].get("tl4", {}) for one in model["results"]} for model in results["models"]]
    on_gpu = gpu["parts"][ON_GPU]
    rows = [
        [
            says,
            *(_factor(model.get(name, {})) for model in found),
            f"{on_gpu[GPU_NAMES.get(name, name)]['times as long']:.0f}",
        ]
        for name, says in IN_README.items()
    ]
    models = [f"{name}, {machine}" for name in ("default model", "GPT-2's shape")[: len(found)]]
    return "\n".join(table(["", *models, f"{ON_GPU.split(',')[0]}, one H200"], rows)) + "\n"


def in_readme(text: str, table: str) -> str:
    """README with another table below its mark."""
    return re.sub(rf"(?<={re.escape(_MARK)})(?:\|.*\n)+", lambda _: table, text)


def _factor(tool: dict[str, Any]) -> str:
    if FACTOR not in tool:
        return _FAILED
    low, high = map(_short, tool[f"{FACTOR}_interval"])
    return f"{_short(tool[FACTOR])} ({low} to {high})"


def _over_limit(result: dict[str, Any], key: str, ratio: str) -> str:
    if result["limit_seconds"] is None:
        return ""
    middle = _field(result, key, ratio, "{:.2f}".format)
    ends = result["tools"].get(key, {}).get(f"{ratio}_interval")
    return f"{middle} ({ends[0]:.2f} to {ends[1]:.2f})" if ends else middle


def _short(number: float) -> str:
    return f"{number:.1f}" if number < 9.95 else f"{number:.0f}"


def markdown(results: dict[str, Any]) -> str:
    """Tables of times, ratios to the limit and differences, for each model."""
    metadata = results["provenance"]
    machine, versions = metadata["machine"], metadata["versions"]
    speed = metadata["matmul_flops_per_second"]
    lines = [
        f"{machine.get('gpu') or machine['processor']}, threads: {machine['threads']}, {metadata['dtype']}; "
        f"matrix products at {speed / 1e9:.0f} GFLOP/s; medians of interleaved rounds."
        if speed
        else "Nothing was measured.",
        "",
        metadata["note"],
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
    if metadata["quick"]:
        lines += ["", "A quick run, to see that it works: every tool ran the sampled heads only, on 2 prompts."]
    if results["interrupted"]:
        lines += ["", "The benchmark was interrupted; these are the results until then."]
    for model in results["models"]:
        lines += ["", f"### {model['model']}", "", *_model(model)]
    return "\n".join(lines) + "\n"


def _model(model: dict[str, Any]) -> list[str]:
    shape, found = model["shape"], model["results"]
    keys = [key for key in NAMES if any(key in result["tools"] for result in found)]
    others = [key for key in keys if key != OURS]
    lines = [f"{shape['n_layers']} layers of {shape['n_heads']} heads, d_model {shape['d_model']}.", ""]
    lines += table(
        ["", "workload", "heads", "rounds", "needed", "limit"],
        [
            [
                result["workload"],
                result["title"],
                str(result["heads"]),
                str(len(result["matmul_each"])),
                f"{result['flops_needed'] / 1e9:.0f} GFLOP" if result["flops_needed"] else "",
                _seconds(result["limit_seconds"]) if result["limit_seconds"] else "",
            ]
            for result in found
        ],
    )
    lines += [
        "",
        "Needed: the matrix products that no exact method can avoid. Limit: their time at the speed given above.",
        "",
        "Time for all heads:",
        "",
        *table(
            ["", *(NAMES[key] for key in keys)],
            [[result["workload"], *(_time(result, key) for key in keys)] for result in found],
        ),
    ]
    if others:
        lines += [
            "",
            "In brackets: how many times longer than mechheads, as a median over rounds, and its 95% interval (with "
            "fewer than six rounds, the smallest and the largest ratio).",
        ]
    own = statistics.median(result["own_flops_per_second"] for result in found)
    for title, ratio in (
        ("Times the limit:", "ratio_to_limit"),
        (f"Times the limit, with products of a sweep's own sizes, {own / 1e9:.0f} GFLOP/s:", "ratio_to_own_limit"),
    ):
        rows = [[result["workload"], *(_over_limit(result, key, ratio) for key in keys)] for result in found]
        lines += ["", title, "", *table(["", *(NAMES[key] for key in keys)], rows)]
    if others:
        field, show, head = "largest_difference", "{:.1e}".format, ["", *(NAMES[key] for key in others)]
        rows = [[result["workload"], *(_field(result, key, field, show) for key in others)] for result in found]
        lines += ["", "Largest difference from mechheads' results:", "", *table(head, rows)]
    errors = {
        f"{NAMES[key]}, {result['workload']}: {tool['error']}"
        for result in found
        for key, tool in result["tools"].items()
        if "error" in tool
    }
    return [*lines, *(f"\n{error}" for error in sorted(errors))]


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in cells]


def _field(result: dict[str, Any], key: str, field: str, show: Any) -> str:
    """A number of a tool; empty if it has nothing for this workload."""
    if key not in result["tools"]:
        return ""
    value = result["tools"][key].get(field)
    return _FAILED if value is None else show(value)


def _time(result: dict[str, Any], key: str) -> str:
    seconds = _field(result, key, "median_seconds", _seconds)
    tool = result["tools"].get(key, {})
    if FACTOR not in tool:
        return seconds
    low, high = map(_short, tool[f"{FACTOR}_interval"])
    return f"{seconds} ({_short(tool[FACTOR])}; {low} to {high})"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _FAILED
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


if __name__ == "__main__":
    main()
