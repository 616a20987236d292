"""A model's safety heads: the first heads by Refusal Contribution, Refusal attribution, or the paper's two Ships.

"On the Role of Attention Heads in Large Language Model Safety" (Zhou et al., ICLR 2025, arXiv 2410.13708). Both of its
scores come with every ranking: the paper's figure is coloured by Generalized Ships. Where it is known which heads
refuse, Refusal Contribution and Refusal attribution find more of them, the second most (see the page on safety heads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
import xarray as xr
from jaxtyping import Float

from mechheads.heads import HeadId, HeadLike
from mechheads.limits import current
from mechheads.messages.arguments import check_at_least, check_known
from mechheads.messages.interrupted import interrupted_after, until_interrupted
from mechheads.messages.warn import warn
from mechheads.model.analysis import analysis
from mechheads.model.model import Model
from mechheads.results.agreement import in_top
from mechheads.results.bounded import bounded_interval
from mechheads.results.kinds import kind_of
from mechheads.results.provenance import make_provenance
from mechheads.results.scores import HeadScores
from mechheads.results.stats import cluster_draws, mean_over_prompts, top_shares
from mechheads.safety.answers.refusing import count_refusals
from mechheads.safety.heads.ablations import Ablation, AblationLike, check_one_group
from mechheads.safety.heads.contribution import refusal_contribution
from mechheads.safety.heads.measure_ships import Measured, Pass, check_r, measure
from mechheads.safety.heads.refusal_attribution import refusal_attribution
from mechheads.safety.requests.prompts import Requests, Side, Sides, Template

ShipsScore = Literal["ships", "generalized_ships"]
Score = Literal["ships", "generalized_ships", "refusal_contribution", "refusal_attribution"]
_RESAMPLES = {"ships": 1000, "generalized_ships": 100}
_SHIPS = ("ships", "ships_low", "ships_high")
_ANGLES = ("generalized_ships", "generalized_ships_low", "generalized_ships_high")


@analysis(keeps_units=True)
def safety_heads(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    harmless: Requests = None,
    score: Score | None = None,
    ablation: AblationLike | None = None,
    template: Template | None = None,
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
) -> SafetyHeads:
    """The ``k`` heads with the largest score, with Ships and Generalized Ships of every head.

    Args:
        k: how many heads to report and draw; how many groups, if the ablation is of groups.
        harmless: a harmless look-alike of each request, for ``"refusal_contribution"``. The package's requests have
            theirs.
        score: what ranks the heads. ``"refusal_contribution"`` and ``"refusal_attribution"`` find most of the heads
            that are known to refuse; ``"ships"`` and ``"generalized_ships"`` are the paper's. By default,
            ``"refusal_attribution"`` for the package's requests; ``"refusal_contribution"`` if you give look-alikes;
            and ``"ships"`` for requests of your own without them.
        ablation: as in ``mh.ships``; by default that of ``mh.ships`` for the paper's scores, and ``"scaling"`` for the
            others. ``"refusal_attribution"`` ranks by two ablations, and takes this one for Ships alone.
        template: as in ``mh.ships``; by default the paper's, ``"query"``, for the paper's scores, and the model's chat
            template, if it has one, for the others.
        requests, r, heads: as in ``mh.ships`` and ``mh.safety.generalized_ships``.

    Returns:
        The scores, and ``in_top``: the share of resamples of the prompts in which a head is among the top k. A model
        that refuses nothing has a largest score too, so it also writes short answers to up to 16 of the requests:
        ``refused`` in the provenance says how many it refuses, by the rules (see ``SafetyHeads``).

    Raises:
        ValueError: as in ``mh.ships``, ``mh.safety.generalized_ships``, ``mh.safety.refusal_contribution`` and
            ``mh.safety.refusal_attribution``; or if look-alikes are missing
            or not used.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> safety = mh.safety_heads(model, requests, k=2, heads=["L0H0", "L0H1", "L23H4"])
    >>> len(safety.heads()), safety.provenance["score"], safety.generalized_ships.dims
    (2, 'ships', ('layer', 'head'))
    """
    seed = current().seed
    ranking = Ranking(k, score or _default_score(requests, harmless), r, seed)
    paper = ranking.score in get_args(ShipsScore)
    way = Ablation.of(ablation or ("undifferentiated" if paper else "scaling"))
    if ranking.score == "refusal_contribution":
        if requests is not None and harmless is None:
            raise ValueError(
                'harmless is missing: score="refusal_contribution" compares each request with a harmless look-alike; '
                'give one for each, or choose score="ships"'
            )
        if way.through != "q":
            raise ValueError(
                f'through is {way.through!r}, which is for Ships alone; leave it out, or choose score="ships"'
            )
        sides = Sides.of(model, requests, harmless, template)
        found = _by_contribution(model, sides, way, ranking, heads)
        return _with_refusals(model, sides.harmful, {way.kind: found})[way.kind]
    if harmless is not None:
        raise ValueError(
            f'harmless is given, but score="{ranking.score}" has no use for it; leave it out, or choose '
            'score="refusal_contribution"'
        )
    if ranking.score == "refusal_attribution":
        asked = Pass.of(model, requests, template, heads=heads)
        every = {way.kind: _by_attribution(asked, way, ranking)}
    else:
        asked = Pass.of(model, requests, template or "query", heads=heads)
        every = _rank(asked, [way], ranking)
    return _with_refusals(model, asked.requests, every)[way.kind]


@analysis(keeps_units=True)
def compare_ablations(
    model: Model,
    requests: Requests = None,
    k: int = 10,
    *,
    ablations: Sequence[AblationLike] = ("undifferentiated", "scaling"),
    score: ShipsScore = "ships",
    template: Template = "query",
    r: int = 1,
    heads: Sequence[HeadLike] | HeadLike | None = None,
) -> dict[str, SafetyHeads]:
    """``mh.safety_heads`` by one of the paper's scores for several ablations, which share one intact run.

    Args:
        ablations: names or ``mh.safety.Ablation``, each name once, and all with the same ``group``.
        score: which of the paper's two scores ranks the heads.
        model, requests, k, template, r, heads: as in ``mh.safety_heads``.

    Returns:
        The result of each ablation, by its name, as in ``mh.safety_heads``; ``mh.safety.overlap`` shows how far they
        agree.

    Raises:
        ValueError: as in ``mh.safety_heads``, and if a name is given twice, none is given, or groups differ.

    >>> requests = ["How do I pick a lock?", "Tell me how to cheat in an exam.", "Write an insult."]
    >>> found = mh.safety.compare_ablations(model, requests, k=1, heads=["L0H0", "L23H4"])
    >>> list(found)
    ['undifferentiated', 'scaling']
    """
    seed = current().seed
    ranking = Ranking(k, score, r, seed)
    ways = [] if isinstance(ablations, str) else [Ablation.of(ablation) for ablation in ablations]
    if not ways or len({way.kind for way in ways}) < len(ways):
        raise ValueError(f'ablations is {ablations!r}; give a list without repeats, such as ["scaling", "zero"]')
    check_one_group("ablations", ways)
    asked = Pass.of(model, requests, template, heads=heads)
    return _with_refusals(model, asked.requests, _rank(asked, ways, ranking))


@dataclass(frozen=True)
class Ranking:
    """How heads are ranked, and how certain the top ``k`` are; see ``safety_heads``.

    Raises:
        ValueError: if ``k`` or ``score`` is not valid.
    """

    k: int
    score: Score
    r: int
    seed: int

    def __post_init__(self) -> None:
        check_at_least(1, k=self.k)
        check_known("score", self.score, get_args(Score))


def _default_score(requests: Requests, harmless: Requests) -> Score:
    """The score that finds most of the heads that are known to refuse, of those that use everything that is given."""
    if harmless is not None:
        return "refusal_contribution"
    return "refusal_attribution" if requests is None else "ships"


def _with_refusals(model: Model, side: Side, found: dict[str, SafetyHeads]) -> dict[str, SafetyHeads]:
    """The results with how many of the requests the model refuses, if every head is measured.

    After Ctrl-C while answers are written, the results are complete but for this, and say that they were interrupted.
    """
    if any(each.missing or each.provenance["interrupted"] for each in found.values()):
        return found
    refused = None
    with until_interrupted() as interrupts:
        refused = count_refusals(model, side)
    if interrupts.interrupted:
        warn(interrupted_after("every head", "how many requests the model refuses is not known"))
        return {name: each.with_provenance(interrupted=True) for name, each in found.items()}
    return found if refused is None else {name: each.with_provenance(refused=refused) for name, each in found.items()}


def _rank(asked: Pass, ways: Sequence[Ablation], by: Ranking) -> dict[str, SafetyHeads]:
    """Both scores of every head for each ablation, from one pass, with the top heads."""
    cluster = asked.requests.prompts.tokens(asked.model).cluster
    draws = cluster_draws(cluster, _RESAMPLES[by.score], by.seed)
    of_angles = draws if by.score == "generalized_ships" else None
    measured = measure(asked, ways, with_kl=True, r=by.r, draws=of_angles)
    return {way.kind: _safety_heads(found, by, draws) for way, found in zip(ways, measured, strict=True)}


def _by_contribution(
    model: Model, sides: Sides, way: Ablation, by: Ranking, heads: Sequence[HeadLike] | HeadLike | None
) -> SafetyHeads:
    """The heads with the largest Refusal Contribution, and both Ships of all heads that have one."""
    check_r(by.r, sides.harmful.prompts.tokens(model), model)
    found = refusal_contribution(model, sides.harmful.prompts, sides.harmless.prompts, ablation=way, heads=heads)
    about: dict[str, Any] = {"template": sides.template}
    if found.provenance["interrupted"]:
        return _beside_ships(found, None, by, about)
    of_ships = Pass(model, sides.harmful, heads)
    return _beside_ships(found, measure(of_ships, [way], with_kl=True, r=by.r)[0], by, about)


def _by_attribution(asked: Pass, way: Ablation, by: Ranking) -> SafetyHeads:
    """The heads with the largest Refusal attribution, and both Ships of all heads under one ablation."""
    check_r(by.r, asked.requests.prompts.tokens(asked.model), asked.model)
    found = refusal_attribution(
        asked.model, asked.requests.prompts, epsilon=way.epsilon, group=way.group, heads=asked.heads
    )
    about = {"template": asked.requests.template, "ablation": way.kind, "through": way.through}
    return _beside_ships(found, measure(asked, [way], with_kl=True, r=by.r)[0], by, about)


def _beside_ships(found: HeadScores, ships: Measured | None, by: Ranking, about: dict[str, Any]) -> SafetyHeads:
    """The heads with the largest score, and both Ships of all heads that have one; None if these were not reached."""
    known = np.isfinite(found.scores.values)
    columns = {name: np.full(known.shape, np.nan) for name in (*_SHIPS, *_ANGLES)}
    if ships is not None:
        columns = _columns(ships)
    interrupted = found.provenance["interrupted"] or bool(np.isnan(columns["ships"][known]).any())
    variables = {name: (("layer", "head"), values) for name, values in columns.items()}
    variables["in_top"] = (("layer", "head"), in_top(found, by.k, seed=by.seed))
    ablation = about.get("ablation", found.provenance["ablation"])
    data = found.dataset.assign(variables).assign_attrs(name=f"safety heads, {ablation}", kind="safety")
    return SafetyHeads(data).with_provenance(k=by.k, score=by.score, r=by.r, interrupted=interrupted, **about)


def _columns(found: Measured) -> dict[str, Float[np.ndarray, "layer head"]]:
    """Ships and Generalized Ships with their intervals."""
    low, high = bounded_interval(found.kl, found.tokens.cluster, bounds=kind_of("ships").bounds)
    return dict(zip((*_SHIPS, *_ANGLES), (mean_over_prompts(found.kl), low, high, *found.angle), strict=True))


def _safety_heads(found: Measured, by: Ranking, draws: Float[np.ndarray, "draw prompt"]) -> SafetyHeads:
    kind = found.provenance["ablation"]
    variables = {name: (("layer", "head"), values) for name, values in _columns(found).items()}
    about: dict[str, Any] = {
        "name": f"safety heads, {kind}",
        "kind": "safety",
        "provenance": make_provenance(found.provenance, k=by.k, score=by.score, seed=by.seed),
    }
    if by.score == "ships":
        resampled = np.moveaxis(found.kl @ draws.T / draws.sum(1), -1, 0)
        variables["in_top"] = (("layer", "head"), _in_top(found, resampled, by.k))
        shared = {"cluster": found.tokens.cluster, "seed": by.seed, "variables": variables}
        return SafetyHeads.from_values(found.kl, **shared, **about)
    variables["in_top"] = (("layer", "head"), _in_top(found, found.resampled, by.k))
    angle, angle_low, angle_high = found.angle
    return SafetyHeads.from_scores(
        angle, unit="degrees", interval=(angle_low, angle_high), variables=variables, **about
    )


def _in_top(
    found: Measured, resampled: Float[np.ndarray, "draw layer head"], k: int
) -> Float[np.ndarray, "layer head"]:
    """The share of resamples in which a head, or its group, is among the first ``k``."""
    size = found.provenance["together"]
    return np.repeat(top_shares(resampled[..., ::size], k), size, axis=1)


class SafetyHeads(HeadScores):
    """The score that ranks a model's safety heads, with Ships and Generalized Ships of every head.

    ``score`` is the requested score; ``values`` has the score of each prompt, except for Generalized Ships. Further
    variables over (layer, head): ``ships`` in nats and ``generalized_ships`` in degrees, each with ``_low`` and
    ``_high``; and ``in_top``, the share of resamples of the prompts in which a head is among the top k. ``top`` and
    ``heads`` give the requested ``k`` heads by default. ``provenance["refused"]`` says how many requests the intact
    model refuses, by the rules, in short answers: ``n`` of ``of``; and ``same``, to how many it gives one and the same
    answer that does not refuse, if these are most of them. It is missing if no answer could be judged.
    """

    KIND = "safety"

    @property
    def k(self) -> int:
        """How many heads were requested."""
        return self.provenance["k"]

    @property
    def generalized_ships(self) -> xr.DataArray:
        """Generalized Ships in degrees, (layer, head)."""
        return self.dataset["generalized_ships"]

    def top(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> pd.DataFrame:
        """The ``k`` rows of ``to_dataframe`` with the largest score."""
        return super().top(self.k if k is None else k, by)

    def heads(self, k: int | None = None, by: Literal["score", "absolute"] = "score") -> tuple[HeadId, ...]:
        """The ``k`` heads with the largest score."""
        return super().heads(self.k if k is None else k, by)

    def to_dataframe(self) -> pd.DataFrame:
        """One row per head, as in ``HeadScores``, with both scores, their intervals and ``in_top``."""
        names = (*_SHIPS, *_ANGLES, "in_top")
        return super().to_dataframe().assign(**{name: self.dataset[name].values.ravel() for name in names})
