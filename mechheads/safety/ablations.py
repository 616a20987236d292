"""How a head is taken out: the two ablations of the safety-head paper, and zero, mean and resample beside them.

| paper | here |
|---|---|
| Undifferentiated Attention, W_q (or W_k) times epsilon | ``"undifferentiated"``, ``epsilon``, ``through`` |
| Scaling Contribution, W_v times epsilon | ``"scaling"``, ``epsilon`` |

Zhou et al., ICLR 2025, arXiv 2410.13708. Under grouped-query attention W_k and W_v belong to several query heads, which
the paper does not treat: here one query head is ablated at a time, or with ``group="kv"`` all that share a key/value
head. Epsilon is taken as given, also where it is 0: then attention is exactly the causal mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from jaxtyping import Float
from torch import Tensor

from mechheads.backends.base import Hook
from mechheads.generation import HeadChange
from mechheads.heads import HeadId, HeadLike, check_heads
from mechheads.interventions import Context, Intervention, Mean, Resample, Scale, Site, UniformAttention, Zero
from mechheads.suggest import did_you_mean

if TYPE_CHECKING:
    from mechheads.cache import HeadCache
    from mechheads.model import Model

Kind = Literal["undifferentiated", "scaling", "zero", "mean", "resample"]
Through = Literal["q", "k"]
Group = Literal["query", "kv"]
KINDS: tuple[str, ...] = get_args(Kind)
_SCALED = ("undifferentiated", "scaling")


@dataclass(frozen=True, eq=False)
class MeanOf:
    """z becomes its mean over all real tokens of a given run, which need not be the one that is intervened on."""

    run: HeadCache
    needs: ClassVar = ()

    def __call__(self, value: Float[Tensor, "prompt pos d_head"], context: Context) -> Tensor:
        return self.of(context.head).to(value).expand_as(value)

    def of(self, head: HeadId) -> Float[Tensor, " d_head"]:
        """The mean of one head."""
        real = self.run.tokens.mask[..., None]
        return (self.run.z[head].float() * real).sum((0, 1)) / real.sum()


@dataclass(frozen=True)
class Ablation:
    """One way of taking a head out.

    Args:
        kind: ``"undifferentiated"``, ``"scaling"``, ``"zero"``, ``"mean"`` or ``"resample"``.
        epsilon: what is left of q or z under the first two.
        through: whether q or k shrinks under ``"undifferentiated"``.
        group: ``"query"``, one query head at a time, or ``"kv"``, all that share a key/value head.
        seed: of the other prompts that ``"resample"`` takes z from.

    Raises:
        ValueError: for anything else.

    >>> from mechheads.safety.ablations import Ablation
    >>> Ablation("scaling", 0.0).intervention
    Scale(factor=0.0)
    """

    kind: str
    epsilon: float = 1e-4
    through: str = "q"
    group: str = "query"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value, known in (
            ("ablation", self.kind, KINDS),
            ("through", self.through, get_args(Through)),
            ("group", self.group, get_args(Group)),
        ):
            if value not in known:
                meant = did_you_mean(value, known)
                raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, known))}.{meant}")
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise ValueError(f"epsilon is {self.epsilon}; it must be a finite number of 0 or more (the paper's: 1e-4)")

    @property
    def intervention(self) -> Intervention:
        """What the head's activation becomes."""
        made: dict[str, Intervention] = {
            "undifferentiated": UniformAttention(self.epsilon, "k" if self.through == "k" else "q"),
            "scaling": Scale(self.epsilon),
            "zero": Zero(),
            "mean": Mean(),
            "resample": Resample(self.seed),
        }
        return made[self.kind]

    def beside_others(self, run: HeadCache) -> Intervention:
        """``intervention`` where other heads are ablated already: a mean stays that of the intact ``run``."""
        return MeanOf(run) if self.kind == "mean" else self.intervention

    def together(self, model: Model) -> int:
        """How many query heads are ablated at once."""
        return 1 if self.group == "query" else model.n_heads // model.n_kv_heads

    def units(self, model: Model, heads: Sequence[HeadLike] | HeadLike | None) -> tuple[HeadId, ...]:
        """The first query head of each unit that is ablated on its own."""
        size = self.together(model)
        chosen = check_heads(heads, model.n_layers, model.n_heads)
        return tuple(dict.fromkeys(HeadId(head.layer, head.head - head.head % size) for head in chosen))

    def about(self, model: Model) -> dict[str, Any]:
        """What a result must remember of it."""
        size = self.together(model)
        return {
            "ablation": self.kind,
            "epsilon": self.epsilon if self.kind in _SCALED else None,
            "through": self.through if self.kind == "undifferentiated" else None,
            "ablated": "one query head at a time" if size == 1 else f"the {size} query heads of a key/value head",
            "group": self.group,
            "intervention": repr(self.intervention),
        }

    def changes(self, model: Model, heads: Sequence[HeadId], run: HeadCache | None = None) -> list[HeadChange]:
        """What becomes of heads in every row and at every position, whatever is run.

        Args:
            heads: query heads; each is ablated as it would be alone.
            run: prompts over whose tokens ``"mean"`` is taken.

        Raises:
            ValueError: for ``"resample"``, and ``"mean"`` without ``run``.
        """
        self.check_for_sets()
        if self.kind == "mean" and run is None:
            raise ValueError("ablation is 'mean' and there is no run to take the mean over")
        return [HeadChange(head.layer, head.head, self._site, self._change(head, run)) for head in heads]

    def hooks(self, model: Model, heads: Sequence[HeadId], run: HeadCache | None = None) -> list[Hook]:
        """``changes`` as hooks: with them on, the model is the one without these heads."""
        at: dict[str, list[HeadChange]] = {}
        for change in self.changes(model, heads, run):
            at.setdefault(model.hook_name(change.site, change.layer), []).append(change)
        return [(name, _put(changes)) for name, changes in at.items()]

    def check_for_sets(self) -> None:
        """Make sure that it can ablate several heads at once, for any row.

        Raises:
            ValueError: for ``"resample"``, which gives each prompt the z of one other.
        """
        if self.kind == "resample":
            others = ", ".join(repr(kind) for kind in KINDS if kind != self.kind)
            raise ValueError(
                f"ablation is 'resample', which takes z from given prompts; for sets of heads choose {others}"
            )

    @property
    def _site(self) -> Site:
        """Where it acts on one query head alone: k is shared, and to shrink q instead is the same."""
        return "scored_q" if self.kind == "undifferentiated" else "z"

    def _change(self, head: HeadId, run: HeadCache | None) -> Callable[[Tensor], Tensor]:
        if self.kind == "mean" and run is not None:
            mean = MeanOf(run).of(head)
            return lambda value: mean.to(value).expand_as(value)
        factor = self.epsilon if self.kind in _SCALED else 0.0
        return lambda value: value * factor


def _put(changes: list[HeadChange]) -> Callable[..., Tensor]:
    def put(value: Tensor, hook: Any) -> Tensor:
        value = value.clone()
        for change in changes:
            value[:, :, change.head] = change.function(value[:, :, change.head])
        return value

    return put
