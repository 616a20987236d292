"""HTML pages of a study of safety heads, of roles, or of a figure: one file each, readable without a network."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from mechheads import plots
from mechheads.files.replacing import write_file
from mechheads.gating.roles.roles import Roles
from mechheads.results.curves import Curves
from mechheads.results.html import html_table
from mechheads.safety.answers.brittleness import RefusalBrittleness
from mechheads.safety.answers.refusal import RefusalTest
from mechheads.studies.safety_result import SafetyStudy

if TYPE_CHECKING:
    import plotly.graph_objects as go


class _Part(NamedTuple):
    """A section of the page: a result (None if there is none), its title and text, and how to draw it."""

    result: Any
    title: str
    text: str
    draw: Callable[[Any], go.Figure]


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff; max-width: 1380px; margin: 2rem auto;
  padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } h3 { font-size: 1rem; margin-top: 1.5rem; }
p, li { max-width: 46rem; overflow-wrap: anywhere; }
pre { background: #f6f6f6; padding: 1rem; white-space: pre-wrap; font-size: 0.85rem; }
.figure, .table { overflow-x: auto; } .figure { background: #fff; }
table { border-collapse: collapse; font-size: 0.85rem; font-variant-numeric: tabular-nums; }
td, th { padding: 0.2rem 0.6rem; text-align: left; border-bottom: 1px solid #ddd; vertical-align: top; }
details { margin-top: 0.5rem; } summary { cursor: pointer; }
@media (prefers-color-scheme: dark) {
  body { color: #ddd; background: #181818; } pre { background: #262626; } td, th { border-color: #444; }
}
"""


def write_safety_page(study: SafetyStudy, path: str | Path) -> Path:
    """Write a study of safety heads to one HTML file, together with plotly's script (about 5 MB).

    The texts of requests and answers are folded, and show after a click.

    Args:
        study: from ``mh.studies.safety_study``.
        path: the file, such as ``"safety/index.html"``; its folder must exist.

    Returns:
        The path.
    """
    said = study.sections()
    bodies = [*_safety_bodies(study), *[[]] * len(said)]
    sections = [
        f"<h2>{html.escape(section.title)}</h2>{_said(section.lines)}{''.join(body)}"
        for section, body in zip(said, bodies, strict=False)
    ]
    notes = f"<h2>Time and notes</h2>{_said(tuple(study.closing_lines))}"
    title = f"Which {study.unit}s do the refusals of {study.model} depend on?"
    return _write(Path(path), f"{study.model}: safety heads", title, "", [*sections, notes])


def write_roles_page(model: str, roles: Roles, curves: Curves, path: str | Path) -> Path:
    """Write the roles of heads in a task, and the curves that check them, to one HTML file.

    Args:
        model: name of the model.
        roles, curves: from ``mh.head_roles`` and ``mh.gating.role_curve``.
        path: the file; its folder must exist.

    Returns:
        The path.
    """
    parts = [
        _Part(
            curves,
            "The effect of gating heads off",
            "The change in the log-probability of the targets when the first k heads of a role are gated off rather "
            "than on. All other gates come from the fit that pulls gates open. Grey: random orders.",
            plots.curves,
        ),
        *(_Part(scores, role.capitalize(), "Mean over seeds.", plots.heatmap) for role, scores in roles.items()),
    ]
    title = f"Roles of the heads of {model} in {curves.name}"
    return _write(Path(path), title, title, "\n".join([*role_shares(roles), repr(curves)]), _sections(parts))


def write_figure_page(path: Path, title: str, text: str, summary: str, figure: go.Figure) -> Path:
    """Write a figure to one HTML file; its folder must exist.

    Args:
        text: what the figure shows.
        summary: the result in a few lines, above the figure.
    """
    sections = [f'<p>{html.escape(text)}</p><div class="figure">{_drawn(figure)}</div>']
    return _write(path, title, title, summary, sections)


def role_shares(roles: Roles) -> list[str]:
    """One line per role: the share of heads that have it in every seed, and in some seed."""
    always, some = roles.always(), roles.any()
    return [f"{role}: {always[role]:.1%} of heads in every seed, {some[role]:.1%} in some" for role in roles]


def _said(lines: Sequence[str]) -> str:
    """A paragraph for each sentence, and a list of those that are indented."""
    parts = [
        f"<ul class=heads>{''.join(f'<li>{html.escape(line.strip())}</li>' for line in some)}</ul>"
        if indented
        else "".join(f"<p>{html.escape(line)}</p>" for line in some)
        for indented, some in groupby(lines, key=lambda line: line.startswith(" "))
    ]
    return "".join(parts)


def _answers(test: RefusalTest | RefusalBrittleness) -> str:
    """The requests and answers of a test, folded."""
    table = html_table(test.answers.loc[test.answers["condition"].isin(["intact", "ablated"])])
    return _folded("Requests and answers (texts folded)", f'<div class="table">{table}</div>')


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{html.escape(title)}</summary>{body}</details>"


