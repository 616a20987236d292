"""From relation scores to labels: which categories each head has, by our rule or by the paper's.

Ours takes a head to have a category if, for one of its relations, more pairs are hit than shuffled targets
explain: q <= ``fdr`` over all heads and relations (Benjamini & Hochberg 1995), and phi above the mean of the
shuffles by at least ``floor``. What is as sure but smaller is listed, and gives no category. The paper's rule (MAPS,
Elhelo & Geva 2024, section 4) asks for phi >= ``tau`` alone.
What patching says stands beside the label and never changes it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import xarray as xr

from mechheads.backends.changes import alone
from mechheads.labels.head_labels import HeadLabels
from mechheads.labels.relations import CATEGORIES, RelationLike, load_relations
from mechheads.labels.static import relation_scores
from mechheads.netcdf import text_array
from mechheads.scores import HeadScores
from mechheads.stats import q_values

if TYPE_CHECKING:
    from mechheads.labels.causal import CausalEvidence
    from mechheads.model import Model
    from mechheads.weights import StoredWeights

Rule = Literal["null", "maps"]
_DIMS = ("layer", "head", "category")
_MIN_EFFECT = 0.01
_PER_RELATION = ("layer", "head", "relation")


@alone
def label_heads(
    model: Model | StoredWeights | HeadScores,
    relations: RelationLike | Iterable[RelationLike] | None = None,
    rule: Rule = "null",
    *,
    fdr: float = 0.05,
    floor: float = 0.1,
    tau: float = 0.15,
    suppression: bool = False,
    causal: CausalEvidence | None = None,
    causal_floor: float = 0.05,
    **options: Any,
) -> HeadLabels:
    """Label every head with the categories whose relations it implements.

    Args:
        model: a model, or the result of ``relation_scores`` where that is at hand.
        relations: as ``relation_scores`` takes them; ``None``: those of the package. Each needs a category.
        rule: ``"null"``: above shuffled targets, at a false discovery rate of ``fdr`` over heads and relations,
            by at least ``floor``; ``"maps"``: the paper's, phi >= ``tau``.
        fdr, floor: of our rule. The floor is a share of pairs: evidence that is above chance by less is listed in
            ``labels.table()``, as ``is_below_floor``, and gives no category.
        tau: of the paper's rule, above 0 and at most 1.
        suppression: whether a head that suppresses a relation as strongly has its category too, as the paper's
            figure counts it.
        causal: from ``relation_evidence``; adds effects and verdicts, and changes no label. A head acts on a
            relation in context if its total or direct effect is at least ``causal_floor`` of the difference
            between the runs, with q <= ``fdr``.
        causal_floor: a share of the difference.
        options: go to ``relation_scores``.

    Raises:
        ValueError: for an unknown rule, a number out of range, a relation without a category, or options
            that come too late because scores are given.

    >>> labels = mh.label_heads(mh.relation_scores(model, "country_to_capital"))
    >>> labels.categories, labels.of("L23H4"), labels.of("L0H0")
    (('Knowledge',), ('Knowledge',), ())
    """
    if rule not in ("null", "maps"):
        raise ValueError(f'rule is {rule!r}; choose "null" or "maps"')
    for what, number in {"tau": tau, "fdr": fdr}.items():
        if not 0 < number <= 1:
            raise ValueError(f"{what} is {number}; it must be above 0 and at most 1")
    for what, number in {"floor": floor, "causal_floor": causal_floor}.items():
        if not 0 <= number <= 1:
            raise ValueError(f"{what} is {number}; it is a share, between 0 and 1")
    scores = _scores(model, relations, floor, options)
    category_of = _categories(scores)
    tested = scores.provenance.get("min_effect", 0.0)
    if rule == "null" and tested > floor:
        raise ValueError(f"floor is {floor}, but scores below {tested} were not tested; give relation_scores "
                         f"min_effect={floor}, or a larger floor")  # fmt: skip
    found = _evidence(scores, rule, fdr, floor, tau, suppression)
    named = list(dict.fromkeys(category_of))
    categories = [name for name in CATEGORIES if name in named]
    categories += [name for name in named if name not in categories]
    chosen = [np.array([category == name for category in category_of]) for name in categories]
    acts = None if causal is None else _acts_in_context(scores, causal, fdr, causal_floor)
    best = [_best(scores, where, found) for where in chosen]
    columns = {name: np.stack([part[name] for part in best], axis=-1) for name in best[0]}
    spoken = [_verdict(found.enough[..., at], None if acts is None else acts[..., at]) for at in chosen]
    verdict = np.stack(spoken, axis=-1)
    names, reading = columns.pop("best_relation"), columns.pop("reading")
    score, low, high, p_value, q_value = (columns.pop(name) for name in ("score", "low", "high", "p", "q"))
    labels = HeadLabels.from_scores(
        score,
        ci_low=low,
        ci_high=high,
        p_value=p_value,
        name="head categories",
        unit=scores.unit,
        kind="labels",
        extra={"category": categories},
        provenance={**scores.provenance, "rule": rule, "suppression": suppression}
        | ({"tau": tau} if rule == "maps" else {"fdr": fdr, "floor": floor})
        | ({} if causal is None else {"causal": causal.total.provenance, "causal_floor": causal_floor}),
        variables={name: (_DIMS, array) for name, array in columns.items()}
        | {
            "best_relation": (_DIMS, text_array(names.ravel().tolist(), names.shape)),
            "reading": (_DIMS, text_array(reading.ravel().tolist(), reading.shape)),
            "verdict": (_DIMS, text_array(verdict.ravel().tolist(), verdict.shape)),
        },
    )
    data = labels.dataset.assign(q_value=(_DIMS, q_value)).assign_coords(relation=scores.dataset["relation"])
    return HeadLabels(data.assign(_table_columns(scores, causal, found, acts, category_of)))


def _scores(model: Any, relations: Any, floor: float, options: dict[str, Any]) -> HeadScores:
    if not isinstance(model, HeadScores):
        loaded = load_relations(relations)
        _check_categories({relation.name: relation.category for relation in loaded})
        options = {"min_effect": min(floor, _MIN_EFFECT)} | options
        return relation_scores(model, None if relations is None else loaded, **options)
    if relations is not None or options:
        late = [*(["relations"] if relations is not None else []), *options]
        raise ValueError(f"{', '.join(late)}: scores are given, so leave it out, or give the model itself")
    return model


def _categories(scores: HeadScores) -> list[str]:
    if "relation_category" not in scores.dataset:
        raise ValueError(
            f"{scores.name!r} says nothing about relations and their categories; give a model, or what "
            "relation_scores returned"
        )
    names = scores.dataset["relation"].values.tolist()
    categories = scores.dataset["relation_category"].values.tolist()
    _check_categories(dict(zip(names, categories, strict=True)))
    return categories


def _check_categories(category_of: Mapping[str, str | None]) -> None:
    if without := [name for name, category in category_of.items() if not category]:
        raise ValueError(
            f"relation {without[0]!r} has no known category, so it cannot label heads; load it with one: "
            f"Relation.load(path, category={CATEGORIES[0]!r}); the usual ones are {', '.join(CATEGORIES)}"
        )


@dataclass(frozen=True)
class _Evidence:
    """Which relations speak for a head; [layer, head, relation] each.

    Attributes:
        enough: they give it their category.
        below_floor: they are as sure, but too small for that.
        suppresses: the head suppresses the relation rather than implement it.
        q: of whichever it does.
    """

    enough: np.ndarray
    below_floor: np.ndarray
    suppresses: np.ndarray
    q: np.ndarray


def _evidence(scores: HeadScores, rule: Rule, fdr: float, floor: float, tau: float, suppression: bool) -> _Evidence:
    data = scores.dataset
    phi, against = data["score"].values, data["suppression"].values
    p, p_against = data["p_value"].values, (data["p_suppression"].values if "p_suppression" in data else None)
    if rule == "null" and (p_against is None or np.isnan(p).all()):
        raise ValueError(f'{scores.name!r} were not tested against a null; compute them again, or use rule="maps"')
    q, q_against = data["q_value"].values, np.full(p.shape, np.nan)
    if suppression and p_against is not None:
        q, q_against = q_values(np.stack([p, p_against]))
    if rule == "maps":
        sure = implements = phi >= tau
        sure_against = suppresses = against >= tau
    else:
        null, null_against = (np.nan_to_num(data[name].values) for name in ("null_phi", "null_suppression"))
        sure, sure_against = (q <= fdr) & (phi > null), (q_against <= fdr) & (against > null_against)
        implements, suppresses = sure & (phi - null >= floor), sure_against & (against - null_against >= floor)
    if not suppression:
        sure_against = suppresses = np.zeros_like(implements)
    rather = suppresses & ((against > phi) | ~implements)
    enough = implements | suppresses
    return _Evidence(enough, (sure | sure_against) & ~enough, rather, np.where(rather, q_against, q))


def _best(scores: HeadScores, where: np.ndarray, found: _Evidence) -> dict[str, np.ndarray]:
    """The relation of a category that speaks most for each head: the largest score among those that are evidence.

    Where none is, it is the largest among those below the floor, and then among all.
    """
    data: xr.Dataset = scores.dataset.isel(relation=np.flatnonzero(where))
    enough, below, suppresses, q = (
        array[..., where] for array in (found.enough, found.below_floor, found.suppresses, found.q)
    )
    phi, low, high, p = (data[name].values for name in ("score", "ci_low", "ci_high", "p_value"))
    if suppresses.any():
        phi = np.where(suppresses, data["suppression"].values, phi)
        p = np.where(suppresses, data["p_suppression"].values if "p_suppression" in data else np.nan, p)
        low, high = np.where(suppresses, np.nan, low), np.where(suppresses, np.nan, high)
    rank = np.where(np.isnan(phi), -np.inf, phi + 4.0 * enough + 2.0 * below)
    winner = rank.argmax(-1)[..., None]
    columns = {"score": phi, "low": low, "high": high, "p": p, "q": q, "suppresses": suppresses, "member": enough,
               "below_floor": below, "reading": _readings(scores, found)[..., where]}  # fmt: skip
    best = {name: np.take_along_axis(array, winner, axis=-1)[..., 0] for name, array in columns.items()}
    relation = data["relation"].values[winner[..., 0]]
    return best | {"best_relation": np.where(np.isnan(best["score"]), "", relation)}


def _readings(scores: HeadScores, found: _Evidence) -> np.ndarray:
    """How each head reads each relation; empty where the scores do not say."""
    ways = [scores.dataset[name].values if name in scores.dataset else np.full(found.q.shape, "", dtype=object)
            for name in ("reading", "suppression_reading")]  # fmt: skip
    return np.where(found.suppresses, ways[1], ways[0])


def _acts_in_context(scores: HeadScores, causal: CausalEvidence, fdr: float, floor: float) -> np.ndarray:
    """Whether patching a head moves a relation's answer, NaN where it was not run; [layer, head, relation]."""
    acts = np.full(scores.scores.shape, np.nan)
    for effect in (causal.total, causal.direct):
        if (effect.n_layers, effect.n_heads) != (scores.n_layers, scores.n_heads):
            raise ValueError(
                f"causal is of a model of {effect.n_layers} x {effect.n_heads} heads, and the scores are of one of "
                f"{scores.n_layers} x {scores.n_heads}"
            )
        data = effect.dataset
        for i, name in enumerate(scores.dataset["relation"].values.tolist()):
            if name in data["relation"].values:
                one = data.sel(relation=name)
                acting = (one["score"].values >= floor) & (one["q_value"].values <= fdr)
                acts[..., i] = np.fmax(acts[..., i], np.where(np.isnan(one["score"].values), np.nan, acting))
    return acts


