"""How Sphinx builds the documentation: ``python -m sphinx -W docs docs/_build``."""

import json
import os
import re
import sys
from html import escape
from pathlib import Path

from plotly.offline import get_plotlyjs

from mechheads import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import table  # noqa: E402
from docs import gallery  # noqa: E402

project = "mechheads"
author = "The mechheads authors"
copyright = author
release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton", "notfound.extension"]
exclude_patterns = ["_build", "_generated"]
nb_execution_mode = "off"  # python docs/notebooks.py stores the outputs
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_rtype = False

# Links to the pages of other libraries need their inventories, so they are made where the site is published: a build
# elsewhere needs no network.
PUBLISHED = os.environ.get("READTHEDOCS") == "True"
if PUBLISHED:
    extensions.append("sphinx.ext.intersphinx")
    intersphinx_mapping = {
        "python": ("https://docs.python.org/3", None),
        "numpy": ("https://numpy.org/doc/stable", None),
        "pandas": ("https://pandas.pydata.org/docs", None),
        "torch": ("https://pytorch.org/docs/stable", None),
        "xarray": ("https://docs.xarray.dev/en/stable", None),
    }

REPOSITORY = os.environ.get("READTHEDOCS_GIT_CLONE_URL", "")

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
notfound_urls_prefix = (
    f"/{os.environ.get('READTHEDOCS_LANGUAGE', 'en')}/{os.environ.get('READTHEDOCS_VERSION', 'latest')}/"
)

html_theme = "furo"
html_title = f"mechheads {release}"
html_static_path = ["_static", "_generated"]
html_extra_path = ["llms.txt"]
html_css_files = ["figures.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False


# The tables of performance.md, from what the benchmark wrote
(HERE / "_generated").mkdir(exist_ok=True)
_results = json.loads((HERE.parent / "benchmarks" / "results.json").read_text(encoding="utf-8"))
(HERE / "_generated" / "results.md").write_text(table.markdown(_results), encoding="utf-8")

# The gallery of figures.md
(HERE / "_generated" / "gallery.md").write_text(gallery.markdown(), encoding="utf-8")
(HERE / "_generated" / "kinds.md").write_text(gallery.kinds(), encoding="utf-8")


def _readable(app, what, name, obj, options, signature, returns):
    """A signature whose defaults are valid Python, which ``<factory>`` and ``<function f>`` are not; without bounds."""
    if signature is None:
        return None
    signature = re.sub(r"~?(?:\w+\.)*Annotated\[(\w+), ~?(?:\w+\.)*Within\([^)]*\)\]", r"\1", signature)
    return re.sub(r"<function (\w+)>", r"\1", signature.replace("<factory>", "{}")), returns


# The notebooks' figures: plotly's data with the stored picture as its fallback, drawn by figures.js
(HERE / "_generated" / "plotly.min.js").write_text(get_plotlyjs(), encoding="utf-8")


def _draw_figures(app, docname, source):
    """Let a notebook's page draw its figures from plotly's data, which Sphinx cannot show, and say how to open it."""
    path = app.env.doc2path(docname)
    if path.suffix != ".ipynb":
        return
    notebook = json.loads(source[0])
    for data in (out.get("data", {}) for cell in notebook["cells"] for out in cell.get("outputs", [])):
        if figure := data.pop("application/vnd.plotly.v1+json", None):
            picture = f'<img src="data:image/png;base64,{data.pop("image/png")}" alt="the figure that this cell draws">'
            data["text/html"] = f'<div class="figure" data-figure="{escape(json.dumps(figure))}">{picture}</div>'
    opening = {"cell_type": "markdown", "id": "open-it", "metadata": {}, "source": _how_to_open(path.name)}
    notebook["cells"].insert(1, opening)
    source[0] = json.dumps(notebook)


def _how_to_open(name):
    """How a notebook is opened elsewhere. On Colab it was not tried."""
    download = f"{{download}}`Download this notebook <{name}>`"
    repository = re.fullmatch(r"https://github\.com/([\w-]+/[\w.-]+?)(?:\.git)?", REPOSITORY)
    if not repository:
        return f"{download}."
    version = os.environ.get("READTHEDOCS_GIT_IDENTIFIER", "main")
    address = f"https://colab.research.google.com/github/{repository[1]}/blob/{version}/notebooks/{name}"
    return (
        f"{download}, or [open it in Colab]({address}), where it was not tried. There, run this cell first:\n\n"
        f"```python\n%pip install -q git+https://github.com/{repository[1]}@{version}\n```"
    )


def _load_plotly(app, pagename, templatename, context, doctree):
    """Load plotly on pages with figures only, because it is large."""
    if doctree is not None and "data-figure=" in context.get("body", ""):
        app.add_js_file("plotly.min.js")
        app.add_js_file("figures.js", loading_method="defer")


def setup(app):
    app.connect("source-read", _draw_figures)
    app.connect("html-page-context", _load_plotly)
    app.connect("autodoc-process-signature", _readable)
