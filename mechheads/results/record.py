"""``ResultKind``: what all results of one analysis have in common; ``mechheads/data/kinds`` has a record for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

FIRST = 10
"""How many heads are the first by scores that nothing tells from 0."""
AMONG, FURTHEST = (
    (
        f"It is among the {FIRST} {heads}.",
        f"At least {FIRST} other heads come before it.",
        f"It may be among the {FIRST} {heads}.",
    )
    for heads in ("heads with the largest values", "heads furthest from 0")
)
"""What verdicts say of scores that nothing tells from 0, of one sign and of both."""
Question = Literal["prompts", "requests", "task", "text", "weights"]
GROUPS: dict[Question, str] = {
    "prompts": "In tasks",
    "requests": "In refusals",
    "task": "Roles",
    "text": "On text",
    "weights": "By weights",
}
"""The headings under which columns stand, by their question."""
Rule = Literal["metric", "differs", "added", "labelled", "among_first", "in_every_start"]
"""How verdicts follow from scores, as ``mechheads.results.evidence`` has it. By "metric", a share must be large enough,
and other scores are judged by "differs"."""


@dataclass(frozen=True)
class Words:
    """What is said of the scores of all heads.

    Attributes:
        label, meaning: its name for people, and what the scores measure.
        sentence: what a ``{value}`` says of a head; it may name its ``{unit}`` and ``{relation}``.
        texts, change: what yes, no and unclear say of a head, and what could change each.
        rule: how a verdict on each head follows from the scores.
        method: the name of the analysis, and how it measures; by default, label and meaning.
        cautions: what may not be concluded.
        part: what the scores are where two views disagree.
        unit: of the values, if the kind has none.
        group: the heading under which the column stands, if it is not that of the kind's question.
        signed: whether values can be negative; then the first heads are those furthest from 0.
    """

    label: str
    meaning: str
    sentence: str = ""
    texts: tuple[str, str, str] = ("It differs from what chance gives.", "", "These prompts do not settle it.")
    change: tuple[str, str, str] = ("Other prompts.", "Other prompts.", "More prompts: they lower p.")
    rule: Rule = "differs"
    method: tuple[str, str] | None = None
    cautions: tuple[str, ...] = ()
    part: str = ""
    unit: str = ""
    group: str = ""
    signed: bool = False


@dataclass(frozen=True)
class ResultKind:
    """What all results of one analysis have in common.

    Attributes:
        papers: keys of ``papers()``.
        unit: the unit of the numbers; empty if it depends on the metric.
        null: the mean score of a head that does nothing, for p and q values; ``None`` if there is no test.
        bounds, share: between what per-prompt values lie, and whether each is a yes or no; see ``results.bounded``.
        plot: the figure, as "module:function"; with ``None``, head scores are drawn as a heatmap and tables not at all.
        dims: the extra dimensions of head scores that the figure draws.
        needs: further variables that the figure reads. Head scores without these are drawn as a heatmap.
        question: what the scores are evidence about.
        sample: what each of the values is of that the scores are means over.
        words: what is said of head scores; None for tables.
        variants: the words of scores of one direction, label or name, by it.
    """

    papers: tuple[str, ...] = ()
    unit: str = ""
    null: float | None = 0.0
    bounds: tuple[float | None, float | None] | None = None
    share: bool = False
    plot: str | None = None
    dims: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    question: Question = "prompts"
    sample: str = "prompt"
    words: Words | None = None
    variants: Mapping[str, Words] = field(default_factory=dict)
