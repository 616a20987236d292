"""An atlas, or a study of safety heads, as one HTML page that opens from disk, without a network."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mechheads import plots
from mechheads.gating.roles.role_curves import RoleCurves
from mechheads.gating.roles.roles import Roles
from mechheads.results.html import html_table
from mechheads.safety.answers.refusal import RefusalTest
from mechheads.studies.atlas import Atlas
from mechheads.studies.safety import SafetyStudy

if TYPE_CHECKING:
    import plotly.graph_objects as go


class _Part(NamedTuple):
    """A section to come: a result, or None where there is none, what to say of it, and how to draw it."""

    result: Any
    title: str
    text: str
    draw: Callable[[Any], go.Figure]


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 1240px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; } p { max-width: 46rem; }
pre { background: #f6f6f6; padding: 1rem; white-space: pre-wrap; font-size: 0.85rem; }
.figure { overflow-x: auto; }
table { border-collapse: collapse; font-size: 0.85rem; } td, th { padding: 0.2rem 0.6rem; text-align: left; }
details { margin-top: 0.5rem; } summary { cursor: pointer; }
"""


def write_page(atlas: Atlas, path: str | Path) -> Path:
    """Write every figure of an atlas to one HTML file that holds plotly's script too (about 5 MB).

    Args:
        atlas: from ``mh.build_atlas``.
        path: of the file, such as ``"atlas/index.html"``; its folder must be there.
    """
    return _write(
        Path(path),
        f"{atlas.model}: heads",
        f"The attention heads of {atlas.model}",
        atlas.summary(5),
        _sections(_atlas_parts(atlas)),
    )


def write_safety_page(study: SafetyStudy, path: str | Path) -> Path:
    """Write a study of safety heads to one HTML file that holds plotly's script too (about 5 MB).

    The texts of requests and answers are folded: somebody has to open them.

    Args:
        study: from ``mh.studies.safety_study``.
        path: of the file, such as ``"safety/index.html"``; its folder must be there.
    """
    sections = _sections(_safety_parts(study))
    for name, test in study.tests.items():
        shown = html_table(test.table)
        sections.append(
            _section(f"Refusing without the first {len(test.heads)} by {name}", test.verdict, shown + _answers(test))
        )
    if len(agreement := study.overlap()):
        shown = html_table(agreement)
        sections.append(_section("Agreement", f"Heads that two rankings share among their first {study.k}.", shown))
    return _write(
        Path(path),
        f"{study.model}: safety heads",
        f"The safety heads of {study.model}",
        study.summary(),
        sections,
    )


def write_roles_page(model: str, roles: Roles, curves: RoleCurves, path: str | Path) -> Path:
    """Write the roles of heads for a task, and the curves that check them, to one HTML file.

    Args:
        model: its name.
        roles, curves: from ``mh.head_roles`` and ``mh.gating.role_curve``.
        path: of the file; its folder must be there.
    """
    parts = [
        _Part(
            curves,
            "What happens as heads go",
            "Log-probability of the targets with the first k heads of a role gated off, less that with them gated on, "
            "from the gates that were pulled open. Grey: random orders.",
            plots.role_curves,
        ),
        *(_Part(scores, role.capitalize(), "Mean over seeds.", plots.heatmap) for role, scores in roles.items()),
    ]
    title = f"Roles of the heads of {model} for {curves.name}"
    return _write(Path(path), title, title, "\n".join([*role_shares(roles), repr(curves)]), _sections(parts))


def role_shares(roles: Roles) -> list[str]:
    """A line for each role: how many heads have it."""
    always, some = roles.always(), roles.any()
    return [f"{role}: {always[role]:.1%} of heads in every seed, {some[role]:.1%} in some" for role in roles]


def _answers(test: RefusalTest) -> str:
    """Requests and answers of a test, folded."""
    table = html_table(test.answers.loc[test.answers["condition"].isin(["intact", "ablated"])])
    return f"<details><summary>Requests and answers (texts folded)</summary>{table}</details>"


def _sections(parts: Iterable[_Part]) -> list[str]:
    """A section for each result that there is."""
    return [_section(p.title, p.text, _drawn(p.draw(p.result))) for p in parts if p.result is not None]


def _section(title: str, text: str, body: str) -> str:
    return f'<h2>{html.escape(title)}</h2><p>{html.escape(text)}</p><div class="figure">{body}</div>'


