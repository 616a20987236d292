"""Draw the pictures of README.md and of the documentation again.

``python -m docs.pictures page ATLAS`` photographs the page in the folder ATLAS, which ``mechheads atlas`` wrote.
``python -m docs.pictures gallery ATLAS FIGURES GEMMA`` draws every figure of the gallery, the first figure of
``docs/start.md``, and README's map of categories. FIGURES is a folder for the figures of several models; what is in it
already is not computed again. GEMMA is a file of Gemma-3-270m in the GGUF format, the second model of the map. Without
FIGURES, this takes ten minutes or so.
``python -m docs.pictures figure NAME FILE`` draws one figure of the gallery, from what ``figure.write_json`` wrote.

All need Pillow, Node.js, Chromium (or ``CHROMIUM=/path/to/it``) and ``npm ci`` in ``mechheads/explorer/front``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import plotly.io
from PIL import Image

import mechheads as mh
from docs.gallery import HERE, STORED, THUMBS

FRONT = HERE.parent / "mechheads" / "explorer" / "front"
STATIC = HERE / "_static"
WIDTH = 820
"""Of the widest figure of the gallery, which is as wide as a page's text."""
THUMB = (300, 200)
CAMERA = """
const { chromium } = require("playwright-core");
(async () => {
  const browser = await chromium.launch({ executablePath: process.argv[1], args: ["--no-sandbox"] });
  for (const { url, out, width, height, scheme, seen, alone } of JSON.parse(require("fs").readFileSync(0))) {
    const page = await browser.newPage({ viewport: { width, height }, colorScheme: scheme });
    await page.goto(url);
    await page.locator(seen).first().waitFor();
    await page.waitForTimeout(1000);
    await (alone ? page.locator(seen).first() : page).screenshot({ path: out });
    await page.close();
  }
  await browser.close();
})();
"""
"""Takes a screenshot of each page in a list from its standard input, once an element is seen on it; or of it alone."""


def photograph(shots: list[dict[str, Any]]) -> None:
    """Take screenshots; each has the keys that ``CAMERA`` reads."""
    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome") or ""
    subprocess.run(["node", "-e", CAMERA, chromium], input=json.dumps(shots), text=True, cwd=FRONT, check=True)


def shrink(path: Path, colours: int = 256, box: tuple[int, int] | None = None) -> None:
    """Store a picture with few colours, small enough for a box."""
    image = Image.open(path).convert("RGB")
    if box is not None:
        image.thumbnail(box, Image.Resampling.LANCZOS)
    few = image.quantize(colours, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)  # keeps rare colours
    few.save(path, "PNG", optimize=True)
    print(f"{path.relative_to(HERE)}: {path.stat().st_size / 1e3:.1f} kB")


def of_page(atlas: Path) -> None:
    """The page of an atlas: as it opens, light and dark, and the card of a head."""
    url = (atlas / "index.html").resolve().as_uri()
    base = {"url": url, "width": 1440, "height": 900, "scheme": "light", "seen": ".mh-app svg"}
    shots = [base | {"scheme": scheme, "out": str(STATIC / f"page_{scheme}.png")} for scheme in ("light", "dark")]
    shots += [base | {"out": str(THUMBS / "explore.png")}]
    shots += [base | {"url": f"{url}#head=L23H4", "out": str(THUMBS / "head_card.png")}]
    photograph(shots)
    for scheme in ("light", "dark"):
        shrink(STATIC / f"page_{scheme}.png")
    for name in ("explore", "head_card"):
        shrink(THUMBS / f"{name}.png", 64, THUMB)


