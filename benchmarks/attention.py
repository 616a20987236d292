"""Does what a score consists of say what changes it? ``python -m benchmarks.attention --gemma FILE``, half an hour.

``mh.behaviour.attention_attribution`` splits a head's score for a key over earlier heads, on the side of the query and
of the key. ``mh.patching.attention_to`` measures where the head looks while an earlier head is ablated or patched. Both
rank the earlier heads; this holds one against the other, on models whose heads are known and on two real ones:

- **mean ablation** of each head, against the parts of the score compared with the other keys. A part that is large
  should be missed, so the loss of log attention is compared;
- **patching** of each head from the corrupted prompt, against the parts minus those of the corrupted prompt;
- **paths** from each head to q, or to k, of the head alone, with all MLPs frozen, against the same parts of one side.

Spearman's rank correlation is over all earlier heads; intervals come from resampling the prompts. Models with few heads
only have the rank of the head that is known to matter.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import mechheads as mh
from mechheads.prompts.prompts import Side
from mechheads.testing import KnownModel, compiled_model, trained_model

PLACE = Path(__file__).with_name("attention.json")
N, DRAWS, SHOWN, TOP, FEW = 16, 2000, 3, 10, 20
COUNTRIES = (
    *("France", "Italy", "Spain", "Germany", "Poland", "Japan", "Egypt", "Peru", "Greece", "Norway", "Sweden", "Cuba"),
    *(
        "Turkey",
        "Ireland",
        "Portugal",
        "Austria",
        "Hungary",
        "Kenya",
        "Chile",
        "Iran",
        "Iraq",
        "Russia",
        "China",
        "India",
    ),
)
BLOCK, AGAIN = 12, 6
"""How many random tokens there are, and how many of them come again."""
SIDES = ("query", "key", "both")
COMPARED = {
    "mean ablation": SIDES,
    "patching": SIDES,
    "paths to q": ("query",),
    "paths to k": ("key",),
}


@dataclass(frozen=True)
class Case:
    """A head that looks at a key from the last token, in prompts whose position ``key`` is named.

    Attributes:
        known: the head that is known to make it look there, with its side; None in real models.
        against: what the score is compared with. A head that gives the key all of its attention leaves no weights for
            the other keys, so it is compared with the first token, and attention is not taken the log of, as it may
            become 0.
    """

    name: str
    model: mh.Model
    head: str
    pairs: mh.PromptPairs
    known: tuple[str, str] | None = None
    against: str | int = "others"


def after_the_copy(words: Sequence[str]) -> int:
    """The word after the first copy of the last one, which a comparison asks for too."""
    return words.index(words[-1]) + 1


def other_name(words: Sequence[str]) -> int:
    """The one of the first two names that does not come again."""
    return 2 if words[0] == words[5] else 0


def known_case(
    name: str,
    made: KnownModel,
    head: str,
    key: Callable[[Sequence[str]], int],
    known: tuple[str, str],
    against: str | int = "others",
) -> Case:
    """A case of a model whose heads are known; a word is a token."""
    pairs, places = made.pairs(N), []
    for text in map(str, pairs.clean):
        words = text.split()
        places.append(key(words) - len(words))
    lengths = [len(ids) for ids in mh.Prompts(pairs.clean).tokens(made.model).unpadded]
    at = [length + place for length, place in zip(lengths, places, strict=True)]
    named = mh.PromptPairs(pairs.clean, pairs.corrupted, positions={"key": at})
    return Case(name, made.model, head, named, known, against)


def induction(model: mh.Model, n: int = N) -> mh.PromptPairs:
    """Random tokens of which the first come again, and the same ends after other tokens, without an earlier copy."""
    clean, corrupted = (mh.behaviour.repeated_tokens(model, n=n, length=BLOCK, seed=seed) for seed in (0, 1))
    begin = len(clean[0]) - 2 * BLOCK
    end = begin + BLOCK + AGAIN
    other = [there[: begin + BLOCK] + row[begin + BLOCK : end] for row, there in zip(clean, corrupted, strict=True)]
    return mh.PromptPairs([row[:end] for row in clean], other, positions={"key": [begin + AGAIN] * n})


def capitals() -> mh.PromptPairs:
    """Questions for capitals, and for something else of the same country."""
    clean, corrupted = ([f"The {what} of {country} is" for country in COUNTRIES] for what in ("capital", "history"))
    return mh.PromptPairs(clean, corrupted, positions={"key": [f" {country}" for country in COUNTRIES]})


def cases(gemma: Path | None) -> Iterator[Case]:
    compiled, phi3, trained = (
        compiled_model("induction"),
        compiled_model("phi3_induction"),
        trained_model("induction"),
    )
    yield known_case("compiled induction", compiled, "L1H3", after_the_copy, ("L0H2", "key"))
    yield known_case("compiled induction, Phi-3", phi3, "L2H1", after_the_copy, ("L1H3", "key"), against=0)
    yield known_case("trained induction", trained, "L1H2", after_the_copy, ("L0H3", "key"))
    yield known_case("trained comparison", trained_model("comparison"), "L1H2", after_the_copy, ("L0H3", "key"))
    yield known_case("trained indirect object", trained_model("indirect_object"), "L2H2", other_name, ("L1H2", "query"))
    models: dict[str, tuple[mh.Model, tuple[str, ...], tuple[str, ...]]] = {}
    models |= {"SmolLM2-135M": (mh.load(), ("L17H5", "L18H6"), ("L23H4", "L29H1"))}
    if gemma is not None:
        found = mh.load(str(gemma))
        rows = mh.behaviour.repeated_tokens(found, n=16, length=24)
        inductive = mh.profile_heads(found, rows, window=len(rows[0])).select(behaviour="induction").heads(2)
        models["Gemma-3-270m"] = found, tuple(map(str, inductive)), ("L11H1", "L12H2")
    for name, (model, inductive, of_capitals) in models.items():
        for head in inductive:
            yield Case(f"{name}, induction", model, head, induction(model))
        for head in of_capitals:
            yield Case(f"{name}, capitals", model, head, capitals())


def parts_of(case: Case, minus_corrupted: bool) -> dict[str, np.ndarray]:
    """The parts of earlier heads on each side, and on both together [layer, head, prompt]."""

    def of(which: Side) -> np.ndarray:
        prompts = case.pairs.side(which)
        found = mh.behaviour.attention_attribution(case.model, prompts, case.head, key="key", against=case.against)
        return np.stack([np.asarray(side.values) for side in (found.query, found.key)])

    query, key = of("clean") - (of("corrupted") if minus_corrupted else 0)
    return {"query": query, "key": key, "both": query + key}


def measured(case: Case) -> dict[str, np.ndarray]:
    """How much log attention is lost without each earlier head, or with that of the corrupted prompt."""
    looks = mh.patching.attention_to(case.head, "key", log=case.against == "others")
    layer = mh.HeadId.parse(case.head).layer
    earlier = [(each, head) for each in range(layer) for head in range(case.model.n_heads)]
    job = mh.prepare(case.model, case.pairs)
    path = partial(mh.path_patch, job, senders=earlier, metric=looks, mlps="frozen")
    found = {
        "mean ablation": mh.ablate(job, kind="mean", heads=earlier, metric=looks),
        "patching": mh.activation_patch(job, heads=earlier, metric=looks, direction="noising"),
        "paths to q": path(receivers=f"{case.head}.q"),
        "paths to k": path(receivers=f"{case.head}.k"),
    }
    return {name: -np.asarray(scores.values) for name, scores in found.items()}


def spearman(parts: np.ndarray, losses: np.ndarray) -> tuple[float, float, float]:
    """The rank correlation over heads of the means over prompts [head, prompt], with its interval over prompts."""
    rng, n = np.random.default_rng(0), parts.shape[1]
    draws = rng.multinomial(n, np.full(n, 1 / n), DRAWS).T / n
    draws = np.concatenate([np.full((n, 1), 1 / n), draws], axis=1)
    ranks = [rankdata(each @ draws, axis=0) for each in (parts, losses)]
    one, other = (each - each.mean(0) for each in ranks)
    found = (one * other).sum(0) / np.sqrt((one**2).sum(0) * (other**2).sum(0))
    low, high = np.nanquantile(found[1:], [0.025, 0.975])
    return float(found[0]), float(low), float(high)


def compare(case: Case) -> dict[str, Any]:
    """How attribution and each measurement rank the earlier heads of a case."""
    layer, n_heads = mh.HeadId.parse(case.head).layer, case.model.n_heads
    names = [f"L{each}H{head}" for each in range(layer) for head in range(n_heads)]
    parts = {minus_corrupted: parts_of(case, minus_corrupted) for minus_corrupted in (False, True)}
    looks = mh.patching.attention_to(case.head, "key")
    attention = mh.ablate(case.model, case.pairs, heads="L0H0", metric=looks).dataset["base_metric"]
    losses = {name: _flat(each, layer) for name, each in measured(case).items()}
    rows = []
    for name, sides in COMPARED.items():
        for side in sides:
            part = _flat(parts[name != "mean ablation"][side], layer)
            of_part, of_loss = (list(np.argsort(-np.abs(each.mean(1)))) for each in (part, losses[name]))
            row: dict[str, Any] = {"measured": name, "side": side}
            if len(names) >= FEW:
                row |= dict(zip(("rho", "low", "high"), spearman(part, losses[name]), strict=True))
                row["of the first ten"] = len(set(of_part[:TOP]) & set(of_loss[:TOP]))
            row["by parts"] = [_named(names, part, i) for i in of_part[:SHOWN]]
            row["by loss"] = [_named(names, losses[name], i) for i in of_loss[:SHOWN]]
            if case.known is not None:
                at = names.index(case.known[0])
                row["rank of the known head"] = [of_part.index(at) + 1, of_loss.index(at) + 1]
            rows.append(row)
    return {
        "name": case.name,
        "head": case.head,
        "prompts": len(case.pairs),
        "earlier heads": len(names),
        "attention": float(attention.mean()),
        "known": case.known,
        "rows": rows,
    }


def _flat(values: np.ndarray, layer: int) -> np.ndarray:
    return values[:layer].reshape(-1, values.shape[-1])


def _named(names: Sequence[str], values: np.ndarray, at: int) -> list[Any]:
    return [names[at], round(float(values[at].mean()), 4)]


def markdown(results: Sequence[dict[str, Any]]) -> str:
    """Two tables: rank correlations in real models, and the rank of the known head in the others."""
    lines = [
        "| head, and what it does | attention | mean ablation | patching | paths to q | paths to k | first by parts "
        "| first by ablation |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in (case for case in results if case["known"] is None):
        rows = {row["measured"]: row for row in case["rows"] if row["side"] != "key" or row["measured"] == "paths to k"}
        rho = [f"{row['rho']:.2f} ({row['low']:.2f} to {row['high']:.2f})" for row in map(rows.get, COMPARED) if row]
        ablated = rows["mean ablation"]
        first = [", ".join(f"{head} {value:+.2f}" for head, value in ablated[by]) for by in ("by parts", "by loss")]
        cells = [f"{case['name']}, {case['head']}", f"{case['attention']:.2f}", *rho, *first]
        lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| model and head | known head, and its side | of | by parts | mean ablation | patching | paths to that side |",
        "|---|---|---|---|---|---|---|",
    ]
    for case in (case for case in results if case["known"] is not None):
        head, side = case["known"]
        ranks = {row["measured"]: row["rank of the known head"] for row in case["rows"] if row["side"] == side}
        measures = ("mean ablation", "patching", f"paths to {side[0]}")
        cells = [f"{case['name']}, {case['head']}", f"{head}, {side}", str(case["earlier heads"])]
        cells += [str(ranks["mean ablation"][0]), *(str(ranks[name][1]) for name in measures)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gemma", type=Path, help="a file of Gemma-3-270m in the GGUF format")
    parser.add_argument("--out", type=Path, default=PLACE)
    options = parser.parse_args()
    results = []
    with mh.settings(progress=False):
        for case in cases(options.gemma):
            results.append(compare(case))
            print(json.dumps(results[-1]), flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")
    print(markdown(results))


if __name__ == "__main__":
    main()