def _drawn(figure: go.Figure) -> str:
    return figure.to_html(full_html=False, include_plotlyjs=False, config={"displaylogo": False})


def _write(path: Path, name: str, title: str, summary: str, sections: Sequence[str]) -> Path:
    """A page of sections, written whole or not at all."""
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(name)}</title>'
        f"<style>{_STYLE}</style><script>{_script()}</script></head><body>"
        f"<h1>{html.escape(title)}</h1><pre>{html.escape(summary)}</pre>"
        f"{''.join(sections)}</body></html>"
    )
    unfinished = path.with_suffix(".part")
    unfinished.write_text(page, encoding="utf-8")
    os.replace(unfinished, path)
    return path


def _script() -> str:
    from plotly.offline import get_plotlyjs

    return get_plotlyjs()


def _atlas_parts(atlas: Atlas) -> list[_Part]:
    agreement = atlas.agreement()
    return [
        _Part(
            atlas.labels,
            "Categories",
            "What each head does by its weights: a head has a category if it maps more pairs of one of its "
            "relations from source to target (phi, among its ten strongest outputs) than shuffled targets "
            "explain, at a false discovery rate of 5%, and by at least a tenth of the pairs. Hover for the relation, "
            "its share of pairs and q, and for what is below that floor.",
            lambda labels: plots.category_map({atlas.model: labels}),
        ),
        _Part(atlas.relations, "Relations", "The relation score phi behind the categories.", plots.heatmap),
        _Part(
            atlas.patching,
            "Activation patching: who carries the capital?",
            "The corrupted prompt names another country. One head's output is restored from the clean run: 0 "
            "changes nothing, 1 restores the whole logit difference between the two capitals.",
            plots.heatmap,
        ),
        _Part(
            atlas.patterns,
            "Where these heads look",
            "Attention patterns of the three heads with the largest patching effect, on the first prompt.",
            lambda patterns: plots.attention(*patterns),
        ),
        _Part(
            list(atlas.safety.values()) or None,
            "Safety heads",
            "The ten heads whose ablation moves the answer to harmful requests most (Ships), coloured by "
            "Generalized Ships. Both measure any change, not safety alone: a model that refuses nothing has "
            "heads here too.",
            plots.safety_map,
        ),
        *(
            _Part(
                scores,
                f"Ships under {ablation} ablation",
                "KL divergence at the last token of the request.",
                plots.heatmap,
            )
            for ablation, scores in atlas.safety.items()
        ),
        _Part(
            atlas.roles,
            "Roles: who is needed to name a capital?",
            "All heads get a gate at once, fitted so that capitals become likely. Facilitation: the gate stays open "
            "even where gates are pulled shut. Interference: it shuts even where they are pulled open. Irrelevance: "
            "it goes wherever it is pulled. Means over a few short fits, a first look.",
            plots.role_map,
        ),
        _Part(
            agreement if len(agreement) else None,
            "Do these views agree?",
            "Each cell says how far two views put the heads in the same order: 1 in the same, -1 in the opposite, and "
            "0 in unrelated ones. Pale cells with a grey number have an interval that holds 0. The three roles are "
            "made of the same gates, so they are bound to go together or against each other.",
            plots.view_agreement,
        ),
    ]


def _safety_parts(study: SafetyStudy) -> list[_Part]:
    return [
        _Part(
            list(study.ships.values()) or None,
            "Ships",
            f"The {study.k} heads whose ablation moves the answer to harmful requests most, coloured by "
            "Generalized Ships. Both count any change of the answer, not refusing alone.",
            lambda ships: plots.safety_map(ships, k=study.k),
        ),
        _Part(
            study.contribution,
            "Refusal Contribution",
            "How much log-probability of beginning a refusal a harmful request loses without the head, less how far "
            "the same ablation moves the answer to its harmless look-alike (Ships); in nats. Above 0 the head makes "
            "the model refuse.",
            plots.heatmap,
        ),
        _Part(
            study.direction,
            "Written along the refusal direction",
            "What each head itself writes along the difference between requests and look-alikes, last token.",
            plots.heatmap,
        ),
        _Part(
            study.curve,
            "Attack success",
            "Harmful requests complied with as the heads with the largest Refusal Contribution are ablated "
            "together, against as many random heads from the same layers.",
            lambda curve: curve.plot(),
        ),
    ]
