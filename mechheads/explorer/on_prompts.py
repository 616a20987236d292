"""What the page says of scores that a metric gives on prompts: patching, ablations, paths and parts of logits."""

from __future__ import annotations

from dataclasses import replace

from mechheads.explorer.about import About, differs_in, of_package
from mechheads.explorer.column import IN_TASKS, Column, Rule, added, among_first, differs, is_tested, restored
from mechheads.studies.findings import FIRST, shortened

UNSETTLED = "These prompts do not settle it."
AMONG, FURTHEST = (
    (
        f"It is among the {FIRST} {heads}.",
        f"At least {FIRST} other heads come before it.",
        f"It may be among the {FIRST} {heads}.",
    )
    for heads in ("heads with the largest values", "heads furthest from 0")
)
OTHER = ("Other prompts.", "Other prompts.", "More prompts: they narrow the interval and lower q.")


def rule_for(about: About) -> Rule:
    """How verdicts follow from what a metric gives: a divergence is never 0, so only its size says something."""
    if not is_tested(about.scores):
        return among_first
    return restored if about.is_share else differs


def measured(about: About, column: Column) -> Column:
    """The column of scores that a metric gives, with the rule that its null, interval and q allow."""
    rule = rule_for(about)
    texts = AMONG if rule is among_first else column.texts
    return replace(column, group=IN_TASKS, signed=True, rule=rule, texts=texts)


def meaning_of(about: About, how: str) -> str:
    """What a score is: a share of the metric, or its change."""
    return f"The {'share' if about.is_share else 'change'} of {about.metric}{' that changes' * about.is_share}{how}."


def what_changes(about: About) -> str:
    """The end of a sentence about a value."""
    return (
        f"{{value}} of {about.metric} changes." if about.is_share else f"{about.metric} changes by {{value}} {{unit}}."
    )


def patching(about: About) -> Column:
    denoising = about.of("base", "corrupted") != "clean"
    source, base = ("clean", "corrupted") if denoising else ("corrupted", "clean")
    site, share = about.site, about.is_share
    if denoising and share:
        meaning = f"The share of {about.metric} that the head's {site} from the clean run restores."
        sentence = f"Its {site} from the clean run restores {{value}} of {about.metric}."
    elif share:
        meaning = f"The share of {about.metric} that the head's {site} from the corrupted run takes away."
        sentence = f"Its {site} from the corrupted run takes away {{value}} of {about.metric}."
    else:
        meaning = f"The change of {about.metric} if the head's {site} in the {base} run comes from the {source} one."
        sentence = f"With its {site} from the {source} run, {about.metric} changes by {{value}} {{unit}}."
    if denoising:
        texts = (
            f"Its {site} carries something of {differs_in(about.asked)} to the answer.",
            f"Its {site} carries next to nothing of {differs_in(about.asked)} to the answer.",
            UNSETTLED,
        )
        change = (
            "Other prompts, or noising instead of denoising: a head can be enough without being needed.",
            "Noising, in which backup heads do not hide it; other prompts.",
            "More pairs of prompts: they narrow the interval and lower q.",
        )
        caution = (
            "A head whose output restores an answer is enough for it, not needed: other heads may do the same, and "
            "later layers may undo an ablation."
        )
    else:
        texts = (
            f"The answer needs its {site} in these prompts.",
            f"The answer hardly needs its {site} in these prompts.",
            UNSETTLED,
        )
        change = (
            "Other prompts, or denoising instead of noising: a head can be needed without being enough.",
            "Denoising; several heads at once, since others can stand in for one.",
            "More pairs of prompts: they narrow the interval and lower q.",
        )
        caution = "Other heads may stand in for one that is noised: little change does not say that it does nothing."
    capitals = of_package(about.asked, "pairs")
    what = "another country" if capitals else "something else"
    whole = "the whole logit difference between the two capitals" if capitals else "the whole difference"
    scale = f"0 means no change, 1 means that {whole} is {'restored' if denoising else 'gone'}"
    method = (
        f"The corrupted prompt names {what}. One head's {site} in the {base} run is replaced with its value in the "
        f"{source} run: {scale if share else f'the score is the change of {about.metric}'}."
    )
    return measured(
        about,
        Column(
            "Patching",
            "",
            meaning,
            IN_TASKS,
            sentence=sentence,
            texts=texts,
            change=change,
            method=("Patching" if denoising else "Patching, noising", method),
            cautions=(
                "Patching speaks of the prompts that were patched. A head with no effect in them may matter in others.",
                caution,
            ),
            part="patching" if denoising else "noising",
        ),
    )


