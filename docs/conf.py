"""How Sphinx builds the documentation: ``python -m sphinx -W docs docs/_build``."""

import json
import sys
from pathlib import Path

from mechheads import __version__

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from benchmarks import coverage, families, planted, table  # noqa: E402

project = "mechheads"
author = "The mechheads authors"
copyright = author
release = __version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build", "_generated"]
nb_execution_mode = "off"  # the tests run the notebooks
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
autodoc_class_signature = "mixed"
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = "mechheads"
html_static_path = ["_static", "_generated"]
html_css_files = ["figures.css"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False


# The tables and the figure of performance.md, from what the benchmark wrote
(HERE / "_generated").mkdir(exist_ok=True)
_results = json.loads((HERE.parent / "benchmarks" / "results.json").read_text(encoding="utf-8"))
(HERE / "_generated" / "benchmarks.md").write_text(table.markdown(_results), encoding="utf-8")
table.figure(_results).write_html(HERE / "_generated" / "benchmarks.html", config={"displaylogo": False})

# the tables of uncertainty.md
_coverage = json.loads((HERE.parent / "benchmarks" / "coverage.json").read_text(encoding="utf-8"))
(HERE / "_generated" / "coverage.md").write_text(coverage.markdown(_coverage), encoding="utf-8")
(HERE / "_generated" / "false_positives.md").write_text(coverage.markdown_of_p(_coverage), encoding="utf-8")

# the tables of models.md
_families = json.loads((HERE.parent / "benchmarks" / "families.json").read_text(encoding="utf-8"))
(HERE / "_generated" / "models.md").write_text(families.markdown(_families), encoding="utf-8")

# and the curve of labels.md
_planted = json.loads((HERE.parent / "benchmarks" / "planted.json").read_text(encoding="utf-8"))
planted.figure(_planted).write_html(HERE / "_generated" / "planted.html", config={"displaylogo": False})


def _readable(app, what, name, obj, options, signature, returns):
    """A default that a dataclass makes anew prints as ``<factory>``, which is no Python: types would go unread."""
    return (signature.replace("<factory>", "{}"), returns) if signature else None


def setup(app):
    app.connect("autodoc-process-signature", _readable)
