"""``describe``: what a head does in words, by any language model, tested on text that the writer has not seen."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import rankdata

from mechheads.behaviour import HeadExamples
from mechheads.heads import HeadId, HeadLike, check_head, check_heads
from mechheads.limits import current
from mechheads.messages.arguments import Positive, Within, checked
from mechheads.results.correlation import pearson
from mechheads.results.kinds import KINDS
from mechheads.results.provenance import make_provenance
from mechheads.results.stats import correlation_interval
from mechheads.results.tables import TableResult
from mechheads.results.words import METRICS
from mechheads.studies.atlas import Atlas
from mechheads.studies.head_space import HeadSpace

EXAMPLES = 12
"""Texts that a writer is given."""
BEFORE = 32
"""Tokens of text before the one whose activity is predicted."""
_PIECE, _STEP = 40, 20
"""Characters in a row, at every so many, by which two windows are found to be of one passage."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, eq=False, repr=False)
class Description(TableResult):
    """What a head does in words, and how well the words predict its activity, from ``mh.studies.describe``.

    Attributes:
        table: a row for each token of the test: its ``window`` and ``position``, the ``token``, the head's ``activity``
            there, and what was ``predicted`` from the description, 0 to 10; NaN if the answer had no number.
        head: the head.
        text: the description.
        score: Spearman's rank correlation of predicted and real activity; 0 if all predictions are the same.
        ci_low: with ``ci_high``, its interval over windows; NaN if there is none.
        ci_high: the other end.
        null: the scores of descriptions of other heads, on the same tokens of this head.
        others: these heads.
        prompt: what the writer was given.
        provenance: what is needed to repeat it.
    """

    KIND = "description"
    name, unit = "description of a head", KINDS[KIND].unit

    table: pd.DataFrame
    head: HeadId
    text: str
    score: float
    ci_low: float
    ci_high: float
    null: tuple[float, ...]
    others: tuple[HeadId, ...]
    prompt: str
    provenance: dict[str, Any]

    @property
    def stands(self) -> bool:
        """Whether the test bears it out: the interval lies above 0, and no description of another head does as well."""
        return self.ci_low > 0 and self.score > max(self.null)

    def __repr__(self) -> str:
        interval = f", {self.ci_low:.2f} to {self.ci_high:.2f}" if np.isfinite(self.ci_low) else ""
        test = f"score {self.score:.2f}{interval}; descriptions of other heads at most {max(self.null):.2f}"
        said = repr(self.text) if self.stands else "no description that the test bears out"
        return f"<Description of {self.head}: {said} ({test})>"

    def _shown(self) -> tuple[pd.DataFrame, Sequence[str]]:
        return self.table, [repr(self)]


@checked
def describe(
    atlas: Atlas,
    head: HeadLike,
    llm: Callable[[str], str],
    *,
    tested: Annotated[int, Within(least=8)] = 48,
    others: Positive = 3,
) -> Description:
    """Have a language model describe a head in words, and test the description.

    The writer gets texts from each tenth of the head's activity, its names on text, the tokens that it maps by its
    weights and its patching effect, as far as the atlas has them. Then, for tokens in other passages, it is given the
    description and the text up to the token, and has to say how active the head is there, from 0 to 10. The score is
    the rank correlation with the real activity (``atlas.space``). Descriptions of other heads, made in the same way,
    are scored on the same tokens: a description that says what is true of any head scores no higher than they do.

    Args:
        atlas: with ``examples`` and ``space``, from ``mh.build_atlas``.
        head: the head.
        llm: gets a prompt and gives an answer, such as a call of an API. It is called once for each description and
            once for each description and token: 1 + others + (1 + others) * tested times. The prompts contain text of
            the corpus.
        tested: for how many tokens activity is predicted.
        others: how many other heads, drawn at random, are described.

    Returns:
        The description with its score; it is shown only if it ``stands``.

    Raises:
        ValueError: if the atlas lacks examples or the space, the head does not exist, an argument is not valid, or
            every example is from a passage of the test.

    Bills et al. 2023, "Language models can explain neurons in language models", for the score.

    >>> def silent(prompt: str) -> str:
    ...     return "5"
    >>> examples = mh.behaviour.head_examples(model, n_tokens=6000)
    >>> atlas = mh.studies.Atlas("made", examples=examples, space=mh.studies.head_space(model))
    >>> mh.studies.describe(atlas, "L0H0", silent)
    <Description of L0H0: no description that the test bears out (score 0.00; descriptions of other heads at most 0.00)>
    """
    examples, space = atlas.examples, atlas.space
    if examples is None or space is None:
        raise ValueError("the atlas has no examples or no space; build_atlas makes both")
    sizes = space.activity.shape[:2]
    found = check_head(head, *sizes)
    seed = current().seed
    rng = np.random.default_rng([seed, found.layer, found.head])
    rest = [each for each in check_heads(None, *sizes) if each != found]
    drawn = tuple(rest[i] for i in np.sort(rng.choice(len(rest), min(others, len(rest)), replace=False)))
    rows = np.sort(rng.choice(len(space.table), min(tested, len(space.table)), replace=False))
    table = space.of(found).loc[rows, ["window", "position", "token", "activity"]].reset_index(drop=True)
    contexts = [_context(space, row["window"], row["position"]) for row in table.to_dict("records")]
    tests = ["".join(space.words[i] for i in space.tokens[at]) for at in table["window"].unique()]
    prompts = [_prompt(atlas, _examples(examples, each, tests), each) for each in (found, *drawn)]
    texts = [llm(prompt).strip() for prompt in prompts]
    predicted = np.array([[_number(llm(_question(text, context))) for context in contexts] for text in texts])
    activity, window = table["activity"].to_numpy(float), table["window"].to_numpy()
    score, *null = (_score(each, activity) for each in predicted)
    without = np.array([_score(predicted[0][window != one], activity[window != one]) for one in np.unique(window)])
    varies = np.nanmax(predicted[0], initial=0) > np.nanmin(predicted[0], initial=10)
    low, high = correlation_interval(score, without) if varies else (float("nan"), float("nan"))
    provenance = make_provenance(space.provenance, tested=len(table), others=list(drawn), seed=seed)
    return Description(
        table.assign(predicted=predicted[0]),
        found,
        texts[0],
        score,
        low,
        high,
        tuple(null),
        drawn,
        prompts[0],
        provenance,
    )


