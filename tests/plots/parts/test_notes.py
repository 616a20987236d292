"""A text in a panel without data."""

from __future__ import annotations

from mechheads.plots.parts.figure import Panels
from mechheads.plots.parts.notes import add_note


def test_a_note_is_wrapped_to_its_panel_and_escaped() -> None:
    panels = Panels(rows=1, columns=2, panel_width=200, panel_height=100, gap_across=10, gap_down=10)
    figure = panels.figure()
    add_note(figure, "the model <x> could not be read " * 9, panels.place(1), (200, 100))
    note = figure.layout.annotations[0]
    lines = note.text.split("<br>")
    assert len(lines) == 5 and lines[0] == "the model &lt;x&gt; could not be" and lines[-1].endswith(" …")
    assert (note.xref, note.yref) == ("x2 domain", "y2 domain")
    assert note.hovertext.replace("<br>", " ").count("could not be read") == 9
