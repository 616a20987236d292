"""Labels where the truth is known: planted heads are found, and where nothing is there nothing is found."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import mechheads as mh
from mechheads.labels import WordList
from support.planted_models import PlantedModel, planted_model

SEEDS = range(3)
CATEGORIES = ("Knowledge", "Linguistic", "Algorithmic", "Translation")


@pytest.fixture(scope="module")
def planted() -> list[PlantedModel]:
    return [planted_model(seed=seed, noise=0.5) for seed in SEEDS]


def labels(planted: PlantedModel, relations: list[mh.Relation] | None = None) -> set[tuple[mh.HeadId, str]]:
    found = mh.label_heads(planted.model, relations or planted.relations)
    return {(head, category) for head in planted.looks_at for category in found.of(head)}


def shuffled(planted: PlantedModel) -> list[mh.Relation]:
    rng, dealt = np.random.default_rng(planted.seed), []
    for relation in planted.relations:
        sources, targets = zip(*relation.pairs, strict=True)
        pairs = list(zip(sources, rng.permutation(targets).tolist(), strict=True))
        dealt.append(mh.Relation(relation.name, relation.category, pairs))
    return dealt


def test_precision_and_recall_on_planted_models(planted: list[PlantedModel]) -> None:
    right = said = true = 0
    for one in planted:
        found = labels(one)
        wanted = {(head, category) for head, categories in one.categories.items() for category in categories}
        right, said, true = right + len(found & wanted), said + len(found), true + len(wanted)
        assert {category for _, category in wanted} == set(CATEGORIES)
    assert true >= 12 * len(planted)
    assert right / said >= 0.95
    assert right / true >= 0.95


def test_nothing_is_found_where_nothing_is_there(planted: list[PlantedModel]) -> None:
    falsely = {"nothing planted": 0, "pairs shuffled": 0}
    for one in planted:
        falsely["pairs shuffled"] += len({category for _, category in labels(one, shuffled(one))})
        empty = planted_model(seed=one.seed, plant={})
        falsely["nothing planted"] += len({category for _, category in labels(empty)})
    assert all(n / len(CATEGORIES) <= 0.05 * len(planted) for n in falsely.values()), falsely


def test_what_a_rival_explains_is_no_evidence() -> None:
    one = planted_model(plant={"L2H3": ["plurals"]})
    held = {relation.name: relation for relation in one.relations}
    pairs = [*held["plurals"].pairs, *held["to_north"].pairs]
    foreign = mh.Relation("foreign", "Translation", pairs)
    assert labels(one, [foreign]) == {(mh.HeadId(2, 3), "Translation")}
    assert labels(one, [dataclasses.replace(foreign, rivals=[held["plurals"]])]) == set()
    assert labels(one, [dataclasses.replace(foreign, rivals=[held["to_south"]])]) == labels(one, [foreign])
    targets = WordList("targets of to_north", [target for _, target in held["to_north"].pairs])
    assert labels(one, [dataclasses.replace(foreign, rivals=[targets])]) == labels(one, [foreign])


def test_causal_evidence_tells_heads_that_act_from_heads_that_only_could(planted: list[PlantedModel]) -> None:
    one = planted[0]
    names = sorted({name for held in one.heads.values() if held.kind == "unattended" for name in held.relations})
    relations = [relation for relation in one.relations if relation.name in names]
    causal = mh.labels.relation_evidence(one.model, relations, n=12, shots=1)
    found = mh.label_heads(one.model, relations, causal=causal)
    verdicts = {(str(row.head), row.relation): row.verdict for row in found.table().itertuples()}
    for head, held in one.heads.items():
        for name in set(held.relations) & set(names):
            wanted = {"implements": "confirmed", "unattended": "weights only", "in context": "in context only"}
            if held.kind in wanted:
                assert verdicts[str(head), name] == wanted[held.kind], (head, held)
