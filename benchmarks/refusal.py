"""What the models taught to refuse do, and which score finds their heads: ``python -m benchmarks.refusal``.

Each model is the default one with a delta on a few heads. The benchmark counts refusals of held-back requests and
look-alikes in two templates, and of public sets if their files are given; measures how much less likely the refusal
becomes when one head's delta is removed; lets random heads of the same layers be ablated; and ranks every head of a
delta by every score.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any, get_args

import numpy as np

import mechheads as mh
from mechheads.generation.generate import generate
from mechheads.generation.sampling import Sampling
from mechheads.heads import HeadId, random_sets
from mechheads.model.deltas import Delta, shipped
from mechheads.safety import load_requests, request_prompts, text_loss
from mechheads.safety.answers.answering import is_verdict
from mechheads.safety.answers.teaching import PLANTED, refusal_loss, taught_model
from mechheads.safety.answers.verdicts import VERDICTS, verdicts
from mechheads.safety.heads.contribution import By
from mechheads.safety.requests.loaders import read_requests

PLACE = Path(__file__).with_name("refusal.json")
TOKENS = 64
OF_PUBLIC = 20
"""How many requests of a public set are drawn."""
DRAWS = 5


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
            raise SystemExit(
                f"the delta {name} is missing: python -m mechheads.safety.answers.teaching {name} makes it"
            )
        delta = Delta.load(path)
        for part in (given.part,) if given.part else PARTS:
            found.setdefault(name, {})[part] = PARTS[part](delta, public)
            print(name, part, json.dumps(found[name][part], indent=1), flush=True)
            given.out.write_text(json.dumps(found, indent=1) + "\n")


def draw(path: Path, unsafe: bool) -> Sequence[str]:
    """Some requests of a file; of a file with both kinds, those of one kind."""
    label = {"label": "unsafe" if unsafe else "safe"}
    texts = read_requests(path, where=label if "label" in path.read_text().partition("\n")[0] else None)
    return Random(0).sample(list(texts), min(OF_PUBLIC, len(texts)))


def answers(delta: Delta, public: dict[str, Sequence[str]]) -> dict[str, Any]:
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
    intact = refusal_loss(model, harmful)
    cost = {
        str(head): float((refusal_loss(taught_model(delta.without([head])), harmful) - intact).mean())
        for head in delta.heads
    }
    losses = [float(text_loss(each).mean()) for each in (before, model)]
    random = random_sets(delta.heads, delta.heads, model.n_layers, model.n_heads, draws=DRAWS, seed=0)
    left = {name: refused_without(model, heads, harmful) for name, heads in random.items()}
    return {
        "rounds": delta.about["rounds"],
        "verdicts": counts,
        "log-probability lost with a head's delta, nats": cost,
        "loss on ordinary text, untaught and taught": losses,
        "refused without random heads, silent": left,
        "refused without the heads, silent": refused_without(model, delta.heads, harmful),
    }


def count(model: mh.Model, texts: Sequence[str], template: Any) -> dict[str, int]:
    """How many answers have each verdict."""
    written = generate(model, request_prompts(model, texts, template), Sampling(TOKENS), progress=False).texts
    found = verdicts(texts, written)
    return {name: sum(each == name for each in found) for name in VERDICTS}


def refused_without(model: mh.Model, heads: Sequence[HeadId], harmful: Sequence[str]) -> int:
    """How many requests are still refused when some heads write nothing."""
    test = mh.safety.refusal_test(
        model, heads, harmful, ["Hello!"], ablation="scaling", draws=0, max_new_tokens=TOKENS, progress=False
    )
    return int(is_verdict(test.answers, "ablated", "harmful", "refused").sum())


def scores(delta: Delta, public: dict[str, Sequence[str]]) -> dict[str, Any]:
    """The rank of every head of the delta by every score, on the held-back requests."""
    model = taught_model(delta)
    harmful, harmless = ([r.text for r in load_requests(name, "test")] for name in ("harmful", "harmless"))
    found = {}
    for kind, ships in mh.safety.compare_ablations(model, harmful, template="chat", progress=False).items():
        found[f"Ships, {kind}"] = ships.dataset["ships"].values
        found[f"Generalized Ships, {kind}"] = ships.dataset["generalized_ships"].values
    for by in get_args(By)[:3]:
        contribution = mh.safety.refusal_contribution(model, harmful, harmless, by=by, progress=False)
        found[f"Refusal Contribution, {by}"] = contribution.scores.values
        found[f"Refusal Contribution, {by}, direct"] = contribution.dataset["direct"].values
    found["refusal direction"] = mh.safety.refusal_direction(model, harmful, harmless, progress=False).scores.values
    ranks = {name: [rank_of(values, head) for head in delta.heads] for name, values in found.items()}
    return {
        "heads": [str(head) for head in delta.heads],
        "ranks": ranks,
        "found": {name: sum(rank <= len(delta.heads) for rank in of) / len(delta.heads) for name, of in ranks.items()},
    }


PARTS = {"answers": answers, "scores": scores}


def rank_of(values: np.ndarray, head: HeadId) -> int:
    """The rank of a head's score; 1 is the largest."""
    return int((values > values[head.layer, head.head]).sum()) + 1


if __name__ == "__main__":
    main()
