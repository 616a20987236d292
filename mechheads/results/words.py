"""What is said of scores: the words of their kind, filled from the provenance of the call that gave them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mechheads.results.evidence import has_null, null_of
from mechheads.results.kinds import kind_of
from mechheads.results.record import AMONG, FIRST, FURTHEST, GROUPS, Words
from mechheads.results.scores import HeadScores

ASKED = {"pairs": "the capital", "requests": "harmful requests", "task": "naming the capital"}
"""What the questions of the package are about, as ``Atlas.asked`` says it."""
METRICS = {"logit_diff": "logit difference", "log_prob": "log-probability", "kl_divergence": "KL divergence"}
"""What a sentence calls metrics."""
_SITES = {"z": "output", "q": "query", "k": "key", "v": "value", "pattern": "attention pattern"}
_CHANGES = {
    "Zero(": "its output is set to zero",
    "Mean(": "its output is replaced with its mean over the prompts",
    "MeanOf(": "its output is replaced with its mean over other texts",
    "Resample(": "its output comes from another prompt",
    "Scale(": "its output is scaled down",
    "UniformAttention(": "it attends to all tokens alike",
    "Patch(site='z')": "its output comes from the other run",
    "Patch(": "its activation comes from the other run",
}
ABLATED = {"undifferentiated": "it attends to all tokens alike", "scaling": "it writes almost nothing"}
"""What happens to a head, by the name of an ablation of Ships."""
_GOALS = {ASKED["task"]: "capitals become likely"}
_OF_BOTH = "logit(answer) - logit(wrong)"
_LONGEST = 80


_GONE = {"Zero(": "zeroed", "Mean": "mean-ablated", "Resample(": "resample-ablated", "Patch(": "patched"}
"""What happens to heads that are ablated all the time, by the beginning of the intervention."""


def given_that(about: Mapping[str, Any]) -> str:
    """Which heads are ablated all the time, as the end of a title or a sentence; empty if none is.

    Args:
        about: the provenance of a result.

    >>> from mechheads.results.words import given_that
    >>> given_that({"given": {"L0H1": "Zero()", "L2H3": "Zero()", "L4H0": "Mean()"}})
    'given that L0H1 and L2H3 are zeroed and L4H0 is mean-ablated'
    """
    given, by_rule = about.get("given"), dict[str, list[str]]()
    for head, rule in given.items() if isinstance(given, Mapping) else ():
        known = next((words for start, words in _GONE.items() if rule.startswith(start)), None)
        by_rule.setdefault(known or f"changed by {shortened(rule)}", []).append(head)
    said = [f"{listed(heads)} {'is' if len(heads) == 1 else 'are'} {gone}" for gone, heads in by_rule.items()]
    return f"given that {listed(said)}" if said else ""


def titled(name: str, about: Mapping[str, Any]) -> str:
    """The name of a result, which says what heads were ablated all the time.

    Args:
        about: the provenance of the result.
    """
    return ", ".join(filter(None, (name, given_that(about))))


def listed(parts: Sequence[str]) -> str:
    """Parts with commas, or with semicolons if they have commas themselves.

    >>> from mechheads.results.words import listed
    >>> listed(["one", "two", "three"]), listed(["a, b", "c"])
    ('one, two and three', 'a, b; c')
    """
    if len(parts) < 2:
        return "".join(parts)
    if any("," in re.sub(r"\[[^]]*]", "", part) for part in parts[:-1]):
        return "; ".join(parts)
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def shortened(text: str) -> str:
    """The text, or its beginning if it is too long for a sentence or a heading."""
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def heading(text: str) -> str:
    """The text as a heading, with a capital letter.

    >>> from mechheads.results.words import heading
    >>> heading("activation patching of z")
    'Activation patching of z'
    """
    return text[:1].upper() + text[1:]


def words_of(scores: HeadScores, asked: Mapping[str, str] | None = None, kind: str = "") -> Words:
    """What is said of scores.

    Args:
        asked: what the prompts of an atlas ask for, as in ``Atlas.asked``.
        kind: that of other numbers that stand beside the scores.

    >>> about = {"ablation": "scaling", "score": "ships"}
    >>> ships = HeadScores.from_scores(np.ones((1, 2)), name="Ships", kind="safety", provenance=about)
    >>> from mechheads.results.words import words_of
    >>> words_of(ships).meaning
    "The change of the next token's distribution after a request if it writes almost nothing."
    """
    return _Wording(scores, asked or {}, kind).words


@dataclass(frozen=True)
class _Wording:
    """The words of scores, and what fills their places: what is known of the call that gave them.

    Attributes:
        scores: [layer, head].
        asked: what the prompts of an atlas ask for, as in ``Atlas.asked``.
        kind: that of the scores, if it is not their own.
    """

    scores: HeadScores
    asked: Mapping[str, str] = field(default_factory=dict)
    kind: str = ""

    @property
    def words(self) -> Words:
        """The words of the kind, in which every place is filled but those of the page."""
        words, tested = self._of_kind, has_null(self.scores)
        signed = words.signed or bool(np.nanmin(self.scores.scores.values, initial=0.0) < 0)
        rule, texts, unit = words.rule, words.texts, words.unit or self.scores.unit
        if rule in ("metric", "differs", "added") and not tested:
            rule, texts = "among_first", Words.texts
        elif rule == "metric":
            signed, rule = True, "metric" if self.is_share else "differs"
        if rule == "among_first" and texts == Words.texts:
            texts = FURTHEST if signed else AMONG
        places = self._places
        sentence = words.sentence if unit else words.sentence.replace(" {unit}", "")
        many = {"texts": texts, "change": words.change, "cautions": words.cautions}
        many["method"] = words.method or (words.label, words.meaning)
        one = {"label": words.label, "meaning": words.meaning, "sentence": sentence, "part": words.part}
        filled: dict[str, Any] = {name: tuple(each.format_map(places) for each in of) for name, of in many.items()}
        filled |= {name: text.format_map(places) for name, text in one.items()}
        if gone := given_that(self.scores.provenance):
            filled["label"] += f", {gone}"
            for name in ("meaning", "sentence"):
                filled[name] = f"{heading(gone)}, {filled[name][:1].lower()}{filled[name][1:]}"
        group = words.group or GROUPS[kind_of(self._kind).question]
        return replace(words, **filled, rule=rule, signed=signed, unit=unit, group=group)

    @property
    def _kind(self) -> str:
        kind = self.kind or self.scores.kind.partition("+")[0]
        return str(self.of("score", "ships")) if kind == "safety" else kind

    @property
    def _of_kind(self) -> Words:
        """The words of the kind; of a sweep and of a kind of your own, those of their metric and intervention."""
        kind = kind_of(self._kind)
        labels = self._labels
        names = {*labels, *labels.values(), self._role}
        names |= {"noising"} if self._is_noising else set()
        words = next((words for name, words in kind.variants.items() if name in names), kind.words)
        if words is not None:
            return words
        if self.of("intervention"):
            meaning, sentence = "The {effect} if {change}.", "If {change}, {changes}."
        else:
            meaning = "The {effect}." if self.of("metric") else "Scores of the kind {kind}."
            sentence = "Its score is {value} {unit}."
        texts = ("It differs from {null}.", "It is next to {null}.", "These prompts do not settle it.")
        return Words("{name}", meaning, sentence, texts, rule="metric", part="{name}")

    @property
    def _is_noising(self) -> bool:
        return self.of("direction") == "noising" or self.of("base") == "clean"

    @property
    def _role(self) -> str:
        return self.scores.name.partition(",")[0] if self.scores.values is not None else ""

    @property
    def _places(self) -> dict[str, str]:
        """What stands in the places of the words."""
        base, other = ("clean", "corrupted") if self._is_noising else ("corrupted", "clean")
        selected = " and ".join(self._labels.values()) or self.scores.name
        receivers = self.of("receivers")
        receiver = self._labels.get("receiver") or ", ".join(map(str, receivers if isinstance(receivers, list) else []))
        attributed = str(self.of("attributed", _OF_BOTH))
        of_both = f"the logit of {self.answer}, minus that of the wrong one"
        ablation = str(self.of("ablation", "unknown"))
        changes, effect = f"{self.metric} changes by {{value}} {{unit}}", f"change of {self.metric}"
        if self.is_share:
            verb = "changes"
            if self.scores.kind == "activation_patch":
                verb = "is lost" if self._is_noising else "is restored"
            changes, effect = f"{{value}} of {self.metric} {verb}", f"share of {self.metric} that {verb}"
        return {
            "value": "{value}",
            "unit": "{unit}",
            "relation": "{relation}",
            "metric": self.metric,
            "site": _SITES.get(str(self.of("site", "z")), "activation"),
            "base": base,
            "other": other,
            "run": "clean" if self.of("direction") == "denoising" else "corrupted",
            "effect": effect,
            "changes": changes,
            "change": self.change,
            "source": differs_in(self.asked),
            "request": "a harmful request" if _is_of_package(self.asked, "requests") else "a request",
            "goal": _GOALS.get(self.asked.get("task", ""), "the task goes well"),
            "ablation": ablation,
            "attributed": of_both if attributed == _OF_BOTH else shortened(attributed),
            "receiver": shortened((receiver or "final").replace("final", "the logits")),
            "way": str(self.of("way", "")).upper() or "its",
            "selected": selected.replace("_", " "),
            "kind": shortened(self.scores.kind),
            "name": shortened(self.scores.name),
            "first": str(FIRST),
            "null": f"{null_of(self.scores) or 0.0:g}",
        }

    def of(self, name: str, otherwise: Any = None) -> Any:
        """An entry of the provenance."""
        return self.scores.provenance.get(name, otherwise)

    @property
    def _labels(self) -> dict[str, str]:
        """The labels of further dimensions that were selected."""
        chosen = self.of("selected")
        return {dim: str(label) for dim, label in chosen.items()} if isinstance(chosen, dict) else {}

    @property
    def answer(self) -> str:
        return ASKED["pairs"] if _is_of_package(self.asked, "pairs") else "the answer"

    @property
    def metric(self) -> str:
        name = str(self.of("metric", ""))
        known = {
            "logit_diff": f"the logit difference between {self.answer} and the wrong one",
            "log_prob": f"the log-probability of {self.answer}",
            "accuracy": f"the share of prompts whose most likely next token is {self.answer}",
            "kl_divergence": "the distribution of the next token (KL divergence)",
        }
        return known.get(name, f"the metric {shortened(name)}" if name else "the metric")

    @property
    def change(self) -> str:
        """What happens to the head, as the end of a sentence with "if"."""
        if (ablation := str(self.of("ablation", ""))) and not self.of("intervention"):
            return ABLATED.get(ablation, f"it is ablated ({shortened(ablation)})")
        given = str(self.of("intervention", "")).rpartition("<locals>.")[-1]
        known = next((words for start, words in _CHANGES.items() if given.startswith(start)), None)
        return known or (f"{shortened(given)} changes it" if given else "it is changed")

    @property
    def is_share(self) -> bool:
        return bool(self.of("normalize")) or self.scores.unit.startswith("share ")


def differs_in(asked: Mapping[str, str]) -> str:
    """What the two prompts of a pair differ in."""
    return "the country" if _is_of_package(asked, "pairs") else "what the two prompts differ in"


def _is_of_package(asked: Mapping[str, str], what: str) -> bool:
    """Whether the pairs, the requests or the task of an atlas are those of the package."""
    return asked.get(what) == ASKED[what]
