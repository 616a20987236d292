"""What each view says of every head: a sentence, a verdict and its rule; and which verdicts contradict each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from mechheads.explorer.columns import about_of, is_ranged
from mechheads.gating import ROLES
from mechheads.labels import HeadLabels
from mechheads.results.dataset import RANGE
from mechheads.results.scores import HeadScores
from mechheads.studies.atlas import Atlas

LEAST_RESTORED = 0.05
"""The share of the difference that a head must restore for a yes."""
LEAST_DIRECT = 0.05
"""The share of the logit difference that a head must add for a yes."""
FDR = 0.1
"""The largest q of a yes of patching and of direct parts. Among hundreds of heads, eight pairs hardly give less."""
FIRST = 10
"""How many heads are the first by Ships."""
LEAST_GATE = 0.5
"""The gate from which on a head has a role."""

YES, NO, UNCLEAR = "yes", "no", "unclear"


class _Said(NamedTuple):
    """A view's sentence, the rule of its verdict, what each verdict says and what would change it, and the verdicts."""

    sentence: str
    rule: str
    texts: tuple[str, str, str]
    change: tuple[str, str, str]
    verdicts: np.ndarray
    rank_by: str = "value"
    group: str | None = None


def views(atlas: Atlas) -> list[dict[str, Any]]:
    """What every view of an atlas says of every head."""
    made = []
    table = atlas.to_dataframe()
    for name, scores in atlas.views.items():
        said = _said(name, scores, atlas)
        about = about_of(name)
        ranged = is_ranged(table, name)
        ends = [f"{name}_{end}" for end in (RANGE if ranged else ("ci_low", "ci_high"))]
        low, high = (end if end in table and table[end].notna().to_numpy().any() else None for end in ends)
        made.append(
            {
                "name": name,
                "title": about.label,
                "unit": about.unit or scores.unit,
                "value": name,
                "low": low,
                "high": high,
                "range": ranged,
                "q": f"{name}_q" if f"{name}_q" in table else None,
                "rankBy": said.rank_by,
                "sentence": said.sentence,
                "verdict": {
                    "rule": said.rule,
                    "texts": dict(zip((YES, NO, UNCLEAR), said.texts, strict=True)),
                    "change": dict(zip((YES, NO, UNCLEAR), said.change, strict=True)),
                    "values": said.verdicts.ravel().tolist(),
                },
                "group": said.group,
            }
        )
    return made


