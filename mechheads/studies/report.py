"""HTML pages of a study of safety heads, of roles, or of a figure: one file each, readable without a network."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mechheads import plots
from mechheads.files.replacing import replacing
from mechheads.gating.roles.role_curves import RoleCurves
from mechheads.gating.roles.roles import Roles
from mechheads.results.html import html_table
from mechheads.safety.answers.refusal import RefusalTest
from mechheads.studies.safety import SafetyStudy

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go


class _Part(NamedTuple):
    """A section of the page: a result (None if there is none), its title and text, and how to draw it."""

    result: Any
    title: str
    text: str
    draw: Callable[[Any], go.Figure]


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1380px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } p { max-width: 46rem; }
pre { background: #f6f6f6; padding: 1rem; white-space: pre-wrap; font-size: 0.85rem; }
.figure { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; } td, th { padding: 0.2rem 0.6rem; text-align: left; }
details { margin-top: 0.5rem; } summary { cursor: pointer; }
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
    sections = _sections(_safety_parts(study))
    for name, test in study.tests.items():
        shown = html_table(test.table)
        sections.append(
            _section(f"Refusing without the first {len(test.heads)} by {name}", test.verdict, shown + _answers(test))
        )
    if len(agreement := study.overlap()):
        shown = html_table(agreement)
        text = f"The heads that two rankings share among their first {study.k}, and their rank correlation."
        sections.append(_section("Agreement", text, shown))
    return _write(
        Path(path),
        f"{study.model}: safety heads",
        f"The safety heads of {study.model}",
        study.summary(),
        sections,
    )


def write_roles_page(model: str, roles: Roles, curves: RoleCurves, path: str | Path) -> Path:
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
            plots.role_curves,
        ),
        *(_Part(scores, role.capitalize(), "Mean over seeds.", plots.heatmap) for role, scores in roles.items()),
    ]
    title = f"Roles of the heads of {model} in {curves.name}"
    return _write(Path(path), title, title, "\n".join([*role_shares(roles), repr(curves)]), _sections(parts))


def write_figure_page(
    path: Path, title: str, text: str, summary: str, figure: go.Figure, tables: Mapping[str, pd.DataFrame]
) -> Path:
    """Write a figure, and tables by their titles, to one HTML file; its folder must exist.

    Args:
        text: what the figure shows.
        summary: the result in a few lines, above the figure.
    """
    sections = [f'<p>{html.escape(text)}</p><div class="figure">{_drawn(figure)}</div>']
    sections += [_section(name, "", html_table(table)) for name, table in tables.items() if len(table)]
    return _write(path, title, title, summary, sections)


def role_shares(roles: Roles) -> list[str]:
    """One line per role: the share of heads that have it in every seed, and in some seed."""
    always, some = roles.always(), roles.any()
    return [f"{role}: {always[role]:.1%} of heads in every seed, {some[role]:.1%} in some" for role in roles]


def _answers(test: RefusalTest) -> str:
    """The requests and answers of a test, folded."""
    table = html_table(test.answers.loc[test.answers["condition"].isin(["intact", "ablated"])])
    return f"<details><summary>Requests and answers (texts folded)</summary>{table}</details>"


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
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)}</title>'
        f"<style>{_STYLE}</style><script>{_script()}</script></head><body>"
        f"<h1>{html.escape(title)}</h1><pre>{html.escape(summary)}</pre>"
        f"{''.join(sections)}</body></html>"
    )
    with replacing(path) as unfinished:
        unfinished.write_text(page, encoding="utf-8")
    return path


def _script() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _safety_parts(study: SafetyStudy) -> list[_Part]:
    return [
        _Part(
            list(study.ships.values()) or None,
            "Ships",
            f"The {study.k} heads whose ablation changes the answer to harmful requests most, coloured by "
            "Generalized Ships. Both measure any change of the answer, not only a change in refusing.",
            lambda ships: plots.safety_map(ships, k=study.k),
        ),
        _Part(
            study.contribution,
            "Refusal Contribution",
            "How much less likely the opening of a refusal becomes when the head is ablated on a harmful request, "
            "minus Ships of the same ablation on its harmless look-alike; in nats. Above 0, the head makes the model "
            "refuse.",
            plots.heatmap,
        ),
        _Part(
            study.direction,
            "Output along the refusal direction",
            "What each head itself writes at the last token, along the mean difference between the residual streams of "
            "requests and look-alikes.",
            plots.heatmap,
        ),
        _Part(
            study.curve,
            "Attack success",
            "The share of harmful requests that the model answers when the heads with the largest Refusal Contribution "
            "are ablated together, compared with as many random heads from the same layers.",
            lambda curve: curve.plot(),
        ),
    ]
