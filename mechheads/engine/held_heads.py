"""Heads that are ablated all the time, while others are changed one by one: ``given=``.

What an intervention makes of the z of such a head is computed once, from the intact runs, and the head keeps it
whatever else is changed. So the base run of a sweep is the run with these heads ablated, and the cone that a change
recomputes is the same. The source run of pairs is another run of the same ablated model: there, the interventions find
that run in the place of both, so a patch leaves it as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from mechheads.engine.cached_runs import CachedRuns, other_side
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions.base import Intervention, needs_of, site_of
from mechheads.interventions.basic import InterventionLike, Zero, as_intervention
from mechheads.interventions.new_z import Finite, all_new_z, new_z
from mechheads.limits import Limits
from mechheads.model.core import ModelCore
from mechheads.runs.head_cache import tokens_in_run

Given = Sequence[HeadLike] | HeadLike | Mapping[Any, InterventionLike]
"""Heads that are set to zero, or the intervention that ablates each."""
_ZERO = Zero()
Held = tuple[tuple[HeadId, Intervention], ...]
"""The heads that are ablated all the time, in order, and how."""


def held_by(given: Given | None, model: ModelCore, name: str = "given", otherwise: Intervention = _ZERO) -> Held:
    """The heads that ``given=`` names, and how each is ablated.

    Args:
        name: the argument's name, for messages.
        otherwise: how heads are ablated that are given without an intervention.

    Raises:
        ValueError: if a head or an intervention is not valid.

    >>> held_by({"L23H4": "mean"}, model)
    ((HeadId(layer=23, head=4), Mean()),)
    """
    if given is None:
        return ()
    try:
        heads = check_heads([*given] if isinstance(given, Mapping) else given, model.n_layers, model.n_heads)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(given, Mapping):
        return tuple((head, otherwise) for head in heads)
    rules: dict[HeadId, InterventionLike] = {HeadId.parse(head): rule for head, rule in given.items()}
    return tuple((head, as_intervention(rules[head], f"{name}[{str(head)!r}]")) for head in heads)


def runs_given(runs: CachedRuns, held: Held, base: str, limits: Limits) -> CachedRuns:
    """The runs of the same prompts in which heads are ablated, which run once more without that.

    Args:
        runs: the intact runs.
        base: the side that is the base run, if there are two.
    """
    sites = tuple(dict.fromkeys(("z", *(site for _, rule in held for site in (site_of(rule), *needs_of(rule))))))
    intact = {side: runs.run(side, sites, limits) for side in runs.tokens}
    for run in intact.values():
        run.claim()
    z: dict[str, dict[HeadId, Tensor]] = {}
    for side, run in intact.items():
        source = None if len(intact) == 1 else intact[other_side(side)] if side == base else run
        pos = run.tokens.ids.shape[1]
        rows = max(1, tokens_in_run(runs.model, limits, pos) // pos)
        z[side] = {}
        for head, rule in held:
            on_z = site_of(rule) == "z"
            of_all = None if on_z else all_new_z(runs.model, run, source, rule, None, [head.layer], rows)
            finite = Finite(rule)
            z[side][head] = new_z(rule, run, source, [head], None, finite, of_all)[0][:, 0]
            finite.check()
    return runs.with_held(z)