def _table(title: str, table: pd.DataFrame) -> str:
    return f'<h3>{html.escape(title)}</h3><div class="table">{html_table(table)}</div>' if len(table) else ""


def _sections(parts: Iterable[_Part]) -> list[str]:
    """A section for each result that is not None."""
    return [_section(p.title, p.text, _drawn(p.draw(p.result))) for p in parts if p.result is not None]


def _section(title: str, text: str, body: str) -> str:
    return f'<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p><div class="figure">{body}</div>'


def _drawn(figure: go.Figure) -> str:
    return figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})


def _write(path: Path, name: str, title: str, summary: str, sections: Sequence[str]) -> Path:
    """Write a page of sections, completely or not at all."""
    page = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{html.escape(name)}</title>'
        f"<style>{_STYLE}</style><script>{_script()}</script></head><body>"
        f"<h1>{html.escape(title)}</h1>{f'<pre>{html.escape(summary)}</pre>' if summary else ''}"
        f"{''.join(sections)}</body></html>"
    )
    return write_file(path, page)


def _script() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _safety_bodies(study: SafetyStudy) -> list[list[str]]:
    """The tables and figures below the sentences of each question."""
    first = study.brittleness
    refuses = [] if first is None else [_table("Answers of the intact model", _verdict_table(first)), _answers(first)]
    brittle = [] if first is None else [_table(f"Without random {study.unit}s", _shares(first.table))]
    rankings = "".join(_section(p.title, p.text, _drawn(p.draw(p.result))) for p in _ranking_parts(study) if p.result)
    listed = _table(f"The first {study.k} {study.unit}s of each ranking", study.first_heads())
    shared = study.overlap()
    agreement = _table("Agreement between rankings", shared.drop(columns="heads") if study.spread else shared)
    which = [_folded(f"The rankings, which do not show {study.unit}s that carry refusals", listed + rankings)]
    which = [agreement, *which] if study.spread else [listed, agreement, rankings]
    breaks = [_table("Without the first of each ranking", _test_table(study))]
    if study.curve is not None:
        text = (
            f"The share of harmful requests that the model answers when the {study.unit}s with the largest Refusal "
            f"attribution are ablated together, compared with as many random {study.unit}s of the same layers."
        )
        breaks.append(_section("Attack success", text, _drawn(study.curve.plot())))
    breaks += [
        _folded(_title(name, test, named=not study.spread), _table("All conditions", test.table) + _answers(test))
        for name, test in study.tests.items()
    ]
    return [refuses, brittle, which, breaks]


def _title(name: str, test: RefusalTest, *, named: bool) -> str:
    """The title of a test; its heads are named only if some heads carry the refusals."""
    return f"By {name}: {', '.join(map(str, test.heads))}" if named else f"By {name}"


def _shares(table: pd.DataFrame) -> pd.DataFrame:
    """A table of conditions without the ends of its intervals."""
    return table.drop(columns=[name for name in table if str(name).endswith(("_low", "_high"))])


def _verdict_table(found: RefusalBrittleness) -> pd.DataFrame:
    return pd.DataFrame({"requests": kind, **found.counts(kind)} for kind in ("harmful", "harmless"))


def _test_table(study: SafetyStudy) -> pd.DataFrame:
    """The conditions of every test in one table: what is ablated, and the shares that change."""
    columns = ["attack_success", "over_refusal", "deflected", "degenerate", "loss"]
    rows = []
    for name, test in study.tests.items():
        table = test.table.set_index("condition")[columns]
        if not rows:
            rows.append({"without the first by": "none (intact)", **table.loc["intact"]})
        rows.append({"without the first by": name, **table.loc["ablated"]})
        if random := [label for label in table.index if str(label).startswith("random")]:
            rows.append({"without the first by": f"  as many random, for {name}", **table.loc[random].mean()})
    return pd.DataFrame(rows)


def _ranking_parts(study: SafetyStudy) -> list[_Part]:
    return [
        _Part(
            study.attribution,
            "Refusal attribution",
            f"How much less likely a refusal becomes when the {study.unit} is ablated on a harmful request, in nats; "
            "estimated from the gradient of the log-probability that the answer begins in one of the ways in which "
            "the model's refusals begin. Above 0, it makes the model refuse.",
            plots.heatmap,
        ),
        _Part(
            list(study.ships.values()) or None,
            "Ships",
            f"The {study.k} {study.unit}s whose ablation changes the answer to harmful requests most, coloured by "
            "Generalized Ships. Both measure any change of the answer, not only a change in refusing.",
            lambda ships: plots.safety_map(ships, k=study.k),
        ),
        _Part(
            study.direction,
            "Output along the refusal direction",
            f"What each {study.unit} itself writes at the last token, along the mean difference between the residual "
            "streams of requests and look-alikes.",
            plots.heatmap,
        ),
    ]
