"""The stages in which an atlas measures refusals: their number, rankings of heads, tests, and the attack curve."""

from __future__ import annotations

from dataclasses import replace

from mechheads.interventions.basic import InterventionLike, InterventionName
from mechheads.model.model import Model
from mechheads.results.naming import refuses
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.safety.answers.answering import AnswerSettings
from mechheads.safety.answers.attack_curve import attack_curve
from mechheads.safety.answers.refusal import refusal_tests
from mechheads.safety.answers.refusing import count_refusals
from mechheads.safety.heads.refusal_attribution import refusal_attribution
from mechheads.safety.heads.safety_heads import compare_ablations
from mechheads.safety.requests.prompts import Side
from mechheads.studies.atlas import Atlas
from mechheads.studies.refusals import (
    TOGETHER,
    Refusals,
    RefusalSettings,
    RequestsByUse,
    Sizes,
)
from mechheads.studies.study import stop_if_partial

_ALONE: InterventionName = "scaling"
"""The ablation of heads that no ablation has ranked: the first heads of all rankings."""


class RefusalStages:
    """The stages, which fill in an atlas one after the other.

    Ships uses the paper's template; everything about refusals uses the model's own chat template, if it has one.
    """

    def __init__(
        self, model: Model, atlas: Atlas, asked: RefusalSettings, requests: RequestsByUse, sizes: Sizes
    ) -> None:
        self.model, self.atlas, self.asked, self.requests, self.sizes = model, atlas, asked, requests, sizes
        self.answers = AnswerSettings(max_new_tokens=sizes.tokens)

    def run(self) -> None:
        """All of them; without a refusal, only the first."""
        found = self.count()
        if refuses(found.provenance["refused"]) is not False:
            self.rank()
            self.test(found)

    def count(self) -> Refusals:
        """Whether the model refuses."""
        asked, unit = self.asked, self.asked.groups(self.model).unit
        with self.atlas.stage("refusals counted"):
            refused = count_refusals(self.model, Side.of(self.model, self.requests.answered[0], self.answers.template))
        about = make_provenance(
            self.model, k=asked.k, critical=asked.critical, group=asked.group, unit=unit, refused=refused
        )
        found = Refusals(asked.k, asked.critical, (), {}, None, about)
        self.atlas.refusals = found
        return found

    def rank(self) -> None:
        """Every ranking of the heads."""
        model, atlas, asked, (harmful, _) = self.model, self.atlas, self.asked, self.requests.ranked
        with atlas.stage("refusal attribution"):
            atlas.refusal_attribution = refusal_attribution(model, harmful, group=asked.group)
        with atlas.stage("Ships"):
            atlas.safety = compare_ablations(model, harmful, asked.k, group=asked.group)
        for scores in atlas.safety.values():
            stop_if_partial(scores)

    def test(self, found: Refusals) -> None:
        """Answers without the first heads of each ranking, and with more and more heads ablated."""
        model, atlas, asked, sizes, rankings = self.model, self.atlas, self.asked, self.sizes, self.atlas.rankings
        sets = {name: scores.heads(asked.critical) for name, scores in rankings.items()}
        ablations: dict[str, InterventionLike] = {name: _kind(scores) for name, scores in rankings.items()}
        everything = tuple(dict.fromkeys(head for heads in sets.values() for head in heads))
        if 2 * len(everything) <= len(asked.groups(model).units(None)):
            sets[TOGETHER], ablations[TOGETHER] = everything, _ALONE
        else:
            atlas.note(
                f"too few other {found.provenance['unit']}s to compare the first of all rankings with: not tested"
            )
        harmful, harmless = self.requests.answered
        with atlas.stage("tests"):
            tests = refusal_tests(
                model,
                sets,
                harmful,
                harmless,
                intervention=ablations,
                group=asked.group,
                draws=sizes.draws,
                answers=self.answers,
            )
        openings = rankings["refusal attribution"].provenance["openings"]
        shown = tuple(model.tokenizer.decode(opening).strip() for opening in openings)
        atlas.refusals = found = replace(found, openings=shown, tests=tests)
        for test in tests.values():
            stop_if_partial(test)
        with atlas.stage("attack curve"):
            curve = attack_curve(
                model,
                rankings["refusal attribution"].heads(asked.critical),
                harmful,
                harmless[::4],
                most=[*(k for k in sizes.curve if k < asked.critical), asked.critical],
                intervention=_ALONE,
                group=asked.group,
                draws=sizes.draws_of_curve,
                answers=self.answers,
            )
        atlas.refusals = replace(found, curve=curve)
        stop_if_partial(curve)
        atlas.note(
            f"answers have up to {sizes.tokens} tokens; over-refusal along the curve is on {len(harmless[::4])} "
            "look-alikes"
        )


def _kind(scores: HeadScores) -> InterventionName:
    """The ablation that a ranking comes from; ``_ALONE`` for one that comes from several, or from none."""
    by = scores.provenance.get("ablation")
    return _ALONE if by is None or isinstance(by, list) else by
