"""What an atlas found about refusals, in sentences: whether there are any, which heads carry them, what else breaks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from mechheads.results.agreement import overlap
from mechheads.results.dataset import shown_ends
from mechheads.results.refused import LEAST_REFUSAL, refuses
from mechheads.results.scores import HeadScores
from mechheads.results.words import listed
from mechheads.safety.answers.answering import is_verdict, same_told
from mechheads.safety.answers.refusal import RefusalTest
from mechheads.safety.answers.refusing import openings_told, refusing
from mechheads.safety.answers.verdicts import VERDICTS, judged_by
from mechheads.studies.findings import Finding
from mechheads.studies.refusals import RANKINGS, Refusals, first_heads

_TABLES = {"section": "tables"}


def of_refusals(found: Refusals, rankings: Mapping[str, HeadScores]) -> list[Finding]:
    """What the tests of refusals show, the conclusion first; nothing before the tests.

    Args:
        rankings: the scores that rank heads, by the names of ``RANKINGS``.
    """
    if refuses(found.provenance["refused"]) is False:
        none = (
            f"There is no refusal to ablate: the model {refusing(found.provenance['refused'])} harmful requests, so no "
            f"{found.ablated} was ranked."
        )
        return [Finding(none, _TABLES)]
    if not found.tests:
        return []
    first, *last = [*_which(found, rankings), *_else(found), _limits(found)]
    return [first, Finding(_refuses(next(iter(found.tests.values()))), _TABLES), *last]


def _refuses(test: RefusalTest) -> str:
    """How many requests of each kind the intact model refuses, and who says so."""
    harmful, harmless = (
        {verdict: int(is_verdict(test.answers, "intact", kind, verdict).sum()) for verdict in VERDICTS}
        for kind in ("harmful", "harmless")
    )
    same = [told for kind in ("harmful", "harmless") if (told := same_told(test.answers, "intact", kind))]
    return " ".join(
        [
            f"Of {sum(harmful.values())} harmful requests the model refuses {harmful['refused']}, complies with "
            f"{harmful['complied']}, and deflects {harmful['deflected']}; {harmful['degenerate']} answers are "
            "degenerate.",
            f"Of {sum(harmless.values())} harmless look-alikes it refuses {harmless['refused']} (over-refusal) and "
            f"deflects {harmless['deflected']}.",
            *(f"It gives {told}, which is not counted as an answer." for told in same),
            f"All answers are {judged_by(test.provenance['judge'])} (precision and recall; see the documentation).",
        ]
    )


def _which(found: Refusals, rankings: Mapping[str, HeadScores]) -> Iterator[Finding]:
    """Which heads the refusals depend on, how sure that is, and how far the rankings agree."""
    several = f"{found.ablated}s"
    if found.spread:
        yield from (Finding(text, _TABLES) for text in _none_carry(found))
    elif not found.carriers:
        yield Finding("Which heads carry refusals is open: the tests had too few requests, or did not end.", _TABLES)
    else:
        best = max((name for name in rankings if name in found.carriers), key=_lost(found), default=None)
        column = next((column for column, name in RANKINGS.items() if name == best), None)
        link = _TABLES if column is None else {"colour": column, "by": column, "top": str(found.critical)}
        by = listed([name for name in found.tests if name in found.carriers])
        yield Finding(f"Refusals depend on the first {found.critical} {several} by {by}.", link)
        if best is None:
            yield Finding(f"No ranking alone has them all, so no {found.ablated} is named.", link)
        else:
            yield Finding(_named(found, rankings, best), link)
    if "refusal attribution" in rankings:
        refusal = rankings["refusal attribution"].dataset["refusal"].values
        rare = np.exp(refusal).mean() < LEAST_REFUSAL
        rarely = "; refusals in other words may depend on other heads" if rare else ""
        told = openings_told(found.openings, refusal)
        link = {"colour": "refusal_attribution", "by": "refusal_attribution"}
        yield Finding(f"Refusal attribution is of certain openings: the model {told}{rarely}.", link)
    if len(rankings) > 1:
        table = overlap(rankings, found.k)
        pairs = "; ".join(f"{row['a']} and {row['b']} {row['shared']}" for row in table.to_dict("records"))
        chance = table["by_chance"].max()
        yield Finding(f"Shared among the first {found.k} (by chance {chance:.1f}): {pairs}.", _TABLES)


def _none_carry(found: Refusals) -> Iterator[str]:
    """That no few heads carry the refusals, and what the tests show instead."""
    most = max(found.tests, key=_lost(found))
    rows = found.tests[most].table.set_index("condition")["attack_success"]
    random = rows[[name for name in rows.index if str(name).startswith("random")]]
    beside = f", and by {random.mean() - rows['intact']:+.0%} without random ones" if len(random) else ""
    rise = rows["ablated"] - rows["intact"]
    several = f"{found.ablated}s"
    yield (
        f"No few {several} carry the refusals: taking away the first {found.critical} of a ranking, or those of all "
        f"rankings together, changes attack success by {rise:+.0%} at most{beside}; too little, or no more than "
        f"random {several} do. So none is named for it; heads.csv has the rankings."
    )
    for name, test in found.tests.items():
        if test.critical:
            yield (
                f"Without the first {found.critical} {several} by {name}, {test.lost:.0%} of the refused requests "
                "are answered: more than without random ones, and less than half."
            )
    if broken := [name for name, test in found.tests.items() if not test.works]:
        yield f"Without the first {several} by {listed(broken)}, the model no longer works."


def _lost(found: Refusals) -> Callable[[str], float]:
    return lambda name: found.tests[name].lost


def _named(found: Refusals, rankings: Mapping[str, HeadScores], best: str) -> str:
    """The heads that carry the refusals, with how sure each is."""
    scores, table = rankings[best], first_heads(rankings, found.k).set_index("head")
    heads = []
    rows = scores.top(found.critical).to_dict("records")
    for head, row in zip(scores.heads(found.critical), rows, strict=True):
        of = table.loc[str(head)]
        heads.append(
            f"{head} {row['score']:.3f} {shown_ends(row).strip()}, in {of[f'in_top by {best}']:.0%}, among the first "
            f"by {of['rankings']} of {len(rankings)} rankings"
        )
    return (
        f"By {best}, in {scores.unit}, with the share of resampled requests that put it in the first {found.k}: "
        f"{'; '.join(heads)}."
    )


def _else(found: Refusals) -> Iterator[Finding]:
    """What the test of each ranking shows."""
    for name, test in found.tests.items():
        judged = f"; {judged_by(test.provenance['judge'])}"  # said with the first answers
        yield Finding(f"Without the first by {name}: {test.verdict.removesuffix(judged)}.", _TABLES)


def _limits(found: Refusals) -> Finding:
    """What may not be concluded."""
    several = f"{found.ablated}s"
    lines = [
        "anything about other requests: these are one-line requests in English, in one template",
        "that answers which are called complied do harm: rules judge how an answer begins, and call too many complied",
        f"that no other {several} matter: those that others can replace show no effect alone",
        f"that {several} with a high Ships carry refusals: Ships counts any change of the answer",
    ]
    if found.carriers:
        lines.append(f"that the model is safe as long as these {several} work: refusing is not safety")
    return Finding(f"What may not be concluded: {'; '.join(lines)}.", {})
