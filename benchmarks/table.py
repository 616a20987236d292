"""The benchmark's tables and figure: ``python -m benchmarks.table results.json --markdown FILE --figure FILE``.

The figure is a plotly figure. An ``.html`` file is complete in itself; a ``.json`` file holds the figure alone.
"""

from __future__ import annotations

import argparse
import json
from math import log10
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.tools import NAMES
from mechheads.plots.parts import grid_of

if TYPE_CHECKING:
    import plotly.graph_objects as go

OURS = "mechheads"
COLOURS = {"mechheads": "#1f77b4", "tl4": "#ff7f0e", "tl3": "#d62728", "nnsight": "#2ca02c", "pyvene": "#9467bd"}
_MISSING = "not measured"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--markdown", type=Path, help="write the tables to this file; default: print them")
    parser.add_argument("--figure", type=Path, help="write the figure to this file")
    args = parser.parse_args()
    results = json.loads(args.results.read_text(encoding="utf-8"))
    if args.markdown:
        args.markdown.write_text(markdown(results), encoding="utf-8")
    else:
        print(markdown(results))
    if args.figure and args.figure.suffix == ".json":
        args.figure.write_text(figure(results).to_json(), encoding="utf-8")
    elif args.figure:
        figure(results).write_html(args.figure, config={"displaylogo": False})


def markdown(results: dict[str, Any]) -> str:
    """Tables of times, ratios to the limit, memory and differences, for each model."""
    about = results["provenance"]
    machine, versions = about["machine"], about["versions"]
    speed = about["matmul_flops_per_second"]
    lines = [
        f"{machine.get('gpu') or machine['processor']}, threads: {machine['threads']}, {about['dtype']}; "
        f"matrix products at {speed / 1e9:.0f} GFLOP/s; medians of {about['repeats']} interleaved runs."
        if speed
        else "Nothing was measured.",
        "",
        about["note"],
        "",
        ", ".join(f"{name} {version}" for name, version in versions.items()) + ".",
    ]
    if about["quick"]:
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
    lines += _table(
        ["", "workload", "heads", "needed", "limit", "mechheads", *(NAMES[key] for key in others)],
        [
            [
                result["workload"],
                result["title"],
                str(result["heads"]),
                f"{result['flops_needed'] / 1e9:.0f} GFLOP",
                _seconds(result["limit_seconds"]),
                _time(result, OURS),
                *(_time(result, key) for key in others),
            ]
            for result in found
        ],
    )
    lines += [
        "",
        "Needed: the matrix products that no exact method can avoid. Limit: their time at the speed given above.",
    ]
    if others:
        lines[-1] += (
            " In brackets: how many times longer than mechheads. The times of the other tools are scaled to all heads "
            "from these measurements:"
        )
        rows = [[result["workload"], *(_sampled(result, key) for key in others)] for result in found]
        lines += ["", *_table(["", *(NAMES[key] for key in others)], rows)]
    for title, field, show in (
        (
            "Times the limit:",
            "ratio_to_limit",
            "{:.2f}".format,
        ),
        ("Peak memory, minus the memory in use before:", "peak_bytes", _bytes),
        ("Largest difference from mechheads' results:", "largest_difference", "{:.1e}".format),
    ):
        shown = others if field == "largest_difference" else keys
        if not shown:
            continue
        rows = [[result["workload"], *(_field(result, key, field, show) for key in shown)] for result in found]
        lines += ["", title, "", *_table(["", *(NAMES[key] for key in shown)], rows)]
    errors = {
        f"{NAMES[key]}, {result['workload']}: {tool['error']}"
        for result in found
        for key, tool in result["tools"].items()
        if "error" in tool
    }
    return [*lines, *(f"\n{error}" for error in sorted(errors))]


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    cells = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) + " |" for row in cells]


def _field(result: dict[str, Any], key: str, field: str, show: Any) -> str:
    value = result["tools"].get(key, {}).get(field)
    return _MISSING if value is None else show(value)


def _time(result: dict[str, Any], key: str) -> str:
    seconds = _field(result, key, "median_seconds", _seconds)
    times = result["tools"].get(key, {}).get("times_slower_than_mechheads")
    return seconds if times is None else f"{seconds} ({times:.1f})"


def _sampled(result: dict[str, Any], key: str) -> str:
    tool = result["tools"].get(key, {})
    if "run_seconds" not in tool:
        return _MISSING
    middle = sorted(tool["run_seconds"])[len(tool["run_seconds"]) // 2]
    return f"{_seconds(middle)} for {tool['heads_run']} heads"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _MISSING
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def _bytes(size: float) -> str:
    return f"{size / 1e6:.0f} MB" if size < 1e9 else f"{size / 1e9:.2f} GB"


def figure(results: dict[str, Any]) -> go.Figure:
    """A figure of how many times faster mechheads is than each tool, and of each tool's time over the limit."""

    models = [model for model in results["models"] if model["results"]]
    if not models:
        raise ValueError("the results hold no measurement to draw")
    titles = [
        f"{model['model']}: {what}"
        for model in models
        for what in ("how many times faster mechheads is", "time over the limit")
    ]
    drawn = grid_of(rows=len(titles), cols=1, subplot_titles=titles, vertical_spacing=0.3 / len(titles))
    named: set[str] = set()
    lowest, highest = 0.5, 2.0
    for number, model in enumerate(models):
        for row, field in enumerate(("times_slower_than_mechheads", "ratio_to_limit"), 2 * number + 1):
            for key in NAMES:
                found = [(r["workload"], r["tools"].get(key, {}).get(field)) for r in model["results"]]
                bars = [(name, value) for name, value in found if value is not None]
                if not bars:
                    continue
                names, values = zip(*bars, strict=True)
                lowest, highest = min(lowest, *values), max(highest, *values)
                drawn.add_bar(
                    x=names,
                    y=values,
                    name=NAMES[key],
                    legendgroup=key,
                    showlegend=key not in named,
                    marker_color=COLOURS[key],
                    text=[f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in values],
                    textposition="outside",
                    cliponaxis=False,
                    hovertemplate=f"%{{x}}, {NAMES[key]}: %{{y:.3g}}<extra></extra>",
                    row=row,
                    col=1,
                )
                named.add(key)
            drawn.add_hline(y=1, line={"color": "#444", "width": 1}, row=row, col=1)  # type: ignore[arg-type]
    drawn.update_yaxes(type="log", dtick=1, gridcolor="#e5e5e5", range=[log10(lowest / 1.2), log10(highest * 3)])
    drawn.update_layout(
        template="plotly_white", width=1000, height=80 + 260 * len(titles), legend={"orientation": "h", "y": -0.04}
    )
    return drawn


if __name__ == "__main__":
    main()