def tensions(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Verdicts of two views that speak against each other."""
    known = {view["name"] for view in found}
    return [
        {"a": {"view": a, "verdict": one}, "b": {"view": b, "verdict": other}, "text": text}
        for a, one, b, other, text in _TENSIONS
        if {a, b} <= known
    ]


_TENSIONS = (
    (
        "phi",
        YES,
        "patching",
        NO,
        "Its weights implement a relation, but its output changes nothing in these prompts: it may act in other "
        "contexts, or other heads do the same.",
    ),
    (
        "patching",
        YES,
        "phi",
        NO,
        "Its output matters in these prompts, but its weights implement none of the relations: it may choose or move "
        "what other heads map.",
    ),
    (
        "patching",
        YES,
        "direct",
        NO,
        "It changes the answer, but adds little to the logits itself: later heads and MLPs read what it writes.",
    ),
    (
        "direct",
        YES,
        "patching",
        NO,
        "It adds to the logits itself, but patching it changes little: it may add the same in both runs, or later "
        "layers undo the change.",
    ),
    (
        "ships_undifferentiated",
        YES,
        "ships_scaling",
        NO,
        "The ablations disagree: where it attends matters, but without its output the answer stays much the same. "
        "Uniform attention may write something that it never writes by itself.",
    ),
    (
        "ships_scaling",
        YES,
        "ships_undifferentiated",
        NO,
        "The ablations disagree: its output matters, but hardly where it attends.",
    ),
    (
        "facilitation",
        YES,
        "patching",
        NO,
        "The gates need it, but its output carries nothing of the country: it may do the same in every prompt of the "
        "task.",
    ),
    ("patching", YES, "irrelevance", YES, "Patching says that it matters, the gates that other heads can replace it."),
    (
        "facilitation",
        YES,
        "interference",
        YES,
        "Both gates stay where they started: the short fit may not have moved them.",
    ),
)


def _said(name: str, scores: HeadScores, atlas: Atlas) -> _Said:
    """What a view says of every head."""
    if name == "phi" and atlas.labels is not None:
        return _by_weights(atlas.labels)
    if name == "patching":
        return _restored(scores)
    if name == "direct":
        return _added(scores)
    if name in ROLES:
        return _role(name, scores)
    if name.startswith("ships_"):
        return _ships(name, scores)
    return _Said(
        f"{name} is {{value}} {{unit}}.",
        "Unclear: this view has no rule.",
        ("", "", ""),
        ("", "", ""),
        _verdicts(scores, {UNCLEAR: np.isfinite(scores.scores.values)}),
    )


def _verdicts(scores: HeadScores, where: Mapping[str, Any]) -> np.ndarray:
    """The first verdict that holds of each head; None if none does."""
    found = np.full((scores.n_layers, scores.n_heads), None, dtype=object)
    for verdict, holds in reversed([*where.items()]):
        found[holds] = verdict
    return found


def _by_weights(labels: HeadLabels) -> _Said:
    data, about = labels.dataset, labels.provenance
    reached = np.isfinite(data["score"].values).any(-1)
    where = {
        YES: data["member"].values.any(-1) & reached,
        UNCLEAR: data["below_floor"].values.any(-1) & reached,
        NO: reached,
    }
    if about["rule"] == "maps":
        rule = f"Yes if phi is at least {about['tau']:g}, the paper's rule."
    else:
        rule = (
            f"Yes if phi exceeds that of shuffled targets by at least {about['floor']:g} with q of at most "
            f"{about['fdr']:g}; unclear if it is as significant but smaller."
        )
    return _Said(
        "By its weights, the head maps {value} of the pairs of {relation} from source to target.",
        rule,
        (
            "Its weights implement a relation.",
            "Its weights implement none of the relations that were tested.",
            "Its weights hint at a relation, but for few pairs.",
        ),
        (
            "Other forms in which the head could read tokens, or patching in which the relation plays no part.",
            "A relation that was not tested.",
            "More pairs of the relation.",
        ),
        _verdicts(labels, where),
    )


def _beyond(scores: HeadScores, least: float) -> dict[str, np.ndarray]:
    """Yes if the score is so large, its interval excludes 0 and q is small; no if the interval lies within this."""
    value, low, high, q = (scores.dataset[name].values for name in ("score", "ci_low", "ci_high", "q_value"))
    return {
        YES: (np.abs(value) >= least) & ((low > 0) | (high < 0)) & ~(q > FDR),
        NO: np.maximum(np.abs(low), np.abs(high)) < least,
        UNCLEAR: np.isfinite(value),
    }


def _restored(scores: HeadScores) -> _Said:
    return _Said(
        "Its output from the clean run restores {value} of the logit difference between two capitals.",
        f"Yes if it restores at least {LEAST_RESTORED:g}, the interval excludes 0 and q is at most {FDR:g}; no if the "
        f"whole interval lies between -{LEAST_RESTORED:g} and {LEAST_RESTORED:g}.",
        (
            "Its output carries something of the country to the answer.",
            "Its output carries next to nothing of the country to the answer.",
            "These prompts do not settle it.",
        ),
        (
            "Other prompts, or noising instead of denoising: a head can be enough without being needed.",
            "Noising, in which backup heads do not hide it; other prompts.",
            "More pairs of prompts: they narrow the interval and lower q.",
        ),
        _verdicts(scores, _beyond(scores, LEAST_RESTORED)),
        "absolute",
    )


def _added(scores: HeadScores) -> _Said:
    total = scores.dataset["total"].values.mean() if "total" in scores.dataset else np.nan
    least = LEAST_DIRECT * abs(float(total)) if np.isfinite(total) else 0.0
    return _Said(
        "The head itself adds {value} logits to the capital, minus the wrong one.",
        f"Yes if it adds at least {LEAST_DIRECT:.0%} of the mean logit difference ({least:.2g} logits) in either "
        f"direction, the interval excludes 0 and q is at most {FDR:g}; no if the whole interval is smaller.",
        (
            "It writes to the answer directly.",
            "It hardly writes to the answer directly.",
            "These prompts do not settle it.",
        ),
        ("Other prompts.", "Other prompts; patching shows what it does through later heads.", "More prompts."),
        _verdicts(scores, _beyond(scores, least)),
        "absolute",
    )


def _ships(name: str, scores: HeadScores) -> _Said:
    value, high = scores.scores.values, scores.dataset["ci_high"].values
    in_order = np.sort(value[np.isfinite(value)])[::-1]
    tenth = in_order[min(FIRST, in_order.size) - 1] if in_order.size else np.inf
    where = {YES: value >= tenth, UNCLEAR: high >= tenth, NO: np.isfinite(value)}
    return _Said(
        "Without it, the next token's distribution after a harmful request moves by {value} nats.",
        f"Yes if it is among the {FIRST} largest; unclear if its interval reaches the {FIRST}th; otherwise no.",
        (
            f"It is among the {FIRST} heads on which the answer depends most.",
            f"At least {FIRST} heads matter more to the answer.",
            f"It may be among the {FIRST} heads on which the answer depends most.",
        ),
        (
            "Other requests; harmless look-alikes, on which a head of every answer scores as high.",
            "Another ablation, or other requests.",
            "More requests.",
        ),
        _verdicts(scores, where),
        group="ships",
    )


_ROLE_SENTENCES = {
    "facilitation": "Its gate stays open at {value} although gates are pulled shut.",
    "interference": "Its gate is shut by {value} although gates are pulled open.",
    "irrelevance": "Its gate follows the pull by {value}.",
}
_ROLE_TEXTS = {
    "facilitation": ("The task needs it.", "The task does not need it."),
    "interference": ("It hinders the task.", "It does not hinder the task."),
    "irrelevance": ("The task does not depend on it.", "The task depends on it."),
}


def _role(name: str, scores: HeadScores) -> _Said:
    values = scores.dataset["values"].values
    reached = np.isfinite(values).all(-1)
    has = values >= LEAST_GATE
    where = {YES: has.all(-1) & reached, NO: ~has.any(-1) & reached, UNCLEAR: reached}
    return _Said(
        _ROLE_SENTENCES[name],
        f"Yes if it is at least {LEAST_GATE:g} in every start, no if in none.",
        (*_ROLE_TEXTS[name], "The starts disagree."),
        ("A longer fit, or more starts.", "A longer fit, or more starts.", "A longer fit, or more starts."),
        _verdicts(scores, where),
        group="roles",
    )