def figures(atlas: mh.studies.Atlas, folder: Path, gemma: str) -> dict[str, Any]:
    """Every figure of the gallery by its name."""
    name, known = "smollm2-135m-instruct", "smollm2-135m-refusal"
    model = mh.load(name)
    safety = mh.studies.safety_figure([name, known], out=folder / "safety", quick=True).panels
    roles = mh.studies.roles_figure(name, "country_to_capital", out=folder / "roles", quick=True).figure
    gates = mh.gating.Gates.load(next((folder / "roles").rglob("gates.nc")))
    return {
        "heatmap": atlas.patching.plot(),
        "attention": model.cache(["The capital of France is"]).attention.plot("L23H4"),
        "category_map": atlas.labels.plot(),
        "categories_figure": mh.studies.categories_figure([name, gemma], out=folder / "categories").figure,
        "path_map": atlas.paths.plot(),
        "pair_map": induction(model).plot(),
        "curves": atlas.circuit.plot(),
        "safety_map": mh.plots.safety_map([*next(reversed(safety.values())).values()]),
        "safety_grid": mh.plots.safety_grid(safety, columns=1),
        "role_map": mh.plots.role_map(mh.head_roles(gates)),
        "roles_figure": roles,
    }


def induction(model: mh.Model) -> mh.behaviour.AttentionAttribution:
    """Why an induction head looks at the token after an earlier copy."""
    rows = [[*range(start, start + 10)] * 2 for start in range(1000, 9000, 1000)]
    return mh.behaviour.attention_attribution(model, rows, "L17H5", query=15, key=6)


def first_figure() -> Any:
    """The figure of ``docs/start.md``."""
    pairs = mh.PromptPairs(
        clean=["The capital of France is", "The capital of Spain is"],
        corrupted=["The capital of Italy is", "The capital of Japan is"],
        answer=[" Paris", " Madrid"],
        wrong=[" Rome", " Tokyo"],
    )
    return mh.activation_patch(mh.load(), pairs, normalize=True).plot()


def of_gallery(atlas: Path, folder: Path, gemma: str) -> None:
    """Every figure of the gallery as data and as a small picture, the first figure, and README's map of categories."""
    of_figures(figures(mh.studies.Atlas.load(atlas), folder, gemma))
    with tempfile.TemporaryDirectory() as place:
        shots = [shot(first_figure(), Path(place, "first.html"), STATIC / "first_figure.png")]
        for theme in ("light", "dark"):
            panels = mh.studies.categories_figure(["smollm2-135m-instruct", gemma], out=folder / "categories").panels
            figure = mh.plots.category_map(panels, theme=theme)
            shots.append(shot(figure, Path(place, f"{theme}.html"), STATIC / f"categories_{theme}.png"))
        photograph(shots)
    for name in ("first_figure", "categories_light", "categories_dark"):
        shrink(STATIC / f"{name}.png")


def of_figures(drawn: dict[str, Any]) -> None:
    """Figures of the gallery, by their names, as data and as small pictures."""
    with tempfile.TemporaryDirectory() as place:
        shots = []
        for name, figure in drawn.items():
            figure.update_layout(width=min(figure.layout.width or WIDTH, WIDTH))
            (STORED / f"{name}.json").write_text(figure.to_json(), encoding="utf-8")
            shots.append(shot(small(figure), Path(place, f"{name}.html"), THUMBS / f"{name}.png"))
        photograph(shots)
    for name in drawn:
        shrink(THUMBS / f"{name}.png", 64, THUMB)


def small(figure: Any) -> Any:
    """The figure without its words, in the shape of a small picture."""
    copy = type(figure)(figure)
    copy.update_layout(width=480, height=320, title_text="", showlegend=False, margin={"l": 8, "r": 8, "t": 8, "b": 8})
    copy.update_coloraxes(showscale=False)
    copy.update_annotations(text="")
    for axes in (copy.update_xaxes, copy.update_yaxes):
        axes(title_text="", showticklabels=False, automargin=False)
    return copy


def shot(figure: Any, page: Path, out: Path) -> dict[str, Any]:
    """What to photograph of a figure, which is written to a page of its own."""
    size = {"width": 1300, "height": 1200, "alone": True}
    figure.write_html(page, config={"displayModeBar": False})
    return {"url": page.as_uri(), "out": str(out), "scheme": "light", "seen": ".plot-container", **size}


def main(what: str, of: str, *more: str) -> None:
    """Draw the pictures of a page, those of the gallery, or one figure of it."""
    if what == "page":
        of_page(Path(of))
    elif what == "gallery":
        of_gallery(Path(of), Path(more[0]), more[1])
    elif what == "figure":
        of_figures({of: plotly.io.read_json(more[0])})
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