def _score(predicted: Float[np.ndarray, " token"], activity: Float[np.ndarray, " token"]) -> float:
    """The rank correlation; an answer without a number counts as the mean of the others, so that it says nothing."""
    known = np.isfinite(predicted)
    if not known.any():
        return 0.0
    filled = np.where(known, predicted, predicted[known].mean())
    return float(np.nan_to_num(pearson(rankdata(filled), rankdata(activity))))


def _number(answer: str) -> float:
    """The first number of an answer, at most 10; NaN if there is none."""
    match = _NUMBER.search(answer)
    return min(float(match.group()), 10.0) if match else float("nan")


def _context(space: HeadSpace, window: int, position: int) -> str:
    """The text up to a token, which is in double square brackets."""
    words = [space.words[i] for i in space.tokens[window, max(0, position - BEFORE) : position + 1]]
    return f"{''.join(words[:-1])}[[{words[-1]}]]"


def _question(description: str, context: str) -> str:
    return (
        f"A part of a language model is described like this:\n{description}\n\n"
        f"The text so far, with the last token in double square brackets:\n{context}\n\n"
        "How active is the part at the last token? Answer with one number from 0 (not at all) to 10 (most)."
    )


def _prompt(atlas: Atlas, examples: list[str], head: HeadId) -> str:
    """What a writer is given of a head."""
    lines = [
        "In these texts, a part of a language model (an attention head) looks back from the token in double square "
        "brackets to the token in double angle brackets. The number says how active it is, from 0 to 10.",
        "",
        *examples,
        "",
    ]
    if atlas.profile is not None and (names := atlas.profile.names(head)):
        lines.append(f"Researchers call it: {', '.join(names)}.")
    if (weights := atlas.weights) is not None:
        words = [[weights.words[i] for i in row[:2]] for row in weights.operations[head.layer, head.head]]
        lines.append(f"By its weights it maps {', '.join(f'{source!r} to {target!r}' for source, target in words)}.")
    if atlas.patching is not None and atlas.patching.unit.startswith("share"):
        share = float(atlas.patching.scores.values[head.layer, head.head])
        metric = METRICS.get(str(atlas.patching.provenance.get("metric")), "metric")
        about = atlas.asked.get("pairs", "the answer")
        lines.append(f"Its output alone restores {share:.0%} of the {metric} in prompts about {about}.")
    return "\n".join([*lines, "Say in one sentence at which tokens it is active, and at which it is not."])


def _examples(examples: HeadExamples, head: HeadId, tests: list[str]) -> list[str]:
    """Texts from all parts of a head's activity, the highest first, from other passages than those of the test."""
    pieces = [text[at : at + _PIECE] for text in tests for at in range(0, max(len(text) - _PIECE, 1), _STEP)]
    rows = examples.of(head, around=BEFORE // 2).drop_duplicates("window").sort_values("activity", ascending=False)
    own = {at: "".join(examples.words[i] for i in examples.tokens[at] if i >= 0) for at in rows["window"]}
    rows = rows[[not any(piece in own[at] for piece in pieces) for at in rows["window"]]]
    if rows.empty:
        raise ValueError(f"every example of {head} is from a passage of the test; build the atlas from more text")
    rows = rows.iloc[np.unique(np.linspace(0, len(rows) - 1, min(EXAMPLES, len(rows))).round().astype(int))]
    most = float(rows["activity"].max()) or 1.0
    return [f"{10 * row['activity'] / most:.1f}: {row['shown']}" for row in rows.to_dict("records")]
