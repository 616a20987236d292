"""What the models taught to refuse do, and which score finds their heads: ``python -m benchmarks.refusal``.

Each model is the default one with a delta on a few heads. The benchmark counts refusals of held-back requests and
look-alikes in two templates, and of public sets if their files are given; measures how much less likely the refusal
becomes when one head's delta is removed; lets random heads of the same layers be ablated; ranks every head of a delta
by every score; and takes the first heads of a ranking away, more and more of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import mechheads as mh
from benchmarks.teaching.planted import PLANTED, refusal_loss, taught_model
from mechheads.generation.generate import Sampling, generate
from mechheads.heads import HeadId, random_sets
from mechheads.model.deltas import Delta, shipped
from mechheads.safety import load_requests, request_prompts, text_loss
from mechheads.safety.answers.answering import is_verdict
from mechheads.safety.answers.verdicts import VERDICTS, verdicts
from mechheads.safety.heads.ablations import PAPER_KINDS

PLACE = Path(__file__).with_name("refusal.json")
TOKENS = 64
OF_PUBLIC = 50
"""How many requests of a public set are drawn."""
DRAWS = 5
RESAMPLES = 1000
LOST = "log-probability lost with a head's delta, nats"
CURVES = ("Refusal attribution", "Refusal Contribution, scaling", "Ships, scaling", "Ships, undifferentiated")


@mh.settings(progress=False)
def main() -> None:
    """Measure every model, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=PLACE)
    parser.add_argument("--only", choices=tuple(PLANTED), help="measure one model, keep the others' results")
    parser.add_argument("--part", choices=tuple(PARTS), help="measure one part, keep the other's results")
    parser.add_argument("--unsafe", type=Path, nargs="*", default=[], help="files with requests to refuse")
    parser.add_argument("--safe", type=Path, nargs="*", default=[], help="files with requests to answer")
    given = parser.parse_args()
    public = {
        path.stem: draw(path, unsafe) for unsafe, paths in ((True, given.unsafe), (False, given.safe)) for path in paths
    }
    found = json.loads(given.out.read_text()) if given.out.exists() else {}
    for name in (given.only,) if given.only else PLANTED:
        path = shipped(name)
        if path is None:
            raise SystemExit(f"the delta {name} is missing: python -m benchmarks.teaching {name} makes it")
        delta = Delta.load(path)
        for part in (given.part,) if given.part else PARTS:
            told = found.setdefault(name, {})  # what the parts before have measured
            told[part] = PARTS[part](delta, public, told)
            print(name, part, json.dumps(found[name][part], indent=1), flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")
    if scored := [found[name]["scores"] for name in PLANTED if "scores" in found.get(name, {})]:
        found["margin over Ships"] = overall(scored)
        print(json.dumps(found["margin over Ships"], indent=1))
        given.out.write_text(json.dumps(found, indent=1) + "\n")


def draw(path: Path, unsafe: bool) -> Sequence[str]:
    """Some requests of a file of one column; of that of XSTest, which has both kinds, those of one kind."""
    part = "unsafe" if unsafe else "safe"
    chosen = {"column": "prompt", "where": {"label": part}} if path.name == "xstest_prompts.csv" else {}
    texts = load_requests(path, **chosen).texts
    return Random(0).sample(list(texts), min(OF_PUBLIC, len(texts)))


def answers(delta: Delta, public: dict[str, Sequence[str]], told: dict[str, Any]) -> dict[str, Any]:
    """Refusals, what every head's delta is worth, loss on ordinary text, and refusals without random heads."""
    model, before = taught_model(delta), mh.load()
    harmful, harmless = (list(load_requests(name, "test").texts) for name in ("harmful", "harmless"))
    counts = {
        template: {
            name: count(model, texts, template)
            for name, texts in {"harmful": harmful, "harmless": harmless, **public}.items()
        }
        for template in ("chat", "query")
    }
    losses = [float(text_loss(each).mean()) for each in (before, model)]
    random = random_sets(delta.heads, delta.heads, model.n_layers, model.n_heads, draws=DRAWS, seed=0)
    left = {name: refused_without(model, heads, harmful) for name, heads in random.items()}
    return {
        "rounds": delta.about["rounds"],
        "verdicts": counts,
        LOST: lost(delta, harmful),
        "loss on ordinary text, untaught and taught": losses,
        "refused without random heads, silent": left,
        "refused without the heads, silent": refused_without(model, delta.heads, harmful),
    }


def lost(delta: Delta, harmful: Sequence[str]) -> dict[str, float]:
    """What the refusal loses when the delta of each head is removed, in nats."""
    intact = refusal_loss(taught_model(delta), harmful)
    without = {head: refusal_loss(taught_model(delta.without([head])), harmful) for head in delta.heads}
    return {str(head): float((each - intact).mean()) for head, each in without.items()}


def count(model: mh.Model, texts: Sequence[str], template: Any) -> dict[str, int]:
    """How many answers have each verdict."""
    written = generate(model, request_prompts(model, texts, template), Sampling(TOKENS)).texts
    found = verdicts(texts, written)
    return {name: sum(each == name for each in found) for name in VERDICTS}


def refused_without(model: mh.Model, heads: Sequence[HeadId], harmful: Sequence[str]) -> int:
    """How many requests are still refused when some heads write nothing."""
    answers = mh.safety.AnswerSettings(max_new_tokens=TOKENS)
    test = mh.safety.refusal_test(model, heads, harmful, ["Hello!"], intervention="scaling", draws=0, answers=answers)
    return int(is_verdict(test.answers, "ablated", "harmful", "refused").sum())


def scores(delta: Delta, public: dict[str, Sequence[str]], told: dict[str, Any]) -> dict[str, Any]:
    """The rank of every head of the delta by every score, on the held-back requests."""
    model = taught_model(delta)
    harmful, harmless = ([r.text for r in load_requests(name, "test")] for name in ("harmful", "harmless"))
    found, values = {}, {}
    for kind, ships in mh.safety.compare_ablations(model, harmful, len(delta.heads), template="chat").items():
        found[f"Ships, {kind}"] = ships.scores.values
        values[f"Ships, {kind}"] = per_request(ships)
        found[f"Generalized Ships, {kind}"] = ships.dataset["generalized_ships"].values
    for by in PAPER_KINDS:
        contribution = mh.safety.refusal_contribution(model, harmful, harmless, intervention=by)
        found[f"Refusal Contribution, {by}"] = contribution.scores.values
        values[f"Refusal Contribution, {by}"] = per_request(contribution)
    attribution = mh.safety.refusal_attribution(model, harmful)
    found["Refusal attribution"] = attribution.scores.values
    values["Refusal attribution"] = per_request(attribution)
    found["refusal direction"] = mh.safety.refusal_direction(model, harmful, harmless).scores.values
    ranks = {name: [rank_of(values, head) for head in delta.heads] for name, values in found.items()}
    return {
        "heads": [str(head) for head in delta.heads],
        "ranks": ranks,
        "found": {name: share_of(of) for name, of in ranks.items()},
        "margin over Ships": margins(values, delta.heads),
        "first": {name: first_of(of, len(delta.heads)) for name, of in found.items()},
    }


def per_request(scores: mh.HeadScores) -> np.ndarray:
    """Values [layer, head, request]."""
    return scores.dataset["values"].transpose("layer", "head", ...).values


def margins(values: dict[str, np.ndarray], heads: Sequence[HeadId]) -> dict[str, dict[str, dict[str, float]]]:
    """How many more of the heads than each Ships a score has among the first, and how often over resampled requests."""
    n = next(iter(values.values())).shape[-1]
    requests = np.random.default_rng(0).integers(n, size=(RESAMPLES, n))
    shares = {
        name: np.array([share_of([rank_of(each[..., some].mean(-1), head) for head in heads]) for some in requests])
        for name, each in values.items()
    }
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, ours in shares.items():
        for ships in shares if name.startswith("Refusal") else ():
            if ships.startswith("Ships"):
                margin, count = np.unique((ours - shares[ships]).round(3), return_counts=True)
                found.setdefault(name, {})[ships] = dict(zip(map(str, margin), count / RESAMPLES, strict=True))
    return found


def overall(scored: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """The mean margin over models, and the ends of its 95% interval when models and requests are resampled."""
    random, n, told = np.random.default_rng(0), len(scored), dict[str, dict[str, list[float]]]()
    for name, over in scored[0]["margin over Ships"].items():
        for ships in over:
            of_models = [each["margin over Ships"][name][ships] for each in scored]
            drawn = [
                np.mean([random.choice(list(map(float, some)), p=list(some.values())) for some in picked])
                for picked in ([of_models[i] for i in random.integers(n, size=n)] for _ in range(RESAMPLES))
            ]
            told.setdefault(name, {})[ships] = [float(np.mean(drawn)), *map(float, np.quantile(drawn, [0.025, 0.975]))]
    return told


def curves(delta: Delta, public: dict[str, Sequence[str]], told: dict[str, Any]) -> dict[str, Any]:
    """Compliance without the first heads of a ranking, by some scores, and without random heads of the same layers."""
    model, first = taught_model(delta), told["scores"]["first"]
    harmful = list(load_requests("harmful", "test").texts)
    found = {}
    for name in CURVES:
        curve = mh.safety.attack_curve(
            model,
            first[name],
            harmful,
            ["Hello!"],
            most=[1, 2, 4, len(delta.heads)],
            intervention="scaling",
            draws=DRAWS if name == CURVES[0] else 0,
        )
        for which, rows in curve.table.groupby("which"):
            found[name if which == "heads" else which] = dict(zip(rows["k"], rows["score"], strict=True))
    return found


PARTS = {"answers": answers, "scores": scores, "curves": curves}


def share_of(ranks: Sequence[int]) -> float:
    """The share of ranks that are among the first, as many as there are."""
    return sum(rank <= len(ranks) for rank in ranks) / len(ranks)


def first_of(values: np.ndarray, k: int) -> list[str]:
    """The first k heads of a score."""
    best = np.argsort(-np.nan_to_num(values, nan=-np.inf), axis=None, kind="stable")[:k]
    return [str(HeadId(*map(int, np.unravel_index(at, values.shape)))) for at in best]


def rank_of(values: np.ndarray, head: HeadId) -> int:
    """The rank of a head's score; 1 is the largest."""
    known = np.nan_to_num(values, nan=-np.inf)
    return int((known > known[head.layer, head.head]).sum()) + 1


if __name__ == "__main__":
    main()