def attribution(about: About) -> Column:
    run = "corrupted" if about.of("base") == "corrupted" else "clean"
    how = f"if its {about.site} in the {run} run came from the other one"
    return measured(
        about,
        Column(
            "Attribution patching",
            "",
            f"An estimate, from gradients, of the change of {about.metric} {how}.",
            IN_TASKS,
            sentence=f"By its gradient, {about.metric} would change by {{value}} {{unit}} {how}.",
            texts=("Its estimated effect differs from 0.", "Its estimated effect is next to nothing.", UNSETTLED),
            change=("Patching the head itself.", "Patching the head itself.", "More pairs of prompts."),
            method=(
                "Attribution patching",
                f"The effect of patching every head at once, as a straight line from gradients of {about.metric}.",
            ),
            cautions=("Attribution patching is an estimate: where a head saturates, its effect can be far from it.",),
            part="attribution",
        ),
    )


def ablation(about: About) -> Column:
    return measured(
        about,
        Column(
            "Ablation",
            "",
            meaning_of(about, f" if {about.change}"),
            IN_TASKS,
            sentence=f"If {about.change}, {what_changes(about)}",
            texts=("What the model says depends on it.", "What the model says hardly depends on it.", UNSETTLED),
            change=(
                "Another ablation, or other prompts.",
                "Ablating several heads at once, since others can stand in for one; other prompts.",
                "More prompts: they narrow the interval and lower q.",
            ),
            method=("Ablation", f"One head at a time: {about.change}. The score is the change of {about.metric}."),
            cautions=(
                "Other heads can stand in for one that is ablated: little change does not say that it does nothing.",
            ),
            part="ablation",
        ),
    )


def path(about: About) -> Column:
    given = about.selected("receiver") or ", ".join(about.all_of("receivers")) or "final"
    to = shortened(given.replace("final", "the logits"))
    run = "clean" if about.of("direction") == "denoising" else "corrupted"
    how = f" if only the path from the head to {to} comes from the {run} run"
    return measured(
        about,
        Column(
            f"Path to {to}",
            "",
            meaning_of(about, how),
            IN_TASKS,
            sentence=f"If only its path to {to} comes from the {run} run, {what_changes(about)}",
            texts=(f"It works through {to}.", f"It hardly works through {to}.", UNSETTLED),
            change=("Other prompts.", "Other prompts; other paths.", "More pairs of prompts."),
            method=(
                "Path patching",
                f"Only what a head sends to one receiver comes from the other run; the score is the change of "
                f"{about.metric}. All other heads keep their values.",
            ),
            part="path",
        ),
    )


_REPAIR = {
    "total": ("Total effect", "with everything after it reacting"),
    "direct": ("Direct effect", "with all other heads and MLPs frozen"),
    "repair": ("Reaction of later layers", "as total minus direct effect"),
}


def repair(about: About) -> Column:
    label, how = _REPAIR.get(about.selected("effect") or "", ("Self-repair", "total, direct and the difference"))
    return measured(
        about,
        Column(
            label,
            "",
            f"The change of {about.metric} if {about.change}, {how}.",
            IN_TASKS,
            sentence=f"{label}: {about.metric} changes by {{value}} {{unit}}.",
            change=OTHER,
            method=(
                "Self-repair",
                f"A head is ablated twice: once everything after it reacts, once all is frozen. The score is the "
                f"change of {about.metric}; the difference is what later layers do about it.",
            ),
        ),
    )


def direct(about: About) -> Column:
    attributed = str(about.of("attributed", "logit(answer) - logit(wrong)"))
    of_both = f"the logit of {about.answer}, minus that of the wrong one"
    to = of_both if attributed == "logit(answer) - logit(wrong)" else shortened(attributed)
    return Column(
        "Direct part",
        "logits",
        f"What the head itself adds to {to}.",
        IN_TASKS,
        signed=True,
        sentence=f"The head itself adds {{value}} logits to {to}.",
        rule=added if is_tested(about.scores) else among_first,
        texts=("It writes to the answer directly.", "It hardly writes to the answer directly.", UNSETTLED)
        if is_tested(about.scores)
        else AMONG,
        change=("Other prompts.", "Other prompts; patching shows what it does through later heads.", "More prompts."),
        method=(
            "Direct part",
            "The residual stream at the last token is a sum, to which every head has added something. With the final "
            "norm frozen, each summand has its own part in the logits.",
        ),
        part="direct",
    )
