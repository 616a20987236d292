"""A model's safety heads by every score, and a test of whether its refusals depend on them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from mechheads.engine.sweep import plan
from mechheads.heads import HeadId
from mechheads.interventions.basic import UniformAttention
from mechheads.model.backends.temporary_changes import alone
from mechheads.results.agreement import overlap
from mechheads.results.dataset import RANGE, shown_ends
from mechheads.results.html import head_names
from mechheads.results.scores import HeadScores
from mechheads.safety.answers.attack_curve import RefusalCurve, attack_curve
from mechheads.safety.answers.refusal import RefusalTest, refusal_test
from mechheads.safety.heads.ablations import PAPER_KINDS, Kind
from mechheads.safety.heads.contribution import LEAST_REFUSAL, refusal_contribution
from mechheads.safety.heads.direction import refusal_direction
from mechheads.safety.heads.ships import SafetyHeads, compare_ablations
from mechheads.safety.requests.requests import Split, load_requests, request_prompts
from mechheads.studies.study import Stages, save_parts, stop_if_partial, teller
from mechheads.units import show_seconds

if TYPE_CHECKING:
    from mechheads.model.model import Model

CONTRIBUTION = "refusal contribution"


@dataclass
class SafetyStudy(Stages):
    """The safety heads of one model by every score, and tests of them, from ``mh.studies.safety_study``.

    Attributes:
        model: name of the model.
        k: number of heads at the top of each ranking.
        ships: Ships, Generalized Ships and the stability of the first k heads, for each ablation.
        contribution: Refusal Contribution, total and direct.
        direction: what each head writes along the refusal direction.
        tests: for each ranking, whether refusals depend on its first heads together.
        curve: attack success with more and more heads ablated, in the order of Refusal Contribution.
        has_refusal: whether the model refuses enough harmful requests for a test; None if no test was run.
        seconds: time that each stage took.
        notes: what was left out, and why.
        interrupted: whether Ctrl-C ended the work.
    """

    model: str
    k: int = 10
    ships: dict[str, SafetyHeads] = field(default_factory=dict)
    contribution: HeadScores | None = None
    direction: HeadScores | None = None
    tests: dict[str, RefusalTest] = field(default_factory=dict)
    curve: RefusalCurve | None = None
    has_refusal: bool | None = None

    @property
    def results(self) -> dict[str, HeadScores]:
        """Every result, by the name of its file without ``.nc``."""
        parts: dict[str, HeadScores | None] = {f"ships_{kind}": scores for kind, scores in self.ships.items()}
        parts |= {"refusal_contribution": self.contribution, "refusal_direction": self.direction}
        return {name: part for name, part in parts.items() if part is not None}

    @property
    def rankings(self) -> dict[str, HeadScores]:
        """The scores that rank heads, by name."""
        ranked: dict[str, HeadScores] = {f"Ships, {kind}": scores for kind, scores in self.ships.items()}
        if self.contribution is not None:
            ranked[CONTRIBUTION] = self.contribution
        if self.direction is not None:
            ranked["refusal direction"] = self.direction
        return ranked

    def overlap(self) -> pd.DataFrame:
        """The heads that every two rankings share among their first ``k``; see ``mh.safety.overlap``."""
        return overlap(self.rankings, self.k) if len(self.rankings) > 1 else pd.DataFrame()

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head: each score with its interval and its rank; rank 1 is the largest score."""
        sizes = next(iter(self.results.values()))
        layer, head = np.divmod(np.arange(sizes.n_layers * sizes.n_heads), sizes.n_heads)
        table = pd.DataFrame({"layer": layer, "head": head})
        for name, scores in self.results.items():
            columns = ["score", "ci_low", "ci_high"]
            columns += [c for c in (*RANGE, "generalized_ships", "in_top", "direct") if c in scores.dataset]
            for column in columns:
                suffix = "" if column == "score" else f"_{column.removeprefix('ci_')}"
                table[name + suffix] = scores.dataset[column].values.ravel()
            table[f"{name}_rank"] = table[name].rank(ascending=False, method="min")
        return table.set_index(pd.Index(head_names(table)))

    def save(self, folder: str | Path) -> list[Path]:
        """Write every result (.nc) and the tables (heads.csv, tests.csv, curve.csv, overlap.csv) to a folder.

        Returns:
            The paths of the files.
        """
        tables = {"heads": self.to_dataframe(), "overlap": self.overlap()}
        if self.tests:
            tables["tests"] = pd.concat([test.table.assign(heads=name) for name, test in self.tests.items()])
        if self.curve is not None:
            tables["curve"] = self.curve.table
        return save_parts(folder, self.results, tables)

    def summary(self, top: int = 5) -> str:
        """The result in a few lines of text."""
        lines = [f"Model      {self.model}"]
        for name, scores in self.rankings.items():
            lines.append(f"{name}, {scores.unit}")
            for row in scores.top(top).to_dict("records"):
                head = HeadId(row["layer"], row["head"])
                text = f"  {head!s:>7}  {row['score']:8.3f}{shown_ends(row)}"
                if "in_top" in row:
                    text += f"  {row['generalized_ships']:.2g} degrees, in {row['in_top']:.0%} of resamples"
                lines.append(text)
        lines += [
            f"Refusing without the first {len(test.heads)} by {name}: {test.verdict}"
            for name, test in self.tests.items()
        ]
        return "\n".join([*lines, *self.closing_lines])


