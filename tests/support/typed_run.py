"""Run the main paths with every annotation and array shape checked; ``test_types.py`` starts it on its own."""

import sys
from dataclasses import dataclass
from pathlib import Path

import torch
from beartype import BeartypeConf, beartype
from jaxtyping import install_import_hook

checker = beartype(conf=BeartypeConf(is_pep484_tower=True))


@dataclass(frozen=True)
class Halve:
    site = "pattern"

    def __call__(self, value, context):
        return value / 2


def run(folder: Path) -> None:
    import mechheads as mh

    model = mh.load(folder)
    clean, corrupted = [" The capital of France is", " yes"], [" The capital of Italy is", " no"]
    pairs = mh.PromptPairs(clean, corrupted, [" Paris", " dog"], [" Rome", " cat"], cluster=["a", "b"])
    for site in ("z", "q", "k", "v", "pattern"):
        mh.activation_patch(model, pairs, site=site, positions="each", normalize=True)
    mh.activation_patch(model, pairs, direction="noising", metric=mh.log_prob)
    for rule in ("zero", "mean", "resample", "scaling", "uniform"):
        mh.ablate(model, clean, intervention=rule, budget="100 KB")
    mh.patching.attribution_patch(model, pairs, site="k", positions="each")
    mh.activation_patch(model, pairs, normalize=True)
    mh.path_patch(model, pairs, receivers=["L1H2.q", "L2H1.k", "L2.mlp"])
    mh.path_matrix(model, pairs, receivers=["final", "L2H1.v"], mlps="frozen").plot()
    faithful = mh.patching.faithfulness(model, pairs, ["L0H1", "L2H1"])
    mh.patching.Faithfulness.load(faithful.save(folder.parent / "typed_table.nc")).citation()
    for by in ("head", "source"):
        mh.behaviour.logit_attribution(model, pairs, by=by).plot()
    scores = mh.sweep(model, clean, intervention=Halve(), heads=["L0H1", (1, 2)])
    assert str(mh.plan(model, pairs, intervention=mh.Patch(), metric=mh.patching.accuracy))
    saved = folder.parent / "typed.nc"
    back = mh.HeadScores.load(scores.save(saved))
    back.plot(), back.top(2), back.compare(scores), back.citation(), back - scores

    cache = model.cache(clean, sites=("z", "pattern", "q", "k", "v"))
    torch.testing.assert_close(cache.result["L1H2"], cache.result[1, 2])
    cache.attention.plot("L1H2"), cache.logits

    words = [("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Germany", "Berlin")]
    relation = mh.Relation("capitals", "Knowledge", words)
    labels = mh.label_heads(mh.relation_scores(model, [relation], k=60, min_pairs=2))
    labels.plot(), labels.counts()
    safety = mh.safety_heads(model, ["cat", "dog and store", "no"], k=3)
    safety.plot(), safety.top()
    mh.safety.generalized_ships(model, ["cat", "dog and store", "no"], intervention="scaling", r=2)
    ships = mh.ships(model, ["cat", "dog"], template="chat")
    mh.safety.overlap({"ships": ships, "safety": safety})


if __name__ == "__main__":
    with install_import_hook("mechheads", "typed_run.checker"):
        sys.modules["typed_run"] = sys.modules["__main__"]
        run(Path(sys.argv[1]))
    print("typed")
