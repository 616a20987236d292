"""Every figure of the package: what it shows, the call that draws it, and the page about it.

``python -m docs.pictures`` draws the figures and keeps each as plotly's data (``docs/gallery``) and as a small picture
(``docs/_static/thumbs``). The documentation is built from these, without a model and without a browser.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
STORED, THUMBS = HERE / "gallery", HERE / "_static" / "thumbs"


@dataclass(frozen=True)
class Shown:
    """A figure of the gallery.

    Attributes:
        title: what it shows, as a heading.
        call: the code that draws it; what it is given is yours.
        says: how to read it, in a sentence or two.
        page: the page of the documentation that explains it.
        names: the public names that draw it.
    """

    title: str
    call: str
    says: str
    page: str
    names: tuple[str, ...]


GALLERY: dict[str, Shown] = {
    "heatmap": Shown(
        "A score of every head",
        "mh.activation_patch(model, pairs, normalize=True).plot()",
        "Layers go across and heads up. Red is positive, blue negative; a dot marks heads whose family p is at most "
        "0.05, and the largest heads are named. Most results of single heads draw this.",
        "engine",
        ("mh.plots.heatmap",),
    ),
    "attention": Shown(
        "Where a head looks",
        'model.cache(["The capital of France is"]).attention.plot("L23H4")',
        "Each row is a token that looks, each column a token that is looked at.",
        "start",
        ("mh.plots.attention",),
    ),
    "category_map": Shown(
        "What heads do by their weights",
        "mh.label_heads(model).plot()",
        "Layers go across and heads up; the numbers add up to all heads. Point at a head for its best relations; click "
        "on a category to hide it.",
        "labels",
        ("mh.plots.category_map",),
    ),
    "categories_figure": Shown(
        "Categories of several models",
        "mh.studies.categories_figure(models).figure",
        "One panel for each model, as in the MAPS paper. `mechheads figure categories` draws it from a shell; "
        '`marks="dots"` draws dots as in print, and `recipe_figure` with the models of a paper.',
        "figures",
        ("mh.studies.categories_figure", "mh.studies.recipe_figure"),
    ),
    "path_map": Shown(
        "What heads send to each other",
        "mh.path_matrix(model, pairs, receivers=[...]).plot()",
        "The strongest senders go down, receivers across. A dot marks effects whose family p is at most 0.05.",
        "circuits",
        ("mh.plots.path_map",),
    ),
    "pair_map": Shown(
        "Why a head looks there",
        'mh.behaviour.attention_attribution(model, prompts, "L17H5", query=15, key=6).plot()',
        "The parts of the query go down, those of the keys across, the largest first.",
        "one_head",
        ("mh.plots.pair_map",),
    ),
    "curves": Shown(
        "How many heads it takes",
        "mh.build_atlas(model).circuit.plot()",
        "How much of the behaviour the first k heads keep on their own. `mh.gating.role_curve`, "
        "`mh.safety.attack_curve` and `mh.labels.cumulative_removal` draw such curves too, beside random orders.",
        "circuits",
        ("mh.plots.curves",),
    ),
    "safety_map": Shown(
        "Heads that answers to harmful requests depend on",
        "mh.plots.safety_map([*mh.safety.compare_ablations(model, requests).values()])",
        "The ten heads with the largest Ships by each way to ablate a head; the colour is Generalized Ships.",
        "safety",
        ("mh.plots.safety_map",),
    ),
    "safety_grid": Shown(
        "Safety heads of several models",
        "mh.plots.safety_grid(mh.studies.safety_figure(models).panels, columns=1)",
        'One panel for each model and set of requests, as in the Ships paper; `by="ablation"` gives its other layout. '
        "`mechheads figure safety` draws the first from a shell.",
        "figures",
        ("mh.plots.safety_grid", "mh.studies.safety_figure"),
    ),
    "role_map": Shown(
        "What a task needs",
        "mh.plots.role_map(mh.head_roles(mh.fit_gates(model, task)))",
        "Three panels: heads that the task needs, heads without which it does better, and heads that do not matter.",
        "roles",
        ("mh.plots.role_map",),
    ),
    "roles_figure": Shown(
        "Do roles order heads?",
        "mh.studies.roles_figure(models, tasks).figure",
        "What a task loses as the first k heads of each role are gated off, beside heads in random order: one row for "
        "each task, one column for each model. `mechheads figure roles` draws it from a shell; `symlog=1` gives "
        "the paper's axis.",
        "roles",
        ("mh.studies.roles_figure",),
    ),
}


def markdown() -> str:
    """The gallery as a page holds it: a heading, the call, the figure, and how to read it."""
    parts = []
    for name, shown in GALLERY.items():
        figure = (STORED / f"{name}.json").read_text(encoding="utf-8")
        height = json.loads(figure)["layout"].get("height", 450)
        picture = f'<img src="_static/thumbs/{name}.png" alt="{escape(shown.title)}">'
        drawn = ", ".join(f"{{py:func}}`{each} <{each.replace('mh.', 'mechheads.')}>`" for each in shown.names)
        parts += [
            f"### {shown.title}\n\n```python\n{shown.call}\n```\n",
            f'<div class="figure" style="min-height: {height}px" data-figure="{escape(figure)}">{picture}</div>\n',
            f"{shown.says} Drawn by {drawn}; read [more]({shown.page}.md).\n",
        ]
    return "\n".join(parts)


def kinds() -> str:
    """A table of what ``.plot()`` draws, for each kind of result that has a figure."""
    from mechheads.results.kinds import KINDS

    drawn: dict[str, list[str]] = {}
    for kind, metadata in KINDS.items():
        if metadata.plot is not None:
            drawn.setdefault(metadata.plot.partition(":")[2], []).append(f"`{kind}`")
    rows = [f"| {', '.join(names)} | [{GALLERY[figure].title}](#{anchor(figure)}) |" for figure, names in drawn.items()]
    rest = f"| every other result of single heads | [{GALLERY['heatmap'].title}](#{anchor('heatmap')}) |"
    return "\n".join(["| kind of result | what `.plot()` draws |", "|---|---|", *rows, rest]) + "\n"


def anchor(name: str) -> str:
    """The address of a figure within the gallery's page."""
    return "".join(c for c in GALLERY[name].title.lower() if c.isalnum() or c in " -").replace(" ", "-")
