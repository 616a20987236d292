"""Ablations of a head: the two of the safety-head paper, and zero, mean and resample for comparison.

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``Ablation("undifferentiated", epsilon, through)`` |
| Scaling Contribution, W_v times epsilon | ``Ablation("scaling", epsilon)`` |

Zhou et al., ICLR 2025, arXiv 2410.13708. With grouped-query attention several query heads share W_k and W_v, a case
that the paper does not discuss. Here one query head is ablated at a time, or with ``group="kv"`` all query heads that
share a key/value head. Epsilon may also be 0: then the head attends to all tokens so far exactly equally.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from mechheads.heads import HeadId
from mechheads.interventions.base import Intervention, Site
from mechheads.interventions.basic import Mean, MeanOf, Resample, Scale, UniformAttention, Zero
from mechheads.interventions.head_change import EVERYWHERE, HeadChange, change_hooks
from mechheads.limits import current
from mechheads.messages.arguments import check_known
from mechheads.model.backends.base import Hook
from mechheads.model.model import Model
from mechheads.runs.head_cache import HeadCache
from mechheads.safety.heads.groups import Group, Groups

Kind = Literal["undifferentiated", "scaling", "zero", "mean", "resample"]
Through = Literal["q", "k"]
KINDS: tuple[str, ...] = get_args(Kind)
"""The names that ``ablation=`` accepts."""
PATCH = "patch"
"""What ``refusal_contribution`` accepts besides: z as in the look-alike, which only a request with one has."""
PAPER_KINDS: tuple[Kind, ...] = ("undifferentiated", "scaling")
"""The ablations of the paper, which scale a weight by epsilon."""


@dataclass(frozen=True)
class Ablation:
    """A way to ablate a head, for ``ablation=`` in place of a name.

    Args:
        kind: ``"undifferentiated"`` (the head's queries times epsilon, so that it attends equally to all tokens so
            far), ``"scaling"`` (its output times epsilon, so that it writes almost nothing), or ``"zero"``, ``"mean"``
            or ``"resample"`` for comparison, as in ``mh.ablate``. ``"patch"`` is for ``mh.safety.refusal_contribution``
            alone.
        epsilon: the factor of the first two, 0 or more; the paper's code uses 1e-4 for scores of single heads.
        through: whether q or k is scaled by ``"undifferentiated"``; for one query head the scores are the same.
        group: ``"query"``: one query head at a time, without changing other heads that share its keys and values;
            ``"kv"``: all query heads that share a key/value head at once. Each of them gets the common score, and
            ``top`` and ``heads`` name the group once, by its first head.

    Raises:
        ValueError: if an argument is anything else.

    >>> mh.safety.Ablation("scaling", epsilon=0.0).intervention
    Scale(factor=0.0)
    """

    kind: Kind | Literal["patch"]
    epsilon: float = 1e-4
    through: Through = "q"
    group: Group = "query"

    def __post_init__(self) -> None:
        check_known("ablation", self.kind, (*KINDS, PATCH))
        check_known("through", self.through, get_args(Through))
        check_known("group", self.group, get_args(Group))
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon is {self.epsilon}; it must be a finite number of 0 or more (the paper's: 1e-4)")

    @classmethod
    def of(cls, ablation: AblationLike, epsilon: float = 1e-4) -> Ablation:
        """The ablation that ``ablation=`` asks for; a name has this ``epsilon``.

        Raises:
            ValueError: if there is no ablation of this name, or it is ``"patch"``.
        """
        check_known("ablation", ablation.kind if isinstance(ablation, Ablation) else ablation, KINDS)
        return ablation if isinstance(ablation, Ablation) else cls(ablation, epsilon)

    @property
    def intervention(self) -> Intervention:
        """The intervention that ablates the head; ``"resample"`` draws the other prompts by the seed in effect."""
        made: dict[str, Intervention] = {
            "undifferentiated": UniformAttention(self.epsilon, self.through),
            "scaling": Scale(self.epsilon),
            "zero": Zero(),
            "mean": Mean(),
            "resample": Resample(current().seed),
        }
        return made[self.kind]

    def beside_others(self, run: HeadCache) -> Intervention:
        """``intervention`` for use while other heads are ablated: a mean is still taken from the intact ``run``."""
        return MeanOf(run) if self.kind == "mean" else self.intervention

    def groups(self, model: Model) -> Groups:
        """The groups of query heads that are ablated together."""
        return Groups.of(model, self.group)

    def about(self, model: Model) -> dict[str, Any]:
        """What a result records about the ablation."""
        groups = self.groups(model)
        return {
            "ablation": self.kind,
            "epsilon": self.epsilon if self.kind in PAPER_KINDS else None,
            "through": self.through if self.kind == "undifferentiated" else None,
            "ablated": str(groups),
            **groups.about(),
            "group": self.group,
            "intervention": repr(self.intervention),
        }

    def changes(self, model: Model, heads: Sequence[HeadId], run: HeadCache | None = None) -> list[HeadChange]:
        """The changes that ablate heads together, in every prompt and at every position.

        Args:
            heads: query heads; each is ablated as it would be alone.
            run: a run over whose tokens ``"mean"`` is taken.

        Raises:
            ValueError: for ``"resample"``, and for ``"mean"`` without ``run``.
        """
        self.check_for_sets()
        if self.kind == "mean" and run is None:
            raise ValueError("ablation is 'mean', which needs a run to take the mean over; give run=")
        return [HeadChange(head.layer, head.head, self._site, self._change(head, run)) for head in heads]

    def hooks(self, model: Model, heads: Sequence[HeadId], run: HeadCache | None = None) -> list[Hook]:
        """``changes`` as hooks: with them the model runs without these heads."""
        return change_hooks(model, [(change, EVERYWHERE) for change in self.changes(model, heads, run)])

    def check_for_sets(self) -> None:
        """Check that this ablation can ablate several heads at once, in any prompt.

        Raises:
            ValueError: for ``"resample"``, which gives each prompt the z of another one.
        """
        if self.kind == "resample":
            others = ", ".join(repr(kind) for kind in KINDS if kind != self.kind)
            raise ValueError(
                f"ablation is 'resample', which takes z from another prompt; for sets of heads choose {others}"
            )

    @property
    def _site(self) -> Site:
        """The site at which a single query head is changed: k is shared, and scaling q instead has the same effect."""
        return "scored_q" if self.kind == "undifferentiated" else "z"

    def _change(self, head: HeadId, run: HeadCache | None) -> Callable[[Tensor], Tensor]:
        if self.kind == "mean" and run is not None:
            mean = MeanOf(run).of(head)
            return lambda value: mean.to(value).expand_as(value)
        factor = self.epsilon if self.kind in PAPER_KINDS else 0.0
        return lambda value: value * factor


AblationLike = Kind | Ablation
"""The type of ``ablation=``: a name, or an ``Ablation``, which says more."""


def check_one_group(name: str, ways: Iterable[Ablation]) -> None:
    """Check that ablations that share runs and random heads have the same ``group``.

    Args:
        name: the argument's name, for messages.

    Raises:
        ValueError: if they have not.
    """
    groups = dict.fromkeys(way.group for way in ways)
    if len(groups) > 1:
        raise ValueError(f"{name} have group {' and '.join(map(repr, groups))}; give all of them the same group")
