"""The metric on where a head looks: its attention from one token to another."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mechheads.heads import HeadId, HeadLike
from mechheads.messages.arguments import checked
from mechheads.metrics.base import Activation, MetricContext, positions_of


@dataclass(frozen=True)
class AttentionTo:
    """A head's attention from a query to a key; see ``attention_to``, which makes it."""

    head: HeadId
    key: str | int
    query: str | int
    log: bool
    null = 0.0
    vocab = "all"
    share = False

    @property
    def __name__(self) -> str:
        return f"{'log ' * self.log}attention of {self.head} from {_shown(self.query)} to {_shown(self.key)}"

    @property
    def reads(self) -> tuple[str | int]:
        return (self.query,)

    @property
    def activation(self) -> Activation:
        return Activation(self.head, "pattern")

    @property
    def unit(self) -> str:
        return "nats" if self.log else "share of attention"

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        return (None, 0) if self.log else (0, 1)

    def __call__(self, pattern: Float[Tensor, "prompt query key"], context: MetricContext) -> Float[Tensor, " prompt"]:
        at = positions_of([self.key], context.tokens, "key:")
        there, before = (each[:, 0].gather(1, at)[:, 0] for each in (pattern, context.base))
        if (hidden := before == 0).any():
            prompt = int(hidden.long().argmax())
            raise ValueError(
                f"key: {self.head} gives token {int(at[prompt])} of prompt {prompt} no attention at all from "
                f"{_shown(self.query)}, because it comes later or outside the head's window; give a key that the "
                "query sees"
            )
        return there.log() if self.log else there


@checked
def attention_to(head: HeadLike, key: str | int, *, query: str | int = "last", log: bool = False) -> AttentionTo:
    """A metric on where a head looks: its attention from a query to a key.

    It is ``metric=`` of ``mh.sweep``, ``mh.ablate``, ``mh.activation_patch`` and ``mh.path_patch``: which heads make
    this head look there? The run ends at the head's layer, before its MLP, and no logits are computed. So it costs
    less than a metric of logits, and the effect of heads of this layer and later ones is exactly 0.

    Args:
        head: the head whose pattern is read.
        key: the token that is attended to: the name of one of the prompts' positions, the text of a token that each
            prompt has once, or a token index, of which negative ones count from the end.
        query: the token that attends, in the same way.
        log: measure the log of the attention, in nats. A small share can grow many times over, and a change of the
            log shows it. A share that is rounded to 0 has no log, so that head's effect is NaN.

    Returns:
        The metric: the share of the attention, between 0 and 1, or its log.

    Raises:
        ValueError: if the head cannot be parsed. An analysis that gets the metric raises if the prompts do not have
            the positions, or the head does not see the key from the query.

    >>> prompts = mh.Prompts(["The capital of France is"], positions={"country": [" France"]})
    >>> looks = mh.patching.attention_to("L17H5", "country")
    >>> effect = mh.ablate(model, prompts, metric=looks, progress=False)
    >>> effect.unit, bool((abs(effect.scores.sel(layer=slice(17, None))) == 0).all())
    ('share of attention', True)
    """
    return AttentionTo(HeadId.parse(head), key, query, log)


def _shown(place: str | int) -> str:
    return place if isinstance(place, str) else f"token {place}"