@alone
def safety_study(
    model: Model, k: int = 10, *, quick: bool = False, critical: int = 6, seed: int = 0, progress: bool = True
) -> SafetyStudy:
    """A model's safety heads by every score, and a test of whether its refusals depend on them.

    Ctrl-C ends the work early and returns what is done. ``mechheads safety`` does the same from a shell.

    Args:
        k: number of heads at the top of each ranking.
        quick: a few requests and short answers: a first look.
        critical: how many of each ranking's first heads are ablated together in the tests.
        seed: for resampling, random heads and sampling.
        progress: print the stages and an estimate of the time, and show progress bars, on stderr.

    Heads are ranked on the train part of the package's requests and tested on the test part. Ships uses the paper's
    template. Everything about refusals uses the model's own chat template, if it has one. If the model refuses hardly
    any request, the scores of refusals are left out, and ``notes`` says so.
    """
    say = teller(progress)
    study = SafetyStudy(model.name, k)
    ranked_on, tested_on = _requests("train", 6 if quick else 1), _requests("test", 3 if quick else 1)
    tokens, draws = (12, 1) if quick else (32, 3)
    options: dict[str, Any] = {"draws": draws, "max_new_tokens": tokens, "seed": seed, "progress": progress}

    def way(scores: HeadScores) -> Kind:
        return scores.provenance.get("ablation") or PAPER_KINDS[0]

    def test(rankings: Mapping[str, HeadScores]) -> None:
        for name, scores in rankings.items():
            with study.stage(f"test of {name}", progress):
                found = refusal_test(model, scores.heads(critical), *tested_on, ablation=way(scores), **options)
            study.tests[name], study.has_refusal = found, found.refuses
            stop_if_partial(found)
            if not found.refuses:
                return

    say(f"{model!r}")
    with study.interruptible():
        cost = plan(model, request_prompts(model, ranked_on[0]), intervention=UniformAttention())
        say(f"Ships first, about {show_seconds(len(PAPER_KINDS) * (cost.seconds or 0.0))}; Ctrl-C keeps what is done")
        with study.stage("Ships", progress):
            study.ships = compare_ablations(model, ranked_on[0], k, ablations=PAPER_KINDS, seed=seed, progress=progress)
        for scores in study.ships.values():
            stop_if_partial(scores)
        test(study.rankings)
        if not study.has_refusal:
            study.notes.append(
                f"{model.name} refuses less than {LEAST_REFUSAL:.0%} of the harmful requests: there is no refusal to "
                "ablate, and the heads above are not safety heads"
            )
            return study
        with study.stage("refusal contribution", progress):
            study.contribution = refusal_contribution(model, *ranked_on, seed=seed, progress=progress)
        stop_if_partial(study.contribution)
        with study.stage("refusal direction", progress):
            study.direction = refusal_direction(model, *ranked_on, seed=seed, progress=progress)
        test({name: scores for name, scores in study.rankings.items() if name not in study.tests})
        with study.stage("attack curve", progress):
            first = study.contribution.heads(critical)
            study.curve = attack_curve(
                model, first, *tested_on, most=critical, ablation=way(study.contribution), **options
            )
        stop_if_partial(study.curve)
    return study


def _requests(split: Split, every: int) -> tuple[list[str], list[str]]:
    """Every n-th harmful and every n-th harmless request of the package."""
    harmful, harmless = (
        [request.text for request in load_requests(name, split)][::every] for name in ("harmful", "harmless")
    )
    return harmful, harmless