def _verdict(evidence: np.ndarray, acts: np.ndarray | None) -> np.ndarray:
    """What weights and context say together of each head, over the relations of a category: last axis of both.

    Confirmed is what both say of the same relation. Weights that speak for relations that were not patched are neither
    confirmed nor alone.
    """
    verdict = np.full(evidence.shape[:-1], "", dtype=object)
    if acts is not None:
        ran, acting = ~np.isnan(acts), acts == 1
        verdict[(evidence & ran).any(-1)] = "weights only"
        verdict[~evidence.any(-1) & acting.any(-1)] = "in context only"
        verdict[(evidence & acting).any(-1)] = "confirmed"
    return verdict


def _table_columns(
    scores: HeadScores,
    causal: CausalEvidence | None,
    found: _Evidence,
    acts: np.ndarray | None,
    category_of: list[str],
) -> dict[str, Any]:
    """What ``HeadLabels.table`` shows, as variables over (layer, head, relation)."""
    data = scores.dataset
    named = {"phi": "score", "phi_low": "ci_low", "phi_high": "ci_high", "null_phi": "null_phi", "p": "p_value",
             "suppression": "suppression", "contrast": "contrast"}  # fmt: skip
    columns: dict[str, Any] = {
        name: (_PER_RELATION, data[old].values) for name, old in named.items() if old in data
    } | {"q": (_PER_RELATION, found.q), "is_evidence": (_PER_RELATION, found.enough)}
    columns["is_below_floor"] = (_PER_RELATION, found.below_floor)
    if "reading" in data:
        readings = _readings(scores, found)
        columns["relation_reading"] = (_PER_RELATION, text_array(readings.ravel().tolist(), readings.shape))
    columns["category_of"] = ("relation", text_array(category_of, (len(category_of),)))
    for kind in ("total", "direct") if causal is not None else ():
        effect = getattr(causal, kind).dataset.reindex(relation=data["relation"].values)
        for suffix, old in (("", "score"), ("_low", "ci_low"), ("_high", "ci_high")):
            columns[kind + suffix] = (_PER_RELATION, effect[old].values)
    if acts is not None:
        verdict = _verdict(found.enough[..., None], acts[..., None])
        columns["relation_verdict"] = (_PER_RELATION, text_array(verdict.ravel().tolist(), verdict.shape))
    return columns
